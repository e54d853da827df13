//! The form of the redaction of an agent file, and the rules that it describes.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use stepfold::agent_loop::{ModelView, Redact, Redaction, SensitiveData};
use stepfold::runner::RunnerBuilder;

use super::agent::NamedValues;
use super::faults::FaultCollector;

/// Replaces sensitive parts of all content before it is stored.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RedactForm {
    /// The kinds of data: all by default.
    pub(crate) data: Option<Vec<SensitiveDataForm>>,
    /// Regular expressions by name, each applied to single lines: `ticket = "T-[0-9]+"`.
    pub(crate) patterns: NamedValues<String>,
    /// Texts that stay, such as the address of a help desk.
    pub(crate) allow: Vec<String>,
    /// The view that the model has of the current run: as it is stored by default.
    pub(crate) model: ModelViewForm,
}

/// A kind of sensitive data.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SensitiveDataForm {
    /// Keys of providers.
    Key,
    /// Numbers of payment cards.
    Card,
    /// Bank account numbers.
    Iban,
    /// Addresses of e-mail.
    Email,
    /// Telephone numbers with `+`.
    Phone,
}

/// The view that the model has of the current run.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModelViewForm {
    /// As it is stored.
    #[default]
    Redacted,
    /// With the originals of the current run, as long as it stays in memory.
    Keep,
}

impl From<SensitiveDataForm> for SensitiveData {
    fn from(form: SensitiveDataForm) -> Self {
        match form {
            SensitiveDataForm::Key => SensitiveData::ProviderKey,
            SensitiveDataForm::Card => SensitiveData::Card,
            SensitiveDataForm::Iban => SensitiveData::Iban,
            SensitiveDataForm::Email => SensitiveData::Email,
            SensitiveDataForm::Phone => SensitiveData::Phone,
        }
    }
}

/// The rules of a file, and what its models are shown.
#[derive(Clone, Debug)]
pub(crate) struct FileRedaction {
    rules: Redaction,
    view: ModelView,
}

impl FileRedaction {
    pub(crate) fn add_to(self, builder: RunnerBuilder) -> RunnerBuilder {
        builder.redact(self.rules, self.view)
    }

    /// The rules, for runs without a runner.
    pub(crate) fn rules(self) -> (Arc<dyn Redact>, ModelView) {
        (Arc::new(self.rules), self.view)
    }
}

impl RedactForm {
    /// The redaction; faults are those of its patterns.
    pub(crate) fn redaction(&self, faults: &mut FaultCollector) -> FileRedaction {
        let mut rules = match &self.data {
            Some(data) => Redaction::of(data.iter().map(|data| SensitiveData::from(*data))),
            None => Redaction::all(),
        };
        for (name, pattern) in self.patterns.iter() {
            match rules.clone().pattern(name, pattern) {
                Ok(more) => rules = more,
                Err(error) => faults.add(&["redact", "patterns", name], error.to_string()),
            }
        }
        if rules.is_empty() {
            faults.add(&["redact"], "missing rules: `data` is empty, and there are no `patterns`");
        }
        rules = self.allow.iter().fold(rules, Redaction::allow);
        let view = match self.model {
            ModelViewForm::Redacted => ModelView::Redacted,
            ModelViewForm::Keep => ModelView::Keep,
        };
        FileRedaction { rules, view }
    }
}
