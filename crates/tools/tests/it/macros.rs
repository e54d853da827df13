//! `#[tool]`: what a tool says of itself, by how its function is written.

use std::collections::BTreeMap;
use std::time::Duration;

use expect_test::{Expect, expect};
use serde_json::{Value, json};
use stepfold_tools::state_core::state::Handler;
use stepfold_tools::{
    Approval, Args, BuildError, Effect, Extract, FromState, Resource, ResultSource, Retry, StateWriter, Tool,
    ToolBuilder, ToolContext, ToolError, state_key, tool,
};

fn built(builder: ToolBuilder) -> Tool {
    builder.build().expect("the tool has no faults")
}

/// Compares what the model sees. Fields are sorted, since their order depends on a feature of `serde_json`.
fn check(builder: ToolBuilder, expected: &Expect) {
    let tool = built(builder);
    let spec = tool.spec();
    let parameters = serde_json::to_string_pretty(&sorted(&spec.parameters)).expect("JSON can be written");
    let strict = if spec.strict { ", strict" } else { "" };
    expected.assert_eq(&format!("{}{strict}: {}\n{parameters}\n", spec.name, spec.description));
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<&String, Value> =
                fields.iter().map(|(name, field)| (name, sorted(field))).collect();
            fields.into_iter().map(|(name, field)| (name.clone(), field)).collect()
        }
        other => other.clone(),
    }
}

/// Search documents by a query.
///
/// Best for names.
///
/// # Errors
/// None that the model should read of.
#[tool(effect(Effect::Pure), output_to_state("results", "results"), timeout(Duration::from_secs(2)))]
async fn search(
    /// What to search for.
    query: String,
    /// At most this many.
    limit: Option<u32>,
    #[from_state("user_name")] user_context: Option<String>,
    context: &ToolContext,
) -> Result<Value, ToolError> {
    context.report("searching");
    tokio::task::yield_now().await;
    Ok(json!({"results": [query, limit, user_context, context.call_id()]}))
}

