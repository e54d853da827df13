//! The command line: which commands xtask has, and what each takes.
//!
//! `tidy` parses the README's `cargo xtask ...` lines with these very types, so that they cannot rot.

use clap::{Args, Parser, Subcommand};

use crate::ci::Stage;

/// The checks and chores of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of xtask.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run every check, cheapest first; stop at the first failure.
    Ci(CiOptions),
    /// Check who depends on whom, and on which libraries.
    Layers,
    /// Check what no compiler looks at: first lines, white space, links, sleeping tests, ...
    Tidy(TidyOptions),
    /// Compare the public items of each library crate with its checked-in list.
    Api(ApiOptions),
    /// Install peers that others wrote into `target/interop`, and test against them.
    Interop,
    /// Run the benchmarks, all of them or the one of this name, and show their medians in one table.
    Bench {
        /// The name of a bench target.
        name: Option<String>,
    },
    /// Write the clients of `examples/clients`, from the OpenAPI document of the server. Tests compare them.
    Clients,
    /// Record the first program of the README, and make its pictures in `docs`.
    Picture(PictureOptions),
    /// Simulate runs that are interrupted anywhere: many, and each from a seed.
    Sim(SimOptions),
    /// Package every crate that is published, in an order in which they can be. Nothing is uploaded.
    Release(ReleaseOptions),
    /// Build the command small, and pack it with its manual pages and completions into `target/dist`.
    Dist,
}

/// Options of `cargo xtask picture`.
#[derive(Args, Clone, Copy, Debug)]
pub struct PictureOptions {
    /// The columns of the terminal.
    #[arg(long, default_value_t = 92)]
    pub columns: usize,
    /// Only compare the pictures with the stored ones.
    #[arg(long)]
    pub check: bool,
    /// Take the pictures of the studio instead, in Chromium, with what `cargo xtask interop` has installed.
    #[arg(long, conflicts_with = "check")]
    pub studio: bool,
}

/// Options of `cargo xtask api`.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ApiOptions {
    /// Write the lists instead.
    #[arg(long)]
    pub update: bool,
}

/// Options of `cargo xtask tidy`.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct TidyOptions {
    /// Also print figures of the source, by crate: names of types, openings of documentation, reasons, rooms.
    #[arg(long)]
    pub figures: bool,
}

/// Options of `cargo xtask sim`.
#[derive(Args, Clone, Copy, Debug)]
pub struct SimOptions {
    /// The simulated runs of each test.
    #[arg(default_value_t = 10_000)]
    pub runs: u32,
    /// The seed; random by default. A failure also prints its own case.
    #[arg(long)]
    pub seed: Option<u64>,
}

/// Options of `cargo xtask release`.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ReleaseOptions {
    /// Only print the order.
    #[arg(long)]
    pub order: bool,
    /// Also build each crate from its package.
    #[arg(long, conflicts_with = "order")]
    pub verify: bool,
}

/// Options of `cargo xtask ci`.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct CiOptions {
    /// Run 10,000 cases of each property test, not the 256 that proptest runs by itself.
    #[arg(long)]
    pub long: bool,
    /// Skip slow stages that seldom fail alone, and run few cases of each property test.
    #[arg(long, conflicts_with_all = ["long", "only"])]
    pub fast: bool,
    /// Run this stage only.
    #[arg(long, value_name = "STAGE")]
    pub only: Option<Stage>,
}
