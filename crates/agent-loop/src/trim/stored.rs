//! Policies as JSON. What is written here is read for good: new kinds of policies are added, none is
//! changed, and an unknown one is refused, never guessed.

use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::policy::Policy;
use super::{ApproximateTokens, Pins, TokenCounter, Trim, TrimError};

/// The stored form of one policy. A counter that is not named is the built-in one.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Stored {
    KeepLast {
        messages: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pins: Option<Pins>,
    },
    MaxTokens {
        tokens: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counter: Option<String>,
    },
    CapMessages {
        messages: usize,
    },
    CapTokens {
        tokens: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counter: Option<String>,
    },
}

impl Trim {
    /// Reads a stored trim whose policies may count with one of `counters`, found by
    /// [name](TokenCounter::name). A trim that counts with the built-in counter only can be read by `serde`
    /// as well.
    ///
    /// # Errors
    /// [`TrimError::UnknownCounter`] if a policy names a counter that is not among them, and
    /// [`TrimError::NotAPolicy`] if the JSON is something else.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use serde_json::json;
    /// use stepfold_agent_loop::trim::{Trim, token_counter};
    ///
    /// let stored = json!([{"cap_tokens": {"tokens": 8_000, "counter": "quarter"}}]);
    /// let quarter = token_counter("quarter", |message| message.text().len().div_ceil(4));
    /// let trim = Trim::load(&stored, &[Arc::new(quarter)])?;
    /// assert_eq!(serde_json::to_value(&trim).unwrap(), stored);
    ///
    /// let refused = Trim::load(&stored, &[]).unwrap_err();
    /// assert_eq!(refused.to_string(), "unknown token counter `quarter`; known: approximate");
    /// # Ok::<(), stepfold_agent_loop::trim::TrimError>(())
    /// ```
    pub fn load(stored: &Value, counters: &[Arc<dyn TokenCounter>]) -> Result<Self, TrimError> {
        let stored = Vec::<Stored>::deserialize(stored)
            .map_err(|error| TrimError::NotAPolicy { reason: error.to_string() })?;
        stored.into_iter().map(|policy| policy.load(counters)).collect()
    }

    fn stored(&self) -> impl Iterator<Item = Stored> + '_ {
        self.0.iter().map(Stored::of)
    }
}

impl Stored {
    fn of(policy: &Policy) -> Self {
        match policy {
            Policy::KeepLast { messages, pins } => {
                Stored::KeepLast { messages: *messages, pins: pins.clone() }
            }
            Policy::MaxTokens { tokens, counter } => {
                Stored::MaxTokens { tokens: *tokens, counter: stored_name(counter) }
            }
            Policy::CapMessages { messages } => Stored::CapMessages { messages: *messages },
            Policy::CapTokens { tokens, counter } => {
                Stored::CapTokens { tokens: *tokens, counter: stored_name(counter) }
            }
        }
    }

    fn load(self, counters: &[Arc<dyn TokenCounter>]) -> Result<Policy, TrimError> {
        Ok(match self {
            Stored::KeepLast { messages, pins } => Policy::KeepLast { messages, pins },
            Stored::MaxTokens { tokens, counter } => {
                Policy::MaxTokens { tokens, counter: find(counter, counters)? }
            }
            Stored::CapMessages { messages } => Policy::CapMessages { messages },
            Stored::CapTokens { tokens, counter } => {
                Policy::CapTokens { tokens, counter: find(counter, counters)? }
            }
        })
    }
}

fn stored_name(counter: &dyn TokenCounter) -> Option<String> {
    let name = counter.name();
    (name != ApproximateTokens::NAME).then(|| name.to_owned())
}

fn find(
    name: Option<String>,
    counters: &[Arc<dyn TokenCounter>],
) -> Result<Arc<dyn TokenCounter>, TrimError> {
    let Some(name) = name.filter(|name| name != ApproximateTokens::NAME) else {
        return Ok(Arc::new(ApproximateTokens));
    };
    if let Some(counter) = counters.iter().find(|counter| counter.name() == name) {
        return Ok(Arc::clone(counter));
    }
    let names = counters.iter().map(TokenCounter::name);
    let known: Vec<_> = [ApproximateTokens::NAME].into_iter().chain(names).collect();
    Err(TrimError::UnknownCounter { name, known: known.join(", ") })
}

impl FromIterator<Policy> for Trim {
    fn from_iter<I: IntoIterator<Item = Policy>>(policies: I) -> Self {
        Trim(policies.into_iter().collect())
    }
}

impl PartialEq for Trim {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.stored().eq(other.stored())
    }
}

impl Eq for Trim {}

impl Serialize for Trim {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.stored())
    }
}

impl<'de> Deserialize<'de> for Trim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = Vec::<Stored>::deserialize(deserializer)?;
        stored.into_iter().map(|policy| policy.load(&[])).collect::<Result<_, _>>().map_err(D::Error::custom)
    }
}
