//! The rest of an event: what it says beside its name, its messages and its writes.
//!
//! For a host whose store has places of its own for those three, so that nothing is stored twice. What they
//! say already, and what goes without saying, is left out of the rest, and comes back when it is read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::{Error, Map, Value};
use stepfold_state_core::chat::{FinishReason, Message};
use stepfold_state_core::state::Delta;
use stepfold_tools::{CallOutcome, CallStatus};

use super::event::{Event, EventKind, Fate, OutputFate, StepEnd};
use super::work::WorkOutcome;
use crate::agent::OUTPUT_TOOL;

type Fields = Map<String, Value>;

/// Stands for an output that is what the message says.
const SAID: &str = "said";

/// The forms in which an event is stored beside its messages and writes.
impl Event {
    /// What the event says beside its [name](Event::name), its messages and its writes: an object.
    ///
    /// | field | what it is | if it is not there |
    /// |---|---|---|
    /// | `step` | [`Event::step`] | 0 |
    /// | `us` | [`Event::elapsed`], in microseconds | 0 |
    /// | `rewrite` | [`Event::rewrite`] | none |
    /// | `shared` | [`Event::shared`] | none |
    /// | `end` | present at the end of a step: [`StepEnd::repeats`] | the step goes on |
    /// | `unmerged`, `merge_errors` | [`StepEnd::unmerged`], [`StepEnd::merge_errors`] | none |
    /// | others | the fields of the [kind](EventKind), under their names | as the kind has it |
    ///
    /// Of the kinds' fields, counts of tokens that are zero are left out, and
    ///
    /// | field | if it is not there |
    /// |---|---|
    /// | `place` of `answered` and `inner` | 0 |
    /// | `outcome` of `answered`, and those among the `fates` of `replied`: `status` | `succeeded` |
    /// | .. `tries` | 1 |
    /// | .. `result` | as the message of the call says: that at the place of the call, behind the reply if there is one |
    /// | .. `delta` | the event's writes from `writes[0]` on, `writes[1]` of them; none without `writes` |
    /// | `finish_reason` of `replied` | `tool_calls` if the message has calls, else `stop` |
    ///
    /// The outcome of a branch is `node` in place of `outcome`, and has `writes` in place of `delta` as well; the `event` of
    /// `inner` is an object of its `name`, its `rest`, its `messages` and its `delta`.
    ///
    /// An `output` that is `"said"` is valid, and is what the message says: the arguments of the call that gives
    /// it, or its text as JSON.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::{Agent, Event, RunEvent};
    ///
    /// let agent = Agent::builder(Script::parse("assistant: area 3")?).build()?;
    /// let mut seen = Vec::new();
    /// agent.run("which area has most stalls?").observe(&mut seen).await?;
    /// for event in seen.iter().filter_map(RunEvent::committed) {
    ///     let (messages, delta) = (event.messages.clone(), event.delta.clone());
    ///     assert_eq!(&Event::from_rest(event.name(), event.to_rest()?, messages, delta)?, event);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Should a part have no JSON form; none of ours is like that.
    pub fn to_rest(&self) -> Result<Value, Error> {
        let mut rest = fields_of(&self.kind, self.name())?;
        match &self.kind {
            EventKind::Answered { place, outcome, .. } => {
                put_unless(&mut rest, "place", place, &0)?;
                match outcome {
                    WorkOutcome::Call(outcome) => {
                        let outcome = self.lean(outcome, *place)?;
                        put_unless(&mut rest, "outcome", &outcome, &Fields::new())?;
                    }
                    WorkOutcome::Node(outcome) => {
                        if let (Some(first), Some(Value::Object(lean))) =
                            (self.writes_of(&outcome.delta), rest.get_mut("node"))
                        {
                            lean.remove("delta");
                            lean.insert("writes".to_owned(), vec![first, outcome.delta.len()].into());
                        }
                    }
                }
            }
            EventKind::Replied { finish_reason, fates, output, .. } => {
                put_unless(&mut rest, "finish_reason", finish_reason, &implied_finish(&self.messages))?;
                if !fates.is_empty() {
                    rest.insert("fates".to_owned(), self.lean_fates(fates)?);
                }
                if let Some(OutputFate::Valid(value)) = output
                    && said(&self.messages).is_some_and(|said| is_stored_alike(&said, value))
                {
                    rest.insert("output".to_owned(), SAID.into());
                }
            }
            EventKind::Inner { place, event } => {
                put_unless(&mut rest, "place", place, &0)?;
                rest.insert("event".to_owned(), event.to_whole()?);
            }
            _ => {}
        }
        leave_out_zeros(&mut rest);
        let us = u64::try_from(self.elapsed.as_micros()).unwrap_or(u64::MAX);
        put_unless(&mut rest, "step", &self.step, &0)?;
        put_unless(&mut rest, "us", &us, &0)?;
        put_unless(&mut rest, "rewrite", &self.rewrite, &None)?;
        put_unless(&mut rest, "shared", &self.shared, &BTreeMap::new())?;
        if let Some(end) = &self.step_end {
            rest.insert("end".to_owned(), end.repeats.into());
            put_unless(&mut rest, "unmerged", &end.unmerged, &Vec::new())?;
            put_unless(&mut rest, "merge_errors", &end.merge_errors, &Vec::new())?;
        }
        Ok(Value::Object(rest))
    }

