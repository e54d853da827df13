//! An agent as a node: its shared keys, and its request.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use serde_json::{Value, json};
use stepfold_agent_loop::plan::{BranchAgent, NotBegun, OpenBranch};
use stepfold_agent_loop::{Agent, AgentBuilder, AgentError, PlannedBranch};
use stepfold_state_core::chat::Transcript;
use stepfold_state_core::state::{Delta, Handler, KeySchema, Schema, State, StateError, Template, Write};
use stepfold_tools::{CancellationToken, panic_message};

use super::context::{NodeContext, NodeError, NodeErrorKind};
use super::schema_types;

/// An agent, or a graph, as a node of a graph.
///
/// It works on the graph's state: on the keys that both schemas declare equally. An agent that is passed as
/// its [builder](stepfold_agent_loop::AgentBuilder) need not declare them: its instructions and the bindings
/// of its tools read and write keys of the graph's schema. Its writes are merged into the graph's state by
/// the same handlers, when the superstep ends. Without a [request](AgentNode::asks), it continues the graph's
/// conversation, and its messages are appended there; if its branch has an item, that is its request.
///
/// Each commit of its own run is one of the graph's run: after a crash it continues, tool calls that must not run twice
/// are not repeated, and when a call needs approval, the graph waits.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use stepfold_agent_loop::test_kit::Script;
/// use serde_json::json;
/// use stepfold_graph::{AgentNode, END, Graph, START};
/// use stepfold_agent_loop::{Agent, Input};
/// use stepfold_state_core::state::Schema;
///
/// # let model = Script::parse("assistant: 12 stalls")?;
/// let counter = Agent::builder(model).build()?;
/// let graph = Graph::builder("stalls")
///     .schema(Schema::builder().key::<u64>("area").key::<String>("answer").build()?)
///     .node("count", AgentNode::new(counter).asks("How many stalls has area {area}?").answers("answer"))
///     .edge(START, "count")
///     .edge("count", END)
///     .build()?;
///
/// let outcome = graph.run(Input::new().with_values(json!({"area": 3}))).await?;
/// assert_eq!(outcome.state().get("answer").unwrap(), "12 stalls");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[must_use = "a node does nothing until it is in a graph"]
#[derive(Clone)]
pub struct AgentNode {
    agent: NodeAgent,
    prompt: Option<NodePrompt>,
    pub(crate) answers: Vec<AnswerTarget>,
    pub(crate) kind: Option<String>,
    shared: Option<Vec<String>>,
    adjust: Option<Arc<AdjustFunction>>,
}

/// The agent of a node. A builder is built when the graph is, since it reads keys of the graph's schema.
#[derive(Clone)]
enum NodeAgent {
    Built(Agent),
    Draft(Box<AgentBuilder>),
}

impl From<Agent> for AgentNode {
    fn from(agent: Agent) -> Self {
        AgentNode::of(NodeAgent::Built(agent))
    }
}

impl From<AgentBuilder> for AgentNode {
    fn from(builder: AgentBuilder) -> Self {
        AgentNode::of(NodeAgent::Draft(Box::new(builder)))
    }
}

/// The destination of an answer, or of a field of it.
#[derive(Clone)]
pub(crate) struct AnswerTarget {
    pub(crate) key: String,
    field: Option<String>,
}

impl AnswerTarget {
    fn part_of<'a>(&self, answer: &'a Value) -> Result<Option<&'a Value>, String> {
        let Some(field) = &self.field else { return Ok(Some(answer)) };
        match answer {
            Value::Object(fields) => Ok(fields.get(field)),
            _ => Err(format!(
                "missing field \"{field}\" for \"{}\": expected an object as the answer",
                self.key
            )),
        }
    }
}

#[derive(Clone)]
enum NodePrompt {
    Template(Template),
    Function(Arc<PromptFunction>),
}

type PromptFunction = dyn Fn(&NodeContext) -> Result<String, NodeError> + Send + Sync;

type AdjustFunction = dyn Fn(&State, AgentBuilder) -> Result<AgentBuilder, NodeError> + Send + Sync;

