//! A provider's wire format as a trait of pure functions, and its data.

use serde_json::{Map, Value};
use stepfold_state_core::chat::{ChatRequest, Message, ModelError, ToolSpec};

use crate::conform::{MessageChanges, RecipientProfile};
use crate::reply::ReplyDecoder;
use crate::rules::RequestRules;
use crate::secret::Secret;

/// A provider's wire format: URLs, requests, and replies.
///
/// Sealed: implemented only by the dialects of this crate. All methods are pure; the model calls
/// [`server`](Self::server) and [`headers`](Self::headers) once when it is built, and for each request
/// [`url`](Self::url), [`head`](Self::head), [`tools`](Self::tools), [`write`](Self::write) for each new
/// message, [`close`](Self::close), and [`decoder`](Self::decoder).
// NOTE: Sealed by its private module: its methods mention events and faults of the transport. A program with another
// wire format implements `ChatModel`. See docs/decisions/providers.md.
pub trait Dialect: Send + Sync + 'static {
    /// Reads one reply.
    type Decoder: ReplyDecoder;
    /// The state between two messages: elements to be closed by the next one, or by the end.
    type WriteState: Clone + Default + Send;

    /// The field of the conversation in the body.
    const MESSAGES: &'static str;
    /// Its name in [server tools](stepfold_state_core::chat::ServerTool).
    const NAME: &'static str;
    /// The fields that no extra parameter may set.
    const RESERVED: &'static [&'static str];
    /// The extra parameter that enables reasoning, if a turn that another model began must be continued without it.
    const REASONING: Option<&'static str> = None;
    /// The extra with the signature of a part: a signed part is sent back even if it is blank.
    const SIGNATURE: Option<&'static str> = None;
    /// The field of the unknown parts that belong to this dialect.
    const UNKNOWN: Option<&'static str> = None;

    /// Names, address and key variables of the provider.
    fn server(&self) -> ProviderInfo;

    /// The headers of the key, and those of every request of this dialect.
    fn headers(&self, key: Option<&Secret>) -> Vec<(&'static str, String)>;

    /// The rules of the server for conversations.
    fn rules(&self) -> &RequestRules;

    /// Decides for a request how its messages are written.
    fn plan(&self, _: ModelAddress<'_>, _: &ChatRequest) -> MessagePlan {
        MessagePlan::default()
    }

    /// The URL of requests to this model. The base URL has no trailing slash.
    fn url(&self, base: &str, model: &str) -> String;

    /// The fields of the body before tools and messages.
    ///
    /// # Errors
    /// The provider does not support the request.
    fn head(&self, to: ModelAddress<'_>, request: &ChatRequest) -> Result<Map<String, Value>, ModelError>;

    /// Sets an extra parameter: by default it replaces the field with that name.
    fn extra(&self, head: &mut Map<String, Value>, name: &str, value: &Value) {
        head.insert(name.to_owned(), value.clone());
    }

    /// The field of the body that offers the tools.
    fn tools(&self, tools: &[ToolSpec]) -> Value;

    /// Appends a message that [conforms](crate::conform) to the rules, and reports messages that are added to keep
    /// the order of roles.
    ///
    /// # Errors
    /// The provider does not support the content.
    fn write(
        &self,
        message: &Message,
        plan: &MessagePlan,
        open: &mut Self::WriteState,
        out: &mut Vec<u8>,
        changes: &mut MessageChanges,
    ) -> Result<(), ModelError>;

    /// Closes the open elements at the end of the conversation.
    fn close(&self, open: &Self::WriteState, out: &mut Vec<u8>);

    /// The reader of the reply to this request.
    fn decoder(&self, request: &ChatRequest) -> Self::Decoder;
}

/// Names, address and key variables of a provider.
#[derive(Clone, Copy, Debug)]
pub struct ProviderInfo {
    /// Its name in ids and errors.
    pub name: &'static str,
    /// Its address.
    pub base_url: Option<&'static str>,
    /// Whether a request without a key is pointless.
    pub needs_key: bool,
    /// The environment variables that usually hold the key.
    pub key_variables: &'static [&'static str],
}

/// The decisions of a request that apply to all of its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessagePlan {
    /// The first message whose extras of the server are left out, together with the parameter for reasoning: the
    /// beginning of a turn that another model began.
    pub(crate) bare_from: Option<usize>,
    /// Whether the server requires a signature at the first call of each reply.
    pub(crate) signs_calls: bool,
}

/// The server and the model that a request is sent to.
#[derive(Clone, Copy, Debug)]
pub struct ModelAddress<'a> {
    /// The server, as [extras](crate::conform::SERVER) name it.
    pub(crate) server: &'a str,
    pub(crate) model: &'a str,
}

/// The properties of a server that messages to it depend on.
pub(crate) fn recipient<'a, D: Dialect>(dialect: &'a D, server: &'a str) -> RecipientProfile<'a> {
    RecipientProfile { server, rules: dialect.rules(), signature: D::SIGNATURE, unknown: D::UNKNOWN }
}
