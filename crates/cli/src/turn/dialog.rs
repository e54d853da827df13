//! The dialog with the approver at the terminal: shows a request, and reads the decision.

use serde_json::Value;
use stepfold::agent_loop::{ApprovalRequest, AskReason};
use stepfold::prelude::*;
use stepfold::state_core::{ExactError, read_exact};

use crate::prompt::{InputLine, LinePrompt};
use crate::show::{self, counted};

/// Asks the approver at the terminal for decisions; none without an approver, or if they decide later.
pub(super) async fn ask(
    prompt: Option<&mut LinePrompt>,
    pending: &[ApprovalRequest],
) -> anyhow::Result<Vec<(String, Decision)>> {
    let mut decisions = Vec::new();
    let Some(prompt) = prompt else { return Ok(decisions) };
    for request in pending.iter().filter(|request| !request.is_later()) {
        let (text, folds) = show::folded_approval(request);
        show::note_exactly(&text);
        let mut reading = ApprovalReading { request, folds };
        let decided = match request.reason {
            AskReason::Input => answer(prompt, &mut reading).await?,
            _ => decision(prompt, &mut reading).await?,
        };
        match decided {
            Some(decision) => decisions.push((request.id.clone(), decision)),
            None => return Ok(Vec::new()),
        }
    }
    Ok(decisions)
}

/// A request that an approver reads, and the number of its parts that are still folded.
struct ApprovalReading<'a> {
    request: &'a ApprovalRequest,
    folds: usize,
}

impl ApprovalReading<'_> {
    /// The choice that shows folded parts, if there are any.
    fn words(&self) -> &'static str {
        if self.folds == 0 { "" } else { "[r]ead all, " }
    }

    fn read(&mut self) {
        self.folds = 0;
        show::note_exactly(&show::approval(self.request));
    }

    /// Whether all parts were shown. If not, explains the choices.
    fn is_read(&self) -> bool {
        if self.folds > 0 {
            let parts = counted(self.folds as u64, "part");
            show::note(format!("{parts} of it not read yet: [r]ead all, or answer `yes unread`"));
        }
        self.folds == 0
    }
}

async fn decision(
    prompt: &mut LinePrompt,
    reading: &mut ApprovalReading<'_>,
) -> anyhow::Result<Option<Decision>> {
    let can_modify = reading.request.can_modify();
    let (question, answers) = match can_modify {
        true => ("[y]es, [n]o, [m]odify, [l]ater: ", "answer y, n, m or l"),
        false => ("[y]es, [n]o, [l]ater: ", "answer y, n or l"),
    };
    loop {
        let question = format!("run it? {}{question}", reading.words());
        let Some(answer) = prompt.answer(&question).await? else { return Ok(None) };
        match answer.trim().to_ascii_lowercase().as_str() {
            // NOTE: A plain yes must not approve folded parts that were never shown.
            "y" | "yes" if reading.is_read() => return Ok(Some(Decision::Approve)),
            "y" | "yes" => {}
            "yes unread" => return Ok(Some(Decision::Approve)),
            "r" | "read" => reading.read(),
            "n" | "no" => {
                let InputLine::Text(reason) = prompt.line("why not (the model reads it): ").await? else {
                    return Ok(None);
                };
                return Ok(Some(Decision::reject(reason.trim())));
            }
            "m" | "modify" if can_modify => {
                let InputLine::Text(text) = prompt.line("arguments as JSON: ").await? else {
                    return Ok(None);
                };
                match read_exact(&text) {
                    Ok(arguments) => return Ok(Some(Decision::modify(arguments))),
                    Err(error) => show::note(error.to_string()),
                }
            }
            "l" | "later" => return Ok(None),
            _ => show::note(answers),
        }
    }
}

/// Asks for the answer to a question of a tool: JSON, or acceptance.
async fn answer(
    prompt: &mut LinePrompt,
    reading: &mut ApprovalReading<'_>,
) -> anyhow::Result<Option<Decision>> {
    let has_content = reading.request.can_modify();
    let (question, answers) = match has_content {
        true => ("answer as JSON, or [d]ecline, [l]ater: ", "answer with a JSON object, d or l"),
        false => ("accept? [y]es, [d]ecline, [l]ater: ", "answer y, d or l"),
    };
    loop {
        let question = format!("{}{question}", reading.words());
        let Some(text) = prompt.answer(&question).await? else { return Ok(None) };
        match text.trim() {
            "y" | "yes" if !has_content && reading.is_read() => return Ok(Some(Decision::Approve)),
            "y" | "yes" if !has_content => {}
            "yes unread" if !has_content => return Ok(Some(Decision::Approve)),
            "r" | "read" => reading.read(),
            "d" | "decline" | "n" | "no" => return Ok(Some(Decision::reject(""))),
            "l" | "later" => return Ok(None),
            text if has_content => match read_exact(text) {
                Ok(content @ Value::Object(_)) => return Ok(Some(Decision::modify(content))),
                Ok(_) | Err(ExactError::Json(_)) => show::note(answers),
                Err(error) => show::note(error.to_string()),
            },
            _ => show::note(answers),
        }
    }
}
