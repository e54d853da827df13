//! Detects and escapes characters that hide, reorder or fake text.
//!
//! Text of a model, a tool or a file may contain terminal escape sequences (`ESC[8m` conceals what follows),
//! bidirectional controls that reorder a line, and characters without a glyph. Programs that show such text
//! to an approver escape it first; stored text is unchanged.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character has no visible glyph: a control character (including line feed and tab), a
/// bidirectional control, a zero-width or filler character, a variation selector, a tag.
///
/// Spaces and combining marks count as visible.
///
/// # Examples
/// ```
/// use stepfold_state_core::is_invisible;
///
/// assert!(['\u{1b}', '\u{9b}', '\n', '\u{202e}', '\u{200b}', '\u{e0041}'].into_iter().all(is_invisible));
/// assert!(['a', ' ', 'é', '\u{301}', '漢'].into_iter().all(|character| !is_invisible(character)));
/// ```
pub fn is_invisible(character: char) -> bool {
    matches!(
        InvisibleKind::of(character),
        Some(InvisibleKind::Control | InvisibleKind::Joining | InvisibleKind::Hiding)
    )
}

/// The kinds of characters without a visible glyph.
///
/// A table of Unicode 17: control characters, `DefaultIgnorableCodePoint`, general categories `Cf`, `Zl` and
/// `Zp`, characters with a blank glyph, and whole ranges reserved for such characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvisibleKind {
    Control,
    /// Used in ordinary text of some scripts and in emoji: joiners, variation selectors.
    Joining,
    /// Not needed in ordinary text.
    Hiding,
    /// Format characters that enclose what follows, such as the Arabic number sign.
    Enclosing,
}

impl InvisibleKind {
    pub(crate) fn of(character: char) -> Option<Self> {
        match character {
            _ if character.is_control() => Some(InvisibleKind::Control),
            '\u{200C}' | '\u{200D}' | '\u{FE0E}' | '\u{FE0F}' => Some(InvisibleKind::Joining),
            '\u{600}'..='\u{605}' | '\u{6DD}' | '\u{70F}' | '\u{890}' | '\u{891}' | '\u{8E2}' | '\u{110BD}'
            | '\u{110CD}' => Some(InvisibleKind::Enclosing),
            '\u{AD}' // Soft hyphen.
            | '\u{34F}' // Combining grapheme joiner.
            | '\u{61C}'
            | '\u{115F}' | '\u{1160}' | '\u{3164}' | '\u{FFA0}' // Hangul fillers.
            | '\u{17B4}' | '\u{17B5}' // Khmer vowels without a glyph.
            | '\u{180B}'..='\u{180F}' // Mongolian selectors and separator.
            | '\u{200B}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}'
            | '\u{2800}' // Braille without a dot.
            | '\u{FE00}'..='\u{FE0D}' // Variation selectors.
            | '\u{FEFF}' | '\u{FFF0}'..='\u{FFFB}'
            | '\u{13430}'..='\u{1345F}' // Hieroglyph controls, blanks and modifiers.
            | '\u{1BCA0}'..='\u{1BCA3}' | '\u{1D173}'..='\u{1D17A}'
            | '\u{E0000}'..='\u{E0FFF}' // Tags, and more variation selectors.
                => Some(InvisibleKind::Hiding),
            _ => None,
        }
    }
}

/// Escapes characters that hide, reorder or fake text at a terminal, as JSON does: `\u001b`.
///
/// Keeps line feeds, tabs, and the joiners and variation selectors of Persian, Hindi and emoji; drops a
/// carriage return before a line feed. JSON keeps its value. [`escape_all_invisible`] escapes these too, for
/// approvals.
///
/// # Examples
/// ```
/// use stepfold_state_core::escape_invisible;
///
/// assert_eq!(escape_invisible("rm \u{1b}[8m-rf /\u{1b}[0m\n"), "rm \\u001b[8m-rf /\\u001b[0m\n");
/// assert_eq!(escape_invisible("a \u{202e}b"), "a \\u202eb");
/// assert_eq!(escape_invisible("family: 👨\u{200d}👩"), "family: 👨\u{200d}👩");
/// ```
pub fn escape_invisible(text: &str) -> Cow<'_, str> {
    escape(text, |character| {
        !matches!(character, '\n' | '\t')
            && matches!(InvisibleKind::of(character), Some(InvisibleKind::Control | InvisibleKind::Hiding))
    })
}

/// Escapes every invisible character, including line feeds and joiners, so that the text is one fully visible
/// line.
///
/// # Examples
/// ```
/// use stepfold_state_core::escape_all_invisible;
///
/// assert_eq!(escape_all_invisible("5\u{200d}\n000"), "5\\u200d\\u000a000");
/// ```
pub fn escape_all_invisible(text: &str) -> Cow<'_, str> {
    escape(text, is_invisible)
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        // NOTE: Windows line ends are ordinary; an escape in each line would hide the unusual ones.
        if character == '\r' && rest.peek() == Some(&'\n') && !is_escaped('\n') {
            continue;
        }
        if !is_escaped(character) {
            shown.push(character);
            continue;
        }
        // NOTE: UTF-16 units, as in JSON, so that escaped JSON text keeps its value.
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "\\u{unit:04x}");
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_the_same_value() {
        let all: String = (0..=0x10_FFFF).filter_map(char::from_u32).collect();
        let json = serde_json::to_string(&all).unwrap();
        for escaped in [escape_invisible(&json), escape_all_invisible(&json)] {
            assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), all);
        }
        assert!(!escape_all_invisible(&json).contains(is_invisible));
    }

    #[test]
    fn what_has_nothing_to_hide_is_borrowed() {
        assert!(matches!(escape_invisible("a\tb\nc — é"), Cow::Borrowed(_)));
        assert_eq!(escape_invisible("a\r\nb\rc"), "a\nb\\u000dc");
    }
}
