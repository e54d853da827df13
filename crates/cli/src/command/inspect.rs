//! `stepfold inspect`: the log of a session, and its state.
//!
//! At a past version, `user:` and `app:` keys have their current values: other sessions write them as well.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stepfold::agent_loop::ApprovalRequest;
use stepfold::graph::progress::Progress;
use stepfold::prelude::*;
use stepfold::runner::log::{event_lines, readable_messages};
use stepfold::runner::{WaitingMessage, failure};
use stepfold::session_scopes::{
    CommittedEvent, EventRange, GetSession, Label, ReadLabels, Scope, Session, SessionKey, SessionSchema,
    SessionStore as _,
};
use stepfold::state_core::state::{MESSAGES, ValueRef, Write};

use crate::args::{SessionArgs, VersionName};
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::head::HistoryHead;
use crate::migrate::{ValueFit, fit};
use crate::show::{self, ActiveBranches, LineCutter};

/// Options of `stepfold inspect`.
pub(super) struct InspectOptions<'a> {
    pub(super) at: Option<&'a VersionName>,
    pub(super) diff: Option<&'a str>,
    pub(super) all: bool,
    /// Show long values in full.
    pub(super) full: bool,
}

pub(super) async fn inspect(
    target: &SessionArgs,
    what: &InspectOptions<'_>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target).await?;
    let handle = context.session().await?;
    let key = handle.key().clone();
    let cutter = LineCutter::new(what.full);
    if let Some(range) = what.diff {
        let (from, to) = versions(range)?;
        // NOTE: Read with any types: the session may hold values that do not fit the agent's current schema.
        let before = at(&context, &key, Some(&from)).await?.state(&context.untyped)?;
        let after = at(&context, &key, Some(&to)).await?.state(&context.untyped)?;
        if json {
            show::line(diff_json(&before, &after).to_string());
        } else {
            let diff = readable(after).diff(&readable(before)).to_string();
            diff.lines().for_each(|line| show::line(cutter.cut(line)));
            cutter.hint();
        }
        return Ok(CommandEnding::Done);
    }
    let session = at(&context, &key, what.at).await?;
    let (origin, state) = (origin(&context, &session).await?, session.state(&context.untyped)?);
    let labels = context.runner.store().labels(ReadLabels::new(key)).await?;
    let inbox = match session.inbox {
        0 => Vec::new(),
        _ => handle.inbox().await?,
    };
    // NOTE: A changed agent may be unable to tell its pending requests. A past version has none.
    let pending = match what.at {
        None => handle.pending().await.unwrap_or_default(),
        Some(_) => Vec::new(),
    };
    let (schema, is_graph) = (context.runner.schema(), context.speakers.is_some());
    let (session, all) = (&session, what.all);
    let view =
        SessionInspection { session, labels, inbox, pending, origin, state, all, is_graph, schema, cutter };
    if json {
        show::line(view.json().to_string());
    } else {
        view.show();
        view.cutter.hint();
    }
    Ok(CommandEnding::Done)
}

/// A session as it was at a version.
struct SessionInspection<'a> {
    session: &'a Session,
    labels: Vec<(Label, u64)>,
    /// The messages in its inbox.
    inbox: Vec<WaitingMessage>,
    /// The requests that wait for a decision.
    pending: Vec<ApprovalRequest>,
    /// The values before the first event of the log.
    origin: State,
    state: State,
    all: bool,
    is_graph: bool,
    /// The schema of the current agent.
    schema: &'a SessionSchema,
    cutter: LineCutter,
}

