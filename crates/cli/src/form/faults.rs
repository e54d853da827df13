//! The faults of a file: recorded by path, reported by line.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

/// The path to a value: the names of fields, and the numbers of items as text.
pub(crate) type ValuePath = Vec<String>;

/// A fault at a place of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LineFault {
    /// The file, if it is the file of a graph's agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<PathBuf>,
    /// The line, from 1.
    pub(crate) line: usize,
    /// The column in characters, from 1.
    pub(crate) column: usize,
    pub(crate) message: String,
}

/// All faults of a file.
#[derive(Clone, Debug)]
pub(crate) struct FileFaults {
    pub(crate) path: PathBuf,
    pub(crate) faults: Vec<LineFault>,
}

/// Collects the faults of a file; knows the places of the values of its form.
pub(crate) struct FaultCollector {
    text: String,
    /// The byte at which the key, or the item, of each path begins.
    places: BTreeMap<ValuePath, usize>,
    /// The paths of values that were left out because they do not fit.
    left_out: Vec<ValuePath>,
    /// The table that paths are relative to.
    inside: ValuePath,
    found: Vec<LineFault>,
    /// Faults in the files of its agents.
    elsewhere: Vec<LineFault>,
}

impl FaultCollector {
    pub(crate) fn in_text(text: String) -> Self {
        FaultCollector {
            text,
            places: BTreeMap::new(),
            left_out: Vec::new(),
            inside: Vec::new(),
            found: Vec::new(),
            elsewhere: Vec::new(),
        }
    }

    /// Records the place of a value, and whether it was left out.
    pub(crate) fn place(&mut self, path: &[String], start: usize, is_left_out: bool) {
        self.places.insert(path.to_vec(), start);
        if is_left_out {
            self.left_out.push(path.to_vec());
        }
    }

    /// Checks a table: paths are relative to it meanwhile.
    pub(crate) fn within<T>(&mut self, table: &[&str], check: impl FnOnce(&mut Self) -> T) -> T {
        let inside = self.path(table);
        let outside = std::mem::replace(&mut self.inside, inside);
        let checked = check(self);
        self.inside = outside;
        checked
    }

    /// Adds a fault at a path, or at its nearest ancestor that the file contains.
    pub(crate) fn add(&mut self, path: &[impl AsRef<str>], message: impl Into<String>) {
        let mut path = self.path(path);
        let start = loop {
            match self.places.get(&path) {
                Some(start) => break *start,
                None if path.is_empty() => break 0,
                None => drop(path.pop()),
            }
        };
        self.add_at(start, message);
    }

    /// Adds a fault at a byte of the text.
    pub(crate) fn add_at(&mut self, start: usize, message: impl Into<String>) {
        let before = self.text.get(..start).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let fault = LineFault { file: None, line, column, message: message.into() };
        if !self.found.contains(&fault) {
            self.found.push(fault);
        }
    }

    /// Adds the faults of another file, once: several nodes may use the file.
    pub(crate) fn add_elsewhere(&mut self, path: &std::path::Path, faults: FileFaults) {
        for fault in faults.faults {
            let fault = LineFault { file: fault.file.or_else(|| Some(path.to_owned())), ..fault };
            if !self.elsewhere.contains(&fault) {
                self.elsewhere.push(fault);
            }
        }
    }

    /// Whether a field of the current table was left out.
    pub(crate) fn has_left_out(&self, field: &str) -> bool {
        self.left_out.contains(&self.path(&[field]))
    }

    /// Adds a fault of the current table, unless a part of it was left out: a part that is missing for that reason is not
    /// another fault.
    pub(crate) fn add_to_whole(&mut self, message: impl Into<String>) {
        if !self.left_out.iter().any(|path| path.starts_with(&self.inside)) {
            self.add(&[""; 0], message);
        }
    }

    /// The number of faults.
    pub(crate) fn count(&self) -> usize {
        self.found.len() + self.elsewhere.len()
    }

    /// The faults in the order of the file, and after them those of other files.
    pub(crate) fn into_lines(mut self) -> Vec<LineFault> {
        self.found.sort_by_key(|fault| (fault.line, fault.column));
        self.found.append(&mut self.elsewhere);
        self.found
    }

    fn path(&self, steps: &[impl AsRef<str>]) -> ValuePath {
        self.inside.iter().cloned().chain(steps.iter().map(|step| step.as_ref().to_owned())).collect()
    }
}

impl fmt::Display for FileFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        for (place, fault) in self.faults.iter().enumerate() {
            let separator = if place == 0 { "" } else { "\n" };
            let path =
                fault.file.as_ref().map_or_else(|| path.to_string(), |file| file.display().to_string());
            write!(f, "{separator}{path}:{}:{}: {}", fault.line, fault.column, fault.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for FileFaults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_has_its_line() {
        let mut faults = FaultCollector::in_text("name = \"ä\"\n\n[state.\"a.b\"]\ntype = 1\n".to_owned());
        let path = |steps: &[&str]| steps.iter().map(|step| (*step).to_owned()).collect::<ValuePath>();
        faults.place(&path(&["state", "a.b"]), 20, false);
        faults.place(&path(&["state", "a.b", "type"]), 27, false);
        faults.add(&["state", "a.b", "type"], "x");
        faults.add(&["state", "a.b", "handler"], "y");
        let places: Vec<_> = faults.into_lines().iter().map(|fault| (fault.line, fault.column)).collect();
        assert_eq!(places, [(3, 8), (4, 1)]);
    }
}
