//! The outcome of a run: always available, even if the run paused or failed.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use stepfold_state_core::chat::{Cost, FinishReason, Message, Prices, Transcript, Usage};
use stepfold_state_core::state::State;
use stepfold_state_core::{DecodeError, decode};

use crate::approval::ApprovalRequest;
use crate::exit::{Exit, Pause};
use crate::run::{Run, UnknownCall};
use stepfold_trim::Summary;

/// The outcome of a run: the exit, the reply, the conversation, the state, and the cost.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Exit};
///
/// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
/// let outcome = agent.run("which area has most stalls?").await?;
/// assert_eq!(outcome.exit(), &Exit::Text);
/// assert_eq!(outcome.text(), "area 3");
/// assert_eq!(outcome.to_string(), "area 3");
/// assert_eq!((outcome.steps(), outcome.transcript().len()), (1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Outcome {
    run: Run,
    exit: Exit,
    recovered: Vec<Arc<Outcome>>,
    missing_temp: Vec<String>,
}

/// The answer: the [last words](Outcome::last_words), or the exit of a run without an answer, with the calls that wait for
/// a decision.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(words) = self.last_words().filter(|_| self.exit.is_answer()) {
            return f.write_str(&words);
        }
        let calls: Vec<String> = self.pending().iter().map(|request| request.call.to_string()).collect();
        let about = if calls.is_empty() { "" } else { ": " };
        write!(f, "{}{about}{}", self.exit, calls.join(", "))
    }
}

impl Outcome {
    pub(crate) fn new(run: Run, exit: Exit) -> Self {
        Outcome { run, exit, recovered: Vec::new(), missing_temp: Vec::new() }
    }

    /// The outcome of a run as it is, without running it: that of its end, or of its pause. See [`Run::ended_as`].
    pub fn recorded(run: Run) -> Self {
        let pause = || match run.pending().is_empty() {
            true => Pause::Suspended,
            false => Pause::Approval,
        };
        let exit = run.exit().cloned().unwrap_or_else(|| Exit::Paused(pause()));
        Outcome::new(run, exit)
    }

    /// The exit of the run, or its pause.
    pub fn exit(&self) -> &Exit {
        &self.exit
    }

    /// The last reply of the model in this run.
    pub fn reply(&self) -> Option<&Arc<Message>> {
        self.run.reply()
    }

