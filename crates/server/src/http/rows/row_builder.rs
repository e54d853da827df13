//! Builds the rows of commits: a commit mentions calls and branches by their places, and its row names them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;
use stepfold_agent_loop::state_core::chat::{Cost, ToolCall, ToolContent, ToolResult, Usage};
use stepfold_agent_loop::tools::{CallFailure, CallStatus};
use stepfold_agent_loop::{
    AnsweredItem, CallDisposition, Decision, Event, EventKind, NEWEST_FORMAT_VERSION, NodeStatus,
    PlannedBranch, RecordedOutcome,
};
use stepfold_runner::RECORD_FORMAT;
use stepfold_session_scopes::{CommittedEvent, EventRange, Session};

use super::convert::json;
use super::event::{
    DecidedRow, EditedRow, EventRow, HookAnswerRow, HookRow, ItemKind, ItemRow, OutcomeRow, OutcomeStatus,
    QuestionRow,
};
use super::pricing::{AppPricing, dollars};
use super::request::CallRow;

/// The number of commits before a page that are read to name what its first ones mention. A step with more of them has
/// places in the place of names there.
pub(in crate::http) const BEFORE: usize = 64;

/// The number of commits that are kept, so that those after a rewind are named as well.
const MAX_COMMITS: usize = 4_096;

/// The bytes of those commits.
const MAX_COMMIT_BYTES: usize = 1 << 20;

/// Reads commits in order, each of which names what the ones before it have begun.
pub(in crate::http) struct RowBuilder {
    items: StepItems,
    /// The run's time of the commit before.
    elapsed_us: Option<u64>,
    /// The newest commits that count.
    kept: VecDeque<CommittedEvent>,
    /// The bytes of these commits.
    bytes: usize,
    pricing: Arc<AppPricing>,
    /// The token usage of the newest commit.
    reply_usage: Option<ReplyUsage>,
}

/// The token usage of a reply or a summary, and its cost.
pub(in crate::http) struct ReplyUsage {
    pub(in crate::http) model: String,
    pub(in crate::http) usage: Usage,
    /// Absent without a price.
    pub(in crate::http) cost: Option<Cost>,
}

/// The items of a step: the calls of a reply, or the branches of a superstep; and of the runs inside of them.
#[derive(Default)]
struct StepItems {
    calls: Vec<ToolCall>,
    branches: Vec<PlannedBranch>,
    inner: BTreeMap<usize, StepItems>,
    /// The written keys of this step, by the place of their writer.
    writers: BTreeMap<usize, Vec<String>>,
}

/// The range of a page with what stands before it.
pub(in crate::http) fn page(after: u64, limit: usize) -> EventRange {
    let before = usize::try_from(after).unwrap_or(usize::MAX).min(BEFORE);
    let first = after.saturating_sub(BEFORE as u64);
    EventRange::Page { after: first, limit: before.saturating_add(limit) }
}

/// The rows of a page that was read with [`page`].
pub(in crate::http) fn rows(
    session: &Session,
    after: u64,
    limit: usize,
    pricing: &Arc<AppPricing>,
) -> Vec<EventRow> {
    let mut rows = RowBuilder::new(pricing);
    let all = session.events.iter().map(|event| rows.row(event, session.visible.contains(event.version)));
    all.filter(|row| row.version > after).take(limit).collect()
}

/// The event of a run that a commit is. A newer worker's record is not read; what stands beside it is told anyway.
pub(in crate::http) fn event_of(committed: &CommittedEvent) -> Option<Event> {
    let record = committed.event.record.as_ref()?;
    // NOTE: A newer worker may share the store during a deployment; its rows have no names, but their messages and writes.
    let is_known = record.format == RECORD_FORMAT && record.version <= NEWEST_FORMAT_VERSION;
    let event = is_known.then(|| record.read::<Event>().ok()).flatten()?;
    // Messages and writes of the run itself stand beside its record.
    Some(event.with_content(committed.event.messages.clone(), committed.event.actions.delta.clone()))
}

