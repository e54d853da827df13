//! Laws of erasure among all other operations: sequences that luck chooses, against a model.
//!
//! After each of them, a session is what the model says, at each version that it can go back to: its events, which of them are
//! erased, its values, and the digest of its history. Content that is gone from the model is in no answer, and after a vacuum
//! in no byte of the files.

mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use proptest::test_runner::Config;
use serde_json::{Map, Value, json};
use stepfold_session_scopes::{
    AppId, AppendEvent, Author, CreateSession, DeleteSession, DequeueInput, Durability, EnqueueInput,
    EraseData, EraseTarget, ErasedData, ErasureId, Event, EventId, EventRange, Expected, ForkSession,
    GetSession, IdempotencyKey, InboxKind, InvocationId, Label, LabelVersion, ListErasures, ListForks,
    ListSessions, MemoryStore, PostgresStore, PruneBound, PruneSession, ReadInbox, ReadLabels, RewindSession,
    ScopeKey, SearchSessions, Session, SessionError, SessionKey, SessionStore, SqliteOptions, UserId,
    VacuumStore, VerifySessions,
};
use stepfold_state_core::chat::Message;
use stepfold_state_core::state::{Delta, Handler, ValueRef, Write};

use self::model::{Change, Model, ModelSession, WINDOW};
use crate::erasure::{BEGIN, markers_in};
use crate::scenario::{at, event, schema};
use crate::server::server;

const USERS: [&str; 2] = ["ada", "bob"];

/// Counts the kinds of operations that were made, so that a test can say that it has made all of them.
type Counts = BTreeMap<&'static str, u64>;

struct World<'a, S> {
    store: &'a S,
    app: String,
    model: Model,
    luck: fastrand::Rng,
    /// All markers that were ever planted.
    planted: BTreeSet<String>,
    /// Whether lists keep their last items only.
    with_windows: bool,
    counts: &'a mut Counts,
}

fn write(change: &Change) -> Write {
    let schema = schema();
    let schema = schema.schema();
    match change {
        Change::Add(more) => schema.write("n", *more),
        Change::Push(item) => schema.write("list", json!([item])),
        Change::PushLast(item) => schema.write_with("list", json!([item]), &Handler::keep_last(WINDOW)),
        Change::Replace(text) => schema.write("free", json!(text)),
        Change::Remove(key) => schema.removal(key),
        Change::ForUser(item) => schema.write("user:list", json!([item])),
    }
    .unwrap()
}

fn appended(id: &str, text: Option<&str>, changes: &[Change]) -> Event {
    let delta: Delta = changes.iter().map(write).collect();
    let event = event(id).with_delta(delta);
    match text {
        Some(text) => event.with_message(Message::user(text)),
        None => event,
    }
}

