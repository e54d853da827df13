//! Every message of the crate's errors, in one list.

use expect_test::expect_file;
use stepfold_providers::NameError;
use stepfold_providers::cassette::CassetteError;
use stepfold_state_core::chat::{ModelError, ModelErrorKind};

fn model_error() -> ModelError {
    ModelError::new(ModelErrorKind::Unsupported, "missing key: it is usually in OPENAI_API_KEY")
}

fn names() -> Vec<NameError> {
    let text = str::to_owned;
    vec![
        NameError::Form { name: text("gpt"), known: text("openai, anthropic") },
        NameError::Provider {
            name: text("opnai:gpt"),
            provider: text("opnai"),
            known: text("openai, anthropic"),
        },
        NameError::Missing { name: text("openai:gpt"), what: "key", looked_for: text("OPENAI_API_KEY") },
        NameError::None { found: text("none"), looked_for: text("OPENAI_API_KEY, ANTHROPIC_API_KEY") },
        NameError::Build { name: text("openai:gpt"), source: model_error() },
    ]
}

fn cassettes() -> Vec<CassetteError> {
    let io = || std::io::Error::other("no disk");
    vec![
        CassetteError::Read { path: "a.cassette".into(), source: io() },
        CassetteError::Write { path: "a.cassette".into(), source: io() },
        CassetteError::Format {
            path: "a.cassette".into(),
            line: 3,
            message: "unexpected section `x`".to_owned(),
        },
        CassetteError::NotACassette { path: "a.cassette".into() },
        CassetteError::Model(model_error()),
    ]
}

#[test]
fn every_error_message() {
    let names = names().into_iter().map(|error| error.to_string());
    let cassettes = cassettes().into_iter().map(|error| error.to_string());
    let list: Vec<String> = names.chain(cassettes).collect();
    expect_file!["messages.txt"].assert_eq(&(list.join("\n") + "\n"));
}
