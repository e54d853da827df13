//! `cargo xtask ci`: every check, cheapest first, stopping at the first failure.
//!
//! One pure function, `work`, decides what each stage runs; the rest of this file runs it and keeps
//! the time. The cargo calls select the whole workspace with every feature on wherever they can: another
//! selection resolves features again, and builds a second time. `cargo run` always selects one package; so the
//! examples are built with the workspace, and started as programs.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::cli::{ApiOptions, CiOptions, TidyOptions};
use crate::console::say;
use crate::postgres::{self, Postgres};
use crate::process::{Call, has_cargo_command};
use crate::workspace::{self, Kind, Target};
use crate::{Error, api, interop, layers, tidy};

/// One check of `ci`, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// The source is formatted.
    Format,
    /// Checks that no compiler does, as `cargo xtask tidy`.
    Tidy,
    /// The allowed dependencies, as `cargo xtask layers`.
    Layers,
    /// Licences, bans and sources of what we depend on, when cargo-deny is installed.
    Deny,
    /// No warning of Clippy or the compiler.
    Clippy,
    /// All tests but those in documentation.
    Test,
    /// The tests in documentation.
    DocTest,
    /// The documentation builds without a warning, and the public items are those of the checked-in lists, as
    /// `cargo xtask api`.
    Docs,
    /// Peers that others wrote understand us, as `cargo xtask interop`.
    Interop,
    /// Every example program runs.
    Examples,
    /// The library tests of `state-core` with no feature, where types are checked in another way.
    Bare,
}

/// The name that `--only` takes.
impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// Runs the stages.
///
/// # Errors
/// The first stage that failed, and how to run it again alone.
pub fn run(options: &CiOptions) -> Result<(), Error> {
    let metadata = workspace::metadata()?;
    let root = metadata.workspace_root.as_std_path();
    let plan = Plan {
        cases: options.into(),
        tools: Tools::installed(),
        targets: workspace::targets(&metadata),
        programs: metadata.target_directory.join("debug").into_string(),
    };
    let start = now();
    let mut report = Vec::new();
    // Peers come over the network, while this machine compiles.
    let mut ahead = (options.only.is_none() && is_chosen(Stage::Interop, *options))
        .then(|| interop::install_ahead(&metadata));
    for &stage in Stage::value_variants() {
        if is_chosen(stage, *options) {
            if stage == Stage::Interop
                && let Some(ahead) = ahead.take()
            {
                ahead.wait();
            }
            report.push(run_stage(stage, &plan, root)?);
        }
    }
    say(summary(&report, start.elapsed()));
    Ok(())
}

/// Returns whether a stage runs.
fn is_chosen(stage: Stage, options: CiOptions) -> bool {
    let takes_long =
        matches!(stage, Stage::DocTest | Stage::Docs | Stage::Interop | Stage::Examples | Stage::Bare);
    options.only.is_none_or(|only| only == stage) && !(options.fast && takes_long)
}

/// The cases of each property test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cases {
    Few,
    Usual,
    Many,
}

impl From<&CiOptions> for Cases {
    fn from(options: &CiOptions) -> Self {
        match (options.fast, options.long) {
            (true, _) => Cases::Few,
            (_, true) => Cases::Many,
            _ => Cases::Usual,
        }
    }
}

impl Cases {
    /// None for as many as proptest runs by itself.
    const fn number(self) -> Option<&'static str> {
        match self {
            Cases::Few => Some("16"),
            Cases::Usual => None,
            Cases::Many => Some("10000"),
        }
    }
}

/// Runs one stage and says how it went.
fn run_stage(stage: Stage, plan: &Plan, root: &Path) -> Result<Ran, Error> {
    let start = now();
    say(format_args!("== {stage}"));
    let work = work(stage, plan);
    if let Some(note) = &work.note {
        say(format_args!("   {note}"));
    }
    perform(&work.acts, root).map_err(|source| Error::Stage {
        stage,
        again: again(stage, plan.cases),
        source: Box::new(source),
    })?;
    let ran = Ran { stage, took: (!work.acts.is_empty()).then(|| start.elapsed()) };
    say(format_args!("== {ran}"));
    Ok(ran)
}

/// A stage that is done.
struct Ran {
    stage: Stage,
    /// None when there was nothing to do.
    took: Option<Duration>,
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.took {
            Some(took) => write!(f, "{} {}", self.stage, seconds(took)),
            None => write!(f, "{} skipped", self.stage),
        }
    }
}

