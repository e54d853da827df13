//! Secrets, which never print.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

/// A key or another secret text: it prints as `***`, in `Debug` as well.
///
/// It has no `Serialize`, so that it cannot end up in a file by mistake.
///
/// # Examples
/// ```
/// use stepfold_providers::Secret;
///
/// let key = Secret::new("sk-1234");
/// assert_eq!(format!("{key} {key:?}"), "*** Secret(***)");
/// assert_eq!(key.redact("the key sk-1234 is wrong"), "the key *** is wrong");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a secret. White space around it, nearly always a copying mistake, is removed.
    pub fn new(text: impl AsRef<str>) -> Self {
        Secret(text.as_ref().trim().into())
    }

    /// The text of the secret. Do not log it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Replaces the secret by `***` in a text, also in another case, with line breaks or spaces between its letters, or in
    /// Base64.
    pub fn redact(&self, text: &str) -> String {
        // NOTE: Very short texts are no secrets, and their redaction would damage ordinary text.
        match self.0.len() {
            0..4 => text.to_owned(),
            4..8 => text.replace(&*self.0, "***"),
            _ => self.forms().iter().fold(text.to_owned(), |text, form| hide(&text, form)),
        }
    }

    /// The text and its Base64 at each of the three alignments; each [folded](FoldedText).
    fn forms(&self) -> Vec<String> {
        let in_base64 = (0..3).map(|before| {
            let bytes = [&[0; 2][..before], self.0.as_bytes()].concat();
            let encoded = STANDARD_NO_PAD.encode(bytes);
            // NOTE: The digits at both ends also encode bits of the surrounding text, so they are left out.
            let (from, to) = ((before * 8).div_ceil(6), (before + self.0.len()) * 8 / 6);
            encoded[from..to].to_owned()
        });
        let forms = [self.0.to_string()].into_iter().chain(in_base64);
        forms.map(|form| FoldedText::new(&form).text).collect()
    }
}

/// A text without spaces and case, with the position of each byte in the original.
struct FoldedText {
    text: String,
    places: Vec<usize>,
}

impl FoldedText {
    fn new(text: &str) -> Self {
        let mut folded = FoldedText { text: String::new(), places: Vec::new() };
        for (place, letter) in text.char_indices().filter(|(_, letter)| !letter.is_whitespace()) {
            // NOTE: Base64 has two alphabets.
            folded.text.push(match letter {
                '-' => '+',
                '_' => '/',
                letter => letter.to_ascii_lowercase(),
            });
            folded.places.resize(folded.text.len(), place);
        }
        folded
    }
}

/// Replaces each occurrence of a folded form by `***`.
fn hide(text: &str, form: &str) -> String {
    let folded = FoldedText::new(text);
    let (mut hidden, mut copied) = (String::new(), 0);
    for (at, found) in folded.text.match_indices(form) {
        let last = folded.places[at + found.len() - 1];
        let end = last + text[last..].chars().next().map_or(0, char::len_utf8);
        hidden.push_str(&text[copied..folded.places[at]]);
        hidden.push_str("***");
        copied = end;
    }
    hidden + &text[copied..]
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Secret::new(text)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_any_form() {
        let key = Secret::new("sk-Key_1234567890");
        let encoded =
            ["c2stS2V5XzEyMzQ1Njc4OTA=", "dXNlcjpzay1LZXlfMTIzNDU2Nzg5MA==", "OnNrLUtleV8xMjM0NTY3ODkw"];
        let echoes = ["sk-Key_1234567890", "SK-KEY_1234567890", "sk-key_1234567890", "sk-Key_\n 1234567890"];
        for echo in echoes.iter().chain(&encoded) {
            let shown = key.redact(&format!("the key {echo} is wrong"));
            assert!(shown.starts_with("the key ") && shown.ends_with(" is wrong"), "{shown}");
            assert!(shown.contains("***") && !shown.contains("7890"), "{shown}");
            assert!(shown.len() <= "the key dXNlcjp***MA== is wrong".len(), "{shown}");
        }
        assert_eq!(key.redact("kein Schlüssel"), "kein Schlüssel");
    }
}
