//! The request for an experiment, as clients send it and jobs keep it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stepfold_eval::{Experiment, Mode, Spending};

use super::{CandidateChange, ExperimentFolder, check_name, of_eval};
use crate::http::app::App;
use crate::http::guard::auth::{Principal, Role};
use crate::http::guard::problem::Problem;

/// An experiment to be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct NewExperiment {
    /// The name. A report of the same name is replaced.
    pub(in crate::http) name: String,
    /// The data set.
    pub(in crate::http) data_set: String,
    /// The mode: `roll` by default. `live` needs an administrator and `max_requests`.
    #[serde(default)]
    mode: ModeName,
    /// Another model, for administrators.
    #[serde(default)]
    model: Option<String>,
    /// Other instructions.
    #[serde(default)]
    instructions: Option<String>,
    /// Settings of the agent file, as `limits.steps=4`, for administrators.
    #[serde(default)]
    set: Vec<String>,
    /// The pure tools that may run where the record has no answer; in mode `live`, the tools that may run at most once.
    #[serde(default)]
    allow: Vec<String>,
    /// The number of times that each case is tried; once by default, at most 20.
    #[serde(default)]
    repeats: Option<u64>,
    /// The most requests to models: 1,000 by default, and at most so many without `administer`.
    #[serde(default)]
    max_requests: Option<u64>,
    /// Whether expectations with a rubric are judged, which needs an administrator and `max_requests`.
    #[serde(default)]
    judge: bool,
}

/// The name of a mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ModeName {
    /// Replays the recorded turns without a model.
    Replay,
    /// Asks for each recorded reply once.
    Next,
    /// Runs whole turns, whose calls the record answers.
    #[default]
    Roll,
    /// Runs whole turns with real tools.
    Live,
    /// Evaluates the recorded turns themselves.
    Recorded,
}

impl From<ModeName> for Mode {
    fn from(mode: ModeName) -> Self {
        match mode {
            ModeName::Replay => Mode::Replay,
            ModeName::Next => Mode::Next,
            ModeName::Roll => Mode::Roll,
            ModeName::Live => Mode::Live,
            ModeName::Recorded => Mode::Recorded,
        }
    }
}

/// The most requests to models of an experiment, unless an administrator says otherwise.
const MAX_REQUESTS: u64 = 1_000;

/// The most bytes of a request, which is kept as a file until the experiment has ended.
const MAX_BYTES: usize = 256 << 10;

impl NewExperiment {
    pub(in crate::http) fn mode(&self) -> Mode {
        self.mode.into()
    }

    pub(super) fn repeats(&self) -> u64 {
        self.repeats.unwrap_or(1)
    }

    /// Checks what the principal may ask for.
    pub(in crate::http) fn check(&self, app: &App, principal: &Principal) -> Result<(), Problem> {
        check_name(&self.name)?;
        let is_administrator = principal.may(Role::Administer);
        let is_costly = self.mode == ModeName::Live || self.judge;
        let asks_model = is_costly || matches!(self.mode, ModeName::Next | ModeName::Roll);
        let is_other = self.model.is_some() || !self.set.is_empty();
        // NOTE: requests of modes other than `live` count in no budget of the app, so they must not be a way around one.
        let passes_budgets = asks_model && app.runner().has_spend_limits();
        if (is_costly || is_other || passes_budgets) && !is_administrator {
            return Err(Problem::forbidden(Role::Administer));
        }
        if is_costly && self.max_requests.is_none() {
            return Err(Problem::invalid("experiment", "mode `live` and judges need `max_requests`"));
        }
        if !is_administrator && self.max_requests.is_some_and(|most| most > MAX_REQUESTS) {
            let why = format!("at most {MAX_REQUESTS} without `administer`");
            return Err(Problem::invalid("max_requests", why));
        }
        let most = Experiment::MAX_REPEATS;
        if !(1..=most).contains(&self.repeats()) {
            return Err(Problem::invalid("repeats", format!("must be from 1 to {most}")));
        }
        let bytes = serde_json::to_vec(self).map_or(0, |text| text.len());
        match bytes > MAX_BYTES {
            true => Err(Problem::invalid("experiment", format!("has {bytes} bytes, of at most {MAX_BYTES}"))),
            false => Ok(()),
        }
    }

    /// The experiment, within its limit of requests to models.
    pub(in crate::http) fn experiment(
        &self,
        app: &App,
        folder: &ExperimentFolder,
    ) -> Result<Experiment, Problem> {
        let change = CandidateChange { model: self.model.clone(), set: self.set.clone() };
        let mut agent = folder.candidate(app.runner().agent(), &change)?;
        if let Some(instructions) = &self.instructions {
            let changed = agent.to_builder().instructions(instructions.as_str()).build();
            agent = changed.map_err(|error| Problem::invalid("candidate", error))?;
        }
        let experiment = Experiment::new(&agent).mode(self.mode()).repeats(self.repeats()).timelines();
        let experiment = experiment.prices(app.pricing().prices.clone());
        let experiment = match app.runner().redaction() {
            Some((rules, view)) => experiment.redact(rules, view),
            None => experiment,
        };
        let experiment = self.allow.iter().fold(experiment, |experiment, tool| match self.mode {
            ModeName::Live => experiment.allow_live(tool),
            _ => experiment.allow_pure(tool),
        });
        experiment.check_allowed().map_err(|error| of_eval(&error))?;
        let experiment = match (self.judge, &folder.judge) {
            (false, _) => experiment,
            (true, Some(judge)) => experiment.judge(judge.clone()),
            (true, None) => return Err(Problem::invalid("experiment", "this server has no judge")),
        };
        Ok(experiment.spending(Spending::new().max_requests(self.max_requests.unwrap_or(MAX_REQUESTS))))
    }
}
