//! The file of a SQLite store: when one is made, what a closed one holds, what a killed process leaves.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::json;
use stepfold_session_scopes::{
    AppendEvent, CreateSession, DeleteSession, Durability, ErrorKind, GetSession, ListSessions, SessionError,
    SessionStore, SqliteOptions, SqliteStore,
};

use crate::children::start;
use crate::scenario::{address_in, append, at, create, event, get, key, schema, writing};

/// The names and the bytes of all files of a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(Result::unwrap);
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

fn read_only(path: &Path) -> Result<SqliteStore, SessionError> {
    SqliteOptions::new(path).read_only().open()
}

#[test]
fn opening_for_reading_makes_no_file_and_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("sessions.db"), folder.path().join("none/sessions.db")] {
        for open in [SqliteOptions::read_only, SqliteOptions::must_exist] {
            let error = open(SqliteOptions::new(&path)).open().unwrap_err();
            assert!(matches!(error, SessionError::NoStore { .. }), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains("sessions.db"), "{error}");
        }
    }
    assert_eq!(files(folder.path()), BTreeMap::new());
}

#[tokio::test]
async fn a_closed_store_is_read_without_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions #1?.db");
    let store = SqliteStore::open(&path).unwrap();
    create(&store, &key("s")).await;
    append(&store, &key("s"), 0, writing("e", &[("n", json!(1))])).await.unwrap();
    drop(store);
    let before = files(folder.path());
    assert_eq!(before.keys().collect::<Vec<_>>(), ["sessions #1?.db"]);
    let store = read_only(&path).unwrap();
    assert_eq!(get(&store, &key("s")).await.get("n").unwrap(), json!(1));
    assert_eq!(store.list(ListSessions::new("app", "alice").unwrap()).await.unwrap().sessions.len(), 1);
    assert_eq!(files(folder.path()), before);
    let errors = [
        append(&store, &key("s"), 1, event("e2")).await.unwrap_err(),
        store.create(CreateSession::with_key(key("t"), &schema(), at(0))).await.unwrap_err(),
        store.delete(DeleteSession::new(key("s"))).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, SessionError::ReadOnly), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    drop(store);
    assert_eq!(files(folder.path()), before);
}

/// A reader sees the writes of another process, whether it opened the file before or after.
#[tokio::test]
async fn a_reader_sees_what_a_writer_commits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    drop(SqliteStore::open(&path).unwrap());
    let early = read_only(&path).unwrap();
    let writer = SqliteStore::open(&path).unwrap();
    // The writer has the file open, and has not written yet.
    let between = read_only(&path).unwrap();
    assert!(between.list(ListSessions::new("app", "alice").unwrap()).await.unwrap().sessions.is_empty());
    create(&writer, &key("s")).await;
    let late = read_only(&path).unwrap();
    append(&writer, &key("s"), 0, event("e")).await.unwrap();
    let readers = [&early, &between, &late];
    for reader in readers {
        assert_eq!(get(reader, &key("s")).await.version, 1);
    }
    drop(writer);
    for reader in readers {
        assert_eq!(get(reader, &key("s")).await.version, 1);
    }
}

/// A copy by another tool is in WAL mode, but without the log: SQLite can read it only as an immutable file.
#[tokio::test]
async fn a_reader_of_a_file_without_its_log_sees_who_opens_it_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    drop(SqliteStore::open(&path).unwrap());
    let tool = rusqlite::Connection::open(&path).unwrap();
    tool.pragma_update(None, "journal_mode", "wal").unwrap();
    drop(tool);
    let reader = read_only(&path).unwrap();
    assert!(reader.list(ListSessions::new("app", "alice").unwrap()).await.unwrap().sessions.is_empty());
    assert_eq!(files(folder.path()).keys().collect::<Vec<_>>(), ["sessions.db"]);
    let writer = SqliteStore::open(&path).unwrap();
    create(&writer, &key("s")).await;
    assert_eq!(get(&reader, &key("s")).await.version, 0);
    append(&writer, &key("s"), 0, event("e")).await.unwrap();
    assert_eq!(get(&reader, &key("s")).await.version, 1);
}

#[test]
fn a_database_that_is_not_ours_is_refused_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.db");
    let sqlite = |sql: &str| {
        let _ = fs::remove_file(&path);
        rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    };
    let check = |open: &dyn Fn() -> Result<SqliteStore, SessionError>| {
        let before = files(folder.path());
        let error = open().unwrap_err();
        assert_eq!(files(folder.path()), before, "{error:?}");
        error
    };
    for sql in ["CREATE TABLE notes (text TEXT)", "PRAGMA journal_mode = wal; CREATE TABLE notes (text TEXT)"]
    {
        sqlite(sql);
        let error = check(&|| read_only(&path));
        assert!(matches!(error, SessionError::NoStore { .. }), "{error:?}");
        check(&|| SqliteOptions::new(&path).must_exist().open());
    }
    sqlite("CREATE TABLE stepfold_events (something TEXT)");
    for open in [&(|| read_only(&path)) as &dyn Fn() -> _, &|| SqliteStore::open(&path)] {
        assert!(matches!(check(open), SessionError::ForeignTable { .. }));
    }
    fs::remove_file(&path).unwrap();
    drop(SqliteStore::open(&path).unwrap());
    rusqlite::Connection::open(&path).unwrap().execute_batch("UPDATE stepfold_meta SET format = 99").unwrap();
    for open in [&(|| read_only(&path)) as &dyn Fn() -> _, &|| SqliteStore::open(&path)] {
        assert!(matches!(check(open), SessionError::NewerFormat { found: 99, .. }));
    }
    fs::write(&path, "a text, and no database").unwrap();
    for open in [&(|| read_only(&path)) as &dyn Fn() -> _, &|| SqliteStore::open(&path)] {
        assert_eq!(check(open).kind(), ErrorKind::Broken);
    }
}

