//! A named group of tools.
//!
//! Combinators never fail: faults are collected and reported together when the agent is built
//! ([`Toolset::check`]) or, without that check, when the tools are needed.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use futures_util::future::join_all;
use stepfold_state_core::state::{Issue, Issues, NameList, Schema, State};

use super::parts::{PartChange, PartKind, ToolsetPart, duplicate_names, fail_with, faults_of, merge};
use super::source::{ListedTools, RefusedTool, SourceFunction, ToolSource};
use super::tools::Tools;
use crate::error::{BuildError, ToolsetError};
use crate::resources::Resources;
use crate::tool::{IntoTool, Tool};

/// A named group of tools: static, or dynamic and listed again at each step. Immutable and cheap to clone.
///
/// # Examples
/// ```
/// use stepfold_tools::state_core::state::{Schema, State};
/// use stepfold_tools::{Resources, Tool, ToolError, Toolset};
///
/// async fn search() -> Result<&'static str, ToolError> {
///     Ok("found")
/// }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let web = Toolset::new("web", [Tool::new("search", "Searches the web.", search)]);
/// let files = Toolset::new("files", [Tool::new("search", "Searches the files.", search)]);
/// let schema = Schema::builder().build()?;
///
/// let clash = Toolset::merged("all", [web.clone(), files.clone()]);
/// let error = clash.check(&schema, &Resources::new()).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "invalid tools: search: duplicate name in toolsets \"web\" and \"files\": \
///      prefix or filter one of them",
/// );
///
/// let all = Toolset::merged("all", [web.prefixed("web_"), files]);
/// let tools = all.resolve(&State::new(&schema).clone()).await?;
/// assert_eq!(tools.names().collect::<Vec<_>>(), ["web_search", "search"]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[doc(alias("ToolNode"))]
#[derive(Clone)]
pub struct Toolset(Arc<ToolsetDefinition>);

/// The name of a set that was made from a list.
const UNNAMED: &str = "tools";

struct ToolsetDefinition {
    name: Arc<str>,
    parts: Vec<ToolsetPart>,
    /// The faults of combinators.
    faults: Vec<Issue>,
    /// The tools or faults that are known without calling a source.
    // NOTE: Computed once: a static set is resolved at each step.
    known: OnceLock<Result<Option<Tools>, Issues>>,
}

impl Toolset {
    /// A group of these tools, built or not. Tools that cannot be built are faults of the set, reported by
    /// [`check`](Toolset::check) and [`resolve`](Toolset::resolve).
    pub fn new<T: IntoTool>(name: impl Into<Arc<str>>, tools: impl IntoIterator<Item = T>) -> Self {
        let (mut built, mut faults) = (Vec::new(), Vec::new());
        for tool in tools {
            match tool.into_tool() {
                Ok(tool) => built.push(tool),
                Err(error) => faults.extend(faults_of(&error)),
            }
        }
        Toolset::of_kind(name.into(), PartKind::Static(built), faults)
    }

    /// The same group with one tool more, after the others.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::{Tool, ToolError, Toolset};
    ///
    /// let remote = Toolset::dynamic_with("remote", |_| async { Ok(Vec::new()) });
    /// let all = remote.with_tool(Tool::new("ping", "Answers.", async || Ok::<_, ToolError>("pong")));
    /// assert!(all.static_tool("ping").is_some());
    /// ```
    #[must_use]
    pub fn with_tool(&self, tool: impl IntoTool) -> Self {
        let name = Arc::clone(&self.0.name);
        Toolset::merged(Arc::clone(&name), [self.clone(), Toolset::new(name, [tool])])
    }

    /// A dynamic group, whose source is called at each step.
    pub fn dynamic(name: impl Into<Arc<str>>, source: impl ToolSource) -> Self {
        Toolset::of_kind(name.into(), PartKind::Dynamic(Arc::new(source), Vec::new()), Vec::new())
    }

