//! Claims among processes: one of many takes a session, a killed one holds it until its claim expires, and one that
//! lost it commits nothing.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::time::Duration;

use serde_json::{Value, json};
use stepfold_session_scopes::{
    AnyStore, AppendClaim, AppendEvent, Claim, ClaimSession, Receipt, Session, SessionError, SessionStore,
    TakeOver, Timestamp, WorkerId,
};

use crate::children::start;
use crate::scenario::{address_in, at, create, get, key, open, schema, writing};
use crate::server::server;

const HOUR: Duration = Duration::from_secs(3600);

/// For how long a process holds a session. The clock of a server cannot be set forward, so a claim there has to expire
/// within the time of a test; it is renewed when half of its time is over.
fn held_for(address: &str) -> Duration {
    if address.starts_with("postgres://") { Duration::from_secs(10) } else { HOUR }
}

const SESSIONS: usize = 40;

fn worker(number: impl ToString) -> WorkerId {
    WorkerId::new(format!("worker-{}", number.to_string())).unwrap()
}

async fn claim(
    store: &AnyStore,
    session: usize,
    owner: impl ToString,
    now: Timestamp,
) -> Result<Claim, SessionError> {
    store.claim(ClaimSession::new(key(session), worker(owner), HOUR, now)).await
}

async fn append_under(
    store: &AnyStore,
    session: usize,
    version: u64,
    claim: AppendClaim,
) -> Result<Receipt, SessionError> {
    // Every other one without writes: stores may go two ways.
    let writes = [("n", json!(1))];
    let event = writing(version, if version.is_multiple_of(2) { &writes } else { &[] });
    store.append(AppendEvent::new(key(session), version, event, &schema()).with_claim(claim)).await
}

