//! Claims: one worker at a time, and one that lost its claim changes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, delta, ensure, ensure_eq, ensure_error,
    event, invalid, schema, with,
};
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::{AppId, IdempotencyKey, LifeId, SessionKey, WorkerId};
use stepfold_session_scopes::{
    AppendClaim, AppendEvent, Claim, ClaimSession, CreateSession, DeleteSession, DequeueInput, EnqueueInput,
    Expected, ForkSession, GetSession, InboxKind, ListSessions, ListUnattended, ReadInbox, Receipt,
    ReleaseClaim, RenewClaim, RenewClaims, SessionCursor, SessionStore, TakeOver, Unattended,
};

cases! {
    a_token_is_larger_than_all_before,
    a_claim_is_refused_while_another_worker_holds_one,
    an_expired_claim_is_taken_over_at_once,
    an_expired_claim_that_nobody_took_is_still_its_holders,
    a_stale_token_is_refused_and_changes_nothing,
    releasing_a_lost_claim_changes_nothing,
    an_append_takes_holds_and_releases_a_claim,
    an_append_that_fails_takes_no_claim,
    of_sixteen_workers_one_claims,
    of_sixteen_appends_that_take_a_claim_one_is_made,
    a_repeated_append_gives_the_first_receipt_whoever_holds_the_claim,
    a_rewind_is_fenced_as_an_append_is,
    what_is_done_once_waits_for_no_worker_and_leaves_no_claim,
    a_session_is_not_deleted_while_a_worker_holds_it,
    a_claim_is_taken_over_only_while_it_is_the_one_that_is_known,
    an_append_without_a_claim_is_made_under_any,
    a_session_made_again_has_another_life_and_no_claim,
    a_fork_has_a_life_of_its_own_and_no_claim,
    reading_and_listing_give_the_claim,
    there_is_nothing_to_claim_where_there_is_no_session,
    claims_are_renewed_together_and_a_lost_one_takes_no_other_along,
    sessions_without_a_worker_in_which_work_is_left_are_listed,
}

pub(super) const MINUTE: Duration = Duration::from_secs(60);

pub(super) fn worker(name: impl AsRef<str>) -> Result<WorkerId, SessionError> {
    WorkerId::new(name.as_ref())
}

pub(super) fn hold(token: u64) -> AppendClaim {
    AppendClaim::Hold { token, duration: MINUTE }
}

/// An event that counts in all scopes.
pub(super) fn counting(
    key: &SessionKey,
    expected: impl Into<Expected>,
    id: &str,
) -> Result<AppendEvent, SessionError> {
    let schema = schema().map_err(invalid("the schema of a case"))?;
    // NOTE: sums in all scopes, so that an event that is applied twice, or only in part, shows.
    let writes = [("app:sum", json!(1)), ("sum", json!(1)), ("user:sum", json!(1))];
    let event = event(id)?.with_delta(delta(&schema, &writes)?);
    Ok(AppendEvent::new(key.clone(), expected, event, &schema))
}

impl CaseContext {
    /// Claims a session for a worker, for this long.
    pub(super) async fn claim(
        &self,
        key: &SessionKey,
        owner: &str,
        duration: Duration,
        take_over: bool,
    ) -> Result<Claim, SessionError> {
        let request = ClaimSession::new(key.clone(), worker(owner)?, duration, at(1));
        self.store.claim(with(request, |request| request.take_over = if_asked(take_over))).await
    }

    pub(super) async fn renew(&self, key: &SessionKey, token: u64) -> Result<Claim, SessionError> {
        let request = RenewClaim::new(key.clone(), token, MINUTE, at(1));
        Ok(self.store.renew(request).await?.claim)
    }

    pub(super) async fn release(&self, key: &SessionKey, token: u64) -> Result<(), SessionError> {
        self.store.release(ReleaseClaim::new(key.clone(), token)).await
    }

    /// Commits an event that counts in all scopes, about a claim.
    pub(super) async fn count(
        &self,
        key: &SessionKey,
        expected: impl Into<Expected>,
        id: &str,
        claim: AppendClaim,
    ) -> Result<Receipt, SessionError> {
        self.store.append(counting(key, expected, id)?.with_claim(claim)).await
    }

