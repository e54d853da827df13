//! Text on standard output and standard error. It is escaped, since the output of models and tools may contain escape
//! sequences; a closed pipe (`| head -1`) is not an error.

use std::fmt::Display;
use std::io::{self, Write as _};

use serde_json::Value;
use stepfold::state_core::escape_invisible;
use stepfold::terminal::brief;

/// Long values are cut after so many characters.
const WIDTH: usize = 100;

/// A text in one short line. Omissions in JSON are marked.
pub fn cut(text: &str) -> String {
    if let Ok(value @ (Value::Array(_) | Value::Object(_))) = serde_json::from_str(text) {
        return brief(&value, WIDTH);
    }
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.char_indices().nth(WIDTH) {
        Some((end, _)) => {
            // Between words, if there is a space near the end.
            let end = line[..end].rfind(' ').filter(|space| *space > end / 2).unwrap_or(end);
            format!("{}…", line[..end].trim_end())
        }
        None => line,
    }
}

/// Prints a line; unlike `println!` without a panic when the pipe is closed.
pub fn say(text: impl Display) {
    write(&format!("{text}\n"));
}

/// Prints more of a line immediately.
pub fn write(text: &str) {
    let mut out = io::stdout().lock();
    // Output that cannot be written is dropped.
    let _ = out.write_all(escape_invisible(text).as_bytes()).and_then(|()| out.flush());
}

/// Shows a line on standard error.
pub fn tell(text: impl Display) {
    // Output that cannot be written is dropped.
    let _ = writeln!(io::stderr().lock(), "{}", escape_invisible(&text.to_string()));
}

/// Asks for a line; none at the end of input.
///
/// # Errors
/// When standard input cannot be read.
pub fn ask(question: &str) -> io::Result<Option<String>> {
    write(question);
    let mut line = String::new();
    Ok((io::stdin().read_line(&mut line)? > 0).then_some(line))
}
