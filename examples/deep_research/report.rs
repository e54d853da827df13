//! The report: finds and checks citations, adds the list of sources, and renders it as a page of HTML or a PDF.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};
use stepfold::graph::progress::OutputFormat;

use crate::corpus::Corpus;
use crate::pdf;

/// A citation in a text: where it stands, and the id of the section.
#[derive(Debug, PartialEq)]
struct Citation<'t> {
    place: Range<usize>,
    id: &'t str,
}

/// The citations of a text: ids in double brackets. What stands in code is code.
fn citations(text: &str) -> Vec<Citation<'_>> {
    let code = code_in(text);
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(open) = text[from..].find("[[").map(|place| from + place) {
        let Some(close) = text[open..].find("]]").map(|place| open + place) else { break };
        let id = &text[open + 2..close];
        if id.contains(['[', '\n']) {
            from = open + 1;
            continue;
        }
        from = close + 2;
        if !code.iter().any(|code| code.contains(&open)) {
            found.push(Citation { place: open..from, id: id.trim() });
        }
    }
    found
}

fn code_in(text: &str) -> Vec<Range<usize>> {
    let is_code = |event: &Event<'_>| matches!(event, Event::Code(_) | Event::Start(Tag::CodeBlock(_)));
    Parser::new(text).into_offset_iter().filter(|(event, _)| is_code(event)).map(|(_, range)| range).collect()
}

/// The faults of a draft's citations, for its author; empty if all are valid.
pub(crate) fn faults(draft: &str, corpus: &Corpus, sources: &[String]) -> Vec<String> {
    let cited = citations(draft);
    if cited.is_empty() {
        return vec!["nothing is cited".to_owned()];
    }
    let ids: BTreeSet<&str> = cited.iter().map(|citation| citation.id).collect();
    ids.into_iter().filter_map(|id| fault(id, corpus, sources)).collect()
}

fn fault(id: &str, corpus: &Corpus, sources: &[String]) -> Option<String> {
    if corpus.section(id).is_some() {
        let was_shown = sources.iter().any(|source| source == id);
        return (!was_shown).then(|| format!("[[{id}]] is a section that was not read"));
    }
    let document = id.split('#').next().unwrap_or_default();
    let anchors: Vec<&str> =
        corpus.document(document).into_iter().map(|section| section.anchor.as_str()).collect();
    Some(match anchors.as_slice() {
        [] => format!("[[{id}]] is in no document"),
        anchors => format!("[[{id}]] is no section; {document} has: {}", anchors.join(", ")),
    })
}

/// The report in Markdown: numbers instead of ids, and the list of sources after the text. Invalid citations are removed,
/// and listed.
pub(crate) fn with_sources(query: &str, draft: &str, corpus: &Corpus, sources: &[String]) -> String {
    let draft = draft.trim();
    let mut report = if draft.starts_with('#') { String::new() } else { format!("# {query}\n\n") };
    let (mut cited, mut removed) = (Vec::new(), BTreeSet::new());
    let mut end = 0;
    for Citation { place, id } in citations(draft) {
        report.push_str(draft[end..place.start].trim_end_matches(' '));
        end = place.end;
        if fault(id, corpus, sources).is_some() {
            report.push_str(" [?]");
            removed.insert(id);
            continue;
        }
        let number = cited.iter().position(|known| *known == id).unwrap_or_else(|| {
            cited.push(id);
            cited.len() - 1
        });
        // Writing to a string does not fail.
        let _ = write!(report, "[^{}]", number + 1);
    }
    report.push_str(&draft[end..]);
    if !removed.is_empty() {
        let removed = removed.into_iter().collect::<Vec<_>>().join(", ");
        let _ = write!(report, "\n\n> Citations that do not hold were taken out: {}", escaped(&removed));
    }
    report.push_str("\n\n## Sources\n");
    for (number, section) in (1..).zip(cited.iter().filter_map(|id| corpus.section(id))) {
        let _ = write!(report, "\n[^{number}]: \"{}\", in `{}`\n", escaped(&section.title), section.document);
    }
    report
}

/// As text, whatever Markdown would make of it.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        if matches!(c, '\\' | '*' | '_' | '[' | ']' | '<' | '>' | '`' | '#' | '|') {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    })
}

/// A report in the form that was asked for.
///
/// # Errors
/// A PDF of letters that its fonts do not have.
pub(crate) fn render(report: &str, format: OutputFormat) -> Result<Vec<u8>, String> {
    match format {
        OutputFormat::Markdown => Ok(report.as_bytes().to_vec()),
        OutputFormat::Html => Ok(page(report).into_bytes()),
        OutputFormat::Pdf => pdf::of_markdown(report),
        other => Err(format!("a report cannot be written as {other:?}")),
    }
}

/// The ending of the file's name.
pub(crate) fn extension(format: OutputFormat) -> &'static str {
    match format {
        OutputFormat::Html => "html",
        OutputFormat::Pdf => "pdf",
        _ => "md",
    }
}

pub(crate) const MARKDOWN: Options = Options::ENABLE_FOOTNOTES.union(Options::ENABLE_TABLES);

