//! The rules of requests, as data: conversations that a server accepts, where it differs from others.
//!
//! Each message is made to conform to them before it is encoded, and the log keeps the original. Rules that hold for every
//! server are not fields: a text part that is blank after trimming is left out, a reply without text and calls as well,
//! and a missing text that is required becomes a [stand-in](STAND_IN). [`check::RULES`](crate::check::RULES) has the
//! source of each rule, and checks bodies by it.

pub(crate) mod names;
pub(crate) mod schemas;

use std::borrow::Cow;

use self::names::{NameRules, digest};
use self::schemas::SchemaRules;

/// The text in place of one that is blank, where the server requires a text.
pub const STAND_IN: &str = "(no text)";

/// The text in place of a blank error of a tool.
pub const SILENT_FAILURE: &str = "(the tool failed without a message)";

/// The text of a result whose media follow in a message of their own.
pub const MEDIA_FOLLOW: &str = "(see the media below)";

/// The text of an assistant message between two messages that may not follow each other.
pub const BRIDGE: &str = "(continued)";

/// The rules of a server for conversations.
///
/// # Examples
/// A server whose template requires alternating roles:
/// ```
/// use stepfold_providers::openai::{OpenAi, Preset};
/// use stepfold_providers::rules::RoleOrder;
///
/// const OURS: Preset = {
///     let mut ours = Preset::compatible("ours", "http://10.0.0.7:9000/v1");
///     ours.rules.order = RoleOrder::Alternating;
///     ours
/// };
/// let model = OpenAi::preset(&OURS, "our-model").build()?;
/// # let _ = model;
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each says one thing that a server takes or does not take")]
#[non_exhaustive]
pub struct RequestRules {
    /// The places where system messages may stand.
    pub system: SystemPlace,
    /// The order of roles.
    pub order: RoleOrder,
    /// The names of tools that it accepts. Others are mapped, and mapped back in replies.
    pub tool_names: NameRules,
    /// The schemas that it accepts, of the parameters of tools and of replies. Others are mapped.
    pub schemas: SchemaRules,
    /// The ids of calls that it accepts.
    pub call_ids: CallIdForm,
    /// The form of the arguments of a call in the history.
    pub arguments: ArgumentForm,
    /// Whether the result of a call may be an empty text.
    pub empty_results: bool,
    /// Whether messages may name their participant.
    pub names: bool,
    /// Whether each message of the assistant must have the field of reasoning, if only an empty one.
    pub needs_reasoning: bool,
    /// Whether reasoning may be the last part of a reply.
    pub ends_with_reasoning: bool,
    /// Whether each part of reasoning must be followed by the text or the call that it was for.
    pub pairs_reasoning: bool,
}

impl RequestRules {
    /// The strictest rules of the chat completions of several servers: accepted by all of them.
    pub const COMPATIBLE: Self = RequestRules {
        system: SystemPlace::Leading,
        order: RoleOrder::UserFirst,
        tool_names: NameRules::COMMON,
        schemas: SchemaRules::COMMON,
        call_ids: CallIdForm::Word(40),
        arguments: ArgumentForm::ObjectText,
        empty_results: false,
        names: true,
        needs_reasoning: false,
        ends_with_reasoning: true,
        pairs_reasoning: false,
    };

    /// OpenAI's chat completions.
    pub const OPENAI_CHAT: Self = RequestRules {
        system: SystemPlace::Anywhere,
        order: RoleOrder::Any,
        tool_names: NameRules::OPENAI,
        schemas: SchemaRules::OPENAI,
        call_ids: CallIdForm::AtMost(40),
        arguments: ArgumentForm::Text,
        empty_results: true,
        ..RequestRules::COMPATIBLE
    };

    /// OpenAI's Responses.
    pub const OPENAI_RESPONSES: Self = RequestRules {
        call_ids: CallIdForm::AtMost(64),
        names: false,
        ends_with_reasoning: false,
        pairs_reasoning: true,
        ..RequestRules::OPENAI_CHAT
    };

    /// Anthropic's Messages.
    pub const ANTHROPIC: Self = RequestRules {
        system: SystemPlace::Field,
        tool_names: NameRules::ANTHROPIC,
        schemas: SchemaRules::ANTHROPIC,
        call_ids: CallIdForm::Word(64),
        arguments: ArgumentForm::Object,
        empty_results: false,
        names: false,
        ends_with_reasoning: false,
        ..RequestRules::COMPATIBLE
    };

    /// Gemini's generateContent.
    pub const GEMINI: Self = RequestRules {
        system: SystemPlace::Field,
        call_ids: CallIdForm::Any,
        tool_names: NameRules::GEMINI,
        schemas: SchemaRules::GEMINI,
        arguments: ArgumentForm::Object,
        empty_results: true,
        names: false,
        ..RequestRules::COMPATIBLE
    };
}

/// The places where a server accepts system messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SystemPlace {
    /// Anywhere, any number of them.
    Anywhere,
    /// One, at the beginning: the leading ones are joined, and later ones become texts of the user in `<system>` tags.
    Leading,
    /// In a field of the request; later ones as for [`Leading`](SystemPlace::Leading).
    Field,
}

/// The order of roles that a server accepts, besides the results that follow their calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoleOrder {
    /// Any.
    Any,
    /// The first message is one of the user.
    UserFirst,
    /// The first message is one of the user, and none of the user follows a result.
    ReplyAfterResult,
    /// Messages of the user and of the assistant alternate, and the first one is of the user.
    Alternating,
}

/// The arguments of a call in the history that a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArgumentForm {
    /// Any text, as the model wrote it.
    Text,
    /// The text of a JSON object. Malformed arguments are the field `malformed_arguments` of one.
    ObjectText,
    /// A JSON object, with malformed arguments as for [`ObjectText`](ArgumentForm::ObjectText).
    Object,
}

/// The ids of tool calls that a server accepts. Those of calls that another model made may have another form: they are
/// replaced, the same id always by the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallIdForm {
    /// All ids.
    Any,
    /// Ids of at most this many characters.
    AtMost(usize),
    /// Ids of exactly this many letters and digits.
    Alphanumeric(usize),
    /// Ids of letters, digits, `_` and `-`, at most this many.
    Word(usize),
}

impl CallIdForm {
    /// The id, or the one in its place.
    pub(crate) fn accepted(self, id: &str) -> Cow<'_, str> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let (is_accepted, length) = match self {
            CallIdForm::Any => (true, 0),
            CallIdForm::AtMost(most) => (id.chars().count() <= most, most.min(24)),
            CallIdForm::Alphanumeric(length) => {
                (id.len() == length && id.chars().all(|c| c.is_ascii_alphanumeric()), length)
            }
            CallIdForm::Word(most) => {
                (!id.is_empty() && id.len() <= most && id.chars().all(is_word), most.min(24))
            }
        };
        if is_accepted { Cow::Borrowed(id) } else { Cow::Owned(digest(id, length)) }
    }
}

/// Whether a text is empty after trimming.
pub(crate) fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// Writes a system message as a text of the user.
pub(crate) fn tagged(text: &str) -> String {
    format!("<system>\n{text}\n</system>")
}
