//! Messages as a provider reads them, each written once.
//!
//! A conversation only grows, so its wire form does too. It is cached: a request with some more messages writes
//! those, and copies the rest. The key of the cache is the identity of the messages, so that a view or a fork of a
//! conversation is found as well.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use stepfold_state_core::chat::{
    ChatRequest, Content, Media, MediaSource, Message, ModelError, ModelErrorKind, Role, ServerTool,
    ToolChoice, ToolSpec, Transcript,
};

use crate::model::Dialect;
use crate::tools::Offer;

/// Writes bodies, and remembers what it wrote.
pub(crate) struct Bodies<O> {
    messages: WireCache<O>,
    tools: Mutex<Option<WiredTools>>,
}

/// The tools that were written last, and what was written.
struct WiredTools {
    specs: Arc<[ToolSpec]>,
    wired: Arc<[u8]>,
}

impl<O: Clone + Default> Bodies<O> {
    pub(crate) const fn new() -> Self {
        Bodies { messages: WireCache::new(), tools: Mutex::new(None) }
    }

    /// The body of a request. The conversation is its end, so that the body of one step is the beginning of the body of
    /// the next.
    pub(crate) fn body<D: Dialect<Open = O>>(
        &self,
        dialect: &D,
        model: &str,
        request: &ChatRequest,
        offer: &Arc<Offer>,
    ) -> Result<Vec<u8>, ModelError> {
        let mut head = dialect.head(model, request)?;
        for (name, value) in request.params.extras.iter() {
            if D::RESERVED.contains(&name) {
                let message = format!("invalid extra parameter `{name}`: the request sets this field itself");
                return Err(ModelError::new(ModelErrorKind::InvalidRequest, message));
            }
            dialect.extra(&mut head, name, value);
        }
        let mut body = Vec::with_capacity(1024);
        json(&head, &mut body);
        body.pop();
        let server_tools = server_tools(D::NAME, request)?;
        if !request.tools.is_empty() || !server_tools.is_empty() {
            separate(&mut body);
            body.extend_from_slice(b"\"tools\":[");
            if !request.tools.is_empty() {
                let wired = self.tools(dialect, &request.tools);
                body.extend_from_slice(&wired[1..wired.len() - 1]);
            }
            for tool in server_tools {
                separate(&mut body);
                json(&tool.tool, &mut body);
            }
            body.push(b']');
        }
        separate(&mut body);
        json(D::MESSAGES, &mut body);
        body.extend_from_slice(b":[");
        let offer = Some(offer).filter(|offer| offer.has_keys());
        self.messages.write(dialect, &request.messages, offer, &mut body).map_err(|(index, error)| {
            ModelError::new(error.kind().clone(), format!("message {index}: {}", error.message()))
        })?;
        body.extend_from_slice(b"]}");
        Ok(body)
    }

    /// The tools as JSON, written once as long as they are the same.
    fn tools<D: Dialect<Open = O>>(&self, dialect: &D, tools: &Arc<[ToolSpec]>) -> Arc<[u8]> {
        let mut kept = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.as_ref().filter(|known| Arc::ptr_eq(&known.specs, tools)) {
            return Arc::clone(&known.wired);
        }
        let mut wired = Vec::new();
        json(&dialect.tools(tools), &mut wired);
        let wired: Arc<[u8]> = wired.into();
        *kept = Some(WiredTools { specs: Arc::clone(tools), wired: Arc::clone(&wired) });
        wired
    }
}

/// The tool choice of a request. Without tools there are none to forbid, and some APIs reject the field.
pub(crate) fn tool_choice(request: &ChatRequest) -> &ToolChoice {
    let has_tools = !request.tools.is_empty() || !request.params.server_tools.is_empty();
    match &request.tool_choice {
        ToolChoice::None if !has_tools => &ToolChoice::Auto,
        choice => choice,
    }
}

/// The tools that the provider of this dialect runs itself.
fn server_tools<'a>(dialect: &str, request: &'a ChatRequest) -> Result<&'a [ServerTool], ModelError> {
    let tools = &request.params.server_tools;
    match tools.iter().find(|tool| tool.dialect != dialect) {
        None => Ok(tools),
        Some(tool) => {
            let (theirs, ours) = (&tool.dialect, dialect);
            Err(unsupported(format!("unsupported server tool of `{theirs}`: this model speaks `{ours}`")))
        }
    }
}

