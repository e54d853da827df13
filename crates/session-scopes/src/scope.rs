//! Scopes, determined by key prefixes: splits deltas, merges scopes for reading, and drops `temp:`.

use std::fmt;

use stepfold_state_core::state::{Delta, StateError, Write, check_key};

/// The prefix of keys that all users of an app share.
pub const KEY_PREFIX_APP: &str = "app:";
/// The prefix of keys that all sessions of a user share.
pub const KEY_PREFIX_USER: &str = "user:";
/// The prefix of keys that live as long as one invocation and are never stored.
pub const KEY_PREFIX_TEMP: &str = "temp:";

/// The owner of a key.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::{KEY_PREFIX_USER, Scope};
///
/// let key = format!("{KEY_PREFIX_USER}theme");
/// assert_eq!(Scope::of(&key), Scope::User);
/// assert_eq!(Scope::of("topic"), Scope::Session);
/// ```
#[doc(alias("namespace"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// `app:`, shared by all users.
    App,
    /// `user:`, shared by all sessions of one user.
    User,
    /// No prefix: this session's.
    Session,
    /// `temp:`, one invocation's, never stored.
    Temp,
}

impl Scope {
    /// The scope of a key.
    pub fn of(key: &str) -> Self {
        [Scope::App, Scope::User, Scope::Temp]
            .into_iter()
            .find(|scope| key.starts_with(scope.prefix()))
            .unwrap_or(Scope::Session)
    }

    /// The prefix of the scope's keys; empty for the session's.
    pub const fn prefix(self) -> &'static str {
        match self {
            Scope::App => KEY_PREFIX_APP,
            Scope::User => KEY_PREFIX_USER,
            Scope::Session => "",
            Scope::Temp => KEY_PREFIX_TEMP,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scope::App => "app",
            Scope::User => "user",
            Scope::Session => "session",
            Scope::Temp => "temp",
        })
    }
}

/// One value for each scope that is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByScope<T> {
    /// Shared by all users.
    pub app: T,
    /// Shared by all sessions of the user.
    pub user: T,
    /// Owned by the session.
    pub session: T,
}

/// The versions of the scopes that a session shares with others: how often each was written. A write is an
/// event, the values of a new session or a write to the scope, however many keys it has; also one that changes
/// nothing. As long as a session exists, no version is reused, not even after the values of its user were erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScopeVersions {
    /// Of `app:`.
    pub app: u64,
    /// Of `user:`.
    pub user: u64,
}

impl ScopeVersions {
    /// The versions after an event with these writes.
    #[cfg(feature = "sqlite")]
    pub(crate) fn after<T>(self, writes: &ByScope<Vec<T>>) -> Self {
        let counted = |version: u64, writes: &[T]| version + u64::from(!writes.is_empty());
        ScopeVersions { app: counted(self.app, &writes.app), user: counted(self.user, &writes.user) }
    }
}

/// The writes of a delta by the scope that they go to, in order. Those to `temp:` go nowhere.
///
/// # Errors
/// [`StateError::InvalidKey`] for the first invalid key, including those of `temp:`.
///
/// # Examples
/// ```
/// use stepfold_session_scopes::split;
/// use stepfold_state_core::state::{Delta, Schema};
///
/// let schema = Schema::builder().open().build()?;
/// let delta: Delta = ["app:n", "user:theme", "topic", "temp:step"]
///     .into_iter()
///     .map(|key| schema.write(key, 1))
///     .collect::<Result<_, _>>()?;
/// let split = split(&delta)?;
/// assert_eq!((split.app.len(), split.user.len(), split.session.len()), (1, 1, 1));
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
pub fn split(delta: &Delta) -> Result<ByScope<Vec<&Write>>, StateError> {
    check_keys(delta)?;
    Ok(by_scope(delta))
}

/// Checks the form of every key, including those of `temp:`.
pub(crate) fn check_keys(delta: &Delta) -> Result<(), StateError> {
    delta.iter().try_for_each(|write| check_key(write.key()))
}

/// The writes to one scope, in order, for keys that were checked already.
pub(crate) fn writes_of(delta: &Delta, scope: Scope) -> impl Iterator<Item = &Write> {
    delta.iter().filter(move |write| Scope::of(write.key()) == scope)
}

/// As [`split`], for keys that were checked already.
pub(crate) fn by_scope(delta: &Delta) -> ByScope<Vec<&Write>> {
    let mut split = ByScope::<Vec<&Write>>::default();
    for write in delta {
        match Scope::of(write.key()) {
            Scope::App => split.app.push(write),
            Scope::User => split.user.push(write),
            Scope::Session => split.session.push(write),
            Scope::Temp => {}
        }
    }
    split
}

/// Drops the writes to `temp:`, which are not stored.
pub(crate) fn drop_temp(delta: &mut Delta) {
    *delta = std::mem::take(delta).into_iter().filter(|write| !is_temp(write)).collect();
}

/// Whether a delta has writes that are not stored.
pub(crate) fn has_temp(delta: &Delta) -> bool {
    delta.iter().any(is_temp)
}

fn is_temp(write: &Write) -> bool {
    Scope::of(write.key()) == Scope::Temp
}

/// All entries as one view: app, then user, then session; later scopes take precedence.
///
/// Keys of different scopes differ by their prefixes, so nothing ever hides anything in a store of ours.
pub fn merged<K: Ord, V>(
    scopes: ByScope<impl IntoIterator<Item = (K, V)>>,
) -> std::collections::BTreeMap<K, V> {
    scopes.app.into_iter().chain(scopes.user).chain(scopes.session).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepfold_state_core::state::{SCOPE_PREFIXES, Schema};

    #[test]
    fn prefixes_are_those_of_state_core() {
        assert_eq!([KEY_PREFIX_APP, KEY_PREFIX_USER, KEY_PREFIX_TEMP], SCOPE_PREFIXES);
    }

    #[test]
    fn a_split_checks_every_key_and_keeps_the_order() {
        let read = |json: &str| serde_json::from_str::<Delta>(json).unwrap();
        for key in ["", "app:", "usr:x", "a\\u0000b", " a"] {
            let delta = read(&format!(r#"[{{"key":"{key}","handler":"sum","value":1}}]"#));
            assert!(split(&delta).is_err(), "{key:?}");
        }
        let schema = Schema::builder().open().build().unwrap();
        let delta: Delta = (0..4).map(|value| schema.write("user:a", value).unwrap()).collect();
        let values: Vec<_> = split(&delta).unwrap().user.iter().map(|write| write.value().cloned()).collect();
        assert_eq!(values, (0..4).map(|value| Some(value.into())).collect::<Vec<_>>());
    }

    #[test]
    fn only_temp_is_dropped() {
        let schema = Schema::builder().open().build().unwrap();
        let mut delta: Delta =
            ["temp:a", "b", "temp:c"].map(|key| schema.write(key, 1).unwrap()).into_iter().collect();
        drop_temp(&mut delta);
        assert_eq!(delta.iter().map(Write::key).collect::<Vec<_>>(), ["b"]);
    }
}
