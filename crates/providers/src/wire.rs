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
    Arguments, ChatRequest, Content, Media, MediaSource, Message, ModelError, ModelErrorKind, Part, Role,
    ServerTool, ToolChoice, ToolContent, ToolResult, ToolSpec, Transcript, WireChange,
};

use crate::conform::{Changes, Recipient, conform, with_parts};
use crate::model::Dialect;
use crate::tools::{Offer, Wired};

/// Writes bodies, and remembers what it wrote.
pub(crate) struct Bodies<O> {
    messages: WireCache<O>,
}

/// What a request decides about the messages in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessagePlan {
    /// From which message on replies go without what the server itself added to them, and the request without its
    /// parameter for reasoning: from the beginning of a turn that another model began.
    pub(crate) bare_from: Option<usize>,
    /// Whether the server requires a signature at the first call of each reply.
    pub(crate) signs_calls: bool,
}

/// Where a body goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// The server, as [extras](crate::conform::SERVER) name it.
    pub(crate) server: &'a str,
    pub(crate) model: &'a str,
}

impl<O: Clone + Default> Bodies<O> {
    pub(crate) const fn new() -> Self {
        Bodies { messages: WireCache::new() }
    }

    /// The body of a request, and what was changed in its tools, and in the messages that were not written before. The conversation is its
    /// end, so that the body of one step is the beginning of the body of the next.
    pub(crate) fn body<D: Dialect<Open = O>>(
        &self,
        dialect: &D,
        to: Destination<'_>,
        wired: &Wired,
    ) -> Result<(Vec<u8>, Vec<WireChange>), ModelError> {
        let request = &wired.request;
        let plan = dialect.plan(to, request);
        let mut changes: Vec<WireChange> = wired.offer.changes().map(WireChange::of_request).collect();
        let mut head = dialect.head(to, request)?;
        for (name, value) in request.params.extras.iter() {
            if D::RESERVED.contains(&name) {
                let message = format!("invalid extra parameter `{name}`: the request sets this field itself");
                return Err(ModelError::new(ModelErrorKind::InvalidRequest, message));
            }
            if plan.bare_from.is_some() && D::REASONING == Some(name) {
                let change = format!("`{name}` is left out: another model began this turn");
                changes.push(WireChange::of_request(change));
                continue;
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
                let tools = wired.offer.written(|tools| {
                    let mut written = Vec::new();
                    json(&dialect.tools(tools), &mut written);
                    written
                });
                body.extend_from_slice(&tools[1..tools.len() - 1]);
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
        let recipient = recipient(dialect, to.server);
        let offer = Some(&wired.offer).filter(|offer| offer.has_keys());
        let writer = Writer { dialect, to: recipient, plan, offer };
        self.messages.write(&writer, &request.messages, &mut body, &mut changes).map_err(
            |(index, error)| {
                ModelError::new(error.kind().clone(), format!("message {index}: {}", error.message()))
            },
        )?;
        body.extend_from_slice(b"]}");
        Ok((body, changes))
    }
}

/// The server, as far as messages to a dialect depend on it.
pub(crate) fn recipient<'a, D: Dialect>(dialect: &'a D, server: &'a str) -> Recipient<'a> {
    Recipient { server, rules: dialect.rules(), signature: D::SIGNATURE, unknown: D::UNKNOWN }
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

/// Writes messages for one request.
struct Writer<'a, D> {
    dialect: &'a D,
    to: Recipient<'a>,
    plan: MessagePlan,
    /// The tools whose arguments have other names of properties on the wire, if there are some.
    offer: Option<&'a Arc<Offer>>,
}

impl<D: Dialect> Writer<'_, D> {
    /// Appends a message as the server takes it. What the server has no form for is an error in the message that was just
    /// said; in an earlier one, which its sender cannot change any more, a text stands for it. Says whether one does.
    fn write(
        &self,
        message: &Message,
        place: Place,
        open: &mut D::Open,
        out: &mut Vec<u8>,
        changes: &mut Changes,
    ) -> Result<bool, ModelError> {
        let keeps_extras = self.plan.bare_from.is_none_or(|from| place.index < from);
        let wired = self.offer.map_or(Cow::Borrowed(message), |offer| offer.wire_message(message));
        let Some(message) = conform(&wired, &self.to, keeps_extras, changes) else {
            return Ok(false);
        };
        let (length, before, told) = (out.len(), open.clone(), changes.len());
        match self.dialect.write(&message, &self.plan, open, out, changes) {
            Err(error) if error.kind() == &ModelErrorKind::Unsupported && !place.is_said_now(&message) => {
                out.truncate(length);
                changes.truncate(told);
                *open = before;
                let message = self.supported(&message, changes);
                self.dialect.write(&message, &self.plan, open, out, changes).map(|()| true)
            }
            written => written.map(|()| false),
        }
    }

    /// The message with a text for each part that the server has no form for, and without a name.
    fn supported(&self, message: &Message, changes: &mut Changes) -> Message {
        let parts = message.parts().iter().map(|part| match &part.content {
            Content::ToolResult(result) => match result.content() {
                ToolContent::Parts(parts) => {
                    let parts = parts.iter().map(|part| self.supported_part(Role::Tool, part, changes));
                    let content = ToolContent::Parts(parts.collect());
                    let result = ToolResult::new(result.call_id(), result.name(), content);
                    Part::from(result).with_extras(part.extras.clone())
                }
                _ => part.clone(),
            },
            _ => self.supported_part(message.role(), part, changes),
        });
        let parts = parts.collect();
        if message.name().is_none() {
            return with_parts(message, parts);
        }
        changes.add("the name of the participant is left out");
        let extras = message.extras().iter().filter(|(name, _)| *name != "name");
        let extras = extras.map(|(name, value)| (name, value.clone())).collect();
        Message::from_parts(message.role(), parts).with_extras(extras)
    }

    fn supported_part(&self, role: Role, part: &Part, changes: &mut Changes) -> Part {
        let Err(error) = self.probe(role, part) else {
            return part.clone();
        };
        let plain = without_hints(part);
        if self.probe(role, &plain).is_ok() {
            changes.add(format!("{}: it goes without that", error.message()));
            return plain;
        }
        changes.add(format!("{}: a text stands for it", error.message()));
        Part::text(format!("[{} left out: {}]", described(&part.content), error.message()))
    }

    /// Whether the server has a form for a part.
    fn probe(&self, role: Role, part: &Part) -> Result<(), ModelError> {
        let parts = vec![part.clone()];
        let message = match role {
            Role::Tool => Message::tool(ToolResult::new("c1", "t", ToolContent::Parts(parts))),
            role => Message::from_parts(role, parts),
        };
        let (mut open, mut out, mut changes) = (D::Open::default(), Vec::new(), Changes::default());
        self.dialect.write(&message, &self.plan, &mut open, &mut out, &mut changes)
    }
}

/// Where a message stands in its conversation.
#[derive(Clone, Copy)]
struct Place {
    index: usize,
    is_last: bool,
}

impl Place {
    /// Whether the message was said by the user for this request.
    fn is_said_now(self, message: &Message) -> bool {
        self.is_last && message.role() == Role::User
    }
}

/// Media without what only some servers know of it.
fn without_hints(part: &Part) -> Part {
    let plain = |media: &Media| {
        let mut media = media.clone();
        (media.detail, media.has_citations) = (None, false);
        media
    };
    let content = match &part.content {
        Content::Image(media) => Content::Image(plain(media)),
        Content::File(media) => Content::File(plain(media)),
        other => other.clone(),
    };
    Part::from(content).with_extras(part.extras.clone())
}

/// What a part that is left out was.
fn described(content: &Content) -> String {
    let media = match content {
        Content::Image(media) | Content::File(media) => media,
        other => return other.kind().to_owned(),
    };
    let words = [Some(content.kind()), media.name.as_deref(), media.media_type.as_deref()];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// The wire forms of the last conversations.
struct WireCache<O>(Mutex<Vec<Kept<O>>>);

/// The wire form of a conversation.
#[derive(Clone)]
struct Kept<O> {
    messages: Transcript,
    plan: MessagePlan,
    /// The tools that its arguments are written for, if they are others on the wire.
    offer: Option<Arc<Offer>>,
    bytes: Vec<u8>,
    /// Where each message ends.
    ends: Vec<MessageEnd<O>>,
}

/// The end of a message that was written.
#[derive(Clone)]
struct MessageEnd<O> {
    /// Its last byte.
    length: usize,
    /// What is open there.
    open: O,
    /// Whether a text stands for a part that the server has no form for.
    is_replaced: bool,
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
        writer: &Writer<'_, D>,
        messages: &Transcript,
        out: &mut Vec<u8>,
        changes: &mut Vec<WireChange>,
    ) -> Result<(), (usize, ModelError)> {
        // Not in the list while we work on it: the lock is held for moments only.
        let mut kept = self.take(messages, writer.plan, writer.offer);
        let written = kept.go_on(writer, messages, changes);
        let open = kept.ends.last().map(|end| end.open.clone()).unwrap_or_default();
        if written.is_ok() {
            out.extend_from_slice(&kept.bytes);
            writer.dialect.close(&open, out);
        }
        self.keep(kept);
        written
    }

    /// The longest beginning of the conversation that is written already.
    fn take(&self, messages: &Transcript, plan: MessagePlan, offer: Option<&Arc<Offer>>) -> Kept<O> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |kept: &Kept<O>| kept.offer.as_ref().map(Arc::as_ptr) == offer.map(Arc::as_ptr);
        let same = all.iter().enumerate().filter(|(_, kept)| is_same(kept));
        let lengths = same.map(|(at, kept)| (kept.common(messages, plan), at));
        // Of equal ones the first, which was used last.
        let best = lengths.max_by_key(|(common, at)| (*common, std::cmp::Reverse(*at)));
        let kept = match best {
            None | Some((0, _)) => {
                let (messages, offer) = (Transcript::new(), offer.cloned());
                Kept { messages, plan, offer, bytes: Vec::new(), ends: Vec::new() }
            }
            Some((common, at)) if common == all[at].messages.len() => all.remove(at),
            // Another conversation began the same: it keeps what it has.
            Some((common, at)) => all[at].beginning(common),
        };
        Kept { plan, ..kept }
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
    /// With how many of our messages the conversation begins, as far as the request decides the same about them.
    fn common(&self, messages: &Transcript, plan: MessagePlan) -> usize {
        if plan.signs_calls != self.plan.signs_calls {
            return 0;
        }
        let common = if messages.len() >= self.messages.len() && self.is_tail_shared(messages) {
            self.messages.len()
        } else {
            self.messages.iter().zip(messages).take_while(|(ours, theirs)| Arc::ptr_eq(ours, theirs)).count()
        };
        // As the last one, such a message is refused.
        let is_refused = common == messages.len()
            && self.ends.get(common.wrapping_sub(1)).is_some_and(|end| end.is_replaced)
            && messages.last().is_some_and(|message| message.role() == Role::User);
        let common = common - usize::from(is_refused);
        if plan.bare_from == self.plan.bare_from {
            return common;
        }
        let bare = [plan.bare_from, self.plan.bare_from].into_iter().flatten();
        bare.fold(common, usize::min)
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
        let length = ends.last().map_or(0, |end| end.length);
        Kept {
            messages: self.messages.iter().take(count).map(Arc::clone).collect(),
            plan: self.plan,
            offer: self.offer.clone(),
            bytes: self.bytes[..length].to_vec(),
            ends,
        }
    }

    /// Writes what is new.
    fn go_on<D: Dialect<Open = O>>(
        &mut self,
        writer: &Writer<'_, D>,
        messages: &Transcript,
        changes: &mut Vec<WireChange>,
    ) -> Result<(), (usize, ModelError)> {
        let mut open = self.ends.last().map(|end| end.open.clone()).unwrap_or_default();
        let written = self.ends.len();
        let mut told = Changes::default();
        for (at, message) in messages.iter_from(written).enumerate() {
            let index = written + at;
            let place = Place { index, is_last: index + 1 == messages.len() };
            let is_replaced = match writer.write(message, place, &mut open, &mut self.bytes, &mut told) {
                Ok(is_replaced) => is_replaced,
                Err(error) => {
                    // Half a message may be there.
                    self.bytes.truncate(self.ends.last().map_or(0, |end| end.length));
                    self.messages = messages.iter().take(self.ends.len()).map(Arc::clone).collect();
                    return Err((index, error));
                }
            };
            changes.extend(told.take().into_iter().map(|change| WireChange::of_message(index, change)));
            self.ends.push(MessageEnd { length: self.bytes.len(), open: open.clone(), is_replaced });
        }
        self.messages = messages.clone();
        Ok(())
    }
}

/// The arguments of a call as an object. Malformed ones are a field of it: the model sees its own words.
pub(crate) fn argument_object(arguments: &Arguments) -> Map<String, Value> {
    match (arguments.as_object(), arguments.malformed()) {
        (Some(object), _) => object.clone(),
        (None, text) => fields([("malformed_arguments", Some(text.map_or("", |(text, _)| text).into()))]),
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
