//! Lists across users.

use super::MemoryInner;
use crate::error::SessionError;
use crate::ids::{SessionKey, UserId};
use crate::store::{
    ListUnattended, ListUsers, ScanSessions, ScannedPage, ScannedSession, Unattended, free_since,
};

impl MemoryInner {
    pub(super) fn users(&self, request: &ListUsers) -> Vec<UserId> {
        let app = self.apps.get(&request.app);
        let users = app.into_iter().flat_map(|app| &app.users);
        let with_sessions = users.filter(|(_, tenant)| !tenant.sessions.is_empty()).map(|(user, _)| user);
        let mut users: Vec<UserId> = with_sessions
            .filter(|user| request.after.as_ref().is_none_or(|after| *user > after))
            .cloned()
            .collect();
        users.sort_unstable();
        users.truncate(request.limit);
        users
    }

    pub(super) fn scan(&self, request: &ScanSessions) -> Result<ScannedPage, SessionError> {
        let (first, updated, number) = request.begins_after()?;
        let app = self.apps.get(&request.app);
        let users = app.into_iter().flat_map(|app| &app.users);
        let mut users: Vec<_> = users.filter(|(user, _)| user.as_str() >= first.as_str()).collect();
        users.sort_unstable_by_key(|(user, _)| *user);
        let mut found = Vec::new();
        for (user, tenant) in users {
            if found.len() > request.limit {
                break;
            }
            let is_after = |place| user.as_str() != first || place > (updated, number);
            let sessions = tenant.sessions.iter();
            let mut sessions: Vec<_> =
                sessions.filter(|(_, entry)| is_after((entry.updated, entry.number))).collect();
            sessions.sort_unstable_by_key(|(_, entry)| (entry.updated, entry.number));
            let left = request.limit.saturating_add(1) - found.len();
            found.extend(sessions.into_iter().take(left).map(|(id, entry)| {
                let key = SessionKey { app: request.app.clone(), user: user.clone(), id: id.clone() };
                let (version, oldest) = (entry.version(), entry.oldest);
                let (created, updated) = (entry.created, entry.updated);
                let first = entry.page(entry.oldest, usize::from(request.with_first_event));
                let first_event = first.first().map(|first| first.event.at);
                let (is_unfinished, inbox) = (entry.is_unfinished(), entry.work.inbox.newest());
                let session = ScannedSession {
                    key,
                    version,
                    oldest,
                    created,
                    updated,
                    first_event,
                    is_unfinished,
                    inbox,
                };
                (session, entry.number)
            }));
        }
        Ok(ScannedPage::cut(found, request.limit))
    }

    pub(super) fn unattended(&self, request: &ListUnattended) -> Result<Vec<Unattended>, SessionError> {
        let after = request.begins_after()?;
        let app = self.apps.get(&request.app);
        let mut found = Vec::new();
        for (user, tenant) in app.into_iter().flat_map(|app| &app.users) {
            for (id, entry) in &tenant.sessions {
                let (claim, inbox) = (entry.work.fence.claim(), entry.work.inbox.newest());
                let due = entry.work.fence.due;
                let comes = claim.as_ref().map(|claim| claim.expires).or(due);
                // NOTE: a released claim with work left has a negative expiry, from which `free_since` gets the time of its
                // release.
                let since = comes.map_or(entry.updated, free_since);
                let is_asked = request.with_claimed && claim.is_some();
                let is_left = is_asked || comes.map_or(inbox > 0, |comes| comes <= request.now);
                if is_left && (since, entry.number) > after {
                    let key = SessionKey { app: request.app.clone(), user: user.clone(), id: id.clone() };
                    let is = (claim.is_some(), due.is_some());
                    let session = Unattended::new(key, since, is, inbox, entry.number);
                    let owner = claim.as_ref().map(|claim| claim.owner.as_str());
                    found.push(((since, entry.number), session.with_owner(owner)));
                }
            }
        }
        found.sort_unstable_by_key(|(place, _)| *place);
        Ok(found.into_iter().take(request.limit).map(|(_, session)| session).collect())
    }
}
