//! Tools with which an agent looks into other sessions of its user.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};
use stepfold_session_scopes::{
    AnyStore, EventRange, FoundMessage, GetSession, SearchSessions, SessionId, SessionKey, SessionStore as _,
};
use stepfold_state_core::chat::Role;
use stepfold_state_core::search_words;
use stepfold_tools::recall::{
    describe_found, found_limit, no_words, read_parameters, read_part, search_parameters,
};
use stepfold_tools::{BuildError, Effect, RawArgs, Tool, ToolContext, ToolError, Toolset};

use crate::record::history::session_of;

const SEARCH: &str = "recall_sessions";
const READ: &str = "recall_session_read";
/// The tools whose results only repeat what is elsewhere.
pub(crate) const RECALLING: [&str; 4] = [SEARCH, READ, "recall_search", stepfold_tools::RECALL_READ];

/// The characters of an excerpt.
const EXCERPT: usize = 400;

/// Two tools with which a model looks into the other sessions of its user, beside those that look back into its own
/// (`recall_tools` of `stepfold-tools`): `recall_sessions` finds messages by their words, `recall_session_read` reads one.
///
/// A call reaches the sessions of the app and the user in whose session it runs, whatever protocol the user came by, and no
/// others; the session itself is left out, since its messages are shown or found by `recall_search`. Messages that a rewind
/// has hidden, and those that retention or an erasure has deleted, are not found. What was found is the outcome of the call:
/// a replay reads no store.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use stepfold_agent_loop::Agent;
/// use stepfold_runner::{Runner, SessionRecall};
/// use stepfold_session_scopes::{AnyStore, MemoryStore};
///
/// let store = AnyStore::new(MemoryStore::new());
/// let noting = Agent::builder(Script::parse("assistant: noted")?).build()?;
/// let monday = Runner::builder(noting, store.clone()).build().session("ada", "monday").await?;
/// monday.run("The fee of the bakery is 5 euro.").await?;
///
/// let model = Script::parse("assistant: > c1 recall_sessions(query=\"bakery\")\nassistant: it was 5 euro")?;
/// let agent = Agent::builder(model).tools(SessionRecall::over(store.clone()).toolset()?).build()?;
/// let runner = Runner::builder(agent, store).build();
/// let outcome = runner.session("ada", "tuesday").await?.run("what was the fee of the bakery?").await?;
/// let result = outcome.transcript().iter().find_map(|message| message.tool_result()).unwrap().text().into_owned();
/// assert!(result.contains("The fee of the bakery is 5 euro."), "{result}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
#[doc(alias("memory", "long-term memory", "cross-thread"))]
pub struct SessionRecall(Arc<OnceLock<AnyStore>>);

impl SessionRecall {
    /// Recall over the sessions of a store.
    pub fn over(store: AnyStore) -> Self {
        let recall = SessionRecall::default();
        recall.connect(store);
        recall
    }

    /// Recall over a store that is opened after the agent is built. Calls before [`connect`](SessionRecall::connect) fail.
    pub fn unconnected() -> Self {
        SessionRecall::default()
    }

    /// Sets the store, unless it is set; returns whether it was not.
    pub fn connect(&self, store: AnyStore) -> bool {
        self.0.set(store).is_ok()
    }

    /// The tools. All toolsets of one `SessionRecall` have the same store.
    ///
    /// # Errors
    /// None in practice: the tools are fixed.
    pub fn toolset(&self) -> Result<Toolset, BuildError> {
        let recall = self.clone();
        let search = move |RawArgs(arguments): RawArgs, context: ToolContext| {
            let recall = recall.clone();
            async move { recall.search(&arguments, &context).await }
        };
        let recall = self.clone();
        let read = move |RawArgs(arguments): RawArgs, context: ToolContext| {
            let recall = recall.clone();
            async move { recall.read(&arguments, &context).await }
        };
        let search =
            Tool::new(SEARCH, "Searches messages of earlier conversations with this user, by words.", search);
        let read =
            Tool::new(READ, "Reads a message of an earlier conversation, which a search has found.", read);
        let read_parameters = read_parameters(&places(), &["session", "version"]);
        let tools =
            [search.parameters(closed(search_parameters())), read.parameters(closed(read_parameters))];
        // NOTE: they change nothing, so an interrupted call runs again.
        let tools = tools.map(|tool| tool.effect(Effect::Pure).build());
        Ok(tools.into_iter().collect::<Result<Vec<Tool>, BuildError>>()?.into())
    }

