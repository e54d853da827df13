//! Derives a tool's description from the documentation of its function.

use syn::{Attribute, Expr, ExprLit, Lit, Meta};

/// Returns the part of a doc comment that the model reads: everything before the first heading.
///
/// Sections such as `# Errors` or `# Examples` are for readers of the code.
pub(crate) fn description(attributes: &[Attribute]) -> String {
    let lines: Vec<String> = attributes.iter().filter_map(line).collect();
    let text = lines.join("\n");
    let lines: Vec<&str> =
        text.lines().map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end()).collect();
    let mut is_code = false;
    let is_shown = |line: &&&str| {
        // NOTE: A `# comment` in a code block is not a heading.
        is_code ^= line.trim_start().starts_with("```");
        is_code || !is_heading(line)
    };
    let shown: Vec<&str> = lines.iter().take_while(is_shown).copied().collect();
    shown.join("\n").trim().to_owned()
}

/// Finds documentation that only the compiler can read: `#[doc = include_str!("..")]`.
pub(crate) fn unreadable(attributes: &[Attribute]) -> Option<&Attribute> {
    attributes.iter().find(|attribute| match &attribute.meta {
        Meta::NameValue(pair) => pair.path.is_ident("doc") && line(attribute).is_none(),
        _ => false,
    })
}

fn line(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    if !pair.path.is_ident("doc") {
        return None;
    }
    match &pair.value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

fn is_heading(line: &str) -> bool {
    let after = line.trim_start_matches('#');
    after.len() < line.len() && after.starts_with(' ')
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    fn check(attributes: &[syn::Attribute], expected: &str) {
        assert_eq!(super::description(attributes), expected);
    }

    #[test]
    fn ends_at_the_first_heading() {
        check(
            &[
                parse_quote!(#[doc = " Adds numbers."]),
                parse_quote!(#[doc = ""]),
                parse_quote!(#[doc = "   - #1 is kept"]),
                parse_quote!(#[doc = ""]),
                parse_quote!(#[doc = " # Errors"]),
                parse_quote!(#[doc = " Never."]),
            ],
            "Adds numbers.\n\n  - #1 is kept",
        );
    }

    #[test]
    fn code_is_no_heading() {
        check(
            &[
                parse_quote!(#[doc = " Runs:"]),
                parse_quote!(#[doc = " ```"]),
                parse_quote!(#[doc = " # a comment"]),
                parse_quote!(#[doc = " ```"]),
                parse_quote!(#[doc = " # Errors"]),
            ],
            "Runs:\n```\n# a comment\n```",
        );
    }

    #[test]
    fn is_empty_without_documentation() {
        check(&[parse_quote!(#[inline]), parse_quote!(#[doc(hidden)])], "");
    }
}
