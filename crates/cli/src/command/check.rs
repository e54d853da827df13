//! `stepfold check`: all that is wrong with files of agents and graphs.

use std::path::PathBuf;

use serde_json::json;

use crate::agent_file::AgentFile;
use crate::error::{Ending, chain};
use crate::show;

pub(super) fn check(paths: &[PathBuf], json: bool) -> Ending {
    let mut ending = Ending::Done;
    for path in paths {
        let name = path.display().to_string();
        let faults = match AgentFile::read(path) {
            Ok(read) => read.and_then(AgentFile::check).err(),
            // The other files are checked anyway.
            Err(error) => {
                let words = chain(error.as_ref());
                let unread = json!({"error": words, "file": name}).to_string();
                show::line(if json { unread } else { words });
                ending = Ending::Usage;
                continue;
            }
        };
        if json {
            let faults = faults.as_ref().map_or(&[][..], |faults| &faults.faults);
            show::line(json!({"faults": faults, "file": name}).to_string());
        } else {
            show::line(faults.as_ref().map_or_else(|| format!("{name}: ok"), ToString::to_string));
        }
        if faults.is_some() {
            ending = Ending::Usage;
        }
    }
    ending
}
