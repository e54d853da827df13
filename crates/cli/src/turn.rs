//! A turn, from the question to its end: followed as it happens, stopped by Ctrl-C, decided about on the way.

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use stepfold::agent_loop::{ApprovalRequest, AskReason};
use stepfold::prelude::*;
use stepfold::runner::{DecisionReceipt, Ended, Invocation, Resume, RunnerError, Seen};
use stepfold::session_scopes::{Claim, InvocationId};
use stepfold::state_core::{ExactError, read_exact};
use stepfold::terminal::Text;

use crate::args::WhenBusy;
use crate::desk::{Desk, quoted};
use crate::error::{Ending, Misuse, Stop, Stored, chain};
use crate::other::{Other, interrupted};
use crate::prompt::{Line, Prompt};
use crate::show::{self, Watch, counted};
use crate::signals::Interrupts;

/// What the commands that run an agent share.
pub(crate) struct Turns<'a> {
    pub(crate) desk: &'a Desk,
    pub(crate) json: bool,
    /// Whom to ask for decisions, if anybody is there.
    pub(crate) prompt: Option<Prompt>,
}

/// What an invocation is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// The message that was sent.
    Message,
    /// A run before that of the message: its answer is not the one that was asked for.
    Earlier,
    /// The run that is there.
    Run,
}

/// An invocation that was followed to its end.
struct Followed {
    /// Its name; none if its message was not accepted.
    id: Option<InvocationId>,
    /// Whether its answer was shown while it came.
    is_shown: bool,
    ended: Ended,
}

