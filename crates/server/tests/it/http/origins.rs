//! Where values come from, over generated histories: asked at any version, in any order, of two servers over one store.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};

use super::site::Site;

const KEYS: [&str; 2] = ["spent", "user:name"];

/// The reference: the writes of each key, and which commits count.
#[derive(Default)]
struct Model {
    /// The commits, from version 1 on: the keys with what was written, or the version that was gone back to.
    commits: Vec<Commit>,
}

enum Commit {
    Wrote(Vec<(&'static str, Value)>),
    WentBack(u64),
}

impl Model {
    fn version(&self) -> u64 {
        self.commits.len() as u64
    }

    /// The versions that count at a version.
    fn counting(&self, at: u64) -> Vec<u64> {
        let mut counting: Vec<u64> = Vec::new();
        for (version, commit) in (1..=at).zip(&self.commits) {
            if let Commit::WentBack(to) = commit {
                counting = self.counting(*to);
            }
            counting.push(version);
        }
        counting
    }

    /// The writes of a key that count at a version.
    fn writes(&self, key: &str, at: u64) -> Vec<(u64, Value)> {
        let written = |version: u64| match &self.commits[usize::try_from(version).unwrap() - 1] {
            Commit::Wrote(writes) => writes.iter().filter(|(wrote, _)| *wrote == key).cloned().collect(),
            Commit::WentBack(_) => Vec::new(),
        };
        let of = |version| written(version).into_iter().map(move |(_, value)| (version, value));
        self.counting(at).into_iter().flat_map(of).collect()
    }
}

async fn change(site: &Site, model: &mut Model, random: &mut fastrand::Rng) {
    let newest = model.version();
    if newest > 0 && random.u8(0..4) == 0 {
        let to = random.u64(0..newest);
        let body = json!({"to": to, "expected": newest});
        assert_eq!(site.post("ada", "/sessions/s1/rewind", body).await.status, 200);
        model.commits.push(Commit::WentBack(to));
        return;
    }
    let value = |key: &str| match key {
        "spent" => json!(newest),
        _ => json!(format!("name {newest}")),
    };
    let mut writes: Vec<_> =
        KEYS.into_iter().filter(|_| random.bool()).map(|key| (key, value(key))).collect();
    if writes.is_empty() {
        writes.push(("spent", value("spent")));
    }
    let set: Value = writes.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    let body = json!({"set": set, "expected": newest}).to_string();
    let edited = site.ask("ada", Method::PATCH, "/sessions/s1/state", &[], &body).await;
    assert_eq!(edited.status, 200, "{}", edited.text);
    model.commits.push(Commit::Wrote(writes));
}

async fn check(site: &Site, model: &Model, at: u64) {
    let state = site.get("reader", &format!("/sessions/s1/state?origin=true&at={at}")).await.json();
    for key in KEYS {
        let writes = model.writes(key, at);
        // A shared value is the current one at any version: it may be that of a later step.
        let is_origin = key == "spent" || !state["origin"][key].is_null();
        let origin = &state[if is_origin { "origin" } else { "changed_elsewhere" }][key];
        let found = (origin["version"].as_u64(), origin["writes"].as_u64());
        let last = writes.last().map(|(version, _)| *version);
        assert_eq!(found, (last, last.map(|_| writes.len() as u64)), "{key} at {at}: {state}");
        // Values of the user have no history by session.
        if key == "spent" {
            let folded = writes.last().map(|(_, value)| value);
            assert_eq!(state["values"].get(key), folded, "{key} at {at}: {state}");
        }
        // In pages, from the newest one back.
        let (mut pages, mut changes, mut before) = (Vec::new(), Vec::new(), String::new());
        loop {
            let path = format!("/sessions/s1/blame?key={key}&at={at}&limit=3{before}");
            let blame = site.get("reader", &path).await.json();
            assert_eq!(blame["count"], writes.len(), "{path}: {blame}");
            let page = blame["writes"].as_array().unwrap();
            assert!(page.len() <= 3 && page.iter().all(|write| write["at"].is_string()), "{blame}");
            changes.splice(0..0, page.iter().map(|write| (write["before"].clone(), write["after"].clone())));
            let page = page.iter().map(|write| (write["version"].as_u64().unwrap(), write["value"].clone()));
            pages.splice(0..0, page);
            let Some(earlier) = blame["earlier"].as_u64() else { break };
            before = format!("&before={earlier}");
        }
        assert_eq!(pages, writes, "{key} at {at}");
        // Each write is made on the one before it, in whatever page that is.
        let values = writes.iter().map(|(_, value)| if key == "spent" { value.clone() } else { Value::Null });
        let values: Vec<Value> = values.collect();
        let before = std::iter::once(Value::Null).chain(values.clone());
        assert_eq!(changes, before.zip(values).collect::<Vec<_>>(), "{key} at {at}");
    }
}

#[tokio::test]
async fn values_come_from_the_writes_that_count_at_a_version() {
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let site = Site::new("").await;
        // It has read nothing when the history is long, and the first one has read each part.
        let other = site.again("").await;
        assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
        let mut model = Model::default();
        for _ in 0..30 {
            change(&site, &mut model, &mut random).await;
            if random.u8(0..3) == 0 {
                check(&site, &model, random.u64(0..=model.version())).await;
            }
        }
        for at in 0..=model.version() {
            check([&site, &other][usize::from(random.bool())], &model, at).await;
        }
        // One of the same name that is made later has nothing of it.
        assert_eq!(site.ask("root", Method::DELETE, "/sessions/s1", &[], "").await.status, 204);
        assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
        check(&site, &Model::default(), 0).await;
    }
}

/// The messages of a difference are those that count at the end and did not at the beginning, wherever both are.
#[tokio::test]
async fn a_difference_has_the_messages_that_are_new() {
    let site = Site::new("assistant: a\nassistant: b\nassistant: c\nassistant: d").await;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    // Commits 1 and 2, 3 and 4; back to 2; 6 and 7; back to 4, which is hidden; 9 and 10.
    for back in [None, None, Some(2), None, Some(4), None] {
        let newest = site.get("ada", "/sessions/s1").await.json()["version"].clone();
        let done = match back {
            Some(to) => site.post("ada", "/sessions/s1/rewind", json!({"to": to, "expected": newest})).await,
            None => site.post("ada", "/sessions/s1/run", json!({"text": "go"})).await,
        };
        assert_eq!(done.status, 200, "{}", done.text);
    }
    let events = site.get("ada", "/sessions/s1/events").await.json();
    let events = events["events"].as_array().unwrap();
    let wrote = |version: &u64| match version {
        5 => Commit::WentBack(2),
        8 => Commit::WentBack(4),
        _ => Commit::Wrote(Vec::new()),
    };
    let model = Model { commits: (1..=10).map(|version| wrote(&version)).collect() };
    let mut differences = BTreeMap::new();
    for from in 0..=10 {
        for to in from..=10 {
            let before = model.counting(from);
            let new = model.counting(to).into_iter().filter(|version| !before.contains(version));
            let messages =
                |version: u64| events[usize::try_from(version).unwrap() - 1]["messages"].as_array();
            let expected: Vec<&Value> = new.filter_map(messages).flatten().collect();
            let diff = site.get("ada", &format!("/sessions/s1/diff?from={from}&to={to}")).await.json();
            assert_eq!(diff["messages"], json!(expected), "from {from} to {to}");
            differences.insert((from, to), expected.len());
        }
    }
    // One that has messages of before its beginning.
    assert!(differences[&(7, 8)] > 0, "{differences:?}");
}
