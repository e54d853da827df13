//! The command line.

use std::convert::Infallible;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use stepfold::runner::{SpendGroup, WhenChanged, WhenClaimed};
use stepfold::terminal::Color;

use crate::head::HistoryHead;

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
pub(crate) struct CommandLine {
    /// Print JSON: one object, or one object per line for a sequence of events.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Show arguments and results of calls in full; repeated, also traces. RUST_LOG filters traces.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// When to show colors.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) color: ColorChoice,
    /// Send spans of runs, model calls and tool calls to the OpenTelemetry collector at this URL, by OTLP over HTTP.
    #[arg(long, global = true, value_name = "URL", env = "STEPFOLD_OTLP")]
    pub(crate) otlp: Option<String>,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Write a first agent into a new folder: its file, a scripted model and a test.
    New {
        /// The folder, which must not exist.
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
        /// Write a Rust program instead.
        #[arg(long)]
        rust: bool,
    },
    /// Ask an agent one question.
    Run {
        #[command(flatten)]
        target: SessionArgs,
        #[command(flatten)]
        options: RunArgs,
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
        target: SessionArgs,
        #[command(flatten)]
        options: RunArgs,
    },
    /// Serve an agent as a tool of the Model Context Protocol, on standard input and output.
    Mcp {
        #[command(flatten)]
        target: SessionArgs,
        #[command(flatten)]
        options: RunArgs,
    },
    /// Serve agents over HTTP: an API of their sessions, with a live stream of each.
    ///
    /// Prints its address, with a token that is valid until the server stops. The address opens the studio, a page that
    /// shows sessions. SIGTERM and Ctrl-C shut it down gracefully: active runs get some time to complete, and the next
    /// process resumes the others.
    Serve(ServeArgs),
    /// Create a token for `serve --tokens`: prints the token, and the line with its hash for the file.
    Token {
        /// The user whose sessions it opens.
        #[arg(long, value_name = "ID", default_value = "local")]
        user: String,
        /// Its role.
        #[arg(long, value_enum, default_value_t)]
        role: TokenRole,
        /// The name to record for decisions; by default the user.
        #[arg(long)]
        name: Option<String>,
    },
    /// Rotate the wrapping key of a key ring.
    ///
    /// A key ring holds a key for each user, under which `--keys KEYS.toml` seals what the store keeps of the user; erasing
    /// the user destroys the key, so that backups of the store cannot be read either. The file has one of two tables. `[file]`
    /// has `path`, a file of mode 600 that is made if it is missing, and `wrapping_keys`, a list of `{file = "PATH"}` or
    /// `{environment = "NAME"}` with at least 32 random bytes of text each. `[program]` has `name`, `argv`, `environment` and
    /// `timeout_seconds`: a program that gets a line of JSON with `operation` (get, make or destroy), `app`, `user` and for
    /// make `key`, and answers `{"key": HEX or null}` or `{"destroyed": true}`.
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
    },
    /// List the sessions of an agent.
    Sessions {
        #[command(flatten)]
        target: SessionArgs,
        /// Maximum number of sessions to list.
        #[arg(long, default_value = "20")]
        limit: NonZeroUsize,
    },
    /// Show a session: its log, and its state with the write that set each key.
    Inspect {
        #[command(flatten)]
        target: SessionArgs,
        /// Show the session at this version: a number, or a label.
        #[arg(long, value_name = "VERSION")]
        at: Option<VersionName>,
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
        /// Show what each request shares with the one before it, which is what a provider caches, and what broke it.
        #[arg(long, conflicts_with_all = ["at", "diff", "all", "full", "wire"])]
        cache: bool,
        /// The model of the request: PROVIDER:MODEL or URL#MODEL. By default the agent's.
        #[arg(long, value_name = "NAME", requires = "wire")]
        model: Option<String>,
    },
    /// Resume a run that waits for approvals, was interrupted or failed.
    Resume {
        #[command(flatten)]
        target: SessionArgs,
        #[command(flatten)]
        options: RunArgs,
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
        target: SessionArgs,
        #[command(flatten)]
        options: RunArgs,
        /// Maximum number of sessions to work in concurrently.
        #[arg(long, default_value = "8")]
        parallel: NonZeroUsize,
        /// Exit when no work is left.
        #[arg(long)]
        once: bool,
        /// Serve metrics at `/metrics` of this address, without authentication.
        #[arg(long, value_name = "HOST:PORT", value_parser = address)]
        metrics: Option<SocketAddr>,
        /// List the sessions with work and without a worker instead, and why none continues them.
        #[arg(long, conflicts_with_all = ["once", "metrics", "parallel"])]
        list: bool,
    },
    /// List the queued messages of a session, or withdraw some.
    Inbox {
        #[command(flatten)]
        target: SessionArgs,
        /// Withdraw a message, by its id, or `all`.
        #[arg(long, value_name = "ID")]
        remove: Vec<String>,
    },
    /// Replay every run of a session without model and tools, and report where it diverges.
    Replay {
        #[command(flatten)]
        target: SessionArgs,
    },
    /// Evaluate an agent by stored sessions: would another prompt or model have done as well?
    Eval {
        #[command(subcommand)]
        command: EvalCommand,
    },
    /// Fork a session: create a session that shares its history.
    Fork {
        #[command(flatten)]
        target: SessionArgs,
        /// The version to fork at, a number or a label; by default the newest, or with `--with` that of the result.
        #[arg(long, value_name = "VERSION")]
        at: Option<VersionName>,
        /// The id of the new session; random by default.
        #[arg(long, value_name = "ID")]
        to: Option<String>,
        /// Replace the result of a call in the fork, as CALL_ID=JSON; text that is not JSON is a string. Repeatable.
        #[arg(long, value_name = "CALL_ID=RESULT")]
        with: Vec<String>,
    },
    /// List the forks of a session, with the version at which each was made.
    Forks {
        #[command(flatten)]
        target: SessionArgs,
    },
    /// Compare two sessions, such as a fork and its original, after their shared history.
    Compare {
        #[command(flatten)]
        target: SessionArgs,
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
        target: SessionArgs,
        /// The version: a number, or a label.
        #[arg(value_name = "VERSION")]
        to: VersionName,
        /// The action while another process runs in the session.
        #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
        when_claimed: BusyPolicy,
    },
    /// Name versions of a session: commands accept a label like a version number.
    Label {
        #[command(subcommand)]
        command: LabelCommand,
    },
    /// Delete a session permanently. Forks of it are kept.
    Delete {
        #[command(flatten)]
        target: SessionArgs,
        /// Also delete the user's values (`user:`), which all sessions of the user share.
        #[arg(long)]
        user_state: bool,
        /// The action while another process runs in the session.
        #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
        when_claimed: BusyPolicy,
    },
    /// Erase content for good: events, a call, a session with its forks, or a user. The rest stays verifiable.
    ///
    /// Without `--event` and `--call`, the whole session is erased. An event is erased with later summaries and with forks of
    /// it; a run that waits in such a session ends. Sessions in which a process runs are erased too, events of them are not.
    Erase {
        #[command(flatten)]
        target: SessionArgs,
        #[command(flatten)]
        erased: EraseArgs,
    },
    /// List the records of erasures: when, by whom, why, and of which kind; never of what.
    Erasures {
        #[command(flatten)]
        target: SessionArgs,
    },
    /// Apply the `[retention]` of an agent file: delete sessions, events and waiting messages that are too old.
    ///
    /// `serve` and `work` apply it once an hour. Sessions in which a run waits, unless they are included, are left as they are,
    /// with their messages. A session with a label is not deleted, and keeps the state at the label with all later events;
    /// the conversation up to the label goes by its age. The values of the state stay.
    Retain {
        #[command(flatten)]
        target: SessionArgs,
        #[command(flatten)]
        options: RetainArgs,
    },
    /// Verify stored data against its checksums, and list damaged or missing data. Nothing is changed.
    ///
    /// Without `--session`, the whole store is verified. For a session, its head is printed: keep it elsewhere to detect
    /// any later change of the history.
    Verify {
        #[command(flatten)]
        target: SessionArgs,
        /// An earlier head of the session: the history must still contain it.
        #[arg(long, value_name = "VERSION:DIGEST", requires = "session")]
        head: Option<HistoryHead>,
    },
    /// Show what was spent on models under the budgets of this file, in all sessions of the agent or in one.
    ///
    /// Requests are listed with the prices of then. Those of deleted sessions, and of branches that a rewind has hidden, are
    /// included.
    Spend {
        #[command(flatten)]
        target: SessionArgs,
        /// The sums to show.
        #[arg(long, value_enum, default_value_t)]
        by: SpendGroupArg,
        /// Print comma-separated values.
        #[arg(long, conflicts_with = "json")]
        csv: bool,
        /// Show who raised the limit of a budget, when, from what to what, in place of the sums.
        #[arg(long, conflicts_with_all = ["by", "csv", "session"])]
        raises: bool,
    },
    /// List the stored versions of this file, which `when_changed = "pinned"` continues runs with.
    Agents {
        #[command(flatten)]
        target: SessionArgs,
        /// Remove those that were stored longer ago and that no unfinished run is of, except for the file of today.
        #[arg(long, value_name = "DAYS")]
        prune: Option<u32>,
    },
    /// Show what the model would have been shown in stored sessions by the policies of this file: how much is left out,
    /// and whether each view is well-formed. Nothing is changed.
    Trim {
        #[command(flatten)]
        target: SessionArgs,
        /// The maximum number of sessions, those with the newest writes first.
        #[arg(long, value_name = "COUNT", default_value = "1000")]
        limit: NonZeroUsize,
    },
    /// Search messages of a session, or of all sessions of the user, by words. Nothing is changed but the store's index.
    Search {
        #[command(flatten)]
        target: SessionArgs,
        /// The words that are sought. They have no syntax.
        query: String,
        /// The maximum number of messages.
        #[arg(long, value_name = "COUNT", default_value = "10")]
        limit: NonZeroUsize,
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
        /// Compare each agent with the unfinished runs of all users in the store as well: which of them it continues, and
        /// which change touches which call. Exit status 1 if it does not continue one.
        #[arg(long)]
        runs: bool,
        /// The SQLite file with the sessions, or the URL of a PostgreSQL database, for `--runs`; a file in the user's data
        /// folder by default.
        #[arg(long, value_name = "FILE|URL", env = "STEPFOLD_STORE", hide_env_values = true)]
        store: Option<PathBuf>,
        /// The file of the store's key ring, for `--runs`.
        #[arg(long, value_name = "KEYS.toml", env = "STEPFOLD_KEYS")]
        keys: Option<PathBuf>,
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
        language: DrawingLanguage,
    },
    /// Print the JSON Schema of agent or graph files, for editors.
    Schema {
        /// The kind of file.
        #[arg(value_enum, default_value_t)]
        of: FileKind,
    },
    /// Print completions for a shell: `source <(stepfold completions bash)`.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write manual pages, one for each command, into a folder.
    Man {
        /// The folder, created if it is missing.
        folder: PathBuf,
    },
}

