//! Erasure of content: of events with all that repeats them, of sessions, of users.

use std::collections::{BTreeSet, VecDeque};

use serde_json::json;
use stepfold_agent_loop::EventKind;
use stepfold_session_scopes::{
    AppendClaim, Author, CommittedEvent, EraseData, EraseTarget, ErasedData, ErasureId, ErasureRecord, Event,
    EventId, EventRange, GetSession, InvocationId, ListErasures, ListForks, MAX_ID_BYTES, RewindSession,
    Session, SessionError, SessionId, SessionKey, SessionStore, TakeOver, UserId, bounded_id,
};

use crate::core::runner_core::Runner;
use crate::error::{RunnerError, RunnerErrorKind};
use crate::handle::model_step::located;
use crate::record::events::{read_record, rewrite, summary};
use crate::session_recall::RECALLING;

/// The content that an [erasure](Runner::erase) is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErasureSubject {
    /// Events of a session, of these versions.
    Events {
        /// The user.
        user: UserId,
        /// The session.
        session: SessionId,
        /// The versions.
        versions: BTreeSet<u64>,
    },
    /// A call of a tool: its arguments and its result, in all events that have them. The events are erased as wholes, with
    /// the text of the reply that made the call, and with the calls beside it. If it is an agent's, the events of the run inside
    /// of it are included, as are those of runs inside of the calls beside it, and calls of other runs with the same id.
    Call {
        /// The user.
        user: UserId,
        /// The session.
        session: SessionId,
        /// The id of the call.
        call: String,
    },
    /// A session with its forks.
    Session {
        /// The user.
        user: UserId,
        /// The session.
        session: SessionId,
    },
    /// A user with everything.
    User(UserId),
}

/// A request to erase content: see [`Runner::erase`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EraseRequest {
    /// The subject.
    pub subject: ErasureSubject,
    /// The person or program that erases.
    pub by: Author,
    /// The reason; it must not contain what is erased.
    pub reason: String,
    /// The id, under which the erasure is recorded once; a new one if `None`.
    pub id: Option<ErasureId>,
    /// Whether the result is only computed, and nothing is erased.
    pub is_dry_run: bool,
}

impl EraseRequest {
    /// Erases a subject.
    pub fn new(subject: ErasureSubject, by: Author, reason: impl Into<String>) -> Self {
        EraseRequest { subject, by, reason: reason.into(), id: None, is_dry_run: false }
    }

    /// Sets the id, for a caller that repeats the request after a lost answer.
    #[must_use]
    pub fn with_id(mut self, id: ErasureId) -> Self {
        self.id = Some(id);
        self
    }

    /// Computes the result, and erases nothing.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.is_dry_run = true;
        self
    }
}

/// The result of an erasure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErasureReport {
    /// The erased sessions, or those of which events were erased.
    pub sessions: Vec<SessionKey>,
    /// The events of the request and those that repeat them, each with its session; empty if whole sessions are erased.
    pub versions: Vec<(SessionKey, u64)>,
    /// The sessions whose history has the erased events: the session of the request, its origins and their forks; empty if
    /// whole sessions are erased.
    pub related: Vec<SessionKey>,
    /// The number of erased events.
    pub events: u64,
    /// The erased keys of `user:`.
    pub user_keys: Vec<String>,
    /// The records of spend that no longer name the user.
    pub spend: u64,
    /// The number of erased budgets of the user. One that another app uses at the moment is erased when the request is repeated.
    pub budgets: u64,
    /// Whether the user had a key in the ring of the store, which is destroyed.
    pub had_key: bool,
}

impl ErasureReport {
    /// Whether there was nothing to erase: of an unknown user, or of what was erased before.
    pub fn is_empty(&self) -> bool {
        let ErasureReport { sessions, versions, related: _, events, user_keys, spend, budgets, had_key } =
            self;
        let has_whole = versions.is_empty() && !sessions.is_empty();
        *events == 0 && *spend == 0 && *budgets == 0 && user_keys.is_empty() && !has_whole && !had_key
    }

