//! Programs that evaluate.

use std::path::PathBuf;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use stepfold::eval::ProgramRunner;

use crate::form::FaultCollector;
use crate::tool::ExternalProgram;

/// Programs that evaluate, in the folder of the data set.
pub(super) struct Programs {
    pub(super) folder: PathBuf,
}

impl ProgramRunner for Programs {
    fn run<'a>(&'a self, command: &'a [String], input: Value) -> BoxFuture<'a, Result<Value, String>> {
        async move {
            let form =
                serde_json::from_value(json!({ "argv": command })).map_err(|error| error.to_string())?;
            let mut faults = FaultCollector::in_text(String::new());
            let program = ExternalProgram::new(&form, &self.folder, &mut faults);
            let Some(program) = program.filter(|_| faults.count() == 0) else {
                return Err(format!("program {} not found in {}", command.join(" "), self.folder.display()));
            };
            let output = program.run(&input.to_string(), "eval").await.map_err(|error| error.to_string())?;
            serde_json::from_str(&output)
                .map_err(|error| format!("expected a JSON object as output: {error}"))
        }
        .boxed()
    }
}
