//! Live cases run tools; judges are agents; what both spend is bounded.

use std::sync::Arc;
use std::sync::Mutex;

use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_eval::{
    Case, CaseResult, CaseStatus, DataSet, Expectation, Experiment, Judge, Mode, Report, ReportFile, Rubric,
    Spending,
};
use stepfold_runner::Runner;
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::chat::{Price, Prices};
use stepfold_tools::{Approval, Effect, Tool, ToolContext, ToolError};

fn script(text: &str) -> Script {
    Script::parse(text).expect("a script")
}

/// An agent whose tools tell under which keys they have run.
fn payer(ran: &Arc<Mutex<Vec<String>>>, replies: &str) -> Agent {
    let tool = |name: &'static str, effect, approval| {
        let ran = Arc::clone(ran);
        let function = move |context: ToolContext| {
            ran.lock().expect("no test panics within").push(format!("{name} {}", context.idempotency_key()));
            async move { Ok::<&str, ToolError>("done") }
        };
        Tool::new(name, "Works.", function).effect(effect).approval(approval).build().expect("a tool")
    };
    let tools = [
        tool("look", Effect::Pure, Approval::Never),
        tool("store", Effect::Idempotent, Approval::Never),
        tool("pay", Effect::AtMostOnce, Approval::Never),
        tool("ask", Effect::Pure, Approval::Always),
    ];
    Agent::builder(script(replies).whole()).tools(tools).build().expect("an agent")
}

#[tokio::test]
async fn live_cases_run_tools_and_at_most_once_only_by_name() {
    let ran = Arc::new(Mutex::new(Vec::new()));
    let case = Case::new("a", "go").expect(Expectation::Answered).expect(Expectation::NoFailedCalls);
    let run = async |replies: &str, allowed: &[&str]| {
        let agent = payer(&ran, replies);
        let experiment = Experiment::new(&agent).mode(Mode::Live);
        let experiment = allowed.iter().fold(experiment, |experiment, tool| experiment.allow_live(*tool));
        let result = experiment.run_case(&case).await;
        (
            result.status,
            result.ran,
            result.why(),
            std::mem::take(&mut *ran.lock().expect("no test panics within")),
        )
    };
    let (status, count, _, keys) = run("assistant: > c1 look()\n  > c2 store()\nassistant: done", &[]).await;
    assert_eq!((status, count, keys.len()), (CaseStatus::Passed, 2, 2));
    assert!(
        keys.iter().all(|key| key.contains(" eval/") && key.contains("/a/0/1/")),
        "never the key of a session: {keys:?}"
    );

    let (status, _, why, keys) = run("assistant: > c1 pay()\nassistant: done", &[]).await;
    assert_eq!(
        (status, &*why),
        (CaseStatus::LeftRecord, "pay({}) may run at most once: allow the tool by name")
    );
    assert_eq!(keys.len(), 0);
    let (status, _, _, keys) = run("assistant: > c1 pay()\nassistant: done", &["pay"]).await;
    assert_eq!((status, keys.len()), (CaseStatus::Passed, 1));

    let (status, _, why, keys) = run("assistant: > c1 ask()\nassistant: done", &["pay"]).await;
    assert_eq!(
        (status, &*why),
        (CaseStatus::LeftRecord, "ask({}) needs an approval: allow the tool by name")
    );
    assert_eq!(keys.len(), 0);
    let (status, _, _, keys) = run("assistant: > c1 ask()\nassistant: done", &["ask"]).await;
    assert_eq!((status, keys.len()), (CaseStatus::Passed, 1));

    // A tool that is allowed live is not allowed in a roll.
    let agent = payer(&ran, "assistant: > c1 look()\nassistant: done");
    let result = Experiment::new(&agent).allow_live("look").run_case(&case).await;
    assert_eq!(
        (result.status, ran.lock().expect("no test panics within").len()),
        (CaseStatus::LeftRecord, 0)
    );
}

const GOOD: &str = r#"assistant: {"reason": "It names one.", "score": 0.8, "passed": true}"#;

