//! Tools with which an agent looks back: into the part of its conversation that a trim or a window does not show.
//!
//! They read the conversation in the state, so they find what the session's record has and nothing else: a fork its own
//! past, never what a rewind has taken back, and nothing of another session. What they find is the outcome of a call, so a
//! replay needs no index.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use bm25::{Embedder, EmbedderBuilder, Embedding, Scorer, TokenEmbedder, TokenEmbedding};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{Message, Role, Transcript};
use stepfold_state_core::{search_excerpt, searched_text};

use super::search_index::{WordTokenizer, query_words};
use super::toolset::Toolset;
use crate::context::ToolContext;
use crate::error::{BuildError, ToolError};
use crate::extract::Args;
use crate::policy::Effect;
use crate::tool::Tool;

/// The name of the tool that searches.
pub const RECALL_SEARCH: &str = "recall_search";

const DEFAULT_FOUND: usize = 5;
const MAX_FOUND: usize = 20;
/// The characters of an excerpt.
const EXCERPT: usize = 240;
/// The characters that one call reads by default, and at most.
const DEFAULT_READ: usize = 4_000;
const MAX_READ: usize = 16_000;
/// The conversations whose index is kept, and the words in these together.
const MAX_INDEXES: usize = 16;
const MAX_WORDS: usize = 8_000_000;
/// The average length that BM25 compares lengths with, in words.
const AVERAGE_WORDS: f32 = 100.0;

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
    let tools = [search.parameters(search_parameters()), read.parameters(read_parameters())];
    // NOTE: They read the state of the call and nothing else.
    let tools = tools.map(|tool| tool.effect(Effect::Pure).build());
    Ok(tools.into_iter().collect::<Result<Vec<Tool>, BuildError>>()?.into())
}

#[derive(Deserialize, JsonSchema)]
struct SearchArguments {
    query: String,
    limit: Option<usize>,
}

fn search_parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "A few words of what is sought: names, numbers, terms."},
            "limit": {
                "type": ["integer", "null"],
                "minimum": 1,
                "description": format!("How many messages to find; {DEFAULT_FOUND} by default, at most {MAX_FOUND}."),
            },
        },
        "required": ["query"],
    })
}

#[derive(Deserialize, JsonSchema)]
struct ReadArguments {
    message: Option<usize>,
    call_id: Option<String>,
    #[serde(default)]
    from: usize,
    characters: Option<usize>,
}

fn read_parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "message": {"type": ["integer", "null"], "minimum": 0, "description": "The number of the message, as a search gives it."},
            "call_id": {"type": ["string", "null"], "description": "Or the id of the call whose result is read."},
            "from": {"type": "integer", "minimum": 0, "description": "The first character to read; 0 by default."},
            "characters": {
                "type": ["integer", "null"],
                "minimum": 1,
                "description": format!("How many characters to read; {DEFAULT_READ} by default, at most {MAX_READ}."),
            },
        },
    })
}

