//! Appends. An event of a session that is as this process knows it takes one statement. Any other takes a transaction of
//! two round trips: one locks the session's row and reads, and one writes and commits.

use std::borrow::Cow;

use stepfold_state_core::state::Write;
use tokio::try_join;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::budgets;
use super::change_statements::{ItemSource, SessionWrite, keys, plan, plan_known};
use super::claims::{self, PlainClaim, WorkUpdate};
use super::connection::Object;
use super::inbox::WaitingInputs;
use super::parts::{Columns, Part, rows_of};
use super::rows::{CachedRecord, HeadRow, PostgresSessionRow, StoreCache, fence, scopes as scopes_of};
use super::statements::{ADD_KNOWN, ADD_LOCKED, APPEND_PLAIN, READ_APPEND};
use super::transaction::{
    PooledTransaction, SentStatement, SqlParameters, begin, commit, execute, in_order, query,
};
use super::write::{LockedScope, after_event, idle_of, is_sealed_body, lock_scope, plan_scope, sealed_body};
use crate::error::SessionError;
use crate::event::Event;
use crate::ids::{EventId, SessionKey};
use crate::keys::sealer::ContentKey;
use crate::rows::lineage::{from_db, to_db};
use crate::rows::seal::{EventSeal, SessionRecord};
use crate::rows::shared::ScopeWriteMode;
use crate::rows::values::ChangePlanner;
use crate::rows::work::WorkState;
use crate::scope::{ByScope, ScopeVersions, by_scope};
use crate::store::{AppendEvent, ClaimFence, Receipt, WriteOrigin};

pub(super) async fn append(
    connection: Object,
    cache: &StoreCache,
    request: &AppendEvent,
    body: &str,
) -> Result<Receipt, SessionError> {
    let has_writes = !request.event.actions.delta.is_empty();
    let schema = match has_writes {
        true => cache.schemas.number(&connection, request.schema.text()).await?,
        false => 0,
    };
    if let Some(receipt) = append_known(&connection, cache, schema, request, body).await? {
        return Ok(receipt);
    }
    let transaction = PooledTransaction::new(connection);
    let settings = idle_of(cache, request.claim.as_ref());
    let result = {
        let inside = transaction.connection()?;
        let body = async {
            let append = append_inside(inside, cache, schema, request, body, ScopeWriteMode::All);
            Box::pin(append).await?.send_and_commit(inside).await
        };
        // NOTE: `biased` polls in this order, so `BEGIN` is sent first; the statements after it do not wait for its answer.
        try_join!(biased; begin(inside, settings), body).map(|((), receipt)| receipt)
    };
    match result {
        Ok(receipt) => {
            transaction.end();
            Ok(receipt)
        }
        Err(error) => transaction.roll_back(error).await,
    }
}

/// The row of an event, and that of its session after it, as their statements take them.
struct EventColumns<'a> {
    number: i64,
    version: i64,
    at: i64,
    session_seal: Vec<u8>,
    id: &'a str,
    body: Cow<'a, str>,
    seal: Vec<u8>,
    is_unfinished: bool,
    searched: String,
    tags: Vec<Vec<u8>>,
}

impl<'a> EventColumns<'a> {
    fn new(
        key: &SessionKey,
        after: &SessionRecord,
        seal: EventSeal,
        event: &'a Event,
        (body, content): (Cow<'a, str>, ContentKey<'_>),
    ) -> Self {
        EventColumns {
            number: after.number,
            version: to_db(after.version),
            at: event.at.as_micros(),
            session_seal: after.seal(key).to_bytes(),
            id: event.id.as_str(),
            body,
            seal: seal.to_bytes(),
            is_unfinished: event.is_unfinished(),
            searched: content.listed(event),
            tags: event.tag_digests().into_iter().map(Vec::from).collect(),
        }
    }

    /// The parameters of an event's statement that all of them have, before `more`.
    fn with<'p>(
        &'p self,
        write: &'p SessionWrite,
        more: &[&'p (dyn ToSql + Sync)],
    ) -> Vec<&'p (dyn ToSql + Sync)> {
        let EventColumns { number, version, at, session_seal, id, body, seal, is_unfinished, searched, tags } =
            self;
        let own: [&(dyn ToSql + Sync); 9] =
            [number, version, at, session_seal, id, body, seal, is_unfinished, searched];
        let mut parameters = own.to_vec();
        parameters.extend(write.parameters());
        parameters.push(tags);
        parameters.extend(more);
        parameters
    }
}

