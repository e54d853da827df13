//! Bindings: which parameters are fed from the state, what of a result is written back, what text of it
//! the model reads. Haystack's `inputs_from_state`, `outputs_to_state` and `outputs_to_string` (spec/000).

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{Part, ToolContent};
use stepfold_state_core::state::Handler;

/// A parameter that is filled from a key of the state.
#[derive(Clone, Debug)]
pub(crate) struct InputBinding {
    pub(crate) key: Arc<str>,
    pub(crate) parameter: String,
    /// Whether the model sees the parameter too, and its argument wins.
    pub(crate) is_visible: bool,
}

/// A key of the state that is written from the result.
#[derive(Clone, Debug)]
pub(crate) struct OutputBinding {
    pub(crate) key: Arc<str>,
    pub(crate) source: Source,
    pub(crate) handler: Option<Handler>,
}

/// What of a tool's result is meant: a field of it, or all of it.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_tools::Source;
///
/// let result = json!({"documents": [1, 2], "count": 2});
/// assert_eq!(Source::from("count").of(&result), Some(&json!(2)));
/// assert_eq!(Source::from("missing").of(&result), None);
/// assert_eq!(Source::Whole.of(&result), Some(&result));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A field of the result, if the result is an object that has it.
    Field(String),
    /// The result as it is, whatever its type.
    Whole,
}

impl Source {
    /// What is meant, in a result that has it.
    pub fn of<'a>(&self, result: &'a Value) -> Option<&'a Value> {
        match self {
            Source::Field(name) => result.as_object()?.get(name),
            Source::Whole => Some(result),
        }
    }

    /// The source as JSON.
    pub(crate) fn words(&self) -> Value {
        match self {
            Source::Field(name) => json!({ "field": name }),
            Source::Whole => json!("whole"),
        }
    }
}

impl From<&str> for Source {
    fn from(field: &str) -> Self {
        Source::Field(field.to_owned())
    }
}

impl From<String> for Source {
    fn from(field: String) -> Self {
        Source::Field(field)
    }
}

type Formatter = dyn Fn(&Value) -> Result<String, String> + Send + Sync;
type ContentFormatter = dyn Fn(&Value) -> Result<ToolContent, String> + Send + Sync;

/// What the model reads of a result. By default all of it: a string as it is, everything else as compact
/// JSON.
///
/// A field that the result lacks is null; of a result that is no object, all of it is meant. A formatter that
/// fails costs nothing but the format: the model reads the default text of what it was given, and a warning is
/// traced.
///
/// # Examples
/// ```
/// use stepfold_tools::{ResultText, Tool, ToolError};
///
/// async fn retrieve() -> Result<serde_json::Value, ToolError> {
///     Ok(serde_json::json!({"documents": ["a", "b"], "count": 2}))
/// }
/// let tool = Tool::new("retrieve", "Retrieves documents.", retrieve)
///     .output_to_state("documents", "documents")
///     .output_to_string(ResultText::of("count").formatted(|count| Ok(format!("{count} documents are in the state"))))
///     .build()?;
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[derive(Clone)]
pub struct ResultText(Rule);

#[derive(Clone)]
enum Rule {
    One { source: Source, format: Option<Arc<Formatter>> },
    Several { texts: Vec<(String, ResultText)>, format: Option<Arc<Formatter>> },
    Content { source: Source, format: Arc<ContentFormatter> },
}

impl ResultText {
    /// The text of one source.
    pub fn of(source: impl Into<Source>) -> Self {
        ResultText(Rule::One { source: source.into(), format: None })
    }

    /// The same, made by a formatter. It may refuse with a reason, which is traced. For
    /// [several](ResultText::several) texts it is given the object of all of them.
    #[must_use]
    pub fn formatted<F>(self, format: F) -> Self
    where
        F: Fn(&Value) -> Result<String, String> + Send + Sync + 'static,
    {
        let format: Option<Arc<Formatter>> = Some(Arc::new(format));
        ResultText(match self.0 {
            Rule::One { source, .. } | Rule::Content { source, .. } => Rule::One { source, format },
            Rule::Several { texts, .. } => Rule::Several { texts, format },
        })
    }

    /// Several named texts, as one JSON object of strings. Of [parts](ResultText::parts) among them, the
    /// model reads the default text.
    pub fn several<N: Into<String>>(texts: impl IntoIterator<Item = (N, ResultText)>) -> Self {
        let texts = texts.into_iter().map(|(name, text)| (name.into(), text)).collect();
        ResultText(Rule::Several { texts, format: None })
    }

    /// Content parts, such as images, in place of text.
    pub fn parts<F>(source: impl Into<Source>, format: F) -> Self
    where
        F: Fn(&Value) -> Result<Vec<Part>, String> + Send + Sync + 'static,
    {
        ResultText::content(source, move |value| Ok(ToolContent::Parts(format(value)?)))
    }