impl Turns<'_> {
    /// Sends a message and follows the turn to its end, and those that decisions about it begin. One that the session
    /// does not take, since it waits for decisions, is sent again once they are made.
    pub(crate) async fn send(
        &mut self,
        session: &SessionHandle,
        input: Input,
        key: Option<&str>,
    ) -> anyhow::Result<Ending> {
        let mut other = Other::in_session(self.desk, session).await;
        if let Some(run) = self.left(session, other.as_ref()).await.filter(|run| run.pending().is_empty()) {
            self.tell_restart(&run);
        }
        // One that is stored is waited for by its key, whichever process takes it, and is not stored again.
        let (mut key, mut is_stored) = (key.map(str::to_owned), false);
        loop {
            let refused =
                other.as_ref().and_then(|other| self.refused(session, other)).filter(|_| !is_stored);
            let send = async || match (&key, refused) {
                (Some(_), Some(refused)) => Err(refused),
                (Some(key), None) => session.send_once(key.as_str(), input.clone()).await,
                (None, _) => session.send(input.clone()).await,
            };
            let Some(first) = self.watch(session, About::Message, other, send).await? else {
                return Ok(Ending::Interrupted);
            };
            let id = first.id.as_ref().map(|id| id.as_str().to_owned());
            let Err(RunnerError::Pending { is_accepted, .. }) = &first.ended else {
                let ended = self.decide(session, first, About::Run).await;
                self.tell_stored(session, id.or(key).as_deref(), &ended).await;
                return ended;
            };
            if self.prompt.is_some() {
                show::note("the message is not taken yet: the session waits for a decision; decide first");
            }
            if *is_accepted {
                (key, is_stored) = (id, true);
            }
            match self.decide(session, first, About::Earlier).await {
                Ok(ending) if ending.is_of_ended_run() => {}
                ended => {
                    match is_stored {
                        true => self.tell_stored(session, key.as_deref(), &ended).await,
                        false if ended.is_ok() => self.tell_not_taken(session),
                        false => {}
                    }
                    return ended;
                }
            }
            other = Other::in_session(self.desk, session).await;
        }
    }

    /// The refusal of a message that would be stored first, if another process is at work and that is what to do then.
    fn refused(&self, session: &SessionHandle, other: &Other) -> Option<RunnerError> {
        let Claim { owner, expires, .. } = other.claim.clone();
        let key = Box::new(session.key().clone());
        let is_refused = self.desk.when_claimed() == WhenBusy::Refuse;
        is_refused.then(|| RunnerError::Claimed { key, owner, expires, is_accepted: false })
    }

    /// Continues with a run and follows it to its end; then with the messages that were stored while it waited.
    pub(crate) async fn resume(&mut self, session: &SessionHandle, resume: Resume) -> anyhow::Result<Ending> {
        let other = Other::in_session(self.desk, session).await;
        let stored = match &other {
            Some(_) => Vec::new(),
            None => session.inbox().await?,
        };
        if let Some(run) = self.left(session, other.as_ref()).await {
            self.tell_restart(&run);
        }
        let Some(resumed) = self.watch(session, About::Run, other, async || resume.start()).await? else {
            return Ok(Ending::Interrupted);
        };
        let ending = self.decide(session, resumed, About::Run).await?;
        let stored: Vec<InvocationId> = stored.into_iter().map(|message| message.id).collect();
        self.take_stored(session, ending, &stored).await
    }

    /// Continues with these messages of the inbox, for as long as each run completes. Returns the first ending that is
    /// not good, unless a run has not ended.
    async fn take_stored(
        &mut self,
        session: &SessionHandle,
        ending: Ending,
        ids: &[InvocationId],
    ) -> anyhow::Result<Ending> {
        let (mut told, mut last) = (ending, ending);
        while last.is_of_ended_run() {
            let waiting = session.inbox().await?;
            let Some(first) = waiting.first().filter(|_| waiting.iter().any(|one| ids.contains(&one.id)))
            else {
                break;
            };
            if !self.json {
                let said = show::short(&show::said_in(first));
                show::aside(&format!("continues with a message that was stored: \"{said}\""));
            }
            let other = Other::in_session(self.desk, session).await;
            let start = async || session.resume().start();
            let Some(taken) = self.watch(session, About::Run, other, start).await? else {
                return Ok(Ending::Interrupted);
            };
            // Another process took it meanwhile.
            if matches!(taken.ended, Err(RunnerError::NothingToResume { .. })) {
                break;
            }
            last = self.decide(session, taken, About::Run).await?;
            if told == Ending::Done {
                told = last;
            }
        }
        Ok(if last.is_of_ended_run() { told } else { last })
    }

    /// Gives a run up, and tells what is unknown of it.
    pub(crate) async fn abandon(&self, session: &SessionHandle) -> anyhow::Result<Ending> {
        let outcome = session.abandon().await.map_err(|error| self.with_advice(session, &error))?;
        // Another process may have completed it just before.
        let is_abandoned = *outcome.exit() == Exit::Cancelled;
        if self.json {
            let unknown = show::unknown_calls(&outcome);
            show::line(json!({"abandoned": is_abandoned, "unknown": unknown}).to_string());
            return Ok(Ending::Done);
        }
        let steps = counted(outcome.steps(), "step");
        show::line(match is_abandoned {
            true => format!("run abandoned after {steps}; the session is ready for the next message"),
            false => {
                format!("run had ended already, after {steps}; the session is ready for the next message")
            }
        });
        self.tell_unknown(&outcome);
        Ok(Ending::Done)
    }

    /// Asks for the pending decisions, for as long as there are any and the approver answers; prints the result.
    /// If the run is not the one that was asked for, and is decided about elsewhere meanwhile, that is told too.
    async fn decide(
        &mut self,
        session: &SessionHandle,
        mut last: Followed,
        about: About,
    ) -> anyhow::Result<Ending> {
        loop {
            let pending = match &last.ended {
                Ok(outcome) => outcome.pending(),
                Err(RunnerError::Pending { .. }) => session.pending().await?,
                Err(_) => Vec::new(),
            };
            let decisions = match pending.is_empty() {
                true => Vec::new(),
                false => self.ask(&pending).await?,
            };
            if decisions.is_empty() {
                return self.tell(session, last, about).await;
            }
            let decisions = self.desk.decided(decisions);
            let decide = async || session.resume().decide_all(decisions).start();
            self.tell_recovered(&last.ended);
            let other = Other::in_session(self.desk, session).await;
            let Some(next) = self.watch(session, about, other, decide).await? else {
                return Ok(Ending::Interrupted);
            };
            if let (
                About::Earlier,
                Err(error @ (RunnerError::Decision { .. } | RunnerError::NothingToResume { .. })),
            ) = (about, &next.ended)
            {
                // The message meets the session as it is now.
                show::bad("error", &chain(error));
                return Ok(Ending::Done);
            }
            last = next;
        }
    }

    /// Starts an invocation and shows what happens to its end. While another process is waited for, Ctrl-C withdraws the
    /// message, which gives none.
    async fn watch(
        &self,
        session: &SessionHandle,
        about: About,
        other: Option<Other>,
        start: impl AsyncFnOnce() -> Result<Invocation, RunnerError>,
    ) -> anyhow::Result<Option<Followed>> {
        let mut interrupts = Interrupts::new();
        let is_interrupted = interrupts.was_heard()?;
        let mut watch = self.watcher(session, about).await;
        if let Some(other) = &other {
            self.tell_other(other);
        }
        let invocation = match start().await {
            Ok(invocation) => invocation,
            // The message was not accepted.
            Err(error) => return Ok(Some(Followed { id: None, is_shown: true, ended: Err(error) })),
        };
        if is_interrupted {
            invocation.cancel();
        }
        let follow = self.follow(session, about, other, &invocation, &mut watch, &mut interrupts);
        if !Box::pin(follow).await? {
            return Ok(None);
        }
        watch.end();
        let ended = invocation.outcome().await;
        if let Some(receipt) = invocation.receipt() {
            self.tell_receipt(&receipt);
        }
        if ended.as_ref().is_err_and(|error| error.outcome().is_none()) {
            invocation.recovered().iter().for_each(|recovered| self.tell_unknown(recovered));
        }
        Ok(Some(Followed { id: Some(invocation.id().clone()), is_shown: watch.has_seen_run(), ended }))
    }

    /// Shows what happens, until nothing more does. Ctrl-C cancels the run, and a second one ends the command. Gives
    /// whether the message was not withdrawn.
    async fn follow(
        &self,
        session: &SessionHandle,
        about: About,
        mut other: Option<Other>,
        invocation: &Invocation,
        watch: &mut Watch,
        interrupts: &mut Interrupts,
    ) -> anyhow::Result<bool> {
        let mut failures = self.desk.failures.lock().await;
        let mut events = invocation.subscribe(0);
        let (mut turns, mut looks) = (Watch::turns(), Other::looks());
        let mut is_cancelled = false;
        loop {
            tokio::select! {
                seen = events.next() => {
                    let Some(seen) = seen else { return Ok(true) };
                    if let Some(other) = other.take() {
                        watch.end();
                        *watch = self.take_up(session, other, invocation, &seen, about).await?;
                    }
                    watch.see(&seen);
                }
                Some(failure) = failures.recv() => watch.retry(&failure),
                _ = turns.tick() => watch.turn(),
                _ = looks.tick() => if let Some(other) = &mut other {
                    other.look(self.desk, session).await;
                },
                heard = interrupts.next() => {
                    heard?;
                    if std::mem::replace(&mut is_cancelled, true) {
                        return Err(Stop(Ending::Interrupted).into());
                    }
                    let is_message = about == About::Message;
                    if other.is_some() && (!is_message || self.withdraw(session, invocation).await) {
                        return Ok(false);
                    }
                    invocation.cancel();
                }
            }
        }
    }

    /// That decisions are stored: for programs, which may send them again.
    fn tell_receipt(&self, receipt: &DecisionReceipt) {
        if self.json {
            let DecisionReceipt { version, requests, by, .. } = receipt;
            let receipt = json!({"by": by, "requests": requests, "version": version});
            show::line(json!({"receipt": receipt}).to_string());
        }
    }

    /// The last run, if it has not ended and no other process is at work in it.
    async fn left(&self, session: &SessionHandle, other: Option<&Other>) -> Option<Run> {
        match other {
            Some(_) => None,
            None => interrupted(session).await,
        }
    }

    /// Withdraws a message that no process has taken. Gives whether it was withdrawn.
    async fn withdraw(&self, session: &SessionHandle, invocation: &Invocation) -> bool {
        let is_withdrawn = session.withdraw(invocation.id()).await.unwrap_or(false);
        if is_withdrawn {
            self.tell_fate(false, "the message is withdrawn");
        }
        is_withdrawn
    }

    /// What shows a run of the session, made before it starts, so that nothing it changes is there already.
    async fn watcher(&self, session: &SessionHandle, about: About) -> Watch {
        // Values that do not fit the schema are reported where they are needed.
        let state = session.state().await.ok();
        // Of an agent, nothing of the run before is shown.
        let run = match self.desk.speakers {
            Some(_) => interrupted(session).await,
            None => None,
        };
        self.watcher_of(state, run.as_ref(), about)
    }

    /// The same for a run that begins on this state, or continues with this run.
    fn watcher_of(&self, state: Option<State>, run: Option<&Run>, about: About) -> Watch {
        let watch = Watch::new(self.json, state).aside_if(about == About::Earlier);
        match &self.desk.speakers {
            None => watch,
            Some(speakers) => {
                let branches = run.into_iter().flat_map(Run::branches).cloned().collect();
                watch.with_nodes(speakers.clone(), branches)
            }
        }
    }

    /// What another process has left to this one, once its claim is gone: the state that the invocation begins on, and
    /// the run that it continues with, which is told.
    async fn take_up(
        &self,
        session: &SessionHandle,
        other: Other,
        invocation: &Invocation,
        first: &Seen,
        about: About,
    ) -> anyhow::Result<Watch> {
        let left = other.left(self.desk, session, invocation.id()).await?;
        let run = other.into_run(first);
        if let Some(run) = &run {
            self.tell_restart(run);
        }
        Ok(self.watcher_of(left.state(self.desk.runner.schema()).ok(), run.as_ref(), about))
    }

    /// The decisions of the person at the terminal; empty without a person, or if they decide later.
    async fn ask(&mut self, pending: &[ApprovalRequest]) -> anyhow::Result<Vec<(String, Decision)>> {
        let mut decisions = Vec::new();
        let Some(prompt) = &mut self.prompt else { return Ok(decisions) };
        for request in pending.iter().filter(|request| !request.is_later()) {
            let (text, folds) = show::folded_approval(request);
            show_request(request, &text).await;
            let mut reading = Reading { request, folds };
            let decided = match request.reason {
                AskReason::Input => answer(prompt, &mut reading).await?,
                _ => decision(prompt, &mut reading).await?,
            };
            match decided {
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
            false => show::aside(&format!("continues with {restart}")),
        }
    }

    /// The other process that is at work in the session, and what this one does meanwhile.
    fn tell_other(&self, other: &Other) {
        let (worker, until) = (other.claim.owner.as_str(), other.claim.expires);
        let what = match self.desk.when_claimed() {
            WhenBusy::Wait => "waiting for it, for two minutes at most",
            WhenBusy::TakeOver => "taking the session over from it",
            // The error says so.
            WhenBusy::Refuse => return,
        };
        if self.json {
            return show::line(
                json!({"running": {"until": until.to_string(), "worker": worker}}).to_string(),
            );
        }
        let until = show::moment(until);
        show::aside(&format!("{worker} is at work in the session, until {until} at least; {what}"));
    }

    /// That a message is stored and not answered, if it still stands in the inbox at the end.
    async fn tell_stored(&self, session: &SessionHandle, id: Option<&str>, ended: &anyhow::Result<Ending>) {
        let Some(id) = id.filter(|_| !matches!(ended, Ok(Ending::Done))) else { return };
        // Its text says so.
        if !self.json && ended.as_ref().is_err_and(anyhow::Error::is::<Stored>) {
            return;
        }
        let stored = session.inbox().await.unwrap_or_default();
        if stored.iter().any(|message| message.id.as_str() == id) {
            let words = "the message is stored, and is answered once the run before it has ended";
            let resume = self.resume_words(session);
            match ended {
                Ok(Ending::Waits) | Err(_) => self.tell_fate(true, words),
                Ok(_) => {
                    self.tell_fate(true, &format!("the message is stored; continue with\n  {resume}"));
                }
            }
        }
    }

    /// That a message was not taken, why, and what to do.
    fn tell_not_taken(&self, session: &SessionHandle) {
        let resume = self.resume_words(session);
        let words = format!(
            "the message was not taken: the run before it has not ended; decide and send it again, or give that run up \
             with\n  {resume} --abandon"
        );
        self.tell_fate(false, &words);
    }

    /// The fate of a message that was not answered.
    fn tell_fate(&self, is_stored: bool, words: &str) {
        match self.json {
            true => show::line(json!({"stored": is_stored, "taken": false}).to_string()),
            false => show::note(words),
        }
    }

    /// The command that continues with the session.
    fn resume_words(&self, session: &SessionHandle) -> String {
        self.desk.resume_words(session.key().id.as_str())
    }

    /// The result, for the caller that waits for it.
    async fn tell(&self, session: &SessionHandle, last: Followed, about: About) -> anyhow::Result<Ending> {
        let outcome = match last.ended {
            Ok(outcome) => outcome,
            Err(RunnerError::Pending { outcome, .. }) => {
                self.tell_waits(session, outcome.as_deref()).await?;
                return Ok(Ending::Waits);
            }
            Err(error) => return Err(self.with_advice(session, &error)),
        };
        if self.json {
            let mut told = json!({"outcome": self.outcome(session, &outcome).await});
            if about == About::Earlier {
                told["earlier"] = json!(true);
            }
            show::line(told.to_string());
        } else {
            self.show_outcome(session, &outcome, last.is_shown, about).await;
        }
        Ok(ending(outcome.exit()))
    }

    /// That the session waits, and what is unknown of the run that was recovered before.
    async fn tell_waits(&self, session: &SessionHandle, recovered: Option<&Outcome>) -> anyhow::Result<()> {
        let pending = session.pending().await?;
        if self.json {
            let unknown = recovered.map(show::unknown_calls).unwrap_or_default();
            show::line(
                json!({"unknown": unknown, "waits": self.waiting(session, &pending).await}).to_string(),
            );
            return Ok(());
        }
        if let Some(recovered) = recovered {
            self.tell_unknown(recovered);
        }
        self.how_to_decide(session, &pending).await;
        Ok(())
    }

    async fn outcome(&self, session: &SessionHandle, outcome: &Outcome) -> Value {
        json!({
            "exit": outcome.exit(),
            "output": outcome.run().output(),
            "session": session.key().id.as_str(),
            "steps": outcome.steps(),
            "text": outcome.last_words().unwrap_or_default(),
            "unknown": show::unknown_calls(outcome),
            "usage": outcome.usage(),
            "waits": self.waiting(session, &outcome.pending()).await,
        })
    }

    async fn waiting(&self, session: &SessionHandle, pending: &[ApprovalRequest]) -> Vec<Value> {
        let resume = self.resume_words(session);
        let mut all = Vec::with_capacity(pending.len());
        for request in pending {
            let mut waits = show::request_json(request);
            let decide = match request.reason == AskReason::Input && request.can_modify() {
                true => format!("--modify {}", quoted(&format!("{}=JSON", request.id))),
                false => format!("--approve {}", quoted(&request.id)),
            };
            if !request.is_later() {
                waits["resume"] = json!(format!("{resume} {decide}"));
            }
            if let Some(change) = crate::tool::mcp::change_of(&request.call.name).await {
                waits["changed"] = json!(change);
            }
            all.push(waits);
        }
        all
    }

    async fn show_outcome(&self, session: &SessionHandle, outcome: &Outcome, is_shown: bool, about: About) {
        let reply = |text: &str| match about {
            About::Earlier => show::aside(&format!("earlier reply: {}", text.trim_end())),
            About::Message | About::Run => show::reply(&format!("{text}\n")),
        };
        // Another process took the message, and has shown the answer elsewhere.
        if !is_shown && !outcome.text().trim().is_empty() {
            reply(&outcome.text());
        }
        match outcome.exit() {
            // An output that was given to a tool was not shown as text.
            Exit::Output if outcome.text().is_empty() => {
                if let Some(output) = outcome.run().output() {
                    reply(&output.to_string());
                }
            }
            // Words beside the call were shown.
            Exit::Tool(_) if outcome.text().trim().is_empty() => {
                if let Some(words) = outcome.last_words() {
                    reply(&words);
                }
            }
            Exit::Text | Exit::Output | Exit::NoTools | Exit::End | Exit::Paused(_) | Exit::Tool(_) => {}
            exit => show::note(format!("the run ended: {exit}")),
        }
        self.tell_unknown(outcome);
        self.how_to_decide(session, &outcome.pending()).await;
    }

    /// What is unknown of the runs that were finished before one that continues: its own outcome tells the rest.
    fn tell_recovered(&self, ended: &Ended) {
        match ended {
            Ok(outcome) => outcome.recovered().iter().for_each(|recovered| self.tell_unknown(recovered)),
            Err(RunnerError::Pending { outcome: Some(recovered), .. })
                if !recovered.exit().is_resumable() =>
            {
                self.tell_unknown(recovered);
            }
            Err(_) => {}
        }
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

    async fn how_to_decide(&self, session: &SessionHandle, pending: &[ApprovalRequest]) {
        if pending.is_empty() {
            return;
        }
        // The approver has seen the request.
        if self.prompt.is_none() {
            for request in pending {
                show_request(request, &show::approval(request)).await;
            }
        }
        let Some(first) = pending.iter().find(|request| !request.is_later()) else {
            let outcome = "the run waits for an outcome that comes later, and is stored; `stepfold work` continues with it";
            return show::note(outcome);
        };
        if show::is_at_terminal() {
            let resume = format!("stepfold resume {}", self.desk.words());
            return show::note(format!(
                "the run waits for a decision, and is stored; decide with\n  {resume}"
            ));
        }
        let resume = self.resume_words(session);
        let id = &first.id;
        let is_answer = first.reason == AskReason::Input && first.can_modify();
        let mut ways = vec![format!("--reject {}", quoted(&format!("{id}=REASON")))];
        if !is_answer {
            ways.insert(0, format!("--approve {}", quoted(id)));
        }
        if first.can_modify() {
            ways.push(format!("--modify {}", quoted(&format!("{id}=JSON"))));
        }
        let ways = ways.iter().map(|way| format!("\n  {resume} {way}")).collect::<Vec<_>>().concat();
        show::note(format!("the run waits for a decision, and is stored; decide with{ways}"));
    }

    /// A failure, with what to do about it.
    fn with_advice(&self, session: &SessionHandle, error: &RunnerError) -> anyhow::Error {
        if let Some(outcome) = error.outcome() {
            self.tell_unknown(outcome);
        }
        let words = failure(error);
        let resume = self.resume_words(session);
        let inbox = resume.replacen("resume", "inbox", 1);
        match error {
            RunnerError::NothingToResume { .. }
            | RunnerError::Input { .. }
            | RunnerError::Decision { .. } => Misuse(words).into(),
            RunnerError::Store { .. } => error.clone().into(),
            RunnerError::AgentChanged { .. } => {
                let words = words.replace("`with_changed_agent()`", "--with-changed-agent");
                Misuse(words.replace("`abandon()`", "--abandon")).into()
            }
            RunnerError::Claimed { is_accepted, .. } => {
                let words = words.replace("`when_claimed`", &format!("`{resume} --when-claimed take-over`"));
                Stored::if_so(*is_accepted, words)
            }
            RunnerError::ShutDown { is_accepted, .. } => Stored::if_so(*is_accepted, words),
            RunnerError::EarlierRunFailed { message, .. } => Stored(format!(
                "{words}\nthe message is stored, and taken after that run; resume it, abandon it, or withdraw the \
                 message:\n  {resume}\n  {resume} --abandon\n  {inbox} --remove {}",
                quoted(message.as_str())
            ))
            .into(),
            RunnerError::EarlierCannotBegin { earlier, is_accepted, .. } => {
                let stored = if *is_accepted { "the new message is stored, and taken after it; " } else { "" };
                let words = format!(
                    "{words}\n{stored}fix the cause and resume it, or withdraw it:\n  {resume}\n  {inbox} \
                     --remove {}",
                    quoted(earlier.as_str())
                );
                Stored::if_so(*is_accepted, words)
            }
            RunnerError::Run { .. } | RunnerError::Panicked { .. } | RunnerError::Conflict { .. } => {
                anyhow::anyhow!("{words}\nwhat was done is stored; continue with\n  {resume}")
            }
            _ => anyhow::Error::msg(words),
        }
    }
}

/// A request in front of a person, and how much of it is still folded.
struct Reading<'a> {
    request: &'a ApprovalRequest,
    folds: usize,
}

