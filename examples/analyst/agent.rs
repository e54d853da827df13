//! The analyst: its state, its tools, its instructions.

use std::error::Error;
use std::time::Duration;

use serde_json::{Value, json};
use stepfold::agent_loop::AgentBuilder;
use stepfold::prelude::*;
use stepfold::tools::Resources;
use stepfold::trim::{Pins, Trim};

use crate::sql::{Answer, Database};

/// The known tables, each with its columns.
const TABLES: &str = "tables";
/// The query that ran last, so that "that query" means something when the conversation has been trimmed.
const LAST_QUERY: Key<String> = Key::new("last_query");
/// The result of that query.
const LAST_ROWS: &str = "last_rows";
/// The user's rules for answers, in all sessions.
const PREFERENCES: Key<Vec<String>> = Key::new("user:preferences");
/// The number of queries by all users.
const QUERIES: Key<u64> = Key::new("app:queries");

const INSTRUCTIONS: &str = "\
You are a data analyst. You answer from a SQLite database of the world's time zones.
Look at the tables before you query them. Check every query with validate_sql, then run it with run_sql.
Tables that you know: {tables?}
The query that ran last: {last_query?}
What the user wants of every answer: {user:preferences?}";

/// The analyst with this model, as far as all programs have it alike.
pub(crate) fn analyst(
    model: impl ChatModel + 'static,
    database: Database,
) -> Result<AgentBuilder, Box<dyn Error>> {
    let schema = Schema::builder()
        .key_schema(TABLES, json!("object"))
        .handler(Handler::merge_maps())
        .key(LAST_QUERY)
        .key_schema(LAST_ROWS, json!("array"))
        .handler(Handler::replace_values())
        .key(PREFERENCES)
        .handler(Handler::union())
        .key(QUERIES)
        .handler(Handler::sum())
        .default(0)
        .build()?;
    let tools = [
        list_tables_tool(),
        describe_table_tool(),
        validate_sql_tool(),
        run_sql_tool(),
        remember_preference_tool(),
    ];
    Ok(Agent::builder(model)
        .name("analyst")
        .instructions(INSTRUCTIONS)
        .schema(schema)
        .tools(tools)
        .resources(Resources::new().with(database))
        // Short, so that trimming is visible here. User messages and results of run_sql stay in view for longer.
        .trim(Trim::keep_last(8).with_pins(Pins::up_to(12).results_of(["run_sql"])))
        .max_steps(12))
}

/// Lists the tables of the database.
#[tool(effect(Effect::Pure))]
fn list_tables(Resource(database): Resource<Database>) -> Result<Vec<Value>, ToolError> {
    database.tables()
}

/// Describes a table: its columns and their types.
#[tool(effect(Effect::Pure), writes(["tables"]))]
fn describe_table(
    /// The name of the table.
    table: String,
    Resource(database): Resource<Database>,
    state: StateWriter,
) -> Result<Vec<String>, ToolError> {
    let columns = database.columns(&table)?;
    state.set(TABLES, json!({table: columns}))?;
    Ok(columns)
}

/// Checks a query without running it: whether it is one SELECT, and which columns it would give.
#[tool(effect(Effect::Pure))]
fn validate_sql(
    /// The query, in SQLite's SQL.
    sql: String,
    Resource(database): Resource<Database>,
) -> Result<Value, ToolError> {
    Ok(json!({"columns": database.validate(&sql)?}))
}

/// Runs a query and gives its first 30 rows.
#[tool(
    effect(Effect::Pure),
    timeout(Duration::from_secs(10)),
    writes(["last_query", "last_rows", "app:queries"])
)]
fn run_sql(
    /// The query, in SQLite's SQL.
    sql: String,
    Resource(database): Resource<Database>,
    state: StateWriter,
) -> Result<Answer, ToolError> {
    let answer = database.run(&sql)?;
    state.set(LAST_QUERY, sql)?;
    state.set(LAST_ROWS, json!(answer.rows))?;
    state.set(QUERIES, 1)?;
    Ok(answer)
}

/// Remembers what the user wants of every answer, in this session and all others.
#[tool(effect(Effect::Pure), writes(["user:preferences"]))]
async fn remember_preference(
    /// What the user wants, as a rule.
    preference: String,
    state: StateWriter,
) -> Result<&'static str, ToolError> {
    state.set(PREFERENCES, vec![preference])?;
    Ok("remembered")
}
