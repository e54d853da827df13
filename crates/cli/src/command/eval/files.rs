//! The files of a command: none that it writes is also another one of it.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::judge::judge_store;
use crate::args::{CassetteMode, EvalAddArgs, EvalImportArgs, EvalJudgeArgs, EvalRunArgs, EvalWatchArgs};
use crate::error::UsageError;
use crate::model::script_path;
use crate::store::store_file;

/// The files that a command reads and writes, in the words of the command line.
#[derive(Default)]
pub(super) struct CommandFiles(Vec<CommandFile>);

struct CommandFile {
    what: &'static str,
    path: PathBuf,
    is_written: bool,
}

impl CommandFiles {
    pub(super) fn of_run(args: &EvalRunArgs) -> Self {
        let mut files = CommandFiles::default();
        files.reads("agent", Some(&args.agent));
        files.reads("data set", Some(&args.data_set));
        files.reads("file of --baseline", args.baseline.as_deref());
        files.reads("file of --instructions", args.instructions.as_deref());
        files.reads("script of --model", args.model.as_deref().and_then(script_path));
        match args.cassette_mode {
            CassetteMode::Replay => files.reads("file of --cassette", args.cassette.as_deref()),
            CassetteMode::Record | CassetteMode::Auto => {
                files.writes("file of --cassette", args.cassette.as_deref());
                files.writes("new file of --cassette", besides(args.cassette.as_deref(), ".new").as_deref());
            }
        }
        files.add_judge(&args.judge, &args.data_set);
        files.writes("file of --report", args.report.as_deref());
        for (what, ending) in
            [("file of the results so far", ".partial"), ("new file of --report", ".partial.whole")]
        {
            files.writes(what, besides(args.report.as_deref(), ending).as_deref());
        }
        files
    }

    pub(super) fn of_add(args: &EvalAddArgs) -> anyhow::Result<Self> {
        let mut files = CommandFiles::default();
        files.reads("agent", Some(&args.target.agent));
        files.reads("session store", store_file(args.target.store.as_deref())?.as_deref());
        files.writes("data set", Some(&args.data_set));
        Ok(files)
    }

    pub(super) fn of_watch(args: &EvalWatchArgs) -> anyhow::Result<Self> {
        let mut files = CommandFiles::default();
        files.reads("agent", Some(&args.target.agent));
        files.reads("file of expectations", Some(&args.expect));
        files.add_judge(&args.judge, &args.expect);
        files.writes("session store", store_file(args.target.store.as_deref())?.as_deref());
        Ok(files)
    }

    pub(super) fn of_import(args: &EvalImportArgs) -> Self {
        let mut files = CommandFiles::default();
        files.reads("file to import", Some(&args.file));
        files.writes("data set", Some(&args.data_set));
        files
    }

    fn add_judge(&mut self, args: &EvalJudgeArgs, beside: &Path) {
        let Some(judge) = &args.judge else { return };
        self.reads("file of --judge", Some(judge));
        self.reads("script of --judge-model", args.judge_model.as_deref().and_then(script_path));
        self.writes("store of the judge", Some(&judge_store(args, beside)));
    }

    fn reads(&mut self, what: &'static str, path: Option<&Path>) {
        self.0.extend(path.map(|path| CommandFile { what, path: path.to_owned(), is_written: false }));
    }

    fn writes(&mut self, what: &'static str, path: Option<&Path>) {
        self.0.extend(path.map(|path| CommandFile { what, path: path.to_owned(), is_written: true }));
    }

    /// Refuses what is no regular file, and a file that is written and is also another one.
    ///
    /// # Errors
    /// [`UsageError`], before anything is read or written.
    pub(super) fn check(&self) -> Result<(), UsageError> {
        for CommandFile { what, path, .. } in &self.0 {
            // One that is missing is the fault of its reader.
            if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
                return Err(UsageError(format!("the {what}, {}, {NOT_REGULAR}", path.display())));
            }
        }
        let resolved: Vec<PathBuf> = self.0.iter().map(|file| resolved(&file.path)).collect();
        for (place, written) in self.0.iter().enumerate().filter(|(_, file)| file.is_written) {
            let is_same = |(other, _): &(usize, &CommandFile)| {
                *other != place && resolved.get(*other) == resolved.get(place)
            };
            if let Some((_, other)) = self.0.iter().enumerate().find(is_same) {
                let CommandFile { what, path, .. } = written;
                let words =
                    format!("the {what}, {}, is also the {}; name another file", path.display(), other.what);
                return Err(UsageError(words));
            }
        }
        Ok(())
    }
}

/// The words for a folder, a device or a pipe, of which the last two may have no end.
const NOT_REGULAR: &str = "is not a regular file; name another file";

/// The most bytes of a file that is read as a whole.
const MAX_TEXT: u64 = 64 << 20;

/// Opens a file to be read: the opening of a pipe would wait for its writer.
pub(super) fn open_regular(path: &Path) -> std::io::Result<File> {
    match fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(Error::new(ErrorKind::InvalidInput, format!("it {NOT_REGULAR}"))),
    }
}

/// Reads a text of bounded size.
pub(super) fn read_text(path: &Path) -> std::io::Result<String> {
    read_bounded(open_regular(path)?, MAX_TEXT)
}

/// Reads a text of at most so many bytes; a longer one is refused, and not read in part.
pub(super) fn read_bounded(from: impl Read, most: u64) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it has more than {most} bytes; split it");
        return Err(Error::new(ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(bytes).map_err(|error| Error::new(ErrorKind::InvalidData, error.utf8_error()))
}

/// The path with an ending.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn besides(path: Option<&Path>, ending: &str) -> Option<PathBuf> {
    path.map(|path| beside(path, ending))
}

/// The file that is written for a path: the target of a link, which is not replaced by the new file.
pub(super) fn written(path: &Path) -> PathBuf {
    if path.is_symlink() { resolved(path) } else { path.to_owned() }
}

/// The most links in a row that are followed, as by Linux.
const MAX_LINKS: usize = 40;

/// The path of a file that may be missing, without links and dots. In a missing folder it is left as it is, so that its
/// writer fails.
fn resolved(path: &Path) -> PathBuf {
    let mut target = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(next) = target.read_link() else { break };
        target = folder_of(&target).join(next);
    }
    let missing = || Some(folder_of(&target).canonicalize().ok()?.join(target.file_name()?));
    path.canonicalize().ok().or_else(missing).unwrap_or(target)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A law: a text is read as a whole or refused, also if it grows while it is read, and if its end is within a character.
    #[test]
    fn a_text_is_read_as_a_whole_or_refused() {
        let text = "[{\"a\": \"ä\"}]";
        for most in 0..=text.len() as u64 + 1 {
            match read_bounded(text.as_bytes(), most) {
                Ok(read) => assert!(read == text && most >= text.len() as u64),
                Err(error) => {
                    assert!(most < text.len() as u64);
                    assert_eq!(error.to_string(), format!("it has more than {most} bytes; split it"));
                }
            }
        }
        assert!(read_bounded(std::io::repeat(b' '), 7).is_err());
        assert_eq!(read_bounded(&b"\xff"[..], 7).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