fn perform(acts: &[Act], root: &Path) -> Result<(), Error> {
    for act in acts {
        match act {
            Act::Tidy => tidy::run(TidyOptions::default())?,
            Act::Layers => layers::run()?,
            Act::InstallPostgres => postgres::install(),
            Act::Api => api::run(ApiOptions::default())?,
            Act::Interop => interop::run()?,
            Act::Run(call) => {
                say(format_args!("   {call}"));
                call.run(root)?;
            }
        }
    }
    Ok(())
}

/// The work of a stage, with a note for readers.
#[derive(Debug, Default)]
struct Work {
    acts: Vec<Act>,
    note: Option<String>,
}

/// One thing to do.
#[derive(Debug)]
enum Act {
    Tidy,
    Layers,
    InstallPostgres,
    Api,
    Interop,
    Run(Call),
}

/// All that decides what a stage does.
#[derive(Debug)]
struct Plan {
    cases: Cases,
    tools: Tools,
    targets: Vec<Target>,
    /// The folder of built programs.
    programs: String,
}

/// The optional tools that are installed.
#[derive(Clone, Copy, Debug)]
struct Tools {
    nextest: bool,
    deny: bool,
    postgres: Postgres,
}

impl Tools {
    fn installed() -> Self {
        Tools {
            nextest: has_cargo_command("nextest"),
            deny: has_cargo_command("deny"),
            postgres: Postgres::look(),
        }
    }
}

/// The work of this stage.
fn work(stage: Stage, plan: &Plan) -> Work {
    match stage {
        Stage::Format => cargo(&["fmt", "--all", "--check"]),
        Stage::Tidy => only(Act::Tidy),
        Stage::Layers => only(Act::Layers),
        Stage::Deny => deny(plan.tools),
        Stage::Clippy => {
            cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"])
        }
        Stage::Test => with_postgres(plan.tools, tests(plan, &["--workspace", "--all-features"])),
        Stage::DocTest => cargo(&["test", "--doc", "--workspace", "--all-features"]),
        Stage::Docs => only(Act::Api),
        Stage::Interop => only(Act::Interop),
        Stage::Examples => examples(plan),
        Stage::Bare => bare(plan),
    }
}

fn only(act: Act) -> Work {
    Work { acts: vec![act], note: None }
}

fn cargo(arguments: &[&str]) -> Work {
    only(Act::Run(Call::cargo(arguments.iter().copied())))
}

fn deny(tools: Tools) -> Work {
    if tools.deny {
        // Advisories change without us and need the network: the workflow looks at them.
        cargo(&["deny", "check", "licenses", "bans", "sources"])
    } else {
        Work {
            acts: Vec::new(),
            note: Some(
                "skipped: cargo-deny is not installed (`cargo install cargo-deny --locked`)".to_owned(),
            ),
        }
    }
}

/// The seed of generated cases, so that a commit passes or fails whatever the moment. `--long` and `cargo test` draw new
/// cases.
const SEED: &str = "1";

fn tests(plan: &Plan, selection: &[&str]) -> Work {
    let (runner, note) = if plan.tools.nextest {
        (&["nextest", "run"][..], None)
    } else {
        let note =
            "cargo-nextest is not installed (`cargo install cargo-nextest --locked`): using `cargo test`";
        (&["test"][..], Some(note.to_owned()))
    };
    let mut call = Call::cargo(runner.iter().chain(selection).copied());
    // Doc tests have a stage of their own.
    if !plan.tools.nextest && !selection.contains(&"--lib") {
        let targets = ["--lib", "--bins", "--tests", "--examples"];
        call.arguments.extend(targets.map(str::to_owned));
    }
    if let Some(cases) = plan.cases.number() {
        call = call.env("PROPTEST_CASES", cases);
    }
    if plan.cases != Cases::Many {
        call = call.env("PROPTEST_RNG_SEED", SEED);
    }
    Work { acts: vec![Act::Run(call)], note }
}

/// Some tests start a server of PostgreSQL. Where there is none they say that they were skipped.
fn with_postgres(tools: Tools, mut work: Work) -> Work {
    let note = match tools.postgres {
        Postgres::Installed => return work,
        Postgres::Installable => {
            work.acts.insert(0, Act::InstallPostgres);
            "PostgreSQL is not installed: installing Debian's package `postgresql`"
        }
        Postgres::Missing => {
            "PostgreSQL is not installed, and installing it takes root and `apt-get`: its tests are skipped"
        }
    };
    work.note = Some(match work.note {
        Some(other) => format!("{other}; {note}"),
        None => note.to_owned(),
    });
    work
}

