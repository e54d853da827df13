//! Bindings: parameters read from the state, results written to the state, and the text that the model reads.
//! Haystack 2.31's `inputs_from_state`, `outputs_to_state` and `outputs_to_string`.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stepfold_state_core::chat::{Part, ToolContent};
use stepfold_state_core::state::{Handler, ValueRef};

/// A parameter read from a key of the state.
#[derive(Clone, Debug)]
pub(crate) struct InputBinding {
    pub(crate) key: Arc<str>,
    pub(crate) parameter: String,
    /// Whether the model sees the parameter too; its argument then takes precedence.
    pub(crate) is_visible: bool,
}

/// A parameter that the state fills in a call; see [`Tool::inputs_on`](crate::Tool::inputs_on).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct InputFromState<'a> {
    /// The parameter.
    pub parameter: &'a str,
    /// The key of the state.
    pub key: &'a str,
    /// The value of the key.
    pub value: ValueRef<'a>,
}

/// A key of the state that the result is written to.
#[derive(Clone, Debug)]
pub(crate) struct OutputBinding {
    pub(crate) key: Arc<str>,
    pub(crate) source: ResultSource,
    pub(crate) handler: Option<Handler>,
}

/// The keys that a tool reads and writes, which determine the order of the calls of one reply.
#[derive(Debug, Default)]
pub(crate) struct KeyAccess {
    pub(crate) reads: BTreeSet<Arc<str>>,
    /// With the handler, if a binding overrides the key's own.
    pub(crate) writes: Vec<(Arc<str>, Option<Handler>)>,
}

impl KeyAccess {
    pub(crate) fn may_write(&self, key: &str) -> bool {
        self.writes.iter().any(|(known, _)| **known == *key)
    }
}

/// A field of a tool's result, or the whole result.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_tools::ResultSource;
///
/// let result = json!({"documents": [1, 2], "count": 2});
/// assert_eq!(ResultSource::from("count").of(&result), Some(&json!(2)));
/// assert_eq!(ResultSource::from("missing").of(&result), None);
/// assert_eq!(ResultSource::Whole.of(&result), Some(&result));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResultSource {
    /// A field of the result, if the result is an object that has it.
    Field(String),
    /// The whole result, whatever its type.
    Whole,
}

impl ResultSource {
    /// The selected part of a result, if it exists.
    pub fn of<'a>(&self, result: &'a Value) -> Option<&'a Value> {
        match self {
            ResultSource::Field(name) => result.as_object()?.get(name),
            ResultSource::Whole => Some(result),
        }
    }

    /// The source as JSON.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            ResultSource::Field(name) => json!({ "field": name }),
            ResultSource::Whole => json!("whole"),
        }
    }
}

impl From<&str> for ResultSource {
    fn from(field: &str) -> Self {
        ResultSource::Field(field.to_owned())
    }
}

impl From<String> for ResultSource {
    fn from(field: String) -> Self {
        ResultSource::Field(field)
    }
}

type FormatterError = Box<dyn Error + Send + Sync>;
type TextFormatter = dyn Fn(&Value) -> Result<String, FormatterError> + Send + Sync;
type ContentFormatter = dyn Fn(&Value) -> Result<ToolContent, FormatterError> + Send + Sync;

/// The text of a result for the model. By default the whole result: a string unchanged, any other value as
/// compact JSON.
///
/// A missing field is null; a result that is not an object is used whole. If a formatter fails, the model
/// reads the default text and a warning is traced.
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
pub struct ResultText(TextRule);

#[derive(Clone)]
enum TextRule {
    One { source: ResultSource, format: Option<Arc<TextFormatter>> },
    Several { texts: Vec<(String, ResultText)>, format: Option<Arc<TextFormatter>> },
    Content { source: ResultSource, format: Arc<ContentFormatter> },
}

impl ResultText {
    /// The text of one source.
    pub fn of(source: impl Into<ResultSource>) -> Self {
        ResultText(TextRule::One { source: source.into(), format: None })
    }

    /// Formats the text. The formatter may fail with any error, which is traced. For
    /// [several](ResultText::several) texts its argument is the object of all of them.
    #[must_use]
    pub fn formatted<F>(self, format: F) -> Self
    where
        F: Fn(&Value) -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    {
        let format: Option<Arc<TextFormatter>> = Some(Arc::new(format));
        ResultText(match self.0 {
            TextRule::One { source, .. } | TextRule::Content { source, .. } => {
                TextRule::One { source, format }
            }
            TextRule::Several { texts, .. } => TextRule::Several { texts, format },
        })
    }

    /// Several named texts, as one JSON object of strings. [Parts](ResultText::parts) among them are replaced
    /// by their default text.
    pub fn several<N: Into<String>>(texts: impl IntoIterator<Item = (N, ResultText)>) -> Self {
        let texts = texts.into_iter().map(|(name, text)| (name.into(), text)).collect();
        ResultText(TextRule::Several { texts, format: None })
    }