#[tokio::test]
async fn a_judgement_is_a_stored_run_that_is_made_once() {
    let agent = Agent::builder(script("assistant: area 3").whole()).build().expect("an agent");
    let rubric = Rubric::new("The answer names one area.");
    let case = Case::new("a", "which area?").expect(Expectation::Judge(rubric.clone()));
    let store = Arc::new(MemoryStore::new());
    let judging = Agent::builder(script(GOOD)).name("judge").build().expect("an agent");
    let judge = Judge::new(&judging, Arc::clone(&store)).expect("it can judge");
    for _ in 0..2 {
        let result = Experiment::new(&agent).judge(judge.clone()).run_case(&case).await;
        assert_eq!(
            (result.status, result.scores[0].value),
            (CaseStatus::Passed, Some(0.8)),
            "{}",
            result.why()
        );
    }
    let runner = Runner::builder(judging.clone(), Arc::clone(&store)).build();
    let key = runner.key("judge", "-").expect("valid ids");
    let list = stepfold_session_scopes::ListSessions::new(key.app.as_str(), "judge").expect("valid ids");
    let sessions = stepfold_session_scopes::SessionStore::list(&*store, list).await.expect("it can be read");
    let session = runner.session("judge", sessions.sessions[0].key.id.as_str()).await.expect("it exists");
    let runs = session.recorded_runs().await.expect("it can be read");
    assert_eq!((sessions.sessions.len(), runs.len()), (1, 1), "the second judgement is the first one");
    let asked = runs[0].events[0].messages[0].text().into_owned();
    assert!(asked.contains(&rubric.rubric) && asked.contains(r#""answer": "area 3""#), "{asked}");

    // A judge without a judgement is an error, and no failure of the candidate.
    let vague = Agent::builder(script("assistant: well").whole()).name("judge").build().expect("an agent");
    let vague = Judge::new(&vague, MemoryStore::new()).expect("it can judge");
    let result = Experiment::new(&agent).judge(vague).run_case(&case).await;
    assert_eq!(result.status, CaseStatus::Error, "{}", result.why());
    assert!(result.why().starts_with("no judgement in session `judge/"), "{}", result.why());
    let result = Experiment::new(&agent).run_case(&case).await;
    assert_eq!(result.status, CaseStatus::Error, "an experiment without a judge");

    // A threshold of the rubric decides in place of the judge.
    let strict = rubric.least(0.9);
    let mut case = Case::new("a", "which area?");
    case.expect = vec![Expectation::Judge(strict)];
    let result = Experiment::new(&agent).judge(judge).run_case(&case).await;
    assert_eq!((result.status, &*result.why()), (CaseStatus::Failed, "judge: It names one."));
}

/// A law: wherever a live experiment is killed, a tool that may run at most once does not run twice for a case: one that had begun is an
/// error afterwards, and says why.
#[tokio::test]
async fn what_may_run_at_most_once_does_not_over_kills() {
    let ran = Arc::new(Mutex::new(Vec::new()));
    let folder = tempfile::tempdir().expect("a folder");
    let (path, partial) = (folder.path().join("own.report"), folder.path().join("own.partial"));
    let cases = || (0..4).map(|n| Case::new(format!("c{n}"), "go").expect(Expectation::Answered));
    let run = async || {
        let agent = payer(&ran, "assistant: > c1 pay()\nassistant: done");
        let mut file = ReportFile::open(&path, &partial).expect("whole lines can be read");
        let experiment = Experiment::new(&agent).mode(Mode::Live).allow_live("pay").concurrency(2);
        let experiment = file.begin(experiment).expect("the same experiment");
        let keep = |result: CaseResult, is_known| file.keep(&result, is_known);
        let summary = experiment.run_each_known(DataSet::of(cases()), keep).await.expect("valid cases");
        let left = std::fs::read(&partial).expect("results so far");
        file.finish().expect("written");
        (summary, left, std::mem::take(&mut *ran.lock().expect("no test panics within")).len())
    };
    let (summary, whole, calls) = run().await;
    assert_eq!((summary.passed, calls), (4, 4));
    let mut interrupted = 0;
    for cut in (0..=whole.len()).filter(|cut| cut % 7 == 0 || *cut == whole.len()) {
        std::fs::write(&partial, &whole[..cut]).expect("written");
        let text = String::from_utf8_lossy(&whole[..cut]).into_owned();
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let begun = lines.clone().filter(|line| line.starts_with(r#"{"begun""#)).count();
        let passed = lines.filter(|line| line.contains(r#""status":"passed""#)).count();
        let (summary, _, calls) = run().await;
        assert_eq!(calls, 4 - begun, "{text}");
        assert_eq!(
            (summary.passed, summary.errors),
            ((4 - begun + passed) as u64, (begun - passed) as u64),
            "{text}"
        );
        interrupted += summary.errors;
    }
    assert!(interrupted > 0);
}

#[tokio::test]
async fn requests_and_costs_of_candidates_and_judges_are_bounded() {
    let agent = Agent::builder(script("assistant: area 3").whole()).build().expect("an agent");
    let judged = Expectation::Judge(Rubric::new("The answer names one area."));
    let cases = |count: u64| (0..count).map(|n| Case::new(format!("c{n}"), format!("which area? {n}")));
    let judging = || Agent::builder(script(GOOD).whole()).name("judge").build().expect("an agent");
    let experiment = |spending| {
        let judge = Judge::new(&judging(), MemoryStore::new()).expect("it can judge");
        Experiment::new(&agent).judge(judge).spending(spending)
    };
    // Two requests for each case: five are enough for two cases, and for the candidate of a third one.
    let limited = experiment(Spending::new().max_requests(5));
    let all = cases(4).map(|case| case.expect(judged.clone()));
    let report = limited.run(DataSet::of(all.collect::<Vec<_>>())).await.expect("valid cases");
    assert_eq!((report.summary().passed, report.summary().errors), (2, 2), "{report}");
    assert!(report.results[2].why().contains("the limit of 5 requests is reached"), "{report}");

    // The model has no price: after its first reply nothing more is sent.
    let limited = experiment(Spending::new().max_nanodollars(1_000, Prices::new()));
    let plain = || DataSet::of(cases(3).map(|case| case.expect(Expectation::Answered)).collect::<Vec<_>>());
    let report = limited.run(plain()).await.expect("valid cases");
    assert_eq!((report.summary().passed, report.summary().errors), (1, 2), "{report}");
    assert!(report.results[1].why().contains("a model has no price"), "{report}");
    let priced = Prices::new().with(agent.model().id(), Price::new(0.0, 0.0));
    let report =
        experiment(Spending::new().max_nanodollars(1_000, priced)).run(plain()).await.expect("valid");
    assert_eq!(report.summary().passed, 3, "{report}");
}

/// A judge that calls a tool before it judges: two requests.
fn thorough() -> Agent {
    let look = Tool::new("look", "Looks closer.", async || Ok::<&str, ToolError>("it is fine"));
    Agent::builder(script(&format!("assistant: > l1 look()\n{GOOD}")))
        .name("judge")
        .tool(look.build().expect("a valid tool"))
        .build()
        .expect("an agent")
}

#[tokio::test]
async fn each_request_of_a_judge_counts() {
    let agent = Agent::builder(script("assistant: area 3").whole()).build().expect("an agent");
    let case = Case::new("a", "which area?").expect(Expectation::Judge(Rubric::new("One area.")));
    let store = Arc::new(MemoryStore::new());
    let run = async || {
        let judge = Judge::new(&thorough(), Arc::clone(&store)).expect("it can judge");
        let spending = Spending::new().max_requests(2);
        Experiment::new(&agent).judge(judge).spending(spending).run_case(&case).await
    };
    // One for the candidate, one for the judge's call, and none for its judgement.
    let result = run().await;
    assert_eq!(result.status, CaseStatus::Error, "{}", result.why());
    assert!(result.why().contains("the limit of 2 requests is reached"), "{}", result.why());
    // The judge continues where it was stopped: with the answer of its tool, and one request.
    let result = run().await;
    assert_eq!(result.status, CaseStatus::Passed, "{}", result.why());
}

#[tokio::test]
async fn a_failed_judgement_is_made_again_by_the_next_experiment() {
    let agent = Agent::builder(script("assistant: area 3").whole()).build().expect("an agent");
    let case = Case::new("a", "which area?").expect(Expectation::Judge(Rubric::new("One area.")));
    let store = Arc::new(MemoryStore::new());
    let run = async |said: &str| {
        let judge = Agent::builder(script(said)).name("judge").max_steps(1).build().expect("an agent");
        let judge = Judge::new(&judge, Arc::clone(&store)).expect("it can judge");
        Experiment::new(&agent).judge(judge).run_case(&case).await
    };
    for _ in 0..2 {
        let vague = run("assistant: well").await;
        assert_eq!(vague.status, CaseStatus::Error, "{}", vague.why());
    }
    for said in [GOOD, "assistant: nothing is asked"] {
        let good = run(said).await;
        assert_eq!(good.status, CaseStatus::Passed, "{}", good.why());
    }
}

/// The idempotency keys of a tool that runs in live cases.
#[tokio::test]
async fn repeats_of_a_live_case_have_keys_of_their_own() {
    let keys: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&keys);
    let pay = move |context: ToolContext| {
        kept.lock().expect("no test panics within").push(context.idempotency_key().to_string());
        async { Ok::<&str, ToolError>("paid") }
    };
    let pay = Tool::new("pay", "Pays.", pay).effect(Effect::Idempotent).build().expect("a valid tool");
    let said = script("assistant: > c1 pay()\nassistant: paid").whole();
    let agent = Agent::builder(said).tool(pay).build().expect("an agent");
    let case = Case::new("a", "pay").expect(Expectation::Answered);
    let live = |agent: &Agent| Experiment::new(agent).mode(Mode::Live).repeats(3);
    let report = live(&agent).run(DataSet::of([case.clone()])).await.expect("a valid case");
    assert_eq!(report.summary().passed, 3, "{report}");
    let other = agent.to_builder().instructions("Be brief.").build().expect("an agent");
    live(&other).run(DataSet::of([case])).await.expect("a valid case");
    let mut keys = keys.lock().expect("no test panics within").clone();
    assert_eq!(keys.len(), 6);
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 6, "{keys:?}");
}

#[test]
fn prices_and_measures_are_in_the_head_of_a_report() {
    let agent = Agent::builder(script("assistant: area 3")).build().expect("an agent");
    let plain = Experiment::new(&agent).head();
    assert!(plain.options.is_empty(), "{:?}", plain.options);
    let prices = Prices::new().with("a", Price::new(1.0, 2.0));
    let other = Prices::new().with("a", Price::new(1.0, 3.0));
    let head = |prices| Experiment::new(&agent).prices(prices).measured().head();
    assert_eq!(head(prices.clone()).options.keys().collect::<Vec<_>>(), ["measured", "prices"]);
    let interrupted = Report::new(head(prices), Vec::new());
    let error =
        Experiment::new(&agent).prices(other).measured().continuing(&interrupted).expect_err("other prices");
    assert!(error.to_string().ends_with("option `prices` changed"), "{error}");
}

#[tokio::test]
async fn recorded_turns_are_evaluated_without_a_candidate() {
    let agent = Agent::builder(script("assistant: area 3")).build().expect("an agent");
    let session = Runner::builder(agent.clone(), MemoryStore::new()).build().session("ada", "s1").await;
    let session = session.expect("a new session");
    session.run("which area?").await.expect("the run ends");
    let case = Case::taken_from(&session, None).await.expect("a turn that suits");
    let of = |text: &str| case.clone().expect(Expectation::TextContains(vec![text.to_owned()]));
    let experiment = Experiment::new(&agent).mode(Mode::Recorded);
    assert_eq!(experiment.run_case(&of("area 3")).await.status, CaseStatus::Passed);
    assert_eq!(experiment.run_case(&of("area 4")).await.status, CaseStatus::Failed);
    let written = Case::new("a", "hello").expect(Expectation::Answered);
    assert_eq!(experiment.run_case(&written).await.status, CaseStatus::Skipped);
    // The record, compared with itself, says nothing.
    for expectation in Expectation::of_record().into_iter().chain([Expectation::RecordedText]) {
        let result = experiment.run_case(&case.clone().expect(expectation)).await;
        assert_eq!(result.status, CaseStatus::Skipped, "{}", result.why());
        assert!(result.why().starts_with("nothing is expected of it beside its own record"));
    }
    assert_eq!(experiment.run_case(&case).await.status, CaseStatus::Skipped);
}

#[test]
fn a_sample_is_the_same_everywhere_and_grows() {
    let cases: Vec<Case> = (0..1_000).map(|n| Case::new(format!("ada/s{n}/1"), "hello")).collect();
    let count = |part| cases.iter().filter(|case| case.is_sampled(part)).count();
    assert_eq!((count(0.0), count(1.0)), (0, 1_000));
    assert!((60..140).contains(&count(0.1)), "{}", count(0.1));
    assert!(cases.iter().all(|case| !case.is_sampled(0.1) || case.is_sampled(0.2)));
}
