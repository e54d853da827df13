//! Prices, and the cost of a reply. None are built in: they change, and differ by contract.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{Cost, Usage};

/// The prices of a model, in US dollars for a million tokens.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::{Price, Usage};
///
/// let price = Price::new(2.0, 8.0).with_cached_input(0.5);
/// let usage = Usage::new(1_000, 50).with_cached_input_tokens(600);
/// assert_eq!(price.cost(&usage).to_string(), "$0.001500");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Price {
    /// The price of input.
    pub input: f64,
    /// The price of output, reasoning included.
    pub output: f64,
    /// The price of input read from the provider's cache; that of other input if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
    /// The price of input written to the cache; that of other input if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
}

impl Price {
    /// The prices of input and output.
    pub const fn new(input: f64, output: f64) -> Self {
        Price { input, output, cached_input: None, cache_write: None }
    }

    /// Sets the price of input read from the provider's cache.
    #[must_use]
    pub const fn with_cached_input(mut self, price: f64) -> Self {
        self.cached_input = Some(price);
        self
    }

    /// Sets the price of input written to the provider's cache.
    #[must_use]
    pub const fn with_cache_write(mut self, price: f64) -> Self {
        self.cache_write = Some(price);
        self
    }

    /// The cost of this usage.
    #[expect(clippy::cast_precision_loss, reason = "no count of tokens is that large")]
    pub fn cost(&self, usage: &Usage) -> Cost {
        let (cached, written) = (usage.cached_input_tokens, usage.cache_write_tokens);
        let rest = usage.input_tokens.saturating_sub(cached).saturating_sub(written);
        let of = |tokens: u64, price: f64| tokens as f64 * price / 1e6;
        let input = of(rest, self.input)
            + of(cached, self.cached_input.unwrap_or(self.input))
            + of(written, self.cache_write.unwrap_or(self.input));
        // NOTE: Rounded once, at the end. Sums of costs are sums of integers, and exact.
        Cost::from_dollars(input + of(usage.output_tokens, self.output))
    }
}

/// The name without a date or a revision at its end.
fn undated(id: &str) -> Option<&str> {
    let mut parts = id.rsplitn(4, '-');
    let mut digits =
        || parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit())).map(str::len);
    match (digits(), digits(), digits()) {
        (Some(2), Some(2), Some(4)) => id.get(..id.len() - "-2025-04-14".len()),
        // NOTE: Revisions such as `-001`, `-0613` and `-20250514`.
        (Some(length @ (3 | 4 | 8)), _, _) => id.get(..id.len() - length - 1),
        _ => None,
    }
}

/// A table of prices by model.
///
/// # Examples
/// ```
/// use stepfold_state_core::chat::{Price, Prices, Usage};
///
/// let prices = Prices::new().with("openai/gpt-4.1", Price::new(2.0, 8.0)).with("qwen3", Price::new(0.0, 0.0));
/// let usage = Usage::new(1_000, 500);
/// assert_eq!(prices.cost("openai/gpt-4.1", &usage).unwrap().to_string(), "$0.006000");
/// assert_eq!(prices.cost("ollama/qwen3", &usage).unwrap().to_string(), "$0.000000");
/// assert_eq!(prices.cost("openai/gpt-9", &usage), None);
/// // As providers report it.
/// assert_eq!(prices.cost("gpt-4.1-2025-04-14", &usage).unwrap().to_string(), "$0.006000");
/// assert_eq!(prices.cost("gpt-4.1-mini", &usage), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Prices(BTreeMap<String, Price>);

impl Prices {
    /// An empty table.
    pub fn new() -> Self {
        Prices::default()
    }

    /// Adds the prices of a model: by its id, `PROVIDER/MODEL`, or by its name at all providers.
    #[must_use]
    pub fn with(mut self, model: impl Into<String>, price: Price) -> Self {
        self.0.insert(model.into(), price);
        self
    }

    /// Whether it has no prices.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The prices of a model, by its id or by the name that a provider reports. Looks up, in this order: the id; the
    /// name without provider, if its entries agree; the name without a date or revision at its end, such as
    /// `-2025-04-14` or `-001`.
    pub fn price(&self, id: &str) -> Option<&Price> {
        self.listed_price(id).or_else(|| self.listed_price(undated(id)?))
    }

