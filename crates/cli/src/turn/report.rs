//! Reports about a turn: its result, the state of its message, and the next command.
//!
//! NOTE: Methods of `TurnRunner`, in a file of their own since they decide nothing.

use serde_json::{Value, json};
use stepfold::agent_loop::{ApprovalRequest, AskReason, Pause};
use stepfold::prelude::*;
use stepfold::runner::{DecisionReceipt, InvocationResult, RunnerError, RunnerErrorKind};

use super::{EndedInvocation, TurnRunner, TurnSubject};
use crate::args::BusyPolicy;
use crate::argument_text::shell_quoted;
use crate::error::{CommandEnding, StoredMessageError, UsageError, chain, in_options};
use crate::other_process::{OtherProcess, with_short_workers};
use crate::show::{self, counted};

impl TurnRunner<'_> {
    /// Reports to programs that decisions are stored: they may send them again.
    pub(super) fn report_receipt(&self, receipt: &DecisionReceipt) {
        if self.json {
            let DecisionReceipt { version, requests, by, .. } = receipt;
            let receipt = json!({"by": by, "requests": requests, "version": version});
            show::line(json!({"receipt": receipt}).to_string());
        }
    }

    /// Reports the run that is resumed: its question, the step, the open calls.
    pub(super) fn report_resumed_run(&self, run: &Run) {
        let restart = show::UnfinishedRun::of(run, self.context.speakers.is_some());
        match self.json {
            true => show::line(json!({"resumed": restart}).to_string()),
            false => show::aside(&format!("continues with {restart}")),
        }
    }

    /// Reports the other process that runs in the session, and the action of this one.
    pub(super) fn report_other_process(&self, other: &OtherProcess) {
        let (worker, until) = (other.claim.owner.as_str(), other.claim.expires);
        let what = match self.context.when_claimed() {
            BusyPolicy::Wait => "waiting for it, for two minutes at most",
            BusyPolicy::TakeOver => "taking the session over from it",
            // The error says so.
            BusyPolicy::Refuse => return,
        };
        if self.json {
            return show::line(
                json!({"running": {"until": until.to_string(), "worker": worker}}).to_string(),
            );
        }
        let until = show::moment(until);
        let worker = with_short_workers(worker);
        show::aside(&format!("{worker} is at work in the session, until {until} at least; {what}"));
    }

    /// Reports that the message is stored and not answered, if it is still in the inbox at the end.
    pub(super) async fn report_stored_message(
        &self,
        session: &SessionHandle,
        id: Option<&str>,
        ended: &anyhow::Result<CommandEnding>,
    ) {
        let Some(id) = id.filter(|_| !matches!(ended, Ok(CommandEnding::Done))) else { return };
        // The text of the error says so already.
        if !self.json && ended.as_ref().is_err_and(anyhow::Error::is::<StoredMessageError>) {
            return;
        }
        let stored = session.inbox().await.unwrap_or_default();
        if stored.iter().any(|message| message.id.as_str() == id) {
            let words = "the message is stored, and is answered once the run before it has ended";
            let resume = self.resume_command(session);
            match ended {
                Ok(CommandEnding::Waits) | Err(_) => self.report_message_state(true, words),
                Ok(_) => {
                    self.report_message_state(
                        true,
                        &format!("the message is stored; continue with\n  {resume}"),
                    );
                }
            }
        }
    }

    /// Reports that a message before which a run of another agent waits is not stored, unless it is.
    pub(super) async fn report_unstored_message(&self, session: &SessionHandle, id: Option<&str>) {
        // NOTE: Of a session that cannot be read, nothing is said: a message that was stored would be sent twice.
        let Ok(stored) = session.inbox().await else { return };
        let is_stored = stored.iter().any(|message| Some(message.id.as_str()) == id);
        if !is_stored {
            self.report_message_state(
                false,
                "the message is not stored: send it again once the session continues",
            );
        }
    }

    /// Reports that the message was refused, the reason, and the remedies.
    pub(super) fn report_refused_message(&self, session: &SessionHandle) {
        let resume = self.resume_command(session);
        let words = format!(
            "the message was not taken: the run before it has not ended; decide and send it again, or give that run up \
             with\n  {resume} --abandon"
        );
        self.report_message_state(false, &words);
    }

    /// Reports the state of a message that was not answered.
    pub(super) fn report_message_state(&self, is_stored: bool, words: &str) {
        match self.json {
            true => show::line(json!({"stored": is_stored, "taken": false}).to_string()),
            false => show::note(words),
        }
    }

    /// Reports the result.
    pub(super) async fn report_result(
        &self,
        session: &SessionHandle,
        last: EndedInvocation,
        subject: TurnSubject,
    ) -> anyhow::Result<CommandEnding> {
        let outcome = match last.ended {
            Ok(outcome) => outcome,
            Err(RunnerError { kind: RunnerErrorKind::Pending { outcome, .. }, .. }) => {
                self.report_pending(session, outcome.as_deref()).await?;
                return Ok(CommandEnding::Waits);
            }
            Err(error) => return Err(self.with_advice(session, &error)),
        };
        if self.json {
            let mut report = json!({"outcome": self.outcome(session, &outcome)});
            if subject == TurnSubject::Earlier {
                report["earlier"] = json!(true);
            }
            show::line(report.to_string());
        } else {
            self.show_outcome(session, &outcome, last.is_shown, subject);
        }
        Ok(ending(outcome.exit()))
    }

    /// Reports that the session waits for decisions, and the unknown calls of the run that was recovered before.
    async fn report_pending(
        &self,
        session: &SessionHandle,
        recovered: Option<&Outcome>,
    ) -> anyhow::Result<()> {
        let pending = session.pending().await?;
        if self.json {
            let unknown = recovered.map(show::unknown_calls).unwrap_or_default();
            show::line(json!({"unknown": unknown, "waits": self.waiting(session, &pending)}).to_string());
            return Ok(());
        }
        if let Some(recovered) = recovered {
            self.report_unknown_calls(recovered);
        }
        self.explain_decisions(session, &pending);
        Ok(())
    }

    fn outcome(&self, session: &SessionHandle, outcome: &Outcome) -> Value {
        json!({
            "exit": outcome.exit(),
            "output": outcome.run().output(),
            "session": session.key().id.as_str(),
            "steps": outcome.steps(),
            "text": outcome.last_words().unwrap_or_default(),
            "unknown": show::unknown_calls(outcome),
            "usage": outcome.usage(),
            "waits": self.waiting(session, &outcome.pending()),
        })
    }

    fn waiting(&self, session: &SessionHandle, pending: &[ApprovalRequest]) -> Vec<Value> {
        let resume = self.resume_command(session);
        let mut all = Vec::with_capacity(pending.len());
        for request in pending {
            let mut waits = show::request_json(request);
            let decide = match request.reason == AskReason::Input && request.can_modify() {
                true => format!("--modify {}", shell_quoted(&format!("{}=JSON", request.id))),
                false => format!("--approve {}", shell_quoted(&request.id)),
            };
            // NOTE: An outcome that comes later arrives by its token, not by a decision on the command line.
            if !request.is_later() {
                waits["resume"] = json!(format!("{resume} {decide}"));
            }
            all.push(waits);
        }
        all
    }

    fn show_outcome(&self, session: &SessionHandle, outcome: &Outcome, is_shown: bool, subject: TurnSubject) {
        let reply = |text: &str| match subject {
            TurnSubject::Earlier => show::aside(&format!("earlier reply: {}", text.trim_end())),
            TurnSubject::Message | TurnSubject::Run => show::reply(&format!("{text}\n")),
        };
        // NOTE: Another process has run the message, so no event of the answer was shown here.
        if !is_shown && !outcome.text().trim().is_empty() {
            reply(&outcome.text());
        }
        match outcome.exit() {
            // An output by a tool was not shown as text.
            Exit::Output if outcome.text().is_empty() => {
                if let Some(output) = outcome.run().output() {
                    reply(&output.to_string());
                }
            }
            // Text beside the call was shown already.
            Exit::Tool(_) if outcome.text().trim().is_empty() => {
                if let Some(words) = outcome.last_words() {
                    reply(&words);
                }
            }
            exit @ Exit::Paused(Pause::Budget(_)) => show::note(exit.to_string()),
            Exit::Text | Exit::Output | Exit::NoTools | Exit::End | Exit::Paused(_) | Exit::Tool(_) => {}
            exit => show::note(format!("the run ended: {exit}")),
        }
        self.report_unknown_calls(outcome);
        self.explain_decisions(session, &outcome.pending());
    }

    /// Reports the unknown calls of runs that were recovered before this one: no other report has them.
    pub(super) fn report_recovered_runs(&self, ended: &InvocationResult) {
        match ended {
            Ok(outcome) => {
                outcome.recovered().iter().for_each(|recovered| self.report_unknown_calls(recovered));
            }
            Err(RunnerError { kind: RunnerErrorKind::Pending { outcome: Some(recovered), .. }, .. })
                if !recovered.exit().is_resumable() =>
            {
                self.report_unknown_calls(recovered);
            }
            Err(_) => {}
        }
    }

    /// Reports calls that may have had their effect: they had started when the process was interrupted.
    pub(super) fn report_unknown_calls(&self, outcome: &Outcome) {
        let unknown = show::unknown_calls(outcome);
        if self.json && !unknown.is_empty() {
            return show::line(json!({"unknown": unknown}).to_string());
        }
        for call in unknown {
            show::bad("outcome unknown", &call.words());
        }
    }

    fn explain_decisions(&self, session: &SessionHandle, pending: &[ApprovalRequest]) {
        if pending.is_empty() {
            return;
        }
        // With a prompt, the approver has seen the request.
        if self.prompt.is_none() {
            for request in pending {
                show::note_exactly(&show::approval(request));
            }
        }
        let Some(first) = pending.iter().find(|request| !request.is_later()) else {
            let outcome = "the run waits for an outcome that comes later, and is stored; `stepfold work` continues with it";
            return show::note(outcome);
        };
        // NOTE: At a terminal `resume` asks for the decisions; a script needs the options and the ids.
        if show::is_at_terminal() {
            let resume = format!("stepfold resume {}", self.context.words());
            return show::note(format!(
                "the run waits for a decision, and is stored; decide with\n  {resume}"
            ));
        }
        let resume = self.resume_command(session);
        let id = &first.id;
        let is_answer = first.reason == AskReason::Input && first.can_modify();
        let mut ways = vec![format!("--reject {}", shell_quoted(&format!("{id}=REASON")))];
        if !is_answer {
            ways.insert(0, format!("--approve {}", shell_quoted(id)));
        }
        if first.can_modify() {
            ways.push(format!("--modify {}", shell_quoted(&format!("{id}=JSON"))));
        }
        let ways = ways.iter().map(|way| format!("\n  {resume} {way}")).collect::<Vec<_>>().concat();
        show::note(format!("the run waits for a decision, and is stored; decide with{ways}"));
    }

    /// A failure with its remedy.
    pub(super) fn with_advice(&self, session: &SessionHandle, error: &RunnerError) -> anyhow::Error {
        if let Some(outcome) = error.outcome() {
            self.report_unknown_calls(outcome);
        }
        let words = failure_text(error);
        let resume = self.resume_command(session);
        let inbox = resume.replacen("resume", "inbox", 1);
        // NOTE: The library advises by its methods; users of the command need its options.
        match error {
            RunnerError { kind: RunnerErrorKind::NothingToResume
            | RunnerErrorKind::Input { .. }
            | RunnerErrorKind::Decision { .. }, .. } => UsageError(words).into(),
            RunnerError { kind: RunnerErrorKind::Store { .. }, .. } => error.clone().into(),
            RunnerError {
                kind: RunnerErrorKind::AgentChanged { .. } | RunnerErrorKind::PinnedAgent { .. }, ..
            } => {
                UsageError(in_options(&words)).into()
            }
            RunnerError { kind: RunnerErrorKind::Claimed { is_accepted, .. }, .. } => {
                let words = words.replace("`when_claimed`", &format!("`{resume} --when-claimed take-over`"));
                StoredMessageError::if_so(*is_accepted, words)
            }
            RunnerError { kind: RunnerErrorKind::ShutDown { is_accepted, .. }, .. } => StoredMessageError::if_so(*is_accepted, words),
            RunnerError { kind: RunnerErrorKind::EarlierRunFailed { message, .. }, .. } => StoredMessageError(format!(
                "{words}\nthe message is stored, and taken after that run; resume it, abandon it, or withdraw the \
                 message:\n  {resume}\n  {resume} --abandon\n  {inbox} --remove {}",
                shell_quoted(message.as_str())
            ))
            .into(),
            RunnerError { kind: RunnerErrorKind::EarlierCannotBegin { earlier, is_accepted, .. }, .. } => {
                let stored = if *is_accepted { "the new message is stored, and taken after it; " } else { "" };
                let words = format!(
                    "{words}\n{stored}fix the cause and resume it, or withdraw it:\n  {resume}\n  {inbox} \
                     --remove {}",
                    shell_quoted(earlier.as_str())
                );
                StoredMessageError::if_so(*is_accepted, words)
            }
            RunnerError { kind: RunnerErrorKind::Run { .. } | RunnerErrorKind::Panicked | RunnerErrorKind::Conflict { .. }, .. } => {
                anyhow::anyhow!("{words}\nwhat was done is stored; continue with\n  {resume}")
            }
            _ => anyhow::Error::msg(words),
        }
    }
}

