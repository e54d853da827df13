//! Keys: their form, typed constants, and the key types of `get` and `set`.
//!
//! `State::get` and `State::set` take either a string, with JSON values, or a [`Key<T>`], with typed values.
//! Two sealed traits, [`ReadKey`] and [`WriteKey`], define the combinations.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::StateError;
use super::state::State;
use super::value::ValueRef;
use crate::invisible::InvisibleKind;

/// The maximum length of a key in bytes.
pub const MAX_KEY_BYTES: usize = 256;

/// The scope prefixes of keys: shared by all users, shared by all sessions of a user, dropped after the
/// invocation. A key without a prefix belongs to its session. (As in adk-rust 2.3, "State management".)
pub const SCOPE_PREFIXES: [&str; 3] = ["app:", "user:", "temp:"];

/// A typed key; declare it once as a constant.
///
/// # Examples
/// ```
/// use stepfold_state_core::state::{Key, Schema, State};
///
/// const TITLES: Key<Vec<String>> = Key::new("titles");
///
/// let mut state = State::new(&Schema::builder().key(TITLES).build()?);
/// state.set(TITLES, vec!["first".to_owned()])?;
/// state.append(TITLES, "second".to_owned())?;
/// assert_eq!(state.get(TITLES)?, Some(vec!["first".to_owned(), "second".to_owned()]));
/// # Ok::<(), stepfold_state_core::state::StateError>(())
/// ```
pub struct Key<T> {
    name: Cow<'static, str>,
    // NOTE: `fn() -> T`: a key holds no `T`, so it is `Send` and `Sync` for every `T`.
    value: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// A key with this name. Its form is checked when it is used in a schema.
    pub const fn new(name: &'static str) -> Self {
        Key { name: Cow::Borrowed(name), value: PhantomData }
    }

    /// The name, prefix included.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<T> From<&'static str> for Key<T> {
    fn from(name: &'static str) -> Self {
        Key::new(name)
    }
}

impl<T> From<String> for Key<T> {
    fn from(name: String) -> Self {
        Key { name: Cow::Owned(name), value: PhantomData }
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        Key { name: self.name.clone(), value: PhantomData }
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key<{}>({:?})", std::any::type_name::<T>(), self.name)
    }
}

/// Checks the form of a key: no prefix or a known one, not empty, printable, at most 256 bytes.
///
/// # Errors
/// [`StateError::InvalidKey`] with the reason.
///
/// # Examples
/// ```
/// use stepfold_state_core::state::check_key;
///
/// assert!(check_key("user:theme").is_ok());
/// assert!(check_key("usr:theme").is_err());
/// ```
pub fn check_key(key: &str) -> Result<(), StateError> {
    match fault_of(key) {
        None => Ok(()),
        Some(reason) => Err(StateError::InvalidKey { key: key.to_owned(), reason }),
    }
}

pub(crate) fn fault_of(key: &str) -> Option<&'static str> {
    let name = match SCOPE_PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix)) {
        Some(name) => name,
        None if key.contains(':') => return Some("unknown prefix before ':'; available: app:, user:, temp:"),
        None => key,
    };
    // NOTE: Printable and trimmed: two keys that look equal could hold different values.
    if key.len() > MAX_KEY_BYTES {
        Some("longer than 256 bytes")
    } else if name.is_empty() {
        Some("missing name")
    } else if name.chars().any(|character| character.is_control() || is_ignorable(character)) {
        Some("contains characters that do not print")
    } else if name.trim() != name {
        Some("begins or ends with white space")
    } else {
        None
    }
}

/// Whether a character has no visible glyph, so that two names can look the same: Unicode's default-ignorable
/// characters, all format characters, separators of lines and paragraphs, and characters with a blank glyph.
///
/// Control characters are not included. For text that is displayed, use
/// [`is_invisible`](crate::is_invisible).
///
/// # Examples
/// ```
/// use stepfold_state_core::state::is_ignorable;
///
/// assert!(['\u{AD}', '\u{61C}', '\u{200B}', '\u{3164}', '\u{E0041}'].into_iter().all(is_ignorable));
/// assert!(!['a', ' ', 'é', '日', '🙂'].into_iter().any(is_ignorable));
/// ```
pub fn is_ignorable(character: char) -> bool {
    InvisibleKind::of(character).is_some_and(|kind| kind != InvisibleKind::Control)
}

