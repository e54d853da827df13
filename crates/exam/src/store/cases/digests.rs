//! Digests of histories, and verification of stored data. A store may do without either.

use serde_json::json;

use super::versions::{fork, played, prune};
use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, cases, ensure, ensure_eq, event, schema,
};
use stepfold_session_scopes::AppId;
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::{
    EventRange, Expected, GetSession, ListSessions, PruneBound, SessionStore, VerifySessions,
};

cases! {
    the_head_stands_for_the_history,
    what_was_written_is_whole,
}

async fn the_head_stands_for_the_history(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    let newest = states.len() as u64 - 1;
    let at = |version| GetSession::new(key.clone()).at_version(version).events(EventRange::None);
    let mut heads = Vec::new();
    for version in 0..=newest {
        heads.push(context.store.get(at(version)).await?.head);
    }
    let head = context.get(&key).await?.head;
    ensure_eq!(heads.last().copied().flatten(), head);
    if head.is_none() {
        ensure!(heads.iter().all(Option::is_none), "only some versions have a digest: {heads:?}");
        return Ok(());
    }
    for (version, head) in heads.iter().enumerate() {
        ensure!(head.is_some(), "version {version} has no digest");
        ensure!(!heads[..version].contains(head), "version {version} has the digest of an earlier one");
    }
    // A fork begins with the digest of its version, and goes its own way.
    let forked = fork(&context, &key, "f1", 5).await?;
    ensure_eq!(context.get(&forked).await?.head, heads[5]);
    context.write(&forked, Expected::Any, "own", &schema, &[("n", json!(1))]).await?;
    let own = context.get(&forked).await?.head;
    ensure!(!heads.contains(&own), "the fork has the digest of its original");
    // A rewind adds an event; retention takes some and leaves the digests of the others.
    context.rewind(&key, "back", 2).await?;
    let rewound = context.get(&key).await?.head;
    ensure!(!heads.contains(&rewound), "a rewind left the digest as it was");
    prune(&context, &key, PruneBound::Version(4)).await?;
    for version in 4..=newest {
        ensure_eq!(context.store.get(at(version)).await?.head, heads[usize::try_from(version)?]);
    }
    ensure_eq!(context.get(&key).await?.head, rewound);
    Ok(())
}

async fn what_was_written_is_whole(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    let shared = [("app:list", json!(["a", "b"])), ("user:tasks", json!([{"id": 1}])), ("app:sum", json!(3))];
    context.write(&key, Expected::Any, "shared", &schema, &shared).await?;
    let removed = [schema.schema().removal("app:sum")?].into_iter().collect();
    context.append(&key, Expected::Any, event("gone")?.with_delta(removed), &schema).await?;
    check(&context).await?;
    context.rewind(&key, "back", 3).await?;
    context.write(&key, Expected::Any, "more", &schema, &[("list", json!(["more"]))]).await?;
    check(&context).await?;
    for version in [0, 3, 8, 11] {
        let fork = fork(&context, &key, &format!("f{version}"), version).await?;
        context.write(&fork, Expected::Any, "more", &schema, &[("list", json!(["own"]))]).await?;
    }
    check(&context).await?;
    prune(&context, &key, PruneBound::Version(6)).await?;
    check(&context).await
}

/// Verification finds no fault, of the whole store and of one session.
async fn check(context: &CaseContext) -> StoreCaseResult {
    let app = AppId::new(context.app.as_str())?;
    let listed = context.store.list(ListSessions::new(context.app.as_str(), "alice")?).await?;
    let requests = listed.sessions.into_iter().map(|session| VerifySessions::session(session.key));
    for request in requests.chain([VerifySessions::app(app)]) {
        match context.store.verify(request).await {
            Ok(report) => ensure_eq!(report.faults, []),
            Err(SessionError::Unsupported { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
