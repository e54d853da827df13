//! `stepfold erase`: removes content for good.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;
use serde_json::json;
use stepfold::agent_loop::{Ids as _, RandomIds};
use stepfold::runner::{EraseRequest, ErasureReport, ErasureSubject, RunnerError, RunnerErrorKind};
use stepfold::server::http::{ErasedCase, ErasedCopies, ErasureError, ExperimentFolder};
use stepfold::session_scopes::{
    Author, ErasureId, ErrorKind, SessionId, SessionStore as _, UserId, VacuumStore,
};

use crate::args::{EraseArgs, SessionArgs};
use crate::argument_text::shell_quoted;
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, counted};

pub(super) async fn erase(
    target: &SessionArgs,
    erased: &EraseArgs,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let subject = subject(target, erased)?;
    let context = CommandContext::for_write(target).await?;
    // NOTE: The id is made here, so that each failure can name it: only a repeat under it has the answer of the first.
    let id = ErasureId::new(erased.id.clone().unwrap_or_else(|| RandomIds.next()))?;
    let request = EraseRequest::new(subject, Author::new(erased.by.as_str())?, erased.reason.as_str());
    let request = request.with_id(id.clone());
    let request = if erased.dry_run { request.dry_run() } else { request };
    let (report, copies) = erased_with_copies(&context, erased, &id, request).await?;
    // NOTE: what is erased is told even if the vacuum fails.
    let vacuumed = match !erased.dry_run && !erased.no_vacuum {
        true => Some(context.runner.store().vacuum(VacuumStore::new()).await),
        false => None,
    };
    let is_vacuumed = matches!(vacuumed, Some(Ok(())));
    match json {
        true => {
            let id = (!erased.dry_run).then_some(&id);
            show::line(json_of(&report, &copies, id, is_vacuumed).to_string());
        }
        false => lines(&report, &copies, erased.dry_run, is_vacuumed),
    }
    vacuumed.unwrap_or(Ok(())).with_context(|| {
        let again = again_with(&id);
        format!("erased, but the bytes are in the files of the store until a vacuum succeeds: {again}")
    })?;
    Ok(CommandEnding::Done)
}

/// The way to repeat an erasure.
fn again_with(id: &ErasureId) -> String {
    let id = shell_quoted(id.as_str());
    format!("give the same command again, with `--id {id}` and the same `--by` and `--reason`")
}

/// Erases content, and its copies in the folder of experiments, if one is named.
async fn erased_with_copies(
    context: &CommandContext,
    erased: &EraseArgs,
    id: &ErasureId,
    request: EraseRequest,
) -> anyhow::Result<(ErasureReport, ErasedCopies)> {
    let advised = |error| advised(error, id, erased.dry_run);
    let Some(folder) = &erased.experiments else {
        let erased = context.runner.erase(request).await.map_err(advised)?;
        return Ok((erased, ErasedCopies::default()));
    };
    if !folder.is_dir() {
        let folder = folder.display();
        return Err(UsageError(format!(
            "--experiments {folder}: there is no such folder; nothing was erased"
        ))
        .into());
    }
    // NOTE: The id `-` is a placeholder: only the app of the key is used.
    let app = context.runner.key("-", "-")?.app;
    let folder = Arc::new(ExperimentFolder::new(folder.join(app.as_str())));
    match folder.erase_with_content(&context.runner, request).await {
        Err(ErasureError::Copies(error)) => Err(anyhow::Error::from(error)
            .context(format!("copies in data sets could not be erased: {}", again_with(id)))),
        // NOTE: the error itself, by which the command finds its advice.
        Err(ErasureError::Content(error)) => Err(advised(error)),
        erased => Ok(erased?),
    }
}

