//! Lines from standard input: with an editor at a terminal, one by one from a pipe.

use std::io::{BufRead as _, IsTerminal as _};

use rustyline::error::ReadlineError;
use rustyline::{DefaultEditor, config::Configurer as _};

/// Where lines come from.
pub(crate) struct Prompt(Option<Source>);

enum Source {
    Editor(Box<DefaultEditor>),
    Pipe,
}

/// The result of asking for a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Text(String),
    /// A line that is not UTF-8, and so was not understood.
    NotText,
    /// Ctrl-C.
    Interrupted,
    End,
}

impl Prompt {
    pub(crate) fn open() -> anyhow::Result<Self> {
        if !is_terminal() {
            return Ok(Prompt(Some(Source::Pipe)));
        }
        let mut editor = DefaultEditor::new()?;
        editor.set_auto_add_history(true);
        Ok(Prompt(Some(Source::Editor(Box::new(editor)))))
    }

    /// Asks for a line, on a thread of its own: runs continue meanwhile.
    pub(crate) async fn line(&mut self, words: &str) -> anyhow::Result<Line> {
        let Some(source) = self.0.take() else { return Ok(Line::End) };
        let words = words.to_owned();
        let (source, line) = tokio::task::spawn_blocking(move || read(source, &words)).await?;
        self.0 = Some(source);
        line
    }

    /// Asks a question. A line that is not text is an empty answer; `None` at the end of input and after Ctrl-C.
    pub(crate) async fn answer(&mut self, question: &str) -> anyhow::Result<Option<String>> {
        Ok(match self.line(question).await? {
            Line::Text(text) => Some(text),
            Line::NotText => Some(String::new()),
            Line::Interrupted | Line::End => None,
        })
    }

    /// Takes the prompt out; this one is empty until it is put back.
    pub(crate) fn lend(&mut self) -> Self {
        Prompt(self.0.take())
    }

    /// Whether lines come from a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.0, Some(Source::Editor(_)))
    }
}

/// Whether standard input is a terminal.
pub(crate) fn is_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

fn read(mut source: Source, words: &str) -> (Source, anyhow::Result<Line>) {
    let line = match &mut source {
        Source::Editor(editor) => match editor.readline(words) {
            Ok(text) => Ok(Line::Text(text)),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(error.into()),
        },
        Source::Pipe => {
            let mut bytes = Vec::new();
            match std::io::stdin().lock().read_until(b'\n', &mut bytes) {
                Ok(0) => Ok(Line::End),
                Ok(_) => Ok(match String::from_utf8(bytes) {
                    Ok(text) => Line::Text(text.trim_end_matches(['\r', '\n']).to_owned()),
                    Err(_) => Line::NotText,
                }),
                Err(error) => Err(error.into()),
            }
        }
    };
    (source, line)
}
