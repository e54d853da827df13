//! Verifies a whole database: the checks of reads, for everything, and rows that no read refers to.
//!
//! One read covers one session, its events in pages, or one scope: other workers continue meanwhile. Each is
//! verified in a snapshot.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::try_join;
use tokio_postgres::Row;

use super::branches;
use super::connection::Object;
use super::inbox;
use super::list_entry;
use super::read::{ValueRows, sum};
use super::rows::{
    HeadRow, PostgresHistory, PostgresSessionRow, RowOwner, StoreCache, event_seal, rewind_row, schema_sum,
    scope_row, session_lists, shared_lists,
};
use super::statements::{
    ALL_REWINDS, EVENTS, FIND_SCOPE, LOST_SCOPES, LOST_SESSIONS, PAGE_OF_SCHEMAS, PAGE_OF_SCOPES,
    PAGE_OF_SESSIONS, READ_FORKS, READ_LABELS, READ_LINEAGE, READ_REWINDS, READ_SESSION,
};
use super::tags;
use super::transaction::{PooledTransaction, SqlParameters, begin_reading, commit, query, with_timeout};
use crate::digest::ContentDigest;
use crate::error::{ErrorKind, SessionError};
use crate::event::{Erasure, TagDigest, erasure_of, tags_of_body};
use crate::ids::{AppId, SessionKey, UserId};
use crate::keys::sealer::ContentKey;
use crate::rows::chain::{ChainLink, check_links, check_tags, error_text, scope_place};
use crate::rows::lineage::{from_db, to_db};
use crate::rows::rewinds::RewindChain;
use crate::rows::seal::row_number;
use crate::store::{FaultPlace, Verified, VerifySessions};
use crate::time::Timestamp;

/// The number of rows per query.
const PAGE: u64 = 200;

pub(super) async fn verify(
    connection: Object,
    cache: &StoreCache,
    answer_timeout: Duration,
    request: &VerifySessions,
) -> Result<Verified, SessionError> {
    let mut verifier = StoreVerifier { cache, answer_timeout, report: Verified::default() };
    let connection = match request {
        VerifySessions::All => {
            let connection = verifier.schemas(connection).await?;
            let connection = verifier.sessions(connection, None).await?;
            verifier.scopes(connection, None).await?
        }
        VerifySessions::App(app) => {
            let connection = verifier.sessions(connection, Some(app)).await?;
            verifier.scopes(connection, Some(app)).await?
        }
        VerifySessions::Session(key) => {
            let (connection, is_there) = verifier.session(connection, key).await?;
            if !is_there {
                return Err(SessionError::not_found(key));
            }
            connection
        }
    };
    drop(connection);
    Ok(verifier.report)
}

struct StoreVerifier<'a> {
    cache: &'a StoreCache,
    /// The timeout of each answer; there is no timeout of the whole.
    answer_timeout: Duration,
    report: Verified,
}

/// Runs `$read` in a transaction that sees one moment, and gives the connection back as well.
macro_rules! at_one_moment {
    ($answer_timeout:expr, $connection:expr, |$inside:ident| $read:expr) => {{
        let transaction = PooledTransaction::new($connection);
        let read = {
            let $inside = transaction.connection()?;
            with_timeout($answer_timeout, begin_reading($inside)).await?;
            let read = $read;
            with_timeout($answer_timeout, commit($inside)).await?;
            read
        };
        (transaction.into_connection()?, read)
    }};
}

