//! Excerpts of texts, for errors.

/// The most characters of a text in an error.
const SHOWN: usize = 200;

/// The characters that are shown before the first difference of two texts.
const BEFORE: usize = 40;

/// A text in an error: at most 200 characters of it.
///
/// # Examples
/// ```
/// use stepfold_state_core::shortened;
///
/// assert_eq!(shortened("Be brief."), "Be brief.");
/// assert_eq!(shortened(&"ä".repeat(201)), format!("{}...", "ä".repeat(200)));
/// ```
#[must_use]
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

/// Two texts in an error that says that they differ, shortened so that their first difference is seen: most of an equal beginning is left
/// out where it is long, or unequal texts would look equal.
///
/// # Examples
/// ```
/// use stepfold_state_core::shortened_pair;
///
/// let long = "Help the user. ".repeat(20);
/// let (one, other) = shortened_pair(&format!("{long}Be brief."), &format!("{long}Be kind."));
/// assert_eq!(one, "... user. Help the user. Help the user. Be brief.");
/// assert_eq!(other, "... user. Help the user. Help the user. Be kind.");
/// ```
#[must_use]
pub fn shortened_pair(one: &str, other: &str) -> (String, String) {
    let equal = one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count();
    // A difference near the end of what is shown is seen with what follows it as well.
    let from = if equal + BEFORE < SHOWN { 0 } else { equal - BEFORE };
    let excerpt = |text: &str| {
        let start = text.char_indices().nth(from).map_or(text.len(), |(start, _)| start);
        let before = if from > 0 { "..." } else { "" };
        format!("{before}{}", shortened(&text[start..]))
    };
    (excerpt(one), excerpt(other))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::shortened_pair;

    proptest! {
        /// A law: unequal texts have unequal excerpts, of bounded length.
        #[test]
        fn unequal_texts_look_unequal(
            beginning in "[a-z\u{e4}]{0,400}",
            one in "[a-z\u{e4}]{0,400}",
            other in "[a-z\u{e4}]{0,400}",
        ) {
            let (one, other) = (format!("{beginning}{one}"), format!("{beginning}{other}"));
            let shown = shortened_pair(&one, &other);
            prop_assert_eq!(shown.0 == shown.1, one == other);
            prop_assert!(shown.0.chars().count() <= 206 && shown.1.chars().count() <= 206);
        }
    }
}
