//! Prices by the table of the crate `genai-prices`, which the pydantic project keeps.

use std::time::SystemTime;

use genai_prices::{Calculator, PriceRequest, Usage as PricedUsage, UsageKey};
use stepfold_state_core::chat::{Cost, PriceSource, Usage};

/// The prices of models by the table of the crate `genai-prices`: a default for budgets in dollars.
///
/// It knows prices that changed with time, and those that depend on the size of a request. Cached, cache-write and
/// reasoning tokens count at their prices. Models are found by their id, `PROVIDER/MODEL`: a name without its provider has
/// no price, since providers have different ones for a model of one name. Service tiers and batches are not told apart, and
/// fees for tools of providers are not included.
///
/// # Examples
/// ```
/// use std::time::{Duration, SystemTime};
/// use stepfold_providers::GenaiPrices;
/// use stepfold_state_core::chat::{PriceSource, Usage};
///
/// let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
/// let usage = Usage::new(1_000_000, 0);
/// assert_eq!(GenaiPrices::bundled().cost("openai/gpt-4.1", &usage, at).unwrap().to_string(), "$2.000000");
/// assert_eq!(GenaiPrices::bundled().cost("openai/no-such-model", &usage, at), None);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GenaiPrices(());

impl GenaiPrices {
    /// The table that is compiled in.
    pub const fn bundled() -> Self {
        GenaiPrices(())
    }
}

impl PriceSource for GenaiPrices {
    fn cost(&self, model: &str, usage: &Usage, at: SystemTime) -> Option<Cost> {
        let (provider, name) = model.split_once('/')?;
        let usage = priced(usage);
        let request =
            PriceRequest::new(name, &usage).with_provider_id(provider_id(provider)?).with_timestamp(at);
        let price = Calculator::bundled().calculate(&request).ok()?;
        Some(Cost::from_dollars(price.total_price))
    }
}

/// The usage by the table's keys. As here, its totals include the parts.
#[expect(clippy::cast_precision_loss, reason = "no count of tokens is that large")]
fn priced(usage: &Usage) -> PricedUsage {
    let parts = [
        (UsageKey::INPUT_TOKENS, usage.input_tokens),
        (UsageKey::CACHE_READ_TOKENS, usage.cached_input_tokens),
        (UsageKey::CACHE_WRITE_TOKENS, usage.cache_write_tokens),
        (UsageKey::OUTPUT_TOKENS, usage.output_tokens),
        (UsageKey::OUTPUT_REASONING_TOKENS, usage.reasoning_tokens),
    ];
    parts.into_iter().filter(|(_, tokens)| *tokens > 0).map(|(key, tokens)| (key, tokens as f64)).collect()
}

/// The table's id of a provider; `None` for a server of one's own, whose models have no list price.
fn provider_id(provider: &str) -> Option<&str> {
    Some(match provider {
        "gemini" => "google",
        "xai" => "x-ai",
        "moonshot" => "moonshotai",
        "ollama" | "openai-compatible" | "scripted" => return None,
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// 2026-09-21.
    fn cost(model: &str, usage: &Usage) -> Option<String> {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        GenaiPrices::bundled().cost(model, usage, at).map(|cost| cost.to_string())
    }

    #[test]
    fn parts_of_a_usage_have_their_prices() {
        let plain = cost("anthropic/claude-sonnet-4-5", &Usage::new(10_000, 1_000));
        assert_eq!(plain.as_deref(), Some("$0.045000"));
        let cached = Usage::new(10_000, 1_000).with_cached_input_tokens(10_000);
        assert_eq!(cost("anthropic/claude-sonnet-4-5", &cached).as_deref(), Some("$0.018000"));
        let mut written = Usage::new(10_000, 1_000);
        written.cache_write_tokens = 10_000;
        assert_eq!(cost("anthropic/claude-sonnet-4-5", &written).as_deref(), Some("$0.052500"));
        let mut reasoning = Usage::new(10_000, 1_000);
        reasoning.reasoning_tokens = 900;
        assert_eq!(cost("anthropic/claude-sonnet-4-5", &reasoning), plain);
    }

    /// A price that depends on the size of the request: more than twice as much for more than twice the input.
    #[test]
    fn large_requests_have_their_price() {
        let small = GenaiPrices::bundled().cost(
            "gemini/gemini-2.5-pro",
            &Usage::new(100_000, 0),
            SystemTime::UNIX_EPOCH,
        );
        let large = GenaiPrices::bundled().cost(
            "gemini/gemini-2.5-pro",
            &Usage::new(300_000, 0),
            SystemTime::UNIX_EPOCH,
        );
        let (small, large) = (small.unwrap().nanodollars(), large.unwrap().nanodollars());
        assert!(large > 3 * small, "{large} for three times the input of {small}");
    }

    #[test]
    fn unknown_models_have_no_price() {
        let usage = Usage::new(1_000, 1_000);
        for model in ["gpt-4.1", "ollama/gpt-4.1", "openai/gpt-nine", "nobody/gpt-4.1", ""] {
            assert_eq!(cost(model, &usage), None, "{model}");
        }
        // More cached tokens than there are.
        assert_eq!(cost("openai/gpt-4.1", &Usage::new(10, 1).with_cached_input_tokens(11)), None);
    }
}
