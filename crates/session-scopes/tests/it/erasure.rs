//! Erasure down to the bytes: markers are planted in every place where content can be, a random half of their subjects is
//! erased, and the raw files of the store are read.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use stepfold_session_scopes::{
    AnyStore, AppendEvent, Author, BudgetAmount, BudgetId, CreateSession, DequeueInput, EnqueueInput,
    EraseData, EraseTarget, ErasureId, ErrorKind, EventRange, Expected, FaultPlace, ForkSession, GetSession,
    IdempotencyKey, InboxKind, Label, LabelVersion, ListSessions, MemoryStore, PruneBound, PruneSession,
    ReadInbox, ReservationId, ReserveSpend, RewindSession, RunRecord, ScopeKey, SessionError, SessionKey,
    SessionStore, SpendAmounts, SqliteOptions, SqliteStore, VacuumStore, VerifySessions, WriteScope,
};
use stepfold_state_core::chat::{Message, ToolCall, ToolResult};

use crate::children::start;
use crate::keys::memory_ring;
use crate::scenario::{address_in, append, at, create, event, key, open, schema, writing};
use crate::sealed::{Database, open_at};
use crate::server::server;

/// Ten digits between these, so that markers are found in one pass over the bytes of a file.
pub(crate) const BEGIN: &str = "mk<";

/// The content that a marker is a part of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    User(String),
    /// A session that is erased with the one named first, if that is another.
    Session(SessionKey, SessionKey),
    Event(SessionKey, u64),
}

/// The planted content, and the erased part of it: all by luck, and the same in each process with the same seed.
struct Garden {
    luck: fastrand::Rng,
    planted: Vec<(String, Subject)>,
    /// Markers in texts that a database may compress, so that their bytes may be there and not be found.
    large: BTreeSet<String>,
    /// Markers in names, which are readable in a store that seals content.
    names: BTreeSet<String>,
    erased: BTreeSet<Subject>,
    next: u64,
}

const USERS: u64 = 24;

fn names(markers: Vec<&(String, Subject)>) -> BTreeSet<&str> {
    markers.into_iter().map(|(marker, _)| marker.as_str()).collect()
}

impl Garden {
    fn new(seed: u64) -> Self {
        Garden {
            luck: fastrand::Rng::with_seed(seed),
            planted: Vec::new(),
            large: BTreeSet::new(),
            names: BTreeSet::new(),
            erased: BTreeSet::new(),
            next: seed << 20,
        }
    }

    /// A new marker.
    fn mark(&mut self, subject: &Subject) -> String {
        self.next += 1;
        let marker = format!("{BEGIN}{:010}>", self.next);
        self.planted.push((marker.clone(), subject.clone()));
        marker
    }

    /// A new marker in an id, a label or an idempotency key.
    fn name(&mut self, subject: &Subject) -> String {
        let marker = self.mark(subject);
        self.names.insert(marker.clone());
        marker
    }

    fn large(&mut self, subject: &Subject) -> String {
        let marker = self.mark(subject);
        self.large.insert(marker.clone());
        let filler: String = std::iter::repeat_with(|| self.luck.alphanumeric()).take(6_000).collect();
        format!("{filler}{marker}{filler}")
    }

    /// The markers that must be gone, and those that must be there.
    fn expected(&self) -> (BTreeSet<&str>, BTreeSet<&str>) {
        let is_gone = |subject: &Subject| match subject {
            Subject::User(_) => self.erased.contains(subject),
            Subject::Session(key, with) => {
                let whole = |key: &SessionKey| Subject::Session(key.clone(), key.clone());
                self.erased.contains(&Subject::User(key.user.to_string()))
                    || self.erased.contains(&whole(key))
                    || self.erased.contains(&whole(with))
            }
            Subject::Event(key, _) => {
                self.erased.contains(&Subject::User(key.user.to_string()))
                    || self.erased.contains(subject)
                    || self.erased.contains(&Subject::Session(key.clone(), key.clone()))
            }
        };
        let (gone, left): (Vec<_>, Vec<_>) = self.planted.iter().partition(|(_, subject)| is_gone(subject));
        let mut left = names(left);
        left.retain(|marker| !self.large.contains(*marker));
        (names(gone), left)
    }

