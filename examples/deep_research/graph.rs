//! The graph: a plan, its tasks researched side by side, a judge, a writer, a check of what was cited. Or the plain loop.
//!
//! A node knows only the state. So each function takes a snapshot of the state and returns changes.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use stepfold::graph::progress::{Mode, ResearchDepth, ResearchState, RouterDecision, Task, TaskStatus, keys};
use stepfold::graph::{
    AgentNode, END, Graph, Node, NodeContext, NodeError, RouteChoice, START, Update, per_run,
};
use stepfold::prelude::*;
use stepfold::tools::Resources;

use crate::corpus::Corpus;
use crate::report;
use crate::tools::{SOURCES, tools};

/// The key of the planner's plan.
const PLAN: Key<Plan> = Key::new("plan");
/// The key of the reason for which the plan was rejected.
const FEEDBACK: Key<String> = Key::new("feedback");
/// The key of the judge's last verdict.
const VERDICT: Key<Verdict> = Key::new("verdict");
/// The report as it was written last, with its citations as the writer wrote them.
const DRAFT: Key<String> = Key::new("draft");
/// The key of the faults of its citations.
const FAULTS: Key<Vec<String>> = Key::new("faults");
/// The report, in Markdown, with its sources.
pub(crate) const REPORT: Key<String> = Key::new("report");

/// Tasks that the judge may add at a time.
const MAX_MORE: usize = 3;
/// The kind of the output with which a research begins: in a session there may be several.
pub(crate) const QUESTION: &str = "question";
pub(crate) const RESEARCH: &str = "research";

/// What is to be found out, piece by piece.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Plan {
    pub(crate) tasks: Vec<Question>,
}

/// A piece of the research.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Question {
    /// A few words.
    pub(crate) title: String,
    /// What exactly is to be found out.
    pub(crate) question: String,
}

/// Whether what was found is enough.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Verdict {
    is_enough: bool,
    /// Why, in a sentence.
    reason: String,
    /// What else is to be found out, if it is not enough.
    #[serde(default)]
    more: Vec<Question>,
}

/// The bounds of a depth: tasks of the plan, and rounds of the judge.
pub(crate) fn bounds(depth: ResearchDepth) -> (usize, u64) {
    match depth {
        ResearchDepth::Shallow => (2, 0),
        ResearchDepth::Medium => (3, 1),
        ResearchDepth::Deep => (5, 2),
    }
}

const CITE: &str = "\
Cite every statement by the id of the section that says so, in double brackets, as in [[docs/status.md#status]]. Cite \
only sections that you have read.";

/// Builds the graph over these documents. `models` finds a model by the state's `model_id`; `model` is used if the state
/// names none.
pub(crate) fn deep_research<M>(
    model: &Arc<dyn ChatModel>,
    models: M,
    corpus: &Corpus,
) -> Result<Graph, Box<dyn Error>>
where
    M: Fn(&str) -> Option<Arc<dyn ChatModel>> + Clone + Send + Sync + 'static,
{
    let node = |agent: Agent| AgentNode::new(agent).adjust(per_run(models.clone()));
    let graph = Graph::builder("deep_research")
        .schema(schema()?)
        .resources(Resources::new().with(corpus.clone()))
        .node("begin", begin)
        .node("plan", node(planner(model)?).asks_with(plan_prompt).answers("plan").outputs("plan"))
        .node("accept", Node::new(accept).goes_to(["plan"]))
        .node(
            RESEARCH,
            Node::agent(node(researcher(model, corpus)?).asks_with(research_prompt).outputs("finding"))
                .tracked(),
        )
        .node(
            "judge",
            // How often it may run is in the state, by the depth.
            Node::agent(node(judge(model)?).asks_with(judge_prompt).answers("verdict").outputs("verdict"))
                .at_limit("write"),
        )
        .node("weigh", Node::new(weigh).goes_to([RESEARCH, "write"]))
        .node(
            "write",
            Node::agent(node(writer(model)?).asks_with(write_prompt).answers("draft")).at_limit("publish"),
        )
        .node(
            "answer",
            Node::agent(node(loop_agent(model, corpus)?).asks_with(answer_prompt).answers("draft"))
                .at_limit("publish"),
        )
        .node("check", Node::new(check).goes_to(["write", "answer", "publish"]))
        .node("publish", publish)
        .edge(START, "begin")
        .route("begin", ["plan", "answer"], by_mode)
        .edge("plan", "accept")
        .fan_out_with("accept", RESEARCH, open_tasks)
        .chain([RESEARCH, "judge", "weigh"])
        .edge("write", "check")
        .edge("answer", "check")
        .edge("publish", END)
        .build()?;
    Ok(graph)
}