impl Reading<'_> {
    /// The words for what a person can do about what is folded.
    fn words(&self) -> &'static str {
        if self.folds == 0 { "" } else { "[r]ead all, " }
    }

    fn read(&mut self) {
        self.folds = 0;
        show::note_exactly(&show::approval(self.request));
    }

    /// Whether all of it was in sight. If not, says how to go on.
    fn is_read(&self) -> bool {
        if self.folds > 0 {
            let parts = counted(self.folds as u64, "part");
            show::note(format!("{parts} of it not read yet: [r]ead all, or answer `yes unread`"));
        }
        self.folds == 0
    }
}

/// What is asked, and how the tool differs from what was approved of it.
async fn show_request(request: &ApprovalRequest, text: &Text) {
    show::note_exactly(text);
    if let Some(change) = crate::tool::mcp::change_of(&request.call.name).await {
        show::note_exactly(&show::change(&change));
    }
}

/// A failure in words. What to do about it is added by the command.
fn failure(error: &RunnerError) -> String {
    match error {
        RunnerError::Run { source, .. } => {
            let steps = counted(source.outcome().steps(), "step");
            format!("the run failed after {steps}: {}", chain(source.fault()))
        }
        RunnerError::EarlierRunFailed { source, times, .. } => {
            let again =
                if *times > 1 { format!(" {times} times with the same error") } else { String::new() };
            format!("the run before the message failed{again}: {}", chain(source.fault()))
        }
        RunnerError::EarlierCannotBegin { earlier, source, .. } => {
            let cause = match &**source {
                RunnerError::Run { source, .. } => chain(source.fault()),
                RunnerError::Input { source, .. } => chain(source),
                source => chain(source),
            };
            format!("message `{earlier}` comes first in the session, and cannot begin: {cause}")
        }
        error => chain(error),
    }
}

