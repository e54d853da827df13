//! Assembles streamed tool calls: the arguments, and the call that a fragment belongs to. The cost per
//! fragment is constant.
//!
//! The scan of the arguments is a machine over bytes; a number is the depth of brackets:
//!
//! | phase | byte | next phase |
//! |---|---|---|
//! | Before | white space | Before |
//! | Before | `{` | Inside 1 |
//! | Before | other | Spoiled |
//! | Inside 1 | `"` | Quoted 1 |
//! | Inside 1 | `{` `[` | Inside 2 |
//! | Inside 1 | `}` `]` | Closed |
//! | Inside 1 | other | Inside 1 |
//! | Inside 2 | `}` `]` | Inside 1 |
//! | Inside 2 | `"` | Quoted 2 |
//! | Quoted 2 | `"` | Inside 2 |
//! | Quoted 2 | `\` | Escaped 2 |
//! | Quoted 2 | other | Quoted 2 |
//! | Escaped 2 | any | Quoted 2 |
//! | Closed | white space | Closed |
//! | Closed | other | Spoiled |
//! | Spoiled | any | Spoiled |

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::{Map, Value};

/// Assembles the arguments of a call from fragments, and detects a complete JSON object.
///
/// Distinguishes a fragment of one call from the beginning of the next. Each byte is scanned once, and the text is
/// parsed at most once.
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
    scan: ObjectScan,
    /// Whether the text is a JSON object; cached after the first check.
    is_object: Option<bool>,
}

/// The scan state of an object, by its brackets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum ObjectScan {
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
        self.scan = fragment.bytes().fold(self.scan, ObjectScan::after);
        self.text.push_str(fragment);
    }

    /// Whether the text is a whole JSON object.
    pub fn is_complete(&mut self) -> bool {
        if self.scan != ObjectScan::Closed {
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

impl ObjectScan {
    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (ObjectScan::Before | ObjectScan::Closed, b' ' | b'\t' | b'\n' | b'\r') => self,
            (ObjectScan::Before, b'{') => ObjectScan::Inside { depth: 1 },
            (ObjectScan::Before | ObjectScan::Closed | ObjectScan::Spoiled, _) => ObjectScan::Spoiled,
            (ObjectScan::Inside { depth }, b'"') => ObjectScan::Quoted { depth, is_escaped: false },
            (ObjectScan::Inside { depth }, b'{' | b'[') => ObjectScan::Inside { depth: depth + 1 },
            (ObjectScan::Inside { depth: 1 }, b'}' | b']') => ObjectScan::Closed,
            (ObjectScan::Inside { depth }, b'}' | b']') => ObjectScan::Inside { depth: depth - 1 },
            (ObjectScan::Inside { .. }, _) => self,
            (ObjectScan::Quoted { depth, is_escaped: false }, b'"') => ObjectScan::Inside { depth },
            (ObjectScan::Quoted { depth, is_escaped }, byte) => {
                ObjectScan::Quoted { depth, is_escaped: !is_escaped && byte == b'\\' }
            }
        }
    }
}

/// The positions of a reply's calls among its parts, by the server's indexes and ids.
#[derive(Clone, Debug, Default)]
pub(super) struct CallPositions(HashMap<usize, CallsAtIndex>);

/// The calls with one index.
#[derive(Clone, Debug)]
enum CallsAtIndex {
    /// One call, the normal case: no lookup by id.
    One { position: usize, id: Option<Box<str>> },
    /// Several calls. Some servers number every call 0.
    Several(Box<SeveralCalls>),
}

#[derive(Clone, Debug, Default)]
struct SeveralCalls {
    last: usize,
    /// The last call with each id.
    by_id: HashMap<Box<str>, usize>,
    /// The calls without an id, in order.
    without_id: Vec<usize>,
}

