//! The operations on budgets of both databases: every statement, and the order in which they run, once. A store runs the
//! statements inside its transaction; SQLite does so without waiting.
//!
//! Transactions of PostgreSQL lock rows in one order, so that none waits for another one in a circle: the rows of sessions,
//! those of shared scopes, requests in the list of spend, and budgets by their ids, last. An operation with several
//! reservations or sessions ends them all before it changes the first budget.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::lineage::{from_db, to_db};
use super::sql::{RowChange, RunSql, SharedSql, SqlRow, SqlValue};
use crate::error::SessionError;
use crate::ids::{AppId, Author, BudgetId, ReservationId, SessionId, SessionKey, UserId};
use crate::store::{
    AppendReservation, BudgetAmount, BudgetBalance, BudgetRaise, ListRaises, ListSpend, MAX_BUDGET_AMOUNT,
    MAX_WINDOW_PARTS, RaiseBudgets, ReadBudgets, ReservationEnd, ReserveSpend, SettleSpend, SpendAmounts,
    SpendRecord, SpendState,
};
use crate::time::Timestamp;

macro_rules! statements {
    ($($name:ident = $text:expr;)*) => {
        $(const $name: SharedSql = SharedSql($text);)*
    };
}

/// A sum as it counts: earlier versions could store negative ones, which would let more through than the limit.
macro_rules! counted {
    ($sum:literal) => {
        concat!("CASE WHEN ", $sum, " < 0 THEN 0 ELSE ", $sum, " END")
    };
}

statements! {
    ADD_REQUEST = "INSERT INTO stepfold_spend (id, app, owner, session, token, expires, at, state, model, amounts, \
        input_tokens, output_tokens, nanodollars) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) \
        ON CONFLICT (id) DO NOTHING";
    // NOTE: the condition and the change are one statement, as they are in that of a known row: no other worker can reserve in
    // between.
    RESERVE = concat!("INSERT INTO stepfold_budgets (budget, reserved, settled, kept_until) \
        SELECT CAST($1 AS TEXT), CAST($2 AS BIGINT), 0, CAST($3 AS BIGINT) WHERE $2 <= CAST($4 AS BIGINT) \
        OR EXISTS (SELECT 1 FROM stepfold_budgets WHERE budget = $1 AND raised_to >= $2) \
        ON CONFLICT (budget) DO UPDATE SET reserved = ", counted!("stepfold_budgets.reserved"), " + $2, \
        settled = ", counted!("stepfold_budgets.settled"), ", kept_until = $3 \
        WHERE ", counted!("stepfold_budgets.settled"), " + ", counted!("stepfold_budgets.reserved"), " + $2 \
        <= CASE WHEN stepfold_budgets.raised_to > $4 THEN stepfold_budgets.raised_to ELSE $4 END \
        RETURNING settled, reserved, raised_to");
    RAISE = "INSERT INTO stepfold_budgets (budget, reserved, settled, kept_until, raised_to) \
        VALUES ($1, 0, 0, $2, $3) ON CONFLICT (budget) DO UPDATE SET raised_to = $3 \
        WHERE stepfold_budgets.raised_to < $3 RETURNING settled";
    // NOTE: locks the row, so that the limit before a raise is that of the raise before it; and makes it, so that the first of
    // all raises has one to lock.
    LOCK = "INSERT INTO stepfold_budgets (budget, reserved, settled, kept_until, raised_to) VALUES ($1, 0, 0, $2, 0) \
        ON CONFLICT (budget) DO UPDATE SET raised_to = stepfold_budgets.raised_to RETURNING raised_to";
    ADD_RAISE = "INSERT INTO stepfold_raises (id, app, owner, counter, budget, shared_by, unit, author, at, \
        limit_before, limit_after) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
        ON CONFLICT (id) DO NOTHING RETURNING at";
    RAISES = "SELECT id, app, budget, shared_by, unit, author, COALESCE(owner, ''), at, limit_before, limit_after \
        FROM stepfold_raises WHERE (CAST($1 AS TEXT) IS NULL OR app = $1) \
        AND (CAST($2 AS TEXT) IS NULL OR owner = $2) ORDER BY at DESC, id DESC LIMIT $3";
    DROP_RAISES = "DELETE FROM stepfold_raises \
        WHERE substr(counter, 1, CAST(CAST($1 AS BIGINT) AS INTEGER)) = $2 RETURNING at";
    BALANCE = "SELECT settled, reserved, raised_to FROM stepfold_budgets WHERE budget = $1";
    // NOTE: a list of parameters, since the databases have no form for one of any length in common.
    WINDOW = concat!("SELECT CAST(COALESCE(SUM(", counted!("settled"), "), 0) AS BIGINT), \
        CAST(COALESCE(SUM(", counted!("reserved"), "), 0) AS BIGINT) \
        FROM stepfold_budgets WHERE budget IN ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)");
    RELEASE = "DELETE FROM stepfold_spend WHERE id = $1 AND state = 0 RETURNING amounts";
    MOVE = concat!("UPDATE stepfold_budgets SET reserved = CASE WHEN reserved < $1 THEN 0 ELSE reserved - $1 END, \
        settled = ", counted!("settled"), " + $2 WHERE budget = $3");
    WITH_PREFIX = "SELECT budget FROM stepfold_budgets \
        WHERE substr(budget, 1, CAST(CAST($1 AS BIGINT) AS INTEGER)) = $2";
    DROP = "DELETE FROM stepfold_budgets WHERE budget = $1 AND reserved = 0 RETURNING settled";
    OPEN = "SELECT id FROM stepfold_spend WHERE app = $1 AND owner = $2 AND session = $3 AND state = 0 ORDER BY id";
    OPEN_BEFORE = "SELECT id FROM stepfold_spend WHERE app = $1 AND owner = $2 AND session = $3 AND state = 0 \
        AND (token IS NULL OR token < $4) ORDER BY id";
    LIST = "SELECT id, app, owner, session, model, at, state, input_tokens, output_tokens, nanodollars \
        FROM stepfold_spend WHERE app = $1 AND at >= $2 AND at < $3 AND (at > $4 OR at = $4 AND id > $5) \
        AND (CAST($6 AS TEXT) IS NULL OR owner = $6) ORDER BY at, id LIMIT $7";
}

