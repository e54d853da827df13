//! Erasure: content goes for good, and the rest stays whole.

use std::collections::BTreeSet;

use serde_json::json;

use super::claims::MINUTE;
use super::versions::prune;
use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, ensure, ensure_eq, ensure_error, event,
    schema, with,
};
use stepfold_session_scopes::{
    AppId, Author, BudgetAmount, BudgetBalance, BudgetId, CommittedEvent, CreateSession, ErasureId, Event,
    ReservationId, RunRecord, SessionError, SessionKey, SessionSchema, UserId, WorkerId,
};
use stepfold_session_scopes::{
    ClaimSession, DeleteSession, DequeueInput, ERASED_USER, EraseData, EraseKind, EraseTarget, ErasedData,
    EventRange, FindTagged, ForkSession, GetSession, ListErasures, ListSessions, ListSpend, PruneBound,
    RaiseBudgets, ReadBudgets, ReleaseClaim, ReservationEnd, ReserveSpend, ScopeKey, SessionStore,
    SettleSpend, SpendAmounts, VacuumStore, VerifySessions, WriteScope,
};
use stepfold_state_core::chat::{Message, ToolCall, ToolResult};
use stepfold_state_core::state::ValueRef;

cases! {
    an_erased_event_keeps_its_form_and_the_digests,
    the_other_events_of_a_history_stay,
    forks_share_the_erasure_of_an_event,
    a_repeated_erasure_erases_nothing_and_is_recorded_once,
    the_id_of_an_erasure_is_that_of_one,
    an_event_that_came_with_a_note_is_erased_as_others,
    a_dry_run_erases_nothing,
    events_of_a_session_at_work_are_not_erased,
    an_event_that_does_not_exist_is_an_error_and_nothing_is_erased,
    an_erased_event_is_not_committed_again,
    an_erased_message_is_not_accepted_again,
    a_list_does_not_find_what_was_erased,
    an_erased_history_can_be_rewound_forked_and_pruned,
    an_erased_session_takes_its_forks_with_it,
    an_erased_session_is_gone_for_its_worker,
    an_erased_user_leaves_nothing,
    spend_of_an_erased_user_names_nobody,
    a_budget_in_which_another_app_has_reserved_outlives_its_user,
    erasures_are_listed_in_pages,
    ids_of_erasures_are_those_of_an_app,
    erased_users_have_a_name_that_nobody_has,
}

/// The text that must be gone.
const MARKER: &str = "marker-4711";

fn erasing(id: &str, target: EraseTarget) -> Result<EraseData, SessionError> {
    Ok(EraseData::new(ErasureId::new(id)?, target, at(9), Author::new("admin")?, "asked for by mail"))
}

impl CaseContext {
    async fn erase(&self, id: &str, target: EraseTarget) -> Result<ErasedData, SessionError> {
        self.store.erase(erasing(id, target)?).await
    }

    async fn erase_events(
        &self,
        id: &str,
        key: &SessionKey,
        versions: impl IntoIterator<Item = u64>,
    ) -> Result<ErasedData, SessionError> {
        self.erase(id, events(key, versions)).await
    }

    async fn all_events(&self, key: &SessionKey) -> Result<Vec<CommittedEvent>, SessionError> {
        let request = GetSession::new(key.clone()).events(EventRange::All);
        let request = with(request, |request| request.hidden = true);
        Ok(self.store.get(request).await?.events)
    }

    /// A session whose second event has everything that an event can have, with the marker in each place.
    async fn marked(&self, id: &str, schema: &SessionSchema) -> Result<SessionKey, CaseFault> {
        let key = self.create(schema, id, json!({})).await?.key;
        self.append(&key, 0, event("e1")?.with_message(Message::user("hello")), schema).await?;
        self.append(&key, 1, marked_event("e2", schema)?, schema).await?;
        self.append(&key, 2, event("e3")?.with_message(Message::assistant("bye")), schema).await?;
        Ok(key)
    }