impl SessionInspection<'_> {
    /// The events up to the version, each with whether it counts at that version.
    fn events(&self) -> impl Iterator<Item = (&CommittedEvent, bool)> {
        let visible = &self.session.visible;
        let with = self.session.events.iter().map(|event| (event, visible.contains(event.version)));
        with.filter(|(_, counts)| *counts || self.all)
    }

    /// The visible writes of each key.
    fn writes(&self) -> BTreeMap<&str, KeyWrites<'_>> {
        let mut all: BTreeMap<&str, KeyWrites<'_>> = BTreeMap::new();
        for (committed, _) in self.events().filter(|(_, counts)| *counts) {
            for write in &committed.event.actions.delta {
                let of_key =
                    all.entry(write.key()).or_insert_with(|| KeyWrites { last: 0, writes: Vec::new() });
                of_key.last = committed.version;
                of_key.writes.push(write);
            }
        }
        all
    }

    /// Whether the value of a key is that of its last write here: of a key that other sessions share, if it is the result
    /// of the visible writes alone.
    fn is_origin(&self, key: &str, of_key: &KeyWrites<'_>) -> bool {
        let writes = of_key.writes.iter().copied();
        Scope::of(key) == Scope::Session || self.session.is_result_of(key, writes, self.schema)
    }

    /// The origin of a value, in words.
    fn origin_text(&self, key: &str, of_key: Option<&KeyWrites<'_>>) -> String {
        let Some(of_key) = of_key else { return "not written in this session".to_owned() };
        let handler = of_key.last_write().and_then(Write::handler);
        let handler = handler.map_or_else(|| "removal".to_owned(), ToString::to_string);
        let count = of_key.writes.len();
        let more = if count > 1 { format!(", the last of {count} writes") } else { String::new() };
        let here = format!("version {}, {handler}{more}", of_key.last);
        match self.is_origin(key, of_key) {
            true => here,
            // By another session, or by a step that is later, was rewound, or was deleted by retention.
            false => format!("changed elsewhere too; here: {here}"),
        }
    }

    fn show(&self) {
        self.show_head();
        show::line("");
        self.show_log();
        show::line("");
        self.show_state();
    }

    fn show_head(&self) {
        let Session { key, parent, .. } = self.session;
        let of = format!(" of {}/{}, version {}", key.app, key.user, self.session.version);
        show::line(show::styled(show::NAME, format!("session {}", key.id)).and(of));
        if let Some(head) = HistoryHead::of(self.session) {
            show::line(show::styled(show::DIM, format!("head {head}")));
        }
        if let Some(parent) = parent {
            show::line(format!("forked from {} at version {}", parent.id, parent.version));
        }
        // NOTE: Retention deletes old events: a log that begins later must not look complete.
        if self.session.oldest > 0 {
            show::line(format!("events up to version {} were deleted by retention", self.session.oldest));
        }
        for (label, version) in &self.labels {
            show::line(format!("label {label}: version {version}"));
        }
        for message in self.inbox.iter().map(show::message_text) {
            show::line(self.cutter.cut(&format!("stored, not answered yet: {message}")));
        }
        for request in &self.pending {
            show::line(stepfold::terminal::approval(request, stepfold::terminal::stdout_form()));
        }
    }

    fn show_log(&self) {
        let mut state = self.origin.clone();
        let mut at_work = ActiveBranches::default();
        for (committed, counts) in self.events() {
            for line in event_lines(committed, counts, &mut at_work) {
                show::row(&show::event(&self.cutter.cut(&line)), show::CONTENT);
            }
            if counts {
                let before = state.clone();
                if state.apply(&committed.event.actions.delta).is_ok() {
                    for change in self.changes(&state, &before) {
                        let before = format!("{:>width$}~ ", "", width = show::CONTENT);
                        show::row(
                            &show::key_and_value(&before, &self.cutter.cut(&change)),
                            show::CONTENT + 4,
                        );
                    }
                }
            }
        }
    }

    fn show_state(&self) {
        let writes = self.writes();
        for (key, value) in self.state.iter().filter(|(key, _)| *key != MESSAGES) {
            let by = self.origin_text(key, writes.get(key));
            let fit = match fit(self.session, self.schema, key) {
                ValueFit::Fits => String::new(),
                fit => format!("; {fit}"),
            };
            let value = self.cutter.cut(&format!("{key} = {value}"));
            let row = show::key_and_value("", &value).and("  ").with(show::DIM, format!("({by}{fit})"));
            show::row(&row, 4);
        }
    }

    /// The changes of an event, a line each. The keys that a graph keeps about its nodes are shown with the events.
    fn changes(&self, now: &State, before: &State) -> Vec<String> {
        let mut changes = show::changes(now, before);
        if self.is_graph {
            let progress = Progress::of(now).ok();
            changes.retain(|change| !show::is_own(change, progress.is_some()));
            if let Some(progress) = progress {
                changes.extend(show::progress_lines(Progress::of(before).ok().as_ref(), &progress));
            }
        }
        changes
    }

    fn json(&self) -> Value {
        let writes = self.writes();
        let state = self.state.iter().filter(|(key, _)| *key != MESSAGES).map(|(key, value)| {
            let by = writes.get(key).map(|of_key| {
                let by = json!({"version": of_key.last, "write": of_key.last_write(), "writes": of_key.writes.len()});
                (by, self.is_origin(key, of_key))
            });
            let (by, elsewhere) = match by {
                Some((by, false)) => (None, Some(by)),
                by => (by.map(|(by, _)| by), None),
            };
            let misfit = match fit(self.session, self.schema, key) {
                ValueFit::Fits => None,
                fit => Some(fit.to_string()),
            };
            let value = value.to_json();
            let mut row = json!({"misfit": misfit, "set_by": by, "value": value});
            if let Some(elsewhere) = elsewhere {
                row["changed_elsewhere"] = elsewhere;
            }
            (key.to_owned(), row)
        });
        let events = self.events().map(|(committed, counts)| event_json(committed, counts));
        json!({
            "app": self.session.key.app.as_str(),
            "created": self.session.created.to_string(),
            "events": events.collect::<Vec<_>>(),
            "head": HistoryHead::of(self.session).map(|head| head.to_string()),
            "inbox": self.inbox.iter().map(show::message_text).collect::<Vec<_>>(),
            "labels": self.labels.iter().map(|(label, version)| label_json(label, *version)).collect::<Vec<_>>(),
            "session": self.session.key.id.as_str(),
            "state": state.collect::<serde_json::Map<_, _>>(),
            "updated": self.session.updated.to_string(),
            "user": self.session.key.user.as_str(),
            "version": self.session.version,
            "waits": self.pending.iter().map(show::request_json).collect::<Vec<_>>(),
        })
    }
}

