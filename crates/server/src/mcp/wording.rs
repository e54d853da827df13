//! Errors in the words of an operator: a client has no methods of the library, and its operator has the command.

use std::fmt::Display;

/// The advice of the library, with commands in place of its methods.
const COMMANDS: [(&str, &str); 6] = [
    ("decide with `resume()`", "answer what it asks, or decide with `stepfold resume`"),
    ("fix the cause and call `resume()`", "fix the cause and continue with `stepfold resume`"),
    ("`with_changed_agent()`", "`stepfold resume --with-changed-agent` or the policy `when_changed`"),
    ("`abandon()`", "`stepfold resume --abandon`"),
    ("`withdraw()`", "`stepfold inbox --remove`"),
    ("wait for it, or take the session over with `when_claimed`", "wait for it"),
];

/// An error as a client of MCP is told it.
pub(super) fn in_words(error: &(impl Display + ?Sized)) -> String {
    COMMANDS.iter().fold(error.to_string(), |words, (method, command)| words.replace(method, command))
}

#[cfg(test)]
mod tests {
    use super::in_words;

    /// The texts of all errors of a runner, as they are written in its source, also of those that no test makes.
    const ERRORS: &str = include_str!("../../../runner/src/error.rs");

    /// No error names a method of the library.
    #[test]
    fn no_error_names_a_method() {
        let texts = ERRORS.lines().filter(|line| !line.trim_start().starts_with("//"));
        // The strings of the attributes, each over some lines.
        let (mut text, mut count) = (String::new(), 0);
        for line in texts {
            let is_text = line.contains('"') || line.trim_end().ends_with('\\') || !text.is_empty();
            if !is_text {
                continue;
            }
            text.push_str(line.trim().trim_end_matches('\\'));
            if !line.trim_end().ends_with('\\') {
                let words = in_words(&text);
                let is_of_method = |part: &str| part.ends_with("()") || part.starts_with("when_claimed");
                let quoted: Vec<&str> = words.split('`').skip(1).step_by(2).collect();
                assert!(!quoted.iter().any(|part| is_of_method(part)), "{words}");
                count += usize::from(words != text);
                text.clear();
            }
        }
        assert!(count >= 6, "{count} texts have words of methods");
    }
}
