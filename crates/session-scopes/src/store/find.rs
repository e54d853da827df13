//! Look-ups of events in a store without indexes: the newest events are read first, then more of them.

use super::{EventRange, FindEvent, FindTagged, GetSession, SessionStore};
use crate::error::SessionError;
use crate::ids::SessionKey;
use crate::session::Session;

/// The number of events that are read first.
const FIRST: usize = 64;

/// As [`SessionStore::find_event`].
pub(super) async fn find_event(
    store: &(impl SessionStore + ?Sized),
    FindEvent { key, id }: FindEvent,
) -> Result<Option<u64>, SessionError> {
    let found = |session: &Session, is_last| {
        let inherited = session.parent.as_ref().map_or(0, |parent| parent.version);
        let mut own = session.events.iter().filter(|committed| committed.version > inherited);
        let version = own.find(|committed| committed.event.id == id).map(|committed| committed.version);
        (version.is_some() || is_last).then_some(version)
    };
    search_newest(store, &key, found).await
}

/// As [`SessionStore::find_tagged`].
pub(super) async fn find_tagged(
    store: &(impl SessionStore + ?Sized),
    FindTagged { key, tags }: FindTagged,
) -> Result<Vec<Option<u64>>, SessionError> {
    let found = |session: &Session, is_last| {
        let newest = |tag: &String| {
            let mut newest_first = session.visible_events().rev();
            let found = newest_first.find(|committed| committed.event.effective_tags().contains(tag));
            found.map(|committed| committed.version)
        };
        let versions: Vec<Option<u64>> = tags.iter().map(newest).collect();
        (is_last || versions.iter().all(Option::is_some)).then_some(versions)
    };
    search_newest(store, &key, found).await
}

/// Looks in more and more of the newest events. `found` is told whether these are all, and then returns something.
async fn search_newest<T>(
    store: &(impl SessionStore + ?Sized),
    key: &SessionKey,
    found: impl Fn(&Session, bool) -> Option<T> + Send,
) -> Result<T, SessionError> {
    let mut events = FIRST;
    loop {
        let get = GetSession::new(key.clone()).events(EventRange::Last(events)).without_state();
        let session = store.get(get).await?;
        if let Some(found) = found(&session, session.events.len() < events) {
            return Ok(found);
        }
        events = events.saturating_mul(8);
    }
}