    /// The store, and the session of a call.
    fn of_call(&self, context: &ToolContext) -> Result<(&AnyStore, SessionKey), ToolError> {
        let store = self.0.get();
        let store = store.ok_or_else(|| {
            ToolError::permanent("earlier conversations are not available: no store is connected")
        })?;
        // NOTE: the key is made by the runner; nothing in it comes from the model but its last part.
        let caller = session_of(context.idempotency_key()).ok_or_else(|| {
            ToolError::permanent("earlier conversations are not available: the agent runs without a session")
        })?;
        Ok((store, caller))
    }

    async fn search(&self, arguments: &Value, context: &ToolContext) -> Result<Value, ToolError> {
        let (store, caller) = self.of_call(context)?;
        let query = arguments["query"].as_str().unwrap_or_default();
        let words = search_words(query);
        if words.is_empty() {
            return Err(no_words());
        }
        let limit = found_limit(number(arguments, "limit"));
        let request = SearchSessions::of_user(caller.app, caller.user, query).except(caller.id).limit(limit);
        let found = store.search(request.without_results_of(RECALLING)).await?;
        let found: Vec<Value> = found.iter().map(|found| described(found, &words)).collect();
        if found.is_empty() {
            let note = "no message of an earlier conversation has these words; try others";
            return Ok(json!({"found": found, "note": note}));
        }
        Ok(json!({"found": found}))
    }

    async fn read(&self, arguments: &Value, context: &ToolContext) -> Result<Value, ToolError> {
        let (store, caller) = self.of_call(context)?;
        let session = arguments["session"].as_str().unwrap_or_default();
        let (version, place) = (number(arguments, "version"), number(arguments, "message"));
        let (version, place) = (version.unwrap_or_default() as u64, place.unwrap_or_default());
        let unknown = || {
            ToolError::permanent(format!(
                "no message {place} at version {version} of a conversation {session:?}"
            ))
        };
        let id = SessionId::new(session).map_err(|_| unknown())?;
        let page = EventRange::Page { after: version.saturating_sub(1), limit: 1 };
        let read = store.get(GetSession::new(caller.with_id(id)).events(page).without_state()).await;
        // NOTE: another user's session is as missing as one that never was.
        let read = read.map_err(|_| unknown())?;
        let committed = read.visible_events().find(|committed| committed.version == version);
        let message = committed.and_then(|committed| committed.event.messages.get(place));
        let message = message.filter(|message| message.role() != Role::System).ok_or_else(unknown)?;
        let from = number(arguments, "from").unwrap_or_default();
        read_part(Map::new(), ("the message", message), from, number(arguments, "characters"))
    }
}

fn number(arguments: &Value, name: &str) -> Option<usize> {
    arguments[name].as_u64().and_then(|number| usize::try_from(number).ok())
}

/// A found message: where and when it is.
fn described(found: &FoundMessage, words: &[String]) -> Value {
    let place = [
        ("session", Value::from(found.session.as_str())),
        ("version", found.version.into()),
        ("message", found.place.into()),
        ("at", found.at.to_string().into()),
    ];
    let place = place.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    describe_found(place, &found.message, words, EXCERPT)
}

/// The parameters without any others.
fn closed(mut parameters: Value) -> Value {
    parameters["additionalProperties"] = false.into();
    parameters
}

/// The parameters that say which message is read.
fn places() -> [(&'static str, Value); 3] {
    let message = "The message there, as a search gives it; 0 by default.";
    [
        ("session", json!({"type": "string", "description": "The conversation, as a search gives it."})),
        (
            "version",
            json!({"type": "integer", "minimum": 1, "description": "The version, as a search gives it."}),
        ),
        ("message", json!({"type": "integer", "minimum": 0, "description": message})),
    ]
}
