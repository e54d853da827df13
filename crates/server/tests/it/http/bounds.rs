//! What is read at once is bounded by bytes, and nothing is left out by it.

use http::Method;
use serde_json::{Value, json};
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::MemoryStore;

use super::site::{Site, agent, versions};

/// The commits of the session: every other one has a large value.
const COMMITS: u64 = 24;
const LARGE: usize = 2 << 20;

async fn large_site() -> Site {
    let mut limits = Limits::default();
    limits.memory_per_user = 64 << 20;
    let runner = Runner::builder(agent("", Vec::new()), MemoryStore::new()).build();
    let site = Site::over(runner, limits).await;
    assert_eq!(site.post("ada", "/sessions", json!({"id": "s1"})).await.status, 201);
    for version in 0..COMMITS {
        let length = if version % 2 == 0 { LARGE } else { 10 };
        let edit = json!({"set": {"user:name": "x".repeat(length)}, "expected": version}).to_string();
        let edited = site.ask("ada", Method::PATCH, "/sessions/s1/state", &[], &edit).await;
        assert_eq!(edited.status, 200, "{}", edited.text);
    }
    site
}

fn versions_of(page: &Value) -> Vec<u64> {
    page["events"].as_array().unwrap().iter().map(|row| row["version"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn pages_have_as_many_commits_as_fit_and_lead_to_all_of_them() {
    let site = large_site().await;
    for (limit, brief) in [(1_000, false), (5, false), (10_000, true)] {
        let (mut all, mut after, mut pages) = (Vec::new(), 0, 0);
        loop {
            let path = format!("/sessions/s1/events?after={after}&limit={limit}&brief={brief}");
            let reply = site.get("ada", &path).await;
            assert!(reply.text.len() < 9 << 20, "{} bytes", reply.text.len());
            let page = reply.json();
            pages += 1;
            all.extend(versions_of(&page));
            match page["next"].as_u64() {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!(all, (1..=COMMITS).collect::<Vec<_>>(), "{limit} {brief}");
        assert!(pages >= 4, "{pages} pages");
    }
    // The commit that a page is around is on it, also if those before it fill it.
    for around in [1, 12, 23, 24] {
        let page = site.get("ada", &format!("/sessions/s1/events?around={around}&limit=1000")).await.json();
        assert!(versions_of(&page).contains(&around), "{around}: {:?}", versions_of(&page));
    }
    assert_eq!(site.get("ada", "/sessions/s1/events/23").await.json()["version"], 23);
}

#[tokio::test]
async fn a_stream_has_all_commits_whatever_their_size() {
    let site = large_site().await;
    let (mut first, mut second) = (
        site.live_from("ada", "/sessions/s1/live?after=0", None).await,
        site.live_from("ada", "/live?sessions=clerk%2Fs1&after=0", None).await,
    );
    let (first, second) = tokio::join!(first.until_version(COMMITS), second.until_version(COMMITS));
    for all in [first, second] {
        assert_eq!(versions(&all), (1..=COMMITS).collect::<Vec<_>>());
    }
}

/// What a whole session takes is known before it is read.
#[tokio::test]
async fn a_session_that_does_not_fit_is_refused_and_read_in_pages() {
    let site = large_site().await;
    for path in ["/sessions/s1/export", "/sessions/s1/compare?with=s1", "/sessions/s1/diff?from=0"] {
        assert_eq!(site.get("ada", path).await.problem(), (413, "too_large".to_owned()), "{path}");
    }
    let replay = site.post("ada", "/sessions/s1/replay", json!({})).await;
    assert_eq!(replay.problem(), (413, "too_large".to_owned()));
    let bearer = site.bearer("ada");
    let adk = "/apps/clerk/users/ada/sessions/s1";
    let adk = site.raw(Method::GET, adk, &[("authorization", &bearer)], "").await;
    assert_eq!(adk.problem().0, 413);
    // Nothing stays taken.
    let metrics = site.get("ada", "/sessions/s1/events?limit=1").await;
    assert_eq!(metrics.status, 200);
    assert_eq!(site.get("ada", "/sessions/s1/state").await.status, 200);
}
