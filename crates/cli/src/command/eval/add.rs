//! `stepfold eval add`: turns of stored sessions become cases.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;

use serde_json::json;
use stepfold::agent_loop::{Redaction, SensitiveData};
use stepfold::eval::{
    Case, CaseRedaction, CaseSource, DataSetFile, EvalError, Expectation, FileLock, LeftOut,
};
use stepfold::prelude::*;
use stepfold::runner::RunnerError;
use stepfold::session_scopes::{ReadLabels, Session, SessionError, SessionStore as _};

use super::files::CommandFiles;
use super::{invalid, is_toml, named, note_bounded};
use crate::args::EvalAddArgs;
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, counted};

/// Appends turns of sessions to a data set.
pub(super) async fn add(args: &EvalAddArgs, json: bool) -> anyhow::Result<CommandEnding> {
    check_appendable(&args.data_set)?;
    CommandFiles::of_add(args)?.check()?;
    let mut redaction = redaction(&args.redact)?;
    let context = CommandContext::for_read(&args.target).await?;
    let mut added = AddedCases::to(&args.data_set, |case| redaction.continue_after(case))?;
    if args.expect_text {
        added.expect = [Expectation::of_record(), vec![Expectation::RecordedText]].concat();
    }
    match (args.newest, &args.label) {
        (None, None) => {
            let session = context.session().await?;
            let cases = match &args.at {
                Some(at) => {
                    let version = context.version(session.key(), at).await?;
                    vec![Case::taken_from(&session, Some(version)).await]
                }
                None => Case::all_of(&session).await?,
            };
            cases.into_iter().try_for_each(|case| added.add(case, &mut redaction))?;
        }
        (newest, label) => {
            for id in sessions(newest, &context).await? {
                match cases_of(&context.runner, (&context.user, &id), label.as_deref()).await? {
                    FoundCases::Cases(cases) => {
                        cases.into_iter().try_for_each(|case| added.add(case, &mut redaction))?;
                    }
                    FoundCases::Unsuited(why) => added.unsuited.add(why),
                }
            }
        }
    }
    if added.added > 0 && !args.expect_text {
        show::note_line(
            "the texts of these cases are not compared: --expect-text, or expectations of yours, do so",
        );
    }
    Ok(added.finish(&args.data_set, json, ""))
}