/// When colors are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// At a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl From<ColorChoice> for Color {
    fn from(when: ColorChoice) -> Self {
        match when {
            ColorChoice::Auto => Color::Auto,
            ColorChoice::Always => Color::Always,
            ColorChoice::Never => Color::Never,
        }
    }
}

/// The language of a drawing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DrawingLanguage {
    /// Mermaid, <https://mermaid.js.org>, which many Markdown viewers render.
    #[default]
    Mermaid,
    /// Graphviz, for `dot -Tsvg`.
    Dot,
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileKind {
    /// An agent.
    #[default]
    Agent,
    /// A graph.
    Graph,
}

impl CliCommand {
    /// Which agent, store and session it is about; none if it is about files only.
    pub(crate) fn target(&self) -> Option<&SessionArgs> {
        match self {
            CliCommand::Run { target, .. }
            | CliCommand::Chat { target, .. }
            | CliCommand::Mcp { target, .. }
            | CliCommand::Sessions { target, .. }
            | CliCommand::Inspect { target, .. }
            | CliCommand::Resume { target, .. }
            | CliCommand::Work { target, .. }
            | CliCommand::Inbox { target, .. }
            | CliCommand::Replay { target }
            | CliCommand::Eval {
                command:
                    EvalCommand::Add(EvalAddArgs { target, .. })
                    | EvalCommand::Watch(EvalWatchArgs { target, .. }),
            }
            | CliCommand::Fork { target, .. }
            | CliCommand::Forks { target }
            | CliCommand::Compare { target, .. }
            | CliCommand::Rewind { target, .. }
            | CliCommand::Label {
                command:
                    LabelCommand::Set { target, .. }
                    | LabelCommand::Remove { target, .. }
                    | LabelCommand::List { target },
            }
            | CliCommand::Delete { target, .. }
            | CliCommand::Erase { target, .. }
            | CliCommand::Erasures { target }
            | CliCommand::Retain { target, .. }
            | CliCommand::Verify { target, .. }
            | CliCommand::Trim { target, .. }
            | CliCommand::Search { target, .. }
            | CliCommand::Spend { target, .. }
            | CliCommand::Agents { target, .. }
            | CliCommand::Result { command: ResultCommand::Set { target, .. } }
            | CliCommand::State {
                command: StateCommand::Get { target, .. } | StateCommand::Set { target, .. },
            } => Some(target),
            CliCommand::New { .. }
            | CliCommand::Eval { .. }
            | CliCommand::Completions { .. }
            | CliCommand::Man { .. }
            | CliCommand::Serve(_)
            | CliCommand::Token { .. }
            | CliCommand::Keys { .. }
            | CliCommand::Check { .. }
            | CliCommand::Resources { .. }
            | CliCommand::Login { .. }
            | CliCommand::Logout { .. }
            | CliCommand::Draw { .. }
            | CliCommand::Schema { .. } => None,
        }
    }
}