    /// Plants all, and returns the erasures that are to be made.
    async fn plant(&mut self, store: Option<&dyn Planter>) -> Vec<EraseData> {
        let mut erasures = Vec::new();
        for number in 0..USERS {
            let user = format!("user{number}");
            let main = SessionKey::new("app", user.as_str(), "main").unwrap();
            let steps = self.steps(&user, &main);
            if let Some(store) = store {
                store.plant(steps).await;
            }
            let (subject, target) = match self.luck.u8(..6) {
                0 => {
                    let target = EraseTarget::User { app: main.app.clone(), user: main.user.clone() };
                    (Subject::User(user), target)
                }
                1 => (Subject::Session(main.clone(), main.clone()), EraseTarget::Session { key: main }),
                2 => {
                    let versions = BTreeSet::from([2]);
                    (Subject::Event(main.clone(), 2), EraseTarget::Events { key: main, versions })
                }
                _ => continue,
            };
            self.erased.insert(subject);
            let id = ErasureId::new(format!("erasure {number} {}", self.next)).unwrap();
            let admin = Author::new("admin").unwrap();
            let request = EraseData::new(id, target, at(50), admin, "a request by mail");
            erasures.push(request.with_budgets([format!("user {number} ")]));
        }
        erasures
    }

    /// Everything that a user may leave in a store.
    fn steps(&mut self, user: &str, main: &SessionKey) -> Vec<Step> {
        let whole = Subject::User(user.to_owned());
        let session = Subject::Session(main.clone(), main.clone());
        let second = Subject::Event(main.clone(), 2);
        let fork_key = SessionKey::new("app", user, self.name(&session)).unwrap();
        let fork = Subject::Session(fork_key.clone(), main.clone());
        let other_key = SessionKey::new("app", user, self.name(&whole)).unwrap();
        let other = Subject::Session(other_key.clone(), other_key.clone());
        let call = ToolCall::new("c1", "search", json!({"q": self.mark(&second)}));
        let record = RunRecord::new("my.run", 1, &json!({"prompt": self.mark(&second)})).unwrap();
        let erasable = event("e2")
            .with_message(Message::user(self.mark(&second)))
            .with_message(Message::assistant(self.mark(&second)).with_part(call))
            .with_message(Message::tool(ToolResult::error("c1", "search", self.mark(&second))))
            .with_message(Message::user(self.large(&second)))
            .with_record(record)
            .with_metadata("trace", json!([self.mark(&second)]));
        let first =
            writing("e1", &[("list", json!([self.mark(&session)])), ("free", json!(self.mark(&session)))])
                .with_message(Message::user(self.mark(&session)))
                .with_tag(self.mark(&session));
        let replaced = writing("e3", &[("free", json!("now another")), ("list", json!([1]))]);
        let shared = [("user:name", json!(self.mark(&whole))), ("user:list", json!([self.mark(&whole)]))];
        let hidden = writing("e4", &shared).with_message(Message::assistant(self.mark(&session)));
        let own = writing("own", &[("list", json!([self.mark(&fork)]))])
            .with_message(Message::user(self.mark(&fork)));
        let in_other = event("o1").with_message(Message::user(self.mark(&other)));
        vec![
            Step::Create(main.clone(), self.mark(&session)),
            Step::Append(main.clone(), first.into()),
            Step::Append(main.clone(), erasable.into()),
            Step::Append(main.clone(), replaced.into()),
            Step::Append(main.clone(), hidden.into()),
            Step::Fork(main.clone(), fork_key.clone()),
            Step::Append(fork_key, own.into()),
            Step::Rewind(main.clone(), 3),
            Step::Label(main.clone(), self.name(&session)),
            Step::Enqueue(main.clone(), self.name(&session), self.mark(&session), false),
            Step::Enqueue(main.clone(), self.name(&session), "taken".to_owned(), true),
            Step::Scope(user.to_owned(), self.name(&whole), self.mark(&whole)),
            Step::Create(other_key.clone(), self.mark(&other)),
            Step::Append(other_key, in_other.into()),
            Step::Spend(main.clone(), user.trim_start_matches("user").to_owned()),
        ]
    }
}

/// An operation that leaves content.
enum Step {
    Create(SessionKey, String),
    Append(SessionKey, Box<stepfold_session_scopes::Event>),
    Fork(SessionKey, SessionKey),
    Rewind(SessionKey, u64),
    Label(SessionKey, String),
    /// With its key and its text, and whether it is taken again.
    Enqueue(SessionKey, String, String, bool),
    Scope(String, String, String),
    Spend(SessionKey, String),
}