/// The text of a failure, without its remedy.
fn failure_text(error: &RunnerError) -> String {
    match error {
        RunnerError { kind: RunnerErrorKind::Run { source, .. }, .. } => {
            let steps = counted(source.outcome().steps(), "step");
            format!("the run failed after {steps}: {}", chain(source.fault()))
        }
        RunnerError { kind: RunnerErrorKind::EarlierRunFailed { source, times, .. }, .. } => {
            let again =
                if *times > 1 { format!(" {times} times with the same error") } else { String::new() };
            format!("the run before the message failed{again}: {}", chain(source.fault()))
        }
        RunnerError { kind: RunnerErrorKind::EarlierCannotBegin { earlier, source, .. }, .. } => {
            let cause = match &**source {
                RunnerError { kind: RunnerErrorKind::Run { source, .. }, .. } => chain(source.fault()),
                RunnerError { kind: RunnerErrorKind::Input { source, .. }, .. } => chain(source),
                source => chain(source),
            };
            format!("message `{earlier}` comes first in the session, and cannot begin: {cause}")
        }
        error => chain(error),
    }
}

fn ending(exit: &Exit) -> CommandEnding {
    match exit {
        Exit::Text | Exit::Output | Exit::Tool(_) | Exit::NoTools | Exit::Hook(_) | Exit::End => {
            CommandEnding::Done
        }
        Exit::Paused(_) => CommandEnding::Waits,
        Exit::Cancelled => CommandEnding::Interrupted,
        Exit::Failed | Exit::NodeFailed { .. } => CommandEnding::Failed,
        _ => CommandEnding::NoAnswer,
    }
}
