//! Files that appear whole or not at all.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::load_error::LoadError;

/// Writes `bytes` into a new file of the folder, to the disk, and then gives it its name. A name that is
/// taken gets a number.
pub(crate) fn save_in(folder: &Path, id: &str, events: u64, bytes: &[u8]) -> Result<PathBuf, LoadError> {
    let stem: String =
        id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    // Ids that look alike as file names stay apart by their digest.
    let stem = format!("{}-{}-{events}", stem.get(..64).unwrap_or(&stem), &crate::digest::of(id)[..8]);
    write(folder, &stem, bytes).map_err(|source| LoadError::File {
        path: folder.join(stem + ".json"),
        doing: "written",
        source,
    })
}

fn write(folder: &Path, stem: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    let mut file = tempfile::Builder::new().prefix(".stepfold-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    // NOTE: On the disk before it has its name, so that a crash leaves no partial file under it.
    file.as_file().sync_all()?;
    let mut number = 1;
    loop {
        let name = if number == 1 { format!("{stem}.json") } else { format!("{stem}-{number}.json") };
        let path = folder.join(name);
        match file.persist_noclobber(&path) {
            Ok(_) => {
                // The name is in the folder only once the folder is on the disk. Not every system can do that.
                let _ = File::open(folder).and_then(|folder| folder.sync_all());
                return Ok(path);
            }
            Err(taken) if taken.error.kind() == io::ErrorKind::AlreadyExists => {
                file = taken.file;
                number += 1;
            }
            Err(failed) => return Err(failed.error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_collide_and_stay_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let save = |id| save_in(folder.path(), id, 3, b"{}").unwrap();
        let paths = [save("../../etc/x"), save("../../etc/x"), save("______etc_x"), save(&"ä".repeat(99))];
        for (place, path) in paths.iter().enumerate() {
            assert_eq!(path.parent(), Some(folder.path()));
            assert!(!paths[..place].contains(path), "{path:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error_that_names_the_file() {
        let error = save_in(Path::new("/nowhere"), "run-1", 3, b"{}").unwrap_err();
        assert!(error.to_string().starts_with("file /nowhere/run-1-"), "{error}");
    }
}