/// The error of a request that the provider does not support.
pub(crate) fn unsupported(message: impl Into<String>) -> ModelError {
    ModelError::new(ModelErrorKind::Unsupported, message)
}

/// The error of a choice of tools that this version of the API has no form for.
pub(crate) fn unknown_choice(choice: &ToolChoice) -> ModelError {
    unsupported(format!("unsupported tool choice {choice:?}: this API has no form for it"))
}

/// The error of a message whose role this API has no form for.
pub(crate) fn unknown_role(role: Role) -> ModelError {
    unsupported(format!("unsupported role `{role}`: this API has no form for it"))
}

/// The error of a part that cannot stand in a message.
pub(crate) fn cannot_send(role: Role, content: &Content) -> ModelError {
    let kind = content.kind();
    unsupported(format!(
        "unsupported part of kind {kind} in a message of the {role}: this API has no form for it"
    ))
}

/// Rejects the name of a participant.
pub(crate) fn no_name(message: &Message) -> Result<(), ModelError> {
    match message.name() {
        Some(_) => Err(unsupported("unsupported `name` of a message: this API has none; say it in the text")),
        None => Ok(()),
    }
}

/// Rejects a document with citations on.
pub(crate) fn no_citations(media: &Media) -> Result<(), ModelError> {
    if media.has_citations {
        return Err(unsupported(
            "unsupported citations of a document: this API has none; ask for them in words",
        ));
    }
    Ok(())
}

/// The error of an unsupported image detail.
pub(crate) fn no_detail(media: &Media, known: &str) -> ModelError {
    let detail = media.detail.map_or("", |detail| detail.as_str());
    unsupported(format!("unsupported image detail `{detail}`: expected {known}"))
}

/// Rejects an image detail of a file.
pub(crate) fn no_detail_of_file(media: &Media) -> Result<(), ModelError> {
    if media.detail.is_some() { Err(no_detail(media, "none, since it is not an image")) } else { Ok(()) }
}

/// The content in Base64, if it is here.
pub(crate) fn base64(media: &Media) -> Option<Cow<'_, str>> {
    match &media.source {
        MediaSource::Base64(data) => Some(Cow::Borrowed(data)),
        MediaSource::Text(text) => Some(Cow::Owned(STANDARD.encode(text))),
        _ => None,
    }
}

/// The content as text, if it is here and is text.
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

/// The address, or the content as one; none of what is known by an id.
pub(crate) fn data_url(media: &Media) -> Option<Cow<'_, str>> {
    if let MediaSource::Url(url) = &media.source {
        return Some(Cow::Borrowed(url));
    }
    let media_type = media.media_type.as_deref().unwrap_or("application/octet-stream");
    base64(media).map(|data| Cow::Owned(format!("data:{media_type};base64,{data}")))
}

/// Adds the fields that this dialect has for a tool beside those that all have.
pub(crate) fn add_extras(tool: &mut Value, dialect: &str, spec: &ToolSpec) {
    if let (Some(fields), Some(Value::Object(more))) = (tool.as_object_mut(), spec.extras.get(dialect)) {
        fields.extend(more.clone());
    }
}

/// Begins the next field of an object, or the next item of a list.
fn separate(body: &mut Vec<u8>) {
    if !matches!(body.last(), Some(b'{' | b'[')) {
        body.push(b',');
    }
}

/// The most conversations of which the wire form is kept.
const MAX_KEPT: usize = 256;

/// The most bytes that are kept, over all conversations.
const MAX_BYTES: usize = 32 << 20;

/// The wire forms of the last conversations.
struct WireCache<O>(Mutex<Vec<Kept<O>>>);

/// The wire form of a conversation.
#[derive(Clone)]
struct Kept<O> {
    messages: Transcript,
    /// The tools whose arguments have other names of properties on the wire, if there are some.
    offer: Option<Arc<Offer>>,
    bytes: Vec<u8>,
    /// For each message, where it ends and what is open there.
    ends: Vec<(usize, O)>,
}

impl<O: Clone + Default> WireCache<O> {
    const fn new() -> Self {
        WireCache(Mutex::new(Vec::new()))
    }

