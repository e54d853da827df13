//! A session that was read: plain data at one version.

use std::collections::{BTreeMap, BTreeSet};
#[cfg(feature = "postgres")]
use std::mem;
use std::ops::RangeInclusive;
use std::sync::Arc;

use serde_json::{Map, Value};
use stepfold_state_core::List;
use stepfold_state_core::chat::Transcript;
use stepfold_state_core::state::{State, StoredValue, ValueRef, Write};

use crate::apply::catch_panics;
use crate::digest::Digest;
use crate::error::SessionError;
use crate::event::CommittedEvent;
use crate::ids::{LifeId, SessionId, SessionKey, WorkerId};
use crate::schema::{Adopted, SessionSchema};
use crate::scope::{ByScope, Scope, ScopeVersions, merged};
use crate::store::WriteOrigin;
use crate::time::Timestamp;

/// A session at one version, as returned by a store. State and events are present if they were requested, and
/// belong to the same version.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Session {
    /// Its address.
    pub key: SessionKey,
    /// Its incarnation: it changes when the session is deleted and created again. A fork has its own.
    pub life: LifeId,
    /// The version that was read: the number of events that were committed to it, by then.
    pub version: u64,
    /// The number of events ever committed to it. It differs from the version only if an [earlier
    /// version](crate::GetSession::at_version) was requested.
    pub newest: u64,
    /// When it was created.
    pub created: Timestamp,
    /// When it was last written: the time of the newest event.
    pub updated: Timestamp,
    /// The claim, if a worker holds one; see [`GetSession::now`](crate::GetSession) about its expiry.
    pub claim: Option<Claim>,
    /// The position of the newest waiting entry in its inbox; 0 if there is none.
    pub inbox: u64,
    /// The origin, if it is a fork.
    pub parent: Option<ForkOrigin>,
    /// The oldest version that it can go back to. Events up to it were deleted by retention.
    pub oldest: u64,
    /// The visible versions at the version that was read: all of them, unless the session was rewound.
    pub visible: VisibleVersions,
    /// The digest of the history up to the version, in stores that keep digests. Stored elsewhere, it reveals
    /// any later change to the events: forks share the digests of shared events, a rewind adds an event like
    /// any other, and retention keeps the digest of the newest event that it deletes.
    pub head: Option<Digest>,
    /// The number of writes to each scope that it shares with other sessions.
    pub scopes: ScopeVersions,
    /// The stored values of all scopes, if they were requested: all of them, or [some](ScopeValues::is_whole).
    pub values: Option<ByScope<ScopeValues>>,
    /// The requested events, in order; including those hidden by a rewind, unless [only visible
    /// ones](crate::GetSession::visible) were requested.
    pub events: Vec<CommittedEvent>,
}

/// A worker's claim on a session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The owner.
    pub owner: WorkerId,
    /// The fencing token: larger than that of any earlier claim, even if the session was deleted and created again.
    pub token: u64,
    /// When others may take it without asking. By the clock of the database, where it has one that counts. Before 1970 if
    /// its holder has [released it with work left](crate::ReleaseClaim::unfinished): others may take it even by a clock
    /// that is set back.
    pub expires: Timestamp,
}

impl Claim {
    /// A claim of this worker.
    pub const fn new(owner: WorkerId, token: u64, expires: Timestamp) -> Self {
        Claim { owner, token, expires }
    }
}

/// The origin of a fork.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForkOrigin {
    /// The session, of the same app and user. It may have been deleted since.
    pub id: SessionId,
    /// The version that the fork begins with.
    pub version: u64,
}

impl ForkOrigin {
    /// The origin of a fork that begins with this version.
    pub const fn new(id: SessionId, version: u64) -> Self {
        ForkOrigin { id, version }
    }
}

