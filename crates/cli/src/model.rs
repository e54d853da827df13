//! The model of a run: by name, from a script, or from a cassette.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use stepfold::prelude::*;
use stepfold::providers::layer::{ChatModelExt as _, Retry};
use stepfold::providers::{Cassette, MODEL_VARIABLE, NameError, Scripted, ScriptedReply};
use stepfold::runner::SessionRecall;
use stepfold::state_core::chat::{
    ChatRequest, ModelError, ModelErrorKind, ReplyStream, Role, ToolResult, Usage,
};
use stepfold::trim::{ApproximateTokens, TokenCounter as _};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::agent_file::AgentTexts;
use crate::args::{CassetteMode, RunArgs};
use crate::error::UsageError;
use crate::show::FailedRequest;

/// The prefix of a scripted model's name.
const SCRIPT: &str = "script:";

/// The file of a scripted model, by the name of the model.
pub(crate) fn script_path(name: &str) -> Option<&Path> {
    name.strip_prefix(SCRIPT).map(Path::new)
}

/// Receives failed requests before their next attempts.
pub(crate) type FailedRequests = UnboundedReceiver<FailedRequest>;

/// The source of the models for a file's agents, and of the files that they name.
pub(crate) struct ModelSource<'a> {
    models: ModelOrigin<'a>,
    pub(crate) files: AgentTexts,
    /// Recall over the sessions of the store that the agents run in: they are built before it is open.
    pub(crate) recall: SessionRecall,
}

enum ModelOrigin<'a> {
    /// No model is called: for commands that only read.
    None,
    /// No model is called, and the names of models in files are checked.
    Checked,
    /// The models that the command line, the files and the environment name.
    CommandLine(CommandLineModels<'a>),
}

/// Models by their names.
pub(crate) type NamedModels = Box<dyn Fn(&str) -> Option<Arc<dyn ChatModel>> + Send + Sync>;

/// The model options of the command line.
pub(crate) struct CommandLineModels<'a> {
    options: &'a RunArgs,
    failures: UnboundedSender<FailedRequest>,
    /// Whether scripts report tokens.
    counts_tokens: bool,
    /// The one cassette of all agents, and the name of its model.
    cassette: RefCell<Option<(Option<String>, Cassette)>>,
}

impl<'a> ModelSource<'a> {
    /// No models, and so no failed requests.
    pub(crate) fn none() -> (Self, FailedRequests) {
        (ModelSource::placeholder(), unbounded_channel().1)
    }

    fn of(models: ModelOrigin<'a>) -> Self {
        ModelSource { models, files: AgentTexts::default(), recall: SessionRecall::unconnected() }
    }

    /// No models.
    pub(crate) fn placeholder() -> Self {
        ModelSource::of(ModelOrigin::None)
    }

    /// No models, and the names of models in files are checked.
    pub(crate) fn checked() -> Self {
        ModelSource::of(ModelOrigin::Checked)
    }

    /// The same models, with stored texts in place of files.
    pub(crate) fn with_files(mut self, files: AgentTexts) -> Self {
        self.files = files;
        self
    }

    /// The models of the command line, and the receiver of their failed requests.
    pub(crate) fn command_line(options: &'a RunArgs) -> (Self, FailedRequests) {
        let (failures, heard) = unbounded_channel();
        let models =
            CommandLineModels { options, failures, counts_tokens: false, cassette: RefCell::new(None) };
        let models = ModelOrigin::CommandLine(models);
        (ModelSource::of(models), heard)
    }

    /// Makes scripts report an estimate of their tokens, as a provider reports its count.
    pub(crate) fn counting_tokens(mut self) -> Self {
        if let ModelOrigin::CommandLine(asking) = &mut self.models {
            asking.counts_tokens = true;
        }
        self
    }

    /// The model of an agent: that of `--model`, otherwise the named one, with paths relative to the folder, otherwise
    /// that of the environment.
    pub(crate) fn pick(&self, named: Option<(&str, &Path)>) -> anyhow::Result<Arc<dyn ChatModel>> {
        match &self.models {
            ModelOrigin::None => Ok(Arc::new(PlaceholderModel)),
            // It is never called, so it needs no key.
            ModelOrigin::Checked => Ok(named
                .and_then(|(name, folder)| match name.strip_prefix(SCRIPT) {
                    Some(path) => script(&self.files, &folder.join(path), false)
                        .ok()
                        .map(|model| Arc::new(model) as Arc<dyn ChatModel>),
                    None => without_key(name).ok(),
                })
                .unwrap_or_else(|| Arc::new(PlaceholderModel))),
            ModelOrigin::CommandLine(asking) => asking.pick(&self.files, named),
        }
    }

