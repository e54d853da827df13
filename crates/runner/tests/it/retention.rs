//! Retention: what a policy removes is exactly what it says, in each process and wherever a pass ends.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::{Agent, Decision, Exit, Pause};
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, Author, ClaimSession, CommittedEvent, CreateSession, Durability, EnqueueInput,
    Event, EventId, Expected, ForkSession, GetSession, IdempotencyKey, InboxKind, InvocationId, Label,
    LabelVersion, MemoryStore, ReadInbox, ReadLabels, RewindSession, RunRecord, ScanSessions, Session,
    SessionError, SessionKey, SessionSchema, SessionStore, SqliteOptions, SqliteStore, Timestamp,
    VerifySessions, WorkerId,
};
use stepfold_runner::{RetentionOptions, RetentionPolicy, RetentionReport, Runner, WallClock};
use stepfold_tools::{Approval, Tool, ToolError};

use crate::world::process;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const APP: &str = "shop";

/// A clock that a test sets.
#[derive(Clone, Default)]
struct SetClock(Arc<AtomicI64>);

impl SetClock {
    fn set(&self, at: Timestamp) {
        self.0.store(at.as_micros(), Ordering::SeqCst);
    }
}

impl WallClock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

fn day(number: u64) -> Timestamp {
    Timestamp::from_micros(0).after(DAY * u32::try_from(number).unwrap())
}

fn schema() -> SessionSchema {
    stepfold_state_core::state::Schema::builder().key::<u64>("n").build().unwrap().into()
}

fn runner(store: &AnyStore, clock: &SetClock, policy: &RetentionPolicy) -> Runner {
    let agent = Agent::builder(Script::parse("assistant: hello").unwrap()).build().unwrap();
    let builder = Runner::builder(agent, store.clone()).app(APP).unwrap().clock(clock.clone());
    builder.retention(policy.clone()).build()
}

/// The rules of a policy, which the test applies by itself.
#[derive(Clone, Debug)]
struct Rules {
    idle: Option<u64>,
    events: Option<u64>,
    event_days: Option<u64>,
    inbox_days: Option<u64>,
    with_waiting: bool,
}

impl Rules {
    fn random(random: &mut fastrand::Rng) -> Self {
        let some = |random: &mut fastrand::Rng, days| random.bool().then(|| random.u64(days));
        Rules {
            idle: some(random, 0..100),
            events: some(random, 0..8),
            event_days: some(random, 0..100),
            inbox_days: some(random, 0..100),
            with_waiting: random.u8(0..4) == 0,
        }
    }

    fn policy(&self) -> RetentionPolicy {
        let days = |days: u64| DAY * u32::try_from(days).unwrap();
        let mut policy = RetentionPolicy::new();
        if let Some(idle) = self.idle {
            policy = policy.delete_idle_after(days(idle));
        }
        if let Some(events) = self.events {
            policy = policy.keep_events(events);
        }
        if let Some(age) = self.event_days {
            policy = policy.keep_events_for(days(age));
        }
        if let Some(age) = self.inbox_days {
            policy = policy.keep_messages_for(days(age));
        }
        if self.with_waiting { policy.include_waiting() } else { policy }
    }

    fn before(days: Option<u64>, now: Timestamp) -> Option<Timestamp> {
        days.map(|days| now.before(DAY * u32::try_from(days).unwrap()))
    }

    /// The rest of a session; `None` if it goes.
    fn left(&self, session: &SessionView, now: Timestamp) -> Option<SessionView> {
        let mut left = session.clone();
        if session.is_claimed {
            return Some(left);
        }
        if session.is_unfinished && !self.with_waiting {
            return Some(left);
        }
        if let Some(before) = Rules::before(self.inbox_days, now) {
            left.inbox.retain(|(_, at, kind)| *at >= before || *kind == InboxKind::Cancel);
        }
        let is_idle = Rules::before(self.idle, now).is_some_and(|before| session.updated < before);
        if is_idle && left.inbox.is_empty() && session.labels.is_empty() {
            return None;
        }
        let by_count = self.events.map_or(0, |newest| session.version.saturating_sub(newest));
        let by_age = Rules::before(self.event_days, now).map_or(0, |before| {
            let mut events = session.events.iter().filter(|committed| committed.version > by_count);
            let first = events.find(|committed| committed.event.at >= before);
            first.map_or(session.version, |first| first.version - 1)
        });
        let labelled = session.labels.iter().map(|(_, version)| *version).min().unwrap_or(u64::MAX);
        left.oldest = by_count.max(by_age).min(labelled).max(session.oldest);
        left.events.retain(|committed| committed.version > left.oldest);
        Some(left)
    }
}