    /// Verification finds no fault, and as many erased events.
    async fn check(&self, key: &SessionKey, erased: u64) -> StoreCaseResult {
        match self.store.verify(VerifySessions::session(key.clone())).await {
            Ok(report) => {
                ensure_eq!(report.faults, []);
                ensure_eq!((report.erased, report.erasures.len() as u64), (erased, erased));
            }
            Err(SessionError::Unsupported { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn events(key: &SessionKey, versions: impl IntoIterator<Item = u64>) -> EraseTarget {
    let versions: BTreeSet<u64> = versions.into_iter().collect();
    EraseTarget::Events { key: key.clone(), versions }
}

fn marked_event(id: &str, schema: &SessionSchema) -> Result<Event, CaseFault> {
    let call = ToolCall::new("c1", "search", json!({"q": MARKER}));
    let writes =
        crate::store::context::delta(schema, &[("user:text", json!("Ada")), ("text", json!(MARKER))])?;
    Ok(event(id)?
        .with_message(Message::user(MARKER).with_extra("note", MARKER))
        .with_message(Message::assistant(MARKER).with_part(call))
        .with_message(Message::tool(ToolResult::value("c1", "search", json!([MARKER]))))
        .with_delta(writes)
        .with_started(["c1"])
        .with_record(RunRecord::new("my.run", 1, &json!({"q": MARKER}))?)
        .with_metadata("trace", json!({"q": MARKER}))
        .with_tag("found by this"))
}

fn stored(event: &CommittedEvent) -> Result<String, SessionError> {
    event.event.to_stored()
}

async fn an_erased_event_keeps_its_form_and_the_digests(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    let head = context.get(&key).await?.head;
    ensure_eq!(context.erase_events("one", &key, [2]).await?.events, 1);
    let session = context.get(&key).await?;
    ensure_eq!(session.head, head);
    let left = context.all_events(&key).await?;
    let event = &left.get(1).ok_or_else(|| CaseFault::new("the event is gone"))?.event;
    ensure!(!event.to_stored()?.contains(MARKER), "content is left: {}", event.to_stored()?);
    let erasure = event.erasure().ok_or_else(|| CaseFault::new("the event has no note of its erasure"))?;
    ensure_eq!((erasure.at, erasure.by.as_str(), &*erasure.reason), (at(9), "admin", "asked for by mail"));
    let [user, reply, result] = &event.messages[..] else {
        return Err(CaseFault::new(format!("other messages: {:?}", event.messages)));
    };
    ensure_eq!((&*user.text(), &*reply.text()), (Event::ERASED, Event::ERASED));
    let call = reply.tool_calls().next().ok_or_else(|| CaseFault::new("the call is gone"))?;
    ensure_eq!((call.id.as_str(), call.name.as_str(), &*call.arguments.to_text()), ("c1", "search", "{}"));
    ensure_eq!(result.tool_result().map(ToolResult::call_id), Some("c1"));
    ensure_eq!((event.id.as_str(), event.author.as_str(), event.at), ("e2", "agent", at(1)));
    ensure!(event.record.is_none() && event.metadata.is_empty(), "record or metadata are left");
    let written: Vec<(&str, bool)> =
        event.actions.delta.iter().map(|write| (write.key(), write.is_removal())).collect();
    ensure_eq!(written, [("user:text", true), ("text", true)]);
    let found = context.store.find_tagged(FindTagged::new(key.clone(), ["found by this"])).await?;
    ensure_eq!(found, [Some(2)]);
    context.check(&key, 1).await
}

async fn the_other_events_of_a_history_stay(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    let before = context.all_events(&key).await?;
    context.erase_events("one", &key, [2]).await?;
    let after = context.all_events(&key).await?;
    ensure_eq!(after.len(), 3);
    ensure_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    // Values are replaced by writes, and not by the erasure of an event.
    ensure_eq!(context.get(&key).await?.get("text").map(ValueRef::to_json), Some(json!(MARKER)));
    let receipt = context.write(&key, 3, "more", &schema, &[("text", json!("other"))]).await?;
    ensure_eq!(receipt.version, 4);
    let since = context.store.get(GetSession::new(key.clone()).events(EventRange::AfterVersion(1))).await?;
    ensure_eq!(since.events.len(), 3);
    context.check(&key, 1).await
}

async fn forks_share_the_erasure_of_an_event(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    let fork = |from: &SessionKey, id: &str| {
        let id = context.key(id).map(|key| key.id);
        let from = from.clone();
        let store = context.store.clone();
        async move { Ok::<_, SessionError>(store.fork(ForkSession::new(from, at(2)).with_id(id?)).await?.key) }
    };
    let first = fork(&key, "f1").await?;
    let second = fork(&first, "f2").await?;
    context.append(&second, 3, event("own")?.with_message(Message::user(MARKER)), &schema).await?;
    let heads = [context.get(&first).await?.head, context.get(&second).await?.head];
    // By the fork of a fork: the event is that of the origin.
    context.erase_events("one", &second, [2, 4]).await?;
    for key in [&key, &first, &second] {
        for committed in context.all_events(key).await? {
            ensure!(!stored(&committed)?.contains(MARKER), "{key} has version {}", committed.version);
        }
    }
    ensure_eq!([context.get(&first).await?.head, context.get(&second).await?.head], heads);
    context.check(&key, 1).await?;
    context.check(&first, 1).await?;
    context.check(&second, 2).await
}

async fn a_repeated_erasure_erases_nothing_and_is_recorded_once(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    ensure_eq!(context.erase_events("one", &key, [2, 3]).await?.events, 2);
    let before = context.all_events(&key).await?;
    ensure_eq!(context.erase_events("one", &key, [2, 3]).await?.events, 0);
    // Another erasure of an event leaves the note of the first.
    ensure_eq!(context.erase_events("two", &key, [1, 2]).await?.events, 1);
    let after = context.all_events(&key).await?;
    ensure_eq!(&after[1..], &before[1..]);
    let listed = context.store.erasures(ListErasures::new(AppId::new(context.app.as_str())?)).await?;
    let listed: Vec<_> = listed.iter().map(|record| (record.kind, record.sessions, record.events)).collect();
    ensure_eq!(listed, [(EraseKind::Events, 1, 2), (EraseKind::Events, 1, 1)]);
    // A session that is gone has nothing to be erased.
    context.erase("three", EraseTarget::Session { key: key.clone() }).await?;
    ensure_error!(context.erase("three", EraseTarget::Session { key }).await, SessionError::NotFound { .. });
    let user = EraseTarget::User { app: AppId::new(context.app.as_str())?, user: UserId::new("alice")? };
    context.erase("four", user.clone()).await?;
    ensure_eq!(context.erase("four", user).await?, ErasedData::default());
    Ok(())
}

async fn the_id_of_an_erasure_is_that_of_one(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (first, other) = (context.marked("s1", &schema).await?, context.marked("s2", &schema).await?);
    let app = AppId::new(context.app.as_str())?;
    let user = EraseTarget::User { app: app.clone(), user: UserId::new("alice")? };
    context.erase("one", EraseTarget::Session { key: first.clone() }).await?;
    context.erase_events("two", &other, [2]).await?;
    let before = context.all_events(&other).await?;
    for (id, target) in [
        ("one", EraseTarget::Session { key: other.clone() }),
        ("one", events(&other, [1])),
        ("one", user.clone()),
        ("two", events(&other, [1, 2])),
        ("two", EraseTarget::Session { key: other.clone() }),
        ("two", user.clone()),
    ] {
        // A dry run says it as well.
        for request in [erasing(id, target.clone())?.dry_run(), erasing(id, target)?] {
            ensure_error!(context.store.erase(request).await, SessionError::ErasureReused { .. });
        }
    }
    ensure_eq!(context.all_events(&other).await?, before);
    // A session that came since under the name of an erased one is another one.
    context.create(&schema, "s1", json!({})).await?;
    ensure_error!(
        context.erase("one", EraseTarget::Session { key: first }).await,
        SessionError::ErasureReused { .. }
    );
    context.erase("three", user.clone()).await?;
    let key = context.marked("s1", &schema).await?;
    ensure_error!(context.erase("three", user).await, SessionError::ErasureReused { .. });
    context.check(&key, 0).await?;
    let listed = context.store.erasures(ListErasures::new(app)).await?;
    let listed: Vec<_> = listed.iter().map(|record| (record.id.as_str(), record.kind)).collect();
    let recorded = [("one", EraseKind::Session), ("three", EraseKind::User), ("two", EraseKind::Events)];
    ensure_eq!(listed, recorded);
    Ok(())
}

async fn a_dry_run_erases_nothing(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    let before = context.get(&key).await?;
    let app = AppId::new(context.app.as_str())?;
    let user = EraseTarget::User { app: app.clone(), user: UserId::new("alice")? };
    for (target, keys) in [
        (events(&key, [2]), Vec::new()),
        (EraseTarget::Session { key: key.clone() }, Vec::new()),
        (user, vec!["user:text".to_owned()]),
    ] {
        let request = erasing("one", target)?.dry_run();
        let listed = context.store.erase(request).await?;
        ensure_eq!(listed.sessions.as_slice(), std::slice::from_ref(&key));
        ensure!(listed.events > 0, "no event is listed");
        ensure_eq!(listed.user_keys, keys);
    }
    let after = context.get(&key).await?;
    ensure_eq!((after.events, after.head), (before.events, before.head));
    ensure_eq!(context.store.erasures(ListErasures::new(app)).await?, []);
    Ok(())
}

async fn events_of_a_session_at_work_are_not_erased(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    let claim = ClaimSession::new(key.clone(), WorkerId::new("worker-1")?, MINUTE, at(9));
    let claim = match context.store.claim(claim).await {
        Err(SessionError::Unsupported { .. }) => return Ok(()),
        claim => claim?,
    };
    // A dry run says it as well.
    for request in [erasing("one", events(&key, [2]))?.dry_run(), erasing("one", events(&key, [2]))?] {
        ensure_error!(context.store.erase(request).await, SessionError::Claimed { .. });
    }
    ensure!(stored(&context.all_events(&key).await?[1])?.contains(MARKER), "it was erased");
    context.store.release(ReleaseClaim::new(key.clone(), claim.token)).await?;
    ensure_eq!(context.erase_events("one", &key, [2]).await?.events, 1);
    Ok(())
}

async fn an_event_that_does_not_exist_is_an_error_and_nothing_is_erased(
    context: CaseContext,
) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    for versions in [[0, 2], [2, 4], [2, u64::MAX]] {
        let refused = context.erase_events("one", &key, versions).await;
        ensure_error!(refused, SessionError::NoSuchVersion { .. });
        ensure!(stored(&context.all_events(&key).await?[1])?.contains(MARKER), "it was erased");
    }
    prune(&context, &key, PruneBound::Version(2)).await?;
    let refused = context.erase_events("one", &key, [2]).await;
    ensure_error!(refused, SessionError::NoSuchVersion { oldest: 3, newest: 3, .. });
    let missing = context.key("missing")?;
    ensure_error!(context.erase_events("one", &missing, [1]).await, SessionError::NotFound { .. });
    let too_long = erasing("one", events(&key, [3]))?;
    let too_long = with(too_long, |request| request.reason = "long".repeat(1_000));
    ensure_error!(context.store.erase(too_long).await, SessionError::TooLarge { .. });
    ensure_eq!(context.store.erasures(ListErasures::new(AppId::new(context.app.as_str())?)).await?, []);
    Ok(())
}

async fn an_erased_event_is_not_committed_again(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    context.erase_events("one", &key, [2]).await?;
    // As a worker does whose answer was lost.
    let repeated = context.append(&key, 1, marked_event("e2", &schema)?, &schema).await;
    ensure_error!(repeated, SessionError::Erased { version: 2, .. });
    let reused = context.append(&key, 0, event("e1")?.with_message(Message::user("other")), &schema).await;
    ensure_error!(reused, SessionError::EventReused { .. });
    ensure_eq!(context.get(&key).await?.version, 3);
    context.check(&key, 1).await
}

async fn an_erased_message_is_not_accepted_again(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    let body = json!({ "text": MARKER });
    match context.enqueue(&key, "m1", body.clone()).await {
        Err(SessionError::Unsupported { .. }) => return Ok(()),
        accepted => ensure_eq!(accepted?.is_repeat, false),
    }
    context.store.dequeue(DequeueInput::new(key.clone(), [1])).await?;
    context.erase_events("one", &key, [2]).await?;
    // The key is still known, and its content is not: whatever comes under it counts as the repeat.
    ensure_eq!(context.enqueue(&key, "m1", body).await?.is_repeat, true);
    ensure_eq!(context.enqueue(&key, "m1", json!("other")).await?.is_repeat, true);
    ensure_eq!(context.get(&key).await?.inbox, 0);
    context.check(&key, 1).await
}

async fn a_list_does_not_find_what_was_erased(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    context.append(&key, 0, event("e1")?.with_message(Message::user(MARKER)), &schema).await?;
    let fork = ForkSession::new(key.clone(), at(2)).with_id(context.key("f1")?.id);
    context.store.fork(fork).await?;
    let found = async || {
        let request = ListSessions::new(context.app.as_str(), "alice")?;
        let request = with(request, |request| request.text = Some(MARKER.into()));
        Ok::<_, SessionError>(context.store.list(request).await?.sessions.len())
    };
    ensure_eq!(found().await?, if context.lists_messages { 2 } else { 0 });
    context.erase_events("one", &key, [1]).await?;
    ensure_eq!(found().await?, 0);
    context.check(&key, 1).await
}

async fn an_erased_history_can_be_rewound_forked_and_pruned(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    context.erase_events("one", &key, [2, 3]).await?;
    let states: Vec<_> = [1, 2, 3].map(|version| GetSession::new(key.clone()).at_version(version)).into();
    let mut before = Vec::new();
    for request in &states {
        before.push(context.store.get(request.clone()).await?.to_json());
    }
    context.rewind(&key, "back", 1).await?;
    ensure_eq!(context.get(&key).await?.get("text").map(ValueRef::to_json), None);
    for (request, before) in states.iter().zip(&before) {
        ensure_eq!(&context.store.get(request.clone()).await?.to_json(), before);
    }
    // An event that a rewind hides can be erased as well, and so can the rewind.
    ensure_eq!(context.erase_events("two", &key, [1, 4]).await?.events, 2);
    ensure_eq!(context.get(&key).await?.visible.contains(2), false);
    let fork = ForkSession::new(key.clone(), at(2)).with_id(context.key("f1")?.id).at_version(3);
    let fork = context.store.fork(fork).await?.key;
    ensure_eq!(context.get(&fork).await?.to_json(), before[2].clone());
    context.check(&key, 4).await?;
    context.check(&fork, 3).await?;
    prune(&context, &key, PruneBound::Version(2)).await?;
    context.check(&key, 2).await?;
    context.check(&fork, 3).await
}

async fn an_erased_session_takes_its_forks_with_it(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let origin = context.marked("origin", &schema).await?;
    let fork = async |from: &SessionKey, id: &str| {
        let id = context.key(id)?.id;
        Ok::<_, SessionError>(
            context.store.fork(ForkSession::new(from.clone(), at(2)).with_id(id)).await?.key,
        )
    };
    let first = fork(&origin, "first").await?;
    let plain = fork(&first, "plain").await?;
    let message = event("own")?.with_message(Message::user(MARKER));
    context.append(&first, 3, message, &schema).await?;
    let second = fork(&first, "second").await?;
    let third = fork(&second, "third").await?;
    let other = fork(&origin, "other").await?;
    // Without the one in between, those behind it still have its events.
    context.store.delete(DeleteSession::new(second)).await?;
    let erased = context.erase("one", EraseTarget::Session { key: first.clone() }).await?;
    ensure_eq!(erased.sessions, [first.clone(), plain.clone(), third.clone()]);
    for gone in [&first, &plain, &third] {
        ensure_error!(context.get(gone).await, SessionError::NotFound { .. });
    }
    // The origin and its other fork are as they were.
    for left in [&origin, &other] {
        ensure_eq!(context.get(left).await?.version, 3);
        context.check(left, 0).await?;
    }
    let again = context.marked("first", &schema).await?;
    context.check(&again, 0).await
}

async fn an_erased_session_is_gone_for_its_worker(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    let worker = WorkerId::new("worker-1")?;
    let claim = ClaimSession::new(key.clone(), worker, MINUTE, at(9));
    let claim = match context.store.claim(claim).await {
        Err(SessionError::Unsupported { .. }) => return Ok(()),
        claim => claim?,
    };
    context.erase("one", EraseTarget::Session { key: key.clone() }).await?;
    let late = |version| {
        let event = marked_event("late", &schema)?;
        let hold = super::claims::hold(claim.token);
        let append = stepfold_session_scopes::AppendEvent::new(key.clone(), version, event, &schema);
        Ok::<_, CaseFault>(append.with_claim(hold))
    };
    ensure_error!(context.store.append(late(3)?).await, SessionError::NotFound { .. });
    // A new session of the same id is not the one that was claimed.
    context.create(&schema, "s1", json!({})).await?;
    ensure_error!(context.store.append(late(0)?).await, SessionError::ClaimLost { .. });
    ensure_eq!(context.get(&key).await?.version, 0);
    Ok(())
}

async fn an_erased_user_leaves_nothing(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (app, alice) = (AppId::new(context.app.as_str())?, UserId::new("alice")?);
    let bob = SessionKey::new(context.app.as_str(), "bob", "s1")?;
    context.store.create(CreateSession::with_key(bob.clone(), &schema, at(0))).await?;
    context.write(&bob, 0, "e1", &schema, &[("user:text", json!("Bob"))]).await?;
    for id in ["s1", "s2"] {
        context.marked(id, &schema).await?;
    }
    let scope = ScopeKey::user(context.app.as_str(), "alice")?;
    let delta = crate::store::context::delta(&schema, &[("user:list", json!([MARKER]))])?;
    context.store.write_scope(WriteScope::new(scope.clone(), delta, &schema)).await?;
    let erased = context.erase("one", EraseTarget::User { app: app.clone(), user: alice }).await?;
    ensure_eq!((erased.sessions.len(), erased.events), (2, 6));
    ensure_eq!(erased.user_keys, ["user:list", "user:text"]);
    let listed = context.store.list(ListSessions::new(context.app.as_str(), "alice")?).await?;
    ensure_eq!(listed.sessions.len(), 0);
    ensure_eq!(context.store.read_scope(scope).await?.len(), 0);
    ensure_eq!(context.get(&bob).await?.get("user:text").map(ValueRef::to_json), Some(json!("Bob")));
    let records = context.store.erasures(ListErasures::new(app)).await?;
    ensure_eq!(records.len(), 1);
    ensure_eq!((records[0].kind, records[0].sessions, records[0].events), (EraseKind::User, 2, 6));
    // The user may come back, as someone new.
    let again = context.marked("s1", &schema).await?;
    context.check(&again, 0).await?;
    context.store.vacuum(VacuumStore::new()).await?;
    context.check(&again, 0).await
}

async fn spend_of_an_erased_user_names_nobody(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let prefix = format!("{}/user alice", context.app);
    let budgets = [format!("{prefix}/day"), format!("{}/app", context.app)];
    let budgets = [BudgetId::new(budgets[0].as_str())?, BudgetId::new(budgets[1].as_str())?];
    let id = ReservationId::new(format!("{key}/1"))?;
    let reserve =
        ReserveSpend::new(id, key.clone(), "model-a", SpendAmounts::new(70, 30, Some(5_000)), at(1))
            .with(budgets.iter().map(|budget| BudgetAmount::new(budget.clone(), 5, 100)));
    match context.store.reserve(reserve).await {
        Err(SessionError::Unsupported { .. }) => return Ok(()),
        reserved => ensure_eq!(reserved?.len(), 2),
    }
    let target = EraseTarget::User { app: key.app.clone(), user: key.user.clone() };
    let erased = context.store.erase(erasing("one", target)?.with_budgets([prefix])).await?;
    ensure_eq!(erased.spend, 1);
    let listed = context.store.spend(ListSpend::new(key.app.clone())).await?;
    ensure_eq!(listed.len(), 1);
    let named = format!("{:?}", listed[0]);
    ensure!(!named.contains("alice") && !named.contains("s1"), "the user is named: {named}");
    ensure_eq!(listed[0].amounts, SpendAmounts::new(70, 30, Some(5_000)));
    // The open reservation counts as its estimate where others share the budget.
    let balances = context.store.balances(ReadBudgets::new(budgets)).await?;
    let balances: Vec<_> = balances.iter().map(|balance| (balance.settled, balance.reserved)).collect();
    ensure_eq!(balances, [(0, 0), (5, 0)]);
    Ok(())
}

async fn a_budget_in_which_another_app_has_reserved_outlives_its_user(
    context: CaseContext,
) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let other = SessionKey::new(format!("{}-other", context.app), "alice", "s1")?;
    context.store.create(CreateSession::with_key(other.clone(), &schema, at(0))).await?;
    let prefix = format!("{}/principal alice", context.app);
    let [day, month] = ["day", "month"].map(|name| BudgetId::new(format!("{prefix}/{name}")));
    let (day, month) = (day?, month?);
    for (key, amount) in [(&key, 5), (&other, 7)] {
        let id = ReservationId::new(format!("{key}/1"))?;
        let reserve = ReserveSpend::new(id, key.clone(), "model-a", SpendAmounts::new(70, 30, None), at(1))
            .with([BudgetAmount::new(day.clone(), amount, 100)]);
        match context.store.reserve(reserve).await {
            Err(SessionError::Unsupported { .. }) => return Ok(()),
            reserved => ensure_eq!(reserved?.len(), 1),
        }
    }
    context.store.raise_budgets(RaiseBudgets::new([month], 500)).await?;
    let target = EraseTarget::User { app: key.app.clone(), user: key.user.clone() };
    let erase = |id| Ok::<_, SessionError>(erasing(id, target.clone())?.with_budgets([prefix.clone()]));
    ensure_eq!(context.store.erase(erase("one")?.dry_run()).await?.budgets, 2);
    ensure_eq!(context.store.erase(erase("one")?).await?.budgets, 1);
    let read = || ReadBudgets::new([day.clone()]);
    ensure_eq!(context.store.balances(read()).await?, [BudgetBalance::new(day.clone(), 5, 7)]);
    // The other app ends its request: no sum is negative, and the next request begins at it.
    let end = SettleSpend::new(ReservationId::new(format!("{other}/1"))?, ReservationEnd::Release);
    ensure!(context.store.settle(end).await?, "the reservation of the other app was open");
    ensure_eq!(context.store.balances(read()).await?, [BudgetBalance::new(day.clone(), 5, 0)]);
    ensure_eq!(context.store.erase(erase("two")?).await?.budgets, 1);
    ensure_eq!(context.store.balances(read()).await?, [BudgetBalance::new(day.clone(), 0, 0)]);
    Ok(())
}

async fn an_event_that_came_with_a_note_is_erased_as_others(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let other = context.marked("s1", &schema).await?;
    context.erase_events("one", &other, [2]).await?;
    let erased = context.all_events(&other).await?;
    let note = erased.get(1).and_then(|erased| erased.event.erasure()).cloned();
    // As a file may have it: the note of one event, and the content of another.
    let whole = marked_event("e1", &schema)?;
    let mut body: serde_json::Value = serde_json::from_str(&whole.to_body()?)?;
    body["erased"] = json!(note);
    let both = Event::from_body(whole.id.clone(), whole.at, &body.to_string())?;
    ensure!(both.erasure().is_some(), "the note is lost");
    let key = context.create(&schema, "s2", json!({})).await?.key;
    context.append(&key, 0, both, &schema).await?;
    ensure_eq!(context.erase_events("two", &key, [1]).await?.events, 1);
    ensure_eq!(context.erase_events("three", &key, [1]).await?.events, 0);
    for event in context.all_events(&key).await? {
        ensure!(!stored(&event)?.contains(MARKER), "content is left: {}", stored(&event)?);
    }
    context.check(&key, 1).await
}

async fn erasures_are_listed_in_pages(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.marked("s1", &schema).await?;
    for (id, version) in [("b", 1), ("a", 2), ("c", 3)] {
        context.erase_events(id, &key, [version]).await?;
    }
    let request = ListErasures::new(AppId::new(context.app.as_str())?).limit(2);
    let page = context.store.erasures(request.clone()).await?;
    let last = page.last().ok_or_else(|| CaseFault::new("no record is listed"))?;
    let rest = context.store.erasures(request.after(last)).await?;
    let ids: Vec<String> = page.iter().chain(&rest).map(|record| record.id.to_string()).collect();
    ensure_eq!(ids, ["a", "b", "c"]);
    ensure_eq!((page.len(), page[0].by.as_str(), page[0].reason.as_str()), (2, "admin", "asked for by mail"));
    let other = ListErasures::new(AppId::new(format!("{}-other", context.app))?);
    ensure_eq!(context.store.erasures(other).await?, []);
    Ok(())
}

async fn ids_of_erasures_are_those_of_an_app(context: CaseContext) -> StoreCaseResult {
    let other = AppId::new(format!("{}!", context.app))?;
    let apps = [AppId::new(context.app.as_str())?, other];
    let user = UserId::new("alice")?;
    for app in &apps {
        for reason in ["first", "repeated"] {
            let target = EraseTarget::User { app: app.clone(), user: user.clone() };
            let by = Author::new("admin")?;
            let request = EraseData::new(ErasureId::new("ticket 17")?, target, at(9), by, reason);
            context.store.erase(request).await?;
        }
    }
    for app in apps {
        let listed = context.store.erasures(ListErasures::new(app.clone())).await?;
        let listed: Vec<_> =
            listed.iter().map(|record| (record.id.as_str(), record.reason.as_str())).collect();
        ensure_eq!(listed, [("ticket 17", "first")]);
    }
    Ok(())
}

async fn erased_users_have_a_name_that_nobody_has(context: CaseContext) -> StoreCaseResult {
    let app = AppId::new(context.app.as_str())?;
    let create = CreateSession::new(context.app.as_str(), ERASED_USER, &schema()?, at(0))?;
    ensure_error!(context.store.create(create).await, SessionError::InvalidId { .. });
    let target = EraseTarget::User { app, user: UserId::new(ERASED_USER)? };
    ensure_error!(context.erase("one", target).await, SessionError::InvalidId { .. });
    Ok(())
}
