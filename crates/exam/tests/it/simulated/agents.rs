//! From a plan to an agent. Everything in it is a function of what it is given, so that a run that is ended and
//! continues meets the same model, tools, hooks and people.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use stepfold_agent_loop::trim::{Summarize, Trim, Window, token_counter};
use stepfold_agent_loop::{
    Agent, AgentBuilder, ApprovalRequest, AskReason, Decision, HookAction, HookContext, HookError, HookPoint,
    HookResult, Input, OUTPUT_TOOL, Output, OutputMode, RepeatGuard, RunLimits,
};
use stepfold_exam::Executions;
use stepfold_state_core::chat::{
    Arguments, ChatModel, ChatRequest, Chunk, FinishReason, Message, ModelError, ModelErrorKind, ReplyStream,
    Role, ToolCall, ToolContent, Transcript, Usage,
};
use stepfold_state_core::state::{Handler, Handlers, Schema, SchemaBuilder, State, ValueRef};
use stepfold_tools::{
    Approval, CallLimits, InputRequest, RawArgs, ResultSource, Tool, ToolContext, ToolError, Toolset,
};

use super::scenarios::{Argument, Asks, Behavior, Call, Hook, Options, Reply, Scenario, ToolPlan};

/// The keys of the state, but for the conversation.
const KEYS: [&str; 4] = ["log", "count", "last", "picky"];

pub(super) fn schema() -> Schema {
    keys().build().unwrap()
}

/// The keys that generated agents and graphs share.
pub(super) fn keys() -> SchemaBuilder {
    let refuses = Handler::custom("refuses_seven", |_, new| match new == json!(7) {
        true => Err("seven is refused".into()),
        false => Ok(new),
    });
    Schema::builder()
        .handlers(&Handlers::new().with(refuses.clone()).unwrap())
        .key::<Vec<Value>>("log")
        .key::<u8>("count")
        .handler(Handler::sum())
        .key::<Value>("last")
        .key::<Value>("picky")
        .handler(refuses)
}

pub(super) fn input(scenario: &Scenario) -> Input {
    let mut log = Transcript::new();
    let (turns, is_cut) = scenario.history;
    for turn in 0..turns {
        log.push(Message::user(format!("question {turn}")));
        log.push(Message::new(Role::Assistant).with_part(ToolCall::new(
            format!("h{turn}"),
            "t0",
            json!({"n": 1}),
        )));
        if !is_cut || turn + 1 < turns {
            let result = stepfold_state_core::chat::ToolResult::value(format!("h{turn}"), "t0", 1);
            log.push(Message::tool(result));
            log.push(Message::assistant(format!("answer {turn}")));
        }
    }
    let mut state = State::new(&schema());
    state.replace_messages(log);
    let input = Input::on(state).say("go");
    match &scenario.options.value {
        Some(value) => input.with_values(json!({"count": 1, "last": value})),
        None => input,
    }
}

pub(super) fn agent(scenario: &Scenario, executions: &Executions) -> Agent {
    agent_with(scenario, executions, &Hiccups::default())
}

/// The same with hooks after tools that fail at times.
pub(super) fn agent_with(scenario: &Scenario, executions: &Executions, hiccups: &Hiccups) -> Agent {
    let options = &scenario.options;
    let tools: Vec<Tool> = scenario
        .tools
        .iter()
        .enumerate()
        .map(|(number, plan)| tool(number, plan, options, executions))
        .collect();
    let model = Planned { replies: scenario.replies.clone().into(), tools: tools.len() };
    let exits = scenario.tools.iter().enumerate().filter(|(_, plan)| plan.is_exit);
    let exits: Vec<String> = exits.map(|(number, _)| format!("t{number}")).collect();
    let builder =
        Agent::builder(model).schema(schema()).instructions("You began with {last?}.").exit_on(exits);
    let builder = match options.is_dynamic {
        false => builder.tools(tools),
        true => builder.tools(Toolset::dynamic_with("dynamic", move |_| {
            let tools = tools.clone();
            async move { Ok(tools) }
        })),
    };
    with_hooks(with_options(builder, options), scenario, hiccups).build().unwrap()
}

