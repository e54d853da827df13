//! The forks of a session, and labels on its versions.

use std::sync::Arc;

use serde_json::json;

use super::versions::{fork, played, prune};
use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, ensure, ensure_eq, ensure_error, schema,
};
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::{
    CreateSession, DeleteSession, LabelVersion, ListForks, MAX_LABELS, PruneBound, PruneSession, ReadLabels,
    SessionStore,
};
use stepfold_session_scopes::{Label, SessionKey};

cases! {
    the_forks_of_a_session_are_listed,
    a_session_made_again_has_no_forks,
    a_label_names_a_version,
    a_label_of_a_version_that_is_not_kept_is_refused,
    labels_stay_with_their_session,
    as_many_labels_as_there_may_be,
    a_session_is_made_with_its_labels_or_not_at_all,
    a_labelled_version_outlives_retention_by_policy,
}

/// The ids of a session's forks, and the versions that they begin with.
async fn forks(context: &CaseContext, key: &SessionKey) -> Result<Vec<(String, u64)>, SessionError> {
    let forks = context.store.forks(ListForks::new(key.clone())).await?;
    Ok(forks.into_iter().map(|fork| (fork.id.to_string(), fork.version)).collect())
}

async fn the_forks_of_a_session_are_listed(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    ensure_eq!(forks(&context, &key).await?, []);
    // One at the newest version, of one that was forked as well, and of one where the fork itself begins.
    let z = fork(&context, &key, "z", 8).await?;
    let a = fork(&context, &key, "a", 0).await?;
    fork(&context, &key, "m", 5).await?;
    let of_z = fork(&context, &z, "of z", 8).await?;
    fork(&context, &z, "of z too", 3).await?;
    let named = |names: &[(&str, u64)]| -> Vec<(String, u64)> {
        names.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect()
    };
    ensure_eq!(forks(&context, &key).await?, named(&[("z", 8), ("a", 0), ("m", 5)]));
    ensure_eq!(forks(&context, &z).await?, named(&[("of z", 8), ("of z too", 3)]));
    ensure_eq!(forks(&context, &of_z).await?, []);
    let first = context.store.forks(ListForks::new(key.clone())).await?.into_iter().next();
    ensure_eq!(first.map(|fork| fork.created), Some(at(2)));
    // One that is gone is not a fork, and one that goes leaves its own forks.
    for gone in [a, z] {
        context.store.delete(DeleteSession::new(gone)).await?;
    }
    ensure_eq!(forks(&context, &key).await?, named(&[("m", 5)]));
    ensure_eq!(forks(&context, &of_z).await?, []);
    // Nor does pruning or rewinding change whose fork it is.
    context.rewind(&key, "back", 0).await?;
    prune(&context, &key, PruneBound::Version(9)).await?;
    ensure_eq!(forks(&context, &key).await?, named(&[("m", 5)]));
    ensure_error!(forks(&context, &context.key("nothing")?).await, SessionError::NotFound { .. });
    Ok(())
}

async fn a_session_made_again_has_no_forks(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    let kept = fork(&context, &key, "f1", 4).await?;
    label(&context, &key, "mine", Some(1)).await?;
    context.store.delete(DeleteSession::new(key.clone())).await?;
    context.create(&schema, "s1", json!({})).await?;
    ensure_eq!(forks(&context, &key).await?, []);
    ensure_eq!(labels(&context, &key).await?, []);
    let own = fork(&context, &key, "f2", 0).await?;
    context.store.delete(DeleteSession::new(kept)).await?;
    ensure_eq!(forks(&context, &key).await?, [("f2".to_owned(), 0)]);
    context.store.delete(DeleteSession::new(own)).await?;
    ensure_eq!(forks(&context, &key).await?, []);
    Ok(())
}

async fn label(
    context: &CaseContext,
    key: &SessionKey,
    label: &str,
    version: Option<u64>,
) -> Result<Option<u64>, SessionError> {
    let (key, label) = (key.clone(), Label::new(label)?);
    let request = match version {
        Some(version) => LabelVersion::new(key, label, version),
        None => LabelVersion::removal(key, label),
    };
    context.store.set_label(request).await
}

async fn labels(context: &CaseContext, key: &SessionKey) -> Result<Vec<(String, u64)>, SessionError> {
    let labels = context.store.labels(ReadLabels::new(key.clone())).await?;
    Ok(labels.into_iter().map(|(label, version)| (label.to_string(), version)).collect())
}

async fn a_label_names_a_version(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    ensure_eq!(labels(&context, &key).await?, []);
    ensure_eq!(label(&context, &key, "z'; --", Some(2)).await?, None);
    ensure_eq!(label(&context, &key, "b", Some(8)).await?, None);
    ensure_eq!(label(&context, &key, "a", Some(2)).await?, None);
    let named = |names: &[(&str, u64)]| -> Vec<(String, u64)> {
        names.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect()
    };
    ensure_eq!(labels(&context, &key).await?, named(&[("a", 2), ("z'; --", 2), ("b", 8)]));
    // It moves, and goes.
    ensure_eq!(label(&context, &key, "b", Some(0)).await?, Some(8));
    ensure_eq!(label(&context, &key, "b", Some(0)).await?, Some(0));
    ensure_eq!(label(&context, &key, "a", None).await?, Some(2));
    ensure_eq!(label(&context, &key, "a", None).await?, None);
    ensure_eq!(labels(&context, &key).await?, named(&[("b", 0), ("z'; --", 2)]));
    // The session itself is as it was.
    ensure_eq!(context.get(&key).await?.version, 8);
    Ok(())
}

