//! The tools of one step.

use std::fmt;
use std::sync::{Arc, OnceLock};

use stepfold_state_core::chat::ToolSpec;
use stepfold_state_core::state::Schema;

use super::parts::{fail_with, faults_of, merge};
use crate::error::BuildError;
use crate::resources::Resources;
use crate::tool::Tool;

/// The tools of one step, with unique names, in declared order. Immutable and cheap to clone.
///
/// # Examples
/// ```
/// use stepfold_tools::{Tool, ToolError, Tools};
///
/// async fn ping() -> Result<&'static str, ToolError> {
///     Ok("pong")
/// }
/// let ping = Tool::new("ping", "Answers.", ping).build()?;
///
/// let tools = Tools::of([ping.clone()])?;
/// assert_eq!(tools.get("ping").unwrap().name(), "ping");
/// assert_eq!(tools.specs().len(), 1);
///
/// let error = Tools::of([ping.clone(), ping]).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     r#"invalid tools: ping: duplicate name in toolset "tools": rename one of the two"#,
/// );
/// # Ok::<(), stepfold_tools::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Tools(Arc<ToolTable>);

struct ToolTable {
    tools: Vec<Tool>,
    /// The indexes of the tools, sorted by name.
    // NOTE: Comparing a few names costs less than hashing one, for any number of tools that a model is offered.
    by_name: Box<[usize]>,
    /// Created when a model is first called with them.
    specs: OnceLock<Arc<[ToolSpec]>>,
}

impl Tools {
    /// Creates tools directly, without a toolset.
    ///
    /// # Errors
    /// [`BuildError::InvalidTools`] when two have the same name.
    pub fn of(tools: impl IntoIterator<Item = Tool>) -> Result<Self, BuildError> {
        merge([("tools", tools.into_iter().collect())]).map_err(|faults| BuildError::InvalidTools { faults })
    }

    /// Creates tools whose names are known to be unique.
    pub(super) fn new(tools: Vec<Tool>) -> Self {
        let mut by_name: Box<[usize]> = (0..tools.len()).collect();
        by_name.sort_unstable_by_key(|index| tools[*index].name());
        Tools(Arc::new(ToolTable { tools, by_name, specs: OnceLock::new() }))
    }

    /// The tool with this name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        let ToolTable { tools, by_name, .. } = &*self.0;
        let place = by_name.binary_search_by(|index| tools[*index].name().cmp(name)).ok()?;
        Some(&tools[by_name[place]])
    }

    /// The names, in declared order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.tools.iter().map(Tool::name)
    }

    /// The tools, in declared order.
    pub fn iter(&self) -> std::slice::Iter<'_, Tool> {
        self.0.tools.iter()
    }

    /// The number of tools.
    pub fn len(&self) -> usize {
        self.0.tools.len()
    }

    /// Whether there are no tools.
    pub fn is_empty(&self) -> bool {
        self.0.tools.is_empty()
    }

    /// The tools' specifications for the model, in declared order: created once, shared by all clones.
    pub fn specs(&self) -> Arc<[ToolSpec]> {
        Arc::clone(self.0.specs.get_or_init(|| self.iter().map(|tool| tool.spec().clone()).collect()))
    }

    /// Checks each tool against the state schema and the run's resources, as [`Tool::check`] does. For tools
    /// of a dynamic toolset; those of a static one are checked by [`Toolset::check`](crate::Toolset::check),
    /// once.
    ///
    /// # Errors
    /// [`BuildError::InvalidTools`] with all faults of all tools.
    pub fn check(&self, schema: &Schema, resources: &Resources) -> Result<(), BuildError> {
        let check = |tool: &Tool| tool.check(schema, resources).err();
        fail_with(self.iter().filter_map(check).flat_map(|error| faults_of(&error)).collect())
    }
}

impl Default for Tools {
    /// No tools.
    fn default() -> Self {
        Tools::new(Vec::new())
    }
}

impl<'a> IntoIterator for &'a Tools {
    type Item = &'a Tool;
    type IntoIter = std::slice::Iter<'a, Tool>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