type Planted<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

trait Planter {
    fn plant(&self, steps: Vec<Step>) -> Planted<'_>;
}

impl<S: SessionStore> Planter for S {
    fn plant(&self, steps: Vec<Step>) -> Planted<'_> {
        Box::pin(async move {
            for step in steps {
                make(self, step).await.unwrap();
            }
        })
    }
}

async fn make(store: &impl SessionStore, step: Step) -> Result<(), SessionError> {
    match step {
        Step::Create(key, marker) => {
            let request = CreateSession::with_key(key, &schema(), at(0));
            store.create(request.values(json!({"first": marker, "list": [marker]}))?).await.map(drop)
        }
        Step::Append(key, event) => {
            store.append(AppendEvent::new(key, Expected::Any, *event, &schema())).await.map(drop)
        }
        Step::Fork(from, key) => store.fork(ForkSession::new(from, at(2)).with_id(key.id)).await.map(drop),
        Step::Rewind(key, to) => {
            let (id, invocation) = ("back".parse()?, "i".parse()?);
            let request =
                RewindSession::new(key, Expected::Any, to, id, invocation, Author::new("user")?, at(3));
            store.rewind(request).await.map(drop)
        }
        Step::Label(key, label) => {
            store.set_label(LabelVersion::new(key, Label::new(label)?, 1)).await.map(drop)
        }
        Step::Enqueue(key, name, text, is_taken) => {
            let (named, body) = (IdempotencyKey::new(name)?, json!({ "text": text }));
            let request = EnqueueInput::new(key.clone(), InboxKind::Message, named, body, at(4));
            let position = store.enqueue(request).await?.position;
            if is_taken {
                store.dequeue(DequeueInput::new(key, [position])).await?;
            }
            Ok(())
        }
        Step::Scope(user, name, text) => {
            let delta = [schema().schema().write("user:list", json!([text])).unwrap()].into_iter().collect();
            let request = WriteScope::new(ScopeKey::user("app", user)?, delta, &schema());
            store.write_scope(request.once(IdempotencyKey::new(name)?)).await.map(drop)
        }
        Step::Spend(key, number) => {
            let budget = BudgetId::new(format!("user {number} day"))?;
            let id = ReservationId::new(format!("{key}/1"))?;
            let request = ReserveSpend::new(id, key, "model", SpendAmounts::new(1, 1, None), at(5));
            store.reserve(request.with([BudgetAmount::new(budget, 1, 1_000)])).await.map(drop)
        }
    }
}

/// The markers in the bytes of all files of a folder and of those inside it.
pub(crate) fn markers_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            markers_in(&path, found);
            continue;
        }
        // A file may go while it is read, as those of a database do.
        let Ok(bytes) = fs::read(&path) else { continue };
        let begin = BEGIN.as_bytes();
        for place in (0..bytes.len().saturating_sub(begin.len() + 10))
            .filter(|place| bytes[*place..].starts_with(begin))
        {
            let end = place + begin.len() + 10;
            if bytes[place + begin.len()..end].iter().all(u8::is_ascii_digit) {
                found.insert(format!("{}>", String::from_utf8_lossy(&bytes[place..end])));
            }
        }
    }
}

fn check_bytes(folder: &Path, garden: &Garden, what: &str) {
    let mut found = BTreeSet::new();
    markers_in(folder, &mut found);
    let (gone, left) = garden.expected();
    assert!(gone.len() > 10 && left.len() > 20, "{} and {} markers", gone.len(), left.len());
    let of = |markers: Vec<&str>| -> Vec<_> {
        let is_one = |(marker, _): &&(String, Subject)| markers.contains(&marker.as_str());
        garden.planted.iter().filter(is_one).collect()
    };
    let there: Vec<&str> = gone.iter().copied().filter(|marker| found.contains(*marker)).collect();
    assert!(there.is_empty(), "{what}: {} erased ones are left: {:?}", there.len(), of(there));
    let lost: Vec<&str> = left.iter().copied().filter(|marker| !found.contains(*marker)).collect();
    assert!(lost.is_empty(), "{what}: {} others are lost: {:?}", lost.len(), of(lost));
}

