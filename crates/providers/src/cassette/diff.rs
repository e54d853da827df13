//! A readable diff of two texts: the differing lines between a common start and a common end.

use std::fmt::Write as _;

use super::file;
use stepfold_state_core::chat::ChatRequest;

/// The most lines of either side that are shown.
const SHOWN: usize = 12;

/// Writes a request as text, one item per line.
pub(super) fn text(request: &ChatRequest) -> String {
    let options = serde_json::to_string_pretty(&file::RecordedOptions::of(request)).unwrap_or_default();
    format!("{options}\n{}", request.messages)
}

/// The number of lines that both begin with.
pub(super) fn common(left: &str, right: &str) -> usize {
    left.lines().zip(right.lines()).take_while(|(left, right)| left == right).count()
}

/// The difference, with the line before it.
pub(super) fn diff(recorded: &str, requested: &str) -> String {
    let start = common(recorded, requested);
    let left: Vec<&str> = recorded.lines().skip(start).collect();
    let right: Vec<&str> = requested.lines().skip(start).collect();
    let end = left.iter().rev().zip(right.iter().rev()).take_while(|(left, right)| left == right).count();
    let mut text = String::new();
    // Writing to a string cannot fail.
    if let Some(before) = start.checked_sub(1).and_then(|line| recorded.lines().nth(line)) {
        let _ = write!(text, "\n    {before}");
    }
    for (mark, lines) in [("  - ", &left[..left.len() - end]), ("  + ", &right[..right.len() - end])] {
        for line in lines.iter().take(SHOWN) {
            let _ = write!(text, "\n{mark}{line}");
        }
        if lines.len() > SHOWN {
            let _ = write!(text, "\n{mark}... {} more lines", lines.len() - SHOWN);
        }
    }
    text
}
