//! The law of approvals in the loop alone: each approval runs exactly what its request showed, at most once. Whatever
//! comes between: second decisions, repeats, old ids, processes that end at any event, and hosts that go back in the
//! record and make the same calls again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serde_json::{Value, json};
use stepfold_agent_loop::state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_agent_loop::tools::{Approval, Effect, RawArgs, Tool, ToolContext, ToolError};
use stepfold_agent_loop::{
    Agent, AskReason, Decision, Decisions, Event, EventKind, Observer, ObserverError, Run, RunEvent, RunFault,
};

use super::kit::path_of;

/// The steps of an approver. Each time another process continues with the recorded events.
#[derive(Clone, Debug)]
enum Act {
    Resume(End),
    /// A decision about a pending request, and whether it has an idempotency key.
    Decide {
        which: usize,
        how: How,
        has_key: bool,
        end: End,
    },
    /// A decision that was made before, sent again.
    Again {
        nth: usize,
        end: End,
    },
    /// A decision about any request that was ever shown.
    Old {
        nth: usize,
        how: How,
        end: End,
    },
    /// Goes back by so many events, and creates again what came after: with idempotency keys of its own.
    Back {
        by: usize,
    },
}

/// The fate of the process: it ends at a commit, which is stored or not.
#[derive(Clone, Copy, Debug)]
enum End {
    Whole,
    Dies { at: usize, is_stored: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Approve,
    Reject,
    Modify,
    /// Modifies to arguments that do not fit.
    Misfit,
}

fn act() -> impl Strategy<Value = Act> {
    let end = || {
        let dies = (0..5_usize, any::<bool>()).prop_map(|(at, is_stored)| End::Dies { at, is_stored });
        prop_oneof![2 => Just(End::Whole), 1 => dies]
    };
    let how = || prop_oneof![6 => Just(How::Approve), 2 => Just(How::Reject), 2 => Just(How::Modify), 1 => Just(How::Misfit)];
    prop_oneof![
        4 => end().prop_map(Act::Resume),
        12 => (0..3_usize, how(), any::<bool>(), end())
            .prop_map(|(which, how, has_key, end)| Act::Decide { which, how, has_key, end }),
        3 => (0..20_usize, end()).prop_map(|(nth, end)| Act::Again { nth, end }),
        3 => (0..20_usize, how(), end()).prop_map(|(nth, how, end)| Act::Old { nth, how, end }),
        3 => (1..6_usize).prop_map(|by| Act::Back { by }),
    ]
}

/// What a request shows, or what ran: the tool, the id of the call, the arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct What {
    tool: String,
    call: String,
    arguments: String,
}

/// What a request shows, how many calls it is about, and in which life it was shown first.
#[derive(Clone, Debug)]
struct Shown {
    what: What,
    times: usize,
    reason: AskReason,
    life: usize,
}

/// What was shown and what ran.
#[derive(Default)]
struct Book {
    shown: BTreeMap<String, Shown>,
    /// The idempotency keys, which begin with the life.
    ran: Vec<(String, What)>,
    decided: usize,
}

type Shared = Arc<Mutex<Book>>;

/// Makes calls under the same ids again and again, equal ones among them.
#[derive(Clone)]
struct Gambler(Arc<Mutex<fastrand::Rng>>, &'static [&'static str]);

impl Gambler {
    fn throw(&self, sides: usize) -> usize {
        self.0.lock().unwrap().usize(..sides)
    }
}

impl ChatModel for Gambler {
    fn id(&self) -> &'static str {
        "test/gambler"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        request.messages.check().unwrap();
        let calls = self.throw(4);
        let mut message = Message::new(Role::Assistant);
        for number in 1..=calls {
            let (tool, euro) = (self.1[self.throw(self.1.len())], [5, 5000][self.throw(2)]);
            let arguments = match (tool, self.throw(2)) {
                ("clerk", _) => json!({"task": "pay"}),
                // Equal values, in another order.
                (_, 0) => json!({"euro": euro, "to": "ada"}),
                _ => json!({"to": "ada", "euro": euro}),
            };
            message = message.with_part(ToolCall::new(format!("c{number}"), tool, arguments));
        }
        let finish = match calls {
            0 => FinishReason::Stop,
            _ => FinishReason::ToolCalls,
        };
        let message = if calls == 0 { Message::assistant("done") } else { message };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(finish)]))
    }
}

