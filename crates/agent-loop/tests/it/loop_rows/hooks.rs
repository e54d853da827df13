//! The application's own word, at six points.

use expect_test::expect;
use serde_json::json;
use stepfold_agent_loop::state_core::chat::{Message, Role, ToolContent, Transcript};
use stepfold_agent_loop::state_core::state::{Handler, Schema, ValueRef};
use stepfold_agent_loop::tools::CallStatus;
use stepfold_agent_loop::{
    Agent, AgentBuilder, Breakpoint, Exit, HookAction, HookContext, HookError, HookPoint, HookResult, Run,
};

use super::check;
use super::kit::*;

const POINTS: [HookPoint; 6] = [
    HookPoint::BeforeRun,
    HookPoint::BeforeModel,
    HookPoint::BeforeTool,
    HookPoint::AfterTool,
    HookPoint::OnExit,
    HookPoint::AfterRun,
];

const SCRIPT: &str = "assistant: > c1 fetch(id=1)   > c2 fails()\nassistant: area 1\nassistant: area 2";

fn schema() -> Schema {
    let schema = Schema::builder().key::<Vec<String>>("log");
    schema.key::<i64>("visits").handler(Handler::sum()).build().unwrap()
}

/// An agent with a hook that does this at one point.
fn hooked(
    point: HookPoint,
    hook: impl Fn(&HookContext) -> HookResult + Send + Sync + 'static,
) -> AgentBuilder {
    agent(SCRIPT).schema(schema()).hook(point, move |context| {
        let result = hook(&context);
        async move { result }
    })
}

