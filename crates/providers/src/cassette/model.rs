//! The cassette as a model: replays recorded exchanges, or records those of another model.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{StreamExt, stream};
use serde_json::Value;
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, ModelError, ModelErrorKind, OmittedTool, ReplyBuilder,
    ReplyStream, ToolSpec, WireRequest,
};

use super::diff;
use super::exchange::{RecordedAnswer, RecordedExchange};
use super::file::{self, CassetteContents, CassetteError};
use crate::secret::Secret;

/// A model that replays a file, or records another model into it.
///
/// Requests are matched by conversation, tools, format and parameters. A request recorded several times is
/// answered in that order; an unrecorded one is an error with a diff. The recording of a reply has its
/// content and its end, including errors, but not its chunks.
///
/// # Secrets
/// Keys of models are never part of a request, and are removed from errors before they are recorded. Other
/// secrets are set with [`hiding`](Cassette::hiding).
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use stepfold_providers::{Cassette, Scripted};
/// use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, Transcript};
///
/// # let folder = std::env::temp_dir().join(format!("stepfold-cassette-doc-{}", std::process::id()));
/// let path = folder.join("area.cassette");
/// let request = ChatRequest::new(Transcript::new().with(Message::user("which area?")));
///
/// let recording = Cassette::record(&path, Scripted::new(["area 3"]))?;
/// recording.respond(request.clone()).into_reply().await?;
///
/// let reply = Cassette::replay(&path)?.respond(request).into_reply().await?;
/// assert_eq!(reply.message.text(), "area 3");
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Cassette(Arc<CassetteInner>);

struct CassetteInner {
    id: String,
    path: PathBuf,
    /// The model for unrecorded requests.
    model: Option<Arc<dyn ChatModel>>,
    secrets: Vec<Secret>,
    tape: Mutex<CassetteState>,
}

#[derive(Default)]
struct CassetteState {
    contents: CassetteContents,
    /// Whether each exchange was used.
    used: Vec<bool>,
    /// Whether the file is as this cassette wrote it, so that appending suffices.
    can_append: bool,
}

impl Cassette {
    /// Answers from the file only.
    ///
    /// # Errors
    /// The file does not exist, or is not a cassette.
    pub fn replay(path: impl AsRef<Path>) -> Result<Self, CassetteError> {
        Ok(Cassette::of(path.as_ref(), file::read(path.as_ref())?, None))
    }

    /// Calls the model, and replaces the file with the recording.
    ///
    /// # Errors
    /// The file cannot be written, or is there and is not a cassette.
    pub fn record(path: impl AsRef<Path>, model: impl ChatModel + 'static) -> Result<Self, CassetteError> {
        let contents = CassetteContents { id: model.id().to_owned(), exchanges: Vec::new() };
        file::check_replaceable(path.as_ref())?;
        file::write(path.as_ref(), &contents)?;
        Ok(Cassette::of(path.as_ref(), contents, Some(Arc::new(model))))
    }

