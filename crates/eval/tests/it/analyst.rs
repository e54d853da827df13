//! The analyst of the guide: twenty cases from its sessions, and three changes that a report finds.

use std::sync::Arc;

use serde_json::{Value, json};
use stepfold_agent_loop::{Agent, AgentBuilder};
use stepfold_eval::{Case, Comparison, DEFAULT_SEED, DataSet, Expectation, Experiment, Report, Verdict};
use stepfold_runner::Runner;
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, Transcript,
};
use stepfold_tools::{Effect, RawArgs, Tool, ToolError};
use stepfold_trim::Trim;

const INSTRUCTIONS: &str = "You analyse markets. Count with the tool, then answer in one sentence.";

/// A model that follows its instructions, with the messages that it is shown.
struct Analyst {
    id: &'static str,
    /// A cheap one mistakes each area above three.
    is_cheap: bool,
}

impl ChatModel for Analyst {
    fn id(&self) -> &str {
        self.id
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let log: Vec<&Arc<Message>> = request.messages.iter().collect();
        let is_told = log
            .iter()
            .any(|message| message.role() == Role::System && message.text().contains("Count with the tool"));
        let asked = log.iter().rposition(|message| message.role() == Role::User).unwrap_or(0);
        let question = log[asked].text().into_owned();
        let counted = log
            .iter()
            .rev()
            .find_map(|message| message.tool_result())
            .and_then(|result| serde_json::from_str::<Value>(&result.text()).ok()?["stalls"].as_u64());
        let is_counted = log[asked..].iter().any(|message| message.tool_result().is_some());
        let line = match (question.strip_prefix("how many stalls has area "), counted) {
            (Some(_), Some(stalls)) if is_counted => format!("assistant: It has {stalls} stalls."),
            (Some(area), _) if is_told => {
                let area: u64 = area.parse().unwrap_or(0);
                let area = if self.is_cheap && area > 3 { area + 1 } else { area };
                format!("assistant: > c{area} count(area={area})")
            }
            (Some(_), _) => "assistant: Some stalls.".to_owned(),
            (None, Some(stalls)) => format!("assistant: Twice as many are {}.", stalls * 2),
            (None, None) => "assistant: I do not know how many it has.".to_owned(),
        };
        let transcript: Transcript = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
        let message = transcript.first().cloned().expect("there is one message");
        let finish = if message.has_tool_calls() { FinishReason::ToolCalls } else { FinishReason::Stop };
        let mut chunks = Chunk::of(&message);
        chunks.push(Chunk::Finished(finish));
        ReplyStream::from_chunks(chunks)
    }
}

fn analyst() -> AgentBuilder {
    let count = |RawArgs(arguments): RawArgs| async move {
        Ok::<Value, ToolError>(json!({"stalls": arguments["area"].as_u64().unwrap_or(0) * 4}))
    };
    let parameters =
        json!({"type": "object", "properties": {"area": {"type": "integer"}}, "required": ["area"]});
    let count = Tool::new("count", "Counts stalls.", count).parameters(parameters).effect(Effect::Pure);
    Agent::builder(Analyst { id: "test/analyst", is_cheap: false })
        .name("analyst")
        .instructions(INSTRUCTIONS)
        .tool(count.build().expect("a valid tool"))
}

/// Twenty cases of ten sessions, each held to its record and to its text.
async fn cases(agent: &Agent) -> Vec<Case> {
    let runner = Runner::builder(agent.clone(), MemoryStore::new()).build();
    let mut cases = Vec::new();
    for area in 1..=10 {
        let session = runner.session("ada", format!("s{area}")).await.expect("a new session");
        session.run(format!("how many stalls has area {area}")).await.expect("the run ends");
        session.run("and twice as many?").await.expect("the run ends");
        cases.extend(Case::all_of(&session).await.expect("it can be read").into_iter().flatten());
    }
    let expect = || [Expectation::of_record(), vec![Expectation::RecordedText]].concat();
    cases.into_iter().map(|case| expect().into_iter().fold(case, Case::expect)).collect()
}

async fn report(agent: &Agent, cases: &[Case]) -> Report {
    Experiment::new(agent).timelines().run(DataSet::of(cases.to_vec())).await.expect("valid cases")
}

#[tokio::test]
async fn a_worse_prompt_a_cheaper_model_and_a_lost_result_are_found() {
    let agent = analyst().build().expect("a valid agent");
    let cases = cases(&agent).await;
    assert_eq!(cases.len(), 20);
    let baseline = report(&agent, &cases).await;
    assert_eq!(baseline.summary().passed, 20, "{baseline}");
    let compared = async |candidate: AgentBuilder| {
        let report = report(&candidate.build().expect("a valid agent"), &cases).await;
        let comparison = Comparison::of(&baseline, &report, DEFAULT_SEED).expect("same mode");
        (report, comparison)
    };

    // A worse prompt: no question is counted any more.
    let (prompt, found) = compared(analyst().instructions("You analyse markets. Be brief.")).await;
    assert_eq!((found.verdict(), found.losses), (Verdict::Worse, 10), "{found}");
    assert!(found.lost[0].1.contains("missing call: count"), "{:?}", found.lost[0]);
    assert!(found.changes.iter().any(|change| change.contains("instructions")), "{:?}", found.changes);
    let turns = prompt.results[0].timelines.as_ref().expect("the case has not passed");
    assert_eq!(turns.differs_at, 1);
    assert_eq!(turns.recorded[1], r#"assistant: > count({"area":1})"#);
    assert_eq!(turns.made[1], "assistant: Some stalls.");

    // A cheaper model: calls that the record does not have say nothing in a roll, and are wrong as next replies.
    let cheap = || analyst().model(Analyst { id: "test/cheap", is_cheap: true });
    let (rolled, found) = compared(cheap()).await;
    // All seven may be losses: that is no proof, and nothing to be calm about.
    assert_eq!((found.verdict(), found.unpaired.len()), (Verdict::Unknown, 7), "{found}");
    assert!(found.to_string().contains("note: unpaired cases may be losses"), "{found}");
    assert_eq!((rolled.summary().left_record, rolled.summary().passed), (7, 13), "{rolled}");
    let next = async |agent: AgentBuilder| {
        let agent = agent.build().expect("a valid agent");
        let experiment = Experiment::new(&agent).mode(stepfold_eval::Mode::Next);
        experiment.run(DataSet::of(cases.clone())).await.expect("valid cases")
    };
    let found =
        Comparison::of(&next(analyst()).await, &next(cheap()).await, DEFAULT_SEED).expect("same mode");
    assert_eq!((found.verdict(), found.losses), (Verdict::Worse, 7), "{found}");
    let instead = r#"missing call: count({"area":4}), found count({"area":5})"#;
    assert!(found.lost[0].1.contains(instead), "{:?}", found.lost[0]);

    // A trimming that loses the needed result: the second question of each session.
    let (_, found) = compared(analyst().trim(Trim::keep_last(1))).await;
    assert_eq!((found.verdict(), found.losses), (Verdict::Worse, 10), "{found}");
    assert!(found.lost[0].1.contains("I do not know how many it has."), "{:?}", found.lost[0]);
}
