//! Models by name: `openai:gpt-5.4`, `ollama:qwen3`, `http://127.0.0.1:8080/v1#name`.
//!
//! `openai:` uses the Responses API, like its own clients; `openai-chat:` uses chat completions, and so does
//! a URL, or `openai:` with another address in `OPENAI_BASE_URL`. Each preset supports both suffixes:
//! `xai-responses:`.
//!
//! Keys and addresses are read from the environment, or by a lookup function. If something is missing, the
//! error lists the variables.

use std::sync::Arc;

use stepfold_state_core::chat::{ChatModel, ModelError};

use crate::dialect::Dialect;
use crate::http::without_password;
use crate::model::HttpModelBuilder;
#[cfg(feature = "openai")]
use crate::openai::{OpenAi, OpenAiApi, OpenAiResponses, PRESETS, Preset};

/// The variable that names the model to use, for [`model_from_env`].
pub const MODEL_VARIABLE: &str = "STEPFOLD_MODEL";

/// The variable with the key for a server that is named by its URL.
pub const KEY_VARIABLE: &str = "STEPFOLD_API_KEY";

/// An error of finding a model by name.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The form of the name is invalid.
    #[error(
        "invalid model name `{name}`: expected PROVIDER:MODEL or URL#MODEL; available providers: {known}"
    )]
    Form {
        /// The name.
        name: String,
        /// The available providers.
        known: String,
    },
    /// The provider is unknown, or not compiled in.
    #[error("unknown provider `{provider}` in `{name}`; available: {known}")]
    Provider {
        /// The name.
        name: String,
        /// The provider.
        provider: String,
        /// The available providers.
        known: String,
    },
    /// A key or an address is not set.
    #[error("missing {what} for `{name}`: set {looked_for}")]
    Missing {
        /// The name.
        name: String,
        /// The missing setting.
        what: &'static str,
        /// The variables.
        looked_for: String,
    },
    /// No name was given.
    #[error(
        "missing model: set {MODEL_VARIABLE} to PROVIDER:MODEL or URL#MODEL; keys that are set: {found}; \
         known keys: {looked_for}"
    )]
    None {
        /// The variables with keys that are set.
        found: String,
        /// All of them.
        looked_for: String,
    },
    /// The model could not be built.
    #[error("invalid model `{name}`: {source}")]
    Build {
        /// The name.
        name: String,
        /// The cause.
        r#source: ModelError,
    },
}

/// The model of this name, with keys and addresses from the environment.
///
/// # Errors
/// [`NameError`] with the missing setting and the variables.
///
/// # Examples
/// ```
/// # #[cfg(feature = "openai")] {
/// use stepfold_providers::model;
///
/// assert_eq!(model("ollama:qwen3:8b").unwrap().id(), "ollama/qwen3:8b");
/// assert_eq!(model("http://127.0.0.1:8080/v1#mine").unwrap().id(), "openai-compatible/mine");
/// let error = model("nobody:x").err().unwrap().to_string();
/// assert!(error.contains("openai, azure, openrouter"), "{error}");
/// # }
/// ```
pub fn model(name: &str) -> Result<Arc<dyn ChatModel>, NameError> {
    model_with(name, environment)
}

/// The model that the environment variable `STEPFOLD_MODEL` names.
///
/// # Errors
/// As [`model`]; without a name, the error lists the keys that are set, and the known ones.
pub fn model_from_env() -> Result<Arc<dyn ChatModel>, NameError> {
    model_from(environment)
}

/// The model of this name, with keys and addresses from wherever `look_up` finds them.
///
/// # Errors
/// As [`model`].
///
/// # Examples
/// ```
/// # #[cfg(feature = "openai")] {
/// use stepfold_providers::model_with;
///
/// let settings = |name: &str| (name == "OPENAI_API_KEY").then(|| "sk-...".to_owned());
/// assert_eq!(model_with("openai:gpt-4.1", settings).unwrap().id(), "openai/gpt-4.1");
/// # }
/// ```
pub fn model_with(
    name: &str,
    look_up: impl Fn(&str) -> Option<String>,
) -> Result<Arc<dyn ChatModel>, NameError> {
    let look_up = |variable: &str| look_up(variable).filter(|value| !value.trim().is_empty());
    let built = if name.starts_with("http://") || name.starts_with("https://") {
        at_url(name, look_up)?
    } else {
        of_provider(name, look_up)?
    };
    built.map_err(|source| NameError::Build { name: shown(name), source })
}

/// The model that `look_up` finds under `STEPFOLD_MODEL`.
///
/// # Errors
/// As [`model_from_env`].
pub fn model_from(look_up: impl Fn(&str) -> Option<String>) -> Result<Arc<dyn ChatModel>, NameError> {
    if let Some(name) = look_up(MODEL_VARIABLE).filter(|name| !name.trim().is_empty()) {
        return model_with(name.trim(), look_up);
    }
    let all = key_variables();
    let found = all.iter().filter(|variable| look_up(variable).is_some()).copied();
    let found: Vec<&str> = found.collect();
    let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    Err(NameError::None { found, looked_for: all.join(", ") })
}

