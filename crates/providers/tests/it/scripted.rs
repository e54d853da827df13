//! The scripted model: what it says, and what it does not let pass.

use expect_test::{Expect, expect};
use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use stepfold_providers::{Scripted, ScriptedReply};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, FinishReason, Message, ModelErrorKind, ToolChoice, ToolSpec, Transcript, Usage,
};

fn request(text: &str) -> ChatRequest {
    ChatRequest::new(text.parse().unwrap())
}

fn tool(name: &str) -> ToolSpec {
    ToolSpec::new(name, "A tool.", json!({"properties": {}, "type": "object"}))
}

/// What the model answers: it never waits.
fn ask(model: &Scripted, request: ChatRequest) -> String {
    match model.respond(request).into_reply().now_or_never() {
        None => "hangs".to_owned(),
        Some(Err(error)) => format!("error: {error}"),
        Some(Ok(reply)) => {
            let said: Transcript = [reply.message].into_iter().collect();
            format!("{} [{}]", said.to_string().trim_end(), reply.finish_reason)
        }
    }
}

/// What is said to each of these requests in turn.
fn check(model: &Scripted, requests: impl IntoIterator<Item = ChatRequest>, expected: Expect) {
    let answers: Vec<String> = requests.into_iter().map(|request| ask(model, request)).collect();
    expected.assert_eq(&(answers.join("\n") + "\n"));
}

