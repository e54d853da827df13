//! `stepfold eval watch`: the last turns of stored sessions are evaluated, and the sessions labelled.
//!
//! The label of a turn is the memory of the command: after a kill, or beside another process, a turn that has one is left out. Of several
//! watchers one evaluates a turn: it claims it by a label, which it removes afterwards.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use stepfold::eval::{Case, CaseStatus, EvalError, Expectation, Experiment, Mode};
use stepfold::runner::{SystemClock, WallClock as _};
use stepfold::session_scopes::{AnyStore, Label, LabelVersion, ReadLabels, SessionKey, SessionStore as _};
use tokio::sync::Mutex;

use super::add::is_missing;
use super::files::{CommandFiles, read_text};
use super::judge::judged;
use super::programs::Programs;
use crate::args::EvalWatchArgs;
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, counted};
use crate::signals::CtrlCListener;

/// The file of expectations.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectationFile {
    expect: Vec<Expectation>,
}

pub(super) async fn watch(args: &EvalWatchArgs, json: bool) -> anyhow::Result<CommandEnding> {
    CommandFiles::of_watch(args)?.check()?;
    let expect = expectations(&args.expect)?;
    let context = CommandContext::for_write(&args.target).await?;
    let folder = args.expect.parent().filter(|folder| !folder.as_os_str().is_empty());
    let experiment = Experiment::new(context.runner.agent())
        .mode(Mode::Recorded)
        .prices(context.prices.clone())
        .programs(Programs { folder: folder.unwrap_or(Path::new(".")).to_owned() });
    let experiment = match context.runner.redaction() {
        Some((rules, view)) => experiment.redact(rules, view),
        None => experiment,
    };
    let experiment = judged(experiment, &args.judge, &args.expect, context.prices.clone())?;
    let watching = Watching { context: &context, experiment, expect, json, claim: Arc::default() };
    let mut interrupts = CtrlCListener::new();
    let looking = Box::pin(async {
        let mut before = None;
        loop {
            let looked = Box::pin(watching.look(args)).await?;
            // A look that has found the same is not told again.
            if before != Some(looked) {
                show::note_line(&looked.words());
            }
            before = Some(looked);
            match args.every {
                Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds.get())).await,
                None if looked.faulty > 0 => return Ok(CommandEnding::Failed),
                None => return Ok(CommandEnding::Done),
            }
        }
    });
    let looking = async {
        tokio::select! {
            // Before anything is claimed or started, it listens.
            biased;
            pressed = interrupts.next() => pressed.map(|()| CommandEnding::Interrupted),
            ended = looking => ended,
        }
    };
    let ended = context.work(looking).await;
    // After a signal the turn at hand is left to others at once.
    watching.experiment.shutdown().await;
    watching.release().await?;
    ended
}

fn expectations(path: &Path) -> anyhow::Result<Vec<Expectation>> {
    let fault = |why: String| UsageError(format!("expectations {} could not be read: {why}", path.display()));
    let text = read_text(path).map_err(|error| fault(error.to_string()))?;
    let file: ExpectationFile = toml::from_str(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        fault(format!("line {}: {}", 1 + before.matches('\n').count(), error.message()))
    })?;
    if file.expect.is_empty() {
        return Err(fault("`expect` is empty, so nothing is expected".to_owned()).into());
    }
    if let Some(expectation) = file.expect.iter().find(|expectation| expectation.needs_record()) {
        let name = expectation.name();
        return Err(
            fault(format!("`{name}` compares the recorded turn with itself, and so says nothing")).into()
        );
    }
    // Checked as those of a case are.
    let mut case = Case::new("turn", "-");
    case.expect.clone_from(&file.expect);
    case.check().map_err(|error| fault(error.to_string()))?;
    Ok(file.expect)
}

/// The sessions of one look, by what was found of each.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Looked {
    evaluated: u64,
    labelled: u64,
    under_way: u64,
    unsampled: u64,
    unsuited: u64,
    faulty: u64,
}

