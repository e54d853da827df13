//! The texts of an agent's files: read from disk, or as they were stored.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A path without steps that lead nowhere, as in `./a.toml`.
pub(crate) fn normal(path: &Path) -> PathBuf {
    path.components().filter(|step| *step != Component::CurDir).collect()
}

/// Reads an agent file and the files that it names, and remembers them. Texts that are given take the place of files; then no
/// other file is read.
#[derive(Clone, Default)]
pub(crate) struct AgentTexts {
    given: Option<Arc<BTreeMap<PathBuf, String>>>,
    read: Arc<Mutex<BTreeMap<PathBuf, String>>>,
}

impl AgentTexts {
    /// These texts, by path.
    pub(crate) fn given(texts: BTreeMap<PathBuf, String>) -> Self {
        let texts = texts.into_iter().map(|(path, text)| (normal(&path), text)).collect();
        AgentTexts { given: Some(Arc::new(texts)), ..AgentTexts::default() }
    }

    /// Forgets what was read, for the next agent.
    pub(crate) fn forget(&self) {
        self.remembered().clear();
    }

    pub(crate) fn read(&self, path: &Path) -> io::Result<String> {
        let text = match &self.given {
            None => std::fs::read_to_string(path)?,
            Some(texts) => texts
                .get(&normal(path))
                .cloned()
                .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it is not stored with the agent"))?,
        };
        self.remembered().insert(path.to_owned(), text.clone());
        Ok(text)
    }

    /// The path by which a file is known, whichever way it was named.
    pub(crate) fn full(&self, path: &Path) -> io::Result<PathBuf> {
        match &self.given {
            None => path.canonicalize(),
            Some(_) => Ok(normal(path)),
        }
    }

    /// All texts that were read, by path.
    pub(crate) fn all(&self) -> BTreeMap<PathBuf, String> {
        self.remembered().clone()
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, String>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