async fn decision(prompt: &mut Prompt, reading: &mut Reading<'_>) -> anyhow::Result<Option<Decision>> {
    let can_modify = reading.request.can_modify();
    let (question, answers) = match can_modify {
        true => ("[y]es, [n]o, [m]odify, [l]ater: ", "answer y, n, m or l"),
        false => ("[y]es, [n]o, [l]ater: ", "answer y, n or l"),
    };
    loop {
        let question = format!("run it? {}{question}", reading.words());
        let Some(answer) = prompt.answer(&question).await? else { return Ok(None) };
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" if reading.is_read() => return Ok(Some(Decision::Approve)),
            "y" | "yes" => {}
            "yes unread" => return Ok(Some(Decision::Approve)),
            "r" | "read" => reading.read(),
            "n" | "no" => {
                let Line::Text(reason) = prompt.line("why not (the model reads it): ").await? else {
                    return Ok(None);
                };
                return Ok(Some(Decision::reject(reason.trim())));
            }
            "m" | "modify" if can_modify => {
                let Line::Text(text) = prompt.line("arguments as JSON: ").await? else { return Ok(None) };
                match read_exact(&text) {
                    Ok(arguments) => return Ok(Some(Decision::modify(arguments))),
                    Err(error) => show::note(error.to_string()),
                }
            }
            "l" | "later" => return Ok(None),
            _ => show::note(answers),
        }
    }
}

