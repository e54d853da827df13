//! Operations on sessions that luck chooses.

use serde_json::json;
use stepfold_session_scopes::{
    AppendEvent, Author, EventId, Expected, ForkSession, InvocationId, PruneBound, PruneSession,
    RewindSession, SessionKey, SessionStore,
};
use stepfold_state_core::state::{Delta, Handler, Write};

use crate::scenario::{at, event, key, schema};

/// Luck, and a clock that tells operations apart.
pub(crate) struct Random {
    pub(crate) luck: fastrand::Rng,
    pub(crate) now: i64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random { luck: fastrand::Rng::with_seed(seed), now: 1 }
    }

    pub(crate) fn one_of<'t, T>(&mut self, things: &'t [T]) -> &'t T {
        &things[self.luck.usize(..things.len())]
    }

    /// A write to a list, or to a key that has values of several kinds.
    pub(crate) fn write(&mut self, scope: &str) -> Write {
        let schema = schema();
        let (schema, item) = (schema.schema(), self.luck.u8(..4));
        let (list, other) = (format!("{scope}list"), format!("{scope}key {item}"));
        match self.luck.u8(..12) {
            0 => schema.removal(&list),
            1 => schema.write_with(&*list, json!([item]), &Handler::replace_values()),
            2 | 3 => schema.write_with(&*list, json!([item, item]), &Handler::keep_last(3)),
            4 => schema.write_with(&*list, json!([{"id": item}]), &Handler::upsert_by("id")),
            5 => schema.write_with(&*list, json!([item]), &Handler::union()),
            6 => schema.removal(&other),
            7 => schema.write(&*other, json!({"item": self.now})),
            8 => schema.write(&*other, json!([self.now])),
            _ => schema.write(&*list, json!([item])),
        }
        .unwrap()
    }

    /// Appends an event with fewer than `count` writes to some of these scopes.
    pub(crate) async fn append(
        &mut self,
        store: &impl SessionStore,
        key: SessionKey,
        scopes: &[&str],
        count: usize,
    ) {
        let count = self.luck.usize(..count);
        let writes: Delta = (0..count)
            .map(|_| {
                let scope = *self.one_of(scopes);
                self.write(scope)
            })
            .collect();
        let event = event(format!("e{}", self.now)).with_delta(writes);
        // A list of mixed items cannot take every write.
        let _ = store.append(AppendEvent::new(key, Expected::Any, event, &schema())).await;
    }

    pub(crate) async fn rewind(&self, store: &impl SessionStore, key: SessionKey, to: u64) {
        let request = RewindSession::new(
            key,
            Expected::Any,
            to,
            EventId::new(format!("r{}", self.now)).unwrap(),
            InvocationId::new("i").unwrap(),
            Author::new("user").unwrap(),
            at(self.now),
        );
        store.rewind(request).await.unwrap();
    }

    pub(crate) async fn fork(&self, store: &impl SessionStore, from: SessionKey, version: u64) -> SessionKey {
        let id = key(format!("fork {}", self.now)).id;
        let fork = ForkSession::new(from, at(self.now)).at_version(version).with_id(id);
        store.fork(fork).await.unwrap().key
    }
}

pub(crate) async fn prune(store: &impl SessionStore, key: SessionKey, before: u64) {
    store.prune(PruneSession::new(key, PruneBound::Version(before))).await.unwrap();
}
