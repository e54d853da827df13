//! The redaction of an experiment: a redacted record is compared with a redacted turn, and nothing that is written has what the rules
//! find.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, Event, ModelView, Redact, Redaction};
use stepfold_eval::{
    Case, CaseResult, CaseStatus, DataSet, EvalError, Expectation, Experiment, Judge, Mode, Report, Rubric,
    Score, Trial,
};
use stepfold_runner::{EraseRequest, ErasureSubject, Runner, SessionHandle};
use stepfold_session_scopes::{AnyStore, Author, MemoryStore};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ModelError, ModelErrorKind, ReplyStream, Role,
    Transcript,
};
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, Effect, RawArgs, StateWriter, Tool, ToolError};

use crate::clerk::Executions;

const MARKERS: [&str; 2] = ["ada@example.org", "4111111111111111"];

const SCRIPT: &str = "\
assistant: > c1 send(to=\"ada@example.org\", card=4111111111111111)
assistant: I wrote to ada@example.org about 4111111111111111.
";

fn rules() -> Arc<dyn Redact> {
    Arc::new(Redaction::all())
}

/// A model that gives the replies of a script in each turn.
pub(crate) struct Letters(Vec<Arc<Message>>);

impl Letters {
    pub(crate) fn of(script: &str) -> Self {
        let replies: Transcript = script.parse().expect("a script");
        Letters(replies.iter().cloned().collect())
    }
}

impl ChatModel for Letters {
    fn id(&self) -> &'static str {
        "test/letters"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let log: Vec<&Arc<Message>> = request.messages.iter().collect();
        let replies = log.iter().rev().take_while(|message| message.role() != Role::User);
        let steps = replies.filter(|message| message.role() == Role::Assistant).count();
        let Some(reply) = self.0.get(steps) else {
            let kind = ModelErrorKind::InvalidRequest;
            return ReplyStream::failed(ModelError::new(kind, format!("no reply about {}", MARKERS[0])));
        };
        let finish = if reply.has_tool_calls() { FinishReason::ToolCalls } else { FinishReason::Stop };
        let mut chunks = Chunk::of(reply);
        chunks.push(Chunk::Finished(finish));
        ReplyStream::from_chunks(chunks)
    }
}

/// A clerk that sends letters, and keeps the address.
fn agent(script: &str, approval: Approval, executions: &Executions) -> Agent {
    let ran = Arc::clone(executions);
    let send = move |RawArgs(arguments): RawArgs, writer: StateWriter| {
        ran.fetch_add(1, Ordering::Relaxed);
        async move {
            writer.set("last", arguments["to"].clone())?;
            Ok::<Value, ToolError>(json!({"sent": arguments["to"]}))
        }
    };
    let send = Tool::new("send", "Sends a letter.", send)
        .parameters(
            json!({"type": "object", "properties": {"to": {"type": "string"}, "card": {"type": "integer"}}}),
        )
        .effect(Effect::AtMostOnce)
        .approval(approval)
        .reads(["last"])
        .writes(["last"]);
    let schema = Schema::builder().key::<Option<String>>("last").build().expect("a schema");
    Agent::builder(Letters::of(script))
        .name("clerk")
        .schema(schema)
        .tools([send.build().expect("a tool")])
        .build()
        .expect("an agent")
}

fn runner(agent: &Agent, store: &AnyStore, view: Option<ModelView>) -> Runner {
    let builder = Runner::builder(agent.clone(), store.clone());
    match view {
        Some(view) => builder.redact(Redaction::all(), view).build(),
        None => builder.build(),
    }
}

/// A session of two turns; in the second one the tool reads what the first has written.
async fn session(agent: &Agent, store: &AnyStore, view: Option<ModelView>) -> SessionHandle {
    let session = runner(agent, store, view).session("ada", "s1").await.expect("a new session");
    for _ in 0..2 {
        session.run("write to ada@example.org, card 4111 1111 1111 1111").await.expect("it ends or waits");
        while let Some(request) = session.pending().await.expect("it can be read").pop() {
            session
                .resume()
                .decide(request.id, stepfold_agent_loop::Decision::Approve)
                .await
                .expect("it ends");
        }
    }
    session
}