    /// A dynamic group with a function as its source.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::Toolset;
    ///
    /// let nothing_yet = Toolset::dynamic_with("remote", |_state| async { Ok(Vec::new()) });
    /// assert!(!nothing_yet.is_static());
    /// ```
    pub fn dynamic_with<F, Fut>(name: impl Into<Arc<str>>, list: F) -> Self
    where
        F: Fn(State) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Tool>, Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        Toolset::dynamic(name, SourceFunction(list))
    }

    /// Merges several groups, with their tools in the order of the groups. [`check`](Toolset::check) and
    /// [`resolve`](Toolset::resolve) reject duplicate names.
    pub fn merged<S: Into<Toolset>>(name: impl Into<Arc<str>>, sets: impl IntoIterator<Item = S>) -> Self {
        let (mut parts, mut faults) = (Vec::new(), Vec::new());
        for set in sets {
            let set: Toolset = set.into();
            parts.extend(set.0.parts.iter().cloned());
            faults.extend(set.0.faults.iter().cloned());
        }
        Toolset::of_parts(name.into(), parts, faults)
    }

    /// Prefixes the name of each tool. [`check`](Toolset::check) and [`resolve`](Toolset::resolve) reject a
    /// name that models cannot use (longer than 64 characters, for example).
    #[must_use]
    pub fn prefixed(&self, prefix: impl Into<Arc<str>>) -> Self {
        self.changed(&PartChange::Prefix(prefix.into()), Vec::new())
    }

    /// Keeps the tools that match the predicate. Of a searchable set, this applies to the searchable tools;
    /// the search tool stays.
    #[must_use]
    pub fn filtered(&self, keeps: impl Fn(&Tool) -> bool + Send + Sync + 'static) -> Self {
        self.changed(&PartChange::Filter(Arc::new(keeps)), Vec::new())
    }

    /// Keeps the tools with these names, in their own order.
    ///
    /// [`check`](Toolset::check) and [`resolve`](Toolset::resolve) reject an unknown name, unless a part of
    /// the set is dynamic, since it may have the tool at another step.
    #[must_use]
    pub fn only<N: Into<String>>(&self, names: impl IntoIterator<Item = N>) -> Self {
        let names: BTreeSet<String> = names.into_iter().map(Into::into).collect();
        let faults = self.faults_of_unknown(&names);
        self.changed(&PartChange::Filter(Arc::new(move |tool| names.contains(tool.name()))), faults)
    }

    fn faults_of_unknown(&self, names: &BTreeSet<String>) -> Vec<Issue> {
        let known: Option<Vec<Vec<&Tool>>> = self.0.parts.iter().map(ToolsetPart::known).collect();
        let Some(known) = known else { return Vec::new() };
        let known: Vec<&str> = known.into_iter().flatten().map(Tool::name).collect();
        let unknown = names.iter().filter(|name| !known.contains(&name.as_str()));
        let available: NameList = known.iter().copied().collect();
        unknown
            .map(|name| {
                Issue::new(
                    name,
                    format!("unknown tool of toolset \"{}\"; available: {available}", self.name()),
                )
            })
            .collect()
    }

    fn changed(&self, change: &PartChange, mut faults: Vec<Issue>) -> Self {
        // NOTE: In the order of the combinators, so that the first fault is the first cause.
        faults.splice(0..0, self.0.faults.iter().cloned());
        let parts = self.0.parts.iter().map(|part| part.changed(change, &mut faults)).collect();
        Toolset::of_parts(Arc::clone(&self.0.name), parts, faults)
    }

    pub(super) fn of_kind(name: Arc<str>, kind: PartKind, faults: Vec<Issue>) -> Self {
        let part = ToolsetPart { origin: Arc::clone(&name), kind };
        Toolset::of_parts(name, vec![part], faults)
    }

    fn of_parts(name: Arc<str>, parts: Vec<ToolsetPart>, faults: Vec<Issue>) -> Self {
        Toolset(Arc::new(ToolsetDefinition { name, parts, faults, known: OnceLock::new() }))
    }

    /// The name, used in errors.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether the tools are the same at every step.
    pub fn is_static(&self) -> bool {
        self.0.parts.iter().all(ToolsetPart::is_static)
    }

    /// The tools, if they are the same at every step and valid together: the result of
    /// [`resolve`](Toolset::resolve), without calling a source.
    pub fn static_tools(&self) -> Option<Tools> {
        self.known().ok().flatten()
    }

    /// A tool that is known without calling a source, including those of a set with dynamic parts.
    ///
    /// # Examples
    /// ```
    /// use stepfold_tools::{Tool, ToolError, Toolset};
    ///
    /// let ping = Tool::new("ping", "Answers.", async || Ok::<_, ToolError>("pong")).build()?;
    /// let remote = Toolset::dynamic_with("remote", |_| async { Ok(Vec::new()) });
    /// let all = Toolset::merged("all", [remote, ping.into()]);
    /// assert!(all.static_tools().is_none());
    /// assert_eq!(all.static_tool("ping").unwrap().name(), "ping");
    /// # Ok::<(), stepfold_tools::BuildError>(())
    /// ```
    pub fn static_tool(&self, name: &str) -> Option<&Tool> {
        self.known_tools().find(|tool| tool.name() == name)
    }

    /// The tools that are known without calling a source, in declared order: all but those of dynamic parts. Those of a searchable
    /// set are among them, found or not.
    pub fn known_tools(&self) -> impl Iterator<Item = &Tool> {
        self.0.parts.iter().filter_map(ToolsetPart::known).flatten()
    }

    /// The tools that dynamic groups [omitted](ToolSource::refused) from their last listings, each with its group. Calls
    /// no source: empty before the first listing.
    pub fn refused(&self) -> Vec<(String, RefusedTool)> {
        let dynamic = self.0.parts.iter().filter_map(|part| match &part.kind {
            PartKind::Dynamic(source, _) => Some((&part.origin, source.refused_tools())),
            _ => None,
        });
        let refused =
            dynamic.flat_map(|(origin, tools)| tools.into_iter().map(|tool| (origin.to_string(), tool)));
        refused.collect()
    }

    #[cfg(feature = "search")]
    pub(super) fn parts(&self) -> &[ToolsetPart] {
        &self.0.parts
    }

    /// The faults of combinators.
    #[cfg(feature = "search")]
    pub(super) fn own_faults(&self) -> &[Issue] {
        &self.0.faults
    }

    /// The tools of the step that begins with this state. Sources of dynamic groups are called concurrently;
    /// a static set returns its tools immediately.
    ///
    /// Dynamic tools are not checked against the state's schema: see [`Tools::check`].
    ///
    /// # Errors
    /// [`ToolsetError::List`] for the first group, in declared order, that failed to list its tools;
    /// [`ToolsetError::Build`] for duplicate names or names that models cannot use.
    pub async fn resolve(&self, state: &State) -> Result<Tools, ToolsetError> {
        if let Some(tools) = self.known().map_err(|faults| BuildError::InvalidTools { faults })? {
            return Ok(tools);
        }
        let answers = join_all(self.0.parts.iter().map(|part| list_tools(&part.kind, state))).await;
        let mut faults = Vec::new();
        let mut listed = Vec::new();
        for (part, answer) in self.0.parts.iter().zip(answers) {
            let tools =
                answer.map_err(|source| ToolsetError::List { toolset: part.origin.to_string(), source })?;
            listed.push((&*part.origin, apply_changes(&part.kind, tools, &mut faults)));
        }
        fail_with(faults)?;
        Ok(merge(listed).map_err(|faults| BuildError::InvalidTools { faults })?)
    }

    /// Checks all tools that are known without calling a source: each by itself, against the state schema and
    /// the run's resources, and against each other. Includes the tools of a searchable set, found or not.
    ///
    /// # Errors
    /// [`BuildError::InvalidTools`] with all faults of all tools; the path of each is the tool's name.
    pub fn check(&self, schema: &Schema, resources: &Resources) -> Result<(), BuildError> {
        let mut faults = self.known_faults();
        for part in &self.0.parts {
            match &part.kind {
                PartKind::Dynamic(..) => {}
                PartKind::Static(tools) => faults.extend(faults_of_tools(tools, schema, resources)),
                #[cfg(feature = "search")]
                PartKind::Searchable(searchable) => {
                    faults.extend(searchable.faults_of_schema(schema));
                    faults.extend(faults_of_tools(searchable.tools(), schema, resources));
                }
            }
        }
        fail_with(faults)
    }

    fn known(&self) -> Result<Option<Tools>, Issues> {
        let find = || {
            let faults = self.known_faults();
            if !faults.is_empty() {
                return Err(faults.into_iter().collect());
            }
            let listed: Option<Vec<_>> = self.0.parts.iter().map(static_tools).collect();
            listed.map(merge).transpose()
        };
        self.0.known.get_or_init(find).clone()
    }

    pub(super) fn known_faults(&self) -> Vec<Issue> {
        let known = self.0.parts.iter().filter_map(|part| Some((&*part.origin, part.known()?)));
        let known = known.flat_map(|(origin, tools)| tools.into_iter().map(move |tool| (tool, origin)));
        self.0.faults.iter().cloned().chain(duplicate_names(known)).collect()
    }
}

