//! `stepfold mcp`: serves an agent as a tool to MCP clients.

use stepfold::server::mcp::AgentServer;

use crate::args::{RunArgs, SessionArgs};
use crate::context::CommandContext;
use crate::error::CommandEnding;

pub(super) async fn mcp(target: &SessionArgs, options: &RunArgs) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_run(target, options).await?;
    let server = AgentServer::new(context.runner.clone(), context.user.as_str());
    let session = async {
        server.serve(tokio::io::stdin(), tokio::io::stdout()).await?;
        Ok(CommandEnding::Done)
    };
    context.work(Box::pin(session)).await
}
