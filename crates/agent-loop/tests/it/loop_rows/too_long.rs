//! A request that the provider refuses as too long: the model is shown less and asked again, and nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::{
    ChatModel, ChatRequest, Message, ModelError, ModelErrorKind, ReplyStream, Role, ToolResult, Transcript,
};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::tools::{Toolset, recall_tools};
use stepfold_agent_loop::{
    Agent, AgentBuilder, Event, EventKind, Exit, Input, Recording, Run, RunAnswer, RunEvent, RunFault,
};
use stepfold_trim::{ApproximateTokens, Pins, Summarize, TokenCounter, Trim, Window};

use super::kit::*;

/// What a provider says of sizes when it refuses.
#[derive(Clone, Copy, Debug)]
enum Says {
    Both,
    Limit,
    Nothing,
}

/// A model whose window has so many tokens, which it counts in its own way: a third of the bytes. What it takes, it
/// answers by a script.
#[derive(Clone, Debug)]
struct Limited {
    limit: usize,
    says: Says,
    model: Counting,
    refused: Arc<AtomicUsize>,
}

impl Limited {
    fn new(limit: usize, says: Says, script: &str) -> Self {
        Limited { limit, says, model: Counting::new(script), refused: Arc::default() }
    }

    fn refused(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }
}

fn size_of(request: &ChatRequest) -> usize {
    let tools: usize = request.tools.iter().map(|tool| serde_json::to_string(tool).unwrap().len()).sum();
    (request.messages.to_string().len() + tools) / 3
}

impl ChatModel for Limited {
    fn id(&self) -> &'static str {
        "limited"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let used = size_of(&request);
        request.messages.check().unwrap();
        if used <= self.limit {
            return self.model.respond(request);
        }
        self.refused.fetch_add(1, Ordering::SeqCst);
        let (limit, used) = match self.says {
            Says::Both => (Some(self.limit as u64), Some(used as u64)),
            Says::Limit => (Some(self.limit as u64), None),
            Says::Nothing => (None, None),
        };
        ReplyStream::failed(ModelError::new(ModelErrorKind::TooLong { limit, used }, "too many tokens"))
    }
}

const FILES: usize = 40;

/// Reads forty files, one after the other, and answers.
fn reads_all() -> String {
    let step = |file| format!("assistant: > c{file} read(file={file})\n");
    (1..=FILES).map(step).chain(["assistant: All 40 are read.\n".to_owned()]).collect()
}

fn reader(model: &Limited) -> AgentBuilder {
    let read = tool("read", |arguments| {
        let file = arguments["file"].as_u64().unwrap_or_default();
        Ok(json!(format!("file {file}: {}", "stall ".repeat(500))))
    });
    Agent::builder(model.clone()).tools([read.build().unwrap()]).instructions("Read all files.")
}

fn narrowed(events: &[RunEvent]) -> usize {
    let is_it = |event: &&Event| matches!(event.kind, EventKind::Narrowed { .. });
    events.iter().filter_map(RunEvent::committed).filter(is_it).count()
}

/// Files of 3 kB within one turn, a window of 8,000 tokens: the run ends with its answer, by rescue alone, by clearing
/// alone, and by both.
#[tokio::test]
async fn forty_files_in_a_small_window() {
    for (says, window, may_be_refused) in [
        (Says::Both, None, true),
        (Says::Limit, None, true),
        (Says::Nothing, None, true),
        (Says::Both, Some(Window::new(4_000).clear_results(2)), false),
        (Says::Both, Some(Window::new(50_000).clear_results(2)), true),
    ] {
        let model = Limited::new(8_000, says, &reads_all());
        let agent = window.clone().into_iter().fold(reader(&model), AgentBuilder::window);
        let agent = agent.build().unwrap();
        let mut seen = Vec::new();
        let run = Run::new(&agent, "What do the files say?", "run").unwrap();
        let mut recording = Recording::of(&run);
        let outcome = go_on(run.clone(), |run| run.observe(&mut seen).observe(&mut recording)).await.unwrap();
        assert_eq!(
            (outcome.exit(), &*outcome.text()),
            (&Exit::Text, "All 40 are read."),
            "{says:?} {window:?}"
        );
        assert_eq!(outcome.transcript().len(), 2 + 2 * FILES);
        assert_eq!(narrowed(&seen), model.refused(), "each refusal is a commit");
        assert_eq!(model.refused() > 0, may_be_refused, "{says:?} {window:?}");
        assert!(model.refused() <= 2 * FILES / 3, "well below the limit at once: {}", model.refused());
        assert_eq!(recording.replay(&agent).unwrap().digest(), outcome.run().digest());
        continues_anywhere(&agent, run, &seen);
    }
}