    /// The event of this name, with these messages and writes, and with what [`to_rest`](Event::to_rest) made.
    ///
    /// # Errors
    /// When it is no rest of such an event.
    pub fn from_rest(
        name: &str,
        rest: Value,
        messages: Vec<Arc<Message>>,
        delta: Delta,
    ) -> Result<Self, Error> {
        let Value::Object(mut rest) = rest else { return Err(Error::custom("it is no object")) };
        let step = taken(&mut rest, "step")?.unwrap_or(0);
        let elapsed = Duration::from_micros(taken(&mut rest, "us")?.unwrap_or(0));
        let rewrite = taken(&mut rest, "rewrite")?;
        let shared = taken(&mut rest, "shared")?.unwrap_or_default();
        let unmerged = taken(&mut rest, "unmerged")?.unwrap_or_default();
        let merge_errors = taken(&mut rest, "merge_errors")?.unwrap_or_default();
        let step_end = taken(&mut rest, "end")?.map(|repeats| StepEnd { unmerged, repeats, merge_errors });
        match name {
            "answered" => {
                let place: usize = taken(&mut rest, "place")?.unwrap_or(0);
                rest.insert("place".to_owned(), place.into());
                if let Some(Value::Object(outcome)) = rest.get_mut("node") {
                    put_writes_back(outcome, &delta)?;
                } else {
                    let mut outcome: Fields = taken(&mut rest, "outcome")?.unwrap_or_default();
                    make_whole(&mut outcome, messages.get(place), &delta)?;
                    rest.insert("outcome".to_owned(), outcome.into());
                }
            }
            "replied" => make_reply_whole(&mut rest, &messages, &delta)?,
            "inner" => {
                rest.entry("place").or_insert_with(|| 0.into());
                let event = rest.remove("event").unwrap_or_default();
                rest.insert("event".to_owned(), serde_json::to_value(Event::from_whole(event)?)?);
            }
            _ => {}
        }
        let kind = serde_json::from_value(match name {
            "steered" | "cancelled" | "timed_out" => name.into(),
            _ => Value::Object([(name.to_owned(), rest.into())].into_iter().collect()),
        })?;
        Ok(Event { step, elapsed, rewrite, messages, delta, step_end, shared, kind })
    }

    /// The event inside of another one: all of it.
    fn to_whole(&self) -> Result<Value, Error> {
        let mut whole = Fields::new();
        whole.insert("name".to_owned(), self.name().into());
        put_unless(&mut whole, "messages", &self.messages, &Vec::new())?;
        put_unless(&mut whole, "delta", &self.delta, &Delta::new())?;
        let rest = self.to_rest()?;
        put_unless(&mut whole, "rest", &rest, &Value::Object(Fields::new()))?;
        Ok(Value::Object(whole))
    }