#[expect(clippy::disallowed_methods, reason = "reads the model from the environment")]
fn environment(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}

/// The compiled-in providers without a preset, with the variables of their keys.
const NATIVE: &[(&str, &[&str])] = &[
    #[cfg(feature = "anthropic")]
    ("anthropic", crate::anthropic::KEYS),
    #[cfg(feature = "gemini")]
    ("gemini", crate::gemini::KEYS),
];

type ModelResult = Result<Arc<dyn ChatModel>, ModelError>;

/// A model at `URL#MODEL`.
#[cfg(feature = "openai")]
fn at_url(name: &str, look_up: impl Fn(&str) -> Option<String>) -> Result<ModelResult, NameError> {
    let (url, model) =
        name.split_once('#').filter(|(_, model)| !model.is_empty()).ok_or_else(|| invalid_form(name))?;
    Ok(built(with_settings(OpenAi::at(url, model), None, look_up(KEY_VARIABLE))))
}

#[cfg(not(feature = "openai"))]
fn at_url(name: &str, _: impl Fn(&str) -> Option<String>) -> Result<ModelResult, NameError> {
    Err(invalid_form(name))
}

/// A model at `PROVIDER:MODEL`.
fn of_provider(name: &str, look_up: impl Fn(&str) -> Option<String>) -> Result<ModelResult, NameError> {
    let (provider, model) =
        name.split_once(':').filter(|(_, model)| !model.is_empty()).ok_or_else(|| invalid_form(name))?;
    #[cfg(feature = "anthropic")]
    if provider == "anthropic" {
        return native_model(
            name,
            crate::anthropic::Anthropic::new(model, ""),
            "ANTHROPIC_BASE_URL",
            look_up,
        );
    }
    #[cfg(feature = "gemini")]
    if provider == "gemini" {
        return native_model(name, crate::gemini::Gemini::new(model, ""), "GEMINI_BASE_URL", look_up);
    }
    #[cfg(feature = "openai")]
    if let Some((preset, api)) = preset_and_api(provider) {
        return of_preset(name, preset, api, model, look_up);
    }
    #[cfg(not(feature = "openai"))]
    let _ = (model, look_up);
    Err(NameError::Provider { name: shown(name), provider: provider.to_owned(), known: known() })
}

/// A model of a provider with its own API.
#[cfg(any(feature = "anthropic", feature = "gemini"))]
fn native_model<D: Dialect>(
    name: &str,
    builder: HttpModelBuilder<D>,
    base_url: &str,
    look_up: impl Fn(&str) -> Option<String>,
) -> Result<ModelResult, NameError> {
    let key = required(name, "key", builder.dialect.server().key_variables, &look_up)?;
    let builder = builder.key(key);
    Ok(built(match look_up(base_url) {
        Some(url) => builder.base_url(url),
        None => builder,
    }))
}

fn built<D: Dialect>(builder: HttpModelBuilder<D>) -> ModelResult {
    builder.build().map(|model| Arc::new(model) as Arc<dyn ChatModel>)
}

/// The preset of `NAME`, `NAME-chat` or `NAME-responses`, and the API in the name.
#[cfg(feature = "openai")]
fn preset_and_api(provider: &str) -> Option<(&'static Preset, Option<OpenAiApi>)> {
    let with = |ending: &str, api| Some((Preset::named(provider.strip_suffix(ending)?)?, Some(api)));
    let plain = Preset::named(provider).map(|preset| (preset, None));
    plain
        .or_else(|| with("-chat", OpenAiApi::ChatCompletions))
        .or_else(|| with("-responses", OpenAiApi::Responses))
}

#[cfg(feature = "openai")]
fn of_preset(
    name: &str,
    preset: &Preset,
    api: Option<OpenAiApi>,
    model: &str,
    look_up: impl Fn(&str) -> Option<String>,
) -> Result<ModelResult, NameError> {
    let url = preset.base_url_variables.iter().find_map(|variable| look_up(variable));
    if url.is_none() && preset.base_url.is_none() {
        required(name, "base URL", preset.base_url_variables, &look_up)?;
    }
    let key = match preset.key_variables.iter().find_map(|variable| look_up(variable)) {
        None if preset.needs_key => Some(required(name, "key", preset.key_variables, &look_up)?),
        key => key,
    };
    // A custom address usually belongs to a server with chat completions.
    let by_default =
        if url.is_some() && preset.base_url.is_some() { OpenAiApi::ChatCompletions } else { preset.api };
    // NOTE: People write `OLLAMA_HOST` and the like without a scheme.
    let url = url.map(|url| base_url(&url, preset));
    let version = preset.api_version_variables.iter().find_map(|variable| look_up(variable));
    Ok(match api.unwrap_or(by_default) {
        OpenAiApi::ChatCompletions => {
            let builder = with_settings(OpenAi::preset(preset, model), url, key);
            built(match version {
                Some(version) => builder.api_version(version),
                None => builder,
            })
        }
        OpenAiApi::Responses => built(with_settings(OpenAiResponses::preset(preset, model), url, key)),
    })
}

