//! What stands on the screen of a terminal after a printer has followed runs, live lines included. Time is stopped.

use std::io::{self, Write};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expect_test::{Expect, expect};
use serde_json::json;
use stepfold_agent_loop::{Agent, Decision, Decisions, Exit, Input, Outcome, Pause};
use stepfold_graph::{AgentNode, END, Graph, NodeContext, NodeError, START, Update};
use stepfold_providers::{Scripted, ScriptedReply};
use stepfold_runner::{Runner, SessionHandle, WhenClaimed};
use stepfold_session_scopes::{MemoryStore, SessionStore};
use stepfold_state_core::state::Schema;
use stepfold_terminal::{DisplayForm, Printer};
use stepfold_tools::{Approval, Args, Effect, Tool, ToolError};

/// A screen that understands what terminals do.
#[derive(Clone)]
struct Screen(Arc<Mutex<vt100::Parser>>);

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A terminal's driver sends both.
        let bytes_sent = String::from_utf8_lossy(bytes).replace('\n', "\r\n");
        self.0.lock().unwrap().process(bytes_sent.as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Screen {
    fn new(width: u16) -> Self {
        let (rows, columns) = (NonZeroU16::new(40).unwrap(), NonZeroU16::new(width + 1).unwrap());
        Screen(Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0))))
    }

    fn text(&self) -> String {
        let contents = self.0.lock().unwrap().screen().contents();
        contents.lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
    }
}

