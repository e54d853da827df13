//! The inbox: an accepted entry stays until it is taken, in order, and is taken once.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::claims::{MINUTE, counting, hold};
use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, ensure, ensure_eq, ensure_error,
    schema, with,
};
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::{
    DeleteSession, DequeueInput, EnqueueInput, Enqueued, InboxEntry, InboxKind, MAX_INBOX, REMEMBERED_INPUTS,
    ReadInbox, RenewClaim, ScanSessions, SessionStore,
};
use stepfold_session_scopes::{IdempotencyKey, SessionKey};

cases! {
    entries_are_kept_in_the_order_in_which_they_were_accepted,
    sixteen_entries_at_once_have_a_place_each,
    an_entry_is_kept_as_it_is,
    entries_and_bodies_that_are_not_asked_for_may_be_left_out,
    a_repeated_entry_is_accepted_once,
    an_idempotency_key_with_other_content_is_an_error,
    entries_are_taken_with_the_event,
    an_append_that_fails_takes_no_entry,
    an_entry_is_taken_once,
    of_sixteen_takers_of_an_entry_one_is_made,
    a_rewind_keeps_the_inbox_and_may_take_from_it,
    entries_are_dropped_without_an_event,
    an_inbox_is_bounded_and_remembers_what_was_taken,
    who_enqueues_learns_who_is_at_work,
    a_session_in_which_an_entry_waits_is_not_unused,
}

fn input(key: &SessionKey, name: &str, body: Value) -> Result<EnqueueInput, SessionError> {
    let (key, idempotency_key) = (key.clone(), IdempotencyKey::new(name)?);
    Ok(EnqueueInput::new(key, InboxKind::Message, idempotency_key, body, at(1)))
}

impl CaseContext {
    pub(super) async fn enqueue(
        &self,
        key: &SessionKey,
        name: &str,
        body: Value,
    ) -> Result<Enqueued, SessionError> {
        self.store.enqueue(input(key, name, body)?).await
    }

    async fn waiting(&self, key: &SessionKey) -> Result<Vec<InboxEntry>, SessionError> {
        self.store.inbox(ReadInbox::new(key.clone())).await
    }

    /// The idempotency keys of waiting entries; checks that reading the session agrees.
    async fn waits(&self, key: &SessionKey, names: &[&str]) -> StoreCaseResult {
        let waiting = self.waiting(key).await?;
        let found: Vec<&str> = waiting.iter().map(|entry| entry.idempotency_key.as_str()).collect();
        ensure_eq!(found, names);
        let newest = waiting.last().map_or(0, |entry| entry.position);
        ensure_eq!(self.get(key).await?.inbox, newest);
        Ok(())
    }
}

async fn entries_are_kept_in_the_order_in_which_they_were_accepted(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let other = context.create(&schema()?, "s2", json!({})).await?.key;
    context.waits(&key, &[]).await?;
    let mut positions = Vec::new();
    for name in ["c", "a", "b"] {
        let enqueued = context.enqueue(&key, name, json!(name)).await?;
        ensure!(!enqueued.is_repeat, "{name} was not there before");
        positions.push(enqueued.position);
    }
    ensure!(positions.is_sorted_by(|before, after| before < after), "not in order: {positions:?}");
    ensure!(positions[0] > 0, "0 says that nothing waits");
    context.waits(&key, &["c", "a", "b"]).await?;
    let after = context.store.inbox(ReadInbox::new(key.clone()).after(positions[0])).await?;
    ensure_eq!(after.iter().map(|entry| entry.position).collect::<Vec<_>>(), &positions[1..]);
    // Positions are not used again.
    context.store.dequeue(DequeueInput::new(key.clone(), positions.clone())).await?;
    context.waits(&key, &[]).await?;
    ensure!(
        context.enqueue(&key, "d", json!(1)).await?.position > positions[2],
        "a position was given twice"
    );
    context.waits(&other, &[]).await?;
    Ok(())
}

async fn sixteen_entries_at_once_have_a_place_each(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let names: Vec<String> = (0..16).map(|number| format!("m{number}")).collect();
    let results = join_all(names.iter().map(|name| context.enqueue(&key, name, json!(name)))).await;
    let mut places = Vec::new();
    for (name, result) in names.iter().zip(results) {
        places.push((result?.position, name.as_str()));
    }
    places.sort_unstable();
    let in_order: Vec<&str> = places.into_iter().map(|(_, name)| name).collect();
    context.waits(&key, &in_order).await?;
    Ok(())
}

