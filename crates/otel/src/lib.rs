//! Exports spans to an OpenTelemetry collector, by OTLP over HTTP.
//!
//! This joins libraries of exporters and knows nothing of agents: what it exports is whatever the program traces with
//! `tracing` at level INFO or above. In a program of stepfold these are the spans of the loop's `Traces` (a run, its model
//! calls, its tool calls) and those of traced models; the facade has this crate as `stepfold::otel`, by its feature `otel`.
//!
//! # What is absent
//!
//! Metrics, logs, gRPC, and compression.

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

/// What a collector's path for spans is, behind its base URL.
const PATH: &str = "/v1/traces";

/// How long a request, and the last flush, may take unless it is said.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where spans go.
///
/// They are sent in batches, by a thread of its own: up to 2,048 wait, and what comes when so many do is dropped. A
/// program is never held up by its collector, except where it [flushes or ends](Guard). A failed export is an event of
/// `tracing` under the target `opentelemetry_sdk`.
///
/// What is not said here is taken from the environment, by the names that the specification of OpenTelemetry gives:
/// `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`.
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
/// // Dropping it sends the rest as well, but does not report a failure.
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
    /// To the collector at this base URL, such as `http://localhost:4318`. One that ends in `/v1/traces` is taken as
    /// it is.
    pub fn to(url: impl Into<String>) -> Self {
        Exporter { url: url.into(), service: None, headers: Vec::new(), timeout: TIMEOUT }
    }

    /// What the program is called there.
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.service = Some(name.into());
        self
    }

    /// A header of each request, such as a key. `Debug` does not show its value.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// How long a request may take, repetitions included, and how long the last flush; 5 seconds unless said.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes this the program's subscriber of `tracing`. One that has a subscriber already adds a
    /// [layer](Self::layer) to it.
    ///
    /// # Errors
    /// As [`layer`](Self::layer), and [`OtelError::Subscriber`] if there is a subscriber already.
    pub fn install(self) -> Result<Guard, OtelError> {
        let (layer, guard) = self.layer::<Registry>()?;
        tracing::subscriber::set_global_default(Registry::default().with(layer))
            .map_err(|source| OtelError::Subscriber { source: Box::new(source) })?;
        Ok(guard)
    }

    /// A layer for the program's own subscriber, and what flushes it at the end. It lets spans of level INFO and above
    /// through.
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
    /// [`OtelError::Address`], [`OtelError::Header`], or [`OtelError::Setup`] if there is no TLS or no thread to be had.
    /// Whether a collector is there shows only when spans are sent.
    pub fn layer<S>(self) -> Result<(impl Layer<S> + Send + Sync + 'static, Guard), OtelError>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync + 'static,
    {
        let provider = self.provider()?;
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("stepfold"))
            // Where in our code a span is made, and by which thread, tells nothing about an agent.
            .with_location(false)
            .with_threads(false)
            // Spans of runs are not entered, so they would all be idle.
            .with_tracked_inactivity(false)
            .with_filter(LevelFilter::INFO);
        Ok((layer, Guard { provider: Some(provider), timeout: self.timeout }))
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

/// A client that blocks, for the thread that exports. It must not be made on a thread of an async runtime.
fn client(timeout: Duration) -> Result<reqwest::blocking::Client, OtelError> {
    let make = move || -> Result<_, Box<dyn Error + Send + Sync>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_platform_verifier()?
            .with_no_client_auth();
        let builder = reqwest::blocking::Client::builder()
            .timeout(timeout)
            // A redirected request would carry its headers to wherever it is sent.
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(tls);
        Ok(builder.build()?)
    };
    let thread = std::thread::Builder::new().spawn(make).map_err(OtelError::setup)?;
    let joined = thread.join().unwrap_or_else(|_| Err("the HTTP client panicked while it was made".into()));
    joined.map_err(|source| OtelError::Setup { source })
}

/// Sends what is left when it is dropped or shut down. Keep it as long as the program runs.
///
/// Both block the thread, as a program that ends wants it: for five seconds at most, and then for the exporter's
/// [time-out](Exporter::timeout) at most.
#[must_use = "what is not sent yet is sent when this is dropped, and nothing after that"]
pub struct Guard {
    /// None once it was shut down.
    provider: Option<SdkTracerProvider>,
    timeout: Duration,
}

impl Guard {
    /// Sends what has ended until now, and goes on.
    ///
    /// # Errors
    /// [`OtelError::Export`] if the collector did not take it.
    pub fn flush(&self) -> Result<(), OtelError> {
        self.provider.as_ref().map_or(Ok(()), |provider| provider.force_flush().map_err(OtelError::export))
    }

    /// Sends what is left; what is traced after this is not exported.
    ///
    /// # Errors
    /// [`OtelError::Export`] if the collector did not take it in time.
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

impl Drop for Guard {
    fn drop(&mut self) {
        // Whoever wants to know whether it went well calls `shutdown`.
        let _ = self.end();
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Why spans are not exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtelError {
    /// The address of the collector is none.
    #[error("`{url}` is no address of a collector: write its base URL, such as http://localhost:4318")]
    Address {
        /// As it was given.
        url: String,
    },
    /// A header cannot be sent.
    #[error("the header `{name}` cannot be sent: its name or value has a character that HTTP does not allow")]
    Header {
        /// Its name.
        name: String,
    },
    /// The exporter could not be made.
    #[error("the exporter of spans could not be set up: {}", ErrorChain(&**source))]
    Setup {
        /// Why not.
        r#source: Box<dyn Error + Send + Sync>,
    },
    /// The program has a subscriber already.
    #[error(
        "spans cannot be exported by a subscriber of their own: {}; add `Exporter::layer` to the one there is",
        ErrorChain(&**source)
    )]
    Subscriber {
        /// What `tracing` says.
        r#source: Box<dyn Error + Send + Sync>,
    },
    /// Spans were not taken.
    #[error("spans could not be sent to the collector: {}", ErrorChain(&**source))]
    Export {
        /// Why not.
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