    /// Replays recorded requests; calls the model for others and records them.
    ///
    /// `make` creates the model. It may fail, because of a missing key for example, if the file exists: then
    /// an unrecorded request is an error.
    ///
    /// # Errors
    /// The file exists and is not a cassette, cannot be written, or neither the file nor a model exists.
    pub fn auto<M: ChatModel + 'static>(
        path: impl AsRef<Path>,
        make: impl FnOnce() -> Result<M, ModelError>,
    ) -> Result<Self, CassetteError> {
        if path.as_ref().exists() {
            let model = make().ok().map(|model| Arc::new(model) as Arc<dyn ChatModel>);
            return Ok(Cassette::of(path.as_ref(), file::read(path.as_ref())?, model));
        }
        Cassette::record(path, make()?)
    }

    fn of(path: &Path, contents: CassetteContents, model: Option<Arc<dyn ChatModel>>) -> Self {
        let used = vec![false; contents.exchanges.len()];
        let can_append = contents.exchanges.is_empty();
        Cassette(Arc::new(CassetteInner {
            id: contents.id.clone(),
            path: path.to_owned(),
            model,
            secrets: Vec::new(),
            tape: Mutex::new(CassetteState { contents, used, can_append }),
        }))
    }

    /// Replaces this secret with `***` in the file. Must be called before anything is recorded or replayed.
    #[must_use]
    pub fn hiding(self, secret: impl Into<Secret>) -> Self {
        let inner = &self.0;
        let mut secrets = inner.secrets.clone();
        secrets.push(secret.into());
        let tape = inner.tape.lock().unwrap_or_else(PoisonError::into_inner);
        let tape = CassetteState {
            contents: tape.contents.clone(),
            used: tape.used.clone(),
            can_append: tape.can_append,
        };
        Cassette(Arc::new(CassetteInner {
            id: inner.id.clone(),
            path: inner.path.clone(),
            model: inner.model.clone(),
            secrets,
            tape: Mutex::new(tape),
        }))
    }

    /// The number of recorded exchanges that were not replayed.
    pub fn unused(&self) -> usize {
        let tape = self.0.tape.lock().unwrap_or_else(PoisonError::into_inner);
        tape.used.iter().filter(|used| !**used).count()
    }
}

impl ChatModel for Cassette {
    /// The id of the model that was recorded.
    fn id(&self) -> &str {
        &self.0.id
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let hidden = self.0.hide(&request);
        if let Some(answer) = self.0.find(&hidden) {
            return ReplyStream::from_results(answer.results());
        }
        match &self.0.model {
            Some(model) => recorded(model.respond(request), hidden, Arc::clone(&self.0)),
            None => ReplyStream::failed(self.0.mismatch(&hidden)),
        }
    }

    fn omitted_tools(&self, tools: &Arc<[ToolSpec]>) -> Vec<OmittedTool> {
        self.0.model.as_ref().map(|model| model.omitted_tools(tools)).unwrap_or_default()
    }

    fn wire_request(&self, request: &ChatRequest) -> Option<Result<WireRequest, ModelError>> {
        self.0.model.as_ref()?.wire_request(request)
    }
}

impl CassetteInner {
    /// The next answer that was recorded for this request.
    fn find(&self, request: &ChatRequest) -> Option<RecordedAnswer> {
        let mut tape = self.tape.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = tape.used.iter().enumerate().filter(|(_, used)| !**used).map(|(index, _)| index);
        let found = { unused }.find(|index| tape.contents.exchanges[*index].request == *request)?;
        tape.used[found] = true;
        Some(tape.contents.exchanges[found].answer.clone())
    }

    fn store(&self, exchange: RecordedExchange) -> Result<(), CassetteError> {
        let mut tape = self.tape.lock().unwrap_or_else(PoisonError::into_inner);
        tape.contents.exchanges.push(exchange);
        // A new recording is not replayed.
        tape.used.push(true);
        if std::mem::replace(&mut tape.can_append, true) {
            file::append(&self.path, &tape.contents)
        } else {
            file::write(&self.path, &tape.contents)
        }
    }

    /// The error of an unrecorded request: its diff to the closest recorded one.
    fn mismatch(&self, request: &ChatRequest) -> ModelError {
        let tape = self.tape.lock().unwrap_or_else(PoisonError::into_inner);
        let requested = diff::text(request);
        let all = tape.contents.exchanges.iter().zip(&tape.used).enumerate();
        let all = all.map(|(index, (exchange, used))| (index + 1, *used, diff::text(&exchange.request)));
        let closest = all.max_by_key(|(index, used, text)| {
            (text == &requested, !used, diff::common(text, &requested), std::cmp::Reverse(*index))
        });
        let path = self.path.display();
        let message = match closest {
            None => format!("cassette {path} is empty; record it first"),
            Some((index, _, text)) if text == requested => {
                format!(
                    "cassette {path}: request {index} was already replayed; record it again with all its requests"
                )
            }
            Some((index, _, text)) => format!(
                "unknown request in cassette {path}: record it again if the instructions, the tools or the model have changed on purpose; closest is \
                 number {index} (- recorded, + requested):{}",
                diff::diff(&text, &requested)
            ),
        };
        ModelError::new(ModelErrorKind::InvalidRequest, message)
            .with_provider("cassette")
            .with_model(&self.id)
    }