fn store() -> AnyStore {
    AnyStore::new(MemoryStore::new())
}

/// The first difference, but for the notes of what was replaced: a redacted record does not have the original messages any more.
fn difference(recorded: &[Event], made: &[Event]) -> Option<String> {
    let bare = |events: &[Event]| -> Vec<Event> {
        let mut events = events.to_vec();
        for event in &mut events {
            event.redacted = None;
        }
        events
    };
    let (recorded, made) = (bare(recorded), bare(made));
    let pairs = recorded.iter().zip(&made);
    let different =
        pairs.into_iter().find_map(|(one, other)| Some(one.difference(other)?.between("recorded", "made")));
    different.or((recorded.len() != made.len()).then(|| format!("{} and {}", recorded.len(), made.len())))
}

/// A law: an unchanged agent does as its redacted record, in each mode, whatever its models are shown, and no tool runs.
#[tokio::test]
async fn an_unchanged_agent_passes_its_own_redacted_record() {
    for approval in [Approval::Never, Approval::Always] {
        for view in [ModelView::Redacted, ModelView::Keep] {
            let executions = Executions::default();
            let agent = agent(SCRIPT, approval.clone(), &executions);
            let session = session(&agent, &store(), Some(view)).await;
            let cases = Case::all_of(&session).await.expect("it can be read");
            assert_eq!((cases.len(), executions.load(Ordering::Relaxed)), (2, 2));
            for case in cases {
                let case = case.expect("a turn that suits");
                let case = Expectation::of_record()
                    .into_iter()
                    .fold(case, Case::expect)
                    .expect(Expectation::RecordedText);
                for mode in [Mode::Replay, Mode::Next, Mode::Roll] {
                    let experiment = Experiment::new(&agent).mode(mode).redact(rules(), view);
                    let (result, events) = experiment.run_with_events(&case).await;
                    assert_eq!(result.status, CaseStatus::Passed, "{mode} {view:?}: {}", result.why());
                    if mode == Mode::Roll {
                        let recorded = &case.record.as_ref().expect("a record").events;
                        assert_eq!(difference(recorded, &events), None, "{view:?}");
                    }
                }
                // Without the rules it does not.
                let bare = Experiment::new(&agent).run_case(&case).await;
                assert_ne!(bare.status, CaseStatus::Passed, "{}", bare.why());
            }
            assert_eq!(executions.load(Ordering::Relaxed), 2);
        }
    }
}

/// A case of a session that is older than the rules: its copy is redacted as the session would be, and an unchanged agent passes.
#[tokio::test]
async fn a_case_is_redacted_by_rules_that_came_later() {
    let executions = Executions::default();
    let agent = agent(SCRIPT, Approval::Never, &executions);
    let store = store();
    session(&agent, &store, None).await;
    let later = runner(&agent, &store, Some(ModelView::Redacted));
    let session = later.session("ada", "s1").await.expect("it is there");
    let old = runner(&agent, &store, None).session("ada", "s1").await.expect("it is there");
    for (place, case) in Case::all_of(&session).await.expect("it can be read").into_iter().enumerate() {
        let case = case.expect("a turn that suits");
        assert_clean("case", &serde_json::to_string(&case).expect("a form").replace("ada/s1", ""));
        let at = case.source.as_ref().expect("a source").last_version;
        let bare = Case::taken_from(&old, Some(at)).await.expect("a turn that suits");
        assert!(serde_json::to_string(&bare).expect("a form").contains(MARKERS[0]));
        // The data set may also be older than the rules.
        for case in [case, bare] {
            let case = Expectation::of_record()
                .into_iter()
                .fold(case, Case::expect)
                .expect(Expectation::RecordedText);
            for mode in [Mode::Replay, Mode::Next, Mode::Roll] {
                let result = Experiment::new(&agent)
                    .mode(mode)
                    .redact(rules(), ModelView::Redacted)
                    .run_case(&case)
                    .await;
                assert_eq!(result.status, CaseStatus::Passed, "{place} {mode}: {}", result.why());
            }
        }
    }
}