#[cfg(feature = "openai")]
fn with_settings<D: Dialect>(
    mut builder: HttpModelBuilder<D>,
    url: Option<String>,
    key: Option<String>,
) -> HttpModelBuilder<D> {
    if let Some(url) = url {
        builder = builder.base_url(url);
    }
    match key {
        Some(key) => builder.key(key),
        None => builder,
    }
}

/// An address as people write it, as a base URL. One without a scheme has the port of the preset unless it names another,
/// as `OLLAMA_HOST` has.
#[cfg(feature = "openai")]
fn base_url(address: &str, preset: &Preset) -> String {
    let address = address.trim().trim_end_matches('/');
    let address = match address.contains("://") {
        true => address.to_owned(),
        false => with_port(address, preset.base_url.and_then(port)),
    };
    // A listening address is not always one to connect to.
    let address = address.replace("://0.0.0.0", "://127.0.0.1");
    if address.ends_with(preset.base_url_suffix) { address } else { address + preset.base_url_suffix }
}

/// `host`, `host:port` or `:port` as a URL.
#[cfg(feature = "openai")]
fn with_port(address: &str, default: Option<u16>) -> String {
    let host = if address.starts_with(':') { "127.0.0.1" } else { "" };
    let address = format!("http://{host}{address}");
    match (port(&address), default) {
        (None, Some(default)) => {
            let (_, rest) = address.split_once("://").unwrap_or_default();
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            format!("http://{host}:{default}{path}")
        }
        _ => address,
    }
}

/// The port that a URL names.
#[cfg(feature = "openai")]
fn port(url: &str) -> Option<u16> {
    let authority = url.split_once("://")?.1.split('/').next()?;
    // The colons of an IPv6 address are in brackets.
    authority.rsplit(']').next()?.rsplit_once(':')?.1.parse().ok()
}

/// The first of these variables that is set.
fn required(
    name: &str,
    what: &'static str,
    variables: &[&str],
    look_up: &impl Fn(&str) -> Option<String>,
) -> Result<String, NameError> {
    variables.iter().find_map(|variable| look_up(variable)).ok_or_else(|| NameError::Missing {
        name: name.to_owned(),
        what,
        looked_for: variables.join(" or "),
    })
}

fn invalid_form(name: &str) -> NameError {
    NameError::Form { name: shown(name), known: known() }
}

/// The name, without a password in its address.
fn shown(name: &str) -> String {
    match name.split_once('#') {
        _ if !name.contains("://") => name.to_owned(),
        Some((url, model)) => format!("{}#{model}", without_password(url)),
        None => without_password(name).into_owned(),
    }
}

/// All providers by name.
fn known() -> String {
    let names = NATIVE.iter().map(|(name, _)| *name);
    #[cfg(feature = "openai")]
    let names = names.chain(PRESETS.iter().map(|preset| preset.name));
    names.collect::<Vec<_>>().join(", ")
}

/// All variables that may hold a key.
fn key_variables() -> Vec<&'static str> {
    let variables = NATIVE.iter().flat_map(|(_, keys)| keys.iter().copied());
    #[cfg(feature = "openai")]
    let variables = variables.chain(PRESETS.iter().flat_map(|preset| preset.key_variables.iter().copied()));
    variables.collect()
}

#[cfg(all(test, feature = "openai"))]
mod tests {
    use super::{Preset, base_url};

    #[test]
    fn an_address_without_a_port_has_that_of_the_preset() {
        for (address, expected) in [
            ("127.0.0.1", "http://127.0.0.1:11434/v1"),
            (":8080", "http://127.0.0.1:8080/v1"),
            ("0.0.0.0", "http://127.0.0.1:11434/v1"),
            ("0.0.0.0:99/", "http://127.0.0.1:99/v1"),
            ("[::1]", "http://[::1]:11434/v1"),
            ("[::1]:99", "http://[::1]:99/v1"),
            ("gpu/ollama/v1", "http://gpu:11434/ollama/v1"),
            // With a scheme it has the port of the scheme.
            ("http://gpu", "http://gpu/v1"),
            ("https://gpu:443/v1", "https://gpu:443/v1"),
        ] {
            assert_eq!(base_url(address, &Preset::OLLAMA), expected, "{address}");
        }
    }
}

stepfold_state_core::debug_as_text!(NameError);
