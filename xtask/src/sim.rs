//! `cargo xtask sim`: simulated runs of agents, by the thousand.
//!
//! It runs the loop's simulations with as many cases as it is told; `cargo test` runs some hundred of each.

use crate::Error;
use crate::cli::SimOptions;
use crate::console::say;
use crate::process::Call;
use crate::workspace;

/// Simulates.
///
/// # Errors
/// A simulation failed; its output has the case.
pub fn run(options: SimOptions) -> Result<(), Error> {
    let metadata = workspace::metadata()?;
    let call = call(options);
    say(format_args!("   {call}"));
    Ok(call.run(metadata.workspace_root.as_std_path())?)
}

/// The tests, in the build that the stages of `ci` share.
fn call(options: SimOptions) -> Call {
    let tests = ["test", "--workspace", "--all-features", "--test", "it", "simulated", "--", "--nocapture"];
    let call = Call::cargo(tests).env("PROPTEST_CASES", options.runs.to_string());
    match options.seed {
        Some(seed) => call.env("PROPTEST_RNG_SEED", seed.to_string()),
        None => call,
    }
}

#[cfg(test)]
mod tests {
    use super::{SimOptions, call};

    #[test]
    fn what_is_run() {
        const TESTS: &str = "cargo test --workspace --all-features --test it simulated -- --nocapture";
        let by_chance = call(SimOptions { runs: 500, seed: None }).to_string();
        assert_eq!(by_chance, format!("PROPTEST_CASES='500' {TESTS}"));
        let again = call(SimOptions { runs: 500, seed: Some(7) }).to_string();
        assert_eq!(again, format!("PROPTEST_CASES='500' PROPTEST_RNG_SEED='7' {TESTS}"));
    }
}
