//! Known servers, as data. A server's deviations are fields here, not branches elsewhere.

use crate::dialect::ProviderInfo;
use crate::rules::names::NameRules;
use crate::rules::schemas::SchemaRules;
use crate::rules::{CallIdForm, RequestRules, RoleOrder};
use crate::secret::Secret;

/// A server's address, and its deviations from OpenAI.
///
/// # Examples
/// A server that is not on the [list](PRESETS):
/// ```
/// use stepfold_providers::openai::{OpenAi, Preset};
/// use stepfold_state_core::chat::ChatModel;
///
/// const OURS: Preset = {
///     let mut ours = Preset::compatible("ours", "http://10.0.0.7:9000/v1");
///     ours.needs_key = true;
///     ours.seed_field = "random_seed";
///     ours
/// };
/// let model = OpenAi::preset(&OURS, "our-model").key("k-123").build()?;
/// assert_eq!(model.id(), "ours/our-model");
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each says one thing that a server can or cannot do")]
#[non_exhaustive]
pub struct Preset {
    /// Its name in model names, ids and errors.
    pub name: &'static str,
    /// Its default address.
    pub base_url: Option<&'static str>,
    /// Environment variables of its address, in order of precedence.
    pub base_url_variables: &'static [&'static str],
    /// A suffix for a base URL from such a variable, unless it ends with it.
    pub base_url_suffix: &'static str,
    /// Environment variables of a key, in order of precedence.
    pub key_variables: &'static [&'static str],
    /// Whether requests need a key.
    pub needs_key: bool,
    /// The header of the key.
    pub auth: KeyHeader,
    /// The name of the field that limits the tokens of a reply.
    pub max_tokens_field: &'static str,
    /// The name of the field for a seed.
    pub seed_field: &'static str,
    /// Whether usage in a stream must be requested.
    pub asks_for_usage: bool,
    /// Whether it knows `strict` schemas of tools.
    pub strict_tools: bool,
    /// Whether it can hold a reply to a JSON Schema.
    pub json_schema: bool,
    /// The word for "at least one tool".
    pub required: &'static str,
    /// The form in which it accepts its reasoning back, if it does.
    pub reasoning_back: Option<ReasoningBack>,
    /// Its name of the role of instructions.
    pub system_role: &'static str,
    /// Its rules for conversations.
    pub rules: RequestRules,
    /// Whether parts may be marked for its cache, by extras named `cache_control`.
    pub cache_control: bool,
    /// Whether files may be named by their addresses.
    pub file_urls: bool,
    /// Environment variables with the version of Azure's interface, if its models are found as deployments.
    pub api_version_variables: &'static [&'static str],
    /// Whether it ends streams with `[DONE]` alone, without a finish reason.
    pub ends_without_reason: bool,
    /// The API of a model that is found by name, by default.
    pub api: OpenAiApi,
}

/// The form in which a server accepts reasoning back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasoningBack {
    /// In a field of the message.
    Field(&'static str),
    /// In a part of the content, of type `thinking`.
    Part,
}

/// An API of OpenAI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenAiApi {
    /// Chat completions, supported by most servers.
    ChatCompletions,
    /// Responses.
    Responses,
}

/// The header of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyHeader {
    /// As `Authorization: Bearer KEY`.
    Bearer,
    /// In a header of this name.
    Header(&'static str),
}

/// The rules of templates with alternating roles.
const ALTERNATING: RequestRules =
    RequestRules { order: RoleOrder::Alternating, call_ids: CallIdForm::Any, ..RequestRules::COMPATIBLE };

/// The rules of servers on this machine.
const LOCAL: RequestRules = RequestRules { schemas: SchemaRules::LOCAL, ..ALTERNATING };

impl Preset {
    /// A compatible server at this address, without deviations: set the fields of those that it has.
    pub const fn compatible(name: &'static str, base_url: &'static str) -> Self {
        let mut preset = Preset::COMPATIBLE;
        (preset.name, preset.base_url) = (name, Some(base_url));
        preset
    }

