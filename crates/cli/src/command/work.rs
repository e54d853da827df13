//! `stepfold work`: a worker that resumes unattended runs of all users of the agent.

use std::net::SocketAddr;

use anyhow::Context as _;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::json;
use stepfold::runner::{RecoverOptions, SessionChange, UnattendedSession, WatchScope};
use stepfold::server::http::Metrics;
use stepfold::terminal::TextStyle;
use tokio::net::TcpListener;

use crate::args::{RunArgs, SessionArgs};
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError, in_options};
use crate::show;

pub(super) async fn work(
    target: &SessionArgs,
    options: &RunArgs,
    recover_options: RecoverOptions,
    metrics: Option<SocketAddr>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    check_target(target)?;
    let metrics = metrics.map(|address| (address, Metrics::new()));
    let context =
        CommandContext::for_worker(target, options, metrics.as_ref().map(|(_, counted)| counted)).await?;
    context
        .work(async {
            let scraped = match &metrics {
                Some((address, counted)) => {
                    let listener = listen(*address).await?;
                    counted.serve(listener, context.runner.clone()).left_future()
                }
                None => std::future::pending().right_future(),
            };
            let mut changes = context.runner.watch(WatchScope::All).await;
            let recovery = context.runner.recover(recover_options);
            let retention = Box::pin(context.runner.run_retention()).fuse();
            tokio::pin!(recovery, retention, scraped);
            loop {
                tokio::select! {
                    // NOTE: Changes first, so that each is reported before the recovery ends.
                biased;
                    Some(change) = changes.next() => report(&change, json),
                    ended = &mut recovery => {
                        ended?;
                        break;
                    }
                    // NOTE: Without a retention it ends at once.
                    ended = &mut retention => ended?,
                    never = &mut scraped => match never {},
                }
            }
            // NOTE: The changes of the last runs may arrive together with the end of the recovery.
            while let Some(Some(change)) = changes.next().now_or_never() {
                report(&change, json);
            }
            Box::pin(report_blocked(&context)).await;
            Ok(CommandEnding::Done)
        })
        .await
}

/// Tells how many sessions wait and cannot be continued: runs of another version of the agent, for example.
async fn report_blocked(context: &CommandContext) {
    let mut blocked = 0;
    let mut last = None;
    // NOTE: The work is done: a list that cannot be read is no failure of it.
    while let Ok(page) = context.runner.unattended(last.as_ref(), PAGE).await {
        blocked += page.iter().filter(|session| session.blocked.is_some()).count() as u64;
        last = page.into_iter().next_back();
        if last.is_none() {
            break;
        }
    }
    if blocked > 0 {
        let sessions = show::counted(blocked, "blocked session");
        show::note(format!("{sessions}: the same command with `--list` says why"));
    }
}

fn check_target(target: &SessionArgs) -> Result<(), UsageError> {
    match target.session {
        Some(_) => Err(UsageError("`work` is about all sessions: leave `--session` out".to_owned())),
        None => Ok(()),
    }
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let failed = || format!("could not listen at {address} for metrics");
    let listener = TcpListener::bind(address).await.with_context(failed)?;
    show::note(format!("metrics at http://{}/metrics", listener.local_addr().with_context(failed)?));
    Ok(listener)
}

/// The number of sessions in a page.
const PAGE: usize = 100;

/// Lists unattended sessions, the longest waiting first.
pub(super) async fn list(
    target: &SessionArgs,
    options: &RunArgs,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    check_target(target)?;
    let context = CommandContext::for_list(target, options).await?;
    let (mut listed, mut blocked) = (0, 0);
    let mut page = context.runner.unattended(None, PAGE).await?;
    while !page.is_empty() {
        for session in &page {
            listed += 1;
            blocked += u64::from(session.blocked.is_some());
            show_unattended(session, json);
        }
        page = context.runner.unattended(page.last(), PAGE).await?;
    }
    if !json {
        show::note(format!(
            "{} without a worker, {blocked} of them blocked",
            show::counted(listed, "session")
        ));
    }
    Ok(CommandEnding::Done)
}

fn show_unattended(session: &UnattendedSession, json: bool) {
    let (user, id) = (session.key.user.as_str(), session.key.id.as_str());
    let blocked = session.blocked.as_deref().map(in_options);
    if json {
        let since = session.since.to_string();
        let row = json!({"session": id, "user": user, "since": since, "blocked": blocked});
        return show::line(row.to_string());
    }
    let row = show::styled(show::NAME, format!("{user}/{id}"));
    let row = row.with(show::DIM, format!("  since {}", show::moment(session.since)));
    show::row(&row.with(TextStyle::BAD, blocked.map(|why| format!("  {why}")).unwrap_or_default()), 2);
}

/// Reports the end of an invocation that has stored something. Commits are not reported.
fn report(change: &SessionChange, json: bool) {
    let SessionChange::Changed { key, version: version @ 1.., is_running: false, .. } = change else {
        return;
    };
    let (user, session) = (key.user.as_str(), key.id.as_str());
    if json {
        show::line(json!({"session": session, "user": user, "version": version}).to_string());
    } else {
        show::line(format!("{user}/{session} worked in, up to version {version}"));
    }
}
