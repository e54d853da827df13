//! An index over the names, descriptions and parameters of tools. BM25 from the library `bm25`.
//!
//! It has the tokenizer of all searches here: the library's default one is made for prose in one language, not for
//! `get_user-info`, and has a stemmer, word lists and a cache with global state.

use bm25::{Embedder, EmbedderBuilder, Embedding, Scorer, TokenEmbedder, TokenEmbedding, Tokenizer};
use serde_json::Value;
use stepfold_state_core::search_words;

use crate::tool::Tool;

/// The maximum number of query words; further ones are ignored.
const MAX_QUERY_WORDS: usize = 32;
/// A word in the name of a tool has more weight than one in its description.
const NAME_WEIGHT: usize = 2;

/// The search index over the tools of a set.
pub(crate) struct ToolIndex {
    names: Vec<Box<str>>,
    scorer: Scorer<usize, u64>,
}

impl ToolIndex {
    pub(crate) fn new(tools: &[Tool]) -> Self {
        let texts: Vec<String> = tools.iter().map(text_of).collect();
        let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
        let embedder: Embedder<u64, WordTokenizer> =
            EmbedderBuilder::with_tokenizer_and_fit_to_corpus(WordTokenizer, &borrowed).build();
        let mut scorer = Scorer::new();
        for (index, text) in texts.iter().enumerate() {
            scorer.upsert(&index, embedder.embed(text));
        }
        ToolIndex { names: tools.iter().map(|tool| tool.name().into()).collect(), scorer }
    }

    /// The indexes of the best matching tools, best first; equal ones by name.
    pub(crate) fn search(&self, query: &str, limit: usize) -> Vec<usize> {
        let words = query_words(query);
        let words = words.iter().map(|word| TokenEmbedding { index: u64::embed(word), value: 1.0 }).collect();
        let mut found = self.scorer.matches(&Embedding(words));
        found.sort_by(|a, b| {
            // NOTE: Equal scores in the order of names: a search must give the same tools again.
            b.score.total_cmp(&a.score).then_with(|| self.names[a.id].cmp(&self.names[b.id]))
        });
        found.into_iter().take(limit).map(|document| document.id).collect()
    }
}

/// The words of a query, each once.
pub(super) fn query_words(query: &str) -> Vec<String> {
    let mut words = search_words(query);
    let mut seen = std::collections::HashSet::new();
    // NOTE: A repeated word must not count twice.
    words.retain(|word| seen.insert(word.clone()));
    words.truncate(MAX_QUERY_WORDS);
    words
}

/// The indexed text: name, description, names and descriptions of parameters.
fn text_of(tool: &Tool) -> String {
    let spec = tool.spec();
    let mut text = String::new();
    for _ in 0..NAME_WEIGHT {
        text.push_str(&spec.name);
        text.push('\n');
    }
    text.push_str(&spec.description);
    add_parameters(&mut text, &spec.parameters);
    text
}

fn add_parameters(text: &mut String, schema: &Value) {
    let Value::Object(fields) = schema else {
        if let Value::Array(schemas) = schema {
            for schema in schemas {
                add_parameters(text, schema);
            }
        }
        return;
    };
    if let Some(Value::String(description)) = fields.get("description") {
        text.push('\n');
        text.push_str(description);
    }
    for (keyword, value) in fields {
        if let ("properties", Value::Object(properties)) = (keyword.as_str(), value) {
            for (name, property) in properties {
                text.push('\n');
                text.push_str(name);
                add_parameters(text, property);
            }
        } else if matches!(keyword.as_str(), "items" | "anyOf" | "oneOf" | "allOf" | "additionalProperties") {
            add_parameters(text, value);
        }
    }
}

/// Splits as all searches do: see [`search_words`].
#[derive(Default)]
pub(super) struct WordTokenizer;

impl Tokenizer for WordTokenizer {
    fn tokenize(&self, text: &str) -> Vec<String> {
        search_words(text)
    }
}
