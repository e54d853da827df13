//! The rules of the workspace, as data: the layers, who may use whom, and which libraries stay where.
//!
//! The same table is in `ARCHITECTURE.md`, in words; a test compares the two.

use std::fmt::Write as _;

const STATE_CORE: &str = "stepfold-state-core";
const TOOLS_MACROS: &str = "stepfold-tools-macros";
const TOOLS: &str = "stepfold-tools";
const SESSION_SCOPES: &str = "stepfold-session-scopes";
const PROVIDERS: &str = "stepfold-providers";
const AGENT_LOOP: &str = "stepfold-agent-loop";
const TRIM: &str = "stepfold-trim";
const MCP: &str = "stepfold-mcp";
const OTEL: &str = "stepfold-otel";
const GRAPH: &str = "stepfold-graph";
const RUNNER: &str = "stepfold-runner";
const RESTATE: &str = "stepfold-restate";
const EVAL: &str = "stepfold-eval";
const EXAM: &str = "stepfold-exam";
const SERVER: &str = "stepfold-server";
const TERMINAL: &str = "stepfold-terminal";
const FACADE: &str = "stepfold";
const CLI: &str = "stepfold-cli";
const EXAMPLES: &str = "stepfold-examples";
const XTASK: &str = "xtask";

/// Every crate that may be in the workspace, lowest first.
pub const LAYERS: &[Layer] = &[
    Layer { package: STATE_CORE, folder: "crates/state-core", row: Row::Data, may_use: &[], by_feature: &[] },
    Layer {
        package: TOOLS_MACROS,
        folder: "crates/tools-macros",
        row: Row::Data,
        may_use: &[],
        by_feature: &[],
    },
    Layer {
        package: TOOLS,
        folder: "crates/tools",
        row: Row::Blocks,
        may_use: &[STATE_CORE, TOOLS_MACROS],
        by_feature: &[],
    },
    Layer { package: TRIM, folder: "crates/trim", row: Row::Blocks, may_use: &[STATE_CORE], by_feature: &[] },
    Layer {
        package: SESSION_SCOPES,
        folder: "crates/session-scopes",
        row: Row::Blocks,
        may_use: &[STATE_CORE],
        by_feature: &[],
    },
    Layer {
        package: PROVIDERS,
        folder: "crates/providers",
        row: Row::Blocks,
        may_use: &[STATE_CORE],
        by_feature: &[],
    },
    Layer { package: OTEL, folder: "crates/otel", row: Row::Blocks, may_use: &[STATE_CORE], by_feature: &[] },
    Layer {
        package: AGENT_LOOP,
        folder: "crates/agent-loop",
        row: Row::Loop,
        may_use: &[STATE_CORE, TOOLS, TRIM],
        by_feature: &[],
    },
    Layer {
        package: MCP,
        folder: "crates/mcp",
        row: Row::Loop,
        may_use: &[STATE_CORE, TOOLS],
        by_feature: &[],
    },
    Layer {
        package: GRAPH,
        folder: "crates/graph",
        row: Row::Workflows,
        may_use: &[STATE_CORE, TOOLS, AGENT_LOOP],
        by_feature: &[],
    },
    Layer {
        package: RUNNER,
        folder: "crates/runner",
        row: Row::Sessions,
        may_use: &[STATE_CORE, TOOLS, TRIM, SESSION_SCOPES, AGENT_LOOP],
        by_feature: &[],
    },
    Layer {
        package: EXAM,
        folder: "crates/exam",
        row: Row::Exams,
        may_use: &[STATE_CORE, TOOLS, SESSION_SCOPES, AGENT_LOOP, RUNNER],
        by_feature: &[],
    },
    Layer {
        package: EVAL,
        folder: "crates/eval",
        row: Row::Evaluation,
        may_use: &[STATE_CORE, TOOLS, TRIM, SESSION_SCOPES, AGENT_LOOP, RUNNER],
        by_feature: &[],
    },
    Layer {
        package: SERVER,
        folder: "crates/server",
        row: Row::Hosts,
        may_use: &[STATE_CORE, SESSION_SCOPES, AGENT_LOOP, RUNNER],
        by_feature: &[EVAL],
    },
    Layer {
        package: RESTATE,
        folder: "crates/restate",
        row: Row::Hosts,
        may_use: &[STATE_CORE, SESSION_SCOPES, AGENT_LOOP, RUNNER],
        by_feature: &[],
    },
    Layer {
        package: TERMINAL,
        folder: "crates/terminal",
        row: Row::Terminal,
        may_use: &[STATE_CORE, TOOLS, AGENT_LOOP, RUNNER],
        by_feature: &[],
    },
    Layer {
        package: FACADE,
        folder: "crates/stepfold",
        row: Row::Facade,
        may_use: &[STATE_CORE, TOOLS, TRIM, SESSION_SCOPES, AGENT_LOOP, GRAPH, RUNNER],
        by_feature: &[PROVIDERS, MCP, OTEL, EVAL, EXAM, RESTATE, SERVER, TERMINAL],
    },
    Layer { package: CLI, folder: "crates/cli", row: Row::Programs, may_use: &[FACADE], by_feature: &[] },
    Layer { package: EXAMPLES, folder: "examples", row: Row::Programs, may_use: &[FACADE], by_feature: &[] },
    Layer { package: XTASK, folder: "xtask", row: Row::Programs, may_use: &[], by_feature: &[] },
];

