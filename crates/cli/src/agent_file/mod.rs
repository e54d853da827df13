//! The file that describes an agent or a graph: read with lines, checked whole, and built.

mod agent;
mod graph;
mod node;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Map;
use stepfold::prelude::*;
use stepfold::state_core::chat::Prices;
use toml::de::{DeTable, DeValue};

use self::graph::GraphSource;
use crate::error::UsageError;
use crate::form::agent::{AgentFileForm, KeyMigration, NamedValues, PriceForm};
use crate::form::graph::GraphForm;
use crate::form::{FaultCollector, FileFaults, read};
use crate::model::ModelSource;

/// A file of an agent or a graph that was read: its form, and what is wrong in it.
pub(crate) struct AgentFile {
    pub(crate) path: PathBuf,
    /// None if it is not TOML.
    content: Option<FileContent>,
    faults: FaultCollector,
}

/// What a file stands in: the files of the graphs around it, and the model of agents that name none.
#[derive(Clone, Default)]
struct EnclosingGraphs {
    files: Vec<PathBuf>,
    model: Option<(String, PathBuf)>,
    /// The keys of the graph that a node shares with its agent.
    keys: Option<Schema>,
}

enum FileContent {
    Agent(Box<AgentFileForm>),
    Graph(Box<GraphForm>),
}

impl FileContent {
    fn prices(&self) -> &NamedValues<PriceForm> {
        match self {
            FileContent::Agent(form) => &form.prices,
            FileContent::Graph(form) => &form.prices,
        }
    }
}

/// What a file describes.
pub(crate) enum BuiltFile {
    Agent(Agent),
    Graph(BuiltGraph),
}

/// A graph, and which of its nodes are agents that continue with its conversation.
pub(crate) struct BuiltGraph {
    pub(crate) graph: Graph,
    pub(crate) speakers: BTreeSet<String>,
}

impl From<BuiltFile> for Agent {
    fn from(built: BuiltFile) -> Self {
        match built {
            BuiltFile::Agent(agent) => agent,
            BuiltFile::Graph(built) => built.graph.into(),
        }
    }
}

