//! Names for the kinds of errors, without numbers in them: to count errors by, and to write them down.

use stepfold_state_core::chat::{ModelErrorKind, TimeoutKind};

/// All kinds, and their names. What a kind carries is none of its name.
const NAMES: &[(&str, ModelErrorKind)] = &[
    ("transient", ModelErrorKind::Transient),
    ("rate_limited", ModelErrorKind::RateLimited),
    ("overloaded", ModelErrorKind::Overloaded),
    ("authentication", ModelErrorKind::Authentication),
    ("not_found", ModelErrorKind::NotFound),
    ("invalid_request", ModelErrorKind::InvalidRequest),
    ("too_long", ModelErrorKind::TooLong { limit: None, used: None }),
    ("refused", ModelErrorKind::Refused),
    ("malformed", ModelErrorKind::Malformed),
    ("cut_off", ModelErrorKind::CutOff),
    ("reply_too_large", ModelErrorKind::ReplyTooLarge { limit: 0 }),
    ("timed_out_connect", ModelErrorKind::TimedOut(TimeoutKind::Connect)),
    ("timed_out_first_token", ModelErrorKind::TimedOut(TimeoutKind::FirstToken)),
    ("timed_out_idle", ModelErrorKind::TimedOut(TimeoutKind::Idle)),
    ("timed_out", ModelErrorKind::TimedOut(TimeoutKind::Total)),
    ("tool_choice_ignored", ModelErrorKind::ToolChoiceIgnored),
    ("cancelled", ModelErrorKind::Cancelled),
    ("unsupported", ModelErrorKind::Unsupported),
    ("untrusted", ModelErrorKind::Untrusted),
];

/// The name of a kind.
pub(crate) fn name(kind: &ModelErrorKind) -> &'static str {
    let bare = match kind {
        ModelErrorKind::TooLong { .. } => &ModelErrorKind::TooLong { limit: None, used: None },
        ModelErrorKind::ReplyTooLarge { .. } => &ModelErrorKind::ReplyTooLarge { limit: 0 },
        kind => kind,
    };
    // OpenTelemetry's word for whatever has no name.
    NAMES.iter().find(|(_, known)| known == bare).map_or("_OTHER", |(name, _)| name)
}

/// The kind of this name.
pub(crate) fn of_name(name: &str) -> Option<ModelErrorKind> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| kind.clone())
}