    /// Commits an event without writes, about a claim.
    async fn plain(&self, key: &SessionKey, id: &str, claim: AppendClaim) -> Result<Receipt, SessionError> {
        let schema = schema().map_err(invalid("the schema of a case"))?;
        let append = AppendEvent::new(key.clone(), Expected::Any, event(id)?, &schema);
        self.store.append(append.with_claim(claim)).await
    }

    /// The data that an operation might have changed.
    async fn everything(&self, key: &SessionKey) -> Result<String, SessionError> {
        let session = self.get(key).await?;
        let inbox = self.store.inbox(ReadInbox::new(key.clone())).await?;
        Ok(format!("{} {:?} {} {inbox:?}", session.version, session.claim, session.to_json()))
    }
}

fn take(owner: &str, take_over: bool) -> Result<AppendClaim, SessionError> {
    Ok(AppendClaim::Take { owner: worker(owner)?, duration: MINUTE, take_over: if_asked(take_over) })
}

fn if_asked(take_over: bool) -> TakeOver {
    if take_over { TakeOver::Always } else { TakeOver::Never }
}

async fn a_token_is_larger_than_all_before(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let key = context.create(&schema, "s1", json!({})).await?.key;
        tokens.push(context.claim(&key, "a", MINUTE, false).await?.token);
        // The same worker claims again: what it did before is stale.
        tokens.push(context.claim(&key, "a", MINUTE, false).await?.token);
        tokens.push(context.claim(&key, "b", MINUTE, true).await?.token);
        context.release(&key, tokens[tokens.len() - 1]).await?;
        let taken = context.plain(&key, "e1", take("c", false)?).await?.claim;
        tokens.extend(taken.map(|claim| claim.token));
        context.store.delete(DeleteSession::new(key).take_over()).await?;
    }
    ensure_eq!(tokens.len(), 8);
    ensure!(tokens.is_sorted_by(|before, after| before < after), "tokens do not grow: {tokens:?}");
    Ok(())
}

async fn a_claim_is_refused_while_another_worker_holds_one(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let first = context.claim(&key, "a", MINUTE, false).await?;
    match context.claim(&key, "b", MINUTE, false).await {
        Err(SessionError::Claimed { owner, expires, .. }) => {
            ensure_eq!((owner, expires), (worker("a")?, first.expires));
        }
        other => return Err(CaseFault::new(format!("{other:?}, expected Claimed"))),
    }
    ensure_error!(context.plain(&key, "e1", take("b", false)?).await, SessionError::Claimed { .. });
    ensure_eq!(context.get(&key).await?.version, 0);
    context.renew(&key, first.token).await?;
    let second = context.claim(&key, "b", MINUTE, true).await?;
    ensure_eq!(second.owner, worker("b")?);
    ensure_error!(context.renew(&key, first.token).await, SessionError::ClaimLost { .. });
    context.release(&key, second.token).await?;
    context.claim(&key, "a", MINUTE, false).await?;
    Ok(())
}

async fn an_expired_claim_is_taken_over_at_once(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let expired = context.claim(&key, "a", Duration::ZERO, false).await?;
    let second = context.claim(&key, "b", Duration::ZERO, false).await?;
    ensure!(second.token > expired.token, "the token did not grow: {expired:?}, {second:?}");
    let third = context.plain(&key, "e1", take("c", false)?).await?.claim;
    ensure_eq!(third.map(|claim| claim.owner), Some(worker("c")?));
    Ok(())
}

async fn an_expired_claim_that_nobody_took_is_still_its_holders(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let claim = context.claim(&key, "a", Duration::ZERO, false).await?;
    let renewed = context.plain(&key, "e1", hold(claim.token)).await?.claim;
    ensure!(
        renewed.as_ref().is_some_and(|renewed| renewed.expires > claim.expires),
        "{claim:?} was not renewed: {renewed:?}"
    );
    let claim = context.claim(&key, "a", Duration::ZERO, false).await?;
    ensure!(context.renew(&key, claim.token).await?.expires > claim.expires, "{claim:?} was not renewed");
    ensure_error!(context.claim(&key, "b", MINUTE, false).await, SessionError::Claimed { .. });
    Ok(())
}

