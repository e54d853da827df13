//! The key of a session's virtual object: `app/user/session`.
//!
//! Ids may hold slashes; those are encoded, so that two sessions never share an object.

use stepfold_agent_loop::tools::{decode_key_part, encode_key_part};
use stepfold_session_scopes::{AppId, SessionId, SessionKey, UserId};

/// The key of the object of a session.
pub(crate) fn object_key(key: &SessionKey) -> String {
    [key.app.as_str(), key.user.as_str(), key.id.as_str()].map(encode_key_part).join("/")
}

/// The session of an object.
pub(crate) fn session_of(object: &str) -> Option<SessionKey> {
    let mut parts = object.split('/').map(decode_key_part);
    let key = SessionKey {
        app: AppId::new(parts.next()?).ok()?,
        user: UserId::new(parts.next()?).ok()?,
        id: SessionId::new(parts.next()?).ok()?,
    };
    // Another spelling of a key would be another object for the same session.
    (object_key(&key) == object).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(app: &str, user: &str, id: &str, object: &str) {
        let key = SessionKey {
            app: AppId::new(app).unwrap(),
            user: UserId::new(user).unwrap(),
            id: SessionId::new(id).unwrap(),
        };
        assert_eq!(object_key(&key), object);
        assert_eq!(session_of(object), Some(key));
    }

    #[test]
    fn keys_are_the_three_ids() {
        check("talk", "ada", "monday", "talk/ada/monday");
        check("talk", "a/b", "c", "talk/a%2Fb/c");
        check("talk", "a", "b/c%2F", "talk/a/b%2Fc%252F");
    }

    #[test]
    fn what_is_not_three_ids_is_no_session() {
        for object in
            ["", "talk", "talk/ada", "talk/ada/monday/9", "talk//monday", "talk/ada/ monday", "talk/a%b/c"]
        {
            assert_eq!(session_of(object), None, "{object}");
        }
    }
}
