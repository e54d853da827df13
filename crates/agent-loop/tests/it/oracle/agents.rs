//! Agents and scripted models from the data of a scenario, as a user who ports them would write them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};
use stepfold_agent_loop::{Agent, AgentBuilder, AgentError, ApprovalRequest, Decision};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ModelError, ModelErrorKind, ReplyStream, ToolCall,
};
use stepfold_state_core::state::{Handler, Handlers, Schema, SchemaBuilder};
use stepfold_tools::{
    Approval, CallLimits, RawArgs, ResultSource, ResultText, Tool, ToolBuilder, ToolContext, ToolError,
};

/// Says what the scenario says, and counts how often it was asked.
#[derive(Clone)]
pub(super) struct Scripted {
    replies: Arc<Vec<Value>>,
    pub(super) asked: Arc<AtomicUsize>,
}

impl Scripted {
    fn new(scenario: &Value) -> Self {
        Scripted { replies: Arc::new(list(&scenario["llm"]).to_vec()), asked: Arc::default() }
    }
}

impl ChatModel for Scripted {
    fn id(&self) -> &'static str {
        "scripted"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        assert_eq!(request.messages.check(), Ok(()));
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let exhausted = json!({"text": "<exhausted>"});
        let reply = self.replies.get(number).unwrap_or(&exhausted);
        if let Some(error) = reply.get("raise") {
            let words = error.as_str().unwrap();
            return ReplyStream::failed(ModelError::new(ModelErrorKind::Transient, words));
        }
        // Several messages of one reply are one reply: that is what a stream of chunks makes of them.
        let messages = reply.as_array().map_or(std::slice::from_ref(reply), Vec::as_slice);
        let calls = messages.iter().flat_map(|message| list(&message["tool_calls"]));
        let text: String = messages.iter().filter_map(|message| message["text"].as_str()).collect();
        let calls: Vec<ToolCall> = calls.map(call).collect();
        let default = if calls.is_empty() { "stop" } else { "tool_calls" };
        let reason = FinishReason::from(reply["finish_reason"].as_str().unwrap_or(default));
        let mut message = Message::assistant(text);
        for call in calls {
            message = message.with_part(call);
        }
        let mut chunks = Chunk::of(&message);
        chunks.push(Chunk::Finished(reason));
        ReplyStream::from_chunks(chunks)
    }
}

fn call(call: &Value) -> ToolCall {
    ToolCall::new(text(&call["id"]), text(&call["name"]), call["arguments"].clone())
}

/// The agent, or why it is refused.
pub(super) fn agent(scenario: &Value) -> Result<(Agent, Scripted), String> {
    let model = Scripted::new(scenario);
    let mut schema = Schema::builder().handlers(&handlers());
    for (key, declared) in object(&scenario["state_schema"]) {
        schema = declared_key(schema, key, declared);
    }
    let schema = schema.build().map_err(|error| error.to_string())?;
    let tools = list(&scenario["tools"]).iter().map(|tool| build_tool(tool, scenario, &schema));
    let tools = tools.collect::<Result<Vec<Tool>, String>>()?;
    let mut builder = Agent::builder(model.clone()).schema(schema).tools(tools).repeat_guard(None);
    if let Some(prompt) = scenario["system_prompt"].as_str() {
        builder = builder.instructions(prompt);
    }
    if let Some(steps) = scenario["max_agent_steps"].as_u64() {
        builder = builder.max_steps(steps);
    }
    if scenario["raise_on_tool_failure"] == true {
        builder = builder.raise_on_failure();
    }
    if let Some(calls) = scenario["tool_concurrency_limit"].as_u64() {
        builder =
            builder.tool_limits(CallLimits::default().with_concurrency(usize::try_from(calls).unwrap()));
    }
    // Text without a call is an exit condition in any case.
    builder = builder.exit_on(exits(scenario));
    builder.build().map(|agent| (agent, model)).map_err(|error: AgentError| error.to_string())
}

pub(super) fn exits(scenario: &Value) -> impl Iterator<Item = &str> {
    list(&scenario["exit_conditions"]).iter().map(text).filter(|name| *name != "text")
}