async fn a_stale_token_is_refused_and_changes_nothing(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let first = context.claim(&key, "a", MINUTE, false).await?.token;
    context.count(&key, 0, "e1", hold(first)).await?;
    let entry = context.enqueue(&key, "m1", json!("hello")).await?.position;
    let second = context.claim(&key, "b", MINUTE, true).await?.token;
    for released in [false, true] {
        if released {
            context.release(&key, second).await?;
        }
        let before = context.everything(&key).await?;
        // Also a token that was never issued, and that of the released claim.
        for token in [first, second + 1].into_iter().chain(released.then_some(second)) {
            for claim in [hold(token), AppendClaim::Release { token }] {
                let counted = context.count(&key, 1, "x", claim.clone()).await;
                ensure_error!(counted, SessionError::ClaimLost { .. });
                ensure_error!(context.plain(&key, "x", claim.clone()).await, SessionError::ClaimLost { .. });
                let taking = counting(&key, 1, "x")?.taking([entry]).with_claim(claim.clone());
                ensure_error!(context.store.append(taking).await, SessionError::ClaimLost { .. });
                let rewound = context.rewind_under(&key, "x", 0, claim).await;
                ensure_error!(rewound, SessionError::ClaimLost { .. });
            }
            ensure_error!(context.renew(&key, token).await, SessionError::ClaimLost { .. });
            let dropped = DequeueInput::new(key.clone(), [entry]).with_token(token);
            ensure_error!(context.store.dequeue(dropped).await, SessionError::ClaimLost { .. });
        }
        ensure_eq!(context.everything(&key).await?, before);
    }
    Ok(())
}

async fn releasing_a_lost_claim_changes_nothing(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let first = context.claim(&key, "a", MINUTE, false).await?.token;
    let second = context.claim(&key, "b", MINUTE, true).await?;
    context.release(&key, first).await?;
    ensure_eq!(context.get(&key).await?.claim, Some(second.clone()));
    context.release(&key, second.token).await?;
    context.release(&key, second.token).await?;
    ensure_eq!(context.get(&key).await?.claim, None);
    Ok(())
}

async fn an_append_takes_holds_and_releases_a_claim(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    // With writes and without: stores may go two ways.
    for (turn, owner) in [(0, "a"), (4, "b")] {
        let [e1, e2, e3, e4] = [1, 2, 3, 4].map(|number| format!("e{}", turn + number));
        let claim = context.count(&key, turn, &e1, take(owner, false)?).await?.claim;
        let claim = claim.ok_or_else(|| CaseFault::new("the receipt has no claim"))?;
        ensure_eq!((claim.owner.as_str(), context.get(&key).await?.claim), (owner, Some(claim.clone())));
        let held = hold(claim.token);
        ensure_eq!(context.plain(&key, &e2, held.clone()).await?.claim, Some(claim.clone()));
        ensure_eq!(context.count(&key, turn + 2, &e3, held.clone()).await?.claim, Some(claim.clone()));
        let release = AppendClaim::Release { token: claim.token };
        let receipt = if turn == 0 {
            context.plain(&key, &e4, release).await?
        } else {
            context.count(&key, turn + 3, &e4, release).await?
        };
        ensure_eq!((receipt.version, receipt.claim), (turn + 4, None));
        ensure_eq!(context.get(&key).await?.claim, None);
        ensure_error!(context.plain(&key, "late", held).await, SessionError::ClaimLost { .. });
    }
    let taken = context.plain(&key, "e9", take("c", false)?).await?;
    ensure_eq!((taken.version, taken.claim.map(|claim| claim.owner)), (9, Some(worker("c")?)));
    Ok(())
}

async fn an_append_that_fails_takes_no_claim(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({"sum": i64::MAX})).await?.key;
    let stale = context.count(&key, 7, "e1", take("a", false)?).await;
    ensure_error!(stale, SessionError::Conflict { .. });
    let too_large = event("e1")?.with_delta(delta(&schema, &[("sum", json!(u64::MAX))])?);
    let append = AppendEvent::new(key.clone(), 0, too_large, &schema).with_claim(take("a", false)?);
    ensure_error!(context.store.append(append).await, SessionError::State { .. });
    let missing = counting(&key, 0, "e1")?.taking([1]).with_claim(take("a", false)?);
    ensure_error!(context.store.append(missing).await, SessionError::NotWaiting { position: 1, .. });
    ensure_eq!(context.get(&key).await?.claim, None);
    // Nor is one released.
    let token = context.claim(&key, "a", MINUTE, false).await?.token;
    let stale = context.count(&key, 7, "e1", AppendClaim::Release { token }).await;
    ensure_error!(stale, SessionError::Conflict { .. });
    context.renew(&key, token).await?;
    Ok(())
}

