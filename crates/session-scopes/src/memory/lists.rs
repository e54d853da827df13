//! Lists across users.

use super::MemoryInner;
use crate::error::SessionError;
use crate::ids::{SessionKey, UserId};
use crate::store::{ListUnattended, ListUsers, Unattended, free_since};

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
