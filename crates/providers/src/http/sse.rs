//! Server-sent events from bytes, in pieces of any size.
//!
//! An own parser, for three features: it detects an end in the middle of an event, limits the size of events,
//! and looks at each byte once even if a large event arrives in small pieces.

use std::mem;

/// The most bytes of one event that are held.
pub(crate) const MAX_EVENT: usize = 16 << 20;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The kind; often empty.
    pub name: String,
    /// Its data, the lines joined.
    pub data: String,
}

/// A fault of an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SseFault {
    TooLarge,
    NotUtf8,
}

/// Parses server-sent events.
#[derive(Debug, Default)]
pub(crate) struct SseParser {
    /// The incomplete last line.
    line: Vec<u8>,
    event: SseEvent,
    has_data: bool,
    is_begun: bool,
}

impl SseParser {
    /// Appends the events that these bytes complete.
    pub(crate) fn push(&mut self, mut bytes: &[u8], out: &mut Vec<SseEvent>) -> Result<(), SseFault> {
        while let Some(end) = find_newline(bytes) {
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.line.is_empty() {
                self.whole_line(line, out)?;
            } else {
                let mut whole = mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.whole_line(&whole, out)?;
                whole.clear();
                self.line = whole;
            }
        }
        self.line.extend_from_slice(bytes);
        self.check_size()
    }

    /// Whether an event has begun and not ended.
    // NOTE: An end within an event is a truncated reply, never a complete one: the libraries for events do not tell.
    pub(crate) fn is_within_event(&self) -> bool {
        !self.line.is_empty() || self.has_data
    }

    fn whole_line(&mut self, line: &[u8], out: &mut Vec<SseEvent>) -> Result<(), SseFault> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = std::str::from_utf8(line).map_err(|_| SseFault::NotUtf8)?;
        let line = if mem::replace(&mut self.is_begun, true) {
            line
        } else {
            line.strip_prefix('\u{feff}').unwrap_or(line)
        };
        if line.is_empty() {
            if mem::take(&mut self.has_data) {
                out.push(mem::take(&mut self.event));
            } else {
                self.event = SseEvent::default();
            }
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            // Servers of llama.cpp used to send errors in a separate field.
            "data" | "error" => {
                if mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            "event" => value.clone_into(&mut self.event.name),
            // Comments, ids and times to reconnect.
            _ => {}
        }
        self.check_size()
    }

    // NOTE: Bounds the memory for one event: a server may send a line without an end.
    fn check_size(&self) -> Result<(), SseFault> {
        if self.line.len() + self.event.data.len() > MAX_EVENT { Err(SseFault::TooLarge) } else { Ok(()) }
    }
}

/// Finds the end of the line.
fn find_newline(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All events, and whether the end was in the middle of one.
    fn read(pieces: &[&[u8]]) -> (Vec<(String, String)>, bool) {
        let mut events = SseParser::default();
        let mut out = Vec::new();
        for piece in pieces {
            events.push(piece, &mut out).unwrap();
        }
        (out.into_iter().map(|event| (event.name, event.data)).collect(), events.is_within_event())
    }

    fn check(text: &str, expected: &[(&str, &str)], is_within_event: bool) {
        let expected: Vec<_> =
            expected.iter().map(|(name, data)| ((*name).to_owned(), (*data).to_owned())).collect();
        assert_eq!(read(&[text.as_bytes()]), (expected, is_within_event), "{text:?}");
    }

    #[test]
    fn fields_comments_and_ends() {
        check("data: a\n\ndata:b\n\n", &[("", "a"), ("", "b")], false);
        check("\u{feff}data: a\r\n\r\n", &[("", "a")], false);
        check(": keep-alive\n\nevent: ping\ndata: {}\nid: 1\n\n", &[("ping", "{}")], false);
        check("event: lost\n\ndata: a\n\n", &[("", "a")], false);
        check("data: a\ndata: b\ndata\n\n", &[("", "a\nb\n")], false);
        check("data: a\n\ndata: b\n", &[("", "a")], true);
        check("data: a\n\nda", &[("", "a")], true);
        check("data: a\n\n: keep-alive\n", &[("", "a")], false);
        check("data\n\n", &[("", "")], false);
        check("data: a\n\nerror: {}\n\n", &[("", "a"), ("", "{}")], false);
    }

    #[test]
    fn what_is_no_text_or_too_large_is_refused() {
        let push = |bytes: &[u8]| SseParser::default().push(bytes, &mut Vec::new());
        assert_eq!(push(b"data: \xff\n\n"), Err(SseFault::NotUtf8));
        assert_eq!(push(&vec![b'x'; MAX_EVENT + 1]), Err(SseFault::TooLarge));
        let lines = b"data: 0123456789\n".repeat(MAX_EVENT / 8);
        assert_eq!(push(&lines), Err(SseFault::TooLarge));
        assert_eq!(push(&vec![b'x'; MAX_EVENT]), Ok(()));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_bytes_are_cut(
            lines in prop::collection::vec("(data: |data:|event: |: |)[a-zä\u{1f600}\r]{0,6}(\n|\r\n|\n\n)", 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let text = lines.concat();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &text.as_bytes()[cut[0]..cut[1]]).collect();
            prop_assert_eq!(read(&pieces), read(&[text.as_bytes()]));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = SseParser::default().push(&bytes, &mut Vec::new());
        }
    }
}
