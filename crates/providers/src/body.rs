//! Messages as a provider reads them, each written once.
//!
//! A conversation only grows, so its wire form does too. It is cached: a request with some more messages writes
//! those, and copies the rest. The key of the cache is the identity of the messages, so that a view or a fork of a
//! conversation is found as well.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use stepfold_state_core::chat::{
    ChatRequest, Content, Media, Message, ModelError, ModelErrorKind, Part, Role, ServerTool, ToolContent,
    ToolResult, Transcript, WireChange,
};

use crate::conform::{MessageChanges, RecipientProfile, conform, with_parts};
use crate::dialect::{Dialect, MessagePlan, ModelAddress, recipient};
use crate::tools::{PreparedRequest, ToolOffer};
use crate::wire::{json, unsupported};

/// Writes the bodies of requests, with a cache of the messages that it wrote.
pub(crate) struct BodyWriter<O> {
    messages: WireCache<O>,
}

impl<O: Clone + Default> BodyWriter<O> {
    pub(crate) const fn new() -> Self {
        BodyWriter { messages: WireCache::new() }
    }

    /// Writes the body of a request. Returns also the changes in its tools, and in the messages that were not cached. The
    /// conversation is at the end, so that the body of one step is a prefix of the body of the next.
    pub(crate) fn body<D: Dialect<WriteState = O>>(
        &self,
        dialect: &D,
        to: ModelAddress<'_>,
        prepared: &PreparedRequest,
    ) -> Result<(Vec<u8>, Vec<WireChange>), ModelError> {
        let request = &prepared.request;
        let plan = dialect.plan(to, request);
        let mut changes: Vec<WireChange> = prepared.offer.changes().map(WireChange::of_request).collect();
        let mut head = dialect.head(to, request)?;
        for (name, value) in request.params.extras.iter() {
            // NOTE: A field that the request sets itself, such as `messages`, would be in the body twice.
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
                let tools = prepared.offer.written(|tools| {
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
        // NOTE: The messages come last, so that the body of a step is a prefix of the body of the next one: caches of
        // providers match prefixes.
        json(D::MESSAGES, &mut body);
        body.extend_from_slice(b":[");
        let recipient = recipient(dialect, to.server);
        let offer = Some(&prepared.offer).filter(|offer| offer.has_keys());
        let writer = MessageWriter { dialect, to: recipient, plan, offer };
        self.messages.write(&writer, &request.messages, &mut body, &mut changes).map_err(
            |(index, error)| {
                ModelError::new(error.kind().clone(), format!("message {index}: {}", error.message()))
            },
        )?;
        body.extend_from_slice(b"]}");
        Ok((body, changes))
    }
}

/// Returns the tools that the provider runs.
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
struct MessageWriter<'a, D> {
    dialect: &'a D,
    to: RecipientProfile<'a>,
    plan: MessagePlan,
    /// The tools whose properties have other names on the wire, if there are some.
    offer: Option<&'a Arc<ToolOffer>>,
}

impl<D: Dialect> MessageWriter<'_, D> {
    /// Appends a message in the form that the server accepts. Unsupported content is an error in the newest message of the
    /// user; in an earlier one, which its sender cannot change any more, a text replaces it. Returns whether one does.
    fn write(
        &self,
        message: &Message,
        place: MessagePosition,
        open: &mut D::WriteState,
        out: &mut Vec<u8>,
        changes: &mut MessageChanges,
    ) -> Result<bool, ModelError> {
        let keeps_extras = self.plan.bare_from.is_none_or(|from| place.index < from);
        let wired = self.offer.map_or(Cow::Borrowed(message), |offer| offer.wire_message(message));
        let Some(message) = conform(&wired, &self.to, keeps_extras, changes) else {
            return Ok(false);
        };
        let (length, before, change_count) = (out.len(), open.clone(), changes.len());
        match self.dialect.write(&message, &self.plan, open, out, changes) {
            // NOTE: The message is stored: an error for it in each later request would be the end of the session.
            Err(error) if error.kind() == &ModelErrorKind::Unsupported && !place.is_new_input(&message) => {
                out.truncate(length);
                changes.truncate(change_count);
                *open = before;
                let message = self.with_supported_parts(&message, changes);
                self.dialect.write(&message, &self.plan, open, out, changes).map(|()| true)
            }
            written => written.map(|()| false),
        }
    }

    /// Replaces each unsupported part by a text, and removes the name.
    fn with_supported_parts(&self, message: &Message, changes: &mut MessageChanges) -> Message {
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

    fn supported_part(&self, role: Role, part: &Part, changes: &mut MessageChanges) -> Part {
        let Err(error) = self.probe(role, part) else {
            return part.clone();
        };
        let plain = without_hints(part);
        if self.probe(role, &plain).is_ok() {
            changes.add(format!("{}: it goes without that", error.message()));
            return plain;
        }
        changes.add(format!("{}: a text stands for it", error.message()));
        Part::text(format!("[{} left out: {}]", describe_content(&part.content), error.message()))
    }

    /// Whether the server has a form for a part.
    fn probe(&self, role: Role, part: &Part) -> Result<(), ModelError> {
        let parts = vec![part.clone()];
        let message = match role {
            Role::Tool => Message::tool(ToolResult::new("c1", "t", ToolContent::Parts(parts))),
            role => Message::from_parts(role, parts),
        };
        let (mut open, mut out, mut changes) =
            (D::WriteState::default(), Vec::new(), MessageChanges::default());
        self.dialect.write(&message, &self.plan, &mut open, &mut out, &mut changes)
    }
}

/// The position of a message in its conversation.
#[derive(Clone, Copy)]
struct MessagePosition {
    index: usize,
    is_last: bool,
}

impl MessagePosition {
    /// Whether the message is the new input of the user.
    fn is_new_input(self, message: &Message) -> bool {
        self.is_last && message.role() == Role::User
    }
}

/// Removes hints of media that only some servers accept.
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

/// Describes a part that is left out.
fn describe_content(content: &Content) -> String {
    let media = match content {
        Content::Image(media) | Content::File(media) => media,
        other => return other.kind().to_owned(),
    };
    let words = [Some(content.kind()), media.name.as_deref(), media.media_type.as_deref()];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// The wire forms of the last conversations.
// NOTE: One buffer for each conversation, not for each message: to look up a thousand messages costs more than to
// copy their bytes. See docs/decisions/providers.md.
struct WireCache<O>(Mutex<Vec<CachedConversation<O>>>);

/// The wire form of a conversation.
#[derive(Clone)]
struct CachedConversation<O> {
    messages: Transcript,
    plan: MessagePlan,
    /// The tools whose names of properties its arguments have, if these differ on the wire.
    offer: Option<Arc<ToolOffer>>,
    bytes: Vec<u8>,
    /// The end of each message.
    ends: Vec<MessageEnd<O>>,
}

/// The end of a message that was written.
#[derive(Clone)]
struct MessageEnd<O> {
    /// Its last byte.
    length: usize,
    /// The state of the dialect there.
    open: O,
    /// Whether a text replaces an unsupported part.
    is_replaced: bool,
}

impl<O: Clone + Default> WireCache<O> {
    const fn new() -> Self {
        WireCache(Mutex::new(Vec::new()))
    }

    /// Appends all messages to `out`, and closes the open elements.
    ///
    /// # Errors
    /// The error of the dialect, with the index of the message.
    fn write<D: Dialect<WriteState = O>>(
        &self,
        writer: &MessageWriter<'_, D>,
        messages: &Transcript,
        out: &mut Vec<u8>,
        changes: &mut Vec<WireChange>,
    ) -> Result<(), (usize, ModelError)> {
        // NOTE: Not in the list while it is extended, so that the lock is held for moments only.
        let mut kept = self.take_longest(messages, writer.plan, writer.offer);
        let written = kept.write_new(writer, messages, changes);
        let open = kept.ends.last().map(|end| end.open.clone()).unwrap_or_default();
        if written.is_ok() {
            out.extend_from_slice(&kept.bytes);
            writer.dialect.close(&open, out);
        }
        self.keep(kept);
        written
    }

    /// Takes the longest prefix of the conversation that is cached.
    fn take_longest(
        &self,
        messages: &Transcript,
        plan: MessagePlan,
        offer: Option<&Arc<ToolOffer>>,
    ) -> CachedConversation<O> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same =
            |kept: &CachedConversation<O>| kept.offer.as_ref().map(Arc::as_ptr) == offer.map(Arc::as_ptr);
        let same = all.iter().enumerate().filter(|(_, kept)| is_same(kept));
        let lengths = same.map(|(at, kept)| (kept.common(messages, plan), at));
        // NOTE: Of equal ones the first: it was used last.
        let best = lengths.max_by_key(|(common, at)| (*common, std::cmp::Reverse(*at)));
        let kept = match best {
            None | Some((0, _)) => {
                let (messages, offer) = (Transcript::new(), offer.cloned());
                CachedConversation { messages, plan, offer, bytes: Vec::new(), ends: Vec::new() }
            }
            Some((common, at)) if common == all[at].messages.len() => all.remove(at),
            // NOTE: Another conversation has the same prefix: it keeps its entry, and a copy of the prefix is extended.
            Some((common, at)) => all[at].beginning(common),
        };
        CachedConversation { plan, ..kept }
    }

    fn keep(&self, kept: CachedConversation<O>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(0, kept);
        all.truncate(MAX_KEPT);
        // NOTE: An entry that is too large by itself does not evict the others.
        let mut left = MAX_BYTES;
        all.retain(|kept| {
            let fits = kept.bytes.len() <= left;
            left -= if fits { kept.bytes.len() } else { 0 };
            fits
        });
    }
}

impl<O: Clone + Default> CachedConversation<O> {
    /// Counts the cached messages that the conversation begins with, as far as the plans of both requests agree.
    fn common(&self, messages: &Transcript, plan: MessagePlan) -> usize {
        if plan.signs_calls != self.plan.signs_calls {
            return 0;
        }
        let common = if messages.len() >= self.messages.len() && self.is_tail_shared(messages) {
            self.messages.len()
        } else {
            self.messages.iter().zip(messages).take_while(|(ours, theirs)| Arc::ptr_eq(ours, theirs)).count()
        };
        // NOTE: As the newest message it is refused, not replaced: it must be written again to report that.
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

    /// Whether the conversation extends the cached one. Both are append-only: for versions of one list it suffices to
    /// compare the last shared message; else all messages are compared.
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
        CachedConversation {
            messages: self.messages.iter().take(count).map(Arc::clone).collect(),
            plan: self.plan,
            offer: self.offer.clone(),
            bytes: self.bytes[..length].to_vec(),
            ends,
        }
    }

    /// Writes the messages that are not cached.
    fn write_new<D: Dialect<WriteState = O>>(
        &mut self,
        writer: &MessageWriter<'_, D>,
        messages: &Transcript,
        changes: &mut Vec<WireChange>,
    ) -> Result<(), (usize, ModelError)> {
        let mut open = self.ends.last().map(|end| end.open.clone()).unwrap_or_default();
        let written = self.ends.len();
        let mut new_changes = MessageChanges::default();
        for (at, message) in messages.iter_from(written).enumerate() {
            let index = written + at;
            let place = MessagePosition { index, is_last: index + 1 == messages.len() };
            let is_replaced = match writer.write(message, place, &mut open, &mut self.bytes, &mut new_changes)
            {
                Ok(is_replaced) => is_replaced,
                Err(error) => {
                    // NOTE: Half a message may have been written.
                    self.bytes.truncate(self.ends.last().map_or(0, |end| end.length));
                    self.messages = messages.iter().take(self.ends.len()).map(Arc::clone).collect();
                    return Err((index, error));
                }
            };
            changes
                .extend(new_changes.take().into_iter().map(|change| WireChange::of_message(index, change)));
            self.ends.push(MessageEnd { length: self.bytes.len(), open: open.clone(), is_replaced });
        }
        self.messages = messages.clone();
        Ok(())
    }
}
