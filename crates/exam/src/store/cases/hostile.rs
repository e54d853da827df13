//! Input that breaks stores: strange strings, large values, deep values.

use serde_json::{Map, Value, json};
use stepfold_state_core::MAX_DEPTH;
use stepfold_state_core::chat::Message;

use crate::store::context::{
    CaseContext, CaseFault, ContractCase, StoreCaseResult, cases, ensure_eq, ensure_error, event, schema,
};
use stepfold_session_scopes::RunRecord;
use stepfold_session_scopes::SessionError;

cases! {
    nul_and_any_unicode_survive,
    a_value_of_a_mebibyte_survives,
    deep_values_survive_up_to_the_limit,
    numbers_survive_exactly,
}

async fn nul_and_any_unicode_survive(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let text = "\u{0}a\u{0}\u{1}\u{7f}\u{fffe}\u{10ffff}\u{202e}\u{feff}'\"\\\\u0000 $1 %s \u{1F980}\r\n\t";
    let object: Map<String, Value> = [(text.to_owned(), json!([text]))].into_iter().collect();
    let key = context
        .create(&schema, "s1", json!({"app:text": text, "map": object, "user:list": [text]}))
        .await?
        .key;
    let full = event("e1")?
        .with_message(Message::user(text).with_extra(text, text))
        .with_delta(crate::store::context::delta(
            &schema,
            &[("app:list", json!([text])), ("list", json!([text]))],
        )?)
        .with_record(RunRecord::new(text.to_owned(), 1, &json!({text: text}))?)
        .with_metadata(text, text);
    context.append(&key, 0, full.clone(), &schema).await?;
    let session = context.get(&key).await?;
    ensure_eq!(*session.events[0].event, full);
    let stored = json!({
        "app:list": [text], "app:text": text, "defaulted": 10, "list": [text], "map": object, "user:list": [text],
    });
    ensure_eq!(session.to_json(), stored);
    Ok(())
}

async fn a_value_of_a_mebibyte_survives(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let large = "é".repeat(512 * 1024);
    let key = context.create(&schema, "s1", json!({"text": large})).await?.key;
    let message = event("e1")?.with_message(Message::user(large.as_str()));
    context.append(&key, 0, message, &schema).await?;
    context.write(&key, 1, "e2", &schema, &[("app:list", json!([large])), ("list", json!([large]))]).await?;
    let session = context.get(&key).await?;
    let expected = json!({"app:list": [large], "defaulted": 10, "list": [large], "text": large});
    if session.to_json() != expected
        || session.transcript().iter().next().map(|m| m.text().len()) != Some(large.len())
    {
        return Err(CaseFault::new("a large value did not survive"));
    }
    Ok(())
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |value, _| json!([value]))
}

async fn deep_values_survive_up_to_the_limit(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let key = context.create(&schema, "s1", json!({})).await?.key;
    let deepest = nested(MAX_DEPTH);
    let record = |data: Value| RunRecord::new("deep", 1, &data);
    let full = event("e1")?
        .with_delta(crate::store::context::delta(
            &schema,
            &[("any", deepest.clone()), ("app:list", deepest.clone())],
        )?)
        .with_record(record(deepest.clone())?)
        .with_metadata("deep", deepest.clone());
    context.append(&key, 0, full.clone(), &schema).await?;
    let session = context.get(&key).await?;
    ensure_eq!(*session.events[0].event, full);
    ensure_eq!(session.to_json(), json!({"any": deepest, "app:list": deepest, "defaulted": 10}));
    // A record wraps values, and may be a little deeper than they are.
    let too_deep = event("e2")?.with_record(record(nested(MAX_DEPTH + 17))?);
    ensure_error!(context.append(&key, 1, too_deep, &schema).await, SessionError::TooDeep { .. });
    let deeper = nested(MAX_DEPTH + 1);
    let too_deep = event("e2")?.with_metadata("deep", deeper.clone());
    ensure_error!(context.append(&key, 1, too_deep, &schema).await, SessionError::TooDeep { .. });
    let too_deep = context.create(&schema, "s2", json!({"any": deeper})).await;
    ensure_error!(too_deep, SessionError::State { .. });
    Ok(())
}

async fn numbers_survive_exactly(context: CaseContext) -> StoreCaseResult {
    let schema = schema()?;
    let numbers =
        json!([1, 1.0, -0.0, 0.1, 1e300, f64::MIN_POSITIVE, u64::MAX, i64::MIN, true, "1", null, [], {}]);
    let key = context.create(&schema, "s1", json!({"list": numbers, "user:any": numbers})).await?.key;
    let read = context.get(&key).await?.to_json();
    ensure_eq!(read.to_string(), json!({"defaulted": 10, "list": numbers, "user:any": numbers}).to_string());
    Ok(())
}
