//! What simulations share: a runtime whose time is paused, and the number of cases.

use proptest::test_runner::Config;

/// Runs in a runtime of its own, whose time passes only while all wait for it.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(future)
}

/// As many cases as there are by default, which `cargo xtask ci --long` raises.
pub(crate) fn config() -> Config {
    Config { failure_persistence: None, ..Config::default() }
}

/// The name of a variant.
pub(crate) fn kind(words: &str) -> String {
    words.chars().take_while(|c| c.is_alphanumeric()).collect()
}