/// `state-core` by itself, with no feature on: its type checks differ then.
fn bare(plan: &Plan) -> Work {
    let package = ["--package", "stepfold-state-core"];
    let call = |before: &[&str], after: &[&str]| {
        Act::Run(Call::cargo(before.iter().chain(&package).chain(after).copied()))
    };
    let mut work = tests(plan, &["--package", "stepfold-state-core", "--lib", "--tests"]);
    work.acts.insert(0, call(&["clippy"], &["--all-targets", "--", "-D", "warnings"]));
    work.acts.insert(1, call(&["test", "--doc"], &[]));
    work
}

/// The crate whose programs are examples.
const EXAMPLES: &str = "stepfold-examples";

fn examples(plan: &Plan) -> Work {
    let is_example = |target: &&Target| match target.kind {
        Kind::Example => true,
        Kind::Binary => target.package == EXAMPLES,
        _ => false,
    };
    // The build that the tests have made; nothing is compiled again.
    let build = Call::cargo(["build", "--workspace", "--all-features", "--bins", "--examples"]);
    let mut acts = vec![Act::Run(build)];
    acts.extend(plan.targets.iter().filter(is_example).map(|example| run_example(example, &plan.programs)));
    Work { note: Some(format!("{} example(s) to run", acts.len() - 1)), acts }
}

fn run_example(example: &Target, programs: &str) -> Act {
    let suffix = std::env::consts::EXE_SUFFIX;
    Act::Run(match example.kind {
        // The main ones talk to a real model where there is a key.
        Kind::Binary => Call::program(&format!("{programs}/{}{suffix}", example.name), ["--replay"]),
        _ => Call::program(&format!("{programs}/examples/{}{suffix}", example.name), [""; 0]),
    })
}

/// The command that runs only this stage.
fn again(stage: Stage, cases: Cases) -> String {
    let long = if cases == Cases::Many { " --long" } else { "" };
    format!("cargo xtask ci{long} --only {stage}")
}

