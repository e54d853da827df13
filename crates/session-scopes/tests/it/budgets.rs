//! Budgets in databases: transactions of PostgreSQL that lock their rows in one order never wait for each other in a circle,
//! and negative sums of earlier versions let nothing more through.

use std::time::Duration;

use futures_util::future::join_all;
use stepfold_session_scopes::{
    Author, BudgetAmount, BudgetId, ClaimSession, EraseData, EraseTarget, ErasureId, ErrorKind,
    PostgresStore, ReadBudgets, ReservationEnd, ReservationId, ReserveSpend, SessionError, SessionKey,
    SessionStore, SettleSpend, SpendAmounts, WorkerId,
};
use tokio_postgres::NoTls;

use crate::scenario::{address_in, at, create, open};
use crate::server::server;

const BUDGETS: [&str; 4] = ["b1", "b2", "b3", "b4"];

fn key(number: usize) -> SessionKey {
    SessionKey::new("app", "ada", format!("s{number}")).unwrap()
}

fn reserving(key: &SessionKey, id: &str, budgets: &[&str]) -> ReserveSpend {
    let amount = |name: &&str| BudgetAmount::new(BudgetId::new(*name).unwrap(), 1, 1_000_000);
    let id = ReservationId::new(id).unwrap();
    let request = ReserveSpend::new(id, key.clone(), "test/model", SpendAmounts::new(1, 1, None), at(0));
    request.with(budgets.iter().map(amount))
}

/// The deadlocks that the server has ended in this database.
async fn deadlocks(address: &str) -> i64 {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await.unwrap();
    tokio::spawn(connection);
    // tidy: allow sleep, because the server reports its statistics with a delay of up to a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let found = client
        .query_one("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()", &[])
        .await
        .unwrap();
    found.get(0)
}

/// Requests of a session: reservations, of which one in so many is left open, until the session is erased.
async fn spend(store: &PostgresStore, key: &SessionKey, number: usize, open_each: usize) {
    for round in 0..1_000 {
        let (one, other) = (BUDGETS[(number + round) % 4], BUDGETS[(number * 3 + round) % 4]);
        let id = format!("{key}/{round}");
        match store.reserve(reserving(key, &id, &[one, other])).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(error) => panic!("{error}"),
        }
        if round % open_each + 1 != open_each {
            let end = SettleSpend::new(ReservationId::new(id).unwrap(), ReservationEnd::Estimate);
            store.settle(end).await.unwrap();
        }
    }
}

/// A user is erased, with budgets, while all of its sessions, and those of another app, spend from them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_erasure_of_sessions_that_spend_makes_no_deadlock() {
    let Some(server) = server() else { return };
    let address = server.database("erased_budgets").await;
    let store = PostgresStore::open(address.as_str()).await.unwrap();
    for round in 0..10 {
        for number in 0..8 {
            create(&store, &key(number)).await;
        }
        let tasks = (0..8).map(|number| {
            let store = store.clone();
            tokio::spawn(async move { spend(&store, &key(number), number, 2).await })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut others = Vec::new();
        for number in 0..2 {
            let other = SessionKey::new("other", "alice", format!("{round} {number}")).unwrap();
            create(&store, &other).await;
            let store = store.clone();
            others.push(tokio::spawn(async move { spend(&store, &other, number, usize::MAX).await }));
        }
        let target = EraseTarget::User { app: key(0).app, user: key(0).user };
        let id = ErasureId::new(format!("erasure {round}")).unwrap();
        let author = Author::new("admin").unwrap();
        let erase = EraseData::new(id, target, at(1), author, "as the test wants");
        store.erase(erase.with_budgets(BUDGETS.map(str::to_owned))).await.unwrap();
        join_all(tasks).await.into_iter().for_each(|task| task.unwrap());
        for other in others {
            other.abort();
            assert!(!other.await.is_err_and(|error| error.is_panic()));
        }
    }
    assert_eq!(deadlocks(&address).await, 0);
}

/// A new worker settles what earlier claims have left in one budget, and reserves in another one; at the same time for two
/// sessions, in opposite order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reservations_that_settle_earlier_claims_make_no_deadlock() {
    let Some(server) = server() else { return };
    let address = server.database("settled_budgets").await;
    let store = PostgresStore::open(address.as_str()).await.unwrap();
    for number in 0..8 {
        create(&store, &key(number)).await;
    }
    for round in 0..40 {
        let turns = (0..8).map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                let (key, owner) = (key(number), WorkerId::new(format!("w{round}")).unwrap());
                let claim = ClaimSession::new(key.clone(), owner, Duration::from_secs(60), at(0)).take_over();
                let token = store.claim(claim).await.unwrap().token;
                let (first, last) = if number % 2 == 0 { ("b1", "b4") } else { ("b4", "b1") };
                // The next round finds it open, in the budget that the other half reserves in first.
                let budget = if round % 2 == 0 { first } else { last };
                let request = reserving(&key, &format!("{key}/{round}"), &[budget]);
                let request = request.under_claim(Some(token), at(60)).settling_earlier_claims();
                store.reserve(request).await.unwrap();
            })
        });
        join_all(turns).await.into_iter().for_each(|turn| turn.unwrap());
    }
    assert_eq!(deadlocks(&address).await, 0);
}

