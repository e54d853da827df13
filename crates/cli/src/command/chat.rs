//! `stepfold chat`: a line is a turn.

use stepfold::prelude::*;

use super::run::tell_session;
use crate::args::{Asked, Place};
use crate::desk::Desk;
use crate::error::{Ending, chain};
use crate::prompt::{Line, Prompt};
use crate::show;
use crate::turn::Turns;

const HELP: &str = "a line is a turn; /state shows the state, /session the session, /quit ends (as does Ctrl-D); \
                    Ctrl-C stops a turn";

pub(super) async fn chat(place: &Place, asked: &Asked, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::with_model(place, asked)?;
    let session = desk.session_for_turn().await?;
    let mut lines = Prompt::open()?;
    let is_terminal = lines.is_terminal();
    tell_session(&session, json);
    if is_terminal {
        show::aside(HELP);
    }
    let mut last = Ending::Done;
    loop {
        let line = match lines.line("> ").await? {
            Line::Text(line) => line,
            Line::Interrupted => continue,
            Line::End => return Ok(last),
        };
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => return Ok(last),
            "/help" => show::note(HELP),
            "/session" => show::note(session.key().id.as_str()),
            "/state" => show_state(&desk, &session).await?,
            text => {
                let asks = is_terminal || asked.interactive;
                let mut turns = Turns { desk: &desk, json, prompt: None };
                // One reader of standard input at a time: lent to the turn, and taken back.
                if asks {
                    turns.prompt = Some(lines.lend());
                }
                let ended = turns.follow(&session, async || session.send(text).await).await;
                if let Some(lent) = turns.prompt.take() {
                    lines = lent;
                }
                last = match ended {
                    Ok(ending) => ending,
                    // Somebody sits there and can say something else.
                    Err(error) if is_terminal => {
                        show::note(&format!("{}error{:#}: {}", show::BAD, show::BAD, chain(error.as_ref())));
                        Ending::Failed
                    }
                    Err(error) => return Err(error),
                };
                if last == Ending::Waits && !is_terminal {
                    return Ok(last);
                }
            }
        }
    }
}

async fn show_state(desk: &Desk, session: &SessionHandle) -> anyhow::Result<()> {
    let stored = session.read(stepfold::session_scopes::EventRange::None).await?;
    let state = stored.state(desk.runner.schema())?;
    for (key, value) in state.iter().filter(|(key, _)| *key != "messages") {
        show::note(&format!("{key} = {value}"));
    }
    Ok(())
}
