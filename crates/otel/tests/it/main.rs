//! Every message of the crate's errors, in one list.

use expect_test::expect_file;
use stepfold_otel::OtelError;

#[test]
fn every_error_message() {
    let source = || "connection refused".into();
    let errors = [
        OtelError::Address { url: "localhost".to_owned() },
        OtelError::Header { name: "x key".to_owned() },
        OtelError::Setup { source: source() },
        OtelError::Subscriber { source: source() },
        OtelError::Export { source: source() },
    ];
    let list: Vec<String> = errors.iter().map(ToString::to_string).collect();
    expect_file!["messages.txt"].assert_eq(&(list.join("\n") + "\n"));
}