impl<S: SessionStore> World<'_, S> {
    fn marker(&mut self) -> String {
        let marker = format!("{BEGIN}{:010}>", self.luck.u64(..10_000_000_000));
        self.planted.insert(marker.clone());
        marker
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn any(&mut self) -> SessionKey {
        let keys: Vec<&SessionKey> = self.model.sessions.keys().collect();
        keys[self.luck.usize(..keys.len())].clone()
    }

    /// A version that the session can go back to.
    fn version(&mut self, key: &SessionKey) -> u64 {
        let session = &self.model.sessions[key];
        self.luck.u64(session.oldest..=session.version())
    }

    fn new_key(&mut self, user: &str) -> SessionKey {
        let id = self.marker();
        SessionKey::new(self.app.as_str(), user, id).unwrap()
    }

    async fn create(&mut self) {
        let user = USERS[self.luck.usize(..USERS.len())];
        let key = self.new_key(user);
        let values = json!({"free": self.marker(), "list": [self.marker()]});
        let request = CreateSession::with_key(key.clone(), &schema(), at(0));
        self.store.create(request.values(values.clone()).unwrap()).await.unwrap();
        let Value::Object(values) = values else { unreachable!() };
        let number = self.model.number();
        self.model.sessions.insert(key, ModelSession::new(number, values));
    }

    fn change(&mut self) -> Change {
        match self.luck.u8(..8) {
            0 | 1 => Change::Add(self.luck.i64(-5..5)),
            2 if self.with_windows => Change::PushLast(self.marker()),
            2 | 3 => Change::Push(self.marker()),
            4 | 5 => Change::Replace(self.marker()),
            6 => Change::Remove(["n", "list", "free"][self.luck.usize(..3)]),
            _ => Change::ForUser(self.marker()),
        }
    }

    async fn append(&mut self) {
        let key = self.any();
        let id = format!("e{}", self.model.number());
        let text = (self.luck.u8(..5) > 0).then(|| self.marker());
        let changes: Vec<Change> = (0..self.luck.usize(..3)).map(|_| self.change()).collect();
        let event = appended(&id, text.as_deref(), &changes);
        let request = AppendEvent::new(key.clone(), Expected::Any, event, &schema());
        self.store.append(request.clone()).await.unwrap();
        for change in &changes {
            if let Change::ForUser(item) = change {
                self.model.users.entry(key.user.to_string()).or_default().push(item.clone());
            }
        }
        self.model.sessions.get_mut(&key).unwrap().append(id, text, changes);
        if self.luck.u8(..6) == 0 {
            self.late(&key, request).await;
        }
    }

    /// The event is erased, and then comes once more, from a worker that has not got its acknowledgement.
    async fn late(&mut self, key: &SessionKey, request: AppendEvent) {
        let versions = BTreeSet::from([self.model.sessions[key].version()]);
        self.erase_events(key, versions).await;
        let _ = self.store.append(request).await;
        self.count("late append");
    }

    async fn fork(&mut self) {
        let from = self.any();
        let version = self.version(&from);
        let key = self.new_key(from.user.as_str());
        let request = ForkSession::new(from.clone(), at(2)).at_version(version).with_id(key.id.clone());
        self.store.fork(request).await.unwrap();
        let number = self.model.number();
        let fork = self.model.sessions[&from].fork(from.id.as_str(), number, version);
        self.model.sessions.insert(key, fork);
    }

    async fn rewind(&mut self) {
        let key = self.any();
        let to = self.version(&key);
        let id = format!("r{}", self.model.number());
        let (event, invocation) = (EventId::new(id.as_str()).unwrap(), InvocationId::new("i").unwrap());
        let author = Author::new("user").unwrap();
        let request = RewindSession::new(key.clone(), Expected::Any, to, event, invocation, author, at(3));
        self.store.rewind(request).await.unwrap();
        self.model.sessions.get_mut(&key).unwrap().rewind(id, to);
    }

    async fn label(&mut self) {
        let (key, label) = (self.any(), self.marker());
        let version = self.version(&key);
        let request = LabelVersion::new(key.clone(), Label::new(label.as_str()).unwrap(), version);
        self.store.set_label(request).await.unwrap();
        self.model.sessions.get_mut(&key).unwrap().labels.insert(label, version);
    }

    async fn send(&mut self) {
        let (key, text) = (self.any(), self.marker());
        let id = IdempotencyKey::new(format!("m{}", self.model.number())).unwrap();
        let request =
            EnqueueInput::new(key.clone(), InboxKind::Message, id, json!({"text": text.as_str()}), at(4));
        let position = self.store.enqueue(request).await.unwrap().position;
        let session = self.model.sessions.get_mut(&key).unwrap();
        session.inbox.insert(position, text);
        if self.luck.bool() {
            self.store.dequeue(DequeueInput::new(key, [position])).await.unwrap();
            session.inbox.remove(&position);
        }
    }

    /// Deletes events up to a version, and the labels of those.
    async fn prune(&mut self) {
        let key = self.any();
        let before = self.version(&key);
        let request = PruneSession::new(key.clone(), PruneBound::Version(before));
        self.store.prune(request).await.unwrap();
        let session = self.model.sessions.get_mut(&key).unwrap();
        session.oldest = before;
        session.labels.retain(|_, version| *version >= before);
    }

    async fn delete(&mut self) {
        let key = self.any();
        self.store.delete(DeleteSession::new(key.clone())).await.unwrap();
        self.model.sessions.remove(&key);
    }

    fn erasing(&mut self, target: EraseTarget) -> EraseData {
        let id = ErasureId::new(format!("erasure {}", self.model.number())).unwrap();
        EraseData::new(id, target, at(60), Author::new("admin").unwrap(), "luck")
    }

    /// Erases, and has the dry run before it say the same.
    async fn erase(&mut self, target: EraseTarget) -> Result<ErasedData, SessionError> {
        let request = self.erasing(target);
        let planned = self.store.erase(request.clone().dry_run()).await;
        let done = self.store.erase(request.clone()).await;
        assert_eq!(format!("{planned:?}"), format!("{done:?}"));
        // Once more, after a lost answer.
        if let Ok(again) = self.store.erase(request).await {
            assert_eq!((again.events, again.user_keys), (0, Vec::new()));
        }
        done
    }

    async fn erase_events(&mut self, key: &SessionKey, versions: BTreeSet<u64>) {
        let target = EraseTarget::Events { key: key.clone(), versions: versions.clone() };
        let done = self.erase(target).await;
        if let Some(events) = self.model.sessions[key].erase(&versions) {
            assert_eq!(done.unwrap().events, events);
        } else {
            let error = done.unwrap_err();
            assert!(matches!(error, SessionError::NoSuchVersion { .. }), "{error}");
        }
    }

    async fn erase_some(&mut self) {
        let key = self.any();
        let newest = self.model.sessions[&key].version();
        let versions = (0..self.luck.usize(1..4)).map(|_| self.luck.u64(1..=newest.max(1))).collect();
        self.erase_events(&key, versions).await;
    }

    fn left_events(&self, keys: &BTreeSet<SessionKey>) -> u64 {
        let of = keys.iter().map(|key| &self.model.sessions[key]);
        of.map(|session| session.version() - session.oldest).sum()
    }

    async fn erase_session(&mut self) {
        let key = self.any();
        let family = self.model.family(&key);
        let done = self.erase(EraseTarget::Session { key }).await.unwrap();
        assert_eq!(
            done.sessions.iter().cloned().collect::<BTreeSet<_>>(),
            family,
            "{:#?}",
            self.model.histories()
        );
        assert_eq!(done.events, self.left_events(&family));
        self.model.sessions.retain(|key, _| !family.contains(key));
    }

    async fn erase_user(&mut self) {
        let (app, user) = (AppId::new(self.app.as_str()).unwrap(), self.any().user);
        let of_user = self.model.sessions.keys().filter(|key| key.user == user).cloned();
        let sessions: BTreeSet<SessionKey> = of_user.collect();
        let has_values = self.model.users.get(user.as_str()).is_some_and(|list| !list.is_empty());
        let done = self.erase(EraseTarget::User { app, user: user.clone() }).await.unwrap();
        assert_eq!(done.sessions.iter().cloned().collect::<BTreeSet<_>>(), sessions);
        assert_eq!(done.events, self.left_events(&sessions));
        assert_eq!(done.user_keys, if has_values { vec!["user:list"] } else { Vec::new() });
        self.model.sessions.retain(|key, _| key.user != user);
        self.model.users.remove(user.as_str());
    }

    /// A copy by a file, as exports and imports make it.
    async fn import(&mut self) {
        let from = self.any();
        if self.model.sessions[&from].oldest > 0 {
            return;
        }
        let all = GetSession::new(from.clone()).events(EventRange::All);
        let exported = self.store.get(all).await.unwrap();
        let first = self.store.get(GetSession::new(from.clone()).at_version(0)).await.unwrap();
        let labels = self.store.labels(ReadLabels::new(from.clone())).await.unwrap();
        let again = |event: &Event| {
            let body = event.to_body().unwrap();
            let read = Event::from_body(event.id.clone(), event.at, &body).unwrap();
            read.without_erased_content().unwrap().into()
        };
        let events: Vec<std::sync::Arc<Event>> =
            exported.events.iter().map(|committed| again(&committed.event)).collect();
        let key = self.new_key(from.user.as_str());
        let request = CreateSession::with_key(key.clone(), &schema(), at(6));
        let request = request.values(Value::Object(own_values(&first))).unwrap();
        self.store.create(request.with_events(events).with_labels(labels)).await.unwrap();
        let number = self.model.number();
        let imported = self.model.sessions[&from].imported(number);
        self.model.sessions.insert(key, imported);
    }

    async fn step(&mut self) {
        if self.model.sessions.is_empty() {
            self.create().await;
        }
        let is_full = self.model.sessions.len() > 7;
        match self.luck.u8(..40) {
            0 if !is_full => self.counted("create").create().await,
            1..5 if !is_full => self.counted("fork").fork().await,
            5..9 => self.counted("rewind").rewind().await,
            9 | 10 => self.counted("label").label().await,
            11 | 12 => self.counted("send").send().await,
            13 => self.counted("prune").prune().await,
            14 => self.counted("delete").delete().await,
            15..20 => self.counted("erase events").erase_some().await,
            20 | 21 => self.counted("erase session").erase_session().await,
            22 => self.counted("erase user").erase_user().await,
            23..25 if !is_full => self.counted("import").import().await,
            _ => self.counted("append").append().await,
        }
    }

    fn counted(&mut self, what: &'static str) -> &mut Self {
        self.count(what);
        self
    }

    /// A session at each of its versions.
    async fn check_session(&mut self, key: &SessionKey, told: &mut String) {
        let session = self.model.sessions[key].clone();
        for version in session.oldest..=session.version() {
            let get = GetSession::new(key.clone()).events(EventRange::All).at_version(version);
            let read = self.store.get(get).await.unwrap();
            let place = usize::try_from(version).unwrap();
            check_version(&session, version, &read);
            if let Some(known) = session.heads[place] {
                assert_eq!(read.head, Some(known), "head at {version}");
            }
            self.model.sessions.get_mut(key).unwrap().heads[place] = read.head;
            if version == session.version() {
                tell(told, &read);
            }
        }
        let get = GetSession::new(key.clone()).visible().without_state().events(EventRange::All);
        let visible = self.store.get(get).await.unwrap();
        tell(told, &visible);
        let labels = self.store.labels(ReadLabels::new(key.clone())).await.unwrap();
        let labels = labels.into_iter().map(|(label, version)| (label.as_str().to_owned(), version));
        assert_eq!(labels.collect::<BTreeMap<_, _>>(), session.labels);
        let inbox = self.store.inbox(ReadInbox::new(key.clone())).await.unwrap();
        let inbox =
            inbox.into_iter().map(|entry| (entry.position, entry.body["text"].as_str().unwrap().to_owned()));
        assert_eq!(inbox.collect::<BTreeMap<_, _>>(), session.inbox);
        tell(told, &self.store.forks(ListForks::new(key.clone())).await.unwrap());
    }

    /// The answers of lists and searches about a user.
    async fn check_user(&self, user: &str, told: &mut String) {
        let list = ListSessions::new(self.app.as_str(), user).unwrap().with_state().events(EventRange::All);
        tell(told, &self.store.list(list.limit(100)).await.unwrap().sessions);
        let values = self.store.read_scope(ScopeKey::user(self.app.as_str(), user).unwrap()).await.unwrap();
        let list = values.get("user:list").map_or(json!([]), ValueRef::to_json);
        assert_eq!(list, json!(self.model.users.get(user).cloned().unwrap_or_default()));
        let (app, user) = (AppId::new(self.app.as_str()).unwrap(), UserId::new(user).unwrap());
        for session in self.model.sessions.keys().filter(|key| key.user == user) {
            let texts = self.model.sessions[session].left().map(|(_, event)| event.borrow().clone());
            for event in texts.collect::<Vec<_>>() {
                let Some(text) = event.text() else { continue };
                let search = SearchSessions::of_user(app.clone(), user.clone(), text).limit(100);
                let found = self.store.search(search).await.unwrap();
                tell(told, &found);
            }
        }
    }

    /// All that a store tells, which is what the model says, and repeats nothing that is gone.
    async fn check(&mut self) {
        let mut told = String::new();
        for key in self.model.sessions.keys().cloned().collect::<Vec<_>>() {
            self.check_session(&key, &mut told).await;
        }
        for user in USERS {
            self.check_user(user, &mut told).await;
        }
        let app = AppId::new(self.app.as_str()).unwrap();
        tell(&mut told, &self.store.erasures(ListErasures::new(app.clone())).await.unwrap());
        let left = self.model.markers();
        let gone = self.planted.iter().filter(|marker| !left.contains(*marker));
        let there: Vec<&String> = gone.filter(|marker| told.contains(marker.as_str())).collect();
        let around = |marker: &&String| {
            let place = told.find(marker.as_str()).unwrap();
            told.get(place.saturating_sub(200)..place + marker.len())
        };
        assert!(there.is_empty(), "told: {:?}", there.iter().map(around).collect::<Vec<_>>());
        let report = self.store.verify(VerifySessions::app(app)).await.unwrap();
        assert_eq!(report.faults, []);
        let of = |(key, session): (&SessionKey, &ModelSession)| {
            session.erased().map(|version| (key.clone(), version)).collect::<Vec<_>>()
        };
        let expected: BTreeSet<_> = self.model.sessions.iter().flat_map(of).collect();
        let noted = report.erasures.iter().map(|erased| (erased.key.clone(), erased.version));
        assert_eq!(noted.collect::<BTreeSet<_>>(), expected);
        assert_eq!(report.erased, expected.len() as u64);
    }
}