/// The error of an erasure, which does not take a session over. One that has failed half-way is repeated under its id.
fn advised(error: RunnerError, id: &ErasureId, dry_run: bool) -> anyhow::Error {
    match &error.kind {
        RunnerErrorKind::Claimed { owner, expires, .. } => anyhow::anyhow!(
            "the session is claimed by worker {owner} until at least {expires}; nothing was erased: try again when its run has ended"
        ),
        RunnerErrorKind::UnknownCall { .. } => {
            let words = error.to_string().replace("list the calls", "`stepfold inspect` lists the calls");
            UsageError(words).into()
        }
        RunnerErrorKind::Store { source, .. } if source.kind() == ErrorKind::Transient && !dry_run => {
            let words = format!("the erasure may be incomplete: {}", again_with(id));
            anyhow::Error::from(error).context(words)
        }
        _ => error.into(),
    }
}

/// The subject of the erasure, by the options.
fn subject(target: &SessionArgs, erased: &EraseArgs) -> anyhow::Result<ErasureSubject> {
    let user = UserId::new(target.user.as_str())?;
    let Some(session) = &target.session else {
        if erased.everything {
            return Ok(ErasureSubject::User(user));
        }
        let why = "say what is to be erased: --session ID, or --everything for the user of --user";
        return Err(UsageError(why.to_owned()).into());
    };
    let session = SessionId::new(session.as_str())?;
    Ok(match &erased.call {
        Some(call) => ErasureSubject::Call { user, session, call: call.clone() },
        None if erased.event.is_empty() => ErasureSubject::Session { user, session },
        None => {
            let versions: BTreeSet<u64> = erased.event.iter().copied().collect();
            ErasureSubject::Events { user, session, versions }
        }
    })
}

/// The result as JSON: with the id, unless it is that of a dry run.
fn json_of(
    report: &ErasureReport,
    copies: &ErasedCopies,
    id: Option<&ErasureId>,
    is_vacuumed: bool,
) -> serde_json::Value {
    let sessions: Vec<&str> = report.sessions.iter().map(|key| key.id.as_str()).collect();
    let versions = report.versions.iter();
    let versions: Vec<_> =
        versions.map(|(key, version)| json!({"session": key.id.as_str(), "version": version})).collect();
    json!({
        "budgets": report.budgets,
        "cases": copies.cases,
        "dry_run": id.is_none(),
        "events": report.events,
        "found": !report.is_empty() || !copies.is_empty(),
        "id": id.map(ErasureId::as_str),
        "key": report.had_key,
        "results": copies.results,
        "sessions": sessions,
        "spend": report.spend,
        "user_keys": report.user_keys,
        "vacuumed": is_vacuumed,
        "versions": versions,
    })
}

fn lines(report: &ErasureReport, copies: &ErasedCopies, dry_run: bool, is_vacuumed: bool) {
    for key in report.sessions.iter().filter(|_| report.versions.is_empty()) {
        show::single_line(&format!("session {}", key.id));
    }
    for (key, version) in &report.versions {
        show::single_line(&format!("session {}, version {version}", key.id));
    }
    for key in &report.user_keys {
        show::single_line(&format!("key {key}"));
    }
    for ErasedCase { user, data_set, case, .. } in &copies.cases {
        show::single_line(&format!("case {case}, in data set {data_set} of {user}"));
    }
    if copies.results > 0 {
        show::single_line(&format!("{} of experiments", counted(copies.results, "result")));
    }
    if report.is_empty() && copies.is_empty() {
        return show::note(match report.sessions.is_empty() {
            true => {
                "nothing found of this user under this agent: nothing was erased; check `--user` and the file"
            }
            false => "nothing found that was not erased before: nothing was erased",
        });
    }
    let key = if report.had_key { ", the key of the user" } else { "" };
    let verb = if dry_run { "would be erased; nothing was changed" } else { "erased" };
    let vacuum = if is_vacuumed { ", and the store is vacuumed" } else { "" };
    let (sessions, events) =
        (counted(report.sessions.len() as u64, "session"), counted(report.events, "event"));
    let values = counted(report.user_keys.len() as u64, "value");
    let budgets = match report.budgets {
        0 => String::new(),
        budgets => format!(", {}", counted(budgets, "budget")),
    };
    show::note(format!("{sessions}, {events}, {values}{budgets}{key}: {verb}{vacuum}"));
}
