//! `stepfold chat`: a line is a turn.

use stepfold::prelude::*;

use super::run::tell_session;
use crate::args::{Asked, Place};
use crate::desk::Desk;
use crate::error::{Ending, Stop, told};
use crate::prompt::{Line, Prompt};
use crate::show;
use crate::turn::Turns;

const HELP: &str = "a line is a turn; /state shows the state, /session the session, /quit ends (as does Ctrl-D); \
                    Ctrl-C stops a turn";

pub(super) async fn chat(place: &Place, asked: &Asked, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::to_run(place, asked)?;
    desk.work(Box::pin(talk(&desk, asked, json))).await
}

async fn talk(desk: &Desk, asked: &Asked, json: bool) -> anyhow::Result<Ending> {
    let session = desk.session_for_turn().await?;
    let mut lines = Prompt::open()?;
    let is_terminal = lines.is_terminal();
    tell_session(&session, json);
    if is_terminal {
        show::aside(HELP);
    }
    let (mut last, mut number, mut is_refused) = (Ending::Done, 0_u64, false);
    loop {
        number += 1;
        let line = match lines.line("> ").await? {
            Line::Text(line) => line,
            Line::NotText => {
                let words = format!("line {number} was not taken: it is not UTF-8");
                tell_error(&words, json);
                is_refused = true;
                continue;
            }
            Line::Interrupted => continue,
            Line::End => return Ok(ended(last, is_refused)),
        };
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => return Ok(ended(last, is_refused)),
            "/help" => show::note(HELP),
            "/session" => show::note(session.key().id.as_str()),
            "/state" => show_state(desk, &session).await?,
            text => {
                let asks = is_terminal || asked.interactive;
                let mut turns = Turns { desk, json, prompt: None };
                // One reader of standard input at a time: lent to the turn, and taken back.
                if asks {
                    turns.prompt = Some(lines.lend());
                }
                let turn = Box::pin(turns.send(&session, text.into(), None)).await;
                if let Some(lent) = turns.prompt.take() {
                    lines = lent;
                }
                last = match turn {
                    Ok(ending) => ending,
                    // A person sits there and can say something else.
                    Err(error) if is_terminal && !error.is::<Stop>() => {
                        tell_error(&told(&error), json);
                        Ending::Failed
                    }
                    Err(error) => {
                        tell_end("the turn has failed", json);
                        return Err(error);
                    }
                };
                if last == Ending::Waits && !is_terminal {
                    tell_end("the decision comes first", json);
                    return Ok(last);
                }
            }
        }
    }
}

/// The ending of a chat, given that of its last turn: a line that was left out is a failure.
fn ended(last: Ending, is_refused: bool) -> Ending {
    if is_refused && last == Ending::Done { Ending::Failed } else { last }
}

/// That no more lines are read, and why.
fn tell_end(why: &str, json: bool) {
    if !json {
        show::note(format!("the chat ends here: lines after this one are not taken, since {why}"));
    }
}

fn tell_error(words: &str, json: bool) {
    match json {
        true => show::line(serde_json::json!({"error": words}).to_string()),
        false => show::bad("error", words),
    }
}

async fn show_state(desk: &Desk, session: &SessionHandle) -> anyhow::Result<()> {
    let stored = session.read(stepfold::session_scopes::EventRange::None).await?;
    let state = stored.state(&desk.untyped)?;
    for (key, value) in state.iter().filter(|(key, _)| *key != "messages") {
        show::note(format!("{key} = {value}"));
    }
    Ok(())
}
