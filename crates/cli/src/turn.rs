//! A turn, from the question to its end: followed as it happens, stopped by Ctrl-C, decided about on the way.

use std::pin::pin;

use anyhow::Context as _;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use stepfold::agent_loop::graph::Planned;
use stepfold::agent_loop::{ApprovalRequest, Observer as _, Traces};
use stepfold::prelude::*;
use stepfold::runner::{DecisionReceipt, Ended, Invocation, Resume, RunnerError, Seen};

use crate::desk::{Desk, quoted};
use crate::error::{Ending, Misuse, Stop, chain};
use crate::prompt::{Line, Prompt};
use crate::show::{self, Watch, counted};

/// What the commands that run an agent share.
pub(crate) struct Turns<'a> {
    pub(crate) desk: &'a Desk,
    pub(crate) json: bool,
    /// Whom to ask for decisions, if anybody is there.
    pub(crate) prompt: Option<Prompt>,
}

impl Turns<'_> {
    /// Sends a message and follows the turn to its end, and those that decisions about it begin. One that the session
    /// did not take, since it waits for decisions, is sent again once they are made.
    pub(crate) async fn send(
        &mut self,
        session: &SessionHandle,
        input: Input,
        key: Option<&str>,
    ) -> anyhow::Result<Ending> {
        if let Some(run) = interrupted(session).await.filter(|run| run.pending().is_empty()) {
            self.tell_restart(&run);
        }
        loop {
            let send = async || match key {
                Some(key) => session.send_once(key, input.clone()).await,
                None => session.send(input.clone()).await,
            };
            let ended = self.watch(session, send).await?;
            let Err(RunnerError::Pending { is_accepted, .. }) = ended else {
                return self.decide(session, ended).await;
            };
            if self.prompt.is_some() {
                show::note("the message is not taken yet: the session waits for a decision; decide first");
            }
            let ending = self.decide(session, ended).await?;
            if ending != Ending::Done {
                self.tell_not_taken(session, is_accepted);
            }
            // One that was accepted stood in the inbox, and is taken from there.
            if ending != Ending::Done || is_accepted {
                return Ok(ending);
            }
        }
    }

    /// Goes on with a run and follows it to its end.
    pub(crate) async fn resume(&mut self, session: &SessionHandle, resume: Resume) -> anyhow::Result<Ending> {
        if let Some(run) = interrupted(session).await {
            self.tell_restart(&run);
        }
        let ended = self.watch(session, async || resume.start()).await?;
        self.decide(session, ended).await
    }

    /// Gives a run up, and tells what is unknown of it.
    pub(crate) async fn abandon(&self, session: &SessionHandle) -> anyhow::Result<Ending> {
        let outcome = session.abandon().await.map_err(|error| self.with_advice(session, &error))?;
        if self.json {
            let unknown = show::unknown_calls(&outcome);
            show::line(json!({"abandoned": true, "unknown": unknown}).to_string());
            return Ok(Ending::Done);
        }
        let steps = counted(outcome.steps(), "step");
        show::line(format!("the run is given up after {steps}; the session can be used"));
        self.tell_unknown(&outcome);
        Ok(Ending::Done)
    }

    /// Asks for the decisions that are waited for, for as long as there are any and somebody answers; tells the result.
    async fn decide(&mut self, session: &SessionHandle, mut ended: Ended) -> anyhow::Result<Ending> {
        loop {
            let pending = match &ended {
                Ok(outcome) => outcome.pending(),
                Err(RunnerError::Pending { .. }) => session.pending().await?,
                Err(_) => Vec::new(),
            };
            let decisions = match pending.is_empty() {
                true => Vec::new(),
                false => self.ask(&pending).await?,
            };
            if decisions.is_empty() {
                return self.tell(session, ended).await;
            }
            let decisions = self.desk.decided(decisions);
            ended = self.watch(session, async || session.resume().decide_all(decisions).start()).await?;
        }
    }

    /// Shows what happens. Ctrl-C cancels the run, and a second one ends the command.
    async fn watch(
        &self,
        session: &SessionHandle,
        start: impl AsyncFnOnce() -> Result<Invocation, RunnerError>,
    ) -> anyhow::Result<Ended> {
        // One listener, armed before anything happens and armed anew: no interrupt must go by unheard.
        let mut interrupt = pin!(tokio::signal::ctrl_c());
        let mut is_interrupted = false;
        if let Some(heard) = (&mut interrupt).now_or_never() {
            heard.context("Ctrl-C cannot be waited for")?;
            interrupt.set(tokio::signal::ctrl_c());
            is_interrupted = true;
        }
        let mut watch = self.watcher(session).await?;
        let mut failures = self.desk.failures.lock().await;
        let invocation = match start().await {
            Ok(invocation) => invocation,
            // The message was not accepted.
            Err(error) => return Ok(Err(error)),
        };
        if is_interrupted {
            invocation.cancel();
        }
        let mut traces = Traces::new(self.desk.runner.agent().name());
        let mut events = invocation.subscribe(0);
        let mut turns = Watch::turns();
        let mut interrupts = 0;
        loop {
            tokio::select! {
                seen = events.next() => match seen {
                    Some(seen) => {
                        watch.see(&seen);
                        if let Seen::Event { event, .. } = &seen {
                            traces.observe(event).await.map_err(anyhow::Error::from_boxed)?;
                        }
                    }
                    None => break,
                },
                Some(failure) = failures.recv() => watch.retry(&failure),
                _ = turns.tick() => watch.turn(),
                heard = &mut interrupt => {
                    heard.context("Ctrl-C cannot be waited for")?;
                    interrupt.set(tokio::signal::ctrl_c());
                    interrupts += 1;
                    if interrupts > 1 {
                        return Err(Stop(Ending::Interrupted).into());
                    }
                    invocation.cancel();
                }
            }
        }
        watch.end();
        let ended = invocation.outcome().await;
        if let Some(receipt) = invocation.receipt() {
            self.tell_receipt(&receipt);
        }
        if let Ok(outcome) = &ended
            && !watch.has_seen_run()
        {
            self.tell_earlier_reply(outcome);
        }
        if ended.as_ref().is_err_and(|error| error.outcome().is_none()) {
            invocation.recovered().iter().for_each(|recovered| self.tell_unknown(recovered));
        }
        Ok(ended)
    }

    /// That decisions are stored: for programs, which may send them again.
    fn tell_receipt(&self, receipt: &DecisionReceipt) {
        if self.json {
            let DecisionReceipt { version, requests, by, .. } = receipt;
            let receipt = json!({"by": by, "requests": requests, "version": version});
            show::line(json!({"receipt": receipt}).to_string());
        }
    }

    /// The reply of a run that was done before, or by another process: nothing of it was shown as it came.
    fn tell_earlier_reply(&self, outcome: &Outcome) {
        if !self.json && outcome.exit() == &Exit::Text {
            show::reply(&format!("{}\n", outcome.text()));
        }
    }

    /// What shows a run of the session, made before it starts, so that nothing it changes is there already.
    async fn watcher(&self, session: &SessionHandle) -> anyhow::Result<Watch> {
        // Values that do not fit the schema are said by whoever needs them.
        let watch = Watch::new(self.json, session.state().await.ok());
        Ok(match &self.desk.speakers {
            None => watch,
            Some(speakers) => watch.with_nodes(speakers.clone(), at_work(session).await),
        })
    }

    /// What whoever sits there decides; nothing, if nobody does or they leave it open.
    async fn ask(&mut self, pending: &[ApprovalRequest]) -> anyhow::Result<Vec<(String, Decision)>> {
        let mut decisions = Vec::new();
        let Some(prompt) = &mut self.prompt else { return Ok(decisions) };
        for request in pending {
            show::note(show::approval(request));
            match decision(prompt).await? {
                Some(decision) => decisions.push((request.id.clone(), decision)),
                None => return Ok(Vec::new()),
            }
        }
        Ok(decisions)
    }

    /// What was going on in a run that was interrupted or waits: the question, the step, what was open.
    fn tell_restart(&self, run: &Run) {
        let restart = show::Restart::of(run, self.desk.speakers.is_some());
        match self.json {
            true => show::line(json!({"resumed": restart}).to_string()),
            false => show::aside(&format!("goes on with {restart}")),
        }
    }

    /// That a message was dropped, why, and what to do.
    fn tell_not_taken(&self, session: &SessionHandle, is_accepted: bool) {
        if self.json {
            return show::line(json!({"stored": is_accepted, "taken": false}).to_string());
        }
        if is_accepted {
            return show::note("the message is stored, and is taken once all is decided");
        }
        let resume = self.resume_words(session);
        show::note(format!(
            "the message was not taken: the run before it has not ended; decide and send it again, or give that run up \
             with\n  {resume} --abandon"
        ));
    }

    /// The command that goes on with the session.
    fn resume_words(&self, session: &SessionHandle) -> String {
        format!("stepfold resume {} --session {}", self.desk.words(), quoted(session.key().id.as_str()))
    }

    /// What came of it, for whoever waits for it.
    async fn tell(&self, session: &SessionHandle, ended: Ended) -> anyhow::Result<Ending> {
        let outcome = match ended {
            Ok(outcome) => outcome,
            Err(RunnerError::Pending { outcome, .. }) => {
                self.tell_waits(session, outcome.as_deref()).await?;
                return Ok(Ending::Waits);
            }
            Err(error) => return Err(self.with_advice(session, &error)),
        };
        if self.json {
            show::line(json!({"outcome": self.outcome(session, &outcome)}).to_string());
        } else {
            self.show_outcome(session, &outcome);
        }
        Ok(ending(outcome.exit()))
    }

    /// That the session waits, and what is unknown of the run that was recovered before.
    async fn tell_waits(&self, session: &SessionHandle, recovered: Option<&Outcome>) -> anyhow::Result<()> {
        let pending = session.pending().await?;
        if self.json {
            let unknown = recovered.map(show::unknown_calls).unwrap_or_default();
            show::line(json!({"unknown": unknown, "waits": self.waiting(session, &pending)}).to_string());
            return Ok(());
        }
        if let Some(recovered) = recovered {
            self.tell_unknown(recovered);
        }
        self.how_to_decide(session, &pending);
        Ok(())
    }

    fn outcome(&self, session: &SessionHandle, outcome: &Outcome) -> Value {
        json!({
            "exit": outcome.exit(),
            "output": outcome.run().output(),
            "session": session.key().id.as_str(),
            "steps": outcome.steps(),
            "text": outcome.text(),
            "unknown": show::unknown_calls(outcome),
            "usage": outcome.usage(),
            "waits": self.waiting(session, &outcome.pending()),
        })
    }

    fn waiting(&self, session: &SessionHandle, pending: &[ApprovalRequest]) -> Vec<Value> {
        let resume = self.resume_words(session);
        pending
            .iter()
            .map(|request| {
                json!({
                    "arguments": show::arguments(&request.call),
                    "call": show::call(&request.call),
                    "id": request.id,
                    "reason": request.reason,
                    "tool": request.call.name,
                    "resume": format!("{resume} --approve {}", quoted(&request.id)),
                })
            })
            .collect()
    }

    fn show_outcome(&self, session: &SessionHandle, outcome: &Outcome) {
        match outcome.exit() {
            // An output that was given to a tool was not shown as text.
            Exit::Output if outcome.text().is_empty() => {
                if let Some(output) = outcome.run().output() {
                    show::reply(&format!("{output}\n"));
                }
            }
            Exit::Text | Exit::Output | Exit::NoTools | Exit::End | Exit::Paused(_) => {}
            Exit::Tool(_) => {
                let result = outcome.transcript().last().and_then(|last| last.tool_result());
                if let Some(result) = result {
                    show::reply(&format!("{}\n", result.text()));
                }
            }
            exit => show::note(format!("the run ended: {exit}")),
        }
        self.tell_unknown(outcome);
        self.how_to_decide(session, &outcome.pending());
    }

    /// The calls that may have had their effect: they had started when the process was interrupted.
    fn tell_unknown(&self, outcome: &Outcome) {
        let unknown = show::unknown_calls(outcome);
        if self.json && !unknown.is_empty() {
            return show::line(json!({"unknown": unknown}).to_string());
        }
        for call in unknown {
            show::bad("outcome unknown", &call.words());
        }
    }

    fn how_to_decide(&self, session: &SessionHandle, pending: &[ApprovalRequest]) {
        let Some(first) = pending.first() else { return };
        // Whoever was asked has seen what is asked.
        if self.prompt.is_none() {
            for request in pending {
                show::note(show::approval(request));
            }
        }
        let resume = self.resume_words(session);
        let id = &first.id;
        let (approve, reject, modify) =
            (quoted(id), quoted(&format!("{id}=REASON")), quoted(&format!("{id}=JSON")));
        show::note(format!(
            "the run waits for a decision, and is stored; decide with\n  \
             {resume} --approve {approve}\n  {resume} --reject {reject}\n  {resume} --modify {modify}"
        ));
    }

    /// A failure, with what to do about it.
    fn with_advice(&self, session: &SessionHandle, error: &RunnerError) -> anyhow::Error {
        if let Some(outcome) = error.outcome() {
            self.tell_unknown(outcome);
        }
        let words = match error {
            RunnerError::Run { source, .. } => {
                let steps = counted(source.outcome().steps(), "step");
                format!("the run failed after {steps}: {}", chain(source.fault()))
            }
            RunnerError::EarlierRunFailed { source, times, .. } => {
                let again =
                    if *times > 1 { format!(" {times} times in the same way") } else { String::new() };
                format!("the run before the message failed{again}: {}", chain(source.fault()))
            }
            error => chain(error),
        };
        let resume = self.resume_words(session);
        match error {
            RunnerError::NothingToResume { .. }
            | RunnerError::Input { .. }
            | RunnerError::Decision { .. } => Misuse(words).into(),
            RunnerError::Store { .. } => error.clone().into(),
            RunnerError::AgentChanged { .. } => {
                let words = words.replace("`with_changed_agent()`", "--with-changed-agent");
                Misuse(words.replace("`abandon()`", "--abandon")).into()
            }
            RunnerError::Claimed { .. } => {
                let words = words.replace("`when_claimed`", &format!("`{resume} --when-claimed take-over`"));
                anyhow::Error::msg(words)
            }
            RunnerError::EarlierRunFailed { message, .. } => {
                let inbox = self.resume_words(session).replacen("resume", "inbox", 1);
                anyhow::anyhow!(
                    "{words}\nthe message is stored, and taken after that run; go on with it, give it up, or withdraw the \
                     message:\n  {resume}\n  {resume} --abandon\n  {inbox} --remove {}",
                    quoted(message.as_str())
                )
            }
            RunnerError::Run { .. } | RunnerError::Panicked { .. } | RunnerError::Conflict { .. } => {
                anyhow::anyhow!("{words}\nwhat was done is stored; go on with\n  {resume}")
            }
            _ => anyhow::Error::msg(words),
        }
    }
}

