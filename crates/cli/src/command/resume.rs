//! `stepfold resume`: resumes a run that waits, was interrupted or failed.

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
    let desk = Desk::to_resume(place, asked)?;
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
    let mut resume = session.resume().decide_all(desk.decided(decisions));
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
                serde_json::from_str(json).map_err(|error| misuse(format!("invalid JSON: {error}")))?;
            decisions.push((id.to_owned(), Decision::modify(arguments)));
        }
        let known: Vec<&str> = pending.iter().map(|request| request.id.as_str()).collect();
        decisions.into_iter().map(|(id, decision)| Ok((resolved(&id, &known)?, decision))).collect()
    }
}

/// The id that begins like this: the whole id, all of it but the digest, or any prefix that no other has.
fn resolved(given: &str, known: &[&str]) -> Result<String, Misuse> {
    if known.is_empty() {
        return Err(Misuse(format!("unknown approval `{given}`: none is pending")));
    }
    let path = |id: &str| id.rsplit_once('#').map(|(path, _)| path.to_owned());
    let whole: Vec<&&str> =
        known.iter().filter(|id| **id == given || path(id).as_deref() == Some(given)).collect();
    let begin: Vec<&&str> = known.iter().filter(|id| id.starts_with(given)).collect();
    match (whole.as_slice(), begin.as_slice()) {
        ([id], _) | ([], [id]) => Ok((**id).to_owned()),
        ([], []) => {
            let known = known.join(", ");
            Err(Misuse(format!("no pending approval with id `{given}`; pending: {known}")))
        }
        (several, _) if !several.is_empty() => Err(ambiguous(given, several)),
        (_, several) => Err(ambiguous(given, several)),
    }
}

fn ambiguous(given: &str, several: &[&&str]) -> Misuse {
    let several = several.iter().map(|id| **id).collect::<Vec<_>>().join(", ");
    Misuse(format!("ambiguous approval id `{given}`: it could be {several}"))
}
