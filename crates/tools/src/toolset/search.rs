//! A toolset for hundreds of tools: the model sees only those that it has found by a search.
//!
//! It is immutable. The tools found by a run are in the state of that run, under a `temp:` key, so that runs
//! are independent and a replay offers the same tools.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use stepfold_state_core::json_schema::ValueType;
use stepfold_state_core::state::{Handler, Issue, Key, Schema, SchemaBuilder, State};

use super::parts::{PartChange, PartKind, fail_with, faults_of};
use super::search_index::ToolIndex;
use super::toolset::Toolset;
use crate::context::ToolContext;
use crate::error::{BuildError, ToolError};
use crate::extract::Args;
use crate::policy::Effect;
use crate::tool::Tool;

/// The key of the names of the tools that a run has found, in order. [`SearchableToolset::declare_in`]
/// declares it.
// NOTE: In the state and not in the toolset, which all runs share: it survives a pause and is replayed.
pub const FOUND_TOOLS: Key<Vec<String>> = Key::new("temp:found_tools");

const SEARCH_TOOL: &str = "search_tools";
const DEFAULT_LIMIT: usize = 5;
const MAX_LIMIT: usize = 20;

/// Offers hundreds of tools through one: the model sees `search_tools` and, from the step after a search on,
/// the tools found.
///
/// The search covers names, descriptions, and the names and descriptions of parameters, by BM25. Found tools
/// are offered until the invocation ends. New ones are appended, so that a provider's cache of the list stays
/// valid.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_tools::state_core::state::{Schema, State};
/// use stepfold_tools::{FOUND_TOOLS, Resources, SearchableToolset, Tool, ToolError};
///
/// async fn done() -> Result<&'static str, ToolError> {
///     Ok("done")
/// }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let tools = [
///     Tool::new("send_invoice", "Sends an invoice to a customer.", done).build()?,
///     Tool::new("book_flight", "Books a flight.", done).build()?,
///     Tool::new("now", "Returns the time.", done).build()?,
/// ];
/// let office = SearchableToolset::new("office", tools).always_visible(["now"]).build()?;
/// let schema = SearchableToolset::declare_in(Schema::builder()).build()?;
/// office.check(&schema, &Resources::new())?;
///
/// let mut state = State::new(&schema);
/// let tools = office.resolve(&state.clone()).await?;
/// assert_eq!(tools.names().collect::<Vec<_>>(), ["search_tools", "now"]);
///
/// // The write of a call of `search_tools` with "invoices":
/// state.set(FOUND_TOOLS, vec!["send_invoice".to_owned()])?;
/// let tools = office.resolve(&state.clone()).await?;
/// assert_eq!(tools.names().collect::<Vec<_>>(), ["search_tools", "now", "send_invoice"]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct SearchableToolset {
    tools: Toolset,
    options: SearchOptions,
}

#[derive(Clone, Debug)]
struct SearchOptions {
    name: Arc<str>,
    search_tool: String,
    description: Option<String>,
    always_visible: Vec<String>,
    default_limit: usize,
    max_limit: usize,
}

impl SearchableToolset {
    /// A searchable group of these tools, which must be known from the start.
    pub fn new(name: impl Into<Arc<str>>, tools: impl Into<Toolset>) -> Self {
        let options = SearchOptions {
            name: name.into(),
            search_tool: SEARCH_TOOL.to_owned(),
            description: None,
            always_visible: Vec::new(),
            default_limit: DEFAULT_LIMIT,
            max_limit: MAX_LIMIT,
        };
        SearchableToolset { tools: tools.into(), options }
    }

    /// Declares [`FOUND_TOOLS`], which all searchable groups of an agent share.
    pub fn declare_in(schema: SchemaBuilder) -> SchemaBuilder {
        schema
            .key(FOUND_TOOLS)
            .handler(Handler::union())
            .description("the tools that searches of this invocation have found")
    }