    /// Appends all messages to `out`, and closes what is open then.
    ///
    /// # Errors
    /// Those of the dialect, with the index of the message.
    fn write<D: Dialect<Open = O>>(
        &self,
        dialect: &D,
        messages: &Transcript,
        offer: Option<&Arc<Offer>>,
        out: &mut Vec<u8>,
    ) -> Result<(), (usize, ModelError)> {
        // Not in the list while we work on it: the lock is held for moments only.
        let mut kept = self.take(messages, offer);
        let written = kept.go_on(dialect, messages);
        let open = kept.ends.last().map(|(_, open)| open.clone()).unwrap_or_default();
        if written.is_ok() {
            out.extend_from_slice(&kept.bytes);
            dialect.close(&open, out);
        }
        self.keep(kept);
        written
    }

    /// The longest beginning of the conversation that is written already.
    fn take(&self, messages: &Transcript, offer: Option<&Arc<Offer>>) -> Kept<O> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = all
            .iter()
            .enumerate()
            .filter(|(_, kept)| kept.offer.as_ref().map(Arc::as_ptr) == offer.map(Arc::as_ptr));
        let lengths = same.map(|(at, kept)| (kept.common(messages), at));
        // Of equal ones the first, which was used last.
        let best = lengths.max_by_key(|(common, at)| (*common, std::cmp::Reverse(*at)));
        match best {
            None | Some((0, _)) => Kept {
                messages: Transcript::new(),
                offer: offer.cloned(),
                bytes: Vec::new(),
                ends: Vec::new(),
            },
            Some((common, at)) if common == all[at].messages.len() => all.remove(at),
            // Another conversation began the same: it keeps what it has.
            Some((common, at)) => all[at].beginning(common),
        }
    }

    fn keep(&self, kept: Kept<O>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(0, kept);
        all.truncate(MAX_KEPT);
        // One that is too large by itself does not drive out the others.
        let mut left = MAX_BYTES;
        all.retain(|kept| {
            let fits = kept.bytes.len() <= left;
            left -= if fits { kept.bytes.len() } else { 0 };
            fits
        });
    }
}

impl<O: Clone + Default> Kept<O> {
    /// With how many of our messages the conversation begins.
    fn common(&self, messages: &Transcript) -> usize {
        if messages.len() >= self.messages.len() && self.is_tail_shared(messages) {
            return self.messages.len();
        }
        self.messages.iter().zip(messages).take_while(|(ours, theirs)| Arc::ptr_eq(ours, theirs)).count()
    }

    /// Whether the conversation grew from ours. Both are append-only, so that it is enough to look at the
    /// ends of what they share when they are versions of one list; else all messages are compared.
    fn is_tail_shared(&self, messages: &Transcript) -> bool {
        let last = self.messages.len().checked_sub(1);
        let is_same = |index| match (self.messages.get(index), messages.get(index)) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            _ => false,
        };
        last.is_some_and(is_same) && messages.starts_with(&self.messages)
    }

    fn beginning(&self, count: usize) -> Self {
        let ends = self.ends[..count].to_vec();
        let length = ends.last().map_or(0, |(end, _)| *end);
        Kept {
            messages: self.messages.iter().take(count).map(Arc::clone).collect(),
            offer: self.offer.clone(),
            bytes: self.bytes[..length].to_vec(),
            ends,
        }
    }

    /// Writes what is new.
    fn go_on<D: Dialect<Open = O>>(
        &mut self,
        dialect: &D,
        messages: &Transcript,
    ) -> Result<(), (usize, ModelError)> {
        let mut open = self.ends.last().map(|(_, open)| open.clone()).unwrap_or_default();
        let written = self.ends.len();
        for (index, message) in messages.iter_from(written).enumerate() {
            let wired = match &self.offer {
                Some(offer) => offer.wire_message(message),
                None => Cow::Borrowed(&**message),
            };
            if let Err(error) = dialect.write(&wired, &mut open, &mut self.bytes) {
                // Half a message may be there.
                self.bytes.truncate(self.ends.last().map_or(0, |(end, _)| *end));
                self.messages = messages.iter().take(self.ends.len()).map(Arc::clone).collect();
                return Err((written + index, error));
            }
            self.ends.push((self.bytes.len(), open.clone()));
        }
        self.messages = messages.clone();
        Ok(())
    }
}

/// The fields of an object that are there.
pub(crate) fn fields<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    known.collect()
}

/// Appends a value as JSON. Writing to memory fails only for maps with odd keys, which we do not have.
pub(crate) fn json<T: serde::Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}