impl AgentNode {
    /// A node of this agent, or of this graph. The builder of an agent is built with the graph, and reads keys of the
    /// graph's schema without declaring them again.
    pub fn new(agent: impl Into<AgentNode>) -> Self {
        agent.into()
    }

    const fn of(agent: NodeAgent) -> Self {
        AgentNode { agent, prompt: None, answers: Vec::new(), kind: None, shared: None, adjust: None }
    }

    /// Sets the agent's request, in a separate conversation: a
    /// [template](stepfold_state_core::state::Template) over the state, in which `{item}` is the branch's
    /// item. The graph is not built with a key that its schema does not have.
    pub fn asks(mut self, template: impl Into<String>) -> Self {
        self.prompt = Some(NodePrompt::Template(Template::parse(template)));
        self
    }

    /// Asks the agent with the text of a function, in a conversation of its own. The function may
    /// [ask](NodeContext::ask) for approval first.
    pub fn asks_with<F>(mut self, prompt: F) -> Self
    where
        F: Fn(&NodeContext) -> Result<String, NodeError> + Send + Sync + 'static,
    {
        self.prompt = Some(NodePrompt::Function(Arc::new(prompt)));
        self
    }

    /// Writes the agent's answer to this key: its [output](stepfold_agent_loop::AgentBuilder::output) if it
    /// has one, otherwise its last text. An empty answer writes nothing. The graph is not built with a key whose type can
    /// never take it.
    pub fn answers(mut self, key: impl Into<String>) -> Self {
        self.answers.push(AnswerTarget { key: key.into(), field: None });
        self
    }