/// Each point in its turn, the hooks of one in the order in which they were added, each seeing what those
/// before it wrote.
#[tokio::test]
async fn order_of_hooks() {
    let notes = Notes::default();
    let mut agent = agent(SCRIPT).schema(schema());
    for name in ["first", "second"] {
        for point in POINTS {
            let notes = notes.clone();
            agent = agent.hook(point, move |context: HookContext| {
                let call = context.call.as_ref().map_or(String::new(), |call| format!(" {}", call.id));
                let outcome = context
                    .outcome
                    .as_ref()
                    .map_or(String::new(), |outcome| format!(" {:?}", outcome.status));
                let exit = context.exit.as_ref().map_or(String::new(), |exit| format!(" ({exit})"));
                let log = context.state.get("log").map_or(json!([]), ValueRef::to_json);
                let (steps, messages) = (context.steps, context.state.messages().len());
                notes.add(format!(
                    "{:?} {name}{call}{outcome}{exit}: {steps} steps, {messages} messages, {log}",
                    context.point
                ));
                async move { HookAction::proceed().write(&context, "log", vec![name.to_owned()]) }
            });
        }
    }
    check(agent, "where?", expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 fails()
        tool c1:   area 1
        tool c2!:  no such area
        assistant: area 1
        --
        exit: the model answered
        steps: 2, calls: fails 1, fetch 1
        state: {"log":["first","second","first","second","first","second","first","second","first","second","first","second","first","second","first","second"]}
    "#]]).await;
    expect![[r#"
        BeforeRun first: 0 steps, 1 messages, []
        BeforeRun second: 0 steps, 1 messages, ["first"]
        BeforeModel first: 0 steps, 1 messages, ["first","second"]
        BeforeModel second: 0 steps, 1 messages, ["first","second","first"]
        BeforeTool first c1: 1 steps, 2 messages, ["first","second","first","second"]
        BeforeTool second c1: 1 steps, 2 messages, ["first","second","first","second"]
        BeforeTool first c2: 1 steps, 2 messages, ["first","second","first","second"]
        BeforeTool second c2: 1 steps, 2 messages, ["first","second","first","second"]
        AfterTool first c1 Succeeded: 1 steps, 2 messages, ["first","second","first","second"]
        AfterTool second c1 Succeeded: 1 steps, 2 messages, ["first","second","first","second"]
        AfterTool first c2 Failed(Error): 1 steps, 2 messages, ["first","second","first","second"]
        AfterTool second c2 Failed(Error): 1 steps, 2 messages, ["first","second","first","second"]
        BeforeModel first: 1 steps, 4 messages, ["first","second","first","second","first","second","first","second","first","second"]
        BeforeModel second: 1 steps, 4 messages, ["first","second","first","second","first","second","first","second","first","second","first"]
        OnExit first (the model answered): 2 steps, 5 messages, ["first","second","first","second","first","second","first","second","first","second","first","second"]
        OnExit second (the model answered): 2 steps, 5 messages, ["first","second","first","second","first","second","first","second","first","second","first","second","first"]
        AfterRun first (the model answered): 2 steps, 5 messages, ["first","second","first","second","first","second","first","second","first","second","first","second","first","second"]
        AfterRun second (the model answered): 2 steps, 5 messages, ["first","second","first","second","first","second","first","second","first","second","first","second","first","second","first"]
    "#]].assert_eq(&notes.text());
}

#[tokio::test]
async fn hook_stops_the_run() {
    for point in POINTS {
        let expected = match point {
            HookPoint::BeforeRun => expect![[r#"
                user:      where?
                --
                exit: a hook ended the run: enough
                steps: 0
            "#]],
            HookPoint::BeforeModel => expect![[r#"
                user:      where?
                --
                exit: a hook ended the run: enough
                steps: 0
            "#]],
            HookPoint::BeforeTool => expect![[r#"
                user:      where?
                assistant: > c1 fetch(id=1)   > c2 fails()
                tool c1!:  tool 'fetch' was not run: a hook ended the run: enough
                tool c2!:  tool 'fails' was not run: a hook ended the run: enough
                --
                exit: a hook ended the run: enough
                steps: 1
            "#]],
            HookPoint::AfterTool => expect![[r#"
                user:      where?
                assistant: > c1 fetch(id=1)   > c2 fails()
                tool c1:   area 1
                tool c2!:  no such area
                --
                exit: a hook ended the run: enough
                steps: 1, calls: fails 1, fetch 1
            "#]],
            HookPoint::OnExit => expect![[r#"
                user:      where?
                assistant: > c1 fetch(id=1)   > c2 fails()
                tool c1:   area 1
                tool c2!:  no such area
                assistant: area 1
                --
                exit: a hook ended the run: enough
                steps: 2, calls: fails 1, fetch 1
            "#]],
            // There is nothing left to stop.
            _ => expect![[r#"
                user:      where?
                assistant: > c1 fetch(id=1)   > c2 fails()
                tool c1:   area 1
                tool c2!:  no such area
                assistant: area 1
                --
                exit: the model answered
                steps: 2, calls: fails 1, fetch 1
            "#]],
        };
        check(hooked(point, |_| Ok(HookAction::stop("enough"))), "where?", expected).await;
    }
}

/// One that stops the run is the last of its point; the run is closed anyway.
#[tokio::test]
async fn hook_that_stops_is_the_last() {
    for point in POINTS {
        let notes = Notes::default();
        let (later, closing) = (notes.clone(), notes.clone());
        let agent = hooked(point, |_| Ok(HookAction::stop("enough")))
            .hook(point, move |_| {
                later.add("later");
                async { Ok(HookAction::proceed()) }
            })
            .after_run(move |_| {
                closing.add("closed");
                async { Ok(HookAction::proceed()) }
            });
        play(&agent.build().unwrap(), "where?", |run| run).await.unwrap();
        let is_last_point = point == HookPoint::AfterRun;
        let expected = if is_last_point { "" } else { "closed\n" };
        assert_eq!(notes.text(), expected, "{point:?}");
    }
}

/// It answers a call and stops: the calls behind it are not asked about any more.
#[tokio::test]
async fn hook_that_answers_and_stops() {
    let notes = Notes::default();
    let seen = notes.clone();
    let agent = hooked(HookPoint::BeforeTool, move |context| {
        seen.add(context.call.as_ref().unwrap().id.clone());
        Ok(HookAction::stop("enough").with_answer("not now"))
    });
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 fails()
        tool c1!:  not now
        tool c2!:  tool 'fails' was not run: a hook ended the run: enough
        --
        exit: a hook ended the run: enough
        steps: 1
    "#]],
    )
    .await;
    assert_eq!(notes.text(), "c1\n");
}

#[tokio::test]
async fn hook_goes_on() {
    let agent = hooked(HookPoint::OnExit, |context| {
        let is_second = context.state.messages().last().unwrap().text().contains('2');
        let more = HookAction::continue_run().with_message(Message::user("are you sure?"));
        Ok(if is_second { HookAction::proceed() } else { more })
    });
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 fails()
        tool c1:   area 1
        tool c2!:  no such area
        assistant: area 1
        user:      are you sure?
        assistant: area 2
        --
        exit: the model answered
        steps: 3, calls: fails 1, fetch 1
    "#]],
    )
    .await;
}

/// A limit cannot be overruled.
#[tokio::test]
async fn hook_continues_against_a_limit() {
    let agent = hooked(HookPoint::OnExit, |_| Ok(HookAction::continue_run())).max_steps(1);
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 fails()
        tool c1:   area 1
        tool c2!:  no such area
        --
        exit: the limit of steps was reached
        steps: 1, calls: fails 1, fetch 1
    "#]],
    )
    .await;
    // The limit is reached by the step that was wanted to be no end.
    let agent = hooked(HookPoint::OnExit, |_| Ok(HookAction::continue_run())).max_steps(2);
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 fails()
        tool c1:   area 1
        tool c2!:  no such area
        assistant: area 1
        --
        exit: the limit of steps was reached
        steps: 2, calls: fails 1, fetch 1
    "#]],
    )
    .await;
}

/// An output that was not taken for an end is not output of what follows.
#[tokio::test]
async fn hook_continues_after_an_output() {
    use stepfold_agent_loop::Output;

    let script = "assistant: 1\nassistant: > c1 fetch(id=1)\nassistant: 2";
    let agent = agent(script)
        .output_with(Output::schema("number", json!({"type": "integer"})))
        .on_exit(|context: HookContext| async move {
            let is_first = context.state.messages().last().unwrap().text() == "1";
            Ok(if is_first { HookAction::continue_run() } else { HookAction::proceed() })
        })
        .build()
        .unwrap();
    let outcome = play(&agent, "which?", |run| run).await.unwrap();
    assert_eq!((outcome.exit(), outcome.output::<u64>().unwrap(), outcome.steps()), (&Exit::Output, 2, 3));
}

#[tokio::test]
async fn hook_answers_a_call() {
    let agent = hooked(HookPoint::BeforeTool, |context| {
        let is_first = context.call.as_ref().unwrap().id == "c1";
        Ok(if is_first { HookAction::proceed().with_answer("it is Sunday") } else { HookAction::proceed() })
    });
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 fails()
        tool c1!:  it is Sunday
        tool c2!:  no such area
        assistant: area 1
        --
        exit: the model answered
        steps: 2, calls: fails 1
    "#]],
    )
    .await;
}

/// Writes before and after a tool are folded with those of the call, at the end of the step, those before it only if the
/// call succeeded; elsewhere at once.
#[tokio::test]
async fn hook_writes() {
    for point in POINTS {
        let agent =
            hooked(point, |context| HookAction::proceed().write(context, "visits", 1)).build().unwrap();
        let outcome = play(&agent, "where?", |run| run).await.unwrap();
        let expected = match point {
            HookPoint::BeforeModel | HookPoint::AfterTool => 2,
            _ => 1,
        };
        assert_eq!(outcome.state().get("visits").unwrap(), json!(expected), "{point:?}");
    }
}

#[tokio::test]
async fn hook_writes_what_the_schema_does_not_have() {
    for point in POINTS {
        let agent = hooked(point, |context| HookAction::proceed().write(context, "visits", "many"));
        let ended = play(&agent.build().unwrap(), "where?", |run| run).await;
        let error = chain(&ended.unwrap_err());
        assert!(error.contains(&format!("hook {point} failed")), "{error}");
        assert!(error.contains("\"visits\""), "{error}");
    }
}

#[tokio::test]
async fn hook_changes_a_result() {
    let agent = hooked(HookPoint::AfterTool, |context| {
        let outcome = context.outcome.as_ref().unwrap();
        let text = outcome.result.text().to_uppercase();
        Ok(HookAction::proceed().with_result(match outcome.status {
            CallStatus::Succeeded => ToolContent::Value(text.into()),
            _ => ToolContent::Error(text),
        }))
    });
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: > c1 fetch(id=1)   > c2 fails()
        tool c1:   AREA 1
        tool c2!:  NO SUCH AREA
        assistant: area 1
        --
        exit: the model answered
        steps: 2, calls: fails 1, fetch 1
    "#]],
    )
    .await;
}

#[tokio::test]
async fn hook_appends_a_message() {
    for point in [HookPoint::BeforeRun, HookPoint::BeforeModel, HookPoint::OnExit, HookPoint::AfterRun] {
        let agent = hooked(point, |_| Ok(HookAction::proceed().with_message(Message::user("by the way"))));
        let expected = match point {
            HookPoint::BeforeRun => expect![[r#"
                user:      where?
                user:      by the way
                assistant: > c1 fetch(id=1)   > c2 fails()
                tool c1:   area 1
                tool c2!:  no such area
                assistant: area 1
                --
                exit: the model answered
                steps: 2, calls: fails 1, fetch 1
            "#]],
            HookPoint::BeforeModel => expect![[r#"
                user:      where?
                user:      by the way
                assistant: > c1 fetch(id=1)   > c2 fails()
                tool c1:   area 1
                tool c2!:  no such area
                user:      by the way
                assistant: area 1
                --
                exit: the model answered
                steps: 2, calls: fails 1, fetch 1
            "#]],
            HookPoint::OnExit => expect![[r#"
                user:      where?
                assistant: > c1 fetch(id=1)   > c2 fails()
                tool c1:   area 1
                tool c2!:  no such area
                assistant: area 1
                user:      by the way
                --
                exit: the model answered
                steps: 2, calls: fails 1, fetch 1
            "#]],
            _ => expect![[r#"
                user:      where?
                assistant: > c1 fetch(id=1)   > c2 fails()
                tool c1:   area 1
                tool c2!:  no such area
                assistant: area 1
                user:      by the way
                --
                exit: the model answered
                steps: 2, calls: fails 1, fetch 1
            "#]],
        };
        check(agent, "where?", expected).await;
    }
}

/// Within a step, messages have no place.
#[tokio::test]
async fn hook_appends_a_message_within_a_step() {
    for point in [HookPoint::BeforeTool, HookPoint::AfterTool] {
        let agent = hooked(point, |_| Ok(HookAction::proceed().with_message(Message::user("by the way"))));
        let ended = play(&agent.build().unwrap(), "where?", |run| run).await;
        let error = chain(&ended.unwrap_err());
        assert!(error.ends_with("cannot append or rewrite messages, because the step is open"), "{error}");
    }
}

/// What a hook appends is well-formed in the end, whatever it gave.
#[tokio::test]
async fn hook_appends_messages_that_are_broken() {
    use stepfold_agent_loop::state_core::chat::ToolResult;

    let agent = hooked(HookPoint::BeforeRun, |_| {
        let call = message("assistant: > h1 fetch(id=9)");
        let result = Message::tool(ToolResult::value("h7", "fetch", "?"));
        Ok(HookAction::proceed().with_message(call).with_message(result))
    });
    let agent = agent.model(script(SCRIPT).after(1));
    check(
        agent,
        "where?",
        expect![[r#"
        user:      where?
        assistant: > h1 fetch(id=9)
        tool h1!:  interrupted: no result of this call was recorded; whether it took effect is unknown
        assistant: > c1 fetch(id=1)   > c2 fails()
        tool c1:   area 1
        tool c2!:  no such area
        assistant: area 1
        --
        exit: the model answered
        steps: 2, calls: fails 1, fetch 1
    "#]],
    )
    .await;
}

#[tokio::test]
async fn hook_rewrites_the_messages() {
    let model = Asked::new(script("assistant: area 3"));
    let hides = |context: HookContext| async move {
        let mut messages = Transcript::new();
        for message in context.state.messages() {
            messages.push(match message.role() {
                Role::User => Message::user(message.text().replace("secret", "***")),
                _ => (**message).clone(),
            });
        }
        Ok(HookAction::proceed().with_rewrite(messages))
    };
    let agent = Agent::builder(model.clone()).instructions("Be brief.").before_model(hides);
    check(
        agent,
        "is secret the password?",
        expect![[r#"
        user:      is *** the password?
        assistant: area 3
        --
        exit: the model answered
        steps: 1
    "#]],
    )
    .await;
    expect![[r#"
        --
        system:    Be brief.
        user:      is *** the password?
    "#]]
    .assert_eq(&model.shown());
}

/// A conversation that is put in place of the log is repaired.
#[tokio::test]
async fn hook_rewrites_the_messages_badly() {
    let agent = Agent::builder(script("assistant: area 3").after(1)).before_run(|_| async {
        Ok(HookAction::proceed().with_rewrite(conversation("user: where?\nassistant: > c1 search(q=\"x\")")))
    });
    check(
        agent,
        "what?",
        expect![[r#"
        user:      where?
        assistant: > c1 search(q="x")
        tool c1!:  interrupted: no result of this call was recorded; whether it took effect is unknown
        assistant: area 3
        --
        exit: the model answered
        steps: 1
    "#]],
    )
    .await;
}

/// It ends the run, which continues from there once the hook works.
#[tokio::test]
async fn hook_fails() {
    for point in POINTS {
        let agent = hooked(point, |_| Err(HookError::new("the gate is closed"))).build().unwrap();
        let error = play(&agent, "where?", |run| run).await.unwrap_err();
        let words = chain(&error);
        assert!(words.ends_with(&format!("hook {point} failed: the gate is closed")), "{words}");
        let open = hooked(point, |_| Ok(HookAction::proceed())).build().unwrap();
        let run = Run::load(&open, &error.into_run().to_json()).unwrap();
        let outcome = go_on(run, |run| run).await.unwrap();
        assert_eq!((outcome.exit(), outcome.text()), (&Exit::Text, "area 1".into()), "{point:?}");
    }
}

/// A resumed run does not ask the hooks again that have spoken.
#[tokio::test]
async fn hook_is_asked_once() {
    let notes = Notes::default();
    let mut agent = agent(SCRIPT);
    for point in POINTS {
        let notes = notes.clone();
        agent = agent.hook(point, move |_| {
            notes.add(format!("{point:?}"));
            async { Ok(HookAction::proceed()) }
        });
    }
    let agent = agent.build().unwrap();
    let mut run = Run::new(&agent, "where?", "run").unwrap();
    for stops in 0.. {
        let outcome = go_on(run, |run| {
            run.break_at(Breakpoint::model().every()).break_at(Breakpoint::tool("fetch").every())
        })
        .await
        .unwrap();
        if !outcome.exit().is_resumable() {
            assert_eq!(stops, 3);
            break;
        }
        run = reloaded(&outcome);
    }
    expect![[r#"
        BeforeRun
        BeforeModel
        BeforeTool
        BeforeTool
        AfterTool
        AfterTool
        BeforeModel
        OnExit
        AfterRun
    "#]]
    .assert_eq(&notes.text());
}
