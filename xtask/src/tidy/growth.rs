//! Growth: a public enum, and a struct with public fields, is `#[non_exhaustive]`, or closed for a reason.
//!
//! The lists of public items say which is. `docs/stability.md` has the policy.

use std::collections::BTreeMap;

use super::{File, Problem};

/// Types that never grow, each with the reason: a `match` that misses a case, or a literal that misses a field, is a
/// fault that the compiler should find.
const CLOSED: &[(&str, &str)] = &[
    ("stepfold_graph::progress::Mode", "the form of another program's records"),
    (
        "stepfold_graph::progress::NodeErrorRecord",
        "the form of another program's records; unknown fields are extras",
    ),
    (
        "stepfold_graph::progress::NodeOutput",
        "the form of another program's records; unknown fields are extras",
    ),
    ("stepfold_graph::progress::ResearchDepth", "the form of another program's records"),
    (
        "stepfold_graph::progress::ResearchState",
        "the form of another program's records; unknown fields are extras",
    ),
    (
        "stepfold_graph::progress::RouterDecision",
        "the form of another program's records; unknown fields are extras",
    ),
    ("stepfold_graph::progress::Task", "the form of another program's records; unknown fields are extras"),
    ("stepfold_runner::Remedy", "what to do about an error: all of it has to be decided"),
    ("stepfold_session_scopes::Adopted", "the fate of a stored value: each has to be decided"),
    ("stepfold_session_scopes::ByScope", "one value for each stored scope"),
    ("stepfold_session_scopes::Expected", "a version or any"),
    (
        "stepfold_session_scopes::Scope",
        "the prefixes of keys; another one would change what stored keys mean",
    ),
    ("stepfold_session_scopes::ScopeKey", "the scopes that sessions share"),
    ("stepfold_session_scopes::ScopeVersions", "the scopes that sessions share"),
    ("stepfold_session_scopes::SessionKey", "the address of a session, which is stored"),
    ("stepfold_terminal::Color", "the values of `--color` in the field"),
    ("stepfold_terminal::DisplayForm", "a terminal or not: all that is printed has both"),
    ("stepfold_terminal::ViewItem", "what a program has to print: a piece that is ignored is lost text"),
    ("stepfold_tools::Effect", "what may happen to a call after a crash: all of it has to be decided"),
];

/// A type whose growth would break programs.
#[derive(Default)]
struct Open {
    line: usize,
    kind: &'static str,
    has_public_parts: bool,
}

/// Types of a list of public items that may not grow and are not closed.
pub(super) fn check(file: &File) -> Vec<Problem> {
    let mut types: BTreeMap<&str, Open> = BTreeMap::new();
    for (index, line) in file.text.lines().enumerate() {
        if let Some((kind, name)) = declared(line) {
            types.insert(name, Open { line: index + 1, kind, has_public_parts: false });
        } else if let Some(found) = owner(line).and_then(|name| types.get_mut(name)) {
            found.has_public_parts = true;
        }
    }
    let is_closed = |name: &str| CLOSED.iter().any(|(closed, _)| *closed == name);
    let found = types.into_iter().filter(|(name, found)| found.has_public_parts && !is_closed(name));
    found
        .map(|(name, found)| {
            let kind = found.kind;
            let message = format!(
                "the {kind} {name} cannot grow without a break; make it #[non_exhaustive], with a constructor if users \
                 build it, or name it in CLOSED of xtask/src/tidy/growth.rs, with the reason"
            );
            Problem::new(file, found.line, message)
        })
        .collect()
}

/// The kind and the name of an exhaustive type that is declared in this line.
fn declared(line: &str) -> Option<(&'static str, &str)> {
    let (kind, rest) = match (line.strip_prefix("pub enum "), line.strip_prefix("pub struct ")) {
        (Some(rest), _) => ("enum", rest),
        (_, Some(rest)) => ("struct", rest),
        _ => return None,
    };
    Some((kind, rest.split(['<', '(', ' ']).next()?))
}

/// The type that a variant or a public field belongs to.
fn owner(line: &str) -> Option<&str> {
    let path = line.strip_prefix("pub ")?.split(": ").next()?.split('(').next()?;
    let is_path = path.chars().all(|character| character.is_alphanumeric() || "_:".contains(character));
    path.rsplit_once("::").filter(|_| is_path).map(|(owner, _)| owner)
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::testing::{file, lines};

    #[track_caller]
    fn expect(text: &str, found: &[&str]) {
        let problems = lines(&check(&file("crates/a/api.txt", text)));
        let names: Vec<String> = problems
            .iter()
            .map(|problem| problem.split(" cannot").next().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(names, found, "{text}");
    }

    #[test]
    fn types_that_cannot_grow_are_found() {
        expect("pub enum a::E\npub a::E::One\n", &["1: the enum a::E"]);
        expect("pub enum a::E\npub a::E::One(u64)\n", &["1: the enum a::E"]);
        expect("pub mod a\npub struct a::S<T>\npub a::S::x: u64\n", &["2: the struct a::S"]);
    }

    #[test]
    fn others_pass() {
        for text in [
            "#[non_exhaustive] pub enum a::E\npub a::E::One\n",
            "#[non_exhaustive] pub struct a::S\npub a::S::x: u64\n",
            "pub struct a::S\nimpl a::S\npub fn a::S::new() -> Self\npub const a::S::MAX: u64\n",
            "pub enum a::Never\n",
            "pub struct a::Wrapped(pub u64)\n",
            "pub enum stepfold_tools::Effect\npub stepfold_tools::Effect::Pure\n",
        ] {
            expect(text, &[]);
        }
    }
}
