//! Reads the transition table of [`super`] against the machine: each answer is fed to a run in each phase.

#![allow(clippy::unwrap_used, clippy::similar_names, reason = "a helper of a test fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stepfold_state_core::chat::{
    Chunk, FinishReason, Message, Reply, ReplyBuilder, ToolCall, ToolResult, Transcript, Usage,
};
use stepfold_state_core::state::{Schema, State};
use stepfold_tools::{Approval, CancellationToken, Effect, Tool, ToolError};
use stepfold_trim::{Summarize, Trim};

use super::machine::RunPhase;
use super::step::{ItemState, OpenStep, SpentBudget, StepPlan};
use super::{Event, HookReport, Input, ItemOutcome, Run, RunAnswer, RunNeed};
use crate::agent::{Agent, BranchEnd, Emitter, HookAction, HookContext, HookPoint, HookVerdict, Planner};
use crate::approval::{AskReason, Decision};
use crate::decisions::Decisions;
use crate::edit::Edit;
use crate::error::FeedError;
use crate::exit::Exit;
use crate::planned::{EndedBranch, NextSuperstep, NodeOutcome, OpenBranch, PlanPosition, PlannedBranch};
use crate::test_kit::Script;

/// The next phases, by phase and answer.
type Transitions = BTreeMap<(String, String), BTreeSet<String>>;

/// The rows of a table at the head of a file, without those that take nothing: its first column, the column of answers,
/// and the last one.
fn documented(source: &str, answer: usize) -> Transitions {
    let lines = source.lines().filter_map(|line| line.strip_prefix("//! | `")?.strip_suffix(" |"));
    let rows = lines.filter_map(|line| {
        let cells: Vec<String> = line.split('|').map(|cell| cell.replace(['`', ' '], "")).collect();
        let next = cells.last()?.split(',').map(str::to_owned).collect();
        Some(((cells[0].clone(), cells[answer].clone()), next))
    });
    rows.filter(|((_, answer), _)| !answer.is_empty()).collect()
}

