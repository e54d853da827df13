//! The environment of a test case: a store, its own app, and common calls.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use serde_json::{Value, json};
use stepfold_state_core::ErrorChain;
use stepfold_state_core::state::{Delta, Handler, Schema, State, StateError};

use stepfold_session_scopes::Event;
use stepfold_session_scopes::Session;
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::SessionSchema;
use stepfold_session_scopes::Timestamp;
use stepfold_session_scopes::{
    AnyStore, AppendClaim, AppendEvent, CreateSession, Expected, GetSession, Receipt, RewindSession,
    SessionStore,
};
use stepfold_session_scopes::{Author, EventId, InvocationId, SessionKey};

/// The error of a case.
#[derive(Debug)]
pub(crate) struct CaseFault(String);

impl CaseFault {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        CaseFault(text.into())
    }
}

impl fmt::Display for CaseFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error + 'static> From<E> for CaseFault {
    fn from(error: E) -> Self {
        CaseFault(ErrorChain(&error).to_string())
    }
}

pub(crate) type StoreCaseResult = Result<(), CaseFault>;
pub(crate) type CaseFuture = Pin<Box<dyn Future<Output = StoreCaseResult> + Send>>;

/// A case: its name and function.
pub(crate) struct ContractCase {
    pub(crate) name: &'static str,
    pub(crate) run: fn(CaseContext) -> CaseFuture,
}

/// Lists cases by the names of their functions.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub(super) const CASES: &[ContractCase] =
            &[$(ContractCase { name: stringify!($name), run: |context| Box::pin($name(context)) }),*];
    };
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(CaseFault::new(format!($($text)+)));
        }
    };
}

/// Fails the case unless both are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr) => {{
        let (left, right) = (&$left, &$right);
        if *left != *right {
            return Err(CaseFault::new(format!(
                "{} is {left:?}, expected {right:?} (line {} of {})",
                stringify!($left),
                line!(),
                file!(),
            )));
        }
    }};
}

/// Fails the case unless the result is this error.
macro_rules! ensure_error {
    ($result:expr, $pattern:pat) => {
        match $result {
            Err($pattern) => {}
            other => {
                return Err(CaseFault::new(format!(
                    "{} is {other:?}, expected {} (line {})",
                    stringify!($result),
                    stringify!($pattern),
                    line!(),
                )));
            }
        }
    };
}

pub(crate) use {cases, ensure, ensure_eq, ensure_error};

/// The environment of one case.
#[derive(Clone, Debug)]
pub(crate) struct CaseContext {
    pub(crate) store: AnyStore,
    pub(crate) app: String,
    /// Whether the list of sessions contains beginnings of messages.
    pub(crate) lists_messages: bool,
}

impl CaseContext {
    pub(crate) fn new(store: AnyStore, app: String, lists_messages: bool) -> Self {
        CaseContext { store, app, lists_messages }
    }

    /// A session of alice, which need not be there.
    pub(crate) fn key(&self, id: &str) -> Result<SessionKey, SessionError> {
        SessionKey::new(self.app.as_str(), "alice", id)
    }

    /// Makes a session of alice.
    pub(crate) async fn create(
        &self,
        schema: &SessionSchema,
        id: &str,
        values: Value,
    ) -> Result<Session, SessionError> {
        self.store.create(CreateSession::with_key(self.key(id)?, schema, at(0)).values(values)?).await
    }

    pub(crate) async fn get(&self, key: &SessionKey) -> Result<Session, SessionError> {
        self.store.get(GetSession::new(key.clone())).await
    }

    /// Commits an event of these writes, each by its key's own handler.
    pub(crate) async fn write(
        &self,
        key: &SessionKey,
        expected: impl Into<Expected>,
        id: &str,
        schema: &SessionSchema,
        writes: &[(&str, Value)],
    ) -> Result<Receipt, SessionError> {
        let event = event(id)?.with_delta(delta(schema, writes)?);
        self.append(key, expected, event, schema).await
    }

    pub(crate) async fn append(
        &self,
        key: &SessionKey,
        expected: impl Into<Expected>,
        event: Event,
        schema: &SessionSchema,
    ) -> Result<Receipt, SessionError> {
        self.store.append(AppendEvent::new(key.clone(), expected, event, schema)).await
    }

