//! Data sets: cases as JSON lines, read one by one, or written by hand as TOML.

use std::collections::HashSet;
use std::io::{BufRead, Write};

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

    /// Reads cases as JSON lines: one case for each line. Blank lines are skipped.
    pub fn from_json_lines(reader: impl BufRead + Send + 'a) -> Self {
        let lines = reader.lines().enumerate().filter_map(|(index, line)| match line {
            Ok(line) if line.trim().is_empty() => None,
            Ok(line) => {
                let fault = |error: serde_json::Error| EvalError::Line {
                    what: "case",
                    line: index + 1,
                    why: error.to_string(),
                };
                Some(serde_json::from_str(&line).map_err(fault))
            }
            Err(error) => Some(Err(EvalError::io("reading of the data set")(error))),
        });
        DataSet::checked(lines)
    }

    /// Reads cases as TOML: tables `[[case]]`.
    ///
    /// # Errors
    /// [`EvalError::Line`] when the text is invalid.
    pub fn from_toml(text: &str) -> Result<Self, EvalError> {
        let file: TomlFile = toml::from_str(text).map_err(|error| EvalError::Line {
            what: "data set",
            line: error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count()),
            why: error.message().to_owned(),
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
