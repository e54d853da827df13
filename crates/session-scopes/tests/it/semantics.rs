//! The rows of the specification of scopes and sessions, each with what shows it.
//!
//! What every store has to do is a case of the exam; the rest are tests beside this one. A row whose case
//! is renamed or dropped fails here.

use serde_json::json;
use stepfold_session_scopes::{KEY_PREFIX_APP, KEY_PREFIX_TEMP, KEY_PREFIX_USER, MemoryStore, SessionStore};
use stepfold_state_core::state::{State, Template};

use crate::scenario::{at, create, get, key, schema};

/// `temp:` is visible everywhere inside its invocation, and begins empty in the next.
#[tokio::test]
async fn temp_is_seen_within_the_invocation_and_gone_after_it() {
    let (store, schema) = (MemoryStore::new(), schema());
    create(&store, &key("s")).await;
    let mut state: State = get(&store, &key("s")).await.state(&schema).unwrap();
    let step = crate::scenario::writing("e1", &[("temp:step", json!("two")), ("user:name", json!("Ada"))]);
    state.apply(&step.actions.delta).unwrap();
    // Later steps of the invocation, templates among them, continue with this state.
    let template = Template::parse("{user:name} is at step {temp:step}{app:n?}");
    assert_eq!(template.render(&state).unwrap(), "Ada is at step two");
    crate::scenario::append(&store, &key("s"), 0, step).await.unwrap();
    let next = get(&store, &key("s")).await.state(&schema).unwrap();
    assert!(!next.has("temp:step"));
    assert_eq!(template.render(&next).unwrap_err().to_string().split(' ').nth(2), Some("\"temp:step\""));
}

/// The document's example, word for word where the words are the same.
#[tokio::test]
async fn the_example_of_the_document() {
    use stepfold_session_scopes::{CreateSession, SessionSchema};
    use stepfold_state_core::state::Schema;

    assert_eq!((KEY_PREFIX_APP, KEY_PREFIX_USER, KEY_PREFIX_TEMP), ("app:", "user:", "temp:"));
    let (store, schema) = (MemoryStore::new(), SessionSchema::new(Schema::builder().open().build().unwrap()));
    for (id, values) in [
        ("s1", json!({"app:theme": "dark", "context": "session1", "user:language": "en"})),
        ("s2", json!({"context": "session2"})),
    ] {
        let key = stepfold_session_scopes::SessionKey::new("my_app", "alice", id).unwrap();
        store.create(CreateSession::with_key(key, &schema, at(0)).values(values).unwrap()).await.unwrap();
    }
    let key = stepfold_session_scopes::SessionKey::new("my_app", "alice", "s2").unwrap();
    let second = get(&store, &key).await;
    assert_eq!(second.get("app:theme").unwrap(), "dark");
    assert_eq!(second.get("user:language").unwrap(), "en");
    assert_eq!(second.get("context").unwrap(), "session2");
    let state = second.state(&schema).unwrap();
    let prompt = Template::parse("Speak {user:language} about {context}, {app:theme}.");
    assert_eq!(prompt.render(&state).unwrap(), "Speak en about session2, dark.");
}
