//! Verifies a whole file: the checks of reads, for everything, and rows that no read refers to.
//!
//! A damaged page hides its rows from lookups. So the expected rows are collected from all places that refer to them:
//! the rows of sessions, the index over them, the list, the lineages.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::branches;
use super::history::{SqliteHistory, SqliteSessionRow, all_rewinds};
use super::inbox;
use super::list_entry;
use super::seal::{self, EventSeal};
use super::shared::{StoredSharedKey, shared_items};
use super::tables::MetaRow;
use super::tags;
use super::threads::SqliteConnection;
use super::undo_log::{self, UndoLog};
use super::values::{StoredValueRow, stored};
use crate::digest::ContentDigest;
use crate::error::SessionError;
use crate::event::{Erasure, Event, TagDigest, erasure_of, tags_of_body};
use crate::ids::{AppId, EventId, SessionKey, UserId};
use crate::keys::sealer::ContentKey;
use crate::rows::chain::{ChainLink, check_links, check_tags, error_text, scope_place};
use crate::rows::lineage::HistorySegment;
use crate::rows::seal::{row_number, version_of};
use crate::rows::shared::ScopeRow;
use crate::rows::values::ValueHead;
use crate::scope::Scope;
use crate::store::{FaultPlace, Verified, VerifySessions};
use crate::time::Timestamp;

pub(super) fn verify(
    sqlite: &mut SqliteConnection,
    request: &VerifySessions,
) -> Result<Verified, SessionError> {
    let mut report = Verified::default();
    match request {
        VerifySessions::All => {
            check_file(&sqlite.connection, &mut report);
            check_schemas(&sqlite.connection, &mut report);
            check_sessions(sqlite, &mut report, None);
            check_scopes(sqlite, &mut report, None);
        }
        VerifySessions::App(app) => {
            check_sessions(sqlite, &mut report, Some(app));
            check_scopes(sqlite, &mut report, Some(app));
        }
        VerifySessions::Session(key) => check_one(sqlite, &mut report, key)?,
    }
    Ok(report)
}

fn check_one(
    sqlite: &mut SqliteConnection,
    report: &mut Verified,
    key: &SessionKey,
) -> Result<(), SessionError> {
    // NOTE: faults of other sessions do not belong into the report of one session.
    let mut elsewhere = Verified::default();
    let seen = gather(&sqlite.connection, &mut elsewhere);
    let Some((_, seen)) = seen.into_iter().find(|(_, seen)| seen.keys.contains(key)) else {
        return Err(SessionError::not_found(key));
    };
    if seen.report_missing(report, key) {
        check_session(sqlite, report, key);
    }
    Ok(())
}

/// Runs SQLite's own check, and checks the row about the tables.
fn check_file(connection: &Connection, report: &mut Verified) {
    let lines = connection.prepare("PRAGMA integrity_check(1000)").and_then(|mut query| {
        let lines = query.query_map([], |row| row.get::<_, String>(0))?;
        lines.collect::<Result<Vec<_>, _>>()
    });
    match lines {
        Ok(lines) => {
            for line in lines.into_iter().filter(|line| line != "ok") {
                report.damaged(FaultPlace::Store, line);
            }
        }
        Err(error) => report.damaged(FaultPlace::Store, error),
    }
    if let Err(error) = MetaRow::read(connection) {
        report.damaged(FaultPlace::Store, error_text(&error));
    }
}

/// Reads rows in an order and, if a damaged page ends that, from the other end.
fn scan(
    connection: &Connection,
    report: &mut Verified,
    query: &str,
    order: &str,
    mut each: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
) {
    // NOTE: a damaged page ends a scan at its place; the scan from the other end reaches the rows after it.
    for direction in ["ASC", "DESC"] {
        let order = order.replace(", ", &format!(" {direction}, "));
        let mut run = || -> rusqlite::Result<()> {
            let mut query = connection.prepare(&format!("{query} ORDER BY {order} {direction}"))?;
            let mut rows = query.query([])?;
            while let Some(row) = rows.next()? {
                // NOTE: an unreadable row is reported as missing by the places that refer to it.
                let _ = each(row);
            }
            Ok(())
        };
        match run() {
            Ok(()) => return,
            Err(error) => report.damaged(FaultPlace::Store, error),
        }
    }
}

