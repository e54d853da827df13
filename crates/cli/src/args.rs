//! The command line.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use stepfold::runner::WhenClaimed;
use stepfold::terminal::Color;

use crate::head::Head;

/// Run agents and graphs from files, in durable sessions.
///
/// A file with nodes is a graph; commands accept it like an agent. `stepfold serve --demo` shows sessions in a browser,
/// without an API key.
///
/// Exit status: 0 success; 1 failure (a run can be resumed); 2 invalid command line or agent file; 3 the run waits for
/// decisions; 4 the run ended without an answer (a limit, a refusal); 130 interrupted; 143 and 129 ended by SIGTERM or
/// SIGHUP (a run can be resumed).
#[derive(Debug, Parser)]
#[command(name = "stepfold", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Args {
    /// Print JSON: one object, or one object per line for a sequence of events.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Show arguments and results of calls in full; repeated, also traces. RUST_LOG filters traces.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// When to show colors.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) color: When,
    /// Send spans of runs, model calls and tool calls to the OpenTelemetry collector at this URL, by OTLP over HTTP.
    #[arg(long, global = true, value_name = "URL", env = "STEPFOLD_OTLP")]
    pub(crate) otlp: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ask an agent one question.
    Run {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        asked: Asked,
        /// The question; `-` reads it from standard input.
        question: String,
        /// Values to write to the state first, as KEY=JSON; text that is not JSON is a string.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
        /// Idempotency key of the question: a repeat with the same key runs nothing and shows the outcome again. Requires
        /// `--session`.
        #[arg(long, value_name = "KEY", requires = "session")]
        key: Option<String>,
        /// A resource of an MCP server of the agent, as SERVER:URI, sent with the question. Repeatable.
        #[arg(long = "resource", value_name = "SERVER:URI")]
        resources: Vec<String>,
    },
    /// Chat with an agent: each line is a turn.
    Chat {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        asked: Asked,
    },
    /// Serve an agent as a tool of the Model Context Protocol, on standard input and output.
    Mcp {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        asked: Asked,
    },
    /// Serve agents over HTTP: an API of their sessions, with a live stream of each.
    ///
    /// Prints its address, with a token that is valid until the server stops. The address opens the studio, a page that
    /// shows sessions. SIGTERM and Ctrl-C shut it down gracefully: active runs get some time to complete, and the next
    /// process resumes the others.
    Serve(Serve),
    /// Create a token for `serve --tokens`: prints the token, and the line with its hash for the file.
    Token {
        /// The user whose sessions it opens.
        #[arg(long, value_name = "ID", default_value = "local")]
        user: String,
        /// What it may do.
        #[arg(long, value_enum, default_value_t)]
        role: TokenRole,
        /// The name to record for decisions; by default the user.
        #[arg(long)]
        name: Option<String>,
    },
    /// List the sessions of an agent.
    Sessions {
        #[command(flatten)]
        place: Place,
        /// Maximum number of sessions to list.
        #[arg(long, default_value = "20")]
        limit: NonZeroUsize,
    },
    /// Show a session: its log, and its state with the write that set each key.
    Inspect {
        #[command(flatten)]
        place: Place,
        /// Show the session at this version: a number, or a label.
        #[arg(long, value_name = "VERSION")]
        at: Option<At>,
        /// State changes between two versions, as in `2..5` or `draft..final`.
        #[arg(long, value_name = "FROM..TO", conflicts_with = "at")]
        diff: Option<String>,
        /// Also events hidden by a rewind.
        #[arg(long)]
        all: bool,
        /// Show long values and messages in full.
        #[arg(long)]
        full: bool,
        /// Show the request to the model as its server reads it, and what was left out, replaced or renamed for that
        /// server. Nothing is sent.
        #[arg(long, conflicts_with_all = ["diff", "all", "full"])]
        wire: bool,
        /// The model of the request: PROVIDER:MODEL or URL#MODEL. By default the agent's.
        #[arg(long, value_name = "NAME", requires = "wire")]
        model: Option<String>,
    },
    /// Resume a run that waits for approvals, was interrupted or failed.
    Resume {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        asked: Asked,
        /// Approve a pending call, by its id, or `all`.
        #[arg(long, value_name = "ID")]
        approve: Vec<String>,
        /// Reject a pending call; the model sees the reason.
        #[arg(long, value_name = "ID[=REASON]")]
        reject: Vec<String>,
        /// Approve a pending call with other arguments.
        #[arg(long, value_name = "ID=JSON")]
        modify: Vec<String>,
        /// Abandon the run instead: its open calls are recorded as cancelled.
        #[arg(long, conflicts_with_all = ["approve", "reject", "modify"])]
        abandon: bool,
        /// Resume also if the agent has changed since the run began.
        #[arg(long)]
        with_changed_agent: bool,
        /// Idempotency key of the decisions: a repeat with the same key changes nothing.
        #[arg(long, value_name = "KEY", conflicts_with = "abandon")]
        key: Option<String>,
    },
    /// Run a worker: resume interrupted and failed runs of all users of the agent, until it is stopped.
    Work {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        asked: Asked,
        /// Maximum number of sessions to work in concurrently.
        #[arg(long, default_value = "8")]
        parallel: NonZeroUsize,
        /// Exit when no work is left.
        #[arg(long)]
        once: bool,
        /// Serve metrics at `/metrics` of this address, without authentication.
        #[arg(long, value_name = "ADDRESS")]
        metrics: Option<SocketAddr>,
        /// List the sessions with work and without a worker instead, and why none continues them.
        #[arg(long, conflicts_with_all = ["once", "metrics", "parallel"])]
        list: bool,
    },
    /// List the queued messages of a session, or withdraw some.
    Inbox {
        #[command(flatten)]
        place: Place,
        /// Withdraw a message, by its id, or `all`.
        #[arg(long, value_name = "ID")]
        remove: Vec<String>,
    },
    /// Replay every run of a session without model and tools, and report where it diverges.
    Replay {
        #[command(flatten)]
        place: Place,
    },
    /// Fork a session: create a session that shares its history.
    Fork {
        #[command(flatten)]
        place: Place,
        /// The version to fork at, a number or a label; by default the newest.
        #[arg(long, value_name = "VERSION")]
        at: Option<At>,
        /// The id of the new session; random by default.
        #[arg(long, value_name = "ID")]
        to: Option<String>,
    },
    /// List the forks of a session, with the version at which each was made.
    Forks {
        #[command(flatten)]
        place: Place,
    },
    /// Compare two sessions, such as a fork and its original, after their shared history.
    Compare {
        #[command(flatten)]
        place: Place,
        /// The first session.
        #[arg(value_name = "A", conflicts_with = "session")]
        left: String,
        /// The second session.
        #[arg(value_name = "B")]
        right: String,
    },
    /// Rewind a session to a version. Nothing is deleted.
    Rewind {
        #[command(flatten)]
        place: Place,
        /// The version: a number, or a label.
        #[arg(value_name = "VERSION")]
        to: At,
        /// What to do while another process runs in the session.
        #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
        when_claimed: WhenBusy,
    },
    /// Name versions of a session: commands accept a label like a version number.
    Label {
        #[command(subcommand)]
        command: LabelCommand,
    },
    /// Delete a session permanently. Forks of it are kept.
    Delete {
        #[command(flatten)]
        place: Place,
        /// Also delete the user's values (`user:`), which all sessions of the user share.
        #[arg(long)]
        user_state: bool,
        /// What to do while another process runs in the session.
        #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
        when_claimed: WhenBusy,
    },
    /// Verify stored data against its checksums, and list damaged or missing data. Nothing is changed.
    ///
    /// Without `--session`, the whole store is verified. For a session, its head is printed: keep it elsewhere to detect
    /// any later change of the history.
    Verify {
        #[command(flatten)]
        place: Place,
        /// An earlier head of the session: the history must still contain it.
        #[arg(long, value_name = "VERSION:DIGEST", requires = "session")]
        head: Option<Head>,
    },
    /// Read or write the state of a session.
    State {
        #[command(subcommand)]
        command: StateCommand,
    },
    /// Change the result of a call.
    Result {
        #[command(subcommand)]
        command: ResultCommand,
    },
    /// Check agent and graph files; lists all faults with their lines.
    Check {
        /// The files.
        #[arg(required = true, value_name = "AGENT.toml")]
        agents: Vec<PathBuf>,
        /// Start the MCP servers of the agents as well, and list their tools that cannot be offered, each with the reason.
        #[arg(long)]
        servers: bool,
    },
    /// List the resources and prompts of the agent's MCP servers, or read one of them.
    Resources {
        /// The agent file.
        #[arg(value_name = "AGENT.toml")]
        agent: PathBuf,
        /// The resource or the prompt to read, as SERVER:URI or SERVER:PROMPT.
        #[arg(value_name = "SERVER:NAME")]
        read: Option<String>,
        /// An argument of the prompt.
        #[arg(long = "argument", value_name = "NAME=TEXT", requires = "read")]
        arguments: Vec<String>,
    },
    /// Sign in to the agent's MCP servers that require it (OAuth). Opens the page in a browser on this machine.
    Login {
        /// The agent file.
        #[arg(value_name = "AGENT.toml")]
        agent: PathBuf,
        /// The server; by default all servers with `oauth`.
        #[arg(value_name = "SERVER")]
        server: Option<String>,
    },
    /// Delete the stored tokens of the agent's MCP servers.
    Logout {
        /// The agent file.
        #[arg(value_name = "AGENT.toml")]
        agent: PathBuf,
        /// The server; by default all servers with `oauth`.
        #[arg(value_name = "SERVER")]
        server: Option<String>,
    },
    /// Draw the graph of a file.
    Draw {
        /// The graph file.
        #[arg(value_name = "GRAPH.toml")]
        graph: PathBuf,
        /// The language of the drawing.
        #[arg(long = "as", value_enum, default_value_t)]
        language: Drawing,
    },
    /// Print the JSON Schema of agent or graph files, for editors.
    Schema {
        /// The kind of file.
        #[arg(value_enum, default_value_t)]
        of: FileKind,
    },
}

