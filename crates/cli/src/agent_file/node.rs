//! Builds the nodes of a graph: agents, programs and texts.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use stepfold::agent_loop::StateValue;
use stepfold::graph::{AgentNode, Node, NodeContext, NodeError, Update, per_run};
use stepfold::prelude::*;
use stepfold::state_core::canonical_json;
use stepfold::state_core::state::{KeySchema, Template};
use stepfold::tools::Retry;

use super::graph::{GraphSource, library_name};
use super::{AgentFile, BuiltFile, EnclosingGraphs, agent, models_of};
use crate::form::agent::{
    AgentFileForm, EffectForm, NamedValues, ProgramForm, StateKeyForm, ToolOutputFormat,
};
use crate::form::budget::report_misplaced;
use crate::form::graph::{AgentForm, AnswersForm, NodeApprovalForm, NodeForm, NodeNames};
use crate::form::rate_limit::report_misplaced_limits;
use crate::form::{FaultCollector, check_closed, unknown_key};
use crate::tool::ExternalProgram;

/// Builds a node from its form.
pub(super) struct NodeBuilder<'a> {
    pub(super) name: &'a str,
    pub(super) form: &'a NodeForm,
    pub(super) schema: &'a Schema,
    /// The keys that the file declares.
    pub(super) declared: &'a NamedValues<StateKeyForm>,
    pub(super) place: &'a GraphSource<'a>,
    /// Whether agents are configured by the state.
    pub(super) per_run: bool,
    pub(super) enclosing: &'a EnclosingGraphs,
}

/// A node, and whether its agent continues the graph's conversation.
pub(super) struct BuiltNode {
    pub(super) node: Node,
    pub(super) speaks: bool,
}

/// The keys that an answer is written to, each with the field of the answer; without one, all of it.
type AnswerBindings = Vec<(String, Option<String>)>;

/// Adds limits and settings to a node.
pub(super) fn with_rules(mut node: Node, form: &NodeForm) -> Node {
    if let Some(executions) = form.max_executions {
        node = node.max_executions(executions);
    }
    if let Some(effect) = form.effect {
        node = node.effect(effect.into());
    }
    if let Some(time) = form.timeout {
        node = node.timeout(time.0);
    }
    // The conflict is reported at the line of `retries`; the library would only name the node.
    if form.retries > 0 && form.effect != Some(EffectForm::AtMostOnce) {
        node = node.retry(Retry::times(form.retries));
    }
    if form.deferred {
        node = node.deferred();
    }
    if form.tracked {
        node = node.tracked();
    }
    if form.go_on_after_error {
        node = node.continue_after_error();
    }
    node
}

