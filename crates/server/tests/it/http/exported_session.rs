// Session `s1` of the app `clerk`, exported at version 10.
//
// The model answers from the script; the tools are those of the agent and run, so that a tool whose results change has to
// be replaced for this test. Beside it stands
//
//     fn agent(model: Script) -> Agent
//
// with the agent under test, which has this model in place of its own.

use stepfold::agent_loop::test_kit::Script;
use stepfold::runner::Runner;
use stepfold::session_scopes::MemoryStore;

/// What the model replies.
const SCRIPT: &str = "assistant: > c1 pay()
assistant: It is paid.
assistant: Five euro.
";

/// The conversation that comes of it.
const CONVERSATION: &str = r#"user:      pay the "bill"
assistant: > c1 pay()
tool c1:   {"euro": 5}
assistant: It is paid.
user:      how much?
assistant: Five euro.
"#;

/// Decides about the calls with these ids.
async fn decided(
    session: &stepfold::runner::SessionHandle,
    decisions: &[(&str, &str)],
) -> Result<std::sync::Arc<stepfold::agent_loop::Outcome>, Box<dyn std::error::Error>> {
    let mut resume = session.resume();
    for request in session.pending().await? {
        if let Some((_, decision)) = decisions.iter().find(|(call, _)| *call == request.call.id) {
            resume = resume.decide(request.id, serde_json::from_str(decision)?);
        }
    }
    Ok(resume.await?)
}

#[tokio::test]
async fn the_session_goes_as_it_went() -> Result<(), Box<dyn std::error::Error>> {
    let runner = Runner::builder(agent(Script::parse(SCRIPT)?), MemoryStore::new()).build();
    let session = runner.create("ada", "s1", serde_json::from_str(r#"{"spent":2}"#)?).await?;
    session.run(r#"pay the "bill""#).await?;
    decided(&session, &[("c1", r#""approve""#)]).await?;
    let outcome = session.run("how much?").await?;
    assert_eq!(format!("{:?}", outcome.exit()), "Text");
    let state = session.state().await?;
    assert_eq!(state.messages().to_string(), CONVERSATION);
    let values: serde_json::Map<String, serde_json::Value> = serde_json::from_str(r#"{"spent":7}"#)?;
    for (key, value) in values {
        assert!(state.get(key.as_str()).is_some_and(|found| found == value), "{key}");
    }
    Ok(())
}
