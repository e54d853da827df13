//! The exam of hosts over Restate: nothing is lost, nothing is done twice, and everything completes.

use std::time::Duration;

use serde_json::json;
use stepfold_agent_loop::{Decision, Exit};
use stepfold_restate::{MAX_PART_BYTES, MAX_REQUEST_BYTES, RemoteSession, RestateError};
use stepfold_runner::RunStatus;
use tempfile::TempDir;

use crate::balancer::Balancer;
use crate::server::Server;
use crate::world::{CLAIM, Place, Process, unknown};

/// A server, and an address of workers that are registered with it.
struct Host {
    server: Server,
    balancer: Balancer,
    folder: TempDir,
}

impl Host {
    async fn start() -> Option<Self> {
        let server = Server::start().await?;
        let (balancer, folder) = (Balancer::start().await, tempfile::tempdir().unwrap());
        // A worker that only says what workers serve.
        let first = Process::start(&Place::new(folder.path()));
        balancer.to(&[first.address]);
        server.register(balancer.address).await;
        Some(Host { server, balancer, folder })
    }

    fn place(&self) -> Place {
        Place::new(self.folder.path())
    }

    /// Starts a worker, which all new connections go to.
    fn worker(&self, place: &Place) -> Process {
        let worker = Process::start(place);
        self.balancer.to(&[worker.address]);
        worker
    }

    /// A session whose run waits for a decision about the request with this id, after its worker has ended.
    async fn run_that_waits(&self, place: &Place) -> (RemoteSession, String) {
        let _worker = self.worker(place);
        let session = self.session();
        let report = session.run_as("k1", "pay").await.unwrap();
        let RunStatus::Waiting(requests) = report.status.clone() else { panic!("{report:?}") };
        (session, requests[0].id.clone())
    }

    fn session(&self) -> RemoteSession {
        self.session_named("s1")
    }

    fn session_named(&self, id: &str) -> RemoteSession {
        self.server.client().session("ada", id).unwrap()
    }
}