    /// The request without secrets.
    // NOTE: A cassette records above HTTP, where no key of a provider is; other secrets are hidden here.
    fn hide(&self, request: &ChatRequest) -> ChatRequest {
        if self.secrets.is_empty() {
            return request.clone();
        }
        let hidden = serde_json::to_value(request).map(|value| self.hide_in(value));
        // It was a request before.
        hidden.and_then(serde_json::from_value).unwrap_or_default()
    }

    fn hide_in(&self, value: Value) -> Value {
        let redact =
            |text: &str| self.secrets.iter().fold(text.to_owned(), |text, secret| secret.redact(&text));
        match value {
            Value::String(text) => Value::String(redact(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.hide_in(item)).collect(),
            Value::Object(fields) => {
                fields.into_iter().map(|(name, value)| (redact(&name), self.hide_in(value))).collect()
            }
            other => other,
        }
    }

    fn hide_answer(&self, mut answer: RecordedAnswer) -> RecordedAnswer {
        let message = serde_json::to_value(&answer.message).map(|value| self.hide_in(value));
        let end = serde_json::to_value(&answer.end).map(|value| self.hide_in(value));
        if let (Ok(message), Ok(end)) =
            (message.and_then(serde_json::from_value), end.and_then(serde_json::from_value))
        {
            answer = RecordedAnswer { message, end };
        }
        answer
    }
}

/// A reply that is recorded at its end. A reply dropped before is not recorded.
fn recorded(reply: ReplyStream, request: ChatRequest, inner: Arc<CassetteInner>) -> ReplyStream {
    let recorder = ReplyRecorder {
        reply,
        request,
        inner,
        reply_so_far: ReplyBuilder::new(),
        reason: None,
        is_recorded: false,
    };
    ReplyStream::new(stream::unfold(recorder, |mut recorder| async move {
        let item = recorder.next().await?;
        Some((item, recorder))
    }))
}

struct ReplyRecorder {
    reply: ReplyStream,
    request: ChatRequest,
    inner: Arc<CassetteInner>,
    reply_so_far: ReplyBuilder,
    reason: Option<FinishReason>,
    is_recorded: bool,
}

impl ReplyRecorder {
    async fn next(&mut self) -> Option<Result<Chunk, ModelError>> {
        // NOTE: Only the reply is recorded, not its chunks: no program should depend on their boundaries.
        let item = self.reply.next().await;
        match &item {
            Some(Ok(chunk)) => {
                if let Chunk::Finished(reason) = chunk {
                    self.reason = Some(reason.clone());
                }
                self.reply_so_far.push(chunk.clone());
                item
            }
            Some(Err(error)) => {
                let error = error.clone();
                self.store(Some(&error)).err().or(Some(error)).map(Err)
            }
            None => self.store(None).err().map(Err),
        }
    }

    fn store(&mut self, error: Option<&ModelError>) -> Result<(), ModelError> {
        if std::mem::replace(&mut self.is_recorded, true) {
            return Ok(());
        }
        let answer = RecordedAnswer::new(self.reply_so_far.partial(), self.reason.clone(), error);
        let exchange =
            RecordedExchange { request: self.request.clone(), answer: self.inner.hide_answer(answer) };
        self.inner.store(exchange).map_err(|error| {
            ModelError::new(ModelErrorKind::InvalidRequest, error.to_string())
                .with_provider("cassette")
                .with_source(error)
        })
    }
}

impl fmt::Debug for Cassette {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cassette").field("id", &self.0.id).field("path", &self.0.path).finish_non_exhaustive()
    }
}