impl StoreVerifier<'_> {
    async fn schemas(&mut self, connection: Object) -> Result<Object, SessionError> {
        let mut after = i64::MIN;
        loop {
            let rows = with_timeout(
                self.answer_timeout,
                query(&connection, PAGE_OF_SCHEMAS, &[&after, &to_db(PAGE)]),
            )
            .await?;
            let Some(last) = rows.last() else { return Ok(connection) };
            after = last.get(0);
            for row in &rows {
                let (number, text, checksum): (i64, &str, i64) = (row.get(0), row.get(1), row.get(2));
                if schema_sum(text) != checksum {
                    let detail = format!("checksum mismatch of schema {number}");
                    self.report.damaged(FaultPlace::Store, detail);
                }
            }
        }
    }

    async fn sessions(
        &mut self,
        mut connection: Object,
        app: Option<&AppId>,
    ) -> Result<Object, SessionError> {
        let app_name = app.map(AppId::as_str);
        let mut after = i64::MIN;
        loop {
            let rows = with_timeout(
                self.answer_timeout,
                query(&connection, PAGE_OF_SESSIONS, &[&after, &app_name, &to_db(PAGE)]),
            )
            .await?;
            let Some(last) = rows.last() else { break };
            after = last.get(0);
            for row in &rows {
                let number: i64 = row.get(0);
                let key =
                    SessionKey::new(row.get::<_, &str>(1), row.get::<_, &str>(2), row.get::<_, &str>(3));
                match key {
                    // NOTE: a session that is missing by now is no fault: it was deleted after the page was read.
                    Ok(key) => connection = self.session(connection, &key).await?.0,
                    Err(error) => {
                        self.report.damaged(FaultPlace::UnknownSession { number }, error_text(&error));
                    }
                }
            }
        }
        for row in with_timeout(self.answer_timeout, query(&connection, LOST_SESSIONS, &[])).await? {
            let detail = "its history exists, but its row is missing";
            self.report.missing(FaultPlace::UnknownSession { number: row.get(0) }, detail);
        }
        Ok(connection)
    }

    /// Checks a session; returns whether it exists.
    async fn session(
        &mut self,
        connection: Object,
        key: &SessionKey,
    ) -> Result<(Object, bool), SessionError> {
        Ok(at_one_moment!(self.answer_timeout, connection, |inside| Box::pin(
            self.session_inside(inside, key)
        )
        .await?))
    }

    async fn session_inside(&mut self, connection: &Object, key: &SessionKey) -> Result<bool, SessionError> {
        let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
        let ask = |sql| async move { query(connection, sql, &[&app, &user, &id]).await };
        let asked = async {
            try_join!(biased;
                ask(READ_SESSION),
                ask(READ_LINEAGE),
                async { query(connection, READ_REWINDS, &[&app, &user, &id, &i64::MAX]).await },
                ask(READ_LABELS),
                ask(READ_FORKS)
            )
        };
        let (row, lineage, rewinds, labels, forks) = with_timeout(self.answer_timeout, asked).await?;
        if row.is_empty() {
            return Ok(false);
        }
        self.report.sessions += 1;
        let place = || FaultPlace::Session(key.clone());
        let row = match PostgresSessionRow::of(&row, key) {
            Ok(row) => row,
            Err(error) => {
                self.report.damaged(place(), error_text(&error));
                return Ok(true);
            }
        };
        let labels = branches::labels_of(&labels, &row, key).err();
        let forks = branches::forks_of(&forks, &row, key).err();
        for error in [labels, forks].into_iter().flatten() {
            self.report.damaged(place(), error_text(&error));
        }
        let rewinds_of = async { query(connection, ALL_REWINDS, &[&row.number]).await };
        let all: RewindChain =
            with_timeout(self.answer_timeout, rewinds_of).await?.iter().map(rewind_row).collect();
        if let Err(error) = all.check_all(row.state.rewound) {
            self.report.damaged(place(), error_text(&error));
        }
        if let Err(error) = with_timeout(self.answer_timeout, inbox::verify(connection, key, &row)).await? {
            self.report.damaged(place(), error_text(&error));
        }
        match PostgresHistory::read(&lineage, &rewinds, &row, None) {
            Ok(history) => {
                match with_timeout(self.answer_timeout, list_entry::verify(connection, key)).await {
                    Err(error) if error.kind() == ErrorKind::Transient => return Err(error),
                    Err(error) => self.report.damaged(place(), error_text(&error)),
                    Ok(()) => {}
                }
                self.events(connection, key, &row).await?;
                self.values(connection, key, &row, &history).await?;
            }
            Err(error) => self.report.damaged(place(), error_text(&error)),
        }
        Ok(true)
    }

    async fn events(
        &mut self,
        connection: &Object,
        key: &SessionKey,
        row: &PostgresSessionRow,
    ) -> Result<(), SessionError> {
        let mut links: BTreeMap<u64, ChainLink> = BTreeMap::new();
        let mut tagged: BTreeMap<u64, Vec<TagDigest>> = BTreeMap::new();
        let mut erased: BTreeMap<u64, Erasure> = BTreeMap::new();
        let mut first = row.oldest + 1;
        while first <= row.version {
            let last = row.version.min(first + PAGE - 1);
            let (firsts, lasts) = (vec![to_db(first)], vec![to_db(last)]);
            let given: SqlParameters<'_> = &[&row.number, &0_i64, &firsts, &lasts, &i64::MAX];
            let rows = with_timeout(self.answer_timeout, query(connection, EVENTS, given)).await?;
            links.extend(rows.iter().map(|row| (from_db(row.get(0)), link(row))));
            tagged.extend(rows.iter().map(|row| (from_db(row.get(0)), tags_of(row))));
            erased.extend(rows.iter().filter_map(|row| Some((from_db(row.get(0)), erasure(row)?))));
            first = last + 1;
        }
        check_links(&mut self.report, key, row, &links);
        for (version, erasure) in erased {
            self.report.add_erased(key, version, erasure);
        }
        let indexed = with_timeout(self.answer_timeout, tags::all(connection, row)).await?;
        let tagged = tagged.iter().filter(|(version, _)| links.get(*version).is_some_and(Option::is_some));
        check_tags(&mut self.report, key, tagged.map(|(version, tags)| (*version, &tags[..])), &indexed);
        Ok(())
    }

    async fn values(
        &mut self,
        connection: &Object,
        key: &SessionKey,
        row: &PostgresSessionRow,
        history: &PostgresHistory,
    ) -> Result<(), SessionError> {
        let ValueRows { cells, items } =
            with_timeout(self.answer_timeout, ValueRows::own(connection, key, None)).await?;
        let place = |name: &str| FaultPlace::Key(key.clone(), name.to_owned());
        let heads = self.heads(connection, &cells, RowOwner::Session, place).await?;
        for (head, list) in session_lists(&heads, &items, history, ContentKey::Unopened) {
            if let Err(error) = list {
                self.report.damaged(place(&head.key), error_text(&error));
            }
        }
        if sum(&heads, RowOwner::Session) != row.state.cells {
            let detail = "values do not match the version: one is missing or outdated";
            self.report.damaged(FaultPlace::Session(key.clone()), detail);
        }
        Ok(())
    }

    /// The rows of values that can be read, each of them checked.
    async fn heads(
        &mut self,
        connection: &Object,
        rows: &[Row],
        of: RowOwner,
        place: impl Fn(&str) -> FaultPlace,
    ) -> Result<Vec<HeadRow>, SessionError> {
        let mut heads = Vec::with_capacity(rows.len());
        for row in rows {
            self.report.values += 1;
            let head = match HeadRow::read(row, of, ContentKey::Unopened) {
                Ok(head) => head,
                Err(error) => {
                    self.report.damaged(place(row.get(0)), error_text(&error));
                    continue;
                }
            };
            let schema =
                with_timeout(self.answer_timeout, self.cache.schemas.text(connection, head.schema)).await;
            for error in [head.check().err(), schema.err()].into_iter().flatten() {
                self.report.damaged(place(&head.key), error_text(&error));
            }
            heads.push(head);
        }
        Ok(heads)
    }

    async fn scopes(&mut self, mut connection: Object, app: Option<&AppId>) -> Result<Object, SessionError> {
        let app = app.map(AppId::as_str);
        let mut after = i64::MIN;
        loop {
            let rows = with_timeout(
                self.answer_timeout,
                query(&connection, PAGE_OF_SCOPES, &[&after, &app, &to_db(PAGE)]),
            )
            .await?;
            let Some(last) = rows.last() else { break };
            after = last.get(0);
            for row in &rows {
                let (app, owner): (&str, &str) = (row.get(1), row.get(2));
                let user = Some(owner).filter(|owner| !owner.is_empty()).map(UserId::new).transpose();
                if let (Ok(app), Ok(user)) = (AppId::new(app), user) {
                    connection = self.scope(connection, &app, user.as_ref()).await?;
                } else {
                    let (app, user) = (app.to_owned(), Some(owner.to_owned()));
                    let place = FaultPlace::Scope { app, user, key: None };
                    self.report.damaged(place, "invalid name");
                }
            }
        }
        for row in with_timeout(self.answer_timeout, query(&connection, LOST_SCOPES, &[])).await? {
            let detail = format!("values of scope {} exist, but its row is missing", row.get::<_, i64>(0));
            self.report.missing(FaultPlace::Store, detail);
        }
        Ok(connection)
    }

    async fn scope(
        &mut self,
        connection: Object,
        app: &AppId,
        user: Option<&UserId>,
    ) -> Result<Object, SessionError> {
        let checked = at_one_moment!(self.answer_timeout, connection, |inside| self
            .scope_inside(inside, app, user)
            .await?);
        Ok(checked.0)
    }

    async fn scope_inside(
        &mut self,
        connection: &Object,
        app: &AppId,
        user: Option<&UserId>,
    ) -> Result<(), SessionError> {
        let place = |name: Option<&str>| scope_place(app, user, name);
        let (app_name, owner) = (app.as_str(), user.map_or("", UserId::as_str));
        let asked = async {
            try_join!(biased;
                async { query(connection, FIND_SCOPE, &[&app_name, &owner]).await },
                ValueRows::shared(connection, (app_name, owner), None),
            )
        };
        let (row, ValueRows { cells, items }) = with_timeout(self.answer_timeout, asked).await?;
        let Some(row) = row.first() else { return Ok(()) };
        let row = match scope_row(row, app, user) {
            Ok(row) => row,
            Err(error) => {
                self.report.damaged(place(None), error_text(&error));
                return Ok(());
            }
        };
        let of = RowOwner::Shared(row.scope);
        let heads = self.heads(connection, &cells, of, |name| place(Some(name))).await?;
        for (head, list) in shared_lists(&heads, &items, (row.scope, ContentKey::Unopened)) {
            if let Err(error) = list {
                self.report.damaged(place(Some(&head.key)), error_text(&error));
            }
        }
        if let Err(error) = row.check_cells(sum(&heads, of)) {
            self.report.damaged(place(None), error_text(&error));
        }
        Ok(())
    }
}

/// The tags of the event of such a row.
fn tags_of(row: &Row) -> Vec<TagDigest> {
    tags_of_body(row.get(1), Timestamp::from_micros(row.get(2)), row.get(3))
}

/// The note of the event of such a row, if its content was erased.
fn erasure(row: &Row) -> Option<Erasure> {
    erasure_of(row.get(1), Timestamp::from_micros(row.get(2)), row.get(3))
}

/// The link of the row of an event, `version, id, at, body, seal, stream`.
fn link(row: &Row) -> ChainLink {
    let (version, id, at): (u64, &str, i64) = (from_db(row.get(0)), row.get(1), row.get(2));
    let seal = event_seal(version, row.get(4)).ok()?;
    let state = seal.open(row_number(row.get(5), version), at).ok()?;
    let content = ContentDigest::new(version, id, Timestamp::from_micros(at), row.get(3), seal.form);
    Some((content, state.head))
}