/// The groups of requests whose amounts are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SpendGroupArg {
    /// By session, with its user.
    #[default]
    Session,
    /// By user.
    User,
    /// By the model that answered.
    Model,
    /// By day, in UTC.
    Day,
}

impl From<SpendGroupArg> for SpendGroup {
    fn from(by: SpendGroupArg) -> Self {
        match by {
            SpendGroupArg::Session => SpendGroup::Session,
            SpendGroupArg::User => SpendGroup::User,
            SpendGroupArg::Model => SpendGroup::Model,
            SpendGroupArg::Day => SpendGroup::Day,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Add turns of stored sessions to a data set, as cases that need no store.
    Add(EvalAddArgs),
    /// Confront an agent with a data set. No tool is called, except for pure ones that are allowed, and except in mode `live`.
    Run(Box<EvalRunArgs>),
    /// Evaluate the last turns of stored sessions, and label each session with the result: `eval-passed-V` or
    /// `eval-failed-V`, at the version V of the turn. A turn that has such a label is left out.
    Watch(EvalWatchArgs),
    /// Add the cases of another project's file to a data set: of pydantic-evals (YAML or JSON), or of ADK (an eval set).
    Import(EvalImportArgs),
    /// Write a data set for another project. Expectations that it cannot say are listed, and `eval import` has them again.
    Export(EvalExportArgs),
    /// Print a report in another format.
    Report(EvalReportArgs),
    /// Compare two reports case by case. The status is 1 if the candidate is worse, or if the cases cannot say so.
    Compare(EvalCompareArgs),
}

/// A file of another project, and the data set that gets its cases.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EvalImportArgs {
    /// The file; its fields say which format it has.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The data set, a file of JSON lines; created if it is missing.
    #[arg(value_name = "DATASET")]
    pub(crate) data_set: PathBuf,
}

/// A data set, and the file of another project to write.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EvalExportArgs {
    /// The data set: JSON lines, or TOML if its name ends in `.toml`.
    #[arg(value_name = "DATASET")]
    pub(crate) data_set: PathBuf,
    /// The file: `.yaml` for pydantic-evals, `.json` for ADK. Its name without the ending is that of the data set. A file
    /// that exists is not overwritten.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// A report, and its format.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EvalReportArgs {
    /// The report that `eval run --report` has written.
    #[arg(value_name = "REPORT")]
    pub(crate) report: PathBuf,
    /// The format.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) format: EvalFormat,
}

