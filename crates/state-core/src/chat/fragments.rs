//! Assembles streamed tool calls: the arguments, and the call that a fragment belongs to. The cost per
//! fragment is constant.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::{Map, Value};

/// Assembles the arguments of a call from fragments, and detects a complete JSON object.
///
/// Tells a fragment of one call from the beginning of the next: each byte is scanned once,
/// and the text is parsed at most once.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::ArgumentsBuilder;
///
/// let mut arguments = ArgumentsBuilder::new();
/// arguments.push(r#"{"query": "sta"#);
/// assert!(!arguments.is_complete());
/// arguments.push(r#"lls}"}"#);
/// assert!(arguments.is_complete());
/// assert_eq!(arguments.into_text(), r#"{"query": "stalls}"}"#);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ArgumentsBuilder {
    text: String,
    scan: Scan,
    /// Whether the text is a JSON object; cached after the first check.
    is_object: Option<bool>,
}

/// The scan state of an object, by its brackets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Scan {
    /// White space only.
    #[default]
    Before,
    /// Inside this many brackets.
    Inside { depth: usize },
    /// In a string; `is_escaped` is true directly after a backslash.
    Quoted { depth: usize, is_escaped: bool },
    /// After the outermost closing bracket.
    Closed,
    /// Not an object, whatever follows.
    Spoiled,
}

impl ArgumentsBuilder {
    /// No arguments yet.
    pub fn new() -> Self {
        ArgumentsBuilder::default()
    }

    /// Adds a fragment.
    pub fn push(&mut self, fragment: &str) {
        self.scan = fragment.bytes().fold(self.scan, Scan::after);
        self.text.push_str(fragment);
    }

    /// Whether the text is a whole JSON object.
    pub fn is_complete(&mut self) -> bool {
        if self.scan != Scan::Closed {
            return false;
        }
        // Only white space may follow a complete object.
        let parse = || serde_json::from_str::<Map<String, Value>>(&self.text).is_ok();
        *self.is_object.get_or_insert_with(parse)
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }
}

impl Scan {
    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Scan::Before | Scan::Closed, b' ' | b'\t' | b'\n' | b'\r') => self,
            (Scan::Before, b'{') => Scan::Inside { depth: 1 },
            (Scan::Before | Scan::Closed | Scan::Spoiled, _) => Scan::Spoiled,
            (Scan::Inside { depth }, b'"') => Scan::Quoted { depth, is_escaped: false },
            (Scan::Inside { depth }, b'{' | b'[') => Scan::Inside { depth: depth + 1 },
            (Scan::Inside { depth: 1 }, b'}' | b']') => Scan::Closed,
            (Scan::Inside { depth }, b'}' | b']') => Scan::Inside { depth: depth - 1 },
            (Scan::Inside { .. }, _) => self,
            (Scan::Quoted { depth, is_escaped: false }, b'"') => Scan::Inside { depth },
            (Scan::Quoted { depth, is_escaped }, byte) => {
                Scan::Quoted { depth, is_escaped: !is_escaped && byte == b'\\' }
            }
        }
    }
}

/// The positions of a reply's calls among its parts, by the server's indexes and ids.
#[derive(Clone, Debug, Default)]
pub(super) struct CallPlaces(HashMap<usize, AtIndex>);

/// The calls with one index.
#[derive(Clone, Debug)]
enum AtIndex {
    /// One call, the normal case: no lookup by id.
    One { place: usize, id: Option<Box<str>> },
    /// Several calls. Some servers number every call 0.
    Many(Box<Many>),
}

#[derive(Clone, Debug, Default)]
struct Many {
    last: usize,
    /// The last call with each id.
    by_id: HashMap<Box<str>, usize>,
    /// The calls without an id, in order.
    without_id: Vec<usize>,
}

impl CallPlaces {
    /// The last call with this index that a fragment with this id, or without one, can belong to.
    pub(super) fn find(&self, index: usize, id: Option<&str>) -> Option<usize> {
        match (self.0.get(&index)?, id) {
            (AtIndex::One { place, id: Some(known) }, Some(id)) => (**known == *id).then_some(*place),
            (AtIndex::One { place, .. }, _) => Some(*place),
            (AtIndex::Many(many), None) => Some(many.last),
            (AtIndex::Many(many), Some(id)) => {
                many.by_id.get(id).copied().max(many.without_id.last().copied())
            }
        }
    }

    /// Registers a new call.
    pub(super) fn begin(&mut self, index: usize, id: Option<&str>, place: usize) {
        let id = id.map(Box::from);
        match self.0.entry(index) {
            Entry::Vacant(vacant) => drop(vacant.insert(AtIndex::One { place, id })),
            Entry::Occupied(mut known) => known.get_mut().many().begin(id, place),
        }
    }

    /// Sets the id of the last call with this index that has none.
    pub(super) fn name_last(&mut self, index: usize, id: &str) {
        match self.0.get_mut(&index) {
            Some(AtIndex::One { id: unknown @ None, .. }) => *unknown = Some(id.into()),
            Some(AtIndex::Many(many)) => many.name_last(id),
            Some(AtIndex::One { .. }) | None => {}
        }
    }
}

impl AtIndex {
    /// The calls, converted to the form for several.
    fn many(&mut self) -> &mut Many {
        if let AtIndex::One { place, id } = self {
            let mut many = Box::<Many>::default();
            many.begin(id.take(), *place);
            *self = AtIndex::Many(many);
        }
        match self {
            AtIndex::Many(many) => many,
            AtIndex::One { .. } => unreachable!("converted to many above"),
        }
    }
}

impl Many {
    fn begin(&mut self, id: Option<Box<str>>, place: usize) {
        self.last = place;
        match id {
            Some(id) => drop(self.by_id.insert(id, place)),
            None => self.without_id.push(place),
        }
    }

    fn name_last(&mut self, id: &str) {
        if let Some(place) = self.without_id.pop() {
            let known = self.by_id.entry(id.into()).or_default();
            *known = place.max(*known);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Agrees with a parser after each fragment.
        #[test]
        fn complete_is_what_parses_to_an_object(
            fragments in prop::collection::vec(r#"[{}\[\]",:a1\\ ]|\{\}|"a":|\{"a":|\\""#, 0..12),
        ) {
            let (mut arguments, mut text) = (ArgumentsBuilder::new(), String::new());
            for fragment in fragments {
                arguments.push(&fragment);
                text.push_str(&fragment);
                let is_object = serde_json::from_str::<Map<String, Value>>(&text).is_ok();
                prop_assert_eq!(arguments.is_complete(), is_object, "{}", text);
            }
        }
    }
}
