//! `stepfold eval import` and `stepfold eval export`: data sets of other projects.

use std::fs;
use std::io::{BufWriter, ErrorKind, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde_json::json;
use stepfold::eval::DataSetFormat;

use super::add::AddedCases;
use super::files::{CommandFiles, open_regular, read_bounded};
use super::{invalid, named, note_bounded, open};
use crate::args::{EvalExportArgs, EvalImportArgs};
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, counted};

/// The most bytes of a file of another project.
const MAX_IMPORT: u64 = 256 << 20;

/// Adds the cases of another project's file to a data set.
pub(super) fn import(args: &EvalImportArgs, json: bool) -> anyhow::Result<CommandEnding> {
    CommandFiles::of_import(args).check()?;
    let EvalImportArgs { file, data_set } = args;
    let fault = |why: String| UsageError(format!("data set {} could not be read: {why}", file.display()));
    let bytes = fs::metadata(file).map_or(0, |found| found.len());
    if bytes > MAX_IMPORT {
        // Such files are read as a whole.
        return Err(fault(format!("it has {bytes} bytes, of at most {MAX_IMPORT}; split it")).into());
    }
    // It may grow meanwhile.
    let text = open_regular(file).and_then(|file| read_bounded(file, MAX_IMPORT));
    let text = text.map_err(|error| fault(error.to_string()))?;
    let format = DataSetFormat::of_text(&text).map_err(|error| fault(error.to_string()))?;
    let read = format.read(&text).map_err(|error| fault(error.to_string()))?;
    let mut added = AddedCases::to(data_set, |_| ())?;
    for case in &read.content {
        added.append(case)?;
    }
    added.leave_out(read.left_out);
    Ok(added.finish(data_set, json, "left out: "))
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
    let cases = open(data_set)?;
    let exists = || {
        let words = format!(
            "file {} exists, and no file is replaced; name another one, or delete it",
            file.display()
        );
        UsageError(words)
    };
    if fs::symlink_metadata(file).is_ok() {
        return Err(exists().into());
    }
    let fault = || format!("{format} {} could not be written", file.display());
    // The file is there when it is whole: what a kill leaves has another name.
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = tempfile::Builder::new();
    new.prefix(".stepfold-export-");
    // As other files of the user, and not for its owner alone.
    #[cfg(unix)]
    new.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let new = new.tempfile_in(folder).with_context(fault)?;
    let mut writer = BufWriter::new(&new);
    let written = format.write_to(&mut writer, &name, cases);
    let written = written.and_then(|written| Ok(writer.flush().map(|()| written)?));
    let written = written.map_err(|error| invalid(named("data set", data_set), error))?;
    drop(writer);
    new.persist_noclobber(file).map_err(|kept| match kept.error.kind() {
        ErrorKind::AlreadyExists => exists().into(),
        _ => anyhow::Error::from(kept.error).context(fault()),
    })?;
    if !json {
        note_bounded(&written.left_out, "left out: ");
    }
    show::single_line(&match json {
        true => {
            let (lines, count) = (written.left_out.lines(), written.left_out.count());
            json!({"written": written.content, "left_out": lines, "left_out_count": count}).to_string()
        }
        false => format!("{} written to {}", counted(written.content, "case"), file.display()),
    });
    Ok(CommandEnding::Done)
}