/// The branches of a graph that was interrupted.
async fn at_work(session: &SessionHandle) -> Vec<Planned> {
    interrupted(session).await.iter().flat_map(Run::branches).cloned().collect()
}

/// The last run, if it has not ended. What cannot be read is said by whoever goes on with it.
async fn interrupted(session: &SessionHandle) -> Option<Run> {
    session.unfinished().await.ok().flatten()
}

async fn decision(prompt: &mut Prompt) -> anyhow::Result<Option<Decision>> {
    loop {
        let answer = match prompt.line("run it? [y]es, [n]o, [m]odify, [l]ater: ").await? {
            Line::Text(answer) => answer,
            Line::NotText => String::new(),
            Line::Interrupted | Line::End => return Ok(None),
        };
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => return Ok(Some(Decision::Approve)),
            "n" | "no" => {
                let Line::Text(reason) = prompt.line("why not (the model reads it): ").await? else {
                    return Ok(None);
                };
                return Ok(Some(Decision::reject(reason.trim())));
            }
            "m" | "modify" => {
                let Line::Text(text) = prompt.line("arguments as JSON: ").await? else { return Ok(None) };
                match serde_json::from_str::<Value>(&text) {
                    Ok(arguments) => return Ok(Some(Decision::modify(arguments))),
                    Err(error) => show::note(format!("this is no JSON: {error}")),
                }
            }
            "l" | "later" => return Ok(None),
            _ => show::note("answer y, n, m or l"),
        }
    }
}

fn ending(exit: &Exit) -> Ending {
    match exit {
        Exit::Text | Exit::Output | Exit::Tool(_) | Exit::NoTools | Exit::Hook(_) | Exit::End => Ending::Done,
        Exit::Paused(_) => Ending::Waits,
        Exit::Cancelled => Ending::Interrupted,
        Exit::Failed | Exit::NodeFailed { .. } => Ending::Failed,
        _ => Ending::NoAnswer,
    }
}
