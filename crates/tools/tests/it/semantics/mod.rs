//! The contract row by row (semantics.md, section 2): each test is named after its row.
//!
//! A reply in the transcript notation in; out come the transcript with the results, the error that ends the
//! run if there is one, the state and what each call wrote. Nothing here sleeps: time is paused.

mod bindings;
mod build;
mod errors;
mod limits;
mod order;
mod regressions;
mod results;

use std::fmt::Write as _;

use expect_test::Expect;
use serde_json::{Value, json};
use stepfold_tools::state_core::chat::{Message, ToolCall, Transcript};
use stepfold_tools::state_core::state::{Schema, SchemaBuilder, State};
use stepfold_tools::{
    CallEvent, CallOutcome, Invocation, InvokeOptions, RawArgs, Tool, ToolBuilder, ToolError, Tools, settle,
};

/// What a reply is run against.
pub(crate) struct World {
    pub(crate) state: State,
    pub(crate) tools: Vec<Tool>,
    pub(crate) options: InvokeOptions,
}

impl World {
    pub(crate) fn new(schema: SchemaBuilder, values: Value) -> Self {
        let schema = schema.build().unwrap();
        let state = State::with_values(&schema, values).unwrap();
        World { state, tools: Vec::new(), options: InvokeOptions::default() }
    }

    /// Without keys.
    pub(crate) fn stateless() -> Self {
        World::new(Schema::builder(), json!({}))
    }

    /// Checked against the schema, as an agent does when it is built.
    pub(crate) fn tool(mut self, tool: ToolBuilder) -> Self {
        let tool = tool.build().unwrap();
        tool.check(self.state.schema(), &self.options.resources).unwrap();
        self.tools.push(tool);
        self
    }

    pub(crate) fn options(mut self, change: impl FnOnce(&mut InvokeOptions)) -> Self {
        change(&mut self.options);
        self
    }

    pub(crate) fn invocation(&self, reply: &str) -> Invocation {
        let tools = Tools::of(self.tools.clone()).unwrap();
        Invocation::new(&tools, self.state.clone(), calls_of(&message_of(reply)), self.options.clone())
    }

    /// Runs the calls of a reply and compares the complete result.
    pub(crate) async fn check(self, reply: &str, expected: Expect) {
        let invocation = self.invocation(reply);
        self.check_rest(invocation, reply, expected).await;
    }

    /// The same for an invocation under way.
    pub(crate) async fn check_rest(mut self, invocation: Invocation, reply: &str, expected: Expect) {
        let mut done = invocation.finish().await;
        settle(&mut self.state, &mut done.outcomes);
        let mut text = transcript_of(&message_of(reply), &done.outcomes);
        if let Some(error) = &done.error {
            writeln!(text, "error: {error}").unwrap();
        }
        let values: serde_json::Map<String, Value> = self
            .state
            .iter()
            .filter(|(key, _)| *key != "messages")
            .map(|(key, value)| (key.to_owned(), value.to_json()))
            .collect();
        if !values.is_empty() {
            writeln!(text, "state: {}", Value::Object(values)).unwrap();
        }
        for outcome in done.outcomes.iter().filter(|outcome| !outcome.delta.is_empty()) {
            writeln!(text, "delta {}: {}", outcome.call_id(), serde_json::to_string(&outcome.delta).unwrap())
                .unwrap();
        }
        expected.assert_eq(&text);
    }
}

pub(crate) fn message_of(reply: &str) -> Message {
    let transcript: Transcript = format!("assistant: {reply}").parse().unwrap();
    (**transcript.get(0).unwrap()).clone()
}

pub(crate) fn calls_of(reply: &Message) -> Vec<ToolCall> {
    reply.tool_calls().cloned().collect()
}

/// The reply and the results, which fit each other and survive JSON.
pub(crate) fn transcript_of(reply: &Message, outcomes: &[CallOutcome]) -> String {
    let mut transcript = Transcript::new();
    transcript.push(reply.clone());
    transcript.extend(outcomes.iter().map(CallOutcome::message));
    assert_eq!(transcript.check(), Ok(()));
    let stored = serde_json::to_string(outcomes).unwrap();
    assert_eq!(serde_json::from_str::<Vec<CallOutcome>>(&stored).unwrap(), outcomes);
    transcript.to_string()
}

/// A tool that returns a value.
pub(crate) fn returns(name: &str, value: Value) -> ToolBuilder {
    Tool::new(name, "Does it.", move || {
        let value = value.clone();
        async move { Ok::<_, ToolError>(value) }
    })
}

/// A tool that returns what it was given, of these parameters.
pub(crate) fn echo(name: &str, parameters: Value) -> ToolBuilder {
    let echo = |RawArgs(arguments): RawArgs| async move { Ok::<_, ToolError>(arguments) };
    Tool::new(name, "Gives back its arguments.", echo)
        .parameters(json!({"type": "object", "properties": parameters}))
}

/// A tool that gives an error.
pub(crate) fn fails(
    name: &str,
    error: impl Fn() -> ToolError + Clone + Send + Sync + 'static,
) -> ToolBuilder {
    Tool::new(name, "Fails.", move || {
        let error = error.clone();
        async move { Err::<(), _>(error()) }
    })
}

/// An event in a word.
pub(crate) fn word_of(event: &CallEvent) -> String {
    match event {
        CallEvent::Starting { calls } => format!("starting {calls:?}"),
        CallEvent::Progress { call, report } => format!("progress {call} {report}"),
        CallEvent::Finished { call } => format!("finished {call}"),
        other => format!("{other:?}"),
    }
}

/// All events of an invocation that are still to come.
pub(crate) async fn events_of(invocation: &mut Invocation) -> Vec<String> {
    let mut events = Vec::new();
    while let Some(event) = invocation.next().await {
        events.push(word_of(&event));
    }
    events
}