/// A change of the row with the key `$key`, with the columns that are read of it.
macro_rules! row_change {
    ($change:expr, key: $key:literal at $place:literal of $table:literal, read: $columns:literal) => {
        RowChange {
            returning: SharedSql(concat!($change, " RETURNING ", $columns)),
            #[cfg(feature = "sqlite")]
            change: SharedSql($change),
            #[cfg(feature = "sqlite")]
            read: SharedSql(concat!("SELECT ", $columns, " FROM ", $table, " WHERE ", $key, " = $1")),
            #[cfg(feature = "sqlite")]
            key: $place,
        }
    };
}

/// Reserves in a budget with a row and the same time; it touches no index. If it changes nothing, [`RESERVE`] decides.
const RESERVE_KNOWN: RowChange = row_change!(
    concat!("UPDATE stepfold_budgets SET reserved = ", counted!("reserved"), " + $1, \
        settled = ", counted!("settled"), " WHERE budget = $2 \
        AND ", counted!("settled"), " + ", counted!("reserved"), " + $1 \
        <= CASE WHEN raised_to > $3 THEN raised_to ELSE $3 END \
        AND (kept_until = CAST($4 AS BIGINT) OR kept_until IS NULL AND CAST($4 AS BIGINT) IS NULL)"),
    key: "budget" at 1 of "stepfold_budgets", read: "settled, reserved, raised_to"
);

const SETTLE: RowChange = row_change!(
    "UPDATE stepfold_spend SET state = $1, model = COALESCE(CAST($2 AS TEXT), model), \
        input_tokens = COALESCE(CAST($3 AS BIGINT), input_tokens), \
        output_tokens = COALESCE(CAST($4 AS BIGINT), output_tokens), \
        nanodollars = CASE WHEN $3 IS NULL THEN nanodollars ELSE CAST($5 AS BIGINT) END \
        WHERE id = $6 AND state = 0",
    key: "id" at 5 of "stepfold_spend", read: "amounts"
);

/// Deletes budgets whose time has come: some for each new one, so that no reservation waits for the deletion of many.
macro_rules! drop_ended {
    ($locking:literal) => {
        SharedSql(concat!(
            "DELETE FROM stepfold_budgets WHERE budget IN (SELECT budget FROM stepfold_budgets \
             WHERE kept_until < $1 AND reserved = 0 LIMIT 32",
            $locking,
            ") AND reserved = 0 RETURNING settled"
        ))
    };
}

