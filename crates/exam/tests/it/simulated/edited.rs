//! The law of edits: a run that is edited at any pauses is folded, stored, loaded and replayed as one that is not.
//!
//! The process ends at some events; before another one continues the stored run, the run is edited.

use proptest::prelude::*;
use serde_json::json;
use stepfold_agent_loop::{
    Agent, ApprovalRequest, Decision, Edit, EditError, Event, FeedError, Input, Observer, ObserverError,
    Recording, Run, RunAnswer, RunEvent, ValueEdit,
};
use stepfold_state_core::chat::{Message, ToolContent, ToolResult};
use stepfold_state_core::state::Handler;

/// An edit: after so many more events, whether the process dies there, and what is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause {
    after: usize,
    is_folded: bool,
    what: What,
    pick: usize,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Set,
    Merge,
    Remove,
    Result,
    Failure,
    Both,
    /// What is refused.
    UnknownKey,
    Misfit,
    Temporary,
    UnknownCall,
    OpenCall,
    Arguments,
}

impl What {
    fn is_of_an_open_call(self) -> bool {
        matches!(self, Self::OpenCall | Self::Arguments)
    }
}

pub(crate) fn pauses() -> impl Strategy<Value = Vec<Pause>> {
    use What::{
        Arguments, Both, Failure, Merge, Misfit, OpenCall, Remove, Result, Set, Temporary, UnknownCall,
        UnknownKey,
    };
    let what = prop::sample::select(vec![
        Set,
        Set,
        Merge,
        Remove,
        Result,
        Result,
        Failure,
        Both,
        UnknownKey,
        Misfit,
        Temporary,
        UnknownCall,
        OpenCall,
        Arguments,
        Arguments,
        Arguments,
        Arguments,
    ]);
    let pause = (0..9_usize, any::<bool>(), what, any::<usize>());
    let pause = pause.prop_map(|(after, is_folded, what, pick)| Pause { after, is_folded, what, pick });
    prop::collection::vec(pause, 1..5)
}

/// What was made of the edits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Made {
    pub(crate) values: usize,
    pub(crate) results: usize,
    pub(crate) arguments: usize,
    pub(crate) refused: usize,
}

/// Runs an agent with edits at these pauses, and checks what holds of every run.
pub(crate) async fn check(
    agent: &Agent,
    input: Input,
    decide: impl Fn(&ApprovalRequest) -> Decision + Clone + Send + Sync + 'static,
    pauses: &[Pause],
) -> Result<Made, String> {
    let start = Run::new(agent, input, "run-1").map_err(|error| error.to_string())?;
    let (mut run, mut events, mut made) = (start.clone(), Vec::new(), Made::default());
    for pause in pauses {
        let after = if pause.what.is_of_an_open_call() {
            After::Reply(pause.after)
        } else {
            After::Events(pause.after)
        };
        let stopped = leg(run, &mut events, after, &decide).await;
        let folded = folded(&start, &events)?;
        if folded.to_json() != stopped.to_json() {
            return Err(format!("folded:  {}\nstopped: {}", folded.to_json(), stopped.to_json()));
        }
        run = if pause.is_folded { folded } else { stopped };
        if let Some(event) = edited(&mut run, *pause, &mut made)? {
            events.push(event);
        }
        if run.exit().is_some() {
            break;
        }
        run = Run::load(agent, &run.to_json()).map_err(|error| error.to_string())?;
    }
    let ended = leg(run, &mut events, After::End, &decide).await;
    holds(agent, &start, &events, &ended)?;
    Ok(made)
}

/// When the process ends.
#[derive(Clone, Copy)]
enum After {
    /// So many more events.
    Events(usize),
    /// The first reply with calls behind so many more events: the calls have not begun.
    Reply(usize),
    /// The end of the run.
    End,
}

/// Continues until so many more events are stored, or to the end.
async fn leg(
    run: Run,
    events: &mut Vec<Event>,
    after: After,
    decide: &(impl Fn(&ApprovalRequest) -> Decision + Clone + Send + Sync + 'static),
) -> Run {
    let decide = decide.clone();
    let approve = move |requests: Vec<ApprovalRequest>| {
        let decided: Vec<_> =
            requests.into_iter().map(|request| (request.id.clone(), decide(&request))).collect();
        async move { decided }
    };
    let mut stops = Stops { events, after };
    match run.resume().observe(&mut stops).approve_with(approve).await {
        Ok(outcome) => outcome.into_run(),
        Err(error) => error.into_run(),
    }
}

/// An observer that keeps events, and fails before it has kept one too many.
struct Stops<'a> {
    events: &'a mut Vec<Event>,
    after: After,
}