/// The state of a research agent, and what this graph adds.
fn schema() -> Result<Schema, Box<dyn Error>> {
    let schema = Schema::builder()
        .fields::<ResearchState>()
        .key(PLAN)
        .key(FEEDBACK)
        .key(VERDICT)
        .key(DRAFT)
        .key(FAULTS)
        .handler(Handler::replace_values())
        .key(SOURCES)
        .handler(Handler::union())
        .key(REPORT);
    Ok(schema.build()?)
}

fn agent(model: &Arc<dyn ChatModel>, name: &str, instructions: &str) -> stepfold::agent_loop::AgentBuilder {
    Agent::builder(Arc::clone(model)).name(name).instructions(instructions)
}

fn planner(model: &Arc<dyn ChatModel>) -> Result<Agent, Box<dyn Error>> {
    let instructions = "You plan a research over a folder of documents. Split the question into tasks that can be \
        researched independently of each other, each with a title of a few words.";
    Ok(agent(model, "planner", instructions).output::<Plan>().build()?)
}

fn researcher(model: &Arc<dyn ChatModel>, corpus: &Corpus) -> Result<Agent, Box<dyn Error>> {
    let instructions = format!(
        "You research one task over a folder of documents. Search, read what was found, and answer in a few sentences. \
         Say so if the documents do not tell. {CITE}"
    );
    with_documents(agent(model, "researcher", &instructions), corpus)
}

fn loop_agent(model: &Arc<dyn ChatModel>, corpus: &Corpus) -> Result<Agent, Box<dyn Error>> {
    let instructions = format!(
        "You answer a question from a folder of documents. Search, read what was found, and write a short report in \
         Markdown with a title. {CITE}"
    );
    with_documents(agent(model, "answerer", &instructions), corpus)
}

/// With the tools over the documents, and the key under which they note the sources.
fn with_documents(
    agent: stepfold::agent_loop::AgentBuilder,
    corpus: &Corpus,
) -> Result<Agent, Box<dyn Error>> {
    let schema = Schema::builder().key(SOURCES).handler(Handler::union()).build()?;
    let agent = agent.schema(schema).tools(tools()).resources(Resources::new().with(corpus.clone()));
    Ok(agent.max_steps(16).build()?)
}

fn judge(model: &Arc<dyn ChatModel>) -> Result<Agent, Box<dyn Error>> {
    let instructions = "You judge whether what was found answers a question. If something important is missing that \
        the documents may tell, name at most three further tasks.";
    Ok(agent(model, "judge", instructions).output::<Verdict>().build()?)
}

fn writer(model: &Arc<dyn ChatModel>) -> Result<Agent, Box<dyn Error>> {
    let instructions = "You write a report in Markdown from what was found, and from nothing else: a title, an answer in \
        short, then the parts. Keep the citations, which are ids in double brackets. Write no list of sources; it is \
        added.";
    Ok(agent(model, "writer", instructions).build()?)
}

/// Clears an earlier research of the session, and stores the new question.
async fn begin(node: NodeContext) -> Result<Update, NodeError> {
    let mut update = Update::new().output(QUESTION, query(&node)?);
    for key in [PLAN.name(), FEEDBACK.name(), VERDICT.name(), DRAFT.name(), FAULTS.name(), REPORT.name()] {
        update = update.remove(key);
    }
    Ok(update
        .set_with(SOURCES, Vec::new(), Handler::replace_values())
        .set_with(keys::TASKS, Vec::new(), Handler::replace_values())
        .set(keys::OVERALL_PROGRESS, 0))
}