/// Commits an event in one statement, of a session that this process has read or written last; `None` if something is
/// unexpected. The digest of the event is computed here: so the cached data of the session must be current.
async fn append_known(
    connection: &Object,
    cache: &StoreCache,
    schema: i64,
    request: &AppendEvent,
    body: &str,
) -> Result<Option<Receipt>, SessionError> {
    let AppendEvent { key, expected, event, .. } = request;
    // NOTE: reservations and their ends are decided from their rows, in a transaction; and through a pooler only a transaction
    // has our settings: the timeout for a locked row, and the key ring.
    if request.changes_budgets() || connection.is_pooled() {
        return Ok(None);
    }
    let Some(known) = cache.records.last(key) else { return Ok(None) };
    let Some(claim) = PlainClaim::of(request.into(), known.record.number, known.work.clone()) else {
        return Ok(None);
    };
    // NOTE: the cached version may be outdated; the transaction decides, and returns the real conflict.
    if expected.check(key, known.record.version).is_err() {
        return Ok(None);
    }
    if event.actions.delta.is_empty() && event.effective_tags().is_empty() {
        return append_plain(connection, cache, (&known, claim), request, body).await;
    }
    let split = by_scope(&event.actions.delta);
    if !split.app.is_empty() || !split.user.is_empty() {
        return Ok(None);
    }
    let Some(write) = known_write(connection, cache, schema, (&known, request), &split.session).await else {
        return Ok(None);
    };
    let body = sealed_body(connection, &known.record, event, body)?;
    let (after, seal) = after_event(&known.record, event, (&body, request.content_salt()), write.sums);
    let columns = EventColumns::new(key, &after, seal, event, (body, connection.key()));
    let (app, user, tokens) = (key.app.as_str(), key.user.as_str(), to_db(ClaimFence::TOKENS));
    let before = known.record.seal(key).to_bytes();
    let PlainClaim { token, duration, released, work } = claim;
    let (released_before, released_after) =
        (released.map(|(before, _)| before), released.map(|(_, after)| after));
    let more: SqlParameters<'_> =
        &[&app, &user, &before, &token, &duration, &tokens, &released_before, &released_after];
    let rows = query(connection, ADD_KNOWN, &columns.with(&write, more)).await;
    let receipt = known_receipt(rows, request)?;
    if receipt.is_some() {
        cache.records.advance(key, &known.record, (after, work), write.heads);
    }
    Ok(receipt)
}

/// The writes of an event to its session, if the rows of their keys are cached and suffice.
async fn known_write(
    connection: &Object,
    cache: &StoreCache,
    schema: i64,
    (known, request): (&CachedRecord, &AppendEvent),
    writes: &[&Write],
) -> Option<SessionWrite> {
    let heads: Vec<HeadRow> = known.heads(&keys(writes))?;
    let version = known.record.version + 1;
    let what = WriteOrigin::Event(&request.event.id);
    let planner = ChangePlanner { schema: &request.schema, what, generation: version };
    // NOTE: the values may be outdated: the transaction decides, and returns the real error.
    let changes = plan_known(connection, &cache.schemas, &planner, heads, writes).await.ok()??;
    SessionWrite::new(changes, (known.record.number, version), schema, connection.key()).ok()
}

/// The same for an event without writes and tags.
async fn append_plain(
    connection: &Object,
    cache: &StoreCache,
    (known, claim): (&CachedRecord, PlainClaim),
    request: &AppendEvent,
    body: &str,
) -> Result<Option<Receipt>, SessionError> {
    let AppendEvent { key, event, .. } = request;
    let PlainClaim { token, duration, released, work } = claim;
    let before = &known.record;
    let body = &*sealed_body(connection, before, event, body)?;
    let (after, event_seal) = after_event(before, event, (body, request.content_salt()), 0);
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let (event_id, at, tokens) = (event.id.as_str(), event.at.as_micros(), to_db(ClaimFence::TOKENS));
    let (version, event_seal) = (to_db(before.version), event_seal.to_bytes());
    let [seal_before, seal_after] = [before, &after].map(|record| record.seal(key).to_bytes());
    let given: SqlParameters<'_> = &[
        &app,
        &user,
        &id,
        &version,
        &event_id,
        &at,
        &body,
        &token,
        &duration,
        &tokens,
        &seal_before,
        &seal_after,
        &event_seal,
        &released.map(|(before, _)| before),
        &released.map(|(_, after)| after),
        &event.is_unfinished(),
        &connection.key().listed(event),
    ];
    let receipt = known_receipt(query(connection, APPEND_PLAIN, given).await, request)?;
    if receipt.is_some() {
        cache.records.advance(key, before, (after, work), Vec::new());
    }
    Ok(receipt)
}