/// A session as a test sees it.
#[derive(Clone, Debug, PartialEq)]
struct SessionView {
    version: u64,
    oldest: u64,
    updated: Timestamp,
    values: Value,
    events: Vec<CommittedEvent>,
    labels: Vec<(Label, u64)>,
    inbox: Vec<(u64, Timestamp, InboxKind)>,
    is_claimed: bool,
    is_unfinished: bool,
}

type WorldView = BTreeMap<SessionKey, SessionView>;

async fn view(store: &AnyStore, now: Timestamp) -> WorldView {
    let mut views = BTreeMap::new();
    let mut request = ScanSessions::new(APP).unwrap();
    loop {
        let page = store.scan(request.clone()).await.unwrap();
        for scanned in page.sessions {
            let session = store.get(GetSession::new(scanned.key.clone()).now(now)).await.unwrap();
            views.insert(scanned.key, view_of(store, session).await);
        }
        request.after = page.next;
        if request.after.is_none() {
            return views;
        }
    }
}

async fn view_of(store: &AnyStore, session: Session) -> SessionView {
    let key = session.key.clone();
    let labels = store.labels(ReadLabels::new(key.clone())).await.unwrap();
    let inbox = store.inbox(ReadInbox::new(key)).await.unwrap();
    let newest = session.visible_events().next_back();
    SessionView {
        version: session.version,
        oldest: session.oldest,
        updated: session.updated,
        values: session.to_json(),
        is_claimed: session.claim.is_some(),
        is_unfinished: newest.is_some_and(|newest| newest.event.is_unfinished()),
        labels,
        inbox: inbox.into_iter().map(|entry| (entry.position, entry.at, entry.kind)).collect(),
        events: session.events,
    }
}

/// The rest of a world. Whether a run is unfinished is told by events, which may be gone.
fn left_of(world: &WorldView, rules: &Rules, now: Timestamp) -> WorldView {
    let left = |(key, session): (&SessionKey, &SessionView)| Some((key.clone(), rules.left(session, now)?));
    world.iter().filter_map(left).collect()
}

fn without_ends(mut world: WorldView) -> WorldView {
    for session in world.values_mut() {
        session.is_unfinished = false;
    }
    world
}

/// A world of sessions with forks, rewinds, labels, waiting runs and messages, and claims.
struct WorldBuilder<'a> {
    store: &'a AnyStore,
    random: fastrand::Rng,
    keys: Vec<SessionKey>,
    next: u64,
}

impl WorldBuilder<'_> {
    fn name(&mut self) -> String {
        self.next += 1;
        format!("n{}", self.next)
    }

    fn at(&mut self) -> Timestamp {
        day(self.random.u64(0..100))
    }

    fn key(&mut self) -> SessionKey {
        self.keys[self.random.usize(0..self.keys.len())].clone()
    }

    async fn step(&mut self) -> Result<(), SessionError> {
        let (at, name) = (self.at(), self.name());
        let step = if self.keys.is_empty() { 0 } else { self.random.u8(0..20) };
        let store = self.store;
        match step {
            0..3 => {
                let user = ["ada", "bob", "cy"][self.random.usize(0..3)];
                let key = SessionKey::new(APP, user, name)?;
                self.keys.push(store.create(CreateSession::with_key(key, &schema(), at)).await?.key);
            }
            3..13 => {
                let mut event =
                    Event::new(EventId::new(name)?, InvocationId::new("i")?, Author::new("user")?, at);
                let write = schema().schema().write("n", json!(self.next)).unwrap();
                event = event.with_delta([write].into_iter().collect());
                if self.random.u8(0..4) == 0 {
                    event = event.with_record(RunRecord::new("my.run", 1, &"a step")?);
                }
                store.append(AppendEvent::new(self.key(), Expected::Any, event, &schema())).await?;
            }
            13 => {
                let from = self.key();
                let session = store.get(GetSession::new(from.clone())).await?;
                let version = self.random.u64(session.oldest..=session.version);
                let fork = ForkSession::new(from, at).at_version(version);
                self.keys.push(store.fork(fork).await?.key);
            }
            14 => {
                let key = self.key();
                let session = store.get(GetSession::new(key.clone())).await?;
                let to = self.random.u64(session.oldest..=session.version);
                let (event, invocation) = (EventId::new(name)?, InvocationId::new("r")?);
                let author = Author::new("user")?;
                store
                    .rewind(RewindSession::new(key, Expected::Any, to, event, invocation, author, at))
                    .await?;
            }
            15 => {
                let key = self.key();
                let session = store.get(GetSession::new(key.clone())).await?;
                let version = self.random.u64(session.oldest..=session.version);
                store.set_label(LabelVersion::new(key, Label::new(name)?, version)).await?;
            }
            16..19 => {
                let (key, id) = (self.key(), IdempotencyKey::new(name)?);
                let kind = [InboxKind::Message, InboxKind::Steer, InboxKind::Cancel][self.random.usize(0..3)];
                store.enqueue(EnqueueInput::new(key, kind, id, "hello", at)).await?;
            }
            _ => {
                let (key, owner) = (self.key(), WorkerId::new(name)?);
                let claim = ClaimSession::new(key, owner, DAY * self.random.u32(1..40), at);
                store.claim(claim.take_over()).await?;
            }
        }
        Ok(())
    }
}

