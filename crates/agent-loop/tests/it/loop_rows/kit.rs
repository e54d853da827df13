//! What the rows are made of: a model that keeps what it was asked, tools that count their calls, and the
//! laws that every run obeys.

use std::collections::HashSet;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};
use stepfold_agent_loop::state_core::chat::{
    ChatModel, ChatRequest, FinishReason, Message, ReplyStream, Transcript, Usage,
};
use stepfold_agent_loop::state_core::state::State;
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::tools::{
    CallLimits, InputRequest, InputResponse, RawArgs, Tool, ToolBuilder, ToolContext, ToolError,
};
use stepfold_agent_loop::{
    Agent, AgentBuilder, Decision, Decisions, Exit, Input, Outcome, Pause, Recording, Run, RunBuilder,
    RunError, RunEvent, RunFault,
};

/// A run ended, paused, or failed.
pub(crate) type Ended = Result<Outcome, RunError>;

/// An agent that says the lines of a script and has the tools of [`tools`].
pub(crate) fn agent(script: &str) -> AgentBuilder {
    Agent::builder(self::script(script)).tools(tools())
}

pub(crate) fn script(text: &str) -> Script {
    Script::parse(text).unwrap()
}

/// A reply in the notation that costs tokens and ends for a reason.
pub(crate) fn costing(script: Script, reply: &str, input: u64, output: u64) -> Script {
    ending(script, reply, FinishReason::Stop, Usage::new(input, output))
}

pub(crate) fn ending(script: Script, reply: &str, reason: FinishReason, usage: Usage) -> Script {
    script.then(message(reply), reason, usage)
}

/// One message in the notation.
pub(crate) fn message(text: &str) -> Message {
    let transcript = conversation(text);
    assert_eq!(transcript.len(), 1, "one message: {text}");
    (**transcript.first().unwrap()).clone()
}

pub(crate) fn conversation(text: &str) -> Transcript {
    text.parse().unwrap()
}

/// `search(q)` finds two areas, `fetch(id)` reads one, `submit` takes anything, `fails` never works.
pub(crate) fn tools() -> Vec<Tool> {
    let text = json!({"properties": {"q": {"type": "string"}}, "required": ["q"], "type": "object"});
    let tools = [
        tool("search", |_| Ok(json!([3, 4]))).parameters(text),
        tool("fetch", |arguments| Ok(json!(format!("area {}", arguments["id"])))),
        tool("submit", |arguments| match arguments.get("bad") {
            Some(_) => Err(ToolError::permanent("not acceptable")),
            None => Ok(json!("submitted")),
        }),
        tool("fails", |_| Err(ToolError::permanent("no such area"))),
    ];
    tools.map(|tool| tool.build().unwrap()).into()
}

/// A tool that takes anything and does this.
pub(crate) fn tool(
    name: &str,
    function: impl Fn(&Value) -> Result<Value, ToolError> + Clone + Send + Sync + 'static,
) -> ToolBuilder {
    Tool::new(name, "Does it.", move |RawArgs(arguments): RawArgs| {
        let result = function(&arguments);
        async move { result }
    })
    .parameters(json!({"additionalProperties": true, "properties": {}, "type": "object"}))
}

/// So many calls run at once.
pub(crate) fn at_once(calls: usize) -> CallLimits {
    let mut limits = CallLimits::default();
    limits.concurrency = calls;
    limits
}

/// A tool that never ends by itself.
pub(crate) fn endless(name: &str) -> ToolBuilder {
    Tool::new(name, "Takes for ever.", || async {
        std::future::pending::<()>().await;
        Ok::<_, ToolError>(())
    })
}

/// Keeps a line for each thing that happens, in order, from any writer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn add(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    /// All lines, in order.
    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap().iter().fold(String::new(), |text, line| text + line + "\n")
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    pub(crate) fn count(&self, line: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|known| *known == line).count()
    }

    /// A tool that notes that it ran and gives back its arguments.
    pub(crate) fn tool(&self, name: &'static str) -> ToolBuilder {
        let notes = self.clone();
        tool(name, move |arguments| {
            notes.add(name);
            Ok(arguments.clone())
        })
    }

    /// The same, which runs after those that are ready at once have ended.
    pub(crate) fn later(&self, name: &'static str) -> ToolBuilder {
        let notes = self.clone();
        Tool::new(name, "Does it.", move |RawArgs(arguments): RawArgs| {
            let notes = notes.clone();
            async move {
                tokio::task::yield_now().await;
                notes.add(name);
                Ok::<_, ToolError>(arguments)
            }
        })
        .parameters(json!({"additionalProperties": true, "properties": {}, "type": "object"}))
    }
}

/// A model that keeps what it was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked<M> {
    model: M,
    requests: Arc<Mutex<Vec<ChatRequest>>>,
}