    /// An unknown compatible server.
    pub const COMPATIBLE: Self = Preset {
        name: "openai-compatible",
        base_url: None,
        base_url_variables: &[],
        base_url_suffix: "",
        key_variables: &[],
        needs_key: false,
        auth: KeyHeader::Bearer,
        max_tokens_field: "max_tokens",
        seed_field: "seed",
        asks_for_usage: true,
        strict_tools: false,
        json_schema: true,
        required: "required",
        reasoning_back: None,
        system_role: "system",
        // NOTE: The model behind a gateway is unknown, so that requests follow the rules of most servers.
        rules: RequestRules { order: RoleOrder::ReplyAfterResult, ..RequestRules::COMPATIBLE },
        cache_control: false,
        file_urls: false,
        api_version_variables: &[],
        ends_without_reason: false,
        api: OpenAiApi::ChatCompletions,
    };

    /// OpenAI.
    pub const OPENAI: Self = Preset {
        name: "openai",
        base_url: Some("https://api.openai.com/v1"),
        base_url_variables: &["OPENAI_BASE_URL"],
        key_variables: &["OPENAI_API_KEY"],
        needs_key: true,
        max_tokens_field: "max_completion_tokens",
        strict_tools: true,
        rules: RequestRules::OPENAI_CHAT,
        api: OpenAiApi::Responses,
        ..Preset::COMPATIBLE
    };

    /// Azure OpenAI, by its v1 interface: the model is the name of the deployment. For the interface with versions see
    /// [`OpenAiBuilder::api_version`](super::OpenAiBuilder::api_version).
    pub const AZURE: Self = Preset {
        name: "azure",
        base_url: None,
        base_url_variables: &["AZURE_OPENAI_ENDPOINT"],
        base_url_suffix: "/openai/v1",
        key_variables: &["AZURE_OPENAI_API_KEY"],
        auth: KeyHeader::Header("api-key"),
        api_version_variables: &["OPENAI_API_VERSION"],
        api: OpenAiApi::ChatCompletions,
        ..Preset::OPENAI
    };

    /// OpenRouter.
    pub const OPENROUTER: Self = Preset {
        name: "openrouter",
        base_url: Some("https://openrouter.ai/api/v1"),
        base_url_variables: &["OPENROUTER_BASE_URL"],
        key_variables: &["OPENROUTER_API_KEY"],
        needs_key: true,
        strict_tools: true,
        reasoning_back: Some(ReasoningBack::Field("reasoning")),
        rules: Preset::COMPATIBLE.rules,
        cache_control: true,
        file_urls: true,
        ..Preset::COMPATIBLE
    };

    /// DeepSeek.
    pub const DEEPSEEK: Self = Preset {
        name: "deepseek",
        base_url: Some("https://api.deepseek.com/v1"),
        base_url_variables: &["DEEPSEEK_BASE_URL"],
        key_variables: &["DEEPSEEK_API_KEY"],
        needs_key: true,
        json_schema: false,
        reasoning_back: Some(ReasoningBack::Field("reasoning_content")),
        rules: RequestRules {
            tool_names: NameRules::OPENAI,
            schemas: SchemaRules::OPENAI,
            needs_reasoning: true,
            ..RequestRules::COMPATIBLE
        },
        ..Preset::COMPATIBLE
    };

    /// Qwen, at Alibaba's DashScope.
    pub const QWEN: Self = Preset {
        name: "qwen",
        base_url: Some("https://dashscope.aliyuncs.com/compatible-mode/v1"),
        base_url_variables: &["DASHSCOPE_BASE_URL"],
        key_variables: &["DASHSCOPE_API_KEY"],
        needs_key: true,
        rules: RequestRules::COMPATIBLE,
        ..Preset::COMPATIBLE
    };

    /// Moonshot (Kimi).
    pub const MOONSHOT: Self = Preset {
        name: "moonshot",
        base_url: Some("https://api.moonshot.ai/v1"),
        base_url_variables: &["MOONSHOT_BASE_URL"],
        key_variables: &["MOONSHOT_API_KEY"],
        needs_key: true,
        reasoning_back: Some(ReasoningBack::Field("reasoning_content")),
        rules: RequestRules {
            tool_names: NameRules::MOONSHOT,
            // NOTE: Its own ids have a colon.
            call_ids: CallIdForm::Any,
            schemas: SchemaRules::MOONSHOT,
            needs_reasoning: true,
            ..RequestRules::COMPATIBLE
        },
        ..Preset::COMPATIBLE
    };