impl Observer for Stops<'_> {
    async fn observe(&mut self, told: &RunEvent) -> Result<(), ObserverError> {
        let Some(event) = told.committed() else { return Ok(()) };
        match &mut self.after {
            After::Events(0) => return Err("the process ends".into()),
            After::Reply(0) if calls(event) => self.after = After::Events(0),
            After::Events(left) | After::Reply(left) => *left = left.saturating_sub(1),
            After::End => {}
        }
        self.events.push(event.clone());
        Ok(())
    }
}

fn calls(event: &Event) -> bool {
    event.name() == "replied" && event.messages.iter().any(|message| message.tool_calls().next().is_some())
}

/// A fresh run with the events of a store.
fn folded(start: &Run, events: &[Event]) -> Result<Run, String> {
    let mut run = start.clone();
    for event in events {
        let stored = serde_json::to_string(event).unwrap();
        run.commit(serde_json::from_str(&stored).unwrap()).map_err(|error| error.to_string())?;
    }
    Ok(run)
}

/// Makes an edit; the event, if it is not refused.
fn edited(run: &mut Run, pause: Pause, made: &mut Made) -> Result<Option<Event>, String> {
    let before = run.clone();
    let answered = answered(run);
    let picked = (!answered.is_empty()).then(|| answered[pause.pick % answered.len()].clone());
    let edit = edit_of(pause, picked.as_deref(), run);
    let event = match run.feed(RunAnswer::Edit(edit.clone()), run.elapsed()) {
        Ok(event) => event,
        Err(error) => {
            made.refused += 1;
            return is_rightly(&error, pause.what, &before).then_some(None).ok_or_else(|| {
                format!("{pause:?} is refused: {error}; the run needs {:?}", before.decide())
            });
        }
    };
    if Edit::of(&event).as_ref() != Some(&edit) {
        return Err(format!("the event of {edit:?} is {event:?}"));
    }
    run.commit(event.clone()).map_err(|error| error.to_string())?;
    shows(&before, run, &edit)?;
    made.values += usize::from(!edit.values.is_empty());
    made.results += usize::from(!edit.results.is_empty());
    made.arguments += usize::from(!edit.arguments.is_empty());
    Ok(Some(event))
}

fn edit_of(pause: Pause, call: Option<&str>, run: &Run) -> Edit {
    let number = pause.pick % 9;
    let call = call.unwrap_or("none");
    let edit = match pause.what {
        What::Set if number < 4 => Edit::new().set("log", json!(["edited", number])),
        What::Set => Edit::new().set("count", number).set("last", json!({"edited": number})),
        What::Merge => Edit::new().merge("log", json!(["merged"])).merge("count", 0),
        What::Remove => Edit::new().remove("last").remove("log"),
        What::Result => Edit::new().result(call, json!({"edited": number, "n": 2})),
        What::Failure => Edit::new().result_with(call, ToolContent::Error("it was wrong".to_owned())),
        What::Both => Edit::new().set("picky", number).result(call, "edited"),
        What::UnknownKey => Edit::new().set("last", 1).set("unknown", 1),
        What::Misfit => Edit::new().set("count", "many"),
        What::Temporary => Edit::new().set("temp:x", 1),
        What::UnknownCall => Edit::new().result("no call", 1),
        What::OpenCall => match run.open_calls().first() {
            Some((_, call)) if !answered(run).contains(&call.id) => Edit::new().result(&*call.id, 1),
            _ => Edit::new(),
        },
        What::Arguments => {
            let open = run.open_calls();
            let picked = (!open.is_empty()).then(|| &open[pause.pick % open.len()].1);
            match picked.and_then(|call| Some((call, call.arguments.as_object()?.clone()))) {
                Some((call, mut arguments)) => {
                    arguments.insert("edited".to_owned(), json!(number));
                    Edit::new().arguments(&*call.id, arguments)
                }
                None => Edit::new(),
            }
        }
    };
    edit.by("ada")
}

/// The ids of the calls that have a result.
fn answered(run: &Run) -> Vec<String> {
    let closed = run.transcript().iter().filter_map(|message| message.tool_result());
    let closed = closed.map(|result| result.call_id().to_owned());
    let open = run.finished_calls().into_iter().flatten().map(|outcome| outcome.call_id().to_owned());
    closed.chain(open).collect()
}