/// A statement of one database: that deletion.
#[derive(Clone, Copy)]
pub(crate) struct DropEnded(SharedSql);

#[cfg(feature = "sqlite")]
pub(crate) const SQLITE: DropEnded = DropEnded(drop_ended!(""));

/// In PostgreSQL, it waits for no row that another transaction has locked: it has locks itself.
#[cfg(feature = "postgres")]
pub(crate) const POSTGRES: DropEnded = DropEnded(drop_ended!(" FOR UPDATE SKIP LOCKED"));

/// Reserves in all budgets; after an error the transaction is rolled back, so that no budget is changed.
pub(crate) async fn reserve(
    rows: &mut impl RunSql,
    drop_ended: DropEnded,
    request: &ReserveSpend,
) -> Result<Vec<BudgetBalance>, SessionError> {
    let mut changes = BudgetChanges::default();
    reserve_after(rows, drop_ended, (request, request.token), &mut changes).await
}

/// Ends reservations and makes one, in the transaction of an append that leaves the claim with this token. What does not fit
/// changes no budget, and the transaction continues.
pub(crate) async fn settle_and_reserve(
    rows: &mut impl RunSql,
    drop_ended: DropEnded,
    settled: &[SettleSpend],
    reserved: Option<(&ReserveSpend, Option<u64>)>,
) -> Result<Option<AppendReservation>, SessionError> {
    let (_, moved) = end_all(rows, settled).await?;
    let Some((request, token)) = reserved else {
        move_all(rows, moved).await?;
        return Ok(None);
    };
    let mut changes = BudgetChanges { moved, added: 0 };
    match reserve_after(rows, drop_ended, (request, token), &mut changes).await {
        Ok(balances) => Ok(Some(AppendReservation::Made(balances))),
        Err(SessionError::BudgetExhausted { .. }) => {
            take_back(rows, request, changes).await?;
            Ok(Some(AppendReservation::Refused))
        }
        Err(error) => Err(error),
    }
}

/// The changes of budgets that belong to a reservation.
#[derive(Default)]
struct BudgetChanges {
    /// The amounts of ended reservations, as far as they are not moved yet.
    moved: MovedAmounts,
    /// The number of its amounts that were added.
    added: usize,
}

/// Takes a refused reservation back, and moves what is left. The rows of added amounts are locked by then, so that all
/// changes are in one order of budgets.
async fn take_back(
    rows: &mut impl RunSql,
    request: &ReserveSpend,
    BudgetChanges { moved, added }: BudgetChanges,
) -> Result<(), SessionError> {
    rows.rows(RELEASE, &[SqlValue::Text(request.id.as_str())]).await?;
    for part in &request.amounts[..added] {
        move_one(rows, (part.budget.as_str().to_owned(), (part.amount, 0))).await?;
    }
    move_all(rows, moved).await
}

/// Reserves in all budgets, each after the amounts that are moved in it and before it.
async fn reserve_after(
    rows: &mut impl RunSql,
    DropEnded(drop_ended): DropEnded,
    (request, token): (&ReserveSpend, Option<u64>),
    BudgetChanges { moved, added }: &mut BudgetChanges,
) -> Result<Vec<BudgetBalance>, SessionError> {
    if let Some(token) = token.filter(|_| request.settles_earlier_claims) {
        end_of_earlier_claims(rows, &request.key, token, moved).await?;
    }
    let is_repeat = !add_request(rows, request, token).await?;
    let mut balances = Vec::with_capacity(request.amounts.len());
    for part in &request.amounts {
        // NOTE: both kinds of changes in one order of budgets.
        while let Some(first) = moved.first_entry().filter(|first| **first.key() <= *part.budget.as_str()) {
            move_one(rows, first.remove_entry()).await?;
        }
        balances.push(if is_repeat { balance(rows, &part.budget).await? } else { add(rows, part).await? });
        *added += usize::from(!is_repeat);
    }
    move_all(rows, std::mem::take(moved)).await?;
    let has_new = request.amounts.iter().zip(&balances).any(|(part, found)| is_new(part, found));
    // NOTE: after all rows are locked: workers that reserve in other parts of a window have a row in common with these.
    for (part, found) in request.amounts.iter().zip(&mut balances).filter(|(part, _)| !part.beside.is_empty())
    {
        let (settled, reserved) = beside(rows, part).await?;
        (found.settled, found.reserved) =
            (found.settled.saturating_add(settled), found.reserved.saturating_add(reserved));
        if !is_repeat && found.settled.saturating_add(found.reserved) > found.limit(part.limit) {
            found.reserved = found.reserved.saturating_sub(part.amount);
            return Err(SessionError::budget_exhausted(found.clone(), part.amount, part.limit));
        }
    }
    if has_new && !is_repeat {
        rows.rows(drop_ended, &[SqlValue::Int(request.at.as_micros())]).await?;
    }
    Ok(balances)
}

