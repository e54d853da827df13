//! Exports spans to an OpenTelemetry collector, by OTLP over HTTP.
//!
//! Combines exporter libraries and knows nothing of agents: it exports every span that the program records
//! with `tracing` at level INFO or above. In a stepfold program these are the spans of the loop's `Traces`
//! (runs, model calls, tool calls) and of traced models. The facade re-exports this crate as `stepfold::otel`
//! (feature `otel`).
//!
//! # What is absent
//!
//! Metrics, logs, gRPC, and compression.
#![doc = include_str!("../docs/limits.md")]

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use reqwest::header::{HeaderName, HeaderValue};
use rustls_platform_verifier::BuilderVerifierExt as _;
use stepfold_state_core::ErrorChain;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// The path for spans, relative to a collector's base URL.
const PATH: &str = "/v1/traces";

/// The default timeout of a request and of the last flush.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Exports spans to a collector.
///
/// Spans are sent in batches by a dedicated thread. The queue holds 2,048 spans; further ones are dropped.
/// The collector never blocks the program, except in [`ExporterGuard::flush`] and at [shutdown](ExporterGuard). A failed
/// export is a `tracing` event with the target `opentelemetry_sdk`.
///
/// Unset options are read from the environment variables of the OpenTelemetry specification:
/// `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_TRACES_SAMPLER`,
/// `OTEL_BSP_*`.
///
/// # Examples
/// ```
/// use stepfold_otel::Exporter;
///
/// # let collector = collector();
/// # fn collector() -> String {
/// #     use std::io::{Read as _, Write as _};
/// #     let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
/// #     let address = listener.local_addr().unwrap();
/// #     std::thread::spawn(move || {
/// #         for stream in listener.incoming() {
/// #             let mut stream = stream.unwrap();
/// #             let _ = stream.read(&mut [0; 65536]);
/// #             let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
/// #         }
/// #     });
/// #     format!("http://{address}")
/// # }
/// // Usually "http://localhost:4318".
/// let exporter = Exporter::to(collector).service("my-agent").install()?;
///
/// tracing::info_span!("work").in_scope(|| { /* the program */ });
///
/// // Dropping it sends the rest too, but does not report a failure.
/// exporter.shutdown()?;
/// # Ok::<(), stepfold_otel::OtelError>(())
/// ```
#[must_use]
pub struct Exporter {
    url: String,
    service: Option<String>,
    headers: Vec<(String, String)>,
    timeout: Duration,
}

impl Exporter {
    /// Exports to the collector with this base URL, such as `http://localhost:4318`. A URL that ends in
    /// `/v1/traces` is used unchanged.
    pub fn to(url: impl Into<String>) -> Self {
        Exporter { url: url.into(), service: None, headers: Vec::new(), timeout: TIMEOUT }
    }

    /// Sets the service name of the program.
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.service = Some(name.into());
        self
    }

    /// Adds a header to each request, such as an API key. `Debug` does not print its value.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the timeout of a request, retries included, and of the last flush; 5 seconds by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Installs this as the program's `tracing` subscriber. A program that already has a subscriber adds a
    /// [layer](Self::layer) to it.
    ///
    /// # Errors
    /// As [`layer`](Self::layer), and [`OtelError::Subscriber`] if a subscriber is installed already.
    pub fn install(self) -> Result<ExporterGuard, OtelError> {
        let (layer, guard) = self.layer::<Registry>()?;
        tracing::subscriber::set_global_default(Registry::default().with(layer))
            .map_err(|source| OtelError::Subscriber { source: Box::new(source) })?;
        Ok(guard)
    }

    /// Returns a layer for the program's own subscriber, and the guard that flushes it. It exports spans of
    /// level INFO and above.
    ///
    /// ```
    /// use stepfold_otel::Exporter;
    /// use tracing_subscriber::layer::SubscriberExt as _;
    ///
    /// let (layer, guard) = Exporter::to("http://localhost:4318").service("my-agent").layer()?;
    /// let subscriber = tracing_subscriber::registry().with(layer); // .with(tracing_subscriber::fmt::layer())
    /// tracing::subscriber::with_default(subscriber, || { /* the program */ });
    /// guard.shutdown()?;
    /// # Ok::<(), stepfold_otel::OtelError>(())
    /// ```
    ///
    /// # Errors
    /// [`OtelError::Address`], [`OtelError::Header`], or [`OtelError::Setup`] if TLS or the thread is not
    /// available. An unreachable collector shows only when spans are sent.
    pub fn layer<S>(self) -> Result<(impl Layer<S> + Send + Sync + 'static, ExporterGuard), OtelError>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync + 'static,
    {
        let provider = self.provider()?;
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("stepfold"))
            // The source location and the thread of a span tell nothing about an agent.
            .with_location(false)
            .with_threads(false)
            // Spans of runs are not entered, so they would all be idle.
            .with_tracked_inactivity(false)
            .with_filter(LevelFilter::INFO);
        Ok((layer, ExporterGuard { provider: Some(provider), timeout: self.timeout }))
    }

    fn provider(&self) -> Result<SdkTracerProvider, OtelError> {
        let headers = self.headers.iter().map(checked_header).collect::<Result<_, _>>()?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(self.endpoint()?)
            .with_headers(headers)
            .with_timeout(self.timeout)
            .with_http_client(client(self.timeout)?)
            .build()
            .map_err(OtelError::setup)?;
        let mut resource = Resource::builder();
        if let Some(service) = &self.service {
            resource = resource.with_service_name(service.clone());
        }
        Ok(SdkTracerProvider::builder().with_resource(resource.build()).with_batch_exporter(exporter).build())
    }

    fn endpoint(&self) -> Result<String, OtelError> {
        let url = reqwest::Url::parse(self.url.trim()).ok().filter(reqwest::Url::has_host);
        if url.is_none_or(|url| !matches!(url.scheme(), "http" | "https")) {
            return Err(OtelError::Address { url: self.url.clone() });
        }
        let base = self.url.trim().trim_end_matches('/');
        Ok(format!("{}{PATH}", base.strip_suffix(PATH).unwrap_or(base)))
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Exporter")
            .field("url", &self.url)
            .field("service", &self.service)
            .field("headers", &headers)
            .field("timeout", &self.timeout)
            .finish()
    }
}

