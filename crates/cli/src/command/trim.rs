//! `stepfold trim`: what the model would have been shown in stored sessions, by the policies of this file.

use std::ops::Range;

use serde_json::{Value, json};
use stepfold::prelude::*;
use stepfold::session_scopes::{GetSession, SessionError, SessionStore as _};
use stepfold::state_core::chat::{Role, Transcript};
use stepfold::terminal::TextStyle;
use stepfold::trim::{ApproximateTokens, View};

use crate::args::SessionArgs;
use crate::context::CommandContext;
use crate::error::CommandEnding;
use crate::show::{self, counted};

pub(super) async fn trim(target: &SessionArgs, limit: usize, json: bool) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target).await?;
    let keys = match &target.session {
        Some(id) => vec![context.runner.key(context.user.as_str(), id.as_str())?],
        None => context.list(limit).await?.into_iter().map(|session| session.key).collect(),
    };
    let mut total = ShownTurns::default();
    let mut sessions = Vec::new();
    for key in keys {
        let id = key.id.to_string();
        let session = context.runner.store().get(GetSession::new(key).visible().without_state()).await;
        if target.session.is_none() && matches!(session, Err(SessionError::NotFound { .. })) {
            // It was deleted since it was listed.
            continue;
        }
        let session = session?;
        // A session that was interrupted in a step has calls without results: a run repairs that when it begins.
        let log = session.transcript().repair().transcript;
        let shown = ShownTurns::of(context.runner.agent(), &log);
        total.add(&shown);
        match json {
            true => sessions.push(shown.json(&id)),
            false => shown.show(&id),
        }
    }
    if json {
        show::line(json!({"sessions": sessions, "total": total.json("")}).to_string());
    } else if total.turns == 0 {
        show::note(context.no_session_text());
    } else {
        show::note(total.words());
    }
    // NOTE: A malformed view is a fault of a policy: a check of a deployment must fail.
    Ok(if total.malformed == 0 { CommandEnding::Done } else { CommandEnding::Failed })
}

/// The newest turns of a session that are looked at.
const NEWEST_TURNS: usize = 200;

/// Counts of the views at the ends of a conversation's turns: in how many of them something is missing.
#[derive(Default)]
struct ShownTurns {
    turns: usize,
    /// Turns in which messages are left out.
    trimmed: usize,
    /// Turns in which results are cleared.
    cleared: usize,
    malformed: usize,
    /// The tokens of the whole conversation, and of what is shown of it at its end.
    whole_tokens: usize,
    shown_tokens: usize,
}

impl ShownTurns {
    /// Of the newest turns of a conversation.
    fn of(agent: &Agent, log: &Transcript) -> Self {
        let mut shown = ShownTurns::default();
        let turns: Vec<Range<usize>> =
            log.turns().rev().take(NEWEST_TURNS).map(|turn| turn.range()).collect();
        let mut seen = Transcript::new();
        for range in turns.into_iter().rev() {
            let view = view_of_turn(agent, log, &mut seen, &range);
            shown.turns += 1;
            shown.trimmed += usize::from(view.dropped() > 0);
            shown.cleared += usize::from(!view.cleared().is_empty());
            shown.malformed += usize::from(view.transcript().check().is_err());
            shown.shown_tokens = ApproximateTokens::of_messages(view.transcript());
        }
        shown.whole_tokens = ApproximateTokens::of_messages(&seen);
        shown
    }

    fn add(&mut self, other: &ShownTurns) {
        self.turns += other.turns;
        self.trimmed += other.trimmed;
        self.cleared += other.cleared;
        self.malformed += other.malformed;
        self.whole_tokens += other.whole_tokens;
        self.shown_tokens += other.shown_tokens;
    }

    fn words(&self) -> String {
        let turns = counted(self.turns as u64, "turn");
        format!(
            "{turns}: {} leave messages out, {} clear results, {} malformed; at the end about {} of {} tokens are shown",
            self.trimmed, self.cleared, self.malformed, self.shown_tokens, self.whole_tokens
        )
    }

    fn show(&self, id: &str) {
        let look = if self.malformed == 0 { TextStyle::PLAIN } else { TextStyle::BAD };
        show::line(show::styled(show::NAME, id).with(look, format!("  {}", self.words())));
    }

    fn json(&self, id: &str) -> Value {
        let mut object = json!({
            "cleared": self.cleared,
            "malformed": self.malformed,
            "shown_tokens": self.shown_tokens,
            "trimmed": self.trimmed,
            "turns": self.turns,
            "whole_tokens": self.whole_tokens,
        });
        if !id.is_empty() {
            object["session"] = id.into();
        }
        object
    }
}

/// The model's view at the end of the turn: the view of its beginning, and, within the window, its steps.
/// `seen` is the conversation before the turn, and then with it.
fn view_of_turn(agent: &Agent, log: &Transcript, seen: &mut Transcript, turn: &Range<usize>) -> View {
    let grow = |seen: &mut Transcript, end: usize| {
        let new = end.saturating_sub(seen.len());
        seen.extend(log.iter_from(seen.len()).take(new).cloned());
    };
    grow(seen, turn.start + 1);
    let view = agent.trim().view(seen);
    let Some(window) = agent.window() else {
        grow(seen, turn.end);
        return view.grown(seen);
    };
    let mut shown = window.begin(view, seen);
    while seen.len() < turn.end {
        // A step at a time: a reply, with the results after it.
        let next = seen.len();
        let is_result = |index: &usize| log.get(*index).is_some_and(|message| message.role() == Role::Tool);
        let end = (next + 1..turn.end).take_while(is_result).last().map_or(next + 1, |last| last + 1);
        grow(seen, end);
        shown.grow(seen);
    }
    shown.view().clone()
}