/// Stored after any commit and loaded, a run shows the model the same.
fn continues_anywhere(agent: &Agent, mut run: Run, seen: &[RunEvent]) {
    for event in seen.iter().filter_map(RunEvent::committed) {
        run.commit(event.clone()).unwrap();
        let loaded = Run::load(agent, &run.to_json()).unwrap();
        assert_eq!(loaded.request().messages, run.request().messages, "after {}", event.name());
        let again: Event = serde_json::from_str(&serde_json::to_string(event).unwrap()).unwrap();
        assert_eq!(&again, event);
    }
}

/// Turns of before are left out before anything of this one, and the whole conversation stays.
#[tokio::test]
async fn a_long_conversation_of_texts() {
    let old = "stall ".repeat(800);
    let log = conversation(&format!("user: {old}\nassistant: {old}\nuser: {old}\nassistant: short"));
    let model = Limited::new(2_000, Says::Both, "assistant: area 3");
    let agent = Agent::builder(model.clone()).build().unwrap();
    let mut input = log.clone();
    input.push(Message::user("Which area?"));
    let outcome = play(&agent, input, |run| run).await.unwrap();
    assert_eq!((&*outcome.text(), model.refused()), ("area 3", 1));
    assert_eq!(outcome.transcript().len(), log.len() + 2);
    assert_eq!(outcome.run().view().kept().to_string(), "4..5");
}

/// An agent that summarizes makes a summary of what it would not keep, before it asks again.
#[tokio::test]
async fn a_summary_first() {
    let old = "stall ".repeat(800);
    let mut input = conversation(&format!("user: {old}\nassistant: {old}\nuser: {old}\nassistant: short"));
    input.push(Message::user("Which area?"));
    let model = Limited::new(2_000, Says::Both, "assistant: area 3");
    let agent = Agent::builder(model.clone())
        .summary_model(script("assistant: Stalls were named."))
        .summarize(Summarize::beyond(Trim::keep_last(1)).once(Trim::cap_messages(100)))
        .build()
        .unwrap();
    let mut seen = Vec::new();
    let run = Run::new(&agent, input, "run").unwrap();
    let mut recording = Recording::of(&run);
    let outcome = go_on(run.clone(), |run| run.observe(&mut seen).observe(&mut recording)).await.unwrap();
    assert_eq!((&*outcome.text(), model.refused(), narrowed(&seen)), ("area 3", 1, 1));
    assert_eq!(outcome.summary().unwrap().text(), "Stalls were named.");
    assert_eq!(recording.replay(&agent).unwrap().digest(), outcome.run().digest());
    continues_anywhere(&agent, run, &seen);
}

/// What cannot be made shorter fails, after two rescues at most, and the error says what weighs most.
#[tokio::test]
async fn nothing_is_left_to_leave_out() {
    let model = Limited::new(100, Says::Both, "");
    let agent = Agent::builder(model.clone()).build().unwrap();
    let failed = play(&agent, "stall ".repeat(300).as_str(), |run| run).await.unwrap_err();
    let RunFault::Model(error) = failed.fault() else { panic!("{failed}") };
    assert_eq!(model.refused(), 1);
    assert_eq!(
        error.message(),
        "too many tokens; the request has about 304 tokens: 0 of tools, 304 of messages, of these a message of the user 304"
    );

    // A provider that refuses whatever it is sent is asked three times.
    let model = Limited::new(0, Says::Nothing, "");
    let agent = reader(&model).build().unwrap();
    let mut input = Transcript::new();
    for turn in 0..20 {
        input.push(Message::user(format!("{turn} {}", "stall ".repeat(50))));
        input.push(Message::assistant("noted"));
    }
    input.push(Message::user("Which area?"));
    let mut seen = Vec::new();
    let failed = play(&agent, input, |run| run.observe(&mut seen)).await.unwrap_err();
    assert!(matches!(failed.fault(), RunFault::Model(error) if error.message().contains(" of tools, ")));
    assert_eq!((model.refused(), narrowed(&seen)), (3, 2));
}

/// A newest result that no request can hold becomes a line, so that the run is not lost.
#[tokio::test]
async fn a_result_larger_than_the_window() {
    let model = Limited::new(1_000, Says::Both, "assistant: > c1 read(file=1)\nassistant: It is too large.");
    let read = tool("read", |_| Ok(json!("stall ".repeat(20_000)))).build().unwrap();
    let agent = Agent::builder(model.clone()).tools([read]).build().unwrap();
    let outcome = play(&agent, "What does it say?", |run| run).await.unwrap();
    assert_eq!(&*outcome.text(), "It is too large.");
    assert!(outcome.transcript().get(2).unwrap().tool_result().unwrap().text().len() > 60_000);
    assert_eq!(outcome.run().view().cleared().to_string(), "2..3");
}