/// The bytes of a commit of a run: of its record and its messages.
fn bytes_of(committed: &CommittedEvent) -> usize {
    let record = committed.event.record.as_ref().map_or(0, |record| record.text().len());
    committed.event.messages.iter().map(|message| message.text().len()).sum::<usize>() + record
}

impl RowBuilder {
    pub(in crate::http) fn new(pricing: &Arc<AppPricing>) -> Self {
        let pricing = Arc::clone(pricing);
        RowBuilder {
            items: StepItems::default(),
            elapsed_us: None,
            kept: VecDeque::new(),
            bytes: 0,
            pricing,
            reply_usage: None,
        }
    }

    /// The row of the next commit.
    pub(in crate::http) fn row(&mut self, committed: &CommittedEvent, visible: bool) -> EventRow {
        let mut row = EventRow::of(committed, visible);
        self.reply_usage = None;
        if let Some(to) = committed.event.actions.rewound_to() {
            self.rewind(to);
        }
        let Some(event) = event_of(committed) else { return row };
        // NOTE: A rewind returns to commits that were read before; they name the items of its step.
        self.keep(committed);
        self.describe(&event, &mut row);
        row
    }

    /// Keeps a commit, and forgets the oldest ones beyond what is kept.
    fn keep(&mut self, committed: &CommittedEvent) {
        self.bytes += bytes_of(committed);
        self.kept.push_back(committed.clone());
        while self.kept.len() > MAX_COMMITS || (self.bytes > MAX_COMMIT_BYTES && self.kept.len() > 1) {
            self.bytes -= self.kept.pop_front().as_ref().map_or(0, bytes_of);
        }
    }

    /// Takes what the newest commit has used, if it is a reply or a summary.
    pub(in crate::http) fn take_reply_usage(&mut self) -> Option<ReplyUsage> {
        self.reply_usage.take()
    }

    fn describe(&mut self, event: &Event, row: &mut EventRow) {
        let elapsed = u64::try_from(event.elapsed.as_micros()).unwrap_or(u64::MAX);
        let begins = matches!(event.kind, EventKind::Began { .. });
        row.latency_us = match self.elapsed_us {
            Some(before) if !begins => elapsed.checked_sub(before),
            _ => None,
        };
        self.elapsed_us = Some(elapsed);
        (row.step, row.elapsed_us) = (Some(event.step), Some(elapsed));
        self.items.describe(event, row);
        if let EventKind::Answered(_) = event.kind {
            self.items.name_writers(row);
        }
        if let Some(usage) = reply_usage(event) {
            let (path, reported) = (&row.path, row.model.as_deref());
            let cost = self.pricing.cost(path, reported, usage);
            let model = self.pricing.model(path, reported).unwrap_or_default().into_owned();
            row.cost = cost.map(dollars);
            self.reply_usage = Some(ReplyUsage { model, usage: *usage, cost });
        }
    }

    /// Goes back to where the session was at a version: what came after it has begun nothing that is named later.
    fn rewind(&mut self, to: u64) {
        self.kept.retain(|committed| committed.version <= to);
        self.bytes = self.kept.iter().map(bytes_of).sum();
        (self.items, self.elapsed_us) = (StepItems::default(), None);
        // NOTE: The items of a step are those of its first commit: earlier commits name none of it.
        let begins_step = |committed: &&CommittedEvent| {
            matches!(committed.event.kind.as_str(), "began" | "replied" | "planned")
        };
        let since = self.kept.iter().rev().position(|committed| begins_step(&committed));
        let since = since.map_or(0, |back| self.kept.len() - 1 - back);
        for committed in self.kept.clone().iter().skip(since) {
            if let Some(event) = event_of(committed) {
                self.describe(&event, &mut EventRow::of(committed, true));
            }
        }
        self.reply_usage = None;
    }
}

