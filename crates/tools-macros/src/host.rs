//! Resolves the path under which generated code finds `stepfold-tools`.
//!
//! A procedural macro has no `$crate`. The user may depend on `stepfold-tools` or only on the facade
//! `stepfold`, so the manifest of the compiled crate is searched for one of the two names. Other cases, such
//! as a renamed dependency, are set with `#[tool(crate = "..")]`.

use std::fs;
use std::path::Path;

use syn::parse_quote;

const TOOLS: &str = "stepfold-tools";
const FACADE: &str = "stepfold";

/// The path of `stepfold-tools` in the compiled crate.
#[expect(
    clippy::disallowed_methods,
    reason = "Cargo passes the compiled crate's directory to a macro in the environment"
)]
pub(crate) fn path() -> syn::Path {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .and_then(|folder| fs::read_to_string(Path::new(&folder).join("Cargo.toml")).ok())
        .unwrap_or_default();
    if has_only_facade(&manifest) { parse_quote!(::stepfold::tools) } else { parse_quote!(::stepfold_tools) }
}

/// Whether the facade is a dependency and `stepfold-tools` is not, or only a development dependency.
fn has_only_facade(manifest: &str) -> bool {
    let dependencies = dependencies(manifest);
    let has = |name: &str| dependencies.iter().any(|(known, _)| *known == name);
    let has_always = |name: &str| dependencies.contains(&(name, true));
    !has_always(TOOLS) && (has_always(FACADE) || (has(FACADE) && !has(TOOLS)))
}

/// The names of all dependencies, each with a flag: true outside development and build dependencies.
fn dependencies(manifest: &str) -> Vec<(&str, bool)> {
    let mut found = Vec::new();
    let mut section = None;
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            section = is_regular_list(header);
            let last = header.rsplit('.').next().unwrap_or(header);
            // NOTE: `[dependencies.name]` is one dependency, not a list of them.
            if section.is_none()
                && let Some((lists, _)) = header.rsplit_once('.')
                && let Some(always) = is_regular_list(lists)
            {
                found.push((unquoted(last), always));
            }
        } else if let (Some(always), Some((name, _))) = (section, line.split_once(['=', '.'])) {
            found.push((unquoted(name), always));
        }
    }
    found
}

/// For the header of a dependency list: true outside development and build dependencies.
fn is_regular_list(header: &str) -> Option<bool> {
    match header.rsplit('.').next().map(str::trim) {
        Some("dependencies") => Some(!header.starts_with("workspace")),
        Some("dev-dependencies" | "build-dependencies") => Some(false),
        _ => None,
    }
}

fn unquoted(name: &str) -> &str {
    name.trim().trim_matches(['"', '\''])
}

#[cfg(test)]
mod tests {
    fn check(manifest: &str, has_only_facade: bool) {
        assert_eq!(super::has_only_facade(manifest), has_only_facade, "{manifest}");
    }

    #[test]
    fn tools_are_found_directly() {
        check("", false);
        check("[dependencies]\nstepfold-tools = \"1\"", false);
        check("[dependencies]\nstepfold-tools.workspace = true\nstepfold = \"1\"", false);
        check("[dependencies.stepfold-tools]\npath = \"x\"\n[dependencies.stepfold]\npath = \"y\"", false);
        check("[dev-dependencies]\nstepfold-tools = \"1\"\nstepfold = \"1\"", false);
        check("[package]\nname = \"stepfold\"\n[dependencies]\nserde = \"1\"", false);
    }

    #[test]
    fn tools_are_found_through_the_facade() {
        check("[dependencies]\nserde = \"1\"\nstepfold = { version = \"1\" }", true);
        check("[dependencies.stepfold]\nversion = \"1\"", true);
        check("[target.'cfg(unix)'.dependencies]\n\"stepfold\" = \"1\"", true);
        check("[dev-dependencies]\nstepfold.workspace = true", true);
        check("[dependencies]\nstepfold = \"1\"\n[dev-dependencies]\nstepfold-tools = \"1\"", true);
    }
}
