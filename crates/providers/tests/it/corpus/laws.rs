//! What holds for every body of the corpus, however it is cut, spoiled or delivered.

use std::collections::HashSet;

use proptest::prelude::*;
use proptest::sample::Index;
use stepfold_state_core::chat::{ModelError, Reply};

use super::{Entry, Reader, entries};

thread_local! {
    /// One for all cases of a property.
    static READER: Reader = Reader::new();
    /// What is small enough to be read some thousand times.
    static ENTRIES: Vec<Entry> = entries().into_iter().filter(|entry| entry.body.len() < 20_000).collect();
}

fn show(entry: &Entry, pieces: Vec<Vec<u8>>) -> String {
    READER.with(|reader| reader.show(entry, pieces))
}

fn read(entry: &Entry) -> Result<Reply, ModelError> {
    READER.with(|reader| reader.read(entry, entry.whole()))
}

fn entry() -> impl Strategy<Value = Entry> {
    ENTRIES.with(|entries| prop::sample::select(entries.clone()))
}

/// The body in pieces, some of which may be empty.
fn pieces(body: &[u8], cuts: &[Index]) -> Vec<Vec<u8>> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
    cuts.extend([0, body.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|cut| body[cut[0]..cut[1]].to_vec()).collect()
}

/// One way to spoil a body.
#[derive(Clone, Debug)]
enum Spoil {
    Cut,
    DeleteByte,
    RepeatByte,
    ChangeByte(u8),
    SwapBytes,
    DeleteLine,
    RepeatLine,
    SwapLines,
}

fn spoil() -> impl Strategy<Value = (Spoil, Index, Index)> {
    let how = prop_oneof![
        1 => Just(Spoil::Cut),
        1 => Just(Spoil::DeleteByte),
        1 => Just(Spoil::RepeatByte),
        1 => prop::sample::select(b"\0\n\r :\"{}[],\\0\xff".to_vec()).prop_map(Spoil::ChangeByte),
        1 => Just(Spoil::SwapBytes),
        3 => Just(Spoil::DeleteLine),
        3 => Just(Spoil::RepeatLine),
        3 => Just(Spoil::SwapLines),
    ];
    (how, any::<Index>(), any::<Index>())
}

impl Spoil {
    fn apply(&self, body: &mut Vec<u8>, at: Index, other: Index) {
        if body.is_empty() {
            return;
        }
        let (byte, other_byte) = (at.index(body.len()), other.index(body.len()));
        let mut lines: Vec<Vec<u8>> =
            body.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        let (line, other_line) = (at.index(lines.len()), other.index(lines.len()));
        match self {
            Spoil::Cut => return body.truncate(byte),
            Spoil::DeleteByte => {
                body.remove(byte);
                return;
            }
            Spoil::RepeatByte => return body.insert(byte, body[byte]),
            Spoil::ChangeByte(new) => return body[byte] = *new,
            Spoil::SwapBytes => return body.swap(byte, other_byte),
            Spoil::DeleteLine => {
                lines.remove(line);
            }
            Spoil::RepeatLine => lines.insert(other_line, lines[line].clone()),
            Spoil::SwapLines => lines.swap(line, other_line),
        }
        *body = lines.concat();
    }
}

/// What is left of a body may be an error, or the same reply, whose usage may be lost: never another reply.
fn check_cut(entry: &Entry, length: usize) {
    let cut = read(&entry.with_body(&entry.body[..length]));
    let path = entry.path.display();
    match (read(entry), cut) {
        (_, Err(_)) => {}
        (Ok(whole), Ok(cut)) => {
            assert_eq!(cut.message, whole.message, "{path} cut at {length}");
            assert_eq!(cut.finish_reason, whole.finish_reason, "{path} cut at {length}");
        }
        (Err(error), Ok(cut)) => panic!("{path} cut at {length} is a reply: {cut:?}, whole it is {error}"),
    }
}

#[test]
fn a_body_that_is_cut_at_a_line_is_never_taken_for_whole() {
    for entry in ENTRIES.with(Clone::clone) {
        for (at, _) in entry.body.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            check_cut(&entry, at);
            check_cut(&entry, at + 1);
        }
    }
}

#[test]
fn without_its_reason_to_finish_no_stream_is_a_reply() {
    let mut count = 0;
    for entry in ENTRIES.with(Clone::clone).into_iter().filter(Entry::is_stream) {
        let text = String::from_utf8_lossy(&entry.body).replace("\r\n", "\n");
        let has_reason = |event: &&str| {
            let event = event.replace([' ', '\n'], "");
            let reasons = [
                "\"finish_reason\":\"",
                "\"stop_reason\":\"",
                "\"finishReason\":\"",
                "\"status\":\"completed\"",
                "\"status\":\"incomplete\"",
            ];
            reasons.iter().any(|reason| event.contains(reason))
        };
        let events: Vec<&str> = text.split_inclusive("\n\n").collect();
        let left: String = events.iter().filter(|event| !has_reason(event)).copied().collect();
        count += usize::from(left.len() < text.len());
        let read = read(&entry.with_body(left));
        assert!(read.is_err(), "{}: {read:?}", entry.path.display());
    }
    assert!(count > 60, "reasons were found in {count} streams only");
}

proptest! {
    #[test]
    fn a_body_that_is_cut_anywhere_is_never_taken_for_whole(entry in entry(), at in any::<Index>()) {
        check_cut(&entry, at.index(entry.body.len() + 1));
    }

    #[test]
    fn it_does_not_matter_how_a_body_is_delivered(
        entry in entry(),
        cuts in prop::collection::vec(any::<Index>(), 0..12),
    ) {
        prop_assert_eq!(show(&entry, pieces(&entry.body, &cuts)), show(&entry, entry.whole()));
    }

    #[test]
    fn a_spoiled_body_is_read_to_some_end(
        entry in entry(),
        spoils in prop::collection::vec(spoil(), 1..6),
        cuts in prop::collection::vec(any::<Index>(), 0..6),
    ) {
        let mut body = entry.body.clone();
        for (how, at, other) in &spoils {
            how.apply(&mut body, *at, *other);
        }
        let spoiled = entry.with_body(body);
        let shown = show(&spoiled, spoiled.whole());
        prop_assert_eq!(show(&spoiled, pieces(&spoiled.body, &cuts)), shown);
        if let Ok(reply) = read(&spoiled) {
            let ids: Vec<&str> = reply.message.tool_calls().map(|call| call.id.as_str()).collect();
            let unique: HashSet<&str> = ids.iter().copied().collect();
            prop_assert!(unique.len() == ids.len() && !unique.contains(""), "{:?}", ids);
        }
    }
}
