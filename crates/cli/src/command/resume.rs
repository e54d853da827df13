//! `stepfold resume`: resumes a run that waits, was interrupted or failed.

use stepfold::agent_loop::ApprovalRequest;
use stepfold::prelude::*;
use stepfold::runner::RecordedDecision;

use super::run::tell_session;
use crate::args::{Asked, Place};
use crate::desk::Desk;
use crate::error::{Ending, Misuse};
use crate::prompt::{Prompt, is_terminal};
use crate::turn::Turns;

/// What the command line decides.
pub(super) struct Decided<'a> {
    pub(super) approve: &'a [String],
    pub(super) reject: &'a [String],
    pub(super) modify: &'a [String],
    /// The idempotency key.
    pub(super) key: Option<&'a str>,
}

pub(super) async fn resume(
    place: &Place,
    asked: &Asked,
    decided: &Decided<'_>,
    with_changed_agent: bool,
    json: bool,
) -> anyhow::Result<Ending> {
    let desk = Desk::to_resume(place, asked)?;
    desk.work(Box::pin(go_on(&desk, asked, decided, with_changed_agent, json))).await
}

async fn go_on(
    desk: &Desk,
    asked: &Asked,
    decided: &Decided<'_>,
    with_changed_agent: bool,
    json: bool,
) -> anyhow::Result<Ending> {
    let session = desk.session().await?;
    tell_session(&session, json);
    let decisions = decided.of(&session).await?;
    let mut resume = session.resume().decide_all(desk.decided(decisions));
    if let Some(key) = decided.key {
        resume = resume.idempotency_key(key);
    }
    if with_changed_agent {
        resume = resume.with_changed_agent();
    }
    let prompt = if asked.interactive || is_terminal() { Some(Prompt::open()?) } else { None };
    let mut turns = Turns { desk, json, prompt };
    turns.resume(&session, resume).await
}

/// Gives the run up. No model is asked.
pub(super) async fn abandon(place: &Place, asked: &Asked, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::to_give_up(place, asked)?;
    desk.work(async {
        let session = desk.session().await?;
        tell_session(&session, json);
        Turns { desk: &desk, json, prompt: None }.abandon(&session).await
    })
    .await
}

impl Decided<'_> {
    async fn of(&self, session: &SessionHandle) -> anyhow::Result<Vec<(String, Decision)>> {
        if self.approve.is_empty() && self.reject.is_empty() && self.modify.is_empty() {
            return Ok(Vec::new());
        }
        let pending = session.pending().await?;
        match self.decisions(&pending, &[]) {
            // Whoever decides about what is decided already is told so by the session, and so is a repeat.
            Err(_) => self.decisions(&pending, &session.decisions().await?),
            decisions => decisions,
        }
    }

    fn decisions(
        &self,
        pending: &[ApprovalRequest],
        recorded: &[RecordedDecision],
    ) -> anyhow::Result<Vec<(String, Decision)>> {
        let mut decisions = Vec::new();
        for id in self.approve {
            match id.as_str() {
                "all" => {
                    let ids = self.all(pending, recorded)?;
                    decisions.extend(ids.into_iter().map(|id| (id, Decision::Approve)));
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
        let is_pending = |given: &str| known.iter().any(|id| id.starts_with(given));
        let earlier = |given: &str| recorded.iter().find(|recorded| is_called(&recorded.request, given));
        let resolved = |given: &str| match earlier(given).filter(|_| !is_pending(given)) {
            Some(recorded) => Ok(recorded.request.clone()),
            None => resolved(given, &known),
        };
        decisions.into_iter().map(|(id, decision)| Ok((resolved(&id)?, decision))).collect()
    }

    /// All that is pending; if nothing is, all that was decided under the key.
    fn all(&self, pending: &[ApprovalRequest], recorded: &[RecordedDecision]) -> Result<Vec<String>, Misuse> {
        let under_key = recorded
            .iter()
            .filter(|recorded| self.key.is_some() && recorded.idempotency_key.as_deref() == self.key);
        let ids: Vec<String> = match pending {
            [] => under_key.map(|recorded| recorded.request.clone()).collect(),
            pending => pending.iter().map(|request| request.id.clone()).collect(),
        };
        match (ids.is_empty(), self.key) {
            (true, Some(key)) => {
                Err(Misuse(format!("no approval is pending, and none was decided under the key `{key}`")))
            }
            _ => Ok(ids),
        }
    }
}

/// Whether the id of a request is what was given: all of it, all but the digest, or a beginning with some of the digest.
fn is_called(id: &str, given: &str) -> bool {
    let is_path = || id.rsplit_once('#').is_some_and(|(path, _)| path == given);
    is_path() || (given.contains('#') && id.starts_with(given))
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
