//! `cargo xtask bench`: the benchmarks, all or one.
//!
//! Only bench targets are named, so that libraries do not run their unit tests as benchmarks.

use crate::Error;
use crate::console::say;
use crate::process::CargoCall;
use crate::workspace::{self, Kind, Target};

/// Runs the bench target of this name, or all of them.
///
/// # Errors
/// When there is no such bench, or it fails.
pub fn run(name: Option<&str>) -> Result<(), Error> {
    let metadata = workspace::metadata()?;
    match plan(name, &workspace::targets(&metadata))? {
        Some(call) => call.run(metadata.workspace_root.as_std_path())?,
        None => say("there is no bench target"),
    }
    Ok(())
}

/// The call that runs the bench of this name or all of them; none if there are none.
fn plan(name: Option<&str>, targets: &[Target]) -> Result<Option<CargoCall>, Error> {
    let benches = targets.iter().filter(|target| target.kind == Kind::Bench);
    let known: Vec<&str> = benches.map(|target| target.name.as_str()).collect();
    let chosen = match name {
        None if known.is_empty() => return Ok(None),
        None => known,
        Some(name) if known.contains(&name) => vec![name],
        Some(name) => {
            return Err(Error::UnknownBench { name: name.to_owned(), known: known.join(", ") });
        }
    };
    let mut arguments = vec!["bench", "--workspace", "--all-features"];
    for bench in chosen {
        arguments.extend(["--bench", bench]);
    }
    Ok(Some(CargoCall::new(arguments)))
}

#[cfg(test)]
mod tests {
    use super::{Kind, Target, plan};

    fn targets() -> Vec<Target> {
        let target = |kind, name: &str| Target {
            package: "stepfold-state-core".to_owned(),
            kind,
            name: name.to_owned(),
        };
        vec![
            target(Kind::Bench, "state"),
            target(Kind::Bench, "chat"),
            target(Kind::Other, "stepfold_state_core"),
        ]
    }

    #[test]
    fn all_bench_targets_are_named_and_nothing_else() {
        let call = plan(None, &targets()).unwrap().unwrap().to_string();
        assert_eq!(call, "cargo bench --workspace --all-features --bench state --bench chat");
    }

    #[test]
    fn one_bench_by_name() {
        let call = plan(Some("chat"), &targets()).unwrap().unwrap().to_string();
        assert_eq!(call, "cargo bench --workspace --all-features --bench chat");
    }

    #[test]
    fn no_bench_at_all_runs_nothing() {
        assert_eq!(plan(None, &[]).unwrap(), None);
    }

    #[test]
    fn an_unknown_bench_is_refused_with_what_there_is() {
        let error = plan(Some("chatt"), &targets()).unwrap_err();
        assert_eq!(error.to_string(), "no bench target is named `chatt`; there are: state, chat");
    }
}
