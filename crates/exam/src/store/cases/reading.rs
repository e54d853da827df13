//! Reading sessions: the requested parts, of one version.

use futures_util::future::join_all;
use serde_json::json;
use stepfold_state_core::chat::Message;

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, ensure, ensure_eq, ensure_error, event,
    schema,
};
use stepfold_session_scopes::Session;
use stepfold_session_scopes::SessionKey;
use stepfold_session_scopes::{ErrorKind, SessionError};
use stepfold_session_scopes::{EventKind, RunRecord};
use stepfold_session_scopes::{
    EventRange, EventSizes, Expected, ForkSession, GetSession, SessionStore, StateSize,
};

cases! {
    get_gives_the_events_that_are_asked_for,
    sizes_of_events_are_those_of_a_page,
    sizes_in_memory_count_small_values,
    get_without_state_gives_none,
    get_of_nothing_is_an_error,
    shared_values_are_always_the_current_ones,
    state_and_events_are_of_one_version,
    everything_on_an_event_survives,
    the_conversation_is_read_from_the_events,
}

fn versions(session: &Session) -> Vec<u64> {
    session.events.iter().map(|committed| committed.version).collect()
}

async fn get_gives_the_events_that_are_asked_for(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    // The clock goes back in the middle; the order is that of versions.
    for (version, seconds) in [10, 20, 5, 30, 40].into_iter().enumerate() {
        let mut event = event(&format!("e{version}"))?;
        event.at = at(seconds);
        context.append(&key, version as u64, event, &schema).await?;
    }
    for (range, expected) in [
        (EventRange::None, vec![]),
        (EventRange::All, vec![1, 2, 3, 4, 5]),
        (EventRange::Last(2), vec![4, 5]),
        (EventRange::Last(0), vec![]),
        (EventRange::Last(9), vec![1, 2, 3, 4, 5]),
        (EventRange::AfterVersion(3), vec![4, 5]),
        (EventRange::AfterVersion(0), vec![1, 2, 3, 4, 5]),
        (EventRange::AfterVersion(9), vec![]),
        (EventRange::Page { after: 1, limit: 2 }, vec![2, 3]),
        (EventRange::Page { after: 0, limit: 9 }, vec![1, 2, 3, 4, 5]),
        (EventRange::Page { after: 4, limit: 3 }, vec![5]),
        (EventRange::Page { after: 5, limit: 1 }, vec![]),
        (EventRange::Page { after: 0, limit: 0 }, vec![]),
        (EventRange::Page { after: u64::MAX, limit: usize::MAX }, vec![]),
        (EventRange::Since(at(30)), vec![4, 5]),
        (EventRange::Since(at(6)), vec![4, 5]),
        (EventRange::Since(at(0)), vec![1, 2, 3, 4, 5]),
        (EventRange::Since(at(50)), vec![]),
    ] {
        let session = context.store.get(GetSession::new(key.clone()).events(range)).await?;
        ensure!(versions(&session) == expected, "{range:?}: {:?}, expected {expected:?}", versions(&session));
        ensure_eq!(session.version, 5);
    }
    Ok(())
}

/// A store gives the sizes of a page's events, in a fork and after a rewind too; they grow with the events. A store may do
/// without.
async fn sizes_of_events_are_those_of_a_page(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let long = |length: usize| Message::user("x".repeat(length));
    for version in 0..6_u64 {
        let event = event(&format!("e{version}"))?
            .with_message(long(1_000 * usize::try_from(version % 3).unwrap_or_default()));
        context.append(&key, version, event, &schema).await?;
    }
    let sizes = |key: &SessionKey, after, limit| {
        context.store.event_sizes(EventSizes::new(key.clone(), after, limit))
    };
    if sizes(&key, 0, 1).await.is_err_and(|error| error.kind() == ErrorKind::Unsupported) {
        return Ok(());
    }
    let fork = context.store.fork(ForkSession::new(key.clone(), at(2)).at_version(4)).await?.key;
    context.append(&fork, 4, event("f1")?.with_message(long(5_000)), &schema).await?;
    context.rewind(&key, "rewound", 2).await?;
    for key in [&key, &fork] {
        for (after, limit) in
            [(0, 100), (0, 2), (1, 3), (3, 2), (5, 9), (9, 1), (0, 0), (u64::MAX, usize::MAX)]
        {
            let page = EventRange::Page { after, limit };
            let session = context.store.get(GetSession::new(key.clone()).events(page)).await?;
            let found = sizes(key, after, limit).await?;
            ensure_eq!(found.iter().map(|(version, _)| *version).collect::<Vec<_>>(), versions(&session));
            for ((_, bytes), committed) in found.iter().zip(&session.events) {
                let text: usize = committed.event.messages.iter().map(|message| message.text().len()).sum();
                ensure!(
                    (text..text + 1_000).contains(&usize::try_from(*bytes).unwrap_or(usize::MAX)),
                    "{bytes} bytes for {text}"
                );
            }
        }
    }
    let nothing = context.key("nothing")?;
    ensure_error!(sizes(&nothing, 0, 1).await, SessionError::NotFound { .. });
    Ok(())
}

