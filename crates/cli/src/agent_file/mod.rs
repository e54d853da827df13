//! Builds an agent or a graph from its file.
//!
//! NOTE: The files of this folder import each other: a node of a graph may be an agent or a graph in another file.

mod agent;
mod context;
mod graph;
mod node;
mod settings;
mod texts;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Map;
use stepfold::prelude::*;
use stepfold::runner::{
    Budget, BudgetScope, RETENTION_APP, RetentionPolicy, SessionRecall, SharedRateLimit, WhenChanged,
};
use stepfold::session_scopes::AppId;
use stepfold::state_core::chat::Prices;
use toml::de::{DeTable, DeValue};

use self::graph::GraphSource;
pub(crate) use self::texts::{AgentTexts, normal};
use crate::archive::ARCHIVE_APP;
use crate::error::UsageError;
use crate::form::agent::{AgentFileForm, KeyMigration, NamedValues, PriceForm};
use crate::form::budget::{BudgetFileForm, BudgetForm, budgets, report_misplaced};
use crate::form::graph::GraphForm;
use crate::form::rate_limit::{RateLimitForm, rate_limits, report_misplaced_limits};
use crate::form::redact::{FileRedaction, RedactForm};
use crate::form::retention::RetentionForm;
use crate::form::{FaultCollector, FileFaults, read};
use crate::model::ModelSource;

/// A file of an agent or a graph that was read: its form, and its faults.
pub(crate) struct AgentFile {
    pub(crate) path: PathBuf,
    /// None if it is not TOML.
    content: Option<FileContent>,
    faults: FaultCollector,
}

/// The graphs around a file: their files, the model of agents that name none, and the shared keys.
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

    fn when_changed(&self) -> WhenChanged {
        match self {
            FileContent::Agent(form) => form.when_changed.into(),
            FileContent::Graph(form) => form.when_changed.into(),
        }
    }
}

impl FileContent {
    const fn redact(&self) -> Option<&RedactForm> {
        match self {
            FileContent::Agent(form) => form.redact.as_ref(),
            FileContent::Graph(form) => form.redact.as_ref(),
        }
    }

    const fn retention(&self) -> Option<&RetentionForm> {
        match self {
            FileContent::Agent(form) => form.retention.as_ref(),
            FileContent::Graph(form) => form.retention.as_ref(),
        }
    }

    fn budgets(&self) -> &[BudgetForm] {
        match self {
            FileContent::Agent(form) => &form.budgets,
            FileContent::Graph(form) => &form.budgets,
        }
    }

    fn rate_limits(&self) -> &[RateLimitForm] {
        match self {
            FileContent::Agent(form) => &form.rate_limits,
            FileContent::Graph(form) => &form.rate_limits,
        }
    }

    /// Reports faults of budgets and rate limits, and those of a file inside of another, where they would hold nothing.
    fn check_spend_limits(&self, is_enclosed: bool, faults: &mut FaultCollector) {
        if is_enclosed {
            report_misplaced(self.budgets(), faults);
            report_misplaced_limits(self.rate_limits(), faults);
        } else {
            drop(budgets(self.budgets(), &BudgetScope::App, faults));
            drop(rate_limits(self.rate_limits(), faults));
        }
    }
}

/// The agent or graph that a file describes.
pub(crate) enum BuiltFile {
    Agent(Agent),
    Graph(BuiltGraph),
}