/// What a screen of so many columns shows after this.
fn shown(width: u16, play: impl AsyncFnOnce(&mut Printer)) -> String {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let screen = Screen::new(width);
        let mut printer = Printer::to_writer(DisplayForm::Terminal { width: width.into() }, screen.clone());
        play(&mut printer).await;
        screen.text()
    })
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Area {
    area: u64,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Bill {
    euro: u64,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Seat {
    train: String,
    euro: u64,
}

/// Takes longer than the live line stands still.
async fn wait() {
    // tidy: allow sleep, because the clock is paused, and time passes as soon as all wait.
    tokio::time::sleep(Duration::from_millis(400)).await;
}

fn count() -> Tool {
    let count = async |Args(Area { area })| {
        wait().await;
        Ok::<_, ToolError>(area)
    };
    Tool::new("count", "Counts.", count).effect(Effect::Pure).build().unwrap()
}

fn pay(approval: Approval) -> Tool {
    let pay = async |Args(Bill { euro })| {
        wait().await;
        if euro > 100 { Err(ToolError::new("the card was refused")) } else { Ok(format!("paid {euro}")) }
    };
    Tool::new("pay", "Pays.", pay).approval(approval).build().unwrap()
}

async fn session(agent: impl Into<Agent>, store: impl SessionStore) -> SessionHandle {
    Runner::builder(agent.into(), store).build().session("ada", "monday").await.unwrap()
}

#[test]
fn a_live_line_does_not_overwrite_an_answer() {
    let texts = [
        ("I look at it.", "● I look at it.\n"),
        ("I look **at** it.", "● I look at it.\n"),
        ("I look at **it**.", "● I look at it.\n"),
        ("One.\nTwo lines.", "● One.\n  Two lines.\n"),
        ("- a\n- b", "● • a\n  • b\n"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "● a  b\n  1  2\n"),
    ];
    for (text, answer) in texts {
        for pieces in [1, 4, 1000] {
            let calls = format!("{text}\n\n> c1 count(area=3)   > c2 count(area=4)");
            let model = Scripted::new([
                ScriptedReply::from(calls).in_pieces(pieces),
                ScriptedReply::from("Done.").in_pieces(2),
            ]);
            let agent = Agent::builder(model).tool(count()).build().unwrap();
            let shown = shown(60, async |printer| {
                let session = session(agent, MemoryStore::new()).await;
                printer.follow(&session.send("go").await.unwrap()).await.unwrap();
            });
            let rest = "  ✓ count(area=3) → 3 · 400 ms\n  ✓ count(area=4) → 4 · 400 ms\n● Done.\n  2 steps · 2 calls · 400 ms\n";
            assert_eq!(shown, format!("{answer}{rest}"), "{text:?} in pieces of {pieces}");
        }
    }
}

/// Approves the first request, changes the second, rejects the third.
async fn decided(printer: &mut Printer, session: &SessionHandle, outcome: &Outcome) -> Arc<Outcome> {
    let answers = [Decision::Approve, Decision::modify(json!({"euro": 4})), Decision::reject("too late")];
    let ids = outcome.pending().into_iter().map(|request| request.id);
    let decisions: Decisions = ids.zip(answers).collect();
    printer.follow(&session.resume().decide_all(decisions.by("ben")).start().unwrap()).await.unwrap()
}

#[track_caller]
fn check_decisions(agent: impl Into<Agent>, expect: &Expect) {
    let agent = agent.into();
    let shown = shown(72, async |printer| {
        let session = session(agent, MemoryStore::new()).await;
        let paused = printer.follow(&session.send("pay all").await.unwrap()).await.unwrap();
        assert_eq!(paused.exit(), &Exit::Paused(Pause::Approval));
        decided(printer, &session, &paused).await;
    });
    expect.assert_eq(&shown);
}

fn payer() -> stepfold_agent_loop::AgentBuilder {
    let model = Scripted::new([
        ScriptedReply::from("I pay now. > c1 pay(euro=500)   > c2 pay(euro=5)   > c3 pay(euro=6)"),
        ScriptedReply::from("It is **paid**."),
    ]);
    Agent::builder(model).name("payer").tool(pay(Approval::Always))
}

#[test]
fn who_decided_and_why() {
    check_decisions(
        payer().build().unwrap(),
        &expect![[r#"
        ● I pay now.
          (the run waits for decisions)
          ✓ pay(euro=500) → approved by ben
          ✓ pay(euro=5) → approved by ben as {"euro":4}
          ✗ pay(euro=6) → rejected by ben: too late
          ✗ pay(euro=500) → the card was refused · 400 ms · at most once
          ✓ pay(euro=4) → paid 4 · 400 ms · at most once
        ● It is paid.
          2 steps · 2 calls · 400 ms
    "#]],
    );
}

async fn tell(_: NodeContext) -> Result<Update, NodeError> {
    Ok(Update::new().say("This is the **report**."))
}

#[test]
fn calls_of_an_agent_in_a_graph_and_the_answer_of_a_graph() {
    let graph = Graph::builder("shop")
        .schema(Schema::builder().key::<String>("notes").build().unwrap())
        .node("pay", AgentNode::new(payer()).asks("pay").answers("notes"))
        .node("tell", tell)
        .chain([START, "pay", "tell", END])
        .build()
        .unwrap();
    check_decisions(
        graph,
        &expect![[r#"
          ▸ pay
            pay | I pay now.
          (the run waits for decisions)
          ✓ pay(euro=500) → approved by ben
          ✓ pay(euro=5) → approved by ben as {"euro":4}
          ✗ pay(euro=6) → rejected by ben: too late
          ▸ pay, resumed
            pay | ✗ pay(euro=500) → the card was refused · 400 ms · at most once
            pay | ✓ pay(euro=4) → paid 4 · 400 ms · at most once
          ▸ tell
        ● This is the report.
          2 steps · 2 calls · 400 ms
    "#]],
    );
}

#[test]
fn branches_are_told_apart_and_the_last_agent_gives_the_answer() {
    let scout = Agent::builder(Scripted::new(["Bonn has a river.", "Ulm has a church."])).name("scout");
    let writer = Agent::builder(Scripted::new(["Go to **Ulm**."])).name("writer");
    let schema = Schema::builder().key::<Vec<String>>("places").key::<Vec<String>>("notes").build().unwrap();
    let graph = Graph::builder("trip")
        .schema(schema)
        .node("scout", AgentNode::new(scout).asks("What is there in {item}?").answers("notes"))
        .node("write", AgentNode::new(writer))
        .fan_out(START, "scout", "places")
        .chain(["scout", "write", END])
        .build()
        .unwrap();
    let shown = shown(60, async |printer| {
        let session = session(graph, MemoryStore::new()).await;
        let input = Input::from("where to?").with_values(json!({"places": ["Bonn", "Ulm"]}));
        printer.follow(&session.send(input).await.unwrap()).await.unwrap();
    });
    expect![[r#"
          ▸ scout "Bonn"
          ▸ scout "Ulm"
          ✓ scout "Bonn" · 0 ms
          ✓ scout "Ulm" · 0 ms
          ▸ write
        ● Go to Ulm.
          3 steps · 0 ms
    "#]]
    .assert_eq(&shown);
}

#[test]
fn arguments_have_room_before_effect_and_time() {
    let reserve = async |Args(Seat { train, euro })| {
        wait().await;
        Ok::<_, ToolError>(format!("a seat in {train} for {euro} euro, wagon 7, by the window"))
    };
    let reserve = Tool::new("reserve", "Reserves.", reserve).build().unwrap();
    let agent = || {
        let calls = "> c1 reserve(train=\"ICE 9\", euro=90)   > c2 reserve(train=\"IC 5\", euro=45)";
        Agent::builder(Scripted::new([calls, "Done."])).tool(reserve.clone()).build().unwrap()
    };
    for (width, expect) in [
        (
            60,
            expect![[r#"
          ✓ reserve(train="ICE 9", euro=90) → a seat in ICE 9 for…
          ✓ reserve(train="IC 5", euro=45) → a seat in IC… · 400 ms
        ● Done.
          2 steps · 2 calls · 400 ms
    "#]],
        ),
        (
            80,
            expect![[r#"
          ✓ reserve(train="ICE 9", euro=90) → a seat in ICE 9 for 90 euro,… · 400 ms
          ✓ reserve(train="IC 5", euro=45) → a seat in IC 5 for 45 euro,… · 400 ms
        ● Done.
          2 steps · 2 calls · 400 ms
    "#]],
        ),
        (
            110,
            expect![[r#"
          ✓ reserve(train="ICE 9", euro=90) → a seat in ICE 9 for 90 euro, wagon 7, by the… · 400 ms · at most once
          ✓ reserve(train="IC 5", euro=45) → a seat in IC 5 for 45 euro, wagon 7, by the… · 400 ms · at most once
        ● Done.
          2 steps · 2 calls · 400 ms
    "#]],
        ),
    ] {
        let agent = agent();
        let shown = shown(width, async |printer| {
            let session = session(agent, MemoryStore::new()).await;
            printer.follow(&session.send("go").await.unwrap()).await.unwrap();
        });
        expect.assert_eq(&shown);
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[allow(dead_code, reason = "read as JSON")]
struct Plan {
    city: String,
    days: u64,
    sights: Vec<String>,
    hotel: serde_json::Value,
}

#[test]
fn a_structured_answer_is_shown_by_its_fields() {
    let answer = json!({
        "city": "Ulm", "days": 2, "sights": ["the church, which is the highest one of all of them", "the river"],
        "hotel": {"name": "Bear", "stars": null},
    });
    for pieces in [3, 1000] {
        let model = Scripted::new([ScriptedReply::from(answer.to_string()).in_pieces(pieces)]);
        let agent = Agent::builder(model).output::<Plan>().build().unwrap();
        let shown = shown(50, async |printer| {
            let session = session(agent, MemoryStore::new()).await;
            printer.user("where to?");
            printer.follow(&session.send("where to?").await.unwrap()).await.unwrap();
        });
        expect![[r#"
            ❯ where to?
            ● city: Ulm
              days: 2
              sights:
                • the church, which is the highest one of all
                  of them
                • the river
              hotel:
                name: Bear
                stars: null
              1 step · 0 ms
        "#]]
        .assert_eq(&shown);
    }
}

#[test]
fn a_run_that_fails_says_why() {
    let agent = Agent::builder(Scripted::new([ScriptedReply::from("It is").truncated()])).build().unwrap();
    let shown = shown(60, async |printer| {
        let session = session(agent, MemoryStore::new()).await;
        printer.follow(&session.send("go").await.unwrap()).await.unwrap_err();
    });
    // Ids differ from run to run.
    let is_said = shown.starts_with("● It is\n  ✗ ") && shown.contains("failed");
    assert!(is_said, "{shown}");
}

#[test]
fn a_call_with_an_unknown_outcome_is_reported_before_the_answer() {
    let agent = || {
        let script = "assistant: > c1 pay(euro=5)\nassistant: Please look whether it was paid.";
        let model = Scripted::conversation(script).unwrap();
        Agent::builder(model).tool(pay(Approval::Never)).build().unwrap()
    };
    for knows_state in [false, true] {
        let store = Arc::new(MemoryStore::new());
        // The process ends while the call runs.
        shown(60, async |printer| {
            let session = session(agent(), Arc::clone(&store)).await;
            let invocation = session.send("pay").await.unwrap();
            tokio::time::timeout(Duration::from_millis(200), printer.follow(&invocation)).await.unwrap_err();
        });
        let shown = shown(60, async |printer| {
            let runner = Runner::builder(agent(), store).when_claimed(WhenClaimed::TakeOver).build();
            let session = runner.session("ada", "monday").await.unwrap();
            if knows_state {
                printer.set_state(Some(session.state().await.unwrap()));
            }
            printer.follow(&session.resume().start().unwrap()).await.unwrap();
        });
        let expect = if knows_state {
            expect![[r#"
              ? pay(euro=5) → outcome unknown: it ran when the process…
            ● Please look whether it was paid.
              1 step · 0 ms
        "#]]
        } else {
            expect![[r#"
              ? pay → outcome unknown: it ran when the process ended,…
            ● Please look whether it was paid.
              1 step · 0 ms
        "#]]
        };
        expect.assert_eq(&shown);
    }
}
