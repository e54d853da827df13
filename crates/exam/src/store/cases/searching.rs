//! Searches: messages of a visible history, and no others.

use std::collections::BTreeSet;

use super::versions::prune;
use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, at, cases, ensure_eq, ensure_error, event, schema,
};
use serde_json::json;
use stepfold_session_scopes::{
    AppId, CreateSession, DeleteSession, Expected, ForkSession, FoundMessage, PruneBound, SearchSessions,
    SessionError, SessionKey, SessionStore, UserId,
};
use stepfold_state_core::chat::{Message, Role, ToolCall, ToolResult};

cases! {
    messages_are_found_by_their_words,
    a_query_has_no_syntax,
    what_a_rewind_has_hidden_is_not_found_until_it_is_shown_again,
    a_fork_finds_its_history_and_nothing_later_of_its_origin,
    pruned_messages_are_not_found,
    a_search_stays_with_its_user_and_app,
    results_of_ignored_tools_are_not_found,
    a_session_is_found_again_as_it_grows,
    a_search_in_a_missing_session_is_an_error,
}

impl CaseContext {
    /// Appends a message.
    async fn say(&self, key: &SessionKey, id: &str, message: Message) -> Result<u64, CaseFault> {
        let receipt = self.append(key, Expected::Any, event(id)?.with_message(message), &schema()?).await?;
        Ok(receipt.version)
    }

    /// The versions of the events in which words are found, in a session.
    async fn found(&self, key: &SessionKey, query: &str) -> Result<BTreeSet<u64>, SessionError> {
        let found = self.store.search(SearchSessions::in_session(key.clone(), query)).await?;
        Ok(found.into_iter().map(|found| found.version).collect())
    }
}

async fn messages_are_found_by_their_words(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s", json!({})).await?.key;
    context.say(&key, "e1", Message::user("The fee of the bakery is 5 euro.")).await?;
    context.say(&key, "e2", Message::assistant("Noted.")).await?;
    let call = Message::new(Role::Assistant).with_part(ToolCall::new("c1", "read", json!({})));
    context.say(&key, "e3", call).await?;
    let result = ToolResult::value("c1", "read", "getUserInfo found 搜索用户 in order 4711");
    context.say(&key, "e4", Message::tool(result)).await?;
    for (query, versions) in [
        ("bakeries", vec![1]),
        ("FEE", vec![1]),
        ("noted", vec![2]),
        ("user info", vec![4]),
        ("用户", vec![4]),
        ("4711", vec![4]),
        ("bakery or order", vec![1, 4]),
        ("the of", vec![]),
        ("", vec![]),
        ("absent", vec![]),
    ] {
        ensure_eq!(context.found(&key, query).await?, BTreeSet::from_iter(versions));
    }
    let found = context.store.search(SearchSessions::in_session(key.clone(), "bakery").limit(1)).await?;
    ensure_eq!(found.len(), 1);
    ensure_eq!(found[0].message.text(), "The fee of the bakery is 5 euro.");
    ensure_eq!((found[0].session.clone(), found[0].place), (key.id, 0));
    Ok(())
}

async fn a_query_has_no_syntax(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s", json!({})).await?.key;
    context.say(&key, "e1", Message::user("one near two")).await?;
    context.say(&key, "e2", Message::user("three")).await?;
    for query in [
        "\"one",
        "one*",
        "one:",
        "(one",
        "one'; DROP TABLE stepfold_events; --",
        "one & !two",
        "-one",
        "one\0",
    ] {
        ensure_eq!(context.found(&key, query).await?, BTreeSet::from([1]));
    }
    for query in ["*", "'", "\"\"", "()", "& |", "!", ":*", "\0", "%", "_"] {
        ensure_eq!(context.found(&key, query).await?, BTreeSet::new());
    }
    Ok(())
}

async fn what_a_rewind_has_hidden_is_not_found_until_it_is_shown_again(
    context: CaseContext,
) -> StoreCaseResult {
    let key = context.create(&schema()?, "s", json!({})).await?.key;
    for (id, text) in [("e1", "stall one"), ("e2", "stall two"), ("e3", "stall three")] {
        context.say(&key, id, Message::user(text)).await?;
    }
    context.rewind(&key, "r1", 1).await?;
    ensure_eq!(context.found(&key, "stall").await?, BTreeSet::from([1]));
    context.say(&key, "e5", Message::user("stall five")).await?;
    ensure_eq!(context.found(&key, "stall").await?, BTreeSet::from([1, 5]));
    context.rewind(&key, "r2", 3).await?;
    ensure_eq!(context.found(&key, "stall").await?, BTreeSet::from([1, 2, 3]));
    Ok(())
}