/// A graph, and the nodes whose agents continue its conversation.
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
    /// Reads a file into its form. Faults that only building can find are found by [`build`](AgentFile::build).
    pub(crate) fn read(path: &Path) -> anyhow::Result<Result<Self, FileFaults>> {
        AgentFile::read_from(&AgentTexts::default(), path)
    }

    /// The same from these files.
    pub(crate) fn read_from(files: &AgentTexts, path: &Path) -> anyhow::Result<Result<Self, FileFaults>> {
        AgentFile::read_with(files, path, &[])
    }

    /// The same with settings of a command line, such as `limits.steps=4`. Faults of these are at the lines after the last one
    /// of the file.
    pub(crate) fn read_with(
        files: &AgentTexts,
        path: &Path,
        settings: &[String],
    ) -> anyhow::Result<Result<Self, FileFaults>> {
        let text = files.read(path).map_err(|error| {
            UsageError(format!("agent file {} could not be read: {error}", path.display()))
        })?;
        let file = AgentFile::parse(path, &text, &settings::lines(settings)?);
        Ok(match file.faults.count() {
            0 => Ok(file),
            // NOTE: The rest of a faulty file is built as well, so that all faults are reported at once.
            _ => Err(file.check().err().unwrap_or_else(|| unreachable!("it has faults"))),
        })
    }

    fn parse(path: &Path, text: &str, settings: &[String]) -> Self {
        let mut whole = text.to_owned();
        let mut padded = Vec::new();
        for line in settings {
            whole.push('\n');
            padded.push(settings::padded(line, whole.len()));
            whole.push_str(line);
        }
        let mut faults = FaultCollector::in_text(whole);
        let content = parse(text, &padded, &mut faults);
        AgentFile { path: path.to_owned(), content, faults }
    }

    /// Builds the agent or graph with these models.
    ///
    /// # Errors
    /// When a model is not available.
    pub(crate) fn build(self, models: &ModelSource<'_>) -> anyhow::Result<Result<BuiltFile, FileFaults>> {
        self.build_within(models, &EnclosingGraphs::default())
    }

    /// Builds the agent or graph without a model, and reports all faults.
    pub(crate) fn check(mut self) -> Result<BuiltFile, FileFaults> {
        // Without models, the only errors are faults.
        let built = self.try_build(&ModelSource::checked(), &EnclosingGraphs::default()).ok().flatten();
        self.without_faults(built)
    }

    fn build_within(
        mut self,
        models: &ModelSource<'_>,
        enclosing: &EnclosingGraphs,
    ) -> anyhow::Result<Result<BuiltFile, FileFaults>> {
        let built = self.try_build(models, enclosing)?;
        Ok(self.without_faults(built))
    }

    fn without_faults(self, built: Option<BuiltFile>) -> Result<BuiltFile, FileFaults> {
        let built = built.filter(|_| self.faults.count() == 0);
        built.ok_or_else(|| FileFaults { path: self.path, faults: self.faults.into_lines() })
    }

    /// Builds the agent or graph; none if it has faults.
    fn try_build(
        &mut self,
        models: &ModelSource<'_>,
        enclosing: &EnclosingGraphs,
    ) -> anyhow::Result<Option<BuiltFile>> {
        let (folder, name) = (self.folder(), self.name());
        let faults = &mut self.faults;
        let prices = self.content.as_ref().map(FileContent::prices);
        for (model, price) in prices.into_iter().flat_map(NamedValues::iter) {
            for field in price.faults() {
                faults.add(&["prices", model, field], "invalid price: must be zero or more");
            }
        }
        if enclosing.files.is_empty() {
            report_unusable_name(&name, faults);
        }
        if let Some(content) = &self.content {
            content.check_spend_limits(!enclosing.files.is_empty(), faults);
        }
        if let Some(form) = self.content.as_ref().and_then(FileContent::redact) {
            match enclosing.files.is_empty() {
                true => drop(form.redaction(faults)),
                false => faults.add(&["redact"], MISPLACED_REDACTION),
            }
        }
        if let Some(form) = self.content.as_ref().and_then(FileContent::retention) {
            match enclosing.files.is_empty() {
                true => drop(form.policy(faults)),
                false => faults.add(&["retention"], MISPLACED_RETENTION),
            }
        }
        match &self.content {
            None => Ok(None),
            Some(FileContent::Agent(form)) => {
                let asked = models_of(form, faults, models, &folder, enclosing)?;
                let schema = agent::state_schema(&form.state, form.open_state, faults, Map::new());
                let schemas = (schema, enclosing.keys.as_ref());
                Ok(agent::build(form, faults, &folder, &name, asked, schemas).map(BuiltFile::Agent))
            }
            Some(FileContent::Graph(form)) => {
                let place = GraphSource { folder: &folder, name: &name, path: &self.path, models };
                Ok(graph::build(form, faults, &place, enclosing)?.map(BuiltFile::Graph))
            }
        }
    }

    /// The name of the agent: that in the file, otherwise that of the file.
    pub(crate) fn name(&self) -> String {
        let name = match &self.content {
            None => &None,
            Some(FileContent::Agent(form)) => &form.name,
            Some(FileContent::Graph(form)) => &form.name,
        };
        let stem = || self.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        name.clone().or_else(stem).unwrap_or_else(|| "agent".to_owned())
    }

    /// The conversions of stored values whose types have changed.
    pub(crate) fn migrations(&self) -> Vec<KeyMigration> {
        let state = match &self.content {
            None => return Vec::new(),
            Some(FileContent::Agent(form)) => &form.state,
            Some(FileContent::Graph(form)) => &form.state,
        };
        let migrated = state.iter().filter(|(_, key)| !key.migrate.is_empty());
        migrated.map(|(name, key)| (name.to_owned(), key.migrate.clone())).collect()
    }

    /// The handling of unfinished runs after a change of the file.
    pub(crate) fn when_changed(&self) -> WhenChanged {
        self.content.as_ref().map(FileContent::when_changed).unwrap_or_default()
    }

    /// The programs and addresses that its earlier versions may use, beside those of today.
    pub(crate) fn former_programs(&self) -> &[String] {
        match &self.content {
            None => &[],
            Some(FileContent::Agent(form)) => &form.former_programs,
            Some(FileContent::Graph(form)) => &form.former_programs,
        }
    }

    /// The prices of its models.
    pub(crate) fn prices(&self) -> Prices {
        let prices = self.content.as_ref().map(FileContent::prices);
        let prices = prices.into_iter().flat_map(NamedValues::iter);
        prices.fold(Prices::new(), |prices, (model, price)| prices.with(model, (*price).into()))
    }

    /// Its budgets. Their faults are those of [`build`](AgentFile::build).
    pub(crate) fn budgets(&self) -> Vec<Budget> {
        let forms = self.content.as_ref().map(FileContent::budgets).unwrap_or_default();
        budgets(forms, &BudgetScope::App, &mut FaultCollector::in_text(String::new()))
    }

    /// Its rate limits. Their faults are those of [`build`](AgentFile::build).
    pub(crate) fn rate_limits(&self) -> Vec<SharedRateLimit> {
        let forms = self.content.as_ref().map(FileContent::rate_limits).unwrap_or_default();
        rate_limits(forms, &mut FaultCollector::in_text(String::new()))
    }

    /// Its redaction. Its faults are those of [`build`](AgentFile::build).
    pub(crate) fn redaction(&self) -> Option<FileRedaction> {
        let form = self.content.as_ref().and_then(FileContent::redact)?;
        Some(form.redaction(&mut FaultCollector::in_text(String::new())))
    }

    /// Its retention. Its faults are those of [`build`](AgentFile::build).
    pub(crate) fn retention(&self) -> Option<RetentionPolicy> {
        let form = self.content.as_ref().and_then(FileContent::retention)?;
        Some(form.policy(&mut FaultCollector::in_text(String::new())))
    }

    /// The folder of the file: relative paths in the file start there.
    pub(crate) fn folder(&self) -> PathBuf {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new(".")).to_owned()
    }
}