fn by_mode(state: &State) -> RouteChoice {
    match state.get(keys::MODE) {
        Ok(Some(Mode::React)) => RouteChoice::of("answer").because("the mode is react"),
        _ => RouteChoice::of("plan").because("the mode is deep"),
    }
}

fn plan_prompt(node: &NodeContext) -> Result<String, NodeError> {
    let query = query(node)?;
    let mut prompt = match node.get(FEEDBACK)? {
        None => format!("Plan the research on: {query}\n"),
        Some(why) => {
            let plan = serde_json::to_string(&node.get(PLAN)?.unwrap_or_default())?;
            format!("Plan again the research on: {query}\nThis plan was rejected: {plan}\nWhy: {why}\n")
        }
    };
    writeln!(
        prompt,
        "At most {} tasks. The documents: {}",
        bounds(depth(node)?).0,
        documents(node)?.join(", ")
    )?;
    Ok(prompt)
}

/// The plan becomes tasks, as far as the depth allows, and after the approval, if one is required.
async fn accept(node: NodeContext) -> Result<Update, NodeError> {
    let mut plan = node.get(PLAN)?.unwrap_or_default();
    plan.tasks.truncate(bounds(depth(&node)?).0);
    if node.get(keys::AUTO)? == Some(false) {
        match node.ask("plan", &plan)? {
            Decision::Approve => {}
            Decision::Modify { arguments } => plan = serde_json::from_value(arguments)?,
            Decision::Reject { reason } => return Ok(Update::new().set(FEEDBACK, reason).goto("plan")),
            other => return Err(NodeError::permanent(format!("this is no answer to a plan: {other:?}"))),
        }
    }
    let tasks = tasks_of(plan.tasks, 1);
    Ok(Update::new().set_with(keys::TASKS, tasks, Handler::replace_values()))
}

fn tasks_of(questions: Vec<Question>, first: i64) -> Vec<Task> {
    let task = |(id, question): (i64, Question)| {
        let mut task = Task::new(id).title(question.title).status(TaskStatus::Pending);
        task.extras.insert("question".to_owned(), question.question.into());
        task
    };
    (first..).zip(questions).map(task).collect()
}

/// A branch for each task that has not begun.
fn open_tasks(state: &State) -> Vec<serde_json::Value> {
    let tasks = state.get(keys::TASKS).ok().flatten().unwrap_or_default();
    let open = tasks.into_iter().filter(|task| task.status == Some(TaskStatus::Pending));
    open.filter_map(|task| serde_json::to_value(task).ok()).collect()
}

fn research_prompt(node: &NodeContext) -> Result<String, NodeError> {
    let task: Task = node.item_as()?;
    let question = task.extras.get("question").and_then(|question| question.as_str()).unwrap_or_default();
    let title = task.title.as_deref().unwrap_or_default();
    Ok(format!("Task: {title}\n{question}\nIt is part of: {}\n", query(node)?))
}

fn judge_prompt(node: &NodeContext) -> Result<String, NodeError> {
    Ok(format!("Judge, round {}: {}\n{}", node.execution(), query(node)?, findings(node)?))
}

/// Chooses between more tasks and the report.
async fn weigh(node: NodeContext) -> Result<Update, NodeError> {
    let verdict = node.get(VERDICT)?.ok_or_else(|| NodeError::permanent("the judge has said nothing"))?;
    let tasks = node.get(keys::TASKS)?.unwrap_or_default();
    let next = tasks.iter().map(|task| task.id).max().unwrap_or_default() + 1;
    let more = tasks_of(verdict.more.into_iter().take(MAX_MORE).collect(), next);
    let target = if verdict.is_enough || more.is_empty() { "write" } else { RESEARCH };
    let update = Update::new()
        .set(keys::ROUTER_DECISION, RouterDecision::new(node.node(), [target]).reason(verdict.reason));
    if target == "write" {
        return Ok(update.goto(target));
    }
    let update = more.iter().try_fold(update, |update, task| {
        Ok::<_, NodeError>(update.goto_with(RESEARCH, serde_json::to_value(task)?))
    })?;
    Ok(update.set(keys::TASKS, more))
}

