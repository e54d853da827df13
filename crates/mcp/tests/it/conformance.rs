//! The conformance suites of the protocol: which scenarios are expected to pass, and the table of
//! `docs/mcp-conformance.md`.
//!
//! `cargo xtask interop` installs the suites. A scenario that is expected to fail has its reason, and fails the test
//! as soon as it passes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::installed::installed;

/// The scenarios of a suite, each with why it is expected to fail, if it is.
pub(crate) type Scenarios = &'static [(&'static str, Option<&'static str>)];

/// An installed suite.
pub(crate) struct Suite {
    program: PathBuf,
    node: PathBuf,
    version: &'static str,
    scenarios: Scenarios,
}

impl Suite {
    /// The suite that this variable names, if it is installed.
    pub(crate) fn installed(variable: &str, version: &'static str, scenarios: Scenarios) -> Option<Self> {
        let (program, node) = (installed(variable)?, installed("STEPFOLD_INTEROP_MCP_CLIENTS")?);
        Some(Suite { program, node, version, scenarios })
    }

    /// Runs every scenario against a side, `client` or `server`, with these arguments, and compares the results with
    /// what is expected and with the page.
    pub(crate) fn check(&self, side: &str, arguments: &[&str]) {
        let folder = tempfile::tempdir().unwrap();
        let results: BTreeMap<_, _> = self
            .scenarios
            .iter()
            .map(|(scenario, _)| (*scenario, self.run(folder.path(), side, arguments, scenario)))
            .collect();
        let is_expected = |(scenario, reason): &(&str, Option<&str>)| {
            results[scenario].status.success() == reason.is_none()
        };
        let unexpected: Vec<_> = self
            .scenarios
            .iter()
            .filter(|expected| !is_expected(expected))
            .map(|(scenario, _)| format!("{scenario}:\n{}", printed(&results[scenario])))
            .collect();
        assert!(
            unexpected.is_empty(),
            "unexpected results of {}:\n{}",
            self.version,
            unexpected.join("\n\n")
        );
        let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/mcp-conformance.md");
        let (page, table) = (std::fs::read_to_string(page).unwrap(), self.table(side, &results));
        assert!(page.contains(&table), "docs/mcp-conformance.md must contain:\n{table}");
    }

    fn run(&self, folder: &Path, side: &str, arguments: &[&str], scenario: &str) -> Output {
        let mut command = Command::new(&self.node);
        command.arg(&self.program).arg(side).args(arguments).args(["--scenario", scenario]);
        command.current_dir(folder).output().unwrap()
    }

    fn table(&self, side: &str, results: &BTreeMap<&str, Output>) -> String {
        let mut table = format!("| {side}, {} | | |\n|---|---|---|\n", self.version);
        for (scenario, reason) in self.scenarios {
            let result = if results[scenario].status.success() { "passes" } else { "fails" };
            writeln!(table, "| `{scenario}` | {result} | {} |", reason.unwrap_or_default()).unwrap();
        }
        table
    }
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