/// A conversation: texts, steps with results of any size.
fn history() -> impl Strategy<Value = Transcript> {
    let size = || prop::sample::select(vec![1, 10, 100, 1_000]);
    let piece = prop_oneof![
        3 => size().prop_map(|size| vec![Message::user("stall ".repeat(size))]),
        2 => size().prop_map(|size| vec![Message::assistant("stall ".repeat(size))]),
        5 => (size(), size()).prop_map(|(first, second)| {
            let step: Transcript = "assistant: > a read(file=1)   > b read(file=2)".parse().unwrap();
            let result = |id: &str, size: usize| Message::tool(ToolResult::value(id, "read", "stall ".repeat(size)));
            vec![(**step.first().unwrap()).clone(), result("a", first), result("b", second)]
        }),
    ];
    let begins = Message::user("go");
    prop::collection::vec(piece, 0..20).prop_map(move |pieces| {
        let pieces = pieces.into_iter().flatten();
        [begins.clone()].into_iter().chain(pieces).chain([Message::user("and now?")]).collect()
    })
}

fn tokens(request: &ChatRequest) -> usize {
    request.messages.iter().map(|message| ApproximateTokens.count(message)).sum()
}

proptest! {
    /// Whatever a provider reports: the request gets smaller, stays well-formed, keeps what the user has just said; and
    /// after two rescues there is no third.
    #[test]
    fn a_rescue_is_a_smaller_request(
        log in history(),
        limit in prop::option::of(0..5_000_u64),
        used in prop::option::of(0..20_000_u64),
    ) {
        let agent = Agent::builder(Script::parse("").unwrap()).build().unwrap();
        let input = Input::from(log.clone());
        let mut run = Run::new(&agent, input, "run").unwrap();
        run.commit(run.feed(RunAnswer::Begin, Duration::ZERO).unwrap()).unwrap();
        let error = ModelErrorKind::TooLong { limit, used };
        let mut rescues = 0;
        while let Some(answer) = run.rescue(&error) {
            let before = run.request();
            let event = run.feed(answer, Duration::ZERO).unwrap();
            run.commit(event).unwrap();
            let after = run.request();
            prop_assert!(tokens(&after) < tokens(&before), "{limit:?} {used:?}: {} of {}", tokens(&after), tokens(&before));
            prop_assert_eq!(after.messages.check(), Ok(()));
            let last = after.messages.last().unwrap();
            prop_assert_eq!((last.role(), &*last.text()), (Role::User, "and now?"));
            let loaded = Run::load(&agent, &run.to_json()).unwrap();
            prop_assert_eq!(loaded.request().messages, after.messages);
            rescues += 1;
        }
        prop_assert!(rescues <= 2);
        prop_assert_eq!(run.transcript().len(), log.len());
        let once_more = run.feed(RunAnswer::TooLong { limit, used, tools: 0 }, Duration::ZERO);
        prop_assert!(once_more.is_err());
    }
}

#[test]
fn other_errors_are_no_reason_to_show_less() {
    let agent = Agent::builder(script("assistant: 3")).build().unwrap();
    let mut run = Run::new(&agent, "where?", "run").unwrap();
    run.commit(run.feed(RunAnswer::Begin, Duration::ZERO).unwrap()).unwrap();
    for kind in [ModelErrorKind::RateLimited, ModelErrorKind::InvalidRequest, ModelErrorKind::Refused] {
        assert!(run.rescue(&kind).is_none());
    }
}