fn write_prompt(node: &NodeContext) -> Result<String, NodeError> {
    Ok(format!("{}{}", again("Write the report", node)?, findings(node)?))
}

fn answer_prompt(node: &NodeContext) -> Result<String, NodeError> {
    let documents = documents(node)?.join(", ");
    Ok(format!("{}The documents: {documents}\n", again("Answer", node)?))
}

/// The prompt of a repeated task, with the faults of the attempt before.
fn again(what: &str, node: &NodeContext) -> Result<String, NodeError> {
    let (query, faults) = (query(node)?, node.get(FAULTS)?.unwrap_or_default());
    if faults.is_empty() {
        return Ok(format!("{what}: {query}\n"));
    }
    let draft = node.get(DRAFT)?.unwrap_or_default();
    let faults = format!("- {}\n", faults.join("\n- "));
    Ok(format!(
        "{what} again: {query}\nThis is wrong with the citations:\n{faults}What you wrote:\n{draft}\n\n"
    ))
}

/// Checks the citations: each must name an existing section that an agent has read.
async fn check(node: NodeContext) -> Result<Update, NodeError> {
    let draft = node.get(DRAFT)?.unwrap_or_default();
    let (corpus, sources) = (corpus(&node)?, node.get(SOURCES)?.unwrap_or_default());
    let faults = report::faults(&draft, &corpus, &sources);
    let update = Update::new().set(FAULTS, faults.clone());
    if faults.is_empty() {
        return Ok(update.goto("publish"));
    }
    let writer = if node.get(keys::MODE)? == Some(Mode::React) { "answer" } else { "write" };
    Ok(update.output("faults", json!(faults)).goto(writer))
}

/// Publishes the report, with numbers instead of ids, and the list of sources after it.
async fn publish(node: NodeContext) -> Result<Update, NodeError> {
    let (query, draft) = (query(&node)?, node.get(DRAFT)?.unwrap_or_default());
    let (corpus, sources) = (corpus(&node)?, node.get(SOURCES)?.unwrap_or_default());
    let report = report::with_sources(&query, &draft, &corpus, &sources);
    let said = vec![Message::user(query), Message::assistant(report.as_str())];
    Ok(Update::new().set(REPORT, &report).set(keys::HISTORY, said).say(report))
}

fn query(node: &NodeContext) -> Result<String, NodeError> {
    node.get(keys::QUERY)?.ok_or_else(|| NodeError::permanent("there is no question"))
}

fn depth(node: &NodeContext) -> Result<ResearchDepth, NodeError> {
    Ok(node.get(keys::RESEARCH_DEPTH)?.unwrap_or(ResearchDepth::Medium))
}

fn corpus(node: &NodeContext) -> Result<Arc<Corpus>, NodeError> {
    node.resource().ok_or_else(|| NodeError::permanent("there are no documents"))
}

fn documents(node: &NodeContext) -> Result<Vec<String>, NodeError> {
    Ok(corpus(node)?.documents().into_iter().map(str::to_owned).collect())
}

/// The findings of this research, task by task.
fn findings(node: &NodeContext) -> Result<String, NodeError> {
    let outputs = node.get(keys::OUTPUTS)?.unwrap_or_default();
    let begin = outputs.iter().rposition(|output| output.kind.as_deref() == Some(QUESTION)).unwrap_or(0);
    let mut found = "What was found:\n".to_owned();
    for task in node.get(keys::TASKS)?.unwrap_or_default() {
        let status = task.status.unwrap_or(TaskStatus::Pending);
        writeln!(found, "\n{}. {} ({status})", task.id, task.title.unwrap_or_default())?;
        let own = outputs[begin..].iter().filter(|output| output.task_id == Some(task.id));
        for output in own {
            writeln!(found, "{}", output.content.as_str().unwrap_or_default())?;
        }
    }
    Ok(found)
}