fn tell(told: &mut String, what: &impl std::fmt::Debug) {
    write!(told, "{what:?}").unwrap();
}

fn own_values(session: &Session) -> Map<String, Value> {
    let own = &session.values.as_ref().unwrap().session;
    own.iter().map(|(key, value)| (key.to_owned(), value.to_json())).collect()
}

fn check_version(session: &ModelSession, version: u64, read: &Session) {
    let place = usize::try_from(version).unwrap();
    assert_eq!((read.version, read.newest, read.oldest), (version, session.version(), session.oldest));
    assert_eq!(own_values(read), session.values[place], "values at {version}");
    let is_left = |at: &u64| *at > session.oldest;
    let visible: Vec<u64> = read.visible_events().map(|committed| committed.version).collect();
    let expected: Vec<u64> = session.visible[place].iter().copied().filter(is_left).collect();
    assert_eq!(visible, expected, "visible at {version}");
    let mut events = read.events.iter();
    for (at, event) in session.left().take_while(|(at, _)| *at <= version) {
        let (event, committed) = (event.borrow(), events.next().unwrap());
        let found = &committed.event;
        assert_eq!((committed.version, found.id.as_str()), (at, event.id.as_str()));
        assert_eq!(found.erasure().is_some(), event.is_erased, "version {at}");
        let texts: Vec<_> = found.messages.iter().map(|message| message.text().into_owned()).collect();
        assert_eq!(texts, event.text().into_iter().collect::<Vec<_>>(), "version {at}");
        let written = found.actions.delta.iter().map(|write| (write.key(), write.is_removal()));
        assert_eq!(written.collect::<Vec<_>>(), event.written(), "version {at}");
    }
    assert!(events.next().is_none());
}

