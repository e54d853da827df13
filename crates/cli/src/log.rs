//! Where traces go: to standard error, as much as `-v` or `RUST_LOG` ask for.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// `RUST_LOG` wins over `-v`; without both there are warnings only.
pub(crate) fn start(verbose: u8) {
    let asked = crate::environment("RUST_LOG").and_then(|filter| filter.into_string().ok());
    let filter = asked.filter(|filter| !filter.trim().is_empty()).unwrap_or_else(|| {
        match verbose {
            0 => "warn",
            1 => "warn,stepfold=info",
            2 => "info,stepfold=debug",
            _ => "trace",
        }
        .to_owned()
    });
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
