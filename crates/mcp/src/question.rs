//! What a server asks the user while a call runs (elicitation), and the program's answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use rmcp::model as wire;
use serde_json::Value;
use stepfold_state_core::json_schema::ValueType;

/// Something that a server asks the user while a call runs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Question {
    /// The server that asks.
    pub server: String,
    /// What it asks, for the user.
    pub message: String,
    /// What it wants to be given.
    pub wants: Wants,
}

/// What a question asks for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Wants {
    /// An object that fits this JSON Schema.
    Form(Value),
    /// The user is to open this address. What is done there the server learns by itself.
    Visit(String),
}

/// The answer to a [`Question`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Answer {
    /// The user agrees, with what the form asks for; null where it is an address.
    Accept(Value),
    /// The user does not want to say it. The server may go on without.
    Decline,
    /// The user wants the whole call to end.
    Cancel,
}

type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Answers questions. Without one all of them are declined.
#[derive(Clone)]
pub(crate) struct Answerer(Arc<dyn Fn(Question) -> Answering + Send + Sync>);

impl Answerer {
    pub(crate) fn new<F, Fut>(answer: F) -> Self
    where
        F: Fn(Question) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Answer> + Send + 'static,
    {
        Answerer(Arc::new(move |question| Box::pin(answer(question))))
    }

    /// The answer in the protocol's form. One that does not fit the form cancels.
    pub(crate) async fn answer(&self, server: &str, params: wire::ElicitRequestParams) -> wire::ElicitResult {
        let Some(question) = question(server, params) else { return decline() };
        let wants = question.wants.clone();
        match (self.0(question).await, wants) {
            (Answer::Accept(_), Wants::Visit(_)) => wire::ElicitResult::new(wire::ElicitationAction::Accept),
            (Answer::Accept(content), Wants::Form(schema)) => {
                let checked = ValueType::of_schema(schema).map(|form| form.check(&content));
                if let Ok(Err(faults)) = checked {
                    tracing::warn!(server, %faults, "the answer to a question of the server does not fit its form");
                    return wire::ElicitResult::new(wire::ElicitationAction::Cancel);
                }
                wire::ElicitResult::new(wire::ElicitationAction::Accept).with_content(content)
            }
            (Answer::Decline, _) => decline(),
            (Answer::Cancel, _) => wire::ElicitResult::new(wire::ElicitationAction::Cancel),
        }
    }
}

pub(crate) fn decline() -> wire::ElicitResult {
    wire::ElicitResult::new(wire::ElicitationAction::Decline)
}

fn question(server: &str, params: wire::ElicitRequestParams) -> Option<Question> {
    let (message, wants) = match params {
        wire::ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            (message, Wants::Form(serde_json::to_value(requested_schema).ok()?))
        }
        wire::ElicitRequestParams::UrlElicitationParams { message, url, .. } => (message, Wants::Visit(url)),
        _ => return None,
    };
    Some(Question { server: server.to_owned(), message, wants })
}