/// Libraries that only some crates may have among their normal dependencies.
pub const FENCES: &[Fence] = &[
    Fence {
        libraries: &["tokio", "async-std", "smol", "async-executor", "rayon"],
        reach: Reach::Tree,
        allowed: &[
            TOOLS,
            SESSION_SCOPES,
            PROVIDERS,
            OTEL,
            AGENT_LOOP,
            GRAPH,
            MCP,
            RUNNER,
            EXAM,
            EVAL,
            RESTATE,
            SERVER,
            TERMINAL,
            FACADE,
            CLI,
            EXAMPLES,
        ],
        reason: "state-core never waits and starts no threads",
    },
    Fence {
        libraries: &["reqwest", "hyper", "ureq", "isahc", "curl", "attohttpc", "async-openai"],
        reach: Reach::Tree,
        // The server serves with it; and through rmcp, whose features `mcp` turns on for both.
        allowed: &[PROVIDERS, OTEL, MCP, RESTATE, SERVER, FACADE, CLI, EXAMPLES],
        reason: "only providers, clients of MCP servers, hosts and exporters of spans talk to the network",
    },
    Fence {
        libraries: &["restate-sdk", "restate-sdk-shared-core"],
        reach: Reach::Tree,
        allowed: &[RESTATE, FACADE, CLI, EXAMPLES],
        reason: "one crate adapts the runner to Restate",
    },
    Fence {
        libraries: &["axum", "axum-core"],
        reach: Reach::Tree,
        allowed: &[SERVER, FACADE, CLI, EXAMPLES],
        reason: "agents are served over HTTP in one place",
    },
    Fence {
        libraries: &["rmcp"],
        reach: Reach::Tree,
        allowed: &[MCP, SERVER, FACADE, CLI, EXAMPLES],
        reason: "the Model Context Protocol is spoken in two places, one for each end",
    },
    Fence {
        libraries: &[
            "rusqlite",
            "libsqlite3-sys",
            "tokio-postgres",
            "deadpool",
            "sqlx",
            "sqlx-core",
            "diesel",
        ],
        reach: Reach::Tree,
        allowed: &[SESSION_SCOPES, RUNNER, EXAM, EVAL, RESTATE, SERVER, TERMINAL, FACADE, CLI, EXAMPLES],
        reason: "only session stores talk to databases",
    },
    Fence {
        libraries: &["anyhow", "eyre", "color-eyre"],
        reach: Reach::Direct,
        allowed: &[CLI, EXAMPLES, XTASK],
        reason: "a library's errors are types that its callers can match on",
    },
    Fence {
        libraries: &["tracing-subscriber", "tracing-opentelemetry", "opentelemetry_sdk", "env_logger"],
        reach: Reach::Direct,
        allowed: &[OTEL, FACADE, CLI, EXAMPLES, XTASK],
        reason: "where traces go is for the program to say, not for a library",
    },
];

