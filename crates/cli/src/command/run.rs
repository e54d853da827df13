//! `stepfold run`: one question.

use std::io::Read as _;

use serde_json::json;
use stepfold::prelude::*;
use stepfold::state_core::chat::{Message, Part, Role};

use crate::args::{Asked, Place};
use crate::desk::{Desk, quoted, values};
use crate::error::{Ending, Misuse};
use crate::prompt::{Prompt, is_terminal};
use crate::show;
use crate::turn::Turns;

/// What is sent to the agent.
pub(super) struct Sent<'a> {
    pub(super) question: &'a str,
    pub(super) set: &'a [String],
    pub(super) resources: &'a [String],
}

pub(super) async fn run(
    place: &Place,
    asked: &Asked,
    sent: &Sent<'_>,
    key: Option<&str>,
    json: bool,
) -> anyhow::Result<Ending> {
    let question = match sent.question {
        "-" => read_question()?,
        question => question.to_owned(),
    };
    if question.trim().is_empty() {
        return Err(Misuse("empty question".to_owned()).into());
    }
    let values = values(sent.set)?;
    let desk = Desk::to_run(place, asked)?;
    // Before a session is made for them.
    for (key, value) in values.as_object().into_iter().flatten() {
        let written = desk.runner.schema().schema().write(key.as_str(), value.clone());
        written.map_err(|error| Misuse(error.to_string()))?;
    }
    let mut parts = vec![Part::text(question)];
    for named in sent.resources {
        parts.extend(crate::tool::mcp::resource(named).await?);
    }
    let mut input = Input::new().with_message(Message::from_parts(Role::User, parts));
    if !sent.set.is_empty() {
        input = input.with_values(values);
    }
    desk.work(Box::pin(ask(&desk, asked, input, key, json))).await
}

async fn ask(
    desk: &Desk,
    asked: &Asked,
    input: Input,
    key: Option<&str>,
    json: bool,
) -> anyhow::Result<Ending> {
    let session = desk.session_for_turn().await?;
    let prompt = if asked.interactive || is_terminal() { Some(Prompt::open()?) } else { None };
    let mut turns = Turns { desk, json, prompt };
    tell_session(&session, json);
    let ending = Box::pin(turns.send(&session, input, key)).await?;
    if !json && ending == Ending::Done {
        // At a terminal the session that was written last is the one that is meant.
        let which = match show::is_at_terminal() {
            true => "-c".to_owned(),
            false => format!("--session {}", quoted(session.key().id.as_str())),
        };
        show::aside(&format!("continue: stepfold chat {} {which}", desk.words()));
    }
    Ok(ending)
}

/// Which session it is, before anything can go wrong in it.
pub(super) fn tell_session(session: &SessionHandle, json: bool) {
    let id = session.key().id.as_str();
    if json {
        show::line(json!({"session": id}).to_string());
    } else {
        show::aside(&format!("session {id}"));
    }
}

fn read_question() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Misuse(format!("question could not be read from standard input: {error}")))?;
    Ok(text.trim().to_owned())
}
