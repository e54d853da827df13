//! Every message of the crate's errors and exits, in one list.

use std::fmt::Display;

use expect_test::expect_file;
use stepfold_agent_loop::state_core::chat::{ModelError, ModelErrorKind};
use stepfold_agent_loop::state_core::state::{Issue, StateError};
use stepfold_agent_loop::tools::{FatalError, ToolsetError};
use stepfold_agent_loop::{
    AgentError, Breakpoint, Decision, DecisionError, Divergence, Exit, FeedError, HookPoint, LoadError,
    OutputError, Pause, RunFault, RunNeed, StartError,
};

/// A list of messages under headings.
#[derive(Default)]
struct List(String);

impl List {
    fn part(&mut self, heading: &str, messages: impl IntoIterator<Item = impl Display>) {
        self.0.extend(["# ", heading, "\n"]);
        for message in messages {
            self.0.extend([message.to_string().as_str(), "\n"]);
        }
        self.0.push('\n');
    }
}

#[test]
fn every_error_message() {
    let mut list = List::default();
    list.part("AgentError", [agent_error()]);
    list.part("StartError", start_errors());
    list.part("FeedError", feed_errors());
    list.part("RunFault", faults());
    list.part("DecisionError", decision_errors());
    list.part("LoadError", load_errors());
    list.part("Divergence", divergences());
    list.part("OutputError", [OutputError::Missing { exit: Exit::MaxSteps }]);
    list.part("Exit", exits());
    expect_file!["messages.txt"].assert_eq(&list.0);
}

fn agent_error() -> AgentError {
    AgentError::new("agent", [Issue::new("limits.steps", "must be positive: the model could not be called")])
}

fn start_errors() -> Vec<StartError> {
    vec![
        StartError::Input(StateError::MessagesAreEvents),
        StartError::ValuesAreNoObject,
        StartError::NoMessages,
        StartError::NoParts { index: 1 },
        StartError::OtherSchema,
    ]
}

fn feed_errors() -> Vec<FeedError> {
    let text = str::to_owned;
    vec![
        FeedError::NotNeeded { event: "replied", need: RunNeed::Calls.to_string() },
        FeedError::NoSuchItem { place: 3 },
        FeedError::NoReply { role: "user" },
        FeedError::Route { node: text("'plan'"), words: text("unknown node 'x'") },
        FeedError::TooManyBranches { branches: 5_000, max: 4_096 },
        FeedError::Plan("key \"tasks\" is missing".into()),
        FeedError::StepIsOpen,
        FeedError::State(StateError::MessagesAreEvents),
    ]
}

fn faults() -> Vec<RunFault> {
    let source = || "no disk".into();
    let model = ModelError::new(ModelErrorKind::Overloaded, "loading model");
    vec![
        RunFault::Agent(agent_error()),
        RunFault::Start(StartError::NoMessages),
        RunFault::Model(model),
        RunFault::Tool(FatalError::new("c1", "save", 0, std::io::Error::other("no disk"))),
        RunFault::Node { node: "plan".to_owned(), error: "no disk".to_owned() },
        RunFault::Tools(ToolsetError::List { toolset: "remote".to_owned(), source: source() }),
        RunFault::Hook { point: HookPoint::AfterTool, source: source() },
        RunFault::Observer(source()),
        RunFault::Commit { unrecorded: vec!["c1".to_owned()], source: source() },
        RunFault::Decision(not_pending()),
        RunFault::Feed(FeedError::NoSuchItem { place: 3 }),
    ]
}

fn not_pending() -> DecisionError {
    DecisionError::NotPending { id: "c1".to_owned(), pending: ["c2"].into_iter().collect() }
}

fn decision_errors() -> Vec<DecisionError> {
    let id = || "c1".to_owned();
    let asked_again = ["c2#043680dbb1c8794e", "c1#4b19268358aea3ea"].into_iter().collect();
    vec![
        not_pending(),
        DecisionError::NotPending { id: "c1#043680dbb1c8794e".to_owned(), pending: asked_again },
        DecisionError::AlreadyDecided { id: id(), decision: Box::new(Decision::Approve), by: None },
        DecisionError::InvalidArguments {
            id: id(),
            faults: "expected integer, found string at $.n".to_owned(),
        },
        DecisionError::Duplicate { id: id() },
        DecisionError::KeyReused { idempotency_key: "click-1".to_owned() },
    ]
}

fn load_errors() -> Vec<LoadError> {
    let broken = serde_json::from_str::<u8>("{").unwrap_err();
    vec![
        LoadError::Json { what: "run", source: broken },
        LoadError::NewerFormat { what: "run", found: 9, supported: 1 },
        LoadError::AgentChanged { changes: vec!["limits changed".to_owned()] },
        LoadError::State(StateError::MessagesAreEvents),
        LoadError::Inside { name: "ask".to_owned(), error: Box::new(FeedError::NoSuchItem { place: 3 }) },
    ]
}

fn divergences() -> Vec<Divergence> {
    let changed = LoadError::AgentChanged { changes: vec!["limits changed".to_owned()] };
    vec![
        Divergence::Start(changed),
        Divergence::Schema { changes: vec!["key note is new".to_owned()] },
        Divergence::Toolset {
            event: 2,
            step: 1,
            source: ToolsetError::List { toolset: "remote".to_owned(), source: "no network".into() },
        },
        Divergence::End { recorded: Exit::Text, need: RunNeed::Calls.to_string() },
    ]
}

fn exits() -> Vec<Exit> {
    vec![
        Exit::Text,
        Exit::Output,
        Exit::NoTools,
        Exit::MaxSteps,
        Exit::MaxToolCalls,
        Exit::MaxTokens,
        Exit::MaxTime,
        Exit::Length,
        Exit::ContentFilter,
        Exit::Refusal,
        Exit::RepeatedCalls,
        Exit::InvalidOutput,
        Exit::End,
        Exit::NodeLimit("plan".to_owned()),
        Exit::Hook("enough".to_owned()),
        Exit::Cancelled,
        Exit::Paused(Pause::Approval),
        Exit::Paused(Pause::Breakpoint(Breakpoint::model())),
        Exit::Failed,
    ]
}
