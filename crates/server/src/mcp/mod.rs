//! An agent as a server of the Model Context Protocol.
//!
//! The server has one tool, with the name of the agent. Its arguments are a message and, to continue with an earlier
//! conversation, a session. What the run does is progress of the call; a cancelled call is a cancelled run. Approvals are
//! asked of the client: as required input in the revision 2026-07-28, where the answer may come to another process of the
//! server, and as elicitation before it. A client that can do neither is told what waits. A call that takes long is a
//! task, for clients that know these; it outlives the process, since it is a run of a stored session. The resources are
//! the sessions of the user: their states and transcripts.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use stepfold_agent_loop::test_kit::Script;
//! use stepfold_agent_loop::Agent;
//! use stepfold_runner::Runner;
//! use stepfold_server::mcp::AgentServer;
//! use stepfold_session_scopes::MemoryStore;
//!
//! # let model = Script::parse("assistant: hello")?;
//! let agent = Agent::builder(model).name("helper").build()?;
//! let runner = Runner::builder(agent, MemoryStore::new()).build();
//! let server = AgentServer::new(runner, "ada").describe("Helps with statistics.");
//! # let (input, output) = (tokio::io::empty(), tokio::io::sink());
//! // In a program, `tokio::io::stdin()` and `tokio::io::stdout()`. It ends with its input.
//! let _ = server.serve(input, output).await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! Over HTTP it is a service for a router: [`AgentServer::into_http`]. The servers of the feature `http` have it at
//! `/mcp`, behind their own authentication. A client that is gone has cancelled nothing there: in the revision
//! 2026-07-28 a closed stream is how requests are cancelled, and cannot be told from a lost one. Runs are cancelled by
//! `tasks/cancel`, or by the server's own API.
//!
//! # What is absent
//!
//! There is no authentication here. On standard input and output who may ask is decided by who may start the program; over
//! HTTP by what stands before the service ([`HttpOptions::user_of`]). No notifications are sent of tasks, nor of resources
//! that change. There are no prompts.

mod ask;
mod call;
mod http;
mod resources;
mod task;
mod wording;

use std::sync::Arc;
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::handler::server::ServerHandler;
use rmcp::model as wire;
use rmcp::service::{RequestContext, RoleServer};
use serde_json::json;
use stepfold_runner::Runner;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};

use self::http::UserLookup;
pub use self::http::{HttpOptions, HttpService};
#[cfg(feature = "http")]
pub(crate) use self::task::RunPermits;
use self::task::TaskFailures;

/// Serves an agent to the sessions of one user.
#[derive(Clone)]
pub struct AgentServer {
    runner: Runner,
    user: Arc<str>,
    user_of: Option<UserLookup>,
    author: Option<Arc<str>>,
    /// Whether the end of a connection cancels nothing: over HTTP, where it has many reasons.
    outlives_clients: bool,
    description: Option<String>,
    task_after: Duration,
    failures: TaskFailures,
}

/// An error of serving a client.
#[derive(Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The client did not begin with a valid handshake.
    #[error("the MCP client cannot be served: {reason}")]
    Start {
        /// Why not.
        reason: String,
    },
    /// The server failed while it served.
    #[error("the MCP server ended: {reason}")]
    Ended {
        /// Why.
        reason: String,
    },
}

impl AgentServer {
    /// A server for one user.
    pub fn new(runner: Runner, user: impl Into<Arc<str>>) -> Self {
        AgentServer {
            runner,
            user: user.into(),
            user_of: None,
            author: None,
            outlives_clients: false,
            description: None,
            task_after: Duration::from_secs(10),
            failures: TaskFailures::default(),
        }
    }

    /// Sets the description of the agent, for the client's model.
    #[must_use]
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Sets the name that is recorded as the author of decisions.
    #[must_use]
    pub fn by(mut self, name: impl Into<Arc<str>>) -> Self {
        self.author = Some(name.into());
        self
    }

    /// Sets how long a call may take before the client gets a task instead of its result, if it supports tasks; 10 seconds
    /// by default. Zero makes each call a task.
    #[must_use]
    pub fn task_after(mut self, wait: Duration) -> Self {
        self.task_after = wait;
        self
    }