    /// The models that a state may name, with paths relative to this folder. Options of the command line override all of
    /// them.
    pub(crate) fn by_name(&self, folder: &Path) -> anyhow::Result<NamedModels> {
        let only: Option<Arc<dyn ChatModel>> = match &self.models {
            ModelOrigin::CommandLine(asking)
                if asking.options.model.is_none() && asking.options.cassette.is_none() =>
            {
                None
            }
            _ => Some(self.pick(None)?),
        };
        let (folder, failures, files) = (folder.to_owned(), self.failures(), self.files.clone());
        Ok(Box::new(move |name| {
            only.clone().or_else(|| by_name(&files, Some((name, &folder)), &failures, false).ok())
        }))
    }

    /// The sender for failed requests; without a receiver if no model is called.
    fn failures(&self) -> UnboundedSender<FailedRequest> {
        match &self.models {
            ModelOrigin::CommandLine(asking) => asking.failures.clone(),
            ModelOrigin::None | ModelOrigin::Checked => unbounded_channel().0,
        }
    }

    /// The fault of a model's name in a file, if names are checked.
    pub(crate) fn fault(&self, name: &str, folder: &Path) -> Option<String> {
        match &self.models {
            ModelOrigin::Checked => fault(&self.files, name, folder),
            ModelOrigin::None | ModelOrigin::CommandLine(_) => None,
        }
    }
}

impl CommandLineModels<'_> {
    fn pick(&self, files: &AgentTexts, named: Option<(&str, &Path)>) -> anyhow::Result<Arc<dyn ChatModel>> {
        let name = self.options.model.as_deref().map(|name| (name, Path::new("."))).or(named);
        match &self.options.cassette {
            None => by_name(files, name, &self.failures, self.counts_tokens),
            Some(path) => Ok(Arc::new(self.cassette(files, path, name)?)),
        }
    }

    fn cassette(
        &self,
        files: &AgentTexts,
        path: &Path,
        name: Option<(&str, &Path)>,
    ) -> anyhow::Result<Cassette> {
        let mode = self.options.mode;
        let mut known = self.cassette.borrow_mut();
        let wanted = name.map(|(name, _)| name.to_owned());
        if let Some((model, cassette)) = &*known {
            // NOTE: A replay calls no model, so agents with different models can share the cassette.
            if *model == wanted || mode == CassetteMode::Replay {
                return Ok(cassette.clone());
            }
            let words = "a cassette records one model, and the agents of this graph use several; set one for \
                         all of them with --model";
            return Err(UsageError(words.to_owned()).into());
        }
        let cassette = match mode {
            CassetteMode::Replay => Cassette::replay(path),
            CassetteMode::Record => Cassette::record(path, by_name(files, name, &self.failures, false)?),
            // NOTE: The model is built on demand: a recording that has all requests needs no API key.
            CassetteMode::Auto => Cassette::auto(path, || {
                by_name(files, name, &self.failures, false).map_err(|error| no_model(&error))
            }),
        };
        let cassette = cassette.map_err(|error| UsageError(crate::error::chain(&error)))?;
        *known = Some((wanted, cassette.clone()));
        Ok(cassette)
    }
}

fn by_name(
    files: &AgentTexts,
    name: Option<(&str, &Path)>,
    failures: &UnboundedSender<FailedRequest>,
    counts_tokens: bool,
) -> anyhow::Result<Arc<dyn ChatModel>> {
    let model = match name {
        None => stepfold::providers::model_from_env(),
        Some((name, folder)) => match name.strip_prefix(SCRIPT) {
            // NOTE: Scripts are not retried: their failures do not pass.
            Some(path) => return Ok(Arc::new(script(files, &folder.join(path), counts_tokens)?)),
            None => stepfold::providers::model(name),
        },
    };
    let model = model.map_err(|error| UsageError(advice(&error)))?;
    let failures = failures.clone();
    let retry = Retry::default().on_retry(move |failed| {
        // Without a listener there is nothing to report.
        let _ = failures.send(failed.into());
    });
    Ok(model.layer(retry))
}

fn advice(error: &NameError) -> String {
    match error {
        // NOTE: Many users meet this error first: the list of all keys would hide the remedy.
        NameError::None { found, .. } => format!(
            "missing model: use --model PROVIDER:MODEL, set {MODEL_VARIABLE}, give the agent file a `model`, or use \
             --cassette FILE --mode replay; keys that are set: {found}"
        ),
        _ => crate::error::chain(error),
    }
}

fn no_model(error: &anyhow::Error) -> ModelError {
    ModelError::new(ModelErrorKind::InvalidRequest, crate::error::chain(error.as_ref()))
}

