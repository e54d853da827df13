//! Texts of reports, written result by result: for terminals, pull requests, build servers, and as JSON lines.

use std::io::Write;

use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, Event};

use crate::error::EvalError;
use crate::report::{CaseResult, CaseStatus, ReportHead, Summary};

/// Results in the order of their cases, which can be read again and again.
pub(crate) trait ReportResults {
    fn head(&self) -> &ReportHead;

    fn summary(&self) -> Summary;

    /// Calls `visit` with each result.
    ///
    /// # Errors
    /// When a result cannot be read, and those of `visit`.
    fn each(&self, visit: &mut dyn FnMut(&CaseResult) -> Result<(), EvalError>) -> Result<(), EvalError>;
}

fn unwritten(error: impl Into<std::io::Error>) -> EvalError {
    EvalError::io("writing of the report")(error.into())
}

/// Writes the head as a line, and each result.
pub(crate) fn write_json_lines(report: &dyn ReportResults, mut out: &mut dyn Write) -> Result<(), EvalError> {
    report.head().write_line(&mut out)?;
    report.each(&mut |result| result.write_line(&mut out))
}

/// Writes a table for a terminal.
pub(crate) fn write_table(report: &dyn ReportResults, out: &mut dyn Write) -> Result<(), EvalError> {
    let mut width = 0;
    report.each(&mut |result| {
        width = width.max(result.label().chars().count());
        Ok(())
    })?;
    let width = width.clamp(4, 60);
    writeln!(out, "{:<width$}  {:<15}  {:>5}  {:>8}  why", "case", "status", "steps", "tokens")
        .map_err(unwritten)?;
    report.each(&mut |result| {
        let CaseResult { status, steps, tokens, .. } = result;
        let case = result.label();
        let row = format!("{case:<width$}  {:<15}  {steps:>5}  {tokens:>8}  {}", status.name(), result.why());
        writeln!(out, "{}", row.trim_end()).map_err(unwritten)
    })?;
    writeln!(out, "{}", report.summary()).map_err(unwritten)
}

/// Writes Markdown, with the first rows that have not passed.
pub(crate) fn write_markdown(
    report: &dyn ReportResults,
    out: &mut dyn Write,
    rows: usize,
) -> Result<(), EvalError> {
    let ReportHead { candidate, mode, .. } = report.head();
    writeln!(out, "### Evaluation of {} ({mode})\n\n{}", code(candidate), report.summary())
        .map_err(unwritten)?;
    let mut open = 0;
    report.each(&mut |result| {
        if result.status == CaseStatus::Passed {
            return Ok(());
        }
        open += 1;
        if open == 1 {
            out.write_all(b"\n| case | status | why |\n|---|---|---|\n").map_err(unwritten)?;
        }
        if open > rows {
            return Ok(());
        }
        let (case, why) = (code(&result.label()), code(&result.why()));
        writeln!(out, "| {case} | {} | {why} |", result.status.name()).map_err(unwritten)
    })?;
    match open > rows {
        true => writeln!(out, "\nand {} more", open - rows).map_err(unwritten),
        false => Ok(()),
    }
}

/// Writes JUnit's XML: a test for each result.
pub(crate) fn write_junit(report: &dyn ReportResults, out: &mut dyn Write) -> Result<(), EvalError> {
    let mut xml = Writer::new_with_indent(out, b' ', 4);
    let mut write = |event: Event<'static>| xml.write_event(event).map_err(unwritten);
    let Summary { trials, passed: _, failed, left_record, errors, skipped, .. } = report.summary();
    let [tests, failures, errors, skipped] =
        [trials, failed, errors, left_record + skipped].map(|count| count.to_string());
    write(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let name = format!("stepfold eval {}", report.head().mode);
    let counts = [("tests", &*tests), ("failures", &*failures), ("errors", &*errors)];
    write(Event::Start(element("testsuites", &[&[("name", &*name)][..], &counts].concat())))?;
    let name = printable(&report.head().candidate);
    // The form of a set of suites has no such count.
    let counts = [&counts[..], &[("skipped", &*skipped)]].concat();
    write(Event::Start(element("testsuite", &[&[("name", &*name)][..], &counts].concat())))?;
    report.each(&mut |result| {
        write(Event::Start(element("testcase", &[("name", &result.label())])))?;
        let why = result.why();
        let status = match result.status {
            CaseStatus::Passed => None,
            CaseStatus::Failed => Some(("failure", why)),
            CaseStatus::Error => Some(("error", why)),
            CaseStatus::LeftRecord | CaseStatus::Skipped => {
                Some(("skipped", format!("{}: {why}", result.status.name())))
            }
        };
        if let Some((status, message)) = status {
            write(Event::Empty(element(status, &[("message", &message)])))?;
        }
        write(end("testcase"))
    })?;
    write(end("testsuite"))?;
    write(end("testsuites"))?;
    xml.get_mut().write_all(b"\n").map_err(unwritten)
}

fn element(name: &'static str, attributes: &[(&str, &str)]) -> BytesStart<'static> {
    BytesStart::new(name).with_attributes(attributes.iter().copied())
}

fn end(name: &'static str) -> Event<'static> {
    Event::End(BytesEnd::new(name))
}

pub(crate) fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.1} %", part * 100.0))
}

/// A count with its noun.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A text for one line of a terminal or a document: control characters are escaped, and what XML 1.0 does not have.
pub(crate) fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}') {
            true => line.extend(letter.escape_default()),
            false => line.push(letter),
        }
    }
    line
}