/// The rules of redaction: a kind of sensitive data, `key:NAME`, or `NAME=EXPRESSION`.
fn redaction(rules: &[String]) -> anyhow::Result<CaseRedaction> {
    let kinds = rules.iter().filter_map(|rule| SensitiveData::named(rule));
    let (mut redaction, mut keys) = (Redaction::of(kinds), Vec::new());
    for rule in rules {
        match (SensitiveData::named(rule), rule.strip_prefix("key:"), rule.split_once('=')) {
            (Some(_), ..) => {}
            (_, Some(""), _) => {
                let words = "invalid rule of redaction `key:`: expected the name of a state key or a field";
                return Err(UsageError(words.to_owned()).into());
            }
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
    file: DataSetFile,
    /// The expectations of taken cases; those of their records if there are none here.
    expect: Vec<Expectation>,
    added: u64,
    repeated: u64,
    unsuited: LeftOut,
    /// The first ids of users and sessions that a rule of redaction names: cases are found by them, so they stay.
    named_ids: BTreeSet<String>,
    /// The number of cases with other ones.
    more_named: u64,
}

/// The most ids that are noted.
const MAX_IDS: usize = 20;

impl AddedCases {
    /// The growth of a data set, which may be missing; `seen` sees each of its cases. Waits while another process changes it.
    pub(super) fn to(path: &Path, seen: impl FnMut(&Case)) -> anyhow::Result<Self> {
        check_appendable(path)?;
        let fault = |error| invalid(named("data set", path), error);
        let mut file = DataSetFile::open(path, FileLock::TIMEOUT).map_err(fault)?;
        file.read_each(seen).map_err(fault)?;
        Ok(AddedCases {
            file,
            expect: Vec::new(),
            added: 0,
            repeated: 0,
            unsuited: LeftOut::default(),
            named_ids: BTreeSet::new(),
            more_named: 0,
        })
    }

    /// Notes the ids of a case that a rule names.
    fn note_ids(&mut self, source: &CaseSource, redaction: &CaseRedaction) {
        for id in [&source.user, &source.session].into_iter().filter(|id| redaction.finds(id)) {
            if self.named_ids.contains(id) {
                continue;
            }
            match self.named_ids.len() < MAX_IDS {
                true => drop(self.named_ids.insert(id.clone())),
                false => self.more_named += 1,
            }
        }
    }

    fn add(&mut self, case: Result<Case, EvalError>, redaction: &mut CaseRedaction) -> anyhow::Result<()> {
        let case = match case {
            Ok(case) => {
                case.source.iter().for_each(|source| self.note_ids(source, redaction));
                redaction.apply(&self.expect.iter().cloned().fold(case, Case::expect))?
            }
            Err(error @ (EvalError::Unsuited { .. } | EvalError::Erased { .. })) => {
                self.unsuited.add(error.to_string());
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        self.append(&case)
    }

    /// Appends a case, unless one of its name is there.
    pub(super) fn append(&mut self, case: &Case) -> anyhow::Result<()> {
        if self.file.has_other(case) {
            let words = "another case of this name is there; remove its line to add this one";
            self.unsuited.add(format!("case `{}` is not added: {words}", case.name));
            return Ok(());
        }
        match self.file.append(std::slice::from_ref(case), u64::MAX)? {
            0 => self.repeated += 1,
            added => self.added += added,
        }
        Ok(())
    }

    /// Notes cases that are not added, or parts of some.
    pub(super) fn leave_out(&mut self, left_out: LeftOut) {
        self.unsuited.append(left_out);
    }

    /// `words` stand before each line about what is left out.
    pub(super) fn finish(self, path: &Path, json: bool, words: &str) -> CommandEnding {
        let AddedCases { added, repeated, unsuited, named_ids, more_named, .. } = self;
        for id in named_ids {
            show::note_line(&format!(
                "id `{id}` stays in names and sources, though a rule names it: erasures find cases by it"
            ));
        }
        if more_named > 0 {
            show::note_line(&format!("and further ids of {}", counted(more_named, "case")));
        }
        if !json {
            note_bounded(&unsuited, words);
        }
        show::single_line(&if json {
            let (lines, count) = (unsuited.lines(), unsuited.count());
            json!({"added": added, "repeated": repeated, "unsuited": lines, "unsuited_count": count})
                .to_string()
        } else {
            format!(
                "{} added to {}; {repeated} already there, {} unsuited",
                counted(added, "case"),
                path.display(),
                unsuited.count()
            )
        });
        CommandEnding::Done
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

/// The most sessions that are searched for a label.
const MOST_LABELLED: usize = 100_000;

/// The sessions to take cases from: the newest ones, or all, of which those with a label are taken.
async fn sessions(newest: Option<NonZeroUsize>, context: &CommandContext) -> anyhow::Result<Vec<String>> {
    let Some(newest) = newest else {
        let mut listed = context.list(MOST_LABELLED + 1).await?;
        if let Some(words) = beyond(listed.len(), MOST_LABELLED) {
            show::note_line(&words);
            listed.truncate(MOST_LABELLED);
        }
        return Ok(ids(listed));
    };
    Ok(ids(context.list_begun(newest.get()).await?))
}

/// The words about sessions that are not searched for a label.
fn beyond(found: usize, most: usize) -> Option<String> {
    (found > most).then(|| {
        format!("the {most} newest sessions were searched for the label, and older ones were not: add those one by one, with --at")
    })
}

fn ids(listed: Vec<Session>) -> Vec<String> {
    listed.into_iter().map(|session| session.key.id.to_string()).collect()
}

/// The cases that one of many sessions has.
enum FoundCases {
    Cases(Vec<Result<Case, EvalError>>),
    /// It has none, for this reason.
    Unsuited(String),
}

impl FoundCases {
    fn deleted(id: &str) -> Self {
        FoundCases::Unsuited(format!("session `{id}` was deleted meanwhile"))
    }
}

/// The turn of a session that has a label, or all its turns. The session was there when it was listed.
async fn cases_of(
    runner: &Runner,
    (user, id): (&str, &str),
    label: Option<&str>,
) -> anyhow::Result<FoundCases> {
    let found = match runner.find_session(user, id).await? {
        Some(session) => cases_in(&session, label).await,
        None => Ok(None),
    };
    match found {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Ok(FoundCases::deleted(id)),
        Err(error) if is_missing(&error) => Ok(FoundCases::deleted(id)),
        Err(error) => Err(error),
    }
}

async fn cases_in(session: &SessionHandle, label: Option<&str>) -> anyhow::Result<Option<FoundCases>> {
    let Some(label) = label else { return Ok(Some(FoundCases::Cases(Case::all_of(session).await?))) };
    let labels = session.runner().store().labels(ReadLabels::new(session.key().clone())).await?;
    let Some((_, version)) = labels.into_iter().find(|(found, _)| found.as_str() == label) else {
        return Ok(Some(FoundCases::Cases(Vec::new())));
    };
    Ok(Some(match Case::taken_from(session, Some(version)).await {
        // The label of an edit or of version 0, or that of a turn whose events were deleted.
        Err(error @ EvalError::NoTurn { .. }) => FoundCases::Unsuited(error.to_string()),
        Err(error @ EvalError::Session(_)) => return Err(error.into()),
        case => FoundCases::Cases(vec![case]),
    }))
}

/// Whether the store does not have the session any more.
pub(super) fn is_missing(error: &anyhow::Error) -> bool {
    match (error.downcast_ref::<EvalError>(), error.downcast_ref::<SessionError>()) {
        (Some(EvalError::Session(error)), _) => error.is_session_not_found(),
        (_, Some(error)) => matches!(error, SessionError::NotFound { .. }),
        _ => error.downcast_ref::<RunnerError>().is_some_and(RunnerError::is_session_not_found),
    }
}

#[cfg(test)]
mod tests {
    use stepfold::agent_loop::Edit;
    use stepfold::session_scopes::{DeleteSession, Label, LabelVersion, MemoryStore};
    use stepfold::state_core::chat::{ChatRequest, Chunk, FinishReason, ReplyStream};

    use super::*;

    struct Hello;

    impl ChatModel for Hello {
        fn id(&self) -> &'static str {
            "test/hello"
        }

        fn respond(&self, _: ChatRequest) -> ReplyStream {
            ReplyStream::from_chunks([Chunk::Text("hello".to_owned()), Chunk::Finished(FinishReason::Stop)])
        }
    }

    async fn found(runner: &Runner, id: &str, label: Option<&str>) -> String {
        match cases_of(runner, ("ada", id), label).await.unwrap() {
            FoundCases::Cases(cases) => format!("{} cases", cases.iter().filter(|case| case.is_ok()).count()),
            FoundCases::Unsuited(why) => why,
        }
    }

    /// Of many sessions, one without a turn at its label, or without itself, does not end the addition.
    #[tokio::test]
    async fn a_session_that_has_no_such_turn_is_left_out() {
        let schema = Schema::builder().key::<u64>("count").build().unwrap();
        let agent = Agent::builder(Hello).schema(schema).build().unwrap();
        let runner = Runner::builder(agent, MemoryStore::new()).build();
        let session = runner.session("ada", "s1").await.unwrap();
        session.run("hello").await.unwrap();
        let edit = session.edit(Edit::new().set("count", 7)).await.unwrap().version;
        let turn = edit - 1;
        for (label, version) in [("turn", turn), ("edit", edit), ("start", 0)] {
            let set = LabelVersion::new(session.key().clone(), Label::new(label).unwrap(), version);
            runner.store().set_label(set).await.unwrap();
        }
        for (label, expected) in [
            (None, "1 cases".to_owned()),
            (Some("turn"), "1 cases".to_owned()),
            (Some("none"), "0 cases".to_owned()),
            (Some("edit"), format!("session `s1` has no turn at version {edit}")),
            (Some("start"), "session `s1` has no turn at version 0".to_owned()),
        ] {
            assert_eq!(found(&runner, "s1", label).await, expected, "{label:?}");
        }
        runner.store().delete(DeleteSession::new(session.key().clone())).await.unwrap();
        for label in [None, Some("turn")] {
            assert_eq!(found(&runner, "s1", label).await, "session `s1` was deleted meanwhile");
            // It is deleted after it was opened.
            let error = cases_in(&session, label).await.map(drop).unwrap_err();
            assert!(is_missing(&error), "{label:?}: {error}");
        }
    }

    #[test]
    fn sessions_that_are_not_searched_are_told() {
        assert_eq!(beyond(7, 7), None);
        assert!(beyond(8, 7).unwrap().starts_with("the 7 newest sessions were searched for the label"));
    }
}
