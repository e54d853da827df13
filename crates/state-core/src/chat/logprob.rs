//! Log probabilities of the tokens of a reply.

use serde_json::Value;

use super::Message;

/// The extra of a message that holds the log probabilities, token by token, as the provider wrote them.
pub const LOGPROBS: &str = "logprobs";

/// A token and its log probability.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::chat::{LOGPROBS, Message};
///
/// let logprobs = json!([{"token": "area", "logprob": -0.5, "top_logprobs": [{"token": "zone", "logprob": -1.5}]}]);
/// let message = Message::assistant("area").with_extra(LOGPROBS, logprobs);
/// let token = &message.logprobs()[0];
/// assert_eq!((token.token.as_str(), token.logprob), ("area", -0.5));
/// assert_eq!(token.alternatives[0].token, "zone");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TokenLogprob {
    /// The text of the token.
    pub token: String,
    /// The natural logarithm of its probability.
    pub logprob: f64,
    /// The most likely tokens at this position, if they were requested. The token itself may be among them.
    pub alternatives: Vec<TokenLogprob>,
}

impl Message {
    /// The tokens of the message with their log probabilities, if these were
    /// [requested](super::ModelParams::logprobs).
    pub fn logprobs(&self) -> Vec<TokenLogprob> {
        let tokens = self.extras().get(LOGPROBS).and_then(Value::as_array);
        tokens.into_iter().flatten().filter_map(TokenLogprob::read).collect()
    }
}

impl TokenLogprob {
    /// Reads one token. Gemini names both fields differently.
    fn read(value: &Value) -> Option<Self> {
        let logprob = value.get("logprob").or_else(|| value.get("logProbability"))?.as_f64()?;
        let alternatives = value["top_logprobs"].as_array().into_iter().flatten();
        Some(TokenLogprob {
            token: value["token"].as_str()?.to_owned(),
            logprob,
            alternatives: alternatives.filter_map(TokenLogprob::read).collect(),
        })
    }
}