async fn of_sixteen_workers_one_claims(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let owners: Vec<String> = (0..16).map(|number| format!("w{number}")).collect();
    let results = join_all(owners.iter().map(|owner| context.claim(&key, owner, MINUTE, false))).await;
    let claims: Vec<&Claim> = results.iter().flatten().collect();
    let refused = results.iter().filter(|result| matches!(result, Err(SessionError::Claimed { .. })));
    ensure_eq!((claims.len(), refused.count()), (1, 15));
    ensure_eq!(context.get(&key).await?.claim, claims.first().copied().cloned());
    // A takeover does not wait for the owner; each token is still issued once.
    let results = join_all(owners.iter().map(|owner| context.claim(&key, owner, MINUTE, true))).await;
    let mut tokens =
        results.into_iter().map(|result| Ok(result?.token)).collect::<Result<Vec<_>, CaseFault>>()?;
    tokens.sort_unstable();
    tokens.dedup();
    ensure_eq!(tokens.len(), 16);
    let mut holders = 0;
    for token in tokens {
        holders += usize::from(context.renew(&key, token).await.is_ok());
    }
    ensure_eq!(holders, 1);
    Ok(())
}

async fn of_sixteen_appends_that_take_a_claim_one_is_made(context: CaseContext) -> StoreCaseResult {
    for (id, is_plain) in [("plain", true), ("writing", false)] {
        let key = context.create(&schema()?, id, json!({})).await?.key;
        let appends = (0..16).map(|number| {
            let (context, key, owner) = (&context, &key, format!("w{number}"));
            async move {
                let claim = take(&owner, false)?;
                if is_plain {
                    context.plain(key, &owner, claim).await
                } else {
                    context.count(key, Expected::Any, &owner, claim).await
                }
            }
        });
        let results = join_all(appends).await;
        let made: Vec<&Receipt> = results.iter().flatten().collect();
        let refused = results.iter().filter(|result| matches!(result, Err(SessionError::Claimed { .. })));
        ensure_eq!((made.len(), refused.count()), (1, 15));
        let session = context.get(&key).await?;
        ensure_eq!((session.version, session.events.len()), (1, 1));
        ensure_eq!(session.claim, made[0].claim.clone());
        ensure_eq!(session.claim.map(|claim| claim.owner.to_string()), Some(made[0].event.to_string()));
    }
    Ok(())
}

async fn a_repeated_append_gives_the_first_receipt_whoever_holds_the_claim(
    context: CaseContext,
) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let first = context.count(&key, 0, "e1", take("a", false)?).await?;
    // The answer was lost: the worker learns its token, and gets no second one.
    ensure_eq!(context.count(&key, 0, "e1", take("a", false)?).await?, first);
    let token = first.claim.as_ref().map_or(0, |claim| claim.token);
    let held = context.plain(&key, "e2", hold(token)).await?;
    ensure_eq!(context.plain(&key, "e2", hold(token)).await?, held);
    let other = context.claim(&key, "b", MINUTE, true).await?;
    for (receipt, repeated) in [
        (&first, context.count(&key, 0, "e1", take("a", false)?).await?),
        (&held, context.plain(&key, "e2", hold(token)).await?),
    ] {
        ensure_eq!(
            (&repeated.event, repeated.version, repeated.claim),
            (&receipt.event, receipt.version, None)
        );
    }
    let release = AppendClaim::Release { token: other.token };
    let released = context.plain(&key, "e3", release.clone()).await?;
    ensure_eq!(context.plain(&key, "e3", release).await?, released);
    ensure_eq!(context.get(&key).await?.version, 3);
    Ok(())
}

async fn a_rewind_is_fenced_as_an_append_is(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    context.count(&key, 0, "e1", take("a", false)?).await?;
    let refused = context.rewind_under(&key, "r1", 0, take("b", false)?).await;
    ensure_error!(refused, SessionError::Claimed { .. });
    let second = context.rewind_under(&key, "r1", 0, take("b", true)?).await?;
    ensure_eq!(second.claim.as_ref().map(|claim| claim.owner.as_str()), Some("b"));
    let repeated = context.rewind_under(&key, "r1", 0, take("b", true)?).await?;
    ensure_eq!(repeated, second);
    let token = second.claim.map_or(0, |claim| claim.token);
    let released = context.rewind_under(&key, "r2", 1, AppendClaim::Release { token }).await?;
    ensure_eq!((released.version, released.claim), (3, None));
    let session = context.get(&key).await?;
    ensure_eq!((session.claim.clone(), session.version), (None, 3));
    ensure!(session.get("sum").is_some_and(|sum| sum == json!(1)), "not rewound: {}", session.to_json());
    Ok(())
}

