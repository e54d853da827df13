//! The file: text that a person can read and review.
//!
//! ```text
//! # stepfold cassette 1, openai/gpt-4.1
//! == request {"params":{"temperature":0.0}}
//! user:      which area?
//! == reply {"finish_reason":"stop"}
//! assistant: area 3
//! == request {"after":{"exchange":1,"messages":1}}
//! assistant: area 3
//! user:      why?
//! == error {"error":{"kind":"overloaded","message":"busy"}}
//! ```
//!
//! Messages are in the notation of transcripts, everything else is JSON after `==`. The common beginning with
//! an earlier request is not repeated (`after`).

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stepfold_state_core::chat::{
    ChatRequest, Message, ModelError, ModelParams, ResponseFormat, ToolChoice, ToolSpec, Transcript,
};

use super::exchange::{RecordedAnswer, RecordedEnd, RecordedExchange};

/// The header of every cassette.
const HEADER: &str = "# stepfold cassette 1, ";

/// An error of a cassette.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CassetteError {
    /// The file could not be read.
    #[error("cassette {path} could not be read: {source}; record it first")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        r#source: io::Error,
    },
    /// The file could not be written.
    #[error("cassette {path} could not be written: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        r#source: io::Error,
    },
    /// The file is not a cassette that this version can read.
    #[error("invalid cassette {path} at line {line}: {message}; record it again")]
    Format {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The fault.
        message: String,
    },
    /// The file to record into is another one, which the recording would replace.
    #[error("file {path} is not a cassette: it would be replaced; name another file, or delete it")]
    NotACassette {
        /// The file.
        path: PathBuf,
    },
    /// The model to record could not be built.
    #[error("model to record could not be built: {0}")]
    Model(ModelError),
}

impl From<ModelError> for CassetteError {
    fn from(error: ModelError) -> Self {
        CassetteError::Model(error)
    }
}

/// The model and all exchanges of a cassette.
#[derive(Clone, Debug, Default)]
pub(super) struct CassetteContents {
    pub(super) id: String,
    pub(super) exchanges: Vec<RecordedExchange>,
}

/// A prefix that a request shares with an earlier one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct SharedPrefix {
    exchange: usize,
    messages: usize,
}

pub(super) fn read(path: &Path) -> Result<CassetteContents, CassetteError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| CassetteError::Read { path: path.to_owned(), source })?;
    parse(&text).map_err(|(line, message)| CassetteError::Format { path: path.to_owned(), line, message })
}

/// Refuses a file that is there and is not a cassette: a recording would replace it.
pub(super) fn check_replaceable(path: &Path) -> Result<(), CassetteError> {
    let wrong = |source| CassetteError::Write { path: path.to_owned(), source };
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(wrong)?,
    };
    let mut beginning = Vec::new();
    // NOTE: Only a regular file is opened: the opening of a pipe waits for its writer.
    if found.is_file() {
        let file = std::fs::File::open(path).map_err(wrong)?;
        file.take(HEADER.len() as u64).read_to_end(&mut beginning).map_err(wrong)?;
    }
    match (found.is_file(), HEADER.as_bytes().starts_with(&beginning)) {
        (true, true) => Ok(()),
        _ => Err(CassetteError::NotACassette { path: path.to_owned() }),
    }
}

pub(super) fn write(path: &Path, contents: &CassetteContents) -> Result<(), CassetteError> {
    let wrong = |source| CassetteError::Write { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(wrong)?;
    }
    // Atomic: a reader may read at any time.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    std::fs::write(&temporary, print(contents)).map_err(wrong)?;
    std::fs::rename(&temporary, path).map_err(wrong)
}

/// Adds the last exchange to the file of the others, with one write.
pub(super) fn append(path: &Path, contents: &CassetteContents) -> Result<(), CassetteError> {
    let mut text = String::new();
    print_exchange(&mut text, contents, contents.exchanges.len().saturating_sub(1));
    let file = std::fs::OpenOptions::new().append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| CassetteError::Write { path: path.to_owned(), source })
}

fn print(contents: &CassetteContents) -> String {
    let mut text = format!("{HEADER}{}\n", contents.id);
    for index in 0..contents.exchanges.len() {
        print_exchange(&mut text, contents, index);
    }
    text
}

fn print_exchange(text: &mut String, contents: &CassetteContents, index: usize) {
    let Some(exchange) = contents.exchanges.get(index) else {
        return;
    };
    let after = longest_beginning(&exchange.request.messages, &contents.exchanges[..index]);
    let options = RecordedOptions { after, ..RecordedOptions::of(&exchange.request) };
    let options = serde_json::to_string(&options).unwrap_or_default();
    let new = exchange.request.messages.iter_from(after.map_or(0, |after| after.messages));
    let new: Transcript = new.map(Arc::clone).collect();
    let answer: Transcript = [exchange.answer.message.clone()].into_iter().collect();
    let kind = if exchange.answer.end.error.is_some() { "error" } else { "reply" };
    let end = serde_json::to_string(&exchange.answer.end).unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "== request {options}");
    if !new.is_empty() {
        let _ = writeln!(text, "{}", new.to_string().trim_end());
    }
    let _ = writeln!(text, "== {kind} {end}");
    if !exchange.answer.message.parts().is_empty() || !exchange.answer.message.extras().is_empty() {
        let _ = writeln!(text, "{}", answer.to_string().trim_end());
    }
}