/// Two reports, and the thresholds of their comparison.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EvalCompareArgs {
    /// The report of the baseline.
    #[arg(value_name = "BASELINE")]
    pub(crate) baseline: PathBuf,
    /// The report of the candidate.
    #[arg(value_name = "CANDIDATE")]
    pub(crate) candidate: PathBuf,
    /// The seed of the bootstrap.
    #[arg(long, value_name = "NUMBER", default_value_t = stepfold::eval::DEFAULT_SEED)]
    pub(crate) seed: u64,
    /// The most cases that may be lost, those that the baseline passed and the candidate could not answer included; otherwise the status
    /// is 1. A few cases never have the verdict worse.
    #[arg(long, value_name = "CASES", allow_negative_numbers = true, value_parser = count)]
    pub(crate) max_losses: Option<u64>,
    /// The format.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) format: EvalFormat,
}

/// Which turns become cases of which data set.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EvalAddArgs {
    #[command(flatten)]
    pub(crate) target: SessionArgs,
    /// The data set, a file of JSON lines; created if it is missing.
    #[arg(value_name = "DATASET")]
    pub(crate) data_set: PathBuf,
    /// Add only the turn of this version, a number or a label; by default all turns.
    #[arg(long, value_name = "VERSION", conflicts_with = "newest")]
    pub(crate) at: Option<VersionName>,
    /// Add the turns of so many sessions with the newest writes, instead of one session.
    #[arg(long, value_name = "SESSIONS", conflicts_with = "session", value_parser = at_least_one::<NonZeroUsize>)]
    pub(crate) newest: Option<NonZeroUsize>,
    /// Add the turn with this label of each session that has one: of all sessions of the user, or of the newest.
    #[arg(long, value_name = "LABEL", conflicts_with_all = ["at", "session"])]
    pub(crate) label: Option<String>,
    /// Expect the recorded text as well, word by word: for models that answer alike. By default a case is held to the calls, the
    /// state and the end of its record.
    #[arg(long)]
    pub(crate) expect_text: bool,
    /// Replace values before they are written: `email`, `card`, `iban`, `phone`, `key`, `key:NAME` for a state key or a field,
    /// or NAME=EXPRESSION. Repeatable.
    #[arg(long, value_name = "RULE")]
    pub(crate) redact: Vec<String>,
}

