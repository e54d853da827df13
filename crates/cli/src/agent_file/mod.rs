//! The file that describes an agent: read with lines, checked whole, and built.

mod build;
mod document;
pub(crate) mod form;
mod schema;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use stepfold::prelude::*;

pub(crate) use self::build::tool_faults;
use self::document::Document;
use self::form::Form;
pub(crate) use self::schema::{json_schema, nearest};
use crate::error::Misuse;

/// An agent file that was read: what it says, and where each part of it stands.
pub(crate) struct AgentFile {
    pub(crate) path: PathBuf,
    document: Document,
    form: Form,
}

/// Something that is wrong in an agent file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LineFault {
    /// The line, from 1.
    pub(crate) line: usize,
    /// The column in characters, from 1.
    pub(crate) column: usize,
    pub(crate) message: String,
}

/// All that is wrong in an agent file.
#[derive(Clone, Debug)]
pub(crate) struct FileFaults {
    pub(crate) path: PathBuf,
    pub(crate) faults: Vec<LineFault>,
}

impl AgentFile {
    /// Reads a file: its TOML, its form, its values. What needs the agent to be put together is found by
    /// [`build`](AgentFile::build).
    pub(crate) fn read(path: &Path) -> anyhow::Result<Result<Self, FileFaults>> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Misuse(format!("the agent file {} cannot be read: {error}", path.display())))?;
        let mut document = Document::parse(text);
        let form = document.form();
        Ok(match form {
            Some(form) if document.faults().is_empty() => {
                Ok(AgentFile { path: path.to_owned(), document, form })
            }
            // What can be built in spite of faults is: all of them are to be found at once.
            Some(form) => Err(AgentFile { path: path.to_owned(), document, form }.all_faults()),
            None => Err(FileFaults { path: path.to_owned(), faults: document.into_faults() }),
        })
    }

    /// The agent, asked with this model.
    pub(crate) fn build(mut self, model: &Arc<dyn ChatModel>) -> Result<Agent, FileFaults> {
        match self.build_into(model) {
            Some(agent) if self.document.faults().is_empty() => Ok(agent),
            _ => Err(self.faults()),
        }
    }

    fn build_into(&mut self, model: &(impl ChatModel + Clone + 'static)) -> Option<Agent> {
        let (folder, name) = (self.folder(), self.name());
        build::build(&self.form, &mut self.document, &folder, &name, model.clone())
    }

    /// The name of the agent: what the file says, else what the file is called.
    pub(crate) fn name(&self) -> String {
        let stem = || self.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        self.form.name.clone().or_else(stem).unwrap_or_else(|| "agent".to_owned())
    }

    /// The model that the file names.
    pub(crate) fn model(&self) -> Option<&str> {
        self.form.model.as_deref()
    }

    /// The folder of the file, which relative paths in it begin at.
    pub(crate) fn folder(&self) -> PathBuf {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new(".")).to_owned()
    }

    /// What the agent is, if nothing at all is wrong with the file.
    pub(crate) fn check(mut self) -> Result<Agent, FileFaults> {
        let agent = self.build_into(&Unnamed);
        match (agent, self.fault_of_model()) {
            (Some(agent), None) if self.document.faults().is_empty() => Ok(agent),
            _ => Err(self.all_faults()),
        }
    }

    fn all_faults(mut self) -> FileFaults {
        let _ = self.build_into(&Unnamed);
        if let Some(message) = self.fault_of_model() {
            self.document.fault(&["model"], message);
        }
        self.faults()
    }

    fn fault_of_model(&self) -> Option<String> {
        crate::model::fault(self.model()?, &self.folder())
    }

    fn faults(self) -> FileFaults {
        FileFaults { path: self.path, faults: self.document.into_faults() }
    }
}

/// Stands for the model where no run is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unnamed;

impl ChatModel for Unnamed {
    fn id(&self) -> &'static str {
        "none"
    }

    fn respond(&self, _: stepfold::state_core::chat::ChatRequest) -> stepfold::state_core::chat::ReplyStream {
        use stepfold::state_core::chat::{ModelError, ModelErrorKind, ReplyStream};
        ReplyStream::failed(ModelError::new(ModelErrorKind::Unsupported, "this command asks no model"))
    }
}

impl fmt::Display for FileFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        for (place, fault) in self.faults.iter().enumerate() {
            let separator = if place == 0 { "" } else { "\n" };
            write!(f, "{separator}{path}:{}:{}: {}", fault.line, fault.column, fault.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for FileFaults {}