fn static_tools(part: &ToolsetPart) -> Option<(&str, Vec<Tool>)> {
    if let PartKind::Static(tools) = &part.kind { Some((&*part.origin, tools.clone())) } else { None }
}

async fn list_tools(kind: &PartKind, state: &State) -> ListedTools {
    match kind {
        PartKind::Static(tools) => Ok(tools.clone()),
        PartKind::Dynamic(source, _) => source.list(state).await,
        #[cfg(feature = "search")]
        PartKind::Searchable(searchable) => searchable.offered(state),
    }
}

fn apply_changes(kind: &PartKind, tools: Vec<Tool>, faults: &mut Vec<Issue>) -> Vec<Tool> {
    if let PartKind::Dynamic(_, changes) = kind {
        changes.iter().fold(tools, |tools, change| change.apply(tools, faults))
    } else {
        tools
    }
}

fn faults_of_tools(tools: &[Tool], schema: &Schema, resources: &Resources) -> Vec<Issue> {
    let check = |tool: &Tool| tool.check(schema, resources).err();
    tools.iter().filter_map(check).flat_map(|error| faults_of(&error)).collect()
}

/// A set of one tool, with its name.
impl<T: IntoTool> From<T> for Toolset {
    fn from(tool: T) -> Self {
        let tool = tool.into_tool();
        let name = match &tool {
            Ok(tool) => tool.name().to_owned(),
            Err(_) => UNNAMED.to_owned(),
        };
        Toolset::new(name, [tool])
    }
}

/// A set named "tools".
impl<T: IntoTool> From<Vec<T>> for Toolset {
    fn from(tools: Vec<T>) -> Self {
        Toolset::new(UNNAMED, tools)
    }
}

/// A set named "tools".
impl<T: IntoTool, const N: usize> From<[T; N]> for Toolset {
    fn from(tools: [T; N]) -> Self {
        Toolset::new(UNNAMED, tools)
    }
}

/// A set named "tools".
impl<T: IntoTool> FromIterator<T> for Toolset {
    fn from_iter<I: IntoIterator<Item = T>>(tools: I) -> Self {
        Toolset::new(UNNAMED, tools)
    }
}

/// An empty set named "tools".
impl Default for Toolset {
    fn default() -> Self {
        Toolset::of_kind(UNNAMED.into(), PartKind::Static(Vec::new()), Vec::new())
    }
}

impl fmt::Debug for Toolset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let description = |part: &ToolsetPart| match part.known() {
            None => format!("{}, dynamic", part.origin),
            Some(tools) => format!("{}, {} tools", part.origin, tools.len()),
        };
        f.debug_struct("Toolset")
            .field("name", &self.0.name)
            .field("parts", &self.0.parts.iter().map(description).collect::<Vec<_>>())
            .finish()
    }
}
