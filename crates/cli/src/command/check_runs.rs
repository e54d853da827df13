//! `stepfold check --runs`: the unfinished runs of a store beside the agents of today.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stepfold::runner::CheckedRun;
use stepfold::terminal::TextStyle;

use crate::args::SessionArgs;
use crate::context::CommandContext;
use crate::error::{CommandEnding, chain};
use crate::show::{self, counted};

/// The counts of a check.
#[derive(Default)]
struct RunCounts {
    unchanged: u64,
    compatible: u64,
    refused: u64,
}

pub(super) async fn check_runs(
    agents: &[PathBuf],
    store: Option<&Path>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let mut counts = RunCounts::default();
    for agent in agents {
        let target = SessionArgs {
            agent: agent.clone(),
            session: None,
            store: store.map(Path::to_owned),
            user: "local".to_owned(),
        };
        let context = CommandContext::for_check(&target)?;
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
        show::note(counts.words());
    }
    // NOTE: A deployment that would leave runs behind must fail in a script.
    Ok(if counts.refused == 0 { CommandEnding::Done } else { CommandEnding::Failed })
}

impl RunCounts {
    fn add(&mut self, run: &CheckedRun) {
        *match (run.is_compatible(), run.upgrade.is_unchanged()) {
            (false, _) => &mut self.refused,
            (true, true) => &mut self.unchanged,
            (true, false) => &mut self.compatible,
        } += 1;
    }

    fn words(&self) -> String {
        let all = counted(self.unchanged + self.compatible + self.refused, "unfinished run");
        let RunCounts { unchanged, compatible, refused } = self;
        format!(
            "{all}: {unchanged} unchanged, {compatible} compatible, {refused} that this agent does not continue"
        )
    }
}

/// The status of a run, and the words that explain it.
fn status(run: &CheckedRun) -> (&'static str, Vec<String>) {
    if let Some(error) = &run.error {
        return ("cannot be read", vec![chain(error)]);
    }
    let upgrade = &run.upgrade;
    if !upgrade.is_ahead_only() {
        return ("touched", upgrade.touches.iter().map(ToString::to_string).collect());
    }
    match upgrade.is_unchanged() {
        true => ("unchanged", Vec::new()),
        false => ("compatible", upgrade.changes.iter().map(ToString::to_string).collect()),
    }
}

fn show_run(run: &CheckedRun) {
    let (status, words) = status(run);
    let look = if run.is_compatible() { TextStyle::PLAIN } else { TextStyle::BAD };
    let words = if words.is_empty() { String::new() } else { format!(": {}", words.join("; ")) };
    let session = format!("{}/{}", run.key.user, run.key.id);
    show::line(show::styled(show::NAME, &session).with(look, format!("  {status}{words}")));
}

fn run_json(run: &CheckedRun) -> Value {
    let (status, words) = status(run);
    json!({
        "session": run.key.id.as_str(),
        "status": status,
        "user": run.key.user.as_str(),
        "version": run.version,
        "words": words,
    })
}