    /// The text of the last reply; empty if there is no reply.
    pub fn text(&self) -> Cow<'_, str> {
        self.run.text()
    }

    /// The last words of the run, for its caller: the text of the last reply; where that has none, the result of the exit
    /// tool that ended the run, if it says something; else none.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Tool, ToolError};
    ///
    /// async fn finish() -> Result<u64, ToolError> {
    ///     Ok(42)
    /// }
    /// let finish = Tool::new("finish", "Gives the answer.", finish).build()?;
    /// let model = Script::parse("assistant: > c1 finish()")?;
    /// let outcome = Agent::builder(model).tool(finish).exit_on(["finish"]).build()?.run("how many?").await?;
    /// assert_eq!((outcome.text().as_ref(), outcome.last_words().as_deref()), ("", Some("42")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn last_words(&self) -> Option<String> {
        self.run.last_words()
    }

    /// The output requested with [`output`](crate::AgentBuilder::output).
    ///
    /// # Errors
    /// When there is no output, or it cannot be decoded as a `T`.
    pub fn output<T: DeserializeOwned>(&self) -> Result<T, OutputError> {
        let value = self.run.output().ok_or_else(|| OutputError::Missing { exit: self.exit.clone() })?;
        decode(value).map_err(|source| OutputError::Decode { source })
    }

    /// The finish reason of the model's last reply.
    pub fn finish_reason(&self) -> Option<&FinishReason> {
        self.run.finish_reason()
    }

    /// The whole conversation.
    pub fn transcript(&self) -> &Transcript {
        self.run.transcript()
    }

    /// The state, with the conversation.
    pub fn state(&self) -> &State {
        self.run.state()
    }

    /// The number of model replies.
    pub fn steps(&self) -> u64 {
        self.run.steps()
    }

    /// The token usage, including that of agents as tools.
    pub fn usage(&self) -> Usage {
        self.run.usage()
    }

    /// The token usage by model, including that of agents as tools: by the name that the provider reported, or the id of
    /// the agent's model if it reported none.
    pub fn usage_by_model(&self) -> impl Iterator<Item = (&str, Usage)> {
        self.run.usage_by_model()
    }

    /// The cost of the tokens by a table of prices: the sum over all models that were asked, those behind a fallback and of
    /// agents as tools included. `None` if a model has neither a price nor a reported cost. The cost that providers
    /// reported is in [`usage().cost`](Usage::cost).
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_state_core::chat::{Price, Prices};
    ///
    /// use stepfold_state_core::chat::{FinishReason, Message, Usage};
    /// # let usage = Usage::new(1_000, 500);
    /// # let model = Script::new([]).then(Message::assistant("area 3"), FinishReason::Stop, usage);
    /// let outcome = Agent::builder(model).build()?.run("which area?").await?;
    /// // In dollars for a million tokens of input and of output.
    /// let prices = Prices::new().with("script", Price::new(2.0, 8.0));
    /// assert_eq!(outcome.cost(&prices).unwrap().to_string(), "$0.006000");
    /// assert_eq!(outcome.cost(&Prices::new()), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn cost(&self, prices: &Prices) -> Option<Cost> {
        self.usage_by_model()
            .try_fold(Cost::default(), |sum, (model, usage)| Some(sum + prices.cost(model, &usage)?))
    }

    /// The number of calls by tool. Calls of unknown tools and with invalid arguments count; those that the
    /// loop answered itself, because they were rejected for example, do not.
    pub fn calls_by_tool(&self) -> impl Iterator<Item = (&str, u64)> {
        self.run.calls_by_tool()
    }

    /// The duration of the run, without pauses.
    pub fn elapsed(&self) -> Duration {
        self.run.elapsed()
    }

    /// The pending approval requests, if the run is paused for decisions.
    pub fn pending(&self) -> Vec<ApprovalRequest> {
        self.run.pending()
    }

    /// The calls that this run, and each [recovered](Outcome::recovered) one before it, answered with
    /// "outcome unknown": they had started when a process died, may have had their effect, and did not run
    /// again. Includes those found by earlier processes of the run.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_tools::{Tool, ToolError};
    /// use stepfold_agent_loop::{Agent, Run, RunEvent};
    ///
    /// # async fn pay() -> Result<&'static str, ToolError> { Ok("paid") }
    /// # let pay = Tool::new("pay", "Pays a bill.", pay).build()?;
    /// # let model = Script::parse("assistant: > c1 pay()\nassistant: Please look whether it was paid.")?;
    /// let agent = Agent::builder(model).tools([pay]).build()?;
    /// let begun = Run::new(&agent, "pay the bill", "run-1")?;
    /// let mut seen = Vec::new();
    /// begun.clone().resume().observe(&mut seen).await?;
    ///
    /// // A process died between the start of the payment and its outcome; another one continues.
    /// let events = seen.iter().filter_map(RunEvent::committed);
    /// let mut run = begun;
    /// for event in events.take_while(|event| event.name() != "answered") {
    ///     run.commit(event.clone())?;
    /// }
    /// let outcome = run.resume().await?;
    /// let unknown = &outcome.unknown_calls()[0];
    /// assert_eq!((&*unknown.id, &*unknown.tool), ("c1", "pay"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn unknown_calls(&self) -> Vec<&UnknownCall> {
        let recovered = self.recovered.iter().flat_map(|recovered| recovered.unknown_calls());
        recovered.chain(self.run.unknown_calls()).collect()
    }

    /// The outcomes of interrupted runs that were completed before this run began, oldest first.
    pub fn recovered(&self) -> &[Arc<Outcome>] {
        &self.recovered
    }

    /// Adds the outcomes of interrupted runs that were completed before this run began. For programs that
    /// resume stored runs themselves; the runner of sessions does it.
    #[must_use]
    pub fn with_recovered(mut self, recovered: impl IntoIterator<Item = Arc<Outcome>>) -> Self {
        let of_others = |other: &Arc<Outcome>| other.run.id() != self.run.id();
        self.recovered.extend(recovered.into_iter().filter(of_others));
        self
    }

    /// The `temp:` keys that the run had written before it was resumed without their values: no store has
    /// them. It was resumed by another process, after a failure, or after so many other paused runs that the
    /// process dropped them.
    pub fn missing_temp(&self) -> &[String] {
        &self.missing_temp
    }

    /// Adds the `temp:` keys whose values were missing when the run was resumed. For programs that resume
    /// stored runs themselves; the runner of sessions does it.
    #[must_use]
    pub fn with_missing_temp(mut self, keys: impl IntoIterator<Item = String>) -> Self {
        self.missing_temp.extend(keys);
        self
    }

    /// The summary of the beginning of the conversation; pass it to the next run.
    pub fn summary(&self) -> Option<&Summary> {
        self.run.summary()
    }

    /// The run of the outcome: a paused one can be stored and resumed.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The run, to be resumed.
    pub fn into_run(self) -> Run {
        self.run
    }
}

/// An error of reading the output.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The run ended without one, or the agent was not built to give one.
    #[error("missing output: {exit}")]
    Missing {
        /// The exit of the run.
        exit: Exit,
    },
    /// It is of another type.
    #[error("invalid output for the requested type: {source}")]
    Decode {
        /// The cause.
        r#source: DecodeError,
    },
}

stepfold_state_core::debug_as_text!(OutputError);
