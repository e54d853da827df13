//! Redaction of a run without a host: the rules as data, streamed replies, the arguments of calls, and the record.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use serde_json::json;
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{
    Agent, AgentBuilder, ContentRedactor, Decision, Event, ModelView, Recording, Redact, Redaction,
    RedactionError, Run, RunEvent, SensitiveData, redacted,
};
use stepfold_state_core::chat::{ChatModel, ChatRequest, Chunk, FinishReason, ReplyStream};
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, RawArgs, Tool, ToolError};

#[test]
fn the_rules_find_what_they_name() {
    let rules = Redaction::all();
    for (text, shown) in [
        ("mail ada@example.org, please", "mail [email], please"),
        ("<müller.x+y@mail.köln.de>.", "<[email]>."),
        (
            "not an address: a@b, pkg@1.2.3, @ada, x@example.",
            "not an address: a@b, pkg@1.2.3, @ada, x@example.",
        ),
        ("4111 1111 1111 1111 12/29", "[card] 12/29"),
        ("4111-1111-1111-1111 4111111111111112", "[card] 4111111111111112"),
        ("amex 3782 822463 10005, id x4111111111111111", "amex [card], id x4111111111111111"),
        ("1764355344000 is a time", "1764355344000 is a time"),
        ("0.4111111111111111 and 4111111111111111.5", "0.4111111111111111 and 4111111111111111.5"),
        ("card 4111111111111111. Thanks", "card [card]. Thanks"),
        (r#"[0.4111111111111111,4111111111111111]"#, "[0.4111111111111111,0]"),
        ("DE89 3704 0044 0532 0130 00 and gb82WEST12345698765432", "[iban] and [iban]"),
        ("DE88 3704 0044 0532 0130 00", "DE88 3704 0044 0532 0130 00"),
        ("call +49 (30) 123456-78 or +1 555 0100", "call [phone] or [phone]"),
        ("1 + 2 = +3, +0123456789", "1 + 2 = +3, +0123456789"),
        ("+49 30 1234567 4111 1111 1111 1111 ok", "[phone] ok"),
        ("+49 30 1234567 12345678", "[phone] 12345678"),
        ("+49 30 12345678901234567", "+49 30 12345678901234567"),
        ("4111\u{a0}1111\u{a0}1111\u{a0}1111 +49\u{202f}30\u{a0}1234567", "[card] [phone]"),
        (r"log a:\nsk-abcdefghijklmnop1234, %3Dsk-abcdefghijklmnop1234", r"log a:\n[key], %3D[key]"),
        (r"pay\n4111 1111 1111 1111 \u000aDE89370400440532013000", r"pay\n[card] \u000a[iban]"),
        ("%204111111111111111&x=%20DE89370400440532013000", "%20[card]&x=%20[iban]"),
        ("key sk-abcdefghijklmnop1234 AKIAABCDEFGHIJKLMNOP", "key [key] [key]"),
        ("task-abcdefghijklmnop1234", "task-abcdefghijklmnop1234"),
        (r#"{"a":"ada@example.org","a":"x"}"#, r#"{"a":"[email]","a":"x"}"#),
        (r#"[4111111111111111.0,4.111111111111111e15]"#, "[0,0]"),
        (r#"{"n":4111111111111111,"to":"ada\u0040example.org"}"#, r#"{"n":0,"to":"[email]"}"#),
    ] {
        assert_eq!(redacted(&rules, text), shown, "{text}");
        // A replay redacts what is redacted.
        assert_eq!(redacted(&rules, shown), shown, "{text}");
    }
}

#[test]
fn a_pattern_is_checked_and_an_allowed_text_stays() {
    let error = Redaction::new().pattern("x", "(").unwrap_err();
    assert!(matches!(&error, RedactionError::Pattern { name, .. } if name == "x"), "{error}");
    assert!(Redaction::new().pattern("x", "a*").is_err());
    assert!(Redaction::all().pattern("email", "a").is_err());
    assert!(Redaction::new().pattern("a]", "a").is_err());
    let rules =
        Redaction::of([SensitiveData::Email]).pattern("mail", "mail").unwrap().allow("Help@example.org");
    // An earlier replacement has the text of a rule in it.
    let shown = redacted(&rules, "mail help@example.org or ada@example.org");
    assert_eq!(shown, "[mail] help@example.org or [email]");
    assert_eq!(redacted(&rules, &shown), shown);
}

#[test]
fn names_of_fields_are_content() {
    let rules = Redaction::all();
    let mut redactor = ContentRedactor::new(&rules);
    let mut value = json!({"ada@example.org": 1, "bob@example.org": {"n": "+4930123456"}});
    redactor.value(&mut value);
    assert_eq!(value, json!({"[email]": 1, "[email] 2": {"n": "[phone]"}}));
    assert_eq!(redactor.into_counts(), BTreeMap::from([("email".to_owned(), 2), ("phone".to_owned(), 1)]));
}

/// A model whose reply comes in the given pieces.
struct Pieces(Vec<String>);

impl ChatModel for Pieces {
    fn id(&self) -> &'static str {
        "pieces"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let chunks = self.0.iter().map(|piece| Ok(Chunk::Text(piece.clone())));
        let end = Ok(Chunk::Finished(FinishReason::Stop));
        ReplyStream::new(futures_util::stream::iter(chunks.chain([end]).collect::<Vec<_>>()))
    }
}

/// A text of words, sensitive ones among them, and beginnings of such.
fn text(rng: &mut Rng) -> String {
    let words = [
        "hello",
        "ada@example.org",
        "4111 1111 1111 1111",
        "DE89 3704 0044 0532 0130 00",
        "+49 30 123456 78",
        "a@b",
        "4111",
        "0.4111111111111111",
        "4111111111111111",
        ".",
        "5",
        "sk-abcdefghijklmnop1234",
        "DE",
        "+49",
        "x",
        "\n",
        "é",
        "T-17",
        "d",
        "3782 822463 10005",
        "[email]",
        "1764355344000",
        "de89",
        "sk-",
        "12",
        "(",
        ".",
        "ü@ö.de",
        "gb82WEST12345698765432",
        "4111\u{a0}1111\u{a0}1111\u{a0}1111",
        "+49 30 1234567 2026-11-30",
        "\\n",
        "%20",
        "%3D",
        "\\u000a",
        "DE89\u{202f}3704\u{a0}0044 0532 0130 00",
        "12345678",
    ];
    let count = rng.usize(1..12);
    let word = |_| words[rng.usize(..words.len())].to_owned() + [" ", "", "-", ", ", "+"][rng.usize(..5)];
    (0..count).map(word).collect()
}

fn pieces(rng: &mut Rng, text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for char in text.chars() {
        if rng.usize(..3) == 0 {
            pieces.push(String::new());
        }
        pieces.last_mut().unwrap().push(char);
    }
    pieces
}

/// Observers are shown the stored text, for every cut of a reply.
#[tokio::test]
async fn a_streamed_reply_is_shown_as_it_is_stored() {
    let all = Redaction::all();
    let with_pattern = Redaction::all().pattern("ticket", "T-[0-9]+").unwrap();
    for seed in 0..3_008 {
        let mut rng = Rng::with_seed(seed);
        let (rules, mut text) = (if rng.bool() { all.clone() } else { with_pattern.clone() }, text(&mut rng));
        if seed >= 3_000 {
            // A long word in it, which is held back until its end.
            text = [&*text, &["a", "12", "-", "a@"][rng.usize(..4)].repeat(rng.usize(2_000..6_000)), &*text]
                .concat();
        }
        let pieces = pieces(&mut rng, &text);
        let agent = Agent::builder(Pieces(pieces.clone())).build().unwrap();
        let mut seen = Vec::new();
        let run = agent.run("hi").redact_with(Arc::new(rules.clone()), ModelView::Keep);
        let Ok(outcome) = run.observe(&mut seen).await else { continue };
        let shown: String = (seen.iter())
            .filter_map(|event| if let RunEvent::Text(text) = event { Some(&**text) } else { None })
            .collect();
        assert_eq!(shown, redacted(&rules, &text), "seed {seed}: {pieces:?}");
        assert_eq!(outcome.text(), shown, "seed {seed}");
    }
}

/// A law: the time of a redaction grows as what is redacted does. With its square, each of these would take longer than a test may.
#[tokio::test]
async fn large_hostile_content_is_redacted_in_time() {
    let rules = Redaction::all().pattern("line", "^secret").unwrap();
    for part in ["sk-", "a@b.", "+1", "1 ", "DE89 ", "4111-", "[email] a@b.cd ", "{\"a\":", "é@"] {
        // What is compared with earlier replacements is fast enough for the square of a few.
        let bytes = if part.starts_with('[') { 5_000_000 } else { 1_000_000 };
        let text = part.repeat(bytes / part.len());
        assert!(!redacted(&rules, &text).is_empty());
    }
    let mut named = serde_json::Map::new();
    named.extend((0..60_000).map(|number| (format!("{number}@example.org"), json!(number))));
    let mut named = json!(named);
    assert!(ContentRedactor::new(&rules).value(&mut named));
    assert_eq!(named.as_object().unwrap().len(), 60_000);
    assert!(named["[email] 60000"].is_number());
    let held = vec!["abcd".to_owned(); 300_000];
    let agent = Agent::builder(Pieces(held.clone())).build().unwrap();
    let mut seen: Vec<RunEvent> = Vec::new();
    let run = agent.run("hi").redact_with(Arc::new(rules), ModelView::Keep);
    assert_eq!(run.observe(&mut seen).await.unwrap().text(), held.concat());
}

#[tokio::test]
async fn text_is_shown_before_the_reply_is_complete() {
    let pieces: Vec<String> = "This is a reply without anything sensitive in it at all."
        .split_inclusive(' ')
        .map(str::to_owned)
        .collect();
    let agent = Agent::builder(Pieces(pieces.clone())).build().unwrap();
    let mut seen = Vec::new();
    agent
        .run("hi")
        .redact_with(Arc::new(Redaction::all()), ModelView::Keep)
        .observe(&mut seen)
        .await
        .unwrap();
    let texts = seen.iter().filter(|event| matches!(event, RunEvent::Text(_))).count();
    assert!(texts > pieces.len() / 2, "{texts} of {}", pieces.len());
}

/// Arguments as the tool got them, and requests as the model got them.
#[derive(Clone, Default)]
struct Got(Arc<Mutex<Vec<String>>>);

impl Got {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

const SCRIPT: &str = "\
assistant: > c1 send(to=\"ada@example.org\")
assistant: I wrote to ada@example.org.
";

fn agent(got: &Got, approval: Approval) -> AgentBuilder {
    let got = got.clone();
    let send = move |RawArgs(arguments): RawArgs| {
        got.0.lock().unwrap().push(json!(arguments).to_string());
        async move { Ok::<_, ToolError>("sent to ada@example.org, card 4111 1111 1111 1111") }
    };
    let tool = Tool::new("send", "Sends.", send).parameters(json!({
        "type": "object", "properties": {"to": {"type": "string", "format": "email", "pattern": "@"}}, "required": ["to"],
    }));
    let tool = tool.approval(approval).build().unwrap();
    let schema = Schema::builder().build().unwrap();
    Agent::builder(Script::parse(SCRIPT).unwrap()).schema(schema).tools([tool])
}

fn stored(events: &[RunEvent]) -> Vec<Event> {
    let events = events.iter().filter_map(RunEvent::committed);
    let reread = |event: &Event| serde_json::from_str(&serde_json::to_string(event).unwrap()).unwrap();
    events.map(reread).collect()
}

fn assert_clean(what: &str) {
    assert!(!what.contains("ada@") && !what.contains("4111"), "{what}");
}

#[tokio::test]
async fn a_tool_gets_its_arguments_and_nothing_else_has_them() {
    let got = Got::default();
    let agent = agent(&got, Approval::Never).build().unwrap();
    let run = Run::new(&agent, "write to ada@example.org", "run-1").unwrap();
    let (mut recording, mut seen) =
        (Recording::of(&Run::new(&agent, "write to [email]", "run-1").unwrap()), Vec::new());
    let redacting = run.resume().redact_with(Arc::new(Redaction::all()), ModelView::Redacted);
    let outcome = redacting.observe(&mut recording).observe(&mut seen).await.unwrap();
    assert_eq!(got.take(), [r#"{"to":"ada@example.org"}"#]);
    assert_clean(&format!("{seen:?}"));
    assert_clean(&outcome.run().to_json());
    assert_clean(&serde_json::to_string(&recording).unwrap());
    // A run that is given what was stored makes the same events, although the tool would not take these arguments.
    let recording = Recording::from_json(&serde_json::to_string(&recording).unwrap()).unwrap();
    assert_eq!(recording.replay(&agent).unwrap().digest(), outcome.run().digest());
    let notes: Vec<_> =
        stored(&seen).into_iter().filter_map(|event| Some((event.name(), event.redacted?.parts))).collect();
    let counts: Vec<(&str, u64)> = notes.iter().map(|(name, parts)| (*name, parts.values().sum())).collect();
    assert_eq!(counts, [("began", 1), ("replied", 1), ("answered", 2), ("replied", 1)]);
}

/// After a restart a call does not run with what is stored of its arguments.
#[tokio::test]
async fn a_call_without_its_arguments_is_lost() {
    let got = Got::default();
    let agent = agent(&got, Approval::Always).build().unwrap();
    let rules: Arc<dyn Redact> = Arc::new(Redaction::all());
    let mut seen = Vec::new();
    let outcome =
        agent.run("write").redact_with(Arc::clone(&rules), ModelView::Keep).observe(&mut seen).await.unwrap();
    let request = outcome.pending().remove(0);
    assert_clean(&format!("{request:?}"));
    assert!(request.is_redacted);
    let json = outcome.run().to_json();
    assert_clean(&json);
    // In this process it runs as the model wrote it.
    let run = outcome.run().clone();
    let here =
        run.resume().redact_with(Arc::clone(&rules), ModelView::Keep).decide(&*request.id, Decision::Approve);
    assert_clean(&here.await.unwrap().transcript().to_string());
    assert_eq!(got.take(), [r#"{"to":"ada@example.org"}"#]);
    // In another one the request has the same id, and the call does not run.
    let mut runs = vec![Run::load(&agent, &json).unwrap()];
    let mut folded = Run::new(&agent, "write", outcome.run().id()).unwrap();
    for event in stored(&seen) {
        folded.commit(event).unwrap();
    }
    runs.push(folded);
    for run in runs {
        assert_eq!(run.pending()[0].id, request.id);
        let mut seen = Vec::new();
        let there = run
            .resume()
            .redact_with(Arc::clone(&rules), ModelView::Keep)
            .observe(&mut seen)
            .decide(&*request.id, Decision::Approve);
        let text = there.await.unwrap().transcript().to_string();
        assert!(text.contains("sensitive parts of its input were replaced"), "{text}");
        // Observers are told of it as of each call that has ended.
        let is_told = |event: &RunEvent| matches!(event, RunEvent::ToolFinished { text, .. } if text.contains("not run"));
        assert_eq!(seen.iter().filter(|event| is_told(event)).count(), 1, "{seen:?}");
        assert_eq!(got.take(), [""; 0]);
    }
}

/// Arguments of an approver that are replaced are as those of a model.
#[tokio::test]
async fn modified_arguments_run_here_and_are_lost_elsewhere() {
    let got = Got::default();
    let agent = agent(&got, Approval::Always).build().unwrap();
    let rules: Arc<dyn Redact> = Arc::new(Redaction::all());
    let outcome = agent.run("write").redact_with(Arc::clone(&rules), ModelView::Redacted).await.unwrap();
    let (id, run) = (outcome.pending()[0].id.clone(), outcome.run().clone());
    let modify = Decision::modify(json!({"to": "bob@example.org"}));
    let mut seen = Vec::new();
    let decided = run.clone().resume().redact_with(Arc::clone(&rules), ModelView::Redacted);
    decided.decide(&*id, modify).observe(&mut seen).await.unwrap();
    assert_eq!(got.take(), [r#"{"to":"bob@example.org"}"#]);
    assert!(!format!("{seen:?}").contains("bob@"));
    let mut folded = Run::load(&agent, &run.to_json()).unwrap();
    folded.commit(stored(&seen).remove(0)).unwrap();
    folded.resume().redact_with(rules, ModelView::Redacted).await.unwrap();
    assert_eq!(got.take(), [""; 0]);
}

/// The model of a run is shown the originals, or what is stored.
#[tokio::test]
async fn the_model_is_shown_what_its_view_says() {
    for view in [ModelView::Keep, ModelView::Redacted] {
        let requests = Got::default();
        let agent = agent(&Got::default(), Approval::Never).build().unwrap();
        let model = Watched(Script::parse(SCRIPT).unwrap(), requests.clone());
        let agent = agent.to_builder().model(model).build().unwrap();
        agent.run("write to ada@example.org").redact_with(Arc::new(Redaction::all()), view).await.unwrap();
        let requests = requests.take();
        assert_eq!(requests.len(), 2);
        match view {
            ModelView::Keep => {
                assert_eq!(requests[1].matches("ada@example.org").count(), 3, "{}", requests[1]);
                assert!(requests[1].contains("4111 1111 1111 1111"));
            }
            _ => requests.iter().for_each(|request| assert_clean(request)),
        }
    }
}

struct Watched(Script, Got);

impl ChatModel for Watched {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.1.0.lock().unwrap().push(request.messages.to_string());
        self.0.respond(request)
    }
}