    fn add(&mut self, key: &SessionKey, versions: &BTreeSet<u64>) {
        self.related.push(key.clone());
        if !versions.is_empty() {
            self.sessions.push(key.clone());
            self.versions.extend(versions.iter().map(|version| (key.clone(), *version)));
        }
    }
}

/// An erasure under way.
struct OpenErasure<'a> {
    runner: &'a Runner,
    request: &'a EraseRequest,
    id: ErasureId,
    report: ErasureReport,
    /// The number of erasures of what repeats the content.
    parts: usize,
    /// Whether events were erased that were not erased before.
    is_new: bool,
}

/// A session that shares an erased event.
struct RelatedSession {
    key: SessionKey,
    /// The newest version that it shares with the session of the request.
    shared: u64,
    /// The newest version that it shares with its origin.
    own_after: u64,
    /// The erased versions of its origin.
    of_origin: BTreeSet<u64>,
}

impl Runner {
    /// Erases content for good: events of a session, a session with its forks, or a user with all sessions and the values
    /// under `user:`. What is left of a history can be read, continued, forked and [verified](SessionStore::verify).
    ///
    /// Events are erased with what repeats them: later summaries, rewritten conversations and results of tools for recall of
    /// the session, of its origin and of forks of both. No worker may run in these sessions. A run that has not ended in one of
    /// them has the erased content in its conversation, and ends: resuming it is an [`Erased`](crate::RunnerErrorKind::Erased)
    /// error, and the next message begins a new run. Other workers read these sessions again, since each gets a rewind to its
    /// newest version. What a model has said about the erased content in other events, what other sessions of the user have
    /// recalled of it, and what tools have sent elsewhere, is not found.
    ///
    /// A session or a user is erased whatever worker runs in it; that worker's next write is an error.
    ///
    /// A request that fails half-way, or whose answer is lost, is repeated: what is erased stays erased. With an
    /// [id](EraseRequest::with_id), author and reason it has the number of events that the first one has erased, also where the session
    /// is gone; forks of that, and values and spend of a user, are told by the first answer only.
    ///
    /// # Errors
    /// [`RunnerErrorKind::Claimed`](crate::RunnerErrorKind::Claimed) for events of a session at work;
    /// [`RunnerErrorKind::Store`](crate::RunnerErrorKind::Store) when the session or an event does not exist, when the id is that of an
    /// earlier erasure and this one would erase more, or when the store fails or cannot erase.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_runner::session_scopes::{Author, MemoryStore, SessionId, UserId};
    /// use stepfold_runner::{EraseRequest, ErasureSubject, Runner};
    ///
    /// # let model = Script::parse("assistant: noted\nassistant: hello")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let session = runner.session("ada", "s1").await?;
    /// session.run("my number is 555-0199").await?;
    ///
    /// let (user, id) = (UserId::new("ada")?, SessionId::new("s1")?);
    /// let subject = ErasureSubject::Events { user, session: id, versions: [1].into() };
    /// let request = EraseRequest::new(subject, Author::new("admin")?, "asked for by mail");
    /// assert_eq!(runner.erase(request).await?.events, 1);
    /// assert_eq!(session.run("hi").await?.transcript().to_string(), "\
    /// user:      [erased]
    /// assistant: noted
    /// user:      hi
    /// assistant: hello
    /// ");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn erase(&self, request: EraseRequest) -> Result<ErasureReport, RunnerError> {
        let id = match request.id.clone() {
            Some(id) => id,
            None => ErasureId::new(self.0.ids.next()).map_err(|error| self.failed(error))?,
        };
        let mut open = OpenErasure {
            runner: self,
            request: &request,
            id,
            report: ErasureReport::default(),
            parts: 0,
            is_new: false,
        };
        match &request.subject {
            ErasureSubject::Events { user, session, versions } => {
                let key = open.key(user, session);
                open.events(&key, versions.clone()).await?;
            }
            ErasureSubject::Call { user, session, call } => {
                let key = open.key(user, session);
                let versions = open.versions_of_call(&key, call).await?;
                open.events(&key, versions).await?;
            }
            ErasureSubject::Session { user, session } => {
                let key = open.key(user, session);
                open.whole(EraseTarget::Session { key }).await?;
            }
            ErasureSubject::User(user) => {
                let app = self.0.app.clone();
                open.whole(EraseTarget::User { app, user: user.clone() }).await?;
            }
        }
        Ok(open.report)
    }
}

