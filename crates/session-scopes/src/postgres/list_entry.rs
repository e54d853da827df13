//! Search in the list of sessions.

use std::time::Duration;

use tokio_postgres::{GenericClient, Row};

use super::connection::Object;
use super::error::failed;
use super::pooler::typed;
use super::rows::{PostgresHistory, PostgresSessionRow};
use super::statements::{
    EVENTS, PAGE_OF_SESSIONS, PUT_LISTED, READ_LINEAGE, READ_LISTED, READ_REWINDS, READ_SESSION, SqlStatement,
};
use super::transaction::{SqlParameters, with_timeout};
use crate::error::{ErrorKind, SessionError};
use crate::event::{CommittedEvent, Event, FIRST, ListEntry};
use crate::ids::{EventId, SessionKey};
use crate::keys::sealer::{ContentKey, Place};
use crate::rows::lineage::{from_db, to_db};
use crate::store::page_of;
use crate::time::Timestamp;

/// Sessions per query.
const PAGE: i64 = 500;

/// Runs an unnamed statement: these are few, and some run before any is prepared.
async fn ask(
    client: &impl GenericClient,
    sql: SqlStatement,
    given: SqlParameters<'_>,
) -> Result<Vec<Row>, SessionError> {
    client.query_typed(sql.text(), &typed(given)?).await.map_err(failed("list sessions"))
}

/// The number of a session, and its list entry according to its events. Sealed messages are not in it.
async fn entry_from_events(
    client: &impl GenericClient,
    content: ContentKey<'_>,
    key: &SessionKey,
) -> Result<(i64, ListEntry), SessionError> {
    let (app, user, id) = (key.app.as_str(), key.user.as_str(), key.id.as_str());
    let row = PostgresSessionRow::of(&ask(client, READ_SESSION, &[&app, &user, &id]).await?, key)?;
    let lineage = ask(client, READ_LINEAGE, &[&app, &user, &id]).await?;
    let rewinds = ask(client, READ_REWINDS, &[&app, &user, &id, &i64::MAX]).await?;
    let visible: Vec<_> = PostgresHistory::read(&lineage, &rewinds, &row, None)?.visible.ranges().collect();
    let newest = visible.iter().rev().find(|(first, last)| first <= last).map(|(_, last)| *last);
    let newest = newest.filter(|newest| *newest > row.oldest);
    let mut ranges = page_of(&visible, row.oldest, FIRST);
    let last_of_first = ranges.last().map_or(0, |(_, last)| *last);
    ranges.extend(newest.map(|newest| (newest, newest)));
    let (firsts, lasts): (Vec<i64>, Vec<i64>) =
        ranges.iter().map(|(first, last)| (to_db(*first), to_db(*last))).unzip();
    let rows = ask(client, EVENTS, &[&row.number, &0_i64, &firsts, &lasts, &i64::MAX]).await?;
    let newest = rows.iter().find(|row| Some(from_db(row.get(0))) == newest);
    let is_unfinished = match newest.map(|row| event(row, content)).transpose() {
        Ok(newest) => newest.is_some_and(|newest| newest.event.is_unfinished()),
        // NOTE: retention works without the key of the user: what is stored stays.
        Err(SessionError::Sealed { .. }) => stored_entry(client, key, row.number).await?.is_unfinished,
        Err(error) => return Err(error),
    };
    let first = rows.iter().rev().filter(|row| from_db(row.get(0)) <= last_of_first);
    let first: Vec<CommittedEvent> =
        first.map(|row| event(row, ContentKey::Unopened)).collect::<Result<_, _>>()?;
    Ok((row.number, ListEntry::of(key, &first, is_unfinished)))
}

fn event(row: &Row, content: ContentKey<'_>) -> Result<CommittedEvent, SessionError> {
    let (id, at): (&str, _) = (row.get(1), Timestamp::from_micros(row.get(2)));
    let event = Event::from_body(EventId::new(id)?, at, &content.open(Place::event(id), row.get(3))?)?;
    Ok(CommittedEvent::new(from_db(row.get(0)), event))
}

async fn stored_entry(
    client: &impl GenericClient,
    key: &SessionKey,
    number: i64,
) -> Result<ListEntry, SessionError> {
    let stored = ask(client, READ_LISTED, &[&number]).await?;
    let stored = stored.first().ok_or_else(|| SessionError::not_found(key))?;
    Ok(ListEntry { is_unfinished: stored.get(0), searched: stored.get(1) })
}

async fn write(client: &impl GenericClient, number: i64, listed: &ListEntry) -> Result<(), SessionError> {
    ask(client, PUT_LISTED, &[&number, &listed.is_unfinished, &listed.searched]).await.map(drop)
}

/// Updates a session's list entry from its events, after a change that shows or hides earlier ones.
pub(super) async fn update_entry(connection: &Object, key: &SessionKey) -> Result<(), SessionError> {
    let client: &tokio_postgres::Client = connection;
    let (number, listed) = entry_from_events(client, connection.key(), key).await?;
    write(client, number, &listed).await
}

/// Updates the entries of all sessions, which were stored before they could be searched. Each has its own timeout.
pub(super) async fn update_all_entries(
    transaction: &tokio_postgres::Transaction<'_>,
    answer_timeout: Duration,
) -> Result<(), SessionError> {
    let mut after = 0_i64;
    loop {
        let page =
            with_timeout(answer_timeout, ask(transaction, PAGE_OF_SESSIONS, &[&after, &None::<&str>, &PAGE]))
                .await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.get(0);
        for row in &page {
            let [app, user, id] = [1, 2, 3].map(|column| row.get::<_, String>(column));
            // NOTE: a damaged session must not stop an upgrade of the tables; its readers report the damage.
            let Ok(key) = SessionKey::new(app, user, id) else { continue };
            let listed =
                with_timeout(answer_timeout, entry_from_events(transaction, ContentKey::Missing, &key)).await;
            let listed = match listed {
                Ok((_, listed)) => listed,
                Err(error) if error.kind() == ErrorKind::Transient => return Err(error),
                Err(_) => ListEntry::unknown(&key),
            };
            with_timeout(answer_timeout, write(transaction, row.get(0), &listed)).await?;
        }
    }
}

/// Compares a session's list entry with its events.
pub(super) async fn verify(connection: &Object, key: &SessionKey) -> Result<(), SessionError> {
    let client: &tokio_postgres::Client = connection;
    // NOTE: without a key, so that the mark of an unfinished run of a sealed event is as it is stored.
    let (number, events) = entry_from_events(client, ContentKey::Missing, key).await?;
    events.check(&stored_entry(client, key, number).await?, key)
}