impl Looked {
    fn words(self) -> String {
        let Looked { evaluated, labelled, under_way, unsampled, unsuited, faulty } = self;
        let sessions = evaluated + labelled + under_way + unsampled + unsuited + faulty;
        format!(
            "looked at {}: {evaluated} evaluated, {labelled} labelled before, {under_way} under way, \
             {unsampled} not in the sample, {unsuited} without a turn that suits, {faulty} not evaluated",
            counted(sessions, "session")
        )
    }
}

struct Watching<'a> {
    context: &'a CommandContext,
    experiment: Experiment,
    expect: Vec<Expectation>,
    json: bool,
    /// The claim of the turn at hand. It is locked while it is made, so that a release after a signal knows it.
    claim: Arc<Mutex<Option<HeldClaim>>>,
}

/// The claim of a turn that this watcher evaluates.
struct HeldClaim {
    key: SessionKey,
    label: Label,
}

impl Watching<'_> {
    /// Claims a turn; false while another watcher has it.
    async fn claim(&self, turn: &WatchedTurn) -> anyhow::Result<bool> {
        let mut held = Arc::clone(&self.claim).lock_owned().await;
        let turn = turn.clone();
        // A task of its own: it is not dropped between the label and its note.
        let claiming = tokio::spawn(async move {
            *held = turn.claim().await?.map(|label| HeldClaim { key: turn.key, label });
            Ok(held.is_some())
        });
        claiming.await?
    }

    /// Gives the turn at hand to other watchers, if there is one.
    async fn release(&self) -> anyhow::Result<()> {
        if let Some(HeldClaim { key, label }) = self.claim.lock().await.take() {
            release(self.context.runner.store(), key, label).await?;
        }
        Ok(())
    }

    /// Looks at each session once.
    async fn look(&self, args: &EvalWatchArgs) -> anyhow::Result<Looked> {
        let mut looked = Looked::default();
        for listed in self.context.list_begun(args.newest.get()).await? {
            let id = listed.key.id.as_str();
            // One damaged session does not hide the others. A session that was deleted meanwhile is left out.
            if let Err(error) = Box::pin(self.evaluate(id, args.sample, &mut looked)).await
                && !is_missing(&error)
            {
                show::note_line(&format!("session {id} could not be evaluated: {error:#}"));
                looked.faulty += 1;
            }
        }
        Ok(looked)
    }

    /// Evaluates the last turn of a session, if it has ended, is in the sample, and has no label.
    async fn evaluate(&self, id: &str, sample: f64, looked: &mut Looked) -> anyhow::Result<()> {
        let context = self.context;
        let Some(session) = context.runner.find_session(context.user.as_str(), id).await? else {
            return Ok(());
        };
        if session.unfinished().await?.is_some() {
            looked.under_way += 1;
            return Ok(());
        }
        let case = match Case::taken_from(&session, None).await {
            Ok(case) => case,
            Err(EvalError::NoTurn { .. } | EvalError::Unsuited { .. } | EvalError::Erased { .. }) => {
                looked.unsuited += 1;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let Some(version) = case.source.as_ref().map(|source| source.last_version) else { return Ok(()) };
        let names = [format!("eval-passed-{version}"), format!("eval-failed-{version}")];
        let (store, key) = (context.runner.store().clone(), session.key().clone());
        let turn = WatchedTurn { store, key, version, names };
        if turn.is_labelled().await? {
            looked.labelled += 1;
            return Ok(());
        }
        if !case.is_sampled(sample) {
            looked.unsampled += 1;
            return Ok(());
        }
        if !self.claim(&turn).await? {
            looked.under_way += 1;
            return Ok(());
        }
        let evaluated = self.evaluate_claimed(case, &turn, looked).await;
        self.release().await?;
        evaluated
    }

    /// Evaluates a turn that no other watcher evaluates, and labels it.
    async fn evaluate_claimed(
        &self,
        case: Case,
        turn: &WatchedTurn,
        looked: &mut Looked,
    ) -> anyhow::Result<()> {
        // Another watcher may have evaluated it before the claim.
        if turn.is_labelled().await? {
            looked.labelled += 1;
            return Ok(());
        }
        let (id, version) = (turn.key.id.as_str(), turn.version);
        let case = self.expect.iter().cloned().fold(case, Case::expect);
        let result = self.experiment.run_case(&case).await;
        let [passed, failed] = &turn.names;
        let name = match result.status {
            CaseStatus::Passed => passed,
            CaseStatus::Failed => failed,
            _ => {
                show::note_line(&format!("session {id} could not be evaluated: {}", result.why()));
                looked.faulty += 1;
                return Ok(());
            }
        };
        let label = LabelVersion::new(turn.key.clone(), Label::new(name.as_str())?, version);
        turn.store.set_label(label).await?;
        show::single_line(&match self.json {
            true => {
                json!({"session": id, "version": version, "label": name, "scores": result.scores}).to_string()
            }
            false => format!("{id}  {name}  {}", result.why()).trim_end().to_owned(),
        });
        looked.evaluated += 1;
        Ok(())
    }
}

/// The last turn of a session, which one of all watchers evaluates.
///
/// Its claim is a label with the time at which it was made, in periods. The first watcher that sets it has it, for the store tells each
/// whether it was set before; of two that set the labels of two periods, each sees the other's label, or one of them does, and gives way.
/// A claim of a watcher that was killed is over after two periods, which is longer than a case may take.
#[derive(Clone)]
struct WatchedTurn {
    store: AnyStore,
    key: SessionKey,
    version: u64,
    /// The labels of its results.
    names: [String; 2],
}

/// The seconds of a period of claims.
const PERIOD: i64 = 600;

impl WatchedTurn {
    async fn labels(&self) -> anyhow::Result<Vec<String>> {
        let labels = self.store.labels(ReadLabels::new(self.key.clone())).await?;
        Ok(labels.into_iter().map(|(label, _)| label.as_str().to_owned()).collect())
    }

    async fn is_labelled(&self) -> anyhow::Result<bool> {
        Ok(self.labels().await?.iter().any(|label| self.names.contains(label)))
    }

    /// Claims the turn; `None` while another watcher has it.
    async fn claim(&self) -> anyhow::Result<Option<Label>> {
        let period = SystemClock.now().as_micros() / (PERIOD * 1_000_000);
        let prefix = format!("eval-claim-{}-", self.version);
        let own = Label::new(format!("{prefix}{period}"))?;
        for (label, made) in self.claims(&prefix).await? {
            match made + 1 >= period {
                true => return Ok(None),
                false => release(&self.store, self.key.clone(), Label::new(label)?).await?,
            }
        }
        let set = LabelVersion::new(self.key.clone(), own.clone(), self.version);
        if self.store.set_label(set).await?.is_some() {
            return Ok(None);
        }
        let has_others = self.claims(&prefix).await?.iter().any(|(label, _)| label != own.as_str());
        if has_others {
            release(&self.store, self.key.clone(), own.clone()).await?;
        }
        Ok((!has_others).then_some(own))
    }

    /// The claims, each with its period.
    async fn claims(&self, prefix: &str) -> anyhow::Result<Vec<(String, i64)>> {
        let labels = self.labels().await?.into_iter();
        Ok(labels
            .filter_map(|label| Some((label.clone(), label.strip_prefix(prefix)?.parse().ok()?)))
            .collect())
    }
}

/// Removes the label of a claim.
async fn release(store: &AnyStore, key: SessionKey, claim: Label) -> anyhow::Result<()> {
    store.set_label(LabelVersion::removal(key, claim)).await?;
    Ok(())
}
