//! The environment of the process: its variables, and the folder of the user's data.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::UsageError;

/// Reads a variable of the environment. No other place of the command does.
#[expect(clippy::disallowed_methods, reason = "a program is where the environment comes in")]
pub(crate) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The folder for data of the user.
pub(crate) fn data_folder() -> Result<PathBuf, UsageError> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    let folder = set("XDG_DATA_HOME").or_else(|| match std::env::consts::OS {
        "windows" => set("LOCALAPPDATA"),
        "macos" => Some(home()?.join("Library/Application Support")),
        _ => Some(home()?.join(".local/share")),
    });
    let folder = folder.ok_or_else(|| UsageError("missing home folder".to_owned()))?;
    Ok(folder.join("stepfold"))
}
