//! Experiments of `stepfold serve`: their folder, and candidates that are changes of an agent file.

use std::path::{Path, PathBuf};

use stepfold::eval::Agent;
use stepfold::server::http::{CandidateChange, Candidates, ExperimentFolder};

use super::files::beside;
use super::judge::loaded_judge;
use crate::args::{RunArgs, ServeArgs};
use crate::context::LoadedAgent;
use crate::model::ModelSource;

/// The tables of an agent file that a request may change. The others name programs, files and servers.
const TABLES: [&str; 4] = ["clear_results.", "limits.", "trim.", "window."];

/// The folder of the experiments of an app, if the server has one.
pub(in crate::command) fn experiments(
    options: &ServeArgs,
    app: &str,
    path: &Path,
) -> anyhow::Result<Option<ExperimentFolder>> {
    let Some(folder) = &options.experiments else { return Ok(None) };
    let candidates = FileCandidates { path: path.to_owned(), model: options.model.clone() };
    let folder = ExperimentFolder::new(folder.join(app)).candidates(candidates);
    let Some(path) = &options.judge else { return Ok(Some(folder)) };
    let args = RunArgs::of_model(None);
    let models = ModelSource::command_line(&args);
    let loaded = LoadedAgent::read(path, &models.0)?;
    Ok(Some(folder.judge(loaded_judge(path, loaded, &beside(path, ".judge.db"))?)))
}

/// Candidates that are changes of a file.
struct FileCandidates {
    path: PathBuf,
    /// The model of the server.
    model: Option<String>,
}

impl Candidates for FileCandidates {
    fn candidate(&self, change: &CandidateChange) -> Result<Agent, String> {
        // NOTE: A request must neither start programs nor send keys elsewhere: of a model it names the provider and the name.
        if let Some(model) = &change.model
            && (model.contains(['#', '/']) || model.starts_with("script:"))
        {
            return Err(format!("invalid model `{model}`: expected PROVIDER:MODEL"));
        }
        if let Some(setting) = change.set.iter().find(|setting| !is_allowed(setting)) {
            let tables = TABLES.join("…, ");
            return Err(format!("setting `{setting}` cannot be changed here; available: {tables}…"));
        }
        let model = change.model.as_deref().or(self.model.as_deref());
        let args = RunArgs::of_model(model);
        let models = ModelSource::command_line(&args);
        let read = LoadedAgent::read_with(&self.path, &change.set, &models.0);
        read.map(|loaded| loaded.agent).map_err(|error| format!("{error:#}"))
    }
}

/// Whether a setting is one line of an allowed table.
fn is_allowed(setting: &str) -> bool {
    TABLES.iter().any(|table| setting.starts_with(table)) && !setting.contains(['\n', '\r'])
}