/// When colors are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// At a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl From<When> for Color {
    fn from(when: When) -> Self {
        match when {
            When::Auto => Color::Auto,
            When::Always => Color::Always,
            When::Never => Color::Never,
        }
    }
}

/// The language of a drawing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Drawing {
    /// Mermaid, <https://mermaid.js.org>, which many Markdown viewers render.
    #[default]
    Mermaid,
    /// Graphviz, for `dot -Tsvg`.
    Dot,
}

/// What a file describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileKind {
    /// An agent.
    #[default]
    Agent,
    /// A graph.
    Graph,
}

impl Command {
    /// Which agent, store and session it is about; none if it is about files only.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Command::Run { place, .. }
            | Command::Chat { place, .. }
            | Command::Mcp { place, .. }
            | Command::Sessions { place, .. }
            | Command::Inspect { place, .. }
            | Command::Resume { place, .. }
            | Command::Work { place, .. }
            | Command::Inbox { place, .. }
            | Command::Replay { place }
            | Command::Fork { place, .. }
            | Command::Forks { place }
            | Command::Compare { place, .. }
            | Command::Rewind { place, .. }
            | Command::Label {
                command:
                    LabelCommand::Set { place, .. }
                    | LabelCommand::Remove { place, .. }
                    | LabelCommand::List { place },
            }
            | Command::Delete { place, .. }
            | Command::Verify { place, .. }
            | Command::Result { command: ResultCommand::Set { place, .. } }
            | Command::State { command: StateCommand::Get { place, .. } | StateCommand::Set { place, .. } } => {
                Some(place)
            }
            Command::Serve(_)
            | Command::Token { .. }
            | Command::Check { .. }
            | Command::Resources { .. }
            | Command::Login { .. }
            | Command::Logout { .. }
            | Command::Draw { .. }
            | Command::Schema { .. } => None,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// Print one value, or all values.
    Get {
        #[command(flatten)]
        place: Place,
        /// The key.
        key: Option<String>,
    },
    /// Write values, merged by the handlers of their keys: between runs, or into a paused run.
    Set {
        #[command(flatten)]
        place: Place,
        /// Replace the values instead of merging them.
        #[arg(long)]
        replace: bool,
        /// The values to write, as KEY=JSON; text that is not JSON is a string.
        #[arg(required = true, value_name = "KEY=VALUE")]
        values: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ResultCommand {
    /// Replace the result of a completed call in a paused run.
    Set {
        #[command(flatten)]
        place: Place,
        /// Set an error instead of a result.
        #[arg(long)]
        error: bool,
        /// The id of the call.
        #[arg(value_name = "CALL_ID")]
        call: String,
        /// The result, as JSON; text that is not JSON is a string.
        #[arg(value_name = "RESULT")]
        result: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabelCommand {
    /// Set a label, or move it to another version.
    Set {
        #[command(flatten)]
        place: Place,
        /// The label.
        label: String,
        /// The version, a number or another label; by default the newest.
        #[arg(long, value_name = "VERSION")]
        at: Option<At>,
    },
    /// Remove a label. The version stays.
    Remove {
        #[command(flatten)]
        place: Place,
        /// The label.
        label: String,
    },
    /// List the labels of a session with their versions.
    List {
        #[command(flatten)]
        place: Place,
    },
}

/// A version of a session, as it is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Version(u64),
    Label(String),
}

impl FromStr for At {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_| At::Label(text.to_owned()), At::Version))
    }
}

