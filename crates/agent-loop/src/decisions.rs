//! Decisions as they are given together, and why they may be refused.
//!
//! A refusal changes nothing, which may surprise: the run waits as it did before, and every request stays
//! pending.

use serde::{Deserialize, Serialize};
use stepfold_state_core::state::NameList;
use thiserror::Error;

use crate::approval::Decision;

/// Decisions that are taken together: all of them or none.
///
/// A list of ids and decisions is one by itself. With an [idempotency key](Decisions::with_idempotency_key) they can be
/// sent again, by a client that does not know whether they arrived.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_tools::{Approval, Tool, ToolError};
/// use stepfold_agent_loop::{Agent, Decision, DecisionError, Decisions, RunFault};
///
/// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
/// # let pay = Tool::new("pay", "Pays a bill.", pay).approval(Approval::Always).build()?;
/// # let model = Script::parse("assistant: > c1 pay()   > c2 pay()\nassistant: done")?;
/// let agent = Agent::builder(model).tools([pay]).build()?;
/// let waiting = agent.run("pay both bills").await?;
/// let first = waiting.pending()[0].id.clone();
///
/// let decisions = Decisions::from([(first.clone(), Decision::Approve)]).by("ada").with_idempotency_key("click-1");
/// let decided = waiting.into_run().resume().decide_all(decisions.clone()).await?.into_run();
///
/// // The same again is taken as a repeat, and changes nothing.
/// assert!(decided.has_decided(&decisions));
/// let waiting = decided.resume().decide_all(decisions).await?;
/// assert_eq!(waiting.pending().len(), 1);
///
/// // Another decision about the same request is refused, and the run waits as before.
/// let error = waiting.into_run().resume().decide(&*first, Decision::reject("no")).await.unwrap_err();
/// assert!(matches!(error.fault(), RunFault::Decision(DecisionError::AlreadyDecided { .. })));
/// assert_eq!(error.outcome().pending().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Decisions {
    /// Each decision with the [id](crate::ApprovalRequest::id) of its request.
    pub decisions: Vec<(String, Decision)>,
    /// The author of the decisions, for the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The key under which the same decisions may be sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

impl Decisions {
    /// No decisions.
    pub fn new() -> Self {
        Decisions::default()
    }

    /// Adds a decision about a request.
    #[must_use]
    pub fn decide(mut self, id: impl Into<String>, decision: Decision) -> Self {
        self.decisions.push((id.into(), decision));
        self
    }

    /// Records who decided.
    #[must_use]
    pub fn by(mut self, name: impl Into<String>) -> Self {
        self.by = Some(name.into());
        self
    }

    /// Takes the same decisions under the same key as a repeat. Other decisions under the key are refused.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Whether there is no decision.
    pub fn is_empty(&self) -> bool {
        self.decisions.is_empty()
    }

    /// Adds other decisions; their author and key win if they have them.
    #[must_use]
    pub fn and(mut self, other: impl Into<Decisions>) -> Self {
        let other = other.into();
        self.decisions.extend(other.decisions);
        self.by = other.by.or(self.by);
        self.idempotency_key = other.idempotency_key.or(self.idempotency_key);
        self
    }
}

impl From<Vec<(String, Decision)>> for Decisions {
    fn from(decisions: Vec<(String, Decision)>) -> Self {
        Decisions { decisions, ..Decisions::default() }
    }
}

impl<S: Into<String>, const N: usize> From<[(S, Decision); N]> for Decisions {
    fn from(decisions: [(S, Decision); N]) -> Self {
        decisions.into_iter().collect()
    }
}

impl<S: Into<String>> FromIterator<(S, Decision)> for Decisions {
    fn from_iter<I: IntoIterator<Item = (S, Decision)>>(decisions: I) -> Self {
        decisions.into_iter().map(|(id, decision)| (id.into(), decision)).collect::<Vec<_>>().into()
    }
}

/// An error of decisions. None of them was applied, and the run still waits.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum DecisionError {
    /// No request with this id is pending.
    #[error("no pending approval with id `{id}`{}; pending: {pending}", asked_again(id, pending))]
    NotPending {
        /// The id that was decided about.
        id: String,
        /// The ids of the requests that are pending.
        pending: NameList,
    },
    /// The request has a decision already.
    #[error("approval `{id}` is already decided{}: {}", by_whom(by.as_deref()), decision.verb())]
    AlreadyDecided {
        /// The id of the request.
        id: String,
        /// The decision that it has.
        decision: Box<Decision>,
        /// The author of that decision, if recorded.
        by: Option<String>,
    },
    /// Modified arguments do not fit the tool.
    #[error("invalid arguments for approval `{id}`: {faults}; the request stays pending")]
    InvalidArguments {
        /// The id of the request.
        id: String,
        /// The faults.
        faults: String,
    },
    /// The deadline of a request has passed.
    #[error("request `{id}` has expired: its deadline has passed")]
    Expired {
        /// The id of the request.
        id: String,
    },
    /// Several decisions about one request.
    #[error("duplicate decision about approval `{id}`; expected one")]
    Duplicate {
        /// The id of the request.
        id: String,
    },
    /// The idempotency key belongs to other decisions.
    #[error("idempotency key `{idempotency_key}` was used for other decisions; use a new key")]
    KeyReused {
        /// The key.
        idempotency_key: String,
    },
}

/// The request of the same call whose digest is another: the tool or the arguments have changed since it was asked.
fn asked_again(id: &str, pending: &NameList) -> String {
    let path = |id: &str| id.rsplit_once('#').map(|(path, _)| path.to_owned());
    let same = path(id).and_then(|asked| pending.iter().find(|other| path(other).as_ref() == Some(&asked)));
    match same {
        Some(other) => format!(": it is asked again as `{other}`, since what it asks about has changed"),
        None => String::new(),
    }
}

fn by_whom(by: Option<&str>) -> String {
    by.map(|by| format!(" by {by}")).unwrap_or_default()
}

impl DecisionError {
    /// The same error with another request id, as known outside.
    pub(crate) fn renamed(mut self, rename: impl Fn(&str) -> String) -> Self {
        match &mut self {
            DecisionError::NotPending { id, pending } => {
                *id = rename(id);
                *pending = pending.iter().map(rename).collect();
            }
            DecisionError::AlreadyDecided { id, .. }
            | DecisionError::InvalidArguments { id, .. }
            | DecisionError::Expired { id }
            | DecisionError::Duplicate { id } => *id = rename(id),
            DecisionError::KeyReused { .. } => {}
        }
        self
    }
}

/// A decision that a request has, kept so that a second one is known as such.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SettledDecision {
    pub(crate) decision: Decision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idempotency_key: Option<String>,
}