/// The judge of an evaluation, and what the evaluation may spend.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EvalJudgeArgs {
    /// The agent file of the judge, for expectations with a rubric: `{ judge = { rubric = "..." } }`.
    #[arg(long, value_name = "JUDGE.toml")]
    pub(crate) judge: Option<PathBuf>,
    /// The model of the judge, if not that of its file.
    #[arg(long, value_name = "NAME", requires = "judge")]
    pub(crate) judge_model: Option<String>,
    /// The file with the judge's sessions, of the user `judge`; by default beside the data set: DATASET.judge.db.
    #[arg(long, value_name = "FILE", requires = "judge")]
    pub(crate) judge_store: Option<PathBuf>,
    /// The most requests to models, of candidate and judge together; those of an experiment that was killed and continues count.
    #[arg(long, value_name = "REQUESTS", allow_negative_numbers = true, value_parser = count)]
    pub(crate) max_requests: Option<u64>,
    /// The most dollars for requests to models, of candidate and judge together, by the prices of the agent file; those of an
    /// experiment that was killed and continues count.
    #[arg(long, value_name = "DOLLARS", allow_negative_numbers = true)]
    pub(crate) max_usd: Option<f64>,
}

/// Which sessions are evaluated, by what.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EvalWatchArgs {
    #[command(flatten)]
    pub(crate) target: SessionArgs,
    /// The expectations, a TOML file: `expect = ["answered", { judge = { rubric = "..." } }]`.
    #[arg(value_name = "EXPECT.toml")]
    pub(crate) expect: PathBuf,
    /// The part of the turns to evaluate, from 0 to 1. The choice depends on the turn alone.
    #[arg(long, value_name = "PART", default_value = "1", allow_negative_numbers = true, value_parser = part)]
    pub(crate) sample: f64,
    /// Look at so many sessions with the newest writes.
    #[arg(long, value_name = "SESSIONS", default_value = "100", value_parser = at_least_one::<NonZeroUsize>)]
    pub(crate) newest: NonZeroUsize,
    /// Look again after so many seconds, until a signal; by default once.
    #[arg(long, value_name = "SECONDS", value_parser = at_least_one::<NonZeroU64>)]
    pub(crate) every: Option<NonZeroU64>,
    #[command(flatten)]
    pub(crate) judge: EvalJudgeArgs,
}

