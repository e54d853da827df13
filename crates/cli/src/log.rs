//! Traces go to standard error, filtered by `-v` or `RUST_LOG`; spans go to a collector, if there is one.

use std::io::IsTerminal as _;

use stepfold::otel::{Exporter, ExporterGuard, OtelError};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt};

/// Starts the log. `RUST_LOG` overrides `-vv`; without both only warnings are shown.
///
/// The returned guard sends the remaining spans when it is shut down.
pub(crate) fn start(verbose: u8, collector: Option<&str>) -> Result<Option<ExporterGuard>, OtelError> {
    let rust_log = crate::environment::variable("RUST_LOG").and_then(|filter| filter.into_string().ok());
    let filter = rust_log.filter(|filter| !filter.trim().is_empty()).unwrap_or_else(|| {
        match verbose {
            // NOTE: The exporter, rmcp and the agent are silent here, since the command reports their failures itself: a
            // failed export at its end, a failed MCP server as an error, an agent without tools by its file.
            0 | 1 => "warn,opentelemetry_sdk=off,rmcp=off,stepfold_agent_loop::agent=error",
            2 => "warn,stepfold=info",
            3 => "info,stepfold=debug",
            _ => "trace",
        }
        .to_owned()
    });
    let notes = fmt::layer()
        .with_writer(|| crate::show::TraceWriter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter(EnvFilter::new(filter));
    let notes = Registry::default().with(notes);
    match collector {
        None => {
            notes.init();
            Ok(None)
        }
        // NOTE: Not from `OTEL_EXPORTER_OTLP_ENDPOINT`, which may be set for other programs and name a port that speaks
        // gRPC (`docs/decisions/command.md`).
        Some(url) => {
            let (spans, guard) = Exporter::to(url).service("stepfold").layer()?;
            notes.with(spans).init();
            Ok(Some(guard))
        }
    }
}