async fn a_fork_finds_its_history_and_nothing_later_of_its_origin(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s", json!({})).await?.key;
    context.say(&key, "e1", Message::user("stall one")).await?;
    context.say(&key, "e2", Message::user("stall two")).await?;
    ensure_eq!(context.found(&key, "stall").await?, BTreeSet::from([1, 2]));
    let fork = context.store.fork(ForkSession::new(key.clone(), at(5)).at_version(1)).await?.key;
    context.say(&key, "e3", Message::user("stall three")).await?;
    context.say(&fork, "f2", Message::user("stall of the fork")).await?;
    let found = context.store.search(SearchSessions::in_session(fork.clone(), "stall")).await?;
    let mut texts: Vec<String> = found.iter().map(|found| found.message.text().into_owned()).collect();
    texts.sort();
    ensure_eq!(texts, ["stall of the fork", "stall one"]);
    ensure_eq!(context.found(&key, "fork").await?, BTreeSet::new());
    context.store.delete(DeleteSession::new(key)).await?;
    ensure_eq!(context.found(&fork, "stall").await?, BTreeSet::from([1, 2]));
    Ok(())
}

async fn pruned_messages_are_not_found(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s", json!({})).await?.key;
    for id in ["e1", "e2", "e3"] {
        context.say(&key, id, Message::user("stall")).await?;
    }
    ensure_eq!(context.found(&key, "stall").await?, BTreeSet::from([1, 2, 3]));
    prune(&context, &key, PruneBound::Version(2)).await?;
    ensure_eq!(context.found(&key, "stall").await?, BTreeSet::from([3]));
    Ok(())
}

async fn a_search_stays_with_its_user_and_app(context: CaseContext) -> StoreCaseResult {
    let here = context.create(&schema()?, "s", json!({})).await?.key;
    let second = context.create(&schema()?, "t", json!({})).await?.key;
    let others = [
        SessionKey::new(context.app.as_str(), "bob", "s")?,
        SessionKey::new(format!("{}-other", context.app), "alice", "s")?,
    ];
    for key in &others {
        let create = CreateSession::with_key(key.clone(), &schema()?, at(0));
        context.store.create(create).await?;
    }
    for key in [&here, &second].into_iter().chain(&others) {
        context.say(key, "e1", Message::user(format!("stall of {key}"))).await?;
    }
    let (app, user) = (AppId::new(context.app.as_str())?, UserId::new("alice")?);
    let of_user = || SearchSessions::of_user(app.clone(), user.clone(), "stall");
    let keys = |found: Vec<FoundMessage>| {
        let mut ids: Vec<String> = found.iter().map(|found| found.message.text().into_owned()).collect();
        ids.sort();
        ids
    };
    let (one, two) = (format!("stall of {here}"), format!("stall of {second}"));
    ensure_eq!(keys(context.store.search(of_user()).await?), [one.clone(), two.clone()]);
    ensure_eq!(keys(context.store.search(of_user().except(here.id.clone())).await?), [two]);
    ensure_eq!(keys(context.store.search(SearchSessions::in_session(here, "stall")).await?), [one]);
    Ok(())
}

async fn results_of_ignored_tools_are_not_found(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s", json!({})).await?.key;
    for (id, tool) in [("e1", "read"), ("e2", "look")] {
        context.say(&key, id, Message::tool(ToolResult::value("c1", tool, "stall"))).await?;
    }
    let request = SearchSessions::in_session(key, "stall").limit(1).without_results_of(["look"]);
    let found = context.store.search(request).await?;
    ensure_eq!(found.iter().map(|found| found.version).collect::<Vec<_>>(), [1]);
    Ok(())
}

/// As long as a store that keeps an index does so.
async fn a_session_is_found_again_as_it_grows(context: CaseContext) -> StoreCaseResult {
    let key = context.create(&schema()?, "s", json!({})).await?.key;
    let mut version = 0;
    for round in 0..3 {
        for number in 0..70 {
            let text = format!("round{round} number{number}");
            version = context.say(&key, &format!("e{round}-{number}"), Message::user(text)).await?;
        }
        ensure_eq!(context.found(&key, &format!("round{round} number69")).await?.contains(&version), true);
        ensure_eq!(context.found(&key, "number0").await?.len(), round + 1);
    }
    ensure_eq!(context.found(&key, "round0").await?.iter().all(|version| *version <= 70), true);
    Ok(())
}

async fn a_search_in_a_missing_session_is_an_error(context: CaseContext) -> StoreCaseResult {
    let missing = context.key("missing")?;
    ensure_error!(context.found(&missing, "stall").await, SessionError::NotFound { .. });
    let (app, user) = (AppId::new(context.app.as_str())?, UserId::new("carol")?);
    ensure_eq!(context.store.search(SearchSessions::of_user(app, user, "stall")).await?, []);
    Ok(())
}
