//! `stepfold check --runs`: the unfinished runs of a store beside the agents of today.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stepfold::runner::{CheckedRun, UpgradeCounts, UpgradeStatus};
use stepfold::terminal::TextStyle;

use crate::args::SessionArgs;
use crate::context::CommandContext;
use crate::error::{CommandEnding, in_options};
use crate::show::{self, counted};

pub(super) async fn check_runs(
    agents: &[PathBuf],
    (store, keys): (Option<&Path>, Option<&Path>),
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let mut counts = UpgradeCounts::default();
    for agent in agents {
        let target = SessionArgs {
            agent: agent.clone(),
            session: None,
            store: store.map(Path::to_owned),
            keys: keys.map(Path::to_owned),
            user: "local".to_owned(),
        };
        let context = CommandContext::for_check(&target).await?;
        let mut check = context.runner.check_upgrade();
        while let Some(run) = check.next().await? {
            counts.add(&run);
            match json {
                true => show::line(run_json(&run).to_string()),
                false => show_run(&run),
            }
        }
    }
    if !json {
        show::note(words(&counts));
    }
    // NOTE: A deployment that would leave runs behind must fail in a script.
    Ok(if counts.refused + counts.left == 0 { CommandEnding::Done } else { CommandEnding::Failed })
}

fn words(counts: &UpgradeCounts) -> String {
    let UpgradeCounts { unchanged, compatible, forced, pinned, left, refused, .. } = counts;
    let all = counted(counts.total(), "unfinished run");
    let unless_zero =
        |count: &u64, words| if *count == 0 { String::new() } else { format!(", {count} {words}") };
    let forced = unless_zero(forced, "touched and continued");
    let pinned = unless_zero(pinned, "pinned");
    let left = unless_zero(left, "left to another version");
    format!(
        "{all}: {unchanged} unchanged, {compatible} compatible{forced}{pinned}{left}, {refused} that this agent does not continue"
    )
}

fn show_run(run: &CheckedRun) {
    let reasons = in_options(&run.reasons().join("; "));
    let status = match run.status() {
        _ if run.is_left && run.continues() => "left to another version".to_owned(),
        // The policy says otherwise than the change.
        UpgradeStatus::Compatible if !run.continues() => {
            format!("refused by `when_changed = \"{}\"`", run.policy)
        }
        UpgradeStatus::Touched if run.continues() => {
            format!("continues by `when_changed = \"{}\"`", run.policy)
        }
        status => status.to_string(),
    };
    let look = if run.continues() && !run.is_left { TextStyle::PLAIN } else { TextStyle::BAD };
    // NOTE: a stored version may name a program over several lines, which would pass for other rows.
    let reasons = reasons.replace('\n', "\\n").replace('\r', "\\r");
    let reasons = if reasons.is_empty() { reasons } else { format!(": {reasons}") };
    let session = format!("{}/{}", run.key.user, run.key.id);
    show::line(show::styled(show::NAME, &session).with(look, format!("  {status}{reasons}")));
}

fn run_json(run: &CheckedRun) -> Value {
    json!({
        "continues": run.continues(),
        "left": run.is_left,
        "reasons": run.reasons(),
        "session": run.key.id.as_str(),
        "status": run.status().as_str(),
        "user": run.key.user.as_str(),
        "version": run.version,
    })
}
