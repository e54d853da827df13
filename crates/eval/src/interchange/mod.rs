//! Data sets of other projects: pydantic-evals and ADK.

mod adk;
mod pydantic_evals;
mod yaml;

use std::fmt;
use std::io::Write;

use serde_json::Value;

use crate::case::Case;
use crate::data_set::without_mark;
use crate::error::EvalError;

/// The key under which a case of ours stands in a file of another project, where that file cannot say all of it.
const OWN: &str = "stepfold";

/// A format of data sets of another project.
///
/// A case that is written and read again is the same case: what the other format cannot say stands beside it, under the key
/// `stepfold`, which the other project carries and does not read. After an edit by the other project its fields hold.
///
/// # Examples
/// ```
/// use stepfold_eval::{Case, DataSetFormat, Expectation};
///
/// let case = Case::new("largest area", "Which area has most stalls?")
///     .expect(Expectation::TextContains(vec!["area 3".to_owned()]));
/// let written = DataSetFormat::PydanticEvals.write("stalls", [case.clone()])?;
/// assert!(written.content.contains("Contains:"));
/// assert_eq!(DataSetFormat::of_text(&written.content)?.read(&written.content)?.content, [case]);
/// # Ok::<(), stepfold_eval::EvalError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataSetFormat {
    /// A data set of [pydantic-evals](https://ai.pydantic.dev/evals/), as YAML or JSON. It is written as YAML.
    PydanticEvals,
    /// An eval set of the [Agent Development Kit](https://google.github.io/adk-docs/evaluate/), as JSON. It is read in its
    /// older form also.
    AdkEvalSet,
}

impl fmt::Display for DataSetFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DataSetFormat::PydanticEvals => "pydantic-evals data set",
            DataSetFormat::AdkEvalSet => "ADK eval set",
        })
    }
}

/// The result of a conversion, with what it had to leave out.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Converted<T> {
    /// The cases, or the text of the file, or the number of the cases that were written.
    pub content: T,
    /// The content that the other format cannot express, in words, by case.
    pub left_out: LeftOut,
}

/// Lines about what is left out, of which the first ones are kept: memory does not grow with their number.
///
/// # Examples
/// ```
/// use stepfold_eval::LeftOut;
///
/// let mut left_out = LeftOut::default();
/// (0..100_000).for_each(|case| left_out.add(format!("case `c{case}`: max_tokens")));
/// assert_eq!((left_out.lines().len(), left_out.count()), (LeftOut::MOST, 100_000));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    lines: Vec<String>,
    count: u64,
}

impl LeftOut {
    /// The most lines that are kept.
    pub const MOST: usize = 1_000;

    /// Adds a line, which is kept if there is room.
    pub fn add(&mut self, line: String) {
        if self.lines.len() < Self::MOST {
            self.lines.push(line);
        }
        self.count += 1;
    }

    /// Adds the lines of another one.
    pub fn append(&mut self, other: LeftOut) {
        let room = Self::MOST - self.lines.len();
        self.lines.extend(other.lines.into_iter().take(room));
        self.count += other.count;
    }

    /// The first lines, at most [`MOST`](LeftOut::MOST).
    #[must_use]
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The number of all lines.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }
}

impl DataSetFormat {
    /// The format of a text, by its fields.
    ///
    /// # Errors
    /// [`EvalError::Line`] when it is neither.
    pub fn of_text(text: &str) -> Result<Self, EvalError> {
        match parsed(text)? {
            Value::Array(_) => Ok(DataSetFormat::AdkEvalSet),
            Value::Object(fields) if fields.contains_key("eval_cases") => Ok(DataSetFormat::AdkEvalSet),
            Value::Object(fields) if fields.contains_key("cases") => Ok(DataSetFormat::PydanticEvals),
            _ => Err(EvalError::Line {
                what: "data set",
                line: 1,
                column: None,
                why: "unknown format; expected `cases` of pydantic-evals, or `eval_cases` of ADK".to_owned(),
            }),
        }
    }