async fn check_whole(store: &impl SessionStore) {
    let report = store.verify(VerifySessions::all()).await.unwrap();
    assert_eq!(report.faults, []);
}

#[tokio::test]
async fn no_byte_of_erased_content_is_in_the_files_of_sqlite() {
    for seed in 1..4 {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
        let mut garden = Garden::new(seed);
        for request in garden.plant(Some(&store)).await {
            store.erase(request).await.unwrap();
        }
        check_whole(&store).await;
        let mut found = BTreeSet::new();
        markers_in(folder.path(), &mut found);
        assert!(garden.expected().0.iter().any(|marker| found.contains(*marker)), "the log has none of them");
        store.vacuum(VacuumStore::new()).await.unwrap();
        check_bytes(folder.path(), &garden, "open");
        // Writing continues, and the closed file is complete without a log.
        let more = SessionKey::new("app", "more", "s").unwrap();
        make(&store, Step::Create(more.clone(), "text".to_owned())).await.unwrap();
        drop(store);
        check_bytes(folder.path(), &garden, "closed");
        let store = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
        assert_eq!(crate::scenario::get(&store, &more).await.version, 0);
        check_whole(&store).await;
    }
}

/// The texts of all that can be read of a user.
async fn read_all(store: &AnyStore, user: &str) -> Result<String, SessionError> {
    let mut texts = format!("{:?}", store.read_scope(ScopeKey::user("app", user)?).await?);
    for session in store.list(ListSessions::new("app", user)?).await?.sessions {
        let get = GetSession::new(session.key.clone()).events(EventRange::All);
        texts += &store.get(get).await?.to_json().to_string();
        texts += &store.get(GetSession::new(session.key.clone()).at_version(0)).await?.to_json().to_string();
        for entry in store.inbox(ReadInbox::new(session.key)).await? {
            texts += &entry.body.to_string();
        }
    }
    Ok(texts)
}

/// A store with a ring has no content in its files, whether or not it is open, and a backup from before the erasure of a user
/// cannot be opened with the ring of after it. The number of markers.
async fn check_sealed(database: &Database, seed: u64) -> usize {
    let (ring, dumped) = (memory_ring(), tempfile::tempdir().unwrap());
    let store = database.sealed(&ring).await;
    let mut garden = Garden::new(seed);
    let requests = garden.plant(Some(&store)).await;
    let backup = database.backup(dumped.path()).await;
    if let Database::Postgres(..) = database {
        // The planner's statistics sample the content too, and the checkpoint writes the server's memory to the files.
        database.run("ANALYZE").await;
        database.run("CHECKPOINT").await;
    }
    let content = garden.planted.iter().filter(|(marker, _)| !garden.names.contains(marker));
    let content: Vec<&(String, Subject)> = content.collect();
    for folder in [&*database.folder(), dumped.path()] {
        let mut found = BTreeSet::new();
        markers_in(folder, &mut found);
        let names = garden.names.iter().filter(|name| found.contains(*name)).count();
        assert!(names > 100, "only {names} names are found");
        let open_ones: Vec<_> = content.iter().filter(|(marker, _)| found.contains(marker)).collect();
        assert!(open_ones.is_empty(), "{open_ones:?}");
    }

    let is_of_user = |request: &EraseData| matches!(request.target, EraseTarget::User { .. });
    for request in requests.into_iter().filter(is_of_user) {
        store.erase(request).await.unwrap();
    }
    check_whole(&store).await;
    drop(store);
    let backup = open_at(&backup, Some(ring), false).await.unwrap();
    assert!(check_backup(&garden, &backup).await > 0, "no user is erased");
    content.len()
}

/// The content of erased users cannot be opened in a backup, that of the others can.
/// The number of these users.
async fn check_backup(garden: &Garden, backup: &AnyStore) -> usize {
    check_whole(backup).await;
    let mut erased = 0;
    for number in 0..USERS {
        let user = format!("user{number}");
        let (read, of_user) = (read_all(backup, &user).await, Subject::User(user.clone()));
        if garden.erased.contains(&of_user) {
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Sealed, "{user}");
            erased += 1;
            continue;
        }
        let read = read.unwrap();
        let lost = garden
            .planted
            .iter()
            .find(|(marker, of)| *of == of_user && !garden.names.contains(marker) && !read.contains(marker));
        assert!(lost.is_none(), "{lost:?}");
    }
    erased
}