/// A model that replays the replies of a script. The next reply follows from the conversation alone: a script that has
/// given as many replies as the conversation contains. So a run can be resumed in any process, and a session rewound.
fn script(files: &AgentTexts, path: &Path, counts_tokens: bool) -> anyhow::Result<Scripted> {
    let (name, transcript) = read_script(files, path)?;
    let model = Scripted::from_fn(move |request: &ChatRequest| {
        let (replies, given) = due_reply(&transcript, request);
        replies.get(given).map_or_else(
            || {
                let words = format!("script {name} has ended after {} replies", replies.len());
                ScriptedReply::from(ModelError::new(ModelErrorKind::InvalidRequest, words))
            },
            |reply| {
                let scripted = ScriptedReply::from(reply.clone());
                if counts_tokens { scripted.with_usage(estimate(request, reply)) } else { scripted }
            },
        )
    });
    // A window of the file may clear or leave out earlier messages within a turn.
    Ok(model.with_changing_prefix())
}

/// Estimates the tokens that a provider would count.
fn estimate(request: &ChatRequest, reply: &Message) -> Usage {
    let shown = ApproximateTokens::of_messages(&request.messages);
    let tokens = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    Usage::new(tokens(shown), tokens(ApproximateTokens.count(reply)))
}

/// The candidate replies, and the number of them already given. If the script contains the user's last message exactly
/// once, or `*`, the candidates follow it, so that one script answers the agents of a graph, each in its own
/// conversation. Otherwise all replies are candidates.
fn due_reply(script: &Transcript, request: &ChatRequest) -> (Vec<Message>, usize) {
    let messages = &request.messages;
    let turn = |words: &str| {
        let is_it = |message: &Message| message.role() == Role::User && message.text().trim() == words;
        let mut turns = script.iter().enumerate().filter(|(_, message)| is_it(message));
        let (Some((turn, _)), None) = (turns.next(), turns.next()) else { return None };
        Some(script.iter_from(turn + 1).take_while(|message| message.role() != Role::User))
    };
    let question = messages.iter().enumerate().filter(|(_, message)| message.role() == Role::User).last();
    if let Some((place, message)) = question
        && let Some(turn) = turn(message.text().trim()).or_else(|| turn(ANY))
    {
        return replies(turn, messages.iter_from(place));
    }
    replies(script.iter(), messages.iter())
}

/// Matches each message of a user that the script does not contain.
const ANY: &str = "*";

/// The replies of a script to a conversation, and the number of them already given. A reply after a failed result is
/// omitted where the conversation has no failed result.
fn replies<'a>(
    script: impl Iterator<Item = &'a Arc<Message>>,
    messages: impl Iterator<Item = &'a Arc<Message>>,
) -> (Vec<Message>, usize) {
    let (given, mut replies) = (reply_slots(messages), Vec::new());
    for (reply, is_for_failure) in reply_slots(script) {
        let has_failed = given.get(replies.len()).is_some_and(|(_, has_failed)| *has_failed);
        if !is_for_failure || has_failed {
            replies.extend(reply.cloned());
        }
    }
    (replies, given.len() - 1)
}

/// The replies of a conversation, each with whether it follows a failed result; and a slot for the next one.
fn reply_slots<'a>(messages: impl Iterator<Item = &'a Arc<Message>>) -> Vec<(Option<&'a Message>, bool)> {
    let (mut reply_slots, mut has_failed) = (Vec::new(), false);
    for message in messages {
        if message.role() == Role::Assistant {
            reply_slots.push((Some(&**message), has_failed));
        }
        has_failed = message.tool_result().is_some_and(ToolResult::is_error);
    }
    reply_slots.push((None, has_failed));
    reply_slots
}

fn read_script(files: &AgentTexts, path: &Path) -> anyhow::Result<(String, Transcript)> {
    let name = path.display().to_string();
    let misuse =
        |what: &str, error: &dyn std::error::Error| UsageError(format!("the script {name} {what}: {error}"));
    let text = files.read(path).map_err(|error| misuse("cannot be read", &error))?;
    let transcript = text.parse().map_err(|error| misuse("is not a transcript", &error))?;
    Ok((name, transcript))
}

/// The fault of a model's name, checked without API keys.
fn fault(files: &AgentTexts, name: &str, folder: &Path) -> Option<String> {
    if let Some(path) = name.strip_prefix(SCRIPT) {
        return read_script(files, &folder.join(path)).err().map(|error| crate::error::chain(error.as_ref()));
    }
    without_key(name).err().map(|error| crate::error::chain(&error))
}

/// The model of this name with any key and address.
fn without_key(name: &str) -> Result<Arc<dyn ChatModel>, NameError> {
    // NOTE: One value serves as the key and as the address: the check sends nothing.
    stepfold::providers::model_with(name, |_| Some("http://127.0.0.1".to_owned()))
}

/// A placeholder for the model where nothing runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceholderModel;

impl ChatModel for PlaceholderModel {
    fn id(&self) -> &'static str {
        "none"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        ReplyStream::failed(ModelError::new(ModelErrorKind::Unsupported, "this command calls no model"))
    }
}