fn with_options(builder: AgentBuilder, options: &Options) -> AgentBuilder {
    let mut limits = RunLimits::default().with_steps(options.steps);
    limits.tool_calls = options.tool_calls;
    limits.tokens = options.tokens;
    limits.calls_per_reply = options.calls_per_reply.unwrap_or(limits.calls_per_reply);
    let guard = options.repeats.map(|times| RepeatGuard::default().warn_at(times).stop_at(times + 1));
    let tool_limits =
        CallLimits::default().with_concurrency(options.concurrency).with_timeout(Duration::from_secs(60));
    let mut builder = builder.limits(limits).tool_limits(tool_limits).repeat_guard(guard);
    if options.final_answer {
        builder = builder.final_answer();
    }
    if options.raises {
        builder = builder.raise_on_failure();
    }
    if options.asks_when_uncertain {
        builder = builder.ask_when_uncertain();
    }
    if let Some(mode) = options.output {
        let schema = json!({"properties": {"n": {"type": "integer"}}, "required": ["n"], "type": "object"});
        builder = builder.output_with(Output::schema("number", schema).mode(mode).repairs(1));
    }
    if let Some(messages) = options.window {
        builder = builder.window(Window::new(messages).counted_by(token_counter("ones", |_| 1)));
    }
    if let Some(messages) = options.keeps_last {
        builder = builder.trim(Trim::keep_last(messages));
    }
    if let Some(messages) = options.summarizes {
        builder = builder.summarize(Summarize::beyond(Trim::keep_last(messages)));
    }
    builder
}

fn tool(number: usize, plan: &ToolPlan, options: &Options, executions: &Executions) -> Tool {
    let (behavior, pauses, waits, executions) =
        (plan.behavior, plan.pauses, options.waits, executions.clone());
    let function = move |RawArgs(arguments): RawArgs, context: ToolContext| {
        executions.note(&context);
        async move {
            let number = arguments["n"].as_u64().unwrap_or_default();
            for _ in 0..(number + u64::from(pauses)) % 3 {
                tokio::task::yield_now().await;
            }
            behave(behavior, number, waits, &context)
        }
    };
    let (reads, writes): (&[&str], &[&str]) = match plan.behavior {
        Behavior::Appends | Behavior::Inquires => (&[], &["log"]),
        Behavior::Sums => (&[], &["count"]),
        Behavior::Replaces => (&[], &["last"]),
        Behavior::Refuses => (&[], &["picky"]),
        Behavior::Reads => (&KEYS, &[]),
        Behavior::Copies => (&["last", "count"], &["log", "last"]),
        _ => (&[], &[]),
    };
    let tool = Tool::new(format!("t{number}"), "A tool.", function)
        .parameters(json!({"properties": {"n": {"type": "integer"}}, "type": "object"}))
        .reads(reads.iter().copied())
        .effect(plan.effect)
        .approval(match plan.asks {
            Asks::Never => Approval::Never,
            Asks::Always => Approval::Always,
            Asks::Once => Approval::Once,
            Asks::Above(least) => Approval::when(move |arguments| {
                arguments.get("n").and_then(Value::as_u64) > Some(least.into())
            }),
        });
    let tool = writes.iter().fold(tool, |tool, key| {
        let source = if *key == "count" { ResultSource::from("count") } else { ResultSource::from("n") };
        tool.output_to_state(*key, source)
    });
    tool.build().unwrap()
}

fn behave(behavior: Behavior, number: u64, waits: bool, context: &ToolContext) -> Result<Value, ToolError> {
    match behavior {
        Behavior::FailsIfOdd if number % 2 == 1 => return Err(ToolError::new("it is odd")),
        Behavior::Panics if number > 4 => panic!("more than four"),
        Behavior::Fatal if number > 6 => return Err(ToolError::fatal("more than six")),
        _ => {}
    }
    let read = |key: &&str| context.state().get(*key).map_or(json!("unset"), ValueRef::to_json);
    let seen: Vec<Value> = match behavior {
        Behavior::Reads => KEYS.iter().map(read).collect(),
        Behavior::Copies => ["last", "count"].iter().map(read).collect(),
        Behavior::Inquires => inquire(number, waits, context)?,
        _ => Vec::new(),
    };
    // Some of the sums overflow.
    Ok(json!({"count": number * 30, "n": number, "seen": seen}))
}