/// A candidate, a data set, and the thresholds.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EvalRunArgs {
    /// The agent file of the candidate.
    #[arg(value_name = "AGENT.toml")]
    pub(crate) agent: PathBuf,
    /// The data set: JSON lines, or TOML if its name ends in `.toml`.
    #[arg(value_name = "DATASET")]
    pub(crate) data_set: PathBuf,
    /// The confrontation of the candidate with the cases: `replay` (without a model), `next` (each next reply), `roll` (whole
    /// turns, whose calls the record answers), `live` (whole turns with real tools; needs a limit of requests or costs), or
    /// `recorded` (the recorded turn itself).
    #[arg(long, value_name = "MODE", default_value_t)]
    pub(crate) mode: stepfold::eval::Mode,
    /// Use this model: PROVIDER:MODEL, URL#MODEL, or script:FILE.
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Use the instructions in this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) instructions: Option<PathBuf>,
    /// The store in which the `[[budgets]]` of the agent file count in mode `live`: the SQLite file with the sessions, or the URL of a
    /// PostgreSQL database; a file in the user's data folder by default.
    // NOTE: The URL may contain a password, which the help must not print.
    #[arg(long, value_name = "FILE|URL", env = "STEPFOLD_STORE", hide_env_values = true)]
    pub(crate) store: Option<PathBuf>,
    /// The file with the keys of a store whose content is sealed.
    #[arg(long, value_name = "KEYS.toml", env = "STEPFOLD_KEYS")]
    pub(crate) keys: Option<PathBuf>,
    /// The user whose budgets these are.
    #[arg(long, value_name = "ID", default_value = "local")]
    pub(crate) user: String,
    /// Change a setting of the agent file, as if it were its last line: `limits.steps=4`, `trim.window=8000`. Repeatable.
    #[arg(long, value_name = "SETTING=VALUE")]
    pub(crate) set: Vec<String>,
    /// A cassette file: records the model's replies, or replays them.
    #[arg(long, value_name = "FILE")]
    pub(crate) cassette: Option<PathBuf>,
    /// Whether to record or to replay.
    #[arg(long, value_enum, value_name = "MODE", default_value_t, requires = "cassette")]
    pub(crate) cassette_mode: CassetteMode,
    /// Let this pure tool run where the record has no answer; in mode `live`, this tool that may run at most once or needs an
    /// approval. Repeatable.
    #[arg(long, value_name = "TOOL")]
    pub(crate) allow: Vec<String>,
    /// Try each case so many times, at most 20: cases whose results differ are named as flaky.
    #[arg(long, value_name = "TIMES", default_value = "1", value_parser = repeats)]
    pub(crate) repeats: NonZeroU64,
    /// Write the report to this file, as JSON lines. Results are kept in FILE.partial meanwhile: the same command continues an
    /// experiment that was killed.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Compare with this report of a baseline. The status is 1 if the candidate is worse, or if the cases cannot say so.
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Option<PathBuf>,
    /// The seed of the bootstrap.
    #[arg(long, value_name = "NUMBER", default_value_t = stepfold::eval::DEFAULT_SEED)]
    pub(crate) seed: u64,
    /// The most cases that may be lost, those that the baseline passed and the candidate could not answer included; otherwise the status
    /// is 1. A few cases never have the verdict worse.
    #[arg(long, value_name = "CASES", requires = "baseline", allow_negative_numbers = true, value_parser = count)]
    pub(crate) max_losses: Option<u64>,
    /// Add times and costs to the report, which then differs from one time to the next.
    #[arg(long)]
    pub(crate) measured: bool,
    /// Add the recorded turn and the candidate's, line by line, to each case that has not passed: the studio shows them.
    #[arg(long)]
    pub(crate) timelines: bool,
    /// Cases at a time.
    #[arg(long, value_name = "CASES", default_value = "4", value_parser = at_least_one::<NonZeroUsize>)]
    pub(crate) parallel: NonZeroUsize,
    /// Seconds that a case may take.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = at_least_one::<NonZeroU64>)]
    pub(crate) timeout: NonZeroU64,
    /// The least part of the cases that has to pass, from 0 to 1; otherwise the status is 1. One that could not be evaluated has not
    /// passed; with --min-coverage the evaluated ones count alone.
    #[arg(long, value_name = "PART", allow_negative_numbers = true, value_parser = part)]
    pub(crate) min_pass_rate: Option<f64>,
    /// The least part of the cases that has to be evaluated, from 0 to 1; otherwise the status is 1.
    #[arg(long, value_name = "PART", allow_negative_numbers = true, value_parser = part)]
    pub(crate) min_coverage: Option<f64>,
    /// The most cases that may end with an error; otherwise the status is 1.
    #[arg(long, value_name = "CASES", default_value = "0", allow_negative_numbers = true, value_parser = count)]
    pub(crate) max_errors: u64,
    #[command(flatten)]
    pub(crate) judge: EvalJudgeArgs,
    /// The format of the output.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) format: EvalFormat,
}

/// Parses the number of times that a case is tried.
fn repeats(text: &str) -> Result<NonZeroU64, String> {
    let most = stepfold::eval::Experiment::MAX_REPEATS;
    let times = text.parse().ok().filter(|times: &NonZeroU64| times.get() <= most);
    times.ok_or_else(|| format!("must be a whole number from 1 to {most}"))
}

/// Parses a part of a whole, from 0 to 1.
fn part(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "must be a number from 0 to 1".to_owned())
}

/// Parses a count.
fn count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "must be a whole number from 0".to_owned())
}

/// Parses a count of at least 1.
fn at_least_one<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "must be a whole number of at least 1".to_owned())
}

/// The format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum EvalFormat {
    /// A table for a terminal.
    #[default]
    Table,
    /// Markdown, for a pull request.
    Markdown,
    /// JUnit's XML, for a build server.
    Junit,
    /// JSON lines.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// Print one value, or all values.
    Get {
        #[command(flatten)]
        target: SessionArgs,
        /// The key.
        key: Option<String>,
    },
    /// Write values, merged by the handlers of their keys: between runs, or into a paused run.
    Set {
        #[command(flatten)]
        target: SessionArgs,
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
        target: SessionArgs,
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
        target: SessionArgs,
        /// The label.
        label: String,
        /// The version, a number or another label; by default the newest.
        #[arg(long, value_name = "VERSION")]
        at: Option<VersionName>,
    },
    /// Remove a label. The version stays.
    Remove {
        #[command(flatten)]
        target: SessionArgs,
        /// The label.
        label: String,
    },
    /// List the labels of a session with their versions.
    List {
        #[command(flatten)]
        target: SessionArgs,
    },
}

/// The name of a version on the command line: its number, or a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VersionName {
    Version(u64),
    Label(String),
}

impl FromStr for VersionName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        // NOTE: A number is never a label: `stepfold label set` rejects such names.
        Ok(text.parse().map_or_else(|_| VersionName::Label(text.to_owned()), VersionName::Version))
    }
}

