//! Detects unclosed placeholders: a template treats them as text, which is never intended.

use super::faults::FaultCollector;

/// The prefixes that a key may have.
const PREFIXES: [&str; 3] = ["app:", "user:", "temp:"];

/// Adds a fault for each unclosed placeholder of a template.
pub(crate) fn check_closed(field: &str, text: &str, faults: &mut FaultCollector) {
    for (line, name) in unclosed(text) {
        let place = if line > 1 { format!(" (line {line} of it)") } else { String::new() };
        let words = format!(
            "{field}: `{{{name}`{place} is not closed; write `{{{name}}}`, or `{{{{{name}` if it is text"
        );
        faults.add(&[field], words);
    }
}

/// The names after opening braces that are never closed, each with its line, from 1.
fn unclosed(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut start = 0;
    while let Some(brace) = text[start..].find('{').map(|at| start + at) {
        let rest = &text[brace + 1..];
        // A doubled brace is text.
        if rest.starts_with('{') {
            start = brace + 2;
            continue;
        }
        start = brace + 1;
        let name = name_of(rest);
        let next = rest.find(['{', '}']);
        let is_closed = next.is_some_and(|at| rest[at..].starts_with('}'));
        if !name.is_empty() && !is_closed {
            found.push((text[..brace].matches('\n').count() + 1, name));
        }
    }
    found
}

/// The name of a placeholder that begins here; empty if none does.
fn name_of(text: &str) -> &str {
    let prefix = PREFIXES.iter().find(|prefix| text.starts_with(**prefix)).map_or(0, |prefix| prefix.len());
    let is_part = |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | '.');
    let end = text[prefix..].find(|character| !is_part(character)).map_or(text.len(), |end| prefix + end);
    let is_name = text[prefix..end].contains(|character: char| character.is_alphabetic() || character == '_');
    if is_name { text[..end].trim_end_matches(['.', '-']) } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(usize, &str)]) {
        assert_eq!(unclosed(text), expected, "{text}");
    }

    #[test]
    fn what_is_begun_and_not_closed_is_found() {
        check("You have {basket", &[(1, "basket")]);
        check("You have {basket.", &[(1, "basket")]);
        check("a {user:name and\nb {basket} {c", &[(1, "user:name"), (2, "c")]);
        check("{basket? and {b}", &[(1, "basket")]);
    }

    #[test]
    fn text_in_braces_is_text() {
        for text in
            ["{a}", "{a?}", r#"{"a": 1"#, "{ a", "{{a", "{a b}", "fn x() {\n}", "{1", "{...", "{{{a}}}"]
        {
            check(text, &[]);
        }
    }
}
