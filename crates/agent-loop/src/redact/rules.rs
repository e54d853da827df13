//! The rules of a redaction: which parts of a text are sensitive, and from where on a text may still become so.

use std::ops::Range;

use regex_lite::Regex;

use super::finders;
use super::{Redact, SensitivePart};

/// A kind of sensitive data that is found without configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SensitiveData {
    /// Keys of providers by their prefixes, such as `sk-`, `ghp_` or `AKIA`.
    ProviderKey,
    /// Numbers of payment cards: 13 to 19 digits of a known network, in groups or not, with a valid check digit.
    Card,
    /// International bank account numbers: of the length of their country, with valid check digits.
    Iban,
    /// Addresses of e-mail.
    Email,
    /// Telephone numbers in the international form, that is with `+`.
    Phone,
}

impl SensitiveData {
    /// All kinds.
    pub const ALL: [SensitiveData; 5] = [
        SensitiveData::ProviderKey,
        SensitiveData::Card,
        SensitiveData::Iban,
        SensitiveData::Email,
        SensitiveData::Phone,
    ];

    /// The name of the kind, as replacements have it.
    pub const fn name(self) -> &'static str {
        match self {
            SensitiveData::ProviderKey => "key",
            SensitiveData::Card => "card",
            SensitiveData::Iban => "iban",
            SensitiveData::Email => "email",
            SensitiveData::Phone => "phone",
        }
    }

    /// The kind with a [name](SensitiveData::name).
    pub fn named(name: &str) -> Option<Self> {
        SensitiveData::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The parts of a text that are of this kind, in order.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::SensitiveData;
    ///
    /// let text = "mail ada@example.org, card 4111 1111 1111 1111";
    /// assert_eq!(SensitiveData::Email.find(text), [5..20]);
    /// assert_eq!(&text[SensitiveData::Card.find(text)[0].clone()], "4111 1111 1111 1111");
    /// ```
    pub fn find(self, text: &str) -> Vec<Range<usize>> {
        match self {
            SensitiveData::ProviderKey => finders::keys(text),
            SensitiveData::Card => finders::cards(text),
            SensitiveData::Iban => finders::ibans(text),
            SensitiveData::Email => finders::emails(text),
            SensitiveData::Phone => finders::phones(text),
        }
    }

    /// The start of the end of a text that more text may turn into a part of this kind, or into a longer one.
    fn open_end(self, text: &str) -> usize {
        match self {
            SensitiveData::ProviderKey => finders::open_key(text),
            SensitiveData::Card => finders::open_card(text),
            SensitiveData::Iban => finders::open_iban(text),
            SensitiveData::Email => finders::open_email(text),
            SensitiveData::Phone => finders::open_phone(text),
        }
    }
}

/// Replaces sensitive parts of texts by the names of their rules, such as `[email]`.
///
/// # Examples
/// ```
/// use stepfold_agent_loop::{Redact, Redaction, SensitiveData, redacted};
///
/// let rules = Redaction::of([SensitiveData::Email]).pattern("ticket", r"\bT-[0-9]+\b")?.allow("help@example.org");
/// let text = "ada@example.org wrote to help@example.org about T-17";
/// assert_eq!(redacted(&rules, text), "[email] wrote to help@example.org about [ticket]");
/// # Ok::<(), stepfold_agent_loop::RedactionError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Redaction {
    kinds: Vec<SensitiveData>,
    patterns: Vec<(String, Regex)>,
    allowed: Vec<String>,
}

/// The error of a rule that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedactionError {
    /// The expression is invalid, or matches the empty text.
    #[error("invalid pattern `{name}`: {why}")]
    Pattern {
        /// The name of the rule.
        name: String,
        /// The reason.
        why: String,
    },
    /// The name is empty, too long, or has other characters than letters, digits, `_` and `-`; or another rule has it.
    #[error("invalid name `{name}` of a pattern: {why}")]
    Name {
        /// The name.
        name: String,
        /// The reason.
        why: &'static str,
    },
}

impl Redaction {
    /// No rules.
    pub fn new() -> Self {
        Redaction::default()
    }

    /// All kinds of [sensitive data](SensitiveData).
    pub fn all() -> Self {
        Redaction::of(SensitiveData::ALL)
    }

