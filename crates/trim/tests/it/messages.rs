//! Every message of the crate's errors, in one list.

use expect_test::expect_file;
use stepfold_trim::TrimError;

#[test]
fn every_error_message() {
    let errors = [TrimError::Ranges { start: 5, end: 3 }, TrimError::BlankSummary { messages: 7 }];
    let list: Vec<String> = errors.iter().map(ToString::to_string).collect();
    expect_file!["messages.txt"].assert_eq(&(list.join("\n") + "\n"));
}