/// The tools that the run is given, if not all.
pub(super) fn adjust(builder: AgentBuilder, scenario: &Value) -> AgentBuilder {
    match &scenario["runtime_tools"] {
        Value::Array(names) => builder.only_tools(names.iter().map(text)),
        _ => builder,
    }
}

/// Answers from the lists of the scenario, and keeps what was asked.
pub(super) struct Answers {
    left: Mutex<Map<String, Value>>,
    asked: Mutex<Vec<Value>>,
}

impl Answers {
    pub(super) fn new(scenario: &Value) -> Self {
        Answers { left: Mutex::new(object(&scenario["confirm"]).clone()), asked: Mutex::default() }
    }

    pub(super) fn asked(&self) -> Value {
        Value::Array(self.asked.lock().unwrap().clone())
    }

    pub(super) fn decide(&self, requests: Vec<ApprovalRequest>) -> Vec<(String, Decision)> {
        let mut left = self.left.lock().unwrap();
        let decide = |request: ApprovalRequest| {
            let arguments = request.call.arguments.as_object().unwrap();
            self.asked.lock().unwrap().push(json!([request.call.name, arguments]));
            let answers = left.get_mut(&request.call.name).unwrap()["answers"].as_array_mut().unwrap();
            let mut answers = std::mem::take(answers).into_iter().collect::<VecDeque<_>>();
            let answer = answers.pop_front().unwrap_or_else(|| json!({"action": "confirm"}));
            left.get_mut(&request.call.name).unwrap()["answers"] = answers.into_iter().collect();
            let decision = match text(&answer["action"]) {
                "confirm" => Decision::Approve,
                "reject" => Decision::reject(answer["feedback"].as_str().unwrap_or_default()),
                "modify" => Decision::modify(answer["params"].clone()),
                other => panic!("unknown answer {other}"),
            };
            (request.id, decision)
        };
        requests.into_iter().map(decide).collect()
    }
}

fn build_tool(tool: &Value, scenario: &Value, schema: &Schema) -> Result<Tool, String> {
    let name = text(&tool["name"]);
    let behavior = tool["behavior"].clone();
    let kind = text(&behavior["kind"]).to_owned();
    let key = behavior["key"].as_str().map(str::to_owned);
    // What the schema does not declare cannot be read or written.
    let declared = |key: &&str| schema.key(key).is_some();
    let reads: Vec<&str> = list(&tool["behavior"]["keys"]).iter().map(text).filter(declared).collect();
    let required = list(&tool["parameters"]["required"]).to_vec();
    let function = move |RawArgs(arguments): RawArgs, context: ToolContext| {
        // What neither the model nor the state gave, a Python function misses.
        let given = match required.iter().find(|name| arguments.get(text(name)).is_none()) {
            Some(name) => Err(ToolError::new(format!("missing a required argument: {name}"))),
            None => behave(&behavior, &arguments, &context),
        };
        async move { given }
    };
    let mut builder = Tool::new(name, "A tool of the scenario.", function)
        .parameters(parameters(tool))
        .reads(reads)
        .approval(approval(&scenario["confirm"][name]));
    if kind == "write_state" {
        builder = builder.writes(key);
    }
    for (key, parameter) in object(&tool["inputs_from_state"]) {
        // What the model can see it can set, as in the original; what it cannot see only the state sets.
        builder = match is_visible(tool, text(parameter)) {
            true => builder.default_from_state(key.as_str(), text(parameter)),
            false => builder.input_from_state(key.as_str(), text(parameter)),
        };
    }
    for (key, output) in object(&tool["outputs_to_state"]) {
        let source = output["source"].as_str().map_or(ResultSource::Whole, ResultSource::from);
        builder = match output["handler"].as_str() {
            None => builder.output_to_state(key.as_str(), source),
            Some(name) => builder.output_to_state_with(key.as_str(), source, handler(name)),
        };
    }
    with_text(builder, &tool["outputs_to_string"]).build().map_err(|error| error.to_string())
}

fn is_visible(tool: &Value, parameter: &str) -> bool {
    object(&tool["parameters"]["properties"]).contains_key(parameter)
}

