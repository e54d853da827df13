//! Asking the model: for a reply, or for a summary.

use std::time::Duration;

use futures_util::StreamExt;
use stepfold_state_core::chat::{
    ChatRequest, Chunk, ModelError, ModelErrorKind, Reply, ReplyBuilder, ReplyStream, ServerToolUse,
    TimeoutKind, ToolChoice, Usage,
};

use super::{KeptRequest, RunDriver};
use crate::error::StartError;
use crate::meter::RequestEnd;
use crate::observe::RunEvent;
use crate::run::{Run, RunAnswer, heaviest_parts};
use crate::run_error::RunFault;
use stepfold_trim::SummaryPlan;

/// Whether the observer is notified of the chunks of a reply.
enum ChunkForwarding {
    On,
    Off,
}

/// Why there is no reply.
enum NoReply {
    Cancelled,
    TimeIsUp,
    Failed(RunFault),
}

impl NoReply {
    /// Whether an attempt was not admitted: then no request is under way.
    const fn is_unmetered(&self) -> bool {
        matches!(self, NoReply::Failed(RunFault::Budget(_) | RunFault::Meter(_)))
    }

    /// The end of the request: whether the provider may charge for it.
    fn end(&self) -> RequestEnd<'static> {
        match self {
            NoReply::Failed(RunFault::Model(error)) if error.is_free() => RequestEnd::Refused,
            NoReply::Failed(_) | NoReply::Cancelled | NoReply::TimeIsUp => RequestEnd::Lost,
        }
    }
}

