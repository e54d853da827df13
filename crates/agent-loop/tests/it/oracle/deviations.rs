//! Where ours is better than the original, by the row that says so.
//!
//! A row changes the original's answer into what it would be without that fault, and nothing else: what is
//! compared afterwards is the whole answer.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stepfold_tools::{CallFailure, CallStatus};

use super::{Replayed, content, list, object, text};

/// The answers to a scenario.
pub(super) struct Case<'a> {
    pub(super) scenario: &'a Value,
    pub(super) ours: Value,
    pub(super) theirs: Value,
    statuses: Vec<(String, CallStatus)>,
    refusal: String,
}

type Row = (&'static str, fn(&mut Case<'_>));

/// In this order.
pub(super) const ROWS: &[Row] = &[
    ("bindings against the schema: two keys for one parameter are refused at build", two_keys_refused),
    ("bindings against the schema: a handler that cannot give the key's type is refused", handler_refused),
    ("reserved keys: the outcome reports the steps, so no key is taken for them", no_key_is_taken),
    ("reply with text and calls: also when a provider returns several messages", one_reply),
    ("one assistant message stays one message", one_message),
    ("modification is recorded in the event, and the model's message stays as it is", modified_in_place),
    ("no tools: calls in the reply are answered", calls_are_answered),
    ("order: an unknown tool's error comes in its own place", in_call_order),
    ("approval: modified arguments are validated", modified_arguments_refused),
    ("argument validation: no request for a call that cannot run", no_request),
    ("merge fails after a tool ran: a tool message, and the run goes on", merge_goes_on),
    ("precedence: only the state sets what the model cannot see", only_state_sets),
    ("dependent calls: a reader waits for earlier writers, never for later ones", earlier_writers_only),
    ("outputs_to_state: the whole result, whatever its type", whole_result),
    ("set wrong type: an error, and nothing is changed", wrong_type),
];

impl<'a> Case<'a> {
    pub(super) fn new(scenario: &'a Value, ours: Replayed, theirs: Value) -> Self {
        let Replayed { answer, statuses, refusal } = ours;
        Case { scenario, ours: answer, theirs, statuses, refusal }
    }

    /// The rows that were needed for the answers to be the same, if they are.
    pub(super) fn explained(&mut self) -> Vec<&'static str> {
        let mut rows = Vec::new();
        for (row, without_fault) in ROWS {
            if self.ours == self.theirs {
                break;
            }
            let before = (self.ours.clone(), self.theirs.clone());
            without_fault(self);
            if before != (self.ours.clone(), self.theirs.clone()) {
                rows.push(*row);
            }
        }
        rows
    }

    fn theirs_is_ours(&mut self) {
        self.theirs = self.ours.clone();
    }

    /// The original's messages; none if it failed.
    fn messages(&mut self) -> Option<&mut Vec<Value>> {
        self.theirs.get_mut("messages")?.as_array_mut()
    }

    fn tools(&self) -> &'a [Value] {
        list(&self.scenario["tools"])
    }

    fn tool(&self, name: &Value) -> Option<&'a Value> {
        self.tools().iter().find(|tool| tool["name"] == *name)
    }

    /// All calls that the model made, with the number of their reply.
    fn calls(&self) -> Vec<(usize, &'a Value)> {
        let replies = list(&self.scenario["llm"]).iter().enumerate();
        replies
            .flat_map(|(number, reply)| list(&reply["tool_calls"]).iter().map(move |call| (number, call)))
            .collect()
    }

    fn ended(&self, id: &Value, status: CallStatus) -> bool {
        self.statuses.iter().any(|(call, ended)| *call == text(id) && *ended == status)
    }

    /// Takes our result of a call for theirs, and our values of these keys.
    fn take(&mut self, id: &Value, keys: &BTreeSet<String>) {
        let is_of = |message: &&Value| message["result"]["id"] == *id;
        let ours = list(&self.ours["messages"]).iter().find(is_of).cloned();
        let mut theirs = self.messages().into_iter().flatten();
        if let (Some(ours), Some(theirs)) = (ours, theirs.find(|message| is_of(&&**message))) {
            *theirs = ours;
        }
        for key in keys {
            let ours = self.ours["state"].get(key).cloned();
            let Some(theirs) = self.theirs.get_mut("state").and_then(Value::as_object_mut) else { return };
            match ours {
                Some(value) => drop(theirs.insert(key.clone(), value)),
                None => drop(theirs.remove(key)),
            }
        }
    }
}

fn earlier_writers_only(case: &mut Case<'_>) {
    let keys = |case: &Case<'_>, call: &Value, bindings: &str| -> BTreeSet<String> {
        let tool = case.tool(&call["name"]);
        tool.map(|tool| object(&tool[bindings]).keys().cloned().collect()).unwrap_or_default()
    };
    for reply in list(&case.scenario["llm"]) {
        let calls = list(&reply["tool_calls"]);
        for (place, call) in calls.iter().enumerate() {
            let reads = keys(case, call, "inputs_from_state");
            let is_written_later = calls[place + 1..]
                .iter()
                .any(|later| !keys(case, later, "outputs_to_state").is_disjoint(&reads));
            if is_written_later {
                let writes = keys(case, call, "outputs_to_state");
                case.take(&call["id"], &writes);
            }
        }
    }
}

