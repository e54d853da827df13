//! The tools of spec/000 ("tools and State"), all of them, with a scripted model: what it would say is
//! written out, in the transcript notation, and what the tools answer is printed and checked.
//!
//! `cargo run -p stepfold-tools --example spec_000`

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::unnecessary_wraps, reason = "an example")]

use std::error::Error;

use exmex::{Express, Val};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use stepfold_tools::state_core::chat::{Message, Transcript, with_unique_call_ids};
use stepfold_tools::state_core::state::{Schema, State};
use stepfold_tools::{
    Args, CallOutcome, Effect, Invocation, InvokeOptions, RawArgs, Resources, ResultSource, Tool, ToolError,
    Tools, settle,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    calculator().await?;
    search_with_user_context().await?;
    retrieve().await?;
    whole_result().await?;
    retrieve_and_process().await?;
    factorial_and_calculator().await
}

/// "Calculate 15 + 27."
async fn calculator() -> Result<(), Box<dyn Error>> {
    let schema = Schema::builder().key::<i64>("calc_result").build()?;
    let mut agent = Agent::new("Calculate 15 + 27", [calculator_tool()?], State::new(&schema))?;
    agent.step(r#"> c1 calculator(expression="15 + 27")"#).await?;
    assert_eq!(agent.state.get("calc_result").unwrap(), json!(42));
    agent.step(r#"> c1 calculator(expression="5 * (2 + 3)")"#).await?;
    assert_eq!(agent.state.get("calc_result").unwrap(), json!(25));
    // What the model gets wrong it reads, and the state stays as it is.
    agent.step(r#"> c1 calculator(expression="fifteen plus")   > c2 calculator(formula="1")"#).await?;
    assert_eq!(agent.state.get("calc_result").unwrap(), json!(25));
    Ok(())
}

#[derive(Deserialize, JsonSchema)]
struct Expression {
    /// What to work out, such as `15 + 27`.
    expression: String,
}

async fn calculate(Args(arguments): Args<Expression>) -> Result<Value, ToolError> {
    let expression = exmex::parse_val::<i32, f64>(&arguments.expression);
    let result = match expression.and_then(|expression| expression.eval(&[])) {
        Ok(Val::Int(whole)) => json!(whole),
        Ok(Val::Float(number)) => json!(number),
        Ok(_) => return Err(ToolError::permanent("this gives no number")),
        Err(error) => return Err(ToolError::permanent(format!("this is no expression: {error}"))),
    };
    Ok(json!({"result": result}))
}

fn calculator_tool() -> Result<Tool, Box<dyn Error>> {
    let tool = Tool::new("calculator", "Evaluate basic math expressions", calculate)
        .effect(Effect::Pure)
        .output_to_state("calc_result", "result");
    Ok(tool.build()?)
}

/// "Search for Python tutorials", for the user in the state.
async fn search_with_user_context() -> Result<(), Box<dyn Error>> {
    let tool = search_documents()?;
    assert!(tool.spec().parameters["properties"].get("user_context").is_none(), "the model does not see it");
    let schema = Schema::builder().key::<String>("user_name").key::<Vec<String>>("search_results").build()?;
    let state = State::with_values(&schema, json!({"user_name": "Alice"}))?;
    let mut agent = Agent::new("Search for Python tutorials", [tool], state)?;
    agent.step(r#"> c1 search(query="Python tutorials")"#).await?;
    let expected = json!(["Found results for 'Python tutorials' (user: Alice)"]);
    assert_eq!(agent.state.get("search_results").unwrap(), expected);
    Ok(())
}

/// By the attribute: the description and the schema come from the function.
#[cfg(feature = "macros")]
fn search_documents() -> Result<Tool, Box<dyn Error>> {
    /// Search documents
    #[stepfold_tools::tool(effect(Effect::Pure), output_to_state("search_results", "results"))]
    async fn search(
        /// What to look for.
        query: String,
        #[from_state("user_name")] user_context: String,
    ) -> Result<Value, ToolError> {
        Ok(json!({"results": [format!("Found results for '{query}' (user: {user_context})")]}))
    }
    Ok(search_tool().build()?)
}

/// The same without the attribute.
#[cfg(not(feature = "macros"))]
fn search_documents() -> Result<Tool, Box<dyn Error>> {
    #[derive(Deserialize, JsonSchema)]
    struct Search {
        /// What to look for.
        query: String,
        user_context: String,
    }

    async fn search(Args(Search { query, user_context }): Args<Search>) -> Result<Value, ToolError> {
        Ok(json!({"results": [format!("Found results for '{query}' (user: {user_context})")]}))
    }
    let tool = Tool::new("search", "Search documents", search)
        .effect(Effect::Pure)
        .input_from_state("user_name", "user_context")
        .output_to_state("search_results", "results");
    Ok(tool.build()?)
}

/// "Find information about Python": three fields of the result go to three keys.
async fn retrieve() -> Result<(), Box<dyn Error>> {
    let schema = Schema::builder()
        .key::<Vec<Value>>("documents")
        .key::<u64>("result_count")
        .key::<String>("last_query")
        .build()?;
    let mut agent = Agent::new("Find information about Python", [retrieve_tool()?], State::new(&schema))?;
    agent.step(r#"> c1 retrieve(query="Python")"#).await?;
    assert_eq!(agent.state.get("documents").unwrap().len(), Some(2));
    assert_eq!(agent.state.get("result_count").unwrap(), json!(2));
    assert_eq!(agent.state.get("last_query").unwrap(), json!("Python"));
    Ok(())
}

/// With a JSON Schema of its own, and a function of values.
fn retrieve_tool() -> Result<Tool, Box<dyn Error>> {
    let retrieve = |RawArgs(arguments): RawArgs| async move {
        let documents = json!([
            {"title": "Doc 1", "content": "Content about Python"},
            {"title": "Doc 2", "content": "More about Python"},
        ]);
        Ok::<_, ToolError>(json!({"documents": documents, "count": 2, "query": arguments["query"]}))
    };
    let tool = Tool::new("retrieve", "Retrieve relevant documents", retrieve)
        .parameters(json!({
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        }))
        .effect(Effect::Pure)
        .output_to_state("documents", "documents")
        .output_to_state("result_count", "count")
        .output_to_state("last_query", "query");
    Ok(tool.build()?)
}

/// "Get the user information": the whole result goes to one key.
async fn whole_result() -> Result<(), Box<dyn Error>> {
    let user = || json!({"name": "Alice", "email": "alice@example.org", "role": "admin"});
    let get_info = move || async move { Ok::<_, ToolError>(user()) };
    let tool = Tool::new("get_info", "Get user information", get_info)
        .effect(Effect::Pure)
        .output_to_state("user_info", ResultSource::Whole)
        .build()?;
    let schema = Schema::builder().key_schema("user_info", json!("object")).build()?;
    let mut agent = Agent::new("Get the user information", [tool], State::new(&schema))?;
    agent.step("> c1 get_info()").await?;
    assert_eq!(agent.state.get("user_info").unwrap(), user());
    assert_eq!(agent.state.get("user_info").unwrap().field("name").unwrap(), "Alice");
    Ok(())
}

/// "Find and process 3 documents about Python": a chain through the state, and in one reply. The second
/// call reads what the first one writes, and so waits for it.
async fn retrieve_and_process() -> Result<(), Box<dyn Error>> {
    let schema = Schema::builder()
        .key::<Vec<Value>>("documents")
        .key::<u64>("result_count")
        .key::<String>("last_query")
        .key::<Vec<Value>>("final_docs")
        .key::<u64>("final_count")
        .build()?;
    let tools = [retrieve_tool()?, process_tool()?];
    let mut agent = Agent::new("Find and process 3 documents about Python", tools, State::new(&schema))?;
    agent.step(r#"> c1 retrieve(query="Python")   > c2 process(max_results=3)"#).await?;
    assert_eq!(agent.state.get("final_count").unwrap(), json!(2));
    let (found, processed) = (agent.state.get("documents").unwrap(), agent.state.get("final_docs").unwrap());
    assert_eq!(found.to_json(), processed.to_json());
    Ok(())
}

fn process_tool() -> Result<Tool, Box<dyn Error>> {
    #[derive(Deserialize, JsonSchema)]
    struct Process {
        /// From the state.
        documents: Vec<Value>,
        /// How many to keep.
        max_results: usize,
    }

    /// It computes, and so runs on a thread for such work.
    fn process(Args(process): Args<Process>) -> Result<Value, ToolError> {
        let processed: Vec<&Value> = process.documents.iter().take(process.max_results).collect();
        Ok(json!({"processed_docs": processed, "processed_count": processed.len()}))
    }
    let tool = Tool::blocking("process", "Process retrieved documents", process)
        .effect(Effect::Pure)
        .input_from_state("documents", "documents")
        .output_to_state("final_docs", "processed_docs")
        .output_to_state("final_count", "processed_count");
    Ok(tool.build()?)
}

/// "Calculate the factorial of 5, then multiply it by 2": two steps.
async fn factorial_and_calculator() -> Result<(), Box<dyn Error>> {
    let schema = Schema::builder().key::<i64>("calc_result").key::<u64>("factorial_result").build()?;
    let tools = [calculator_tool()?, factorial_tool()?];
    let question = "Calculate the factorial of 5, then multiply it by 2";
    let mut agent = Agent::new(question, tools, State::new(&schema))?;
    agent.step("> c1 factorial(n=5)").await?;
    agent.step(r#"> c2 calculator(expression="120 * 2")"#).await?;
    assert_eq!(agent.state.get("factorial_result").unwrap(), json!(120));
    assert_eq!(agent.state.get("calc_result").unwrap(), json!(240));
    Ok(())
}

fn factorial_tool() -> Result<Tool, Box<dyn Error>> {
    #[derive(Deserialize, JsonSchema)]
    struct Factorial {
        /// A small number.
        n: u64,
    }

    async fn factorial(Args(Factorial { n }): Args<Factorial>) -> Result<Value, ToolError> {
        let result = (1..=n).try_fold(1_u64, u64::checked_mul);
        Ok(json!({"result": result.ok_or_else(|| ToolError::permanent("this is too large"))?}))
    }
    let tool = Tool::new("factorial", "Calculate the factorial of a number", factorial)
        .effect(Effect::Pure)
        .output_to_state("factorial_result", "result");
    Ok(tool.build()?)
}

/// The least that a loop does with tools; the real one is `stepfold-agent-loop`.
struct Agent {
    tools: Tools,
    state: State,
}

impl Agent {
    fn new(
        question: &str,
        tools: impl IntoIterator<Item = Tool>,
        mut state: State,
    ) -> Result<Self, Box<dyn Error>> {
        let tools = Tools::of(tools)?;
        tools.check(state.schema(), &Resources::new())?;
        state.push_message(Message::user(question));
        println!("\n# {question}");
        Ok(Agent { tools, state })
    }

    /// What the model says, and what the tools answer.
    async fn step(&mut self, reply: &str) -> Result<(), Box<dyn Error>> {
        let reply: Transcript = format!("assistant: {reply}").parse()?;
        let reply = with_unique_call_ids((**reply.get(0).unwrap()).clone(), 0, |_| false);
        let calls: Vec<_> = reply.tool_calls().cloned().collect();
        let invocation = Invocation::new(&self.tools, self.state.clone(), calls, InvokeOptions::default());
        let mut done = invocation.finish().await;
        settle(&mut self.state, &mut done.outcomes);
        let mut step = Transcript::new();
        step.push(reply);
        step.extend(done.outcomes.iter().map(CallOutcome::message));
        step.check()?;
        print!("{step}");
        for message in &step {
            self.state.push_message(message.clone());
        }
        Ok(())
    }
}