    /// Writes a field of the agent's answer to this key. The answer must be an object: set the agent's
    /// [output](stepfold_agent_loop::AgentBuilder::output). A missing field leaves the key unchanged.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use serde_json::json;
    /// use stepfold_graph::{AgentNode, Graph, START};
    /// use stepfold_agent_loop::{Agent, Input, Output};
    /// use stepfold_state_core::state::Schema;
    ///
    /// # let model = Script::parse("assistant: {\"areas\": [3, 7], \"why\": \"they are full\"}")?;
    /// let plan = Output::schema("plan", json!({"type": "object"}));
    /// let planner = Agent::builder(model).output_with(plan).build()?;
    /// let graph = Graph::builder("plan")
    ///     .schema(Schema::builder().key::<Vec<u64>>("areas").key::<String>("why").build()?)
    ///     .node("plan", AgentNode::new(planner).answers_field("areas", "areas").answers_field("why", "why"))
    ///     .edge(START, "plan")
    ///     .build()?;
    ///
    /// let outcome = graph.run(Input::new().say("which areas?")).await?;
    /// assert_eq!(outcome.state().get("areas").unwrap(), json!([3, 7]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn answers_field(mut self, key: impl Into<String>, field: impl Into<String>) -> Self {
        self.answers.push(AnswerTarget { key: key.into(), field: Some(field.into()) });
        self
    }

    /// Appends the agent's answer to `outputs`, with this kind; observers receive it as
    /// [`RunEvent::Output`](stepfold_agent_loop::RunEvent::Output). The answers of [tracked](super::Node::tracked) nodes
    /// are always appended, by default without a kind.
    pub fn outputs(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Shares only these keys.
    pub fn shares<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.shared.get_or_insert_default().extend(keys.into_iter().map(Into::into));
        self
    }

    /// Changes the agent by the graph's state, for each run of the node: another model, parameters, approval. It
    /// must not change the schema, and must give the same for the same state. An error is the failure of the node.
    ///
    /// [`per_run`](super::per_run()) follows `model_id`, `params` and `auto`.
    pub fn adjust<F>(mut self, adjust: F) -> Self
    where
        F: Fn(&State, AgentBuilder) -> Result<AgentBuilder, NodeError> + Send + Sync + 'static,
    {
        self.adjust = Some(Arc::new(adjust));
        self
    }

    /// Builds the agent if that is still to be done, on the keys of the graph's schema that are shared.
    pub(super) fn build(&mut self, graph: &Schema) -> Result<(), AgentError> {
        if let NodeAgent::Draft(builder) = &self.agent {
            let keys = graph.declared_keys().map(KeySchema::name).filter(|name| self.wants(name));
            let keys = Schema::default().with_keys_of(graph, keys);
            self.agent = NodeAgent::Built(builder.as_ref().clone().graph_schema(keys).build()?);
        }
        Ok(())
    }

    pub(crate) fn agent(&self) -> &Agent {
        match &self.agent {
            NodeAgent::Built(agent) => agent,
            NodeAgent::Draft(_) => unreachable!("the graph has built the agents of its nodes"),
        }
    }

    /// The use that the node makes of its agent, for the fingerprint of the graph. Functions are compared by whether there is one.
    pub(crate) fn settings(&self) -> Value {
        let prompt = match &self.prompt {
            None => Value::Null,
            Some(NodePrompt::Template(template)) => template.text().into(),
            Some(NodePrompt::Function(_)) => true.into(),
        };
        let answers: Vec<_> = self.answers.iter().map(|target| (&target.key, &target.field)).collect();
        json!([prompt, answers, self.kind, self.shared, self.adjust.is_some()])
    }

    fn wants(&self, name: &str) -> bool {
        self.shared.as_ref().is_none_or(|keys| keys.iter().any(|key| key == name))
    }

    /// The shared keys that both schemas declare equally.
    pub(crate) fn shared<'a>(&'a self, graph: &'a Schema) -> impl Iterator<Item = &'a str> {
        graph.declared_keys().map(KeySchema::name).filter(move |name| self.is_shared(graph, name))
    }

    fn is_shared(&self, graph: &Schema, name: &str) -> bool {
        let own = self.agent().schema().key(name).map(KeySchema::json_schema);
        self.wants(name) && own.is_some() && own == graph.key(name).map(KeySchema::json_schema)
    }

    /// The requested shared keys that are not declared equally.
    pub(crate) fn unshared(&self, graph: &Schema) -> Vec<String> {
        let shared: Vec<&str> = self.shared(graph).collect();
        let wanted = self.shared.iter().flatten();
        wanted.filter(|key| !shared.contains(&key.as_str())).cloned().collect()
    }

    /// The keys that the request names and the graph does not have, optional ones included.
    pub(super) fn unknown_in_request<'a>(&'a self, graph: &'a Schema) -> impl Iterator<Item = &'a str> {
        let template = match &self.prompt {
            Some(NodePrompt::Template(template)) => Some(template),
            _ => None,
        };
        let is_known = move |name: &str| name == "item" || graph.key(name).is_some() || graph.is_open();
        let names = template.into_iter().flat_map(Template::placeholders).map(|(name, _)| name);
        // A dotted name is a key, or leads into the value of one.
        names.filter(move |name| {
            !name.match_indices('.').map(|(dot, _)| &name[..dot]).chain([*name]).any(is_known)
        })
    }

    /// Why an answer cannot be written to a key, if its type tells: that of the agent's output or of a field of it, or
    /// text.
    pub(super) fn answer_type_fault(&self, to: &AnswerTarget, graph: &Schema) -> Option<String> {
        // What is adjusted may have another output.
        let output = self.agent().output_schema().filter(|_| self.adjust.is_none());
        let kind = match (output, &to.field) {
            (Some(output), Some(field)) => schema_types::only(output.get("properties")?.get(field)?)?,
            (Some(output), None) => schema_types::only(output)?,
            (None, None) if self.adjust.is_none() => "string",
            _ => return None,
        };
        let declared = graph.key(&to.key)?.json_schema();
        // A merge handler may take what is not of the key's type.
        let is_refused = graph.write(to.key.as_str(), schema_types::sample(kind)?).is_err();
        (is_refused && schema_types::excludes_as_item(declared, kind)).then(|| {
            let (key, expected) = (&to.key, schema_types::display_types(declared));
            let hint = if output.is_some() { "" } else { ": give the agent an output of that type" };
            let kind = if output.is_some() { kind } else { "the text of an agent without output" };
            format!("invalid type of the answer for \"{key}\": expected {expected}, found {kind}{hint}")
        })
    }

    pub(crate) const fn is_in_conversation(&self, item: Option<&Value>) -> bool {
        self.prompt.is_none() && item.is_none()
    }

    /// The writes of an answer.
    pub(super) fn writes_of(&self, answer: Option<&Value>, graph: &Schema) -> Result<Delta, String> {
        let mut delta = Delta::new();
        let Some(answer) = answer else { return Ok(delta) };
        for to in &self.answers {
            if let Some(value) = to.part_of(answer)? {
                let write = graph.write(to.key.as_str(), value.clone());
                delta.push(write.map_err(|error| NodeError::from(error).to_string())?);
            }
        }
        Ok(delta)
    }
}

