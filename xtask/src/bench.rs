//! `cargo xtask bench`: the benchmarks, all or one.
//!
//! Only bench targets are named, so that libraries do not run their unit tests as benchmarks.

use std::fs;
use std::path::Path;

use crate::Error;
use crate::console::say;
use crate::process::Call;
use crate::workspace::{self, Kind, Target};

/// Runs the bench target of this name, or all of them; `studio` is a script.
///
/// # Errors
/// When there is no such bench, or it fails.
pub fn run(name: Option<&str>) -> Result<(), Error> {
    let metadata = workspace::metadata()?;
    if name == Some("studio") {
        return studio(metadata.workspace_root.as_std_path(), metadata.target_directory.as_std_path());
    }
    match plan(name, &workspace::targets(&metadata))? {
        Some(call) => {
            let printed = call.run_and_read(metadata.workspace_root.as_std_path())?;
            say(table(&printed));
        }
        None => say("there is no bench target"),
    }
    Ok(())
}

/// Measures the studio in Chromium, with what `cargo xtask interop` has installed.
fn studio(root: &Path, target: &Path) -> Result<(), Error> {
    Call::cargo(["build", "--release", "-p", "stepfold-cli", "--all-features"]).run(root)?;
    let folder = target.join("bench-studio");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Error::write(&folder))?;
    }
    fs::create_dir_all(&folder).map_err(Error::write(&folder))?;
    let script = root.join("crates/cli/tests/interop/studio_bench.cjs");
    let program = target.join("release/stepfold");
    let playwright = target.join("interop/playwright/node_modules/playwright-core");
    let arguments = [script.to_string_lossy(), "/usr/bin/chromium".into(), program.to_string_lossy()];
    let call = Call::program("node", arguments.iter().map(|argument| &**argument));
    call.env("STEPFOLD_INTEROP_PLAYWRIGHT", playwright.to_string_lossy()).run(&folder)?;
    Ok(())
}

/// The call that runs the bench of this name or all of them; none if there are none.
fn plan(name: Option<&str>, targets: &[Target]) -> Result<Option<Call>, Error> {
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
    Ok(Some(Call::cargo(arguments)))
}

/// The median of every measurement, of all benchmarks in one table, in Markdown.
///
/// An iteration of a fast operation makes many; what is done in a second is in the line below it then.
fn table(printed: &str) -> String {
    let mut rows: Vec<[String; 3]> = Vec::new();
    let mut path: Vec<&str> = Vec::new();
    for line in printed.lines() {
        // From the right: the tree on the left is drawn with the same character.
        let cells: Vec<&str> = line.rsplitn(6, '│').collect();
        let [_, _, _, median, _, head] = *cells else { continue };
        let (median, label) = (median.trim(), head.trim_start_matches(['├', '─', '╰', '│', ' ']));
        let name = label.split("  ").next().unwrap_or_default();
        if median == "median" {
            path = vec![name];
        } else if head.contains('─') {
            path.truncate((head.chars().count() - label.chars().count()) / 3);
            path.push(name);
            if !median.is_empty() {
                rows.push([path.join(" / "), median.to_owned(), String::new()]);
            }
        } else if let (false, Some([.., rate])) = (median.is_empty(), rows.last_mut()) {
            median.clone_into(rate);
        }
    }
    let head = ["| measurement | median | in a second |".to_owned(), "|---|---|---|".to_owned()];
    let rows = rows.iter().map(|[name, median, rate]| format!("| {name} | {median} | {rate} |"));
    head.into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::{Kind, Target, plan, table};

    #[test]
    fn the_medians_of_all_benchmarks_are_one_table() {
        let printed = "\
Timer precision: 19 ns
state            fastest       │ slowest       │ median        │ mean          │ samples │ iters
├─ append                      │               │               │               │         │
│  ├─ 10         120.1 ns      │ 1.2 µs        │ 130.4 ns      │ 131 ns        │ 100     │ 6400
│  ╰─ 100000     121 ns        │ 1.3 µs        │ 131 ns        │ 132 ns        │ 100     │ 6400
│                1.1 GB/s      │ 0.1 GB/s      │ 1.0 GB/s      │ 1.0 GB/s      │         │
╰─ snapshot      5 ns          │ 9 ns          │ 6 ns          │ 6 ns          │ 100     │ 6400

     Running benches/run.rs
run              fastest       │ slowest       │ median        │ mean          │ samples │ iters
╰─ a_step        5 µs          │ 9 µs          │ 6.5 µs        │ 6 µs          │ 100     │ 6400
";
        expect_test::expect![[r"
            | measurement | median | in a second |
            |---|---|---|
            | state / append / 10 | 130.4 ns |  |
            | state / append / 100000 | 131 ns | 1.0 GB/s |
            | state / snapshot | 6 ns |  |
            | run / a_step | 6.5 µs |  |"]]
        .assert_eq(&table(printed));
    }

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
