//! `stepfold resume`: a run that waits, was cut off or failed goes on.

use stepfold::agent_loop::ApprovalRequest;
use stepfold::prelude::*;

use super::run::tell_session;
use crate::args::{Asked, Place};
use crate::desk::Desk;
use crate::error::{Ending, Misuse};
use crate::prompt::{Prompt, is_terminal};
use crate::show;
use crate::turn::Turns;

/// What the command line decides.
pub(super) struct Decided<'a> {
    pub(super) approve: &'a [String],
    pub(super) reject: &'a [String],
    pub(super) modify: &'a [String],
}

pub(super) async fn resume(
    place: &Place,
    asked: &Asked,
    decided: &Decided<'_>,
    abandon: bool,
    with_changed_agent: bool,
    json: bool,
) -> anyhow::Result<Ending> {
    let desk = Desk::with_model(place, asked)?;
    let session = desk.session().await?;
    tell_session(&session, json);
    if abandon {
        let outcome = session.abandon().await?;
        let steps = show::counted(outcome.steps(), "step");
        let words = format!("the run is given up after {steps}; the session can be used");
        show::line(if json { serde_json::json!({"abandoned": true}).to_string() } else { words });
        return Ok(Ending::Done);
    }
    let decisions = decided.decisions(&session.pending().await?)?;
    let mut resume = session.resume().decide_all(decisions);
    if with_changed_agent {
        resume = resume.with_changed_agent();
    }
    let prompt = if asked.interactive || is_terminal() { Some(Prompt::open()?) } else { None };
    let mut turns = Turns { desk: &desk, json, prompt };
    turns.resume(&session, resume).await
}

impl Decided<'_> {
    fn decisions(&self, pending: &[ApprovalRequest]) -> anyhow::Result<Vec<(String, Decision)>> {
        let mut decisions = Vec::new();
        for id in self.approve {
            match id.as_str() {
                "all" => {
                    decisions.extend(pending.iter().map(|request| (request.id.clone(), Decision::Approve)));
                }
                id => decisions.push((id.to_owned(), Decision::Approve)),
            }
        }
        for pair in self.reject {
            let (id, reason) = pair.split_once('=').unwrap_or((pair, ""));
            decisions.push((id.to_owned(), Decision::reject(reason)));
        }
        for pair in self.modify {
            let misuse = |words: String| Misuse(format!("--modify {pair}: {words}"));
            let (id, json) = pair
                .split_once('=')
                .ok_or_else(|| misuse("write the id, =, and the arguments as JSON".to_owned()))?;
            let arguments: serde_json::Value =
                serde_json::from_str(json).map_err(|error| misuse(format!("this is no JSON: {error}")))?;
            decisions.push((id.to_owned(), Decision::modify(arguments)));
        }
        // Said here, the names of those that wait are at hand.
        let known: Vec<&str> = pending.iter().map(|request| request.id.as_str()).collect();
        match decisions.iter().find(|(id, _)| !known.contains(&id.as_str())) {
            None => Ok(decisions),
            Some((id, _)) if known.is_empty() => {
                Err(Misuse(format!("nothing waits for a decision, so there is none to make about `{id}`"))
                    .into())
            }
            Some((id, _)) => {
                let known = known.join(", ");
                Err(Misuse(format!("no call `{id}` waits for a decision; those that do: {known}")).into())
            }
        }
    }
}
