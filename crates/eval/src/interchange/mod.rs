//! Data sets of other projects: pydantic-evals and ADK.

mod adk;
mod pydantic_evals;
mod yaml;

use std::fmt;

use serde_json::Value;

use crate::case::Case;
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
    /// The cases, or the text of the file.
    pub content: T,
    /// The content that the other format cannot express, in words, by case.
    pub left_out: Vec<String>,
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
        let mut left_out = Vec::new();
        let cases = match self {
            DataSetFormat::PydanticEvals => pydantic_evals::read(value, &mut left_out),
            DataSetFormat::AdkEvalSet => adk::read(&value, &mut left_out),
        }?;
        cases.iter().try_for_each(Case::check)?;
        Ok(Converted { content: cases, left_out })
    }

    /// The text of a file with these cases. Each case stands as a whole in memory.
    ///
    /// # Errors
    /// [`EvalError::Case`] for a case with an invalid conversation.
    pub fn write(
        self,
        name: &str,
        cases: impl IntoIterator<Item = Case>,
    ) -> Result<Converted<String>, EvalError> {
        let mut left_out = Vec::new();
        let text = match self {
            DataSetFormat::PydanticEvals => {
                let written = cases.into_iter().map(|case| pydantic_evals::write(&case, &mut left_out));
                let file = serde_json::json!({"name": name, "cases": written.collect::<Vec<_>>()});
                yaml::text_of(&file)
            }
            DataSetFormat::AdkEvalSet => {
                let written = cases.into_iter().map(|case| adk::write(&case, &mut left_out));
                let written = written.collect::<Result<Vec<_>, _>>()?;
                let file = serde_json::json!({"eval_set_id": name, "name": name, "eval_cases": written});
                format!("{file:#}\n")
            }
        };
        Ok(Converted { content: text, left_out })
    }
}

/// The value of a text, which is JSON or YAML.
fn parsed(text: &str) -> Result<Value, EvalError> {
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