/// Polls a future at most so many times, and then drops it: the death of its process.
async fn killed_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |context: &mut Context<'_>| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Makes passes until one has reached the end.
async fn retain_all(runner: &Runner) -> RetentionReport {
    let mut sum = RetentionReport::default();
    for _ in 0..100_000 {
        let report = runner.retain(RetentionOptions::new().max_changed(3)).await.unwrap();
        assert_eq!(report.failed, []);
        sum.scanned += report.scanned;
        sum.deleted.extend(report.deleted);
        sum.pruned.extend(report.pruned);
        sum.withdrawn.extend(report.withdrawn);
        match report.is_elsewhere {
            // tidy: allow sleep, because the end of another worker's pass is seen by trying again only
            true => tokio::time::sleep(Duration::from_millis(1)).await,
            false if report.next.is_none() => return sum,
            false => {}
        }
    }
    panic!("passes do not end");
}

/// A law of one world: policies one after the other, at times that jump.
async fn law(store: AnyStore, seed: u64, is_killed: bool) {
    let mut world =
        WorldBuilder { store: &store, random: fastrand::Rng::with_seed(seed), keys: Vec::new(), next: 0 };
    for _ in 0..world.random.u32(10..90) {
        world.step().await.unwrap();
    }
    let mut random = world.random;
    for _ in 0..3 {
        // A lease that expires must make nothing else due: times are whole days.
        let hours = Duration::from_secs(if is_killed { 3_600 } else { 0 });
        let (rules, now) = (Rules::random(&mut random), day(random.u64(0..150)).after(hours));
        let clock = SetClock::default();
        clock.set(now);
        let (one, two) = (runner(&store, &clock, &rules.policy()), runner(&store, &clock, &rules.policy()));
        let before = view(&store, now).await;
        let expected = left_of(&before, &rules, now);
        let planned = one.retain(RetentionOptions::new().dry_run()).await.unwrap();
        assert_eq!(view(&store, now).await, before, "a dry run changes nothing");
        let mut done = RetentionReport::default();
        if is_killed {
            let polls = random.usize(0..60);
            let killed = killed_after(polls, one.retain(RetentionOptions::new())).await;
            done = killed.map(Result::unwrap).unwrap_or_default();
            // Its lease expires.
            clock.set(now.after(Duration::from_secs(31)));
        }
        let (first, second) = tokio::join!(retain_all(&one), retain_all(&two));
        let found = without_ends(view(&store, now).await);
        for (key, left) in without_ends(expected.clone()) {
            assert_eq!(found.get(&key), Some(&left), "{rules:?} at {now}: {:?}", before[&key]);
        }
        assert_eq!(found.len(), expected.len(), "{rules:?} at {now}: found {:?}", found.keys());
        if !is_killed {
            for report in [first, second] {
                done.deleted.extend(report.deleted);
                done.pruned.extend(report.pruned);
                done.withdrawn.extend(report.withdrawn);
            }
            let sorted = |mut list: Vec<(SessionKey, u64)>| {
                list.sort();
                list
            };
            assert_eq!(sorted(planned.deleted), sorted(done.deleted));
            assert_eq!(sorted(planned.pruned), sorted(done.pruned));
            assert_eq!(sorted(planned.withdrawn), sorted(done.withdrawn));
        }
        assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
    }
}

