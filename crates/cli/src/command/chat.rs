//! `stepfold chat`: each line is a turn.

use stepfold::prelude::*;

use super::run::report_session;
use crate::args::{RunArgs, SessionArgs};
use crate::context::CommandContext;
use crate::error::{CommandEnding, SilentExit, error_text};
use crate::prompt::{InputLine, LinePrompt};
use crate::show;
use crate::turn::TurnRunner;

const HELP: &str = "a line is a turn; /state shows the state, /session the session, /quit ends (as does Ctrl-D); \
                    Ctrl-C stops a turn";

pub(super) async fn chat(
    target: &SessionArgs,
    options: &RunArgs,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_run(target, options).await?;
    context.work(Box::pin(run_chat(&context, options, json))).await
}

async fn run_chat(context: &CommandContext, options: &RunArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let session = context.session_for_turn().await?;
    let mut lines = LinePrompt::open()?;
    let is_terminal = lines.is_terminal();
    report_session(&session, json);
    if is_terminal {
        show::aside(HELP);
    }
    let (mut last, mut number, mut is_refused) = (CommandEnding::Done, 0_u64, false);
    loop {
        number += 1;
        let line = match lines.line("> ").await? {
            InputLine::Text(line) => line,
            InputLine::NotText => {
                let words = format!("line {number} was not taken: it is not UTF-8");
                report_error(&words, json);
                is_refused = true;
                continue;
            }
            InputLine::Interrupted => continue,
            InputLine::End => return Ok(chat_ending(last, is_refused)),
        };
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => return Ok(chat_ending(last, is_refused)),
            "/help" => show::note(HELP),
            "/session" => show::note(session.key().id.as_str()),
            "/state" => show_state(context, &session).await?,
            text => {
                let asks = is_terminal || options.interactive;
                let mut turns = TurnRunner { context, json, prompt: None };
                // NOTE: Only one reader of standard input at a time: it is lent to the turn and taken back.
                if asks {
                    turns.prompt = Some(lines.lend());
                }
                let turn = Box::pin(turns.send(&session, text.into(), None)).await;
                if let Some(lent) = turns.prompt.take() {
                    lines = lent;
                }
                last = match turn {
                    Ok(ending) => ending,
                    // A person at the terminal can continue with another message.
                    Err(error) if is_terminal && !error.is::<SilentExit>() => {
                        report_error(&error_text(&error), json);
                        CommandEnding::Failed
                    }
                    Err(error) => {
                        report_end("the turn has failed", json);
                        return Err(error);
                    }
                };
                // NOTE: Without a person the next line would be refused until the decision: the caller has to decide first.
                if last == CommandEnding::Waits && !is_terminal {
                    report_end("the decision comes first", json);
                    return Ok(last);
                }
            }
        }
    }
}

/// The ending of a chat, given the ending of its last turn: a refused line is a failure.
fn chat_ending(last: CommandEnding, is_refused: bool) -> CommandEnding {
    if is_refused && last == CommandEnding::Done { CommandEnding::Failed } else { last }
}

/// Reports that no more lines are read, and the reason.
fn report_end(why: &str, json: bool) {
    if !json {
        show::note(format!("the chat ends here: lines after this one are not taken, since {why}"));
    }
}

fn report_error(words: &str, json: bool) {
    match json {
        true => show::line(serde_json::json!({"error": words}).to_string()),
        false => show::bad("error", words),
    }
}

async fn show_state(context: &CommandContext, session: &SessionHandle) -> anyhow::Result<()> {
    let stored = session.read(stepfold::session_scopes::EventRange::None).await?;
    let state = stored.state(&context.untyped)?;
    for (key, value) in state.iter().filter(|(key, _)| *key != "messages") {
        show::note(format!("{key} = {value}"));
    }
    Ok(())
}