    /// These kinds of sensitive data.
    pub fn of(kinds: impl IntoIterator<Item = SensitiveData>) -> Self {
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_unstable();
        kinds.dedup();
        Redaction { kinds, ..Redaction::default() }
    }

    /// Replaces matches of a regular expression as well. It is applied to each line of a text by itself, so that no match
    /// spans lines. A streamed line is held back until it is complete.
    ///
    /// # Errors
    /// [`RedactionError::Pattern`] for an invalid expression and one that matches the empty text, and
    /// [`RedactionError::Name`] for a name that is taken or invalid.
    pub fn pattern(mut self, name: impl Into<String>, pattern: &str) -> Result<Self, RedactionError> {
        let name = name.into();
        let is_taken =
            SensitiveData::named(&name).is_some() || self.patterns.iter().any(|(other, _)| *other == name);
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let why = match &name {
            _ if is_taken => Some("another rule has it"),
            name if name.is_empty() || name.len() > 64 => Some("expected 1 to 64 characters"),
            name if !name.bytes().all(is_word) => Some("expected letters, digits, `_` and `-`"),
            _ => None,
        };
        if let Some(why) = why {
            return Err(RedactionError::Name { name, why });
        }
        let regex = Regex::new(pattern);
        let regex =
            regex.map_err(|error| RedactionError::Pattern { name: name.clone(), why: error.to_string() })?;
        if regex.is_match("") {
            return Err(RedactionError::Pattern {
                name,
                why: "the expression matches the empty text".to_owned(),
            });
        }
        self.patterns.push((name, regex));
        Ok(self)
    }

    /// Leaves a text where it is exactly what a rule has found, such as the address of a help desk. Letters count in
    /// either case.
    pub fn allow(mut self, text: impl Into<String>) -> Self {
        self.allowed.push(text.into());
        self
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty() && self.patterns.is_empty()
    }

    /// The names of the rules, as replacements have them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let kinds = self.kinds.iter().map(|kind| kind.name());
        kinds.chain(self.patterns.iter().map(|(name, _)| name.as_str()))
    }

    /// The places of earlier replacements, which are never replaced again, in order: none has a part of another.
    fn replacements(&self, text: &str) -> Vec<Range<usize>> {
        if !text.contains('[') {
            return Vec::new();
        }
        let all = self.names().flat_map(|name| {
            let replacement = super::replacement(name);
            let found = text.match_indices(replacement.as_str());
            found.map(|(start, found)| start..start + found.len()).collect::<Vec<_>>()
        });
        let mut all: Vec<Range<usize>> = all.collect();
        all.sort_unstable_by_key(|range| range.start);
        all
    }
}

impl Redact for Redaction {
    fn find(&self, text: &str) -> Vec<SensitivePart> {
        let mut found: Vec<SensitivePart> = Vec::new();
        for kind in &self.kinds {
            found.extend(kind.find(text).into_iter().map(|range| SensitivePart::new(range, kind.name())));
        }
        for (name, regex) in &self.patterns {
            let mut start = 0;
            for line in text.split_inclusive('\n') {
                let matches = regex.find_iter(line.trim_end_matches('\n'));
                found.extend(
                    matches.map(|found| SensitivePart::new(start + found.start()..start + found.end(), name)),
                );
                start += line.len();
            }
        }
        if found.is_empty() {
            return found;
        }
        let earlier = self.replacements(text);
        let is_allowed = |part: &SensitivePart| {
            let found = &text[part.range.clone()];
            self.allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(found))
        };
        let is_earlier = |part: &SensitivePart| {
            let before = earlier.partition_point(|range| range.start <= part.range.start);
            before.checked_sub(1).is_some_and(|last| part.range.end <= earlier[last].end)
        };
        found.retain(|part| !part.range.is_empty() && !is_allowed(part) && !is_earlier(part));
        super::merged(found)
    }

    fn open_end(&self, text: &str) -> usize {
        let kinds = self.kinds.iter().map(|kind| kind.open_end(text));
        let line = text.rfind('\n').map_or(0, |end| end + 1);
        let lines = (!self.patterns.is_empty()).then_some(line);
        kinds.chain(lines).min().unwrap_or(text.len())
    }
}