async fn an_entry_is_kept_as_it_is(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let bodies =
        [json!(null), json!({"a": [1, 1.0, {"b": "\u{0}日本"}], "n": u64::MAX}), json!("x".repeat(100_000))];
    for (kind, body) in [InboxKind::Message, InboxKind::Steer, InboxKind::Cancel].into_iter().zip(bodies) {
        let input = with(input(&key, kind.as_str(), body.clone())?, |input| input.kind = kind);
        let position = context.store.enqueue(input.clone()).await?.position;
        let idempotency_key = input.idempotency_key;
        let expected = InboxEntry::new(position, kind, idempotency_key, body, at(1));
        ensure_eq!(context.waiting(&key).await?.pop(), Some(expected));
    }
    Ok(())
}

async fn entries_and_bodies_that_are_not_asked_for_may_be_left_out(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    // Of 3, 100, 101, 102 and 100 bytes of JSON.
    let bodies = [
        json!("a"),
        json!("b".repeat(98)),
        json!("c".repeat(99)),
        json!("d".repeat(100)),
        json!("日".repeat(32) + "ab"),
    ];
    let mut all = Vec::new();
    for (name, body) in ["a", "b", "c", "d", "e"].into_iter().zip(bodies) {
        let position = context.enqueue(&key, name, body.clone()).await?.position;
        all.push(InboxEntry::new(position, InboxKind::Message, IdempotencyKey::new(name)?, body, at(1)));
    }
    let (second, last) = (all[1].position, all[4].position);
    let requests = [
        ReadInbox::new(key.clone()).without_bodies_over(100),
        ReadInbox::new(key.clone()).without_bodies_over(0).after(second),
        ReadInbox::new(key.clone()).only([last, second, last + 1]),
        ReadInbox::new(key.clone()).only([last, second]).after(second),
        ReadInbox::new(key.clone()).only([]),
    ];
    for request in requests {
        let found = context.store.inbox(request.clone()).await?;
        ensure!(found.is_sorted_by_key(|entry| entry.position), "not in order: {found:?}");
        let wanted = all.iter().filter(|entry| wants(&request, entry.position));
        for entry in wanted {
            let found = found.iter().find(|found| found.position == entry.position);
            let Some(found) = found else {
                return Err(CaseFault::new(format!("{} is missing", entry.position)));
            };
            let may_be_left_out = entry.body.to_string().len() > request.largest.unwrap_or(usize::MAX);
            ensure!(
                found.has_body || may_be_left_out,
                "the body of {} is left out: {request:?}",
                entry.position
            );
            let whole =
                with(found.clone(), |found| (found.body, found.has_body) = (entry.body.clone(), true));
            ensure_eq!(if found.has_body { found } else { &whole }, entry);
        }
    }
    Ok(())
}

/// Whether the entry at a position is requested.
fn wants(request: &ReadInbox, position: u64) -> bool {
    position > request.after && request.only.as_ref().is_none_or(|only| only.contains(&position))
}

