//! Sessions of a store that seals content, as files: an export is open, and an import is sealed for its user.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::{Value, json};
use stepfold_runner::Runner;
use stepfold_server::http::Limits;
use stepfold_session_scopes::{
    AnyStore, AppId, KeyOwner, KeyRing, MemoryKeyRing, PostgresOptions, SessionStore as _, SqliteOptions,
    UserId, VerifySessions,
};
use tempfile::TempDir;

use super::site::{Site, agent};
use crate::postgres::server;

const SCRIPT: &str = "assistant: Noted.\nassistant: Hello.\n";
const MARKER: &str = "555-0199";

fn ring(name: &str, first: u8) -> Arc<MemoryKeyRing> {
    let drawn = AtomicU8::new(first);
    Arc::new(MemoryKeyRing::new(name, move |bytes: &mut [u8]| {
        bytes.fill(drawn.fetch_add(1, Ordering::Relaxed));
        Ok(())
    }))
}

/// The databases of a test: a file, and one of PostgreSQL where it is installed.
async fn addresses(folder: &TempDir, name: &str) -> Vec<String> {
    let mut all = vec![folder.path().join(format!("{name}.db")).display().to_string()];
    if let Some(server) = server() {
        all.push(server.database(name).await);
    }
    all
}

async fn site(address: &str, ring: Option<&Arc<MemoryKeyRing>>) -> Site {
    let ring = ring.map(|ring| Arc::<MemoryKeyRing>::clone(ring) as Arc<dyn KeyRing>);
    let store = if address.starts_with("postgres://") {
        let options = PostgresOptions::new(address);
        let options = ring.map_or(options.clone(), |ring| options.key_ring(ring));
        AnyStore::new(options.open().await.unwrap())
    } else {
        let options = SqliteOptions::new(address);
        AnyStore::new(ring.map_or(options.clone(), |ring| options.key_ring(ring)).open().unwrap())
    };
    Site::over(Runner::builder(agent(SCRIPT, Vec::new()), store).build(), Limits::default()).await
}

async fn exported(site: &Site, id: &str) -> Value {
    let reply = site.get("ada", &format!("/sessions/{id}/export")).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()
}

/// The content of a copy, beside what differs between copies.
fn same(one: &Value, other: &Value) {
    for field in ["version", "first", "values", "events", "labels"] {
        assert_eq!(one[field], other[field], "{field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_open_and_an_import_is_sealed_by_the_ring_of_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let origins = addresses(&folder, "origin").await;
    let copies = addresses(&folder, "sealed_copy").await;
    let plain = addresses(&folder, "plain_copy").await;
    for ((origin, copy), plain) in origins.iter().zip(&copies).zip(&plain) {
        let (one, two) = (ring("one", 1), ring("two", 100));
        let from = site(origin, Some(&one)).await;
        from.post("ada", "/sessions", json!({"id": "s1"})).await;
        from.post("ada", "/sessions/s1/run", json!({"text": format!("my number is {MARKER}")})).await;
        let export = exported(&from, "s1").await;
        assert!(export["events"].to_string().contains(MARKER), "an export is open: {export}");

        // Into a store with another ring: of its user there, under a key of that ring.
        let to = site(copy, Some(&two)).await;
        let imported = to.post("ada", "/import?id=s2", export.clone()).await;
        assert_eq!(imported.status, 201, "{}", imported.text);
        same(&exported(&to, "s2").await, &export);
        assert_eq!(to.post("ada", "/sessions/s2/replay", json!({})).await.json()["same"], true);
        assert_eq!(to.runner.store().verify(VerifySessions::all()).await.unwrap().faults, []);
        let owner = KeyOwner::new(AppId::new("clerk").unwrap(), UserId::new("ada").unwrap());
        let keys = [one.get(&owner).await.unwrap(), two.get(&owner).await.unwrap()];
        assert!(keys.iter().all(Option::is_some) && keys[0] != keys[1], "each ring has its key");
        // The same store without its ring refuses both, and has added nothing.
        let bare = site(copy, None).await;
        let refused = bare.get("ada", "/sessions/s2/export").await;
        assert_eq!(refused.problem(), (410, "sealed".to_owned()));
        let refused = bare.post("ada", "/import?id=s3", export.clone()).await;
        assert_eq!(refused.problem(), (410, "sealed".to_owned()));
        // Its list has the session beside its status, and nothing of its content.
        let listed = bare.get("ada", "/sessions").await;
        assert_eq!(listed.status, 200, "{}", listed.text);
        let rows = listed.json()["sessions"].clone();
        let [row] = &rows.as_array().unwrap()[..] else { panic!("{rows}") };
        assert_eq!(
            (&row["id"], &row["status"], &row["title"]),
            (&json!("s2"), &json!("sealed"), &Value::Null)
        );
        assert_eq!(to.get("ada", "/sessions/s3").await.status, 404);

        // Into a store without a ring it is stored as it is, and back again it is sealed.
        let without = site(plain, None).await;
        assert_eq!(without.post("ada", "/import?id=s2", export.clone()).await.status, 201);
        let back = exported(&without, "s2").await;
        same(&back, &export);
        assert_eq!(from.post("ada", "/import?id=back", back).await.status, 201);
        same(&exported(&from, "back").await, &export);
        one.destroy(&owner).await.unwrap();
        let gone = from.get("ada", "/sessions/back/export").await;
        assert_eq!(gone.problem(), (410, "sealed".to_owned()));
        for site in [from, to, bare, without] {
            site.stop().await;
        }
    }
}
