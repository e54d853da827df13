//! The form of a rate limit in an agent file, and the limit that it describes.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use stepfold::runner::SharedRateLimit;

use super::budget::more_than_zero;
use super::faults::FaultCollector;

/// A limit on requests and tokens per minute, that all processes on the store share. At least one of `requests` and `tokens`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RateLimitForm {
    /// A name for the key of the provider, never the key itself: files that name the same one share the limit.
    pub(crate) key: String,
    /// The model, as `gpt-5-mini`; each model by itself by default.
    pub(crate) model: Option<String>,
    /// The requests per minute.
    pub(crate) requests: Option<u64>,
    /// The tokens of input and output per minute.
    pub(crate) tokens: Option<u64>,
    /// The longest time that a request waits, in seconds; 300 by default.
    pub(crate) max_wait: Option<u64>,
    /// The tokens of output that count for a request without a maximum; 4096 by default.
    pub(crate) output_estimate: Option<u64>,
}

/// The rate limits of a file; faults are those of its forms.
pub(crate) fn rate_limits(forms: &[RateLimitForm], faults: &mut FaultCollector) -> Vec<SharedRateLimit> {
    let mut limits = Vec::new();
    for (at, form) in forms.iter().enumerate() {
        faults.within(&["rate_limits", &at.to_string()], |faults| limits.push(form.limit(faults)));
    }
    limits
}

/// Reports rate limits of an agent inside of a graph, which would hold nothing.
pub(crate) fn report_misplaced_limits(forms: &[RateLimitForm], faults: &mut FaultCollector) {
    if !forms.is_empty() {
        let words =
            "unsupported rate limits: those of a graph hold for its agents; declare them in the graph file";
        faults.add(&["rate_limits"], words);
    }
}

impl RateLimitForm {
    fn limit(&self, faults: &mut FaultCollector) -> SharedRateLimit {
        if self.key.is_empty() {
            faults.add_to_whole("missing `key` of a rate limit: a name for the key of the provider");
        }
        if self.requests.is_none() && self.tokens.is_none() {
            faults.add_to_whole("invalid rate limit: expected `requests` or `tokens` per minute, or both");
        }
        let mut limit = SharedRateLimit::new(self.key.as_str());
        if let Some(model) = &self.model {
            limit = limit.of_model(model.as_str());
        }
        if let Some(requests) = self.requests {
            limit = limit.requests(more_than_zero("requests", requests, faults));
        }
        if let Some(tokens) = self.tokens {
            limit = limit.tokens(more_than_zero("tokens", tokens, faults));
        }
        if let Some(seconds) = self.max_wait {
            limit = limit.max_wait(Duration::from_secs(seconds));
        }
        match self.output_estimate {
            Some(tokens) => limit.output_estimate(tokens),
            None => limit,
        }
    }
}
