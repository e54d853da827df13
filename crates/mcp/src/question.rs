//! Questions of a server to the user during a call (elicitation): answered by the program while the call waits, or by the
//! run, which stores the question and continues with the answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use rmcp::model as wire;
use serde_json::{Value, json};
use stepfold_state_core::json_schema::ValueType;
use stepfold_tools::{AnsweredRequest, InputRequest, InputResponse};

/// A question of a server to the user during a call (elicitation).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Elicitation {
    /// The server that asks.
    pub server: String,
    /// The question, for the user.
    pub message: String,
    /// The kind of the answer.
    pub wants: ElicitationRequest,
}

/// The kind of answer that a question requests.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ElicitationRequest {
    /// An object that fits this JSON Schema.
    Form(Value),
    /// A visit to this address. The server learns the result by itself.
    Visit(String),
}

/// The answer to an [`Elicitation`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ElicitationAnswer {
    /// The user agrees, with the content of the form; null for a visit.
    Accept(Value),
    /// The user refuses to answer. The server may continue without.
    Decline,
    /// The user cancels the whole call.
    Cancel,
}

type AnswerFuture = Pin<Box<dyn Future<Output = ElicitationAnswer> + Send>>;

/// Answers questions while a call waits.
#[derive(Clone)]
pub(crate) struct QuestionHandler(Arc<dyn Fn(Elicitation) -> AnswerFuture + Send + Sync>);

impl QuestionHandler {
    pub(crate) fn new<F, Fut>(answer: F) -> Self
    where
        F: Fn(Elicitation) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ElicitationAnswer> + Send + 'static,
    {
        QuestionHandler(Arc::new(move |question| Box::pin(answer(question))))
    }

    /// Returns the answer in the form of the protocol. An answer that violates the schema of the form cancels the call.
    pub(crate) async fn answer(&self, server: &str, params: wire::ElicitRequestParams) -> wire::ElicitResult {
        let Some(question) = question(server, params) else { return decline() };
        let wants = question.wants.clone();
        match (self.0(question).await, wants) {
            (ElicitationAnswer::Accept(_), ElicitationRequest::Visit(_)) => {
                wire::ElicitResult::new(wire::ElicitationAction::Accept)
            }
            (ElicitationAnswer::Accept(content), ElicitationRequest::Form(schema)) => {
                let checked = ValueType::of_schema(schema).map(|form| form.check(&content));
                if let Ok(Err(faults)) = checked {
                    // NOTE: Servers may not check the form themselves, so the answer must not reach them.
                    tracing::warn!(server, %faults, "the answer to a question of the server does not fit its form");
                    return wire::ElicitResult::new(wire::ElicitationAction::Cancel);
                }
                wire::ElicitResult::new(wire::ElicitationAction::Accept).with_content(content)
            }
            (ElicitationAnswer::Decline, _) => decline(),
            (ElicitationAnswer::Cancel, _) => wire::ElicitResult::new(wire::ElicitationAction::Cancel),
        }
    }
}

/// The questions of a result that requires input, by their keys there.
pub(crate) type ElicitationRequests = Vec<(String, wire::ElicitRequestParams)>;

/// Converts the questions of a round to questions of the run, each with the state that is returned to the server.
pub(crate) fn questions(
    server: &str,
    round: usize,
    request_state: Option<&str>,
    requests: ElicitationRequests,
) -> Vec<InputRequest> {
    let ask = |(key, params): (String, wire::ElicitRequestParams)| {
        let Elicitation { message, wants, .. } = question(server, params)?;
        // NOTE: A server may reuse its keys in a later round.
        let label = if round == 1 { key.clone() } else { format!("{key}.{round}") };
        // NOTE: Stored with the question, so that any process can continue the call with the answer.
        let state = json!({"key": key, "round": round, "requestState": request_state});
        let request = InputRequest::new(label, message).state(state);
        Some(match wants {
            ElicitationRequest::Form(schema) => request.details(json!({"server": server})).schema(schema),
            ElicitationRequest::Visit(url) => {
                request.details(json!({"server": server, "url": url})).schema(false)
            }
        })
    };
    requests.into_iter().filter_map(ask).collect()
}

/// The field in the state of a question that marks it as one about a sign-in.
const SIGN_IN: &str = "signIn";

/// Asks, as a question of the run, whether the user has signed in.
pub(crate) fn sign_in(server: &str, reason: &str, answered: &[AnsweredRequest]) -> InputRequest {
    let number = answered.iter().filter(|answered| is_sign_in(answered)).count() + 1;
    let label = if number == 1 { "sign_in".to_owned() } else { format!("sign_in.{number}") };
    let message =
        format!("MCP server `{server}` requires authorization: {reason}. Approve after the sign-in.");
    InputRequest::new(label, message)
        .details(json!({"server": server}))
        .state(json!({SIGN_IN: number}))
        .schema(false)
}

/// Whether the last question about a sign-in was accepted; `None` if there was none.
pub(crate) fn has_signed_in(answered: &[AnsweredRequest]) -> Option<bool> {
    let last = answered.iter().rfind(|answered| is_sign_in(answered))?;
    Some(matches!(last.response, InputResponse::Accept(_)))
}

fn is_sign_in(answered: &AnsweredRequest) -> bool {
    answered.request.state.as_ref().is_some_and(|state| state.get(SIGN_IN).is_some())
}

/// The last round of questions of a call, answered.
pub(crate) struct AnsweredRound {
    pub(crate) number: usize,
    pub(crate) request_state: Option<String>,
    pub(crate) responses: wire::InputResponses,
}

impl AnsweredRound {
    /// None before the first round.
    pub(crate) fn answered(answered: &[AnsweredRequest]) -> Option<Self> {
        let of = |answered: &AnsweredRequest| {
            let state = answered.request.state.as_ref()?;
            let number = usize::try_from(state["round"].as_u64()?).ok()?;
            Some((
                number,
                state["key"].as_str()?.to_owned(),
                state["requestState"].as_str().map(str::to_owned),
            ))
        };
        let (number, _, request_state) = answered.iter().filter_map(of).max_by_key(|(number, ..)| *number)?;
        let responses = answered.iter().filter_map(|answered| {
            let (_, key, _) = of(answered).filter(|(round, ..)| *round == number)?;
            Some((key, serde_json::to_value(response(answered)).ok()?))
        });
        Some(AnsweredRound { number, request_state, responses: responses.collect() })
    }
}

fn response(answered: &AnsweredRequest) -> wire::ElicitResult {
    let is_visit = answered.request.schema == Some(Value::Bool(false));
    match &answered.response {
        InputResponse::Accept(_) if is_visit => wire::ElicitResult::new(wire::ElicitationAction::Accept),
        InputResponse::Accept(content) => {
            wire::ElicitResult::new(wire::ElicitationAction::Accept).with_content(content.clone())
        }
        _ => decline(),
    }
}

pub(crate) fn decline() -> wire::ElicitResult {
    wire::ElicitResult::new(wire::ElicitationAction::Decline)
}

fn question(server: &str, params: wire::ElicitRequestParams) -> Option<Elicitation> {
    let (message, wants) = match params {
        wire::ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            (message, ElicitationRequest::Form(serde_json::to_value(requested_schema).ok()?))
        }
        wire::ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            (message, ElicitationRequest::Visit(url))
        }
        _ => return None,
    };
    Some(Elicitation { server: server.to_owned(), message, wants })
}