/// A crate of the workspace, and whom it may use.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// The package's name.
    pub package: &'static str,
    /// Its folder, from the root of the workspace.
    pub folder: &'static str,
    /// Its row. Dev-dependencies may be any crate of a lower row.
    pub row: Row,
    /// The allowed dependencies, build dependencies included.
    pub may_use: &'static [&'static str],
    /// The further dependencies that are allowed if they are optional.
    pub by_feature: &'static [&'static str],
}

/// The row of a crate in the drawing of `ARCHITECTURE.md`, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// Data that every crate shares.
    Data,
    /// Building blocks that do not know each other.
    Blocks,
    /// Uses tools, knows no sessions.
    Loop,
    /// Plans for the loop.
    Workflows,
    /// The runner, which combines the loop and the sessions.
    Sessions,
    /// Examines stores, runners and agents, in the tests of the rows above it and of users.
    Exams,
    /// Evaluates agents by stored sessions, for the rows above it.
    Evaluation,
    /// Serves runners to others.
    Hosts,
    /// The output of runs at a terminal.
    Terminal,
    /// Re-exports.
    Facade,
    /// Programs. They use the facade and nothing else of ours, in tests as well.
    Programs,
}

/// Libraries and the crates that may have them.
#[derive(Clone, Copy, Debug)]
pub struct Fence {
    /// The libraries, by package name.
    pub libraries: &'static [&'static str],
    /// The reach of the rule.
    pub reach: Reach,
    /// The crates of ours that may have them.
    pub allowed: &'static [&'static str],
    /// The reason for the rule.
    pub reason: &'static str,
}

/// The reach of a rule about libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only at what a crate itself names as a dependency: what a library does inside is its own affair.
    Direct,
    /// At everything that is built with the crate.
    Tree,
}

/// The layer of this package.
pub fn layer(package: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|layer| layer.package == package)
}

/// The table "who may use whom" as Markdown, as it stands in `ARCHITECTURE.md`.
pub fn table() -> String {
    let mut table = String::from("| crate | may use |\n|---|---|\n");
    for layer in LAYERS {
        let plain = layer.may_use.iter().map(|used| format!("`{used}`"));
        let optional = layer.by_feature.iter();
        let optional = optional.map(|used| format!("`{used}` (optional)"));
        let used: Vec<String> = plain.chain(optional).collect();
        let used = match used.len() {
            0 => "nothing of ours".to_owned(),
            _ => used.join(", "),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| `{}` | {used} |", layer.package);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{FENCES, LAYERS, layer};

    #[test]
    fn every_arrow_of_the_table_points_down() {
        for upper in LAYERS {
            for used in upper.may_use.iter().chain(upper.by_feature) {
                let lower = layer(used).expect("a layer uses only layers of the table");
                assert!(lower.row < upper.row, "{} uses {used}, which is not below it", upper.package);
            }
        }
    }

    #[test]
    fn folder_x_holds_package_stepfold_x() {
        for layer in LAYERS {
            let folder = layer.folder.rsplit('/').next().unwrap_or_default();
            let is_named_alike = layer.package == format!("stepfold-{folder}");
            let is_named_by_itself =
                ["stepfold", "xtask"].contains(&layer.package) && folder == layer.package;
            assert!(is_named_alike || is_named_by_itself, "{layer:?}");
        }
    }

    #[test]
    fn fences_name_crates_of_the_table() {
        for fence in FENCES {
            for allowed in fence.allowed {
                assert!(layer(allowed).is_some(), "{allowed} is not in the table");
            }
        }
    }
}
