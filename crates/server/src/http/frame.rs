//! The events of a live stream: their data, their ids, and their text on the wire.

use std::fmt::Write as _;

use bytes::Bytes;
use serde::Serialize;

/// A place in a live stream, as its ids name it: `VERSION.EPOCH.NUMBER`.
///
/// The version is that of the newest commit that was sent: after a reconnection, all later ones come from the store. Epoch
/// and number are the place in what this process has in memory; of another epoch, unfinished text is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) version: u64,
    pub(super) epoch: String,
    pub(super) number: Option<u64>,
}

impl Position {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let version = parts.next()?.parse().ok()?;
        let epoch = parts.next()?.to_owned();
        let number = match parts.next()? {
            "-" => None,
            number => Some(number.parse().ok()?),
        };
        Some(Position { version, epoch, number })
    }
}

/// The text of an event of a stream.
pub(super) fn encode(id: Option<(u64, &str, Option<u64>)>, event: &str, data: &impl Serialize) -> Bytes {
    let mut text = String::new();
    if let Some((version, epoch, number)) = id {
        let number = number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        // Writing to a string never fails.
        let _ = writeln!(text, "id: {version}.{epoch}.{number}");
    }
    // JSON has no line breaks outside of its strings, and none unescaped inside.
    let data = serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned());
    let _ = write!(text, "event: {event}\ndata: {data}\n\n");
    Bytes::from(text)
}

/// An event of a stream that all readers of a session share.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// The version of the session after it.
    pub(super) version: u64,
    pub(super) is_commit: bool,
    pub(super) bytes: Bytes,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        for number in [None, Some(12)] {
            let text = encode(Some((7, "b1f3", number)), "text", &json!({"delta": "a\nb"}));
            let text = std::str::from_utf8(&text).unwrap();
            let (id, rest) = text.strip_prefix("id: ").unwrap().split_once('\n').unwrap();
            assert_eq!(Position::parse(id), Some(Position { version: 7, epoch: "b1f3".to_owned(), number }));
            assert_eq!(rest, "event: text\ndata: {\"delta\":\"a\\nb\"}\n\n");
        }
        for text in ["", "7", "7.b", "x.b.1", "7.b.x", "-1.b.1"] {
            assert_eq!(Position::parse(text), None, "{text}");
        }
    }
}
