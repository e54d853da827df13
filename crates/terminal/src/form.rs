//! The two forms of output: lines of a log, and lines of a terminal.

/// The columns of a log, which need not fit on a screen.
pub(crate) const LOG_WIDTH: usize = 200;

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisplayForm {
    /// Lines of a log, in a pipe or a file: not wrapped, without times, the same for the same run.
    Log,
    /// Lines of a terminal of so many columns.
    Terminal {
        /// The columns.
        width: usize,
    },
}

impl DisplayForm {
    /// The columns of a line.
    pub const fn width(self) -> usize {
        match self {
            DisplayForm::Log => LOG_WIDTH,
            DisplayForm::Terminal { width } => width,
        }
    }

    /// Whether the output is a terminal, with a person who reads it as it comes.
    pub const fn is_terminal(self) -> bool {
        matches!(self, DisplayForm::Terminal { .. })
    }
}
