//! The HTTP client of servers and of authorization servers, and a denied authorization.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rustls_platform_verifier::BuilderVerifierExt as _;
use stepfold_state_core::ErrorChain;

/// Builds a client that follows no redirects.
pub(crate) fn client(connect: Duration) -> Result<reqwest::Client, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(rustls::ConfigBuilder::with_platform_verifier)
        .map_err(|error| format!("the HTTP client could not be set up: {error}"))?
        .with_no_client_auth();
    reqwest::Client::builder()
        .connect_timeout(connect)
        .tcp_nodelay(true)
        // NOTE: A redirected request would carry the token to any host that the server names.
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("stepfold/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(tls)
        .build()
        .map_err(|error| format!("the HTTP client could not be set up: {error}"))
}

/// Describes a request that failed, with the remedy if no server was reached.
pub(crate) fn failure(error: &reqwest::Error) -> String {
    if !error.is_connect() {
        return ErrorChain(error).to_string();
    }
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let url = error.url().map(ToString::to_string).unwrap_or_default();
    format!("no connection to {url}: {cause}; check the URL, and that the server runs")
}

/// Returns the remedy for a challenge where OAuth is not set.
pub(crate) fn without_oauth(challenge: &str) -> String {
    format!("it answered `{challenge}`; set a valid bearer token, or OAuth")
}

/// The reason why a request is not authorized.
pub(crate) enum AuthorizationDenied {
    /// No user can be asked here; the text is the remedy.
    NoUserToAsk(String),
    /// The sign-in failed.
    Failed(String),
}
