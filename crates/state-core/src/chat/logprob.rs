//! Log probabilities of the tokens of a reply.

use serde_json::Value;

use super::Message;

/// The extra of a message that holds the log probabilities, token by token, as the provider wrote them.
pub const LOGPROBS: &str = "logprobs";

/// A token, and how likely the model found it.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::chat::{LOGPROBS, Message};
///
/// let said = json!([{"token": "area", "logprob": -0.5, "top_logprobs": [{"token": "zone", "logprob": -1.5}]}]);
/// let message = Message::assistant("area").with_extra(LOGPROBS, said);
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
    /// The most likely tokens at this place, if they were asked for. The token itself may be among them.
    pub alternatives: Vec<TokenLogprob>,
}

impl Message {
    /// The tokens of the message with their log probabilities, if these were
    /// [asked for](super::ModelParams::logprobs).
    pub fn logprobs(&self) -> Vec<TokenLogprob> {
        let tokens = self.extras().get(LOGPROBS).and_then(Value::as_array);
        tokens.into_iter().flatten().filter_map(TokenLogprob::read).collect()
    }
}

impl TokenLogprob {
    /// Gemini has names of its own for both fields.
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