    /// Groq.
    pub const GROQ: Self = Preset {
        name: "groq",
        base_url: Some("https://api.groq.com/openai/v1"),
        base_url_variables: &["GROQ_BASE_URL"],
        key_variables: &["GROQ_API_KEY"],
        needs_key: true,
        max_tokens_field: "max_completion_tokens",
        rules: RequestRules::COMPATIBLE,
        ..Preset::COMPATIBLE
    };

    /// Mistral.
    pub const MISTRAL: Self = Preset {
        name: "mistral",
        base_url: Some("https://api.mistral.ai/v1"),
        base_url_variables: &["MISTRAL_BASE_URL"],
        key_variables: &["MISTRAL_API_KEY"],
        needs_key: true,
        seed_field: "random_seed",
        // NOTE: It sends usage without a request, and rejects unknown fields.
        asks_for_usage: false,
        required: "any",
        reasoning_back: Some(ReasoningBack::Part),
        rules: RequestRules {
            tool_names: NameRules::OPENAI,
            call_ids: CallIdForm::Alphanumeric(9),
            names: false,
            ..Preset::COMPATIBLE.rules
        },
        ..Preset::COMPATIBLE
    };

    /// Together.
    pub const TOGETHER: Self = Preset {
        name: "together",
        base_url: Some("https://api.together.xyz/v1"),
        base_url_variables: &["TOGETHER_BASE_URL"],
        key_variables: &["TOGETHER_API_KEY"],
        needs_key: true,
        ..Preset::COMPATIBLE
    };

    /// xAI (Grok).
    pub const XAI: Self = Preset {
        name: "xai",
        base_url: Some("https://api.x.ai/v1"),
        base_url_variables: &["XAI_BASE_URL"],
        key_variables: &["XAI_API_KEY"],
        needs_key: true,
        rules: RequestRules::COMPATIBLE,
        ..Preset::COMPATIBLE
    };

    /// Cerebras.
    pub const CEREBRAS: Self = Preset {
        name: "cerebras",
        base_url: Some("https://api.cerebras.ai/v1"),
        base_url_variables: &["CEREBRAS_BASE_URL"],
        key_variables: &["CEREBRAS_API_KEY"],
        needs_key: true,
        max_tokens_field: "max_completion_tokens",
        reasoning_back: Some(ReasoningBack::Field("reasoning")),
        rules: RequestRules::COMPATIBLE,
        ..Preset::COMPATIBLE
    };

    /// Perplexity.
    pub const PERPLEXITY: Self = Preset {
        name: "perplexity",
        base_url: Some("https://api.perplexity.ai"),
        base_url_variables: &["PERPLEXITY_BASE_URL"],
        key_variables: &["PERPLEXITY_API_KEY"],
        needs_key: true,
        // NOTE: It sends usage in each chunk.
        asks_for_usage: false,
        rules: ALTERNATING,
        ..Preset::COMPATIBLE
    };

    /// Hugging Face, by its router.
    pub const HUGGING_FACE: Self = Preset {
        name: "huggingface",
        base_url: Some("https://router.huggingface.co/v1"),
        base_url_variables: &["HF_BASE_URL"],
        key_variables: &["HF_TOKEN"],
        needs_key: true,
        ..Preset::COMPATIBLE
    };

    /// z.ai (GLM).
    pub const ZAI: Self = Preset {
        name: "zai",
        base_url: Some("https://api.z.ai/api/paas/v4"),
        base_url_variables: &["ZAI_BASE_URL"],
        key_variables: &["ZAI_API_KEY"],
        needs_key: true,
        reasoning_back: Some(ReasoningBack::Field("reasoning_content")),
        rules: RequestRules::COMPATIBLE,
        ..Preset::COMPATIBLE
    };

    /// Fireworks.
    pub const FIREWORKS: Self = Preset {
        name: "fireworks",
        base_url: Some("https://api.fireworks.ai/inference/v1"),
        base_url_variables: &["FIREWORKS_BASE_URL"],
        key_variables: &["FIREWORKS_API_KEY"],
        needs_key: true,
        ..Preset::COMPATIBLE
    };

    /// Venice.
    pub const VENICE: Self = Preset {
        name: "venice",
        base_url: Some("https://api.venice.ai/api/v1"),
        base_url_variables: &["VENICE_BASE_URL"],
        key_variables: &["VENICE_API_KEY"],
        needs_key: true,
        reasoning_back: Some(ReasoningBack::Field("reasoning_content")),
        ..Preset::COMPATIBLE
    };

