//! `stepfold eval add`: turns of stored sessions become cases.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde_json::json;
use stepfold::agent_loop::{Redaction, SensitiveData};
use stepfold::eval::{Case, CaseRedaction, EvalError, Expectation};
use stepfold::prelude::*;

use super::{is_toml, open};
use crate::args::EvalAddArgs;
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, counted};

/// Appends turns of sessions to a data set.
pub(super) async fn add(args: &EvalAddArgs, json: bool) -> anyhow::Result<CommandEnding> {
    check_appendable(&args.data_set)?;
    let mut redaction = redaction(&args.redact)?;
    let context = CommandContext::for_read(&args.target)?;
    let sessions = sessions(args, &context).await?;
    let mut added = AddedCases::to(&args.data_set, |case| redaction.continue_after(case))?;
    if args.expect_text {
        added.expect = [Expectation::of_record(), vec![Expectation::RecordedText]].concat();
    }
    for session in sessions {
        match &args.at {
            Some(at) => {
                let version = context.version(session.key(), at).await?;
                added.add(Case::taken_from(&session, Some(version)).await, &mut redaction)?;
            }
            None => {
                for case in Case::all_of(&session).await? {
                    added.add(case, &mut redaction)?;
                }
            }
        }
    }
    added.finish(&args.data_set, json)
}

/// The rules of redaction: a kind of sensitive data, `key:NAME`, or `NAME=EXPRESSION`.
fn redaction(rules: &[String]) -> anyhow::Result<CaseRedaction> {
    let kinds = rules.iter().filter_map(|rule| SensitiveData::named(rule));
    let (mut redaction, mut keys) = (Redaction::of(kinds), Vec::new());
    for rule in rules {
        match (SensitiveData::named(rule), rule.strip_prefix("key:"), rule.split_once('=')) {
            (Some(_), ..) => {}
            (_, Some(key), _) => keys.push(key),
            (_, _, Some((name, pattern))) => {
                let added = redaction.pattern(name, pattern);
                redaction = added.map_err(|error| UsageError(error.to_string()))?;
            }
            _ => {
                let kinds = SensitiveData::ALL.map(SensitiveData::name).join(", ");
                let words = format!(
                    "unknown rule of redaction `{rule}`; available: {kinds}, key:NAME, NAME=EXPRESSION"
                );
                return Err(UsageError(words).into());
            }
        }
    }
    Ok(keys.into_iter().fold(CaseRedaction::new(redaction), CaseRedaction::key))
}

/// The data set that grows, and the counts of its growth.
pub(super) struct AddedCases {
    writer: BufWriter<File>,
    known: HashSet<String>,
    /// The expectations of taken cases; those of their records if there are none here.
    expect: Vec<Expectation>,
    added: u64,
    repeated: u64,
    unsuited: Vec<String>,
}

impl AddedCases {
    /// The growth of a data set, which may be missing; `seen` sees each of its cases.
    pub(super) fn to(path: &Path, seen: impl FnMut(&Case)) -> anyhow::Result<Self> {
        check_appendable(path)?;
        let known = names_of(path, seen)?;
        Ok(AddedCases {
            writer: appending(path)?,
            known,
            expect: Vec::new(),
            added: 0,
            repeated: 0,
            unsuited: Vec::new(),
        })
    }

    fn add(&mut self, case: Result<Case, EvalError>, redaction: &mut CaseRedaction) -> anyhow::Result<()> {
        let case = match case {
            Ok(case) => redaction.apply(&self.expect.iter().cloned().fold(case, Case::expect))?,
            Err(error @ EvalError::Unsuited { .. }) => {
                self.unsuited.push(error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        self.append(&case)
    }

    /// Appends a case, unless one of its name is there.
    pub(super) fn append(&mut self, case: &Case) -> anyhow::Result<()> {
        if self.known.insert(case.name.clone()) {
            case.write_line(&mut self.writer)?;
            self.added += 1;
        } else {
            self.repeated += 1;
        }
        Ok(())
    }

    /// Notes a case that is not added, or a part of one.
    pub(super) fn leave_out(&mut self, why: String) {
        self.unsuited.push(why);
    }

    pub(super) fn finish(mut self, path: &Path, json: bool) -> anyhow::Result<CommandEnding> {
        self.writer.flush().context("data set could not be written")?;
        let AddedCases { added, repeated, unsuited, .. } = self;
        for fault in unsuited.iter().filter(|_| !json) {
            show::note(fault.clone());
        }
        show::line(if json {
            json!({"added": added, "repeated": repeated, "unsuited": unsuited}).to_string()
        } else {
            format!(
                "{} added to {}; {repeated} already there, {} unsuited",
                counted(added, "case"),
                path.display(),
                unsuited.len()
            )
        });
        Ok(CommandEnding::Done)
    }
}

fn check_appendable(path: &Path) -> Result<(), UsageError> {
    match is_toml(path) {
        true => Err(UsageError(
            "cases are added to JSON lines, not to TOML; name a file that ends in .jsonl".to_owned(),
        )),
        false => Ok(()),
    }
}

/// The file, at its end. A last line without a line break gets one: an editor may have left it out.
fn appending(path: &Path) -> anyhow::Result<BufWriter<File>> {
    let opened = || {
        let mut file = File::options().create(true).read(true).append(true).open(path)?;
        let mut last = [b'\n'];
        if file.metadata()?.len() > 0 {
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
        }
        if last != [b'\n'] {
            file.write_all(b"\n")?;
        }
        Ok::<_, std::io::Error>(BufWriter::new(file))
    };
    opened().with_context(|| format!("data set {} could not be opened", path.display()))
}

/// The sessions to take cases from: the one that is named, or the newest ones.
async fn sessions(args: &EvalAddArgs, context: &CommandContext) -> anyhow::Result<Vec<SessionHandle>> {
    let Some(newest) = args.newest else { return Ok(vec![context.session().await?]) };
    let mut sessions = Vec::new();
    for session in context.list(newest.get()).await? {
        sessions.push(context.session_named(session.key.id.as_str()).await?);
    }
    Ok(sessions)
}

/// The names of the cases of a file, which may be missing.
fn names_of(path: &Path, mut seen: impl FnMut(&Case)) -> anyhow::Result<HashSet<String>> {
    if !path.exists() {
        return Ok(HashSet::new());
    }
    let names = open(path)?.map(|case| {
        let case = case?;
        seen(&case);
        Ok::<_, EvalError>(case.name)
    });
    Ok(names.collect::<Result<_, _>>()?)
}