async fn a_label_of_a_version_that_is_not_kept_is_refused(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    let beyond = label(&context, &key, "beyond", Some(9)).await;
    ensure_error!(beyond, SessionError::NoSuchVersion { oldest: 0, newest: 8, .. });
    label(&context, &key, "early", Some(2)).await?;
    label(&context, &key, "late", Some(5)).await?;
    prune(&context, &key, PruneBound::Version(5)).await?;
    ensure_eq!(labels(&context, &key).await?, [("late".to_owned(), 5)]);
    let pruned = label(&context, &key, "early", Some(2)).await;
    ensure_error!(pruned, SessionError::NoSuchVersion { oldest: 5, newest: 8, .. });
    let nothing = context.key("nothing")?;
    ensure_error!(label(&context, &nothing, "x", Some(0)).await, SessionError::NotFound { .. });
    ensure_error!(label(&context, &nothing, "x", None).await, SessionError::NotFound { .. });
    ensure_error!(labels(&context, &nothing).await, SessionError::NotFound { .. });
    Ok(())
}

async fn labels_stay_with_their_session(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    label(&context, &key, "here", Some(3)).await?;
    label(&context, &key, "late", Some(7)).await?;
    let fork = fork(&context, &key, "f1", 5).await?;
    ensure_eq!(labels(&context, &fork).await?, []);
    label(&context, &fork, "here", Some(4)).await?;
    // What is hidden keeps its labels: one can go back to it.
    context.rewind(&key, "back", 5).await?;
    let both = [("here".to_owned(), 3), ("late".to_owned(), 7)];
    ensure_eq!(labels(&context, &key).await?, both);
    context.store.delete(DeleteSession::new(fork)).await?;
    ensure_eq!(labels(&context, &key).await?, both);
    Ok(())
}

async fn as_many_labels_as_there_may_be(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    for number in 0..MAX_LABELS {
        label(&context, &key, &format!("l{number}"), Some(0)).await?;
    }
    let full = label(&context, &key, "more", Some(0)).await;
    ensure_error!(full, SessionError::TooManyLabels { limit: MAX_LABELS, .. });
    ensure!(label(&context, &key, "l7", Some(0)).await? == Some(0), "a label that is there cannot move");
    label(&context, &key, "l7", None).await?;
    ensure_eq!(label(&context, &key, "more", Some(0)).await?, None);
    ensure_eq!(labels(&context, &key).await?.len(), MAX_LABELS);
    Ok(())
}

async fn a_session_is_made_with_its_labels_or_not_at_all(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, _) = played(&context, &schema, "s1").await?;
    let origin = context.get(&key).await?;
    let create = |id: &str, labels: &[(&str, u64)]| {
        let events = origin.events.iter().map(|committed| Arc::clone(&committed.event));
        let labels: Result<Vec<_>, SessionError> =
            labels.iter().map(|(name, version)| Ok((Label::new(*name)?, *version))).collect();
        let request = CreateSession::with_key(context.key(id)?, &schema, at(9)).with_events(events);
        Ok::<_, SessionError>(request.values(json!({"list": [0], "text": "initial"}))?.with_labels(labels?))
    };
    let made =
        context.store.create(create("s2", &[("end", 8), ("start", 0), ("late", 1), ("late", 5)])?).await?;
    let named: Vec<(String, u64)> =
        [("start", 0), ("late", 5), ("end", 8)].map(|(name, at)| (name.to_owned(), at)).to_vec();
    ensure_eq!(labels(&context, &made.key).await?, named);
    // They are its own, and change as any.
    ensure_eq!(label(&context, &made.key, "end", None).await?, Some(8));
    ensure_eq!(labels(&context, &key).await?, []);
    let beyond = context.store.create(create("s3", &[("start", 0), ("beyond", 9)])?).await;
    ensure_error!(beyond, SessionError::NoSuchVersion { oldest: 0, newest: 8, .. });
    let numbers: Vec<String> = (0..=MAX_LABELS).map(|number| number.to_string()).collect();
    let many: Vec<(&str, u64)> = numbers.iter().map(|name| (&**name, 0)).collect();
    ensure_error!(context.store.create(create("s3", &many)?).await, SessionError::TooManyLabels { .. });
    ensure_error!(context.get(&context.key("s3")?).await, SessionError::NotFound { .. });
    context.store.create(create("s3", &[])?).await?;
    Ok(())
}

async fn a_labelled_version_outlives_retention_by_policy(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let (key, states) = played(&context, &schema, "s1").await?;
    label(&context, &key, "later", Some(6)).await?;
    label(&context, &key, "mine", Some(3)).await?;
    let refused = context.store.delete(DeleteSession::new(key.clone()).if_unused_at(8)).await;
    ensure_error!(refused, SessionError::InUse { .. });
    for bound in [PruneBound::Version(5), PruneBound::Time(at(99))] {
        let request = PruneSession::new(key.clone(), bound).if_unchanged_at(8);
        ensure_eq!(context.store.prune(request.clone().dry_run()).await?.oldest, 3);
        ensure_eq!(context.store.prune(request).await?.oldest, 3);
    }
    ensure_eq!(labels(&context, &key).await?.len(), 2);
    context.rewind(&key, "back", 3).await?;
    ensure_eq!(context.get(&key).await?.to_json(), states[3]);
    for name in ["mine", "later"] {
        label(&context, &key, name, None).await?;
    }
    context.store.delete(DeleteSession::new(key.clone()).if_unused_at(9)).await?;
    ensure_error!(context.get(&key).await, SessionError::NotFound { .. });
    Ok(())
}
