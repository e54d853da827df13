//! Cases that are taken from sessions: an unchanged agent passes each of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stepfold_agent_loop::{Agent, AgentBuilder, Decision};
use stepfold_eval::{Case, CaseStatus, EvalError, Experiment};
use stepfold_runner::{Budget, BudgetScope, Runner, SessionHandle};
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::chat::{ChatModel, ChatRequest, ModelError, ModelErrorKind, ReplyStream};

use crate::clerk::{Clerk, Executions, Variation, careful, clerk};

/// A clerk's model that fails at one of its requests.
#[derive(Clone, Default)]
struct Failing {
    at: Option<u64>,
    asked: Arc<AtomicU64>,
}

impl ChatModel for Failing {
    fn id(&self) -> &'static str {
        "test/clerk"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        match Some(self.asked.fetch_add(1, Ordering::Relaxed)) == self.at {
            true => ReplyStream::failed(ModelError::new(ModelErrorKind::InvalidRequest, "broken")),
            false => Clerk(Variation::None).respond(request),
        }
    }
}

/// The cases of a session, each of which an unchanged agent passes, and the reasons of the turns that are none.
async fn passed(agent: &Agent, session: &SessionHandle) -> (usize, Vec<String>) {
    let (mut passed, mut unsuited) = (0, Vec::new());
    for case in Case::all_of(session).await.expect("the session can be read") {
        match case {
            Ok(case) => {
                let result = Experiment::new(agent).run_case(&case).await;
                assert_eq!(result.status, CaseStatus::Passed, "{}: {}", case.name, result.why());
                passed += 1;
            }
            Err(EvalError::Unsuited { why, .. }) => unsuited.push(why.to_owned()),
            Err(error) => panic!("{error}"),
        }
    }
    (passed, unsuited)
}

async fn told(agent: &Agent, session: &SessionHandle, cases: usize) {
    let (passed, unsuited) = passed(agent, session).await;
    assert_eq!((passed, unsuited.len()), (cases, 1 - cases), "{unsuited:?}");
    assert!(unsuited.iter().all(|why| why.starts_with("it has not ended: ")), "{unsuited:?}");
}

/// A law: an unchanged agent passes each case that is taken. A turn that failed at its model or waits for a budget is no case until it is resumed.
#[tokio::test]
async fn a_turn_that_has_not_ended_is_no_case() {
    let agent = clerk(Variation::None, &Executions::default()).build().expect("a valid agent");
    for request in 0..2 {
        let failing = Failing { at: Some(request), ..Failing::default() };
        let model = agent.to_builder().model(failing).build().expect("a valid agent");
        let session = Runner::builder(model, MemoryStore::new()).build().session("ada", "s").await;
        let session = session.expect("a new session");
        session.run("how many stalls has area 3").await.expect_err("the model fails");
        told(&agent, &session, 0).await;
        session.resume().await.expect("the model has recovered");
        told(&agent, &session, 1).await;

        let budget = Budget::requests("few", request).of(BudgetScope::Session);
        let limited = Runner::builder(agent.clone(), MemoryStore::new()).budget(budget).build();
        let session = limited.session("ada", "s").await.expect("a new session");
        session.run("how many stalls has area 3").await.expect("it pauses");
        told(&agent, &session, 0).await;
    }
}

/// The same at each version of a session: a kill leaves a turn there.
#[tokio::test]
async fn an_unchanged_agent_passes_each_case_whenever_it_is_taken() {
    let agents: [fn(Variation, &Executions) -> AgentBuilder; 2] = [clerk, careful];
    for build in agents {
        let agent = build(Variation::None, &Executions::default()).build().expect("a valid agent");
        let runner = Runner::builder(agent.clone(), MemoryStore::new()).build();
        let session = runner.session("ada", "s").await.expect("a new session");
        session.run("how many stalls has area 3").await.expect("it ends, or waits");
        for request in session.pending().await.expect("it can be read") {
            session.resume().decide(request.id, Decision::Approve).await.expect("the run ends");
        }
        let last = Case::taken_from(&session, None).await.expect("a turn that suits");
        let last = last.source.expect("it was taken").last_version;
        let (mut cases, mut others) = (0, 0);
        for version in 1..=last {
            let fork = session.fork(format!("at-{version}"), Some(version)).await.expect("a fork");
            let (passed, unsuited) = passed(&agent, &fork).await;
            cases += passed;
            others += unsuited.len();
        }
        assert!(cases > 0 && others > 1, "{cases} cases, {others} turns that are none");
    }
}
