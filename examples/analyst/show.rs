//! What a person sees: words as they come, calls, what they wrote to the state, and where the session is.

use std::fmt::Display;

use futures_util::StreamExt;
use serde_json::Value;
use stepfold::agent_loop::Event;
use stepfold::prelude::*;
use stepfold::runner::{Invocation, Seen};
use stepfold::session_scopes::{Session, SessionSchema};
use stepfold::state_core::state::Write;
use stepfold::tools::Status;
use stepfold_examples::{say, write};

/// Long values are cut after so many characters.
const WIDTH: usize = 110;

/// Shows an invocation as it goes, and waits for its end.
pub(crate) async fn follow(invocation: Invocation) -> Result<(), Failure> {
    let mut events = invocation.subscribe(0);
    let mut is_in_line = false;
    while let Some(seen) = events.next().await {
        match seen {
            Seen::Event { event: RunEvent::Text(text), .. } => {
                if !is_in_line {
                    write("analyst: ");
                }
                is_in_line = true;
                write(&text);
            }
            Seen::Event { event, .. } => {
                if let Some(lines) = lines_of(&event) {
                    write(&format!("{}{lines}", if is_in_line { "\n" } else { "" }));
                    is_in_line = false;
                }
            }
            Seen::Missed { events } => say(format!("  ({events} events went by unseen)")),
            _ => {}
        }
    }
    if is_in_line {
        say("");
    }
    let outcome = invocation.outcome().await?;
    if outcome.exit() != &Exit::Text {
        say(format!("  (ended: {})", outcome.exit()));
    }
    Ok(())
}

/// Why something could not be shown.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// What is told of an event; nothing of those that only machines need.
fn lines_of(event: &RunEvent) -> Option<String> {
    match event {
        RunEvent::ToolStarted { tool, arguments, .. } => Some(format!("  > {tool} {}\n", cut(arguments))),
        RunEvent::ToolFinished { tool, status: Status::Succeeded, text, .. } => {
            Some(format!("  < {tool} {}\n", cut(text)))
        }
        RunEvent::ToolFinished { tool, text, .. } => Some(format!("  ! {tool} {}\n", cut(text))),
        RunEvent::Trimmed(what) => Some(format!("  ~ the model is shown less of the conversation: {what}\n")),
        RunEvent::Committed(event) => deltas_of(event),
        _ => None,
    }
}

fn deltas_of(event: &Event) -> Option<String> {
    let lines = event.delta.iter().map(|write| format!("  + {}\n", write_of(write)));
    let lines = lines.collect::<Vec<_>>().concat();
    (!lines.is_empty()).then_some(lines)
}

fn write_of(write: &Write) -> String {
    let handler = write.handler().map(Handler::name).unwrap_or_default();
    let value = write.value().map(Value::to_string).unwrap_or_default();
    format!("{} ({handler}) {}", write.key(), cut(&value))
}

/// One line, not too long.
fn cut(text: &str) -> String {
    let line: String = text.chars().map(|c| if c == '\n' { ' ' } else { c }).collect();
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// Every event of a session, then its state.
pub(crate) fn inspect(session: &Session, schema: &SessionSchema) -> Result<(), Failure> {
    for committed in session.visible_events() {
        let event = &committed.event;
        say(format!("version {}: {} by {}", committed.version, event.kind.as_str(), event.author));
        for message in &event.messages {
            let line: stepfold::state_core::chat::Transcript =
                [Message::clone(message)].into_iter().collect();
            write(&indented(&line));
        }
        for change in &event.actions.delta {
            say(format!("  + {}", write_of(change)));
        }
    }
    let state = session.state(schema)?;
    say("state:");
    for (key, value) in state.iter().filter(|(key, _)| *key != "messages") {
        say(format!("  {key} = {}", cut(&value.to_string())));
    }
    Ok(())
}

fn indented(text: &impl Display) -> String {
    text.to_string().lines().map(|line| format!("  {}\n", cut(line))).collect::<Vec<_>>().concat()
}
