//! Over SQLite: one process after the other.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::ready;

use expect_test::expect;
use futures_util::{StreamExt, stream};
use proptest::test_runner::Config;

use super::checks::End;
use super::children::{Part, Told};

/// Sessions at once: their processes wait for the disk more than for us.
const AT_ONCE: usize = 4;

/// A session that nothing stopped, and what its process told.
async fn whole() -> (End, Told) {
    let folder = tempfile::tempdir().unwrap();
    let part = Part::in_folder(folder.path());
    let told = part.play().await;
    let end = End::of(&part).await;
    assert!(!told.was_killed && end.unknown().is_empty());
    (end, told)
}

/// Killed at each point that there is; then another process continues.
#[tokio::test]
async fn sigkill_at_every_named_point() {
    let (whole, told) = whole().await;
    let points = stream::iter(told.points.iter().enumerate());
    points.for_each_concurrent(AT_ONCE, |(place, point)| killed_at(place, point, &whole)).await;

    let mut deaths = BTreeMap::new();
    for point in &told.points {
        *deaths.entry(point.as_str()).or_insert(0) += 1;
    }
    let deaths: Vec<String> = deaths.iter().map(|(point, deaths)| format!("{deaths:2} in {point}")).collect();
    expect![[r#"
         9 in a hook before the model
         3 in a hook before the run
         6 in look, after its effect
         6 in look, before it
         9 in pay, after its effect
         9 in pay, before it
         3 in put, after its effect
         3 in put, before it
        18 in the append of answered, after it
        18 in the append of answered, before it
         3 in the append of began, after it
         3 in the append of began, before it
        12 in the append of hooked, after it
        12 in the append of hooked, before it
         9 in the append of replied, after it
         9 in the append of replied, before it
         6 in the append of started, after it
         6 in the append of started, before it
         9 in the middle of a reply
    "#]]
    .assert_eq(&(deaths.join("\n") + "\n"));
}

async fn killed_at(place: usize, point: &String, whole: &End) {
    let folder = tempfile::tempdir().unwrap();
    let part = Part::in_folder(folder.path());
    let killed = part.dying_at(place as u64 + 1).play().await;
    assert!(killed.was_killed);
    assert_eq!(killed.points.last(), Some(point), "the way there is always the same");
    let part = if place.is_multiple_of(2) { part } else { part.going_ahead() };
    let resumed = part.play().await;
    assert!(!resumed.was_killed);
    let end = End::of(&part).await;
    end.check(&[killed, resumed], whole);
    if !may_leave_something_unknown(point) {
        assert!(end.unknown().is_empty(), "killed at {point}");
    }
}

/// Only what was under way can be unknown: a call that had started, and has no outcome.
fn may_leave_something_unknown(point: &str) -> bool {
    let is_of_a_call = ["look", "put", "pay"].iter().any(|tool| point.starts_with(tool));
    is_of_a_call || point.contains("answered") || point == "the append of started, after it"
}

/// Killed again and again, at random points and between them, until the session has ended.
#[tokio::test]
async fn sigkill_at_random() {
    let (whole, _) = whole().await;
    // `cargo xtask ci --long` asks for more.
    let wanted = Config::default().cases as usize / 2;
    let kills = Cell::new(0);
    // No session begins once there were enough, and all that began are seen through.
    let seeds = stream::iter(0x0c4a_5400..).take_while(|_| ready(kills.get() < wanted));
    let session = async |seed| kills.set(kills.get() + killed_at_random(seed, &whole).await);
    seeds.for_each_concurrent(AT_ONCE, session).await;
}

/// The number of kills.
async fn killed_at_random(seed: u64, whole: &End) -> usize {
    println!("seed {seed}");
    let mut luck = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let part = Part::in_folder(folder.path());
    let mut told = Vec::new();
    while told.last().is_none_or(|told: &Told| told.was_killed) {
        let part = if luck.bool() { part.clone() } else { part.going_ahead() };
        told.push(killed_somewhere(part, &mut luck).await);
    }
    End::of(&part).await.check(&told, whole);
    told.len() - 1
}

/// By its own hand at a point, or by another one shortly after it.
async fn killed_somewhere(part: Part, luck: &mut fastrand::Rng) -> Told {
    let points = luck.usize(1..40);
    if luck.bool() {
        return part.dying_at(points as u64).play().await;
    }
    let spins = luck.u32(0..200_000);
    let process = move || {
        let mut process = part.start();
        process.listen_for(points);
        for _ in 0..spins {
            std::hint::spin_loop();
        }
        process.kill();
        process.end()
    };
    tokio::task::spawn_blocking(process).await.unwrap()
}
