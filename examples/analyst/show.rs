//! What a person sees of a turn: words as they come, calls, and what they wrote to the state.

use futures_util::StreamExt;
use stepfold::agent_loop::Event;
use stepfold::prelude::*;
use stepfold::runner::{Invocation, Seen};
use stepfold::tools::Status;
use stepfold_examples::{Failure, change_in_words, cut, say, write};

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
    let lines = event.delta.iter().map(|write| format!("  + {}\n", change_in_words(write)));
    let lines = lines.collect::<Vec<_>>().concat();
    (!lines.is_empty()).then_some(lines)
}