/// The sums of rows as an earlier version could leave them.
const SUMS: [i64; 4] = [-1_000_000, -1, 0, 7];
/// The limit of the budgets that have them.
const LIMIT: u64 = 20;

/// The statements that write a row for each pair of sums.
fn rows_of_earlier_versions() -> String {
    let pairs = SUMS.iter().flat_map(|settled| SUMS.map(|reserved| (*settled, reserved)));
    let row = |(settled, reserved): (i64, i64)| {
        format!(
            "INSERT INTO stepfold_budgets (budget, settled, reserved) \
             VALUES ('{settled} {reserved}', {settled}, {reserved}); "
        )
    };
    pairs.map(row).collect()
}

fn counted(sum: i64) -> u64 {
    u64::try_from(sum).unwrap_or(0)
}

/// For any stored sums, what fits is the limit without those that are positive: alone, and beside another part of a window.
async fn negative_sums_count_as_nothing(store: &impl SessionStore) {
    create(store, &key(0)).await;
    let reserving = |id: &str, amount: BudgetAmount| {
        let id = ReservationId::new(id).unwrap();
        let request = ReserveSpend::new(id, key(0), "test/model", SpendAmounts::new(1, 1, None), at(0));
        request.with([amount])
    };
    for (settled, reserved) in SUMS.iter().flat_map(|settled| SUMS.map(|reserved| (*settled, reserved))) {
        let name = format!("{settled} {reserved}");
        let budget = BudgetId::new(name.as_str()).unwrap();
        let (spent, open) = (counted(settled), counted(reserved));
        let room = LIMIT - spent - open;
        for is_beside in [true, false] {
            let amount = |amount: u64| match is_beside {
                true => BudgetAmount::new(BudgetId::new(format!("{name} beside")).unwrap(), amount, LIMIT)
                    .beside([budget.clone()]),
                false => BudgetAmount::new(budget.clone(), amount, LIMIT),
            };
            let id = format!("{name} {is_beside}");
            store.reserve(reserving(&id, amount(room))).await.unwrap();
            let refused = store.reserve(reserving(&format!("{id} refused"), amount(1))).await;
            assert!(
                matches!(refused, Err(SessionError::BudgetExhausted { .. })),
                "{name}, beside {is_beside}: {refused:?}"
            );
            let end = if is_beside { ReservationEnd::Release } else { ReservationEnd::Estimate };
            store.settle(SettleSpend::new(ReservationId::new(id).unwrap(), end)).await.unwrap();
        }
        let found = &store.balances(ReadBudgets::new([budget])).await.unwrap()[0];
        assert_eq!((found.settled, found.reserved), (spent + room, open), "{name}");
    }
}

#[tokio::test]
async fn negative_sums_of_earlier_versions_let_nothing_more_through() {
    let folder = tempfile::tempdir().unwrap();
    let address = address_in(folder.path());
    let store = open(&address).await;
    let file = rusqlite::Connection::open(&address).unwrap();
    file.execute_batch(&rows_of_earlier_versions()).unwrap();
    negative_sums_count_as_nothing(&store).await;

    let Some(server) = server() else { return };
    let address = server.database("negative_budgets").await;
    let store = PostgresStore::open(address.as_str()).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&address, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&rows_of_earlier_versions()).await.unwrap();
    negative_sums_count_as_nothing(&store).await;
}