impl Session {
    /// A new session without events. A store sets the fields that it has read.
    pub fn new(key: SessionKey, life: LifeId, created: Timestamp) -> Self {
        Session {
            key,
            life,
            version: 0,
            newest: 0,
            created,
            updated: created,
            claim: None,
            inbox: 0,
            parent: None,
            oldest: 0,
            visible: VisibleVersions::at(0, &[]),
            head: None,
            scopes: ScopeVersions::default(),
            values: None,
            events: Vec::new(),
        }
    }

    /// The state under a schema: app, user and session values as one view, and the conversation.
    ///
    /// The conversation consists of the messages in the visible events that were read; request all events for
    /// a complete one. `temp:` is empty: it begins empty in each invocation.
    ///
    /// # Errors
    /// [`SessionError::SchemaMismatch`] when a value was stored under another type, does not fit the one
    /// declared now, and no migration is registered; [`SessionError::Migration`] when one fails.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use serde_json::json;
    /// use stepfold_session_scopes::{CreateSession, MemoryStore, SessionSchema, SessionStore, Timestamp};
    /// use stepfold_state_core::state::{Schema, Template};
    ///
    /// let schema: SessionSchema =
    ///     Schema::builder().key::<String>("user:name").key::<String>("topic").build()?.into();
    /// let request = CreateSession::new("my_app", "alice", &schema, Timestamp::from_micros(0))?
    ///     .values(json!({"topic": "engines", "user:name": "Ada"}))?;
    /// let session = MemoryStore::new().create(request).await?;
    ///
    /// let state = session.state(&schema)?;
    /// assert_eq!(Template::parse("{user:name} asks about {topic}").render(&state)?, "Ada asks about engines");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn state(&self, schema: &SessionSchema) -> Result<State, SessionError> {
        self.state_with(schema, self.transcript())
    }

    /// The state under a schema, with this conversation in place of that of the events that were read.
    ///
    /// # Errors
    /// As [`state`](Session::state).
    pub fn state_with(&self, schema: &SessionSchema, messages: Transcript) -> Result<State, SessionError> {
        let values = self.values.clone().unwrap_or_default();
        let adopted = |values: ScopeValues| values.adopted(schema);
        let scopes = ByScope {
            app: adopted(values.app)?,
            user: adopted(values.user)?,
            session: adopted(values.session)?,
        };
        State::from_cells(schema.schema(), merged(scopes), messages)
            .map_err(SessionError::state(format_args!("state of session {}", self.key)))
    }

    /// The messages of the visible events that were read.
    pub fn transcript(&self) -> Transcript {
        let mut transcript = Transcript::new();
        for committed in self.visible_events() {
            for message in &committed.event.messages {
                transcript.push(Arc::clone(message));
            }
        }
        transcript
    }

    /// The visible events that were read.
    pub fn visible_events(&self) -> impl DoubleEndedIterator<Item = &CommittedEvent> {
        self.events.iter().filter(|committed| self.visible.contains(committed.version))
    }

    /// The stored value of a key in any scope, without its schema; `None` if the state was not read.
    pub fn get(&self, key: &str) -> Option<ValueRef<'_>> {
        let values = self.values.as_ref()?;
        match Scope::of(key) {
            Scope::App => values.app.get(key),
            Scope::User => values.user.get(key),
            Scope::Session => values.session.get(key),
            Scope::Temp => None,
        }
    }

    /// Whether the value of a key, as it was read, is the result of these writes alone, in order.
    ///
    /// A session shares the values of `app:` and `user:` keys, and [reads](crate::GetSession::at_version) the current ones
    /// at any version. The writes of its visible events name the origin of such a value only if they lead to it. A value
    /// that another session has written again, equal to the one before, is not told apart. The value follows from no write
    /// that does not fit the schema.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use serde_json::json;
    /// use stepfold_session_scopes::{CreateSession, MemoryStore, SessionSchema, SessionStore, Timestamp};
    /// use stepfold_state_core::state::{Handler, Schema};
    ///
    /// let schema = Schema::builder().key::<u64>("app:queries").handler(Handler::sum()).build()?;
    /// let schema: SessionSchema = schema.into();
    /// let request = CreateSession::new("my_app", "alice", &schema, Timestamp::from_micros(0))?;
    /// let session = MemoryStore::new().create(request.values(json!({"app:queries": 6}))?).await?;
    ///
    /// let one = schema.schema().write("app:queries", 1)?;
    /// let five = schema.schema().write("app:queries", 5)?;
    /// assert!(!session.is_result_of("app:queries", [&one], &schema));
    /// assert!(session.is_result_of("app:queries", [&one, &five], &schema));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn is_result_of<'a>(
        &self,
        key: &str,
        writes: impl IntoIterator<Item = &'a Write>,
        schema: &SessionSchema,
    ) -> bool {
        let folded = catch_panics(|| {
            let mut value: Option<StoredValue> = None;
            for write in writes {
                let merged = schema.schema().merge(value.as_ref(), write);
                value = merged.map_err(SessionError::state(WriteOrigin::NewSession))?;
            }
            Ok(value)
        });
        folded.is_ok_and(|value| value.as_ref().map(StoredValue::view) == self.get(key))
    }

    /// All stored values of all scopes as one JSON object, independent of any schema.
    pub fn to_json(&self) -> Value {
        let values = self.values.clone().unwrap_or_default();
        let entries = |values: ScopeValues| {
            values
                .held
                .into_iter()
                .map(|(key, held)| (key.to_string(), held.cell.view().to_json()))
                .collect::<Vec<_>>()
        };
        let scopes = ByScope {
            app: entries(values.app),
            user: entries(values.user),
            session: entries(values.session),
        };
        Value::Object(merged(scopes).into_iter().collect::<Map<_, _>>())
    }
}

