//! Models by name, looked up in an environment of the test's own.

use expect_test::{Expect, expect};
use stepfold_providers::{model_from, model_with};
use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, Transcript};

use crate::server::{Play, Server};

/// The id of the model, or why there is none. Nothing else is in the environment than these variables.
fn check(name: &str, variables: &[(&str, &str)], expected: Expect) {
    let look_up = |variable: &str| {
        variables.iter().find(|(known, _)| *known == variable).map(|(_, value)| (*value).to_owned())
    };
    let model = if name.is_empty() { model_from(look_up) } else { model_with(name, look_up) };
    let shown = match model {
        Ok(model) => model.id().to_owned(),
        Err(error) => format!("error: {error}"),
    };
    expected.assert_eq(&(shown + "\n"));
}

#[test]
fn names() {
    check(
        "openai:gpt-4.1",
        &[("OPENAI_API_KEY", "k-1234")],
        expect![[r#"
        openai/gpt-4.1
    "#]],
    );
    check(
        "ollama:qwen3:8b",
        &[],
        expect![[r#"
        ollama/qwen3:8b
    "#]],
    );
    check(
        "ollama:qwen3",
        &[("OLLAMA_HOST", "0.0.0.0:11434")],
        expect![[r#"
        ollama/qwen3
    "#]],
    );
    check(
        "azure:mine",
        &[("AZURE_OPENAI_ENDPOINT", "https://x.test/"), ("AZURE_OPENAI_API_KEY", "k")],
        expect![[r#"
            azure/mine
        "#]],
    );
    check(
        "anthropic:claude",
        &[("ANTHROPIC_API_KEY", "k-1234")],
        expect![[r#"
        anthropic/claude
    "#]],
    );
    check(
        "http://127.0.0.1:8080/v1#mine",
        &[],
        expect![[r#"
        openai-compatible/mine
    "#]],
    );
    check(
        "",
        &[("STEPFOLD_MODEL", " vllm:x ")],
        expect![[r#"
        vllm/x
    "#]],
    );
}

/// The path that a model of this name asks at.
async fn path(name: &str, variables: &[&str]) -> String {
    let server = Server::start([Play::json(400, "{}")], usize::MAX, |_| Ok(())).await;
    let look_up = |variable: &str| match variable {
        _ if !variables.contains(&variable) => None,
        _ if variable.ends_with("_KEY") => Some("k-1234".to_owned()),
        _ => Some(format!("{}/v1", server.url)),
    };
    let model = model_with(&name.replace("URL", &server.url), look_up).unwrap();
    let error =
        model.respond(ChatRequest::new(Transcript::new().with(Message::user("hi")))).into_reply().await;
    let error = error.unwrap_err();
    match server.asked().first() {
        Some(asked) => asked.path().to_owned(),
        None => error.to_string(),
    }
}

#[tokio::test]
async fn a_name_says_which_api_is_spoken() {
    let _offline = stepfold_providers::forbid_real_requests();
    let openai = &["OPENAI_API_KEY", "OPENAI_BASE_URL"];
    assert_eq!(path("openai:m", openai).await, "/v1/chat/completions", "at an address of one's own");
    assert_eq!(path("openai-chat:m", openai).await, "/v1/chat/completions");
    assert_eq!(path("openai-responses:m", openai).await, "/v1/responses");
    assert_eq!(path("xai-responses:m", &["XAI_API_KEY", "XAI_BASE_URL"]).await, "/v1/responses");
    assert_eq!(path("URL/v1#m", &[]).await, "/v1/chat/completions");
    assert_eq!(path("anthropic:m", &["ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"]).await, "/v1/messages");
    let gemini = path("gemini:m", &["GEMINI_API_KEY", "GEMINI_BASE_URL"]).await;
    assert_eq!(gemini, "/v1/models/m:streamGenerateContent?alt=sse");
    let refused = path("openai:m", &["OPENAI_API_KEY"]).await;
    assert!(refused.contains("forbidden") && refused.contains("api.openai.com"), "{refused}");
}

#[test]
fn what_is_missing_is_said() {
    check(
        "openai:gpt-4.1",
        &[("OPENAI_API_KEY", " ")],
        expect![[r#"
        error: missing key for `openai:gpt-4.1`: set OPENAI_API_KEY
    "#]],
    );
    check(
        "azure:mine",
        &[("AZURE_OPENAI_API_KEY", "k")],
        expect![[r#"
        error: missing base URL for `azure:mine`: set AZURE_OPENAI_ENDPOINT
    "#]],
    );
    check(
        "anthropic:claude",
        &[],
        expect![[r#"
        error: missing key for `anthropic:claude`: set ANTHROPIC_API_KEY
    "#]],
    );
    check(
        "gpt-4.1",
        &[],
        expect![[r#"
        error: invalid model name `gpt-4.1`: expected PROVIDER:MODEL or URL#MODEL; available providers: anthropic, gemini, openai, azure, openrouter, deepseek, qwen, moonshot, groq, mistral, together, xai, cerebras, perplexity, huggingface, zai, fireworks, venice, snowflake, ollama-cloud, ollama, vllm, llama.cpp, lmstudio
    "#]],
    );
    check(
        "openai:",
        &[],
        expect![[r#"
        error: invalid model name `openai:`: expected PROVIDER:MODEL or URL#MODEL; available providers: anthropic, gemini, openai, azure, openrouter, deepseek, qwen, moonshot, groq, mistral, together, xai, cerebras, perplexity, huggingface, zai, fireworks, venice, snowflake, ollama-cloud, ollama, vllm, llama.cpp, lmstudio
    "#]],
    );
    check(
        "nobody:x",
        &[],
        expect![[r#"
        error: unknown provider `nobody` in `nobody:x`; available: anthropic, gemini, openai, azure, openrouter, deepseek, qwen, moonshot, groq, mistral, together, xai, cerebras, perplexity, huggingface, zai, fireworks, venice, snowflake, ollama-cloud, ollama, vllm, llama.cpp, lmstudio
    "#]],
    );
    check(
        "http://127.0.0.1:8080/v1",
        &[],
        expect![[r#"
        error: invalid model name `http://127.0.0.1:8080/v1`: expected PROVIDER:MODEL or URL#MODEL; available providers: anthropic, gemini, openai, azure, openrouter, deepseek, qwen, moonshot, groq, mistral, together, xai, cerebras, perplexity, huggingface, zai, fireworks, venice, snowflake, ollama-cloud, ollama, vllm, llama.cpp, lmstudio
    "#]],
    );
    check(
        "openai:gpt",
        &[("OPENAI_API_KEY", "two\nlines")],
        expect![[r#"
            error: invalid model `openai:gpt`: invalid request (openai, model gpt): invalid key: contains a character that cannot be sent, such as a line break
        "#]],
    );
    check(
        "",
        &[("GROQ_API_KEY", "k")],
        expect![[r#"
        error: missing model: set STEPFOLD_MODEL to PROVIDER:MODEL or URL#MODEL; keys that are set: GROQ_API_KEY; known keys: ANTHROPIC_API_KEY, GEMINI_API_KEY, GOOGLE_API_KEY, OPENAI_API_KEY, AZURE_OPENAI_API_KEY, OPENROUTER_API_KEY, DEEPSEEK_API_KEY, DASHSCOPE_API_KEY, MOONSHOT_API_KEY, GROQ_API_KEY, MISTRAL_API_KEY, TOGETHER_API_KEY, XAI_API_KEY, CEREBRAS_API_KEY, PERPLEXITY_API_KEY, HF_TOKEN, ZAI_API_KEY, FIREWORKS_API_KEY, VENICE_API_KEY, SNOWFLAKE_TOKEN, OLLAMA_API_KEY, VLLM_API_KEY, LLAMA_API_KEY
    "#]],
    );
    check(
        "",
        &[],
        expect![[r#"
        error: missing model: set STEPFOLD_MODEL to PROVIDER:MODEL or URL#MODEL; keys that are set: none; known keys: ANTHROPIC_API_KEY, GEMINI_API_KEY, GOOGLE_API_KEY, OPENAI_API_KEY, AZURE_OPENAI_API_KEY, OPENROUTER_API_KEY, DEEPSEEK_API_KEY, DASHSCOPE_API_KEY, MOONSHOT_API_KEY, GROQ_API_KEY, MISTRAL_API_KEY, TOGETHER_API_KEY, XAI_API_KEY, CEREBRAS_API_KEY, PERPLEXITY_API_KEY, HF_TOKEN, ZAI_API_KEY, FIREWORKS_API_KEY, VENICE_API_KEY, SNOWFLAKE_TOKEN, OLLAMA_API_KEY, VLLM_API_KEY, LLAMA_API_KEY
    "#]],
    );
}