    /// Tools that the model sees without a search.
    pub fn always_visible<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.options.always_visible.extend(names.into_iter().map(Into::into));
        self
    }

    /// Sets how many tools a search finds by default, and the maximum that the model can request; 5 and 20 by
    /// default.
    pub fn limits(mut self, default: usize, max: usize) -> Self {
        self.options.default_limit = default;
        self.options.max_limit = max;
        self
    }

    /// Prefixes the name of the search tool only, for merging several searchable groups.
    /// [`Toolset::prefixed`] prefixes all names, including this one.
    pub fn search_tool_prefix(mut self, prefix: impl AsRef<str>) -> Self {
        self.options.search_tool.insert_str(0, prefix.as_ref());
        self
    }

    /// Sets the search tool's description for the model: best, the kinds of tools that it finds.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.options.description = Some(text.into());
        self
    }

    /// Validates the options and builds the index.
    ///
    /// # Errors
    /// [`BuildError::InvalidTools`] with all faults: a dynamic group, duplicate names or names that models
    /// cannot use, an unknown always visible tool, invalid limits.
    pub fn build(self) -> Result<Toolset, BuildError> {
        let mut faults = self.options.faults();
        let mut tools = Vec::new();
        for part in self.tools.parts() {
            if let PartKind::Static(listed) = &part.kind {
                tools.extend(listed.iter().cloned());
            } else {
                let message = "dynamic toolsets cannot be searched: list the tools first";
                faults.push(Issue::new(format!("toolset \"{}\"", part.origin), message));
            }
        }
        if tools.is_empty() && faults.is_empty() {
            faults.push(Issue::new(&*self.options.name, "must contain tools to search"));
        }
        for name in &self.options.always_visible {
            if !tools.iter().any(|tool| tool.name() == name) {
                faults.push(Issue::new(
                    name,
                    format!("unknown always visible tool; not in toolset \"{}\"", self.options.name),
                ));
            }
        }
        let name = Arc::clone(&self.options.name);
        let searchable = SearchableTools::new(self.options, tools, &mut faults);
        // Faults of the inner set's combinators come first.
        let toolset = Toolset::of_kind(
            name,
            PartKind::Searchable(Arc::new(searchable)),
            self.tools.own_faults().to_vec(),
        );
        faults.splice(0..0, toolset.known_faults());
        fail_with(faults)?;
        Ok(toolset)
    }
}

impl SearchOptions {
    fn faults(&self) -> Vec<Issue> {
        let mut faults = Vec::new();
        if self.default_limit == 0 {
            faults.push(Issue::new(&self.search_tool, "invalid default limit 0: must be at least 1"));
        }
        if self.default_limit > self.max_limit {
            let message = format!(
                "invalid default limit {}: must be at most the maximum of {}",
                self.default_limit, self.max_limit
            );
            faults.push(Issue::new(&self.search_tool, message));
        }
        faults
    }
}

/// The built form: the tools, the index over them, and the search tool.
pub(crate) struct SearchableTools {
    options: SearchOptions,
    tools: Vec<Tool>,
    by_name: BTreeMap<Arc<str>, usize>,
    /// `None` if nothing is left to search, or its name is invalid.
    search_tool: Option<Tool>,
}

impl SearchableTools {
    fn new(options: SearchOptions, tools: Vec<Tool>, faults: &mut Vec<Issue>) -> Self {
        let by_name = tools
            .iter()
            .enumerate()
            .map(|(index, tool)| (Arc::clone(&tool.definition().name), index))
            .collect();
        let search_tool = (!tools.is_empty())
            .then(|| search_tool(&options, &tools))
            .and_then(|built| built.map_err(|error| faults.extend(faults_of(&error))).ok());
        SearchableTools { options, tools, by_name, search_tool }
    }

    /// The searchable tools.
    pub(super) fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// All tools, the search tool first.
    pub(super) fn known(&self) -> impl Iterator<Item = &Tool> {
        self.search_tool.iter().chain(&self.tools)
    }

    /// The tools of a step: the search tool, those always visible, those found so far.
    pub(super) fn offered(&self, state: &State) -> Result<Vec<Tool>, Box<dyn Error + Send + Sync>> {
        let found =
            if state.schema().key(FOUND_TOOLS.name()).is_some() { state.get(FOUND_TOOLS)? } else { None };
        let mut offered: Vec<Tool> = self.search_tool.iter().cloned().collect();
        let mut seen = BTreeSet::new();
        // Unknown names were found by another searchable set.
        let names = self.options.always_visible.iter().chain(found.iter().flatten());
        for index in names.filter_map(|name| self.by_name.get(name.as_str())) {
            if seen.insert(*index) {
                offered.push(self.tools[*index].clone());
            }
        }
        Ok(offered)
    }

