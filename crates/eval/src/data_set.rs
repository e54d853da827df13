//! Data sets: cases as JSON lines, read one by one, or written by hand as TOML.

use std::collections::HashSet;
use std::io::{BufRead, Read, Write};

use serde::Deserialize;

use crate::case::Case;
use crate::error::EvalError;

/// Cases, read one after the other: a data set of any size needs the memory of one case, and of the names.
///
/// # Examples
/// ```
/// use stepfold_eval::{Case, DataSet};
///
/// let written = r#"
/// [[case]]
/// name = "largest area"
/// say = "Which area has most stalls?"
/// expect = [{ text_contains = ["area 3"] }, "no_failed_calls", { max_steps = 4 }]
/// "#;
/// let cases: Vec<Case> = DataSet::from_toml(written)?.collect::<Result<_, _>>()?;
/// assert_eq!(cases[0].expect.len(), 3);
/// # Ok::<(), stepfold_eval::EvalError>(())
/// ```
pub struct DataSet<'a> {
    cases: Box<dyn Iterator<Item = Result<Case, EvalError>> + Send + 'a>,
    names: HashSet<u64>,
    is_over: bool,
}

impl std::fmt::Debug for DataSet<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataSet").field("read", &self.names.len()).finish_non_exhaustive()
    }
}

/// The name of the field whose value comes after this text of a TOML file.
fn field_before(text: &str) -> Option<&str> {
    let before = text.trim_end().strip_suffix('=')?.trim_end();
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    let field = &before[before.trim_end_matches(is_bare).len()..];
    Some(field).filter(|field| !field.is_empty())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TomlFile {
    #[serde(default)]
    case: Vec<Case>,
}

impl<'a> DataSet<'a> {
    /// A data set of cases in memory.
    pub fn of(cases: impl IntoIterator<Item = Case, IntoIter: Send + 'a>) -> Self {
        DataSet::checked(cases.into_iter().map(Ok))
    }

    /// The most bytes of a line: of a case, or of a result.
    pub const MAX_LINE: u64 = 64 << 20;

    /// Reads cases as JSON lines: one case for each line, of at most [`MAX_LINE`](DataSet::MAX_LINE) bytes. Blank lines are skipped.
    pub fn from_json_lines(mut reader: impl BufRead + Send + 'a) -> Self {
        let (mut bytes, mut number) = (Vec::new(), 0);
        let cases = std::iter::from_fn(move || {
            loop {
                number += 1;
                match read_line(&mut reader, "case", number, &mut bytes) {
                    Ok(0) => return None,
                    Ok(_) => {}
                    Err(error) => return Some(Err(error)),
                }
                if let Some(case) = case_in(&bytes, number) {
                    return Some(case);
                }
            }
        });
        DataSet::checked(cases)
    }

    /// Reads all cases, and checks them. Returns their number: a data set can be checked before anything is spent for its cases.
    ///
    /// # Errors
    /// That of the first case that cannot be read or is invalid.
    pub fn check(mut self) -> Result<u64, EvalError> {
        self.try_fold(0, |cases, case| case.map(|_| cases + 1))
    }

    /// Reads cases as TOML: tables `[[case]]`.
    ///
    /// # Errors
    /// [`EvalError::Line`] when the text is invalid.
    pub fn from_toml(text: &str) -> Result<Self, EvalError> {
        let text = without_mark(text);
        let file: TomlFile = toml::from_str(text).map_err(|error| EvalError::Line {
            what: "data set",
            line: error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count()),
            column: error.span().map(|span| {
                1 + text[..span.start].chars().rev().take_while(|letter| *letter != '\n').count()
            }),
            why: match error.span().and_then(|span| field_before(text.get(..span.start)?)) {
                // An unknown or missing field is named by the message.
                Some(field) if !error.message().starts_with("unknown field") => {
                    format!("`{field}`: {}", error.message())
                }
                _ => error.message().to_owned(),
            },
        })?;
        Ok(DataSet::of(file.case))
    }

    fn checked(cases: impl Iterator<Item = Result<Case, EvalError>> + Send + 'a) -> Self {
        DataSet { cases: Box::new(cases), names: HashSet::new(), is_over: false }
    }
}

/// Checks each case. After an error there are no more cases.
impl Iterator for DataSet<'_> {
    type Item = Result<Case, EvalError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let case = self.cases.next()?.and_then(|case| {
            case.check()?;
            // NOTE: Hashes of the names, so that memory hardly grows with the data set.
            match self.names.insert(hash(&case.name)) {
                true => Ok(case),
                false => Err(EvalError::Duplicate { name: case.name }),
            }
        });
        self.is_over = case.is_err();
        Some(case)
    }
}

/// The case in a line; `None` for a blank one.
fn case_in(bytes: &[u8], number: usize) -> Option<Result<Case, EvalError>> {
    let Ok(line) = std::str::from_utf8(bytes) else {
        let why = "expected text in UTF-8".to_owned();
        return Some(Err(EvalError::Line { what: "case", line: number, column: None, why }));
    };
    let line = if number == 1 { without_mark(line) } else { line };
    let line = line.trim_end();
    let fault = |error: serde_json::Error| EvalError::json("case", number, &error);
    (!line.is_empty()).then(|| serde_json::from_str(line).map_err(fault))
}

/// Reads a line with its line break, in place of the one before. Returns its bytes; 0 at the end.
///
/// # Errors
/// [`EvalError::Line`] for a line without an end, and [`EvalError::Io`].
pub(crate) fn read_line(
    reader: &mut impl BufRead,
    what: &'static str,
    number: usize,
    line: &mut Vec<u8>,
) -> Result<u64, EvalError> {
    line.clear();
    let read = Read::take(reader, DataSet::MAX_LINE + 1).read_until(b'\n', line);
    let read = read.map_err(EvalError::io("reading of a file"))? as u64;
    match read > DataSet::MAX_LINE {
        true => {
            let why = format!("a line has at most {} MiB", DataSet::MAX_LINE >> 20);
            Err(EvalError::Line { what, line: number, column: None, why })
        }
        false => Ok(read),
    }
}

/// A text without the byte order mark that some editors begin it with.
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// FNV-1a, the same in every process.
pub(crate) fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Case {
    /// Appends the case to a file of JSON lines.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_line(&self, writer: &mut impl Write) -> Result<(), EvalError> {
        let line = serde_json::to_string(self).map_err(std::io::Error::from);
        line.and_then(|line| writeln!(writer, "{line}")).map_err(EvalError::io("writing of the data set"))
    }
}
