//! `stepfold eval import` and `stepfold eval export`: data sets of other projects.

use std::fs::{self, File};
use std::io::Write as _;

use anyhow::Context as _;
use serde_json::json;
use stepfold::eval::{Case, DataSetFormat};

use super::add::AddedCases;
use super::open;
use crate::args::{EvalExportArgs, EvalImportArgs};
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, counted};

/// Adds the cases of another project's file to a data set.
pub(super) fn import(args: &EvalImportArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let EvalImportArgs { file, data_set } = args;
    let fault = |why: String| UsageError(format!("data set {} could not be read: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| fault(error.to_string()))?;
    let format = DataSetFormat::of_text(&text).map_err(|error| fault(error.to_string()))?;
    let read = format.read(&text).map_err(|error| fault(error.to_string()))?;
    let mut added = AddedCases::to(data_set, |_| ())?;
    for case in &read.content {
        added.append(case)?;
    }
    read.left_out.into_iter().for_each(|why| added.leave_out(format!("left out: {why}")));
    added.finish(data_set, json)
}

/// Writes a data set as a file of another project.
pub(super) fn export(args: &EvalExportArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let EvalExportArgs { data_set, file } = args;
    let format = match file.extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") => DataSetFormat::PydanticEvals,
        Some("json") => DataSetFormat::AdkEvalSet,
        _ => {
            let words = format!(
                "unknown format of {}; available: .yaml for pydantic-evals, .json for ADK",
                file.display()
            );
            return Err(UsageError(words).into());
        }
    };
    let name = file.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let cases: Vec<Case> = open(data_set)?.collect::<Result<_, _>>()?;
    let count = cases.len();
    let written = format.write(&name, cases)?;
    let created = File::create_new(file).and_then(|mut file| file.write_all(written.content.as_bytes()));
    created.with_context(|| format!("{format} {} could not be written", file.display()))?;
    for fault in written.left_out.iter().filter(|_| !json) {
        show::note(format!("left out: {fault}"));
    }
    show::line(match json {
        true => json!({"written": count, "left_out": written.left_out}).to_string(),
        false => format!(
            "{} written to {}",
            counted(u64::try_from(count).unwrap_or(u64::MAX), "case"),
            file.display()
        ),
    });
    Ok(CommandEnding::Done)
}