/// Sizes in memory count small values, which take many times their text. A store may do
/// without.
async fn sizes_in_memory_count_small_values(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({"list": vec![json!([]); 1_000]})).await?.key;
    context.write(&key, 0, "e1", &schema, &[("lists", json!(vec![json!([]); 4_000]))]).await?;
    context.write(&key, 1, "e2", &schema, &[("lists", json!("x".repeat(12_000)))]).await?;
    context.write(&key, 2, "e3", &schema, &[("user:list", json!(vec![json!([]); 2_000]))]).await?;
    let sizes = EventSizes::new(key.clone(), 0, 10);
    match context.store.event_sizes(sizes.clone().in_memory()).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => {}
        in_memory => {
            let (in_memory, stored) = (in_memory?, context.store.event_sizes(sizes).await?);
            let factors: Vec<u64> = in_memory
                .iter()
                .zip(&stored)
                .map(|((_, in_memory), (_, stored))| in_memory / stored)
                .collect();
            ensure!(factors[0] > 5 && factors[1] == 1 && factors[2] > 5, "{factors:?}");
        }
    }
    let size = |version, most| context.store.state_size(StateSize::new(key.clone(), version, most));
    if size(None, u64::MAX).await.is_err_and(|error| error.kind() == ErrorKind::Unsupported) {
        return Ok(());
    }
    // The values that the user shares are those of now.
    let (first, second, newest) =
        (size(Some(0), u64::MAX).await?, size(Some(1), u64::MAX).await?, size(None, u64::MAX).await?);
    ensure!(first > 40_000 && second > first + 150_000, "{first}, {second}");
    ensure!(newest > first && newest < second, "{newest}, {second}");
    ensure!(size(Some(1), 1_000).await? > 1_000, "more than the most");
    let nothing = context.key("nothing")?;
    ensure_error!(
        context.store.state_size(StateSize::new(nothing, None, 1)).await,
        SessionError::NotFound { .. }
    );
    Ok(())
}

async fn get_without_state_gives_none(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s1", json!({"topic": "x"})).await?.key;
    let session = context.store.get(GetSession::new(key).without_state()).await?;
    ensure!(session.values.is_none(), "the values were read");
    Ok(())
}

async fn get_of_nothing_is_an_error(context: CaseContext) -> StoreCaseResult {
    ensure_error!(context.get(&context.key("nothing")?).await, SessionError::NotFound { .. });
    Ok(())
}

async fn shared_values_are_always_the_current_ones(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let first = context.create(&schema, "s1", json!({})).await?.key;
    let second = context.create(&schema, "s2", json!({})).await?.key;
    let writes = [("app:text", json!("new")), ("user:text", json!("new"))];
    context.write(&first, 0, "e1", &schema, &writes).await?;
    let read = context.get(&second).await?;
    ensure_eq!(read.to_json(), json!({"app:text": "new", "defaulted": 10, "user:text": "new"}));
    Ok(())
}

async fn state_and_events_are_of_one_version(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let write = async {
        for version in 0..40u64 {
            let writes = [("sum", json!(1)), ("list", json!([version]))];
            context.write(&key, version, &format!("e{version}"), &schema, &writes).await?;
        }
        Ok::<(), CaseFault>(())
    };
    let read = async {
        for _ in 0..40 {
            let session = context.get(&key).await?;
            let sum = session.get("sum").map_or(json!(0), stepfold_state_core::state::ValueRef::to_json);
            let items = session.get("list").and_then(stepfold_state_core::state::ValueRef::len).unwrap_or(0);
            let events = session.events.len() as u64;
            let whole = sum == json!(events) && items as u64 == events && events == session.version;
            ensure!(whole, "version {}: {events} events, a sum of {sum}, {items} items", session.version);
        }
        Ok(())
    };
    let (written, read) = futures_util::future::join(write, join_all([Box::pin(read)])).await;
    written?;
    read.into_iter().collect::<StoreCaseResult>()
}

async fn everything_on_an_event_survives(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let data = json!({"float": 1.0, "int": 1, "large": u64::MAX, "nested": [[], {}, null, "\u{0}"], "small": i64::MIN});
    let record = RunRecord::new("run", 3, &data)?;
    let full = event("e1")?
        .with_kind(EventKind::new("approval"))
        .with_message(Message::user("first").with_extra("signature", "abc"))
        .with_message(Message::assistant("one\n\ntwo\n"))
        .with_delta(crate::store::context::delta(&schema, &[("text", json!("x")), ("app:sum", json!(2))])?)
        .with_started(["c1", "c2"])
        .with_record(record)
        .with_metadata("trace", json!({"id": 7}));
    context.append(&key, 0, full.clone(), &schema).await?;
    let bare = event("e2")?;
    context.append(&key, 1, bare.clone(), &schema).await?;
    let session = context.get(&key).await?;
    ensure_eq!(*session.events[0].event, full);
    ensure_eq!(*session.events[1].event, bare);
    ensure_eq!(session.updated, bare.at);
    Ok(())
}

async fn the_conversation_is_read_from_the_events(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    for (id, message) in [("e1", Message::user("hi")), ("e2", Message::assistant("hello"))] {
        context.append(&key, Expected::Any, event(id)?.with_message(message), &schema).await?;
    }
    let state = context.get(&key).await?.state(&schema)?;
    ensure_eq!(state.messages().to_string(), "user:      hi\nassistant: hello\n");
    Ok(())
}