/// The closing line.
fn summary(report: &[Ran], total: Duration) -> String {
    let stages: Vec<String> = report.iter().map(Ran::to_string).collect();
    format!("ci passed in {}: {}", seconds(total), stages.join(", "))
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[expect(clippy::disallowed_methods, reason = "the time that a stage takes is of the machine, not of a run")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn plan(long: bool, installed: bool, examples: &[(&str, &str)]) -> Plan {
        let target = |&(package, name): &(&str, &str)| Target {
            package: package.to_owned(),
            kind: Kind::Example,
            name: name.to_owned(),
        };
        Plan {
            cases: if long { Cases::Many } else { Cases::Usual },
            tools: Tools {
                nextest: installed,
                deny: installed,
                postgres: if installed { Postgres::Installed } else { Postgres::Missing },
            },
            targets: examples.iter().map(target).collect(),
            programs: "target/debug".to_owned(),
        }
    }

    /// The work of every stage, as text.
    fn check(plan: &Plan, expected: &Expect) {
        let mut lines = Vec::new();
        for &stage in Stage::value_variants() {
            let work = work(stage, plan);
            lines.push(stage.to_string());
            lines.extend(work.note.map(|note| format!("    # {note}")));
            lines.extend(work.acts.iter().map(|act| match act {
                Act::Run(call) => format!("    {call}"),
                Act::Tidy => "    tidy".to_owned(),
                Act::Layers => "    layers".to_owned(),
                Act::InstallPostgres => "    install PostgreSQL".to_owned(),
                Act::Api => "    api".to_owned(),
                Act::Interop => "    interop".to_owned(),
            }));
        }
        let text = lines.join("\n") + "\n";
        expected.assert_eq(&text);
    }

    #[test]
    fn with_all_tools_and_long() {
        check(
            &plan(true, true, &[("stepfold", "tour"), ("stepfold-examples", "chat")]),
            &expect![[r#"
                format
                    cargo fmt --all --check
                tidy
                    tidy
                layers
                    layers
                deny
                    cargo deny check licenses bans sources
                clippy
                    cargo clippy --workspace --all-targets --all-features -- -D warnings
                test
                    PROPTEST_CASES='10000' cargo nextest run --workspace --all-features
                doc-test
                    cargo test --doc --workspace --all-features
                docs
                    api
                interop
                    interop
                examples
                    # 2 example(s) to run
                    cargo build --workspace --all-features --bins --examples
                    target/debug/examples/tour
                    target/debug/examples/chat
                bare
                    cargo clippy --package stepfold-state-core --all-targets -- -D warnings
                    cargo test --doc --package stepfold-state-core
                    PROPTEST_CASES='10000' cargo nextest run --package stepfold-state-core --lib --tests
            "#]],
        );
    }

    #[test]
    fn without_tools_it_says_so_and_continues() {
        check(
            &plan(false, false, &[("stepfold", "tour"), ("stepfold-examples", "tour")]),
            &expect![[r#"
                format
                    cargo fmt --all --check
                tidy
                    tidy
                layers
                    layers
                deny
                    # skipped: cargo-deny is not installed (`cargo install cargo-deny --locked`)
                clippy
                    cargo clippy --workspace --all-targets --all-features -- -D warnings
                test
                    # cargo-nextest is not installed (`cargo install cargo-nextest --locked`): using `cargo test`; PostgreSQL is not installed, and installing it takes root and `apt-get`: its tests are skipped
                    PROPTEST_RNG_SEED='1' cargo test --workspace --all-features --lib --bins --tests --examples
                doc-test
                    cargo test --doc --workspace --all-features
                docs
                    api
                interop
                    interop
                examples
                    # 2 example(s) to run
                    cargo build --workspace --all-features --bins --examples
                    target/debug/examples/tour
                    target/debug/examples/tour
                bare
                    # cargo-nextest is not installed (`cargo install cargo-nextest --locked`): using `cargo test`
                    cargo clippy --package stepfold-state-core --all-targets -- -D warnings
                    cargo test --doc --package stepfold-state-core
                    PROPTEST_RNG_SEED='1' cargo test --package stepfold-state-core --lib --tests
            "#]],
        );
    }

    #[test]
    fn postgresql_is_installed_before_the_tests_where_that_is_ours_to_do() {
        let mut plan = plan(false, true, &[]);
        plan.tools.postgres = Postgres::Installable;
        let work = work(Stage::Test, &plan);
        assert!(matches!(work.acts[..], [Act::InstallPostgres, Act::Run(_)]), "{work:?}");
        assert!(work.note.is_some_and(|note| note.contains("`postgresql`")));
    }

    #[test]
    fn the_programs_of_the_examples_are_run_and_no_others() {
        let target = |package: &str, name: &str| Target {
            package: package.to_owned(),
            kind: Kind::Binary,
            name: name.to_owned(),
        };
        let targets = vec![target("stepfold-cli", "stepfold"), target("stepfold-examples", "analyst")];
        let work = examples(&Plan { targets, ..plan(false, true, &[]) });
        let [_, Act::Run(call)] = &work.acts[..] else { panic!("{work:?}") };
        expect!["target/debug/analyst --replay"].assert_eq(&call.to_string());
    }

    #[test]
    fn fast_leaves_stages_out() {
        let chosen = |options: CiOptions| {
            let stages = Stage::value_variants().iter().filter(|stage| is_chosen(**stage, options));
            stages.map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let fast = CiOptions { fast: true, ..CiOptions::default() };
        assert_eq!(chosen(fast), "format tidy layers deny clippy test");
        assert_eq!(Cases::from(&fast).number(), Some("16"));
        let only = CiOptions { only: Some(Stage::Docs), ..CiOptions::default() };
        assert_eq!(chosen(only), "docs");
        assert!(chosen(CiOptions::default()).ends_with("doc-test docs interop examples bare"));
    }

    #[test]
    fn a_failure_says_how_to_run_the_stage_again() {
        let error = Error::Stage {
            stage: Stage::DocTest,
            again: again(Stage::DocTest, Cases::Many),
            source: Box::new(Error::NoResolve),
        };
        assert_eq!(
            error.to_string(),
            "stage `doc-test` failed (alone again: `cargo xtask ci --long --only doc-test`)"
        );
    }

    #[test]
    fn the_closing_line_lists_the_stages_and_the_total() {
        let ran =
            |stage, milliseconds: Option<u64>| Ran { stage, took: milliseconds.map(Duration::from_millis) };
        let report = [ran(Stage::Format, Some(240)), ran(Stage::Tidy, Some(1100)), ran(Stage::Deny, None)];
        assert_eq!(
            summary(&report, Duration::from_secs(2)),
            "ci passed in 2.0 s: format 0.2 s, tidy 1.1 s, deny skipped"
        );
    }
}
