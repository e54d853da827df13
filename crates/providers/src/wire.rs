//! Functions that all dialects share to write the fields, the media and the errors of a request.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use stepfold_state_core::chat::{
    Arguments, ChatRequest, Content, Media, MediaSource, Message, ModelError, ModelErrorKind, Role,
    ToolChoice, ToolSpec,
};

/// Returns the tool choice of a request. Without tools it is `Auto`: some APIs reject the field then.
pub(crate) fn tool_choice(request: &ChatRequest) -> &ToolChoice {
    let has_tools = !request.tools.is_empty() || !request.params.server_tools.is_empty();
    match &request.tool_choice {
        ToolChoice::None if !has_tools => &ToolChoice::Auto,
        choice => choice,
    }
}

/// The error of a request that the provider does not support.
pub(crate) fn unsupported(message: impl Into<String>) -> ModelError {
    ModelError::new(ModelErrorKind::Unsupported, message)
}

/// The error of an unsupported tool choice.
pub(crate) fn unsupported_choice(choice: &ToolChoice) -> ModelError {
    unsupported(format!("unsupported tool choice {choice:?}: this API has no form for it"))
}

/// The error of an unsupported role.
pub(crate) fn unsupported_role(role: Role) -> ModelError {
    unsupported(format!("unsupported role `{role}`: this API has no form for it"))
}

/// The error of an unsupported part of a message.
pub(crate) fn unsupported_part(role: Role, content: &Content) -> ModelError {
    let kind = content.kind();
    unsupported(format!(
        "unsupported part of kind {kind} in a message of the {role}: this API has no form for it"
    ))
}

/// Rejects the name of a participant.
pub(crate) fn reject_name(message: &Message) -> Result<(), ModelError> {
    match message.name() {
        Some(_) => Err(unsupported("unsupported `name` of a message: this API has none; say it in the text")),
        None => Ok(()),
    }
}

/// Rejects a document with citations on.
pub(crate) fn reject_citations(media: &Media) -> Result<(), ModelError> {
    // NOTE: Refused, not dropped: a reply without its sources is another reply.
    if media.has_citations {
        return Err(unsupported(
            "unsupported citations of a document: this API has none; ask for them in words",
        ));
    }
    Ok(())
}

/// The error of an unsupported image detail.
pub(crate) fn unsupported_detail(media: &Media, known: &str) -> ModelError {
    let detail = media.detail.map_or("", |detail| detail.as_str());
    unsupported(format!("unsupported image detail `{detail}`: expected {known}"))
}

/// Rejects an image detail of a file.
pub(crate) fn reject_file_detail(media: &Media) -> Result<(), ModelError> {
    if media.detail.is_some() {
        Err(unsupported_detail(media, "none, since it is not an image"))
    } else {
        Ok(())
    }
}

/// Returns the content in Base64, if it is part of the message.
pub(crate) fn base64(media: &Media) -> Option<Cow<'_, str>> {
    match &media.source {
        MediaSource::Base64(data) => Some(Cow::Borrowed(data)),
        MediaSource::Text(text) => Some(Cow::Owned(STANDARD.encode(text))),
        _ => None,
    }
}

/// Returns the content as text, if it is part of the message and is text.
#[cfg(feature = "anthropic")]
pub(crate) fn text(media: &Media) -> Option<Cow<'_, str>> {
    match &media.source {
        MediaSource::Text(text) => Some(Cow::Borrowed(text)),
        MediaSource::Base64(data) if media.media_type.as_deref()?.starts_with("text/") => {
            String::from_utf8(STANDARD.decode(data).ok()?).ok().map(Cow::Owned)
        }
        _ => None,
    }
}

/// Returns the URL, or the content as a data URL; `None` for media with an id of the provider.
pub(crate) fn data_url(media: &Media) -> Option<Cow<'_, str>> {
    if let MediaSource::Url(url) = &media.source {
        return Some(Cow::Borrowed(url));
    }
    let media_type = media.media_type.as_deref().unwrap_or("application/octet-stream");
    base64(media).map(|data| Cow::Owned(format!("data:{media_type};base64,{data}")))
}

/// Adds the extra fields of a tool for this dialect.
pub(crate) fn add_extras(tool: &mut Value, dialect: &str, spec: &ToolSpec) {
    if let (Some(fields), Some(Value::Object(more))) = (tool.as_object_mut(), spec.extras.get(dialect)) {
        fields.extend(more.clone());
    }
}

/// Returns the arguments of a call as an object. Malformed arguments become a field of it, so that the model sees its own
/// text.
pub(crate) fn argument_object(arguments: &Arguments) -> Map<String, Value> {
    match (arguments.as_object(), arguments.malformed()) {
        (Some(object), _) => object.clone(),
        (None, text) => fields([("malformed_arguments", Some(text.map_or("", |(text, _)| text).into()))]),
    }
}

/// Collects the fields that have a value.
pub(crate) fn fields<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    known.collect()
}

/// Appends a value as JSON. Writing to memory fails only for maps whose keys are not texts; there are none here.
pub(crate) fn json<T: serde::Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}