/// The fields of a request except its messages, if they differ from the defaults. The order of the fields is
/// fixed, independent of the features of `serde_json`.
#[derive(Serialize)]
pub(super) struct RecordedOptions<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<SharedPrefix>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "<[ToolSpec]>::is_empty")]
    tools: &'a [ToolSpec],
    #[serde(skip_serializing_if = "is_auto")]
    tool_choice: &'a ToolChoice,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<&'a ResponseFormat>,
    #[serde(skip_serializing_if = "is_default")]
    params: &'a ModelParams,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes what it skips by reference")]
fn is_auto(choice: &&ToolChoice) -> bool {
    **choice == ToolChoice::Auto
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes what it skips by reference")]
fn is_default(params: &&ModelParams) -> bool {
    **params == ModelParams::default()
}

impl<'a> RecordedOptions<'a> {
    pub(super) fn of(request: &'a ChatRequest) -> Self {
        RecordedOptions {
            after: None,
            model: request.model.as_deref(),
            tools: &request.tools,
            tool_choice: &request.tool_choice,
            response_format: request.response_format.as_ref(),
            params: &request.params,
        }
    }
}

fn longest_beginning(messages: &Transcript, earlier: &[RecordedExchange]) -> Option<SharedPrefix> {
    let mut best = None;
    for (index, exchange) in earlier.iter().enumerate() {
        let same = |(ours, theirs): &(&Arc<Message>, &Arc<Message>)| ours == theirs;
        let shared = messages.iter().zip(&exchange.request.messages).take_while(same).count();
        if shared > 0 && best.is_none_or(|best: SharedPrefix| shared >= best.messages) {
            best = Some(SharedPrefix { exchange: index + 1, messages: shared });
        }
    }
    best
}

/// A fault, and its line.
type CassetteFault = (usize, String);

fn parse(text: &str) -> Result<CassetteContents, CassetteFault> {
    let id = text.lines().next().and_then(|line| line.strip_prefix(HEADER));
    let id = id.ok_or_else(|| (1, format!("expected `{}`", HEADER.trim_end_matches(", "))))?;
    let mut contents = CassetteContents { id: id.to_owned(), exchanges: Vec::new() };
    let mut pending: Option<ChatRequest> = None;
    for section in sections(text) {
        match (section.kind, pending.take()) {
            ("request", None) => pending = Some(section.request(&contents.exchanges)?),
            ("reply" | "error", Some(request)) => {
                contents.exchanges.push(RecordedExchange { request, answer: section.answer()? });
            }
            _ => return Err((section.line, format!("unexpected section `{}`", section.kind))),
        }
    }
    match pending {
        None => Ok(contents),
        Some(_) => Err((text.lines().count(), "missing reply to the last request".to_owned())),
    }
}

/// A section, which begins with a line of `==`.
struct CassetteSection<'a> {
    line: usize,
    kind: &'a str,
    json: &'a str,
    body: String,
}

fn sections(text: &str) -> Vec<CassetteSection<'_>> {
    let mut sections: Vec<CassetteSection<'_>> = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        if let Some(head) = content.strip_prefix("== ") {
            let (kind, json) = head.split_once(' ').unwrap_or((head, "{}"));
            sections.push(CassetteSection { line, kind, json, body: String::new() });
        } else if let Some(section) = sections.last_mut() {
            section.body.push_str(content);
            section.body.push('\n');
        }
    }
    sections
}

impl CassetteSection<'_> {
    fn request(&self, earlier: &[RecordedExchange]) -> Result<ChatRequest, CassetteFault> {
        let mut options: Value = self.read(self.json)?;
        let after = options.as_object_mut().and_then(|options| options.remove("after"));
        options["messages"] = Value::Array(Vec::new());
        let mut request: ChatRequest = self.read(&options.to_string())?;
        let new = self.messages()?;
        if let Some(after) = after {
            let after: SharedPrefix = self.read(&after.to_string())?;
            let base = after.exchange.checked_sub(1).and_then(|index| earlier.get(index));
            let base =
                base.ok_or_else(|| (self.line, format!("unknown earlier exchange {}", after.exchange)))?;
            request.messages.extend(base.request.messages.iter().take(after.messages).map(Arc::clone));
        }
        request.messages.extend(new.iter().map(Arc::clone));
        Ok(request)
    }

    fn answer(&self) -> Result<RecordedAnswer, CassetteFault> {
        let end: RecordedEnd = self.read(self.json)?;
        let mut answer = RecordedAnswer::with_end(end);
        if let Some(message) = self.messages()?.first() {
            answer.message = Message::clone(message);
        }
        Ok(answer)
    }

    fn messages(&self) -> Result<Transcript, CassetteFault> {
        self.body.parse().map_err(|error: stepfold_state_core::chat::NotationError| {
            (self.line + error.line, format!("column {}: {}", error.column, error.message))
        })
    }

    fn read<T: for<'de> Deserialize<'de>>(&self, json: &str) -> Result<T, CassetteFault> {
        serde_json::from_str(json).map_err(|error| (self.line, error.to_string()))
    }
}

stepfold_state_core::debug_as_text!(CassetteError);