fn cases(cases: u32) -> ProptestConfig {
    let usual = ProptestConfig::default();
    let cases = if usual.cases == 256 { cases } else { usual.cases };
    ProptestConfig { cases, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn a_policy_removes_what_it_says_in_memory(seed: u64) {
        process(law(AnyStore::new(MemoryStore::new()), seed, false));
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_policy_removes_what_it_says_from_sqlite(seed: u64) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
        process(law(AnyStore::new(store), seed, false));
    }

    #[test]
    fn a_pass_that_is_killed_is_made_again(seed: u64) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
        process(law(AnyStore::new(store), seed, true));
    }
}

/// A pass that is killed at any of its first awaits is finished by the next one, with the same result.
#[test]
fn a_pass_that_is_killed_anywhere_is_finished_by_the_next() {
    let mut killed = 0;
    for polls in (0..90).step_by(2) {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("sessions.db"));
        let store = AnyStore::new(options.durability(Durability::Process).open().unwrap());
        process(async {
            let random = fastrand::Rng::with_seed(41);
            let mut world = WorldBuilder { store: &store, random, keys: Vec::new(), next: 0 };
            for _ in 0..40 {
                world.step().await.unwrap();
            }
            let (clock, now) = (SetClock::default(), day(120).after(Duration::from_secs(3_600)));
            clock.set(now);
            let rules = Rules {
                idle: Some(60),
                events: Some(2),
                event_days: None,
                inbox_days: Some(30),
                with_waiting: true,
            };
            let expected = without_ends(left_of(&view(&store, now).await, &rules, now));
            let runner = runner(&store, &clock, &rules.policy());
            killed += u32::from(killed_after(polls, runner.retain(RetentionOptions::new())).await.is_none());
            // Its lease expires.
            clock.set(now.after(Duration::from_secs(31)));
            retain_all(&runner).await;
            assert_eq!(without_ends(view(&store, now).await), expected, "killed after {polls} polls");
            assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
        });
    }
    assert!(killed >= 5, "only {killed} passes were killed");
}

/// An agent that asks before it acts.
fn asking(store: &AnyStore, clock: &SetClock, policy: RetentionPolicy) -> Runner {
    let pay = Tool::new("pay", "Pays.", async || Ok::<_, ToolError>("paid")).approval(Approval::Always);
    let model = Script::parse("assistant: > c1 pay()\nassistant: done").unwrap();
    let agent = Agent::builder(model).tools([pay.build().unwrap()]).build().unwrap();
    let builder = Runner::builder(agent, store.clone()).app(APP).unwrap().clock(clock.clone());
    builder.retention(policy).build()
}

#[test]
fn a_run_that_waits_is_left_alone_until_it_has_ended() {
    process(async {
        let (store, clock) = (AnyStore::new(MemoryStore::new()), SetClock::default());
        let policy = RetentionPolicy::new().delete_idle_after(DAY * 30).keep_events(0);
        let runner = asking(&store, &clock, policy);
        let session = runner.session("ada", "s1").await.unwrap();
        let outcome = session.run("pay the baker").await.unwrap();
        assert_eq!(*outcome.exit(), Exit::Paused(Pause::Approval));
        let id = outcome.pending()[0].id.clone();
        clock.set(day(365));
        let report = runner.retain(RetentionOptions::new()).await.unwrap();
        assert_eq!((report.deleted.len(), report.pruned.len()), (0, 0));

        // Another process continues it.
        let outcome = asking(&store, &clock, RetentionPolicy::new())
            .session("ada", "s1")
            .await
            .unwrap()
            .resume()
            .decide(id, Decision::Approve)
            .await
            .unwrap();
        assert_eq!(outcome.text(), "done");
        let report = runner.retain(RetentionOptions::new()).await.unwrap();
        assert_eq!((report.deleted.len(), report.pruned.len()), (0, 1));
        clock.set(day(400));
        let report = runner.retain(RetentionOptions::new()).await.unwrap();
        assert_eq!(report.deleted.len(), 1);
        assert!(runner.find_session("ada", "s1").await.unwrap().is_none());
        let load = runner.load();
        assert_eq!((load.expired_sessions, load.retention_failures), (1, 0));
    });
}

