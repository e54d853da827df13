//! Cuts long lines, so that a screen shows more than one of them.

use std::cell::Cell;

use super::{counted, note};

/// The characters of a line that are shown.
const LINE: usize = 400;

/// Cuts lines, and counts how many.
#[derive(Debug)]
pub(crate) struct LineCutter {
    /// Whether nothing is cut.
    is_full: bool,
    cut: Cell<u64>,
}

impl LineCutter {
    pub(crate) fn new(is_full: bool) -> Self {
        LineCutter { is_full, cut: Cell::new(0) }
    }

    /// The line, or its beginning and how long it is.
    pub(crate) fn cut(&self, line: &str) -> String {
        let length = line.chars().count();
        match line.char_indices().nth(LINE) {
            Some((end, _)) if !self.is_full => {
                self.cut.set(self.cut.get() + 1);
                format!("{} ... ({length} characters)", &line[..end])
            }
            _ => line.to_owned(),
        }
    }

    /// Whether a line was cut.
    pub(crate) fn has_cut(&self) -> bool {
        self.cut.get() > 0
    }

    /// Prints how to see the cut lines in full, if there are any.
    pub(crate) fn hint(&self) {
        let cut = self.cut.get();
        if cut > 0 {
            let are = if cut == 1 { "is" } else { "are" };
            note(format!("{} {are} cut; --full shows all", counted(cut, "line")));
        }
    }
}