/// Which agent, which store, which session.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Place {
    /// The agent or graph file.
    #[arg(value_name = "AGENT.toml")]
    pub(crate) agent: PathBuf,
    /// The session. By default `run` and `chat` create a new one, `verify` checks all, and the others use the session
    /// with the newest write; `delete` requires it.
    #[arg(short, long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// The SQLite file with the sessions; in the user's data folder by default.
    #[arg(long, value_name = "FILE", env = "STEPFOLD_STORE")]
    pub(crate) store: Option<PathBuf>,
    /// The owner of the session.
    #[arg(long, value_name = "ID", default_value = "local")]
    pub(crate) user: String,
}

/// What is served, to whom, and from where.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Serve {
    /// The agent and graph files.
    #[arg(required_unless_present = "demo", value_name = "AGENT.toml")]
    pub(crate) agents: Vec<PathBuf>,
    /// Serve a demo: two agents with scripted models and example sessions, without an API key. In memory, unless `--store`
    /// is set.
    #[arg(long, conflicts_with = "agents")]
    pub(crate) demo: bool,
    /// The SQLite file with the sessions, or the URL of a PostgreSQL database; a file in the user's data folder by default.
    #[arg(long, value_name = "FILE|URL", env = "STEPFOLD_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// The address to listen on; port 0 selects a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8477")]
    pub(crate) bind: SocketAddr,
    /// A file with the tokens of users and their roles: see `stepfold token`. Without it, a token for the user `local` is
    /// printed, and only clients on this host are served.
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// A name by which clients reach the server, without a port. Requests to other names are refused. Repeatable.
    #[arg(long = "host-name", value_name = "NAME")]
    pub(crate) host_names: Vec<String>,
    /// An origin whose pages may use the API with tokens, such as https://app.example. Repeatable.
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    pub(crate) origins: Vec<String>,
    /// Clients reach the server by HTTPS only, through a reverse proxy: cookies are set with `Secure`, and pages of the server
    /// have `https` in their origin.
    #[arg(long)]
    pub(crate) https: bool,
    /// Append a line for each request to this file, in the Common Log Format with the microseconds after it; `-` is standard
    /// error.
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,
    /// Mebibytes that all requests hold at once; those of one user hold a quarter of it.
    #[arg(long, value_name = "MIB", default_value = "1024", value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) memory: u32,
    /// Serve the page of adk-web, at /dev-ui/, from this folder: `google/adk/cli/browser` of the package google-adk.
    #[arg(long = "adk-web", value_name = "DIR")]
    pub(crate) adk_web: Option<PathBuf>,
    /// Let anyone who reaches the server read the agent cards (A2A): names and descriptions of agents.
    #[arg(long = "public-cards")]
    pub(crate) public_cards: bool,
    /// Seconds between a shutdown signal and the end of accepting connections: `/readyz` answers 503 meanwhile, so that load
    /// balancers send requests elsewhere. By default 5, and 0 on a loopback address.
    #[arg(long = "shutdown-delay", value_name = "SECONDS")]
    pub(crate) shutdown_delay: Option<u64>,
    /// Seconds that active runs get to complete after that.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    pub(crate) drain: u64,
    /// Use this model: PROVIDER:MODEL, URL#MODEL, or script:FILE.
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
}

