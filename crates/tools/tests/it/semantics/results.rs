//! What the model reads of a result.

use std::sync::{Arc, Mutex};

use expect_test::expect;
use serde_json::{Value, json};
use stepfold_tools::state_core::chat::{Content, Media, Part};
use stepfold_tools::{Offload, Overflow, ResultText};

use super::{World, echo, returns};

#[tokio::test]
async fn result_text() {
    let results = [
        json!("as it is"),
        json!({"a": [1, 0.5]}),
        json!(1.0),
        json!(null),
        json!(""),
        json!([]),
        json!("\"quoted\""),
    ];
    let mut world = World::stateless();
    for (index, result) in results.into_iter().enumerate() {
        world = world.tool(returns(&format!("get_{index}"), result));
    }
    let invocation = world.invocation(
        "> c0 get_0() > c1 get_1() > c2 get_2() > c3 get_3() > c4 get_4() > c5 get_5() > c6 get_6()",
    );
    let texts: Vec<String> =
        invocation.finish().await.outcomes.iter().map(|outcome| outcome.result.text().into_owned()).collect();
    assert_eq!(texts, ["as it is", r#"{"a":[1,0.5]}"#, "1.0", "null", "", "[]", "\"quoted\""]);
}

#[tokio::test]
async fn outputs_to_string_source_and_formatter() {
    let result = || json!({"documents": ["a", "b"], "count": 2});
    let count = || ResultText::of("count");
    World::stateless()
        .tool(returns("plain", result()).output_to_string(count()))
        .tool(
            returns("formatted", result())
                .output_to_string(count().formatted(|count| Ok(format!("{count} found")))),
        )
        .check(
            "> c1 plain() > c2 formatted()",
            expect![[r#"
            assistant: > c1 plain()   > c2 formatted()
            tool c1:   2
            tool c2:   2 found
        "#]],
        )
        .await;
}

#[tokio::test]
async fn outputs_to_string_several_named_sources() {
    let several = ResultText::several([
        ("count", ResultText::of("count")),
        (
            "titles",
            ResultText::of("documents")
                .formatted(|documents| Ok(documents[0].as_str().unwrap().to_uppercase())),
        ),
    ]);
    World::stateless()
        .tool(returns("find", json!({"documents": ["a", "b"], "count": 2})).output_to_string(several))
        .check(
            "> c1 find()",
            expect![[r#"
            assistant: > c1 find()
            tool c1:   "{\"count\":\"2\",\"titles\":\"A\"}"
        "#]],
        )
        .await;
}

#[tokio::test]
async fn outputs_to_string_raw_content_parts() {
    let parts = ResultText::parts("plot", |plot| {
        let data = plot.as_str().ok_or("no plot")?;
        Ok(vec![Part::text("the plot:"), Content::Image(Media::base64(data, "image/png")).into()])
    });
    World::stateless()
        .tool(returns("draw", json!({"plot": "iVBOR"})).output_to_string(parts))
        .check("> c1 draw()", expect![[r#"
            assistant: > c1 draw()
            tool:      @{"tool_result": {"call_id": "c1", "name": "draw", "parts": [{"text": "the plot:"}, {"image": {"base64": "iVBOR", "media_type": "image/png"}}]}}
        "#]])
        .await;
}

#[tokio::test]
async fn formatter_fails() {
    let refuses = ResultText::of("count").formatted(|_| Err("no".into()));
    let panics = ResultText::of("count").formatted(|_| panic!("no"));
    let result = || json!({"count": 2});
    World::stateless()
        .tool(returns("refuses", result()).output_to_string(refuses))
        .tool(returns("panics", result()).output_to_string(panics))
        .tool(returns("misses", result()).output_to_string(ResultText::of("missing")))
        .check(
            "> c1 refuses() > c2 panics() > c3 misses()",
            expect![[r#"
            assistant: > c1 refuses()   > c2 panics()   > c3 misses()
            tool c1:   2
            tool c2:   2
            tool c3:   null
        "#]],
        )
        .await;
}

#[tokio::test]
async fn limits_output_bytes_are_cut() {
    let world = World::stateless()
        .tool(returns("text", json!("äöü and more")))
        .tool(returns("json", json!(["a", "b", "c"])))
        .tool(returns("fits", json!("12345")))
        .tool(super::fails("fails", || stepfold_tools::ToolError::new("a long story")))
        .options(|options| options.limits.output_bytes = 5);
    world
        .check(
            "> c1 text() > c2 json() > c3 fits() > c4 fails()",
            expect![[r#"
        assistant: > c1 text()   > c2 json()   > c3 fits()   > c4 fails()
        tool c1:   äö
                   [cut: 15 bytes in all, the first 4 are shown]
        tool c2:   ["a",
                   [cut: 13 bytes in all, the first 5 are shown]
        tool c3:   "12345"
        tool c4!:  a lon
                   [cut: 12 bytes in all, the first 5 are shown]
    "#]],
        )
        .await;
}

#[tokio::test]
async fn limits_what_is_cut_goes_to_the_state_whole() {
    let schema = stepfold_tools::state_core::state::Schema::builder().key::<Value>("last");
    let tool = returns("text", json!({"text": "a long story"})).output_to_state("last", "text");
    World::new(schema, json!({}))
        .tool(tool)
        .options(|options| options.limits.output_bytes = 5)
        .check(
            "> c1 text()",
            expect![[r#"
            assistant: > c1 text()
            tool c1:   {"tex
                       [cut: 23 bytes in all, the first 5 are shown]
            state: {"last":"a long story"}
            delta c1: [{"key":"last","handler":"replace_values","value":"a long story"}]
        "#]],
        )
        .await;
}

/// Keeps what it is given, unless it is told to fail.
#[derive(Default)]
struct Shelf {
    kept: Mutex<Vec<(String, String)>>,
}

impl Offload for Shelf {
    fn keep(&self, call_id: &str, text: &str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        match text {
            "refuse me" => Err("the shelf is full".into()),
            "break me" => panic!("the shelf broke"),
            _ => {
                self.kept.lock().unwrap().push((call_id.to_owned(), text.to_owned()));
                Ok(format!("shelf {call_id}"))
            }
        }
    }
}

#[tokio::test]
async fn limits_output_bytes_are_offloaded() {
    let shelf = Arc::new(Shelf::default());
    let world = World::stateless()
        .tool(echo("say", json!({"x": {}})).output_to_string(ResultText::of("x")))
        .options(|options| {
            options.limits.output_bytes = 5;
            options.overflow = Overflow::Offload(Arc::clone(&shelf) as Arc<dyn Offload>);
        });
    world
        .check(
            r#"> c1 say(x="a long story") > c2 say(x="refuse me") > c3 say(x="break me") > c4 say(x="fits")"#,
            expect![[r#"
                assistant: > c1 say(x="a long story")   > c2 say(x="refuse me")   > c3 say(x="break me")   > c4 say(x="fits")
                tool c1:   a lon
                           [12 bytes in all, the first 5 are shown; the whole is kept: shelf c1]
                tool c2:   refus
                           [cut: 9 bytes in all, the first 5 are shown]
                tool c3:   break
                           [cut: 8 bytes in all, the first 5 are shown]
                tool c4:   fits
            "#]],
        )
        .await;
    assert_eq!(*shelf.kept.lock().unwrap(), [("c1".to_owned(), "a long story".to_owned())]);
}

#[tokio::test]
async fn limits_output_bytes_of_parts_are_cut_as_one() {
    let shelf = Arc::new(Shelf::default());
    let parts = ResultText::parts("x", |x| {
        let words = x.as_str().unwrap_or_default().split_inclusive(' ').map(Part::text);
        let image = Content::Image(Media::url("https://example.org/a.png")).into();
        let huge = Content::Image(Media::base64("A".repeat(21 * 1024 * 1024), "image/png")).into();
        Ok(words.chain([image, huge]).collect())
    });
    let world =
        World::stateless().tool(echo("say", json!({"x": {}})).output_to_string(parts)).options(|options| {
            options.limits.output_bytes = 8;
            options.overflow = Overflow::Offload(Arc::clone(&shelf) as Arc<dyn Offload>);
        });
    world.check(r#"> c1 say(x="so it goes on and on")"#, expect![[r#"
        assistant: > c1 say(x="so it goes on and on")
        tool:      @{"tool_result": {"call_id": "c1", "name": "say", "parts": [{"text": "so "}, {"text": "it "}, {"text": "go"}, {"image": {"url": "https://example.org/a.png"}}, {"text": "[left out: 22020096 bytes of media are too many]"}, {"text": "[20 bytes in all, the first 8 are shown; the whole is kept: shelf c1]"}]}}
    "#]]).await;
    assert_eq!(*shelf.kept.lock().unwrap(), [("c1".to_owned(), "so it goes on and on".to_owned())]);
}
