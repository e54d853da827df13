//! The key ring of a store, from its file: keys in a file, or a program that has them.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use stepfold::session_scopes::{
    DataKey, KeyFile, KeyOwner, KeyRing, KeyRingError, KeyRingFuture, RandomBytes, WrappingKey,
};

use crate::environment;
use crate::error::UsageError;
use crate::form::FaultCollector;
use crate::form::agent::CommandForm;
use crate::tool::command::ExternalProgram;

/// The bytes of a program's answer.
const ANSWER_BYTES: usize = 4 * 1024;
/// The keys that are kept of a program, and for how long.
const KEPT_KEYS: usize = 1_024;
const KEPT_FOR: Duration = Duration::from_secs(60);

/// A file of `--keys`: one of both.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysForm {
    file: Option<KeyFileForm>,
    program: Option<ProgramForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFileForm {
    path: PathBuf,
    /// The first wraps new keys; the others, of a rotation, open what they have wrapped.
    wrapping_keys: Vec<SecretForm>,
}

/// The place of a wrapping key.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum SecretForm {
    File(PathBuf),
    Environment(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgramForm {
    /// The name of the ring, which stores remember.
    name: String,
    argv: Vec<String>,
    #[serde(default)]
    environment: Vec<String>,
    #[serde(default = "timeout_seconds")]
    timeout_seconds: u64,
}

const fn timeout_seconds() -> u64 {
    10
}

/// The operating system's random bytes.
#[expect(clippy::disallowed_methods, reason = "a program is where random keys come in")]
fn random() -> impl RandomBytes {
    |bytes: &mut [u8]| getrandom::fill(bytes).map_err(io::Error::other)
}

fn read(path: &Path) -> Result<KeysForm, UsageError> {
    let text = std::fs::read_to_string(path);
    let text = text
        .map_err(|error| UsageError(format!("file of keys {} could not be read: {error}", path.display())))?;
    toml::from_str(&text).map_err(|error| UsageError(format!("{}: {error}", path.display())))
}

/// The path of the ring of a file of keys, if it is one in a file that is missing.
pub(crate) fn missing_ring(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    let Some(file) = read(path)?.file else { return Ok(None) };
    let ring = folder_of(path).join(file.path);
    // NOTE: what cannot be looked at is an error when the ring is opened.
    Ok(matches!(ring.try_exists(), Ok(false)).then_some(ring))
}

/// The folder to which the paths in a file of keys are relative.
fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// The ring of a file of keys.
pub(crate) fn key_ring(path: &Path) -> anyhow::Result<Arc<dyn KeyRing>> {
    let form = read(path)?;
    let folder = folder_of(path);
    match form {
        KeysForm { file: Some(file), program: None } => Ok(Arc::new(key_file(&file, folder)?)),
        KeysForm { file: None, program: Some(program) } => {
            Ok(Arc::new(ProgramRing::new(program, path, folder)?))
        }
        _ => Err(UsageError(format!("{}: expected one of [file] and [program]", path.display())).into()),
    }
}

fn key_file(form: &KeyFileForm, folder: &Path) -> anyhow::Result<KeyFile> {
    let wrapping = form.wrapping_keys.iter().map(|secret| match secret {
        SecretForm::File(path) => WrappingKey::read(folder.join(path)),
        SecretForm::Environment(name) => {
            let text = environment::variable(name).and_then(|value| value.into_string().ok());
            let missing =
                || KeyRingError::new(format!("missing environment variable {name} with a wrapping key"));
            WrappingKey::new(&text.ok_or_else(missing)?)
        }
    });
    let wrapping = wrapping.collect::<Result<_, _>>().map_err(|error| UsageError(error.to_string()))?;
    Ok(KeyFile::open(folder.join(&form.path), wrapping, random())?)
}

/// Wraps the keys of a ring by the first wrapping key; returns their number.
pub(crate) async fn rotate(path: &Path) -> anyhow::Result<usize> {
    let Some(file) = read(path)?.file else {
        let words = format!("{}: only the keys of [file] are rotated here", path.display());
        return Err(UsageError(words).into());
    };
    if let Some(ring) = missing_ring(path)? {
        let words = format!(
            "key ring {} not found; restore it, or correct its path in {}",
            ring.display(),
            path.display()
        );
        return Err(UsageError(words).into());
    }
    Ok(key_file(&file, folder_of(path))?.rewrap().await?)
}

/// A ring that a program has: a line of JSON on its standard input, and one on its standard output.
struct ProgramRing {
    name: String,
    program: ExternalProgram,
    timeout: Duration,
    kept: Mutex<HashMap<KeyOwner, (Instant, DataKey)>>,
}

impl ProgramRing {
    fn new(form: ProgramForm, path: &Path, folder: &Path) -> Result<Self, UsageError> {
        let ProgramForm { name, argv, environment, timeout_seconds } = form;
        let command = CommandForm { argv, environment, output_bytes: ANSWER_BYTES, ..CommandForm::default() };
        let mut faults = FaultCollector::in_text(String::new());
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let program = ExternalProgram::new(&command, folder, &mut faults).filter(|_| faults.count() == 0);
        let program = program.ok_or_else(|| {
            let faults: Vec<String> = faults.into_lines().into_iter().map(|line| line.message).collect();
            UsageError(format!("{}: {}", path.display(), faults.join("; ")))
        })?;
        let (timeout, kept) = (Duration::from_secs(timeout_seconds), Mutex::default());
        Ok(ProgramRing { name, program, timeout, kept })
    }

    async fn ask(
        &self,
        operation: &str,
        owner: &KeyOwner,
        key: Option<&DataKey>,
    ) -> Result<Value, KeyRingError> {
        let mut request =
            json!({"operation": operation, "app": owner.app.as_str(), "user": owner.user.as_str()});
        if let Some(key) = key {
            request["key"] = hex(&key.to_bytes()).into();
        }
        let answer = tokio::time::timeout(self.timeout, self.program.run(&format!("{request}\n"), "")).await;
        let answer = answer.map_err(|_| {
            KeyRingError::transient(format!(
                "the program of the ring has not answered for {:?}",
                self.timeout
            ))
        })?;
        let text = answer.map_err(|error| KeyRingError::transient(error.to_string()))?;
        // NOTE: without the text, which may have a key.
        serde_json::from_str(&text)
            .map_err(|_| KeyRingError::new("invalid answer of the program: expected JSON"))
    }

    fn keep(&self, owner: &KeyOwner, key: Option<&DataKey>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(owner);
        let Some(key) = key else { return };
        if kept.len() >= KEPT_KEYS {
            kept.retain(|_, (since, _)| since.elapsed() < KEPT_FOR);
        }
        if kept.len() >= KEPT_KEYS {
            kept.clear();
        }
        kept.insert(owner.clone(), (now(), key.clone()));
    }

    fn kept(&self, owner: &KeyOwner) -> Option<DataKey> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(owner).filter(|(since, _)| since.elapsed() < KEPT_FOR).map(|(_, key)| key.clone())
    }
}