/// The answer to a question of a tool: what it asks for as JSON, or that it is accepted.
async fn answer(prompt: &mut Prompt, reading: &mut Reading<'_>) -> anyhow::Result<Option<Decision>> {
    let has_content = reading.request.can_modify();
    let (question, answers) = match has_content {
        true => ("answer as JSON, or [d]ecline, [l]ater: ", "answer with a JSON object, d or l"),
        false => ("accept? [y]es, [d]ecline, [l]ater: ", "answer y, d or l"),
    };
    loop {
        let question = format!("{}{question}", reading.words());
        let Some(text) = prompt.answer(&question).await? else { return Ok(None) };
        match text.trim() {
            "y" | "yes" if !has_content && reading.is_read() => return Ok(Some(Decision::Approve)),
            "y" | "yes" if !has_content => {}
            "yes unread" if !has_content => return Ok(Some(Decision::Approve)),
            "r" | "read" => reading.read(),
            "d" | "decline" | "n" | "no" => return Ok(Some(Decision::reject(""))),
            "l" | "later" => return Ok(None),
            text if has_content => match read_exact(text) {
                Ok(content @ Value::Object(_)) => return Ok(Some(Decision::modify(content))),
                Ok(_) | Err(ExactError::Json(_)) => show::note(answers),
                Err(error) => show::note(error.to_string()),
            },
            _ => show::note(answers),
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
