//! Redaction of sessions: sensitive content reaches no file, subscriber or observer, wherever a process dies, and the
//! record replays.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use serde_json::{Value, json};
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::{
    Agent, AgentBuilder, Decision, Decisions, Edit, ModelView, Redaction, RunEvent, Traces,
};
use stepfold_runner::session_scopes::{EventRange, SessionStore, SqliteStore, VerifySessions};
use stepfold_runner::{Runner, SessionHandle, WhenBusy};
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ModelErrorKind, ReplyStream};
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, Effect, InputRequest, RawArgs, Tool, ToolContext, ToolError};

use crate::world::{Fault, World, process};

/// The sensitive texts of a test, each of another kind and place.
const MARKERS: [&str; 9] = [
    "ada@example.org",
    "bob@example.org",
    "eve@example.org",
    "4111 1111 1111 1111",
    "DE89 3704 0044 0532 0130 00",
    "+49 30 1234567",
    "sk-abcdefghijklmnop1234",
    "joe@example.org",
    "kim@example.org",
];

const SCRIPT: &str = "\
assistant: Let me see, ada@example.org. > c1 save(to=\"bob@example.org\", card=\"4111 1111 1111 1111\")
assistant: > c2 pay(to=\"DE89 3704 0044 0532 0130 00\")
assistant: > c3 ask(about=\"kim@example.org\")
assistant: > c4 clerk(task=\"write to eve@example.org\")
assistant: > c5 fail(key=\"sk-abcdefghijklmnop1234\")
assistant: I called +49 30 1234567 for ada@example.org.
";

/// The arguments that tools received.
type Calls = Arc<Mutex<Vec<String>>>;

fn tool(calls: &Calls, name: &'static str, effect: Effect, approval: Approval) -> Tool {
    let calls = Arc::clone(calls);
    let function = move |RawArgs(arguments): RawArgs, context: ToolContext| {
        let calls = Arc::clone(&calls);
        async move {
            calls.lock().unwrap().push(format!("{name} {}", json!(arguments)));
            context.report(json!({"now": "ada@example.org"}));
            match name {
                "save" => {
                    context.writer().set("user:mail", arguments.get("to").cloned().unwrap_or_default())?;
                }
                "fail" => return Err(ToolError::permanent("no answer from joe@example.org")),
                _ => {}
            }
            Ok::<_, ToolError>(json!({"done": arguments, "by": "joe@example.org"}))
        }
    };
    let tool = Tool::new(name, "Does what its name says.", function);
    let tool = tool.parameters(json!({"additionalProperties": true, "type": "object"})).writes(["user:mail"]);
    tool.effect(effect).approval(approval).build().unwrap()
}

/// A tool that asks, with sensitive content in its question, and is given some.
fn asking(calls: &Calls) -> Tool {
    let calls = Arc::clone(calls);
    let function = move |RawArgs(arguments): RawArgs, context: ToolContext| {
        let calls = Arc::clone(&calls);
        async move {
            let question = InputRequest::new(
                "who",
                format!("who is {}?", arguments.get("about").and_then(Value::as_str).unwrap_or_default()),
            );
            let answer = context.ask(question)?;
            calls.lock().unwrap().push(format!("ask {answer:?}"));
            Ok::<_, ToolError>(json!("thanks"))
        }
    };
    let tool = Tool::new("ask", "Asks.", function);
    tool.parameters(json!({"additionalProperties": true, "type": "object"}))
        .effect(Effect::Pure)
        .build()
        .unwrap()
}

fn agent(calls: &Calls, script: &str) -> AgentBuilder {
    agent_of(calls, Script::parse(script).unwrap())
}

fn agent_of(calls: &Calls, model: impl ChatModel + 'static) -> AgentBuilder {
    let clerk = "assistant: > i1 save(to=\"eve@example.org\")\nassistant: I wrote to eve@example.org.\n";
    let schema = || Schema::builder().key::<String>("user:mail").key::<String>("note").build().unwrap();
    let clerk = Agent::builder(Script::parse(clerk).unwrap()).name("clerk").schema(schema());
    let clerk = clerk.tools([tool(calls, "save", Effect::Idempotent, Approval::Never)]).build().unwrap();
    Agent::builder(model).name("agent").schema(schema()).tools([
        tool(calls, "save", Effect::Idempotent, Approval::Never),
        tool(calls, "pay", Effect::AtMostOnce, Approval::Always),
        tool(calls, "fail", Effect::Pure, Approval::Never),
        asking(calls),
        clerk.as_tool("clerk", "Writes.").build().unwrap(),
    ])
}

fn runner(world: &World, agent: AgentBuilder, view: ModelView) -> Runner {
    let runner = world.runner(agent.build().unwrap()).when_busy(WhenBusy::Steer);
    runner.redact(Redaction::all(), view).build()
}

fn assert_clean(what: &str) {
    for marker in MARKERS {
        assert!(!what.contains(marker), "{marker}: {what}");
    }
}

/// Runs a turn to its end: with each request decided, and whatever is left of a run of another process continued.
async fn turn(runner: &Runner, seen: &mut Vec<String>) -> String {
    let session = runner.session("u", "s").await.unwrap();
    let mut next = match session.unfinished().await.unwrap() {
        Some(_) => None,
        None if session.read(EventRange::All).await.unwrap().version > 0 => return shown(&session).await,
        None => Some("I am ada@example.org, call +49 30 1234567"),
    };
    loop {
        let pending = session.pending().await.unwrap();
        let invocation = if let Some(message) = next.take() {
            session.send(message).await.unwrap()
        } else {
            let decisions = pending.iter().map(|request| {
                assert_clean(&format!("{request:?}"));
                let decision = match request.call.name.as_str() {
                    "pay" => Decision::Approve,
                    _ => Decision::modify(json!({"answer": "kim@example.org"})),
                };
                (request.id.clone(), decision)
            });
            let decisions: Decisions = decisions.collect::<Vec<_>>().into();
            session.resume().decide_all(decisions).start().unwrap()
        };
        let events = invocation.subscribe(0).map(|event| format!("{event:?}")).collect::<Vec<_>>().await;
        seen.extend(events);
        let outcome = invocation.outcome().await.unwrap();
        if !outcome.exit().is_resumable() {
            return outcome.transcript().to_string();
        }
    }
}

async fn shown(session: &SessionHandle) -> String {
    session.read(EventRange::All).await.unwrap().transcript().to_string()
}

fn check(world: &World, seen: &[String], transcript: &str) {
    for event in seen {
        assert_clean(event);
    }
    assert_clean(transcript);
    assert_clean(&String::from_utf8_lossy(&world.stored_bytes()));
    process(async {
        let store = SqliteStore::open(world.folder.path().join("sessions.db")).unwrap();
        assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
        let calls = Calls::default();
        let runner = runner(world, agent(&calls, ""), ModelView::Keep);
        let session = runner.session("u", "s").await.unwrap();
        let events = session.read(EventRange::All).await.unwrap().events;
        let stored: String = events.iter().map(|it| it.event.to_stored().unwrap() + "\n").collect();
        assert_clean(&stored);
        session.replay(&agent(&calls, "").build().unwrap()).await.unwrap();
        assert_eq!(calls.lock().unwrap().len(), 0);
    });
}

#[test]
fn tools_get_what_nothing_else_has() {
    for view in [ModelView::Keep, ModelView::Redacted] {
        let (world, calls, mut seen) = (World::over_sqlite(), Calls::default(), Vec::new());
        let transcript = process(turn(&runner(&world, agent(&calls, SCRIPT), view), &mut seen));
        let got = calls.lock().unwrap().join("\n");
        for marker in ["bob@", "4111 1111", "DE89", "eve@", "sk-abc", "kim@"] {
            assert!(got.contains(marker), "{marker}: {got}");
        }
        assert!(seen.iter().any(|event| event.contains("ToolProgress")), "{seen:?}");
        assert!(transcript.ends_with("assistant: I called [phone] for [email].\n"), "{transcript}");
        check(&world, &seen, &transcript);
    }
}

/// Wherever a process dies, no marker is stored, no call runs with less than it was given, and the run ends.
#[test]
fn wherever_a_process_dies_nothing_is_stored_and_no_call_runs_from_the_record() {
    for (view, dies) in [(ModelView::Keep, Fault::DiesBefore), (ModelView::Redacted, Fault::DiesAfter)] {
        let (world, calls) = (World::over_sqlite(), Calls::default());
        process(turn(&runner(&world, agent(&calls, SCRIPT), view), &mut Vec::new()));
        let appends = world.wire.appends();
        assert!(appends > 15, "{appends}");
        let mut lost = 0;
        for at in 0..appends {
            let (world, calls, mut seen) = (World::over_sqlite(), Calls::default(), Vec::new());
            world.wire.faults([(at, dies)]);
            let first = world.wire.process(turn(&runner(&world, agent(&calls, SCRIPT), view), &mut seen));
            let transcript = first.unwrap_or_else(|| {
                assert_clean(&String::from_utf8_lossy(&world.stored_bytes()));
                process(turn(&runner(&world, agent(&calls, SCRIPT), view), &mut seen))
            });
            lost += transcript.matches("were replaced before they were stored").count();
            assert!(!calls.lock().unwrap().iter().any(|call| call.contains('[')), "{calls:?}");
            check(&world, &seen, &transcript);
        }
        assert!(lost > 2, "{lost}");
    }
}

/// Edits, values at the beginning and reasons are stored without sensitive parts, and repeats of them are recognised.
#[test]
fn what_is_stored_beside_runs_has_none() {
    let (world, calls) = (World::over_sqlite(), Calls::default());
    process(async {
        let runner = runner(&world, agent(&calls, SCRIPT), ModelView::Keep);
        let values = json!({"note": "sk-abcdefghijklmnop1234"});
        let session = runner.create("u", "s", values).await.unwrap();
        let asked = session.run("hi").await.unwrap();
        assert!(asked.exit().is_resumable());
        let edit = Edit::new().set("note", json!("joe@example.org")).with_idempotency_key("k1");
        let first = session.edit(edit.clone()).await.unwrap();
        assert_eq!(session.edit(edit).await.unwrap().version, first.version);
        let request = &asked.pending()[0];
        let decisions = || {
            let reject = Decision::reject("ask ada@example.org first");
            Decisions::from(vec![(request.id.clone(), reject)]).with_idempotency_key("d1")
        };
        let (once, _) = session.resume().decide_all(decisions()).submit().await.unwrap();
        let (again, _) = session.resume().decide_all(decisions()).submit().await.unwrap();
        assert_eq!(once.version, again.version);
    });
    assert_clean(&String::from_utf8_lossy(&world.stored_bytes()));
}

/// A message that waits is stored without sensitive parts, and so is the cause of a failure.
#[test]
fn waiting_messages_and_failures_have_none() {
    let world = World::over_sqlite();
    process(async {
        let runner = runner(&world, agent_of(&Calls::default(), Silent), ModelView::Keep);
        let session = runner.session("u", "s").await.unwrap();
        let _running = session.send("hi").await.unwrap();
        let _waiting = session.send("and call +49 30 1234567").await.unwrap();
        let inbox = session.inbox().await.unwrap();
        assert_eq!(inbox.len(), 1);
    });
    assert_clean(&String::from_utf8_lossy(&world.stored_bytes()));
    let world = World::over_sqlite();
    process(async {
        let error = ModelError::new(ModelErrorKind::InvalidRequest, "no account of ada@example.org");
        let model = Script::parse("").unwrap().then_fail(error);
        let session = runner(&world, agent_of(&Calls::default(), model), ModelView::Keep);
        let session = session.session("u", "s").await.unwrap();
        session.run("hi").await.unwrap_err();
        let events = session.read(EventRange::All).await.unwrap().events;
        assert!(events.last().unwrap().event.failure().unwrap().contains("no account of [email]"));
    });
    assert_clean(&String::from_utf8_lossy(&world.stored_bytes()));
}

/// A model that never replies.
struct Silent;

impl ChatModel for Silent {
    fn id(&self) -> &'static str {
        "silent"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        ReplyStream::new(futures_util::stream::pending())
    }
}

/// The next run of the session is shown what is stored, in the same process as in another one.
#[test]
fn the_next_run_is_shown_what_is_stored() {
    let (world, requests) = (World::over_sqlite(), Calls::default());
    process(async {
        let model = Watched(
            Script::parse("assistant: hello ada@example.org\nassistant: yes").unwrap(),
            Arc::clone(&requests),
        );
        let runner = runner(&world, agent_of(&Calls::default(), model), ModelView::Keep);
        let session = runner.session("u", "s").await.unwrap();
        session.run("I am ada@example.org").await.unwrap();
        session.run("bob@example.org is my friend").await.unwrap();
    });
    let requests = requests.lock().unwrap();
    assert!(requests[0].contains("ada@example.org"), "{requests:?}");
    assert!(requests[1].contains("bob@example.org") && !requests[1].contains("ada@"), "{requests:?}");
}

struct Watched(Script, Calls);

impl ChatModel for Watched {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.1.lock().unwrap().push(request.messages.to_string());
        self.0.respond(request)
    }
}

/// Observers of a runner see events as they are stored.
#[test]
fn observers_see_what_is_stored() {
    let (world, seen) = (World::in_memory(), Calls::default());
    process(async {
        let to = Arc::clone(&seen);
        let agent = agent(&Calls::default(), "assistant: hello ada@example.org").build().unwrap();
        let runner = world.runner(agent).redact(Redaction::all(), ModelView::Keep);
        let runner = runner.observe(move |_| Noting(Arc::clone(&to))).build();
        runner.session("u", "s").await.unwrap().run("I am ada@example.org").await.unwrap();
    });
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 3);
    seen.iter().for_each(|event| assert_clean(event));
}

/// Records the fields of all spans and log events.
struct Recorder(Calls);

impl tracing::Subscriber for Recorder {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        span.record(&mut Fields(&self.0));
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut Fields(&self.0));
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Fields(&self.0));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

