//! Where traces go: to standard error, as much as `-v` or `RUST_LOG` ask for, and spans to a collector if there is one.

use std::io::IsTerminal as _;

use stepfold::otel::{Exporter, Guard, OtelError};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt};

/// `RUST_LOG` wins over `-vv`; without both there are warnings only.
///
/// The returned guard sends the remaining spans at its end.
pub(crate) fn start(verbose: u8, collector: Option<&str>) -> Result<Option<Guard>, OtelError> {
    let rust_log = crate::environment::variable("RUST_LOG").and_then(|filter| filter.into_string().ok());
    let filter = rust_log.filter(|filter| !filter.trim().is_empty()).unwrap_or_else(|| {
        match verbose {
            // An export that failed is told at the end, in words. An agent file shows whether there are tools.
            // What fails with an MCP server is an error of ours.
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
        Some(url) => {
            let (spans, guard) = Exporter::to(url).service("stepfold").layer()?;
            notes.with(spans).init();
            Ok(Some(guard))
        }
    }
}
