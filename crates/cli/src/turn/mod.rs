//! A turn, from the message to its end: shown as it happens, cancelled by Ctrl-C, with its approvals.
//!
//! | phase | input | next phase |
//! |---|---|---|
//! | sending | accepted | running |
//! | sending | another process runs | waiting for it, or the end with `--when-claimed refuse` |
//! | waiting for it | its claim ends | running |
//! | waiting for it | Ctrl-C | the end, with the message withdrawn; cancelled if it is taken already |
//! | running | an outcome without requests | the end |
//! | running | requests for decisions | deciding |
//! | running | Ctrl-C | cancelled; a second one ends the command |
//! | deciding | decisions | running |
//! | deciding | no approver, or "later" | the end: the run waits in the store |
//! | deciding about an earlier run | that run has ended | sending again |

mod dialog;
mod report;

use futures_util::StreamExt as _;
use serde_json::json;
use stepfold::prelude::*;
use stepfold::runner::{
    Invocation, InvocationEvent, InvocationResult, ResumeRun, RunnerError, RunnerErrorKind,
};
use stepfold::session_scopes::{Claim, InvocationId};

use self::dialog::ask;
use crate::args::BusyPolicy;
use crate::context::CommandContext;
use crate::error::{CommandEnding, SilentExit, chain};
use crate::other_process::{OtherProcess, unfinished_run};
use crate::prompt::LinePrompt;
use crate::show::{self, RunDisplay, counted};
use crate::signals::CtrlCListener;

/// Runs turns of a session for a command.
pub(crate) struct TurnRunner<'a> {
    pub(crate) context: &'a CommandContext,
    pub(crate) json: bool,
    /// The prompt of the approver, if a person is there.
    pub(crate) prompt: Option<LinePrompt>,
}

/// The subject of an invocation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TurnSubject {
    /// The message that was sent.
    Message,
    /// A run before that of the message: its answer is not the requested one.
    Earlier,
    /// The unfinished run of the session.
    Run,
}

/// An invocation that was followed to its end.
struct EndedInvocation {
    /// Its id; none if its message was not accepted.
    id: Option<InvocationId>,
    /// Whether its answer was shown while it came.
    is_shown: bool,
    ended: InvocationResult,
}

