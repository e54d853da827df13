//! Replay: a recorded run goes through the machine again, without model and tools.
//!
//! Every event is made anew from what came from outside (the reply, the outcome, the decision, what hooks
//! said) and compared with the recorded one. So a replay against a changed agent says where the run would have
//! gone another way, before anybody deploys it.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use stepfold_state_core::chat::{Chunk, Message, Reply, ReplyBuilder, Usage};
use stepfold_state_core::state::{Delta, Write};

use crate::agent::{Agent, Fingerprint};
use crate::error::FeedError;
use crate::observe::{Observer, ObserverError, RunEvent};
use crate::run::{
    Answer, Event, EventKind, Exit, FORMAT_VERSION, Fate, HookReport, LoadError, Need, Run, check_version,
};

/// Everything that is needed to go through a run again: where it began, and its events.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// # use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::{Agent, Recording, Run};
///
/// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
/// let run = Run::new(&agent, "which area has most stalls?", "run-1")?;
/// let mut recording = Recording::of(&run);
/// let outcome = run.resume().observe(&mut recording).await?;
///
/// // Next year, without a model:
/// let stored = serde_json::to_string(&recording)?;
/// let replayed = Recording::from_json(&stored)?.replay(&agent)?;
/// assert_eq!(replayed.digest(), outcome.run().digest());
///
/// // With an agent that may not take a step more:
/// let changed = agent.to_builder().instructions("Be brief.").build()?;
/// let divergence = Recording::from_json(&stored)?.replay(&changed).unwrap_err();
/// assert_eq!(divergence.to_string(), "\
/// event 0 (began, step 0) differs at $.kind.began.instructions: recorded nothing, replayed \"Be brief.\"");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Recording {
    version: u64,
    agent: Fingerprint,
    /// The run before its first event.
    start: Box<RawValue>,
    events: Vec<Event>,
    /// Why the run ended, if the end was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<Exit>,
}

#[derive(Deserialize)]
struct Stored {
    agent: Fingerprint,
    start: Box<RawValue>,
    events: Vec<Event>,
    #[serde(default)]
    ended: Option<Exit>,
}

impl Recording {
    /// A recording of a run that has not begun; it is an [`Observer`] that takes the events.
    pub fn of(run: &Run) -> Self {
        Recording {
            version: FORMAT_VERSION,
            agent: run.agent().fingerprint().clone(),
            start: RawValue::from_string(run.to_json()).unwrap_or_default(),
            events: Vec::new(),
            ended: None,
        }
    }

    /// A recording that was stored.
    ///
    /// # Errors
    /// [`LoadError`] when it cannot be read or is of a newer format.
    pub fn from_json(json: &str) -> Result<Self, LoadError> {
        check_version(json, "recording")?;
        let Stored { agent, start, events, ended } =
            serde_json::from_str(json).map_err(|source| LoadError::Json { what: "recording", source })?;
        Ok(Recording { version: FORMAT_VERSION, agent, start, events, ended })
    }

    /// Takes the next event: for hosts that are no observers, and for records that were kept in parts.
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// What the agent was when the run was recorded.
    pub fn agent(&self) -> &Fingerprint {
        &self.agent
    }

    /// Goes through the run again with this agent, which asks neither its model nor its tools.
    ///
    /// # Errors
    /// [`Divergence`] for the first event that would be another one, and for a run that ended and would not
    /// end there, or for another reason. A record that stops in the middle replays to where it stops.
    pub fn replay(&self, agent: &Agent) -> Result<Run, Divergence> {
        let (run, _) = Run::load_changed(agent, self.start.get()).map_err(Divergence::Start)?;
        let run = run.replay(&self.events, |_| true)?;
        match &self.ended {
            Some(exit) if !exit.is_resumable() && run.exit() != Some(exit) => {
                Err(Divergence::End { recorded: exit.clone(), need: format!("{:?}", run.decide()) })
            }
            _ => Ok(run),
        }
    }
}

impl Run {
    /// Goes through recorded events, asking neither model nor tools: the run is as it was before them.
    ///
    /// `stored` picks the writes that the record can have: those that it leaves out are not compared.
    ///
    /// # Errors
    /// [`Divergence`] for the first event that would be another one.
    pub fn replay(self, events: &[Event], stored: impl Fn(&Write) -> bool) -> Result<Run, Divergence> {
        let mut run = self;
        for (place, recorded) in events.iter().enumerate() {
            let at = |difference| Divergence::At {
                event: place,
                name: recorded.name(),
                step: recorded.step,
                difference,
            };
            let made = made_again(&run, recorded).map_err(at)?;
            let mut compared = made.clone();
            compared.retain_writes(&stored);
            if compared != *recorded {
                return Err(at(Box::new(first_difference(recorded, &compared))));
            }
            run.commit(made).map_err(|error| at(Box::new(Difference::Refused(error))))?;
        }
        Ok(run)
    }
}