fn two_keys_refused(case: &mut Case<'_>) {
    let has_two = |tool: &Value| {
        let fed = object(&tool["inputs_from_state"]);
        fed.values().map(text).collect::<BTreeSet<_>>().len() < fed.len()
    };
    if case.refusal.contains("read from two keys of the state") && case.tools().iter().any(has_two) {
        case.theirs_is_ours();
    }
}

fn handler_refused(case: &mut Case<'_>) {
    let schema = object(&case.scenario["state_schema"]);
    let is_wrong = |(key, output): (&String, &Value)| {
        output["handler"] == "merge_lists" && !text(&schema[key]["type"]).contains("list")
    };
    let has_one = case.tools().iter().any(|tool| object(&tool["outputs_to_state"]).iter().any(is_wrong));
    if case.refusal.contains("handler merge_lists failed for key") && has_one {
        case.theirs_is_ours();
    }
}

fn no_key_is_taken(case: &mut Case<'_>) {
    let is_taken_there = object(&case.scenario["state_schema"]).contains_key("step_count");
    if is_taken_there && case.theirs["error"] == "refused" && case.ours["exit"] == "text" {
        case.theirs_is_ours();
    }
}

/// The one scenario of this has no calls of a single message beside it.
fn one_reply(case: &mut Case<'_>) {
    let llm = list(&case.scenario["llm"]);
    let [Value::Array(several), _] = llm else { return };
    let calls = several[0]["tool_calls"].clone();
    let Some(messages) = case.messages() else { return };
    assert_eq!((&messages[1]["calls"], &messages[2]["text"]), (&calls, &several[1]["text"]));
    messages[1]["text"] = several[1]["text"].clone();
    messages[2] = json!({"result": {"id": "1", "name": "t", "said": {"value": ["", 1, ""]}}, "role": "tool"});
}

/// The original splits the reply, so that each call that needed approval comes with its result.
fn one_message(case: &mut Case<'_>) {
    let calls = case.calls();
    let reply_of = |id: &Value| calls.iter().find(|(_, call)| call["id"] == *id).map(|(reply, _)| *reply);
    let Some(messages) = case.messages() else { return };
    let mut joined: Vec<Value> = Vec::new();
    for message in messages.drain(..) {
        let reply = message["calls"].get(0).and_then(|call| reply_of(&call["id"]));
        let before = joined.iter_mut().rev().find(|earlier| earlier["calls"].is_array());
        let is_of = |earlier: &&mut Value| {
            let first = &earlier["calls"][0]["id"];
            reply.is_some() && reply_of(first) == reply
        };
        match before.filter(is_of) {
            Some(earlier) => {
                earlier["calls"].as_array_mut().unwrap().extend(list(&message["calls"]).to_vec());
            }
            None => joined.push(message),
        }
    }
    let place = |id: &Value| calls.iter().position(|(_, call)| call["id"] == *id);
    for message in &mut joined {
        if let Some(calls) = message.get_mut("calls").and_then(Value::as_array_mut) {
            calls.sort_by_key(|call| place(&call["id"]));
        }
    }
    *messages = joined;
}

/// The original changes the model's message, and has the user say so before it. Ours says so in the result.
fn modified_in_place(case: &mut Case<'_>) {
    let made = case.calls();
    let Some(messages) = case.messages() else { return };
    let is_note = |message: &Value| {
        message["role"] == "user"
            && message["text"].as_str().unwrap_or_default().starts_with("The parameters for tool")
    };
    if !messages.iter().any(is_note) {
        return;
    }
    messages.retain(|message| !is_note(message));
    for call in messages.iter_mut().filter_map(|message| message.get_mut("calls")?.as_array_mut()).flatten() {
        let (_, call_made) = made.iter().find(|(_, made)| made["id"] == call["id"]).unwrap();
        call["arguments"] = call_made["arguments"].clone();
    }
    let Some(ours) = case.ours.get_mut("messages").and_then(Value::as_array_mut) else { return };
    for said in ours.iter_mut().filter_map(|message| message.pointer_mut("/result/said/value/1")) {
        let Some(words) = said.as_str() else { continue };
        let Some((result, _)) = words.split_once("\n[The arguments were changed before the call ran") else {
            continue;
        };
        *said = content(result)[1].clone();
    }
}

fn calls_are_answered(case: &mut Case<'_>) {
    if !case.tools().is_empty() {
        return;
    }
    let Some(messages) = case.messages() else { return };
    let open = messages.last().map(|last| list(&last["calls"]).to_vec()).unwrap_or_default();
    messages.extend(open.iter().map(|call| {
        let said = json!({"error": "not found"});
        json!({"result": {"id": call["id"], "name": call["name"], "said": said}, "role": "tool"})
    }));
}

