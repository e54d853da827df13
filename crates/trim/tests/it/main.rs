//! Trimming: its behaviour case by case, its laws, and its token counts.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    clippy::format_collect,
    clippy::format_push_string,
    reason = "a helper of a test fails the test, and an `Expect` reads best inline"
)]

mod histories;

mod broken;
mod data;
mod laws;
mod many;
mod messages;
mod rows;
mod spec;
mod summaries;
mod tokens;
mod windows;

use expect_test::Expect;
use stepfold_state_core::chat::Transcript;
use stepfold_trim::{Trim, View};

/// Trims a conversation in the notation; prints the view and its reasons.
fn check(trim: Trim, log: &str, expected: Expect) {
    let log: Transcript = log.parse().unwrap();
    let view = trim.view(&log);
    expected.assert_eq(&shown(&view));
    assert_eq!(view.transcript().check(), Ok(()));
    let again = trim.view(view.transcript());
    assert!(again.transcript().ptr_eq(view.transcript()), "a trim of a trim is a trim");
}

fn shown(view: &View) -> String {
    format!("# {view}\n{}", view.transcript())
}
