//! Laws that hold in each store alike: each is stated once, and tested over memory, SQLite and PostgreSQL.

use serde_json::{Value, json};
use stepfold_session_scopes::{
    Author, CommittedEvent, DeleteSession, EventId, EventRange, ForkSession, GetSession, IdempotencyKey,
    InvocationId, ListForks, MemoryStore, OutlineSessions, PostgresStore, PruneBound, PruneSession,
    RewindSession, Scope, ScopeKey, ScopeValues, Session, SessionStore, SqliteStore, WriteScope,
};
use stepfold_state_core::state::Delta;

use crate::scenario::{append, at, create, get, key, schema, writing};
use crate::server::server;

/// Runs a law over the three stores.
macro_rules! over_all_stores {
    ($name:ident, $law:ident) => {
        #[tokio::test]
        async fn $name() {
            $law(MemoryStore::new()).await;
            let folder = tempfile::tempdir().unwrap();
            $law(SqliteStore::open(folder.path().join("sessions.db")).unwrap()).await;
            let Some(server) = server() else { return };
            let address = server.database(concat!("laws_", stringify!($law))).await;
            $law(PostgresStore::open(address).await.unwrap()).await;
        }
    };
}

over_all_stores!(deleted_keys_come_in_order, keys_in_order);
over_all_stores!(outlines_are_what_single_reads_are, outlines);
over_all_stores!(erasing_a_scope_is_a_write_of_one_that_was_written, erased_versions);
over_all_stores!(a_write_that_changes_nothing_is_no_change_of_its_key, no_change);

async fn keys_in_order(store: impl SessionStore) {
    let (first, other) = (key("first"), key("other"));
    create(&store, &first).await;
    create(&store, &other).await;
    let names = ["b", "z", "a", "list", "\u{e4}", "B", "n", "user:b", "user:Z", "user:a"];
    for (version, name) in names.into_iter().enumerate() {
        let value = if name == "list" { json!([1]) } else { json!(1) };
        append(&store, &first, version as u64, writing(version, &[(name, value)])).await.unwrap();
    }
    let mut request = DeleteSession::new(first);
    request.user_state = true;
    let deleted = store.delete(request).await.unwrap();
    assert_eq!(deleted.session_keys, ["B", "a", "b", "list", "n", "z", "\u{e4}"]);
    assert_eq!(deleted.user_keys, ["user:Z", "user:a", "user:b"]);
}

/// The version of the user's scope, as another session of the user reads it.
async fn user_version(store: &impl SessionStore) -> u64 {
    get(store, &key("other")).await.scopes.user
}

async fn erase(store: &impl SessionStore, id: &str) {
    create(store, &key(id)).await;
    let mut request = DeleteSession::new(key(id));
    request.user_state = true;
    store.delete(request).await.unwrap();
}

/// The version of a user's scope counts its writes. Erasing it is one, if it was written before and another session of the
/// user can have cached its values.
async fn erased_versions(store: impl SessionStore) {
    create(&store, &key("other")).await;
    assert_eq!(user_version(&store).await, 0);
    erase(&store, "a").await;
    assert_eq!(user_version(&store).await, 0, "nothing was ever written");
    // A key without a write counts as none.
    let user = ScopeKey::user("app", "alice").unwrap();
    let nothing = WriteScope::new(user.clone(), Delta::default(), &schema());
    store.write_scope(nothing.once(IdempotencyKey::new("once").unwrap())).await.unwrap();
    assert_eq!(user_version(&store).await, 0);
    erase(&store, "b").await;
    assert_eq!(user_version(&store).await, 0);
    append(&store, &key("other"), 0, writing("e1", &[("user:name", json!("Ada"))])).await.unwrap();
    assert_eq!(user_version(&store).await, 1);
    erase(&store, "c").await;
    assert_eq!(user_version(&store).await, 2);
    erase(&store, "d").await;
    assert_eq!(user_version(&store).await, 3);
    append(&store, &key("other"), 1, writing("e2", &[("user:name", json!("Ada"))])).await.unwrap();
    assert_eq!(user_version(&store).await, 4);
    // Without a session of the user no reader knows a version, and the scope begins again.
    let mut last = DeleteSession::new(key("other"));
    last.user_state = true;
    store.delete(last).await.unwrap();
    create(&store, &key("other")).await;
    assert_eq!(user_version(&store).await, 0);
}

/// The keys that a reader is given who has seen the session before.
async fn changed(store: &impl SessionStore, write: (&str, Value), version: u64) -> (u64, Vec<String>) {
    let seen = get(store, &key("s")).await.seen();
    let name = write.0.to_owned();
    append(store, &key("s"), version, writing(version, &[write])).await.unwrap();
    let session = store.get(GetSession::new(key("s")).changed_since(seen)).await.unwrap();
    let count = |scope| match scope {
        Scope::App => session.scopes.app - seen.scopes.app,
        Scope::User => session.scopes.user - seen.scopes.user,
        Scope::Session | Scope::Temp => session.version - seen.version,
    };
    let values = session.values.as_ref().unwrap();
    let keys = [&values.app, &values.user, &values.session].into_iter().flat_map(ScopeValues::iter);
    (count(Scope::of(&name)), keys.map(|(key, _)| key.to_owned()).collect())
}