impl TurnRunner<'_> {
    /// Sends a message and follows the turn to its end, its approvals included. A message that the session refuses because
    /// an earlier run waits for decisions is sent again after them.
    pub(crate) async fn send(
        &mut self,
        session: &SessionHandle,
        input: Input,
        key: Option<&str>,
    ) -> anyhow::Result<CommandEnding> {
        let mut other = OtherProcess::in_session(self.context, session).await;
        if let Some(run) =
            self.unfinished_run_here(session, other.as_ref()).await.filter(|run| run.pending().is_empty())
        {
            self.report_resumed_run(&run);
        }
        // NOTE: A stored message is awaited by its key, whichever process takes it: a second send would store it twice.
        let (mut key, mut is_stored) = (key.map(str::to_owned), false);
        loop {
            let refusal =
                other.as_ref().and_then(|other| self.claimed_refusal(session, other)).filter(|_| !is_stored);
            let send = async || match (&key, refusal) {
                (Some(_), Some(refusal)) => Err(refusal),
                (Some(key), None) => session.send_once(key.as_str(), input.clone()).await,
                (None, _) => session.send(input.clone()).await,
            };
            let Some(first) = self.run_invocation(session, TurnSubject::Message, other, send).await? else {
                return Ok(CommandEnding::Interrupted);
            };
            let id = first.id.as_ref().map(|id| id.as_str().to_owned());
            let Err(RunnerError { kind: RunnerErrorKind::Pending { is_accepted, .. }, .. }) = &first.ended
            else {
                let is_refused = first.ended.as_ref().is_err_and(RunnerError::is_of_other_agent);
                let id = id.or(key);
                let ended = self.resolve_approvals(session, first, TurnSubject::Run).await;
                self.report_stored_message(session, id.as_deref(), &ended).await;
                if is_refused {
                    self.report_unstored_message(session, id.as_deref()).await;
                }
                return ended;
            };
            if self.prompt.is_some() {
                show::note("the message is not taken yet: the session waits for a decision; decide first");
            }
            if *is_accepted {
                (key, is_stored) = (id, true);
            }
            match self.resolve_approvals(session, first, TurnSubject::Earlier).await {
                Ok(ending) if ending.has_run_ended() => {}
                ended => {
                    match is_stored {
                        true => self.report_stored_message(session, key.as_deref(), &ended).await,
                        false if ended.is_ok() => self.report_refused_message(session),
                        false => {}
                    }
                    return ended;
                }
            }
            other = OtherProcess::in_session(self.context, session).await;
        }
    }

    /// The refusal of a message with `--when-claimed refuse` while another process runs: a message with a key would be
    /// stored first.
    fn claimed_refusal(&self, session: &SessionHandle, other: &OtherProcess) -> Option<RunnerError> {
        let Claim { owner, expires, .. } = other.claim.clone();
        let is_refused = self.context.when_claimed() == BusyPolicy::Refuse;
        is_refused.then(|| {
            RunnerError::new(session.key(), RunnerErrorKind::Claimed { owner, expires, is_accepted: false })
        })
    }

    /// Resumes a run and follows it to its end; then runs the messages that were stored while it waited.
    pub(crate) async fn resume(
        &mut self,
        session: &SessionHandle,
        resume: ResumeRun,
    ) -> anyhow::Result<CommandEnding> {
        let other = OtherProcess::in_session(self.context, session).await;
        // NOTE: While another process runs, the stored messages are its own to answer.
        let stored = match &other {
            Some(_) => Vec::new(),
            None => session.inbox().await?,
        };
        if let Some(run) = self.unfinished_run_here(session, other.as_ref()).await {
            self.report_resumed_run(&run);
        }
        let Some(resumed) =
            self.run_invocation(session, TurnSubject::Run, other, async || resume.start()).await?
        else {
            return Ok(CommandEnding::Interrupted);
        };
        let ending = self.resolve_approvals(session, resumed, TurnSubject::Run).await?;
        let stored: Vec<InvocationId> = stored.into_iter().map(|message| message.id).collect();
        self.run_stored_messages(session, ending, &stored).await
    }

    /// Runs these messages of the inbox, as long as each run completes. Returns the first ending other than success, or the
    /// last one if its run has not ended.
    async fn run_stored_messages(
        &mut self,
        session: &SessionHandle,
        ending: CommandEnding,
        ids: &[InvocationId],
    ) -> anyhow::Result<CommandEnding> {
        let (mut first_bad, mut last) = (ending, ending);
        while last.has_run_ended() {
            let waiting = session.inbox().await?;
            let Some(first) = waiting.first().filter(|_| waiting.iter().any(|one| ids.contains(&one.id)))
            else {
                break;
            };
            if !self.json {
                let said = show::short(&show::message_text(first));
                show::aside(&format!("continues with a message that was stored: \"{said}\""));
            }
            let other = OtherProcess::in_session(self.context, session).await;
            let start = async || session.resume().start();
            let Some(taken) = self.run_invocation(session, TurnSubject::Run, other, start).await? else {
                return Ok(CommandEnding::Interrupted);
            };
            // Another process has taken it.
            if matches!(taken.ended, Err(RunnerError { kind: RunnerErrorKind::NothingToResume, .. })) {
                break;
            }
            last = self.resolve_approvals(session, taken, TurnSubject::Run).await?;
            if first_bad == CommandEnding::Done {
                first_bad = last;
            }
        }
        Ok(if last.has_run_ended() { first_bad } else { last })
    }

    /// Abandons the run, and reports its calls with unknown outcomes.
    pub(crate) async fn abandon(&self, session: &SessionHandle) -> anyhow::Result<CommandEnding> {
        let outcome = session.abandon().await.map_err(|error| self.with_advice(session, &error))?;
        // NOTE: Another process may have completed the run first: then its outcome is another exit.
        let is_abandoned = *outcome.exit() == Exit::Cancelled;
        if self.json {
            let unknown = show::unknown_calls(&outcome);
            show::line(json!({"abandoned": is_abandoned, "unknown": unknown}).to_string());
            return Ok(CommandEnding::Done);
        }
        let steps = counted(outcome.steps(), "step");
        show::line(match is_abandoned {
            true => format!("run abandoned after {steps}; the session is ready for the next message"),
            false => {
                format!("run had ended already, after {steps}; the session is ready for the next message")
            }
        });
        self.report_unknown_calls(&outcome);
        Ok(CommandEnding::Done)
    }

    /// Asks for pending decisions as long as there are any and the approver answers; then reports the result. If an
    /// earlier run was decided elsewhere meanwhile, the refusal of these decisions is reported too.
    async fn resolve_approvals(
        &mut self,
        session: &SessionHandle,
        mut last: EndedInvocation,
        subject: TurnSubject,
    ) -> anyhow::Result<CommandEnding> {
        loop {
            let pending = match &last.ended {
                Ok(outcome) => outcome.pending(),
                Err(RunnerError { kind: RunnerErrorKind::Pending { .. }, .. }) => session.pending().await?,
                Err(_) => Vec::new(),
            };
            let decisions = match pending.is_empty() {
                true => Vec::new(),
                false => ask(self.prompt.as_mut(), &pending).await?,
            };
            if decisions.is_empty() {
                return self.report_result(session, last, subject).await;
            }
            let decisions = self.context.decided(decisions);
            let resume = async || session.resume().decide_all(decisions).start();
            self.report_recovered_runs(&last.ended);
            let other = OtherProcess::in_session(self.context, session).await;
            let Some(next) = self.run_invocation(session, subject, other, resume).await? else {
                return Ok(CommandEnding::Interrupted);
            };
            if let (TurnSubject::Earlier, Err(error)) = (subject, &next.ended)
                && matches!(error.kind, RunnerErrorKind::Decision { .. } | RunnerErrorKind::NothingToResume)
            {
                // The message is sent to the session as it is now.
                show::bad("error", &chain(error));
                return Ok(CommandEnding::Done);
            }
            last = next;
        }
    }

    /// Starts an invocation and shows it to its end. Returns none if Ctrl-C has withdrawn its message, or has ended the
    /// wait for another process.
    async fn run_invocation(
        &self,
        session: &SessionHandle,
        subject: TurnSubject,
        other: Option<OtherProcess>,
        start: impl AsyncFnOnce() -> Result<Invocation, RunnerError>,
    ) -> anyhow::Result<Option<EndedInvocation>> {
        // NOTE: The listener starts before the first await: Ctrl-C during the start cancels the invocation once it exists.
        let mut interrupts = CtrlCListener::new();
        let is_interrupted = interrupts.was_pressed()?;
        let mut display = self.new_display(session, subject).await;
        if let Some(other) = &other {
            self.report_other_process(other);
        }
        let invocation = match start().await {
            Ok(invocation) => invocation,
            // The message was not accepted.
            Err(error) => return Ok(Some(EndedInvocation { id: None, is_shown: true, ended: Err(error) })),
        };
        if is_interrupted {
            invocation.cancel();
        }
        let shown =
            self.show_until_ended(session, subject, other, &invocation, &mut display, &mut interrupts);
        if !Box::pin(shown).await? {
            return Ok(None);
        }
        display.end();
        let ended = invocation.outcome().await;
        if let Some(receipt) = invocation.receipt() {
            self.report_receipt(&receipt);
        }
        if ended.as_ref().is_err_and(|error| error.outcome().is_none()) {
            invocation.recovered().iter().for_each(|recovered| self.report_unknown_calls(recovered));
        }
        Ok(Some(EndedInvocation {
            id: Some(invocation.id().clone()),
            is_shown: display.has_seen_run(),
            ended,
        }))
    }

    /// Shows the events until the last one. Ctrl-C cancels the run, and a second one ends the command. Returns false if the
    /// message was withdrawn.
    async fn show_until_ended(
        &self,
        session: &SessionHandle,
        subject: TurnSubject,
        mut other: Option<OtherProcess>,
        invocation: &Invocation,
        display: &mut RunDisplay,
        interrupts: &mut CtrlCListener,
    ) -> anyhow::Result<bool> {
        let mut failures = self.context.failures.lock().await;
        let mut events = invocation.subscribe(0);
        let (mut ticks, mut polls) = (RunDisplay::ticks(), OtherProcess::polls());
        let mut is_cancelled = false;
        loop {
            tokio::select! {
                seen = events.next() => {
                    let Some(seen) = seen else { return Ok(true) };
                    if let Some(other) = other.take() {
                        display.end();
                        *display = self.take_over(session, other, invocation, &seen, subject).await?;
                    }
                    display.observe(&seen);
                }
                Some(failure) = failures.recv() => display.retry(&failure),
                _ = ticks.tick() => display.tick(),
                _ = polls.tick() => if let Some(other) = &mut other {
                    other.poll(self.context, session).await;
                },
                pressed = interrupts.next() => {
                    pressed?;
                    if std::mem::replace(&mut is_cancelled, true) {
                        return Err(SilentExit(CommandEnding::Interrupted).into());
                    }
                    let is_message = subject == TurnSubject::Message;
                    if other.is_some() && (!is_message || self.withdraw(session, invocation).await) {
                        return Ok(false);
                    }
                    invocation.cancel();
                }
            }
        }
    }

    /// The last run, if it has not ended and no other process runs it.
    async fn unfinished_run_here(
        &self,
        session: &SessionHandle,
        other: Option<&OtherProcess>,
    ) -> Option<Run> {
        match other {
            Some(_) => None,
            None => unfinished_run(session).await,
        }
    }

    /// Withdraws a message that no process has taken. Returns whether it was withdrawn.
    async fn withdraw(&self, session: &SessionHandle, invocation: &Invocation) -> bool {
        let is_withdrawn = session.withdraw(invocation.id()).await.unwrap_or(false);
        if is_withdrawn {
            self.report_message_state(false, "the message is withdrawn");
        }
        is_withdrawn
    }

    /// Creates the display of a run before the run starts: a state that the run has changed already would hide the changes.
    async fn new_display(&self, session: &SessionHandle, subject: TurnSubject) -> RunDisplay {
        // Values that do not fit the schema are reported by the run, which needs them.
        let state = session.state().await.ok();
        // NOTE: Only a graph has branches that continue from the run before; an agent begins without any.
        let run = match self.context.speakers {
            Some(_) => unfinished_run(session).await,
            None => None,
        };
        self.display_from(state, run.as_ref(), subject)
    }

    /// Creates the display of a run that begins on this state, or resumes this run.
    fn display_from(&self, state: Option<State>, run: Option<&Run>, subject: TurnSubject) -> RunDisplay {
        let display = RunDisplay::new(self.json, state).aside_if(subject == TurnSubject::Earlier);
        match &self.context.speakers {
            None => display,
            Some(speakers) => {
                let branches = run.into_iter().flat_map(Run::branches).cloned().collect();
                display.with_nodes(speakers.clone(), branches)
            }
        }
    }

    /// Creates the display again after the claim of another process has ended: from the state that it left, and the run that
    /// the invocation resumes, which is reported.
    async fn take_over(
        &self,
        session: &SessionHandle,
        other: OtherProcess,
        invocation: &Invocation,
        first: &InvocationEvent,
        subject: TurnSubject,
    ) -> anyhow::Result<RunDisplay> {
        let left = other.session_left(self.context, session, invocation.id()).await?;
        let run = other.into_run(first);
        if let Some(run) = &run {
            self.report_resumed_run(run);
        }
        Ok(self.display_from(left.state(self.context.runner.schema()).ok(), run.as_ref(), subject))
    }

    /// The command that continues with the session.
    fn resume_command(&self, session: &SessionHandle) -> String {
        self.context.resume_command(session.key().id.as_str())
    }
}