fn check_schemas(connection: &Connection, report: &mut Verified) {
    let mut faults = Vec::new();
    scan(connection, report, "SELECT id, text, checksum FROM stepfold_schemas", "id", |row| {
        let number: i64 = row.get(0)?;
        let read: rusqlite::Result<(String, i64)> = row.get(1).and_then(|text| Ok((text, row.get(2)?)));
        if read.is_ok_and(|(text, checksum)| seal::of_schema(number, &text) == checksum) {
            return Ok(());
        }
        faults.push(number);
        Ok(())
    });
    for number in faults {
        report.damaged(FaultPlace::Store, format!("checksum mismatch of schema {number}"));
    }
}

/// The places that have a trace of a session.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "one for each place that tells of a session")]
struct SessionTraces {
    /// More than one if its row and the index over it differ.
    keys: BTreeSet<SessionKey>,
    tenant: Option<(String, String)>,
    in_table: bool,
    in_index: bool,
    in_list: bool,
    in_lineage: bool,
}

impl SessionTraces {
    fn is_of(&self, app: Option<&AppId>) -> bool {
        let Some(app) = app else { return true };
        let tenant = self.tenant.iter().map(|(app, _)| app.as_str());
        let mut apps = self.keys.iter().map(|key| key.app.as_str()).chain(tenant).peekable();
        // NOTE: without a key its app is unknown, so each app's report has it.
        apps.peek().is_none() || apps.any(|found| found == app.as_str())
    }

    /// Reports each place that should have the session and does not; returns whether it can be examined.
    fn report_missing(&self, report: &mut Verified, key: &SessionKey) -> bool {
        for (is_there, place) in [
            (self.in_table, "the table of sessions"),
            (self.in_index, "the index of sessions"),
            (self.in_list, "the list of its user's sessions"),
            (self.in_lineage, "the table of lineages"),
        ] {
            if !is_there {
                report.missing(FaultPlace::Session(key.clone()), format!("missing in {place}"));
            }
        }
        if self.keys.len() > 1 {
            let detail = "the table of sessions and its index tell different ids";
            report.damaged(FaultPlace::Session(key.clone()), detail);
        }
        self.in_table && self.in_index
    }
}

/// All sessions by their numbers, from each place that refers to them.
fn gather(connection: &Connection, report: &mut Verified) -> BTreeMap<i64, SessionTraces> {
    let mut seen: BTreeMap<i64, SessionTraces> = BTreeMap::new();
    let key = |row: &Row<'_>| -> rusqlite::Result<Option<SessionKey>> {
        let (app, user, id): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
        Ok(SessionKey::new(app, user, id).ok())
    };
    let table = "SELECT number, app, user, id FROM stepfold_sessions NOT INDEXED";
    scan(connection, report, table, "number", |row| {
        let seen = seen.entry(row.get(0)?).or_default();
        seen.in_table = true;
        seen.keys.extend(key(row)?);
        Ok(())
    });
    let index =
        "SELECT number, app, user, id FROM stepfold_sessions INDEXED BY sqlite_autoindex_stepfold_sessions_1";
    scan(connection, report, index, "app, user, id", |row| {
        let seen = seen.entry(row.get(0)?).or_default();
        seen.in_index = true;
        seen.keys.extend(key(row)?);
        Ok(())
    });
    let list = "SELECT number, app, user, updated, version, checksum FROM stepfold_recent";
    scan(connection, report, list, "app, user, updated, number", |row| {
        let seen = seen.entry(row.get(0)?).or_default();
        let (app, user): (String, String) = (row.get(1)?, row.get(2)?);
        let checksum: i64 = row.get(5)?;
        seen.in_list = seal::of_recent(&app, &user, row.get(3)?, row.get(0)?, row.get(4)?) == checksum;
        seen.tenant = Some((app, user));
        Ok(())
    });
    look_in_lists(connection, &mut seen);
    let lineages = "SELECT number FROM stepfold_lineage WHERE number = stream";
    scan(connection, report, lineages, "number, stream", |row| {
        seen.entry(row.get(0)?).or_default().in_lineage = true;
        Ok(())
    });
    seen
}

/// Looks for sessions in the lists as a list request reads them: a damaged row may hide others that still exist.
fn look_in_lists(connection: &Connection, seen: &mut BTreeMap<i64, SessionTraces>) {
    let mut listed: HashMap<(String, String), BTreeSet<i64>> = HashMap::new();
    for (number, seen) in seen {
        let Some(key) = seen.keys.first() else { continue };
        let user = (key.app.to_string(), key.user.to_string());
        let listed = listed.entry(user).or_insert_with_key(|(app, user)| {
            // NOTE: an unreadable list counts as empty; its sessions are then reported as missing in it.
            listed_numbers(connection, app, user).unwrap_or_default()
        });
        seen.in_list &= listed.contains(number);
    }
}