/// Content after a sequence.
#[derive(Default)]
struct Content {
    /// Markers that are gone from everywhere, with the seed.
    gone: BTreeMap<String, u64>,
    left: BTreeSet<String>,
}

/// A sequence of operations in an application of its own.
async fn sequence<S: SessionStore>(store: &S, seed: u64, counts: &mut Counts, with_windows: bool) -> Content {
    let (model, luck) = (Model::default(), fastrand::Rng::with_seed(seed));
    let app = format!("app{seed}");
    let mut world = World { store, app, model, luck, planted: BTreeSet::new(), with_windows, counts };
    let steps = world.luck.usize(5..40);
    let checks = world.luck.usize(1..=steps);
    for step in 0..steps {
        world.step().await;
        if step % checks == checks - 1 {
            world.check().await;
        }
    }
    world.check().await;
    let left = world.model.markers();
    let gone = world.planted.difference(&left);
    Content { gone: gone.map(|marker| (marker.clone(), seed)).collect(), left }
}

/// As many sequences as `PROPTEST_CASES` says, divided by this.
fn seeds(divisor: u32) -> std::ops::Range<u64> {
    0..u64::from(Config::default().cases.div_ceil(divisor))
}

async fn named<T>(seed: u64, test: impl Future<Output = T>) -> T {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("seed {}", self.0);
            }
        }
    }
    let _named = Named(seed);
    test.await
}