/// Asks once, or twice, and gives the answers.
fn inquire(number: u64, waits: bool, context: &ToolContext) -> Result<Vec<Value>, ToolError> {
    let first = context.ask(InputRequest::new("first", format!("is it {number}?")).state(json!(number)))?;
    let mut answers = vec![json!(format!("{first:?}"))];
    if number % 2 == 1 {
        let second = context.ask(InputRequest::new("second", format!("and after {first:?}?")))?;
        answers.push(json!(format!("{second:?}")));
        let states: Vec<_> =
            context.answered().iter().map(|answered| answered.request.state.clone()).collect();
        assert_eq!(states, [Some(json!(number)), None]);
    }
    if waits && number % 3 == 2 {
        let third = context.later("third").within(Duration::from_secs(60));
        answers.push(json!(format!("{:?}", third.response())));
        if third.is_new() {
            third.outcome()?;
        }
    }
    Ok(answers)
}

/// What a person decides, by the seed.
pub(super) fn decision(seed: u64, request: &ApprovalRequest) -> Decision {
    let number = request.call.arguments.as_object().and_then(|arguments| arguments.get("n")?.as_u64());
    match (seed.rotate_left(7) ^ number.unwrap_or_default()) % 4 {
        0 if request.is_later() => Decision::Expire,
        1 if request.is_later() => Decision::reject("it failed"),
        _ if request.is_later() => Decision::complete(json!({"came": true})),
        _ if request.reason == AskReason::MayHaveHappened && !seed.is_multiple_of(3) => {
            Decision::reject("it may have happened")
        }
        0 => Decision::reject("no"),
        1 => Decision::modify(json!({"n": 2})),
        _ => Decision::Approve,
    }
}

/// Counts the calls of hooks after tools, and has some of them fail, by their numbers from 1.
#[derive(Clone, Default)]
pub(super) struct Hiccups(Arc<Mutex<(usize, Vec<usize>)>>);

impl Hiccups {
    pub(super) fn at(calls: impl IntoIterator<Item = usize>) -> Self {
        Hiccups(Arc::new(Mutex::new((0, calls.into_iter().collect()))))
    }

    /// How often such a hook was called.
    pub(super) fn calls(&self) -> usize {
        self.0.lock().unwrap().0
    }

    fn next(&self) -> Result<(), HookError> {
        let mut calls = self.0.lock().unwrap();
        calls.0 += 1;
        match calls.1.contains(&calls.0) {
            true => Err(HookError::new("a hiccup")),
            false => Ok(()),
        }
    }
}

fn with_hooks(builder: AgentBuilder, scenario: &Scenario, hiccups: &Hiccups) -> AgentBuilder {
    scenario.hooks.iter().fold(builder, |builder, (hook, kind)| {
        let (point, kind, hiccups) = (point_of(*hook), *kind, hiccups.clone());
        builder.hook(point, move |context| {
            let hiccup = if point == HookPoint::AfterTool { hiccups.next() } else { Ok(()) };
            std::future::ready(hiccup.and_then(|()| hooked(point, kind, &context)))
        })
    })
}

const fn point_of(hook: Hook) -> HookPoint {
    match hook {
        Hook::BeforeRun => HookPoint::BeforeRun,
        Hook::BeforeModel => HookPoint::BeforeModel,
        Hook::BeforeTool => HookPoint::BeforeTool,
        Hook::AfterTool => HookPoint::AfterTool,
        Hook::OnExit => HookPoint::OnExit,
        Hook::AfterRun => HookPoint::AfterRun,
    }
}

/// A hook of one of several kinds: it writes, and does what can be done at its point.
fn hooked(point: HookPoint, kind: u8, context: &HookContext) -> HookResult {
    let number =
        context.call.as_ref().and_then(|call| call.arguments.as_object()?.get("n")?.as_u64()).unwrap_or(9);
    let action = HookAction::proceed().write(context, "log", json!(format!("{point:?}")))?;
    let action = match kind % 3 {
        0 => action.write(context, "last", json!([format!("{point:?}"), number]))?,
        _ => action,
    };
    let is_chosen = u64::from(kind) % 7 == number % 7;
    Ok(match point {
        HookPoint::BeforeRun if kind.is_multiple_of(4) => action.with_message(Message::user("and be quick")),
        HookPoint::BeforeModel if kind % 16 == 1 => action.with_rewrite(shorter(context.state.messages())),
        HookPoint::BeforeModel if kind % 16 == 2 && context.steps == 2 => HookAction::stop("enough"),
        HookPoint::BeforeTool if is_chosen && kind.is_multiple_of(2) => action.with_answer("a hook answers"),
        HookPoint::BeforeTool if is_chosen && kind.is_multiple_of(5) => HookAction::stop("not this one"),
        HookPoint::AfterTool if is_chosen && kind.is_multiple_of(2) => {
            action.with_result(ToolContent::Value(json!("hidden")))
        }
        HookPoint::AfterTool if is_chosen && kind.is_multiple_of(5) => HookAction::stop("seen enough"),
        HookPoint::OnExit if kind.is_multiple_of(2) && context.steps < 4 => HookAction::continue_run(),
        _ => action,
    })
}

