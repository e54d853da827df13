//! Names on the wire: rules of the names that a server accepts, and a substitute for each name that it refuses.
//!
//! The mapping of a name depends on that name alone, so that the tools on offer and the calls in the conversation
//! agree. The map is one to one: a legal name that looks like a mapped one is mapped as well.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// The names that a server accepts, of tools or of properties: letters and digits of ASCII and some more characters.
/// Others are mapped to legal ones, and back in the reply.
///
/// # Examples
/// ```
/// use stepfold_providers::NameRules;
///
/// assert!(NameRules::OPENAI.accepts("21st-magic_search"));
/// assert!(!NameRules::GEMINI.accepts("21st-magic_search"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRules {
    /// The accepted characters other than letters and digits.
    punctuation: &'static str,
    /// The fewest and the most characters.
    lengths: (usize, usize),
    /// Whether the first character is a letter or an underscore.
    begins_with_letter: bool,
}

impl NameRules {
    /// Names of tools at OpenAI, and at servers like it: `^[a-zA-Z0-9_-]{1,64}$`.
    //
    // OpenAI, API reference, `tools[].function.name`: "Must be a-z, A-Z, 0-9, or contain underscores and dashes, with a
    // maximum length of 64." Mistral says the same (github.com/Kochava-Studios/witsy/pull/164), and DeepSeek refuses by
    // the same pattern (github.com/zed-industries/zed/issues/57531).
    pub const OPENAI: Self = NameRules { punctuation: "_-", lengths: (1, 64), begins_with_letter: false };

    /// Names of tools that every server accepts: as OpenAI's, and the first character is a letter or an underscore. For
    /// gateways, which pass them on to servers of all sorts.
    pub const COMMON: Self = NameRules { begins_with_letter: true, ..NameRules::OPENAI };

    /// Names of tools at Moonshot (Kimi): `^[a-zA-Z_][a-zA-Z0-9-_]{2,63}$`.
    //
    // platform.kimi.ai/docs/api/tool-use; github.com/MoonshotAI/kimi-cli/issues/1773 and 2531.
    pub const MOONSHOT: Self = NameRules { lengths: (3, 64), ..NameRules::COMMON };

    /// Names of tools at Anthropic: `^[a-zA-Z0-9_-]{1,128}$`.
    //
    // github.com/home-assistant/core/issues/147760; up to 64 in early 2025
    // (github.com/cyanheads/atlas-mcp-server/issues/14).
    pub const ANTHROPIC: Self = NameRules { lengths: (1, 128), ..NameRules::OPENAI };

    /// Names of tools at Gemini: they begin with a letter or an underscore, and may have dots, colons and dashes.
    //
    // github.com/cline/cline/issues/7339: "Must start with a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9),
    // underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 64." Versions before September 2025
    // and Vertex took no colons (github.com/google-gemini/gemini-cli/issues/7869), so none is sent.
    pub const GEMINI: Self = NameRules { punctuation: "_.-", lengths: (1, 64), begins_with_letter: true };

    /// Names of properties at Anthropic: `^[a-zA-Z0-9_.-]{1,64}$`.
    //
    // github.com/beautyfree/appstore-connect-mcp/issues/2, github.com/ComposioHQ/composio/issues/3500.
    pub const ANTHROPIC_KEYS: Self = NameRules { punctuation: "_.-", ..NameRules::OPENAI };

    /// Whether a name is legal unchanged.
    pub fn accepts(&self, name: &str) -> bool {
        let (fewest, most) = self.lengths;
        let is_word = |c: char| c.is_ascii_alphanumeric() || self.punctuation.contains(c);
        (fewest..=most).contains(&name.len())
            && name.chars().all(is_word)
            && (!self.begins_with_letter || name.starts_with(begins_word))
    }
}

fn begins_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

/// The mark in a mapped name. A digest of the original name and a checksum follow it.
const MARK: &str = "_x";
const NAME_LETTERS: usize = 10;
const CHECK_LETTERS: usize = 4;

/// The most characters of a mapped name: what all servers take.
const MAX_MAPPED: usize = 64;