async fn a_repeated_entry_is_accepted_once(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let body: Value = serde_json::from_str(r#"{"a": 1, "b": 2}"#)?;
    let same: Value = serde_json::from_str(r#"{"b": 2, "a": 1}"#)?;
    let results = join_all((0..16).map(|_| context.enqueue(&key, "m1", body.clone()))).await;
    let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    ensure_eq!(results.iter().filter(|enqueued| !enqueued.is_repeat).count(), 1);
    let position = results[0].position;
    ensure!(results.iter().all(|enqueued| enqueued.position == position), "{results:?}");
    context.enqueue(&key, "m2", json!(2)).await?;
    let again = context.enqueue(&key, "m1", same).await?;
    ensure_eq!((again.position, again.is_repeat), (position, true));
    context.waits(&key, &["m1", "m2"]).await?;
    // It was taken, and is not accepted again.
    context.store.append(counting(&key, 0, "e1")?.taking([position])).await?;
    let again = context.enqueue(&key, "m1", body).await?;
    ensure_eq!((again.position, again.is_repeat, again.version), (position, true, 1));
    context.waits(&key, &["m2"]).await
}

async fn an_idempotency_key_with_other_content_is_an_error(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let position = context.enqueue(&key, "m1", json!("a")).await?.position;
    for _ in 0..2 {
        ensure_error!(
            context.enqueue(&key, "m1", json!("b")).await,
            SessionError::IdempotencyKeyReused { .. }
        );
        let steer = with(input(&key, "m1", json!("a"))?, |input| input.kind = InboxKind::Steer);
        ensure_error!(context.store.enqueue(steer).await, SessionError::IdempotencyKeyReused { .. });
        // Once it waits, and once it was taken.
        context.store.dequeue(DequeueInput::new(key.clone(), [position])).await?;
    }
    context.waits(&key, &[]).await?;
    let other = context.create(&schema()?, "s2", json!({})).await?.key;
    context.enqueue(&other, "m1", json!("b")).await?;
    Ok(())
}

async fn entries_are_taken_with_the_event(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let mut positions = Vec::new();
    for name in ["m1", "m2", "m3"] {
        positions.push(context.enqueue(&key, name, json!(name)).await?.position);
    }
    let token = context.claim(&key, "a", MINUTE, false).await?.token;
    let append = counting(&key, 0, "e1")?.taking([positions[0], positions[2]]).with_claim(hold(token));
    let receipt = context.store.append(append.clone()).await?;
    ensure_eq!((receipt.version, receipt.inbox), (1, positions[1]));
    context.waits(&key, &["m2"]).await?;
    // A repeat takes nothing and is not an error.
    ensure_eq!(context.store.append(append).await?, receipt);
    let newer = context.enqueue(&key, "m4", json!(4)).await?.position;
    let request = RenewClaim::new(key.clone(), token, MINUTE, at(1));
    ensure_eq!(context.store.renew(request).await?.inbox, newer);
    let receipt = context.store.append(counting(&key, 1, "e2")?).await?;
    ensure_eq!(receipt.inbox, newer);
    let receipt = context.store.append(counting(&key, 2, "e3")?.taking([positions[1], newer])).await?;
    ensure_eq!(receipt.inbox, 0);
    context.waits(&key, &[]).await
}

async fn an_append_that_fails_takes_no_entry(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let position = context.enqueue(&key, "m1", json!(1)).await?.position;
    let stale = context.store.append(counting(&key, 9, "e1")?.taking([position])).await;
    ensure_error!(stale, SessionError::Conflict { .. });
    let missing = context.store.append(counting(&key, 0, "e1")?.taking([position, position + 1])).await;
    ensure_error!(missing, SessionError::NotWaiting { .. });
    let twice = context.store.append(counting(&key, 0, "e1")?.taking([position, position])).await;
    ensure_error!(twice, SessionError::NotWaiting { .. });
    context.waits(&key, &["m1"]).await?;
    ensure_eq!(context.get(&key).await?.version, 0);
    Ok(())
}

async fn an_entry_is_taken_once(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let position = context.enqueue(&key, "m1", json!(1)).await?.position;
    context.store.append(counting(&key, 0, "e1")?.taking([position])).await?;
    let again = context.store.append(counting(&key, 1, "e2")?.taking([position])).await;
    ensure_error!(again, SessionError::NotWaiting { .. });
    let session = context.get(&key).await?;
    ensure_eq!((session.version, session.events.len()), (1, 1));
    Ok(())
}

async fn of_sixteen_takers_of_an_entry_one_is_made(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let position = context.enqueue(&key, "m1", json!(1)).await?.position;
    let appends = (0..16).map(|number| {
        let (context, key) = (&context, &key);
        async move {
            let append = counting(key, stepfold_session_scopes::Expected::Any, &format!("e{number}"))?;
            context.store.append(append.taking([position])).await
        }
    });
    let results = join_all(appends).await;
    let made = results.iter().filter(|result| result.is_ok()).count();
    let refused = results.iter().filter(|result| matches!(result, Err(SessionError::NotWaiting { .. })));
    ensure_eq!((made, refused.count()), (1, 15));
    ensure_eq!(context.get(&key).await?.version, 1);
    Ok(())
}

async fn a_rewind_keeps_the_inbox_and_may_take_from_it(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    context.store.append(counting(&key, 0, "e1")?).await?;
    let first = context.enqueue(&key, "m1", json!(1)).await?.position;
    let second = context.enqueue(&key, "m2", json!(2)).await?.position;
    ensure_eq!(context.rewind(&key, "r1", 0).await?.inbox, second);
    context.waits(&key, &["m1", "m2"]).await?;
    let receipt = context.rewind_taking(&key, "r2", 0, vec![first]).await?;
    ensure_eq!((receipt.version, receipt.inbox), (3, second));
    let again = context.rewind_taking(&key, "r3", 0, vec![first]).await;
    ensure_error!(again, SessionError::NotWaiting { .. });
    context.waits(&key, &["m2"]).await
}

async fn entries_are_dropped_without_an_event(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let mut positions = Vec::new();
    for name in ["m1", "m2", "m3"] {
        positions.push(context.enqueue(&key, name, json!(name)).await?.position);
    }
    let drop = |positions: Vec<u64>| DequeueInput::new(key.clone(), positions);
    ensure_eq!(context.store.dequeue(drop(vec![positions[2], 99, positions[2]])).await?, [positions[2]]);
    context.waits(&key, &["m1", "m2"]).await?;
    let token = context.claim(&key, "a", MINUTE, false).await?.token;
    let all = context.store.dequeue(drop(positions.clone()).with_token(token)).await?;
    ensure_eq!(all, &positions[..2]);
    ensure_eq!(context.store.dequeue(drop(positions)).await?, [0; 0]);
    context.waits(&key, &[]).await?;
    ensure_eq!(context.get(&key).await?.version, 0);
    Ok(())
}

async fn an_inbox_is_bounded_and_remembers_what_was_taken(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let names: Vec<String> = (0..MAX_INBOX).map(|number| format!("m{number:04}")).collect();
    for part in names.chunks(64) {
        for result in join_all(part.iter().map(|name| context.enqueue(&key, name, json!(name)))).await {
            result?;
        }
    }
    match context.enqueue(&key, "more", json!(1)).await {
        Err(SessionError::InboxFull { limit: MAX_INBOX, .. }) => {}
        other => return Err(CaseFault::new(format!("{other:?}, expected InboxFull"))),
    }
    ensure!(context.enqueue(&key, &names[0], json!(names[0])).await?.is_repeat, "a repeat needs no room");
    let positions: Vec<u64> = context.waiting(&key).await?.iter().map(|entry| entry.position).collect();
    ensure_eq!(positions.len(), MAX_INBOX);
    let before: Vec<String> =
        context.waiting(&key).await?.iter().map(|entry| entry.idempotency_key.to_string()).collect();
    context.store.append(counting(&key, 0, "e1")?.taking(positions.clone())).await?;
    context.enqueue(&key, "more", json!(1)).await?;
    // The last keys are remembered, so they are not accepted twice.
    for (name, position) in before.iter().zip(positions).rev().take(REMEMBERED_INPUTS).step_by(99) {
        let again = context.enqueue(&key, name, json!(name)).await?;
        ensure_eq!((again.is_repeat, again.position), (true, position));
    }
    context.waits(&key, &["more"]).await
}

async fn who_enqueues_learns_who_is_at_work(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let enqueued = context.enqueue(&key, "m1", json!(1)).await?;
    ensure_eq!((enqueued.claim, enqueued.version), (None, 0));
    let claim = context.claim(&key, "a", MINUTE, false).await?;
    context.store.append(counting(&key, 0, "e1")?).await?;
    let enqueued = context.enqueue(&key, "m2", json!(2)).await?;
    ensure_eq!((enqueued.claim, enqueued.version), (Some(claim.clone()), 1));
    let repeated = context.enqueue(&key, "m1", json!(1)).await?;
    ensure_eq!((repeated.claim, repeated.version), (Some(claim), 1));
    context.claim(&key, "a", std::time::Duration::ZERO, false).await?;
    ensure_eq!(context.enqueue(&key, "m3", json!(3)).await?.claim, None);
    Ok(())
}

async fn a_session_in_which_an_entry_waits_is_not_unused(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let position = context.enqueue(&key, "a", json!("hello")).await?.position;
    let page = context.store.scan(ScanSessions::new(context.app.as_str())?).await?;
    ensure_eq!(page.sessions.iter().map(|session| session.inbox).collect::<Vec<_>>(), [position]);
    let delete = DeleteSession::new(key.clone()).if_unused_at(0);
    ensure_error!(context.store.delete(delete.clone()).await, SessionError::InUse { .. });
    context.store.dequeue(DequeueInput::new(key.clone(), [position])).await?;
    context.store.delete(delete).await?;
    ensure_error!(context.get(&key).await, SessionError::NotFound { .. });
    Ok(())
}
