//! Names: those of a server's tools in the alphabet that providers accept, and patterns over the server's own names.
//!
//! A mapped name depends on the tool's own name alone, never on other tools: a list that changes during a run renames no
//! tool.

/// The longest name that providers accept, in bytes.
const MAX_BYTES: usize = 64;

/// The hexadecimal digits of a digest in a name.
const DIGITS: usize = 12;

/// The name by which a model calls a tool.
///
/// It is the prefix and the tool's own name if providers accept that. Otherwise other characters are replaced, the
/// excess is cut, and a digest of the tool's own name follows. Valid names that look like that get a digest, too, so
/// that no name of one kind equals a name of the other.
pub(crate) fn mapped(prefix: &str, name: &str) -> String {
    let plain = format!("{prefix}{name}");
    let is_plain = !name.is_empty() && plain.bytes().all(is_accepted) && plain.len() <= MAX_BYTES;
    if is_plain && !has_digest(&plain) {
        return plain;
    }
    let room = MAX_BYTES.saturating_sub(prefix.len() + 1 + DIGITS);
    let readable: String = name.chars().map(accepted).take(room).collect();
    // NOTE: A digest and not a number: a number would move to another tool when the list changes during a run. See
    // docs/decisions/mcp.md.
    let digest = blake3::hash(name.as_bytes()).to_hex();
    format!("{prefix}{readable}_{}", &digest[..DIGITS])
}

/// Whether all characters are among those that providers accept in a name.
pub(crate) fn is_identifier(name: &str) -> bool {
    name.bytes().all(is_accepted)
}

const fn is_accepted(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

fn accepted(character: char) -> char {
    if character.is_ascii_alphanumeric() || character == '-' { character } else { '_' }
}

fn has_digest(name: &str) -> bool {
    let Some((_, end)) = name.rsplit_once('_') else { return false };
    end.len() == DIGITS && end.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Names of tools: `*` stands for any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamePattern(String);

impl NamePattern {
    pub(crate) fn new(pattern: impl Into<String>) -> Self {
        NamePattern(pattern.into())
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else { return self.0 == name };
        let Some(mut left) = name.strip_prefix(first) else { return false };
        let mut pieces: Vec<&str> = rest.split('*').collect();
        let last = pieces.pop().unwrap_or_default();
        for piece in pieces {
            let Some(at) = left.find(piece) else { return false };
            left = &left[at + piece.len()..];
        }
        left.len() >= last.len() && left.ends_with(last)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[track_caller]
    fn check(prefix: &str, name: &str, expected: &str) {
        assert_eq!(mapped(prefix, name), expected);
    }

    #[test]
    fn names_that_providers_accept_stay() {
        check("", "search", "search");
        check("files_", "read-file", "files_read-file");
    }

    #[test]
    fn other_names_have_a_digest_of_the_own_name() {
        check("", "read file", "read_file_12b6d0b10956");
        let digest = |name: &str| blake3::hash(name.as_bytes()).to_hex()[..DIGITS].to_owned();
        check("", "read.file", &format!("read_file_{}", digest("read.file")));
        check("x_", "", &format!("x__{}", digest("")));
        assert_eq!(mapped("files_", &"long".repeat(40)).len(), MAX_BYTES);
        assert!(is_identifier(&mapped("", "日本語/ツール")));
    }

    #[test]
    fn no_two_names_are_mapped_to_one() {
        let mapped_one = mapped("", "read file");
        let mut names =
            vec!["read file".to_owned(), "read.file".to_owned(), "read_file".to_owned(), mapped_one];
        // The same with a part of the name in the prefix, and what that is mapped to in turn.
        names.extend(names.clone().iter().map(|name| mapped("", name)));
        names.extend((0..500).map(|length| "a".repeat(length)));
        let own: BTreeSet<&String> = names.iter().collect();
        let mapped: BTreeSet<String> = own.iter().map(|name| mapped("", name)).collect();
        assert_eq!(mapped.len(), own.len());
        assert!(mapped.iter().all(|name| (1..=MAX_BYTES).contains(&name.len()) && is_identifier(name)));
    }

    #[test]
    fn patterns_match_whole_names() {
        let matches = |pattern: &str, name: &str| NamePattern::new(pattern).matches(name);
        assert!(matches("read", "read"));
        assert!(!matches("read", "read_file"));
        assert!(matches("read*", "read"));
        assert!(matches("*_file", "read_file"));
        assert!(!matches("*_file", "read_files"));
        assert!(matches("r*d*e", "read_file"));
        assert!(!matches("a*a", "a"));
        assert!(matches("*", ""));
    }
}