    /// Content parts, such as images, in place of text.
    pub fn parts<F>(source: impl Into<ResultSource>, format: F) -> Self
    where
        F: Fn(&Value) -> Result<Vec<Part>, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    {
        ResultText::content(source, move |value| Ok(ToolContent::Parts(format(value)?)))
    }

    /// Text or content parts, as the formatter decides: for tools that return media only sometimes.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::state_core::chat::{Content, Media, ToolContent};
    /// use stepfold_tools::{ResultText, ResultSource, Tool, ToolError};
    ///
    /// async fn fetch() -> Result<serde_json::Value, ToolError> {
    ///     Ok(serde_json::json!({"image": "aGk="}))
    /// }
    /// let shown = ResultText::content(ResultSource::Whole, |result| match result["image"].as_str() {
    ///     Some(data) => Ok(ToolContent::Parts(vec![Content::Image(Media::base64(data, "image/png")).into()])),
    ///     None => Ok(ToolContent::Value(result.clone())),
    /// });
    /// let fetch = Tool::new("fetch", "Fetches a page or an image.", fetch).output_to_string(shown).build()?;
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn content<F>(source: impl Into<ResultSource>, format: F) -> Self
    where
        F: Fn(&Value) -> Result<ToolContent, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    {
        ResultText(TextRule::Content { source: source.into(), format: Arc::new(format) })
    }

    /// The rule as JSON; of a formatter only its presence.
    pub(crate) fn to_json(&self) -> Value {
        match &self.0 {
            TextRule::One { source, format } => {
                json!({"formatted": format.is_some(), "source": source.to_json()})
            }
            TextRule::Several { texts, format } => {
                let texts: Map<String, Value> =
                    texts.iter().map(|(name, text)| (name.clone(), text.to_json())).collect();
                json!({"formatted": format.is_some(), "texts": texts})
            }
            TextRule::Content { source, .. } => json!({"parts": source.to_json()}),
        }
    }

    /// The content for the model, or the formatter's error.
    pub(crate) fn apply(&self, result: &Value) -> Result<ToolContent, FormatterError> {
        match &self.0 {
            TextRule::Content { source, format } => format(selected(source, result)),
            // NOTE: A value and not its text: the record keeps JSON, and the text is made for the model.
            TextRule::One { source, format: None } => {
                Ok(ToolContent::Value(selected(source, result).clone()))
            }
            _ => Ok(ToolContent::Value(Value::String(self.text(result)?))),
        }
    }

    /// The content when a formatter fails: its argument, or the whole result of several texts.
    pub(crate) fn unformatted(&self, result: &Value) -> Value {
        match &self.0 {
            TextRule::One { source, .. } | TextRule::Content { source, .. } => {
                selected(source, result).clone()
            }
            TextRule::Several { .. } => result.clone(),
        }
    }

    fn text(&self, result: &Value) -> Result<String, FormatterError> {
        match &self.0 {
            TextRule::One { source, format: Some(format) } => format(selected(source, result)),
            TextRule::One { source, format: None } | TextRule::Content { source, .. } => {
                Ok(default_text(selected(source, result)))
            }
            TextRule::Several { texts, format } => {
                let texts =
                    texts.iter().map(|(name, text)| Ok((name.clone(), Value::String(text.text(result)?))));
                let texts = Value::Object(texts.collect::<Result<_, FormatterError>>()?);
                match format {
                    Some(format) => format(&texts),
                    None => Ok(texts.to_string()),
                }
            }
        }
    }
}

/// The value of a text: null if an object lacks the field, and the whole of a non-object.
fn selected<'a>(source: &ResultSource, result: &'a Value) -> &'a Value {
    match source.of(result) {
        Some(value) => value,
        None if result.is_object() => &Value::Null,
        None => result,
    }
}

/// Strings unchanged, any other value as compact JSON.
pub(crate) fn default_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl fmt::Debug for ResultText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            TextRule::One { source, format } => {
                f.debug_struct("One").field("source", source).field("formatted", &format.is_some()).finish()
            }
            TextRule::Several { texts, .. } => {
                f.debug_map().entries(texts.iter().map(|(name, text)| (name, text))).finish()
            }
            TextRule::Content { source, .. } => {
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
        check(&ResultText::of(ResultSource::Whole), &json!([1, "x"]), r#"[1,"x"]"#);
        check(&ResultText::of("name"), &json!("no object"), "no object");

        let loud = |value: &Value| Ok::<_, FormatterError>(format!("{value}!"));
        check(&ResultText::of("count").formatted(loud), &result, "2!");
        check(&ResultText::of("count").formatted(|_| Err("bad day".into())), &result, "refused: bad day");

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