/// The stored values of one scope, by key: all of them, or some.
#[derive(Clone, Debug, Default)]
pub struct ScopeValues {
    held: BTreeMap<Arc<str>, TypedValue>,
    /// The requested keys without a value; `None` if all values were read.
    removed: Option<BTreeSet<Arc<str>>>,
    /// Lists of which only new items were read.
    appended: BTreeMap<Arc<str>, AppendedItems>,
}

/// The new items of a list that was only appended to: see [`ScopeValues::appended`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AppendedItems {
    /// The length of the list. It may be shorter than before with the new items, if a merge handler (reducer) keeps the
    /// last ones only.
    pub length: usize,
    /// The new items, in order: the end of the list.
    pub items: Vec<Arc<Value>>,
}

impl AppendedItems {
    /// The new items of a list that has this length now.
    pub const fn new(length: usize, items: Vec<Arc<Value>>) -> Self {
        AppendedItems { length, items }
    }

    /// Extends the earlier list; `None` if its length does not match.
    fn to(&self, before: &List<Arc<Value>>) -> Option<List<Arc<Value>>> {
        // NOTE: `keep_last` may have dropped old items, so the length decides how many of them stay.
        let kept = self.length.checked_sub(self.items.len()).filter(|kept| *kept <= before.len())?;
        let mut list = before.clone();
        list.keep_last(kept);
        self.items.iter().for_each(|item| list.push(Arc::clone(item)));
        Some(list)
    }
}

/// A value, and the schema that it was written under (its JSON).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TypedValue {
    /// The value.
    pub cell: StoredValue,
    /// The [`SessionSchema::text`] when it was written.
    pub schema: Arc<str>,
}

impl TypedValue {
    /// A value, and the [`SessionSchema::text`] under which it was written.
    pub const fn new(cell: StoredValue, schema: Arc<str>) -> Self {
        TypedValue { cell, schema }
    }
}

impl ScopeValues {
    /// Some values of a scope: those of these keys.
    pub fn of_keys<K: Into<Arc<str>>>(entries: impl IntoIterator<Item = (K, Option<TypedValue>)>) -> Self {
        let (mut held, mut removed) = (BTreeMap::new(), BTreeSet::new());
        for (key, value) in entries {
            match value {
                Some(value) => drop(held.insert(key.into(), value)),
                None => drop(removed.insert(key.into())),
            }
        }
        ScopeValues { held, removed: Some(removed), appended: BTreeMap::new() }
    }

