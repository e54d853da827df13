//! Scans of all sessions of an app, and retention that decides by what it has read.

use std::collections::BTreeSet;

use serde_json::json;

use super::claims::MINUTE;
use super::versions::{fork, played};
use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, ensure_eq, ensure_error, event, schema,
};
use stepfold_session_scopes::{
    ClaimSession, CreateSession, DeleteSession, PruneBound, PruneSession, ReleaseClaim, RunRecord,
    ScanSessions, ScannedSession, SessionCursor, SessionError, SessionKey, SessionStore, WorkerId,
};

cases! {
    a_scan_has_each_session_of_an_app_once,
    a_scan_tells_what_retention_decides_by,
    a_cursor_of_no_scan_is_an_error,
    a_dry_run_of_retention_deletes_nothing,
    retention_of_a_changed_session_is_a_conflict,
    retention_leaves_a_session_at_work,
    a_session_that_has_changed_is_not_deleted_as_unused,
}

/// All sessions, in pages of so many.
async fn scanned(context: &CaseContext, limit: usize) -> Result<Vec<ScannedSession>, CaseFault> {
    let mut request = ScanSessions::new(context.app.as_str())?;
    (request.limit, request.with_first_event) = (limit, true);
    let mut sessions = Vec::new();
    loop {
        let page = context.store.scan(request.clone()).await?;
        if page.sessions.len() > limit {
            return Err(CaseFault::new(format!("page of {} sessions", page.sessions.len())));
        }
        sessions.extend(page.sessions);
        request.after = page.next;
        if request.after.is_none() {
            return Ok(sessions);
        }
    }
}

async fn a_scan_has_each_session_of_an_app_once(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    ensure_eq!(scanned(&context, 10).await?, []);
    let mut keys = BTreeSet::new();
    for user in ["ada", "bob of all", "zoe", "Ämy"] {
        for number in 0..5 {
            let key = SessionKey::new(context.app.as_str(), user, format!("s{number}"))?;
            context.store.create(CreateSession::with_key(key.clone(), &schema, at(number % 3))).await?;
            keys.insert(key);
        }
    }
    for app in [format!("{}!", context.app), format!("{}~", context.app)] {
        context.store.create(CreateSession::new(app, "ada", &schema, at(0))?).await?;
    }
    for limit in [1, 3, 7, 100] {
        let sessions = scanned(&context, limit).await?;
        ensure_eq!(sessions.len(), keys.len());
        let found: BTreeSet<SessionKey> = sessions.iter().map(|session| session.key.clone()).collect();
        ensure_eq!(found, keys);
        let users: Vec<&str> = sessions.iter().map(|session| session.key.user.as_str()).collect();
        ensure_eq!(users.is_sorted(), true);
    }
    Ok(())
}

async fn a_scan_tells_what_retention_decides_by(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    context.store.prune(PruneSession::new(key.clone(), PruneBound::Version(3))).await?;
    let kept = fork(&context, &key, "s2", 5).await?;
    let mut step = event("step")?.with_record(RunRecord::new("my.run", 1, &"a step")?);
    step.at = at(40);
    context.append(&kept, 5, step, &schema).await?;
    let hidden = fork(&context, &kept, "s3", 6).await?;
    context.rewind(&hidden, "back", 4).await?;
    let mut sessions = scanned(&context, 100).await?;
    sessions.sort_by(|one, other| one.key.cmp(&other.key));
    for session in &sessions {
        let read = context.get(&session.key).await?;
        ensure_eq!((session.version, session.oldest), (read.version, read.oldest));
        ensure_eq!((session.created, session.updated), (read.created, read.updated));
        ensure_eq!(session.inbox, 0);
        ensure_eq!(session.first_event, read.events.first().map(|first| first.event.at));
    }
    let mut request = ScanSessions::new(context.app.as_str())?;
    request.with_first_event = false;
    let page = context.store.scan(request).await?;
    ensure_eq!(page.sessions.iter().filter(|session| session.first_event.is_some()).count(), 0);
    let unfinished: Vec<bool> = sessions.iter().map(|session| session.is_unfinished).collect();
    ensure_eq!(unfinished, [false, true, false]);
    ensure_eq!(sessions[1].updated, at(40));
    Ok(())
}

