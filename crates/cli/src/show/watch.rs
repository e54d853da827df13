//! A run as it happens: text as it comes, calls, results, and what changes in the state.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use stepfold::agent_loop::Event;
use stepfold::prelude::*;
use stepfold::runner::Seen;
use stepfold::state_core::state::MESSAGES;
use stepfold::tools::Status;

use super::{aside, call_of, line, note, print, short};

/// Shows the events of a run.
pub(crate) struct Watch {
    json: bool,
    /// The state as far as it is known, to say what changes.
    state: Option<State>,
    waiting: Option<ProgressBar>,
    is_in_text: bool,
}

impl Watch {
    /// From this state on.
    pub(crate) fn new(json: bool, state: Option<State>) -> Self {
        Watch { json, state, waiting: None, is_in_text: false }
    }

    pub(crate) fn see(&mut self, seen: &Seen) {
        match seen {
            Seen::Event { number, event } if self.json => {
                line(&json!({"event": event, "number": number}).to_string());
            }
            Seen::Event { event, .. } => self.show(event),
            Seen::Missed { events } => note(&format!("{events} events were too fast to be shown")),
            _ => {}
        }
    }

    /// Nothing more comes.
    pub(crate) fn end(&mut self) {
        self.stop_waiting();
        self.end_text();
    }

    fn show(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Asking { model, .. } => self.wait(model),
            RunEvent::Text(text) => {
                self.stop_waiting();
                self.is_in_text = !text.ends_with('\n');
                print(text);
            }
            RunEvent::Reasoning(_) => {}
            RunEvent::ToolStarted { call_id, tool, arguments } => {
                self.end();
                note(&call_of(call_id, tool, arguments));
                self.wait(tool);
            }
            RunEvent::ToolProgress { call_id, report } => {
                self.aside(&format!("  {call_id} ... {}", short(&report.to_string())));
            }
            RunEvent::ToolFinished { call_id, status, text, .. } => {
                self.end();
                let mark = if *status == Status::Succeeded { "" } else { "!" };
                note(&format!("  {call_id}{mark}: {}", short(text)));
            }
            RunEvent::Trimmed(words) => self.aside(&format!("  trimmed: {words}")),
            RunEvent::Committed(event) => self.committed(event),
            _ => self.end(),
        }
    }

    /// What a commit changes in the state.
    fn committed(&mut self, event: &Event) {
        let Some(mut state) = self.state.take() else { return };
        let before = state.clone();
        // What cannot be followed is not shown; the store has it.
        if event.fold(&mut state).is_err() {
            return;
        }
        if !event.delta.is_empty() {
            for change in &changes(&state, &before) {
                self.aside(&format!("  ~ {change}"));
            }
        }
        self.state = Some(state);
    }

    fn aside(&mut self, text: &str) {
        self.end();
        aside(text);
    }

    fn end_text(&mut self) {
        if std::mem::take(&mut self.is_in_text) {
            print("\n");
        }
    }

    /// Turns a wheel while something is waited for. It is there at a terminal only.
    fn wait(&mut self, what: &str) {
        self.end();
        let wheel = ProgressBar::new_spinner().with_message(what.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            wheel.set_style(style);
        }
        wheel.enable_steady_tick(Duration::from_millis(120));
        self.waiting = Some(wheel);
    }

    fn stop_waiting(&mut self) {
        if let Some(wheel) = self.waiting.take() {
            wheel.finish_and_clear();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop_waiting();
    }
}

/// What changed from one state to another, a line each; the conversation is shown elsewhere.
pub(crate) fn changes(now: &State, before: &State) -> Vec<String> {
    let mut now = now.clone();
    // A change of the messages would be lines of its own.
    now.replace_messages(before.messages().clone());
    debug_assert!(now.diff(before).iter().all(|change| change.key != MESSAGES));
    now.diff(before).to_string().lines().map(str::to_owned).collect()
}
