//! `stepfold agents`: the stored versions of an agent file.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use stepfold::runner::{SystemClock, WallClock as _};
use stepfold::session_scopes::{
    DeleteSession, EventRange, GetSession, ListSessions, Session, SessionStore as _,
};

use crate::archive::{ARCHIVE_APP, AgentBundle};
use crate::args::SessionArgs;
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, counted};

pub(super) async fn agents(
    target: &SessionArgs,
    prune: Option<u32>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = match prune {
        Some(_) => CommandContext::for_prune(target).await?,
        None => CommandContext::for_check(target).await?,
    };
    let versions = stored_versions(&context).await?;
    let runs = runs_by_agent(&context, prune.is_some()).await?;
    let oldest_kept = prune.map(|days| SystemClock.now().before(DAY * days));
    let today = context.runner.agent().fingerprint().digest();
    let mut removed = 0;
    for version in &versions {
        let digest = version.key.id.as_str();
        // NOTE: the digest of an agent depends on the model, which a command that reads may not have, so texts are compared as
        // well.
        let is_current = digest == today || is_current(&context, version).await?;
        let runs = runs.get(digest).copied().unwrap_or_default();
        let is_old = oldest_kept.is_some_and(|oldest| version.created < oldest);
        let goes = is_old && runs == 0 && !is_current;
        if goes {
            context.runner.store().delete(DeleteSession::new(version.key.clone())).await?;
            removed += 1;
        }
        if json {
            let line = json!({
                "agent": digest,
                "is_current": is_current,
                "removed": goes,
                "stored": version.created.to_string(),
                "unfinished_runs": runs,
            });
            show::line(line.to_string());
        } else {
            let current = if is_current { "  the file of today" } else { "" };
            let removed = if goes { "  removed" } else { "" };
            let runs = counted(runs, "unfinished run");
            show::line(format!("{digest}  {}  {runs}{current}{removed}", version.created));
        }
    }
    if !json {
        let removed = if prune.is_some() { format!(", {removed} removed") } else { String::new() };
        let count = counted(u64::try_from(versions.len()).unwrap_or(u64::MAX), "stored version");
        show::note(format!("{count}{removed}"));
    }
    Ok(CommandEnding::Done)
}

/// A day.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The stored versions of the agent's file, those that were stored last first.
async fn stored_versions(context: &CommandContext) -> anyhow::Result<Vec<Session>> {
    let mut request = ListSessions::new(ARCHIVE_APP, context.runner.agent().name())?;
    let mut versions = Vec::new();
    loop {
        let page = context.runner.store().list(request.clone()).await?;
        versions.extend(page.sessions);
        request.after = page.next;
        if request.after.is_none() {
            return Ok(versions);
        }
    }
}

/// Whether a stored version says the same as the files of today.
async fn is_current(context: &CommandContext, version: &Session) -> anyhow::Result<bool> {
    let get = GetSession::new(version.key.clone()).events(EventRange::None);
    let stored = context.runner.store().get(get).await?;
    // A version that cannot be read is not that of today.
    Ok(AgentBundle::stored_in(&stored).is_ok_and(|stored| stored.says_the_same_as(&context.texts)))
}

/// The numbers of unfinished runs, by the digests of their agents.
async fn runs_by_agent(context: &CommandContext, prunes: bool) -> anyhow::Result<BTreeMap<String, u64>> {
    let (mut check, mut runs) = (context.runner.check_upgrade(), BTreeMap::new());
    while let Some(run) = check.next().await? {
        match run.agent {
            Some(agent) => *runs.entry(agent).or_default() += 1,
            // It may be of any version.
            None if prunes => {
                let words = format!(
                    "run in session {}/{} cannot be read; nothing was removed",
                    run.key.user, run.key.id
                );
                return Err(UsageError(words).into());
            }
            None => {}
        }
    }
    Ok(runs)
}