/// Commands about key rings.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Wrap all keys of users by the first of the wrapping keys, so that the others are not needed any more. No content is
    /// rewritten.
    Rotate {
        /// The file of the key ring.
        #[arg(value_name = "KEYS.toml")]
        keys: PathBuf,
    },
}

/// The agent, the store and the session of a command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SessionArgs {
    /// The agent or graph file.
    #[arg(value_name = "AGENT.toml")]
    pub(crate) agent: PathBuf,
    /// The session. By default `run` and `chat` create a new one, `verify` checks all, and the others use the session
    /// with the newest write; `delete` requires it.
    #[arg(short, long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// The SQLite file with the sessions, or the URL of a PostgreSQL database; a file in the user's data folder by default.
    // NOTE: The URL may contain a password, which the help must not print.
    #[arg(long, value_name = "FILE|URL", env = "STEPFOLD_STORE", hide_env_values = true)]
    pub(crate) store: Option<PathBuf>,
    /// The file of the store's key ring: content is sealed under a key of each user. See `stepfold keys`.
    #[arg(long, value_name = "KEYS.toml", env = "STEPFOLD_KEYS")]
    pub(crate) keys: Option<PathBuf>,
    /// The owner of the session.
    #[arg(long, value_name = "ID", default_value = "local")]
    pub(crate) user: String,
}

/// Options of `stepfold erase`: what is erased, by whom and why.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EraseArgs {
    /// Erase the content of this event of the session. May be repeated.
    #[arg(long, value_name = "VERSION", requires = "session", conflicts_with = "everything")]
    pub(crate) event: Vec<u64>,
    /// Erase this call of a tool, with its arguments and its result.
    #[arg(long, value_name = "ID", requires = "session", conflicts_with_all = ["event", "everything"])]
    pub(crate) call: Option<String>,
    /// Erase the user of `--user`: all sessions, and the values under `user:`.
    #[arg(long, conflicts_with = "session")]
    pub(crate) everything: bool,
    /// The reason, which is recorded: a ticket, for example. It must not contain what is erased.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// The person or program that erases, which is recorded.
    #[arg(long, value_name = "NAME", default_value = "operator")]
    pub(crate) by: String,
    /// The id of the erasure; a failure names that of a command without it. A repeated command with the same id, author and
    /// reason is recorded once, has the answer of the first, and vacuums; one that would erase more is refused.
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// List what would be erased, and erase nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The folder of `serve --experiments`: cases that were taken from the content are erased there too, with their results.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) experiments: Option<PathBuf>,
    /// Leave deleted bytes in the files of the store, for a later vacuum.
    #[arg(long)]
    pub(crate) no_vacuum: bool,
}

/// Options of `stepfold retain`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct RetainArgs {
    /// List what would be deleted, and delete nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Vacuum the store afterwards: deleted bytes stay in its files until then.
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) vacuum: bool,
}

/// Options of `stepfold serve`: agents, clients, and the address.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The agent and graph files.
    #[arg(required_unless_present = "demo", value_name = "AGENT.toml")]
    pub(crate) agents: Vec<PathBuf>,
    /// Serve a demo: two agents with scripted models and example sessions, without an API key. In memory, unless `--store`
    /// is set.
    #[arg(long, conflicts_with = "agents")]
    pub(crate) demo: bool,
    /// The SQLite file with the sessions, or the URL of a PostgreSQL database; a file in the user's data folder by default.
    // NOTE: The URL may contain a password, which the help must not print.
    #[arg(long, value_name = "FILE|URL", env = "STEPFOLD_STORE", hide_env_values = true)]
    pub(crate) store: Option<PathBuf>,
    /// The file of the store's key ring: content is sealed under a key of each user. See `stepfold keys`.
    #[arg(long, value_name = "KEYS.toml", env = "STEPFOLD_KEYS")]
    pub(crate) keys: Option<PathBuf>,
    /// The address to listen on, such as `localhost:8477`; port 0 selects a free port.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8477", value_parser = address)]
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
    /// Clients reach the server by HTTPS only, through a reverse proxy: cookies are set with `Secure`, and pages of the
    /// server have `https` in their origin.
    #[arg(long)]
    pub(crate) https: bool,
    /// Append a line for each request to this file, in the Common Log Format with the microseconds after it; `-` is
    /// standard error.
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,
    /// Mebibytes that all requests hold at once; those of one user hold a quarter of it.
    #[arg(long, value_name = "MIB", default_value = "1024", value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) memory: u32,
    /// Serve the page of adk-web, at /dev-ui/, from this folder: `google/adk/cli/browser` of the package google-adk.
    #[arg(long = "adk-web", value_name = "DIR")]
    pub(crate) adk_web: Option<PathBuf>,
    /// A folder for data sets and experiments, which the studio shows: FOLDER/AGENT/USER/NAME.jsonl is a data set, and
    /// NAME.report a report of `eval run --report`.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) experiments: Option<PathBuf>,
    /// The agent file of the judge of experiments. Its sessions are in JUDGE.toml.judge.db.
    #[arg(long, value_name = "JUDGE.toml", requires = "experiments")]
    pub(crate) judge: Option<PathBuf>,
    /// Let anyone who reaches the server read the agent cards (A2A): names and descriptions of agents.
    #[arg(long = "public-cards")]
    pub(crate) public_cards: bool,
    /// Seconds between a shutdown signal and the end of accepting connections: `/readyz` answers 503 meanwhile, so that
    /// load balancers send requests elsewhere. By default 5, and 0 on a loopback address.
    #[arg(long = "shutdown-delay", value_name = "SECONDS")]
    pub(crate) shutdown_delay: Option<u64>,
    /// Seconds that active runs get to complete after that.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    pub(crate) drain: u64,
    /// A file of `[[budgets]]` that hold in all served agents beside their own: by default for each principal, whatever agent
    /// it uses. Give it to workers on the same store too.
    #[arg(long, value_name = "FILE", env = "STEPFOLD_BUDGETS")]
    pub(crate) budgets: Option<PathBuf>,
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
    /// Read and raise the budgets of all users.
    #[value(name = "raise_budgets")]
    RaiseBudgets,
    /// Delete sessions, write shared values (`app:`), and read metrics.
    Administer,
}