struct Fields<'a>(&'a Calls);

impl tracing::field::Visit for Fields<'_> {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{}={value:?}", field.name()));
    }
}

/// Spans with content, and logs of all levels, have what is stored.
#[test]
fn spans_and_logs_have_what_is_stored() {
    let (world, told) = (World::over_sqlite(), Calls::default());
    tracing::subscriber::with_default(Recorder(Arc::clone(&told)), || {
        process(async {
            let agent = agent(&Calls::default(), SCRIPT).build().unwrap();
            let runner = world.runner(agent).redact(Redaction::all(), ModelView::Keep);
            let runner = runner.observe(|_| Traces::new("agent").with_content());
            turn(&runner.when_busy(WhenBusy::Steer).build(), &mut Vec::new()).await;
            let error = ModelError::new(ModelErrorKind::InvalidRequest, "no account of ada@example.org");
            let failing = Script::parse("").unwrap().then_fail(error);
            let failing = self::runner(&world, agent_of(&Calls::default(), failing), ModelView::Keep);
            failing.session("u", "s2").await.unwrap().run("hi").await.unwrap_err();
        });
    });
    let told = told.lock().unwrap();
    assert!(told.iter().any(|field| field.contains("[email]")), "{told:?}");
    assert!(told.iter().any(|field| field.contains("no account of [email]")), "{told:?}");
    told.iter().for_each(|field| assert_clean(field));
}

struct Noting(Calls);

impl stepfold_runner::agent_loop::Observer for Noting {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), stepfold_runner::agent_loop::ObserverError> {
        self.0.lock().unwrap().push(format!("{event:?}"));
        Ok(())
    }
}