#[test]
fn replies_come_from_text_messages_errors_and_their_modifiers() {
    let model =
        Scripted::new(["plain\n\n  text ", r#"so: > c1 search(q="x") > c2 search()"#, r#"~"hm" "ok""#])
            .then(Message::assistant("from a message"))
            .then(ModelErrorKind::Overloaded)
            .then(ScriptedReply::from("cut").finished(FinishReason::Length))
            .then(ScriptedReply::from("gone").truncated())
            .then(ScriptedReply::silence());
    let requests = (0..8).map(|_| request("user: hi").with_tools([tool("search")]));
    check(
        &model,
        requests,
        expect![[r#"
            assistant: "plain\n\n  text " [stop]
            assistant: so:   > c1 search(q="x")   > c2 search() [tool_calls]
            assistant: ~"hm"   "ok" [stop]
            assistant: from a message [stop]
            error: overloaded (scripted): as the script says
            assistant: cut [length]
            error: reply interrupted: the stream ended without a finish reason
            hangs
        "#]],
    );
    assert_eq!(model.verify(), Ok(()));
}

#[test]
fn usage_and_pieces() {
    let usage = Usage::new(3, 2);
    let model = Scripted::new([ScriptedReply::from("ängstlich").in_pieces(4).with_usage(usage)]);
    let chunks: Vec<_> = model.respond(request("user: hi")).collect::<Vec<_>>().now_or_never().unwrap();
    assert_eq!(chunks.len(), 5);
    let model = Scripted::new([ScriptedReply::from("ja").with_usage(usage)]);
    let reply = model.respond(request("user: hi")).into_reply().now_or_never().unwrap().unwrap();
    assert_eq!(reply.usage, usage);
}

#[test]
fn a_broken_request_is_refused_and_uses_up_no_reply() {
    let model = Scripted::new(["ok"]);
    let mut odd = tool("search");
    odd.parameters = json!({"type": "string"});
    check(
        &model,
        [
            ChatRequest::new(Transcript::new()),
            request("user: hi\nassistant: > c1 search()"),
            request("user: hi").with_tools([tool("a"), tool("a")]),
            request("user: hi").with_tools([tool("no spaces")]),
            request("user: hi").with_tools([odd]),
            request("user: hi").with_tool_choice(ToolChoice::Required),
            request("user: hi").with_tools([tool("a")]).with_tool_choice(ToolChoice::Named("b".to_owned())),
            request("user: hi"),
            request("user: hi"),
        ],
        expect![[r#"
            error: invalid request (scripted): request 1: missing message
            error: invalid request (scripted): request 2: malformed conversation: message 1, call `c1`: missing result
            error: invalid request (scripted): request 3: duplicate tool `a`
            error: invalid request (scripted): request 4: invalid tool name `no spaces`: expected at most 64 letters, digits, `_` and `-`
            error: invalid request (scripted): request 5: invalid schema of tool `search`: expected an object
            error: invalid request (scripted): request 6: missing tools: the tool choice requires a call
            error: invalid request (scripted): request 7: unknown tool `b` in the tool choice; available: a
            assistant: ok [stop]
            error: invalid request (scripted): request 9: the script has ended: no reply to this request
              it ends with: user:      hi
        "#]],
    );
    assert!(model.verify().unwrap_err().to_string().contains("request 9"));
}

#[test]
fn a_slip_in_the_script_is_found() {
    let model = Scripted::new(["> c1 serach()"]);
    let asked = || request("user: hi").with_tools([tool("search"), tool("fetch")]);
    check(
        &model,
        [asked()],
        expect![[r#"
            error: invalid request (scripted): request 1: unknown tool `serach` in the script; available: search, fetch
        "#]],
    );
    let model = Scripted::new([ScriptedReply::from("> c1 serach()").calling_unknown_tools()]);
    check(
        &model,
        [asked()],
        expect![[r#"
        assistant: > c1 serach() [tool_calls]
    "#]],
    );
    let model = Scripted::new(["> c1 search(q=oops)"]);
    check(
        &model,
        [asked()],
        expect![[r#"
            error: invalid request (scripted): request 1: invalid notation in the script: line 1, column 15: expected value
        "#]],
    );
}

#[test]
fn the_prefix_is_stable_within_a_turn() {
    let calls = || Scripted::new(["> c1 search()", "done"]);
    let first = || request("system: be kind\nuser: hi").with_tools([tool("search")]);
    let then = |text: &str| request(text).with_tools([tool("search")]);
    check(
        &calls(),
        [first(), then("system: be kind\nuser: hi\nassistant: > x search()\ntool x: 1")],
        expect![[r#"
            assistant: > c1 search() [tool_calls]
            assistant: done [stop]
        "#]],
    );
    check(
        &calls(),
        [first(), then("system: be rude\nuser: hi\nassistant: > c1 search()\ntool c1: 1")],
        expect![[r#"
            assistant: > c1 search() [tool_calls]
            error: invalid request (scripted): request 2: the prefix changed within the turn: message 0 differs from request 1
              was: system:    be kind
              is:  system:    be rude
        "#]],
    );
    check(
        &calls(),
        [first(), then("system: be kind\nuser: hi\nuser: hi\nassistant: > c1 search()\ntool c1: 1")],
        expect![[r#"
            assistant: > c1 search() [tool_calls]
            error: invalid request (scripted): request 2: the prefix changed within the turn: the reply to request 1 is at 3, and 2 messages were asked
        "#]],
    );
    check(
        &calls().with_changing_prefix(),
        [first(), then("user: hi\nassistant: > c1 search()\ntool c1: 1")],
        expect![[r#"
            assistant: > c1 search() [tool_calls]
            assistant: done [stop]
        "#]],
    );
}

#[test]
fn tools_do_not_change_within_a_turn_but_may_come() {
    let asked = || request("user: hi");
    let then = || request("user: hi\nassistant: > c1 search()\ntool c1: 1");
    let mut changed = tool("search");
    changed.description = "Another.".to_owned();
    let model = Scripted::new(["> c1 search()", "done"]);
    check(
        &model,
        [asked().with_tools([tool("search")]), then().with_tools([changed])],
        expect![[r#"
            assistant: > c1 search() [tool_calls]
            error: invalid request (scripted): request 2: tool `search` differs from request 1 of the same turn
        "#]],
    );
    let model = Scripted::new(["> c1 search()", "done"]);
    check(
        &model,
        [asked().with_tools([tool("search")]), then().with_tools([tool("search"), tool("more")])],
        expect![[r#"
            assistant: > c1 search() [tool_calls]
            assistant: done [stop]
        "#]],
    );
}

#[test]
fn two_conversations_may_share_a_model_and_equal_replies() {
    let model = Scripted::new(["> c1 search()", "> c1 search()", "b", "a"]);
    let with = |text: &str| request(text).with_tools([tool("search")]);
    check(
        &model,
        [
            with("user: a"),
            with("user: b"),
            with("user: b\nassistant: > c1 search()\ntool c1: 1"),
            with("user: a\nassistant: > c1 search()\ntool c1: 1"),
        ],
        expect![[r#"
            assistant: > c1 search() [tool_calls]
            assistant: > c1 search() [tool_calls]
            assistant: b [stop]
            assistant: a [stop]
        "#]],
    );
}

#[test]
fn a_conversation_is_held_to_its_text() {
    let text = "user: where?\nassistant: > c1 search()\ntool c1: [3, 4]\nassistant: area 3\n";
    let with = |text: &str| request(text).with_tools([tool("search")]);
    let model = Scripted::conversation(text).unwrap();
    check(
        &model,
        [
            with("system: be kind\nuser: where?"),
            with("system: be kind\nuser: where?\nassistant: > c1 search()\ntool c1: [4]"),
        ],
        expect![[r#"
            assistant: > c1 search() [tool_calls]
            error: invalid request (scripted): request 2: the conversation diverged from the script
              expected: tool c1 search: [3, 4]
              found:    tool c1 search: [4]
        "#]],
    );
    assert_eq!(
        model.verify().unwrap_err().to_string().lines().last(),
        Some("  found:    tool c1 search: [4]; unused replies: 1")
    );
}

#[test]
fn functions_answer_by_what_was_asked() {
    let mut count = 0;
    let model = Scripted::from_fn(move |request: &ChatRequest| {
        count += 1;
        format!("{count}: {}", request.messages.len())
    });
    check(
        &model,
        [request("user: a"), request("user: a\nuser: b")],
        expect![[r#"
            assistant: 1: 1 [stop]
            assistant: 2: 2 [stop]
        "#]],
    );
    expect![[r#"
        -- request 1
        user:      a
        -- request 2, after the first 1 of request 1
        user:      b
    "#]]
    .assert_eq(&model.asked());
}

const TWO_TURNS: &str = "\
user:      pay both
assistant: > c1 search(q=\"bills\")
tool c1:   5 and 6
assistant: Both are paid.
user:      thanks
assistant: You are welcome.
";

/// The answer of a new model of this conversation, as a second process has one.
fn continued(conversation: &str) -> String {
    let model = Scripted::conversation(TWO_TURNS).unwrap();
    ask(&model, request(conversation).with_tools([tool("search")]))
}

#[test]
fn a_conversation_continues_where_that_of_the_first_request_is() {
    let begun = TWO_TURNS.split_inclusive('\n').collect::<Vec<_>>();
    let earlier = "user: hi\nassistant: Hello.\n";
    let shown = [1, 3, 5].map(|lines| {
        let (alone, later) =
            (continued(&begun[..lines].concat()), earlier.to_owned() + &begun[..lines].concat());
        assert_eq!(continued(&later), alone);
        alone
    });
    expect![[r#"
        assistant: > c1 search(q="bills") [tool_calls]
        assistant: Both are paid. [stop]
        assistant: You are welcome. [stop]"#]]
    .assert_eq(&shown.join("\n"));
}

#[test]
fn a_conversation_begins_again_after_another_one_and_after_its_end() {
    let first = "user: pay both\n";
    for before in
        ["user: hi\nassistant: Both are paid.\n", "user: thanks\nassistant: You are welcome.\n", TWO_TURNS]
    {
        assert_eq!(continued(&format!("{before}{first}")), continued(first), "{before}");
    }
}