#[tokio::test]
async fn no_byte_of_content_is_in_the_files_of_a_sealed_store() {
    let mut planted = [0, 0];
    for seed in 1..=2 {
        for (database, planted) in Database::all().await.iter().zip(&mut planted) {
            *planted += Box::pin(check_sealed(database, seed)).await;
        }
    }
    assert!(planted.iter().all(|planted| *planted == 0 || *planted >= 1_000), "{planted:?} markers");
}

#[tokio::test]
async fn no_byte_of_erased_content_is_in_the_files_of_postgres() {
    let Some(server) = server() else { return };
    let url = server.database("erasure").await;
    let store = open(&url).await;
    let mut garden = Garden::new(9);
    let requests = garden.plant(Some(&store)).await;
    // The planner's statistics sample the content too.
    server.run("erasure", "ANALYZE").await;
    for request in requests {
        store.erase(request).await.unwrap();
    }
    check_whole(&store).await;
    store.vacuum(VacuumStore::new()).await.unwrap();
    check_bytes(&server.files_of_tables(), &garden, "PostgreSQL");
    check_whole(&store).await;
}

/// A reader that does not end, of another program, is in the way of a vacuum for as long as a lock would be, and no longer.
#[tokio::test]
async fn a_vacuum_does_not_wait_for_a_reader_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("read.db");
    let store = SqliteOptions::new(&path).busy_timeout(Duration::from_secs(1)).open().unwrap();
    create(&store, &key("s")).await;
    let reader = rusqlite::Connection::open(&path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM stepfold_events").unwrap();
    let vacuumed = tokio::time::timeout(Duration::from_secs(60), store.vacuum(VacuumStore::new())).await;
    let error = vacuumed.expect("it ends").unwrap_err();
    assert!(error.to_string().contains("another connection reads it"), "{error}");
    // Nothing else has stopped, and it succeeds once the reader is gone.
    append(&store, &key("s"), 0, writing("e1", &[])).await.unwrap();
    reader.execute_batch("COMMIT").unwrap();
    store.vacuum(VacuumStore::new()).await.unwrap();
}

/// Erases and vacuums until it is killed.
pub(crate) async fn erase_for_ever(seed: &str, address: &str) {
    let store = open(address).await;
    let requests = Garden::new(seed.parse().unwrap()).plant(None).await;
    println!("begins");
    loop {
        for request in &requests {
            again(&store, request.clone()).await;
        }
        store.vacuum(VacuumStore::new()).await.unwrap();
    }
}

/// Erases what may be erased already.
async fn again(store: &impl SessionStore, request: EraseData) {
    match store.erase(request).await {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
    }
}

/// Kills a process that erases. With a database, which then has a ring, backups from before are checked as well.
async fn killed_while_it_erases(
    (address, sealed): (&str, Option<&Database>),
    folder: &Path,
    seeds: std::ops::Range<u64>,
) {
    let mut users = 0;
    let mut luck = fastrand::Rng::with_seed(seeds.start);
    for seed in seeds {
        let store = open(address).await;
        let mut garden = Garden::new(seed);
        let requests = garden.plant(Some(&store)).await;
        let copied = tempfile::tempdir().unwrap();
        let backup = match sealed {
            Some(database) => Some((database, database.backup(copied.path()).await)),
            None => None,
        };
        let mut child = start("erase", address, usize::try_from(seed).unwrap());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("begins")), "the child did not begin");
        // In the first erasure, between two, in the vacuum, after it.
        // tidy: allow sleep, because the child is to be killed at any moment, and tells of none
        std::thread::sleep(std::time::Duration::from_micros(luck.u64(..60_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        check_whole(&store).await;
        for request in requests {
            again(&store, request).await;
        }
        store.vacuum(VacuumStore::new()).await.unwrap();
        check_whole(&store).await;
        if let (Some((database, backup)), Some((_, ring))) = (&backup, address.split_once('|')) {
            users += check_backup(&garden, &open(&format!("{backup}|{ring}")).await).await;
            database.forget(backup).await;
            // No content is in the files, so the names are what is there, or is gone.
            garden.planted.retain(|(marker, _)| garden.names.contains(marker));
        }
        check_bytes(folder, &garden, &format!("seed {seed}"));
        // The next seed has the same keys.
        for number in 0..USERS {
            let (app, user) = ("app".parse().unwrap(), format!("user{number}").parse().unwrap());
            let id = ErasureId::new(format!("all {seed} {number}")).unwrap();
            let target = EraseTarget::User { app, user };
            again(&store, EraseData::new(id, target, at(60), Author::new("admin").unwrap(), "")).await;
        }
    }
    assert!(sealed.is_none() || users > 0, "no user is erased");
}

#[tokio::test]
async fn sigkill_leaves_no_byte_of_erased_content_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    killed_while_it_erases((&address_in(folder.path()), None), folder.path(), 100..112).await;
}

