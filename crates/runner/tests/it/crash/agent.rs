//! The agent whose process dies: three turns of three steps, with calls of all effects that run together.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::Arc;

use futures_util::StreamExt;
use serde_json::json;
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, HookAction, HookContext};
use stepfold_state_core::chat::{ChatModel, ChatRequest, ReplyStream};
use stepfold_state_core::state::{Handler, Schema};
use stepfold_tools::{Effect, Tool, ToolContext, ToolError};

use super::points::Points;

/// The effects that tools had on the world, in a file that outlives the process. Each line is flushed.
#[derive(Clone)]
pub(crate) struct World(Arc<File>);

impl World {
    pub(crate) fn at(path: &str) -> Self {
        World(Arc::new(OpenOptions::new().create(true).append(true).open(path).unwrap()))
    }

    fn note(&self, what: &str, context: &ToolContext) {
        let (tool, call, key) = (context.tool_name(), context.call_id(), context.idempotency_key());
        (&*self.0).write_all(format!("{what} {tool} {call} {key}\n").as_bytes()).unwrap();
        self.0.sync_all().unwrap();
    }
}

/// The replies of so many turns.
fn script(turns: usize) -> Script {
    let mut text = String::new();
    for turn in 0..turns {
        let first = turn * 6;
        let call = |place: usize, tool: &str| format!("> c{} {tool}()", first + place);
        let step = |calls: [String; 3]| format!("assistant: {}", calls.join("   "));
        writeln!(text, "{}", step([call(1, "look"), call(2, "put"), call(3, "pay")])).unwrap();
        writeln!(text, "{}", step([call(4, "pay"), call(5, "look"), call(6, "pay")])).unwrap();
        writeln!(text, "assistant: turn {turn} is done").unwrap();
    }
    Script::parse(&text).unwrap()
}

/// A model with a point in the middle of its reply. What it says depends on the conversation alone.
struct Model {
    script: Script,
    points: Points,
}

impl ChatModel for Model {
    fn id(&self) -> &'static str {
        "script"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let points = self.points.clone();
        ReplyStream::new(self.script.respond(request).enumerate().map(move |(place, chunk)| {
            if place == 1 {
                points.pass("the middle of a reply");
            }
            chunk
        }))
    }
}

pub(crate) fn schema() -> Schema {
    let builder = Schema::builder()
        .key::<Vec<String>>("log")
        .key::<i64>("asked")
        .handler(Handler::sum())
        .key::<i64>("app:calls")
        .handler(Handler::sum())
        .key::<i64>("app:turns")
        .handler(Handler::sum())
        .key::<Vec<String>>("user:log")
        .handler(Handler::union());
    builder.build().unwrap()
}

/// A tool that looks, puts or pays: it notes that it began, has its effect, and notes that.
fn tool(name: &'static str, effect: Effect, world: &World, points: &Points) -> Tool {
    let (world, points) = (world.clone(), points.clone());
    let function = move |context: ToolContext| {
        let (world, points) = (world.clone(), points.clone());
        async move {
            points.pass(&format!("{name}, before it"));
            world.note("began", &context);
            // The others of the reply continue meanwhile.
            tokio::task::yield_now().await;
            world.note("did", &context);
            points.pass(&format!("{name}, after its effect"));
            tokio::task::yield_now().await;
            context.writer().set("log", json!([context.call_id()]))?;
            context.writer().set("user:log", json!([context.call_id()]))?;
            context.writer().set("app:calls", 1)?;
            Ok::<_, ToolError>(format!("{name} {}", context.call_id()))
        }
    };
    let tool = Tool::new(name, "Has an effect.", function).effect(effect);
    tool.writes(["app:calls", "log", "user:log"]).build().unwrap()
}

pub(crate) fn agent(turns: usize, world: &World, points: &Points) -> Agent {
    let (in_run, in_model) = (points.clone(), points.clone());
    Agent::builder(Model { script: script(turns), points: points.clone() })
        .name("crash")
        .schema(schema())
        .tools([
            tool("look", Effect::Pure, world, points),
            tool("put", Effect::Idempotent, world, points),
            tool("pay", Effect::AtMostOnce, world, points),
        ])
        .before_run(move |context: HookContext| {
            in_run.pass("a hook before the run");
            async move { HookAction::proceed().write(&context, "app:turns", 1) }
        })
        .before_model(move |context: HookContext| {
            in_model.pass("a hook before the model");
            async move { HookAction::proceed().write(&context, "asked", 1) }
        })
        // Each outcome is then a commit of its own, also of calls that end at the same moment.
        .after_tool(async |_: HookContext| Ok(HookAction::proceed()))
        .build()
        .unwrap()
}
