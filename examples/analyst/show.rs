//! Shows a turn, and lets a person stop it.

use std::io;

use stepfold::prelude::*;
use stepfold::runner::Invocation;
use stepfold::terminal::{Printer, StyledText, TextStyle};
use stepfold_examples::{Failure, Recording};

/// The screen, and the conversation that stops once.
pub(crate) struct Screen {
    pub(crate) printer: Printer,
    pub(crate) recording: Recording,
    /// True for a recording, which waits for no key.
    pub(crate) is_picture: bool,
    /// The command that continues.
    pub(crate) command: String,
}

impl Screen {
    /// Shows an invocation to its end.
    pub(crate) async fn follow(&mut self, invocation: Invocation) -> Result<(), Failure> {
        let (recording, is_picture) = (self.recording.clone(), self.is_picture);
        let command = self.command.clone();
        let each = async |printer: &mut Printer, event: &RunEvent| {
            if let RunEvent::Asking { request, .. } = event
                && recording.stops_at(request)
                && !recording.is_let_go()
            {
                stop(printer, is_picture, &command).await;
                recording.go_on();
            }
        };
        self.printer.follow_with(&invocation, each).await?;
        Ok(())
    }
}

/// Waits for a person, in the middle of a turn.
async fn stop(printer: &mut Printer, is_picture: bool, command: &str) {
    // NOTE: A picture has no process, and is the same each time.
    let process = if is_picture { 4711 } else { std::process::id() };
    let words = format!(
        "A good moment to stop: press Ctrl-C, or `kill -9 {process}` elsewhere, and run `{command}` again. What was done \
         is stored, and the next process continues in the middle of this answer. Enter continues at once."
    );
    printer.line(StyledText::new(TextStyle::ASK, "‖ ").and(words));
    if is_picture {
        #[expect(clippy::exit, reason = "a process that stops anywhere is what the picture shows")]
        std::process::exit(0);
    }
    // If nothing can be read, the run continues.
    let _ = tokio::task::spawn_blocking(|| io::stdin().read_line(&mut String::new())).await;
}
