//! Which model is asked: by name, from a script, from a cassette.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use stepfold::prelude::*;
use stepfold::providers::layer::{ChatModelExt as _, RetryPolicy};
use stepfold::providers::{Cassette, NameError, Scripted, ScriptedReply};
use stepfold::state_core::chat::{ChatRequest, ModelError, ModelErrorKind, Role};

use crate::agent_file::AgentFile;
use crate::args::{Asked, Mode};
use crate::error::Misuse;

/// What a scripted model's name begins with.
const SCRIPT: &str = "script:";

/// The model to ask: that of `--model`, else that of the file, else that of the environment.
pub(crate) fn pick(asked: &Asked, file: &AgentFile) -> anyhow::Result<Arc<dyn ChatModel>> {
    let name = match (&asked.model, file.model()) {
        (Some(name), _) => Some((name.as_str(), PathBuf::from("."))),
        (None, Some(name)) => Some((name, file.folder())),
        (None, None) => None,
    };
    let named = || by_name(name.as_ref().map(|(name, folder)| (*name, folder.as_path())));
    let Some(cassette) = &asked.cassette else { return named() };
    let cassette = match asked.mode {
        Mode::Replay => Cassette::replay(cassette)?,
        Mode::Record => Cassette::record(cassette, named()?)?,
        Mode::Auto => Cassette::auto(cassette, || named().map_err(|error| no_model(&error)))?,
    };
    Ok(Arc::new(cassette))
}

fn by_name(name: Option<(&str, &Path)>) -> anyhow::Result<Arc<dyn ChatModel>> {
    let model = match name {
        None => stepfold::providers::model_from_env(),
        Some((name, folder)) => match name.strip_prefix(SCRIPT) {
            Some(path) => return Ok(Arc::new(script(&folder.join(path))?)),
            None => stepfold::providers::model(name),
        },
    };
    let model = model.map_err(|error| Misuse(advice(&error)))?;
    Ok(Arc::new(model.with_retry(RetryPolicy::default())))
}

fn advice(error: &NameError) -> String {
    let words = crate::error::chain(error);
    match error {
        NameError::None { .. } => {
            format!(
                "{words}; or give the agent file a `model`, or use --model, or --cassette FILE --mode replay"
            )
        }
        _ => words,
    }
}

fn no_model(error: &anyhow::Error) -> ModelError {
    ModelError::new(ModelErrorKind::InvalidRequest, crate::error::chain(error.as_ref()))
}

/// A model that says what a file of notation says. Which reply is due is told by the conversation: as many
/// replies as it has were given, in whatever process. So a run can be resumed, and a session rewound.
fn script(path: &Path) -> anyhow::Result<Scripted> {
    let (name, transcript) = read_script(path)?;
    let replies: Vec<Message> = transcript
        .iter()
        .filter(|said| said.role() == Role::Assistant)
        .map(|said| (**said).clone())
        .collect();
    Ok(Scripted::from_fn(move |request: &ChatRequest| {
        let given = request.messages.iter().filter(|said| said.role() == Role::Assistant).count();
        replies.get(given).cloned().map_or_else(
            || {
                let words = format!("the script {name} has {} replies, and all are given", replies.len());
                ScriptedReply::from(ModelError::new(ModelErrorKind::InvalidRequest, words))
            },
            ScriptedReply::from,
        )
    }))
}

fn read_script(path: &Path) -> anyhow::Result<(String, Transcript)> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("the script {name} cannot be read"))?;
    let transcript = text.parse().with_context(|| format!("the script {name} is no transcript"))?;
    Ok((name, transcript))
}

/// What is wrong with the name of a model, without asking for keys.
pub(crate) fn fault(name: &str, folder: &Path) -> Option<String> {
    if let Some(path) = name.strip_prefix(SCRIPT) {
        return read_script(&folder.join(path)).err().map(|error| crate::error::chain(error.as_ref()));
    }
    let any = |_: &str| Some("http://127.0.0.1".to_owned());
    stepfold::providers::model_with(name, any).err().map(|error| crate::error::chain(&error))
}