    pub(crate) async fn rewind(&self, key: &SessionKey, id: &str, to: u64) -> Result<Receipt, SessionError> {
        self.rewind_taking(key, id, to, Vec::new()).await
    }

    /// Rewinds, and takes entries from the inbox.
    pub(crate) async fn rewind_taking(
        &self,
        key: &SessionKey,
        id: &str,
        to: u64,
        taken: Vec<u64>,
    ) -> Result<Receipt, SessionError> {
        let request = rewind(key, id, to)?;
        self.store.rewind(with(request, |request| request.taken = taken)).await
    }

    /// Rewinds, about a claim.
    pub(crate) async fn rewind_under(
        &self,
        key: &SessionKey,
        id: &str,
        to: u64,
        claim: AppendClaim,
    ) -> Result<Receipt, SessionError> {
        let request = rewind(key, id, to)?;
        self.store.rewind(request.with_claim(claim)).await
    }
}

fn rewind(key: &SessionKey, id: &str, to: u64) -> Result<RewindSession, SessionError> {
    let (event, invocation) = (EventId::new(id)?, InvocationId::new("rewind")?);
    Ok(RewindSession::new(key.clone(), Expected::Any, to, event, invocation, Author::new("user")?, at(1)))
}

/// A request with some of its fields changed.
pub(crate) fn with<T>(mut request: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut request);
    request
}

/// An error of the input of a case.
pub(crate) fn invalid(what: &str) -> impl FnOnce(StateError) -> SessionError {
    move |source| SessionError::State { what: what.to_owned(), source }
}

/// Seconds after a day that all cases begin with.
pub(crate) fn at(seconds: i64) -> Timestamp {
    // NOTE: a fixed day: a store that used the time of its host instead of the request's would fail the cases.
    Timestamp::from_micros(1_700_000_000_000_000 + seconds * 1_000_000)
}

pub(crate) fn event(id: &str) -> Result<Event, SessionError> {
    Ok(Event::new(EventId::new(id)?, InvocationId::new("i1")?, Author::new("agent")?, at(1)))
}

pub(crate) fn delta(schema: &SessionSchema, writes: &[(&str, Value)]) -> Result<Delta, SessionError> {
    let writes = writes.iter().map(|(key, value)| schema.schema().write(*key, value.clone()));
    writes.collect::<Result<_, _>>().map_err(invalid("writes of a case"))
}

/// Keys of every scope, and one of every handler.
pub(crate) fn schema() -> Result<SessionSchema, StateError> {
    let any =
        |builder: stepfold_state_core::state::SchemaBuilder, key: &str, kind: &str, handler: Handler| {
            builder.key_schema(key, json!({ "type": kind })).handler(handler)
        };
    // NOTE: open, so that cases may write keys of their own.
    let mut builder = Schema::builder().open();
    for prefix in ["", "user:", "app:"] {
        for (key, kind, handler) in [
            ("sum", "integer", Handler::sum()),
            ("max", "integer", Handler::max()),
            ("min", "integer", Handler::min()),
            ("first", "string", Handler::first_wins()),
            ("map", "object", Handler::merge_maps()),
            ("list", "array", Handler::merge_lists()),
            ("union", "array", Handler::union()),
            ("tasks", "array", Handler::upsert_by("id")),
            ("recent", "array", Handler::keep_last(3)),
            ("text", "string", Handler::replace_values()),
        ] {
            builder = any(builder, &format!("{prefix}{key}"), kind, handler);
        }
    }
    // NOTE: a custom handler as well: stores must call handlers that they cannot interpret.
    let reverse = Handler::custom("longest", |current, new| {
        let length = |value: &Value| value.as_str().map_or(0, str::len);
        Ok(current.filter(|current| length(current) >= length(&new)).cloned().unwrap_or(new))
    });
    builder = builder.key::<String>("longest").handler(reverse).key::<String>("app:longest");
    builder = builder.key::<i64>("defaulted").handler(Handler::sum()).default(10);
    Ok(SessionSchema::new(builder.build()?))
}

/// The values of a state as JSON, without the conversation.
pub(crate) fn values_of(state: &State) -> Value {
    let values = state.iter().filter(|(key, _)| *key != "messages");
    Value::Object(values.map(|(key, value)| (key.to_owned(), value.to_json())).collect())
}