fn as_text(transitions: &Transitions) -> String {
    let rows = transitions.iter().map(|((before, answer), next)| {
        format!("{before} | {answer} | {}", next.iter().cloned().collect::<Vec<_>>().join(", "))
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// The needs of each phase, as the table has them.
fn documented_needs() -> BTreeMap<String, BTreeSet<String>> {
    let mut needs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in include_str!("mod.rs").lines().filter_map(|line| line.strip_prefix("//! | `")) {
        let cells: Vec<String> = line.split('|').map(|cell| cell.replace(['`', ' '], "")).collect();
        let named = cells[1].split(',').filter(|need| !need.is_empty()).map(str::to_owned);
        needs.entry(cells[0].clone()).or_default().extend(named);
    }
    needs
}

/// The first word of a debug text: the name of a variant.
fn variant(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split(|character: char| !character.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

const HOOKS: [HookPoint; 6] = [
    HookPoint::BeforeRun,
    HookPoint::BeforeModel,
    HookPoint::BeforeTool,
    HookPoint::AfterTool,
    HookPoint::OnExit,
    HookPoint::AfterRun,
];

/// An agent with hooks at all points, so that no phase is passed over.
fn agent(planner: Option<Arc<OneNode>>) -> Agent {
    let tool = |name: &str| {
        let run = async || Ok::<_, ToolError>("done");
        Tool::new(name, "Does it.", run).effect(Effect::AtMostOnce).build().unwrap()
    };
    let mut builder = Agent::builder(Script::parse("").unwrap())
        .schema(Schema::builder().key::<u64>("note").build().unwrap())
        .tools([tool("work"), tool("submit")])
        .exit_on(["submit"])
        .approval(Approval::Always)
        .summarize(Summarize::beyond(Trim::keep_last(1)));
    for point in HOOKS {
        builder = builder.hook(point, async |_: HookContext| Ok(HookAction::proceed()));
    }
    match planner {
        Some(planner) => builder.planner(planner).build().unwrap(),
        None => builder.build().unwrap(),
    }
}

/// A plan of one node, which ends when that has run.
#[derive(Debug)]
struct OneNode(Vec<String>);

impl Planner for OneNode {
    fn names(&self) -> &[String] {
        &self.0
    }

    fn parts(&self) -> Vec<(String, Value)> {
        Vec::new()
    }

    fn next(
        &self,
        _: PlanPosition<'_>,
        ended: &[EndedBranch<'_>],
        _: &State,
    ) -> Result<NextSuperstep, FeedError> {
        Ok(match ended.is_empty() {
            true => NextSuperstep::of([PlannedBranch::new(self.0[0].clone(), None)]),
            false => NextSuperstep::exit(Exit::End),
        })
    }

    fn effect(&self, _: &str) -> Option<Effect> {
        Some(Effect::AtMostOnce)
    }

    fn call(
        self: Arc<Self>,
        _: OpenBranch,
        _: CancellationToken,
        _: Emitter,
    ) -> futures_util::future::BoxFuture<'static, BranchEnd> {
        Box::pin(async { BranchEnd::Outcome(NodeOutcome::succeeded()) })
    }
}

fn conversation(messages: usize) -> Transcript {
    let text = "user: one\nassistant: > x1 work()\ntool x1: 1\nassistant: 1\nuser: three";
    text.lines().take(messages).collect::<Vec<_>>().join("\n").parse().unwrap()
}

fn at(agent: &Agent, messages: usize, phase: RunPhase) -> Run {
    let mut state = State::new(agent.schema());
    state.replace_messages(conversation(messages));
    let mut run = Run::at(agent, "run-1".into(), state, phase);
    run.tally.events = 1;
    run
}

/// The same run with its limit of steps reached.
fn at_limit(mut run: Run) -> Run {
    run.tally.steps = 100;
    run
}

fn calls(names: &[&str]) -> Message {
    let calls = names.iter().enumerate();
    let parts =
        calls.map(|(place, name)| ToolCall::new(format!("c{place}"), *name, serde_json::Map::new()).into());
    Message::from_parts(stepfold_state_core::chat::Role::Assistant, parts.collect())
}

/// Open steps of calls: each state of an item, at each way to end the step.
fn open_calls(agent: &Agent) -> Vec<Run> {
    let mut runs = Vec::new();
    for names in [["work"], ["submit"]] {
        let reply = Arc::new(calls(&names));
        let mut steps = Vec::new();
        for state in [ItemState::Ready, ItemState::Started, ItemState::Asking(AskReason::Rule)] {
            let mut step = OpenStep::of_calls(Arc::clone(&reply), None, SpentBudget::default());
            step.items.change(0, |item| item.state = state.clone());
            steps.push(step);
        }
        for (mut step, is_hooked) in steps.into_iter().flat_map(|step| [(step.clone(), false), (step, true)])
        {
            for stop in [None, Some("enough".to_owned())] {
                if let StepPlan::Calls(calls) = &mut step.plan {
                    calls.is_hooked = is_hooked;
                    calls.stop = stop;
                }
                let mut run = at(agent, 1, RunPhase::Working(step.clone()));
                run.state.push_message(Arc::clone(&reply));
                let mut lost = run.clone();
                lost.take_over();
                runs.extend([run, lost]);
            }
        }
    }
    runs
}

fn runs() -> Vec<Run> {
    let calls_tools = agent(None);
    let plans = agent(Some(Arc::new(OneNode(vec!["node".to_owned()]))));
    let mut runs = Vec::new();
    for agent in [&calls_tools, &plans] {
        runs.push(Run::new(agent, Input::from("hello"), "run-1").unwrap());
        runs.extend([1, 5].map(|messages| at(agent, messages, RunPhase::Opening)));
    }
    let agent = &calls_tools;
    for is_hooked in [false, true] {
        for last in [None, Some(Exit::MaxSteps)] {
            runs.push(at(agent, 1, RunPhase::Asking { is_hooked, last }));
        }
    }
    // A request that is too long, with a summary of what comes before its turn, and without.
    for last in [None, Some(Exit::MaxSteps)] {
        runs.push(at(agent, 5, RunPhase::Asking { is_hooked: true, last }));
    }
    // An edit of a result that a summary replaces drops the summary.
    let condensing = at(agent, 5, RunPhase::condensing());
    let summary = RunAnswer::Summary(Ok(("short".to_owned(), Usage::default())));
    runs.extend(committed(&condensing, summary));
    runs.push(condensing);
    // An edit may make a long conversation short enough to need no summary.
    let summarize = Summarize::beyond(Trim::keep_last(1)).once(Trim::cap_tokens(200));
    let patient = agent.to_builder().summarize(summarize).build().unwrap();
    let mut long = at(&patient, 5, RunPhase::condensing());
    let result = ToolResult::value("x1", "work", "long ".repeat(500));
    let mut log = conversation(5);
    log.replace(2, Message::tool(result));
    long.state.replace_messages(log);
    runs.push(long);
    runs.extend(open_calls(agent));
    let walk = at(&plans, 1, RunPhase::Working(OpenStep::of_walk()));
    let planned = committed(&walk, RunAnswer::Plan).unwrap();
    let started = committed(&planned, RunAnswer::Started(vec![0])).unwrap();
    let mut lost = started.clone();
    lost.take_over();
    let ended = committed(&planned, RunAnswer::outcome(0, NodeOutcome::succeeded())).unwrap();
    runs.extend([walk, planned, started, lost, ended]);
    for exit in [Exit::Text, Exit::MaxSteps] {
        runs.extend(
            [RunPhase::Leaving(exit.clone()), RunPhase::Closing(exit.clone()), RunPhase::Done(exit)]
                .map(|phase| at(agent, 1, phase)),
        );
    }
    let limited = runs.iter().cloned().map(at_limit).collect::<Vec<_>>();
    runs.into_iter().chain(limited).collect()
}

fn reply(message: Message, reason: FinishReason) -> RunAnswer {
    let mut reply = ReplyBuilder::new();
    reply.push(Chunk::Finished(reason));
    let mut reply: Reply = reply.finish().unwrap();
    reply.message = message;
    RunAnswer::Reply(reply)
}

/// Answers of all kinds that a run may be given where it is.
fn answers(run: &Run) -> Vec<RunAnswer> {
    let mut answers = vec![
        RunAnswer::Begin,
        RunAnswer::Upgrade,
        RunAnswer::Summary(Ok(("short".to_owned(), Usage::default()))),
        RunAnswer::Summary(Err(("failed".to_owned(), Usage::default()))),
        RunAnswer::Steer(vec![Message::user("and now?")]),
        RunAnswer::TooLong { limit: None, used: None, tools: 0 },
        reply(calls(&["work"]), FinishReason::ToolCalls),
        reply(calls(&["work"]), FinishReason::Length),
        reply(Message::assistant("done"), FinishReason::Stop),
        reply(Message::assistant(""), FinishReason::Stop),
        RunAnswer::Edit(Edit::new().set("note", 1)),
        RunAnswer::Edit(Edit::new().result("x1", 2)),
        RunAnswer::Ask(run.calls_to_ask()),
        RunAnswer::Started(vec![0]),
        RunAnswer::Asks { place: 0, requests: Vec::new() },
        RunAnswer::Inner {
            place: 0,
            event: Box::new(Event::new(0, Duration::ZERO, super::EventKind::Steered)),
        },
        RunAnswer::Plan,
        RunAnswer::Interrupted,
        RunAnswer::Cancelled,
        RunAnswer::TimedOut,
    ];
    for decision in [Decision::Approve, Decision::reject("no")] {
        let decisions = run.pending().into_iter().map(|request| (request.id, decision.clone()));
        answers.push(RunAnswer::Decisions(Decisions::from(decisions.collect::<Vec<_>>())));
    }
    for point in HOOKS {
        for verdict in [HookVerdict::Proceed, HookVerdict::GoOn, HookVerdict::Stop("enough".to_owned())] {
            answers.push(RunAnswer::Hooked(HookReport { verdict, ..HookReport::new(point) }));
        }
        answers.push(RunAnswer::Hooked(HookReport {
            answers: vec![(0, "no".to_owned())],
            ..HookReport::new(point)
        }));
    }
    let call = run.open_step().and_then(|step| step.call(0)).cloned();
    if let Some(call) = call {
        let done = super::step_end::not_run(&call, "done");
        let done = stepfold_tools::CallOutcome::new(stepfold_tools::CallStatus::Succeeded, done.result);
        let pending_hook = Some(0);
        answers.push(RunAnswer::Outcomes(vec![ItemOutcome {
            pending_hook,
            ..ItemOutcome::new(0, done.clone())
        }]));
        let stop = Some("enough".to_owned());
        answers.push(RunAnswer::Outcomes(vec![ItemOutcome { stop, ..ItemOutcome::new(0, done.clone()) }]));
        answers.push(RunAnswer::outcome(0, done));
    }
    answers.push(RunAnswer::outcome(0, NodeOutcome::succeeded()));
    answers
}

/// The run as an agent finds it that has changed since.
fn of_another_agent(run: &Run) -> Run {
    let other = run.agent.to_builder().instructions("Be kind.").build().unwrap();
    let mut run = run.clone();
    run.upgrade_from(other.fingerprint());
    run
}

fn committed(run: &Run, answer: RunAnswer) -> Option<Run> {
    let event = run.feed(answer, Duration::ZERO).ok()?;
    let mut run = run.clone();
    run.commit(event).ok()?;
    Some(run)
}

#[test]
fn the_table_is_what_the_machine_does() {
    let mut found = Transitions::new();
    let mut needs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for run in runs().into_iter().flat_map(|run| [of_another_agent(&run), run]) {
        let phase = variant(&run.phase);
        let need = run.decide();
        needs.entry(phase.clone()).or_default().insert(variant(&need));
        for answer in answers(&run) {
            let name = variant(&answer);
            if let Some(next) = committed(&run, answer) {
                let next_phase = variant(&next.phase);
                found.entry((phase.clone(), name)).or_default().insert(next_phase);
                let is_end = matches!(next.decide(), RunNeed::Nothing(_));
                assert_eq!(is_end, matches!(next.phase, RunPhase::Done(_)));
                needs.entry(variant(&next.phase)).or_default().insert(variant(&next.decide()));
            }
        }
    }
    assert_eq!(as_text(&documented(include_str!("mod.rs"), 2)), as_text(&found));
    assert_eq!(documented_needs(), needs);
}

/// Runs at a step of two equal calls, with its items in each state.
fn runs_of_items() -> Vec<Run> {
    let strict = agent(None);
    let asking = strict.to_builder().approval(Approval::Once).ask_when_uncertain().build().unwrap();
    let mut runs = Vec::new();
    for agent in [strict, asking] {
        let reply = Arc::new(calls(&["work", "work"]));
        let rule = ItemState::Asking(AskReason::Rule);
        let states = [
            (ItemState::Ready, ItemState::Ready),
            (ItemState::Started, ItemState::Ready),
            (rule, ItemState::Same(0)),
        ];
        for (first, second) in states {
            for is_hooked in [false, true] {
                let mut step = OpenStep::of_calls(Arc::clone(&reply), None, SpentBudget::default());
                step.items.change(0, |item| item.state = first.clone());
                step.items.change(1, |item| item.state = second.clone());
                step.items.change_all(|items| {
                    for item in items {
                        item.listed_effect = Some(Effect::Pure);
                    }
                });
                step.note_runnable();
                if let StepPlan::Calls(calls) = &mut step.plan {
                    calls.is_hooked = is_hooked;
                }
                let mut run = at(&agent, 1, RunPhase::Working(step));
                run.state.push_message(Arc::clone(&reply));
                let mut lost = run.clone();
                lost.take_over();
                runs.extend([run, lost]);
            }
        }
    }
    let unseen = |run: &Run| {
        let next = answers(run).into_iter().filter_map(|answer| committed(run, answer));
        next.filter(|next| next.item(0).is_some_and(|item| item.hook_pending().is_some())).collect::<Vec<_>>()
    };
    let pending: Vec<Run> = runs.iter().flat_map(unseen).collect();
    runs.into_iter().chain(pending).collect()
}

#[test]
fn the_table_of_items_is_what_the_machine_does() {
    let mut found = Transitions::new();
    for run in runs_of_items() {
        for answer in answers(&run) {
            let name = variant(&answer);
            let Some(next) = committed(&run, answer) else { continue };
            for place in 0..2 {
                let state =
                    |run: &Run| run.item(place).map_or("Done".to_owned(), |item| variant(&item.state));
                let (before, after) = (state(&run), state(&next));
                if before != after {
                    found.entry((before, name.clone())).or_default().insert(after);
                }
            }
        }
    }
    assert_eq!(as_text(&documented(include_str!("step.rs"), 1)), as_text(&found));
}
