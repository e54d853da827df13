//! A switch that forbids requests that leave this machine.

use std::sync::atomic::{AtomicUsize, Ordering};

use stepfold_state_core::chat::{ModelError, ModelErrorKind};

/// The number of live guards.
static FORBIDDEN: AtomicUsize = AtomicUsize::new(0);

/// Forbids HTTP models to connect to other machines as long as the guard lives, in the whole process.
///
/// For the beginning of a test: a request to anything but this machine fails with an error of kind
/// [`Unsupported`](ModelErrorKind::Unsupported) before a socket is opened. Servers on loopback addresses
/// stay within reach. Setting the environment variable `STEPFOLD_FORBID_REAL_REQUESTS` to anything but `0`
/// does the same for a whole run of tests.
///
/// # Examples
/// ```
/// let _offline = stepfold_providers::forbid_real_requests();
/// ```
#[must_use = "requests are forbidden only as long as the guard lives"]
pub fn forbid_real_requests() -> OfflineGuard {
    FORBIDDEN.fetch_add(1, Ordering::SeqCst);
    OfflineGuard(())
}

/// Blocks real requests until dropped; see [`forbid_real_requests`].
#[derive(Debug)]
pub struct OfflineGuard(());

impl Drop for OfflineGuard {
    fn drop(&mut self) {
        FORBIDDEN.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Checks that a request to this URL is allowed.
pub(super) fn check(url: &reqwest::Url) -> Result<(), ModelError> {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    // NOTE: Names are not resolved: a lookup would be a request to another machine.
    let is_here = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
    if is_here || (FORBIDDEN.load(Ordering::SeqCst) == 0 && !is_forbidden_by_environment()) {
        return Ok(());
    }
    let message = format!(
        "real requests are forbidden, found one for {host}; use a cassette, a scripted model or a server on this machine"
    );
    Err(ModelError::new(ModelErrorKind::Unsupported, message))
}

#[expect(clippy::disallowed_methods, reason = "tests forbid requests by an environment variable")]
fn is_forbidden_by_environment() -> bool {
    std::env::var_os("STEPFOLD_FORBID_REAL_REQUESTS").is_some_and(|value| value != "0" && !value.is_empty())
}
