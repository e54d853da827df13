//! `stepfold run`: one question, one turn.

use std::io::Read as _;

use serde_json::json;
use stepfold::prelude::*;
use stepfold::state_core::chat::{Message, Part, Role};

use crate::args::{RunArgs, SessionArgs};
use crate::argument_text::{shell_quoted, values};
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::prompt::{LinePrompt, is_terminal};
use crate::show;
use crate::turn::TurnRunner;

/// The input for the agent.
pub(super) struct QuestionArgs<'a> {
    pub(super) question: &'a str,
    pub(super) set: &'a [String],
    pub(super) resources: &'a [String],
}

pub(super) async fn run(
    target: &SessionArgs,
    options: &RunArgs,
    sent: &QuestionArgs<'_>,
    key: Option<&str>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let question = match sent.question {
        "-" => read_question()?,
        question => question.to_owned(),
    };
    if question.trim().is_empty() {
        return Err(UsageError("empty question".to_owned()).into());
    }
    // NOTE: Parsed before the agent is opened: a usage error needs no store.
    let values = values(sent.set)?;
    let context = CommandContext::for_run(target, options).await?;
    // NOTE: Checked before a session is created for them: a usage error must leave no empty session.
    for (key, value) in values.as_object().into_iter().flatten() {
        let written = context.runner.schema().schema().write(key.as_str(), value.clone());
        written.map_err(|error| UsageError(error.to_string()))?;
    }
    let mut parts = vec![Part::text(question)];
    for named in sent.resources {
        parts.extend(crate::tool::mcp::read_resource(named).await?);
    }
    let mut input = Input::new().with_message(Message::from_parts(Role::User, parts));
    if !sent.set.is_empty() {
        input = input.with_values(values);
    }
    context.work(Box::pin(ask(&context, options, input, key, json))).await
}

async fn ask(
    context: &CommandContext,
    options: &RunArgs,
    input: Input,
    key: Option<&str>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let session = context.session_for_turn().await?;
    let prompt = if options.interactive || is_terminal() { Some(LinePrompt::open()?) } else { None };
    let mut turns = TurnRunner { context, json, prompt };
    report_session(&session, json);
    let ending = Box::pin(turns.send(&session, input, key)).await?;
    if !json && ending == CommandEnding::Done {
        // NOTE: At a terminal `-c` is enough, since the session with the newest write is this one; a script may run
        // several.
        let which = match show::is_at_terminal() {
            true => "-c".to_owned(),
            false => format!("--session {}", shell_quoted(session.key().id.as_str())),
        };
        show::aside(&format!("continue: stepfold chat {} {which}", context.words()));
    }
    Ok(ending)
}

/// Reports the id of the session before the run starts: if it fails, the id is needed to resume it.
pub(super) fn report_session(session: &SessionHandle, json: bool) {
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
        .map_err(|error| UsageError(format!("question could not be read from standard input: {error}")))?;
    Ok(text.trim().to_owned())
}
