//! `stepfold forks`, `compare` and `label`: forks, differences between sessions, and names of versions.

use serde_json::{Value, json};
use stepfold::runner::{Comparison, FirstDifference, compare as compare_sessions};
use stepfold::session_scopes::{
    CommittedEvent, Label, LabelVersion, ListForks, ReadLabels, Session, SessionStore as _,
};
use stepfold::state_core::state::MESSAGES;

use super::inspect::{at, event_json, label_json};
use crate::args::{SessionArgs, VersionName};
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, LineCutter};

pub(super) async fn forks(target: &SessionArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target).await?;
    let session = context.session().await?;
    let forks = context.runner.store().forks(ListForks::new(session.key().clone())).await?;
    if json {
        let forks = forks.iter().map(|fork| {
            json!({"created": fork.created.to_string(), "session": fork.id.as_str(), "version": fork.version})
        });
        show::line(Value::Array(forks.collect()).to_string());
        return Ok(CommandEnding::Done);
    }
    let width = forks.iter().map(|fork| fork.id.as_str().chars().count()).max().unwrap_or(0);
    for fork in &forks {
        let (id, created) = (fork.id.as_str(), show::moment(fork.created));
        let row = show::styled(show::NAME, format!("{id:width$}")).with(show::DIM, format!("  {created}"));
        show::line(row.and(format!("  from version {}", fork.version)));
    }
    if forks.is_empty() {
        show::note(format!("session {} has no forks", session.key().id));
    }
    Ok(CommandEnding::Done)
}

pub(super) async fn set_label(
    target: &SessionArgs,
    label: &str,
    at: Option<&VersionName>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_write(target).await?;
    let label = new_label(label)?;
    let session = context.session().await?;
    let key = session.key().clone();
    let version = match at {
        Some(at) => context.version(&key, at).await?,
        None => session.read(stepfold::session_scopes::EventRange::None).await?.version,
    };
    let was =
        context.runner.store().set_label(LabelVersion::new(key.clone(), label.clone(), version)).await?;
    let id = key.id.as_str();
    show::line(if json {
        json!({"label": label.as_str(), "session": id, "version": version, "was": was}).to_string()
    } else {
        let was = was.filter(|was| *was != version).map(|was| format!(" (was version {was})"));
        format!("label {label} of session {id}: version {version}{}", was.unwrap_or_default())
    });
    Ok(CommandEnding::Done)
}

pub(super) async fn remove_label(
    target: &SessionArgs,
    label: &str,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_write(target).await?;
    let session = context.session().await?;
    let (key, id) = (session.key().clone(), session.key().id.as_str());
    // An unknown label is an error that lists the known ones.
    context.version(&key, &VersionName::Label(label.to_owned())).await?;
    let was =
        context.runner.store().set_label(LabelVersion::removal(key.clone(), Label::new(label)?)).await?;
    show::line(if json {
        json!({"label": label, "session": id, "was": was}).to_string()
    } else {
        let was = was.map(|was| format!(" (was version {was})"));
        format!("label {label} of session {id} is removed{}", was.unwrap_or_default())
    });
    Ok(CommandEnding::Done)
}

pub(super) async fn labels(target: &SessionArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target).await?;
    let session = context.session().await?;
    let labels = context.runner.store().labels(ReadLabels::new(session.key().clone())).await?;
    if json {
        let labels = labels.iter().map(|(label, version)| label_json(label, *version));
        show::line(Value::Array(labels.collect()).to_string());
        return Ok(CommandEnding::Done);
    }
    let width = labels.iter().map(|(label, _)| label.as_str().chars().count()).max().unwrap_or(0);
    for (label, version) in &labels {
        let name = show::styled(show::NAME, format!("{:width$}", label.as_str()));
        show::line(name.and(format!("  version {version}")));
    }
    if labels.is_empty() {
        show::note(format!("session {} has no labels", session.key().id));
    }
    Ok(CommandEnding::Done)
}

/// Parses a new label. It must not look like a version or a range of versions.
fn new_label(text: &str) -> anyhow::Result<Label> {
    let why = match text.parse::<VersionName>() {
        Ok(VersionName::Version(_)) => "a number names a version",
        // NOTE: `--diff` reads `..` as a range.
        _ if text.contains("..") => "`..` stands between two versions",
        _ if text != text.trim() => "it begins or ends with a space",
        _ => return Ok(Label::new(text)?),
    };
    Err(UsageError(format!("invalid label `{text}`: {why}; choose another name")).into())
}

pub(super) async fn compare(
    target: &SessionArgs,
    left: &str,
    right: &str,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target).await?;
    let (left, right) = (context.session_named(left).await?, context.session_named(right).await?);
    let (left, right) = (at(&context, left.key(), None).await?, at(&context, right.key(), None).await?);
    // NOTE: Read with any types: the sessions may hold values that do not fit the agent's current schema.
    let comparison = compare_sessions(&left, &right, &context.untyped)?;
    let sides = SessionComparison { context: &context, left: &left, right: &right, comparison: &comparison };
    if json {
        show::line(sides.json()?.to_string());
    } else {
        sides.show();
    }
    Ok(CommandEnding::Done)
}

/// Two sessions side by side.
struct SessionComparison<'a> {
    context: &'a CommandContext,
    left: &'a Session,
    right: &'a Session,
    comparison: &'a Comparison,
}

impl SessionComparison<'_> {
    fn names(&self) -> (&str, &str) {
        (self.left.key.id.as_str(), self.right.key.id.as_str())
    }

    fn show(&self) {
        let cutter = LineCutter::new(false);
        for line in self.comparison.to_string().lines() {
            show::line(cutter.cut(line));
        }
        if cutter.has_cut() {
            show::note(format!(
                "lines are cut; `stepfold inspect {} --full` shows all",
                self.context.words()
            ));
        }
    }

    fn difference(&self, first: &FirstDifference) -> Option<String> {
        let (left, right) = self.names();
        first.difference.as_ref().map(|difference| difference.between(left, right))
    }

    fn json(&self) -> anyhow::Result<Value> {
        let (left, right) =
            (self.left.state(&self.context.untyped)?, self.right.state(&self.context.untyped)?);
        let changes = self.comparison.state.iter().filter(|change| change.key != MESSAGES).map(|change| {
            let value = |state: &stepfold::prelude::State| {
                state.get(change.key.as_str()).map(stepfold::state_core::state::ValueRef::to_json)
            };
            json!({"key": change.key, "left": value(&left), "right": value(&right)})
        });
        let events = |events: &[CommittedEvent]| {
            events.iter().map(|committed| event_json(committed, true)).collect::<Vec<_>>()
        };
        let (left_id, right_id) = self.names();
        Ok(json!({
            "common": self.comparison.common,
            "difference": self.comparison.first.as_ref().and_then(|first| self.difference(first)),
            "left": {"events": events(&self.comparison.left), "session": left_id},
            "right": {"events": events(&self.comparison.right), "session": right_id},
            "same": self.comparison.is_same(),
            "state": changes.collect::<Vec<_>>(),
        }))
    }
}
