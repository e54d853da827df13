//! `stepfold mcp`: an agent as a tool of other programs.

use stepfold::server::mcp::AgentServer;

use crate::args::{Asked, Place};
use crate::desk::Desk;
use crate::error::Ending;

pub(super) async fn mcp(place: &Place, asked: &Asked) -> anyhow::Result<Ending> {
    let desk = Desk::to_run(place, asked)?;
    let server = AgentServer::new(desk.runner.clone(), desk.user.as_str());
    let session = async {
        server.serve(tokio::io::stdin(), tokio::io::stdout()).await?;
        Ok(Ending::Done)
    };
    desk.work(Box::pin(session)).await
}