fn listed_numbers(connection: &Connection, app: &str, user: &str) -> rusqlite::Result<BTreeSet<i64>> {
    let mut query = connection.prepare_cached(
        "SELECT number FROM stepfold_recent WHERE app = ?1 AND user = ?2 AND (updated, number) < (?3, ?3) \
         ORDER BY updated DESC, number DESC",
    )?;
    query.query_map(params![app, user, i64::MAX], |row| row.get(0))?.collect()
}

fn check_sessions(sqlite: &mut SqliteConnection, report: &mut Verified, app: Option<&AppId>) {
    let seen = gather(&sqlite.connection, report);
    for (number, seen) in seen.iter().filter(|(_, seen)| seen.is_of(app)) {
        if seen.keys.is_empty() {
            let whose = seen.tenant.as_ref().map(|(app, user)| format!("it was one of {app}/{user}"));
            let detail = whose.unwrap_or_else(|| "only its lineage is there".to_owned());
            report.missing(FaultPlace::UnknownSession { number: *number }, detail);
        }
        for key in &seen.keys {
            if seen.report_missing(report, key) {
                check_session(sqlite, report, key);
            }
        }
    }
}

fn check_session(sqlite: &mut SqliteConnection, report: &mut Verified, key: &SessionKey) {
    let place = || FaultPlace::Session(key.clone());
    report.sessions += 1;
    let row = match SqliteSessionRow::find(&sqlite.connection, key) {
        Ok(Some(row)) => row,
        Ok(None) => return report.missing(place(), "not found by its key"),
        Err(error) => return report.damaged(place(), error_text(&error)),
    };
    if let Err(error) = row.check_newest(&sqlite.connection, key) {
        report.damaged(place(), error_text(&error));
    }
    for user in [None, Some(&key.user)] {
        match ScopeRow::find(&sqlite.connection, &key.app, user) {
            Ok(Some(_)) => {}
            Ok(None) => report.missing(scope_place(&key.app, user, None), "not found"),
            Err(error) => report.damaged(scope_place(&key.app, user, None), error_text(&error)),
        }
    }
    match SqliteHistory::read(&sqlite.connection, &row) {
        Ok(history) => check_events(&sqlite.connection, report, key, &row, &history),
        Err(error) => report.damaged(place(), error_text(&error)),
    }
    let rewinds = all_rewinds(&sqlite.connection, row.number);
    if let Err(error) = rewinds.and_then(|all| all.check_all(row.state.rewound)) {
        report.damaged(place(), error_text(&error));
    }
    check_values(sqlite, report, key, &row);
    let labels = branches::labels_of(&sqlite.connection, &row, key).err();
    let forks = branches::forks_of(&sqlite.connection, &row, key).err();
    for error in [labels, forks].into_iter().flatten() {
        report.damaged(place(), error_text(&error));
    }
    if let Err(error) = list_entry::verify(&sqlite.connection, key, &row) {
        report.damaged(place(), error_text(&error));
    }
    if let Err(error) = inbox::verify(&sqlite.connection, &row) {
        report.damaged(place(), error_text(&error));
    }
}

/// The checked parts of an event's row.
struct EventCheck {
    link: ChainLink,
    /// The tags that it is found by.
    tags: Vec<TagDigest>,
    /// The note of its erasure.
    erasure: Option<Erasure>,
    /// Whether its undo log is undamaged.
    has_trail: bool,
}

fn check_events(
    connection: &Connection,
    report: &mut Verified,
    key: &SessionKey,
    row: &SqliteSessionRow,
    history: &SqliteHistory,
) {
    let mut found: BTreeMap<u64, EventCheck> = BTreeMap::new();
    for segment in &history.lineage {
        read_events(connection, report, row, segment, &mut found);
    }
    let links = found.iter().map(|(version, read)| (*version, read.link)).collect();
    check_links(report, key, row, &links);
    for (version, read) in found.iter().filter(|(version, _)| **version > row.oldest) {
        if let Some(erasure) = &read.erasure {
            report.add_erased(key, *version, erasure.clone());
        }
    }
    check_index(connection, report, key, row, history, &found);
    for version in found.into_iter().filter(|(_, read)| !read.has_trail).map(|(version, _)| version) {
        let place = FaultPlace::Versions(key.clone(), version..=version);
        report.damaged(place, "checksum mismatch of the trail of its event");
    }
}