/// Options of commands that run an agent: the model, the approver, and the action for a busy session.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Use this model: PROVIDER:MODEL, URL#MODEL, or script:FILE.
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// A cassette file: records the model's replies, or replays them.
    #[arg(long, value_name = "FILE")]
    pub(crate) cassette: Option<PathBuf>,
    /// Whether to record or to replay.
    #[arg(long, value_enum, default_value_t, requires = "cassette")]
    pub(crate) mode: CassetteMode,
    /// Prompt for approvals also when standard input is not a terminal.
    #[arg(long)]
    pub(crate) interactive: bool,
    /// The approver to record; by default the user of the system.
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// A file of `[[budgets]]` that hold beside those of the agent: that of `stepfold serve`.
    #[arg(long, value_name = "FILE", env = "STEPFOLD_BUDGETS")]
    pub(crate) budgets: Option<PathBuf>,
    /// The action while another process runs in the session.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) when_claimed: BusyPolicy,
    /// Continue the session with the newest write.
    #[arg(short = 'c', long = "continue", conflicts_with = "session")]
    pub(crate) last: bool,
    /// The handling of a changed agent, if not that of its file.
    #[arg(skip)]
    pub(crate) when_changed: Option<WhenChanged>,
}

impl RunArgs {
    /// Options with this model, or the agent's own; everything else has its default.
    pub(crate) fn of_model(model: Option<&str>) -> Self {
        RunArgs {
            model: model.map(str::to_owned),
            cassette: None,
            mode: CassetteMode::default(),
            interactive: false,
            by: None,
            budgets: None,
            when_claimed: BusyPolicy::default(),
            last: false,
            when_changed: None,
        }
    }
}

/// The action for a session in which another process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum BusyPolicy {
    /// Wait until it is free, at most two minutes.
    #[default]
    Wait,
    /// Fail at once.
    Refuse,
    /// Take the session from the other process, whose run then stops at its next write.
    TakeOver,
}

impl From<BusyPolicy> for WhenClaimed {
    fn from(when: BusyPolicy) -> Self {
        match when {
            BusyPolicy::Wait => WhenClaimed::default(),
            BusyPolicy::Refuse => WhenClaimed::Refuse,
            BusyPolicy::TakeOver => WhenClaimed::TakeOver,
        }
    }
}

/// The use of a cassette.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CassetteMode {
    /// Call the model, and replace the recording.
    Record,
    /// Answer from the file only: needs neither key nor network.
    Replay,
    /// Replay recorded requests; call the model for others, and record them.
    #[default]
    Auto,
}

/// Parses `HOST:PORT`. The name of a host stands for its first IPv4 address, or if it has none, for its first address.
fn address(text: &str) -> Result<SocketAddr, String> {
    let expected = "expected HOST:PORT, such as `localhost:8477` or `127.0.0.1:8477`";
    let found = text.to_socket_addrs().map_err(|error| format!("{expected}: {error}"))?;
    let found: Vec<SocketAddr> = found.collect();
    let address = found.iter().find(|address| address.is_ipv4()).or(found.first());
    address.copied().ok_or_else(|| format!("{expected}: the host has no address"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        super::CommandLine::command().debug_assert();
    }
}
