//! Which model is asked: by name, from a script, from a cassette.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use stepfold::prelude::*;
use stepfold::providers::layer::{ChatModelExt as _, FailedAttempt, Retry};
use stepfold::providers::{Cassette, MODEL_VARIABLE, NameError, Scripted, ScriptedReply};
use stepfold::state_core::chat::{ChatRequest, ModelError, ModelErrorKind, Role, ToolResult, Usage};
use stepfold::trim::{ApproximateTokens, TokenCounter as _};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::agent_file::Unnamed;
use crate::args::{Asked, Mode};
use crate::error::Misuse;

/// What a scripted model's name begins with.
const SCRIPT: &str = "script:";

/// A request that failed and is sent again. Why is said once, by the error, if all attempts fail.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FailedRequest {
    attempt: usize,
    attempts: usize,
    error: String,
    #[serde(skip)]
    kind: String,
    pub(crate) model: String,
    pause_ms: u128,
}

impl From<&FailedAttempt<'_>> for FailedRequest {
    fn from(failed: &FailedAttempt<'_>) -> Self {
        FailedRequest {
            attempt: failed.attempt,
            attempts: failed.max_attempts,
            error: failed.error.to_string(),
            kind: failed.error.kind().to_string(),
            model: failed.model.to_owned(),
            pause_ms: failed.pause.as_millis(),
        }
    }
}

impl fmt::Display for FailedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailedRequest { attempt, attempts, kind, model, pause_ms, .. } = self;
        let (next, seconds) = (attempt + 1, pause_ms.div_ceil(1000));
        write!(f, "{model} did not answer ({kind}); attempt {next} of {attempts} in {seconds} s")
    }
}

/// Where failed requests are heard of.
pub(crate) type Failures = UnboundedReceiver<FailedRequest>;

/// Where the models of a file's agents come from.
pub(crate) enum Models<'a> {
    /// None is asked: for commands that only look.
    None,
    /// None is asked, and what files say about theirs is checked.
    Checked,
    /// Those that the command line, the files and the environment name.
    Asked(Asking<'a>),
}

/// Models by their names.
pub(crate) type NamedModels = Box<dyn Fn(&str) -> Option<Arc<dyn ChatModel>> + Send + Sync>;

/// The model options of the command line.
pub(crate) struct Asking<'a> {
    asked: &'a Asked,
    failures: UnboundedSender<FailedRequest>,
    /// Whether scripts report tokens.
    counts: bool,
    /// The one cassette of all agents, and the model that it asks.
    cassette: RefCell<Option<(Option<String>, Cassette)>>,
}

impl<'a> Models<'a> {
    /// None, and so no failures of any.
    pub(crate) fn none() -> (Self, Failures) {
        (Models::None, unbounded_channel().1)
    }

    /// Those that the command line names, and what is heard of their failures.
    pub(crate) fn asked(asked: &'a Asked) -> (Self, Failures) {
        let (failures, heard) = unbounded_channel();
        (Models::Asked(Asking { asked, failures, counts: false, cassette: RefCell::new(None) }), heard)
    }

    /// Scripts report an estimate of the tokens, as a provider reports what it has counted.
    pub(crate) fn counting(mut self) -> Self {
        if let Models::Asked(asking) = &mut self {
            asking.counts = true;
        }
        self
    }

    /// The model of an agent: that of `--model`, else the one that is named here, seen from the folder, else that of
    /// the environment.
    pub(crate) fn pick(&self, named: Option<(&str, &Path)>) -> anyhow::Result<Arc<dyn ChatModel>> {
        match self {
            Models::None => Ok(Arc::new(Unnamed)),
            // It is never asked, so that it needs no key.
            Models::Checked => {
                Ok(named.and_then(|(name, _)| without_key(name).ok()).unwrap_or_else(|| Arc::new(Unnamed)))
            }
            Models::Asked(asking) => asking.pick(named),
        }
    }