fn check_counts(counts: &Counts) {
    println!("{counts:?}");
    let kinds = [
        "append",
        "create",
        "delete",
        "erase events",
        "erase session",
        "erase user",
        "fork",
        "import",
        "label",
        "late append",
        "prune",
        "rewind",
        "send",
    ];
    for kind in kinds {
        assert!(counts.get(kind).is_some_and(|count| *count > 0), "no {kind}: {counts:?}");
    }
}

/// Sequences over one store, whose files are read at the end.
async fn sequences<S: SessionStore>(
    store: &S,
    seeds: impl Iterator<Item = u64>,
    folder: &Path,
    counts: &mut Counts,
    with_windows: bool,
) {
    let mut content = Content::default();
    for seed in seeds {
        let Content { gone, left } = named(seed, sequence(store, seed, counts, with_windows)).await;
        content.gone.extend(gone);
        content.left.extend(left);
    }
    store.vacuum(VacuumStore::new()).await.unwrap();
    let mut found = BTreeSet::new();
    markers_in(folder, &mut found);
    let there: Vec<_> = content.gone.iter().filter(|(marker, _)| found.contains(*marker)).collect();
    assert!(there.is_empty(), "{} of {} are in the files: {there:?}", there.len(), content.gone.len());
    let lost: Vec<&String> = content.left.difference(&found).collect();
    assert!(lost.is_empty(), "{} of {} are in no file: {lost:?}", lost.len(), content.left.len());
}

#[tokio::test]
async fn erasure_keeps_the_laws_of_sessions_in_memory() {
    let mut counts = Counts::new();
    for seed in seeds(1) {
        named(seed, sequence(&MemoryStore::new(), seed, &mut counts, true)).await;
    }
    check_counts(&counts);
}

#[tokio::test]
async fn erasure_keeps_the_laws_of_sessions_over_sqlite() {
    let mut counts = Counts::new();
    let seeds: Vec<u64> = seeds(2).collect();
    for some in seeds.chunks(16) {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::new(folder.path().join("sessions.db"));
        let store = options.durability(Durability::Process).open().unwrap();
        sequences(&store, some.iter().copied(), folder.path(), &mut counts, true).await;
    }
    check_counts(&counts);
}

#[tokio::test]
async fn erasure_keeps_the_laws_of_sessions_over_postgres() {
    let Some(server) = server() else { return };
    let mut counts = Counts::new();
    let store = PostgresStore::open(server.database("erasure_laws").await).await.unwrap();
    // NOTE: items that have left the window of a list stay in a row of items as long as the list: see `docs/limits.md`.
    Box::pin(sequences(&store, seeds(8), &server.files_of_tables(), &mut counts, false)).await;
}