    /// Ollama's own servers.
    pub const OLLAMA_CLOUD: Self = Preset {
        name: "ollama-cloud",
        base_url: Some("https://ollama.com/v1"),
        base_url_variables: &["OLLAMA_CLOUD_BASE_URL"],
        key_variables: &["OLLAMA_API_KEY"],
        needs_key: true,
        reasoning_back: Some(ReasoningBack::Field("reasoning")),
        ..Preset::COMPATIBLE
    };

    /// Snowflake Cortex, at the address of an account.
    pub const SNOWFLAKE: Self = Preset {
        name: "snowflake",
        base_url: None,
        base_url_variables: &["SNOWFLAKE_BASE_URL"],
        base_url_suffix: "/api/v2/cortex/v1",
        key_variables: &["SNOWFLAKE_TOKEN"],
        needs_key: true,
        max_tokens_field: "max_completion_tokens",
        ends_without_reason: true,
        ..Preset::COMPATIBLE
    };

    /// Ollama, on this machine.
    pub const OLLAMA: Self = Preset {
        name: "ollama",
        base_url: Some("http://127.0.0.1:11434/v1"),
        base_url_variables: &["OLLAMA_BASE_URL", "OLLAMA_HOST"],
        base_url_suffix: "/v1",
        reasoning_back: Some(ReasoningBack::Field("reasoning")),
        rules: LOCAL,
        ..Preset::COMPATIBLE
    };

    /// vLLM, on this machine.
    pub const VLLM: Self = Preset {
        name: "vllm",
        base_url: Some("http://127.0.0.1:8000/v1"),
        base_url_variables: &["VLLM_BASE_URL"],
        key_variables: &["VLLM_API_KEY"],
        rules: LOCAL,
        ..Preset::COMPATIBLE
    };

    /// The server of llama.cpp, on this machine.
    pub const LLAMA_CPP: Self = Preset {
        name: "llama.cpp",
        base_url: Some("http://127.0.0.1:8080/v1"),
        base_url_variables: &["LLAMA_CPP_BASE_URL"],
        key_variables: &["LLAMA_API_KEY"],
        reasoning_back: Some(ReasoningBack::Field("reasoning_content")),
        rules: LOCAL,
        ..Preset::COMPATIBLE
    };

    /// LM Studio, on this machine.
    pub const LM_STUDIO: Self = Preset {
        name: "lmstudio",
        base_url: Some("http://127.0.0.1:1234/v1"),
        base_url_variables: &["LM_STUDIO_BASE_URL"],
        rules: LOCAL,
        ..Preset::COMPATIBLE
    };

    pub(crate) fn server(&self) -> ProviderInfo {
        let Preset { name, base_url, needs_key, key_variables, .. } = *self;
        ProviderInfo { name, base_url, needs_key, key_variables }
    }

    pub(crate) fn headers(&self, key: Option<&Secret>) -> Vec<(&'static str, String)> {
        let header = |key: &Secret| match self.auth {
            KeyHeader::Bearer => ("authorization", format!("Bearer {}", key.expose())),
            KeyHeader::Header(name) => (name, key.expose().to_owned()),
        };
        key.map(header).into_iter().collect()
    }

    /// The preset of this name.
    pub fn named(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }
}

/// All presets by name, except [`Preset::COMPATIBLE`], which has no address.
pub const PRESETS: &[Preset] = &[
    Preset::OPENAI,
    Preset::AZURE,
    Preset::OPENROUTER,
    Preset::DEEPSEEK,
    Preset::QWEN,
    Preset::MOONSHOT,
    Preset::GROQ,
    Preset::MISTRAL,
    Preset::TOGETHER,
    Preset::XAI,
    Preset::CEREBRAS,
    Preset::PERPLEXITY,
    Preset::HUGGING_FACE,
    Preset::ZAI,
    Preset::FIREWORKS,
    Preset::VENICE,
    Preset::SNOWFLAKE,
    Preset::OLLAMA_CLOUD,
    Preset::OLLAMA,
    Preset::VLLM,
    Preset::LLAMA_CPP,
    Preset::LM_STUDIO,
];