/// Returns the name on the wire: the name itself if it is legal, else a substitute that is unique and always the same.
///
/// Names of calls in a conversation are mapped by this function, too.
pub(crate) fn wire_name<'a>(rules: &NameRules, name: &'a str) -> Cow<'a, str> {
    // NOTE: A legal name that looks like a mapped one is mapped, too, so that two tools never share a name on the
    // wire.
    if rules.accepts(name) && !is_mapped(name) {
        return Cow::Borrowed(name);
    }
    let tail = MARK.len() + NAME_LETTERS + CHECK_LETTERS;
    let is_word = |c: char| c.is_ascii_alphanumeric() || rules.punctuation.contains(c);
    let words: String = name.chars().take(MAX_MAPPED).map(|c| if is_word(c) { c } else { '_' }).collect();
    let words = words.trim_matches('_');
    let begins = words.starts_with(|c: char| c.is_ascii_alphabetic());
    let stem = match words {
        "" => "name".to_owned(),
        words if begins => words.to_owned(),
        // Some servers refuse an underscore there as well.
        words => format!("n_{words}"),
    };
    let stem = &stem[..stem.len().min(MAX_MAPPED - tail)];
    let body = format!("{stem}{MARK}{}", digest(name, NAME_LETTERS));
    let check = digest(&body, CHECK_LETTERS);
    Cow::Owned(body + &check)
}

/// Whether a name has the form of a mapped one.
fn is_mapped(name: &str) -> bool {
    let Some((body, check)) = name.len().checked_sub(CHECK_LETTERS).and_then(|at| name.split_at_checked(at))
    else {
        return false;
    };
    let mark = body.len().checked_sub(MARK.len() + NAME_LETTERS).and_then(|at| body.get(at..));
    mark.is_some_and(|mark| mark.starts_with(MARK)) && digest(body, CHECK_LETTERS) == check
}

/// Hashes a text to `length` letters and digits.
pub(crate) fn digest(text: &str, length: usize) -> String {
    // NOTE: `DefaultHasher::new()` has fixed keys, so the digest is the same in each process. A change of its
    // algorithm is harmless: names are stored unmapped, and mapped again for each request.
    const LETTERS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let letter = |place: usize| {
        let mut hasher = DefaultHasher::new();
        (text, place).hash(&mut hasher);
        let [byte, ..] = hasher.finish().to_le_bytes();
        char::from(LETTERS[usize::from(byte % 32)])
    };
    (0..length).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const ALL: [NameRules; 6] = [
        NameRules::OPENAI,
        NameRules::COMMON,
        NameRules::MOONSHOT,
        NameRules::ANTHROPIC,
        NameRules::GEMINI,
        NameRules::ANTHROPIC_KEYS,
    ];

    #[test]
    fn names_are_legal_and_readable() {
        let long = "a".repeat(70);
        let odd = [
            "21st-magic_search",
            "-x",
            &long,
            "wetter_für_köln",
            "get weather",
            "",
            "天気",
            "a.b:c",
            "_",
            "f",
        ];
        for (rules, name) in ALL.iter().flat_map(|rules| odd.map(|name| (rules, name))) {
            let wired = wire_name(rules, name);
            assert!(rules.accepts(&wired), "{wired} for {name}: {rules:?}");
            assert_eq!(rules.accepts(name), wired == name, "{wired} for {name}: {rules:?}");
        }
        assert!(wire_name(&NameRules::GEMINI, "21st-magic_search").starts_with("n_21st-magic_search_x"));
        assert!(wire_name(&NameRules::OPENAI, "get weather").starts_with("get_weather_x"));
        assert_eq!(wire_name(&NameRules::OPENAI, "21st-magic_search"), "21st-magic_search");
    }

    /// A tool may have the very name that another one is mapped to.
    #[test]
    fn a_mapped_name_is_no_other_tools_own() {
        for rules in &ALL {
            let mapped = wire_name(rules, "$top").into_owned();
            let again = wire_name(rules, &mapped);
            assert!(again != mapped && rules.accepts(&again), "{mapped} and {again}");
        }
    }

    proptest! {
        #[test]
        fn names_are_mapped_one_to_one(names in prop::collection::hash_set("([a-c $.-]{0,4}|\\PC{0,80}|[a-zA-Z0-9_-]{1,64})", 1..40)) {
            for rules in &ALL {
                let mut originals = HashMap::new();
                for name in &names {
                    let wired = wire_name(rules, name).into_owned();
                    prop_assert!(rules.accepts(&wired), "{} for {}", wired, name);
                    prop_assert_eq!(rules.accepts(name), wired == *name);
                    prop_assert_eq!(originals.insert(wired, name), None);
                }
            }
        }
    }
}