    /// Serves one client, until its input ends.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn serve<R, W>(self, input: R, output: W) -> Result<(), ServeError>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let start = |error: &dyn std::error::Error| ServeError::Start { reason: error.to_string() };
        let service =
            ServiceExt::<RoleServer>::serve(self, (input, output)).await.map_err(|error| start(&error))?;
        service.waiting().await.map_err(|error| ServeError::Ended { reason: error.to_string() })?;
        Ok(())
    }

    /// The agent's name in the alphabet of tools.
    fn tool_name(&self) -> String {
        let accepted = |character: char| if character.is_ascii_alphanumeric() { character } else { '_' };
        self.runner.agent().name().chars().map(accepted).take(64).collect()
    }

    fn tool(&self) -> wire::Tool {
        let description = self.description.clone().unwrap_or_else(|| {
            format!("Asks the agent {}. It remembers what was said in a session.", self.runner.agent().name())
        });
        let input = json!({
            "type": "object",
            "properties": {
                "message": {"type": "string", "description": "What to say to the agent."},
                "session": {
                    "type": "string",
                    "description": "The session to continue with, as an earlier result names it. Without one, a new one begins.",
                },
            },
            "required": ["message"],
        });
        let output = json!({
            "type": "object",
            "properties": {
                "session": {"type": "string"},
                "text": {"type": "string"},
                "exit": {},
                "waits": {"type": "array"},
                "decided_before": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The questions whose answers were not taken: others were given before.",
                },
            },
            "required": ["session", "text"],
        });
        let object = |schema: serde_json::Value| schema.as_object().cloned().unwrap_or_default();
        wire::Tool::new(self.tool_name(), description, object(input))
            .with_raw_output_schema(Arc::new(object(output)))
    }
}

impl ServerHandler for AgentServer {
    fn get_info(&self) -> wire::ServerConfig {
        let capabilities = serde_json::from_value(json!({
            "tools": {},
            "resources": {},
            "extensions": {wire::TASKS_EXTENSION_ID: {}},
        }))
        .unwrap_or_default();
        let name = wire::Implementation::new(self.runner.agent().name(), env!("CARGO_PKG_VERSION"));
        wire::ServerConfig::new(capabilities).with_server_info(name)
    }

    async fn list_tools(
        &self,
        _: Option<wire::PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<wire::ListToolsResult, wire::ErrorData> {
        Ok(wire::ListToolsResult::with_all_items(vec![self.tool()]))
    }

    async fn call_tool(
        &self,
        request: wire::CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<wire::CallToolResponse, wire::ErrorData> {
        if request.name != self.tool_name() {
            let words = format!("unknown tool `{}`; available: {}", request.name, self.tool_name());
            return Err(wire::ErrorData::invalid_params(words, None));
        }
        self.of(&context)?.call(request, &context).await
    }

    async fn list_resources(
        &self,
        _: Option<wire::PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<wire::ListResourcesResult, wire::ErrorData> {
        self.of(&context)?.resources().await.map(wire::ListResourcesResult::with_all_items)
    }

    async fn list_resource_templates(
        &self,
        _: Option<wire::PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<wire::ListResourceTemplatesResult, wire::ErrorData> {
        Ok(wire::ListResourceTemplatesResult::with_all_items(AgentServer::resource_templates()))
    }

    async fn get_task(
        &self,
        request: wire::GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<wire::GetTaskResult, wire::ErrorData> {
        self.of(&context)?.task(&request.task_id, &context).await
    }

    async fn update_task(
        &self,
        request: wire::UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), wire::ErrorData> {
        self.of(&context)?.update(&request.task_id, &request.input_responses, &context).await
    }

    async fn cancel_task(
        &self,
        request: wire::CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), wire::ErrorData> {
        self.of(&context)?.cancel(&request.task_id).await
    }

    async fn read_resource(
        &self,
        request: wire::ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<wire::ReadResourceResponse, wire::ErrorData> {
        self.of(&context)?.resource(&request.uri).await.map(Into::into)
    }
}

stepfold_state_core::debug_as_text!(ServeError);