async fn what_is_done_once_waits_for_no_worker_and_leaves_no_claim(context: CaseContext) -> StoreCaseResult {
    let once = |take_over| AppendClaim::Once { take_over };
    for (id, is_plain) in [("plain", true), ("writing", false)] {
        let key = context.create(&schema()?, id, json!({})).await?.key;
        let append = async |event: &str, claim| match is_plain {
            true => context.plain(&key, event, claim).await,
            false => context.count(&key, Expected::Any, event, claim).await,
        };
        ensure_eq!(append("e1", once(TakeOver::Never)).await?.claim, None);
        let claim = context.claim(&key, "a", MINUTE, false).await?;
        for refused in [TakeOver::Never, TakeOver::Token(claim.token + 1)] {
            ensure_error!(append("e2", once(refused)).await, SessionError::Claimed { .. });
            let rewound = context.rewind_under(&key, "e2", 0, once(refused)).await;
            ensure_error!(rewound, SessionError::Claimed { .. });
        }
        let session = context.get(&key).await?;
        ensure_eq!((session.version, session.claim), (1, Some(claim.clone())));
        // An overridden worker has lost the claim.
        ensure_eq!(append("e2", once(TakeOver::Token(claim.token))).await?.claim, None);
        ensure_error!(append("e3", hold(claim.token)).await, SessionError::ClaimLost { .. });
        let claim = context.claim(&key, "a", MINUTE, false).await?;
        ensure_eq!(context.rewind_under(&key, "e3", 0, once(TakeOver::Always)).await?.claim, None);
        ensure_error!(context.renew(&key, claim.token).await, SessionError::ClaimLost { .. });
        // Nor does one that has expired keep anybody.
        context.claim(&key, "a", Duration::ZERO, false).await?;
        ensure_eq!(append("e4", once(TakeOver::Never)).await?.claim, None);
        ensure_eq!(context.get(&key).await?.claim, None);
    }
    Ok(())
}

async fn a_session_is_not_deleted_while_a_worker_holds_it(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({"sum": 1, "user:sum": 1})).await?.key;
    let delete = || DeleteSession::new(key.clone()).with_user_state();
    let claim = context.claim(&key, "a", MINUTE, false).await?;
    let stale = with(delete(), |delete| delete.take_over = TakeOver::Token(claim.token + 1));
    for refused in [delete(), delete().now(at(1)), stale] {
        ensure_error!(context.store.delete(refused).await, SessionError::Claimed { .. });
    }
    let session = context.get(&key).await?;
    ensure_eq!(session.claim, Some(claim.clone()));
    ensure!(session.get("user:sum").is_some_and(|sum| sum == json!(1)), "lost: {}", session.to_json());
    context.store.delete(with(delete(), |delete| delete.take_over = TakeOver::Token(claim.token))).await?;
    ensure_error!(context.get(&key).await, SessionError::NotFound { .. });

    let key = context.create(&schema, "s2", json!({})).await?.key;
    context.claim(&key, "a", Duration::ZERO, false).await?;
    context.store.delete(DeleteSession::new(key).now(at(1))).await?;
    let key = context.create(&schema, "s3", json!({})).await?.key;
    let claim = context.claim(&key, "a", MINUTE, false).await?;
    context.release(&key, claim.token).await?;
    context.store.delete(DeleteSession::new(key)).await?;
    Ok(())
}

async fn a_claim_is_taken_over_only_while_it_is_the_one_that_is_known(
    context: CaseContext,
) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let dead = context.claim(&key, "a", MINUTE, false).await?.token;
    let from_the_dead = |owner| {
        let request = ClaimSession::new(key.clone(), worker(owner)?, MINUTE, at(1));
        Ok::<_, SessionError>(with(request, |request| request.take_over = TakeOver::Token(dead)))
    };
    let first = context.store.claim(from_the_dead("b")?).await?;
    // Another worker was faster: the first claim says nothing about the second.
    ensure_error!(context.store.claim(from_the_dead("c")?).await, SessionError::Claimed { .. });
    ensure_eq!(context.get(&key).await?.claim, Some(first));
    Ok(())
}

