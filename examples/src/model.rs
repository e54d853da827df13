//! The model of a program: the one that the command line names, or one for which the environment has a key.

use std::error::Error;
use std::sync::Arc;

use stepfold::prelude::*;

/// Variables with API keys, each with a model that its key can use.
const KEYS: &[(&str, &str)] =
    &[("ANTHROPIC_API_KEY", "anthropic:claude-sonnet-4-5"), ("OPENAI_API_KEY", "openai:gpt-4.1")];

/// The name of the model that the environment names, or of the first of which it has the key.
pub(crate) fn named_by_environment() -> Option<String> {
    named_by(environment)
}

/// A model of a provider, called over the network.
///
/// # Errors
/// When there is no such model, or its key is missing, or this was built without the feature `live`.
#[cfg(feature = "live")]
pub fn live(name: &str) -> Result<Arc<dyn ChatModel>, Box<dyn Error>> {
    Ok(stepfold::providers::model(name)?)
}

/// A model of a provider, called over the network.
///
/// # Errors
/// Always, since this was built without the feature `live`.
#[cfg(not(feature = "live"))]
pub fn live(name: &str) -> Result<Arc<dyn ChatModel>, Box<dyn Error>> {
    Err(format!("asking {name} takes the feature `live`; build with it, or give --replay").into())
}

fn named_by(look_up: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = |variable: &str| look_up(variable).filter(|value| !value.trim().is_empty());
    set("STEPFOLD_MODEL").or_else(|| {
        let found = KEYS.iter().find(|(variable, _)| set(variable).is_some());
        found.map(|(_, model)| (*model).to_owned())
    })
}

#[expect(clippy::disallowed_methods, reason = "a program looks for its keys in the environment")]
fn environment(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}

#[cfg(test)]
mod tests {
    use super::named_by;

    #[track_caller]
    fn check(set: &[(&str, &str)], expected: Option<&str>) {
        let look_up = |name: &str| {
            let found = set.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(named_by(look_up).as_deref(), expected, "{set:?}");
    }

    #[test]
    fn the_environment_names_a_model_or_has_a_key() {
        check(&[], None);
        check(&[("OPENAI_API_KEY", " ")], None);
        check(&[("OPENAI_API_KEY", "sk")], Some("openai:gpt-4.1"));
        check(&[("OPENAI_API_KEY", "sk"), ("STEPFOLD_MODEL", "ollama:qwen3")], Some("ollama:qwen3"));
    }
}
