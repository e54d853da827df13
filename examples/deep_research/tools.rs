//! The tools of a researcher: search the documents, and read them. Everything that it reads becomes a source.

use serde::Serialize;
use serde_json::{Value, json};
use stepfold::prelude::*;
use stepfold::tools::ToolBuilder;

use crate::corpus::{Corpus, Section};

/// The ids of the sections that an agent was shown. Only these may be cited.
pub(crate) const SOURCES: Key<Vec<String>> = Key::new("sources");

/// Sections that a search finds at most.
const MAX_FOUND: usize = 10;
/// Characters of a section in what a search finds.
const EXCERPT: usize = 200;
/// Characters that are read at once.
const PAGE: usize = 6_000;

/// A section that a search has found.
#[derive(Debug, Serialize)]
struct Found {
    id: String,
    title: String,
    excerpt: String,
}

/// Searches the documents for words, and gives the sections that fit best. Read a section before you rely on it.
#[tool(effect(Effect::Pure), writes(["sources"]))]
fn search(
    /// A few words that stand in what you look for.
    query: String,
    /// How many sections: 4 by default, at most 10.
    limit: Option<usize>,
    Resource(corpus): Resource<Corpus>,
    state: StateWriter,
) -> Result<Value, ToolError> {
    let found = corpus.search(&query, limit.unwrap_or(4).clamp(1, MAX_FOUND));
    if found.is_empty() {
        return Err(ToolError::permanent("nothing was found; try other words"));
    }
    state.set(SOURCES, found.iter().map(|section| section.id()).collect::<Vec<_>>())?;
    let found = found.into_iter().map(|section| Found {
        id: section.id(),
        title: section.title.clone(),
        excerpt: excerpt(section, &query),
    });
    Ok(json!(found.collect::<Vec<_>>()))
}

/// Reads a section of a document. Without a section it lists the sections of the document.
#[tool(effect(Effect::Pure), writes(["sources"]))]
fn read_document(
    /// The name of the document, such as docs/status.md.
    document: String,
    /// The section by its anchor, which is what stands behind the # of an id.
    section: Option<String>,
    /// The character to continue from, in a section that was too long to be read at once.
    from: Option<usize>,
    Resource(corpus): Resource<Corpus>,
    state: StateWriter,
) -> Result<Value, ToolError> {
    let sections = corpus.document(&document);
    if sections.is_empty() {
        let known = corpus.documents().join(", ");
        return Err(ToolError::permanent(format!("there is no document \"{document}\"; there are: {known}")));
    }
    let anchors = || sections.iter().map(|section| section.anchor.as_str()).collect::<Vec<_>>();
    let Some(wanted) = section else {
        return Ok(json!({"document": document, "sections": anchors()}));
    };
    let wanted = wanted.rsplit('#').next().unwrap_or_default();
    let Some(section) = sections.iter().find(|section| section.anchor == wanted) else {
        let known = anchors().join(", ");
        return Err(ToolError::permanent(format!("{document} has no section \"{wanted}\"; it has: {known}")));
    };
    state.set(SOURCES, vec![section.id()])?;
    Ok(page(section, from.unwrap_or(0)))
}

pub(crate) fn tools() -> [ToolBuilder; 2] {
    [search_tool(), read_document_tool()]
}

/// A part of a section, and where it continues.
fn page(section: &Section, from: usize) -> Value {
    let text: String = section.text.chars().skip(from).take(PAGE).collect();
    let end = from + text.chars().count();
    let has_more = section.text.chars().nth(end).is_some();
    let mut page = json!({"id": section.id(), "text": text});
    if has_more {
        page["go_on_from"] = end.into();
    }
    page
}

/// The lines around the first word of the query that stands in the section, in one line.
fn excerpt(section: &Section, query: &str) -> String {
    let text = section.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let lower = text.to_lowercase();
    let words = query.split(|c: char| !c.is_alphanumeric()).filter(|word| word.chars().count() > 3);
    let place = words.filter_map(|word| lower.find(&word.to_lowercase())).min().unwrap_or(0);
    // Lower case may be longer than the text itself.
    let before = lower[..place].chars().count().saturating_sub(EXCERPT / 4);
    let cut: String = text.chars().skip(before).take(EXCERPT).collect();
    let (head, tail) = (before > 0, before + cut.chars().count() < text.chars().count());
    format!("{}{cut}{}", if head { "..." } else { "" }, if tail { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use stepfold::tools::Resources;

    use super::*;
    use stepfold_examples::Recording;

    /// The results of the tools, and the sources that they record.
    async fn answers(calls: &str) -> String {
        let documents = [
            ("a.md".to_owned(), format!("# One\nA crash.\n# Long\n{}", "0123456789".repeat(700))),
            ("b.txt".to_owned(), "Of other things.".to_owned()),
        ];
        let conversation = format!("user: go\nassistant: {calls}\nassistant: done");
        let recording = Recording::new(&conversation, std::time::Duration::ZERO).unwrap();
        let schema = Schema::builder().key(SOURCES).handler(Handler::union()).build().unwrap();
        let agent = Agent::builder(recording)
            .schema(schema)
            .resources(Resources::new().with(Corpus::new("two", &documents)))
            .tools(tools())
            .build()
            .unwrap();
        let outcome = agent.run("go").await.unwrap();
        let results = outcome.transcript().iter().filter_map(|message| message.tool_result());
        let results = results.map(|result| {
            let text = result.text().into_owned();
            if text.len() > 400 { format!("{}...{}", &text[..60], &text[text.len() - 60..]) } else { text }
        });
        let results = results.collect::<Vec<_>>().join("\n");
        format!(
            "{results}\nsources: {}",
            outcome.state().get("sources").map_or("none".into(), |s| s.to_string())
        )
    }

    #[track_caller]
    fn check(calls: &str, expected: &Expect) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        expected.assert_eq(&runtime.block_on(answers(calls)));
    }

    #[test]
    fn what_is_found_is_a_source() {
        check(
            r#"> c1 search(query="crash")"#,
            &expect![[r##"
            [{"id":"a.md#one","title":"One","excerpt":"# One A crash."}]
            sources: ["a.md#one"]"##]],
        );
        check(
            r#"> c1 search(query="nowhere")"#,
            &expect![[r#"
            nothing was found; try other words
            sources: none"#]],
        );
    }

    #[test]
    fn sections_are_read_page_by_page() {
        check(
            r#"> c1 read_document(document="a.md")"#,
            &expect![[r#"
            {"document":"a.md","sections":["one","long"]}
            sources: none"#]],
        );
        check(
            r#"> c1 read_document(document="a.md", section="long")"#,
            &expect![[r##"
            {"id":"a.md#long","text":"# Long\n01234567890123456789012345...3456789012345678901234567890123456789012","go_on_from":6000}
            sources: ["a.md#long"]"##]],
        );
        check(
            r#"> c1 read_document(document="a.md", section="a.md#long", from=6000)"#,
            &expect![[r#"
            {"id":"a.md#long","text":"3456789012345678901234567890123456...2345678901234567890123456789012345678901234567890123456789"}
            sources: ["a.md#long"]"#]],
        );
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        check(
            r#"> c1 read_document(document="c.md")"#,
            &expect![[r#"
            there is no document "c.md"; there are: a.md, b.txt
            sources: none"#]],
        );
        check(
            r#"> c1 read_document(document="a.md", section="two")"#,
            &expect![[r#"
            a.md has no section "two"; it has: one, long
            sources: none"#]],
        );
    }
}
