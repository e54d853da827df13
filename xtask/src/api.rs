//! `cargo xtask api`: the public items of each library crate, one a line, as checked in beside the crate.
//!
//! A change of the surface is so a change of a file, which a reviewer sees. The list is made by `public-api` from
//! rustdoc's JSON, whose format belongs to a version of Rust: with another one the check is skipped, with the reason.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cargo_metadata::{Metadata, Package, TargetKind};

use crate::Error;
use crate::cli::ApiOptions;
use crate::console::say;
use crate::process::{Call, RUSTDOC_WITH_JSON, this_program};
use crate::workspace::{self, read_text};

/// The list of a crate, in its folder.
const FILE: &str = "api.txt";

/// Compares the public items with the checked-in lists, or writes these.
///
/// # Errors
/// When a list differs, the documentation cannot be built, or a file cannot be read or written.
pub fn run(options: ApiOptions) -> Result<(), Error> {
    let metadata = workspace::metadata()?;
    let call = document();
    say(format_args!("   {call}"));
    call.run(metadata.workspace_root.as_std_path())?;
    let mut differing = 0;
    for library in libraries(&metadata) {
        let Some(items) = items(&library.json)? else {
            say("   skipped: this Rust writes another format of rustdoc's JSON than `public-api` reads");
            return Ok(());
        };
        differing += usize::from(settle(&library, &items, options)?);
    }
    if differing == 0 { Ok(()) } else { Err(Error::Problems { check: "api", count: differing }) }
}

/// Documents all libraries as JSON, which warns of what HTML would warn of. Only rustdoc itself is told to allow what is
/// unstable: a variable for the whole call would build every dependency again.
fn document() -> Call {
    Call::cargo(["doc", "--workspace", "--no-deps", "--all-features", "--lib", "--quiet"])
        .env("RUSTDOC", this_program())
        .env(RUSTDOC_WITH_JSON, "1")
        .env("RUSTDOCFLAGS", "-D warnings -Z unstable-options --output-format json")
}

/// A library that is published.
struct Library {
    name: String,
    list: PathBuf,
    json: PathBuf,
}

fn libraries(metadata: &Metadata) -> Vec<Library> {
    let is_published = |package: &&&Package| package.publish.as_ref().is_none_or(|to| !to.is_empty());
    let docs = metadata.target_directory.as_std_path().join("doc");
    let library = |package: &&Package| {
        let is_library =
            |kinds: &[TargetKind]| kinds.contains(&TargetKind::Lib) || kinds.contains(&TargetKind::ProcMacro);
        let target = package.targets.iter().find(|target| is_library(&target.kind))?;
        Some(Library {
            name: package.name.to_string(),
            list: package.manifest_path.as_std_path().with_file_name(FILE),
            json: docs.join(format!("{}.json", target.name.replace('-', "_"))),
        })
    };
    metadata.workspace_packages().iter().filter(is_published).filter_map(library).collect()
}

/// The public items, one a line; `None` if the JSON is of another format.
fn items(json: &Path) -> Result<Option<String>, Error> {
    let listed = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    match listed {
        Ok(api) => Ok(Some(api.items().map(ToString::to_string).collect::<Vec<_>>().join("\n") + "\n")),
        // The format of another version of Rust.
        Err(public_api::Error::SerdeJsonError(_)) => Ok(None),
        Err(source) => Err(Error::Api { json: json.to_owned(), source }),
    }
}

/// Writes the list, or says whether the items differ from it.
fn settle(library: &Library, items: &str, options: ApiOptions) -> Result<bool, Error> {
    let list = &library.list;
    if options.update {
        std::fs::write(list, items).map_err(Error::write(list))?;
        return Ok(false);
    }
    let known = if list.exists() { read_text(list.clone())?.unwrap_or_default() } else { String::new() };
    let changes = changes(&known, items);
    if !changes.is_empty() {
        say(format_args!("{}: its public items differ from {FILE}:\n{changes}", library.name));
        say("  if that is meant: `cargo xtask api --update`");
    }
    Ok(!changes.is_empty())
}

/// The lines that went and that came.
fn changes(known: &str, items: &str) -> String {
    let (known, items): (BTreeSet<&str>, BTreeSet<&str>) = (known.lines().collect(), items.lines().collect());
    let gone = known.difference(&items).map(|item| format!("  - {item}\n"));
    gone.chain(items.difference(&known).map(|item| format!("  + {item}\n"))).collect()
}

#[cfg(test)]
mod tests {
    use super::changes;

    #[test]
    fn changes_name_what_went_and_what_came() {
        assert_eq!(changes("pub fn a()\npub fn b()\n", "pub fn a()\npub fn b()\n"), "");
        let changed = changes("pub fn a()\npub fn b()\n", "pub fn a()\npub fn c()\n");
        assert_eq!(changed, "  - pub fn b()\n  + pub fn c()\n");
    }
}