/// A text in a cell of a table in Markdown, literally: texts of models and names of users must not become links, mentions or
/// cells.
pub(crate) fn code(text: &str) -> String {
    let text = printable(&text.replace(['\n', '\r'], " ")).replace('|', "\\|");
    if text.trim().is_empty() {
        return String::new();
    }
    let runs = text.split(|letter| letter != '`').map(str::len);
    let fence = "`".repeat(runs.max().unwrap_or(0) + 1);
    let space = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{space}{text}{space}{fence}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quick_xml::Reader;
    use quick_xml::events::{BytesStart, Event};

    use crate::case::Case;
    use crate::expectation::Score;
    use crate::mode::Mode;
    use crate::report::{CaseResult, CaseStatus, Report, ReportHead};

    /// A character of XML 1.0.
    const fn is_of_xml(letter: char) -> bool {
        matches!(letter, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
    }

    fn report(candidate: &str, name: &str, reason: &str, status: CaseStatus) -> Report {
        let mut result = CaseResult::new(&Case::new(name, "hello"));
        result.status = status;
        result.scores = vec![Score::failed("own", reason)];
        let agent = serde_json::from_str("{}").expect("a fingerprint");
        Report::new(ReportHead::new(Mode::Roll, candidate, agent), vec![result])
    }

    fn attribute(element: &BytesStart<'_>, name: &str) -> String {
        let found = element.try_get_attribute(name).expect("valid attributes").expect("the attribute");
        found.unescape_value().expect("valid references").into_owned()
    }

    /// A law: whatever is in a name or a reason, a report for build servers is XML, and one line tells each of them.
    fn check(candidate: &str, name: &str, reason: &str, status: CaseStatus) {
        let xml = report(candidate, name, reason, status).to_junit().expect("it has a form");
        assert_eq!(xml.chars().find(|letter| !is_of_xml(*letter)), None, "{xml:?}");
        let mut reader = Reader::from_str(&xml);
        let (mut depth, mut names, mut messages) = (0, Vec::new(), Vec::new());
        loop {
            match reader.read_event().expect("XML") {
                Event::Start(element) => {
                    depth += 1;
                    names.push(attribute(&element, "name"));
                }
                Event::Empty(element) => messages.push(attribute(&element, "message")),
                Event::End(_) => depth -= 1,
                Event::Eof => break,
                _ => {}
            }
        }
        assert_eq!((depth, names.len(), messages.len()), (0, 3, 1));
        let shown = |text: &str| super::printable(text);
        assert_eq!((&*names[1], &*names[2]), (&*shown(candidate), &*shown(name)));
        assert!(messages[0].ends_with(&shown(&reason.replace('\n', " "))), "{messages:?}");
        assert!(names.iter().chain(&messages).all(|text| !text.contains(['\n', '\r'])));
    }

    proptest! {
        #[test]
        fn a_report_for_build_servers_is_xml(
            candidate in any::<String>(),
            name in any::<String>(),
            reason in any::<String>(),
            status in prop::sample::select(vec![CaseStatus::Failed, CaseStatus::Error, CaseStatus::Skipped]),
        ) {
            check(&candidate, &name, &reason, status);
        }
    }

    #[test]
    fn each_character_has_a_form_in_xml() {
        // 512 characters at a time.
        let all: Vec<char> = (0..=u32::from(char::MAX)).filter_map(char::from_u32).collect();
        for some in all.chunks(512) {
            let text: String = some.iter().collect();
            check("clerk", &text, &text, CaseStatus::Failed);
        }
    }
}