#[test]
fn messages_for_a_run_that_waits_are_left_with_it() {
    process(async {
        let (store, clock) = (AnyStore::new(MemoryStore::new()), SetClock::default());
        let runner = asking(&store, &clock, RetentionPolicy::new().keep_messages_for(DAY));
        let session = runner.session("ada", "s1").await.unwrap();
        session.run("pay the baker").await.unwrap();
        let key = session.key().clone();
        let ids = ["m1", "m2"].map(|id| IdempotencyKey::new(id).unwrap());
        for (id, kind) in ids.into_iter().zip([InboxKind::Message, InboxKind::Cancel]) {
            store.enqueue(EnqueueInput::new(key.clone(), kind, id, "hello", day(1))).await.unwrap();
        }
        clock.set(day(365));
        assert_eq!(runner.retain(RetentionOptions::new()).await.unwrap().withdrawn, []);
        let policy = RetentionPolicy::new().keep_messages_for(DAY).include_waiting();
        let report = asking(&store, &clock, policy).retain(RetentionOptions::new()).await.unwrap();
        assert_eq!(report.withdrawn, [(key.clone(), 1)]);
        let left = store.inbox(ReadInbox::new(key)).await.unwrap();
        assert_eq!(left.iter().map(|entry| entry.kind).collect::<Vec<_>>(), [InboxKind::Cancel]);
    });
}

#[test]
fn a_pass_from_the_first_session_does_not_continue_another() {
    process(async {
        let (store, clock) = (AnyStore::new(MemoryStore::new()), SetClock::default());
        clock.set(day(100));
        for id in ["s1", "s2", "s3"] {
            let key = SessionKey::new(APP, "ada", id).unwrap();
            store.create(CreateSession::with_key(key, &schema(), day(99))).await.unwrap();
        }
        let runner = runner(&store, &clock, &RetentionPolicy::new().delete_idle_after(DAY * 30));
        let part = || RetentionOptions::new().max_scanned(1);
        assert!(runner.retain(part()).await.unwrap().next.is_some());
        let report = runner.retain(RetentionOptions::new()).await.unwrap();
        assert_eq!((report.scanned, report.next), (2, None));
        assert!(runner.retain(part()).await.unwrap().next.is_some());
        let report = runner.retain(RetentionOptions::new().from_first()).await.unwrap();
        assert_eq!((report.scanned, report.next), (3, None));
    });
}

#[test]
fn a_session_goes_on_after_its_events_have_gone() {
    process(async {
        let (store, clock) = (AnyStore::new(MemoryStore::new()), SetClock::default());
        let policy = RetentionPolicy::new().keep_events_for(DAY);
        let agent = Agent::builder(Script::parse("assistant: one").unwrap()).build().unwrap();
        let builder = Runner::builder(agent, store.clone()).app(APP).unwrap().clock(clock.clone());
        let runner = builder.retention(policy).build();
        let session = runner.session("ada", "s1").await.unwrap();
        session.run("first").await.unwrap();
        clock.set(day(2));
        assert_eq!(runner.retain(RetentionOptions::new()).await.unwrap().pruned.len(), 1);
        let outcome = session.run("second").await.unwrap();
        // The model is shown the second message only, as its script tells.
        assert_eq!(outcome.transcript().to_string(), "user:      second\nassistant: one\n");
        assert_eq!(store.verify(VerifySessions::all()).await.unwrap().faults, []);
    });
}

#[test]
fn a_pass_is_made_by_one_process_in_an_interval() {
    process(async {
        let (store, clock) = (AnyStore::new(MemoryStore::new()), SetClock::default());
        clock.set(day(100));
        let policy = RetentionPolicy::new().delete_idle_after(DAY).every(Duration::from_millis(20));
        let (one, two) = (runner(&store, &clock, &policy), runner(&store, &clock, &policy));
        let tasks = [one.run_retention(), two.run_retention()].map(tokio::spawn);
        for at in [0, 50, 60] {
            let key = SessionKey::new(APP, "ada", format!("s{at}")).unwrap();
            store.create(CreateSession::with_key(key.clone(), &schema(), day(at))).await.unwrap();
            // The clock stands still between passes; nothing is due before it moves.
            clock.set(day(100).after(DAY * u32::try_from(at + 1).unwrap()));
            let mut polls = 0;
            while store.get(GetSession::new(key.clone())).await.is_ok() {
                polls += 1;
                assert!(polls < 2_000, "no pass was made");
                // tidy: allow sleep, because a pass sends no notice of the sessions that it deletes by other processes
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        assert_eq!(one.load().expired_sessions + two.load().expired_sessions, 3);
        for runner in [one, two] {
            assert!(runner.shutdown(Duration::from_secs(5)).await);
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    });
}
