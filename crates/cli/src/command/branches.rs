//! `stepfold forks`, `compare` and `label`: finding one's way among versions and forks.

use serde_json::{Value, json};
use stepfold::runner::{Comparison, FirstDifference, compare as compare_sessions};
use stepfold::session_scopes::{
    CommittedEvent, Label, LabelVersion, ListForks, ReadLabels, Session, SessionStore as _,
};
use stepfold::state_core::state::MESSAGES;

use super::inspect::{at, event_json, event_lines, label_json, recorded};
use crate::args::{At, Place};
use crate::desk::Desk;
use crate::error::{Ending, Misuse};
use crate::show::{self, Cutter, Stage, counted};

pub(super) async fn forks(place: &Place, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::to_read(place)?;
    let session = desk.session().await?;
    let forks = desk.runner.store().forks(ListForks::new(session.key().clone())).await?;
    if json {
        let forks = forks.iter().map(|fork| {
            json!({"created": fork.created.to_string(), "session": fork.id.as_str(), "version": fork.version})
        });
        show::line(Value::Array(forks.collect()).to_string());
        return Ok(Ending::Done);
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
    Ok(Ending::Done)
}

pub(super) async fn set_label(
    place: &Place,
    label: &str,
    at: Option<&At>,
    json: bool,
) -> anyhow::Result<Ending> {
    let desk = Desk::to_write(place)?;
    let label = new_label(label)?;
    let session = desk.session().await?;
    let key = session.key().clone();
    let version = match at {
        Some(at) => desk.version(&key, at).await?,
        None => session.read(stepfold::session_scopes::EventRange::None).await?.version,
    };
    let was = desk.runner.store().set_label(LabelVersion::new(key.clone(), label.clone(), version)).await?;
    let id = key.id.as_str();
    show::line(if json {
        json!({"label": label.as_str(), "session": id, "version": version, "was": was}).to_string()
    } else {
        let was = was.filter(|was| *was != version).map(|was| format!(" (was version {was})"));
        format!("label {label} of session {id}: version {version}{}", was.unwrap_or_default())
    });
    Ok(Ending::Done)
}

pub(super) async fn remove_label(place: &Place, label: &str, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::to_write(place)?;
    let session = desk.session().await?;
    let (key, id) = (session.key().clone(), session.key().id.as_str());
    // One that does not exist is told with those that do.
    desk.version(&key, &At::Label(label.to_owned())).await?;
    let was = desk.runner.store().set_label(LabelVersion::removal(key.clone(), Label::new(label)?)).await?;
    show::line(if json {
        json!({"label": label, "session": id, "was": was}).to_string()
    } else {
        let was = was.map(|was| format!(" (was version {was})"));
        format!("label {label} of session {id} is removed{}", was.unwrap_or_default())
    });
    Ok(Ending::Done)
}

pub(super) async fn labels(place: &Place, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::to_read(place)?;
    let session = desk.session().await?;
    let labels = desk.runner.store().labels(ReadLabels::new(session.key().clone())).await?;
    if json {
        let labels = labels.iter().map(|(label, version)| label_json(label, *version));
        show::line(Value::Array(labels.collect()).to_string());
        return Ok(Ending::Done);
    }
    let width = labels.iter().map(|(label, _)| label.as_str().chars().count()).max().unwrap_or(0);
    for (label, version) in &labels {
        let name = show::styled(show::NAME, format!("{:width$}", label.as_str()));
        show::line(name.and(format!("  version {version}")));
    }
    if labels.is_empty() {
        show::note(format!("session {} has no labels", session.key().id));
    }
    Ok(Ending::Done)
}

/// A label that can be told from a version, and from a range of them.
fn new_label(text: &str) -> anyhow::Result<Label> {
    let why = match text.parse::<At>() {
        Ok(At::Version(_)) => "a number names a version",
        _ if text.contains("..") => "`..` stands between two versions",
        _ if text != text.trim() => "it begins or ends with a space",
        _ => return Ok(Label::new(text)?),
    };
    Err(Misuse(format!("invalid label `{text}`: {why}; choose another name")).into())
}

pub(super) async fn compare(place: &Place, left: &str, right: &str, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::to_read(place)?;
    let (left, right) = (desk.session_named(left).await?, desk.session_named(right).await?);
    let (left, right) = (at(&desk, left.key(), None).await?, at(&desk, right.key(), None).await?);
    // Whatever the agent declares today: what is stored can be read.
    let comparison = compare_sessions(&left, &right, &desk.untyped)?;
    let sides = Sides { desk: &desk, left: &left, right: &right, comparison: &comparison };
    if json {
        show::line(sides.json()?.to_string());
    } else {
        sides.show()?;
    }
    Ok(Ending::Done)
}

/// Two sessions side by side.
struct Sides<'a> {
    desk: &'a Desk,
    left: &'a Session,
    right: &'a Session,
    comparison: &'a Comparison,
}

impl Sides<'_> {
    fn names(&self) -> (&str, &str) {
        (self.left.key.id.as_str(), self.right.key.id.as_str())
    }

    fn show(&self) -> anyhow::Result<()> {
        let (left, right) = self.names();
        let Comparison { common, first, .. } = self.comparison;
        if self.comparison.is_same() {
            show::line(format!("{left} and {right} are the same, up to version {common}"));
            return Ok(());
        }
        show::line(match common {
            0 => format!("{left} and {right} have no event in common"),
            common => format!("{left} and {right} are the same up to version {common}"),
        });
        let cutter = Cutter::new(false);
        for (session, only) in [(self.left, &self.comparison.left), (self.right, &self.comparison.right)] {
            show_events(session, only, &cutter);
        }
        if let Some(difference) = first.as_ref().and_then(|first| self.difference(first)) {
            show::line(format!("the first event after that {difference}"));
        }
        let changes = self.changes()?;
        if !changes.is_empty() {
            show::line(format!("state, from {left} to {right}:"));
            for change in &changes {
                show::line(cutter.cut(&format!("  ~ {change}")));
            }
        }
        if cutter.has_cut() {
            show::note(format!("lines are cut; `stepfold inspect {} --full` shows all", self.desk.words()));
        }
        Ok(())
    }

    fn difference(&self, first: &FirstDifference) -> Option<String> {
        let (left, right) = self.names();
        first.difference.as_ref().map(|difference| difference.between(left, right))
    }

    /// What differs in the state. The conversation is in the events.
    fn changes(&self) -> anyhow::Result<Vec<String>> {
        let (left, right) = (self.left.state(&self.desk.untyped)?, self.right.state(&self.desk.untyped)?);
        Ok(show::changes(&right, &left))
    }

    fn json(&self) -> anyhow::Result<Value> {
        let (left, right) = (self.left.state(&self.desk.untyped)?, self.right.state(&self.desk.untyped)?);
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

/// The events that one session has and the other one has not.
fn show_events(session: &Session, only: &[CommittedEvent], cutter: &Cutter) {
    let id = session.key.id.as_str();
    let Some(first) = only.first() else {
        return show::line(format!("only in {id}: nothing"));
    };
    show::line(format!("only in {id}, {}:", counted(only.len() as u64, "event")));
    // The branches of a graph at work are those of the events before.
    let mut stage = Stage::default();
    let before = session.visible_events().take_while(|committed| committed.version < first.version);
    before.filter_map(|committed| recorded(&committed.event)).for_each(|event| stage.commit(&event));
    for committed in only {
        for line in event_lines(committed, true, &mut stage) {
            show::line(cutter.cut(&line));
        }
    }
}