    /// Adds the new items of a list, instead of the whole list.
    #[must_use]
    pub fn with_appended(mut self, key: impl Into<Arc<str>>, appended: AppendedItems) -> Self {
        self.appended.insert(key.into(), appended);
        self
    }

    /// The value of a key, prefix included.
    pub fn get(&self, key: &str) -> Option<ValueRef<'_>> {
        self.held.get(key).map(|held| held.cell.view())
    }

    /// The value of a key with the schema that it was written under; [`SessionSchema::adopt`] takes both.
    pub fn held(&self, key: &str) -> Option<&TypedValue> {
        self.held.get(key)
    }

    /// The keys that have a value, in their order, each with it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, ValueRef<'_>)> {
        self.held.iter().map(|(key, held)| (&**key, held.cell.view()))
    }

    /// The number of keys that have a value.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether no key has a value.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether these are all values of the scope. If not, they are the changed ones, or those of the
    /// requested keys.
    pub fn is_whole(&self) -> bool {
        self.removed.is_none()
    }

    /// The requested or changed keys without a value; empty if [all](ScopeValues::is_whole) values were read.
    pub fn removed(&self) -> impl Iterator<Item = &str> {
        self.removed.iter().flatten().map(|key| &**key)
    }

    /// The lists that were only appended to, by key, if an [incremental](crate::GetSession::incremental) read
    /// was requested. Their keys have no value here; [`Session::update`] appends the items to the lists of a
    /// state.
    pub fn appended(&self) -> impl Iterator<Item = (&str, &AppendedItems)> {
        self.appended.iter().map(|(key, appended)| (&**key, appended))
    }

    /// The complete lists that were only appended to, given those of a state, by key.
    pub(crate) fn appended_to(
        &self,
        state: &State,
        schema: &SessionSchema,
    ) -> Result<Vec<(Box<str>, StoredValue)>, SessionError> {
        let known = self.appended().filter(|(key, _)| is_known(schema, key));
        let list = |(key, appended): (&str, &AppendedItems)| {
            let empty = List::new();
            let before = match state.get(key) {
                Some(ValueRef::List(before)) => before,
                _ => &empty,
            };
            let list = appended.to(before).ok_or_else(|| SessionError::OtherState {
                key: key.to_owned(),
                found: before.len(),
                expected: appended.length.saturating_sub(appended.items.len()),
            })?;
            Ok((key.into(), StoredValue::list(list)))
        };
        known.map(list).collect()
    }

    /// The values of these keys only.
    #[cfg(feature = "postgres")]
    pub(crate) fn restricted_to(mut self, keys: BTreeSet<Arc<str>>) -> Self {
        let appended = mem::take(&mut self.appended);
        let keys = keys.into_iter().filter(|key| !appended.contains_key(key));
        let values = ScopeValues::of_keys(keys.map(|key| {
            let held = self.held.remove(&key);
            (key, held)
        }));
        ScopeValues { appended, ..values }
    }

    /// The values, converted to another schema.
    pub(crate) fn adopted(
        self,
        schema: &SessionSchema,
    ) -> Result<Vec<(Arc<str>, StoredValue)>, SessionError> {
        let mut cells = Vec::with_capacity(self.held.len());
        for (key, held) in self.held {
            match schema.adopt(&key, &held.cell, &held.schema)? {
                Adopted::Same if is_known(schema, &key) => cells.push((key, held.cell)),
                Adopted::Converted(cell) => cells.push((key, cell)),
                Adopted::Same | Adopted::Hidden => {}
            }
        }
        Ok(cells)
    }
}

/// Whether the schema accepts the key. A scope may contain writes of other agents.
pub(crate) fn is_known(schema: &SessionSchema, key: &str) -> bool {
    schema.schema().is_open() || schema.schema().key(key).is_some()
}