/// A key for [`State::get`]: a string gives `Option<ValueRef>`, a [`Key<T>`] gives `Result<Option<T>,
/// StateError>`.
#[diagnostic::on_unimplemented(message = "`{Self}` is not a key", note = "use a `&str` or a `Key<T>`")]
pub trait ReadKey: sealed::Sealed {
    /// The result of reading.
    type Output<'a>;

    /// The name of the key.
    fn name(&self) -> &str;

    #[doc(hidden)]
    fn read<'a>(&self, state: &'a State) -> Self::Output<'a>;
}

/// A key for [`State::set`]: a string with anything that converts into a JSON value, or a [`Key<T>`] with a
/// `T` or a `&T`.
#[diagnostic::on_unimplemented(
    message = "a value of type `{V}` cannot be written to the key `{Self}`",
    note = "a `Key<T>` takes a `T` or a `&T`, where `T` is `serde::Serialize`; a `&str` key takes any value that converts into `serde_json::Value`"
)]
pub trait WriteKey<V>: sealed::Sealed {
    /// The name of the key.
    fn name(&self) -> &str;

    #[doc(hidden)]
    fn encode(&self, value: V) -> Result<Value, StateError>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for &str {}
    impl Sealed for &String {}
    impl<T> Sealed for super::Key<T> {}
    impl<T> Sealed for &super::Key<T> {}
}

impl ReadKey for &str {
    type Output<'a> = Option<ValueRef<'a>>;

    fn name(&self) -> &str {
        self
    }

    fn read<'a>(&self, state: &'a State) -> Option<ValueRef<'a>> {
        state.value(self)
    }
}

impl ReadKey for &String {
    type Output<'a> = Option<ValueRef<'a>>;

    fn name(&self) -> &str {
        self
    }

    fn read<'a>(&self, state: &'a State) -> Option<ValueRef<'a>> {
        state.value(self)
    }
}

impl<T: DeserializeOwned> ReadKey for Key<T> {
    type Output<'a> = Result<Option<T>, StateError>;

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, state: &State) -> Result<Option<T>, StateError> {
        decode(state, &self.name)
    }
}

impl<T: DeserializeOwned> ReadKey for &Key<T> {
    type Output<'a> = Result<Option<T>, StateError>;

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, state: &State) -> Result<Option<T>, StateError> {
        decode(state, &self.name)
    }
}

fn decode<T: DeserializeOwned>(state: &State, name: &str) -> Result<Option<T>, StateError> {
    let Some(value) = state.value(name) else { return Ok(None) };
    let decoded = value.decode().map_err(|source| StateError::Decode {
        key: name.to_owned(),
        wanted: std::any::type_name::<T>(),
        source,
    })?;
    Ok(Some(decoded))
}

impl<V: Into<Value>> WriteKey<V> for &str {
    fn name(&self) -> &str {
        self
    }

    fn encode(&self, value: V) -> Result<Value, StateError> {
        Ok(value.into())
    }
}

impl<V: Into<Value>> WriteKey<V> for &String {
    fn name(&self) -> &str {
        self
    }

    fn encode(&self, value: V) -> Result<Value, StateError> {
        Ok(value.into())
    }
}

impl<T: Serialize> WriteKey<T> for Key<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn encode(&self, value: T) -> Result<Value, StateError> {
        encode(&self.name, &value)
    }
}

impl<T: Serialize> WriteKey<&T> for Key<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn encode(&self, value: &T) -> Result<Value, StateError> {
        encode(&self.name, value)
    }
}

impl<T: Serialize> WriteKey<T> for &Key<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn encode(&self, value: T) -> Result<Value, StateError> {
        encode(&self.name, &value)
    }
}

impl<T: Serialize> WriteKey<&T> for &Key<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn encode(&self, value: &T) -> Result<Value, StateError> {
        encode(&self.name, value)
    }
}

pub(crate) fn encode<T: Serialize>(name: &str, value: &T) -> Result<Value, StateError> {
    serde_json::to_value(value).map_err(|source| StateError::Encode { key: name.to_owned(), source })
}