/// Keeps the events of a run until its process ends.
struct Store<'a> {
    events: &'a mut Vec<Event>,
    end: End,
    committed: usize,
}

impl Observer for Store<'_> {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        let Some(event) = event.committed() else { return Ok(()) };
        let dies = matches!(self.end, End::Dies { at, .. } if at <= self.committed);
        let is_stored = matches!(self.end, End::Dies { at, is_stored: true } if at == self.committed);
        self.committed += 1;
        if !dies || is_stored {
            self.events.push(event.clone());
        }
        if dies { Err("the process has died".into()) } else { Ok(()) }
    }
}

struct Law {
    agent: Agent,
    book: Shared,
    events: Vec<Event>,
    life: usize,
    /// What each life may run, by what was decided in its record: how often, and whether without bound.
    allowed: BTreeMap<usize, Vec<(What, usize, AskReason)>>,
    made: Vec<Decisions>,
}

/// As text that equal values share.
fn canonical(value: &Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    value.to_string()
}

fn tool(book: &Shared, name: &str, effect: Effect, approval: Approval) -> Tool {
    let book = Arc::clone(book);
    let run = move |RawArgs(arguments): RawArgs, context: ToolContext| {
        let book = Arc::clone(&book);
        async move {
            let (tool, call) = (context.tool_name().to_owned(), context.call_id().to_owned());
            let what = What { tool, call, arguments: canonical(&arguments) };
            book.lock().unwrap().ran.push((context.idempotency_key().to_owned(), what));
            tokio::task::yield_now().await;
            Ok::<_, ToolError>("done")
        }
    };
    let schema = json!({
        "properties": {"euro": {"type": "integer"}, "to": {"type": "string"}},
        "required": ["euro"],
        "type": "object",
    });
    Tool::new(name, "Moves money.", run).parameters(schema).effect(effect).approval(approval).build().unwrap()
}

/// An agent that pays each time after it was asked, sends after it was asked once, and has a clerk who pays.
fn agent(book: &Shared, seed: u64, asks: bool) -> Agent {
    let rng = Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)));
    let pay = tool(book, "pay", Effect::AtMostOnce, Approval::Always);
    let order = tool(book, "send", Effect::Idempotent, Approval::Once);
    let clerk = Agent::builder(Gambler(Arc::clone(&rng), &["pay"])).tools([pay.clone()]).max_steps(2);
    let clerk = clerk.repeat_guard(None).build().unwrap().as_tool("clerk", "Pays.").build().unwrap();
    let builder = Agent::builder(Gambler(rng, &["pay", "send", "send", "clerk"])).tools([pay, order, clerk]);
    let builder = if asks { builder.ask_when_uncertain() } else { builder };
    builder.repeat_guard(None).max_steps(4).build().unwrap()
}

impl Law {
    fn prefix(&self) -> String {
        format!("life{}", self.life)
    }

    /// The run as another process finds it.
    fn run(&self) -> Run {
        let mut run = Run::new(&self.agent, "go", "life0").unwrap().with_key_prefix(self.prefix());
        for event in &self.events {
            run.commit(event.clone()).unwrap();
        }
        Run::load(&self.agent, &run.to_json()).unwrap()
    }

    /// What waits, noted: no id ever shows two things.
    fn look(&self) -> Vec<String> {
        let mut book = self.book.lock().unwrap();
        let mut ids = Vec::new();
        for request in self.run().pending() {
            let call = path_of(&request.id).rsplit('/').next().unwrap().to_owned();
            let arguments = canonical(&Value::Object(request.call.arguments.as_object().unwrap().clone()));
            let what = What { tool: request.call.name.clone(), call, arguments };
            let shown = Shown { what, times: request.times, reason: request.reason, life: self.life };
            let before = book.shown.entry(request.id.clone()).or_insert_with(|| shown.clone());
            assert_eq!(
                (&before.what, before.times),
                (&shown.what, shown.times),
                "{} shows two things",
                request.id
            );
            assert_eq!(before.reason, shown.reason);
            ids.push(request.id);
        }
        ids
    }

