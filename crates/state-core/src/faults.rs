//! Lists of faults and of names in errors; only the first ones are printed.

use std::fmt;

/// A fault at one location.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Issue {
    /// The location: a JSON path such as `$[2].title` in a value, a key in a schema.
    pub path: String,
    /// The message. It never shows the value.
    pub message: String,
}

impl Issue {
    /// A fault at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Issue { path: path.into(), message: message.into() }
    }
}

/// All faults of a value or a declaration; at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issues(Vec<Issue>);

/// The number of printed faults or names; the rest is counted.
const PRINTED_FAULTS: usize = 8;
const PRINTED_NAMES: usize = 30;

impl Issues {
    /// The faults, in the order of detection.
    pub fn iter(&self) -> std::slice::Iter<'_, Issue> {
        self.0.iter()
    }

    pub(crate) fn push(&mut self, fault: Issue) {
        self.0.push(fault);
    }

    pub(crate) fn extend(&mut self, faults: impl IntoIterator<Item = Issue>) {
        self.0.extend(faults);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Maps the path of each fault.
    pub(crate) fn map_paths(mut self, change: impl Fn(&str) -> String) -> Self {
        for fault in &mut self.0 {
            fault.path = change(&fault.path);
        }
        self
    }
}

impl From<Issue> for Issues {
    fn from(fault: Issue) -> Self {
        Issues(vec![fault])
    }
}

impl FromIterator<Issue> for Issues {
    fn from_iter<I: IntoIterator<Item = Issue>>(faults: I) -> Self {
        Issues(faults.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a Issues {
    type Item = &'a Issue;
    type IntoIter = std::slice::Iter<'a, Issue>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_some(f, &self.0, PRINTED_FAULTS, "; ", |f, fault| {
            let Issue { path, message } = fault;
            if path.starts_with('$') {
                write!(f, "{message} at {path}")
            } else {
                write!(f, "{path}: {message}")
            }
        })
    }
}

/// Available names, as listed in an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameList(Vec<String>);

impl NameList {
    /// The names, in declaration order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl<S: Into<String>> FromIterator<S> for NameList {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        NameList(names.into_iter().map(Into::into).collect())
    }
}

impl fmt::Display for NameList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        write_some(f, &self.0, PRINTED_NAMES, ", ", |f, name| f.write_str(name))
    }
}

/// Writes up to `limit` items and the number of the rest.
fn write_some<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    limit: usize,
    separator: &str,
    mut write_one: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().take(limit).enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        write_one(f, item)?;
    }
    match items.len().saturating_sub(limit) {
        0 => Ok(()),
        left_out => write!(f, "{separator}and {left_out} more"),
    }
}