    /// Reads the cases of a file.
    ///
    /// # Errors
    /// [`EvalError::Line`] and [`EvalError::Case`] when the text does not have the format.
    pub fn read(self, text: &str) -> Result<Converted<Vec<Case>>, EvalError> {
        let value = parsed(text)?;
        let mut left_out = LeftOut::default();
        let cases = match self {
            DataSetFormat::PydanticEvals => pydantic_evals::read(value, &mut left_out),
            DataSetFormat::AdkEvalSet => adk::read(&value, &mut left_out),
        }?;
        cases.iter().try_for_each(Case::check)?;
        Ok(Converted { content: cases, left_out })
    }

    /// The text of a file with these cases.
    ///
    /// # Errors
    /// [`EvalError::Case`] for a case with an invalid conversation.
    pub fn write(
        self,
        name: &str,
        cases: impl IntoIterator<Item = Case>,
    ) -> Result<Converted<String>, EvalError> {
        let mut text = Vec::new();
        let Converted { left_out, .. } = self.write_to(&mut text, name, cases.into_iter().map(Ok))?;
        Ok(Converted { content: String::from_utf8_lossy(&text).into_owned(), left_out })
    }

    /// Writes a file with these cases, one after the other: a data set of any size needs the memory of one case. Returns their
    /// number.
    ///
    /// # Errors
    /// [`EvalError::Case`] for a case with an invalid conversation, the error of a case that cannot be read, and
    /// [`EvalError::Io`].
    pub fn write_to(
        self,
        writer: &mut impl Write,
        name: &str,
        cases: impl IntoIterator<Item = Result<Case, EvalError>>,
    ) -> Result<Converted<u64>, EvalError> {
        let mut count = 0_u64;
        let mut left_out = LeftOut::default();
        let fault = || EvalError::io("writing of the data set");
        let mut put = |text: &str| writer.write_all(text.as_bytes()).map_err(fault());
        let text = |value: &str| Value::from(value).to_string();
        put(&match self {
            DataSetFormat::PydanticEvals => yaml::text_of(&serde_json::json!({ "name": name })),
            DataSetFormat::AdkEvalSet => {
                format!("{{\n  \"eval_set_id\": {0},\n  \"name\": {0},\n  \"eval_cases\": [", text(name))
            }
        })?;
        for case in cases {
            let (case, is_first) = (case?, count == 0);
            match self {
                DataSetFormat::PydanticEvals => {
                    let row = pydantic_evals::write(&case, &mut left_out);
                    let rows = yaml::text_of(&serde_json::json!({ "cases": [row] }));
                    put(if is_first { &rows } else { rows.split_once('\n').unwrap_or_default().1 })?;
                }
                DataSetFormat::AdkEvalSet => {
                    let row = format!("{:#}", adk::write(&case, &mut left_out)?);
                    let comma = if is_first { "" } else { "," };
                    put(&format!("{comma}\n    {}", row.replace('\n', "\n    ")))?;
                }
            }
            count += 1;
        }
        put(match self {
            DataSetFormat::PydanticEvals if count == 0 => "cases: []\n",
            DataSetFormat::PydanticEvals => "",
            DataSetFormat::AdkEvalSet if count == 0 => "]\n}\n",
            DataSetFormat::AdkEvalSet => "\n  ]\n}\n",
        })?;
        Ok(Converted { content: count, left_out })
    }
}

/// The value of a text, which is JSON or YAML.
fn parsed(text: &str) -> Result<Value, EvalError> {
    let text = without_mark(text);
    if text.trim_start().starts_with(['{', '['])
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(value);
    }
    yaml::value_of(text)
}

fn invalid(case: &str, why: impl Into<String>) -> EvalError {
    EvalError::Case { name: case.to_owned(), why: why.into() }
}

/// The case that stands beside the fields of the other project, if it is one.
fn own_case(value: Option<&Value>) -> Option<Case> {
    serde_json::from_value(value?.clone()).ok()
}