async fn an_append_without_a_claim_is_made_under_any(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({})).await?.key;
    let claim = context.claim(&key, "a", MINUTE, false).await?;
    let receipt = context.store.append(counting(&key, 0, "e1")?).await?;
    ensure_eq!((receipt.version, receipt.claim), (1, None));
    ensure_eq!(context.get(&key).await?.claim, Some(claim));
    Ok(())
}

async fn a_session_made_again_has_another_life_and_no_claim(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let first = context.create(&schema, "s1", json!({})).await?;
    let key = first.key.clone();
    let token = context.claim(&key, "a", MINUTE, false).await?.token;
    context.enqueue(&key, "m1", json!("hello")).await?;
    ensure_eq!(&context.get(&key).await?.life, &first.life);
    context.store.delete(DeleteSession::new(key.clone()).take_over()).await?;
    let second = context.create(&schema, "s1", json!({})).await?;
    ensure!(second.life != first.life, "the life is the same: {}", first.life);
    ensure_eq!((second.claim, second.inbox), (None, 0));
    ensure_error!(context.renew(&key, token).await, SessionError::ClaimLost { .. });
    ensure_error!(context.plain(&key, "e1", hold(token)).await, SessionError::ClaimLost { .. });
    // The idempotency keys of the first life are free.
    ensure!(
        !context.enqueue(&key, "m1", json!("other")).await?.is_repeat,
        "an entry of another life is known"
    );
    context.store.delete(DeleteSession::new(key.clone())).await?;
    let life = LifeId::new("a-life-of-its-own")?;
    let request = CreateSession::with_key(key.clone(), &schema, at(0)).with_life(life.clone());
    ensure_eq!(context.store.create(request).await?.life, life.clone());
    ensure_eq!(context.get(&key).await?.life, life);
    Ok(())
}

async fn a_fork_has_a_life_of_its_own_and_no_claim(context: CaseContext) -> StoreCaseResult {
    let session = context.create(&schema()?, "s1", json!({})).await?;
    let key = session.key.clone();
    let taken = context.count(&key, 0, "e1", take("a", false)?).await?;
    context.enqueue(&key, "m1", json!("hello")).await?;
    let mut lives = vec![session.life];
    for version in [0, 1] {
        let fork = context.store.fork(ForkSession::new(key.clone(), at(2)).at_version(version)).await?;
        let fork = context.get(&fork.key).await?;
        ensure_eq!((fork.claim.clone(), fork.inbox), (None, 0));
        ensure!(!lives.contains(&fork.life), "a life was given twice: {}", fork.life);
        lives.push(fork.life);
        ensure_eq!(context.store.inbox(ReadInbox::new(fork.key.clone())).await?, []);
        let claim = context.claim(&fork.key, "b", MINUTE, false).await?;
        ensure_error!(context.renew(&key, claim.token).await, SessionError::ClaimLost { .. });
    }
    let forked = ForkSession::new(key.clone(), at(2)).with_life(LifeId::new("given")?);
    ensure_eq!(context.store.fork(forked).await?.life, LifeId::new("given")?);
    let session = context.get(&key).await?;
    ensure_eq!((session.claim, session.inbox), (taken.claim, 1));
    Ok(())
}

async fn reading_and_listing_give_the_claim(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (first, second) =
        (context.create(&schema, "s1", json!({})).await?, context.create(&schema, "s2", json!({})).await?);
    context.claim(&first.key, "a", Duration::ZERO, false).await?;
    let claim = context.claim(&second.key, "b", MINUTE, false).await?;
    context.enqueue(&second.key, "m1", json!("hello")).await?;
    let list = ListSessions::new(context.app.as_str(), "alice")?.now(at(1));
    for list in [list.clone(), list.with_state()] {
        let mut listed = context.store.list(list).await?.sessions;
        listed.sort_by(|one, other| one.key.cmp(&other.key));
        let found: Vec<_> =
            listed.into_iter().map(|session| (session.life, session.claim, session.inbox)).collect();
        let expected = [(first.life.clone(), None, 0), (second.life.clone(), Some(claim.clone()), 1)];
        ensure_eq!(found, expected);
    }
    let read = context.store.get(GetSession::new(first.key).without_state().now(at(1))).await?;
    ensure_eq!(read.claim, None);
    Ok(())
}