#[test]
fn errors_of_files_name_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().display().to_string();
    let error = SqliteStore::open(folder.path().join("none/s.db")).unwrap_err();
    let shown = error.to_string().replace(&here, "HERE");
    assert_eq!(shown, "the store could not create its file: missing folder HERE/none; create it first");
    let path = folder.path().join("s.db");
    fs::write(&path, "a text, and no database").unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    let shown = error.to_string().replace(&here, "HERE");
    assert_eq!(shown, "the store could not open its file: HERE/s.db is not an SQLite database");
    // What `main` prints.
    assert_eq!(format!("{error:?}"), error.to_string());
}

#[test]
fn an_empty_file_is_no_new_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    fs::write(&path, "").unwrap();
    for options in [SqliteOptions::new(&path), SqliteOptions::new(&path).read_only()] {
        let error = options.open().unwrap_err();
        assert!(matches!(error, SessionError::EmptyFile { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Broken);
    }
    assert_eq!(files(folder.path()), BTreeMap::from([("sessions.db".to_owned(), Vec::new())]));
}

/// `cp s.db` is a backup of a store that was closed, whatever number of threads and stores had it open.
#[tokio::test]
async fn a_closed_file_holds_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    for round in 0..8u64 {
        let stores: Vec<SqliteStore> = (0..3).map(|_| SqliteStore::open(&path).unwrap()).collect();
        if round == 0 {
            create(&stores[0], &key("s")).await;
        }
        append(&stores[usize::try_from(round).unwrap() % 3], &key("s"), round, event(round)).await.unwrap();
        for store in &stores {
            assert_eq!(get(store, &key("s")).await.version, round + 1);
        }
        drop(stores);
        assert_eq!(files(folder.path()).keys().collect::<Vec<_>>(), ["sessions.db"]);
        let copy = folder.path().join("copy.db");
        fs::copy(&path, &copy).unwrap();
        assert_eq!(get(&read_only(&copy).unwrap(), &key("s")).await.version, round + 1);
        fs::remove_file(copy).unwrap();
    }
}

/// Kills a process that has committed; the folder with what it left.
fn killed(address: &str, commits: usize) -> u64 {
    let mut child = start("append", address, 0);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let told = lines.by_ref().filter_map(|line| line.split_once("committed ")?.1.parse().ok()).nth(commits);
    child.kill().unwrap();
    child.wait().unwrap();
    told.unwrap()
}

#[tokio::test]
async fn a_killed_process_leaves_a_log_and_opening_the_file_without_it_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let address = address_in(folder.path());
    let path = Path::new(&address);
    create(&SqliteStore::open(path).unwrap(), &key(0)).await;
    // Early, and after the log was copied to the file some times.
    for commits in [0, 3, 2_500] {
        let told = killed(&address, commits);
        let log = folder.path().join("sessions.db-wal");
        let kept = files(folder.path());
        for damage in [&(|| fs::remove_file(&log).unwrap()) as &dyn Fn(), &|| fs::write(&log, "").unwrap()] {
            damage();
            let _ = fs::remove_file(folder.path().join("sessions.db-shm"));
            let before = files(folder.path());
            for options in [SqliteOptions::new(path), SqliteOptions::new(path).read_only()] {
                let error = options.open().unwrap_err();
                assert!(matches!(error, SessionError::LogMissing { .. }), "{commits}: {error:?}");
                assert_eq!(error.kind(), ErrorKind::Broken);
            }
            assert_eq!(files(folder.path()), before);
            for (name, bytes) in &kept {
                fs::write(folder.path().join(name), bytes).unwrap();
            }
        }
        let store = read_only(path).unwrap();
        assert!(get(&store, &key(0)).await.version >= told);
        drop(store);
        assert!(get(&SqliteStore::open(path).unwrap(), &key(0)).await.version >= told);
    }
}