/// The receipt of a statement that has committed an event, if it has.
fn known_receipt(
    rows: Result<Vec<Row>, SessionError>,
    request: &AppendEvent,
) -> Result<Option<Receipt>, SessionError> {
    let rows = match rows {
        Ok(rows) => rows,
        // NOTE: the same event was committed while this statement waited for the row; the slow path returns its receipt.
        Err(error) if is_unique_violation(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(row) = rows.first() else { return Ok(None) };
    let count = |column| row.get::<_, Option<i64>>(column).map_or(0, from_db);
    let scopes = ScopeVersions { app: count(1), user: count(2) };
    let fence = fence(row, 3)?;
    Ok(Some(Receipt {
        claim: fence.claim_of_requester(request.claim.as_ref()),
        inbox: count(7),
        ..Receipt::new(request.event.id.clone(), from_db(row.get(0))).with_scopes(scopes)
    }))
}

fn is_unique_violation(error: &SessionError) -> bool {
    let SessionError::Store { source, .. } = error else { return false };
    let code = source.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code);
    code == Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION)
}

/// An append that is decided, inside a transaction with the lock of the session's row.
pub(super) struct DecidedAppend<'a> {
    receipt: Receipt,
    /// What is written, in this order; nothing for an event that was committed before.
    sent: Vec<SentStatement<'a>>,
    /// The append, if reservations end with it or one is made.
    spending: Option<&'a AppendEvent>,
    known: Option<KnownAfter<'a>>,
}

/// What this process knows of a session once an append is made.
struct KnownAfter<'a> {
    cache: &'a StoreCache,
    key: &'a SessionKey,
    before: SessionRecord,
    after: (SessionRecord, WorkState),
    heads: Vec<(String, Option<HeadRow>)>,
}

impl<'a> DecidedAppend<'a> {
    /// Writes it.
    pub(super) async fn send(self, connection: &'a Object) -> Result<Receipt, SessionError> {
        in_order(self.sent).await?;
        let receipt = match self.spending {
            Some(append) => budgets::with_append(connection, append, self.receipt).await?,
            None => self.receipt,
        };
        if let Some(KnownAfter { cache, key, before, after, heads }) = self.known {
            cache.records.advance(key, &before, after, heads);
        }
        Ok(receipt)
    }

    /// Writes it and commits, in one round trip: after a failed statement, the server takes the commit as a rollback.
    async fn send_and_commit(mut self, connection: &'a Object) -> Result<Receipt, SessionError> {
        if self.spending.is_none() {
            self.sent.push(Box::pin(async { commit(connection).await.map(|()| 0) }));
            return self.send(connection).await;
        }
        let receipt = self.send(connection).await?;
        commit(connection).await.map(|()| receipt)
    }
}

/// Decides an append, with the lock of the session's row. Reads it and all that the append needs in one round trip.
pub(super) async fn append_inside<'a>(
    connection: &'a Object,
    cache: &'a StoreCache,
    schema: i64,
    request: &'a AppendEvent,
    body: &'a str,
    shares: ScopeWriteMode,
) -> Result<DecidedAppend<'a>, SessionError> {
    let AppendEvent { key, expected, event, schema: opened, .. } = request;
    let mut split = by_scope(&event.actions.delta);
    if shares == ScopeWriteMode::Nothing {
        (split.app, split.user) = (Vec::new(), Vec::new());
    }
    let (rows, locked) = read_locked(connection, request, body, &split).await?;
    let row = PostgresSessionRow::of(&rows_of(&rows, Part::Session), key)?;
    let mut scopes = scopes_of(&rows_of(&rows, Part::Scopes), &key.app, &key.user)?.versions();
    if let Some(receipt) = first_receipt((&rows, connection.key()), key, (&event.id, body), scopes)? {
        let receipt = claims::repeated(&row, request.into(), receipt);
        return Ok(DecidedAppend { receipt, sent: Vec::new(), spending: None, known: None });
    }
    let waiting = WaitingInputs::of(&rows_of(&rows, Part::Waiting));
    let update = claims::check(&row, request.into(), waiting)?;
    // NOTE: the locked row is newer than the one read above: another worker may have written while this one waited for the
    // lock.
    for (version, locked) in [(&mut scopes.app, &locked.app), (&mut scopes.user, &locked.user)] {
        *version = locked.as_ref().map_or(*version, |locked| locked.row.version + 1);
    }
    expected.check(key, row.version)?;
    let version = row.version + 1;
    let planner = ChangePlanner { schema: opened, what: WriteOrigin::Event(&event.id), generation: version };
    let (schemas, source) = (&cache.schemas, ItemSource::Session(key, &row));
    let cells = rows_of(&rows, Part::Cells);
    let changes = plan(connection, schemas, &planner, &cells, &split.session, source).await?;
    let mut write = SessionWrite::new(changes, (row.number, version), schema, connection.key())?;
    let heads = std::mem::take(&mut write.heads);
    let body = sealed_body(connection, &row, event, body)?;
    let (after, seal) = after_event(&row, event, (&body, request.content_salt()), write.sums);
    let columns = EventColumns::new(key, &after, seal, event, (body, connection.key()));
    // NOTE: nothing is sent before all statements exist: they go in one round trip, and an error of the planning changes
    // nothing.
    let mut sent = vec![add_locked(connection, columns, write, &update)];
    let scope = (&key.app, None);
    sent.extend(plan_scope(connection, schemas, &planner, locked.app, schema, scope, &split.app).await?);
    let scope = (&key.app, Some(&key.user));
    sent.extend(plan_scope(connection, schemas, &planner, locked.user, schema, scope, &split.user).await?);
    sent.extend(update.taking(connection));
    let receipt = update.receipt(Receipt::new(event.id.clone(), version).with_scopes(scopes));
    let known = KnownAfter { cache, key, before: row.record, after: (after, update.work), heads };
    let spending = request.changes_budgets().then_some(request);
    Ok(DecidedAppend { receipt, sent, spending, known: Some(known) })
}