const STYLE: &str = "body { font: 1rem/1.5 Georgia, serif; max-width: 42rem; margin: 2rem auto; padding: 0 1rem } \
pre { overflow-x: auto; background: #f4f4f4; padding: .5rem } .footnote-definition p { display: inline }";

/// Renders a page of HTML. A model wrote the text, so none of it may become markup.
fn page(report: &str) -> String {
    let mut body = String::new();
    html::push_html(&mut body, Parser::new_ext(report, MARKDOWN).map(harmless));
    let mut title = String::new();
    html::push_html(&mut title, std::iter::once(Event::Text(title_of(report).into())));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
}

fn harmless(event: Event<'_>) -> Event<'_> {
    match event {
        Event::Html(text) | Event::InlineHtml(text) => Event::Text(text),
        Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
            Event::Start(Tag::Link { link_type, dest_url: harmless_url(dest_url), title, id })
        }
        // A picture would be fetched when the report is opened.
        Event::Start(Tag::Image { .. }) => Event::Start(Tag::Emphasis),
        Event::End(TagEnd::Image) => Event::End(TagEnd::Emphasis),
        event => event,
    }
}

fn harmless_url(url: CowStr<'_>) -> CowStr<'_> {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_lowercase());
    match scheme.as_deref() {
        None | Some("http" | "https" | "mailto") => url,
        Some(_) => "#".into(),
    }
}

/// The first heading.
pub(crate) fn title_of(report: &str) -> String {
    let mut title = String::new();
    for event in Parser::new_ext(report, MARKDOWN) {
        match event {
            Event::Text(text) | Event::Code(text) | Event::InlineHtml(text) => title.push_str(&text),
            Event::End(TagEnd::Heading(_)) => break,
            _ => {}
        }
    }
    title
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn corpus() -> Corpus {
        let text = "# One\nx\n# Two *parts*\ny";
        Corpus::new("one", &[("a.md".to_owned(), text.to_owned()), ("b.txt".to_owned(), "z".to_owned())])
    }

    fn sources() -> Vec<String> {
        vec!["a.md#one".to_owned(), "a.md#two-parts".to_owned()]
    }

    #[track_caller]
    fn check(draft: &str, expected_faults: &Expect, expected: &Expect) {
        expected_faults.assert_eq(&faults(draft, &corpus(), &sources()).join("\n"));
        expected.assert_eq(&with_sources("What?", draft, &corpus(), &sources()));
    }

    #[test]
    fn citations_become_numbers() {
        check(
            "# Why\nSo [[a.md#two-parts]]. And [[a.md#one]], so [[ a.md#two-parts ]].",
            &expect![""],
            &expect![[r##"
                # Why
                So[^1]. And[^2], so[^1].

                ## Sources

                [^1]: "Two parts", in `a.md`

                [^2]: "One", in `a.md`
            "##]],
        );
    }

    #[test]
    fn what_does_not_hold_is_said_and_taken_out() {
        check(
            "So [[a.md#three]], [[c.md#x]], [[b.txt#top]] and [[a.md#one]].",
            &expect![[r#"
            [[a.md#three]] is no section; a.md has: one, two-parts
            [[b.txt#top]] is a section that was not read
            [[c.md#x]] is in no document"#]],
            &expect![[r##"
            # What?

            So [?], [?], [?] and[^1].

            > Citations that do not hold were taken out: a.md\#three, b.txt\#top, c.md\#x

            ## Sources

            [^1]: "One", in `a.md`
        "##]],
        );
        check(
            "So it is.",
            &expect!["nothing is cited"],
            &expect![[r#"
            # What?

            So it is.

            ## Sources
        "#]],
        );
    }

    #[test]
    fn code_cites_nothing() {
        check(
            "# A\n`[[x]]` [[a.md#one]]\n```toml\n[[bin]]\n```\n[[[1]]] [[",
            &expect!["[[1]] is in no document"],
            &expect![[r##"
            # A
            `[[x]]`[^1]
            ```toml
            [[bin]]
            ```
            [ [?]] [[

            > Citations that do not hold were taken out: 1

            ## Sources

            [^1]: "One", in `a.md`
        "##]],
        );
    }

    #[test]
    fn nothing_that_a_model_wrote_becomes_markup() {
        let report = "# A <b>\n\n<script>x</script> <i>y</i> [l](javascript:x) [m](https://m) ![p](http://p)[^1]\n\n[^1]: z";
        let page = page(report);
        let body = page.split("<body>").nth(1).unwrap();
        expect![[r#"

            <h1>A &lt;b&gt;</h1>
            &lt;script&gt;x&lt;/script&gt; &lt;i&gt;y&lt;/i&gt; [l](javascript:x) [m](https://m) ![p](http://p)[^1]
            <div class="footnote-definition" id="1"><sup class="footnote-definition-label">1</sup>
            <p>z</p>
            </div>
            </body>
            </html>
        "#]].assert_eq(body);
        assert!(page.contains("<title>A &lt;b&gt;</title>"), "{page}");
    }
}
