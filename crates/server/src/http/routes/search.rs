//! Searches in the messages of a principal's sessions.

use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepfold_session_scopes::{FoundMessage, MAX_FOUND_MESSAGES, SearchSessions, SessionStore as _};
use stepfold_state_core::{search_excerpt, search_words, searched_text};

use crate::http::guard::problem::Problem;
use crate::http::operation::request::{ApiRequest, AppTarget};

/// The characters of an excerpt.
const EXCERPT: usize = 400;

/// The messages of a page by default.
const PAGE: usize = 10;

/// A search. All pages together have at most 100 messages.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchQuery {
    /// The words that are sought: a message with any of them is found. There is no syntax.
    query: String,
    /// The session; by default those of the principal that were written last, at most 1,000.
    #[serde(default)]
    session: Option<String>,
    /// The number of messages before the page.
    #[serde(default)]
    after: usize,
    /// The messages of the page: 10 by default, at most 100.
    #[serde(default)]
    limit: Option<usize>,
}

/// A page of found messages.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FoundMessages {
    /// The messages, the best first.
    found: Vec<FoundMessageRow>,
    /// `after` of the next page, if there may be more.
    next: Option<usize>,
}

/// A message that a search has found.
#[derive(Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FoundMessageRow {
    session: String,
    /// The version of its commit.
    version: u64,
    /// Its place among the messages of the commit.
    message: usize,
    /// The time of the commit (RFC 3339).
    at: String,
    /// The role: `user`, `assistant` or `tool`.
    role: String,
    /// The tool whose result it is.
    tool: Option<String>,
    /// The part of its text with most of the words.
    excerpt: String,
}

impl FoundMessageRow {
    fn of(found: &FoundMessage, words: &[String]) -> Self {
        FoundMessageRow {
            session: found.session.to_string(),
            version: found.version,
            message: found.place,
            at: found.at.to_string(),
            role: found.message.role().as_str().to_owned(),
            tool: found.message.tool_result().map(|result| result.name().to_owned()),
            excerpt: search_excerpt(&searched_text(&found.message), words, EXCERPT),
        }
    }
}

pub(super) async fn search(
    request: ApiRequest<AppTarget, SearchQuery>,
) -> Result<Json<FoundMessages>, Problem> {
    let (app, SearchQuery { query, session, after, limit }) = (request.target.0, request.query);
    let words = search_words(&query);
    if words.is_empty() {
        return Err(Problem::invalid("query", "expected words, such as a name or a number"));
    }
    if limit == Some(0) {
        return Err(Problem::invalid("limit", "must be from 1 to 100"));
    }
    let last = after.saturating_add(limit.unwrap_or(PAGE)).min(MAX_FOUND_MESSAGES);
    let key = app.runner().key(request.principal.user().as_str(), session.as_deref().unwrap_or("-"))?;
    let search = match session.is_some() {
        true => SearchSessions::in_session(key, query),
        false => SearchSessions::of_user(key.app, key.user, query),
    };
    let found = app.runner().store().search(search.limit(last)).await?;
    let next = (found.len() == last && last < MAX_FOUND_MESSAGES).then_some(last);
    let rows = found.iter().skip(after).map(|found| FoundMessageRow::of(found, &words)).collect();
    Ok(Json(FoundMessages { found: rows, next }))
}
