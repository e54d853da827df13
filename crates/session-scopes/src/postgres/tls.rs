//! The encryption of a connection, configured by `sslmode` and `sslrootcert` in its address.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::SessionError;

/// The verification of a server's certificate.
#[derive(Debug, PartialEq, Eq)]
enum CertificateTrust {
    /// No verification.
    Anyone,
    /// The system's certificates.
    System,
    /// The certificates in this file.
    File(String),
}

/// Reads an address.
pub(super) fn read_address(url: &str) -> Result<(Config, MakeRustlsConnect), SessionError> {
    let (config, trust) = parse(url)?;
    Ok((config, MakeRustlsConnect::new(client(&trust)?)))
}

fn invalid(why: &'static str) -> SessionError {
    SessionError::Store { what: "read the address of its database", source: why.into() }
}

/// The driver's own options, and those of this crate.
fn parse(url: &str) -> Result<(Config, CertificateTrust), SessionError> {
    let mut rest = url.to_owned();
    let (mut mode, mut root) = (None, None);
    let is_url = ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme));
    // NOTE: name and password before an `@` may contain a question mark.
    let behind = url.find('@').map_or(0, |at| at + 1);
    if is_url && let Some(place) = url[behind..].find('?') {
        let (address, options) = url.split_at(behind + place + 1);
        let mut others = Vec::new();
        for option in options.split('&') {
            match option.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value),
                Some(("sslrootcert", value)) => root = Some(decode(value)?),
                _ => others.push(option),
            }
        }
        rest = address.to_owned() + &others.join("&");
    }
    let mut config = config(&rest)?;
    let mut is_verified = false;
    match mode {
        None => {}
        Some("disable") => _ = config.ssl_mode(SslMode::Disable),
        Some("prefer") => _ = config.ssl_mode(SslMode::Prefer),
        Some("require") => _ = config.ssl_mode(SslMode::Require),
        Some("verify-full") => {
            is_verified = true;
            config.ssl_mode(SslMode::Require);
        }
        Some(_) => return Err(invalid("expected sslmode=disable, prefer, require or verify-full")),
    }
    let trust = match root {
        Some(path) if path != "system" => CertificateTrust::File(path),
        root if is_verified || root.is_some() => CertificateTrust::System,
        _ => CertificateTrust::Anyone,
    };
    Ok((config, trust))
}

/// Without the parser's message, which may quote part of a password.
fn config(address: &str) -> Result<Config, SessionError> {
    address.parse().map_err(|_: tokio_postgres::Error| {
        invalid(
            "expected postgres://user:password@host:port/database, or pairs as in `host=x user=y`; special \
             characters of a password are written as %-codes, and sslmode=verify-full and sslrootcert are options \
             of the first form",
        )
    })
}

/// The value of an option, decoded like the driver's own.
fn decode(value: &str) -> Result<String, SessionError> {
    let config = config(&format!("postgres:///?application_name={value}"))?;
    Ok(config.get_application_name().unwrap_or_default().to_owned())
}

/// With the algorithms of `ring`, whatever the process has chosen elsewhere.
fn client(trust: &CertificateTrust) -> Result<ClientConfig, SessionError> {
    let failed = |error: Error| SessionError::Store { what: "set up TLS", source: Box::new(error) };
    // NOTE: named explicitly: rustls panics if several providers are compiled in and the program has chosen none.
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let builder = match trust {
        CertificateTrust::Anyone => {
            // NOTE: as libpq does for `prefer` and `require`: hosting companies have certificates of their own
            // (docs/decisions/sessions.md).
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptingVerifier(algorithms)))
        }
        CertificateTrust::System => builder.with_platform_verifier().map_err(failed)?,
        CertificateTrust::File(path) => builder.with_root_certificates(roots(path)?),
    };
    Ok(builder.with_no_client_auth())
}

fn roots(path: &str) -> Result<RootCertStore, SessionError> {
    let failed = |source| SessionError::Store { what: "read the certificates of sslrootcert", source };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| failed(Box::new(error)))? {
        let certificate = certificate.map_err(|error| failed(Box::new(error)))?;
        roots.add(certificate).map_err(|error| failed(Box::new(error)))?;
    }
    if roots.is_empty() {
        return Err(failed(format!("{path} has no certificate in PEM").into()));
    }
    Ok(roots)
}

/// Whether a retry fails too: the server has no TLS, or the wrong certificate.
pub(super) fn is_refused(error: &tokio_postgres::Error) -> bool {
    let Some(source) = std::error::Error::source(error) else { return false };
    match source.downcast_ref::<std::io::Error>() {
        Some(error) => matches!(error.get_ref(), Some(inner) if inner.is::<Error>()),
        // NOTE: tokio-postgres has no kind for this error, so that its text is compared.
        None => error.to_string().starts_with("error performing TLS handshake"),
    }
}

/// Encrypts without authentication: the meaning of `prefer` and `require` without certificates.
#[derive(Debug)]
struct AcceptingVerifier(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptingVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_tls_are_read_and_the_others_stay() {
        for (url, mode, trust) in [
            ("postgres://a@h/d", SslMode::Prefer, CertificateTrust::Anyone),
            ("postgres://a@h/d?sslmode=disable", SslMode::Disable, CertificateTrust::Anyone),
            ("postgres://a@h/d?sslmode=prefer&application_name=x", SslMode::Prefer, CertificateTrust::Anyone),
            (
                "postgresql://a@h/d?application_name=x&sslmode=require",
                SslMode::Require,
                CertificateTrust::Anyone,
            ),
            ("host=h user=a sslmode=require", SslMode::Require, CertificateTrust::Anyone),
            (
                "postgres://a:x?sslmode=disable@h/d?sslmode=verify-full",
                SslMode::Require,
                CertificateTrust::System,
            ),
            ("postgres://a@h?sslmode=require&sslrootcert=system", SslMode::Require, CertificateTrust::System),
            (
                "postgres://a@h/d?sslrootcert=%2Fmy%20ca.pem&sslmode=verify-full",
                SslMode::Require,
                CertificateTrust::File("/my ca.pem".to_owned()),
            ),
            // Naming a certificate implies its verification.
            (
                "postgres://a@h/d?sslmode=require&sslrootcert=ca",
                SslMode::Require,
                CertificateTrust::File("ca".to_owned()),
            ),
        ] {
            let (config, found) = parse(url).unwrap();
            assert_eq!((config.get_ssl_mode(), found), (mode, trust), "{url}");
            let name = url.contains("application_name").then_some("x");
            assert_eq!(config.get_application_name(), name, "{url}");
        }
    }

    #[test]
    fn modes_that_are_not_there_are_refused() {
        for url in
            ["postgres://a@h/d?sslmode=verify-ca", "postgres://a@h/d?sslmode=", "host=h sslmode=verify-full"]
        {
            let error = parse(url).unwrap_err();
            let told = error.to_string();
            assert!(told.contains("verify-full"), "{url}: {told}");
        }
    }
}
