//! Cassettes: what is written, what comes back, and what is refused.

use std::path::PathBuf;
use std::time::Duration;

use expect_test::{Expect, expect};
use futures_util::FutureExt;
use serde_json::json;
use stepfold_providers::{Cassette, Scripted, ScriptedReply};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, FinishReason, ModelError, ModelErrorKind, ModelParams, Reply, ToolSpec, Usage,
};

/// A file of this test's own, gone with its folder at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("stepfold-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    pub(crate) fn tape(&self) -> PathBuf {
        self.0.join("new").join("tape.cassette")
    }

    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(self.tape()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn request(text: &str) -> ChatRequest {
    ChatRequest::new(text.parse().unwrap())
}

fn ask(model: &impl ChatModel, request: ChatRequest) -> Result<Reply, ModelError> {
    model.respond(request).into_reply().now_or_never().expect("nobody waits")
}

fn script() -> Scripted {
    let usage = Usage::new(12, 3);
    let limited = ModelError::new(ModelErrorKind::RateLimited, "too many")
        .with_retry_after(Duration::from_millis(1500))
        .with_provider("p")
        .with_request_id("q");
    Scripted::new([
        ScriptedReply::from(r#"~"hm" "I look." > c1 search(q="stalls\n== request {}")"#)
            .with_usage(usage)
            .with_id("r1"),
        ScriptedReply::from("area").failing(limited),
        ScriptedReply::from("so far").truncated(),
        ScriptedReply::from("area\n\n== 3").finished(FinishReason::Length),
    ])
    .named("openai/gpt")
}

fn requests() -> Vec<ChatRequest> {
    let search = ToolSpec::new("search", "Finds.", json!({"type": "object"}));
    let second = "user: which area?\nassistant: ~\"hm\" \"I look.\" > c1 search(q=\"stalls\\n== request {}\")\ntool c1: [3, 4]";
    let params = ModelParams::default().with_temperature(0.5);
    vec![
        request("user: which area?").with_tools([search.clone()]),
        request(second).with_tools([search.clone()]),
        request(second).with_tools([search]),
        request("user: else?").with_params(params),
    ]
}

fn all(model: &impl ChatModel) -> Vec<String> {
    let show = |reply: Result<Reply, ModelError>| match reply {
        Ok(reply) => format!("{reply:?}"),
        Err(error) => format!("{error} {:?} {:?}", error.retry_after(), error.partial()),
    };
    requests().into_iter().map(|request| show(ask(model, request))).collect()
}

#[test]
fn an_exchange_is_added_to_what_is_in_the_file() {
    use std::io::Read as _;

    let folder = Folder::new("added");
    let tape = Cassette::record(folder.tape(), Scripted::new(["one", "two"])).unwrap();
    ask(&tape, request("user: a")).unwrap();
    // A reader with the open file sees appended replies, and would not see a replaced file.
    let mut held = std::fs::File::open(folder.tape()).unwrap();
    let (mut before, mut after) = (String::new(), String::new());
    held.read_to_string(&mut before).unwrap();
    ask(&tape, request("user: b")).unwrap();
    held.read_to_string(&mut after).unwrap();
    assert!(before.ends_with("assistant: one\n") && after.ends_with("assistant: two\n"), "{before}{after}");
    assert_eq!(before + &after, folder.text());
}

#[test]
fn what_was_recorded_comes_back() {
    let folder = Folder::new("recorded");
    let recorded = all(&Cassette::record(folder.tape(), script()).unwrap());
    let tape = Cassette::replay(folder.tape()).unwrap();
    assert_eq!(tape.id(), "openai/gpt");
    assert_eq!(all(&tape), recorded);
    assert_eq!(recorded, all(&script()));
    assert_eq!(tape.unused(), 0);
    expect![[r##"
        # stepfold cassette 1, openai/gpt
        == request {"tools":[{"name":"search","description":"Finds.","parameters":{"type":"object"}}]}
        user:      which area?
        == reply {"finish_reason":"tool_calls","usage":{"input_tokens":12,"output_tokens":3,"cached_input_tokens":0,"reasoning_tokens":0},"id":"r1"}
        assistant: ~"hm"   "I look."   > c1 search(q="stalls\n== request {}")
        == request {"after":{"exchange":1,"messages":1},"tools":[{"name":"search","description":"Finds.","parameters":{"type":"object"}}]}
        assistant: ~"hm"   "I look."   > c1 search(q="stalls\n== request {}")
        tool c1:   [3, 4]
        == error {"error":{"kind":"rate_limited","message":"too many","provider":"p","request_id":"q","retry_after_ms":1500}}
        assistant: area
        == request {"after":{"exchange":2,"messages":3},"tools":[{"name":"search","description":"Finds.","parameters":{"type":"object"}}]}
        == reply {}
        assistant: so far
        == request {"params":{"temperature":0.5}}
        user:      else?
        == reply {"finish_reason":"length"}
        assistant: "area\n\n== 3"
    "##]].assert_eq(&folder.text());
}

#[test]
fn a_mismatch_shows_the_difference() {
    let folder = Folder::new("mismatch");
    all(&Cassette::record(folder.tape(), script()).unwrap());
    let tape = Cassette::replay(folder.tape()).unwrap();
    let path = folder.tape().display().to_string();
    let check = |request: ChatRequest, expected: Expect| {
        let error = ask(&tape, request).unwrap_err();
        assert_eq!(error.kind(), &ModelErrorKind::InvalidRequest);
        expected.assert_eq(&(error.to_string().replace(&path, "PATH") + "\n"));
    };
    let mut changed = requests().remove(3);
    changed.params.temperature = Some(0.7);
    check(
        changed,
        expect![[r#"
        invalid request (cassette, model openai/gpt): unknown request in cassette PATH: record it again if the instructions, the tools or the model have changed on purpose; closest is number 4 (- recorded, + requested):
              "params": {
          -     "temperature": 0.5
          +     "temperature": 0.7
    "#]],
    );
    check(
        request("user: which area?\nuser: now!").with_tools(requests()[0].tools.clone()),
        expect![[r#"
        invalid request (cassette, model openai/gpt): unknown request in cassette PATH: record it again if the instructions, the tools or the model have changed on purpose; closest is number 1 (- recorded, + requested):
            user:      which area?
          + user:      now!
    "#]],
    );
    assert!(ask(&tape, requests().remove(0)).is_ok());
    check(
        requests().remove(0),
        expect![[r#"
        invalid request (cassette, model openai/gpt): cassette PATH: request 1 was already replayed; record it again with all its requests
    "#]],
    );
}

#[test]
fn auto_asks_only_what_is_not_there() {
    let folder = Folder::new("auto");
    let none = || Err::<Scripted, _>(ModelError::new(ModelErrorKind::Authentication, "no key"));
    let error = Cassette::auto(folder.tape(), none).unwrap_err();
    assert_eq!(error.to_string(), "model to record could not be built: not authorized: no key");
    let first = Cassette::auto(folder.tape(), || Ok(Scripted::new(["one"]))).unwrap();
    ask(&first, request("user: a")).unwrap();
    let script = Scripted::new(["two"]);
    let second = Cassette::auto(folder.tape(), || Ok(script.clone())).unwrap();
    assert_eq!(ask(&second, request("user: a")).unwrap().message.text(), "one");
    assert_eq!(ask(&second, request("user: b")).unwrap().message.text(), "two");
    assert_eq!(script.requests().len(), 1);
    // Without a key, all of it is there.
    let third = Cassette::auto(folder.tape(), none).unwrap();
    assert_eq!(ask(&third, request("user: b")).unwrap().message.text(), "two");
    assert!(ask(&third, request("user: c")).is_err());
}

#[test]
fn secrets_are_not_written() {
    let folder = Folder::new("secrets");
    let asked = || request("user: my password is hunter-22!");
    let model = Scripted::new(["hunter-22! is a bad one"]);
    ask(&Cassette::record(folder.tape(), model).unwrap().hiding("hunter-22!"), asked()).unwrap();
    assert!(!folder.text().contains("hunter"), "{}", folder.text());
    let tape = Cassette::replay(folder.tape()).unwrap().hiding("hunter-22!");
    assert_eq!(ask(&tape, asked()).unwrap().message.text(), "*** is a bad one");
}

#[test]
fn a_reply_that_is_dropped_is_not_kept() {
    let folder = Folder::new("dropped");
    let tape = Cassette::record(folder.tape(), Scripted::new(["a"])).unwrap();
    drop(tape.respond(request("user: a")));
    assert_eq!(folder.text(), "# stepfold cassette 1, scripted\n");
}

#[test]
fn what_is_no_cassette_is_said_with_its_line() {
    let folder = Folder::new("broken");
    let path = folder.tape();
    let missing = Cassette::replay(&path).unwrap_err().to_string();
    assert!(missing.contains("record it first"), "{missing}");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let check = |text: &str, expected: Expect| {
        std::fs::write(&path, text).unwrap();
        let error = Cassette::replay(&path).unwrap_err().to_string();
        expected.assert_eq(&(error.replace(&path.display().to_string(), "PATH") + "\n"));
    };
    let head = "# stepfold cassette 1, m\n";
    check(
        "",
        expect![[r#"
        invalid cassette PATH at line 1: expected `# stepfold cassette 1`; record it again
    "#]],
    );
    check(
        "# stepfold cassette 2, m\n",
        expect![[r#"
        invalid cassette PATH at line 1: expected `# stepfold cassette 1`; record it again
    "#]],
    );
    check(
        &format!("{head}== request {{}}\nuser: a\n"),
        expect![[r#"
        invalid cassette PATH at line 3: missing reply to the last request; record it again
    "#]],
    );
    check(
        &format!("{head}== reply {{}}\n"),
        expect![[r#"
        invalid cassette PATH at line 2: unexpected section `reply`; record it again
    "#]],
    );
    check(
        &format!("{head}== request {{}}\nuser: a\nnobody: b\n== reply {{}}\n"),
        expect![[r#"
        invalid cassette PATH at line 4: column 1: expected `system:`, `user:`, `assistant:` or `tool ID:`; record it again
    "#]],
    );
    check(
        &format!("{head}== request {{\n== reply {{}}\n"),
        expect![[r#"
        invalid cassette PATH at line 2: EOF while parsing an object at line 1 column 1; record it again
    "#]],
    );
    check(
        &format!(
            "{head}== request {{\"after\":{{\"exchange\":7,\"messages\":1}}}}\nuser: a\n== reply {{}}\n"
        ),
        expect![[r#"
            invalid cassette PATH at line 2: unknown earlier exchange 7; record it again
        "#]],
    );
}
