//! `stepfold retain`: applies the retention of an agent file.

use anyhow::Context as _;
use serde_json::json;
use stepfold::runner::{RetentionOptions, RetentionReport};
use stepfold::session_scopes::{SessionKey, SessionStore as _, VacuumStore};

use crate::args::{RetainArgs, SessionArgs};
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, counted};

pub(super) async fn retain(
    target: &SessionArgs,
    options: &RetainArgs,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    if target.session.is_some() {
        let words =
            "`retain` is about all sessions: leave `--session` out; `erase` and `delete` are about one";
        return Err(UsageError(words.to_owned()).into());
    }
    let context = match options.dry_run {
        true => CommandContext::for_read(target).await?,
        false => CommandContext::for_write(target).await?,
    };
    if context.runner.retention().is_none() {
        let words = format!("{} has no `[retention]`: nothing goes by its age", target.agent.display());
        return Err(UsageError(words).into());
    }
    let mut total = RetainedTotal::default();
    let mut after = None;
    loop {
        let pass = RetentionOptions::new().from_first();
        let pass = if options.dry_run { pass.dry_run() } else { pass };
        let pass = after.take().into_iter().fold(pass, RetentionOptions::after);
        let report = context.runner.retain(pass).await?;
        if report.is_elsewhere {
            let words = "another process applies the retention now: see its log, or try again after it";
            return Err(UsageError(words.to_owned()).into());
        }
        show_changes(&report, json);
        after.clone_from(&report.next);
        total.add(&report);
        if after.is_none() {
            break;
        }
    }
    let is_vacuumed = options.vacuum && !options.dry_run;
    if is_vacuumed {
        let vacuumed = context.runner.store().vacuum(VacuumStore::new()).await;
        vacuumed.context("deleted, but the bytes are in the files of the store until a vacuum succeeds")?;
    }
    total.show(options.dry_run, is_vacuumed, json);
    match total.failed {
        0 => Ok(CommandEnding::Done),
        failed => anyhow::bail!("{} could not be read or changed", counted(failed, "session")),
    }
}

/// Prints a line for each session that was changed, or could not be.
fn show_changes(report: &RetentionReport, json: bool) {
    let RetentionReport { deleted, pruned, withdrawn, failed, .. } = report;
    let lists =
        [("deleted", deleted, "event"), ("pruned", pruned, "event"), ("withdrawn", withdrawn, "message")];
    for (action, list, unit) in lists {
        for (key, count) in list {
            let SessionKey { user, id, .. } = key;
            show::line(match json {
                true => {
                    json!({"action": action, "count": count, "session": id.as_str(), "user": user.as_str()})
                        .to_string()
                }
                false => format!("{user}/{id}: {action}, {}", counted(*count, unit)),
            });
        }
    }
    for (SessionKey { user, id, .. }, error) in failed {
        show::line(match json {
            true => {
                json!({"action": "failed", "error": error, "session": id.as_str(), "user": user.as_str()})
                    .to_string()
            }
            false => format!("{user}/{id}: failed: {error}"),
        });
    }
}

/// The sums of all passes of the command.
#[derive(Default)]
struct RetainedTotal {
    scanned: u64,
    deleted: u64,
    events: u64,
    withdrawn: u64,
    kept: u64,
    failed: u64,
}

impl RetainedTotal {
    fn add(&mut self, report: &RetentionReport) {
        self.scanned += report.scanned;
        self.deleted += report.deleted.len() as u64;
        self.events += report.events();
        self.withdrawn += report.withdrawn.iter().map(|(_, messages)| messages).sum::<u64>();
        self.kept += report.kept;
        self.failed += report.failed.len() as u64;
    }

    fn show(&self, dry_run: bool, is_vacuumed: bool, json: bool) {
        let RetainedTotal { scanned, deleted, events, withdrawn, kept, failed } = self;
        if json {
            let sums = json!({
                "action": "ended",
                "deleted": deleted,
                "dry_run": dry_run,
                "events": events,
                "failed": failed,
                "kept": kept,
                "scanned": scanned,
                "vacuumed": is_vacuumed,
                "withdrawn": withdrawn,
            });
            return show::line(sums.to_string());
        }
        let verb = if dry_run { "would go; nothing was changed" } else { "deleted" };
        let vacuum = if is_vacuumed { ", and the store is vacuumed" } else { "" };
        show::note(format!(
            "{}, {}, {} of {} scanned: {verb}{vacuum}; {} kept, in use or with a label",
            counted(*deleted, "session"),
            counted(*events, "event"),
            counted(*withdrawn, "message"),
            counted(*scanned, "session"),
            counted(*kept, "session"),
        ));
    }
}