    /// Decides, or only continues. Whether the decisions were taken, be they stored or not.
    async fn go_on(&mut self, decisions: Decisions, end: End) -> Result<(), RunFault> {
        let before = self.events.len();
        let run = self.run();
        let mut store = Store { events: &mut self.events, end, committed: 0 };
        let ended = run.resume().decide_all(decisions).observe(&mut store).await;
        self.note_decided(before);
        ended.map(drop).map_err(stepfold_agent_loop::RunError::into_fault)
    }

    /// What the record allows that has come to it.
    fn note_decided(&mut self, from: usize) {
        let book = self.book.lock().unwrap();
        let allowed = self.allowed.entry(self.life).or_default();
        for event in &self.events[from..] {
            let EventKind::Decided { decisions, .. } = &event.kind else { continue };
            for (id, decision) in decisions {
                let Shown { what, times, reason, .. } = book.shown[id].clone();
                match decision {
                    Decision::Approve => allowed.push((what, times, reason)),
                    Decision::Modify { arguments } => {
                        allowed.push((What { arguments: canonical(arguments), ..what }, times, reason));
                    }
                    _ => {}
                }
            }
        }
    }

    async fn decide(&mut self, id: String, how: How, key: Option<String>, end: End) {
        let decision = match how {
            How::Approve => Decision::Approve,
            How::Reject => Decision::reject("no"),
            How::Modify => Decision::modify(json!({"euro": 1})),
            How::Misfit => Decision::modify(json!({"euro": "much"})),
        };
        let mut decisions = Decisions::from([(id.clone(), decision)]);
        if let Some(key) = key {
            decisions = decisions.with_idempotency_key(key);
        }
        let (pending, before) = (self.look(), self.events.len());
        let shown = self.book.lock().unwrap().shown[&id].clone();
        let ended = self.go_on(decisions.clone(), end).await;
        let is_refused = matches!(ended, Err(RunFault::Decision(_)));
        let is_misfit = how == How::Misfit || how == How::Modify && shown.what.tool == "clerk";
        assert_eq!(is_refused, is_misfit || !pending.contains(&id), "{how:?} {shown:?}: {ended:?}");
        if is_refused {
            assert_eq!((self.look(), self.events.len()), (pending, before), "nothing is committed");
            return;
        }
        assert_eq!(shown.life, self.life, "{id} was shown before the host went back");
        self.made.push(decisions);
        self.book.lock().unwrap().decided += 1;
    }

    /// The same again changes nothing under its key, unless it was never stored; else it is refused.
    async fn again(&mut self, nth: usize, end: End) {
        let Some(made) = self.made.get(nth % self.made.len().max(1)).cloned() else { return };
        let (pending, run) = (self.look(), self.run());
        let waits = pending.contains(&made.decisions[0].0);
        let is_known = run.has_decided(&made);
        let before = self.events.len();
        let ended = self.go_on(made, end).await;
        let is_taken =
            self.events[before..].iter().any(|event| matches!(event.kind, EventKind::Decided { .. }));
        match (waits, is_known) {
            (true, _) => {}
            (false, true) => assert!(!is_taken, "a repeat was recorded"),
            (false, false) => {
                assert!(matches!(ended, Err(RunFault::Decision(_))), "{ended:?}");
                assert_eq!(self.events.len(), before);
            }
        }
    }

