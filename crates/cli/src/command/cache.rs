//! `stepfold inspect --cache`: what each request shares with the one before, and what broke the prefix that a provider caches.

use serde_json::{Value, json};
use stepfold::runner::CachedRequest;
use stepfold::state_core::chat::{Cost, Usage};
use stepfold::terminal::TextStyle;

use crate::args::SessionArgs;
use crate::context::CommandContext;
use crate::error::CommandEnding;
use crate::show;

pub(super) async fn cache(target: &SessionArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target).await?;
    let requests = context.session().await?.prompt_cache().await?;
    let lost = |request: &CachedRequest| lost_cost(&context, request);
    if json {
        let requests: Vec<Value> = requests.iter().map(|request| as_json(request, lost(request))).collect();
        show::line(Value::Array(requests).to_string());
        return Ok(CommandEnding::Done);
    }
    for request in &requests {
        show(request, lost(request));
    }
    let (read, input) = requests.iter().fold((0, 0), |(read, input), request| {
        (read + request.usage.cached_input_tokens, input + request.usage.input_tokens)
    });
    show::note(format!("{read} of {input} input tokens were read from the cache, as the provider counts"));
    Ok(CommandEnding::Done)
}

fn show(request: &CachedRequest, lost: Option<Cost>) {
    let CachedRequest { version, tokens, shared_tokens, lost_tokens, .. } = request;
    let head = show::styled(show::DIM, format!("{version:>5}  "));
    let size = format!("about {tokens} tokens, {shared_tokens} as before");
    let row = match request.broken_by {
        None => head.with(TextStyle::PLAIN, size),
        Some(broken) => {
            let cost = lost.map_or_else(String::new, |cost| format!(", {cost}"));
            let why = format!(": {broken}, {lost_tokens} lost{cost}");
            head.with(TextStyle::PLAIN, size).with(TextStyle::ASK, why)
        }
    };
    let read = match request.usage.cached_input_tokens {
        0 => String::new(),
        read => format!("; {read} read from the cache"),
    };
    show::row(&row.with(show::DIM, read), 7);
}

/// The price of reading the lost tokens again, beyond that of reading them from the cache; `None` without prices.
fn lost_cost(context: &CommandContext, request: &CachedRequest) -> Option<Cost> {
    let lost = u64::try_from(request.lost_tokens).ok()?;
    let usage = Usage::new(lost, 0);
    let price = context.prices.price(request.model.as_deref()?)?;
    let (whole, cached) = (price.cost(&usage), price.cost(&usage.with_cached_input_tokens(lost)));
    Some(Cost::from_nanodollars(whole.nanodollars().saturating_sub(cached.nanodollars())))
}

fn as_json(request: &CachedRequest, lost: Option<Cost>) -> Value {
    json!({
        "broken_by": request.broken_by.map(|broken| broken.to_string()),
        "cached_input_tokens": request.usage.cached_input_tokens,
        "input_tokens": request.usage.input_tokens,
        "lost_cost": lost.map(|cost| cost.to_string()),
        "lost_tokens": request.lost_tokens,
        "model": request.model,
        "shared_tokens": request.shared_tokens,
        "tokens": request.tokens,
        "version": request.version,
    })
}