/// The visible writes of a key.
struct KeyWrites<'a> {
    /// The version of the last one.
    last: u64,
    writes: Vec<&'a Write>,
}

impl KeyWrites<'_> {
    fn last_write(&self) -> Option<&Write> {
        self.writes.last().copied()
    }
}

/// A label for programs.
pub(super) fn label_json(label: &Label, version: u64) -> Value {
    json!({"label": label.as_str(), "version": version})
}

/// An event for programs.
pub(super) fn event_json(committed: &CommittedEvent, counts: bool) -> Value {
    let event = &committed.event;
    let mut object = json!({
        "at": event.at.to_string(),
        "author": event.author.as_str(),
        "counts": counts,
        "delta": event.actions.delta,
        "invocation": event.invocation.as_str(),
        "kind": event.kind.as_str(),
        "messages": event.messages,
        "started": event.actions.started,
        "version": committed.version,
    });
    if let Some(cause) = failure(event) {
        object["failed"] = json!(cause);
    }
    object
}

/// The values before the first event of the log: those of the session's creation, or those that retention has kept. Values
/// shared with other sessions are left out: they do not follow from this log.
async fn origin(context: &CommandContext, session: &Session) -> anyhow::Result<State> {
    let get = GetSession::new(session.key.clone()).events(EventRange::None).at_version(session.oldest);
    let mut origin = context.runner.store().get(get).await?;
    if let Some(values) = &mut origin.values {
        (values.app, values.user) = Default::default();
    }
    Ok(origin.state(&context.untyped)?)
}

/// Reads a session at a version: its events, and its own values. Shared values are the current ones.
pub(super) async fn at(
    context: &CommandContext,
    key: &SessionKey,
    version: Option<&VersionName>,
) -> anyhow::Result<Session> {
    let version = match version {
        Some(version) => Some(context.version(key, version).await?),
        None => None,
    };
    let mut get = GetSession::new(key.clone());
    get.version = version;
    Ok(context.runner.store().get(get).await?)
}

/// Makes the messages of a state readable.
fn readable(mut state: State) -> State {
    let messages = readable_messages(state.messages().iter().map(|message| &**message));
    state.replace_messages(messages);
    state
}

fn diff_json(before: &State, after: &State) -> Value {
    let diff = after.diff(before);
    let changes = diff.iter().map(|change| {
        let value = |state: &State| state.get(change.key.as_str()).map(ValueRef::to_json);
        json!({"after": value(after), "before": value(before), "key": change.key})
    });
    Value::Array(changes.collect())
}

fn versions(range: &str) -> anyhow::Result<(VersionName, VersionName)> {
    let read = |text: &str| Some(text.trim()).filter(|text| !text.is_empty())?.parse::<VersionName>().ok();
    let versions = range.split_once("..").and_then(|(from, to)| Some((read(from)?, read(to)?)));
    let misuse =
        || UsageError(format!("invalid range of versions `{range}`: expected FROM..TO, such as 2..5"));
    Ok(versions.ok_or_else(misuse)?)
}