    fn from_whole(whole: Value) -> Result<Self, Error> {
        let Value::Object(mut whole) = whole else { return Err(Error::custom("it has no event inside")) };
        let name: String = taken(&mut whole, "name")?.unwrap_or_default();
        let rest = whole.remove("rest").unwrap_or_else(|| Value::Object(Fields::new()));
        let messages = taken(&mut whole, "messages")?.unwrap_or_default();
        let delta = taken(&mut whole, "delta")?.unwrap_or_default();
        Event::from_rest(&name, rest, messages, delta)
    }

    /// Where writes stand among those of the event, if they do.
    fn writes_of(&self, writes: &Delta) -> Option<usize> {
        (!writes.is_empty()).then(|| place_of(writes, &self.delta)).flatten()
    }

    /// An outcome without what the event says elsewhere; its result may be in the message at this place.
    fn lean(&self, outcome: &CallOutcome, message: usize) -> Result<Fields, Error> {
        let mut lean = Fields::new();
        put_unless(&mut lean, "status", &outcome.status, &CallStatus::Succeeded)?;
        put_unless(&mut lean, "tries", &outcome.tries, &1)?;
        let said = self.messages.get(message).and_then(|message| message.tool_result());
        if !said.is_some_and(|said| is_stored_alike(said, &outcome.result)) {
            lean.insert("result".to_owned(), serde_json::to_value(&outcome.result)?);
        }
        match place_of(&outcome.delta, &self.delta) {
            _ if outcome.delta.is_empty() => {}
            Some(first) => {
                lean.insert("writes".to_owned(), vec![first, outcome.delta.len()].into());
            }
            None => {
                lean.insert("delta".to_owned(), serde_json::to_value(&outcome.delta)?);
            }
        }
        Ok(lean)
    }

    fn lean_fates(&self, fates: &[(usize, Fate)]) -> Result<Value, Error> {
        let lean = fates.iter().map(|(place, fate)| {
            let fate = match fate {
                Fate::Answer(outcome) => {
                    let lean = self.lean(outcome, behind_reply(*place))?;
                    Value::Object([("answer".to_owned(), lean.into())].into_iter().collect())
                }
                Fate::Ask(_) | Fate::Same(_) => serde_json::to_value(fate)?,
            };
            Ok(Value::Array(vec![(*place).into(), fate]))
        });
        lean.collect()
    }
}

/// Where the result of a call stands that is answered in the event of the reply.
const fn behind_reply(place: usize) -> usize {
    place.saturating_add(1)
}

/// What a kind has beside its name.
fn fields_of(kind: &EventKind, name: &str) -> Result<Fields, Error> {
    Ok(match serde_json::to_value(kind)? {
        Value::Object(mut kind) => match kind.remove(name) {
            Some(Value::Object(fields)) => fields,
            _ => Fields::new(),
        },
        _ => Fields::new(),
    })
}

/// Puts a value under a name, unless it goes without saying.
fn put_unless<T: Serialize + PartialEq>(
    fields: &mut Fields,
    name: &str,
    value: &T,
    usual: &T,
) -> Result<(), Error> {
    match value == usual {
        true => drop(fields.remove(name)),
        false => drop(fields.insert(name.to_owned(), serde_json::to_value(value)?)),
    }
    Ok(())
}

fn taken<T: DeserializeOwned>(fields: &mut Fields, name: &str) -> Result<Option<T>, Error> {
    fields.remove(name).map(serde_json::from_value).transpose()
}

/// Where the writes stand among others, in one piece.
fn place_of(writes: &Delta, among: &Delta) -> Option<usize> {
    let last = among.len().checked_sub(writes.len())?;
    (0..=last)
        .find(|first| among.iter().skip(*first).zip(writes).all(|(one, other)| is_stored_alike(one, other)))
}