impl CallPositions {
    /// The last call with this index that a fragment with this id, or without one, can belong to.
    pub(super) fn find(&self, index: usize, id: Option<&str>) -> Option<usize> {
        match (self.0.get(&index)?, id) {
            (CallsAtIndex::One { position, id: Some(known) }, Some(id)) => {
                (**known == *id).then_some(*position)
            }
            (CallsAtIndex::One { position, .. }, _) => Some(*position),
            (CallsAtIndex::Several(many), None) => Some(many.last),
            (CallsAtIndex::Several(many), Some(id)) => {
                // NOTE: The later of both: a call without an id may be the one whose id arrives now.
                many.by_id.get(id).copied().max(many.without_id.last().copied())
            }
        }
    }

    /// Registers a new call.
    pub(super) fn begin(&mut self, index: usize, id: Option<&str>, position: usize) {
        let id = id.map(Box::from);
        match self.0.entry(index) {
            Entry::Vacant(vacant) => drop(vacant.insert(CallsAtIndex::One { position, id })),
            Entry::Occupied(mut known) => known.get_mut().many().begin(id, position),
        }
    }

    /// Sets the id of the last call with this index and no id.
    pub(super) fn name_last(&mut self, index: usize, id: &str) {
        match self.0.get_mut(&index) {
            Some(CallsAtIndex::One { id: unknown @ None, .. }) => *unknown = Some(id.into()),
            Some(CallsAtIndex::Several(many)) => many.name_last(id),
            Some(CallsAtIndex::One { .. }) | None => {}
        }
    }
}

impl CallsAtIndex {
    /// The calls, converted to the form for several.
    fn many(&mut self) -> &mut SeveralCalls {
        if let CallsAtIndex::One { position, id } = self {
            let mut many = Box::<SeveralCalls>::default();
            many.begin(id.take(), *position);
            *self = CallsAtIndex::Several(many);
        }
        match self {
            CallsAtIndex::Several(many) => many,
            CallsAtIndex::One { .. } => unreachable!("converted to many above"),
        }
    }
}

impl SeveralCalls {
    fn begin(&mut self, id: Option<Box<str>>, position: usize) {
        self.last = position;
        match id {
            Some(id) => drop(self.by_id.insert(id, position)),
            None => self.without_id.push(position),
        }
    }

    fn name_last(&mut self, id: &str) {
        if let Some(position) = self.without_id.pop() {
            let known = self.by_id.entry(id.into()).or_default();
            *known = position.max(*known);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn phase(name: &str) -> ObjectScan {
        let (name, depth) = name.split_once(' ').unwrap_or((name, "0"));
        let depth = depth.parse().unwrap();
        match name {
            "Before" => ObjectScan::Before,
            "Inside" => ObjectScan::Inside { depth },
            "Quoted" => ObjectScan::Quoted { depth, is_escaped: false },
            "Escaped" => ObjectScan::Quoted { depth, is_escaped: true },
            "Closed" => ObjectScan::Closed,
            "Spoiled" => ObjectScan::Spoiled,
            other => panic!("unknown phase {other}"),
        }
    }

    #[test]
    fn the_table_of_the_scan_is_what_the_code_does() {
        let table = include_str!("fragments.rs").lines().map_while(|line| line.strip_prefix("//!"));
        let rows: Vec<[&str; 3]> = table
            .filter_map(|line| line.trim().strip_prefix("| ")?.strip_suffix(" |"))
            .skip(1)
            .map(|row| row.split(" | ").collect::<Vec<_>>().try_into().unwrap())
            .collect();
        assert_eq!(rows.len(), 16);
        let listed = |bytes: &str| -> Vec<u8> {
            match bytes {
                "white space" => b" \t\n\r".to_vec(),
                marks => marks.split(' ').filter_map(|mark| mark.as_bytes().get(1).copied()).collect(),
            }
        };
        for [from, bytes, next] in &rows {
            let of_phase = rows.iter().filter(|row| row[0] == *from && row[1] != "other");
            let named: Vec<u8> = of_phase.flat_map(|row| listed(row[1])).collect();
            let bytes = match *bytes {
                "any" => (0..=255).collect(),
                "other" => (0..=255).filter(|byte| !named.contains(byte)).collect(),
                bytes => listed(bytes),
            };
            for byte in bytes {
                assert_eq!(phase(from).after(byte), phase(next), "{from}, {byte}");
            }
        }
    }

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