/// The tokens of a reply or a summary, also inside.
fn reply_usage(event: &Event) -> Option<&Usage> {
    match &event.kind {
        EventKind::Inner { event, .. } => reply_usage(event),
        EventKind::Replied { usage, .. } | EventKind::Summarized { usage, .. } => {
            (*usage != Usage::default()).then_some(usage)
        }
        _ => None,
    }
}

impl StepItems {
    /// Fills in what an event is about, and takes note of what it begins.
    fn describe(&mut self, event: &Event, row: &mut EventRow) {
        // Those of a run inside are its own.
        if !row.path.is_empty() {
            row.messages = event.messages.iter().map(|message| json(&**message)).collect();
        }
        match &event.kind {
            EventKind::Inner { place, event } => {
                row.path.push(self.item(*place));
                event.name().clone_into(&mut row.kind);
                self.inner.entry(*place).or_default().describe(event, row);
            }
            EventKind::Replied { usage, model, fates, .. } => {
                let calls = event.messages.first().into_iter().flat_map(|reply| reply.tool_calls());
                *self = StepItems { calls: calls.cloned().collect(), ..StepItems::default() };
                row.calls = self.calls.iter().map(CallRow::of).collect();
                row.asked = self.asked(fates);
                (row.usage, row.model) = (Some((*usage).into()), model.clone());
            }
            EventKind::Planned { branches, exit: None, .. } => {
                *self = StepItems { branches: branches.clone(), ..StepItems::default() };
                row.planned = (0..branches.len()).map(|place| self.item(place)).collect();
            }
            EventKind::Asked { fates, .. } => row.asked = self.asked(fates),
            EventKind::Asks { place, requests } => {
                let question = |message: &Option<String>| QuestionRow {
                    call: self.call(*place),
                    message: message.clone(),
                };
                row.asked = requests.iter().map(|request| question(&request.message)).collect();
            }
            EventKind::Started { places } | EventKind::Interrupted { places, .. } => {
                row.started = places.iter().map(|place| self.item(*place)).collect();
            }
            EventKind::Answered(items) => {
                row.outcomes = items.iter().map(|item| self.outcome(item, event)).collect();
                let wrote = row.outcomes.iter().map(|outcome| outcome.wrote.clone());
                self.writers.extend(items.iter().map(|item| item.place).zip(wrote));
            }
            EventKind::Decided { decisions, by, .. } => {
                row.decided_by.clone_from(by);
                row.decisions = decisions.iter().map(decided).collect();
            }
            EventKind::Edited { results, arguments, by, .. } => {
                row.decided_by.clone_from(by);
                let results =
                    results.iter().map(|result| (result.call_id().to_owned(), value_and_error(result).0));
                let arguments = arguments.iter().cloned().collect();
                row.edited = Some(EditedRow { results: results.collect(), arguments });
            }
            EventKind::Hooked { point, verdict, answers, writes } => {
                let answered = |(place, result): &(usize, String)| HookAnswerRow {
                    item: self.item(*place),
                    result: result.clone(),
                };
                let keys =
                    writes.iter().flat_map(|(_, delta)| delta.iter().map(|write| write.key().to_owned()));
                row.hook = Some(HookRow {
                    point: point.to_string(),
                    verdict: json(verdict),
                    answers: answers.iter().map(answered).collect(),
                    wrote: keys.collect(),
                });
            }
            EventKind::Summarized { summary, error, usage } => {
                row.usage = (*usage != Usage::default()).then(|| (*usage).into());
                row.summary =
                    summary.as_ref().map(|summary| summary.text().to_owned()).or_else(|| error.clone());
            }
            EventKind::Narrowed { .. } => row.summary = event.kind.narrowing(),
            EventKind::Upgraded { .. } => row.summary = event.kind.upgrade(),
            _ => {}
        }
    }

    /// Names the call or branch of each write. Those of a step are merged in the order of their places.
    fn name_writers(&self, row: &mut EventRow) {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for write in &mut row.writes {
            let before = seen.entry(&write.key).or_default();
            let places = self
                .writers
                .iter()
                .flat_map(|(place, keys)| keys.iter().filter(|key| **key == write.key).map(move |_| *place));
            write.by = places.into_iter().nth(*before).map(|place| self.item(place).into());
            *before += 1;
        }
    }