/// The application's functions configure the agent and its request. They may panic.
impl BranchAgent for AgentNode {
    fn agent(&self) -> &Agent {
        AgentNode::agent(self)
    }

    fn agent_on(&self, state: &State) -> Result<Agent, String> {
        let Some(adjust) = &self.adjust else { return Ok(self.agent().clone()) };
        // NOTE: Changes for one run: an adjusted agent may leave out tools that its exit conditions name.
        let adjusted = || Ok(adjust(state, self.agent().to_builder().for_one_run())?.build()?);
        catch_panic("what adjusts its agent", adjusted).map_err(|error| error.to_string())
    }

    /// The values shared with the graph's state.
    fn state_on(&self, branch: &OpenBranch) -> Result<State, StateError> {
        let (state, own) = (&branch.state, self.agent().schema());
        let mut base = if self.shared.is_none() && own == state.schema() {
            state.clone()
        } else {
            let mut base = State::new(own);
            for key in self.shared(state.schema()) {
                if let Some(value) = state.get(key) {
                    base.set_with(key, value.to_json(), &Handler::replace_values())?;
                }
            }
            base
        };
        // NOTE: With a request of its own, the agent has a separate conversation, so that its calls do not stand in
        // that of the graph.
        base.replace_messages(match self.is_in_conversation(branch.planned.item.as_ref()) {
            true => state.messages().clone(),
            false => Transcript::new(),
        });
        Ok(base)
    }

    fn prompt(&self, branch: &OpenBranch) -> Result<Option<String>, NotBegun> {
        let (state, item) = (&branch.state, branch.planned.item.as_ref());
        match &self.prompt {
            Some(NodePrompt::Function(prompt)) => {
                let context = NodeContext::of(branch.clone(), CancellationToken::new(), None);
                match catch_panic("its prompt", || prompt(&context)) {
                    Ok(prompt) => Ok(Some(prompt)),
                    Err(NodeError(NodeErrorKind::Asks(request))) => Err(NotBegun::Asks(request)),
                    Err(error) => Err(NotBegun::Failed(error.to_string())),
                }
            }
            Some(NodePrompt::Template(template)) => {
                let lookup = |key: &str| match (key, item) {
                    ("item", Some(item)) => Some(item.into()),
                    _ => state.get(key),
                };
                let known = || state.iter().map(|(key, _)| key).chain(item.map(|_| "item")).collect();
                let rendered = template.render_with(lookup, known);
                rendered.map(Some).map_err(|error| NotBegun::Failed(NodeError::from(error).to_string()))
            }
            None => Ok(item.map(|item| match item {
                Value::String(text) => text.clone(),
                item => item.to_string(),
            })),
        }
    }

    fn shares_write(&self, graph: &Schema, write: &Write) -> bool {
        self.is_shared(graph, write.key())
    }

    fn shares_messages(&self, planned: &PlannedBranch) -> bool {
        self.is_in_conversation(planned.item.as_ref())
    }
}

/// Calls a function of an application; a panic becomes an error.
fn catch_panic<T>(what: &str, function: impl FnOnce() -> Result<T, NodeError>) -> Result<T, NodeError> {
    std::panic::catch_unwind(AssertUnwindSafe(function)).unwrap_or_else(|panic| {
        Err(NodeError::permanent(format!("{what} panicked: {}", panic_message(&*panic))))
    })
}