    /// The models that a state may name, seen from this folder. What the command line says holds for all of them.
    pub(crate) fn by_name(&self, folder: &Path) -> anyhow::Result<NamedModels> {
        let only: Option<Arc<dyn ChatModel>> = match self {
            Models::Asked(asking) if asking.asked.model.is_none() && asking.asked.cassette.is_none() => None,
            models => Some(models.pick(None)?),
        };
        let (folder, failures) = (folder.to_owned(), self.failures());
        Ok(Box::new(move |name| {
            only.clone().or_else(|| by_name(Some((name, &folder)), &failures, false).ok())
        }))
    }

    /// Where failed requests are told of; nowhere, if no model is asked.
    fn failures(&self) -> UnboundedSender<FailedRequest> {
        match self {
            Models::Asked(asking) => asking.failures.clone(),
            Models::None | Models::Checked => unbounded_channel().0,
        }
    }

    /// What is wrong with the model that a file names, if that is to be known.
    pub(crate) fn fault(&self, name: &str, folder: &Path) -> Option<String> {
        match self {
            Models::Checked => fault(name, folder),
            Models::None | Models::Asked(_) => None,
        }
    }
}

impl Asking<'_> {
    fn pick(&self, named: Option<(&str, &Path)>) -> anyhow::Result<Arc<dyn ChatModel>> {
        let name = self.asked.model.as_deref().map(|name| (name, Path::new("."))).or(named);
        match &self.asked.cassette {
            None => by_name(name, &self.failures, self.counts),
            Some(path) => Ok(Arc::new(self.cassette(path, name)?)),
        }
    }

    fn cassette(&self, path: &Path, name: Option<(&str, &Path)>) -> anyhow::Result<Cassette> {
        let mode = self.asked.mode;
        let mut known = self.cassette.borrow_mut();
        let wanted = name.map(|(name, _)| name.to_owned());
        if let Some((model, cassette)) = &*known {
            if *model == wanted || mode == Mode::Replay {
                return Ok(cassette.clone());
            }
            let words = "a cassette records one model, and the agents of this graph use several; set one for \
                         all of them with --model";
            return Err(Misuse(words.to_owned()).into());
        }
        let cassette = match mode {
            Mode::Replay => Cassette::replay(path),
            Mode::Record => Cassette::record(path, by_name(name, &self.failures, false)?),
            Mode::Auto => Cassette::auto(path, || {
                by_name(name, &self.failures, false).map_err(|error| no_model(&error))
            }),
        };
        let cassette = cassette.map_err(|error| Misuse(crate::error::chain(&error)))?;
        *known = Some((wanted, cassette.clone()));
        Ok(cassette)
    }
}

fn by_name(
    name: Option<(&str, &Path)>,
    failures: &UnboundedSender<FailedRequest>,
    counts: bool,
) -> anyhow::Result<Arc<dyn ChatModel>> {
    let model = match name {
        None => stepfold::providers::model_from_env(),
        Some((name, folder)) => match name.strip_prefix(SCRIPT) {
            Some(path) => return Ok(Arc::new(script(&folder.join(path), counts)?)),
            None => stepfold::providers::model(name),
        },
    };
    let model = model.map_err(|error| Misuse(advice(&error)))?;
    let failures = failures.clone();
    let retry = Retry::default().on_retry(move |failed| {
        // Without a listener there is nothing to report.
        let _ = failures.send(failed.into());
    });
    Ok(model.layer(retry))
}