    /// The item at a place.
    fn item(&self, place: usize) -> ItemRow {
        match (self.calls.get(place), self.branches.get(place)) {
            (Some(call), _) => {
                ItemRow { call_id: call.id.clone(), name: call.name.clone(), kind: ItemKind::Tool, place }
            }
            (None, Some(branch)) => {
                let call_id = match branch.item {
                    Some(_) => format!("{}#{place}", branch.node),
                    None => branch.node.clone(),
                };
                ItemRow { call_id, name: branch.node.clone(), kind: ItemKind::Node, place }
            }
            (None, None) => {
                ItemRow { call_id: format!("#{place}"), name: String::new(), kind: ItemKind::Tool, place }
            }
        }
    }

    /// The call at a place; of a branch, its node with its item.
    fn call(&self, place: usize) -> CallRow {
        if let Some(found) = self.calls.get(place) {
            return CallRow::of(found);
        }
        let ItemRow { call_id, name, .. } = self.item(place);
        let item = self.branches.get(place).and_then(|branch| branch.item.clone());
        CallRow { id: call_id, name, arguments: item.unwrap_or_default() }
    }

    fn asked(&self, fates: &[(usize, CallDisposition)]) -> Vec<QuestionRow> {
        let asked = fates.iter().filter(|(_, fate)| matches!(fate, CallDisposition::Ask(_)));
        asked.map(|(place, _)| QuestionRow { call: self.call(*place), message: None }).collect()
    }

    fn outcome(&self, item: &AnsweredItem, event: &Event) -> OutcomeRow {
        let ItemRow { call_id, name, kind, .. } = self.item(item.place);
        let shared = item.writes.map(|(first, count)| event.delta.iter().skip(first).take(count));
        let shared = shared.into_iter().flatten();
        let (status, result, error, attempts, own) = match &item.outcome {
            RecordedOutcome::Call(recorded) => {
                let mut messages = event.messages.iter().filter_map(|message| message.tool_result());
                let result = recorded.result.as_ref();
                let result = result.or_else(|| messages.find(|result| result.call_id() == call_id));
                let (result, error) = result.map_or((Value::Null, None), value_and_error);
                (status(recorded.status), result, error, recorded.tries, &recorded.delta)
            }
            RecordedOutcome::Node(outcome) => {
                let status = match outcome.status {
                    NodeStatus::Succeeded => OutcomeStatus::Done,
                    _ => OutcomeStatus::Failed,
                };
                (status, Value::Null, outcome.error.clone(), outcome.tries, &outcome.delta)
            }
            _ => return OutcomeRow { call_id, name, kind, ..OutcomeRow::default() },
        };
        let wrote: Vec<String> = shared.chain(own).map(|write| write.key().to_owned()).collect();
        OutcomeRow { call_id, name, kind, status, result, error, attempts, wrote }
    }
}

/// A result, and the error if it is one.
fn value_and_error(result: &ToolResult) -> (Value, Option<String>) {
    match result.content() {
        ToolContent::Value(value) => (value.clone(), None),
        ToolContent::Error(error) => (Value::Null, Some(error.clone())),
        _ => (Value::String(result.text().into_owned()), None),
    }
}

fn decided((request, decision): &(String, Decision)) -> DecidedRow {
    DecidedRow { request: request.clone(), decision: json(decision) }
}

const fn status(status: CallStatus) -> OutcomeStatus {
    match status {
        CallStatus::Succeeded => OutcomeStatus::Done,
        CallStatus::Failed(CallFailure::Rejected) => OutcomeStatus::Rejected,
        CallStatus::Cancelled | CallStatus::NotStarted => OutcomeStatus::Cancelled,
        CallStatus::Unknown => OutcomeStatus::Unknown,
        _ => OutcomeStatus::Failed,
    }
}