fn assert_clean(what: &str, text: &str) {
    for marker in MARKERS {
        assert!(!text.contains(marker), "{what} has {marker}: {text}");
    }
}

/// Keeps the fields of all spans and events.
#[derive(Clone, Default)]
struct Traced(Arc<Mutex<String>>);

impl tracing::field::Visit for Traced {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        let line = format!("{field}={value:?}\n");
        self.0.lock().expect("no test panics within").push_str(&line);
    }
}

impl tracing::Subscriber for Traced {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        span.record(&mut self.clone());
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// A program that is not content with anything, and repeats what it reads.
#[derive(Clone, Default)]
struct Echo(Arc<Mutex<String>>);

impl stepfold_eval::ProgramRunner for Echo {
    fn run<'a>(
        &'a self,
        _: &'a [String],
        input: Value,
    ) -> futures_util::future::BoxFuture<'a, Result<Value, String>> {
        self.0.lock().expect("no test panics within").push_str(&input.to_string());
        Box::pin(std::future::ready(Ok(json!({"passed": false, "reason": format!("not {}", MARKERS[0])}))))
    }
}

/// Everything that a report is written as.
fn written(report: &Report, results: &[CaseResult]) -> String {
    let mut lines = Vec::new();
    report.write_json_lines(&mut lines).expect("memory takes it");
    let lines = String::from_utf8(lines).expect("text");
    let junit = report.to_junit().expect("it has a form");
    format!("{lines}{report}{}{junit}{results:?}", report.to_markdown(50))
}

/// Expectations with what the rules find.
fn incomparable() -> Vec<Expectation> {
    let expectations = serde_json::json!([
        {"text_equals": MARKERS[0]}, {"text_contains": [MARKERS[1], "nowhere"]}, {"text_lacks": [MARKERS[0]]},
        {"text_matches": "^ada@example.org$"}, {"text_matches": r"^ada@example\.org$"},
        {"text_schema": {"type": "string", "const": MARKERS[0]}}, {"state": {"/last": "bob@example.org"}},
        {"calls": {"calls": [{"tool": "send", "arguments": {"to": MARKERS[0]}}], "order": "exact"}},
        {"judge": {"rubric": "It names ada@example.org."}},
    ]);
    serde_json::from_value(expectations).expect("a form")
}