impl NodeBuilder<'_> {
    /// Builds the node; none if it has faults.
    pub(super) fn work(&self, faults: &mut FaultCollector) -> anyhow::Result<Option<BuiltNode>> {
        self.report_misplaced(faults);
        let form = self.form;
        let answers = self.answers(faults);
        for (field, text) in [("asks", &form.asks), ("says", &form.says)] {
            if let Some(text) = text {
                self.check_template(field, text, faults);
            }
        }
        let done = |node| Some(BuiltNode { node, speaks: false });
        match (&form.agent, &form.command, &form.says) {
            (Some(agent), None, None) => self.agent(agent, answers, faults),
            (None, Some(command), None) => Ok(self.program(command, answers, faults).and_then(done)),
            (None, None, Some(text)) => Ok(done(says(text))),
            (None, None, None) => {
                faults.add_to_whole("invalid node: expected one of `agent`, `command` and `says`");
                Ok(None)
            }
            _ => {
                faults.add_to_whole(
                    "invalid node: expected one of `agent`, `command` and `says`, found several",
                );
                Ok(None)
            }
        }
    }

    /// Reports fields that are for nodes of another kind, or contradict each other.
    fn report_misplaced(&self, faults: &mut FaultCollector) {
        let form = self.form;
        let (agent, program) = (form.agent.is_some(), form.command.is_some());
        let fields = [
            ("asks", form.asks.is_some(), agent, "an agent"),
            ("shares", form.shares.is_some(), agent, "an agent"),
            ("answers", form.answers.is_some(), agent || program, "an agent or a program"),
            ("reads", form.reads.is_some(), program, "a program"),
            ("goes_to", !form.goes_to.is_empty(), program, "a program"),
            ("approval", form.approval != NodeApprovalForm::Never, program, "a program"),
            ("effect", form.effect.is_some(), program, "a program"),
        ];
        for (field, is_there, fits, whose) in fields {
            if is_there && !fits {
                faults.add(&[field], format!("unsupported field `{field}`: only for {whose}"));
            }
        }
        if form.on_error.is_some() && form.go_on_after_error {
            faults.add(&["go_on_after_error"], "conflicts with `on_error`, which sets the next node");
        }
        if form.effect == Some(EffectForm::AtMostOnce) && form.retries > 0 {
            faults.add(&["retries"], "unsupported retries: the node must not run twice");
        }
    }

    /// Reports placeholders that no key can fill.
    fn check_template(&self, field: &str, text: &str, faults: &mut FaultCollector) {
        check_closed(field, text, faults);
        let template = Template::parse(text);
        let is_known = |name: &str| {
            let mut parts = name.match_indices('.').map(|(dot, _)| &name[..dot]).chain([name]);
            self.schema.is_open() || parts.any(|part| part == "item" || self.schema.key(part).is_some())
        };
        for (name, _) in template.placeholders() {
            if !is_known(name) {
                let words =
                    format!("unknown state key `{name}`; declare it, or double the braces if it is text");
                faults.add(&[field], words);
            }
        }
    }

    fn agent(
        &self,
        form: &AgentForm,
        answers: AnswerBindings,
        faults: &mut FaultCollector,
    ) -> anyhow::Result<Option<BuiltNode>> {
        let built = match form {
            AgentForm::File(file) => self.file(file, faults)?,
            AgentForm::Inline(form) => faults.within(&["agent"], |faults| self.inline(form, faults))?,
        };
        let Some(built) = built else { return Ok(None) };
        let is_agent = matches!(built, BuiltFile::Agent(_));
        let mut node = AgentNode::new(Agent::from(built));
        if let Some(asks) = &self.form.asks {
            node = node.asks(asks);
        }
        for (key, field) in answers {
            node = match field {
                None => node.answers(key),
                Some(field) => node.answers_field(key, field),
            };
        }
        if let Some(keys) = &self.form.shares {
            node = node.shares(keys);
        }
        if self.per_run && is_agent {
            node = node.adjust(per_run(self.place.models.by_name(self.place.folder)?));
        }
        Ok(Some(BuiltNode { node: Node::agent(node), speaks: is_agent && self.form.asks.is_none() }))
    }

    /// Builds the agent or graph of another file.
    fn file(&self, file: &str, faults: &mut FaultCollector) -> anyhow::Result<Option<BuiltFile>> {
        let path = self.place.path.with_file_name(file);
        let files = &self.place.models.files;
        let read = files.full(&path).and_then(|full| Ok((full, files.read(&path)?)));
        let (full, text) = match read {
            Ok(read) => read,
            Err(error) => {
                faults.add(&["agent"], format!("file {file} could not be read: {error}"));
                return Ok(None);
            }
        };
        if self.enclosing.files.contains(&full) {
            faults.add(&["agent"], format!("recursive graph: {file} contains this one"));
            return Ok(None);
        }
        match AgentFile::parse(&path, &text, &[]).build_within(self.place.models, &self.enclosing_agent())? {
            Ok(built) => Ok(Some(built)),
            Err(others) => {
                faults.add(&["agent"], format!("invalid file {file}"));
                faults.add_elsewhere(&path, others);
                Ok(None)
            }
        }
    }

    /// The context of an agent in its own file: it can read the shared keys without declaring them again.
    fn enclosing_agent(&self) -> EnclosingGraphs {
        let wants = |name: &&str| {
            let shares = self.form.shares.as_ref();
            shares.is_none_or(|keys| keys.iter().any(|key| key == name))
        };
        let keys = self.schema.keys().map(KeySchema::name).filter(wants);
        EnclosingGraphs {
            keys: Some(Schema::default().with_keys_of(self.schema, keys)),
            ..self.enclosing.clone()
        }
    }

    fn inline(&self, form: &AgentFileForm, faults: &mut FaultCollector) -> anyhow::Result<Option<BuiltFile>> {
        // NOTE: An inline agent cannot be run alone, so it would only repeat the keys of the graph.
        if form.state.names().next().is_some() {
            faults.add(
                &["state"],
                "unsupported state: an agent inside a graph file uses the graph's state; declare the keys there",
            );
        }
        report_misplaced(&form.budgets, faults);
        report_misplaced_limits(&form.rate_limits, faults);
        if form.redact.is_some() {
            faults.add(&["redact"], super::MISPLACED_REDACTION);
        }
        if form.retention.is_some() {
            faults.add(&["retention"], super::MISPLACED_RETENTION);
        }
        let folder = self.place.folder;
        let models = models_of(form, faults, self.place.models, folder, self.enclosing)?;
        let name = form.name.as_deref().unwrap_or(self.name);
        let built = agent::build(form, faults, folder, name, models, (self.schema.clone(), None));
        Ok(built.map(BuiltFile::Agent))
    }

    /// The keys that an answer is written to, each with the field of the answer.
    fn answers(&self, faults: &mut FaultCollector) -> AnswerBindings {
        let answers = match &self.form.answers {
            None => return Vec::new(),
            Some(AnswersForm::Key(key)) => vec![(key.clone(), None)],
            Some(AnswersForm::Fields(fields)) => {
                fields.iter().map(|(key, field)| (key.clone(), Some(field.clone()))).collect()
            }
        };
        let mut known = Vec::new();
        for (key, field) in answers {
            match unknown_key(&key, self.schema) {
                Some(words) => faults.add(&["answers", &key], words),
                None => known.push((key, field)),
            }
        }
        known
    }

    fn program(
        &self,
        form: &ProgramForm,
        answers: AnswerBindings,
        faults: &mut FaultCollector,
    ) -> Option<Node> {
        let form = form.command();
        let program = ExternalProgram::new(&form, self.place.folder, faults);
        for (at, key) in self.form.reads.iter().flatten().enumerate() {
            if let Some(words) = unknown_key(key, self.schema) {
                faults.add(&["reads", &at.to_string()], words);
            }
        }
        let answers = self.form.answers.is_some().then_some(answers);
        if matches!(self.form.answers, Some(AnswersForm::Fields(_))) && form.output == ToolOutputFormat::Text
        {
            let words =
                "a field requires JSON output: write the command as a table, with `output = \"json\"`";
            faults.add(&["answers"], words);
        }
        // NOTE: Keys of progress are not declared in the file: a program receives them only if it names them.
        let declared = || self.declared.names().map(str::to_owned).collect();
        let reads = self.form.reads.clone().unwrap_or_else(declared);
        let work = Arc::new(ProgramNode {
            program: program?,
            reads,
            answers,
            asks: self.form.approval == NodeApprovalForm::Always,
            is_tracked: self.form.tracked,
            goes_to: self.form.goes_to.clone(),
        });
        // The settings of the node beside its program. A key that is declared later changes no node that names none.
        let (answers, is_json) = (&work.answers, form.output == ToolOutputFormat::Json);
        let version = canonical_json(&json!([self.form.reads, answers, work.asks, is_json]));
        let node = Node::new(move |context: NodeContext| {
            let work = Arc::clone(&work);
            async move { work.run(&context).await }
        });
        Some(node.version(version))
    }
}