#[expect(clippy::disallowed_methods, reason = "the age of a key in memory is no part of a run")]
fn now() -> Instant {
    Instant::now()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The key of an answer; `None` if it is null.
fn key_of(answer: &Value) -> Result<Option<DataKey>, KeyRingError> {
    let invalid =
        || KeyRingError::new("invalid answer of the program: expected `key` with 80 hexadecimal digits");
    let text = match &answer["key"] {
        Value::Null => return Ok(None),
        Value::String(text) if text.is_ascii() && text.len() == 2 * DataKey::LENGTH => text,
        _ => return Err(invalid()),
    };
    let mut bytes = [0; DataKey::LENGTH];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).map_err(|_| invalid())?;
    }
    Ok(Some(DataKey::from_bytes(bytes)))
}

impl KeyRing for ProgramRing {
    fn name(&self) -> &str {
        &self.name
    }

    fn get<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, Option<DataKey>> {
        Box::pin(async move {
            if let Some(key) = self.kept(owner) {
                return Ok(Some(key));
            }
            let key = key_of(&self.ask("get", owner, None).await?)?;
            self.keep(owner, key.as_ref());
            Ok(key)
        })
    }

    fn make<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, DataKey> {
        Box::pin(async move {
            let new = DataKey::draw(&random())?;
            let key = key_of(&self.ask("make", owner, Some(&new)).await?)?;
            let missing = || KeyRingError::new("invalid answer of the program: no key is made");
            let key = key.ok_or_else(missing)?;
            self.keep(owner, Some(&key));
            Ok(key)
        })
    }

    fn destroy<'a>(&'a self, owner: &'a KeyOwner) -> KeyRingFuture<'a, bool> {
        Box::pin(async move {
            self.keep(owner, None);
            let answer = self.ask("destroy", owner, None).await?;
            let invalid = || KeyRingError::new("invalid answer of the program: expected `destroyed`");
            answer["destroyed"].as_bool().ok_or_else(invalid)
        })
    }
}