    /// The set after a change: the search tool must refer to tools by their new names.
    pub(super) fn changed(&self, change: &PartChange, faults: &mut Vec<Issue>) -> Self {
        let mut options = self.options.clone();
        if let PartChange::Prefix(prefix) = change {
            options.search_tool.insert_str(0, prefix);
            options.always_visible.iter_mut().for_each(|name| name.insert_str(0, prefix));
        }
        SearchableTools::new(options, change.apply(self.tools.clone(), faults), faults)
    }

    /// The fault of the key for found tools, if any.
    pub(super) fn faults_of_schema(&self, schema: &Schema) -> Option<Issue> {
        let remedy = "declare it with `SearchableToolset::declare_in(Schema::builder())`";
        let problem = match schema.key(FOUND_TOOLS.name()) {
            None => "not declared by the schema".to_owned(),
            Some(key) if *key.handler() != Handler::union() => {
                format!("merged by {} instead of union, which would lose or duplicate results", key.handler())
            }
            Some(key) => {
                let holds_names = ValueType::of_schema(key.json_schema().clone())
                    .is_ok_and(|value_type| value_type.check(&json!(["name"])).is_ok());
                if holds_names {
                    return None;
                }
                "not declared as a list of strings".to_owned()
            }
        };
        let message =
            format!("invalid state key \"{}\" for found tools: {problem}; {remedy}", FOUND_TOOLS.name());
        Some(Issue::new(&self.options.search_tool, message))
    }
}

/// The arguments of the search tool.
#[derive(Deserialize, JsonSchema)]
struct SearchArguments {
    query: String,
    limit: Option<usize>,
}

fn search_tool(options: &SearchOptions, tools: &[Tool]) -> Result<Tool, BuildError> {
    let (default, max) = (options.default_limit, options.max_limit);
    let index = Arc::new(ToolIndex::new(tools));
    let described: Arc<[(String, String)]> =
        tools.iter().map(|tool| (tool.name().to_owned(), tool.spec().description.clone())).collect();
    let search = move |Args(search): Args<SearchArguments>, context: ToolContext| {
        // NOTE: `max(1)`: invalid limits are reported by `build`, after this tool exists.
        let limit = search.limit.unwrap_or(default).clamp(1, max.max(1));
        let found = if search.query.trim().is_empty() {
            Err(ToolError::permanent("the query is empty; say in a few words what the tool should do"))
        } else {
            let found = index.search(&search.query, limit);
            record_found(&context, &found.into_iter().map(|index| &described[index]).collect::<Vec<_>>())
        };
        async move { found }
    };
    let description = options.description.clone().unwrap_or_else(|| {
        format!(
            "Searches {} further tools by what they do. Those that it finds can be called from the next step on.",
            tools.len()
        )
    });
    Tool::new(&options.search_tool, description, search)
        .parameters(json!({
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What the tool should do, in a few words."},
                "limit": {
                    "type": ["integer", "null"],
                    "minimum": 1,
                    "description": format!("How many tools to find; {default} by default, at most {max}."),
                },
            },
            "required": ["query"],
        }))
        .writes([FOUND_TOOLS.name()])
        // NOTE: The write to the state is part of the outcome, and not an effect outside the process.
        .effect(Effect::Pure)
        .build()
}

/// Writes the found tools to the state and returns them to the model.
fn record_found(context: &ToolContext, found: &[&(String, String)]) -> Result<Value, ToolError> {
    if found.is_empty() {
        let note = "no tool matches; try other words for what you want to do, such as another verb or the name of a system";
        return Ok(json!({"tools": [], "note": note}));
    }
    let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
    context.writer().set(FOUND_TOOLS, names).map_err(ToolError::fatal)?;
    let tools: Vec<Value> =
        found.iter().map(|(name, description)| json!({"name": name, "description": description})).collect();
    Ok(json!({"tools": tools, "note": "these tools can be called from the next step on"}))
}
