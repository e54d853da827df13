//! `stepfold resume`: resumes a run that waits, was interrupted or failed.

use stepfold::prelude::*;
use stepfold::runner::{RunnerError, WhenChanged};
use stepfold::state_core::read_exact;

use super::approval_ids::ApprovalIdResolver;
use super::run::report_session;
use crate::args::{RunArgs, SessionArgs};
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::prompt::{LinePrompt, is_terminal};
use crate::show;
use crate::turn::TurnRunner;

/// The decisions of the command line.
pub(super) struct DecisionArgs<'a> {
    pub(super) approve: &'a [String],
    pub(super) reject: &'a [String],
    pub(super) modify: &'a [String],
    /// The idempotency key.
    pub(super) key: Option<&'a str>,
}

pub(super) async fn resume(
    target: &SessionArgs,
    options: &RunArgs,
    decided: &DecisionArgs<'_>,
    with_changed_agent: bool,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    // For the whole command: an approval of a tool that has changed is pending under another id then.
    let when_changed = with_changed_agent.then_some(WhenChanged::Always);
    let options = RunArgs { when_changed, ..options.clone() };
    let context = CommandContext::for_resume(target, &options).await?;
    context.work(Box::pin(resume_run(&context, &options, decided, json))).await
}

async fn resume_run(
    context: &CommandContext,
    options: &RunArgs,
    decided: &DecisionArgs<'_>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let session = context.session().await?;
    report_session(&session, json);
    let decisions = decided.decisions(&session).await?;
    let before = session.decisions().await?;
    let is_new = |id: &&String| before.iter().all(|recorded| recorded.request != **id);
    let ids: Vec<String> = decisions.iter().map(|(id, _)| id).filter(is_new).cloned().collect();
    let mut resume = session.resume().decide_all(context.decided(decisions));
    if let Some(key) = decided.key {
        resume = resume.idempotency_key(key);
    }
    let prompt = if options.interactive || is_terminal() { Some(LinePrompt::open()?) } else { None };
    let mut turns = TurnRunner { context, json, prompt };
    let ended = Box::pin(turns.resume(&session, resume)).await;
    let is_refused = |error: &anyhow::Error| {
        let refused = error.downcast_ref::<RunnerError>();
        error.is::<UsageError>() || refused.is_some_and(RunnerError::is_of_other_agent)
    };
    if ended.as_ref().is_err_and(is_refused) {
        note_stored(&session, &ids).await?;
    }
    ended
}

/// Tells which decisions are stored though the run was not continued.
async fn note_stored(session: &SessionHandle, ids: &[String]) -> anyhow::Result<()> {
    let stored = session.decisions().await?;
    let is_stored = |id: &&String| stored.iter().any(|recorded| recorded.request == **id);
    let ids: Vec<&str> = ids.iter().filter(is_stored).map(String::as_str).collect();
    if !ids.is_empty() {
        show::note(format!("stored, for when the run continues: the decision about {}", ids.join(", ")));
    }
    Ok(())
}

/// Abandons the run. No model is called.
pub(super) async fn abandon(
    target: &SessionArgs,
    options: &RunArgs,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_abandon(target, options).await?;
    context
        .work(async {
            let session = context.session().await?;
            report_session(&session, json);
            TurnRunner { context: &context, json, prompt: None }.abandon(&session).await
        })
        .await
}

impl DecisionArgs<'_> {
    async fn decisions(&self, session: &SessionHandle) -> anyhow::Result<Vec<(String, Decision)>> {
        if self.approve.is_empty() && self.reject.is_empty() && self.modify.is_empty() {
            return Ok(Vec::new());
        }
        let (pending, decided) = (session.pending().await?, session.decisions().await?);
        let recorded =
            session.last_run().await?.map(|run| run.without_upgrade().pending()).unwrap_or_default();
        let is_recorded = |id: &str| recorded.iter().any(|request| request.id == id);
        let asked_again =
            pending.iter().filter(|request| request.is_asked_again || !is_recorded(&request.id));
        let asked_again: Vec<&str> = asked_again.map(|request| request.id.as_str()).collect();
        let requests = ApprovalIdResolver {
            pending: &pending,
            asked_again: &asked_again,
            decided: &decided,
            key: self.key,
        };
        let mut decisions = Vec::new();
        for id in self.approve {
            let ids = match id.as_str() {
                "all" => self.all(&requests)?,
                id => vec![requests.resolve(id)?],
            };
            decisions.extend(ids.into_iter().map(|id| (id, Decision::Approve)));
        }
        for pair in self.reject {
            let (id, reason) = requests.split(pair);
            decisions.push((requests.resolve(id)?, Decision::reject(reason.unwrap_or_default())));
        }
        for pair in self.modify {
            let misuse = |words: String| UsageError(format!("--modify {pair}: {words}"));
            let (id, json) = requests.split(pair);
            let id = requests.resolve(id)?;
            let json = json.ok_or_else(|| misuse("write the id, =, and the arguments as JSON".to_owned()))?;
            let arguments = read_exact(json).map_err(|error| misuse(error.to_string()))?;
            decisions.push((id, Decision::modify(arguments)));
        }
        Ok(decisions)
    }

    /// The ids for `all`: the pending requests; if there are none, the requests that were decided with the key.
    fn all(&self, requests: &ApprovalIdResolver<'_>) -> Result<Vec<String>, UsageError> {
        let under_key = requests
            .decided
            .iter()
            .filter(|recorded| self.key.is_some() && recorded.idempotency_key.as_deref() == self.key);
        if let [id, ..] = requests.asked_again {
            return Err(requests.unseen("all", id));
        }
        let ids: Vec<String> = match requests.pending {
            [] => under_key.map(|recorded| recorded.request.clone()).collect(),
            pending => pending.iter().map(|request| request.id.clone()).collect(),
        };
        match (ids.is_empty(), self.key) {
            (true, Some(key)) => {
                Err(UsageError(format!("no approval is pending, and none was decided under the key `{key}`")))
            }
            _ => Ok(ids),
        }
    }
}