/// The statement that writes an event, with claim and inbox if they change.
fn add_locked<'a>(
    connection: &'a Object,
    columns: EventColumns<'a>,
    write: SessionWrite,
    update: &WorkUpdate<'_>,
) -> SentStatement<'a> {
    let (is_changed, work, number) = (update.is_changed(), update.work.clone(), columns.number);
    Box::pin(async move {
        let ((owner, expires), sum) = (work.fence.columns(), work.checksum(number));
        let (claims, inbox, last) = (work.fence.claims(number), to_db(work.inbox), to_db(work.last));
        let more: SqlParameters<'_> =
            &[&is_changed, &claims, &owner, &expires, &inbox, &last, &work.waiting, &sum];
        execute(connection, ADD_LOCKED, &columns.with(&write, more)).await
    })
}

/// The rows that an append needs, and the shared scopes that it writes to, all locked.
async fn read_locked(
    connection: &Object,
    request: &AppendEvent,
    body: &str,
    split: &ByScope<Vec<&Write>>,
) -> Result<(Vec<Row>, ByScope<Option<LockedScope>>), SessionError> {
    let AppendEvent { key, event, taken, .. } = request;
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let (keys, at, event_id) = (keys(&split.session), event.at.as_micros(), event.id.as_str());
    let taken: Vec<i64> = taken.iter().map(|position| to_db(*position)).collect();
    let given: SqlParameters<'_> = &[&app, &user, &id, &event_id, &body, &at, &keys, &taken];
    let (mut rows, of_app, of_user) = try_join!(biased;
        query(connection, READ_APPEND, given),
        lock_scope(connection, &key.app, None, &split.app),
        lock_scope(connection, &key.app, Some(&key.user), &split.user),
    )?;
    // NOTE: the snapshot of a statement that has waited for the lock is older than the row that it locked. With the lock
    // another one sees all.
    if !is_current(&rows) {
        rows = query(connection, READ_APPEND, given).await?;
    }
    Ok((rows, ByScope { app: of_app, user: of_user, session: None }))
}

/// Whether the snapshot of the statement has the session's row as it was locked.
fn is_current(rows: &[Row]) -> bool {
    let (locked, seen) = (rows_of(rows, Part::Session), rows_of(rows, Part::Seen));
    match (locked.first(), seen.first()) {
        (Some(locked), Some(seen)) => {
            locked.get::<i64>(0) == seen.get::<i64>(0)
                && locked.get::<i64>(1) == seen.get::<i64>(1)
                && locked.get::<i64>(17) == seen.get::<i64>(2)
                && locked.get::<&[u8]>(14) == seen.get::<&[u8]>(3)
        }
        (Some(_), None) => false,
        (None, _) => true,
    }
}

fn first_receipt(
    (rows, content): (&[Row], ContentKey<'_>),
    key: &SessionKey,
    (event, body): (&EventId, &str),
    scopes: ScopeVersions,
) -> Result<Option<Receipt>, SessionError> {
    let repeated = rows_of(rows, Part::Repeated);
    let Some(row) = repeated.first() else { return Ok(None) };
    if row.get::<i64>(1) == 1 || is_sealed_body(content, event, row.get(2), body)? {
        return Ok(Some(Receipt::new(event.clone(), from_db(row.get(0))).with_scopes(scopes)));
    }
    Err(SessionError::event_reused(key, event))
}