/// What a child does: claims each session, and says which it got.
pub(crate) async fn claim_all(number: &str, address: &str) {
    let store = open(address).await;
    for session in 0..SESSIONS {
        match claim(&store, session, number, at(1)).await {
            Ok(claim) => println!("told {session} {}", claim.token),
            Err(SessionError::Claimed { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// What a child does: takes a session with its first event, and continues until it has lost it. Says each version, and
/// the token under which it came to be.
pub(crate) async fn append_until_lost(number: &str, address: &str) {
    let store = open(address).await;
    let duration = held_for(address);
    let take = AppendClaim::Take { owner: worker(number), duration, take_over: TakeOver::Never };
    let first = append_under(&store, 0, 0, take).await.unwrap();
    let (token, mut version) = (first.claim.unwrap().token, first.version);
    loop {
        println!("told {version} {token}");
        let hold = AppendClaim::Hold { token, duration };
        match append_under(&store, 0, version, hold).await {
            Ok(receipt) => version = receipt.version,
            Err(SessionError::ClaimLost { .. }) => return println!("told 0 {token}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// What an append changes.
fn seen(session: &Session) -> (u64, Option<Claim>, Value) {
    (session.version, session.claim.clone(), session.to_json())
}

/// The pairs of numbers that a child tells.
fn told(child: &mut Child) -> impl Iterator<Item = (u64, u64)> + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.filter_map(|line| {
        let (_, told) = line.split_once("told ")?;
        let (first, second) = told.split_once(' ')?;
        Some((first.parse().unwrap(), second.parse().unwrap()))
    })
}

async fn one_of_many_processes_claims(address: &str) {
    let store = open(address).await;
    for session in 0..SESSIONS {
        create(&store, &key(session)).await;
    }
    let mut children: Vec<Child> = (0..6).map(|number| start("claim", address, number)).collect();
    let mut won = vec![Vec::new(); SESSIONS];
    for (number, child) in children.iter_mut().enumerate() {
        for (session, token) in told(child) {
            won[usize::try_from(session).unwrap()].push((worker(number), token));
        }
        assert!(child.wait().unwrap().success());
    }
    for (session, winners) in won.into_iter().enumerate() {
        let claim = get(&store, &key(session)).await.claim.unwrap();
        assert_eq!(winners, [(claim.owner, claim.token)], "session {session}");
    }
}

/// Claims a session as soon as it is free.
async fn claim_once_free(store: &AnyStore, session: usize, owner: usize, now: Timestamp) -> Claim {
    loop {
        match claim(store, session, owner, now).await {
            Ok(claim) => return claim,
            // tidy: allow sleep, because a server's clock cannot be waited for
            Err(SessionError::Claimed { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn a_killed_holder_is_followed_when_its_claim_expires(address: &str) {
    let store = open(address).await;
    create(&store, &key(0)).await;
    let mut holder = start("hold", address, 1);
    let (mut version, mut token) = (0, 0);
    let mut lines = told(&mut holder);
    for (told, under) in lines.by_ref().take(7) {
        (version, token) = (told, under);
    }
    assert_eq!(version, 7);
    holder.kill().unwrap();
    holder.wait().unwrap();
    version = lines.last().map_or(version, |(told, _)| told);
    // No worker releases the claim for it.
    match claim(&store, 0, 2, at(2)).await {
        Err(SessionError::Claimed { owner, .. }) => assert_eq!(owner, worker(1)),
        other => panic!("{other:?}"),
    }
    let taken = claim_once_free(&store, 0, 2, at(2).after(HOUR)).await;
    assert!(taken.token > token, "{taken:?} follows {token}");
    // Acknowledged events are stored, and unfinished requests of the killed process have no effect.
    let session = get(&store, &key(0)).await;
    assert!(session.version >= version, "{version} was acknowledged, {} is there", session.version);
    let stale = AppendClaim::Hold { token, duration: HOUR };
    for next in [session.version, session.version + 1] {
        let refused = append_under(&store, 0, next, stale.clone()).await.unwrap_err();
        assert!(matches!(refused, SessionError::ClaimLost { .. }), "{refused}");
    }
    assert_eq!(seen(&get(&store, &key(0)).await), seen(&session));
    let hold = AppendClaim::Hold { token: taken.token, duration: HOUR };
    assert_eq!(append_under(&store, 0, session.version, hold).await.unwrap().claim, Some(taken));
}

async fn a_process_that_lost_its_claim_commits_nothing(address: &str) {
    let store = open(address).await;
    create(&store, &key(0)).await;
    let mut holder = start("hold", address, 1);
    let mut lines = told(&mut holder);
    let (_, token) = lines.nth(4).unwrap();
    let request = ClaimSession::new(key(0), worker(2), HOUR, at(2)).take_over();
    let taken = store.claim(request).await.unwrap();
    let session = get(&store, &key(0)).await;
    // It is at work, and finds out by its next append.
    assert_eq!(lines.last(), Some((0, token)));
    assert!(holder.wait().unwrap().success());
    assert_eq!(seen(&get(&store, &key(0)).await), seen(&session));
    assert_eq!(session.claim, Some(taken));
}

#[tokio::test]
async fn one_of_many_processes_claims_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    one_of_many_processes_claims(&address_in(folder.path())).await;
}

#[tokio::test]
async fn one_of_many_processes_claims_over_postgres() {
    let Some(server) = server() else { return };
    one_of_many_processes_claims(&server.database("claimed").await).await;
}

#[tokio::test]
async fn a_killed_holder_is_followed_when_its_claim_expires_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    a_killed_holder_is_followed_when_its_claim_expires(&address_in(folder.path())).await;
}

#[tokio::test]
async fn a_killed_holder_is_followed_when_its_claim_expires_over_postgres() {
    let Some(server) = server() else { return };
    a_killed_holder_is_followed_when_its_claim_expires(&server.database("killed").await).await;
}

#[tokio::test]
async fn a_process_that_lost_its_claim_commits_nothing_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    a_process_that_lost_its_claim_commits_nothing(&address_in(folder.path())).await;
}

#[tokio::test]
async fn a_process_that_lost_its_claim_commits_nothing_over_postgres() {
    let Some(server) = server() else { return };
    a_process_that_lost_its_claim_commits_nothing(&server.database("lost_claim").await).await;
}