/// Reports a name that sessions cannot have as that of their application.
// NOTE: The runner replaces a name that no store accepts by another one; here it is an error of the file.
fn report_unusable_name(name: &str, faults: &mut FaultCollector) {
    if let Err(error) = AppId::new(name) {
        faults.add(&["name"], error.to_string());
    } else if name == ARCHIVE_APP {
        faults.add(&["name"], format!("reserved name `{ARCHIVE_APP}`: stored versions of agents have it"));
    } else if name == RETENTION_APP {
        faults.add(&["name"], format!("reserved name `{RETENTION_APP}`: leases of retention have it"));
    }
}

/// The fault of an agent of a graph with rules of its own.
pub(crate) const MISPLACED_REDACTION: &str =
    "unsupported redaction: a graph's rules hold for its agents; declare them in the graph file";

/// The fault of an agent of a graph with a retention of its own.
pub(crate) const MISPLACED_RETENTION: &str =
    "unsupported retention: that of a graph holds for its sessions; declare it in the graph file";

/// The budgets of a file that has nothing else; by default each principal has its own.
pub(crate) fn read_budgets(path: &Path) -> anyhow::Result<Vec<Budget>> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        UsageError(format!("file of budgets {} could not be read: {error}", path.display()))
    })?;
    let mut faults = FaultCollector::in_text(text.clone());
    let table = parse_table(&text, &mut faults);
    let form: Option<BudgetFileForm> = table.and_then(|table| read(&DeValue::Table(table), &mut faults));
    let budgets = form.map(|form| budgets(&form.budgets, &BudgetScope::Principal, &mut faults));
    match faults.count() {
        0 => Ok(budgets.unwrap_or_default()),
        _ => Err(FileFaults { path: path.to_owned(), faults: faults.into_lines() }.into()),
    }
}

fn parse_table<'a>(text: &'a str, faults: &mut FaultCollector) -> Option<DeTable<'a>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        faults.add_at(error.span().map_or(0, |span| span.start), error.message().trim_end());
    }
    errors.is_empty().then(|| table.into_inner())
}

/// Parses a text with settings into its form; none if it is not TOML.
fn parse(text: &str, settings: &[String], faults: &mut FaultCollector) -> Option<FileContent> {
    let mut table = parse_table(text, faults)?;
    for padded in settings {
        settings::set(&mut table, padded);
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

/// The models of an agent: its own, and the one that writes its summaries, if the file names one.
struct AgentModels {
    own: Arc<dyn ChatModel>,
    summary: Option<Arc<dyn ChatModel>>,
    recall: SessionRecall,
}

fn models_of(
    form: &AgentFileForm,
    faults: &mut FaultCollector,
    models: &ModelSource<'_>,
    folder: &Path,
    enclosing: &EnclosingGraphs,
) -> anyhow::Result<AgentModels> {
    let named = [
        (&["model"][..], form.model.as_deref()),
        (&["summarize", "model"], form.summarize.as_ref().and_then(|form| form.model.as_deref())),
    ];
    for (path, name) in named {
        if let Some(message) = name.and_then(|name| models.fault(name, folder)) {
            faults.add(path, message);
        }
    }
    let [(_, own), (_, summary)] = named;
    let others = || enclosing.model.as_ref().map(|(name, folder)| (name.as_str(), folder.as_path()));
    Ok(AgentModels {
        own: models.pick(own.map(|name| (name, folder)).or_else(others))?,
        summary: summary.map(|name| models.pick(Some((name, folder)))).transpose()?,
        recall: models.recall.clone(),
    })
}
