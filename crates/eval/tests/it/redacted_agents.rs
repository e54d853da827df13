//! Agents whose own words have what the rules find: a record holds these words with marks, and the agent has the originals.

use std::sync::Arc;

use serde_json::json;
use stepfold_agent_loop::{
    Agent, AgentBuilder, HookAction, ModelView, Output, OutputMode, Redact, Redaction, SensitiveData,
};
use stepfold_eval::{Case, CaseRedaction, CaseResult, CaseStatus, Expectation, Experiment, Mode};
use stepfold_runner::Runner;
use stepfold_session_scopes::{AnyStore, MemoryStore};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::Schema;
use stepfold_tools::{Effect, RawArgs, Tool, ToolError};

use crate::redacted::Letters;

const ADA: &str = "ada@example.org";
const EVE: &str = "eve@example.org";

/// The words of an agent.
#[derive(Clone, Debug)]
struct Words {
    /// The address in them.
    address: &'static str,
    /// The end of each of them.
    end: &'static str,
    /// The places with words: instructions, description of a tool, output, inner agent, hook, a value in the instructions.
    places: u32,
}

impl Words {
    fn at(&self, place: u32, words: &str) -> String {
        match self.places >> place & 1 {
            1 => format!("{words} Write to {} or 4111 1111 1111 1111{}", self.address, self.end),
            _ => words.to_owned(),
        }
    }

    fn agent(&self) -> Agent {
        let count = |RawArgs(_): RawArgs| async { Ok::<_, ToolError>(json!({"count": 12})) };
        let count = Tool::new("count", self.at(1, "Counts stalls."), count)
            .parameters(json!({"type": "object", "properties": {"area": {"type": "integer", "description": self.at(1, "The area.")}}}))
            .effect(Effect::Pure)
            .build()
            .expect("a tool");
        let inner = Agent::builder(Letters::of("assistant: it is area 3"))
            .name("expert")
            .instructions(self.at(3, "Know areas."))
            .build()
            .expect("an agent")
            .as_tool("expert", self.at(3, "Knows areas."));
        let script = "assistant: > c1 expert(task=\"find it\")\nassistant: > c2 count(area=3)\nassistant: {\"stalls\": 12}";
        let instructions = self.at(0, &format!("{} Be exact. {{mail?}}", "Help the user. ".repeat(20)));
        let schema = Schema::builder().key::<Option<String>>("mail").build().expect("a schema");
        let agent =
            Agent::builder(Letters::of(script)).name("clerk").schema(schema).instructions(instructions);
        self.with_hook(self.with_output(agent.tool(count).tool(inner))).build().expect("an agent")
    }

    fn with_output(&self, agent: AgentBuilder) -> AgentBuilder {
        let schema = json!({"type": "object", "properties": {"stalls": {"type": "integer", "description": self.at(2, "The stalls.")}}});
        match self.places >> 2 & 1 {
            1 => agent.output_with(Output::schema("stalls", schema).mode(OutputMode::Prompt)),
            _ => agent,
        }
    }

    fn with_hook(&self, agent: AgentBuilder) -> AgentBuilder {
        let words = self.at(4, "Counted.");
        match self.places >> 4 & 1 {
            1 => agent.before_run(move |_| {
                let message = Message::user(words.clone());
                async move { Ok(HookAction::proceed().with_message(message)) }
            }),
            _ => agent,
        }
    }

    /// The first turn of a session.
    async fn case(&self, view: Option<ModelView>) -> Case {
        let agent = self.agent();
        let store = AnyStore::new(MemoryStore::new());
        let builder = Runner::builder(agent, store);
        let runner = match view {
            Some(view) => builder.redact(Redaction::all(), view).build(),
            None => builder.build(),
        };
        let session = runner.session("ada", "s1").await.expect("a new session");
        let input = stepfold_agent_loop::Input::from("how many?");
        let input = match self.places >> 5 & 1 {
            1 => input.with_values(json!({"mail": self.at(5, "Also:")})),
            _ => input,
        };
        session.run(input).await.expect("it ends");
        let case = Case::taken_from(&session, None).await.expect("a turn that suits");
        Expectation::of_record().into_iter().fold(case, Case::expect).expect(Expectation::RecordedText)
    }
}

