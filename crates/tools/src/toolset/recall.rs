//! Tools with which an agent looks back: into the part of its conversation that a trim or a window does not show.
//!
//! They read the conversation in the state, so they find what the session's record has and nothing else: a fork its own
//! past, never what a rewind has taken back, and nothing of another session. What they find is the outcome of a call, so a
//! replay needs no index.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{Message, Role, Transcript};

use super::recall_index::RecallIndexes;
use super::recall_parts::{
    describe_found, found_limit, no_words, read_parameters, read_part, search_parameters,
};
use super::search_index::query_words;
use super::toolset::Toolset;
use crate::context::ToolContext;
use crate::error::{BuildError, ToolError};
use crate::extract::Args;
use crate::policy::Effect;
use crate::tool::Tool;

/// The name of the tool that searches.
pub const RECALL_SEARCH: &str = "recall_search";

/// The characters of an excerpt.
const EXCERPT: usize = 240;

/// Two tools with which a model looks back into its conversation: `recall_search` finds messages that it is not shown any
/// more, by their words, and `recall_read` reads one, or a result that was [cleared], in parts.
///
/// Found are texts of users and of the model, and results of tools; by BM25, over words of languages with spaces, pairs of
/// characters of those without, and parts of identifiers. Messages that the model is [shown](ToolContext::is_shown) are
/// left out. The first search of a conversation indexes it, later ones what is new; the index of the sixteen conversations
/// that were searched last is kept, as numbers without their text.
///
/// [cleared]: https://docs.rs/stepfold-trim/latest/stepfold_trim/struct.Trim.html#method.clear_results
///
/// # Errors
/// None in practice: the tools are fixed.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_tools::state_core::chat::{Message, ToolCall};
/// use stepfold_tools::state_core::state::{Schema, State};
/// use stepfold_tools::{Invocation, InvokeOptions, Tools, recall_tools};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let mut state = State::new(&Schema::builder().build()?);
/// state.push_message(Message::user("The fee of the bakery is 5 euro."));
/// state.push_message(Message::assistant("Noted."));
///
/// let tools = recall_tools()?.resolve(&state).await?;
/// let calls = vec![ToolCall::new("c1", "recall_search", json!({"query": "bakery fee"}))];
/// let done = Invocation::new(&tools, state, calls, InvokeOptions::default()).finish().await;
/// let found: serde_json::Value = serde_json::from_str(&done.outcomes[0].result.text())?;
/// assert_eq!(
///     found["found"][0],
///     json!({"message": 0, "of": "user", "characters": 32, "excerpt": "The fee of the bakery is 5 euro."}),
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[doc(alias("memory", "conversation_search"))]
pub fn recall_tools() -> Result<Toolset, BuildError> {
    let indexes = Arc::new(RecallIndexes::default());
    // NOTE: Not async, so that it runs on a thread: to index a long conversation takes longer than others should wait.
    let search = move |Args(arguments): Args<SearchArguments>, context: ToolContext| {
        search(&indexes, &arguments, &context)
    };
    let read = |Args(arguments): Args<ReadArguments>, context: ToolContext| {
        let read = read(&arguments, context.state().messages());
        async move { read }
    };
    let search = Tool::blocking(
        RECALL_SEARCH,
        "Searches earlier messages of this conversation that are no longer shown, by words.",
        search,
    );
    let read = Tool::new(
        super::RECALL_READ,
        "Reads an earlier message of this conversation, or a result that is no longer shown.",
        read,
    );
    let tools = [search.parameters(search_parameters()), read.parameters(read_parameters(&places(), &[]))];
    // NOTE: They read the state of the call and nothing else.
    let tools = tools.map(|tool| tool.effect(Effect::Pure).build());
    Ok(tools.into_iter().collect::<Result<Vec<Tool>, BuildError>>()?.into())
}

#[derive(Deserialize, JsonSchema)]
struct SearchArguments {
    query: String,
    limit: Option<usize>,
}

#[derive(Deserialize, JsonSchema)]
struct ReadArguments {
    message: Option<usize>,
    call_id: Option<String>,
    #[serde(default)]
    from: usize,
    characters: Option<usize>,
}

/// The parameters that say which message is read.
fn places() -> [(&'static str, Value); 2] {
    let message = "The number of the message, as a search gives it.";
    let call = "Or the id of the call whose result is read.";
    [
        ("message", json!({"type": ["integer", "null"], "minimum": 0, "description": message})),
        ("call_id", json!({"type": ["string", "null"], "description": call})),
    ]
}

fn search(
    indexes: &RecallIndexes,
    arguments: &SearchArguments,
    context: &ToolContext,
) -> Result<Value, ToolError> {
    let words = query_words(&arguments.query);
    if words.is_empty() {
        return Err(no_words());
    }
    let limit = found_limit(arguments.limit);
    let log = context.state().messages();
    let ranked = indexes.search(log, &words);
    let found = ranked.into_iter().filter(|index| !context.is_shown(*index)).take(limit);
    let found: Vec<Value> =
        found.filter_map(|index| Some(described(index, log.get(index)?, &words))).collect();
    if found.is_empty() {
        let note = "no earlier message that is not shown has these words; try others";
        return Ok(json!({"found": found, "note": note}));
    }
    Ok(json!({"found": found}))
}

/// A found message: its number, and the id of the call whose result it is.
fn described(index: usize, message: &Message, words: &[String]) -> Value {
    let mut place = Map::from_iter([("message".to_owned(), index.into())]);
    if let Some(result) = message.tool_result() {
        place.insert("call_id".to_owned(), result.call_id().into());
    }
    describe_found(place, message, words, EXCERPT)
}

fn read(arguments: &ReadArguments, log: &Transcript) -> Result<Value, ToolError> {
    let mut place = Map::new();
    let (index, message) = match (&arguments.call_id, arguments.message) {
        (Some(id), _) => {
            let is_result =
                |message: &Message| message.tool_result().is_some_and(|result| result.call_id() == id);
            let mut results = (0..log.len()).zip(log.iter()).rev().filter(|(_, message)| is_result(message));
            let found = results.next().ok_or_else(|| {
                ToolError::permanent(format!("no result of a call {id:?} in this conversation"))
            })?;
            // NOTE: A conversation that was made elsewhere may repeat an id: the newest result is read, the others are named.
            let others: Vec<usize> = results.map(|(index, _)| index).collect();
            if !others.is_empty() {
                place.insert("older_messages_of_this_call_id".to_owned(), others.into());
            }
            found
        }
        (None, Some(index)) => {
            let message = log.get(index).filter(|message| message.role() != Role::System);
            let unknown = || {
                ToolError::permanent(format!(
                    "no message {index}: the conversation has the numbers 0 to {}",
                    log.len().saturating_sub(1)
                ))
            };
            (index, message.ok_or_else(unknown)?)
        }
        (None, None) => {
            return Err(ToolError::permanent("give the number of a message, or the id of a call"));
        }
    };
    place.insert("message".to_owned(), index.into());
    read_part(place, (&format!("message {index}"), message), arguments.from, arguments.characters)
}