/// A node that says a text.
fn says(text: &str) -> Node {
    let template = Arc::new(Template::parse(text));
    let node = Node::new(move |context: NodeContext| {
        let template = Arc::clone(&template);
        async move {
            let (state, item) = (context.state(), context.item());
            let lookup = |key: &str| match (key, item) {
                ("item", Some(item)) => Some(item.into()),
                _ => state.get(key),
            };
            let known = || state.iter().map(|(key, _)| key).chain(item.map(|_| "item")).collect();
            Ok::<_, NodeError>(Update::new().say(template.render_with(lookup, known)?))
        }
    });
    node.version(text)
}

/// A program as a node.
struct ProgramNode {
    program: ExternalProgram,
    reads: Vec<String>,
    answers: Option<AnswerBindings>,
    asks: bool,
    is_tracked: bool,
    goes_to: Vec<String>,
}

/// The output of a program without `answers`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ProgramOutput {
    writes: Map<String, Value>,
    say: Option<String>,
    outputs: Map<String, Value>,
    goto: Option<NodeNames>,
}

impl ProgramNode {
    async fn run(&self, context: &NodeContext) -> Result<Update, NodeError> {
        let state =
            self.reads.iter().filter_map(|key| Some((key.clone(), context.get(key.as_str())?.to_json())));
        let state: Map<String, Value> = state.collect();
        let item = match self.asks {
            true => approved_item(context, &state)?,
            false => context.item().cloned(),
        };
        let mut input: Map<String, Value> = item.map(|item| ("item".to_owned(), item)).into_iter().collect();
        input.insert("node".to_owned(), context.node().into());
        input.insert("state".to_owned(), state.into());
        let input = Value::Object(input).to_string();
        let output = self.program.run(&input, context.idempotency_key()).await;
        let output = output.map_err(|error| NodeError::new(error.to_string()))?;
        // NOTE: An answer or an update, never both: a key of the state may be called `say` (`docs/decisions/command.md`).
        match &self.answers {
            Some(answers) => self.answered(answers, &output),
            None => self.printed(&output),
        }
    }