/// Waits until something is so.
async fn until<F: Future<Output = bool>>(is_so: impl Fn() -> F) {
    while !is_so().await {
        // tidy: allow sleep, because other processes are asked, and do not tell by themselves
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_repeated_is_one_run() {
    let Some(host) = Host::start().await else { return };
    let mut worker = host.worker(&host.place().slow("c1"));
    let session = host.session();
    let both = tokio::spawn({
        let session = session.clone();
        async move { tokio::join!(session.run_as("k1", "pay"), session.run_as("k1", "pay")) }
    });
    worker.listen_for("paying");
    // A third one while it runs, without a waiting client.
    session.send("k1", "pay").await.unwrap();
    worker.go_on();
    let (first, second) = both.await.unwrap();
    let first = first.unwrap();
    assert_eq!(first, second.unwrap());
    assert_eq!((&first.status, &*first.text), (&RunStatus::Finished(Exit::Text), "done"));
    // And after it.
    assert_eq!(session.run_as("k1", "pay").await.unwrap(), first);
    let effects = host.place().effects();
    assert!(effects.len() == 5 && effects.values().all(|times| *times == 1), "{effects:?}");
    let (_, stored) = host.place().stored("ada", "s1").await;
    assert_eq!(stored.version, first.version);
}

/// A worker is killed in a call, or frozen; another one takes over. If the first is thawed, its writes are refused.
async fn another_goes_on(signal: &str, is_idempotent: bool) {
    let Some(host) = Host::start().await else { return };
    let place = if is_idempotent { host.place().idempotent() } else { host.place() };
    let mut first = host.worker(&place.slow("c1"));
    let session = host.session();
    let report = tokio::spawn({
        let session = session.clone();
        async move { session.run_as("k1", "pay").await }
    });
    first.listen_for("paying");
    let second = Process::start(&place);
    host.balancer.to(&[second.address]);
    first.signal(signal);
    let since = tokio::time::Instant::now();
    let report = report.await.unwrap().unwrap();
    println!("{signal}: another one was done after {:?}", since.elapsed());
    assert_eq!(report.text, "done");
    let (_, before) = place.stored("ada", "s1").await;
    let lost = usize::from(!is_idempotent);
    assert_eq!((unknown(&before), place.effects().len()), (lost, 5 - lost));
    if signal == "-STOP" {
        first.signal("-CONT");
        first.go_on();
        // It pays after all, which is what is unknown; or it hears first that it has lost the session, and drops the call.
        let pays = until(async || place.effects().values().sum::<usize>() == 5 + usize::from(is_idempotent));
        let _ = tokio::time::timeout(CLAIM * 2, pays).await;
        assert_eq!(session.run_as("k1", "pay").await.unwrap(), report);
        let (_, after) = place.stored("ada", "s1").await;
        assert_eq!(after.events, before.events, "a write of the thawed worker was taken");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_worker_is_killed_in_a_call_another_continues() {
    another_goes_on("-KILL", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_worker_is_killed_in_an_idempotent_call_it_runs_again_under_its_key() {
    another_goes_on("-KILL", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_worker_is_frozen_another_continues_and_writes_after_the_thaw_are_refused() {
    another_goes_on("-STOP", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_waits_ends_its_invocation_and_a_decision_sends_on_what_waits() {
    let Some(host) = Host::start().await else { return };
    let place = host.place().asking();
    let first = host.worker(&place);
    let session = host.session();
    let report = session.run_as("k1", "pay").await.unwrap();
    let RunStatus::Waiting(requests) = report.status.clone() else { panic!("{report:?}") };
    let pending = session.pending().await.unwrap();
    assert_eq!((pending.run.as_deref(), &pending.requests), (Some("k1"), &requests));
    // The record is asked again, not an old reply.
    assert_eq!(session.run_as("k1", "pay").await.unwrap(), report);
    let open = "SELECT id FROM sys_invocation WHERE target LIKE 'Session%' AND status <> 'completed'";
    until(async || host.server.query(open).await.is_empty()).await;

    // A message that comes meanwhile is stored.
    let Err(RestateError::Refused { status: 409, message }) = session.run_as("k2", "pay").await else {
        panic!("k1 waits")
    };
    assert!(message.contains("the message is stored and comes after that"), "{message}");

    // No worker is alive when the decision arrives.
    drop(first);
    host.balancer.to(&[]);
    let decided = tokio::spawn({
        let (session, id) = (session.clone(), requests[0].id.clone());
        async move { session.decide("k1", [(id, Decision::Approve)]).await }
    });
    until(async || !host.server.query(open).await.is_empty()).await;
    let second = host.worker(&place);
    let report = decided.await.unwrap().unwrap();
    assert_eq!((&report.status, &*report.text), (&RunStatus::Finished(Exit::Text), "done"));
    assert_eq!(place.effects().len(), 5);
    // The same decision again is a repeat.
    let again = session.decide("k1", [(requests[0].id.clone(), Decision::Approve)]).await.unwrap();
    assert_eq!(again, report);
    let Err(RestateError::Refused { status: 400, .. }) =
        session.decide("k1", [(requests[0].id.clone(), Decision::reject("no"))]).await
    else {
        panic!("it is decided")
    };

    // The second message was sent on, and asks in its turn.
    until(async || session.pending().await.unwrap().run.as_deref() == Some("k2")).await;
    assert!(session.cancel().await.unwrap());
    let report = session.run_as("k2", "pay").await.unwrap();
    assert_eq!(report.status, RunStatus::Finished(Exit::Cancelled));
    assert!(!session.cancel().await.unwrap(), "there is nothing left");
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_cancelled_from_any_worker() {
    let Some(host) = Host::start().await else { return };
    let mut first = host.worker(&host.place().slow("c1"));
    let run = |id| {
        let session = host.session_named(id);
        tokio::spawn(async move { session.run_as("k1", "pay").await })
    };
    let running = run("s1");
    first.listen_for("paying");
    assert!(host.session().cancel().await.unwrap());
    assert_eq!(running.await.unwrap().unwrap().status, RunStatus::Finished(Exit::Cancelled));
    first.go_on();

    let running = run("s2");
    first.listen_for("paying");
    // By a process that is not a worker.
    let (elsewhere, _) = host.place().stored("ada", "s2").await;
    assert!(elsewhere.cancel_everywhere().await.unwrap());
    assert_eq!(running.await.unwrap().unwrap().status, RunStatus::Finished(Exit::Cancelled));
    assert!(host.place().effects().is_empty(), "{:?}", host.place().effects());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_a_deployment_touches_waits_and_is_not_retried() {
    let Some(host) = Host::start().await else { return };
    let place = host.place().asking();
    let (session, asked) = host.run_that_waits(&place).await;
    // The effect of the call that waits is another one.
    let other = host.worker(&place.idempotent());
    let decided = tokio::spawn({
        let session = session.clone();
        async move { session.decide("k1", [(asked, Decision::Approve)]).await }
    });
    // It sleeps, again and again, and no attempt fails.
    let sleeping = "SELECT i.retry_count FROM sys_invocation i JOIN sys_journal j ON i.id = j.id \
                    WHERE i.target LIKE 'Session/%/decide' AND j.entry_type LIKE '%Sleep%'";
    until(async || host.server.query(sleeping).await.len() >= 3).await;
    let rows = host.server.query(sleeping).await;
    assert!(rows.iter().all(|row| row["retry_count"].as_u64().unwrap_or(1) <= 1), "{rows:?}");
    assert!(place.effects().is_empty());
    drop(other);
    let _first = host.worker(&place);
    let report = decided.await.unwrap().unwrap();
    assert_eq!(report.status, RunStatus::Finished(Exit::Text));
    assert_eq!(place.effects().len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_a_deployment_does_not_touch_is_continued_by_the_new_version() {
    let Some(host) = Host::start().await else { return };
    let place = host.place().asking();
    let (session, asked) = host.run_that_waits(&place).await;
    let new = place.told("Pay less.");
    let _new = host.worker(&new);
    let report = session.decide("k1", [(asked, Decision::Approve)]).await.unwrap();
    assert_eq!(report.status, RunStatus::Finished(Exit::Text));
    assert_eq!(place.effects().len(), 5);
    let (_, stored) = new.stored("ada", "s1").await;
    let upgraded = stored.events.iter().filter(|it| it.event.kind.as_str() == "upgraded").count();
    assert_eq!(upgraded, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_run_is_cut_into_slices_that_journal_a_report_and_nothing_else() {
    let Some(host) = Host::start().await else { return };
    let place = host.place().slice(Duration::ZERO);
    let mut worker = host.worker(&place.slow("c3"));
    let report = tokio::spawn({
        let session = host.session();
        async move { session.run_as("k1", "pay").await }
    });
    worker.listen_for("paying");
    let entries = host.server.query("SELECT entry_type, name FROM sys_journal ORDER BY index").await;
    println!("{entries:?}");
    worker.go_on();
    assert_eq!(report.await.unwrap().unwrap().status, RunStatus::Finished(Exit::Text));
    let state = host.server.query("SELECT * FROM state").await;
    assert!(state.is_empty(), "{state:?}");
    assert_eq!(place.effects().len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_do_not_fit_are_refused_at_once() {
    let Some(host) = Host::start().await else { return };
    let _worker = host.worker(&host.place());
    let session = host.session();
    let Err(RestateError::TooLarge(message)) = session.run_as("k1", "x".repeat(MAX_REQUEST_BYTES)).await
    else {
        panic!("it is too large")
    };
    assert!(message.contains("expected at most 1048576"), "{message}");
    let run = "/restate/call/Session/clerk%2Fada%2Fs1/run";
    let refused = async |path: &str, body: String| {
        let (status, text) = host.server.call(path, body).await;
        println!("{status} {}", text.chars().take(200).collect::<String>());
        status
    };
    assert_eq!(refused(run, json!("x".repeat(MAX_REQUEST_BYTES)).to_string()).await, 400);
    assert_eq!(refused(run, "pay".to_owned()).await, 400);
    assert_eq!(refused(run, json!({"say": "pay"}).to_string()).await, 400);
    assert_eq!(refused("/restate/call/Session/clerk%2Fada/run", json!("pay").to_string()).await, 400);
    assert_eq!(refused("/restate/call/Session/other%2Fada%2Fs1/run", json!("pay").to_string()).await, 404);
    let decide = "/restate/call/Session/clerk%2Fada%2Fs1/decide";
    assert_eq!(refused(decide, json!({"run": "k1", "decisions": []}).to_string()).await, 400);
    let unknown = json!({"run": "k1", "decisions": [["c1", "approve"]]}).to_string();
    assert_eq!(refused(decide, unknown).await, 400);
    // What fits.
    let (status, text) =
        host.server.call(run, json!({"idempotency_key": "k1", "input": "pay"}).to_string()).await;
    assert!(status == 200 && text.contains(r#""idempotency_key":"k1""#), "{status} {text}");
    const { assert!(MAX_PART_BYTES < MAX_REQUEST_BYTES) };
}

/// Nothing but Restate wakes them: no worker recovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_wake_a_session_on_whatever_worker_is_alive() {
    let Some(host) = Host::start().await else { return };
    let place = host.place().napping(Duration::from_millis(700));
    let first = host.worker(&place);
    let session = host.session();
    let report = session.run_as("k1", "pay").await.unwrap();
    let RunStatus::Waiting(requests) = &report.status else { panic!("{report:?}") };
    assert!(requests[0].deadline.is_some(), "{requests:?}");
    // A repeat does not wake it twice, nor does the end of the worker that asked to be woken keep it asleep.
    session.run_as("k1", "pay").await.unwrap();
    drop(first);
    let _second = host.worker(&place);
    until(async || {
        let (_, stored) = place.stored("ada", "s1").await;
        stored.transcript().iter().any(|message| message.text() == "done")
    })
    .await;
    let report = session.run_as("k1", "pay").await.unwrap();
    assert_eq!((&report.status, &*report.text), (&RunStatus::Finished(Exit::Text), "done"));
    let effects = place.effects();
    assert!(effects.len() == 5 && effects.values().all(|times| *times == 1), "{effects:?}");
    let resumes = "SELECT id FROM sys_invocation WHERE target LIKE '%/resume' AND status <> 'completed'";
    until(async || host.server.query(resumes).await.is_empty()).await;
}
