//! Reads lines from standard input: with an editor at a terminal, as they are from a pipe.

use std::io::{BufRead as _, IsTerminal as _};

use rustyline::error::ReadlineError;
use rustyline::{DefaultEditor, config::Configurer as _};

/// Reads lines; empty while it is lent.
pub(crate) struct LinePrompt(Option<LineSource>);

enum LineSource {
    Editor(Box<DefaultEditor>),
    Pipe,
}

/// The result of asking for a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputLine {
    Text(String),
    /// A line that is not UTF-8.
    NotText,
    /// Ctrl-C.
    Interrupted,
    End,
}

impl LinePrompt {
    pub(crate) fn open() -> anyhow::Result<Self> {
        if !is_terminal() {
            return Ok(LinePrompt(Some(LineSource::Pipe)));
        }
        let mut editor = DefaultEditor::new()?;
        editor.set_auto_add_history(true);
        Ok(LinePrompt(Some(LineSource::Editor(Box::new(editor)))))
    }

    /// Reads a line, on a thread of its own: runs continue meanwhile.
    pub(crate) async fn line(&mut self, words: &str) -> anyhow::Result<InputLine> {
        let Some(source) = self.0.take() else { return Ok(InputLine::End) };
        let words = words.to_owned();
        let (source, line) = tokio::task::spawn_blocking(move || read(source, &words)).await?;
        self.0 = Some(source);
        line
    }

    /// Asks a question. A line that is not UTF-8 is an empty answer; `None` at the end of input and after Ctrl-C.
    pub(crate) async fn answer(&mut self, question: &str) -> anyhow::Result<Option<String>> {
        Ok(match self.line(question).await? {
            InputLine::Text(text) => Some(text),
            InputLine::NotText => Some(String::new()),
            InputLine::Interrupted | InputLine::End => None,
        })
    }

    /// Lends the prompt; this one is empty until it is put back.
    pub(crate) fn lend(&mut self) -> Self {
        LinePrompt(self.0.take())
    }

    /// Whether lines come from a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.0, Some(LineSource::Editor(_)))
    }
}

/// Whether standard input is a terminal.
pub(crate) fn is_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

fn read(mut source: LineSource, words: &str) -> (LineSource, anyhow::Result<InputLine>) {
    let line = match &mut source {
        LineSource::Editor(editor) => match editor.readline(words) {
            Ok(text) => Ok(InputLine::Text(text)),
            Err(ReadlineError::Interrupted) => Ok(InputLine::Interrupted),
            Err(ReadlineError::Eof) => Ok(InputLine::End),
            Err(error) => Err(error.into()),
        },
        LineSource::Pipe => {
            // NOTE: Read as bytes: a line that is not UTF-8 must not end the input.
            let mut bytes = Vec::new();
            match std::io::stdin().lock().read_until(b'\n', &mut bytes) {
                Ok(0) => Ok(InputLine::End),
                Ok(_) => Ok(match String::from_utf8(bytes) {
                    Ok(text) => InputLine::Text(text.trim_end_matches(['\r', '\n']).to_owned()),
                    Err(_) => InputLine::NotText,
                }),
                Err(error) => Err(error.into()),
            }
        }
    };
    (source, line)
}