impl OpenErasure<'_> {
    fn key(&self, user: &UserId, session: &SessionId) -> SessionKey {
        SessionKey { app: self.runner.0.app.clone(), user: user.clone(), id: session.clone() }
    }

    /// A request to the store. `part` tells the erasures of one request apart: by a number, since the id of an erasure
    /// outlives what is erased, and must not name a session.
    fn data(&self, target: EraseTarget, part: Option<usize>) -> Result<EraseData, SessionError> {
        let id = match part {
            None => self.id.clone(),
            Some(part) => ErasureId::new(bounded_id(format!("{} {part}", self.id)))?,
        };
        let (by, reason) = (self.request.by.clone(), self.request.reason.as_str());
        let data = EraseData::new(id, target, self.runner.0.clock.now(), by, reason);
        Ok(if self.request.is_dry_run { data.dry_run() } else { data })
    }

    /// The record of an erasure that was made before under the id of the request, by the same author and for the same reason: the
    /// request is repeated.
    async fn recorded(&self, data: &EraseData) -> Result<Option<ErasureRecord>, SessionError> {
        if self.request.id.is_none() || data.is_dry_run {
            return Ok(None);
        }
        let app = data.target.app().clone();
        let mut list = ListErasures::new(app.clone());
        loop {
            let page = match self.runner.0.store.erasures(list).await {
                Err(SessionError::Unsupported { .. }) => return Ok(None),
                page => page?,
            };
            let is_same = |record: &&ErasureRecord| {
                let is_of_request = record.by == data.by && record.reason == data.reason;
                record.id == data.id && record.kind == data.target.kind() && is_of_request
            };
            if let Some(found) = page.iter().find(is_same) {
                return Ok(Some(found.clone()));
            }
            let Some(oldest) = page.last() else { return Ok(None) };
            list = ListErasures::new(app.clone()).after(oldest);
        }
    }

    /// Erases sessions, and what this process knows of them.
    async fn whole(&mut self, target: EraseTarget) -> Result<(), RunnerError> {
        let failed = |error| self.runner.failed(error);
        let mut data = self.data(target, None).map_err(failed)?;
        if let EraseTarget::User { app, user } = &data.target {
            let of_user = |scope: &str| budgets_that_begin(&json!([[scope, app.as_str(), user.as_str()]]));
            // NOTE: also those that the user has in all apps: a name of the user is in their ids.
            let of_principal = budgets_that_begin(&json!([["principal", user.as_str()]]));
            data = data.clone().with_budgets(["user", "session", "run"].into_iter().flat_map(of_user));
            data = data.with_budgets(of_principal);
        }
        let erased = self.runner.0.store.erase(data.clone()).await;
        // NOTE: read after it: the same request may have erased at the same time.
        let recorded = match &erased {
            Ok(_) | Err(SessionError::NotFound { .. }) => self.recorded(&data).await.map_err(failed)?,
            Err(_) => None,
        };
        let erased = match (erased, &data.target) {
            // It was erased under this id: the answer was lost. The names of its forks are in no record.
            (Err(SessionError::NotFound { .. }), EraseTarget::Session { key }) if recorded.is_some() => {
                let mut erased = ErasedData::default();
                erased.sessions = vec![key.clone()];
                erased
            }
            (erased, _) => erased.map_err(failed)?,
        };
        if !self.request.is_dry_run {
            for key in &erased.sessions {
                self.runner.0.forget(key);
                self.runner.0.changes.notify_deleted(key);
            }
        }
        let ErasedData { sessions, events, user_keys, spend, budgets, had_key, .. } = erased;
        let events = events.max(recorded.map_or(0, |recorded| recorded.events));
        let report = ErasureReport { sessions, events, user_keys, spend, ..ErasureReport::default() };
        self.report = ErasureReport { budgets, had_key, ..report };
        Ok(())
    }

    /// Erases events with all that repeats them, in each session that shares the first of them.
    async fn events(&mut self, key: &SessionKey, versions: BTreeSet<u64>) -> Result<(), RunnerError> {
        let Some(first) = versions.first().copied() else { return Ok(()) };
        self.erase_in(key, &versions, None).await?;
        let shared = self.origins(key, first).await?;
        let root = shared.last().map_or(key, |(root, _)| root);
        let shared_by = |key: &SessionKey| shared.iter().find(|(of, _)| of == key).map(|(_, shared)| *shared);
        let mut left = VecDeque::from([RelatedSession {
            key: root.clone(),
            shared: shared_by(root).unwrap_or(u64::MAX),
            own_after: 0,
            of_origin: BTreeSet::new(),
        }]);
        while let Some(related) = left.pop_front() {
            let erased = self.events_in(&related, &versions).await?;
            let RelatedSession { key, shared, .. } = related;
            let forks = match self.runner.0.store.forks(ListForks::new(key.clone())).await {
                Ok(forks) => forks,
                Err(SessionError::Unsupported { .. }) => continue,
                Err(error) => return Err(RunnerError::store(&key, error)),
            };
            left.extend(forks.into_iter().filter(|fork| fork.version >= first).map(|fork| {
                let key = SessionKey { id: fork.id, ..key.clone() };
                RelatedSession {
                    shared: shared_by(&key).unwrap_or(shared.min(fork.version)),
                    own_after: fork.version,
                    of_origin: erased.range(..=fork.version).copied().collect(),
                    key,
                }
            }));
        }
        Ok(())
    }

    /// Erases what repeats erased events in a session, and has all workers read it again. Returns the erased versions of it, those
    /// of its origin included, and those that a request under this id has erased before.
    async fn events_in(
        &mut self,
        related: &RelatedSession,
        versions: &BTreeSet<u64>,
    ) -> Result<BTreeSet<u64>, RunnerError> {
        let RelatedSession { key, shared, own_after, of_origin } = related;
        let session = self.read(key).await?;
        let mut erased: BTreeSet<u64> = versions.range(..=*shared).chain(of_origin).copied().collect();
        let own = session.events.iter().filter(|committed| committed.version > *own_after);
        let own = own.filter(|committed| !erased.contains(&committed.version));
        let before: BTreeSet<u64> = own
            .filter(|committed| committed.event.erasure().is_some_and(|erasure| self.has_part(&erasure.id)))
            .map(|committed| committed.version)
            .collect();
        let first = versions.first().copied().unwrap_or_default();
        let found = repeats(&session.events, first);
        let found: BTreeSet<u64> =
            found.filter(|version| version > own_after && !erased.contains(version)).collect();
        if !found.is_empty() {
            self.repeats(key, &found).await?;
        }
        self.report.events += before.len() as u64;
        erased.extend(before);
        erased.extend(found);
        self.read_again(&session).await?;
        self.report.add(key, &erased);
        Ok(erased)
    }

    /// Whether this is the id of the erasure, or of a part of it.
    fn has_part(&self, id: &ErasureId) -> bool {
        id.as_str().strip_prefix(self.id.as_str()).is_some_and(|part| {
            part.is_empty() || part.strip_prefix(' ').is_some_and(|part| part.parse::<usize>().is_ok())
        })
    }

    /// Erases the events of a session that repeat erased content, under the next number that no erasure has: a repeated request erases
    /// what a worker has added that had the content in memory, if the first one was killed before that worker read again.
    async fn repeats(&mut self, key: &SessionKey, versions: &BTreeSet<u64>) -> Result<(), RunnerError> {
        loop {
            self.parts += 1;
            match self.erase_in(key, versions, Some(self.parts)).await {
                Err(error) if is_reused(&error) => {}
                erased => return erased,
            }
        }
    }

    async fn erase_in(
        &mut self,
        key: &SessionKey,
        versions: &BTreeSet<u64>,
        part: Option<usize>,
    ) -> Result<(), RunnerError> {
        let failed = |error| RunnerError::store(key, error);
        let target = EraseTarget::Events { key: key.clone(), versions: versions.clone() };
        let data = self.data(target, part).map_err(failed)?;
        let mut erased = self.runner.0.store.erase(data.clone()).await.map_err(failed)?;
        self.is_new |= erased.events > 0;
        // NOTE: looked up only if some were erased before: a session may have many forks, and an application many erasures.
        if erased.events < versions.len() as u64 {
            let recorded = self.recorded(&data).await.map_err(failed)?;
            erased.events = erased.events.max(recorded.map_or(0, |recorded| recorded.events));
        }
        self.report.events += erased.events;
        Ok(())
    }

    /// The session and those of its origins that still exist and share the event, each with the newest version that the session of
    /// the request shares with it.
    async fn origins(&self, key: &SessionKey, version: u64) -> Result<Vec<(SessionKey, u64)>, RunnerError> {
        let mut origins = vec![(key.clone(), u64::MAX)];
        let (mut root, mut shared) = (key.clone(), u64::MAX);
        loop {
            let get = GetSession::new(root.clone()).events(EventRange::None).without_state();
            let session = match self.runner.0.store.get(get).await {
                Ok(session) => session,
                Err(error) => return Err(RunnerError::store(&root, error)),
            };
            let Some(parent) = session.parent.filter(|parent| parent.version >= version) else {
                return Ok(origins);
            };
            shared = shared.min(parent.version);
            let parent = SessionKey { id: parent.id, ..root.clone() };
            let get = GetSession::new(parent.clone()).events(EventRange::None).without_state();
            // Its origin may be gone, and its id another session's, which is younger.
            match self.runner.0.store.get(get).await {
                Ok(found) if found.created <= session.created && parent != root => root = parent,
                Ok(_) | Err(SessionError::NotFound { .. }) => return Ok(origins),
                Err(error) => return Err(RunnerError::store(&parent, error)),
            }
            origins.push((root.clone(), shared));
        }
    }

    /// A session with all its events, also those that a rewind has hidden: they have content, too.
    async fn read(&self, key: &SessionKey) -> Result<Session, RunnerError> {
        let mut get = GetSession::new(key.clone()).events(EventRange::All).without_state();
        get.hidden = true;
        self.runner.0.store.get(get).await.map_err(|error| RunnerError::store(key, error))
    }

    /// The events that have the arguments or the result of a call, or that ask about it, and those of runs inside of it.
    async fn versions_of_call(&self, key: &SessionKey, call: &str) -> Result<BTreeSet<u64>, RunnerError> {
        let name = serde_json::Value::from(call).to_string();
        let session = self.read(key).await?;
        let has_call = |committed: &CommittedEvent| {
            let event = &committed.event;
            event.record.as_ref().is_some_and(|record| record.text().contains(&name))
                || event.messages.iter().any(|message| {
                    message.tool_calls().any(|found| found.id == call)
                        || message.tool_result().is_some_and(|result| result.call_id() == call)
                })
        };
        let named = session.events.iter().filter(|committed| has_call(committed));
        let mut versions: BTreeSet<u64> = named.map(|committed| committed.version).collect();
        versions.extend(inside_of_call(&session.events, has_call));
        if versions.is_empty() {
            let kind = RunnerErrorKind::UnknownCall { call: call.to_owned() };
            return Err(RunnerError::new(key, kind));
        }
        Ok(versions)
    }

    /// Has all workers read a session again: a rewind to the newest version hides nothing, and no worker continues from what
    /// it knew before it. A repeated request that erases nothing makes it once: it would end a run that has begun since. Other erasures
    /// of the session do the same at the same time; what others add is an error, since it may repeat what is erased.
    async fn read_again(&self, session: &Session) -> Result<(), RunnerError> {
        /// The attempts while others rewind the session.
        const ATTEMPTS: usize = 20;
        if self.request.is_dry_run {
            return Ok(());
        }
        let own = bounded_id(format!("erasure {}", self.id));
        let mut newest = session.clone();
        for attempt in 1.. {
            let is_made = newest.events.iter().any(|committed| committed.event.id.as_str() == own);
            if is_made && !self.is_new {
                return Ok(());
            }
            let name = if is_made { self.runner.0.ids.next() } else { own.clone() };
            let version = newest.version;
            let Err(error) = self.rewind_to(&session.key, version, name).await else { return Ok(()) };
            if attempt == ATTEMPTS || !is_outrun(&error) {
                return Err(error);
            }
            newest = self.read(&session.key).await?;
            if newest.version == version {
                // The rewind was made, and retention has removed it.
                return Ok(());
            }
            let mut added = newest.events.iter().filter(|committed| committed.version > version);
            if !added.all(|committed| committed.event.actions.rewound_to().is_some()) {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn rewind_to(&self, key: &SessionKey, version: u64, name: String) -> Result<(), RunnerError> {
        let core = &self.runner.0;
        let failed = |error| RunnerError::store(key, error);
        core.forget(key);
        let request = RewindSession::new(
            key.clone(),
            version,
            version,
            EventId::new(name.clone()).map_err(failed)?,
            InvocationId::new(name).map_err(failed)?,
            self.request.by.clone(),
            core.clock.now(),
        );
        let request = request.with_claim(AppendClaim::Once { take_over: TakeOver::Never });
        let version = core.store.rewind(request).await.map_err(failed)?.version;
        core.changes.notify(key, version, false);
        Ok(())
    }
}

/// Whether another writer was faster, or the same request in another process.
fn is_outrun(error: &RunnerError) -> bool {
    matches!(error.kind, RunnerErrorKind::Conflict { .. }) || error.is_event_reused()
}

/// Whether an erasure failed since its id is that of an earlier one.
fn is_reused(error: &RunnerError) -> bool {
    matches!(error.of_store(), Some(SessionError::ErasureReused { .. }))
}

/// The events after a version that repeat earlier ones: summaries, and conversations that were rewritten, of the run or of one inside
/// of it, and what tools for recall have found.
fn repeats(events: &[CommittedEvent], first: u64) -> impl Iterator<Item = u64> + '_ {
    let is_repeat =
        |event: &Event| rewrite(event).is_some() || summary(event).is_some() || inner_repeats(event);
    let later = events.iter().filter(move |committed| committed.version > first);
    let repeats =
        later.filter(move |committed| is_repeat(&committed.event)).map(|committed| committed.version);
    repeats.chain(recalls(events, first))
}

/// The events with what tools for recall have found after a version: the outcomes of their calls, and the results in the
/// conversation.
fn recalls(events: &[CommittedEvent], first: u64) -> impl Iterator<Item = u64> + '_ {
    let later = move || events.iter().filter(move |committed| committed.version > first);
    // NOTE: also calls of erased events, which keep their ids and the names of their tools: their results are elsewhere.
    let messages = later().flat_map(|committed| &committed.event.messages);
    let calls = messages.flat_map(|message| message.tool_calls());
    let recalling = calls.filter(|call| RECALLING.contains(&call.name.as_str()));
    let ids: BTreeSet<String> = recalling.map(|call| call.id.clone()).collect();
    let is_in = |text: &str, id: &String| text.contains(&serde_json::Value::from(id.as_str()).to_string());
    let has_result = move |event: &Event| {
        let mut results = event.messages.iter().filter_map(|message| message.tool_result());
        let outcome = event.record.as_ref().filter(|_| event.kind.as_str() == "answered");
        results.any(|result| ids.contains(result.call_id()))
            || outcome.is_some_and(|outcome| ids.iter().any(|id| is_in(outcome.text(), id)))
    };
    let is_there = |committed: &&CommittedEvent| committed.event.erasure().is_none();
    (later().filter(is_there).filter(move |committed| has_result(&committed.event)))
        .map(|committed| committed.version)
}