#[tokio::test]
async fn sigkill_leaves_no_byte_of_erased_content_over_postgres() {
    let Some(server) = server() else { return };
    let address = server.database("killed_erasure").await;
    killed_while_it_erases((&address, None), &server.files_of_tables(), 200..204).await;
}

/// What was erased cannot be read in a backup of before either, at whatever moment the erasure was killed.
#[tokio::test]
async fn sigkill_leaves_no_key_of_an_erased_user() {
    for database in Database::all().await {
        let ring = tempfile::tempdir().unwrap();
        let address = format!("{}|{}", database.address(), ring.path().join("ring.json").display());
        let (folder, seeds) = match &database {
            Database::Sqlite(folder) => (folder.path().to_owned(), 300..308),
            Database::Postgres(server, _) => (server.files_of_tables(), 400..403),
        };
        Box::pin(killed_while_it_erases((&address, Some(&database)), &folder, seeds)).await;
    }
}

/// An item that was appended to a list, and hidden by a rewind before retention, goes with the event that appended it, although
/// other items of the same list stay.
#[tokio::test]
async fn pruned_items_of_a_list_that_lives_on_are_in_no_byte_of_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("sessions.db")).unwrap();
    let key = crate::scenario::key("s");
    let [first, hidden] = [1, 2].map(|number| format!("{BEGIN}{number:010}>"));
    make(&store, Step::Create(key.clone(), first.clone())).await.unwrap();
    let appended = writing("e1", &[("list", json!([hidden]))]);
    make(&store, Step::Append(key.clone(), appended.into())).await.unwrap();
    make(&store, Step::Rewind(key.clone(), 0)).await.unwrap();
    store.prune(PruneSession::new(key.clone(), PruneBound::Version(2))).await.unwrap();
    store.vacuum(VacuumStore::new()).await.unwrap();
    let mut found = BTreeSet::new();
    markers_in(folder.path(), &mut found);
    assert_eq!(found, BTreeSet::from([first.clone()]));
    assert_eq!(crate::scenario::get(&store, &key).await.to_json()["list"], json!([first]));
    check_whole(&store).await;
}

/// Events that an origin has added after it was forked go with retention, although the fork can go back further; and items that
/// neither of them has as values any more go with them.
async fn check_forked(address: &str, folder: &Path) {
    let store = open(address).await;
    let (key, fork) = (crate::scenario::key("s"), crate::scenario::key("fork"));
    let marker = |number: u64| format!("{BEGIN}{:010}>", 7_070_707_000 + number);
    make(&store, Step::Create(key.clone(), marker(0))).await.unwrap();
    for number in 1..=4 {
        let writes = [("free", json!(marker(10 + number))), ("list", json!([marker(20 + number)]))];
        let event = match number {
            // The list ends here, so that its items are in no later value.
            3 => event(3).with_delta([schema().schema().removal("list").unwrap()].into_iter().collect()),
            _ => writing(number, &writes),
        };
        let event = event.with_message(Message::user(marker(30 + number)));
        make(&store, Step::Append(key.clone(), event.into())).await.unwrap();
    }
    store.fork(ForkSession::new(key.clone(), at(2)).at_version(1).with_id(fork.id.clone())).await.unwrap();
    let check = async |left: &[u64]| {
        store.vacuum(VacuumStore::new()).await.unwrap();
        let mut found = BTreeSet::new();
        markers_in(folder, &mut found);
        let found: Vec<u64> = (0..40).filter(|number| found.contains(&marker(*number))).collect();
        assert_eq!(found, left);
        check_whole(&store).await;
    };
    let prune = async |key: &SessionKey, before: u64| {
        store.prune(PruneSession::new(key.clone(), PruneBound::Version(before))).await.unwrap();
    };
    prune(&key, 4).await;
    // The fork has the first event and the values of then, the origin those of the fourth.
    check(&[0, 11, 14, 21, 24, 31]).await;
    let own = writing("own", &[("free", json!("another"))]);
    make(&store, Step::Append(fork.clone(), own.into())).await.unwrap();
    prune(&fork, 2).await;
    check(&[0, 14, 21, 24]).await;
    assert_eq!(crate::scenario::get(&store, &fork).await.to_json()["list"], json!([marker(0), marker(21)]));
    assert_eq!(crate::scenario::get(&store, &key).await.to_json()["list"], json!([marker(24)]));
}

