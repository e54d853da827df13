//! The input of a run.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_state_core::chat::{Message, Role, Transcript};
use stepfold_state_core::state::{Delta, State};

use super::call_ids::CallIdSet;
use super::event::Event;
use super::machine::Run;
use super::prompt::ModelPrompt;
use crate::error::StartError;
use crate::stored_form::{check_format, first_format, is_first_format};
use stepfold_trim::Summary;

/// The input of a run: messages of the user, and values of the state.
///
/// A text, a [`Message`], several of them or a [`Transcript`] are an input by themselves. To continue with a
/// conversation, begin with its [`State`].
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Input};
///
/// let agent = Agent::builder(Script::parse("assistant: area 3\nassistant: area 7")?).build()?;
/// let first = agent.run("which area has most stalls?").await?;
/// // The next turn, on the state that the first one left.
/// let second = agent.run(Input::on(first.state().clone()).say("and fewest?")).await?;
/// assert_eq!(second.transcript().to_string(), "\
/// user:      which area has most stalls?
/// assistant: area 3
/// user:      and fewest?
/// assistant: area 7
/// ");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct Input {
    pub(crate) state: Option<State>,
    pub(crate) messages: Vec<Arc<Message>>,
    pub(crate) values: Option<Value>,
    /// The values as the writes that they were recorded as.
    pub(crate) delta: Option<Delta>,
    pub(crate) summary: Option<Summary>,
    /// The facts about the conversation that an earlier run has found.
    pub(crate) cache: Option<ConversationCache>,
    /// It is of a record, which has nothing that does not last.
    pub(crate) is_recorded: bool,
}

/// The newest format of a stored input. The first one does not say its number.
const INPUT_FORMAT: u32 = 1;

/// An input that waits in storage.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredInput {
    #[serde(default = "first_format", skip_serializing_if = "is_first_format")]
    format: u32,
    messages: Vec<Arc<Message>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    values: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    summary: Option<Summary>,
}

/// Known facts about a conversation, which are not computed again.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConversationCache {
    /// The number of messages that are known to be well-formed.
    pub(crate) messages: usize,
    /// The ids of the calls in them.
    pub(crate) call_ids: CallIdSet,
    /// The part of them that the model was shown.
    pub(crate) prompt: Option<Box<ModelPrompt>>,
}

impl ConversationCache {
    /// The facts that a finished run has found. An unfinished one may have calls without results.
    fn of(run: &Run) -> Option<Self> {
        run.exit()?;
        let (messages, call_ids) = (run.transcript().len(), run.cache.call_ids.for_next_run());
        Some(ConversationCache { messages, call_ids, prompt: Some(Box::new(run.prompt.clone())) })
    }
}

impl Input {
    /// Creates an empty input.
    pub fn new() -> Self {
        Input::default()
    }

    /// Continues with this state and its conversation.
    pub fn on(state: State) -> Self {
        Input { state: Some(state), ..Input::default() }
    }

    /// Continues where a run has ended: with its state, its conversation and its summary. What is known of the
    /// conversation is not found out again, so that to begin costs the same however long it has become.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Input};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3\nassistant: area 7")?).build()?;
    /// let first = agent.run("which area has most stalls?").await?;
    /// let second = agent.run(Input::after(first.into_run()).say("and fewest?")).await?;
    /// assert_eq!((second.text(), second.transcript().len()), ("area 7".into(), 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn after(run: Run) -> Self {
        let cache = ConversationCache::of(&run);
        let Run { state, summary, .. } = run;
        Input { state: Some(state), summary, cache, ..Input::default() }
    }

    /// Adds a message of the user.
    #[must_use]
    pub fn say(self, text: impl Into<String>) -> Self {
        self.with_message(Message::user(text))
    }

    /// Adds a message.
    #[must_use]
    pub fn with_message(mut self, message: Message) -> Self {
        self.messages.push(message.into());
        self
    }

    /// Sets values of the state, an object by key. In a new state they are stored as they are; in an existing one, each
    /// is merged by the handler of its key. Both check them.
    #[must_use]
    pub fn with_values(mut self, values: Value) -> Self {
        self.values = Some(values);
        self
    }

    /// Sets the summary of the part of the conversation that an earlier run condensed: see
    /// [`Outcome::summary`](crate::Outcome::summary).
    #[must_use]
    pub fn with_summary(mut self, summary: Option<Summary>) -> Self {
        self.summary = summary;
        self
    }
}