/// A law: an expectation with what the rules find is an error of its case, for every redacted turn would meet it, or none; one with
/// a mark is compared, and without rules all are.
#[tokio::test]
async fn an_expectation_that_the_rules_change_is_not_compared() {
    let executions = Executions::default();
    // It writes to another address than each of them.
    let script = "assistant: > c1 send(to=\"eve@example.org\")\nassistant: I wrote to eve@example.org.";
    let agent = agent(script, Approval::Never, &executions);
    let verdict = r#"assistant: {"reason": "Yes.", "score": 1.0, "passed": true}"#;
    let judge = Agent::builder(Script::parse(verdict).expect("a script").whole()).name("judge").build();
    let judge = Judge::new(&judge.expect("an agent"), store()).expect("it can judge");
    let bare = Experiment::new(&agent).mode(Mode::Live).allow_live("send").judge(judge);
    let case = |expectation: &Expectation| Case::new("letter", "write to eve").expect(expectation.clone());
    for view in [ModelView::Redacted, ModelView::Keep] {
        let redacted = bare.clone().redact(rules(), view);
        for expectation in incomparable() {
            let before = executions.load(Ordering::Relaxed);
            let result = redacted.run_case(&case(&expectation)).await;
            assert_eq!(result.status, CaseStatus::Error, "{expectation:?}: {}", result.why());
            let words = format!(
                "`{}` has a text that the rules of `[redact]` replace, so it cannot be compared with redacted turns: \
                 expect its mark, such as `[email]`, or another text",
                expectation.name()
            );
            assert_eq!((&*result.why(), executions.load(Ordering::Relaxed)), (&*words, before));
            let result = bare.run_case(&case(&expectation)).await;
            assert_ne!(result.status, CaseStatus::Error, "{expectation:?}: {}", result.why());
        }
        for (expectation, status) in [
            (json!({"text_lacks": ["[email]"]}), CaseStatus::Failed),
            (json!({"text_contains": ["wrote to [email]"]}), CaseStatus::Passed),
            (json!({"text_matches": r"^I wrote to \[email\]\.$"}), CaseStatus::Passed),
            (json!({"state": {"/last": "[email]"}}), CaseStatus::Passed),
            (json!({"judge": {"rubric": "It names an address."}}), CaseStatus::Passed),
        ] {
            let expectation = serde_json::from_value(expectation).expect("a form");
            let result = redacted.run_case(&case(&expectation)).await;
            assert_eq!(result.status, status, "{expectation:?}: {}", result.why());
        }
    }
    // Modes that do not evaluate it have no such error.
    let session = session(&agent, &store(), None).await;
    let recorded = Case::taken_from(&session, None).await.expect("a turn that suits");
    let lacks = recorded.expect(Expectation::TextLacks(vec![MARKERS[0].to_owned()]));
    let replayed = Experiment::new(&agent)
        .mode(Mode::Replay)
        .redact(rules(), ModelView::Redacted)
        .run_case(&lacks)
        .await;
    assert_eq!(replayed.status, CaseStatus::Passed, "{}", replayed.why());
}