/// Adds a request to the list of spend; returns whether it was not there.
async fn add_request(
    rows: &mut impl RunSql,
    request: &ReserveSpend,
    token: Option<u64>,
) -> Result<bool, SessionError> {
    let amounts: Vec<(&str, u64)> =
        request.amounts.iter().map(|part| (part.budget.as_str(), part.amount)).collect();
    let amounts = serde_json::to_string(&amounts).map_err(stored)?;
    let SpendAmounts { input_tokens, output_tokens, nanodollars } = request.estimate;
    let [app, user, session] = session_values(&request.key);
    let values = [
        SqlValue::Text(request.id.as_str()),
        app,
        user,
        session,
        SqlValue::OptionalInt(token.map(to_db)),
        SqlValue::Int(request.expires.as_micros()),
        SqlValue::Int(request.at.as_micros()),
        SqlValue::Int(SpendState::Reserved.to_db()),
        SqlValue::Text(&request.model),
        SqlValue::Text(&amounts),
        SqlValue::Int(to_db(input_tokens)),
        SqlValue::Int(to_db(output_tokens)),
        SqlValue::OptionalInt(nanodollars.map(to_db)),
    ];
    Ok(rows.changed(ADD_REQUEST, &values).await? > 0)
}

/// Whether a reservation may have begun a window: then earlier ones may have ended.
fn is_new(part: &BudgetAmount, found: &BudgetBalance) -> bool {
    part.kept_until.is_some() && found.settled == 0 && found.reserved == part.amount
}

/// The settled and reserved amounts in the other parts of a rolling window.
async fn beside(rows: &mut impl RunSql, part: &BudgetAmount) -> Result<(u64, u64), SessionError> {
    let named = part.beside.iter().map(BudgetId::as_str).chain(std::iter::repeat(""));
    let values: Vec<SqlValue<'_>> = named.take(MAX_WINDOW_PARTS).map(SqlValue::Text).collect();
    match rows.rows(WINDOW, &values).await?.first() {
        Some(row) => Ok((from_db(row.int(0)?), from_db(row.int(1)?))),
        None => Ok((0, 0)),
    }
}

async fn add(rows: &mut impl RunSql, part: &BudgetAmount) -> Result<BudgetBalance, SessionError> {
    let BudgetAmount { budget, amount, limit, kept_until, .. } = part;
    let values = [
        SqlValue::Text(budget.as_str()),
        SqlValue::Int(to_db(*amount)),
        SqlValue::OptionalInt(kept_until.map(Timestamp::as_micros)),
        SqlValue::Int(to_db(*limit)),
    ];
    let [name, amount_value, kept, limit_value] = &values;
    if let Some(row) = rows.change(RESERVE_KNOWN, &[*amount_value, *name, *limit_value, *kept]).await?.first()
    {
        return balance_of(budget, row);
    }
    match rows.rows(RESERVE, &values).await?.first() {
        Some(row) => balance_of(budget, row),
        None => Err(SessionError::budget_exhausted(balance(rows, budget).await?, *amount, *limit)),
    }
}

async fn balance(rows: &mut impl RunSql, budget: &BudgetId) -> Result<BudgetBalance, SessionError> {
    match rows.rows(BALANCE, &[SqlValue::Text(budget.as_str())]).await?.first() {
        Some(row) => balance_of(budget, row),
        None => Ok(BudgetBalance::new(budget.clone(), 0, 0)),
    }
}

fn balance_of(budget: &BudgetId, row: &SqlRow) -> Result<BudgetBalance, SessionError> {
    let sums = BudgetBalance::new(budget.clone(), from_db(row.int(0)?), from_db(row.int(1)?));
    Ok(sums.raised_to(from_db(row.int(2)?)))
}