fn inner_repeats(event: &Event) -> bool {
    // NOTE: few are of runs inside of others, and each event of a session is looked at.
    if event.kind.as_str() != "inner" {
        return false;
    }
    read_record(event).is_some_and(|event| {
        let (_, innermost) = located(&event);
        innermost.rewrite.is_some() || matches!(innermost.kind, EventKind::Summarized { .. })
    })
}

/// A step of a model with the call that is erased: the runs inside of its calls are erased too.
struct OpenStep {
    /// The places of the items inside of which the step is.
    path: Vec<usize>,
}

impl OpenStep {
    /// Whether the step ends before this event: the next one begins, or another run.
    fn ends_before(&self, path: &[usize], kind: &EventKind) -> bool {
        let begins =
            matches!(kind, EventKind::Began { .. } | EventKind::Replied { .. } | EventKind::Planned { .. });
        begins && self.path.starts_with(path)
    }

    /// Whether the event at these places is of a run inside of one of its calls.
    fn contains(&self, path: &[usize]) -> bool {
        path.len() > self.path.len() && path.starts_with(&self.path)
    }
}

/// The versions of events of runs inside of a call: its record has the call's place, and not its id. Those of the calls
/// beside it, until the next step, are included: one that ends later has seen nothing of this call, but its place in the
/// step is only known to the agent.
fn inside_of_call(events: &[CommittedEvent], has_call: impl Fn(&CommittedEvent) -> bool) -> BTreeSet<u64> {
    let (mut inside, mut open) = (BTreeSet::new(), None::<OpenStep>);
    for committed in events {
        let record = read_record(&committed.event);
        let (path, kind) = match &record {
            Some(event) => {
                let (path, innermost) = located(event);
                (path, Some(&innermost.kind))
            }
            None => (Vec::new(), None),
        };
        if let (Some(step), Some(kind)) = (&open, kind)
            && step.ends_before(&path, kind)
        {
            open = None;
        }
        if let Some(step) = &open
            && step.contains(&path)
        {
            inside.insert(committed.version);
        }
        let is_reply = kind.is_none_or(|kind| matches!(kind, EventKind::Replied { .. }));
        if open.is_none() && is_reply && has_call(committed) {
            open = Some(OpenStep { path });
        }
    }
    inside
}

/// The beginnings of the ids of all budgets of a scope. An id that would be too long is [bounded](bounded_id), so that it may
/// have only a part of a long beginning.
fn budgets_that_begin(name: &serde_json::Value) -> Vec<String> {
    let text = name.to_string();
    let Some(whole) = text.strip_suffix("]]") else { return Vec::new() };
    let bounded = bounded_id(format!("{whole}{}", "]".repeat(MAX_ID_BYTES)));
    let cut = bounded.rfind('~').map(|end| &bounded[..=end]);
    let cut = cut.filter(|cut| cut.len() <= whole.len());
    [Some(whole), cut].into_iter().flatten().map(str::to_owned).collect()
}
