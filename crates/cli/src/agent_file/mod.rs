//! The file that describes an agent or a graph: read with lines, checked whole, and built.

mod build;
mod document;
pub(crate) mod form;
mod graph;
pub(crate) mod graph_form;
mod node;
mod placeholders;
mod schema;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Map;
use stepfold::prelude::*;

pub(crate) use self::build::tool_faults;
use self::document::Document;
use self::form::Form;
use self::graph::Place;
use self::graph_form::GraphForm;
pub(crate) use self::schema::{json_schema, nearest};
use crate::error::Misuse;
use crate::migrate::Migration;
use crate::model::Models;

/// A file of an agent or a graph that was read: what it says, and where each part of it stands.
pub(crate) struct AgentFile {
    pub(crate) path: PathBuf,
    document: Document,
    content: Content,
    /// What is wrong in the files of its agents.
    elsewhere: Vec<LineFault>,
}

/// What a file stands in: the files of the graphs around it, and the model of agents that name none.
#[derive(Clone, Default)]
struct Around {
    files: Vec<PathBuf>,
    model: Option<(String, PathBuf)>,
    /// The keys of the graph that a node shares with its agent.
    keys: Option<Schema>,
}

enum Content {
    Agent(Box<Form>),
    Graph(Box<GraphForm>),
}

/// What a file describes.
pub(crate) enum Built {
    Agent(Agent),
    Graph(BuiltGraph),
}

/// A graph, and which of its nodes are agents that go on with its conversation.
pub(crate) struct BuiltGraph {
    pub(crate) graph: Graph,
    pub(crate) speakers: BTreeSet<String>,
}

impl From<Built> for Agent {
    fn from(built: Built) -> Self {
        match built {
            Built::Agent(agent) => agent,
            Built::Graph(built) => built.graph.into(),
        }
    }
}

/// Something that is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LineFault {
    /// The file, if it is that of a graph's agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<PathBuf>,
    /// The line, from 1.
    pub(crate) line: usize,
    /// The column in characters, from 1.
    pub(crate) column: usize,
    pub(crate) message: String,
}

/// All that is wrong in a file.
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
        let read = AgentFile::parse(path, text);
        Ok(match read {
            Ok(file) if file.document.faults().is_empty() => Ok(file),
            // What can be built in spite of faults is: all of them are to be found at once.
            Ok(file) => Err(file.check().err().unwrap_or_else(|| unreachable!("it has faults"))),
            Err(faults) => Err(faults),
        })
    }

    fn parse(path: &Path, text: String) -> Result<Self, FileFaults> {
        let mut document = Document::parse(text);
        if document.is_empty() {
            let words = "the file is empty; an agent has `instructions`, `tools` or a `model`, and a graph has `nodes`";
            document.fault(&[""; 0], words);
        }
        let content = match document.has("nodes") {
            false => document.form(&json_schema::<Form>()).map(|form| Content::Agent(Box::new(form))),
            true => document.form(&json_schema::<GraphForm>()).map(|form| Content::Graph(Box::new(form))),
        };
        let path = path.to_owned();
        match content {
            Some(content) => Ok(AgentFile { path, document, content, elsewhere: Vec::new() }),
            None => Err(FileFaults { path, faults: document.into_faults() }),
        }
    }

    /// What the file describes, with these models.
    ///
    /// # Errors
    /// When a model cannot be had.
    pub(crate) fn build(mut self, models: &Models<'_>) -> anyhow::Result<Result<Built, FileFaults>> {
        let built = self.build_within(models, &Around::default())?;
        Ok(built.filter(|_| self.is_sound()).ok_or_else(|| self.faults()))
    }

    /// A file of a graph's agent, read and built.
    fn nested(
        path: &Path,
        text: String,
        models: &Models<'_>,
        around: &Around,
    ) -> anyhow::Result<Result<Built, FileFaults>> {
        let mut file = match AgentFile::parse(path, text) {
            Ok(file) => file,
            Err(faults) => return Ok(Err(faults)),
        };
        let built = file.build_within(models, around)?;
        Ok(built.filter(|_| file.is_sound()).ok_or_else(|| file.faults()))
    }

    /// What the file describes, as far as it can be built.
    fn build_within(&mut self, models: &Models<'_>, around: &Around) -> anyhow::Result<Option<Built>> {
        let (folder, name) = (self.folder(), self.name());
        let document = &mut self.document;
        match &self.content {
            Content::Agent(form) => {
                let model = model(form.model.as_deref(), document, models, &folder, around)?;
                let schema = build::state_schema(&form.state, form.open_state, document, Map::new());
                let agent =
                    build::build(form, document, &folder, &name, model, (schema, around.keys.as_ref()));
                Ok(agent.map(Built::Agent))
            }
            Content::Graph(form) => {
                let place = Place { folder: &folder, name: &name, path: &self.path, models };
                let built = graph::build(form, document, &place, around)?;
                self.elsewhere.extend(built.elsewhere);
                Ok(built.graph.map(Built::Graph))
            }
        }
    }

    /// The name of the agent: what the file says, else what the file is called.
    pub(crate) fn name(&self) -> String {
        let name = match &self.content {
            Content::Agent(form) => &form.name,
            Content::Graph(form) => &form.name,
        };
        let stem = || self.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        name.clone().or_else(stem).unwrap_or_else(|| "agent".to_owned())
    }

    /// What becomes of stored values whose types have changed.
    pub(crate) fn migrations(&self) -> Vec<Migration> {
        let state = match &self.content {
            Content::Agent(form) => &form.state,
            Content::Graph(form) => &form.state,
        };
        let migrated = state.iter().filter(|(_, key)| !key.migrate.is_empty());
        migrated.map(|(name, key)| (name.clone(), key.migrate.clone())).collect()
    }

    /// The folder of the file, which relative paths in it begin at.
    pub(crate) fn folder(&self) -> PathBuf {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new(".")).to_owned()
    }

    /// What the file describes, if nothing at all is wrong with it.
    pub(crate) fn check(mut self) -> Result<Built, FileFaults> {
        // Where no model is asked, none is missing.
        let built = self.build_within(&Models::Checked, &Around::default()).ok().flatten();
        built.filter(|_| self.is_sound()).ok_or_else(|| self.faults())
    }

    fn is_sound(&self) -> bool {
        self.document.faults().is_empty() && self.elsewhere.is_empty()
    }

    fn faults(self) -> FileFaults {
        let mut faults = self.document.into_faults();
        faults.extend(self.elsewhere);
        FileFaults { path: self.path, faults }
    }
}

/// The model of an agent whose table is at hand.
fn model(
    name: Option<&str>,
    document: &mut Document,
    models: &Models<'_>,
    folder: &Path,
    around: &Around,
) -> anyhow::Result<Arc<dyn ChatModel>> {
    if let Some(message) = name.and_then(|name| models.fault(name, folder)) {
        document.fault(&["model"], message);
    }
    let others = || around.model.as_ref().map(|(name, folder)| (name.as_str(), folder.as_path()));
    models.pick(name.map(|name| (name, folder)).or_else(others))
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
            let path =
                fault.file.as_ref().map_or_else(|| path.to_string(), |file| file.display().to_string());
            write!(f, "{separator}{path}:{}:{}: {}", fault.line, fault.column, fault.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for FileFaults {}
