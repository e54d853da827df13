//! What holds whatever died, and when: the session and the world beside those of a run that nothing stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use stepfold_session_scopes::{EventRange, GetSession, Session, SessionKey, SessionStore};
use stepfold_state_core::chat::{Role, ToolResult, Transcript};
use stepfold_state_core::state::ValueRef;

use super::children::{Part, Told};
use super::store::open;

/// What there is in the end.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) session: Session,
    world: Vec<[String; 4]>,
}

impl End {
    pub(crate) async fn of(part: &Part) -> Self {
        let store = open(&part.address).await;
        let key = SessionKey::new("crash", "ada", part.session.as_str()).unwrap();
        let session = store.get(GetSession::new(key).events(EventRange::All)).await.unwrap();
        End { session, world: world(&part.world) }
    }

    fn transcript(&self) -> Transcript {
        self.session.transcript()
    }

    /// The calls that were answered as unknown.
    pub(crate) fn unknown(&self) -> BTreeSet<String> {
        let transcript = self.transcript();
        let results = transcript.iter().filter_map(|message| message.tool_result());
        let unknown = results.filter(|result| result.text().contains("its outcome is unknown"));
        unknown.map(|result| result.call_id().to_owned()).collect()
    }

    /// Checks it against what children were told, and against an end that nothing stopped.
    pub(crate) fn check(&self, told: &[Told], whole: &End) {
        self.check_that_nothing_is_lost(told);
        self.check_effects();
        self.check_conversation(whole);
        self.check_state(whole);
    }

    fn check_that_nothing_is_lost(&self, told: &[Told]) {
        let events = &self.session.events;
        let versions: Vec<u64> = events.iter().map(|committed| committed.version).collect();
        assert_eq!(versions, (1..=self.session.version).collect::<Vec<_>>());
        for (version, event) in told.iter().flat_map(|told| &told.acknowledged) {
            let found = events.iter().find(|committed| committed.version == *version);
            let found = found.map(|committed| committed.event.id.as_str());
            assert_eq!(found, Some(event.as_str()), "version {version} was acknowledged");
        }
    }

    /// Nothing that must not run twice did, and what did has one key.
    fn check_effects(&self) {
        let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut began: BTreeMap<&str, usize> = BTreeMap::new();
        let mut done: BTreeMap<&str, usize> = BTreeMap::new();
        for [what, tool, call, key] in &self.world {
            keys.entry(call).or_default().insert(key);
            let times = if what == "began" { &mut began } else { &mut done };
            *times.entry(call).or_default() += 1;
            assert!(tool != "pay" || times[call.as_str()] == 1, "{call} {what} twice");
        }
        let distinct: BTreeSet<&str> = keys.values().flatten().copied().collect();
        assert!(keys.values().all(|keys| keys.len() == 1), "a call has several keys: {keys:?}");
        assert_eq!(distinct.len(), keys.len(), "calls share a key: {keys:?}");
        let unknown = self.unknown();
        for call in self.transcript().iter().flat_map(|message| message.tool_calls()) {
            let is_known = !unknown.contains(&call.id);
            assert!(is_known || call.name == "pay", "{} may run again, but is unknown", call.id);
            assert!(
                !is_known || done.contains_key(call.id.as_str()),
                "{} has a result, but did not run",
                call.id
            );
        }
    }

    /// The conversation is the same, but for calls that are unknown.
    fn check_conversation(&self, whole: &End) {
        let (transcript, whole) = (self.transcript(), whole.transcript());
        transcript.check().unwrap();
        let unknown = self.unknown();
        let calls = transcript.iter().map(|message| message.tool_calls().count()).sum::<usize>();
        let results = transcript.iter().filter(|message| message.role() == Role::Tool).count();
        assert_eq!(calls, results, "every call has one result");
        let is_unknown = |call: Option<&str>| call.is_some_and(|call| unknown.contains(call));
        assert_eq!(transcript.len(), whole.len(), "{transcript}");
        for (message, other) in transcript.iter().zip(whole.iter()) {
            let call = message.tool_result().map(ToolResult::call_id);
            match is_unknown(call) {
                true => assert_eq!(call, other.tool_result().map(ToolResult::call_id)),
                false => assert_eq!(message, other, "{transcript}"),
            }
        }
    }

    /// The state is the same, but for what unknown calls did not write.
    fn check_state(&self, whole: &End) {
        let unknown = self.unknown();
        let known = |key: &str| -> Vec<Value> {
            let calls = value(&whole.session, key);
            let is_known = |call: &&Value| !unknown.contains(call.as_str().unwrap());
            calls.as_array().unwrap().iter().filter(is_known).cloned().collect()
        };
        for key in ["log", "user:log"] {
            assert_eq!(value(&self.session, key), json!(known(key)), "{key}");
        }
        assert_eq!(value(&self.session, "app:calls"), json!(known("log").len()));
        for key in ["asked", "app:turns"] {
            assert_eq!(value(&self.session, key), value(&whole.session, key), "{key}");
        }
    }
}

pub(crate) fn value(session: &Session, key: &str) -> Value {
    session.get(key).map_or(Value::Null, ValueRef::to_json)
}

fn world(path: &Path) -> Vec<[String; 4]> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    text.lines().map(|line| words(line).try_into().unwrap()).collect()
}
