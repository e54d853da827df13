//! The events of a live stream: their data, their ids, and their text on the wire.

use std::fmt::{self, Write as _};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use serde::Serialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use stepfold_agent_loop::{Ids as _, RandomIds};
use stepfold_session_scopes::LifeId;

/// Comments that keep proxies from closing an idle stream.
pub(in crate::http) const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// The time after which browsers connect again.
pub(in crate::http) const RETRY: Bytes = Bytes::from_static(b"retry: 1000\n\n");

pub(in crate::http) fn bye(reason: &str) -> Bytes {
    encode(None, "bye", &json!({"reason": reason, "retry_ms": 2_000}))
}

/// A place in a live stream, as its ids name it: `VERSION.EPOCH.NUMBER`.
///
/// The version is that of the newest commit that was sent: after a reconnection, all later ones come from the store. Epoch
/// and number are the place in what this process has in memory; of another epoch, unfinished text is gone. An epoch begins
/// with the life of the session: the versions of another life are those of a session that was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
// NOTE: An id has no invocation: a channel is of a session, whose runs are sent one after the other
// (docs/decisions/server.md).
pub(in crate::http) struct StreamPosition {
    pub(in crate::http) version: u64,
    pub(in crate::http) epoch: String,
    pub(in crate::http) number: Option<u64>,
}

impl StreamPosition {
    pub(in crate::http) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let version = parts.next()?.parse().ok()?;
        // It goes into ids that are sent.
        let is_name = |epoch: &&str| epoch.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let epoch = parts.next().filter(is_name)?.to_owned();
        let number = match parts.next()? {
            "-" => None,
            number => Some(number.parse().ok()?),
        };
        Some(StreamPosition { version, epoch, number })
    }

    /// Whether it is in the session that this epoch is of, and not in an earlier one with the same id.
    pub(in crate::http) fn is_of_same_life(&self, epoch: &str) -> bool {
        life_of(&self.epoch) == life_of(epoch)
    }

    /// The places in several sessions, as an id names them.
    pub(in crate::http) fn parse_many(text: &str) -> Option<Vec<Self>> {
        text.split('~').map(StreamPosition::parse).collect()
    }
}

impl fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.", self.version, self.epoch)?;
        match self.number {
            Some(number) => write!(f, "{number}"),
            None => f.write_str("-"),
        }
    }
}

/// A new epoch of a session with this life.
pub(in crate::http) fn new_epoch(life: &LifeId) -> String {
    let life = HEXLOWER.encode(&Sha256::digest(life.as_str().as_bytes())[..4]);
    let random: String = RandomIds.next().chars().take(8).collect();
    format!("{life}-{random}")
}

fn life_of(epoch: &str) -> &str {
    epoch.split_once('-').map_or(epoch, |(life, _)| life)
}

/// The text of an event of a stream.
pub(in crate::http) fn encode(
    id: Option<(u64, &str, Option<u64>)>,
    event: &str,
    data: &impl Serialize,
) -> Bytes {
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

/// The text of an event for a stream of several sessions: with the id of its place in all of them, if it has one, and with
/// the `fields` of its session at the beginning of its data.
pub(in crate::http) fn in_many(bytes: &[u8], id: &str, fields: &str) -> Bytes {
    // The text was made by `encode`.
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let (has_id, text) = match text.strip_prefix("id: ").and_then(|text| text.split_once('\n')) {
        Some((_, text)) => (true, text),
        None => (false, text),
    };
    let Some((event, data)) = text.split_once("\ndata: {") else { return Bytes::copy_from_slice(bytes) };
    let comma = if data.starts_with('}') { "" } else { "," };
    let id = if has_id { format!("id: {id}\n") } else { String::new() };
    Bytes::from(format!("{id}{event}\ndata: {{{fields}{comma}{data}"))
}

/// An event of a stream that all readers of a session share.
#[derive(Clone, Debug)]
pub(in crate::http) struct LiveFrame {
    /// The version of the session after it.
    pub(in crate::http) version: u64,
    pub(in crate::http) is_commit: bool,
    /// Whether it says that a run has ended.
    pub(in crate::http) is_end: bool,
    pub(in crate::http) bytes: Bytes,
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
            assert_eq!(
                StreamPosition::parse(id),
                Some(StreamPosition { version: 7, epoch: "b1f3".to_owned(), number })
            );
            assert_eq!(rest, "event: text\ndata: {\"delta\":\"a\\nb\"}\n\n");
        }
        let many = "7.b1f3.12~0.c2.-";
        let read = StreamPosition::parse_many(many).unwrap();
        assert_eq!(read.iter().map(ToString::to_string).collect::<Vec<_>>().join("~"), many);
        for text in ["", "7", "7.b", "x.b.1", "7.b.x", "-1.b.1"] {
            assert_eq!(StreamPosition::parse(text), None, "{text}");
        }
    }

    #[test]
    fn an_epoch_names_the_life_of_its_session() {
        let [first, second] = ["a.life", "another~one"].map(|life| LifeId::new(life).unwrap());
        let place = StreamPosition { version: 7, epoch: new_epoch(&first), number: None };
        assert!(place.is_of_same_life(&new_epoch(&first)) && place.epoch != new_epoch(&first));
        assert!(!place.is_of_same_life(&new_epoch(&second)));
        assert_eq!(StreamPosition::parse(&place.to_string()), Some(place));
    }

    #[test]
    fn an_event_among_those_of_many_sessions_names_its_own() {
        let one = encode(Some((7, "b1f3", None)), "text", &json!({"delta": "data: {"}));
        let of_many = in_many(&one, "7.b1f3.-~3.c2.1", r#""app":"a""#);
        let expected = "id: 7.b1f3.-~3.c2.1\nevent: text\ndata: {\"app\":\"a\",\"delta\":\"data: {\"}\n\n";
        assert_eq!(of_many, expected);
        let without = in_many(&encode(None, "bye", &json!({})), "1.a.-", r#""app":"a""#);
        assert_eq!(without, "event: bye\ndata: {\"app\":\"a\"}\n\n");
    }
}
