//! Runs: what they look like at terminals of several widths, and in a pipe.

use std::time::Duration;

use expect_test::{Expect, expect};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use stepfold_agent_loop::{Agent, RunEvent};
use stepfold_providers::Scripted;
use stepfold_runner::{InvocationEvent, Runner};
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::state::{Handler, Schema, State};
use stepfold_terminal::{DisplayForm, Markdown, RunView, StyledText, TextStyle, ViewItem, approval, changes};
use stepfold_tools::{Approval, Args, Effect, InputRequest, StateWriter, Tool, ToolContext, ToolError};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Query {
    sql: String,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Bill {
    euro: u64,
    #[serde(default)]
    note: String,
}

const CONVERSATION: &str = "\
assistant: I look **at once**.   > c1 run_sql(sql=\"SELECT name, latitude FROM zones WHERE latitude < 0 ORDER BY name\")
assistant: > c2 run_sql(sql=\"DELETE FROM zones\")   > c3 pay(euro=5)
assistant: There are *three* of them: `Africa/Maputo`, `America/Lima` and `Asia/Jakarta`, from west to east.
";

fn agent(conversation: &str, approve: Approval) -> Agent {
    let run_sql = async |Args(query): Args<Query>, state: StateWriter| {
        if query.sql.starts_with("DELETE") {
            return Err(ToolError::new("only SELECT is allowed"));
        }
        state.set("app:queries", 1)?;
        state.set("last", json!({"sql": query.sql}))?;
        Ok(
            json!({"columns": ["name", "latitude"], "rows": [["Africa/Maputo", -25.9], ["America/Lima", -12.0], ["Asia/Jakarta", -6.1]]}),
        )
    };
    let pay = async |Args(bill): Args<Bill>| {
        Ok::<Value, ToolError>(json!(format!("paid {}{}", bill.euro, bill.note)))
    };
    let schema = Schema::builder()
        .key_schema("app:queries", json!("integer"))
        .handler(Handler::sum())
        .default(3)
        .key_schema("last", json!("object"))
        .handler(Handler::replace_values())
        .build()
        .unwrap();
    let tools = [
        Tool::new("run_sql", "Runs a query.", run_sql)
            .effect(Effect::Pure)
            .writes(["app:queries", "last"])
            .build()
            .unwrap(),
        Tool::new("pay", "Pays.", pay).approval(approve).build().unwrap(),
    ];
    Agent::builder(Scripted::conversation(conversation).unwrap().whole())
        .schema(schema)
        .tools(tools)
        .build()
        .unwrap()
}

/// What a run shows, with 40 ms for each event.
fn shown(form: DisplayForm, is_verbose: bool) -> StyledText {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let runner = Runner::builder(agent(CONVERSATION, Approval::Never), MemoryStore::new()).build();
        let session = runner.session("ada", "monday").await.unwrap();
        let mut view = RunView::new(form).verbose(is_verbose);
        view.set_state(Some(session.state().await.unwrap()));
        let invocation = session.send("which ones?").await.unwrap();
        let (mut events, mut number) = (invocation.subscribe(0), 0);
        let mut page = Page::new(form);
        while let Some(InvocationEvent::Event { event, .. }) = events.next().await {
            number += 1;
            page.add(view.see(&event, Duration::from_millis(40 * number)));
        }
        page.shown
    })
}

/// Puts together what a printer writes.
struct Page {
    form: DisplayForm,
    reply: Option<Markdown>,
    shown: StyledText,
}

impl Page {
    fn new(form: DisplayForm) -> Self {
        Page { form, reply: None, shown: StyledText::default() }
    }

    fn add(&mut self, shown: Vec<ViewItem>) {
        for shown in shown {
            match (shown, self.form) {
                (ViewItem::Reply(text), DisplayForm::Terminal { width }) => {
                    let new = || Markdown::new(width, StyledText::new(TextStyle::GOOD, "● "));
                    let more = self.reply.get_or_insert_with(new).push(&text);
                    self.shown.append(&more);
                }
                (ViewItem::Reply(text), DisplayForm::Log) => self.shown.push(TextStyle::PLAIN, &text),
                (ViewItem::ReplyEnd, DisplayForm::Log) => self.shown.push(TextStyle::PLAIN, "\n"),
                (ViewItem::ReplyEnd, DisplayForm::Terminal { .. }) => {
                    if let Some(mut reply) = self.reply.take() {
                        self.shown.append(&reply.end());
                    }
                }
                (ViewItem::Line(line), _) => {
                    self.shown.append(&line);
                    self.shown.push(TextStyle::PLAIN, "\n");
                }
            }
        }
    }
}

#[track_caller]
fn check(form: DisplayForm, is_verbose: bool, expect: &Expect) {
    let shown = shown(form, is_verbose).to_plain();
    expect.assert_eq(&shown);
    if let DisplayForm::Terminal { width } = form {
        for line in shown.lines() {
            assert!(StyledText::from(line).width() <= width, "{line}");
        }
    }
}

