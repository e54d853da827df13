//! `stepfold search`: messages of stored sessions, by words.

use serde_json::{Value, json};
use stepfold::prelude::*;
use stepfold::session_scopes::{FoundMessage, SearchSessions, SessionStore as _};
use stepfold::state_core::{search_excerpt, search_words, searched_text};

use crate::args::SessionArgs;
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show;

/// The characters of an excerpt.
const EXCERPT: usize = 160;

pub(super) async fn search(
    target: &SessionArgs,
    query: &str,
    limit: usize,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let words = search_words(query);
    if words.is_empty() {
        let reason =
            "the query has no words to search for: name what is sought, such as a person or a number";
        return Err(UsageError(reason.to_owned()).into());
    }
    // NOTE: not read-only: what is indexed now need not be read again by the next search.
    let context = CommandContext::for_write(target).await?;
    let id = target.session.as_deref();
    let key = context.runner.key(context.user.as_str(), id.unwrap_or("all"))?;
    let request = match id {
        Some(_) => SearchSessions::in_session(key, query),
        None => SearchSessions::of_user(key.app, key.user, query),
    };
    let found = context.runner.store().search(request.limit(limit)).await?;
    if json {
        let found: Vec<Value> = found.iter().map(|found| row(found, &words)).collect();
        show::line(json!({"found": found}).to_string());
        return Ok(CommandEnding::Done);
    }
    for found in &found {
        let line = format!(
            "{} v{}  {}: {}",
            found.session,
            found.version,
            whose(&found.message),
            excerpt(found, &words)
        );
        show::line(line);
    }
    if found.is_empty() {
        show::note("no message has these words");
    }
    Ok(CommandEnding::Done)
}

fn row(found: &FoundMessage, words: &[String]) -> Value {
    json!({
        "session": found.session.as_str(),
        "version": found.version,
        "message": found.place,
        "at": found.at.to_string(),
        "of": found.message.role().as_str(),
        "tool": found.message.tool_result().map(|result| result.name().to_owned()),
        "excerpt": excerpt(found, words),
    })
}

/// The role of a message, or the tool whose result it is.
fn whose(message: &Message) -> String {
    match message.tool_result() {
        Some(result) => format!("tool {}", result.name()),
        None => message.role().as_str().to_owned(),
    }
}

/// The part of a message with most of the words, in one line.
fn excerpt(found: &FoundMessage, words: &[String]) -> String {
    let excerpt = search_excerpt(&searched_text(&found.message), words, EXCERPT);
    excerpt.split_whitespace().collect::<Vec<_>>().join(" ")
}