impl fmt::Debug for AgentNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.agent {
            NodeAgent::Built(agent) => Some(agent.name()),
            NodeAgent::Draft(_) => None,
        };
        f.debug_struct("AgentNode").field("agent", &name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::progress::ResearchState;
    use crate::{Graph, Node, START};
    use stepfold_agent_loop::test_kit::Script;
    use stepfold_agent_loop::{Input, RunEvent};

    fn graph(node: Node, schema: Schema) -> Result<Graph, AgentError> {
        Graph::builder("small").schema(schema).node("count", node).edge(START, "count").build()
    }

    fn counter() -> AgentNode {
        AgentNode::new(Agent::builder(Script::parse("assistant: 12 stalls").unwrap()).build().unwrap())
    }

    #[tokio::test]
    async fn an_answer_is_an_output_of_its_kind() {
        let schema = || ResearchState::schema().unwrap();
        let tasks = json!({"tasks": [{"id": 1}], "current_task_id": 1});
        let cases = [
            (Node::agent(counter()), json!([])),
            (
                Node::agent(counter().outputs("finding")),
                json!([{"node": "count", "kind": "finding", "task_id": 1, "content": "12 stalls"}]),
            ),
            (
                Node::agent(counter()).tracked(),
                json!([{"node": "count", "task_id": 1, "content": "12 stalls"}]),
            ),
            (
                Node::agent(counter().outputs("finding")).tracked(),
                json!([{"node": "count", "kind": "finding", "task_id": 1, "content": "12 stalls"}]),
            ),
        ];
        for (node, expected) in cases {
            let mut seen = Vec::new();
            let graph = graph(node, schema()).unwrap();
            let input = Input::from("count").with_values(tasks.clone());
            let outcome = graph.run(input).observe(&mut seen).await.unwrap();
            let outputs = outcome.state().get("outputs").unwrap().to_json();
            assert_eq!(outputs, expected);
            let told = seen.iter().filter(|event| matches!(event, RunEvent::Output { .. })).count();
            assert_eq!(told, expected.as_array().map_or(0, Vec::len));
        }
    }

    #[tokio::test]
    async fn at_a_limit_the_final_answer_is_the_answer() {
        let agent = |is_asked_once_more: bool| {
            let model = Script::parse("assistant: > c1 look()\nassistant: 12 stalls, I think").unwrap();
            let agent = Agent::builder(model).max_steps(1);
            if is_asked_once_more { agent.final_answer().build() } else { agent.build() }
        };
        let node = |agent| Node::agent(AgentNode::new(agent).asks("count").answers("answer"));
        let schema = || Schema::builder().key::<String>("answer").build().unwrap();
        // A tool, since without any there is one request to the model, and no limit.
        let look =
            || stepfold_tools::Tool::new("look", "Looks.", async || Ok::<_, stepfold_tools::ToolError>(3));
        let with_tool = |agent: Agent| agent.to_builder().tools([look().build().unwrap()]).build().unwrap();

        let asked = graph(node(with_tool(agent(true).unwrap())), schema()).unwrap();
        let outcome = asked.run(Input::new()).await.unwrap();
        assert_eq!(outcome.state().get("answer").unwrap(), "12 stalls, I think");
        let not_asked = graph(node(with_tool(agent(false).unwrap())), schema()).unwrap();
        let outcome = not_asked.run(Input::new()).await.unwrap();
        assert!(outcome.exit().to_string().contains("did not finish"), "{:?}", outcome.exit());
    }

    #[test]
    fn an_output_needs_its_key() {
        let schema = Schema::builder().key::<u64>("area").build().unwrap();
        let error = graph(Node::agent(counter().outputs("finding")), schema).unwrap_err().to_string();
        assert!(error.contains("node 'count': invalid output: unknown key \"outputs\""), "{error}");
    }

    #[test]
    fn an_answer_goes_to_a_key_whole_or_by_a_field() {
        let to =
            |field: Option<&str>| AnswerTarget { key: "areas".to_owned(), field: field.map(str::to_owned) };
        let answer = json!({"areas": [3, 7]});
        assert_eq!(to(None).part_of(&answer), Ok(Some(&answer)));
        assert_eq!(to(Some("areas")).part_of(&answer), Ok(Some(&json!([3, 7]))));
        assert_eq!(to(Some("why")).part_of(&answer), Ok(None));
        let error = to(Some("areas")).part_of(&json!("3 and 7")).unwrap_err();
        assert_eq!(error, "missing field \"areas\" for \"areas\": expected an object as the answer");
    }
}