impl RunDriver<'_> {
    /// Asks for the next reply. Messages that the user has sent meanwhile come before it.
    pub(super) async fn ask_model(&mut self, run: &mut Run) -> Result<(), RunFault> {
        if self.commit_steering(run).await? {
            return Ok(());
        }
        self.offer_tools(run).await?;
        if self.is_cancelled() {
            return Ok(());
        }
        let request = run.request();
        if request.messages.is_empty() {
            return Err(RunFault::Start(StartError::NoMessages));
        }
        match self.reply(run, request).await {
            Ok(reply) => {
                let (model, usage) = (reply.model.as_deref(), &reply.usage);
                self.options.metering.end(RequestEnd::Recorded { model, usage }).await;
                self.commit(run, RunAnswer::Reply(reply)).await?;
                self.replied = Some(run.steps());
                Ok(())
            }
            // The driver looks at the token before anything else.
            Err(NoReply::Cancelled) => Ok(()),
            Err(NoReply::TimeIsUp) => self.commit(run, RunAnswer::TimedOut).await,
            Err(NoReply::Failed(RunFault::Model(error))) => match run.rescue(error.kind()) {
                Some(answer) => self.commit(run, answer).await,
                None => Err(RunFault::Model(with_heaviest_parts(error, &run.request()))),
            },
            Err(NoReply::Failed(fault)) => Err(fault),
        }
    }

    /// Commits messages that the user has sent meanwhile, and returns whether there were any. Hooks before the model
    /// see them: they are asked afterwards, and again if more messages arrive while they run.
    pub(super) async fn commit_steering(&mut self, run: &mut Run) -> Result<bool, RunFault> {
        let mut messages = Vec::new();
        while let Some(message) = self.options.inbox.as_mut().and_then(|inbox| inbox()) {
            messages.push(message);
        }
        if messages.is_empty() {
            return Ok(false);
        }
        self.commit(run, RunAnswer::Steer(messages)).await?;
        Ok(true)
    }

    /// A dynamic toolset is asked again before each step; a static one never changes. A cancellation leaves the
    /// run without tools.
    pub(super) async fn offer_tools(&mut self, run: &mut Run) -> Result<(), RunFault> {
        let agent = run.agent().clone();
        if agent.static_offer().is_some() {
            return Ok(());
        }
        let config = agent.config();
        let state = run.state().clone();
        let tools = tokio::select! {
            biased;
            () = self.options.cancellation.cancelled() => return Ok(()),
            tools = config.toolset.resolve(&state) => tools.map_err(RunFault::Tools)?,
        };
        let checked = tools.check(&config.schema, &config.resources);
        checked.map_err(|error| RunFault::Tools(error.into()))?;
        run.offer_tools(tools);
        Ok(())
    }

    /// Offers the tools of their steps to the run and to the runs inside that wait for decisions.
    pub(super) async fn offer_all_tools(&mut self, run: &mut Run) -> Result<(), RunFault> {
        if run.tools().is_none() {
            self.offer_tools(run).await?;
        }
        while let Some((place, child)) = run.child_lacking_tools() {
            let mut child = child.clone();
            Box::pin(self.offer_all_tools(&mut child)).await?;
            if child.lacks_tools() {
                // It was cancelled.
                return Ok(());
            }
            run.replace_inner_run(place, child);
        }
        Ok(())
    }

    async fn reply(&mut self, run: &Run, request: ChatRequest) -> Result<Reply, NoReply> {
        let config = run.agent().config();
        let model = request.model_id(config.model.id());
        // The model may be shown more than what is stored, and observers are not.
        let stored = request;
        let request = run.with_originals(stored.clone());
        self.admit(run, &model, &request).await?;
        let requires_call = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        if !self.options.observers.is_empty() {
            let asking = RunEvent::Asking {
                step: run.steps() + 1,
                model: config.model.id().to_owned(),
                request: Box::new(stored),
            };
            if let Err(fault) = self.notify(|| asking).await {
                // It was not sent.
                self.options.metering.end(RequestEnd::Refused).await;
                return Err(NoReply::Failed(fault));
            }
        }
        let kept = self.options.metering.keep(&model, &request);
        let reply = self.metered(run, config.model.respond(request), kept, ChunkForwarding::On).await?;
        // NOTE: Some servers ignore the tool choice; their text must not pass for the answer of the run.
        if requires_call && !reply.message.has_tool_calls() {
            let (model, usage) = (reply.model.as_deref(), &reply.usage);
            self.options.metering.end(RequestEnd::Unrecorded { model, usage }).await;
            let error = ModelError::new(ModelErrorKind::ToolChoiceIgnored, "the reply calls no tool");
            return Err(failed(error.with_model(config.model.id())));
        }
        Ok(reply)
    }

    /// Has the meter admit a request. It may wait, for no longer than the run may take.
    async fn admit(&mut self, run: &Run, model: &str, request: &ChatRequest) -> Result<(), NoReply> {
        if self.options.metering.meter.is_none() {
            return Ok(());
        }
        tokio::select! {
            biased;
            // NOTE: a meter that is dropped while it admits sends nothing.
            () = self.options.cancellation.cancelled() => Err(NoReply::Cancelled),
            () = sleep(self.time_left(run)) => Err(NoReply::TimeIsUp),
            admitted = self.options.metering.admit(model, request) => admitted.map_err(NoReply::Failed),
        }
    }

    /// Reads a reply, and notes the end of a request without one.
    async fn metered(
        &mut self,
        run: &Run,
        stream: ReplyStream,
        request: KeptRequest,
        forwarding: ChunkForwarding,
    ) -> Result<Reply, NoReply> {
        self.drop_rest();
        let mut read = self.read(run, stream, request, forwarding).await;
        if read.is_ok()
            && let Err(fault) = self.show_rest().await
        {
            read = Err(NoReply::Failed(fault));
        }
        if let Err(no_reply) = &read
            && !no_reply.is_unmetered()
        {
            self.options.metering.end(no_reply.end()).await;
        }
        read
    }

    /// Reads a reply within the limits of the run. They hold against a stream that is always ready as well: the
    /// clock is read before each chunk, and the runtime has its turn in between. A reply that has finished when
    /// the time is up is a reply.
    async fn read(
        &mut self,
        run: &Run,
        mut stream: ReplyStream,
        mut request: KeptRequest,
        forwarding: ChunkForwarding,
    ) -> Result<Reply, NoReply> {
        let limit = run.limits().reply_bytes;
        let mut reply = ReplyBuilder::new();
        let mut deadline = std::pin::pin!(sleep(self.time_left(run)));
        while !self.is_time_up(run) {
            let chunk = tokio::select! {
                biased;
                () = self.options.cancellation.cancelled() => return Err(NoReply::Cancelled),
                () = &mut deadline => break,
                chunk = stream.next() => match chunk {
                    Some(Ok(chunk)) => chunk,
                    Some(Err(error)) => return Err(failed(reply.fail(error))),
                    None => return reply.finish().map_err(failed),
                },
            };
            if let Chunk::NextAttempt(next) = &chunk {
                // NOTE: admitted before the stream is polled, which sends it: a retry is a request of its own.
                tokio::select! {
                    biased;
                    () = self.options.cancellation.cancelled() => return Err(NoReply::Cancelled),
                    () = &mut deadline => break,
                    admitted = self.options.metering.next_attempt(&mut request, next) => {
                        admitted.map_err(NoReply::Failed)?;
                    }
                }
                continue;
            }
            if let ChunkForwarding::On = forwarding {
                self.forward_chunk(&chunk).await.map_err(NoReply::Failed)?;
            }
            reply.push(chunk);
            if reply.bytes() > limit {
                let error = ModelError::new(ModelErrorKind::ReplyTooLarge { limit }, "");
                return Err(failed(reply.fail(error)));
            }
            tokio::task::consume_budget().await;
        }
        // NOTE: A reply that finished with the timeout was paid for, and is complete.
        match reply.is_finished() {
            true => reply.finish().map_err(failed),
            false => Err(NoReply::TimeIsUp),
        }
    }

    async fn forward_chunk(&mut self, chunk: &Chunk) -> Result<(), RunFault> {
        match chunk {
            Chunk::Text(text) => self.notify(|| RunEvent::Text(text.clone())).await,
            Chunk::Reasoning(text) => self.notify(|| RunEvent::Reasoning(text.clone())).await,
            Chunk::ToolCall(call) => {
                let event = || RunEvent::ToolCallDelta {
                    index: call.index,
                    call_id: call.id.clone(),
                    tool: call.name.clone(),
                    arguments: call.arguments.clone(),
                };
                self.notify(event).await
            }
            Chunk::Part(part) => match ServerToolUse::of(part) {
                Some(used) => self.notify(|| server_tool_used(&used)).await,
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Asks a model for a summary. If that fails, the run continues without.
    pub(super) async fn summarize(&mut self, run: &mut Run, plan: &SummaryPlan) -> Result<(), RunFault> {
        let config = run.agent().config();
        let model = config.summary_model.as_ref().unwrap_or(&config.model);
        let request = ChatRequest::new(plan.request().clone());
        let asked = match self.admit(run, model.id(), &request).await {
            Ok(()) => {
                let kept = self.options.metering.keep(model.id(), &request);
                self.metered(run, model.respond(request), kept, ChunkForwarding::Off).await
            }
            Err(no_reply) => Err(no_reply),
        };
        let summary = match asked {
            Ok(reply) => {
                let (model, usage) = (reply.model.as_deref(), &reply.usage);
                self.options.metering.end(RequestEnd::Recorded { model, usage }).await;
                match plan.check_end(&reply.finish_reason) {
                    Ok(()) => Ok((reply.message.text().into_owned(), reply.usage)),
                    Err(error) => Err((error.to_string(), reply.usage)),
                }
            }
            Err(NoReply::Cancelled) => return Ok(()),
            Err(NoReply::TimeIsUp) => Err(failed_summary(&ModelError::new(
                ModelErrorKind::TimedOut(TimeoutKind::Total),
                "the time of the run was up",
            ))),
            Err(NoReply::Failed(RunFault::Model(error))) => Err(failed_summary(&error)),
            Err(NoReply::Failed(fault)) => return Err(fault),
        };
        self.commit(run, RunAnswer::Summary(summary)).await
    }
}

/// The error of a request that is too long also says what in it is.
fn with_heaviest_parts(error: ModelError, request: &ChatRequest) -> ModelError {
    if !matches!(error.kind(), ModelErrorKind::TooLong { .. }) {
        return error;
    }
    let message = match error.message() {
        "" => heaviest_parts(request),
        message => format!("{message}; {}", heaviest_parts(request)),
    };
    error.with_message(message)
}

/// A summary that failed without a reply.
fn failed_summary(error: &ModelError) -> (String, Usage) {
    (error.to_string(), Usage::default())
}

fn server_tool_used(used: &ServerToolUse<'_>) -> RunEvent {
    RunEvent::ServerToolUsed {
        call_id: used.id.map(str::to_owned),
        tool: used.name.to_owned(),
        arguments: if used.input.is_null() { String::new() } else { used.input.to_string() },
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
