//! Rows of commands that list stored data. A row has the same text at a terminal and in a pipe; at a terminal it is
//! styled, and wrapped between words.

use stepfold::terminal::{DisplayForm, StyledText, TextStyle, stdout_form};

use super::text::line;

/// The column at which the content of an event begins.
pub(crate) const CONTENT: usize = 17;

/// Prints a row. Lines after a wrap begin at this column, or where an indented row begins.
pub(crate) fn row(text: &StyledText, column: usize) {
    match stdout_form() {
        // On a narrow terminal the content needs the room.
        DisplayForm::Terminal { width } => {
            line(text.wrapped(width, 0, column.max(indent(text)).min(width / 3)));
        }
        DisplayForm::Log => line(text.clone()),
    }
}

/// The column at which the text of a row begins.
fn indent(text: &StyledText) -> usize {
    text.to_plain().chars().take_while(|character| *character == ' ').count()
}

/// Styles a line of an event: its version, its kind, and its content. An event that does not count is dimmed.
pub(crate) fn event(line: &str) -> StyledText {
    // NOTE: The mark of an event that a rewind has hidden.
    if line.starts_with('-') {
        return StyledText::new(TextStyle::DIM, line);
    }
    if line.chars().take(CONTENT).all(|character| character == ' ') {
        return line.into();
    }
    let from_kind = line.trim_start_matches(|character: char| character == ' ' || character.is_ascii_digit());
    let (version, rest) = line.split_at(line.len() - from_kind.len());
    let (kind, content) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
    StyledText::new(TextStyle::DIM, version).with(of_kind(kind), kind).and(content)
}

/// The style of a kind of event.
fn of_kind(kind: &str) -> TextStyle {
    match kind {
        "failed" | "interrupted" | "cancelled" | "timed_out" => TextStyle::BAD,
        "asked" | "asks" | "decided" => TextStyle::ASK,
        _ => TextStyle::STRONG,
    }
}

/// Styles a key with its value or change, such as `count 3 -> 4`, after a dimmed prefix.
pub(crate) fn key_and_value(before: &str, text: &str) -> StyledText {
    let (key, value) = text.split_at(text.find(' ').unwrap_or(text.len()));
    StyledText::new(TextStyle::DIM, before).with(TextStyle::KEY, key).and(value)
}

#[cfg(test)]
mod tests {
    use super::{event, key_and_value};

    /// The text is the same without looks: what reads a pipe sees no difference.
    #[test]
    fn looks_change_no_text() {
        for line in [
            "    1  began     user: what is new?",
            "   12  failed    the model's server is overloaded",
            "                 tool c1: 12",
            "-   3  replied   a reply that was taken back",
            " 12345  replied   a long history",
            "    4  ended",
            "    5  interrupted the process ended",
            "    6  kind-of-a-program ünïcode",
        ] {
            assert_eq!(event(line).to_plain(), line);
        }
        assert_eq!(
            key_and_value("                 ~ ", "n 3 -> 4").to_plain(),
            "                 ~ n 3 -> 4"
        );
        assert_eq!(key_and_value("", "n").to_plain(), "n");
    }

    #[test]
    fn kinds_are_told_apart() {
        let failed = event("   12  failed    too long").to_ansi();
        assert!(failed.contains("\u{1b}[31m") || failed.contains("\u{1b}[1m\u{1b}[31m"), "{failed:?}");
        assert!(event("-   3  replied   gone").to_ansi().starts_with("\u{1b}[2m-"));
        assert!(!event("                 tool c1: 12").to_ansi().contains("\u{1b}[1m"));
    }
}