/// The role of a token: each role has the rights of those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TokenRole {
    /// Read sessions.
    Read,
    /// Send messages, decide, cancel, fork and rewind.
    #[default]
    Act,
    /// Delete sessions, write shared values (`app:`), and read metrics.
    Administer,
}

/// The model, and its parameters.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Asked {
    /// Use this model: PROVIDER:MODEL, URL#MODEL, or script:FILE.
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// A cassette file: records the model's replies, or replays them.
    #[arg(long, value_name = "FILE")]
    pub(crate) cassette: Option<PathBuf>,
    /// Whether to record or to replay.
    #[arg(long, value_enum, default_value_t, requires = "cassette")]
    pub(crate) mode: Mode,
    /// Prompt for approvals also when standard input is not a terminal.
    #[arg(long)]
    pub(crate) interactive: bool,
    /// The approver to record; by default the user of the system.
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// What to do while another process runs in the session.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) when_claimed: WhenBusy,
    /// Continue the session with the newest write.
    #[arg(short = 'c', long = "continue", conflicts_with = "session")]
    pub(crate) last: bool,
}

impl Asked {
    /// This model, or the agent's own, and nothing else.
    pub(crate) fn of_model(model: Option<&str>) -> Self {
        Asked {
            model: model.map(str::to_owned),
            cassette: None,
            mode: Mode::default(),
            interactive: false,
            by: None,
            when_claimed: WhenBusy::default(),
            last: false,
        }
    }
}

/// What to do with a session in which another process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhenBusy {
    /// Wait until it is free, at most two minutes.
    #[default]
    Wait,
    /// Fail at once.
    Refuse,
    /// Take the session from the other process, whose run then stops at its next write.
    TakeOver,
}

impl From<WhenBusy> for WhenClaimed {
    fn from(when: WhenBusy) -> Self {
        match when {
            WhenBusy::Wait => WhenClaimed::default(),
            WhenBusy::Refuse => WhenClaimed::Refuse,
            WhenBusy::TakeOver => WhenClaimed::TakeOver,
        }
    }
}

/// What to do with a cassette.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Call the model, and replace the recording.
    Record,
    /// Answer from the file only: needs neither key nor network.
    Replay,
    /// Replay recorded requests; call the model for others, and record them.
    #[default]
    Auto,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        super::Args::command().debug_assert();
    }
}
