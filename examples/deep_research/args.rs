//! The command line, and what of it becomes state.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use stepfold::agent_loop::graph::progress::{Mode, OutputFormat, ResearchDepth};
use stepfold_examples::named_by_environment;

/// A deep-research agent over a folder of documents: it plans, researches in parallel, judges whether that is enough,
/// and writes a report whose citations are checked.
///
/// Without a model it plays a written conversation over the real documents. A research that was cut off, by a crash for
/// instance, goes on where it stopped.
#[derive(Debug, Parser)]
#[command(name = "deep_research")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Arguments {
    /// What to find out; by default what the written conversation asks.
    pub(crate) question: Option<String>,
    /// The model, as PROVIDER:MODEL or URL#MODEL; else one for which the environment has a key.
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Play the written conversation, whatever keys there are.
    #[arg(long, conflicts_with = "model")]
    pub(crate) replay: bool,
    /// Your own documents: Markdown and plain text. By default those of this repository.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) docs: Option<PathBuf>,
    /// The graph, or the plain loop of a model and its tools.
    #[arg(long, value_enum, default_value = "deep")]
    pub(crate) mode: ModeArgument,
    /// How many tasks, and how often it is judged whether more is needed.
    #[arg(long, value_enum, default_value = "medium")]
    pub(crate) depth: DepthArgument,
    /// The form of the report.
    #[arg(long, value_enum)]
    pub(crate) format: Option<FormatArgument>,
    /// Where the report goes; by default beside the sessions, under the name of the session.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// You agree to the plan, and to every call of a tool.
    #[arg(long)]
    pub(crate) interactive: bool,
    /// The file of the sessions.
    #[arg(long, value_name = "FILE", default_value = "target/deep_research/sessions.sqlite")]
    pub(crate) store: PathBuf,
    /// The session to go on with; it is made if it is not there.
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// Whose sessions.
    #[arg(long, value_name = "NAME", default_value = "you")]
    pub(crate) user: String,
    /// Print every event as a line of JSON, and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Milliseconds between two words of the written conversation; 15 on a terminal, else none.
    #[arg(long, value_name = "MS")]
    pub(crate) delay: Option<u64>,
    /// Print the graph in the language of Mermaid, and ask nothing.
    #[arg(long)]
    pub(crate) graph: bool,
    /// List the sessions, and ask nothing.
    #[arg(long)]
    pub(crate) list: bool,
    /// Show what is stored of the session: every event, then the state.
    #[arg(long, requires = "session")]
    pub(crate) inspect: bool,
    /// Make another session that shares the session's past up to this version.
    #[arg(long, value_name = "VERSION", requires = "session")]
    pub(crate) fork: Option<u64>,
}

impl Arguments {
    /// The name of the model to ask; none to play the written conversation.
    pub(crate) fn model_name(&self) -> Option<String> {
        if self.replay {
            return None;
        }
        self.model.clone().or_else(named_by_environment)
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ModeArgument {
    Deep,
    React,
}

impl From<ModeArgument> for Mode {
    fn from(mode: ModeArgument) -> Self {
        match mode {
            ModeArgument::Deep => Mode::Deep,
            ModeArgument::React => Mode::React,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DepthArgument {
    Shallow,
    Medium,
    Deep,
}

impl From<DepthArgument> for ResearchDepth {
    fn from(depth: DepthArgument) -> Self {
        match depth {
            DepthArgument::Shallow => ResearchDepth::Shallow,
            DepthArgument::Medium => ResearchDepth::Medium,
            DepthArgument::Deep => ResearchDepth::Deep,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FormatArgument {
    Markdown,
    Html,
    Pdf,
}

impl From<FormatArgument> for OutputFormat {
    fn from(format: FormatArgument) -> Self {
        match format {
            FormatArgument::Markdown => OutputFormat::Markdown,
            FormatArgument::Html => OutputFormat::Html,
            FormatArgument::Pdf => OutputFormat::Pdf,
        }
    }
}