/// A tool that opens the file after a crash, and closes it, has copied the log: nothing is missing then.
#[tokio::test]
async fn a_log_that_another_tool_has_copied_is_not_missed() {
    let folder = tempfile::tempdir().unwrap();
    let address = address_in(folder.path());
    create(&SqliteStore::open(&address).unwrap(), &key(0)).await;
    let told = killed(&address, 20);
    let connection = rusqlite::Connection::open(&address).unwrap();
    connection.query_row("SELECT COUNT(*) FROM stepfold_events", [], |_| Ok(())).unwrap();
    drop(connection);
    assert_eq!(files(folder.path()).keys().collect::<Vec<_>>(), ["sessions.db"]);
    let before = files(folder.path());
    let store = read_only(Path::new(&address)).unwrap();
    assert!(get(&store, &key(0)).await.version >= told);
    assert_eq!(files(folder.path()), before);
    drop(store);
    assert!(get(&SqliteStore::open(&address).unwrap(), &key(0)).await.version >= told);
}

/// A process is killed between the commit that says that the file needs its log and the one that takes that back, while
/// another has the file open: that one closes it last, and all is in the file.
#[tokio::test]
async fn a_process_killed_in_its_first_write_leaves_nothing_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    for writes in [false, true] {
        let store = SqliteStore::open(&path).unwrap();
        if writes {
            create(&store, &key("s")).await;
        }
        let killed = rusqlite::Connection::open(&path).unwrap();
        killed.execute("UPDATE stepfold_meta SET logged = 1", []).unwrap();
        killed.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
        drop(killed);
        drop(store);
        assert_eq!(files(folder.path()).keys().collect::<Vec<_>>(), ["sessions.db"]);
        drop(read_only(&path).unwrap());
    }
    assert_eq!(get(&SqliteStore::open(&path).unwrap(), &key("s")).await.version, 0);
}

#[tokio::test]
async fn what_is_left_without_the_log_can_be_opened_if_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let address = address_in(folder.path());
    create(&SqliteStore::open(&address).unwrap(), &key(0)).await;
    killed(&address, 5);
    fs::remove_file(folder.path().join("sessions.db-wal")).unwrap();
    let store = SqliteOptions::new(&address).accept_lost_log().open().unwrap();
    let version = get(&store, &key(0)).await.version;
    append(&store, &key(0), version, event("again")).await.unwrap();
    drop(store);
    assert_eq!(get(&SqliteStore::open(&address).unwrap(), &key(0)).await.version, version + 1);
}

/// There is no room, in the middle of a group of appends: each is told, may repeat it, and does so once there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_full_disk_gives_each_append_a_transient_error_and_the_store_continues() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sessions.db");
    let store = SqliteOptions::new(&path).max_bytes(1 << 20).open().unwrap();
    let large = |id: &str| writing(id, &[("large", json!("x".repeat(30_000)))]);
    for number in 0..64 {
        create(&store, &key(number)).await;
    }
    create(&store, &key("ballast")).await;
    let mut version = 0;
    let full = loop {
        match append(&store, &key("ballast"), version, large(&format!("e{version}"))).await {
            Ok(receipt) => version = receipt.version,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::Transient, "{full:?}");
    let all = || {
        (0..64).map(|number| {
            let (store, event) = (store.clone(), large("same"));
            tokio::spawn(
                async move { store.append(AppendEvent::new(key(number), 0, event, &schema())).await },
            )
        })
    };
    let answers: Vec<_> = futures_util::future::join_all(all()).await;
    let errors: Vec<SessionError> = answers.into_iter().filter_map(|answer| answer.unwrap().err()).collect();
    assert!(errors.len() > 32, "there was room");
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Transient, "{error:?}");
    }
    // Nothing is half there.
    assert_eq!(get(&store, &key("ballast")).await.version, version);
    // The same store continues as soon as there is room.
    store.delete(DeleteSession::new(key("ballast"))).await.unwrap();
    for number in 0..4 {
        let request = AppendEvent::new(key(number), 0, large("same"), &schema());
        assert_eq!(store.append(request).await.unwrap().version, 1);
    }
    drop(store);
    let store = SqliteStore::open(&path).unwrap();
    for number in 0..64 {
        let request = AppendEvent::new(key(number), 0, large("same"), &schema());
        assert_eq!(store.append(request).await.unwrap().version, 1);
        let session = store.get(GetSession::new(key(number))).await.unwrap();
        assert_eq!((session.version, session.events.len()), (1, 1));
    }
}

/// What a store would write to a file that has no name any more is lost: it writes nothing, and says so.
#[tokio::test]
async fn a_file_that_was_removed_or_replaced_takes_no_commits() {
    for durability in [Durability::Process, Durability::Full] {
        for is_replaced in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("sessions.db");
            let store = SqliteOptions::new(&path).durability(durability).open().unwrap();
            create(&store, &key("s")).await;
            append(&store, &key("s"), 0, event("e1")).await.unwrap();
            if is_replaced {
                fs::copy(&path, folder.path().join("copy.db")).unwrap();
                fs::rename(folder.path().join("copy.db"), &path).unwrap();
            } else {
                fs::remove_file(&path).unwrap();
            }
            let error = append(&store, &key("s"), 1, event("e2")).await.unwrap_err();
            assert!(matches!(error, SessionError::FileReplaced { .. }), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::Broken);
        }
    }
}
