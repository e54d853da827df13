//! The command line, and what of it becomes state.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use stepfold::graph::progress::{Mode, OutputFormat, ResearchDepth};
use stepfold_examples::Options;

/// The file of the sessions by default.
pub(crate) const STORE: &str = "target/deep_research/sessions.sqlite";

/// A deep-research agent over a folder of documents: it plans, researches in parallel, judges whether that is enough,
/// and writes a report whose citations are checked.
///
/// Without a model it plays a written conversation over the real documents. A research that was interrupted, by a crash for
/// instance, continues where it stopped.
#[derive(Debug, Parser)]
#[command(name = "deep_research")]
pub(crate) struct Arguments {
    /// The question; by default that of the written conversation.
    pub(crate) question: Option<String>,
    #[command(flatten)]
    pub(crate) options: Options,
    /// Your own documents: Markdown and plain text. By default those of this repository.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) docs: Option<PathBuf>,
    /// The graph, or the plain loop of a model and its tools.
    #[arg(long, value_enum, default_value = "deep")]
    pub(crate) mode: ModeArgument,
    /// The depth: the number of tasks, and of rounds of the judge.
    #[arg(long, value_enum, default_value = "medium")]
    pub(crate) depth: DepthArgument,
    /// The form of the report.
    #[arg(long, value_enum)]
    pub(crate) format: Option<FormatArgument>,
    /// The file of the report; by default beside the sessions, with the name of the session.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// You agree to the plan, and to every call of a tool.
    #[arg(long)]
    pub(crate) interactive: bool,
    /// The file of the sessions.
    #[arg(long, value_name = "FILE", default_value = STORE)]
    pub(crate) store: PathBuf,
    /// Print every event as a line of JSON, and nothing else.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the graph in the language of Mermaid, and ask nothing.
    #[arg(long)]
    pub(crate) graph: bool,
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
