//! The exam of stores: the cases, and the environment of each.

mod cases;
mod context;

use std::fmt;

pub(crate) use self::context::CaseContext;
use self::context::CaseFault;
use stepfold_session_scopes::SessionError;
use stepfold_session_scopes::{AnyStore, SessionStore};

/// The test suite that every session store has to pass, over the stores of a factory.
///
/// One call runs all cases. Each case uses its own app name, so the factory may return the same database each time, even a
/// used one, as long as the exam's name is new there. A failing case does not stop the others; the [`StoreExamReport`]
/// lists each with its error. Tests that need more than one process are not included: several processes with one
/// database, crashes, start-up.
///
/// # Examples
/// ```
/// use stepfold_exam::StoreExam;
/// use stepfold_session_scopes::MemoryStore;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let report = StoreExam::new("memory", async || Ok(MemoryStore::new())).run().await;
/// report.passed().unwrap();
/// # });
/// ```
#[expect(clippy::struct_excessive_bools, reason = "one for each part that a store may do without")]
pub struct StoreExam<F> {
    name: String,
    factory: F,
    has_claims: bool,
    has_branches: bool,
    has_budgets: bool,
    has_erasure: bool,
    lists_messages: bool,
}

impl<F> fmt::Debug for StoreExam<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exam").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<F> StoreExam<F> {
    /// A test suite for the stores that `factory` creates, one for each case. The name becomes a part of the names of
    /// all apps; it has at most 100 bytes.
    pub fn new(name: impl Into<String>, factory: F) -> Self {
        StoreExam {
            name: name.into(),
            factory,
            has_claims: true,
            has_branches: true,
            has_budgets: true,
            has_erasure: true,
            lists_messages: true,
        }
    }

    /// Skips the cases of claims and inboxes, for stores whose methods for these return
    /// [`Unsupported`](SessionError::Unsupported). With such a store, two workers in one session are only
    /// detected when one of them commits.
    #[must_use]
    pub fn without_claims(mut self) -> Self {
        self.has_claims = false;
        self
    }

    /// Skips the cases of lists of forks and of labels on versions, for stores whose methods for these return
    /// [`Unsupported`](SessionError::Unsupported).
    #[must_use]
    pub fn without_branches(mut self) -> Self {
        self.has_branches = false;
        self
    }

    /// Skips the cases of budgets, for stores whose methods for these return
    /// [`Unsupported`](SessionError::Unsupported).
    #[must_use]
    pub fn without_budgets(mut self) -> Self {
        self.has_budgets = false;
        self
    }

    /// Skips the cases of erasure, for stores whose methods for it return [`Unsupported`](SessionError::Unsupported). The cases
    /// of what an erased user has spent are skipped [without budgets](StoreExam::without_budgets).
    #[must_use]
    pub fn without_erasure(mut self) -> Self {
        self.has_erasure = false;
        self
    }

    /// Expects that a list of sessions finds them by their ids only, and never by the beginning of the first message: for
    /// stores that seal content.
    #[must_use]
    pub fn without_listed_messages(mut self) -> Self {
        self.lists_messages = false;
        self
    }

    /// Runs every case.
    pub async fn run<S: SessionStore>(self) -> StoreExamReport
    where
        F: AsyncFn() -> Result<S, SessionError>,
    {
        let mut report = StoreExamReport::default();
        let of_claims = cases::of_claims().filter(|_| self.has_claims);
        let of_branches = cases::of_branches().filter(|_| self.has_branches);
        let of_budgets = cases::of_budgets().filter(|_| self.has_budgets);
        let of_erasure = cases::of_erasure().filter(|_| self.has_erasure);
        for case in cases::all().chain(of_claims).chain(of_branches).chain(of_budgets).chain(of_erasure) {
            let result = match (self.factory)().await {
                Ok(store) => {
                    // NOTE: an app for each case, so that cases of one database do not see each other's sessions.
                    let app = format!("{}-{}", self.name, case.name);
                    (case.run)(CaseContext::new(AnyStore::new(store), app, self.lists_messages)).await
                }
                Err(error) => Err(CaseFault::from(error)),
            };
            match result {
                Ok(()) => report.passed.push(case.name),
                Err(fault) => report.failed.push((case.name, fault.to_string())),
            }
        }
        report
    }
}

/// The result of an exam.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StoreExamReport {
    /// The cases that passed.
    pub passed: Vec<&'static str>,
    /// The failed cases, each with its error.
    pub failed: Vec<(&'static str, String)>,
}

impl StoreExamReport {
    /// Whether all cases passed.
    ///
    /// # Errors
    /// The report itself if one failed, so that a test can `unwrap`.
    pub fn passed(self) -> Result<Vec<&'static str>, StoreExamReport> {
        if self.failed.is_empty() { Ok(self.passed) } else { Err(self) }
    }
}

impl fmt::Display for StoreExamReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} of {} cases passed", self.passed.len(), self.passed.len() + self.failed.len())?;
        self.failed.iter().try_for_each(|(name, fault)| writeln!(f, "{name}: {fault}"))
    }
}

impl std::error::Error for StoreExamReport {}
