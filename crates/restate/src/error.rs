//! Errors of requests.

use restate_sdk::ingress;
use serde::Deserialize;
use stepfold_session_scopes::SessionError;
use thiserror::Error;

/// An error of a request to a session. A request that failed on its way may be repeated: its key makes it one.
#[derive(Error)]
#[non_exhaustive]
pub enum RestateError {
    /// The URL of the server is invalid.
    #[error("invalid URL `{url}`: {reason}")]
    Address {
        /// The URL.
        url: String,
        /// The reason.
        reason: String,
    },
    /// The token has a character that cannot be sent.
    #[error("invalid token: contains a character that cannot be sent, such as a line break")]
    Token,
    /// The form of an id is invalid.
    #[error(transparent)]
    Id(#[from] SessionError),
    /// The HTTP client could not be set up.
    #[error("the HTTP client could not be set up: {0}")]
    Setup(String),
    /// The request cannot be sent, such as an input with a state of its own.
    #[error("invalid request: {0}")]
    Request(String),
    /// The request is larger than [`MAX_REQUEST_BYTES`](crate::MAX_REQUEST_BYTES).
    #[error("{0}")]
    TooLarge(String),
    /// The server could not be reached, or the connection was lost. A request that arrived continues; repeat it for its
    /// reply.
    #[error("the Restate server could not be reached")]
    Unreachable {
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The handler or the server refused the request.
    #[error("request refused with status {status}: {message}")]
    Refused {
        /// The HTTP status: 400 for an invalid request, 404 if no worker is registered, 409 while decisions are required
        /// first, 410 for a message that was removed.
        status: u16,
        /// The reason.
        message: String,
    },
    /// The reply is invalid.
    #[error("invalid reply: {0}")]
    Reply(String),
}

stepfold_state_core::debug_as_text!(RestateError);

/// The body of a refusal.
#[derive(Deserialize)]
struct RefusalBody {
    message: String,
}

impl From<ingress::ClientError> for RestateError {
    fn from(error: ingress::ClientError) -> Self {
        use ingress::ClientError as Of;
        match error {
            Of::Transport { source } => RestateError::Unreachable { source },
            Of::Status { status, response } => {
                let refusal = serde_json::from_slice::<RefusalBody>(response.body());
                let message = refusal.map_or_else(
                    |_| String::from_utf8_lossy(response.body()).into_owned(),
                    |refusal| refusal.message,
                );
                RestateError::Refused { status: status.as_u16(), message }
            }
            Of::Protocol { .. } | Of::PayloadDecode { .. } => RestateError::Reply(error.to_string()),
            other => RestateError::Request(other.to_string()),
        }
    }
}