    fn listed_price(&self, id: &str) -> Option<&Price> {
        let name = |id: &str| id.split_once('/').map_or(id, |(_, name)| name).to_owned();
        let by_name = || {
            // NOTE: Two providers may have different prices for a model of one name.
            let fits = |entry: &str| name(entry) == name(id) && (entry.contains('/') != id.contains('/'));
            let mut found = self.0.iter().filter(|(entry, _)| fits(entry)).map(|(_, price)| price);
            let first = found.next()?;
            found.all(|price| price == first).then_some(first)
        };
        self.0.get(id).or_else(by_name)
    }

    /// The cost of this usage of the model with this id: by its prices, or the cost that the provider
    /// reported.
    pub fn cost(&self, id: &str, usage: &Usage) -> Option<Cost> {
        let reported = (!usage.cost.is_zero()).then_some(usage.cost);
        self.price(id).map(|price| price.cost(usage)).or(reported)
    }
}

/// A source of prices that may depend on more than the model: on the time, or on the size of a request.
///
/// Implemented by [`Prices`] and by tables of others; asked by a runner with budgets for models that its own table does not
/// have, with the time at which the request was sent: so the cost of a request does not change when prices do.
///
/// # Examples
/// ```
/// use std::time::SystemTime;
/// use stepfold_state_core::chat::{Cost, PriceSource, Usage};
///
/// /// Requests to our own server cost nothing.
/// struct OwnServer;
///
/// impl PriceSource for OwnServer {
///     fn cost(&self, model: &str, _: &Usage, _: SystemTime) -> Option<Cost> {
///         model.starts_with("ollama/").then(Cost::default)
///     }
/// }
///
/// let cost = OwnServer.cost("ollama/qwen3", &Usage::new(1_000, 500), SystemTime::UNIX_EPOCH);
/// assert_eq!(cost.unwrap().to_string(), "$0.000000");
/// ```
pub trait PriceSource: Send + Sync {
    /// The cost of this usage of a model at a time; `None` if its price is unknown, which is never free. `model` is an id,
    /// `PROVIDER/MODEL`, or the name that a provider reports.
    fn cost(&self, model: &str, usage: &Usage, at: SystemTime) -> Option<Cost>;
}

impl PriceSource for Prices {
    fn cost(&self, model: &str, usage: &Usage, _: SystemTime) -> Option<Cost> {
        self.price(model).map(|price| price.cost(usage))
    }
}

impl<P: PriceSource + ?Sized> PriceSource for &P {
    fn cost(&self, model: &str, usage: &Usage, at: SystemTime) -> Option<Cost> {
        (**self).cost(model, usage, at)
    }
}

impl<P: PriceSource + ?Sized> PriceSource for Box<P> {
    fn cost(&self, model: &str, usage: &Usage, at: SystemTime) -> Option<Cost> {
        (**self).cost(model, usage, at)
    }
}

impl<P: PriceSource + ?Sized> PriceSource for Arc<P> {
    fn cost(&self, model: &str, usage: &Usage, at: SystemTime) -> Option<Cost> {
        (**self).cost(model, usage, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_by_what_providers_call_it() {
        let names = ["openai/gpt-4.1", "claude-sonnet-4", "gpt-4", "a/x", "b/x", "a/y", "b/y", "größe"];
        let price = |index: usize| Price::new([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0][index], 0.0);
        let prices = names.iter().enumerate().fold(Prices::new(), |prices, (index, name)| {
            prices.with(*name, if index == 6 { price(5) } else { price(index) })
        });
        for (id, found) in [
            ("openai/gpt-4.1", Some(0)),
            ("gpt-4.1", Some(0)),
            ("gpt-4.1-2025-04-14", Some(0)),
            ("openai/gpt-4.1-2025-04-14", Some(0)),
            ("azure/gpt-4.1", None),
            ("gpt-4.1-mini", None),
            ("anthropic/claude-sonnet-4-20250514", Some(1)),
            // A newer model of the line is another model.
            ("claude-sonnet-4-5", None),
            ("claude-sonnet-4-5-20250929", None),
            ("gpt-4-0613", Some(2)),
            ("gpt-4-70b", None),
            // Whose price is meant is not known, unless they are equal.
            ("x", None),
            ("a/x", Some(3)),
            ("y", Some(5)),
            ("größe-001", Some(7)),
            ("", None),
            ("-001", None),
        ] {
            assert_eq!(prices.price(id), found.map(price).as_ref(), "{id}");
        }
    }
}