/// Raises the limits of budgets, unless they were raised to as much before.
pub(crate) async fn raise(rows: &mut impl RunSql, request: &RaiseBudgets) -> Result<(), SessionError> {
    let RaiseBudgets { budgets, limit, kept_until, record } = request;
    let kept_until = SqlValue::OptionalInt(kept_until.map(Timestamp::as_micros));
    let before = match (record, budgets.first()) {
        (Some(_), Some(budget)) => rows.rows(LOCK, &[SqlValue::Text(budget.as_str()), kept_until]).await?,
        _ => Vec::new(),
    };
    let mut is_raised = false;
    for budget in budgets {
        let values = [SqlValue::Text(budget.as_str()), kept_until, SqlValue::Int(to_db(*limit))];
        is_raised |= !rows.rows(RAISE, &values).await?.is_empty();
    }
    match (record, budgets.first()) {
        (Some(record), Some(budget)) if is_raised => {
            let raised_to = before.first().map_or(Ok(0), |row| row.int(0)).map(from_db)?;
            add_raise(rows, budget, record, record.from.max(raised_to)).await
        }
        _ => Ok(()),
    }
}

async fn add_raise(
    rows: &mut impl RunSql,
    counter: &BudgetId,
    record: &BudgetRaise,
    from: u64,
) -> Result<(), SessionError> {
    let BudgetRaise { id, app, user, budget, shared_by, unit, by, at, to, .. } = record;
    let values = [
        SqlValue::Text(id),
        SqlValue::Text(app.as_str()),
        SqlValue::OptionalText(user.as_ref().map(UserId::as_str)),
        SqlValue::Text(counter.as_str()),
        SqlValue::Text(budget),
        SqlValue::Text(shared_by),
        SqlValue::Text(unit),
        SqlValue::Text(by.as_str()),
        SqlValue::Int(at.as_micros()),
        SqlValue::Int(to_db(from)),
        SqlValue::Int(to_db(*to)),
    ];
    rows.rows(ADD_RAISE, &values).await.map(drop)
}

/// The recorded raises, newest first.
pub(crate) async fn raises(
    rows: &mut impl RunSql,
    request: &ListRaises,
) -> Result<Vec<BudgetRaise>, SessionError> {
    let ListRaises { app, user, limit } = request;
    let values = [
        SqlValue::OptionalText(app.as_ref().map(AppId::as_str)),
        SqlValue::OptionalText(user.as_ref().map(UserId::as_str)),
        SqlValue::Int(to_db(*limit as u64)),
    ];
    rows.rows(RAISES, &values).await?.iter().map(raise_of).collect()
}

fn raise_of(row: &SqlRow) -> Result<BudgetRaise, SessionError> {
    let text = |column| row.text(column).map(Arc::<str>::from);
    let user = Some(text(6)?).filter(|user| !user.is_empty()).map(UserId::new).transpose()?;
    Ok(BudgetRaise {
        id: text(0)?,
        app: AppId::new(text(1)?)?,
        user,
        budget: text(2)?,
        shared_by: text(3)?,
        unit: text(4)?,
        by: Author::new(text(5)?)?,
        at: Timestamp::from_micros(row.int(0)?),
        from: from_db(row.int(1)?),
        to: from_db(row.int(2)?),
    })
}

/// The sums of budgets, in the order of the request.
pub(crate) async fn balances(
    rows: &mut impl RunSql,
    request: &ReadBudgets,
) -> Result<Vec<BudgetBalance>, SessionError> {
    let mut balances = Vec::with_capacity(request.budgets.len());
    for budget in &request.budgets {
        balances.push(balance(rows, budget).await?);
    }
    Ok(balances)
}

/// Ends reservations; returns whether one of them was open.
pub(crate) async fn settle(rows: &mut impl RunSql, requests: &[SettleSpend]) -> Result<bool, SessionError> {
    let (was_open, moved) = end_all(rows, requests).await?;
    move_all(rows, moved).await?;
    Ok(was_open)
}

/// Ends reservations in the list of spend; returns whether one of them was open, and the amounts, which are not moved yet.
pub(crate) async fn end_all(
    rows: &mut impl RunSql,
    requests: &[SettleSpend],
) -> Result<(bool, MovedAmounts), SessionError> {
    let (mut was_open, mut moved) = (false, MovedAmounts::new());
    for request in requests {
        was_open |= end(rows, request, &mut moved).await?;
    }
    Ok((was_open, moved))
}