impl<M> Asked<M> {
    pub(crate) fn new(model: M) -> Self {
        Asked { model, requests: Arc::default() }
    }

    pub(crate) fn requests(&self) -> Vec<ChatRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// What the model was shown each time, as text.
    pub(crate) fn shown(&self) -> String {
        self.requests().iter().fold(String::new(), |text, request| format!("{text}--\n{}", request.messages))
    }
}

impl<M: ChatModel> ChatModel for Asked<M> {
    fn id(&self) -> &str {
        self.model.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.requests.lock().unwrap().push(request.clone());
        self.model.respond(request)
    }
}

/// A model that says its lines one after the other, whatever it is shown.
#[derive(Clone, Debug)]
pub(crate) struct Counting {
    lines: Vec<Message>,
    asked: Arc<AtomicUsize>,
}

impl Counting {
    pub(crate) fn new(script: &str) -> Self {
        let lines = conversation(script).iter().map(|message| (**message).clone()).collect();
        Counting { lines, asked: Arc::default() }
    }
}

impl ChatModel for Counting {
    fn id(&self) -> &'static str {
        "counting"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let line = &self.lines[self.asked.fetch_add(1, Ordering::SeqCst)];
        Script::new([line.clone()]).respond(ChatRequest::new(Transcript::new()))
    }
}

/// A model that never answers.
pub(crate) struct Silent;

impl ChatModel for Silent {
    fn id(&self) -> &'static str {
        "silent"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        ReplyStream::new(futures_util::stream::pending())
    }
}

/// Runs an agent, and checks on the way what holds of every run.
pub(crate) async fn play<'a>(
    agent: &Agent,
    input: impl Into<Input>,
    say: impl FnOnce(RunBuilder<'a>) -> RunBuilder<'a>,
) -> Ended {
    go_on(Run::new(agent, input, "run").unwrap(), say).await
}

/// Continues with a run, and checks on the way what holds of every run.
pub(crate) async fn go_on<'a>(run: Run, say: impl FnOnce(RunBuilder<'a>) -> RunBuilder<'a>) -> Ended {
    let mut recording = Recording::of(&run);
    let before = run.clone();
    let ended = say(run.resume()).observe(&mut recording).await;
    obeys_laws(&before, outcome_of(&ended), &recording);
    ended
}

/// Continues with a run after decisions about the requests at these paths, such as `c1`.
pub(crate) async fn decide<const N: usize>(run: Run, decisions: [(&str, Decision); N]) -> Ended {
    let decisions = at_paths(&run, decisions);
    go_on(run, |run| run.decide_all(decisions)).await
}

/// Decisions about the requests at these paths, by their ids. What is not pending stays as it is.
pub(crate) fn at_paths<const N: usize>(run: &Run, decisions: [(&str, Decision); N]) -> Decisions {
    decisions.into_iter().map(|(path, decision)| (id_at(run, path), decision)).collect()
}

/// The id of the pending request at a path, such as `c1`; the path itself if there is none.
pub(crate) fn id_at(run: &Run, path: &str) -> String {
    let ids = run.pending().into_iter().map(|request| request.id);
    ids.into_iter().find(|id| path_of(id) == path).unwrap_or_else(|| path.to_owned())
}

/// Where something is asked: the id of its request without the digest.
pub(crate) fn path_of(id: &str) -> &str {
    id.rsplit_once('#').map_or(id, |(path, _)| path)
}

/// Where something waits for a decision.
pub(crate) fn paths(outcome: &Outcome) -> Vec<String> {
    outcome.pending().iter().map(|request| path_of(&request.id).to_owned()).collect()
}

/// The process dies and another one continues: the run as that one reads it.
pub(crate) fn reloaded(outcome: &Outcome) -> Run {
    Run::load(outcome.run().agent(), &outcome.run().to_json()).unwrap()
}

pub(crate) fn outcome_of(ended: &Ended) -> &Outcome {
    match ended {
        Ok(outcome) => outcome,
        Err(error) => error.outcome(),
    }
}