/// An event counts as a write of each scope that it writes to. A key of a shared scope has changed only if its value has:
/// `union` with what is there, nothing to append, and the removal of a missing key change none.
async fn no_change(store: impl SessionStore) {
    create(&store, &key("s")).await;
    let none = Vec::<String>::new();
    assert_eq!(changed(&store, ("app:union", json!([1, 2])), 0).await, (1, vec!["app:union".to_owned()]));
    assert_eq!(changed(&store, ("app:union", json!([2, 1])), 1).await, (1, none.clone()));
    assert_eq!(changed(&store, ("app:union", json!([2, 3])), 2).await, (1, vec!["app:union".to_owned()]));
    assert_eq!(changed(&store, ("user:list", json!([1])), 3).await, (1, vec!["user:list".to_owned()]));
    assert_eq!(changed(&store, ("user:list", json!([])), 4).await, (1, none));
    // The same number again is a new value.
    assert_eq!(changed(&store, ("app:n", json!(0)), 5).await, (1, vec!["app:n".to_owned()]));
    assert_eq!(changed(&store, ("app:n", json!(0)), 6).await, (1, vec!["app:n".to_owned()]));
    // An event is a change of its session, whatever it writes.
    assert_eq!(changed(&store, ("n", json!(0)), 7).await, (1, vec!["n".to_owned()]));
}

/// The sessions of an outline, as text: versions, what is visible, events and forks.
fn outline_text(session: &Session, first: &[CommittedEvent], forks: usize) -> String {
    let events = |events: &[CommittedEvent]| {
        let one = |event: &CommittedEvent| format!("{}:{}", event.version, event.event.id);
        events.iter().map(one).collect::<Vec<_>>().join(" ")
    };
    let Session { key, version, oldest, visible, inbox, scopes, life, head, .. } = session;
    format!(
        "{key} {version} {oldest} {visible:?} {inbox} {scopes:?} {life} {head:?} [{}] [{}] {forks}",
        events(&session.events),
        events(first)
    )
}

/// Sessions at a glance are what each is that is read by itself: forks, rewound and pruned ones, those without events and
/// those that are not there; in the requested order, also twice.
async fn outlines(store: impl SessionStore) {
    create(&store, &key("empty")).await;
    create(&store, &key("long")).await;
    create(&store, &key("pruned")).await;
    for version in 0..9 {
        let event = writing(version, &[("n", json!(1)), ("user:list", json!([version]))]);
        append(&store, &key("long"), version, event).await.unwrap();
        append(&store, &key("pruned"), version, writing(version, &[])).await.unwrap();
    }
    store.prune(PruneSession::new(key("pruned"), PruneBound::Version(4))).await.unwrap();
    let fork = ForkSession::new(key("long"), at(3)).at_version(5).with_id(key("fork").id);
    store.fork(fork).await.unwrap();
    append(&store, &key("fork"), 5, writing("f1", &[])).await.unwrap();
    let id = |id: &str| EventId::new(id).unwrap();
    let rewind = RewindSession::new(
        key("long"),
        9,
        2,
        id("back"),
        InvocationId::new("i").unwrap(),
        Author::new("user").unwrap(),
        at(4),
    );
    store.rewind(rewind).await.unwrap();
    append(&store, &key("long"), 10, writing("after", &[])).await.unwrap();

    let ids = ["fork", "missing", "long", "pruned", "empty", "long"];
    for (first, newest) in [(0, 1), (3, 1), (2, 16), (20, 3), (1, 0)] {
        let request = OutlineSessions::new(key("s").app, key("s").user, ids.map(|id| key(id).id));
        let found = store.outlines(request.clone().first(first).newest(newest)).await.unwrap();
        assert_eq!(found.len(), ids.len());
        for (name, outline) in ids.into_iter().zip(found) {
            let get = |events| GetSession::new(key(name)).events(events).without_state();
            let Some(outline) = outline else {
                assert_eq!(name, "missing");
                continue;
            };
            let session = store.get(get(EventRange::Last(newest))).await.unwrap();
            let page = store.get(get(EventRange::Page { after: 0, limit: first })).await.unwrap().events;
            let forks = store.forks(ListForks::new(key(name))).await.unwrap().len();
            assert_eq!(
                outline_text(&outline.session, &outline.first, outline.forks.unwrap()),
                outline_text(&session, &page, forks)
            );
            assert!(outline.session.values.is_none());
        }
        let none = store.outlines(request.first(first).newest(newest.max(1)).max_bytes(10)).await.unwrap();
        let read = none.iter().flatten().map(|outline| outline.session.key.id.as_str());
        assert_eq!(read.collect::<Vec<_>>(), ["empty"], "the events of the others do not fit");
    }
}