fn in_call_order(case: &mut Case<'_>) {
    let Some(messages) = case.messages() else { return };
    let mut reply = 0;
    while reply < messages.len() {
        let calls: Vec<Value> =
            list(&messages[reply]["calls"]).iter().map(|call| call["id"].clone()).collect();
        let results = messages[reply + 1..].iter().take_while(|message| message["role"] == "tool").count();
        let place = |message: &Value| calls.iter().position(|id| *id == message["result"]["id"]);
        messages[reply + 1..=reply + results].sort_by_key(place);
        reply += results + 1;
    }
}

fn modified_arguments_refused(case: &mut Case<'_>) {
    let is_unfit = |(name, confirm): (&String, &Value)| {
        let tool = case.tool(&json!(name)).unwrap();
        let known = object(&tool["parameters"]["properties"]);
        let modified = list(&confirm["answers"]).iter().flat_map(|answer| object(&answer["params"]).keys());
        let is_missing = |name: &Value| {
            list(&confirm["answers"]).iter().any(|answer| answer["params"].get(text(name)).is_none())
        };
        modified.into_iter().any(|name| !known.contains_key(name))
            || list(&tool["parameters"]["required"]).iter().any(is_missing)
    };
    let is_unfit = object(&case.scenario["confirm"]).iter().any(is_unfit);
    if is_unfit && case.ours["error"] == "modified arguments" {
        case.theirs_is_ours();
    }
}

fn no_request(case: &mut Case<'_>) {
    let tools = case.tools();
    let asked = case.theirs["asked"].as_array_mut().unwrap();
    asked.retain(|asked| {
        let tool = tools.iter().find(|tool| tool["name"] == asked[0]).unwrap();
        let known = object(&tool["parameters"]["properties"]);
        object(&asked[1]).keys().all(|name| known.contains_key(name))
    });
}

fn merge_goes_on(case: &mut Case<'_>) {
    let is_raised_there = case.theirs["error"] == "tool" && case.scenario["raise_on_tool_failure"] != true;
    let merge = CallStatus::Failed(CallFailure::Merge);
    if is_raised_there && case.statuses.iter().any(|(_, status)| *status == merge) {
        case.theirs_is_ours();
    }
}

fn only_state_sets(case: &mut Case<'_>) {
    for (_, call) in case.calls() {
        let Some(tool) = case.tool(&call["name"]) else { continue };
        let visible = object(&tool["parameters"]["properties"]);
        let sent = object(&call["arguments"]);
        let mut fed = object(&tool["inputs_from_state"]).values().map(text);
        if fed.any(|parameter| !visible.contains_key(parameter) && sent.contains_key(parameter)) {
            case.take(&call["id"], &BTreeSet::new());
        }
    }
}

/// There, a result that is not an object is written nowhere.
fn whole_result(case: &mut Case<'_>) {
    for (_, call) in case.calls() {
        let Some(tool) = case.tool(&call["name"]) else { continue };
        let is_of = |message: &&Value| message["result"]["id"] == call["id"];
        let Some(result) = list(&case.theirs["messages"]).iter().find(is_of).cloned() else { continue };
        let outputs = object(&tool["outputs_to_state"]);
        let whole = outputs.iter().filter(|(_, output)| output.get("source").is_none());
        let is_object = result["result"]["said"]["value"][1].is_object();
        if !is_object && case.ended(&call["id"], CallStatus::Succeeded) {
            let keys = whole.map(|(key, _)| key.clone()).collect();
            case.take(&call["id"], &keys);
        }
    }
}

/// There, whatever a tool gives is written, of whatever type.
fn wrong_type(case: &mut Case<'_>) {
    let merge = CallStatus::Failed(CallFailure::Merge);
    let error = CallStatus::Failed(CallFailure::Error);
    for (_, call) in case.calls() {
        let Some(tool) = case.tool(&call["name"]) else { continue };
        let behavior = &tool["behavior"];
        let mut keys: BTreeSet<String> = object(&tool["outputs_to_state"]).keys().cloned().collect();
        let is_unmerged = case.ended(&call["id"], merge) && !keys.is_empty();
        keys.extend(behavior["key"].as_str().map(str::to_owned));
        let is_refused = behavior["kind"] == "write_state" && case.ended(&call["id"], error);
        if !is_unmerged && !is_refused {
            continue;
        }
        if case.scenario["raise_on_tool_failure"] == true && case.ours["error"] == "tool" {
            case.theirs_is_ours();
            return;
        }
        case.take(&call["id"], &keys);
        // An exit tool that failed is not an exit.
        if case.theirs["exit"] == call["name"] {
            case.theirs["exit"] = case.ours["exit"].clone();
        }
    }
}
