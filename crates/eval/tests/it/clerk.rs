//! A clerk that counts stalls and takes notes, with the faults that can be planted in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use stepfold_agent_loop::{Agent, AgentBuilder, Decision};
use stepfold_eval::Case;
use stepfold_runner::{Runner, SessionHandle};
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ModelParams, ReplyStream, Role, Transcript, Usage,
};
use stepfold_state_core::state::Schema;
use stepfold_tools::{Approval, Effect, RawArgs, StateWriter, Tool, ToolError};

/// The difference of a clerk from the recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variation {
    None,
    WrongTool,
    WrongArgument,
    LostState,
    MoreSteps,
    WorseText,
    FailedCall,
    ForgottenApproval,
    Costly,
    AtLimit,
    CalledTwice,
    NoCall,
    SometimesLost,
    // Harmless.
    OtherOrder,
    OtherWords,
    OtherIds,
    LongerText,
    Polite,
    WithText,
    OtherInstructions,
    OtherName,
    OtherParams,
    MoreTools,
    OtherLimits,
    MoreKeys,
    OneBadCase,
}

/// A model that looks at the last question and at what has happened since.
pub(crate) struct Clerk(pub Variation);

impl ChatModel for Clerk {
    fn id(&self) -> &'static str {
        "test/clerk"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let log: Vec<&Arc<Message>> = request.messages.iter().collect();
        let asked = log.iter().rposition(|message| message.role() == Role::User).unwrap_or(0);
        let question = log[asked].text().into_owned();
        let area: u64 = question.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let steps = log[asked..].iter().filter(|message| message.role() == Role::Assistant).count();
        let message = reply(self.0, area, steps, log.len());
        let finish = if message.has_tool_calls() { FinishReason::ToolCalls } else { FinishReason::Stop };
        let mut chunks = Chunk::of(&message);
        let read = if self.0 == Variation::Costly { 1_000 } else { 100 };
        chunks.push(Chunk::Usage(Usage::new(read + 10 * log.len() as u64, 20)));
        chunks.push(Chunk::Finished(finish));
        ReplyStream::from_chunks(chunks)
    }
}

fn reply(variation: Variation, area: u64, steps: usize, place: usize) -> Message {
    let id = |name: &str| match variation {
        Variation::OtherIds => format!("call-{name}-{place}"),
        _ => format!("{name}{place}"),
    };
    let counted = match variation {
        Variation::WrongArgument => area + 1,
        _ => area,
    };
    let count = match variation {
        Variation::WrongTool => format!("> {} tally(area={area})", id("c")),
        Variation::FailedCall => format!("> {} count(area=\"many\")", id("c")),
        _ => format!("> {} count(area={counted})", id("c")),
    };
    let note = format!("> {} note(text=\"area {area}\")", id("n"));
    let answer = match variation {
        Variation::WorseText => "Done.".to_owned(),
        Variation::OtherWords => format!("There are {} stalls in it.", area * 4),
        Variation::LongerText => {
            format!("I have counted them: area {area} has {} stalls, and that is noted.", area * 4)
        }
        Variation::Polite => format!("Gladly! {} stalls.", area * 4),
        _ => format!("Area {area} has {} stalls.", area * 4),
    };
    let lines = match (variation, steps) {
        (Variation::LostState, 0) => vec![count],
        (Variation::SometimesLost, 0) if area % 5 < 2 => vec![count],
        (Variation::OneBadCase, 0) if area == 7 => vec![count],
        (Variation::CalledTwice, 0) => {
            let again = format!("> {} note(text=\"area {area}\")", id("again"));
            vec![count, note, again]
        }
        (Variation::OtherOrder, 0) => vec![note, count],
        (Variation::MoreSteps, 0) => vec![count.clone()],
        (Variation::MoreSteps, 1) => vec![format!("> {} count(area={area})", id("again")), note],
        (Variation::NoCall, 0) | (Variation::MoreSteps, _) => vec![answer],
        (Variation::WithText, 0) => vec!["I look.".to_owned(), count, note],
        (_, 0) => vec![count, note],
        _ => vec![answer],
    };
    let text = format!("assistant: {}", lines.join("\n  "));
    let transcript: Transcript = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    let first = transcript.first().cloned().expect("there is one message");
    (*first).clone()
}