async fn there_is_nothing_to_claim_where_there_is_no_session(context: CaseContext) -> StoreCaseResult {
    let key = context.key("nothing")?;
    ensure_error!(context.claim(&key, "a", MINUTE, true).await, SessionError::NotFound { .. });
    ensure_error!(context.renew(&key, 1).await, SessionError::NotFound { .. });
    ensure_error!(context.plain(&key, "e1", hold(1)).await, SessionError::NotFound { .. });
    ensure_error!(context.enqueue(&key, "m1", json!(1)).await, SessionError::NotFound { .. });
    ensure_error!(context.store.inbox(ReadInbox::new(key.clone())).await, SessionError::NotFound { .. });
    let dropped = context.store.dequeue(DequeueInput::new(key.clone(), [1])).await;
    ensure_error!(dropped, SessionError::NotFound { .. });
    // It has nothing to give up: the session was deleted while the worker was busy.
    context.release(&key, 1).await?;
    Ok(())
}

async fn claims_are_renewed_together_and_a_lost_one_takes_no_other_along(
    context: CaseContext,
) -> StoreCaseResult {
    let schema = schema()?;
    let mut held = Vec::new();
    for number in 0..5 {
        let key = context.create(&schema, &format!("s{number}"), json!({})).await?.key;
        let claim = context.claim(&key, "a", Duration::from_secs(1), false).await?;
        held.push((key, claim));
    }
    // One of another user has the same id.
    let other = SessionKey::new(context.app.as_str(), "bob", "s0")?;
    context.store.create(CreateSession::with_key(other.clone(), &schema, at(0))).await?;
    let claim = context.claim(&other, "a", Duration::from_secs(1), false).await?;
    held.push((other, claim));
    // The second is another worker's by now, the third is released, the fourth is gone.
    let taken = context.claim(&held[1].0, "b", MINUTE, true).await?;
    context.release(&held[2].0, held[2].1.token).await?;
    context.store.delete(DeleteSession::new(held[3].0.clone()).take_over()).await?;
    let message = EnqueueInput::new(
        held[4].0.clone(),
        InboxKind::Message,
        IdempotencyKey::new("m1")?,
        json!("hello"),
        at(1),
    );
    let position = context.store.enqueue(message).await?.position;

    let claims = held.iter().map(|(key, claim)| (key.clone(), claim.token));
    let renewed = context.store.renew_all(RenewClaims::new(claims, MINUTE, at(1))).await?;
    ensure_eq!(renewed.len(), held.len());
    for number in [0, 4, 5] {
        let (_, before) = &held[number];
        let now = renewed[number].as_ref().map_err(|error| CaseFault::new(error.to_string()))?;
        ensure!(
            now.claim.token == before.token && now.claim.expires > before.expires,
            "{now:?} after {before:?}"
        );
        let (expected, stored) =
            (if number == 4 { position } else { 0 }, context.get(&held[number].0).await?);
        ensure_eq!((now.inbox, stored.claim), (expected, Some(now.claim.clone())));
    }
    for number in [1, 2] {
        ensure!(matches!(renewed[number], Err(SessionError::ClaimLost { .. })), "{:?}", renewed[number]);
    }
    ensure!(matches!(renewed[3], Err(SessionError::NotFound { .. })), "{:?}", renewed[3]);
    ensure_eq!(context.get(&held[1].0).await?.claim, Some(taken));
    ensure_eq!(context.get(&held[2].0).await?.claim, None);
    let none = context.store.renew_all(RenewClaims::new([], MINUTE, at(1))).await?;
    ensure!(none.is_empty(), "{none:?}");
    Ok(())
}