fn implied_finish(messages: &[Arc<Message>]) -> FinishReason {
    match messages.first().is_some_and(|reply| reply.has_tool_calls()) {
        true => FinishReason::ToolCalls,
        false => FinishReason::Stop,
    }
}

/// The output that a reply says, if it says one.
fn said(messages: &[Arc<Message>]) -> Option<Value> {
    let reply = messages.first()?;
    match reply.tool_calls().find(|call| call.name == OUTPUT_TOOL) {
        Some(call) => call.arguments.as_object().cloned().map(Value::Object),
        None => serde_json::from_str(&reply.text()).ok(),
    }
}

/// Whether two values are stored alike. Equal ones may not be: a zero has a sign.
fn is_stored_alike<T: Serialize + PartialEq>(one: &T, other: &T) -> bool {
    let text = |value| serde_json::to_string(value).ok();
    one == other && text(one) == text(other)
}

fn leave_out_zeros(rest: &mut Fields) {
    let Some(Value::Object(usage)) = rest.get_mut("usage") else { return };
    usage.retain(|_, tokens| *tokens != 0);
    if usage.is_empty() {
        rest.remove("usage");
    }
}

/// An outcome with what the event says elsewhere.
fn make_whole(outcome: &mut Fields, message: Option<&Arc<Message>>, delta: &Delta) -> Result<(), Error> {
    outcome.entry("status").or_insert_with(|| "succeeded".into());
    outcome.entry("tries").or_insert_with(|| 1.into());
    if !outcome.contains_key("result") {
        let said = message.and_then(|message| message.tool_result());
        let said = said.ok_or_else(|| Error::custom("no message has the result of the call"))?;
        outcome.insert("result".to_owned(), serde_json::to_value(said)?);
    }
    put_writes_back(outcome, delta)
}

/// An outcome with its writes, which stand among those of the event.
fn put_writes_back(outcome: &mut Fields, delta: &Delta) -> Result<(), Error> {
    if let Some((first, count)) = taken::<(usize, usize)>(outcome, "writes")? {
        let end = first.checked_add(count).filter(|end| *end <= delta.len());
        if end.is_none() {
            return Err(Error::custom("the writes of the call are not among those of the event"));
        }
        let writes: Delta = delta.iter().skip(first).take(count).cloned().collect();
        outcome.insert("delta".to_owned(), serde_json::to_value(writes)?);
    }
    Ok(())
}