/// Moves the amounts of ended reservations, and deletes the budgets whose ids begin with one of these, except those in which
/// something is still reserved: the requests of another app. Deletes the records of their raises too. Returns the number of
/// deleted budgets.
pub(crate) async fn move_and_drop(
    rows: &mut impl RunSql,
    mut moved: MovedAmounts,
    prefixes: &[String],
) -> Result<u64, SessionError> {
    let mut dropped = 0;
    for budget in with_prefixes(rows, prefixes).await? {
        // NOTE: both kinds of changes in one order of budgets.
        while let Some(first) = moved.first_entry().filter(|first| *first.key() <= budget) {
            move_one(rows, first.remove_entry()).await?;
        }
        dropped += rows.rows(DROP, &[SqlValue::Text(&budget)]).await?.len() as u64;
    }
    move_all(rows, moved).await?;
    for prefix in prefixes {
        let length = SqlValue::Int(to_db(prefix.chars().count() as u64));
        rows.rows(DROP_RAISES, &[length, SqlValue::Text(prefix)]).await?;
    }
    Ok(dropped)
}

/// The budgets whose ids begin with one of these.
pub(crate) async fn with_prefixes(
    rows: &mut impl RunSql,
    prefixes: &[String],
) -> Result<BTreeSet<String>, SessionError> {
    let mut found = BTreeSet::new();
    for prefix in prefixes {
        let length = to_db(prefix.chars().count() as u64);
        for row in rows.rows(WITH_PREFIX, &[SqlValue::Int(length), SqlValue::Text(prefix)]).await? {
            found.insert(row.text(0)?.to_owned());
        }
    }
    Ok(found)
}

/// The amounts that leave the reserved sum of each budget, and enter its settled one: in the order of budgets, so that
/// transactions cannot wait for each other in a circle.
pub(crate) type MovedAmounts = BTreeMap<String, (u64, u64)>;

/// Ends a reservation in the list of spend, and adds its amounts to those that are moved.
async fn end(
    rows: &mut impl RunSql,
    request: &SettleSpend,
    moved: &mut MovedAmounts,
) -> Result<bool, SessionError> {
    let id = request.id.as_str();
    let ended = match &request.end {
        ReservationEnd::Actual { model, actual, .. } => {
            let SpendAmounts { input_tokens, output_tokens, nanodollars } = *actual;
            let tokens = Some((to_db(input_tokens), to_db(output_tokens)));
            let state = SpendState::Settled;
            mark(rows, id, state, (model.as_deref(), tokens, nanodollars.map(to_db))).await?
        }
        ReservationEnd::Estimate => mark(rows, id, SpendState::Unsettled, (None, None, None)).await?,
        ReservationEnd::Release => rows.rows(RELEASE, &[SqlValue::Text(id)]).await?,
    };
    let Some(row) = ended.first() else { return Ok(false) };
    let reserved: Vec<(String, u64)> = serde_json::from_str(row.text(0)?).map_err(stored)?;
    for (budget, amount) in reserved {
        let settled = settled_amount(&request.end, &budget, amount);
        let sums = moved.entry(budget).or_default();
        *sums = (sums.0.saturating_add(amount), sums.1.saturating_add(settled));
    }
    Ok(true)
}

async fn move_all(rows: &mut impl RunSql, moved: MovedAmounts) -> Result<(), SessionError> {
    for entry in moved {
        move_one(rows, entry).await?;
    }
    Ok(())
}

async fn move_one(
    rows: &mut impl RunSql,
    (budget, (reserved, settled)): (String, (u64, u64)),
) -> Result<(), SessionError> {
    let values = [SqlValue::Int(to_db(reserved)), SqlValue::Int(to_db(settled)), SqlValue::Text(&budget)];
    // NOTE: a budget in which something is reserved keeps its row, except one that an earlier release erased with its user.
    rows.changed(MOVE, &values).await.map(drop)
}

type ActualColumns<'a> = (Option<&'a str>, Option<(i64, i64)>, Option<i64>);

