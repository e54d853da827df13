//! Erasure in memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::MemoryInner;
use super::app_data::SessionEntry;
use crate::error::SessionError;
use crate::event::{CommittedEvent, Event};
use crate::ids::{AppId, SessionKey, UserId};
use crate::store::{EraseData, EraseTarget, ErasedData, ErasureRecord, ListErasures, TakeOver, Verified};

impl MemoryInner {
    pub(super) fn erase(&mut self, request: &EraseData) -> Result<ErasedData, SessionError> {
        let app = request.target.app();
        let is_recorded = self.erasures.iter().any(|(of, record)| of == app && record.id == request.id);
        if is_recorded && !request.is_dry_run {
            // NOTE: a repeated request with more to be erased is refused before anything is.
            self.erase(&request.clone().dry_run())?;
        }
        let erased = match &request.target {
            EraseTarget::Events { key, versions } => self.erase_events(request, key, versions)?,
            EraseTarget::Session { key } => {
                let number = self.entry(key)?.2.number;
                let found = self.with_forks(&key.app, &key.user, number);
                let sessions = self.sessions_of(&key.app, &key.user, |entry| found.contains(&entry.number));
                self.erase_sessions(request, sessions)
            }
            EraseTarget::User { app, user } => self.erase_user(request, app, user),
        };
        if is_recorded {
            return erased.of_repeated(request);
        }
        if !request.is_dry_run {
            self.erasures.push((app.clone(), ErasureRecord::of(request, &erased)));
        }
        Ok(erased)
    }

    pub(super) fn erasures(&self, request: &ListErasures) -> Vec<ErasureRecord> {
        let is_listed = |record: &&ErasureRecord| {
            request.after.as_ref().is_none_or(|(at, id)| (record.at, &record.id) > (*at, id))
        };
        let records = self.erasures.iter().filter(|(app, _)| *app == request.app).map(|(_, record)| record);
        let mut listed: Vec<ErasureRecord> = records.filter(is_listed).cloned().collect();
        listed.sort_by(|one, other| (one.at, &one.id).cmp(&(other.at, &other.id)));
        listed.truncate(request.limit);
        listed
    }

    /// Adds the erased events of a session.
    pub(super) fn add_erased(report: &mut Verified, key: &SessionKey, entry: &SessionEntry) {
        for committed in entry.page(0, usize::MAX) {
            if let Some(erasure) = committed.event.erasure() {
                report.add_erased(key, committed.version, erasure.clone());
            }
        }
    }

    /// The numbers of a session with its forks, with theirs, and with all that share one of its events.
    fn with_forks(&self, app: &AppId, user: &UserId, number: i64) -> BTreeSet<i64> {
        let mut found = BTreeSet::from([number]);
        let Some(tenant) = self.tenant(app, user) else { return found };
        loop {
            let before = found.len();
            for entry in tenant.sessions.values() {
                if entry.origins.iter().any(|(origin, _)| found.contains(origin)) {
                    found.insert(entry.number);
                }
                if found.contains(&entry.number) {
                    found.extend(entry.fork_numbers());
                }
            }
            if found.len() == before {
                return found;
            }
        }
    }

    /// The keys of a user's sessions, in the order of their creation.
    fn sessions_of(
        &self,
        app: &AppId,
        user: &UserId,
        is_one: impl Fn(&SessionEntry) -> bool,
    ) -> Vec<SessionKey> {
        let Some(tenant) = self.tenant(app, user) else { return Vec::new() };
        let mut found: Vec<_> = tenant.sessions.iter().filter(|(_, entry)| is_one(entry)).collect();
        found.sort_by_key(|(_, entry)| entry.number);
        let key =
            |id: &crate::ids::SessionId| SessionKey { app: app.clone(), user: user.clone(), id: id.clone() };
        found.into_iter().map(|(id, _)| key(id)).collect()
    }

    fn erase_sessions(&mut self, request: &EraseData, sessions: Vec<SessionKey>) -> ErasedData {
        let mut events = 0;
        for key in &sessions {
            let found = self.entry(key).map(|(.., entry)| (entry.number, entry.events()));
            let (number, held) = found.unwrap_or_default();
            events += held;
            if !request.is_dry_run {
                self.indexes.remove(&number);
            }
            let tenant = self.apps.get_mut(&key.app).and_then(|app| app.users.get_mut(&key.user));
            if let (false, Some(tenant)) = (request.is_dry_run, tenant) {
                tenant.remove(&key.id);
                self.forget_if_empty(&key.app, &key.user);
            }
        }
        ErasedData { sessions, events, ..ErasedData::default() }
    }

    fn erase_user(&mut self, request: &EraseData, app: &AppId, user: &UserId) -> ErasedData {
        let sessions = self.sessions_of(app, user, |_| true);
        let erased = self.erase_sessions(request, sessions);
        let user_keys = match self.apps.get_mut(app).and_then(|app| app.users.get_mut(user)) {
            Some(tenant) if request.is_dry_run => tenant.user.keys(),
            Some(tenant) => tenant.erase(),
            None => Vec::new(),
        };
        self.forget_if_empty(app, user);
        let (spend, budgets) = self.budgets.forget_spender(request, app, user);
        ErasedData { user_keys, spend, budgets, ..erased }
    }

    fn erase_events(
        &mut self,
        request: &EraseData,
        key: &SessionKey,
        versions: &BTreeSet<u64>,
    ) -> Result<ErasedData, SessionError> {
        let (.., entry) = self.entry(key)?;
        entry.work.fence.check_free(key, TakeOver::Never, Some(request.at))?;
        let mut erased = Vec::new();
        for version in versions {
            let Some(event) = entry.committed_event(*version) else {
                let (oldest, newest) = (entry.oldest + 1, entry.version());
                return Err(SessionError::no_such_version(key, *version, oldest, newest));
            };
            let left = event.erased(request.note())?;
            if left != **event {
                erased.push((*version, Arc::clone(event), Arc::new(left)));
            }
        }
        let events = erased.len() as u64;
        let result = ErasedData { sessions: vec![key.clone()], events, ..ErasedData::default() };
        if request.is_dry_run || erased.is_empty() {
            return Ok(result);
        }
        let tenant = self.apps.get_mut(&key.app).and_then(|app| app.users.get_mut(&key.user));
        let mut changed = Vec::new();
        for sharer in tenant.into_iter().flat_map(|tenant| tenant.sessions.values_mut()) {
            for (version, before, left) in &erased {
                if sharer.replace_event(*version, before, left) {
                    changed.push(sharer.number);
                }
            }
        }
        for number in changed {
            self.forget_index(number);
        }
        self.place(key)?.entry.work.inbox.forget_digests();
        Ok(result)
    }
}

impl SessionEntry {
    /// Replaces an event, if it is the one that is shared; returns whether it is.
    fn replace_event(&mut self, version: u64, before: &Arc<Event>, left: &Arc<Event>) -> bool {
        let is_shared = self.committed_event(version).is_some_and(|event| Arc::ptr_eq(event, before));
        if is_shared {
            self.set_event(CommittedEvent { version, event: Arc::clone(left) });
        }
        is_shared
    }
}