    fn answered(&self, answers: &AnswerBindings, output: &str) -> Result<Update, NodeError> {
        let answer = self.program.read(output).map_err(|error| NodeError::permanent(error.to_string()))?;
        let mut update = Update::new();
        for (key, field) in answers {
            match (field, &answer) {
                (None, answer) => update = update.set(key.as_str(), answer.clone()),
                (Some(field), Value::Object(fields)) => {
                    if let Some(value) = fields.get(field) {
                        update = update.set(key.as_str(), value.clone());
                    }
                }
                (Some(field), _) => {
                    let words =
                        format!("missing field `{field}` for `{key}`: expected an object as the output");
                    return Err(NodeError::permanent(words));
                }
            }
        }
        Ok(if self.is_tracked { update.result(answer) } else { update })
    }

    /// Reads the output of a program as an update. Empty output changes nothing.
    fn printed(&self, output: &str) -> Result<Update, NodeError> {
        if output.trim().is_empty() {
            return Ok(Update::new());
        }
        let printed: ProgramOutput = serde_json::from_str(output).map_err(|error| {
            NodeError::permanent(format!(
                "invalid program output: expected an object of `writes`, `say`, `outputs` and `goto` ({error}); for other \
                 output set `answers`"
            ))
        })?;
        let mut update = Update::new();
        for (key, value) in printed.writes {
            update = update.set(key.as_str(), value);
        }
        for (kind, value) in printed.outputs {
            update = update.output(kind, value);
        }
        if let Some(text) = printed.say {
            update = update.say(text);
        }
        for (_, name) in printed.goto.iter().flat_map(NodeNames::iter) {
            if !self.goes_to.iter().any(|known| known == name) {
                let known = self.goes_to.join(", ");
                let words = format!("invalid target `{name}`: not in `goes_to`; available: {known}");
                return Err(NodeError::permanent(words));
            }
            update = update.goto(library_name(name));
        }
        Ok(update)
    }
}

/// The item, after its approval, with the approver's changes. The approval includes what the program reads of the
/// state; a value that has changed since needs a new one.
fn approved_item(context: &NodeContext, state: &Map<String, Value>) -> Result<Option<Value>, NodeError> {
    let item = context.item().cloned();
    let mut about: Map<String, Value> = item.iter().map(|item| ("item".to_owned(), item.clone())).collect();
    let (whole, cut): (Vec<_>, Vec<_>) = state
        .iter()
        .map(|(key, value)| shown_to_approver(key, value))
        .partition(|(_, _, is_whole)| *is_whole);
    for (name, values) in [("state", whole), ("state_cut", cut)] {
        if !values.is_empty() {
            let values: Map<String, Value> = values.into_iter().map(|(key, value, _)| (key, value)).collect();
            about.insert(name.to_owned(), values.into());
        }
    }
    let parameters = match item {
        Some(_) => {
            json!({"type": "object", "properties": {"item": {}}, "required": ["item"], "additionalProperties": false})
        }
        None => json!(false),
    };
    match context.ask_fitting("run", about, parameters)? {
        Decision::Approve => Ok(item),
        Decision::Modify { arguments } => match arguments.get("item") {
            Some(item) => Ok(Some(item.clone())),
            None => {
                Err(NodeError::permanent("invalid modification: only the program's `item` can be changed"))
            }
        },
        Decision::Reject { reason } if reason.is_empty() => Err(NodeError::permanent("not run: rejected")),
        Decision::Reject { reason } => Err(NodeError::permanent(format!("not run: rejected: {reason}"))),
        _ => Err(NodeError::permanent("not run: unknown decision")),
    }
}

/// A value as an approver sees it, and whether it is complete. The digest of a truncated value makes the request one about
/// the whole value.
fn shown_to_approver(key: &str, value: &Value) -> (String, Value, bool) {
    match StateValue::of(value) {
        StateValue::Truncated { begins, bytes, sha256 } => {
            (key.to_owned(), json!({"begins": begins, "bytes": bytes, "sha256": sha256}), false)
        }
        _ => (key.to_owned(), value.clone(), true),
    }
}
