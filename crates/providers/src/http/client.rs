//! The HTTP client. Its TLS settings are made once for the process: reading the system's certificates takes
//! longer than everything else.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt as _;
use stepfold_state_core::chat::{ModelError, ModelErrorKind};

/// A client that takes so long to connect at most.
pub(crate) fn client(connect_timeout: Duration) -> Result<reqwest::Client, ModelError> {
    let builder = reqwest::Client::builder()
        .connect_timeout(connect_timeout)
        .tcp_nodelay(true)
        // A redirected request would carry the key to wherever it is sent.
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("stepfold/", env!("CARGO_PKG_VERSION")));
    builder.tls_backend_preconfigured(tls()?).build().map_err(|error| unusable(&error))
}

fn tls() -> Result<ClientConfig, ModelError> {
    static TLS: OnceLock<Result<ClientConfig, String>> = OnceLock::new();
    let made = TLS.get_or_init(|| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let verified = builder.and_then(rustls::ConfigBuilder::with_platform_verifier);
        match verified {
            Ok(builder) => Ok(builder.with_no_client_auth()),
            Err(error) => Err(error.to_string()),
        }
    });
    match made {
        Ok(config) => Ok(config.clone()),
        Err(error) => Err(unusable(error)),
    }
}

fn unusable(error: &dyn std::fmt::Display) -> ModelError {
    ModelError::new(ModelErrorKind::Unsupported, format!("the HTTP client could not be set up: {error}"))
}