/// For a runner, which brings the state and the record.
impl Input {
    /// The same on this state, in place of one that it has. If its conversation is the one that a run has left when
    /// it ended, that run knows things of it that are not found out again: see [`Input::after`].
    #[must_use]
    pub fn on_state(mut self, state: State, left_by: Option<&Run>) -> Self {
        self.cache = left_by.and_then(ConversationCache::of);
        self.state = Some(state);
        self
    }

    /// A message of the user or the system says something. An assistant's may be empty: models reply so. What was
    /// recorded stays as it is.
    pub(crate) fn check_messages(&self) -> Result<(), StartError> {
        let is_blank = |message: &Message| {
            message.parts().is_empty() && matches!(message.role(), Role::User | Role::System)
        };
        match self.messages.iter().position(|message| is_blank(message)) {
            Some(index) if !self.is_recorded => Err(StartError::NoParts { index }),
            _ => Ok(()),
        }
    }

    /// The new messages.
    pub fn messages(&self) -> impl Iterator<Item = &Message> {
        self.messages.iter().map(|message| &**message)
    }

    /// The values by key, if there are any.
    pub fn values(&self) -> Option<&Value> {
        self.values.as_ref()
    }

    /// The messages, if there is nothing else: no state, no values, no summary.
    pub fn only_messages(&self) -> Option<&[Arc<Message>]> {
        let is_only = self.state.is_none() && self.values.is_none() && self.summary.is_none();
        is_only.then_some(&*self.messages)
    }

    /// The input as JSON, so that it can wait in storage; none if it has a state of its own, which is not stored
    /// with a message.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_agent_loop::Input;
    ///
    /// let input = Input::from("which area has most stalls?").with_values(json!({"topic": "stalls"}));
    /// let stored = input.to_json().unwrap();
    /// assert_eq!(Input::from_json(stored.clone())?.to_json(), Some(stored));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn to_json(&self) -> Option<Value> {
        serde_json::to_value(self).ok()
    }

    /// The form that is stored; none if it has a state of its own.
    fn stored(&self) -> Option<StoredInput> {
        if self.state.is_some() || self.delta.is_some() {
            return None;
        }
        let Input { messages, values, summary, .. } = self.clone();
        Some(StoredInput { format: INPUT_FORMAT, messages, values, summary })
    }

    /// The input that [`to_json`](Input::to_json) gave.
    ///
    /// # Errors
    /// When the JSON is not of that form.
    pub fn from_json(stored: Value) -> Result<Self, serde_json::Error> {
        serde_json::from_value(stored)
    }

    /// The input that a recorded run began with, given the state before it and its first event.
    #[must_use]
    pub fn recorded(mut state: State, began: &Event) -> Self {
        began.restore_shared(&mut state);
        let messages = match &began.rewrite {
            None => began.messages.clone(),
            // The repair was of the conversation followed by the new messages; they come after the repaired
            // conversation alone, within the rewrite or after it.
            Some(rewrite) => {
                let before = state.messages().repair().transcript.len();
                rewrite.iter_from(before).chain(&began.messages).cloned().collect()
            }
        };
        let delta = Some(began.delta.clone());
        Input { state: Some(state), messages, delta, is_recorded: true, ..Input::default() }
    }
}

/// As [`Input::to_json`] says: an error for an input with a state of its own.
impl Serialize for Input {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own_state = "an input with its own state is not stored: send messages and values";
        self.stored().ok_or_else(|| serde::ser::Error::custom(own_state))?.serialize(serializer)
    }
}

/// Refuses a newer format.
impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let StoredInput { format, messages, values, summary } = StoredInput::deserialize(deserializer)?;
        check_format("an input", format, INPUT_FORMAT)?;
        Ok(Input { messages, values, summary, ..Input::default() })
    }
}

impl From<&str> for Input {
    fn from(text: &str) -> Self {
        Input::new().say(text)
    }
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        Input::new().say(text)
    }
}

impl From<Message> for Input {
    fn from(message: Message) -> Self {
        Input::new().with_message(message)
    }
}

impl From<Vec<Message>> for Input {
    fn from(messages: Vec<Message>) -> Self {
        Input { messages: messages.into_iter().map(Into::into).collect(), ..Input::default() }
    }
}

impl From<Transcript> for Input {
    fn from(transcript: Transcript) -> Self {
        Input { messages: transcript.iter().cloned().collect(), ..Input::default() }
    }
}