fn obeys_laws(before: &Run, outcome: &Outcome, recording: &Recording) {
    let run = outcome.run();
    // Nothing is broken.
    if run.exit().is_some() {
        assert_eq!(run.transcript().check(), Ok(()), "{}", run.transcript());
    }
    let mut ids = HashSet::new();
    let of_this_run = run.transcript().iter_from(before.transcript().len());
    for call in of_this_run.flat_map(|message| message.tool_calls()) {
        assert!(ids.insert(call.id.clone()), "the call id {} comes twice", call.id);
    }
    // The state is a fold over what was committed.
    let mut state: State = before.state().clone();
    for event in recording.events() {
        event.fold(&mut state).unwrap();
    }
    assert_eq!(&state, run.state());
    // What is stored is read back as it was.
    let stored = run.to_json();
    let (loaded, _) = Run::load_changed(run.agent(), &stored).unwrap();
    assert_eq!(loaded.to_json(), stored);
    assert_eq!(loaded.pending(), run.pending());
    assert_eq!(loaded.unknown_calls(), run.unknown_calls());
    // A record replays to the same end.
    let is_dynamic = serde_json::to_value(recording.agent()).unwrap().get("tools").is_some();
    if run.agent().fingerprint() == recording.agent() && !is_dynamic {
        let stored = serde_json::to_string(recording).unwrap();
        let replayed = Recording::from_json(&stored).unwrap().replay(run.agent()).unwrap();
        assert_eq!(replayed.digest(), run.digest());
        assert_eq!(replayed.unknown_calls(), run.unknown_calls());
        assert_eq!(format!("{:?}", replayed.decide()), format!("{:?}", run.decide()));
    }
}

/// The complete result of a run, as text.
pub(crate) fn shown(ended: &Ended) -> String {
    let outcome = outcome_of(ended);
    let mut text = format!("{}--\n", outcome.transcript());
    match ended {
        Ok(outcome) => writeln!(text, "exit: {}", outcome.exit()).unwrap(),
        Err(error) => {
            let is_refused = matches!(error.fault(), RunFault::Decision(_));
            let exit = if is_refused { Exit::Paused(Pause::Approval) } else { Exit::Failed };
            assert_eq!(outcome.exit(), &exit);
            writeln!(text, "error: {}", chain(error)).unwrap();
        }
    }
    let calls: Vec<String> = outcome.calls_by_tool().map(|(tool, calls)| format!("{tool} {calls}")).collect();
    write!(text, "steps: {}", outcome.steps()).unwrap();
    if !calls.is_empty() {
        write!(text, ", calls: {}", calls.join(", ")).unwrap();
    }
    let usage = outcome.usage();
    if usage != Usage::default() {
        write!(text, ", tokens: {} + {}", usage.input_tokens, usage.output_tokens).unwrap();
    }
    text.push('\n');
    let values = values(outcome.state());
    if !values.is_empty() {
        let mut values = Value::Object(values);
        // Whatever serde_json's features.
        values.sort_all_objects();
        writeln!(text, "state: {values}").unwrap();
    }
    for request in outcome.pending() {
        let arguments = request.call.arguments.to_text().into_owned();
        writeln!(text, "pending {}: {}({arguments}), {:?}", request.id, request.call.name, request.reason)
            .unwrap();
    }
    text
}

/// The state, the conversation left out.
pub(crate) fn values(state: &State) -> Map<String, Value> {
    let values = state.iter().filter(|(key, _)| *key != "messages");
    values.map(|(key, value)| (key.to_owned(), value.to_json())).collect()
}

/// An error with all its causes, as a person is shown it.
pub(crate) fn chain(error: &dyn Error) -> String {
    assert!(error.source().is_none(), "the text shows all causes: {error}");
    error.to_string()
}

/// The names of what was committed, in order.
pub(crate) fn committed(events: &[RunEvent]) -> Vec<&'static str> {
    events.iter().filter_map(RunEvent::committed).map(stepfold_agent_loop::Event::name).collect()
}

/// The form of the answer about a seat.
pub(crate) fn seats() -> Value {
    json!({"type": "object", "properties": {"seat": {"enum": ["window", "aisle"]}}, "required": ["seat"]})
}

/// Asks for a seat, then whether to pay for it; what it does is noted.
pub(crate) fn book(notes: &Notes) -> ToolBuilder {
    let notes = notes.clone();
    let function = move |context: ToolContext| {
        let notes = notes.clone();
        async move {
            notes.add("began");
            let seat = InputRequest::new("seat", "Window or aisle?")
                .details(json!({"flight": "LX 318"}))
                .schema(seats())
                .state(json!({"held": "12A"}));
            let seat = match context.ask(seat)? {
                InputResponse::Accept(answer) => answer["seat"].as_str().unwrap_or_default().to_owned(),
                InputResponse::Decline { reason } => {
                    return Err(ToolError::permanent(format!("no seat: {reason}")));
                }
                _ => return Err(ToolError::permanent("an answer of another kind")),
            };
            context.ask(InputRequest::new("pay", format!("Pay 20 euros for {seat}?")).schema(false))?;
            let held = context.answered()[0].request.state.clone().unwrap_or_default();
            notes.add(format!("booked {seat} {}", held["held"]));
            Ok::<_, ToolError>(format!("a seat at the {seat}"))
        }
    };
    Tool::new("book", "Books a flight.", function).parameters(json!({
        "type": "object", "properties": {"to": {"type": "string"}},
    }))
}

/// The answer of a user who wants this seat.
pub(crate) fn seat(seat: &str) -> Decision {
    Decision::modify(json!({"seat": seat}))
}