    async fn take(&mut self, act: &Act) {
        match *act {
            Act::Resume(end) => {
                let _ = self.go_on(Decisions::new(), end).await;
            }
            Act::Decide { which, how, has_key, end } => {
                let pending = self.look();
                let Some(id) = pending.get(which % pending.len().max(1)).cloned() else { return };
                let key = has_key.then(|| format!("click-{}", self.made.len()));
                self.decide(id, how, key, end).await;
            }
            Act::Again { nth, end } => self.again(nth, end).await,
            Act::Old { nth, how, end } => {
                self.look();
                let id = self.book.lock().unwrap().shown.keys().cycle().nth(nth).cloned();
                let Some(id) = id else { return };
                self.decide(id, how, None, end).await;
            }
            Act::Back { by } => {
                // What was never begun has nothing to go back to.
                self.events.truncate(self.events.len().saturating_sub(by).max(1));
                self.life += 1;
                self.note_decided(0);
            }
        }
    }

    fn check(&self) {
        let book = self.book.lock().unwrap();
        let mut ran: BTreeMap<(usize, &What), Vec<&str>> = BTreeMap::new();
        for (key, what) in &book.ran {
            let life = key.split('/').next().unwrap().strip_prefix("life").unwrap().parse().unwrap();
            ran.entry((life, what)).or_default().push(key);
        }
        for ((life, what), keys) in ran {
            let allowed = self.allowed.get(&life).map(Vec::as_slice).unwrap_or_default();
            if what.tool == "send" {
                // Once approved, equal calls of the run need no approval. What was shown has another id then.
                let is_same = |known: &What| known.tool == "send" && known.arguments == what.arguments;
                assert!(allowed.iter().any(|(known, ..)| is_same(known)), "{what:?} ran in life {life}");
                continue;
            }
            let times: usize =
                allowed.iter().filter(|(known, ..)| known == what).map(|(_, times, _)| times).sum();
            assert!(keys.len() <= times, "{what:?} ran as {keys:?} in life {life}, allowed {times} times");
        }
        self.check_equal_calls();
    }

    /// Equal calls that are asked about once all run, or none of them does.
    fn check_equal_calls(&self) {
        let run = self.run();
        let messages: Vec<_> = run.transcript().iter().collect();
        let is_rejected = |id: &str| {
            let results = messages.iter().filter_map(|message| message.tool_result());
            let result = results.into_iter().find(|result| result.call_id() == id);
            result.map(|result| result.text().contains("was rejected"))
        };
        for message in &messages {
            let mut decided: BTreeMap<String, BTreeSet<Option<bool>>> = BTreeMap::new();
            for call in message.tool_calls().filter(|call| call.name == "send") {
                let arguments = canonical(&Value::Object(call.arguments.as_object().unwrap().clone()));
                decided.entry(arguments).or_default().insert(is_rejected(&call.id));
            }
            assert!(decided.values().all(|decided| decided.len() == 1), "{}", run.transcript());
        }
    }
}

fn cases() -> u32 {
    match ProptestConfig::default().cases {
        256 => 48,
        asked => asked,
    }
}

#[test]
fn each_approval_runs_exactly_what_its_request_showed_at_most_once() {
    let config = ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let seen = std::cell::Cell::new((0, 0, 0));
    let acts = prop::collection::vec(act(), 1..30);
    let result = runner.run(&(any::<u64>(), any::<bool>(), acts), |(seed, asks, acts)| {
        let book = Shared::default();
        let mut law = Law {
            agent: agent(&book, seed, asks),
            book: Arc::clone(&book),
            events: Vec::new(),
            life: 0,
            allowed: BTreeMap::new(),
            made: Vec::new(),
        };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
            law.take(&Act::Resume(End::Whole)).await;
            for act in &acts {
                law.take(act).await;
            }
        });
        law.check();
        let book = book.lock().unwrap();
        let several = book.shown.values().filter(|shown| shown.times > 1).count();
        let (decided, ran, before) = seen.get();
        seen.set((decided + book.decided, ran + book.ran.len(), before + several));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (decided, ran, several) = seen.get();
    #[expect(clippy::print_stdout, reason = "the figures of a long run")]
    {
        println!(
            "{} interleavings: {decided} decisions taken, {ran} runs, {several} questions about equal calls",
            cases()
        );
    }
    assert!(decided > 0 && ran > 0 && several > 0, "the law says nothing");
}