impl AgentFile {
    /// Reads a file: its TOML, its form, its values. Errors that only the built agent shows are found by
    /// [`build`](AgentFile::build).
    pub(crate) fn read(path: &Path) -> anyhow::Result<Result<Self, FileFaults>> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            UsageError(format!("agent file {} could not be read: {error}", path.display()))
        })?;
        let file = AgentFile::parse(path, &text);
        Ok(match file.faults.count() {
            0 => Ok(file),
            // What can be built in spite of faults is: all of them are to be found at once.
            _ => Err(file.check().err().unwrap_or_else(|| unreachable!("it has faults"))),
        })
    }

    fn parse(path: &Path, text: &str) -> Self {
        let mut faults = FaultCollector::in_text(text.to_owned());
        let content = parse(text, &mut faults);
        AgentFile { path: path.to_owned(), content, faults }
    }

    /// What the file describes, with these models.
    ///
    /// # Errors
    /// When a model cannot be had.
    pub(crate) fn build(self, models: &ModelSource<'_>) -> anyhow::Result<Result<BuiltFile, FileFaults>> {
        self.built_within(models, &EnclosingGraphs::default())
    }

    /// What the file describes, if nothing at all is wrong with it.
    pub(crate) fn check(mut self) -> Result<BuiltFile, FileFaults> {
        // Where no model is asked, none is missing.
        let built = self.look(&ModelSource::Checked, &EnclosingGraphs::default()).ok().flatten();
        self.sound(built)
    }

    fn built_within(
        mut self,
        models: &ModelSource<'_>,
        around: &EnclosingGraphs,
    ) -> anyhow::Result<Result<BuiltFile, FileFaults>> {
        let built = self.look(models, around)?;
        Ok(self.sound(built))
    }

    fn sound(self, built: Option<BuiltFile>) -> Result<BuiltFile, FileFaults> {
        let built = built.filter(|_| self.faults.count() == 0);
        built.ok_or_else(|| FileFaults { path: self.path, faults: self.faults.into_lines() })
    }

    /// What the file describes, as far as it can be built.
    fn look(
        &mut self,
        models: &ModelSource<'_>,
        around: &EnclosingGraphs,
    ) -> anyhow::Result<Option<BuiltFile>> {
        let (folder, name) = (self.folder(), self.name());
        let faults = &mut self.faults;
        let prices = self.content.as_ref().map(FileContent::prices);
        for (model, price) in prices.into_iter().flat_map(NamedValues::iter) {
            for field in price.faults() {
                faults.add(&["prices", model, field], "invalid price: must be zero or more");
            }
        }
        match &self.content {
            None => Ok(None),
            Some(FileContent::Agent(form)) => {
                let model = model(form.model.as_deref(), faults, models, &folder, around)?;
                let schema = agent::state_schema(&form.state, form.open_state, faults, Map::new());
                let schemas = (schema, around.keys.as_ref());
                Ok(agent::build(form, faults, &folder, &name, model, schemas).map(BuiltFile::Agent))
            }
            Some(FileContent::Graph(form)) => {
                let place = GraphSource { folder: &folder, name: &name, path: &self.path, models };
                Ok(graph::build(form, faults, &place, around)?.map(BuiltFile::Graph))
            }
        }
    }

    /// The name of the agent: what the file says, else what the file is called.
    pub(crate) fn name(&self) -> String {
        let name = match &self.content {
            None => &None,
            Some(FileContent::Agent(form)) => &form.name,
            Some(FileContent::Graph(form)) => &form.name,
        };
        let stem = || self.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        name.clone().or_else(stem).unwrap_or_else(|| "agent".to_owned())
    }

    /// The migration of stored values whose types have changed.
    pub(crate) fn migrations(&self) -> Vec<KeyMigration> {
        let state = match &self.content {
            None => return Vec::new(),
            Some(FileContent::Agent(form)) => &form.state,
            Some(FileContent::Graph(form)) => &form.state,
        };
        let migrated = state.iter().filter(|(_, key)| !key.migrate.is_empty());
        migrated.map(|(name, key)| (name.to_owned(), key.migrate.clone())).collect()
    }

    /// The prices of its models.
    pub(crate) fn prices(&self) -> Prices {
        let prices = self.content.as_ref().map(FileContent::prices);
        let prices = prices.into_iter().flat_map(NamedValues::iter);
        prices.fold(Prices::new(), |prices, (model, price)| prices.with(model, (*price).into()))
    }

    /// The folder of the file, which relative paths in it begin at.
    pub(crate) fn folder(&self) -> PathBuf {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new(".")).to_owned()
    }
}

/// The form of a text; none if it is not TOML, where what was meant can only be guessed.
fn parse(text: &str, faults: &mut FaultCollector) -> Option<FileContent> {
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        faults.add_at(error.span().map_or(0, |span| span.start), error.message().trim_end());
    }
    let table = table.into_inner();
    if !errors.is_empty() {
        return None;
    }
    if table.is_empty() {
        let words = "empty file: an agent has `instructions`, `tools` or a `model`, and a graph has `nodes`";
        faults.add_at(0, words);
    }
    match table.contains_key("nodes") {
        false => read(&DeValue::Table(table), faults).map(|form| FileContent::Agent(Box::new(form))),
        true => read(&DeValue::Table(table), faults).map(|form| FileContent::Graph(Box::new(form))),
    }
}

/// The model of an agent whose table is at hand.
fn model(
    name: Option<&str>,
    faults: &mut FaultCollector,
    models: &ModelSource<'_>,
    folder: &Path,
    around: &EnclosingGraphs,
) -> anyhow::Result<Arc<dyn ChatModel>> {
    if let Some(message) = name.and_then(|name| models.fault(name, folder)) {
        faults.add(&["model"], message);
    }
    let others = || around.model.as_ref().map(|(name, folder)| (name.as_str(), folder.as_path()));
    models.pick(name.map(|name| (name, folder)).or_else(others))
}