/// The event that the run makes of what came from outside when the recorded one was made.
fn made_again(run: &Run, recorded: &Event) -> Result<Event, Box<Difference>> {
    let refused = |error| Box::new(Difference::Refused(error));
    let answer = match &recorded.kind {
        // The run of an agent that is a node is gone through by itself.
        EventKind::Inner { branch, event } if run.walk().is_some() => {
            let child = run.child_of(*branch).map_err(refused)?;
            let event = Box::new(made_again(&child, event)?);
            Some(Answer::Inner { branch: *branch, event })
        }
        _ => answer_in(recorded, run),
    };
    let answer = answer.ok_or_else(|| {
        let need = format!("{:?}", run.decide());
        Box::new(Difference::NotNeeded { need })
    })?;
    let mut made = run.feed(answer, recorded.elapsed).map_err(refused)?;
    if run.tools().is_none() {
        take_asking(&mut made, recorded);
    }
    take_lasting(&mut made, recorded, run);
    take_id(&mut made, recorded);
    Ok(made)
}

/// The instructions of a record that outlives the run have no values that do not last.
fn take_lasting(made: &mut Event, recorded: &Event, run: &Run) {
    if let (EventKind::Began { instructions, .. }, EventKind::Began { instructions: Some(known), .. }) =
        (&mut made.kind, &recorded.kind)
        && instructions.as_ref() != Some(known)
        && run.lasting_instructions().as_ref() == Some(known)
    {
        *instructions = Some(known.clone());
    }
}

/// What a run is called says nothing about what it does.
fn take_id(made: &mut Event, recorded: &Event) {
    if let (EventKind::Began { id, .. }, EventKind::Began { id: known, .. }) =
        (&mut made.kind, &recorded.kind)
    {
        id.clone_from(known);
    }
}

impl Observer for Recording {
    async fn observe(&mut self, event: &RunEvent) -> Result<(), ObserverError> {
        match event {
            RunEvent::Committed(event) => {
                self.ended = None;
                self.events.push((**event).clone());
            }
            RunEvent::Ended(exit) => self.ended = Some(exit.clone()),
            _ => {}
        }
        Ok(())
    }
}

/// Where a replay goes another way than the record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Divergence {
    /// The run cannot begin with this agent.
    #[error("the recorded run cannot begin with this agent")]
    Start(#[source] LoadError),
    /// An event would be another one.
    #[error("event {event} ({name}, step {step}) {difference}")]
    At {
        /// The place of the event in the recording, from 0.
        event: usize,
        /// What was recorded, in one word.
        name: &'static str,
        /// The step it belongs to.
        step: u64,
        /// What is different.
        difference: Box<Difference>,
    },
    /// All events are the same, and the end is another.
    #[error("the recorded run ended here, because {recorded}; the run would need {need}")]
    End {
        /// Why the recorded run ended.
        recorded: Exit,
        /// What the run would need.
        need: String,
    },
}

/// What is different.
#[derive(Debug)]
#[non_exhaustive]
pub enum Difference {
    /// The run would need something else at this point, or would have ended.
    NotNeeded {
        /// What it would need.
        need: String,
    },
    /// The run refuses what was recorded.
    Refused(FeedError),
    /// The event would have another value at this place.
    Value {
        /// A JSON path into the event.
        path: String,
        /// What was recorded; none if nothing was.
        recorded: Option<Value>,
        /// What the replay gives; none if nothing.
        replayed: Option<Value>,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |value: &Option<Value>| match value {
            None => "nothing".to_owned(),
            Some(value) => shortened(&value.to_string()),
        };
        match self {
            Difference::NotNeeded { need } => {
                write!(f, "does not come: the run would need {}", shortened(need))
            }
            Difference::Refused(error) => write!(f, "is refused: {error}"),
            Difference::Value { path, recorded, replayed } => {
                write!(f, "differs at {path}: recorded {}, replayed {}", words(recorded), words(replayed))
            }
        }
    }
}

/// Values in an error are for people.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(200) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

/// Tools that are asked for anew at each step are not in the record, so that whether they need agreement is
/// taken from it.
fn take_asking(made: &mut Event, recorded: &Event) {
    let (EventKind::Replied { fates, .. }, EventKind::Replied { fates: known, .. }) =
        (&mut made.kind, &recorded.kind)
    else {
        return;
    };
    let asking = known.iter().filter(|(_, fate)| matches!(fate, Fate::Ask(_)));
    let asking: Vec<_> =
        asking.filter(|(place, _)| fates.iter().all(|(at, _)| at != place)).cloned().collect();
    fates.extend(asking);
    fates.sort_by_key(|(place, _)| *place);
}

