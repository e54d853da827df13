//! What searches cost: the index of a message beside its append, and a search of a long session beside many others.

use std::fmt::Write as _;

use divan::black_box;
use stepfold_session_scopes::{AppendEvent, Expected, SearchSessions, SessionKey, SessionStore};
use stepfold_state_core::chat::Message;

use crate::{Bench, Sqlite, cpu_time, create, event, key, schema};

/// The messages of the long session.
const MESSAGES: usize = 10_000;
/// The others: long ones, which have an index too, and short ones.
const LONG: usize = 100;
const SHORT: usize = 9_900;

/// About 1 kB of words, the frequent ones far more often than the others.
fn text(luck: &mut fastrand::Rng) -> String {
    let mut text = String::with_capacity(1_024);
    while text.len() < 1_000 {
        let rank = 20_000_f64.powf(luck.f64());
        write!(text, "w{rank:.0} ").expect("a string takes it");
    }
    text
}

async fn append(store: &impl SessionStore, key: &SessionKey, texts: Vec<String>) {
    let schema = schema();
    for text in texts {
        let event = event().with_message(Message::user(text));
        let append = AppendEvent::new(key.clone(), Expected::Any, event, &schema);
        store.append(append).await.expect("no other writer");
    }
}

async fn search(store: &impl SessionStore, key: &SessionKey, query: &str) {
    let request = SearchSessions::in_session(key.clone(), query);
    black_box(store.search(request).await.expect("the session exists"));
}

/// Prints all of it. Goals: an index costs at most 15 % of an append, a search less than 5 ms.
pub(crate) fn figures() {
    let mut luck = fastrand::Rng::with_seed(7);
    let bench = Sqlite::open();
    let store = bench.store();
    let mut texts = |count: usize| (0..count).map(|_| text(&mut luck)).collect::<Vec<_>>();
    for (sessions, messages) in [(SHORT, 1), (LONG, 200)] {
        for number in 0..sessions {
            let (other, texts) = (key(format!("{messages}-{number}")), texts(messages));
            bench.wait(async {
                create(store, other.clone(), &schema()).await;
                append(store, &other, texts).await;
                if messages > 1 {
                    search(store, &other, "w1").await;
                }
            });
        }
    }
    let long = key("long");
    let all = texts(MESSAGES);
    let spent = |what: &str, times: usize, work: &mut dyn FnMut()| {
        let before = cpu_time();
        work();
        let spent = cpu_time().saturating_sub(before).as_secs_f64() * 1e6;
        #[expect(clippy::cast_precision_loss, reason = "a number of times")]
        let each = spent / times as f64;
        println!("  {what:60} {each:9.1} us");
        each
    };
    println!("CPU time of searches over SQLite (messages of 1 kB; user and system, all threads)");
    bench.wait(create(store, long.clone(), &schema()));
    let an_append = spent("an append", MESSAGES, &mut || bench.wait(append(store, &long, all.clone())));
    let index = spent("the index of a message, at the first search", MESSAGES, &mut || {
        bench.wait(search(store, &long, "w1"));
    });
    println!("  {:60} {:9.1} %", "that is of an append", index / an_append * 100.0);
    let mut grown = 0.0;
    for _ in 0..20 {
        let texts = texts(64);
        bench.wait(append(store, &long, texts));
        let before = cpu_time();
        bench.wait(search(store, &long, "w1"));
        grown += cpu_time().saturating_sub(before).as_secs_f64() * 1e6;
    }
    println!("  {:60} {:9.1} us", "a search with 64 messages to index", grown / 20.0);
    for query in ["w1", "w1 w2 w3 w4 w5", "w7777 w12345", "w1 w77 w777 w7777 w12345", "absent"] {
        spent(&format!("a search for {query:?}"), 100, &mut || {
            (0..100).for_each(|_| bench.wait(search(store, &long, query)));
        });
    }
}

/// So many messages of 1 kB: made (`texts`), appended over SQLite (`appended`), then also found by a first search
/// (`indexed`), by a search after each 64 (`grown`), or by 100 further searches (`searched`).
pub(crate) fn counted(what: &str, messages: usize) {
    let mut luck = fastrand::Rng::with_seed(7);
    let texts: Vec<String> = (0..messages).map(|_| text(&mut luck)).collect();
    if what == "texts" {
        black_box(&texts);
        return;
    }
    let bench = Sqlite::open();
    let (store, long) = (bench.store(), key("long"));
    bench.wait(async {
        create(store, long.clone(), &schema()).await;
        let searches = if what == "grown" { 64 } else { messages };
        for texts in texts.chunks(searches) {
            append(store, &long, texts.to_vec()).await;
            if what != "appended" {
                search(store, &long, "w1").await;
            }
        }
        for _ in 0..if what == "searched" { 100 } else { 0 } {
            search(store, &long, "w1 w77 w777 w7777 w12345").await;
        }
    });
}