fn make_reply_whole(rest: &mut Fields, messages: &[Arc<Message>], delta: &Delta) -> Result<(), Error> {
    if !rest.contains_key("finish_reason") {
        let implied = serde_json::to_value(implied_finish(messages))?;
        rest.insert("finish_reason".to_owned(), implied);
    }
    if rest.get("output").is_some_and(|output| output == SAID) {
        let said = said(messages).ok_or_else(|| Error::custom("the message says no output"))?;
        rest.insert("output".to_owned(), serde_json::to_value(OutputFate::Valid(said))?);
    }
    for fate in rest.get_mut("fates").and_then(Value::as_array_mut).into_iter().flatten() {
        let place = fate.get(0).and_then(Value::as_u64).and_then(|place| usize::try_from(place).ok());
        let outcome = fate.get_mut(1).and_then(|fate| fate.get_mut("answer"));
        if let (Some(place), Some(Value::Object(outcome))) = (place, outcome) {
            make_whole(outcome, messages.get(behind_reply(place)), delta)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use serde_json::json;
    use stepfold_state_core::chat::{Arguments, Part, Role, ToolCall, ToolContent, ToolResult, Usage};
    use stepfold_state_core::state::{Schema, Write};
    use stepfold_tools::CallFailure;

    use super::*;
    use crate::agent::HookPoint;
    use crate::agent::HookVerdict;
    use crate::approval::{AskReason, Decision, Question};
    use crate::exit::Exit;
    use crate::planned::{Arrived, NodeOutcome, Planned, Routed};
    use crate::run::shared::SharedValue;
    use crate::state_input::StateInput;

    fn again(event: &Event) -> Event {
        let rest = event.to_rest().unwrap();
        // As it comes out of a store.
        let rest = serde_json::from_str(&rest.to_string()).unwrap();
        Event::from_rest(event.name(), rest, event.messages.clone(), event.delta.clone()).unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "an expectation reads best where it is made")]
    fn check(event: &Event, rest: Expect) {
        let mut sorted = event.to_rest().unwrap();
        // Whatever serde_json's features.
        sorted.sort_all_objects();
        rest.assert_eq(&sorted.to_string());
        assert_eq!(&again(event), event);
    }

    fn write(key: &str, value: impl Into<Value>) -> Write {
        let schema = Schema::builder().key::<Vec<Value>>("log").key::<Value>("a").build().unwrap();
        schema.write(key, value.into()).unwrap()
    }

    fn outcome(result: ToolResult, writes: impl IntoIterator<Item = Write>) -> CallOutcome {
        let mut outcome = CallOutcome::new(CallStatus::Succeeded, result);
        outcome.delta = writes.into_iter().collect();
        outcome
    }

    fn answered(place: usize, outcome: CallOutcome) -> Event {
        let kind = EventKind::Answered { place, outcome: outcome.into(), stop: None, pending_hook: None };
        Event::new(3, Duration::ZERO, kind)
    }

    /// The result of the call as a message, and its writes.
    fn closing(event: Event, results: &[ToolResult], delta: &[Write]) -> Event {
        let messages = results.iter().cloned().map(|result| Message::tool(result).into()).collect();
        let step_end = Some(StepEnd { repeats: 1, ..StepEnd::default() });
        Event { messages, delta: delta.iter().cloned().collect(), step_end, ..event }
    }

    #[test]
    fn what_the_message_and_the_writes_say_is_not_said_again() {
        let one = ToolResult::value("c1", "look", 1);
        let two = ToolResult::value("c2", "look", 2);
        let (a, b) = (write("log", json!([1])), write("log", json!([2])));
        let last = answered(1, outcome(two.clone(), [b.clone()]));
        check(
            &last,
            expect![[
                r#"{"outcome":{"delta":[{"handler":"merge_lists","key":"log","value":[2]}],"result":{"call_id":"c2","name":"look","value":2}},"place":1,"step":3}"#
            ]],
        );
        check(
            &closing(last, &[one.clone(), two], &[a, b]),
            expect![[r#"{"end":1,"outcome":{"writes":[1,1]},"place":1,"step":3}"#]],
        );
        let only = closing(answered(0, outcome(one.clone(), [])), std::slice::from_ref(&one), &[]);
        check(&only, expect![[r#"{"end":1,"step":3}"#]]);
        // The message has a note for the model, so it does not say what the result was.
        let noted =
            closing(answered(0, outcome(one, [])), &[ToolResult::value("c1", "look", "1, noted")], &[]);
        check(
            &noted,
            expect![[r#"{"end":1,"outcome":{"result":{"call_id":"c1","name":"look","value":1}},"step":3}"#]],
        );
    }

    fn replied(message: Message, finish_reason: FinishReason, output: Option<OutputFate>) -> Event {
        let usage = Usage::new(7, 0);
        let kind = EventKind::Replied {
            finish_reason,
            usage,
            id: None,
            model: None,
            fates: Vec::new(),
            tools: None,
            output,
        };
        Event { messages: vec![message.into()], ..Event::new(1, Duration::from_micros(5), kind) }
    }

    #[test]
    fn an_output_that_the_message_says_is_not_said_again() {
        let valid = |value| Some(OutputFate::Valid(value));
        let said = || Message::assistant(r#"{"area": 3}"#);
        check(
            &replied(said(), FinishReason::Stop, valid(json!({"area": 3}))),
            expect![[r#"{"output":"said","step":1,"us":5,"usage":{"input_tokens":7}}"#]],
        );
        // It was found within other text, or has another sign.
        check(
            &replied(Message::assistant("It is -0.0"), FinishReason::Length, valid(json!(-0.0))),
            expect![[
                r#"{"finish_reason":"length","output":{"valid":-0.0},"step":1,"us":5,"usage":{"input_tokens":7}}"#
            ]],
        );
        check(
            &replied(Message::assistant("0.0"), FinishReason::Stop, valid(json!(-0.0))),
            expect![[r#"{"output":{"valid":-0.0},"step":1,"us":5,"usage":{"input_tokens":7}}"#]],
        );
        let call = ToolCall::new("c1", OUTPUT_TOOL, json!({"area": 3}));
        let accepted = ToolResult::value("c1", OUTPUT_TOOL, "accepted");
        let mut event = replied(
            Message::new(Role::Assistant).with_part(call),
            FinishReason::ToolCalls,
            valid(json!({"area": 3})),
        );
        event.messages.push(Message::tool(accepted.clone()).into());
        if let EventKind::Replied { fates, .. } = &mut event.kind {
            fates.push((0, Fate::Answer(outcome(accepted, []))));
        }
        check(
            &event,
            expect![[
                r#"{"fates":[[0,{"answer":{}}]],"output":"said","step":1,"us":5,"usage":{"input_tokens":7}}"#
            ]],
        );
    }

    #[test]
    fn what_is_no_rest_of_the_event_is_an_error() {
        let read = |name: &str, rest: Value| {
            Event::from_rest(name, rest, Vec::new(), Delta::new()).unwrap_err().to_string()
        };
        let check = |name: &str, rest: Value, error: Expect| error.assert_eq(&read(name, rest));
        check("answered", json!({}), expect!["no message has the result of the call"]);
        check("answered", json!(3), expect!["it is no object"]);
        let result = json!({"call_id": "c1", "name": "look", "value": 1});
        let beyond = json!({"outcome": {"result": result, "writes": [0, 1]}});
        check("answered", beyond, expect!["the writes of the call are not among those of the event"]);
        check("replied", json!({"output": "said"}), expect!["the message says no output"]);
        assert!(read("flown", json!({})).starts_with("unknown variant `flown`"));
    }

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(json!(1)),
            Just(json!(0.0)),
            Just(json!(-0.0)),
            Just(Value::Null),
            Just(json!("text")),
            Just(json!({"a": [1], "b": "ü\n"})),
        ]
    }

    fn result() -> impl Strategy<Value = ToolResult> {
        let content = prop_oneof![
            value().prop_map(ToolContent::Value),
            Just(ToolContent::Error("no".to_owned())),
            Just(ToolContent::Parts(vec![Part::text("a"), Part::text("b")])),
        ];
        (0..3_usize, content).prop_map(|(call, content)| ToolResult::new(format!("c{call}"), "look", content))
    }

    fn delta() -> impl Strategy<Value = Delta> {
        let write = prop_oneof![
            value().prop_map(|value| write("a", value)),
            value().prop_map(|value| write("log", vec![value])),
        ];
        vec(write, 0..3).prop_map(Delta::from_iter)
    }

    fn any_outcome() -> impl Strategy<Value = CallOutcome> {
        let status = prop_oneof![
            3 => Just(CallStatus::Succeeded),
            1 => Just(CallStatus::Failed(CallFailure::Error)),
            1 => Just(CallStatus::Unknown),
        ];
        (status, result(), delta(), 0..3_u32).prop_map(|(status, result, delta, tries)| {
            let mut outcome = CallOutcome::new(status, result);
            (outcome.delta, outcome.tries) = (delta, tries);
            outcome
        })
    }

    fn usage() -> impl Strategy<Value = Usage> {
        (0..2_u64, 0..2_u64, 0..2_u64, 0..2_u64).prop_map(|(input, output, cached, reasoning)| {
            Usage::new(input, output).with_cached_input_tokens(cached).with_reasoning_tokens(reasoning)
        })
    }

    fn reply() -> impl Strategy<Value = Message> {
        let call = |arguments: Arguments| {
            let calls = [OUTPUT_TOOL, "look"].map(|name| ToolCall::new("c1", name, arguments.clone()));
            calls.into_iter().fold(Message::new(Role::Assistant), Message::with_part)
        };
        prop_oneof![
            value().prop_map(|value| Message::assistant(value.to_string())),
            Just(Message::assistant("no JSON")),
            value().prop_map(move |value| call(value.into())),
        ]
    }

    fn output() -> impl Strategy<Value = OutputFate> {
        prop_oneof![
            value().prop_map(OutputFate::Valid),
            Just(OutputFate::Invalid { faults: "no".to_owned(), again: true }),
        ]
    }

    fn inputs() -> Vec<StateInput> {
        let long = json!({"truncated": {"begins": "x", "bytes": 5000, "sha256": "00"}, "key": "k", "parameter": "p"});
        let inputs = json!([{"hidden": {"sha256": "00"}, "key": "temp:t", "parameter": "t"}, long, {
            "key": "n", "parameter": "n", "value": null
        }]);
        serde_json::from_value(inputs).unwrap()
    }

    fn fates() -> impl Strategy<Value = Vec<(usize, Fate)>> {
        let fate = prop_oneof![
            any_outcome().prop_map(Fate::Answer),
            Just(Fate::Ask(AskReason::Rule.into())),
            Just(Fate::Ask(Question::new(AskReason::Rule, inputs()))),
            Just(Fate::Same(0)),
        ];
        vec((0..3_usize, fate), 0..3)
    }

    fn kind() -> impl Strategy<Value = EventKind> {
        let finish = prop_oneof![
            Just(FinishReason::Stop),
            Just(FinishReason::ToolCalls),
            Just(FinishReason::Length),
            Just(FinishReason::Other("x".to_owned())),
        ];
        let stop = option::of(Just("enough".to_owned()));
        let replied = (finish, usage(), stop.clone(), fates(), option::of(output()));
        prop_oneof![
            4 => (0..3_usize, any_outcome(), stop, option::of(0..2_usize)).prop_map(
                |(place, outcome, stop, pending_hook)| EventKind::Answered {
                    place,
                    outcome: outcome.into(),
                    stop,
                    pending_hook,
                }
            ),
            4 => replied.prop_map(|(finish_reason, usage, id, fates, output)| EventKind::Replied {
                finish_reason,
                usage,
                model: id.clone(),
                tools: id.clone(),
                id,
                fates,
                output,
            }),
            1 => Just(EventKind::Began {
                id: "run".to_owned(),
                instructions: None,
                repairs: vec!["one".to_owned()],
                shown: None,
                tools: Some("0".to_owned()),
                messages_before: 7,
            }),
            1 => delta().prop_map(|delta| EventKind::Hooked {
                point: HookPoint::BeforeTool,
                verdict: HookVerdict::Stop("no".to_owned()),
                answers: vec![(0, "later".to_owned())],
                writes: vec![(1, delta)],
            }),
            1 => usage().prop_map(|usage| EventKind::Summarized {
                summary: None, error: Some("no".to_owned()), usage,
            }),
            1 => Just(EventKind::Decided {
                decisions: vec![("c1".to_owned(), Decision::Approve)],
                by: Some("ada".to_owned()),
                idempotency_key: None,
                key_prefix: Some("fork".to_owned()),
            }),
            1 => Just(EventKind::Started { places: vec![0, 2] }),
            1 => Just(EventKind::Asked { fates: vec![(1, Fate::Ask(AskReason::Rule.into())), (2, Fate::Same(1))] }),
            1 => Just(EventKind::Interrupted { places: vec![1], asks: true, inputs_from_state: vec![(1, inputs())] }),
            3 => (0..2_usize, delta(), 1..3_u32, option::of(reply())).prop_map(|(place, delta, tries, said)| {
                let messages = said.into_iter().map(Arc::new).collect();
                let outcome = NodeOutcome { delta, messages, tries, ..NodeOutcome::default() };
                EventKind::Answered { place, outcome: outcome.into(), stop: None, pending_hook: None }
            }),
            1 => Just(EventKind::Planned {
                branches: vec![Planned { node: "count".to_owned(), item: Some(json!(-0.0)) }],
                deferred: Vec::new(),
                arrived: vec![Arrived { at: "report".to_owned(), from: vec!["count".to_owned()], join: 1 }],
                routes: vec![Routed { from: "count".to_owned(), to: vec!["report".to_owned()], reason: None }],
                exit: None,
            }),
            1 => Just(EventKind::Planned {
                branches: Vec::new(),
                deferred: Vec::new(),
                arrived: Vec::new(),
                routes: Vec::new(),
                exit: Some(Exit::NodeLimit("count".to_owned())),
            }),
            1 => Just(EventKind::Asks { place: 1, requests: Vec::new() }),
            1 => Just(EventKind::Steered),
            1 => Just(EventKind::Cancelled),
            1 => Just(EventKind::TimedOut),
        ]
    }

    /// Outcomes of the kind, which the event may say elsewhere.
    fn outcomes(kind: &EventKind) -> Vec<CallOutcome> {
        match kind {
            EventKind::Answered { outcome, .. } => outcome.call().cloned().into_iter().collect(),
            EventKind::Replied { fates, .. } => fates
                .iter()
                .filter_map(|(_, fate)| match fate {
                    Fate::Answer(outcome) => Some(outcome.clone()),
                    Fate::Ask(_) | Fate::Same(_) => None,
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    fn event() -> impl Strategy<Value = Event> {
        let end = option::of((vec(0..3_usize, 0..2), 0..3_u32));
        let around = (option::of(reply()), vec(result(), 0..3), delta(), delta());
        let shape = (0..3_u64, 0..3_u64, any::<[bool; 2]>(), any::<bool>());
        (kind(), end, around, shape).prop_map(|(kind, end, around, (step, us, says, has_rewrite))| {
            let (reply, others, before, behind) = around;
            let outcomes = outcomes(&kind);
            let said = outcomes.iter().map(|outcome| outcome.result.clone()).filter(|_| says[0]);
            let results = said.chain(others).map(Message::tool);
            let of_node = match &kind {
                EventKind::Answered { outcome: WorkOutcome::Node(outcome), .. } => outcome.delta.clone(),
                _ => Delta::new(),
            };
            let written = outcomes.iter().flat_map(|outcome| outcome.delta.clone()).chain(of_node);
            let written = written.filter(|_| says[1]);
            let delta = before.into_iter().chain(written).chain(behind).collect();
            let rewrite = has_rewrite.then(|| [Message::user("before")].into_iter().collect());
            let shared = [
                ("app:n".to_owned(), SharedValue::Large),
                ("user:n".to_owned(), SharedValue::Is(Value::Null)),
            ];
            Event {
                messages: reply.into_iter().chain(results).map(Arc::new).collect(),
                delta,
                rewrite,
                shared: shared.into_iter().filter(|_| has_rewrite).collect(),
                step_end: end.map(|(unmerged, repeats)| StepEnd { unmerged, repeats, ..StepEnd::default() }),
                ..Event::new(step, Duration::from_micros(us), kind)
            }
        })
    }

    proptest! {
        #[test]
        fn an_event_comes_back_as_it_was(event in event()) {
            // By its text as well: a zero has a sign.
            let text = |event: &Event| serde_json::to_string(event).unwrap();
            let again = again(&event);
            prop_assert_eq!(text(&again), text(&event));
            prop_assert_eq!(again, event);
        }

        #[test]
        fn an_event_of_a_run_inside_comes_back_as_it_was(event in event(), place in 0..2_usize) {
            let kind = EventKind::Inner { place, event: Box::new(event) };
            let outer = Event::new(1, Duration::ZERO, kind);
            let text = |event: &Event| serde_json::to_string(event).unwrap();
            prop_assert_eq!(text(&again(&outer)), text(&outer));
        }
    }
}