/// The first turn left out, if there is another.
fn shorter(log: &Transcript) -> Transcript {
    let last = log.turn_start(log.len()).unwrap_or(0);
    log.iter().skip(last).cloned().collect()
}

/// Says what is planned. Which reply comes next it reads off the last one that the request shows.
struct Planned {
    replies: Arc<[Reply]>,
    tools: usize,
}

impl Planned {
    fn next(request: &ChatRequest) -> usize {
        let number_of = |message: &Message| {
            let id = message
                .tool_calls()
                .find_map(|call| call.id.strip_prefix('c')?.split('-').next()?.parse().ok());
            id.or_else(|| message.text().strip_prefix("reply ")?.split(' ').next()?.parse::<usize>().ok())
        };
        let mut unnumbered = 0;
        for message in request.messages.iter().rev().filter(|message| message.role() == Role::Assistant) {
            match number_of(message) {
                Some(number) => return number + 1 + unnumbered,
                None if message.tool_calls().next().is_some() || message.text().starts_with("answer") => {
                    break;
                }
                None => unnumbered += 1,
            }
        }
        unnumbered
    }

    fn calls(&self, message: Message, number: usize, calls: &[Call]) -> Message {
        calls.iter().enumerate().fold(message, |message, (place, call)| {
            let id = if call.repeats_id { "c0-0".to_owned() } else { format!("c{number}-{place}") };
            let name = if call.tool < self.tools { format!("t{}", call.tool) } else { "unknown".to_owned() };
            message.with_part(ToolCall::new(
                id,
                name,
                match call.argument {
                    Argument::Number(number) => Arguments::from(json!({"n": number})),
                    Argument::Wrong => Arguments::from(json!({"n": "one"})),
                    Argument::Malformed => Arguments::parse("{\"n\": "),
                },
            ))
        })
    }
}

impl ChatModel for Planned {
    fn id(&self) -> &'static str {
        "planned"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        assert_eq!(request.messages.check(), Ok(()));
        let number = Self::next(&request);
        let words = format!("reply {number} of {}", request.messages.len());
        let mut reason = FinishReason::Stop;
        let message = match self.replies.get(number) {
            None | Some(Reply::Text) => Message::assistant(words),
            Some(Reply::Empty) => Message::new(Role::Assistant),
            Some(Reply::Blank) => Message::assistant("  "),
            Some(Reply::Calls { has_text, calls }) => {
                let message =
                    if *has_text { Message::assistant(words) } else { Message::new(Role::Assistant) };
                self.calls(message, number, calls)
            }
            Some(Reply::Cut { by_filter, calls }) => {
                reason = if *by_filter { FinishReason::ContentFilter } else { FinishReason::Length };
                self.calls(Message::assistant(words), number, calls)
            }
            Some(Reply::Output(is_valid)) => {
                let value = if *is_valid { json!({"n": number}) } else { json!({"n": "none"}) };
                let has_tool = request.tools.iter().any(|tool| tool.name == OUTPUT_TOOL);
                match has_tool {
                    true => Message::new(Role::Assistant).with_part(ToolCall::new(
                        format!("c{number}-0"),
                        OUTPUT_TOOL,
                        value,
                    )),
                    false => Message::assistant(value.to_string()),
                }
            }
            Some(Reply::Fails) => {
                return ReplyStream::failed(ModelError::new(ModelErrorKind::Overloaded, "busy"));
            }
        };
        let mut chunks = Chunk::of(&message);
        chunks.push(Chunk::Usage(Usage::new(3, 2)));
        chunks.push(Chunk::Finished(reason));
        ReplyStream::from_chunks(chunks)
    }
}

/// Whether a mode of output is among the options; for the account of what was generated.
pub(super) fn mode_name(mode: OutputMode) -> String {
    format!("output by {mode:?}")
}