#[tokio::test]
async fn pruned_events_that_a_fork_does_not_have_are_in_no_byte_of_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    check_forked(&address_in(folder.path()), folder.path()).await;
}

#[tokio::test]
async fn pruned_events_that_a_fork_does_not_have_are_in_no_byte_of_postgres() {
    let Some(server) = server() else { return };
    let address = server.database("forked_and_pruned").await;
    check_forked(&address, &server.files_of_tables()).await;
}

/// A session of before the salts has no salted digests, and can be erased too.
#[tokio::test]
async fn events_without_a_salt_are_erased_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let golden =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sqlite-v1.sql")).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch(&golden).unwrap();
    let store = SqliteStore::open(&path).unwrap();
    let key = crate::scenario::key("golden");
    let before = crate::scenario::get(&store, &key).await;
    let target = EraseTarget::Events { key: key.clone(), versions: (1..=2).collect() };
    let id = ErasureId::new("old").unwrap();
    // As long as the claim of then has not expired, no event can be erased.
    let late = at(3_600);
    let request = EraseData::new(id, target, late, Author::new("admin").unwrap(), "old");
    assert_eq!(store.erase(request).await.unwrap().events, 2);
    let after = crate::scenario::get(&store, &key).await;
    assert_eq!(after.head, before.head);
    assert_eq!(after.transcript().to_string(), "user:      [erased]\n");
    let report = store.verify(VerifySessions::all()).await.unwrap();
    // Its fork shares the first one.
    assert_eq!((report.faults, report.erased), (Vec::new(), 3));
}

/// The rest after an erasure is protected against damage, as content is.
#[tokio::test]
async fn damage_to_what_an_erasure_has_left_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteStore::open(&path).unwrap();
    let key = crate::scenario::key("s");
    crate::scenario::create(&store, &key).await;
    crate::scenario::append(&store, &key, 0, event("e1").with_message(Message::user("text"))).await.unwrap();
    let target = EraseTarget::Events { key: key.clone(), versions: [1].into() };
    let (id, admin) = (ErasureId::new("one").unwrap(), Author::new("admin").unwrap());
    store.erase(EraseData::new(id, target, at(5), admin, "why")).await.unwrap();
    let report = store.verify(VerifySessions::all()).await.unwrap();
    assert_eq!((report.faults.len(), report.erased), (0, 1));
    let erasure = &report.erasures[0];
    assert_eq!((&erasure.key, erasure.version, &*erasure.erasure.reason), (&key, 1, "why"));
    drop(store);
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute("UPDATE stepfold_events SET body = replace(body, '\"why\"', '\"who\"')", []).unwrap();
    drop(file);
    let store = SqliteStore::open(&path).unwrap();
    let report = store.verify(VerifySessions::all()).await.unwrap();
    let place = FaultPlace::Versions(key.clone(), 1..=1);
    assert!(report.faults.iter().any(|fault| fault.place == place), "{:?}", report.faults);
    assert!(store.get(stepfold_session_scopes::GetSession::new(key)).await.is_err());
}

/// The content of a store in memory after the same erasures, by its debug text.
#[tokio::test]
async fn a_memory_store_forgets_all_of_a_user() {
    let store = MemoryStore::new();
    let mut garden = Garden::new(31);
    for request in garden.plant(Some(&store)).await {
        store.erase(request).await.unwrap();
    }
    let text = format!("{store:?}");
    let (gone, left) = garden.expected();
    let there: Vec<_> = gone.iter().filter(|marker| text.contains(**marker)).collect();
    assert!(there.is_empty(), "{there:?}");
    assert!(left.iter().filter(|marker| text.contains(**marker)).count() * 10 > left.len() * 9);
}
