//! `stepfold new`, `completions` and `man`: a first agent, and the command in shells and manuals.

use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;
use serde_json::json;

use crate::args::CommandLine;
use crate::error::{CommandEnding, UsageError};
use crate::show;

/// The files of an agent that is described in TOML.
const AGENT: [(&str, &str); 3] = [
    ("agent.toml", include_str!("../../templates/agent/agent.toml")),
    ("agent.script", include_str!("../../templates/agent/agent.script")),
    ("test.sh", include_str!("../../templates/agent/test.sh")),
];

const MANIFEST: &str = include_str!("../../templates/rust/Cargo.toml.txt");
const PROGRAM: &str = include_str!("../../templates/rust/main.rs");

/// Writes a first agent into a new folder.
pub(super) fn new(folder: &Path, is_rust: bool, json: bool) -> anyhow::Result<CommandEnding> {
    let files = match is_rust {
        true => {
            let manifest = MANIFEST.replace("NAME", &crate_name(folder)?).replace("STEPFOLD", &dependency());
            vec![("Cargo.toml", manifest), ("src/main.rs", PROGRAM.to_owned())]
        }
        false => AGENT.iter().map(|(name, text)| (*name, (*text).to_owned())).collect(),
    };
    write(folder, &files)?;
    let shown = crate::argument_text::shell_quoted(&folder.to_string_lossy());
    if json {
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        show::line(json!({"files": names, "folder": folder}).to_string());
        return Ok(CommandEnding::Done);
    }
    for (name, _) in &files {
        show::line(folder.join(name).display().to_string());
    }
    show::aside(&match is_rust {
        true => format!("try it: cd {shown} && cargo run"),
        false => format!("try it: cd {shown} && stepfold run agent.toml 'Remind me to buy tea.'"),
    });
    Ok(CommandEnding::Done)
}

/// Writes files into a folder that must be new.
fn write(folder: &Path, files: &[(&str, String)]) -> anyhow::Result<()> {
    let failed = || format!("folder {} could not be created", folder.display());
    // NOTE: One call creates it, or fails if it is there: no file of the user is ever overwritten.
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let words = format!("{} already exists; choose another name", folder.display());
            return Err(UsageError(words).into());
        }
        created => created.with_context(failed)?,
    }
    for (name, text) in files {
        let path = folder.join(name);
        if let Some(inner) = path.parent() {
            std::fs::create_dir_all(inner).with_context(failed)?;
        }
        std::fs::write(&path, text).with_context(|| format!("{} could not be written", path.display()))?;
    }
    Ok(())
}

/// The name of a crate in this folder.
fn crate_name(folder: &Path) -> Result<String, UsageError> {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_valid = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    // NOTE: A package of this name could not depend on the library.
    if !is_valid || name == "stepfold" {
        let words =
            "a crate's name has letters, digits, `-` and `_`, begins with a letter, and is not `stepfold`";
        return Err(UsageError(format!("invalid name `{name}`: {words}")));
    }
    Ok(name)
}

/// The dependency on the library: the clone that this command was built from while it exists, otherwise the registry.
fn dependency() -> String {
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("stepfold");
    match built_from.join("Cargo.toml").is_file() {
        true => format!("{{ path = {:?} }}", built_from.display().to_string()),
        false => format!("{:?}", env!("CARGO_PKG_VERSION")),
    }
}

/// Prints the completions of a shell.
pub(super) fn completions(shell: Shell) -> CommandEnding {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "stepfold", &mut script);
    show::print(String::from_utf8_lossy(&script).into_owned());
    CommandEnding::Done
}

/// Writes the manual pages into a folder, one for each command.
pub(super) fn man(folder: &Path, json: bool) -> anyhow::Result<CommandEnding> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("folder {} could not be created", folder.display()))?;
    clap_mangen::generate_to(CommandLine::command(), folder)
        .with_context(|| format!("manual pages could not be written to {}", folder.display()))?;
    show::line(match json {
        true => json!({"folder": folder}).to_string(),
        false => {
            format!("{}; `man -l {}` shows the first", folder.display(), folder.join("stepfold.1").display())
        }
    });
    Ok(CommandEnding::Done)
}