#[test]
fn at_80_columns() {
    check(
        DisplayForm::Terminal { width: 80 },
        false,
        &expect![[r#"
            ● I look at once.
              ✓ run_sql(sql="SELECT name, latitude FROM…") → {"columns": […+2], …+1} · 40 ms
              ~ app:queries 3 -> 4
              ~ last unset -> {"sql": "SELECT name, latitude FROM zones WHERE…"}
              ✗ run_sql(sql="DELETE FROM zones") → only SELECT is allowed · 120 ms
              ✓ pay(euro=5) → paid 5 · 120 ms · at most once
            ● There are three of them: Africa/Maputo, America/Lima and Asia/Jakarta, from
              west to east.
              3 steps · 3 calls · 840 ms
        "#]],
    );
}

#[test]
fn at_40_columns() {
    check(
        DisplayForm::Terminal { width: 40 },
        false,
        &expect![[r#"
            ● I look at once.
              ✓ run_sql(sql="SELECT na…") → {…+2}
              ~ app:queries 3 -> 4
              ~ last unset -> {"sql": "SELECT na…"}
              ✗ run_sql(sql="DE…) → only SELECT is…
              ✓ pay(euro=5) → paid 5 · 120 ms
            ● There are three of them:
              Africa/Maputo, America/Lima and
              Asia/Jakarta, from west to east.
              3 steps · 3 calls · 840 ms
        "#]],
    );
}

#[test]
fn verbose() {
    check(
        DisplayForm::Terminal { width: 60 },
        true,
        &expect![[r#"
            ● I look at once.
              ✓ run_sql · 40 ms
                sql = "SELECT name, latitude FROM zones WHERE latitude <
                  0 ORDER BY name"
                → {"columns":["name","latitude"],"rows":[["Africa/Maputo
                  ",-25.9],["America/Lima",-12.0],["Asia/Jakarta",-6.1]]
                  }
              ~ app:queries 3 -> 4
              ~ last unset -> {"sql": "SELECT name, latitude FROM…"}
              ✗ run_sql · 120 ms
                sql = "DELETE FROM zones"
                → only SELECT is allowed
              ✓ pay · 120 ms · at most once
                euro = 5
                → paid 5
            ● There are three of them: Africa/Maputo, America/Lima and
              Asia/Jakarta, from west to east.
              3 steps · 3 calls · 840 ms
        "#]],
    );
}

#[test]
fn in_a_pipe() {
    check(
        DisplayForm::Log,
        false,
        &expect![[r#"
            I look **at once**.
            > c1 run_sql(sql="SELECT name, latitude FROM zones WHERE latitude < 0 ORDER BY name")
              c1: {"columns":["name","latitude"],"rows":[["Africa/Maputo",-25.9],["America/Lima",-12.0],["Asia/Jakarta",-6.1]]}
              ~ app:queries 3 -> 4
              ~ last unset -> {"sql": "SELECT name, latitude FROM zones WHERE latitude < 0 ORDER BY name"}
            > c2 run_sql(sql="DELETE FROM zones")
            > c3 pay(euro=5)
              c2!: only SELECT is allowed
              c3: paid 5
            There are *three* of them: `Africa/Maputo`, `America/Lima` and `Asia/Jakarta`, from west to east.
        "#]],
    );
}

#[test]
fn in_colors() {
    expect![[r#"
        ^[32m● ^[0mI look ^[1mat once^[0m.
        ^[2m  ^[0m^[32m✓^[0m^[1m run_sql^[0m^[2m(sql="SELECT name, latitu…") → ^[0m{…+2}
        ^[2m  ~ ^[0m^[34mapp:queries^[0m^[2m 3 -> ^[0m4
        ^[2m  ~ ^[0m^[34mlast^[0m^[2m unset -> ^[0m{"sql": "SELECT name, latitude FROM…"}
        ^[2m  ^[0m^[1m^[31m✗^[0m^[1m run_sql^[0m^[2m(sql="DELETE FROM z…") → ^[0m^[1m^[31monly SELECT is allowed^[0m
        ^[2m  ^[0m^[32m✓^[0m^[1m pay^[0m^[2m(euro=5) → ^[0mpaid 5^[2m · 120 ms · at most once^[0m
        ^[32m● ^[0mThere are ^[3mthree^[0m of them: ^[36mAfrica/Maputo^[0m, ^[36mAmerica/Lima^[0m and
          ^[36mAsia/Jakarta^[0m, from west to east.
        ^[2m  3 steps · 3 calls · 840 ms^[0m
    "#]].assert_eq(&shown(DisplayForm::Terminal { width: 60 }, false).to_ansi().replace('\u{1b}', "^"));
}

#[test]
fn of_long_texts_that_begin_alike_the_difference_is_shown() {
    let schema = Schema::builder().key::<String>("query").build().unwrap();
    let mut before = State::new(&schema);
    before.set("query", "SELECT name FROM zones WHERE latitude < 0 LIMIT 5").unwrap();
    let mut now = before.clone();
    now.set("query", "SELECT name FROM zones WHERE longitude < 0 LIMIT 5").unwrap();
    let lines = changes(&now, &before, 60);
    assert_eq!(lines[0].to_plain(), r#"  ~ query "…es WHERE latitude…" -> "…es WHERE longitude…""#);
}

#[track_caller]
fn check_approval(arguments: &str, form: DisplayForm, expect: &Expect) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let agent = agent(&format!("assistant: > c1 pay({arguments})"), Approval::Always);
    let outcome = runtime.block_on(agent.run("pay").into_future()).unwrap();
    let request = &outcome.pending()[0];
    let shown = approval(request, form).to_plain();
    let (_, digest) = request.id.split_once('#').unwrap();
    expect.assert_eq(&shown.replace(digest, "DIGEST"));
}

#[test]
fn what_is_approved_is_shown_whole() {
    check_approval(
        "euro=5",
        DisplayForm::Terminal { width: 60 },
        &expect![[r#"? decide about c1#DIGEST: pay {"euro":5}"#]],
    );
    check_approval(
        r#"euro=5, note="a\u001b[8mb\u202ec\nd""#,
        DisplayForm::Log,
        &expect![[r#"
            decide about c1#DIGEST: pay {"euro":5,"note":"a\u001b[8mb\u202ec\nd"}
              warning: 2 characters that hide or reorder text are shown as escapes"#]],
    );
    let long = format!(r#"euro=5, note="{}""#, "for the stall at the corner; ".repeat(6));
    check_approval(
        &long,
        DisplayForm::Terminal { width: 60 },
        &expect![[r#"
        ? decide about c1#DIGEST: pay
          {
            "euro": 5,
            "note": "for the stall at the corner; for the stall at the corner; for the stall at the corner; for the stall at the corner; for the stall at the corner; for the stall at the corner; "
          }"#]],
    );
}

/// What a server says of itself cannot hide in it either.
#[test]
fn a_question_of_a_tool_is_shown_with_the_schema_of_its_answer() {
    let ask = async |context: ToolContext| {
        let seat = InputRequest::new("seat", "Window\u{202e}?").details(json!({"flight": "LX 318"}));
        context.ask(seat.schema(json!({"type": "object"})))?;
        Ok::<_, ToolError>("booked")
    };
    let book = Tool::new("book", "Books.", ask).build().unwrap();
    let model = Scripted::conversation("assistant: > c1 book()").unwrap();
    let agent = Agent::builder(model).tools([book]).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let outcome = runtime.block_on(agent.run("book").into_future()).unwrap();
    let request = &outcome.pending()[0];
    let (_, digest) = request.id.split_once('#').unwrap();
    expect![[r#"
        decide about c1/seat#DIGEST: book asks: Window\u202e? {"flight":"LX 318"}
          answer: {"type":"object"}
          warning: 1 character that hides or reorders text is shown as an escape"#]]
    .assert_eq(&approval(request, DisplayForm::Log).to_plain().replace(digest, "DIGEST"));
}

/// An outcome that comes later asks for no decision.
#[test]
fn an_outcome_that_comes_later_is_not_a_question() {
    let taxi =
        async |context: ToolContext| Ok::<_, ToolError>(context.later("taxi").message("a taxi").outcome()?);
    let taxi = Tool::new("taxi", "Orders.", taxi).build().unwrap();
    let model = Scripted::conversation("assistant: > c1 taxi()").unwrap();
    let agent = Agent::builder(model).tools([taxi]).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let outcome = runtime.block_on(agent.run("a taxi").into_future()).unwrap();
    let request = &outcome.pending()[0];
    let (_, digest) = request.id.split_once('#').unwrap();
    expect!["waits for the outcome of c1/taxi#DIGEST: taxi: a taxi"]
        .assert_eq(&approval(request, DisplayForm::Log).to_plain().replace(digest, "DIGEST"));
}

#[test]
fn a_live_line_says_what_is_at_work_and_since_when() {
    let mut view = RunView::new(DisplayForm::Terminal { width: 80 });
    let started = |id: &str, tool: &str| RunEvent::ToolStarted {
        call_id: id.to_owned(),
        tool: tool.to_owned(),
        arguments: "{}".to_owned(),
    };
    view.see(&started("c1", "count"), Duration::from_secs(1));
    view.see(&started("c2", "pay\u{202e}"), Duration::from_secs(2));
    assert_eq!(view.live(Duration::from_secs(4)).unwrap().to_plain(), "⠁ count, pay\\u202e 2s");
    view.see(&RunEvent::Text("Done.".to_owned()), Duration::from_secs(5));
    assert_eq!(view.live(Duration::from_secs(6)), None);
}