async fn mark(
    rows: &mut impl RunSql,
    id: &str,
    state: SpendState,
    (model, tokens, nanodollars): ActualColumns<'_>,
) -> Result<Vec<SqlRow>, SessionError> {
    let values = [
        SqlValue::Int(state.to_db()),
        SqlValue::OptionalText(model),
        SqlValue::OptionalInt(tokens.map(|(input, _)| input)),
        SqlValue::OptionalInt(tokens.map(|(_, output)| output)),
        SqlValue::OptionalInt(nanodollars),
        SqlValue::Text(id),
    ];
    rows.change(SETTLE, &values).await
}

/// The amount that a budget settles, of the amount that it reserved.
fn settled_amount(end: &ReservationEnd, budget: &str, reserved: u64) -> u64 {
    match end {
        ReservationEnd::Release => 0,
        ReservationEnd::Estimate => reserved,
        ReservationEnd::Actual { amounts, .. } => {
            let actual = amounts.iter().find(|(named, _)| named.as_str() == budget);
            actual.map_or(reserved, |(_, amount)| (*amount).min(MAX_BUDGET_AMOUNT))
        }
    }
}

/// Settles the open reservations of sessions at their estimates; returns their number.
pub(crate) async fn settle_open(rows: &mut impl RunSql, keys: &[SessionKey]) -> Result<u64, SessionError> {
    let mut open = Vec::new();
    for key in keys {
        open.extend(rows.rows(OPEN, &session_values(key)).await?);
    }
    let (mut settled, mut moved) = (0, MovedAmounts::new());
    for row in &open {
        settled += u64::from(end_at_estimate(rows, row, &mut moved).await?);
    }
    move_all(rows, moved).await?;
    Ok(settled)
}

/// Ends what workers with earlier claims of the session have left, and adds its amounts to those that are moved.
async fn end_of_earlier_claims(
    rows: &mut impl RunSql,
    key: &SessionKey,
    token: u64,
    moved: &mut MovedAmounts,
) -> Result<(), SessionError> {
    let [app, user, id] = session_values(key);
    let open = rows.rows(OPEN_BEFORE, &[app, user, id, SqlValue::Int(to_db(token))]).await?;
    for row in &open {
        end_at_estimate(rows, row, moved).await?;
    }
    Ok(())
}

fn session_values(key: &SessionKey) -> [SqlValue<'_>; 3] {
    let SessionKey { app, user, id } = key;
    [SqlValue::Text(app.as_str()), SqlValue::Text(user.as_str()), SqlValue::Text(id.as_str())]
}

async fn end_at_estimate(
    rows: &mut impl RunSql,
    row: &SqlRow,
    moved: &mut MovedAmounts,
) -> Result<bool, SessionError> {
    let request = SettleSpend::new(ReservationId::new(row.text(0)?)?, ReservationEnd::Estimate);
    end(rows, &request, moved).await
}

/// A page of the list of spend.
pub(crate) async fn list(
    rows: &mut impl RunSql,
    request: &ListSpend,
) -> Result<Vec<SpendRecord>, SessionError> {
    let ListSpend { app, user, since, until, after, limit } = request;
    let (after_at, after_id) = match after {
        Some((at, id)) => (at.as_micros(), id.as_str()),
        None => (i64::MIN, ""),
    };
    let values = [
        SqlValue::Text(app.as_str()),
        SqlValue::Int(since.as_micros()),
        SqlValue::Int(until.as_micros()),
        SqlValue::Int(after_at),
        SqlValue::Text(after_id),
        SqlValue::OptionalText(user.as_ref().map(UserId::as_str)),
        SqlValue::Int(to_db(*limit as u64)),
    ];
    rows.rows(LIST, &values).await?.iter().map(record).collect()
}

fn record(row: &SqlRow) -> Result<SpendRecord, SessionError> {
    let key = SessionKey {
        app: AppId::new(row.text(1)?)?,
        user: UserId::new(row.text(2)?)?,
        id: SessionId::new(row.text(3)?)?,
    };
    let nanodollars = row.ints.get(4).copied().flatten().map(from_db);
    Ok(SpendRecord::new(
        ReservationId::new(row.text(0)?)?,
        key,
        Timestamp::from_micros(row.int(0)?),
        Arc::from(row.text(4)?),
        SpendState::from_db(row.int(1)?)?,
        SpendAmounts::new(from_db(row.int(2)?), from_db(row.int(3)?), nanodollars),
    ))
}

fn stored(source: serde_json::Error) -> SessionError {
    SessionError::Stored { what: "amounts of a reservation".to_owned(), source }
}