fn advice(error: &NameError) -> String {
    match error {
        // The first error of many: the list of all keys would hide what to do.
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

/// A model that says what a file of notation says. Which reply is due is told by the conversation: as many
/// replies as it has were given, in whatever process. So a run can be resumed, and a session rewound.
fn script(path: &Path, counts: bool) -> anyhow::Result<Scripted> {
    let (name, transcript) = read_script(path)?;
    Ok(Scripted::from_fn(move |request: &ChatRequest| {
        let (replies, given) = due(&transcript, request);
        replies.get(given).map_or_else(
            || {
                let words = format!("script {name} has ended after {} replies", replies.len());
                ScriptedReply::from(ModelError::new(ModelErrorKind::InvalidRequest, words))
            },
            |reply| {
                let said = ScriptedReply::from(reply.clone());
                if counts { said.with_usage(estimate(request, reply)) } else { said }
            },
        )
    }))
}

/// About the tokens that a provider would count.
fn estimate(request: &ChatRequest, reply: &Message) -> Usage {
    let shown: usize = request.messages.iter().map(|message| ApproximateTokens.count(message)).sum();
    let tokens = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    Usage::new(tokens(shown), tokens(ApproximateTokens.count(reply)))
}

/// The replies of which one is due, and how many of them are given. Those after the user's last message, if the script
/// has it exactly once, or after `*` if it has that: then it can answer the agents of a graph, each in its own
/// conversation. Otherwise all.
fn due(script: &Transcript, request: &ChatRequest) -> (Vec<Message>, usize) {
    let said = &request.messages;
    let turn = |words: &str| {
        let is_it = |said: &Message| said.role() == Role::User && said.text().trim() == words;
        let mut turns = script.iter().enumerate().filter(|(_, said)| is_it(said));
        let (Some((turn, _)), None) = (turns.next(), turns.next()) else { return None };
        Some(script.iter_from(turn + 1).take_while(|said| said.role() != Role::User))
    };
    let asked = said.iter().enumerate().filter(|(_, said)| said.role() == Role::User).last();
    if let Some((asked, message)) = asked
        && let Some(turn) = turn(message.text().trim()).or_else(|| turn(ANY))
    {
        return replies(turn, said.iter_from(asked));
    }
    replies(script.iter(), said.iter())
}

/// Stands for each message of a user that the script does not have.
const ANY: &str = "*";

/// The replies of a script to a conversation, and how many of them are given. A reply after a failed result is omitted where
/// the conversation has no failed result.
fn replies<'a>(
    script: impl Iterator<Item = &'a Arc<Message>>,
    said: impl Iterator<Item = &'a Arc<Message>>,
) -> (Vec<Message>, usize) {
    let (given, mut replies) = (places(said), Vec::new());
    for (reply, is_for_failure) in places(script) {
        let has_failed = given.get(replies.len()).is_some_and(|(_, has_failed)| *has_failed);
        if !is_for_failure || has_failed {
            replies.extend(reply.cloned());
        }
    }
    (replies, given.len() - 1)
}

/// The replies of a conversation, each with whether it follows a failed result; and a place for the next one.
fn places<'a>(said: impl Iterator<Item = &'a Arc<Message>>) -> Vec<(Option<&'a Message>, bool)> {
    let (mut places, mut has_failed) = (Vec::new(), false);
    for message in said {
        if message.role() == Role::Assistant {
            places.push((Some(&**message), has_failed));
        }
        has_failed = message.tool_result().is_some_and(ToolResult::is_error);
    }
    places.push((None, has_failed));
    places
}

fn read_script(path: &Path) -> anyhow::Result<(String, Transcript)> {
    let name = path.display().to_string();
    let misuse =
        |what: &str, error: &dyn std::error::Error| Misuse(format!("the script {name} {what}: {error}"));
    let text = std::fs::read_to_string(path).map_err(|error| misuse("cannot be read", &error))?;
    let transcript = text.parse().map_err(|error| misuse("is not a transcript", &error))?;
    Ok((name, transcript))
}

/// What is wrong with the name of a model, without asking for keys.
fn fault(name: &str, folder: &Path) -> Option<String> {
    if let Some(path) = name.strip_prefix(SCRIPT) {
        return read_script(&folder.join(path)).err().map(|error| crate::error::chain(error.as_ref()));
    }
    without_key(name).err().map(|error| crate::error::chain(&error))
}

/// The model of this name with any key and address.
fn without_key(name: &str) -> Result<Arc<dyn ChatModel>, NameError> {
    stepfold::providers::model_with(name, |_| Some("http://127.0.0.1".to_owned()))
}