    /// Text or content parts, whichever the formatter gives: for results of which some have media.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::state_core::chat::{Content, Media, ToolContent};
    /// use stepfold_tools::{ResultText, Source, Tool, ToolError};
    ///
    /// async fn fetch() -> Result<serde_json::Value, ToolError> {
    ///     Ok(serde_json::json!({"image": "aGk="}))
    /// }
    /// let shown = ResultText::content(Source::Whole, |result| match result["image"].as_str() {
    ///     Some(data) => Ok(ToolContent::Parts(vec![Content::Image(Media::base64(data, "image/png")).into()])),
    ///     None => Ok(ToolContent::Value(result.clone())),
    /// });
    /// let fetch = Tool::new("fetch", "Fetches a page or an image.", fetch).output_to_string(shown).build()?;
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn content<F>(source: impl Into<Source>, format: F) -> Self
    where
        F: Fn(&Value) -> Result<ToolContent, String> + Send + Sync + 'static,
    {
        ResultText(Rule::Content { source: source.into(), format: Arc::new(format) })
    }

    /// The rule as JSON: of a formatter only that there is one.
    pub(crate) fn words(&self) -> Value {
        match &self.0 {
            Rule::One { source, format } => json!({"formatted": format.is_some(), "source": source.words()}),
            Rule::Several { texts, format } => {
                let texts: Map<String, Value> =
                    texts.iter().map(|(name, text)| (name.clone(), text.words())).collect();
                json!({"formatted": format.is_some(), "texts": texts})
            }
            Rule::Content { source, .. } => json!({"parts": source.words()}),
        }
    }

    /// What the model reads, or why not.
    pub(crate) fn apply(&self, result: &Value) -> Result<ToolContent, String> {
        match &self.0 {
            Rule::Content { source, format } => format(sourced(source, result)),
            Rule::One { source, format: None } => Ok(ToolContent::Value(sourced(source, result).clone())),
            _ => Ok(ToolContent::Value(Value::String(self.text(result)?))),
        }
    }

    /// What the model reads when a formatter fails: what it was given, or of several texts the whole result.
    pub(crate) fn unformatted(&self, result: &Value) -> Value {
        match &self.0 {
            Rule::One { source, .. } | Rule::Content { source, .. } => sourced(source, result).clone(),
            Rule::Several { .. } => result.clone(),
        }
    }

    fn text(&self, result: &Value) -> Result<String, String> {
        match &self.0 {
            Rule::One { source, format: Some(format) } => format(sourced(source, result)),
            Rule::One { source, format: None } | Rule::Content { source, .. } => {
                Ok(default_text(sourced(source, result)))
            }
            Rule::Several { texts, format } => {
                let texts =
                    texts.iter().map(|(name, text)| Ok((name.clone(), Value::String(text.text(result)?))));
                let texts = Value::Object(texts.collect::<Result<_, String>>()?);
                match format {
                    Some(format) => format(&texts),
                    None => Ok(texts.to_string()),
                }
            }
        }
    }
}

/// What a text is made of: null where an object lacks the field, and all of what is no object.
fn sourced<'a>(source: &Source, result: &'a Value) -> &'a Value {
    match source.of(result) {
        Some(value) => value,
        None if result.is_object() => &Value::Null,
        None => result,
    }
}

/// Strings as they are, everything else as compact JSON.
pub(crate) fn default_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl fmt::Debug for ResultText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Rule::One { source, format } => {
                f.debug_struct("One").field("source", source).field("formatted", &format.is_some()).finish()
            }
            Rule::Several { texts, .. } => {
                f.debug_map().entries(texts.iter().map(|(name, text)| (name, text))).finish()
            }
            Rule::Content { source, .. } => {
                f.debug_struct("Content").field("source", source).finish_non_exhaustive()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &ResultText, result: &Value, expected: &str) {
        let read = match text.apply(result) {
            Ok(ToolContent::Value(value)) => default_text(&value),
            Ok(ToolContent::Parts(parts)) => format!("{} parts", parts.len()),
            Ok(other) => format!("{other:?}"),
            Err(reason) => format!("refused: {reason}"),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn what_the_model_reads_of_a_result() {
        let result = json!({"count": 2, "name": "Ada", "nothing": null, "nested": {"a": [1]}});
        check(&ResultText::of("name"), &result, "Ada");
        check(&ResultText::of("count"), &result, "2");
        check(&ResultText::of("nothing"), &result, "null");
        check(&ResultText::of("nested"), &result, r#"{"a":[1]}"#);
        check(&ResultText::of("gone"), &result, "null");
        check(&ResultText::of(Source::Whole), &json!([1, "x"]), r#"[1,"x"]"#);
        check(&ResultText::of("name"), &json!("no object"), "no object");

        let loud = |value: &Value| Ok(format!("{value}!"));
        check(&ResultText::of("count").formatted(loud), &result, "2!");
        check(&ResultText::of("count").formatted(|_| Err("bad day".to_owned())), &result, "refused: bad day");

        let both = || {
            ResultText::several([
                ("who", ResultText::of("name")),
                ("n", ResultText::of("count").formatted(loud)),
            ])
        };
        check(&ResultText::several([("who", ResultText::of("name"))]), &result, r#"{"who":"Ada"}"#);
        check(
            &both().formatted(|texts| Ok(format!("{} of {}", texts["n"], texts["who"]))),
            &result,
            r#""2!" of "Ada""#,
        );
        check(&ResultText::several([("x", ResultText::of("gone"))]), &result, r#"{"x":"null"}"#);

        let parts =
            ResultText::parts("name", |name| Ok(vec![Part::text(default_text(name)), Part::text("?")]));
        check(&parts, &result, "2 parts");
        check(&ResultText::several([("p", parts.clone())]), &result, r#"{"p":"Ada"}"#);
        check(&parts.formatted(loud), &result, r#""Ada"!"#);
    }
}