/// The schema of the scenario, with what is fed from state. A Python function takes nothing else.
fn parameters(tool: &Value) -> Value {
    let mut properties = object(&tool["parameters"]["properties"]).clone();
    for parameter in object(&tool["inputs_from_state"]).values() {
        properties.entry(text(parameter)).or_insert(json!({}));
    }
    let mut schema = json!({"additionalProperties": false, "properties": properties, "type": "object"});
    if let Some(required) = tool["parameters"].get("required") {
        schema["required"] = required.clone();
    }
    schema
}

fn approval(confirm: &Value) -> Approval {
    match (confirm, confirm["policy"].as_str()) {
        (Value::Null, _) | (_, Some("never")) => Approval::Never,
        (_, Some("once")) => Approval::Once,
        _ => Approval::Always,
    }
}

fn behave(behavior: &Value, arguments: &Value, context: &ToolContext) -> Result<Value, ToolError> {
    let argument = || arguments.get(text(&behavior["arg"])).cloned().unwrap_or_default();
    Ok(match text(&behavior["kind"]) {
        "echo" => json!({"args": arguments}),
        "pick" => argument(),
        "raise" => return Err(ToolError::new(text(&behavior["message"]))),
        "raise_if" if argument() == behavior["equals"] => return Err(ToolError::new("matched")),
        "constant" | "raise_if" => behavior["value"].clone(),
        "read_state" => {
            let read = |key: &Value| {
                let value = context
                    .state()
                    .get(text(key))
                    .map_or(Value::Null, stepfold_state_core::state::ValueRef::to_json);
                (text(key).to_owned(), value)
            };
            Value::Object(list(&behavior["keys"]).iter().map(read).collect())
        }
        "write_state" => {
            context.writer().set(text(&behavior["key"]), argument())?;
            json!("written")
        }
        other => panic!("unknown behavior {other}"),
    })
}

fn with_text(builder: ToolBuilder, rule: &Value) -> ToolBuilder {
    let Some(rule) = rule.as_object() else { return builder };
    let is_one = rule.values().all(Value::is_string);
    builder.output_to_string(match is_one {
        true => one_text(rule),
        false => ResultText::several(rule.iter().map(|(name, rule)| (name.as_str(), one_text(object(rule))))),
    })
}

fn one_text(rule: &Map<String, Value>) -> ResultText {
    let source = rule.get("source").map_or(ResultSource::Whole, |name| ResultSource::from(text(name)));
    let result = ResultText::of(source);
    let as_text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match rule.get("handler").map(text) {
        None => result,
        Some("upper") => result.formatted(move |value| match value {
            // What Python says of null.
            Value::Null => Ok("NONE".to_owned()),
            value => Ok(as_text(value).to_uppercase()),
        }),
        Some("json") => result.formatted(|value| Ok(value.to_string())),
        Some("wrap") => result.formatted(move |value| Ok(format!("<<{}>>", as_text(value)))),
        Some("raise") => result.formatted(|_| Err("the formatter fails".into())),
        Some(other) => panic!("unknown formatter {other}"),
    }
}

fn handlers() -> Handlers {
    Handlers::new().with(handler("raise")).unwrap()
}

fn handler(name: &str) -> Handler {
    match name {
        "raise" => Handler::custom("raise", |_, _| Err("handler failed".into())),
        "append_unique" => Handler::union(),
        "keep_first" => Handler::first_wins(),
        same => same.parse().unwrap(),
    }
}

fn declared_key(schema: SchemaBuilder, key: &str, declared: &Value) -> SchemaBuilder {
    let json_type = match text(&declared["type"]) {
        "str" => json!("string"),
        "int" => json!("integer"),
        "dict" => json!("object"),
        "list" => json!("array"),
        "list[str]" => json!({"items": {"type": "string"}, "type": "array"}),
        "Optional[list]" => json!(["array", "null"]),
        other => panic!("unknown type {other}"),
    };
    let schema = schema.key_schema(key, json_type);
    match declared.get("handler") {
        // The original replaces optional lists by default; ours are merged as all lists are.
        None if text(&declared["type"]) == "Optional[list]" => schema.handler(Handler::replace_values()),
        None => schema,
        Some(name) => schema.handler(handler(text(name))),
    }
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn object(value: &Value) -> &Map<String, Value> {
    static NONE: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    value.as_object().unwrap_or(&NONE)
}