fn checked_header((name, value): &(String, String)) -> Result<(String, String), OtelError> {
    let can_be_sent = HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok();
    match can_be_sent {
        true => Ok((name.clone(), value.clone())),
        false => Err(OtelError::Header { name: name.clone() }),
    }
}

/// A blocking client for the export thread. It must not be created on a thread of an async runtime.
fn client(timeout: Duration) -> Result<reqwest::blocking::Client, OtelError> {
    let make = move || -> Result<_, Box<dyn Error + Send + Sync>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_platform_verifier()?
            .with_no_client_auth();
        let builder = reqwest::blocking::Client::builder()
            .timeout(timeout)
            // A redirected request would carry its headers to another host.
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(tls);
        Ok(builder.build()?)
    };
    let thread = std::thread::Builder::new().spawn(make).map_err(OtelError::setup)?;
    let joined =
        thread.join().unwrap_or_else(|_| Err("the HTTP client panicked during its construction".into()));
    joined.map_err(|source| OtelError::Setup { source })
}

/// Flushes the remaining spans on shutdown or drop. Keep it as long as the program runs.
///
/// Both block the thread: at most five seconds for the flush, then at most the exporter's
/// [timeout](Exporter::timeout).
#[must_use = "dropping the guard flushes the exporter and stops it"]
pub struct ExporterGuard {
    /// `None` after shutdown.
    provider: Option<SdkTracerProvider>,
    timeout: Duration,
}

impl ExporterGuard {
    /// Sends all finished spans; the exporter keeps running.
    ///
    /// # Errors
    /// [`OtelError::Export`] if the collector did not accept them.
    pub fn flush(&self) -> Result<(), OtelError> {
        self.provider.as_ref().map_or(Ok(()), |provider| provider.force_flush().map_err(OtelError::export))
    }

    /// Sends the remaining spans; later ones are not exported.
    ///
    /// # Errors
    /// [`OtelError::Export`] if the collector did not accept them in time.
    pub fn shutdown(mut self) -> Result<(), OtelError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), OtelError> {
        let Some(provider) = self.provider.take() else { return Ok(()) };
        // The library's shutdown does not tell whether the last export failed; its flush does.
        let flushed = provider.force_flush();
        let ended = provider.shutdown_with_timeout(self.timeout);
        flushed.and(ended).map_err(OtelError::export)
    }
}

impl Drop for ExporterGuard {
    fn drop(&mut self) {
        // A caller that needs the result calls `shutdown`.
        let _ = self.end();
    }
}

impl fmt::Debug for ExporterGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Errors of the exporter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtelError {
    /// The collector's address is invalid.
    #[error("invalid collector address `{url}`: expected a base URL such as http://localhost:4318")]
    Address {
        /// The address.
        url: String,
    },
    /// A header is invalid.
    #[error("invalid header `{name}`: its name or value contains a character that HTTP does not allow")]
    Header {
        /// The header's name.
        name: String,
    },
    /// The exporter could not be created.
    #[error("span exporter could not be created: {}", ErrorChain(&**source))]
    Setup {
        /// The cause.
        r#source: Box<dyn Error + Send + Sync>,
    },
    /// The program already has a subscriber.
    #[error(
        "tracing subscriber could not be installed: {}; add `Exporter::layer` to the existing subscriber",
        ErrorChain(&**source)
    )]
    Subscriber {
        /// The error of `tracing`.
        r#source: Box<dyn Error + Send + Sync>,
    },
    /// Spans were not exported.
    #[error("spans could not be exported: {}", ErrorChain(&**source))]
    Export {
        /// The cause.
        r#source: Box<dyn Error + Send + Sync>,
    },
}

impl OtelError {
    fn setup(source: impl Error + Send + Sync + 'static) -> Self {
        OtelError::Setup { source: Box::new(source) }
    }

    fn export(source: impl Error + Send + Sync + 'static) -> Self {
        OtelError::Export { source: Box::new(source) }
    }
}