/// What came from outside when the event was made; none if the run needs something else now.
fn answer_in(event: &Event, run: &Run) -> Option<Answer> {
    let need = run.decide();
    Some(match (&event.kind, need) {
        (EventKind::Began { .. }, Need::Begin) => Answer::Begin,
        (EventKind::Hooked { point, verdict, answers, writes }, Need::Hook(needed)) if needed == *point => {
            let is_open = event.step_end.is_some();
            let mut report = HookReport::new(*point);
            report.delta = if is_open { Delta::default() } else { event.delta.clone() };
            report.rewrite.clone_from(&event.rewrite);
            report.messages = if is_open { Vec::new() } else { event.messages.clone() };
            report.verdict = verdict.clone();
            report.answers.clone_from(answers);
            report.writes.clone_from(writes);
            Answer::Hooked(report)
        }
        (EventKind::Summarized { summary, error, usage }, Need::Summary(_)) => {
            Answer::Summary(match (summary, error) {
                (Some(summary), _) => Ok((summary.text().to_owned(), *usage)),
                // It was answered, so it cost something, but it was blank.
                (None, _) if *usage != Usage::default() => Ok((String::new(), *usage)),
                (None, error) => Err(error.clone().unwrap_or_default()),
            })
        }
        (EventKind::Steered, Need::Model | Need::Hook(_)) => {
            Answer::Steer(event.messages.iter().map(|message| (**message).clone()).collect())
        }
        (EventKind::Replied { .. }, Need::Model) => Answer::Reply(reply_in(event)?),
        (EventKind::Decided { decisions }, Need::Approval) => Answer::Decisions(decisions.clone()),
        // Where calls run side by side, one may be under way or wait while another gets on.
        (EventKind::Started { calls }, Need::Calls | Need::Nodes | Need::Interrupted | Need::Approval) => {
            Answer::Started(calls.clone())
        }
        (
            EventKind::Answered { call, outcome, usage, stop },
            Need::Calls | Need::Interrupted | Need::Approval,
        ) => Answer::Outcome { call: *call, outcome: outcome.clone(), usage: *usage, stop: stop.clone() },
        (
            EventKind::Suspended { call, child, requests },
            Need::Calls | Need::Interrupted | Need::Approval,
        ) => Answer::Suspended { call: *call, child: child.clone(), requests: requests.clone() },
        (EventKind::Planned { .. }, Need::Superstep) => Answer::Plan,
        (
            EventKind::NodeAnswered { branch, outcome, usage },
            Need::Nodes | Need::Interrupted | Need::Approval,
        ) => {
            // What an agent came to is in its run; but how long it took is not.
            let again = run.outcome_of_agent(*branch).filter(|_| outcome.status.is_success());
            let outcome = again.unwrap_or_else(|| outcome.clone());
            Answer::Node { branch: *branch, outcome, usage: *usage }
        }
        (EventKind::NodeAsked { branch, requests }, Need::Nodes | Need::Interrupted | Need::Approval) => {
            Answer::NodeAsks { branch: *branch, requests: requests.clone() }
        }
        (EventKind::Interrupted { .. }, Need::Interrupted) => Answer::Interrupted,
        (EventKind::Cancelled, _) => Answer::Cancelled,
        (EventKind::TimedOut, _) => Answer::TimedOut,
        _ => return None,
    })
}

/// The reply that an event was made from. Its calls have unique ids already, which it keeps.
fn reply_in(event: &Event) -> Option<Reply> {
    let EventKind::Replied { finish_reason, usage, id, model, .. } = &event.kind else { return None };
    let message: &Message = event.messages.first()?;
    let mut reply = ReplyBuilder::new();
    reply.push(Chunk::Usage(*usage));
    reply.push(Chunk::Identity { id: id.clone(), model: model.clone() });
    reply.push(Chunk::Finished(finish_reason.clone()));
    let mut reply = reply.finish().ok()?;
    reply.message = message.clone();
    Some(reply)
}

/// The first place, in the order of the recorded event, where the two differ.
fn first_difference(recorded: &Event, made: &Event) -> Difference {
    let json = |event: &Event| serde_json::to_value(event).unwrap_or(Value::Null);
    let (recorded, made) = (json(recorded), json(made));
    let (path, recorded, replayed) = differing("$", Some(&recorded), Some(&made))
        .unwrap_or_else(|| ("$".to_owned(), Some(json!(recorded)), Some(json!(made))));
    Difference::Value { path, recorded, replayed }
}

type Place = (String, Option<Value>, Option<Value>);

fn differing(path: &str, recorded: Option<&Value>, made: Option<&Value>) -> Option<Place> {
    match (recorded, made) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            let keys = left.keys().chain(right.keys().filter(|key| !left.contains_key(*key)));
            keys.into_iter()
                .find_map(|key| differing(&format!("{path}.{key}"), left.get(key), right.get(key)))
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) => (0..left.len().max(right.len()))
            .find_map(|index| differing(&format!("{path}[{index}]"), left.get(index), right.get(index))),
        (left, right) if left == right => None,
        (left, right) => Some((path.to_owned(), left.cloned(), right.cloned())),
    }
}
