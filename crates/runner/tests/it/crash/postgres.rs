//! Over PostgreSQL: several workers on one session, and many on one value.

use std::path::Path;

use futures_util::future::join_all;
use proptest::test_runner::Config;
use serde_json::json;

use super::checks::{End, value};
use super::children::{Part, Process, Told};
use super::server::server;

/// Two workers, one of which is killed and started again; the other one takes over. Both resume whatever
/// they find; one of them speaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_workers_is_killed() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let whole = Part::new(server.database("whole").await, folder.path().join("whole"), "s1");
    whole.play().await;
    let whole = End::of(&whole).await;

    let mut luck = fastrand::Rng::with_seed(0x0c4a_5411);
    let wanted = Config::default().cases as usize / 10;
    let (mut kills, mut unknown, mut sessions) = (0, 0, 0);
    while kills < wanted {
        let session = format!("s{sessions}");
        // Values of the application and of the user are those of this session alone.
        let address = server.database(&format!("crashes_{sessions}")).await;
        let part = Part::new(address, folder.path().join(&session), &session);
        let told = tokio::task::block_in_place(|| two_workers(&part, &mut luck));
        let end = End::of(&part).await;
        end.check(&told, &whole);
        kills += told.iter().filter(|told| told.was_killed).count();
        unknown += end.unknown().len();
        sessions += 1;
    }
    println!("{kills} kills in {sessions} sessions, {unknown} calls unknown");
}

fn two_workers(part: &Part, luck: &mut fastrand::Rng) -> Vec<Told> {
    let parts = [part.clone(), part.only_resuming()];
    let mut workers = parts.each_ref().map(Part::start);
    let mut told = Vec::new();
    loop {
        let victim = luck.usize(0..2);
        workers[victim].listen_for(luck.usize(1..30));
        for _ in 0..luck.u32(0..200_000) {
            std::hint::spin_loop();
        }
        workers[victim].kill();
        let successor = parts[victim].start();
        told.push(std::mem::replace(&mut workers[victim], successor).end());
        if told.last().is_some_and(|told| !told.was_killed) {
            told.extend(workers.map(Process::end));
            return told;
        }
    }
}

/// 16 processes run a turn each, in sessions of their own; each turn adds 1 to a value that all share.
async fn sixteen_processes(address: &str, folder: &Path) {
    let part =
        |number: &str| Part { turns: 1, ..Part::new(address.to_owned(), folder.join("world"), number) };
    let told = join_all((0..16).map(|number| {
        let part = part(&number.to_string());
        async move { part.play().await }
    }))
    .await;
    assert!(told.iter().all(|told| !told.was_killed));
    let session = End::of(&part("0")).await.session;
    assert_eq!(value(&session, "app:turns"), json!(16));
    assert_eq!(value(&session, "app:calls"), json!(16 * 6));
}

#[tokio::test]
async fn sixteen_processes_lose_nothing_over_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("sessions.db");
    sixteen_processes(address.to_str().unwrap(), folder.path()).await;
}

#[tokio::test]
async fn sixteen_processes_lose_nothing_over_postgres() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    sixteen_processes(&server.database("processes").await, folder.path()).await;
}