/// Compares the index of tags with the tags that the events have.
fn check_index(
    connection: &Connection,
    report: &mut Verified,
    key: &SessionKey,
    row: &SqliteSessionRow,
    history: &SqliteHistory,
    found: &BTreeMap<u64, EventCheck>,
) {
    let mut indexed = BTreeSet::new();
    for segment in &history.lineage {
        match tags::of_segment(connection, segment, (row.oldest, row.version)) {
            Ok(tags) => indexed.extend(tags),
            Err(error) => return report.damaged(FaultPlace::Session(key.clone()), error_text(&error)),
        }
    }
    let whole = found.iter().filter(|(version, read)| **version > row.oldest && read.link.is_some());
    check_tags(report, key, whole.map(|(version, read)| (*version, &read.tags[..])), &indexed);
}

/// Reads the rows of a segment; one by one, if a damaged page is in the way.
fn read_events(
    connection: &Connection,
    report: &mut Verified,
    row: &SqliteSessionRow,
    segment: &HistorySegment,
    found: &mut BTreeMap<u64, EventCheck>,
) {
    const COLUMNS: &str = "SELECT number, id, at, body, trail, seal FROM stepfold_events";
    let upto = segment.upto.min(row.version);
    let (first, last) = (row_number(segment.stream, segment.after), row_number(segment.stream, upto));
    let mut run = || -> rusqlite::Result<()> {
        let mut query = connection
            .prepare_cached(&format!("{COLUMNS} WHERE number BETWEEN ?1 AND ?2 ORDER BY number"))?;
        let mut rows = query.query([first, last])?;
        while let Some(row) = rows.next()? {
            let number = row.get(0)?;
            found.insert(version_of(number), read_event(number, row));
        }
        Ok(())
    };
    let Err(error) = run() else { return };
    report.damaged(FaultPlace::Store, error);
    for version in (segment.after.max(row.oldest) + 1)..=upto {
        let number = row_number(segment.stream, version);
        let read = connection
            .prepare_cached(&format!("{COLUMNS} WHERE number = ?1"))
            .and_then(|mut query| query.query_row([number], |row| Ok(read_event(number, row))).optional());
        // NOTE: an unreadable row counts as damaged, and one that is not there as missing.
        let unreadable = || Some(EventCheck { link: None, tags: Vec::new(), erasure: None, has_trail: true });
        if let Some(read) = read.unwrap_or_else(|_| unreadable()) {
            found.insert(version, read);
        }
    }
}