fn is_rightly(error: &FeedError, what: What, run: &Run) -> bool {
    let has_none = answered(run).is_empty();
    match error {
        FeedError::NotNeeded { .. } => {
            let needed = format!("{:?}", run.decide());
            needed.starts_with("Begin")
                || needed.starts_with("Nothing")
                || needed.starts_with("Hook(AfterRun")
        }
        FeedError::Edit(error) => match (what, error) {
            (What::UnknownKey | What::Misfit, EditError::Value(_))
            | (What::Temporary, EditError::Temporary { .. })
            | (What::UnknownCall, EditError::UnknownCall { .. })
            | (What::OpenCall, EditError::NotAnswered { .. } | EditError::Empty)
            | (
                What::Arguments,
                EditError::Begun { .. } | EditError::InvalidArguments { .. } | EditError::Empty,
            ) => true,
            (What::Result | What::Failure | What::Both, EditError::UnknownCall { .. }) => has_none,
            _ => false,
        },
        _ => false,
    }
}

/// An edit changes what it says, and nothing else of the state and the conversation.
fn shows(before: &Run, after: &Run, edit: &Edit) -> Result<(), String> {
    let mut state = before.state().clone();
    for value in &edit.values {
        let schema = state.schema().clone();
        let replace = Handler::replace_values();
        let write = match value {
            ValueEdit::Set(key, value) => schema.write_with(key.as_str(), value.clone(), &replace),
            ValueEdit::Merge(key, value) => schema.write(key.as_str(), value.clone()),
            value => schema.removal(value.key()),
        };
        state.apply_write(&write.unwrap()).unwrap();
    }
    let mut log = before.transcript().clone();
    for (id, content) in &edit.results {
        let place = (0..log.len()).rfind(|place| {
            log.get(*place).unwrap().tool_result().is_some_and(|result| result.call_id() == id)
        });
        let Some(place) = place else {
            let known = after.finished_calls().into_iter().flatten().find(|outcome| outcome.call_id() == id);
            let has_it = known.is_some_and(|outcome| outcome.result.text().contains(&*text_of(content)));
            if !has_it {
                return Err(format!("the open call {id} has another result than {content:?}"));
            }
            continue;
        };
        let result = log.get(place).unwrap().tool_result().unwrap();
        let result = ToolResult::new(id, result.name(), content.clone());
        log.replace(place, Message::tool(result));
    }
    state.replace_messages(log);
    for (id, arguments) in &edit.arguments {
        let open = after.open_calls();
        let call = open.iter().map(|(_, call)| call).find(|call| call.id == *id);
        if call.is_none_or(|call| call.arguments != arguments.clone().into()) {
            return Err(format!("the open call {id} has other arguments than {arguments}: {call:?}"));
        }
    }
    match &state == after.state() {
        true => Ok(()),
        false => Err(format!("expected {state:?}\nfound {:?}", after.state())),
    }
}

fn text_of(content: &ToolContent) -> String {
    ToolResult::new("", "", content.clone()).text().into_owned()
}

/// What holds of every run.
fn holds(agent: &Agent, start: &Run, events: &[Event], ended: &Run) -> Result<(), String> {
    let mut state = start.state().clone();
    let mut run = start.clone();
    let mut recording = Recording::of(start);
    for event in events {
        event.fold(&mut state).map_err(|error| error.to_string())?;
        run.commit(event.clone()).map_err(|error| error.to_string())?;
        recording.push(event.clone());
        if &state != run.state() {
            return Err(format!("folded {state:?}\nheld {:?}", run.state()));
        }
        let stored = run.to_json();
        let loaded = Run::load(agent, &stored).map_err(|error| error.to_string())?;
        if loaded.to_json() != stored || loaded.pending() != run.pending() {
            return Err(format!("stored {stored}\nloaded {}", loaded.to_json()));
        }
        is_shown(&loaded, &run)?;
        is_shown(&run, &run)?;
    }
    if run.to_json() != ended.to_json() {
        return Err(format!("folded {}\nended {}", run.to_json(), ended.to_json()));
    }
    if ended.exit().is_some() {
        ended.transcript().check().map_err(|error| format!("{error:?}"))?;
    }
    let stored = serde_json::to_string(&recording).unwrap();
    let replayed = Recording::from_json(&stored).unwrap().replay(agent);
    let replayed = replayed.map_err(|error| format!("the replay diverged: {error}"))?;
    if replayed.digest() != ended.digest() || replayed.unknown_calls() != ended.unknown_calls() {
        return Err("the replay came to something else".to_owned());
    }
    Ok(())
}

/// The model is shown the same by both, and each result as it is in the log.
fn is_shown(one: &Run, other: &Run) -> Result<(), String> {
    let (one_view, log) = (one.request().messages, other.transcript());
    if one_view != other.request().messages {
        return Err(format!("shown {one_view}\nand {}", other.request().messages));
    }
    for result in one_view.iter().filter_map(|message| message.tool_result()) {
        if !log.iter().any(|message| message.tool_result() == Some(result)) {
            return Err(format!("the model is shown {result:?}, which is not in\n{log}"));
        }
    }
    Ok(())
}