async fn sessions_without_a_worker_in_which_work_is_left_are_listed(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    for id in ["done", "held", "expired", "left", "waits", "due", "later"] {
        context.create(&schema, id, json!({})).await?;
    }
    let key = |id: &str| context.key(id);
    let claim = |id: &str, duration| -> Result<ClaimSession, SessionError> {
        Ok(ClaimSession::new(key(id)?, worker("a")?, duration, at(1)))
    };
    context.store.claim(claim("held", MINUTE * 60)?).await?;
    // It has expired once the time of any clock has gone on.
    context.store.claim(claim("expired", Duration::ZERO)?).await?;
    let left = context.store.claim(claim("left", MINUTE * 60)?).await?;
    context.store.release(ReleaseClaim::new(key("left")?, left.token).unfinished(at(2))).await?;
    // A heartbeat of the worker that is answered after its release does not bring the claim back.
    let late = context.store.renew(RenewClaim::new(key("left")?, left.token, MINUTE * 60, at(2))).await;
    ensure!(matches!(late, Err(SessionError::ClaimLost { .. })), "renewed after a release: {late:?}");
    let late =
        context.store.renew_all(RenewClaims::new([(key("left")?, left.token)], MINUTE * 60, at(2))).await?;
    ensure!(matches!(late[..], [Err(SessionError::ClaimLost { .. })]), "renewed after a release: {late:?}");
    let done = context.store.claim(claim("done", MINUTE)?).await?;
    context.store.release(ReleaseClaim::new(key("done")?, done.token)).await?;
    for (id, due) in [("due", at(2)), ("later", at(50))] {
        let claimed = context.store.claim(claim(id, MINUTE)?).await?;
        context.store.release(ReleaseClaim::new(key(id)?, claimed.token).due(due)).await?;
    }
    let first = IdempotencyKey::new("m1")?;
    let waits = EnqueueInput::new(key("waits")?, InboxKind::Message, first, json!("hello"), at(2));
    context.store.enqueue(waits).await?;

    let list = ListUnattended::new(AppId::new(context.app.as_str())?, at(3));
    let list = with(list, |list| list.limit = 10);
    let all = context.store.unattended(list.clone()).await?;
    let ids: BTreeSet<&str> = all.iter().map(|session| session.key.id.as_str()).collect();
    ensure_eq!(ids, BTreeSet::from(["due", "expired", "left", "waits"]));
    let due: Vec<_> = all.iter().filter(|session| session.is_due).collect();
    ensure!(
        matches!(due[..], [session] if session.key == key("due")? && session.since == at(2) && !session.is_claimed),
        "a session is due at its time: {due:?}"
    );
    let waits: Vec<_> = all
        .iter()
        .filter(|session| !session.is_claimed && !session.is_due)
        .map(|it| it.key.id.as_str())
        .collect();
    ensure_eq!(waits, ["waits"]);
    ensure!(all.is_sorted_by_key(|session| session.since), "the longest waiting must come first: {all:?}");
    let mut paged = Vec::new();
    while let [session] = &context
        .store
        .unattended(with(list.clone(), |list| (list.limit, list.after) = (1, paged.last().map(cursor_of))))
        .await?[..]
    {
        paged.push(session.clone());
    }
    ensure_eq!(paged, all);

    // A store may list those whose worker may be at work, with the worker.
    let with_claimed = context.store.unattended(list.clone().with_claimed()).await?;
    let unclaimed = with_claimed.iter().filter(|session| session.key.id.as_str() != "held");
    ensure!(unclaimed.eq(&all), "others than those with a claim: {with_claimed:?}");
    let held = with_claimed.iter().find(|session| session.key.id.as_str() == "held");
    let owner = Some(worker("a")?);
    ensure!(
        held.is_none_or(|held| held.is_claimed && held.owner == owner),
        "its worker is missing: {held:?}"
    );

    // A session that is not due is listed once it is, and a claim forgets when that was.
    let listed = async |now| -> Result<BTreeSet<String>, CaseFault> {
        let all = context.store.unattended(with(list.clone(), |list| list.now = now)).await?;
        Ok(all
            .into_iter()
            .filter(|session| session.is_due)
            .map(|session| session.key.id.to_string())
            .collect())
    };
    ensure_eq!(listed(at(50)).await?, BTreeSet::from(["due".to_owned(), "later".to_owned()]));
    let again = context.store.claim(claim("due", MINUTE)?).await?;
    context.store.release(ReleaseClaim::new(key("due")?, again.token)).await?;
    ensure_eq!(listed(at(50)).await?, BTreeSet::from(["later".to_owned()]));

    // Any worker may claim what was left, and its token is a newer one.
    let taken = ClaimSession::new(key("left")?, worker("b")?, MINUTE, at(3));
    ensure!(context.store.claim(taken).await?.token > left.token, "the token grows");
    let app = AppId::new("another-app")?;
    let other = with(list, |list| list.app = app);
    ensure_eq!(context.store.unattended(other).await?, []);
    Ok(())
}

fn cursor_of(session: &Unattended) -> SessionCursor {
    session.cursor.clone()
}