/// A law: with markers in every place of a case and of a candidate, no output has one.
#[tokio::test]
async fn no_output_of_an_experiment_has_what_the_rules_find() {
    let traced = Traced::default();
    let _traces = tracing::subscriber::set_default(traced.clone());
    let executions = Executions::default();
    let said = "write to ada@example.org with 4111111111111111";
    let mut case = Case::new("letter", said).value("last", MARKERS[0]);
    case.conversation =
        serde_json::from_value(json!(format!("user: {said}\nassistant: yes, {said}"))).expect("a form");
    // None of these can be compared, and the error does not repeat it; those with marks can.
    let found = incomparable();
    let marked = serde_json::json!([
        {"text_equals": "[email]"}, {"text_contains": ["[email]", "nowhere"]}, {"text_lacks": ["[email]"]},
        {"text_matches": "^.email.$"}, {"state": {"/last": "[email]"}},
        {"calls": {"calls": [{"tool": "send", "arguments": {"to": "[email]"}}], "order": "exact"}},
        {"program": {"command": ["grade", "it"]}},
    ]);
    let marked: Vec<Expectation> = serde_json::from_value(marked).expect("a form");
    let mut cases: Vec<Case> =
        found.into_iter().map(|expectation| case.clone().expect(expectation)).collect();
    for (place, case) in cases.iter_mut().enumerate() {
        case.name = format!("found {place}");
    }
    let case = marked.into_iter().fold(case, Case::expect);
    cases.push(case.expect(Expectation::Judge(Rubric::new("It names an address."))));
    let recorded = {
        let agent = agent(SCRIPT, Approval::Never, &executions);
        let session = session(&agent, &store(), None).await;
        Case::taken_from(&session, None)
            .await
            .expect("a turn that suits")
            .expect(Expectation::TextEquals("no".to_owned()))
    };
    let candidates = [
        // A wrong text, a call that the record does not have, and a model that fails.
        SCRIPT.to_owned(),
        "assistant: > c1 send(to=\"bob@example.org, ada@example.org\")\nassistant: done".to_owned(),
        "assistant: > c1 send(to=\"ada@example.org\", card=4111111111111111)".to_owned(),
    ];
    cases.push(recorded);
    let judged = store();
    let (programs, mut outputs) = (Echo::default(), String::new());
    for (script, mode) in candidates.iter().flat_map(|script| {
        [Mode::Replay, Mode::Next, Mode::Roll, Mode::Live, Mode::Recorded].map(|mode| (script, mode))
    }) {
        let candidate = agent(script, Approval::Never, &executions);
        let judge = r#"assistant: {"reason": "It names ada@example.org.", "score": 0.1, "passed": false}"#;
        let judge = Agent::builder(Script::parse(judge).expect("a script").whole()).name("judge").build();
        let evaluator =
            |_: &Case, trial: &Trial| Score::failed("own", format!("{} {}", MARKERS[1], trial.text));
        let experiment = Experiment::new(&candidate)
            .mode(mode)
            .judge(Judge::new(&judge.expect("an agent"), judged.clone()).expect("it can judge"))
            .evaluator(evaluator)
            .programs(programs.clone())
            .allow_live("send")
            .timelines()
            .redact(rules(), ModelView::Redacted);
        let report = experiment.run(DataSet::of(cases.clone())).await.expect("valid cases");
        outputs.push_str(&written(&report, &report.results));
    }
    assert_clean("report", &outputs);
    assert!(outputs.contains("expected `[email]`, found `I wrote to [email] about [card].`"), "{outputs}");
    assert_clean("input of a program", &programs.0.lock().expect("no test panics within"));
    assert_clean("traces", &traced.0.lock().expect("no test panics within"));
    let mut judgements = 0;
    let list = stepfold_session_scopes::ListSessions::new("judge", "judge").expect("ids");
    for listed in stepfold_session_scopes::SessionStore::list(&judged, list).await.expect("a list").sessions {
        let events = stepfold_session_scopes::GetSession::new(listed.key);
        let found = stepfold_session_scopes::SessionStore::get(&judged, events).await.expect("a session");
        assert_clean("store of the judge", &format!("{found:?}"));
        judgements += 1;
    }
    assert!(judgements > 0);
}

/// A turn of which a part was erased is no case, and says so by its name.
#[tokio::test]
async fn a_turn_of_which_a_part_was_erased_is_no_case() {
    let executions = Executions::default();
    let agent = agent(SCRIPT, Approval::Never, &executions);
    // Of each event of the first turn: those of the turn itself, and the conversation of the second one.
    let versions = {
        let session = session(&agent, &store(), None).await;
        let first =
            Case::all_of(&session).await.expect("it can be read").remove(0).expect("a turn that suits");
        first.source.expect("a source").last_version
    };
    for version in 1..=versions {
        let store = store();
        let session = session(&agent, &store, None).await;
        let subject = ErasureSubject::Events {
            user: "ada".parse().expect("an id"),
            session: "s1".parse().expect("an id"),
            versions: [version].into(),
        };
        let runner = runner(&agent, &store, None);
        let request = EraseRequest::new(subject, Author::new("root").expect("a name"), "mail");
        runner.erase(request).await.expect("it is erased");
        let cases = Case::all_of(&session).await.expect("it can be read");
        for (case, name) in cases.into_iter().zip(["ada/s1/1".to_owned(), format!("ada/s1/{}", versions + 1)])
        {
            let error = case.expect_err("a part was erased");
            assert!(matches!(&error, EvalError::Erased { .. }), "{version}: {error}");
            let words =
                format!("turn `{name}` cannot be a case: version {version} of its conversation was erased");
            assert_eq!(error.to_string(), words);
        }
        // What came after the erasure, never had it.
        session.run("and now?").await.expect("it ends");
        let last = Case::taken_from(&session, None).await.expect("a turn that suits");
        assert_eq!(last.source.expect("a source").session, "s1");
    }
}
