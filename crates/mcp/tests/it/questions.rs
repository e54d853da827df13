//! What servers ask back while a call runs.

use std::sync::{Arc, Mutex};

use serde_json::json;
use stepfold_mcp::{Answer, Question, Wants};

use crate::kit::{line, peer};

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
        let asked: Arc<Mutex<Vec<Question>>> = Arc::default();
        let heard = Arc::clone(&asked);
        let answer = move |question: Question| {
            heard.lock().unwrap().push(question);
            async { Answer::Accept(json!({"name": "Ada"})) }
        };
        let server = peer(mode).on_question(answer).build().unwrap();
        assert_eq!(line(&server, "ask", json!({})).await, expected, "{mode}");
        let asked = asked.lock().unwrap();
        assert_eq!((asked.len(), asked[0].message.as_str()), (1, "What is your name?"));
        let Wants::Form(form) = &asked[0].wants else { panic!("{asked:?}") };
        assert_eq!(form["required"], json!(["name"]));
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_the_form_cancels() {
    let server = peer("plain").on_question(|_| async { Answer::Accept(json!({"name": 7})) }).build().unwrap();
    assert_eq!(line(&server, "ask", json!({})).await, r#"Succeeded: {"action":"cancel"}"#);
    let server = peer("plain").on_question(|_| async { Answer::Decline }).build().unwrap();
    assert_eq!(line(&server, "ask", json!({})).await, r#"Succeeded: {"action":"decline"}"#);
}