fn search(
    indexes: &RecallIndexes,
    arguments: &SearchArguments,
    context: &ToolContext,
) -> Result<Value, ToolError> {
    let words = query_words(&arguments.query);
    if words.is_empty() {
        return Err(ToolError::permanent(
            "the query has no words to search for; name what is sought: a person, a number, a term",
        ));
    }
    let limit = arguments.limit.unwrap_or(DEFAULT_FOUND).clamp(1, MAX_FOUND);
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

/// A found message: its number, whose it is, its length, and the part with most of the words.
fn described(index: usize, message: &Message, words: &[String]) -> Value {
    let text = searched_text(message);
    let mut described = Map::new();
    described.insert("message".to_owned(), index.into());
    described.insert("of".to_owned(), message.role().as_str().into());
    if let Some(result) = message.tool_result() {
        described.insert("tool".to_owned(), result.name().into());
        described.insert("call_id".to_owned(), result.call_id().into());
    }
    described.insert("characters".to_owned(), text.chars().count().into());
    described.insert("excerpt".to_owned(), search_excerpt(&text, words, EXCERPT).into());
    described.into()
}

fn read(arguments: &ReadArguments, log: &Transcript) -> Result<Value, ToolError> {
    let (index, message) = match (&arguments.call_id, arguments.message) {
        (Some(id), _) => {
            let is_result =
                |message: &Message| message.tool_result().is_some_and(|result| result.call_id() == id);
            let mut results = (0..log.len()).zip(log.iter()).rev();
            let found = results.find(|(_, message)| is_result(message));
            found.ok_or_else(|| {
                ToolError::permanent(format!("no result of a call {id:?} in this conversation"))
            })?
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
    let text = searched_text(message);
    let (all, from) = (text.chars().count(), arguments.from);
    let length = arguments.characters.unwrap_or(DEFAULT_READ).clamp(1, MAX_READ);
    if from > 0 && from >= all {
        return Err(ToolError::permanent(format!(
            "nothing to read from character {from}: message {index} has {all}"
        )));
    }
    let part: String = text.chars().skip(from).take(length).collect();
    let next = from.saturating_add(length);
    let mut read = json!({"message": index, "of": message.role().as_str(), "characters": all, "text": part});
    if next < all {
        read["next"] = next.into();
    }
    Ok(read)
}

/// The indexes of the conversations that were searched last, the newest at the end.
#[derive(Default)]
struct RecallIndexes(Mutex<Vec<RecallIndex>>);

impl RecallIndexes {
    /// The messages of a conversation that have some of these words, best first.
    fn search(&self, log: &Transcript, words: &[String]) -> Vec<usize> {
        let taken = {
            let mut indexes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = indexes.iter().rposition(|index| index.is_prefix_of(log));
            known.map(|place| indexes.remove(place))
        };
        // NOTE: Indexed and searched outside of the lock: another conversation does not wait for it.
        let mut index = taken.unwrap_or_default();
        index.grow(log);
        let found = index.search(words);
        let mut indexes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.push(index);
        let mut words: usize = indexes.iter().map(|index| index.words).sum();
        while indexes.len() > MAX_INDEXES || (words > MAX_WORDS && indexes.len() > 1) {
            words -= indexes.remove(0).words;
        }
        found
    }
}

/// The index over one conversation. It keeps no text: what is erased elsewhere is not here.
struct RecallIndex {
    /// The messages that it has, to know the conversation again.
    messages: Vec<Weak<Message>>,
    embedder: Embedder<u64, WordTokenizer>,
    scorer: Scorer<usize, u64>,
    words: usize,
}

impl Default for RecallIndex {
    fn default() -> Self {
        let embedder = EmbedderBuilder::with_avgdl(AVERAGE_WORDS).build();
        RecallIndex { messages: Vec::new(), embedder, scorer: Scorer::new(), words: 0 }
    }
}

impl RecallIndex {
    /// Whether the conversation begins with the messages of this index. An edited result is another message.
    fn is_prefix_of(&self, log: &Transcript) -> bool {
        let are_same =
            |(known, message): (&Weak<Message>, &Arc<Message>)| known.as_ptr() == Arc::as_ptr(message);
        !self.messages.is_empty()
            && self.messages.len() <= log.len()
            && self.messages.iter().zip(log.iter()).all(are_same)
    }

    fn grow(&mut self, log: &Transcript) {
        for message in log.iter_from(self.messages.len()) {
            let index = self.messages.len();
            self.messages.push(Arc::downgrade(message));
            if !is_searched(message) {
                continue;
            }
            let embedding = self.embedder.embed(&searched_text(message));
            self.words += embedding.len();
            self.scorer.upsert(&index, embedding);
        }
    }

    fn search(&self, words: &[String]) -> Vec<usize> {
        let words = words.iter().map(|word| TokenEmbedding { index: u64::embed(word), value: 1.0 }).collect();
        let mut found = self.scorer.matches(&Embedding(words));
        // NOTE: Of equal scores the newest first: a search gives the same again, and later words count more.
        found.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| b.id.cmp(&a.id)));
        found.into_iter().map(|document| document.id).collect()
    }
}

/// Messages of users and of the model, and results, but those of these tools: what they found is there already.
fn is_searched(message: &Message) -> bool {
    match message.role() {
        Role::System => false,
        Role::Tool => message
            .tool_result()
            .is_some_and(|result| ![RECALL_SEARCH, super::RECALL_READ].contains(&result.name())),
        _ => true,
    }
}
