//! The redaction of an experiment: a candidate's turn is redacted as a stored one, so that it can be compared with a record that is,
//! and no report has what the rules find.

use std::borrow::Cow;
use std::sync::Arc;

use stepfold_agent_loop::{
    ContentRedactor, Fingerprint, ModelView, Redact, RunBuilder, SensitivePart, redacted,
};
use stepfold_runner::RunnerBuilder;
use stepfold_state_core::chat::ToolCall;

use crate::case::Case;
use crate::expectation::Expectation;
use crate::redaction::CaseRedaction;
use crate::report::CaseResult;

/// The rules of an experiment; none by default.
#[derive(Clone, Default)]
pub(crate) struct RunRedaction(Option<(Arc<dyn Redact>, ModelView)>);

/// Rules as a value.
struct SharedRules(Arc<dyn Redact>);

impl Redact for SharedRules {
    fn find(&self, text: &str) -> Vec<SensitivePart> {
        self.0.find(text)
    }

    fn open_end(&self, text: &str) -> usize {
        self.0.open_end(text)
    }
}

impl RunRedaction {
    pub(crate) fn new(rules: Arc<dyn Redact>, view: ModelView) -> Self {
        RunRedaction(Some((rules, view)))
    }

    /// The view of models, for the head of a report.
    pub(crate) fn option(&self) -> Option<&'static str> {
        self.0.as_ref().map(|(_, view)| match view {
            ModelView::Keep => "keep",
            _ => "redacted",
        })
    }

    /// A run that is redacted as those of sessions.
    pub(crate) fn add_to<'a>(&self, run: RunBuilder<'a>) -> RunBuilder<'a> {
        match &self.0 {
            Some((rules, view)) => run.redact_with(Arc::clone(rules), *view),
            None => run,
        }
    }

    /// A runner whose sessions are redacted, of a judge for example.
    pub(crate) fn add_to_runner(&self, builder: RunnerBuilder) -> RunnerBuilder {
        match &self.0 {
            Some((rules, view)) => builder.redact(SharedRules(Arc::clone(rules)), *view),
            None => builder,
        }
    }

    /// A case as a redacted session would hold it. It may be older than a rule, or written by hand. Its name stays: results are paired
    /// by it.
    ///
    /// # Errors
    /// In words, when a rule names a part of the form of a case.
    pub(crate) fn case<'a>(&self, case: &'a Case) -> Result<Cow<'a, Case>, String> {
        let Some((rules, _)) = &self.0 else { return Ok(Cow::Borrowed(case)) };
        let mut stored =
            CaseRedaction::stored(Arc::clone(rules)).apply(case).map_err(|error| error.to_string())?;
        stored.name.clone_from(&case.name);
        for (stored, written) in stored.expect.iter_mut().zip(&case.expect) {
            // A program is no content.
            if matches!(written, Expectation::Program(_)) {
                stored.clone_from(written);
            }
        }
        Ok(Cow::Owned(stored))
    }

    /// Why an expectation cannot be compared: a turn does not have what the rules replace, so that a text would be lacking in each of
    /// them, and its mark would stand for any other one. `stored` is the expectation of the redacted [case](RunRedaction::case).
    pub(crate) fn incomparable(&self, written: &Expectation, stored: &Expectation) -> Option<String> {
        let (rules, _) = self.0.as_ref()?;
        let is_found = match written {
            // A dot of a pattern is escaped, and that of a text is not.
            Expectation::TextMatches(pattern) => !rules.find(&pattern.replace("\\.", ".")).is_empty(),
            _ => false,
        };
        (is_found || written != stored).then(|| {
            format!(
                "`{}` has a text that the rules of `[redact]` replace, so it cannot be compared with redacted turns: expect its \
                 mark, such as `[email]`, or another text",
                written.name()
            )
        })
    }

    /// A call with the arguments that a record has.
    pub(crate) fn call<'a>(&self, call: &'a ToolCall) -> Cow<'a, ToolCall> {
        let Some((rules, _)) = &self.0 else { return Cow::Borrowed(call) };
        let mut stored = call.clone();
        match ContentRedactor::new(&**rules).arguments(&mut stored.arguments) {
            true => Cow::Owned(stored),
            false => Cow::Borrowed(call),
        }
    }

    /// Whether two texts have the same form in a record.
    pub(crate) fn are_alike(&self, one: &str, other: &str) -> bool {
        self.0.as_ref().is_some_and(|(rules, _)| redacted(&**rules, one) == redacted(&**rules, other))
    }

    /// A value of the state as a record has it.
    pub(crate) fn value(&self, mut value: serde_json::Value) -> serde_json::Value {
        if let Some((rules, _)) = &self.0 {
            ContentRedactor::new(&**rules).value(&mut value);
        }
        value
    }

    /// The agent of a report.
    pub(crate) fn fingerprint(&self, agent: &Fingerprint) -> Fingerprint {
        let Some((rules, _)) = &self.0 else { return agent.clone() };
        // A rule that names a part of its form leaves it as it is: digests and names of parts.
        CaseRedaction::stored(Arc::clone(rules)).fingerprint(agent, &[]).unwrap_or_else(|_| agent.clone())
    }

    /// A result without what the rules find: reasons of evaluators, errors of models and timelines.
    pub(crate) fn result(&self, mut result: CaseResult) -> CaseResult {
        let Some((rules, _)) = &self.0 else { return result };
        let redact = |text: &mut String| *text = redacted(&**rules, text);
        result.reason.iter_mut().for_each(redact);
        for score in &mut result.scores {
            redact(&mut score.evaluator);
            score.reason.iter_mut().for_each(redact);
        }
        let timelines = result.timelines.iter_mut();
        timelines.flat_map(|lines| lines.recorded.iter_mut().chain(&mut lines.made)).for_each(redact);
        result
    }
}
