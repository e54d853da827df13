//! What servers ask back while a call runs.

use std::sync::{Arc, Mutex};

use serde_json::json;
use stepfold_mcp::{Elicitation, ElicitationAnswer, ElicitationRequest};
use stepfold_tools::{
    AnsweredRequest, CallEvent, InputRequest, InputResponse, Invocation, InvokeOptions, Tools,
};

use crate::kit::{line, line_of, offered, peer, state};

#[tokio::test]
async fn questions_are_declined_by_default() {
    let server = peer("plain").build().unwrap();
    assert_eq!(line(&server, "ask", json!({})).await, r#"Succeeded: {"action":"decline"}"#);
    assert_eq!(line(&server, "roots", json!({})).await, r#"Succeeded: refused: "roots/list""#);
}

#[tokio::test]
async fn a_question_is_answered_by_the_program_in_both_revisions() {
    for (mode, expected) in [
        ("plain", r#"Succeeded: {"action":"accept","content":{"name":"Ada"}}"#),
        ("modern", r#"Succeeded: {"action":"accept","content":{"name":"Ada"}} under "opaque""#),
    ] {
        let asked: Arc<Mutex<Vec<Elicitation>>> = Arc::default();
        let heard = Arc::clone(&asked);
        let answer = move |question: Elicitation| {
            heard.lock().unwrap().push(question);
            async { ElicitationAnswer::Accept(json!({"name": "Ada"})) }
        };
        let server = peer(mode).on_question(answer).build().unwrap();
        assert_eq!(line(&server, "ask", json!({})).await, expected, "{mode}");
        let asked = asked.lock().unwrap();
        assert_eq!((asked.len(), asked[0].message.as_str()), (1, "What is your name?"));
        let ElicitationRequest::Form(form) = &asked[0].wants else { panic!("{asked:?}") };
        assert_eq!(form["required"], json!(["name"]));
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_the_form_cancels() {
    let server = peer("plain")
        .on_question(|_| async { ElicitationAnswer::Accept(json!({"name": 7})) })
        .build()
        .unwrap();
    assert_eq!(line(&server, "ask", json!({})).await, r#"Succeeded: {"action":"cancel"}"#);
    let server = peer("plain").on_question(|_| async { ElicitationAnswer::Decline }).build().unwrap();
    assert_eq!(line(&server, "ask", json!({})).await, r#"Succeeded: {"action":"decline"}"#);
}

/// A call as a run makes it, which takes questions.
pub(crate) fn asking(tools: &Tools, tool: &str, answered: Vec<AnsweredRequest>) -> Invocation {
    let calls = vec![stepfold_state_core::chat::ToolCall::new("c1", tool, json!({}))];
    let mut invocation =
        Invocation::new(tools, state(), calls, InvokeOptions::scoped("session/1").hosting_calls());
    invocation.answer(0, answered);
    invocation
}

pub(crate) async fn until_question(mut invocation: Invocation) -> Vec<InputRequest> {
    loop {
        match invocation.next().await.expect("the call asks before it ends") {
            CallEvent::InputRequired { requests, .. } => return requests,
            CallEvent::Finished { call } => panic!("{:?}", invocation.outcome(call)),
            _ => {}
        }
    }
}

pub(crate) fn accepted(request: &InputRequest, content: serde_json::Value) -> AnsweredRequest {
    AnsweredRequest::new(request.clone(), InputResponse::Accept(content))
}

/// Each question with the state that the server gave, answered in a process of its own.
#[tokio::test]
async fn a_question_becomes_one_of_the_run_and_is_answered_to_another_process() {
    let server = peer("modern").build().unwrap();
    let requests = until_question(asking(&offered(&server).await, "ask", Vec::new())).await;
    assert_eq!((requests.len(), requests[0].label.as_str()), (1, "name"));
    assert_eq!(
        (requests[0].message.as_str(), &requests[0].details),
        ("What is your name?", &json!({"server": "peer"}))
    );
    assert_eq!(requests[0].schema.as_ref().unwrap()["required"], json!(["name"]));
    server.stop().await;

    for (response, expected) in [
        (
            InputResponse::Accept(json!({"name": "Ada"})),
            r#"Succeeded: {"action":"accept","content":{"name":"Ada"}} under "opaque""#,
        ),
        (
            InputResponse::Decline { reason: "no".to_owned() },
            r#"Succeeded: {"action":"decline"} under "opaque""#,
        ),
    ] {
        let server = peer("modern").build().unwrap();
        let answered = vec![AnsweredRequest::new(requests[0].clone(), response)];
        let outcome = asking(&offered(&server).await, "ask", answered).finish().await.outcomes.remove(0);
        assert_eq!(line_of(&outcome), expected);
    }
}

#[tokio::test]
async fn a_server_asks_twice_and_about_several_things_at_once() {
    let server = peer("modern").build().unwrap();
    let tools = offered(&server).await;
    let first = until_question(asking(&tools, "ask_twice", Vec::new())).await;
    assert_eq!(first.iter().map(|request| request.label.as_str()).collect::<Vec<_>>(), ["name", "page"]);
    assert_eq!(first[1].details, json!({"server": "peer", "url": "https://example.com/sign"}));
    let mut answered = vec![accepted(&first[0], json!({"name": "Ada"})), accepted(&first[1], json!({}))];
    let second = until_question(asking(&tools, "ask_twice", answered.clone())).await;
    assert_eq!(second[0].label, "name.2");
    answered.push(accepted(&second[0], json!({"name": "Eve"})));
    let outcome = asking(&tools, "ask_twice", answered).finish().await.outcomes.remove(0);
    assert_eq!(line_of(&outcome), r#"Succeeded: {"action":"accept","content":{"name":"Eve"}} under "two""#);
}

/// Without a handler of questions, the call fails with an error that names the reason.
#[tokio::test]
async fn a_question_without_a_handler_is_a_failure() {
    let server = peer("modern").build().unwrap();
    let expected = "Failed(Error): tool 'ask' asks the user, who cannot be asked here: What is your name?";
    assert_eq!(line(&server, "ask", json!({})).await, expected);
}
