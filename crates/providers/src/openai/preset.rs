//! The servers that people run, as data. What one of them does differently is a field here, not a branch
//! somewhere else that asks for its name.

/// Where a server is, and what it does differently from OpenAI.
///
/// # Examples
/// A server that is not on the [list](PRESETS):
/// ```
/// use stepfold_providers::openai::{OpenAi, Preset};
///
/// const OURS: Preset = Preset { name: "ours", base_url: Some("http://10.0.0.7:9000/v1"), ..Preset::COMPATIBLE };
/// let model = OpenAi::preset(&OURS, "our-model").key("k-123").build()?;
/// # let _ = model;
/// # Ok::<(), stepfold_state_core::chat::ModelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each says one thing that a server can or cannot do")]
pub struct Preset {
    /// What it is called in names of models, ids and errors.
    pub name: &'static str,
    /// Where it is, unless told otherwise.
    pub base_url: Option<&'static str>,
    /// Environment variables that say where it is, in the order in which they are looked at.
    pub base_url_variables: &'static [&'static str],
    /// What is added to a base URL from such a variable, unless it ends with it.
    pub base_url_suffix: &'static str,
    /// Environment variables that hold a key, in the order in which they are looked at.
    pub key_variables: &'static [&'static str],
    /// Whether there is no use in asking without a key.
    pub needs_key: bool,
    /// How the key is sent.
    pub auth: Auth,
    /// The name of the field that limits the tokens of a reply.
    pub max_tokens_field: &'static str,
    /// The name of the field for a seed.
    pub seed_field: &'static str,
    /// Whether it has to be asked to tell the usage in a stream.
    pub asks_for_usage: bool,
    /// Whether it knows `strict` schemas of tools.
    pub strict_tools: bool,
    /// Whether it can hold a reply to a JSON Schema.
    pub json_schema: bool,
    /// The word that stands for "any tool, but one".
    pub required: &'static str,
    /// The field under which it wants its reasoning back, if it does.
    pub reasoning_back: Option<&'static str>,
}

/// How a key is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Auth {
    /// As `Authorization: Bearer KEY`.
    Bearer,
    /// In a header of this name.
    Header(&'static str),
}

impl Preset {
    /// A server of which nothing is known but that it is compatible.
    pub const COMPATIBLE: Self = Preset {
        name: "openai-compatible",
        base_url: None,
        base_url_variables: &[],
        base_url_suffix: "",
        key_variables: &[],
        needs_key: false,
        auth: Auth::Bearer,
        max_tokens_field: "max_tokens",
        seed_field: "seed",
        asks_for_usage: true,
        strict_tools: false,
        json_schema: true,
        required: "required",
        reasoning_back: None,
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
        ..Preset::COMPATIBLE
    };

    /// Azure OpenAI, by its v1 interface: the model is the name of the deployment.
    pub const AZURE: Self = Preset {
        name: "azure",
        base_url: None,
        base_url_variables: &["AZURE_OPENAI_ENDPOINT"],
        base_url_suffix: "/openai/v1",
        key_variables: &["AZURE_OPENAI_API_KEY"],
        auth: Auth::Header("api-key"),
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
        reasoning_back: Some("reasoning"),
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
        reasoning_back: Some("reasoning_content"),
        ..Preset::COMPATIBLE
    };

    /// Qwen, at Alibaba's DashScope.
    pub const QWEN: Self = Preset {
        name: "qwen",
        base_url: Some("https://dashscope.aliyuncs.com/compatible-mode/v1"),
        base_url_variables: &["DASHSCOPE_BASE_URL"],
        key_variables: &["DASHSCOPE_API_KEY"],
        needs_key: true,
        ..Preset::COMPATIBLE
    };

    /// Moonshot (Kimi).
    pub const MOONSHOT: Self = Preset {
        name: "moonshot",
        base_url: Some("https://api.moonshot.ai/v1"),
        base_url_variables: &["MOONSHOT_BASE_URL"],
        key_variables: &["MOONSHOT_API_KEY"],
        needs_key: true,
        reasoning_back: Some("reasoning_content"),
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
        // It tells without being asked, and refuses fields that it does not know.
        asks_for_usage: false,
        required: "any",
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

    /// Ollama, on this machine.
    pub const OLLAMA: Self = Preset {
        name: "ollama",
        base_url: Some("http://127.0.0.1:11434/v1"),
        base_url_variables: &["OLLAMA_BASE_URL", "OLLAMA_HOST"],
        base_url_suffix: "/v1",
        ..Preset::COMPATIBLE
    };

    /// vLLM, on this machine.
    pub const VLLM: Self = Preset {
        name: "vllm",
        base_url: Some("http://127.0.0.1:8000/v1"),
        base_url_variables: &["VLLM_BASE_URL"],
        key_variables: &["VLLM_API_KEY"],
        ..Preset::COMPATIBLE
    };

    /// The server of llama.cpp, on this machine.
    pub const LLAMA_CPP: Self = Preset {
        name: "llama.cpp",
        base_url: Some("http://127.0.0.1:8080/v1"),
        base_url_variables: &["LLAMA_CPP_BASE_URL"],
        key_variables: &["LLAMA_API_KEY"],
        ..Preset::COMPATIBLE
    };

    /// LM Studio, on this machine.
    pub const LM_STUDIO: Self = Preset {
        name: "lmstudio",
        base_url: Some("http://127.0.0.1:1234/v1"),
        base_url_variables: &["LM_STUDIO_BASE_URL"],
        ..Preset::COMPATIBLE
    };

    /// The preset of this name.
    pub fn named(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }
}

/// All presets by name. [`Preset::COMPATIBLE`] is not among them: it has no address.
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
    Preset::OLLAMA,
    Preset::VLLM,
    Preset::LLAMA_CPP,
    Preset::LM_STUDIO,
];