fn rules() -> Arc<dyn Redact> {
    Arc::new(Redaction::all())
}

async fn result(words: &Words, case: &Case, mode: Mode, view: Option<ModelView>) -> CaseResult {
    let experiment = Experiment::new(&words.agent()).mode(mode);
    let experiment = match view {
        Some(view) => experiment.redact(rules(), view),
        None => experiment,
    };
    experiment.run_case(case).await
}

/// The texts that a reason says differ are different ones.
fn assert_unequal(why: &str) {
    if let Some((recorded, replayed)) =
        why.split_once(": recorded ").and_then(|(_, texts)| texts.split_once(", replayed "))
    {
        assert_ne!(recorded, replayed, "{why}");
    }
}

/// A law: whatever words of an agent the rules find, an unchanged agent passes its own case in each mode, and a change of its words is
/// found by a replay, in a replaced part as well.
#[tokio::test]
async fn an_unchanged_agent_passes_whatever_of_its_words_is_replaced() {
    for places in 0..1 << 6 {
        let words = Words { address: ADA, end: "", places };
        let changed = [
            Words { address: EVE, ..words.clone() },
            Words { end: "!", ..words.clone() },
            Words { places: places ^ 1, ..words.clone() },
        ];
        for view in [None, Some(ModelView::Redacted), Some(ModelView::Keep)] {
            let case = words.case(view).await;
            let later = view.is_none().then_some(Some(ModelView::Redacted));
            for rules in [view].into_iter().chain(later) {
                // The modes that ask a model see one place at a time.
                let is_asked = places.count_ones() <= 1 || places == 0b11_1111;
                let modes =
                    [Mode::Replay, Mode::Next, Mode::Roll].into_iter().take(if is_asked { 3 } else { 1 });
                for mode in modes {
                    let found = result(&words, &case, mode, rules).await;
                    assert_eq!(
                        found.status,
                        CaseStatus::Passed,
                        "{mode} {view:?} {words:?}: {}",
                        found.why()
                    );
                }
                for changed in &changed {
                    // The instructions of the agent, of the inner one, and those for its output are in the record.
                    let is_recorded = changed.places != places || places & 0b1101 != 0;
                    let found = result(changed, &case, Mode::Replay, rules).await;
                    let expected = if is_recorded { CaseStatus::Failed } else { found.status };
                    assert_eq!(found.status, expected, "{view:?} {words:?} {changed:?}: {}", found.why());
                    assert_unequal(&found.why());
                }
            }
        }
    }
}

/// A law: the same of a case that was redacted when it was added, by rules that the experiment does not know.
#[tokio::test]
async fn a_case_that_was_redacted_when_it_was_added_is_replayed() {
    for places in 0..1 << 6 {
        let words = Words { address: ADA, end: "", places };
        let bare = words.case(None).await;
        let kinds = [SensitiveData::Email, SensitiveData::Card];
        let case = CaseRedaction::new(Redaction::of(kinds)).apply(&bare).expect("rules that suit");
        assert!(!serde_json::to_string(&case).expect("a form").contains(ADA));
        let found = result(&words, &case, Mode::Replay, None).await;
        assert_eq!(found.status, CaseStatus::Passed, "{words:?}: {}", found.why());
        for changed in [Words { address: EVE, ..words.clone() }, Words { end: "!", ..words.clone() }] {
            let is_recorded = places & 0b1101 != 0;
            let found = result(&changed, &case, Mode::Replay, None).await;
            let expected = if is_recorded { CaseStatus::Failed } else { found.status };
            assert_eq!(found.status, expected, "{words:?} {changed:?}: {}", found.why());
            assert_unequal(&found.why());
        }
    }
}