async fn a_cursor_of_no_scan_is_an_error(context: CaseContext) -> StoreCaseResult {
    let mut request = ScanSessions::new(context.app.as_str())?;
    request.after = Some(SessionCursor::new("somewhere"));
    ensure_error!(context.store.scan(request).await, SessionError::InvalidCursor);
    Ok(())
}

async fn a_dry_run_of_retention_deletes_nothing(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    let before = context.get(&key).await?;
    let both = PruneBound::Both { version: 5, time: at(0) };
    for (bound, oldest) in [(PruneBound::Version(5), 5), (PruneBound::Time(at(99)), 8), (both, 5)] {
        let request = PruneSession::new(key.clone(), bound);
        let pruned = context.store.prune(request.clone().dry_run()).await?;
        ensure_eq!((pruned.events, pruned.oldest), (oldest, oldest));
        let after = context.get(&key).await?;
        ensure_eq!((after.to_json(), &after.events, after.oldest), (before.to_json(), &before.events, 0));
    }
    let beyond = PruneSession::new(key, PruneBound::Version(9)).dry_run();
    ensure_error!(context.store.prune(beyond).await, SessionError::NoSuchVersion { .. });
    Ok(())
}

async fn retention_of_a_changed_session_is_a_conflict(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    for bound in [PruneBound::Version(5), PruneBound::Version(99), PruneBound::Time(at(99))] {
        let request = PruneSession::new(key.clone(), bound).if_unchanged_at(7);
        let conflict = SessionError::Conflict { key: Box::new(key.clone()), expected: 7, actual: 8 };
        let refused = context.store.prune(request).await;
        ensure_eq!(refused.map_err(|error| error.to_string()), Err(conflict.to_string()));
    }
    ensure_eq!(context.get(&key).await?.oldest, 0);
    let request = PruneSession::new(key.clone(), PruneBound::Version(5)).if_unchanged_at(8);
    for events in [5, 0] {
        ensure_eq!(context.store.prune(request.clone()).await?.events, events);
    }
    Ok(())
}

async fn retention_leaves_a_session_at_work(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    let claim = ClaimSession::new(key.clone(), WorkerId::new("worker-1")?, MINUTE, at(9));
    let claim = match context.store.claim(claim).await {
        Err(SessionError::Unsupported { .. }) => return Ok(()),
        claim => claim?,
    };
    let request = PruneSession::new(key.clone(), PruneBound::Version(5)).now(at(9));
    for refused in [request.clone().if_unchanged_at(8), request.clone().if_unchanged_at(8).dry_run()] {
        ensure_error!(context.store.prune(refused).await, SessionError::Claimed { .. });
    }
    ensure_eq!(context.get(&key).await?.oldest, 0);
    // Without the condition, claims do not count.
    let early = PruneSession::new(key.clone(), PruneBound::Version(2));
    ensure_eq!(context.store.prune(early).await?.oldest, 2);
    context.store.release(ReleaseClaim::new(key.clone(), claim.token)).await?;
    ensure_eq!(context.store.prune(request.if_unchanged_at(8)).await?.oldest, 5);
    Ok(())
}

async fn a_session_that_has_changed_is_not_deleted_as_unused(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    let refused = context.store.delete(DeleteSession::new(key.clone()).if_unused_at(7)).await;
    ensure_error!(refused, SessionError::Conflict { expected: 7, actual: 8, .. });
    ensure_eq!(context.get(&key).await?.version, 8);
    let empty = context.create(&schema, "s2", json!({})).await?.key;
    for (key, version) in [(key, 8), (empty, 0)] {
        context.store.delete(DeleteSession::new(key.clone()).if_unused_at(version)).await?;
        ensure_error!(context.get(&key).await, SessionError::NotFound { .. });
    }
    Ok(())
}