fn read_event(number: i64, row: &Row<'_>) -> EventCheck {
    let (mut tags, mut erasure) = (Vec::new(), None);
    let mut link = || -> rusqlite::Result<ChainLink> {
        let (id, at, body): (String, i64, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
        let seal: EventSeal = row.get(5)?;
        let Ok(state) = seal.open(number, at) else { return Ok(None) };
        let at = Timestamp::from_micros(at);
        tags = tags_of_body(&id, at, &body);
        erasure = erasure_of(&id, at, &body);
        Ok(Some((ContentDigest::new(version_of(number), &id, at, &body, seal.form), state.head)))
    };
    let link = link().ok().flatten();
    let trail = row.get::<_, Option<String>>(4);
    let has_trail = trail.is_ok_and(|text| text.is_none_or(|text| UndoLog::parse(number, &text).is_ok()));
    EventCheck { link, tags, erasure, has_trail }
}

fn check_values(
    sqlite: &mut SqliteConnection,
    report: &mut Verified,
    key: &SessionKey,
    row: &SqliteSessionRow,
) {
    let cells = match stored(&sqlite.connection, row.number) {
        Ok(cells) => cells,
        Err(error) => return report.damaged(FaultPlace::Session(key.clone()), error_text(&error)),
    };
    let sum = cells.iter().fold(0, |sum, stored| sum ^ stored.checksum);
    for stored in &cells {
        report.values += 1;
        if let Err(error) = check_value(sqlite, stored) {
            report.damaged(FaultPlace::Key(key.clone(), stored.row.key.clone()), error_text(&error));
        }
    }
    if sum == row.state.cells {
        return;
    }
    let names: BTreeSet<&str> = cells.iter().map(|stored| stored.row.key.as_str()).collect();
    let written = keys_written(&sqlite.connection, row);
    let lost: Vec<&String> = written.iter().filter(|name| !names.contains(name.as_str())).collect();
    for name in &lost {
        let detail = "an event wrote it, and it has no row";
        report.missing(FaultPlace::Key(key.clone(), (*name).clone()), detail);
    }
    if lost.is_empty() {
        let detail = "the values are not those of its version: one is missing, or is an older one";
        report.damaged(FaultPlace::Session(key.clone()), detail);
    }
}

fn check_value(sqlite: &mut SqliteConnection, stored: &StoredValueRow) -> Result<(), SessionError> {
    stored.check()?;
    if let Some(list) = &stored.row.list {
        undo_log::items(&sqlite.connection, ContentKey::Unopened, &stored.row.key, list)?;
    }
    if stored.row.is_removed() {
        return Ok(());
    }
    sqlite.schemas.text(&sqlite.connection, stored.row.schema).map(drop)
}

/// The keys that the events of a session's own stream wrote, as far as they can be read.
fn keys_written(connection: &Connection, row: &SqliteSessionRow) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut read = || -> rusqlite::Result<()> {
        let mut query = connection.prepare_cached(
            "SELECT e.id, e.at, e.body FROM stepfold_lineage l JOIN stepfold_events e \
             ON e.number > (l.stream << 32) + l.after AND e.number <= (l.stream << 32) + MIN(l.upto, ?2) \
             WHERE l.number = ?1 AND e.body IS NOT NULL",
        )?;
        let mut rows = query.query(params![row.number, crate::rows::lineage::to_db(row.version)])?;
        while let Some(row) = rows.next()? {
            let (id, at, body): (String, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let event =
                EventId::new(id).and_then(|id| Event::from_body(id, Timestamp::from_micros(at), &body));
            let Ok(event) = event else { continue };
            let names = event.actions.delta.iter().map(stepfold_state_core::state::Write::key);
            keys.extend(names.filter(|name| Scope::of(name) == Scope::Session).map(str::to_owned));
        }
        Ok(())
    };
    // NOTE: errors are ignored here, since the check of the events reports unreadable ones.
    let _ = read();
    keys
}

fn check_scopes(sqlite: &mut SqliteConnection, report: &mut Verified, app: Option<&AppId>) {
    // NOTE: from the table and from the index over it, since either may have lost rows.
    let mut scopes: HashMap<(String, String), i64> = HashMap::new();
    for (source, order) in
        // NOTE: table and index are separate trees: a row that is lost in one of them is still found in the other.
        [("NOT INDEXED", "scope"), ("INDEXED BY sqlite_autoindex_stepfold_scopes_1", "app, user")]
    {
        let query = format!("SELECT scope, app, user FROM stepfold_scopes {source}");
        scan(&sqlite.connection, report, &query, order, |row| {
            scopes.insert((row.get(1)?, row.get(2)?), row.get(0)?);
            Ok(())
        });
    }
    for (app_name, user) in scopes.into_keys() {
        let (found_app, user) = (AppId::new(app_name.as_str()), Some(user).filter(|user| !user.is_empty()));
        let found_user = user.as_deref().map(UserId::new).transpose();
        let (Ok(found_app), Ok(found_user)) = (found_app, found_user) else {
            let place = FaultPlace::Scope { app: app_name, user, key: None };
            report.damaged(place, "invalid name");
            continue;
        };
        if app.is_none_or(|app| *app == found_app) {
            check_scope(sqlite, report, &found_app, found_user.as_ref());
        }
    }
}

fn check_scope(sqlite: &mut SqliteConnection, report: &mut Verified, app: &AppId, user: Option<&UserId>) {
    let place = |key: Option<&str>| scope_place(app, user, key);
    let scope = match ScopeRow::find(&sqlite.connection, app, user) {
        Ok(Some(scope)) => scope,
        Ok(None) => return report.missing(place(None), "not found"),
        Err(error) => return report.damaged(place(None), error_text(&error)),
    };
    let rows = match StoredSharedKey::read_all(sqlite, &scope) {
        Ok(rows) => rows,
        Err(error) => return report.damaged(place(None), error_text(&error)),
    };
    for row in &rows {
        report.values += 1;
        if let Err(error) = check_shared(sqlite, &scope, row) {
            report.damaged(place(Some(&row.row.key)), error_text(&error));
        }
    }
    if let Err(error) = scope.check_cells(rows.iter().fold(0, |sum, row| sum ^ row.checksum)) {
        report.damaged(place(None), error_text(&error));
    }
}

fn check_shared(
    sqlite: &mut SqliteConnection,
    scope: &ScopeRow,
    row: &StoredSharedKey,
) -> Result<(), SessionError> {
    row.check(scope)?;
    if let ValueHead::List(extent) = row.head(ContentKey::Unopened)? {
        shared_items((sqlite, ContentKey::Unopened), scope, &row.row.key, extent)?;
    }
    sqlite.schemas.text(&sqlite.connection, row.row.schema).map(drop)
}