/// The number of executions of tool functions.
pub(crate) type Executions = Arc<AtomicU64>;

pub(crate) fn clerk(variation: Variation, executions: &Executions) -> AgentBuilder {
    let ran = Arc::clone(executions);
    let count = move |RawArgs(arguments): RawArgs| {
        ran.fetch_add(1, Ordering::Relaxed);
        async move { Ok::<Value, ToolError>(json!({"stalls": arguments["area"].as_u64().unwrap_or(0) * 4})) }
    };
    let ran = Arc::clone(executions);
    let note = move |RawArgs(arguments): RawArgs, writer: StateWriter| {
        ran.fetch_add(1, Ordering::Relaxed);
        async move {
            writer.set("notes", json!([arguments["text"]]))?;
            Ok::<&str, ToolError>("noted")
        }
    };
    let of = |name: &str, kind: &str| json!({"type": "object", "properties": {name: {"type": kind}}, "required": [name], "additionalProperties": false});
    let tools = [
        Tool::new("count", "Counts stalls.", count.clone())
            .parameters(of("area", "integer"))
            .effect(Effect::Pure),
        Tool::new("tally", "Counts stalls slowly.", count)
            .parameters(of("area", "integer"))
            .effect(Effect::Pure),
        Tool::new("note", "Takes a note.", note).parameters(of("text", "string")).writes(["notes"]),
    ];
    let tools: Vec<Tool> = tools.into_iter().map(|tool| tool.build().expect("a valid tool")).collect();
    let schema = Schema::builder().key::<Vec<String>>("notes").build().expect("a valid schema");
    Agent::builder(Clerk(variation)).name("clerk").schema(schema).tools(tools)
}

/// A clerk whose notes need an approval.
pub(crate) fn careful(variation: Variation, executions: &Executions) -> AgentBuilder {
    let clerk = clerk(variation, executions);
    let asking = Approval::when(|arguments| arguments.contains_key("text"));
    match variation {
        Variation::ForgottenApproval => clerk,
        Variation::AtLimit => clerk.approval(asking).max_steps(1),
        Variation::OtherInstructions => clerk.approval(asking).instructions("Be brief."),
        Variation::OtherName => clerk.approval(asking).name("counter"),
        Variation::OtherParams => clerk.approval(asking).params(ModelParams::default().with_temperature(0.2)),
        Variation::MoreTools => {
            let unused = Tool::new("sleep", "Sleeps.", async || Ok::<&str, ToolError>("slept"));
            clerk.approval(asking).tool(unused.build().expect("a valid tool"))
        }
        Variation::OtherLimits => clerk.approval(asking).max_steps(9),
        Variation::MoreKeys => {
            let keys = Schema::builder().key::<Vec<String>>("notes").key::<u64>("more").default(3).build();
            clerk.approval(asking).schema(keys.expect("a valid schema"))
        }
        _ => clerk.approval(asking),
    }
}

/// Cases of that many sessions of a careful clerk whose notes were approved.
pub(crate) async fn approved_cases(agent: &Agent, count: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for area in 1..=count {
        let session = session(agent, &format!("s{area}"), &format!("how many stalls has area {area}")).await;
        let request = session.pending().await.expect("it can be read").remove(0);
        session.resume().decide(request.id, Decision::Approve).await.expect("the run ends");
        cases.push(Case::taken_from(&session, None).await.expect("a turn that suits"));
    }
    cases
}

/// A session of one turn about an area.
pub(crate) async fn session(agent: &Agent, name: &str, question: &str) -> SessionHandle {
    let runner = Runner::builder(agent.clone(), MemoryStore::new()).build();
    let session = runner.session("ada", name).await.expect("a new session");
    session.run(question).await.expect("the run ends");
    session
}

/// Cases of that many sessions of a clerk.
pub(crate) async fn cases(agent: &Agent, count: u64) -> Vec<Case> {
    let mut cases = Vec::new();
    for area in 1..=count {
        let session = session(agent, &format!("s{area}"), &format!("how many stalls has area {area}")).await;
        cases.push(Case::taken_from(&session, None).await.expect("a turn that suits"));
    }
    cases
}
