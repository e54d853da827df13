//! The parts of a toolset, and pure functions that change parts and merge their tools.

use std::collections::HashMap;
use std::sync::Arc;

use stepfold_state_core::state::{Issue, Issues};

#[cfg(feature = "search")]
use super::search::SearchableTools;
use super::source::ErasedSource;
use super::tools::Tools;
use crate::error::BuildError;
use crate::tool::Tool;

/// Tools of one origin: the name of the toolset that declared them, even after merging.
#[derive(Clone)]
pub(crate) struct ToolsetPart {
    pub(crate) origin: Arc<str>,
    pub(crate) kind: PartKind,
}

#[derive(Clone)]
pub(crate) enum PartKind {
    /// Known from the start; changes apply immediately.
    Static(Vec<Tool>),
    /// Listed at each step; changes apply to each list.
    Dynamic(Arc<dyn ErasedSource>, Vec<PartChange>),
    /// Known from the start, offered when found.
    #[cfg(feature = "search")]
    Searchable(Arc<SearchableTools>),
}

/// A combinator's change to the tools of a part.
#[derive(Clone)]
pub(crate) enum PartChange {
    Prefix(Arc<str>),
    Filter(Arc<dyn Fn(&Tool) -> bool + Send + Sync>),
}

impl PartChange {
    /// The tools after the change; unusable ones are dropped, with a fault.
    pub(crate) fn apply(&self, tools: Vec<Tool>, faults: &mut Vec<Issue>) -> Vec<Tool> {
        match self {
            PartChange::Filter(keeps) => tools.into_iter().filter(|tool| keeps(tool)).collect(),
            PartChange::Prefix(prefix) => {
                let renamed = |tool: Tool| {
                    let name = format!("{prefix}{}", tool.name());
                    tool.renamed(name).map_err(|error| faults.extend(faults_of(&error))).ok()
                };
                tools.into_iter().filter_map(renamed).collect()
            }
        }
    }
}

impl ToolsetPart {
    /// The part after a change.
    pub(crate) fn changed(&self, change: &PartChange, faults: &mut Vec<Issue>) -> ToolsetPart {
        let kind = match &self.kind {
            PartKind::Static(tools) => PartKind::Static(change.apply(tools.clone(), faults)),
            PartKind::Dynamic(source, changes) => {
                let changes = changes.iter().chain([change]).cloned().collect();
                PartKind::Dynamic(Arc::clone(source), changes)
            }
            #[cfg(feature = "search")]
            PartKind::Searchable(searchable) => {
                PartKind::Searchable(Arc::new(searchable.changed(change, faults)))
            }
        };
        ToolsetPart { origin: Arc::clone(&self.origin), kind }
    }

    /// All tools of the part, offered or not; `None` for a dynamic part.
    pub(crate) fn known(&self) -> Option<Vec<&Tool>> {
        match &self.kind {
            PartKind::Static(tools) => Some(tools.iter().collect()),
            PartKind::Dynamic(..) => None,
            #[cfg(feature = "search")]
            PartKind::Searchable(searchable) => Some(searchable.known().collect()),
        }
    }

    pub(crate) fn is_static(&self) -> bool {
        matches!(self.kind, PartKind::Static(_))
    }
}

/// Concatenates the tools of all parts, in declared order, each with the origin of its part.
///
/// # Errors
/// Every duplicate name, with both origins.
pub(crate) fn merge<'a>(listed: impl IntoIterator<Item = (&'a str, Vec<Tool>)>) -> Result<Tools, Issues> {
    let mut tools = Vec::new();
    let mut origins: Vec<&str> = Vec::new();
    for (origin, part) in listed {
        origins.extend(part.iter().map(|_| origin));
        tools.extend(part);
    }
    let faults = duplicate_names(tools.iter().zip(origins));
    if faults.is_empty() { Ok(Tools::new(tools)) } else { Err(faults.into_iter().collect()) }
}

/// A fault for each tool with a duplicate name.
pub(crate) fn duplicate_names<'a>(tools: impl IntoIterator<Item = (&'a Tool, &'a str)>) -> Vec<Issue> {
    let mut origins_by_name = HashMap::new();
    let mut faults = Vec::new();
    for (tool, origin) in tools {
        match origins_by_name.get(tool.name()) {
            None => {
                origins_by_name.insert(tool.name(), origin);
            }
            Some(first) if *first == origin => {
                let message = format!("duplicate name in toolset \"{origin}\": rename one of the two");
                faults.push(Issue::new(tool.name(), message));
            }
            Some(first) => {
                let message = format!(
                    "duplicate name in toolsets \"{first}\" and \"{origin}\": prefix or filter one of them"
                );
                faults.push(Issue::new(tool.name(), message));
            }
        }
    }
    faults
}

/// The faults of an error with the tool's name as their path.
pub(crate) fn faults_of(error: &BuildError) -> Vec<Issue> {
    match error {
        BuildError::InvalidTool { tool, faults } => faults
            .iter()
            .map(|fault| Issue::new(tool, format!("{}: {}", fault.path, fault.message)))
            .collect(),
        BuildError::InvalidTools { faults } => faults.iter().cloned().collect(),
    }
}

/// An error with all faults, if any.
pub(crate) fn fail_with(faults: Vec<Issue>) -> Result<(), BuildError> {
    if faults.is_empty() {
        Ok(())
    } else {
        Err(BuildError::InvalidTools { faults: faults.into_iter().collect() })
    }
}