/// With the tools for recall, a cleared result says how it is read again, and the model reads it.
#[tokio::test]
async fn a_cleared_result_is_read_again() {
    let script = "\
assistant: > c1 read(file=1)
assistant: > c2 read(file=2)
assistant: > c3 recall_read(call_id=\"c1\", from=0, characters=20)   > c4 recall_search(query=\"file 1\")   > c5 recall_search(query=\"file 2\")
assistant: File 1 is about stalls.
";
    let model = Asked::new(Counting::new(script));
    let read =
        tool("read", |arguments| Ok(json!(format!("file {}: {}", arguments["file"], "stall ".repeat(500)))));
    let files = Toolset::from([read.build().unwrap()]);
    let toolset = Toolset::merged("files", [files, recall_tools().unwrap()]);
    let agent = Agent::builder(model.clone()).tools(toolset).window(Window::new(1_000).clear_results(1));
    let agent = agent.build().unwrap();
    let mut seen = Vec::new();
    let run = Run::new(&agent, "What do the files say?", "run").unwrap();
    let outcome = go_on(run.clone(), |run| run.observe(&mut seen)).await.unwrap();
    let shown = model.requests()[2].messages.to_string();
    let line =
        "tool c1:   [The result of read, 3 kB, is no longer shown: recall_read(call_id=\"c1\") reads it.]";
    assert!(shown.contains(line), "{shown}");
    let text = |id: &str| {
        let results = outcome.transcript().iter().filter_map(|message| message.tool_result());
        results.into_iter().find(|result| result.call_id() == id).unwrap().text().into_owned()
    };
    assert!(
        text("c3").contains("file 1: stall stall") || text("c3").contains("\"file 1: stall"),
        "{}",
        text("c3")
    );
    assert!(text("c4").contains("\"call_id\":\"c1\""), "{}", text("c4"));
    // The newest result is shown, so it is not found.
    assert!(!text("c5").contains("\"call_id\":\"c2\""), "{}", text("c5"));
    continues_anywhere(&agent, run, &seen);
}

/// A replay against another window says where the model would have been shown something else, by call.
#[tokio::test]
async fn a_replay_says_how_the_views_differ() {
    let limited = Limited::new(
        2_500,
        Says::Both,
        "assistant: > c1 read(file=1)\nassistant: > c2 read(file=2)\nassistant: > c3 read(file=3)\nassistant: done",
    );
    let agent = reader(&limited).window(Window::new(50_000).clear_results(1)).build().unwrap();
    let run = Run::new(&agent, "What do the files say?", "run").unwrap();
    let mut recording = Recording::of(&run);
    run.resume().observe(&mut recording).await.unwrap();
    assert_eq!(limited.refused(), 1);
    let diverges =
        |recording: &Recording, changed: Agent| recording.replay(&changed).unwrap_err().to_string();
    let pins = Pins::up_to(0).results_of(["read"]);
    let pinned =
        agent.to_builder().window(Window::new(50_000).clear_results(1).with_pins(pins)).build().unwrap();
    assert_eq!(
        diverges(&recording, pinned),
        "event 10 (narrowed, step 3) shows the model another part of the conversation: \
         recorded no message left out, results of c1, c2 cleared; replayed messages 1..5 left out"
    );
}

/// Tools that are listed at each step are not in the record; a replay that does not list them narrows the same.
#[tokio::test]
async fn a_replay_needs_no_tools() {
    let model = Limited::new(8_000, Says::Both, &reads_all());
    let read = tool("read", |_| Ok(json!("stall ".repeat(500)))).build().unwrap();
    let listed = Toolset::dynamic_with("files", move |_| {
        let read = read.clone();
        async move { Ok(vec![read]) }
    });
    let agent = Agent::builder(model.clone()).tools(listed).build().unwrap();
    let run = Run::new(&agent, "What do the files say?", "run").unwrap();
    let mut seen = Vec::new();
    let outcome = run.clone().resume().observe(&mut seen).await.unwrap();
    assert!(model.refused() > 0);
    let events: Vec<Event> = seen.iter().filter_map(RunEvent::committed).cloned().collect();
    let replayed = run.replay_with_tools(&events, |_| true).await.unwrap();
    assert_eq!(replayed.digest(), outcome.run().digest());
}

/// Results of tools that pins name are not cleared.
#[tokio::test]
async fn a_rescue_spares_what_pins_name() {
    let pages = "stall ".repeat(600);
    let log = conversation(&format!(
        "user: go\nassistant: > a read(file=1)   > b run_sql(q=1)\ntool a: {pages}\ntool b: {pages}\nassistant: > c read(file=2)\ntool c: short"
    ));
    let pins = Pins::up_to(80).results_of(["run_sql"]);
    let agent = Agent::builder(script("")).trim(Trim::keep_last(100).with_pins(pins)).build().unwrap();
    let input = Input::from(log).say("and now?");
    let mut run = Run::new(&agent, input, "run").unwrap();
    run.commit(run.feed(RunAnswer::Begin, Duration::ZERO).unwrap()).unwrap();
    let refused = ModelErrorKind::TooLong { limit: Some(1_250), used: Some(1_300) };
    let answer = run.rescue(&refused).unwrap();
    run.commit(run.feed(answer, Duration::ZERO).unwrap()).unwrap();
    assert_eq!(run.view().cleared().to_string(), "2..3");
}
