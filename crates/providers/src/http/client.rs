//! The HTTP client. Its TLS settings are made once for the process: reading the system's certificates takes
//! longer than everything else.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::header::HeaderValue;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls_platform_verifier::{BuilderVerifierExt as _, Verifier};
use stepfold_state_core::chat::{ModelError, ModelErrorKind};

use crate::secret::Secret;

/// The options of connections.
#[derive(Clone, Debug)]
pub(crate) struct ConnectOptions {
    pub(crate) timeout: Duration,
    /// The address of a proxy, which may hold a password.
    pub(crate) proxy: Option<Secret>,
    /// Trusted certificates, in PEM, in addition to the system's.
    pub(crate) roots: Vec<Vec<u8>>,
}

/// Builds a client with these options.
pub(crate) fn client(connect: &ConnectOptions) -> Result<reqwest::Client, ModelError> {
    let mut builder = reqwest::Client::builder()
        .connect_timeout(connect.timeout)
        // NOTE: Nagle's algorithm would delay the small writes of a request.
        .tcp_nodelay(true)
        // NOTE: A redirected request would carry the key to any host that the server names.
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("stepfold/", env!("CARGO_PKG_VERSION")));
    if let Some(proxy) = &connect.proxy {
        let proxy = reqwest::Proxy::all(proxy.expose());
        builder = builder
            .proxy(proxy.map_err(|_| wrong("invalid proxy: expected a URL such as http://proxy:3128"))?);
    }
    let tls = if connect.roots.is_empty() { tls()? } else { tls_with(&connect.roots)? };
    builder.tls_backend_preconfigured(tls).build().map_err(|error| unusable(&error))
}

/// Checks a base URL, and removes the slash at its end. It must not contain secrets: it shows in errors.
pub(crate) fn base_url(url: Option<&str>) -> Result<String, String> {
    let Some(url) = url else {
        return Err("missing base URL: this provider has no default; set one".to_owned());
    };
    let url = url.trim().trim_end_matches('/');
    let parsed = reqwest::Url::parse(url).ok().filter(reqwest::Url::has_host);
    let Some(parsed) = parsed.filter(|url| matches!(url.scheme(), "http" | "https")) else {
        let url = without_password(url);
        return Err(format!("invalid base URL `{url}`: must begin with http:// or https://"));
    };
    // NOTE: A user and a password would not be sent, and would show in errors.
    if !parsed.username().is_empty() || parsed.password().is_some() {
        let url = without_password(url);
        return Err(format!(
            "invalid base URL `{url}`: must not contain a user or a password; set a key or a header"
        ));
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(format!("invalid base URL `{url}`: must end with its path, without `?` and `#`"));
    }
    Ok(url.to_owned())
}

/// Removes the user and the password from a URL, valid or not.
pub(crate) fn without_password(url: &str) -> Cow<'_, str> {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => Cow::Owned(format!("{scheme}://***@{host}")),
        (None, Some((_, host))) => Cow::Owned(format!("***@{host}")),
        _ => Cow::Borrowed(url),
    }
}

/// Returns the secrets in the address of a proxy: all of it, and its password, with and without escapes.
pub(crate) fn secrets_of(proxy: &Secret) -> Vec<Secret> {
    let parsed = reqwest::Url::parse(proxy.expose()).ok();
    let password = parsed.as_ref().and_then(reqwest::Url::password).map(str::to_owned);
    // NOTE: The library decodes escapes only in a query.
    let query = password.as_ref().map(|password| format!("http://x/?x={}", password.replace('+', "%2B")));
    let decoded =
        query.and_then(|url| Some(reqwest::Url::parse(&url).ok()?.query_pairs().next()?.1.into_owned()));
    let password = password.into_iter().chain(decoded).filter(|password| !password.is_empty());
    [proxy.clone()].into_iter().chain(password.map(Secret::from)).collect()
}

/// Makes the value of a header that `Debug` hides. Some characters are invalid in a header.
pub(crate) fn sensitive(what: &str, value: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(value).map_err(|_| {
        format!("invalid {what}: contains a character that cannot be sent, such as a line break")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn tls() -> Result<ClientConfig, ModelError> {
    // NOTE: Built once: to read the certificates of the system takes longer than everything else. `ring`, since
    // `aws-lc-rs` takes 40 seconds more to build on two cores.
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

/// The settings with more certificates that are trusted.
fn tls_with(roots: &[Vec<u8>]) -> Result<ClientConfig, ModelError> {
    let certificates = roots.iter().flat_map(|pem| CertificateDer::pem_slice_iter(pem));
    let certificates = certificates.collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| wrong(&format!("invalid certificate: {error}")))?;
    if certificates.is_empty() {
        return Err(wrong("invalid certificate: expected PEM with at least one, found none"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier::new_with_extra_roots(certificates, Arc::clone(&provider));
    let verifier = verifier.map_err(|error| wrong(&format!("invalid certificate: {error}")))?;
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| unusable(&error))?.dangerous();
    Ok(builder.with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

fn wrong(message: &str) -> ModelError {
    ModelError::new(ModelErrorKind::InvalidRequest, message)
}

fn unusable(error: &dyn std::fmt::Display) -> ModelError {
    ModelError::new(ModelErrorKind::Unsupported, format!("HTTP client could not be created: {error}"))
}