impl FromIterator<(Arc<str>, TypedValue)> for ScopeValues {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, TypedValue)>>(entries: I) -> Self {
        ScopeValues { held: entries.into_iter().collect(), removed: None, appended: BTreeMap::new() }
    }
}

/// The versions whose events are visible after all rewinds: ranges in order, without overlap.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::{RewindMark, VisibleVersions};
///
/// // Five events, then back to version 2 (which is event 6), then two more.
/// let visible = VisibleVersions::at(8, &[RewindMark::new(6, 2)]);
/// let versions: Vec<u64> = (1..=8).filter(|version| visible.contains(*version)).collect();
/// assert_eq!(versions, [1, 2, 6, 7, 8]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleVersions {
    earlier: Vec<RangeInclusive<u64>>,
    /// The range with the newest version: the only one of a session that was never rewound.
    last: RangeInclusive<u64>,
}

/// A rewind of a session: its own version, and the version that it goes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RewindMark {
    /// The version that the rewind made.
    pub version: u64,
    /// The version whose state it restores.
    pub to: u64,
}

impl RewindMark {
    /// A rewind that made this version, and went back to another one.
    pub const fn new(version: u64, to: u64) -> Self {
        RewindMark { version, to }
    }
}

impl VisibleVersions {
    /// The visible versions at a version, given all rewinds of the session in order.
    pub fn at(version: u64, rewinds: &[RewindMark]) -> Self {
        let mut ranges = Vec::new();
        let mut end = version;
        let mut left = rewinds;
        // NOTE: from the end backwards: a rewind counts only if no later visible rewind has hidden it.
        while let Some((last, earlier)) =
            left[..left.partition_point(|next| next.version <= end)].split_last()
        {
            left = earlier;
            ranges.push(last.version..=end);
            end = last.to;
        }
        if ranges.is_empty() {
            return VisibleVersions { earlier: ranges, last: 0..=end };
        }
        ranges.push(0..=end);
        let last = ranges.remove(0);
        ranges.reverse();
        VisibleVersions { earlier: ranges, last }
    }

    /// Whether the event of a version is visible.
    pub fn contains(&self, version: u64) -> bool {
        let next = self.earlier.partition_point(|range| *range.start() <= version);
        let is_earlier = || next.checked_sub(1).is_some_and(|place| self.earlier[place].contains(&version));
        self.last.contains(&version) || is_earlier()
    }

    /// The versions, as ranges in order, with the first and the last one of each.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.earlier.iter().chain([&self.last]).map(|range| (*range.start(), *range.end()))
    }

    /// Whether every version up to the newest is visible.
    pub fn is_whole(&self) -> bool {
        self.earlier.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The reference implementation: the list of events, truncated at each rewind.
    fn simulated(rewinds: &[RewindMark], version: u64) -> Vec<u64> {
        let mut at: Vec<Vec<u64>> = vec![vec![]];
        for next in 1..=version {
            let before = match rewinds.iter().find(|rewound| rewound.version == next) {
                Some(rewound) => at[usize::try_from(rewound.to).unwrap()].clone(),
                None => at.last().unwrap().clone(),
            };
            at.push(before.into_iter().chain([next]).collect());
        }
        at.pop().unwrap()
    }

    proptest! {
        #[test]
        fn visible_is_what_a_list_that_is_cut_says(targets in proptest::collection::vec(proptest::option::of(0u64..40), 0..40)) {
            let rewinds: Vec<RewindMark> = targets.iter().zip(1u64..)
                .filter_map(|(target, version)| Some(RewindMark { version, to: (*target)? % version }))
                .collect();
            let version = targets.len() as u64;
            let visible = VisibleVersions::at(version, &rewinds);
            let versions: Vec<u64> = (1..=version).filter(|version| visible.contains(*version)).collect();
            prop_assert_eq!(versions, simulated(&rewinds, version));
        }
    }
}
