//! Asking the model: for a reply, or for a summary.

use std::time::Duration;

use futures_util::StreamExt;
use stepfold_state_core::chat::{
    ChatRequest, Chunk, ModelError, ModelErrorKind, Reply, ReplyBuilder, TimeoutKind, ToolChoice,
};

use super::Host;
use crate::error::RunFault;
use crate::observe::RunEvent;
use crate::run::{Answer, Run};
use crate::trim::SummaryPlan;

/// Why there is no reply.
enum NoReply {
    Cancelled,
    TimeIsUp,
    Failed(RunFault),
}

impl Host<'_> {
    /// Asks for the next reply. What the user said meanwhile comes before it.
    pub(super) async fn ask_model(&mut self, run: &mut Run) -> Result<(), RunFault> {
        if self.takes_what_was_said(run).await? {
            return Ok(());
        }
        self.offer_tools(run).await?;
        if self.is_cancelled() {
            return Ok(());
        }
        let request = run.request();
        match self.reply(run, request).await {
            Ok(reply) => self.commit(run, Answer::Reply(reply)).await,
            // The driver looks at the token before anything else.
            Err(NoReply::Cancelled) => Ok(()),
            Err(NoReply::TimeIsUp) => self.commit(run, Answer::TimedOut).await,
            Err(NoReply::Failed(fault)) => Err(fault),
        }
    }

    /// Commits what the user said meanwhile. Whether there was something. Hooks before the model see it: they
    /// are asked afterwards, and again if more comes while they think.
    pub(super) async fn takes_what_was_said(&mut self, run: &mut Run) -> Result<bool, RunFault> {
        let mut said = Vec::new();
        while let Some(message) = self.inbox.as_mut().and_then(|inbox| inbox()) {
            said.push(message);
        }
        if said.is_empty() {
            return Ok(false);
        }
        self.commit(run, Answer::Steer(said)).await?;
        Ok(true)
    }

    /// A dynamic toolset is asked anew before each step; a static one never changes. A cancellation leaves the
    /// run without tools.
    pub(super) async fn offer_tools(&mut self, run: &mut Run) -> Result<(), RunFault> {
        let agent = run.agent().clone();
        if agent.static_offer().is_some() {
            return Ok(());
        }
        let config = agent.config();
        let state = run.state().snapshot();
        let tools = tokio::select! {
            biased;
            () = self.cancellation.cancelled() => return Ok(()),
            tools = config.toolset.resolve(&state) => tools.map_err(RunFault::Tools)?,
        };
        let checked = tools.check(&config.schema, &config.resources);
        checked.map_err(|error| RunFault::Tools(error.into()))?;
        run.offer_tools(tools);
        Ok(())
    }

    async fn reply(&mut self, run: &Run, request: ChatRequest) -> Result<Reply, NoReply> {
        let config = run.agent().config();
        let requires_call = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        if self.observer.is_some() {
            let asking = RunEvent::Asking {
                step: run.steps() + 1,
                model: config.model.id().to_owned(),
                request: Box::new(request.clone()),
            };
            self.tell(|| asking).await.map_err(NoReply::Failed)?;
        }
        let mut stream = config.model.respond(request);
        let mut reply = ReplyBuilder::new();
        let time_left = self.time_left(run);
        let cancellation = self.cancellation.clone();
        let mut up = std::pin::pin!(sleep(time_left));
        loop {
            let chunk = tokio::select! {
                biased;
                () = cancellation.cancelled() => return Err(NoReply::Cancelled),
                chunk = stream.next() => chunk,
                () = &mut up => return Err(NoReply::TimeIsUp),
            };
            match chunk {
                None => break,
                Some(Err(error)) => return Err(failed(reply.fail(error))),
                Some(Ok(chunk)) => {
                    self.tell_chunk(&chunk).await.map_err(NoReply::Failed)?;
                    reply.push(chunk);
                }
            }
        }
        let reply = reply.finish().map_err(failed)?;
        if requires_call && !reply.message.has_tool_calls() {
            let error = ModelError::new(ModelErrorKind::ToolChoiceIgnored, "the reply calls no tool");
            return Err(failed(error.with_model(config.model.id())));
        }
        Ok(reply)
    }

    async fn tell_chunk(&mut self, chunk: &Chunk) -> Result<(), RunFault> {
        match chunk {
            Chunk::Text(text) => self.tell(|| RunEvent::Text(text.clone())).await,
            Chunk::Reasoning(text) => self.tell(|| RunEvent::Reasoning(text.clone())).await,
            _ => Ok(()),
        }
    }

    /// Has a model write a summary. If it does not, the run goes on without.
    pub(super) async fn summarize(&mut self, run: &mut Run, plan: &SummaryPlan) -> Result<(), RunFault> {
        let config = run.agent().config();
        let model = config.summary_model.as_ref().unwrap_or(&config.model);
        let asking = model.respond(ChatRequest::new(plan.request().clone())).into_reply();
        let cancellation = self.cancellation.clone();
        let summary = tokio::select! {
            biased;
            () = cancellation.cancelled() => return Ok(()),
            reply = asking => reply.map(|reply| (reply.message.text().into_owned(), reply.usage)),
            () = sleep(self.time_left(run)) => {
                Err(ModelError::new(ModelErrorKind::TimedOut(TimeoutKind::Total), "the time of the run was up"))
            }
        };
        self.commit(run, Answer::Summary(summary.map_err(|error| error.to_string()))).await
    }
}

fn failed(error: ModelError) -> NoReply {
    NoReply::Failed(RunFault::Model(error))
}

/// Waits that long; for ever, if there is no limit.
pub(super) async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}