#[test]
fn docs_are_descriptions_and_the_state_fed_parameter_is_not_shown() {
    check(
        search_tool(),
        &expect![[r#"
        search: Search documents by a query.

        Best for names.
        {
          "additionalProperties": false,
          "properties": {
            "limit": {
              "description": "At most this many.",
              "minimum": 0,
              "type": [
                "integer",
                "null"
              ]
            },
            "query": {
              "description": "What to search for.",
              "type": "string"
            }
          },
          "required": [
            "query"
          ],
          "type": "object"
        }
    "#]],
    );
}

#[test]
fn options_reach_the_builder() {
    let tool = built(search_tool());
    assert_eq!(tool.effect(), Effect::Pure);
    assert_eq!(tool.timeout(), Some(Duration::from_secs(2)));
    assert!(matches!(tool.approval(), Approval::Never));
    expect![[r#"
        Tool {
            name: "search",
            effect: Pure,
            inputs: [
                InputBinding {
                    key: "user_name",
                    parameter: "user_context",
                    is_visible: false,
                },
            ],
            outputs: [
                OutputBinding {
                    key: "results",
                    source: Field(
                        "results",
                    ),
                    handler: None,
                },
            ],
            ..
        }
    "#]]
    .assert_debug_eq(&tool);
}

/// Rates a document.
#[tool(
    name = "rate-document",
    description = "Rates one document.",
    effect(Effect::Idempotent),
    approval(Approval::Once),
    retry(Retry::times(3).after(Duration::from_millis(100))),
    strict,
    reads(["documents", "user:taste"]),
    writes(["rated"]),
    output_to_state("user:last", ResultSource::Whole),
    output_to_state_with("ratings", "rating", Handler::upsert_by("id")),
    output_to_state_with("seen", "id", Handler::union()),
)]
fn rate(
    #[default_from_state("user:language")] language: String,
    #[default] note: String,
    #[schemars(range(min = 1, max = 5))] stars: u8,
    #[default(default_id())] r#type: u64,
    state: &StateWriter,
) -> Option<Value> {
    state.set("rated", 1).ok()?;
    Some(json!({"id": r#type, "rating": {"stars": stars, "note": note, "language": language}}))
}

fn default_id() -> u64 {
    7
}

#[test]
fn defaults_are_not_required_and_a_visible_parameter_may_come_from_the_state() {
    check(
        rate_tool(),
        &expect![[r#"
            rate-document, strict: Rates one document.
            {
              "additionalProperties": false,
              "properties": {
                "language": {
                  "type": "string"
                },
                "note": {
                  "default": "",
                  "type": "string"
                },
                "stars": {
                  "maximum": 5,
                  "minimum": 1,
                  "type": "integer"
                },
                "type": {
                  "default": 7,
                  "minimum": 0,
                  "type": "integer"
                }
              },
              "required": [
                "stars"
              ],
              "type": "object"
            }
        "#]],
    );
}

#[test]
fn every_option_at_once() {
    let tool = built(rate_tool());
    assert!(matches!(tool.approval(), Approval::Once));
    expect![[r#"
        Tool {
            name: "rate-document",
            effect: Idempotent,
            inputs: [
                InputBinding {
                    key: "user:language",
                    parameter: "language",
                    is_visible: true,
                },
            ],
            outputs: [
                OutputBinding {
                    key: "user:last",
                    source: Whole,
                    handler: None,
                },
                OutputBinding {
                    key: "ratings",
                    source: Field(
                        "rating",
                    ),
                    handler: Some(
                        Handler(upsert_by(id)),
                    ),
                },
                OutputBinding {
                    key: "seen",
                    source: Field(
                        "id",
                    ),
                    handler: Some(
                        Handler(union),
                    ),
                },
            ],
            ..
        }
    "#]]
    .assert_debug_eq(&tool);
}

state_key! {
    /// How the user wants to be called.
    UserName: String = "user_name";
}

struct Region(String);

impl Extract for Region {
    fn extract(context: &ToolContext) -> Result<Self, ToolError> {
        Ok(Region(context.tool_name().to_owned()))
    }
}

/// Greets the user.
#[tool]
async fn greet(
    FromState(name): FromState<UserName>,
    Resource(greeting): Resource<String>,
    #[extract] Region(region): Region,
) -> String {
    format!("{greeting} {} in {region}", name.unwrap_or_default())
}

#[test]
fn extractors_are_no_arguments() {
    check(
        greet_tool(),
        &expect![[r#"
        greet: Greets the user.
        {
          "additionalProperties": false,
          "properties": {},
          "type": "object"
        }
    "#]],
    );
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Point {
    /// To the right.
    x: f64,
}

/// Moves a point.
#[tool]
fn shift(Args(point): Args<Point>) -> Result<f64, std::num::ParseFloatError> {
    Ok(point.x + "1".parse::<f64>()?)
}

/// Gives nothing back.
#[tool]
fn forget(point: Point) {
    let Point { x: _ } = point;
}

#[test]
fn arguments_may_stand_in_one_struct() {
    check(
        shift_tool(),
        &expect![[r#"
        shift: Moves a point.
        {
          "additionalProperties": false,
          "properties": {
            "x": {
              "description": "To the right.",
              "type": "number"
            }
          },
          "required": [
            "x"
          ],
          "type": "object"
        }
    "#]],
    );
    check(
        forget_tool(),
        &expect![[r#"
        forget: Gives nothing back.
        {
          "additionalProperties": false,
          "properties": {
            "point": {
              "additionalProperties": false,
              "properties": {
                "x": {
                  "description": "To the right.",
                  "type": "number"
                }
              },
              "required": [
                "x"
              ],
              "type": "object"
            }
          },
          "required": [
            "point"
          ],
          "type": "object"
        }
    "#]],
    );
}

type Outcome = Result<u32, ToolError>;

/// Fails.
#[tool]
async fn fails(_reason: String) -> Outcome {
    Err(ToolError::new("no"))
}

#[tokio::test]
async fn functions_stay_callable_as_they_were() {
    assert!(fails("x".to_owned()).await.is_err());
    assert_eq!(
        greet(FromState(None), Resource("Hi".to_owned().into()), Region("Rome".to_owned())).await,
        "Hi  in Rome"
    );
    assert_eq!(shift(Args(Point { x: 1.0 })).ok(), Some(2.0));
}

#[test]
fn further_calls_may_follow() -> Result<(), BuildError> {
    let tool =
        fails_tool().effect(Effect::Pure).approval(Approval::when(serde_json::Map::is_empty)).build()?;
    assert_eq!(tool.effect(), Effect::Pure);
    Ok(())
}

#[test]
fn what_the_builder_refuses_is_refused_here_too() {
    /// Tries again what it must not.
    #[tool(retry(Retry::times(1)), timeout(Duration::ZERO), output_to_state("messages", ResultSource::Whole))]
    fn wrong() {}

    expect!["invalid tool 'wrong': timeout: must be positive: no call could finish; retry: requires a pure or idempotent tool: declare the effect, or leave retries to the model; messages: must not be written by tools: it is the conversation"].assert_eq(&wrong_tool().build().expect_err("it has faults").to_string());
}
