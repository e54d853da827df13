//! A session as a scripted test: its conversation in the notation of scripts, and what it came to as assertions.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use stepfold_agent_loop::state_core::chat::{Message, Role, Transcript};
use stepfold_agent_loop::{Decision, Event, EventKind, Run, SharedValue};
use stepfold_runner::SessionHandle;
use stepfold_session_scopes::{CommittedEvent, EventRange, GetSession, Session, SessionStore as _};

use super::shared_values::own_and_shared;
use crate::http::app::SessionTarget;
use crate::http::guard::problem::Problem;
use crate::http::rows::row_builder::event_of;

/// An action of the client in a test.
enum ClientAction {
    /// Says this, with these values.
    Run(String, Map<String, Value>),
    /// Decides about calls, by their ids.
    Decide(BTreeMap<String, Decision>),
}

/// The test, as Rust.
pub(in crate::http) async fn test_of(target: &SessionTarget) -> Result<String, Problem> {
    let session = &target.session;
    let stored = session.read(EventRange::All).await?;
    if stored.oldest != 0 {
        return Err(Problem::no_test("retention has deleted its first events"));
    }
    let mut acts = Vec::new();
    for committed in stored.visible_events() {
        acts.extend(act(session, committed).await?);
    }
    let Some(run) = session.last_run().await? else {
        let why = match acts.is_empty() {
            true => "it has no messages",
            false => "its last run was rewound to before its end; send a message or fork it first",
        };
        return Err(Problem::no_test(why));
    };
    let Some(exit) = run.exit() else { return Err(Problem::no_test("its last run has not ended")) };
    let (values, _) = own_and_shared(&stored);
    Ok(text(
        session,
        &stored,
        &first_values(target, &stored).await?,
        &acts,
        &run,
        &format!("{exit:?}"),
        &values,
    ))
}

async fn first_values(target: &SessionTarget, stored: &Session) -> Result<Map<String, Value>, Problem> {
    // The values that the runs have read of what they share, as they were then.
    let mut values = Map::new();
    for committed in stored.visible_events() {
        let shared = event_of(committed).map(|event| event.shared).unwrap_or_default();
        for (key, value) in shared {
            if let SharedValue::Is(value) = value {
                values.entry(key).or_insert(value);
            }
        }
    }
    let get = GetSession::new(stored.key.clone()).events(EventRange::None).at_version(0);
    let first = target.runner().store().get(get).await?;
    values.extend(own_and_shared(&first).0);
    Ok(values)
}

async fn act(session: &SessionHandle, committed: &CommittedEvent) -> Result<Option<ClientAction>, Problem> {
    let version = committed.version;
    let refused = |why: &str| Problem::no_test(&format!("version {version} {why}"));
    if committed.event.actions.rewound_to().is_some() {
        return Ok(None);
    }
    let Some(event) = event_of(committed) else { return Err(refused("belongs to no run")) };
    match &event.kind {
        EventKind::Began { .. } => {
            began(&event).map(Some).ok_or_else(|| refused("starts a run with more than one text"))
        }
        EventKind::Decided { decisions, .. } => {
            let before = session.run_at(version - 1).await?;
            let pending = before.as_ref().map(Run::pending).unwrap_or_default();
            let by_call = decisions.iter().map(|(id, decision)| {
                let request = pending.iter().find(|request| request.id == *id)?;
                let is_said =
                    matches!(decision, Decision::Approve | Decision::Reject { .. } | Decision::Modify { .. });
                is_said.then(|| (request.call.id.clone(), decision.clone()))
            });
            let decided: Option<BTreeMap<_, _>> = by_call.collect();
            decided
                .map(|decided| Some(ClientAction::Decide(decided)))
                .ok_or_else(|| refused("has a decision that is not `approve`, `reject` or `modify`"))
        }
        EventKind::Replied { .. }
        | EventKind::Answered(_)
        | EventKind::Started { .. }
        | EventKind::Hooked { .. } => Ok(None),
        _ => Err(refused(&format!("is `{}`, which a scripted test cannot repeat", event.name()))),
    }
}

/// The message that a run began with, if it is one text.
fn began(event: &Event) -> Option<ClientAction> {
    let [message] = event.messages.as_slice() else { return None };
    let text = message.text();
    let is_text = **message == Message::user(text.as_ref());
    let values = event.delta.iter().map(|write| Some((write.key().to_owned(), write.value()?.clone())));
    is_text.then(|| Some(ClientAction::Run(text.into_owned(), values.collect::<Option<_>>()?))).flatten()
}

fn text(
    session: &SessionHandle,
    stored: &Session,
    first: &Map<String, Value>,
    acts: &[ClientAction],
    run: &Run,
    exit: &str,
    values: &Map<String, Value>,
) -> String {
    let replies = run.transcript().iter().filter(|message| message.role() == Role::Assistant).cloned();
    let script = replies.collect::<Transcript>().to_string();
    let key = session.key();
    let mut body = String::new();
    for (place, act) in acts.iter().enumerate() {
        let outcome = if place + 1 == acts.len() { "let outcome = " } else { "" };
        // Writing to a string cannot fail.
        let _ = match act {
            ClientAction::Run(text, values) if values.is_empty() => {
                writeln!(body, "    {outcome}session.run({}).await?;", raw(text))
            }
            ClientAction::Run(text, values) => writeln!(
                body,
                "    let values = serde_json::from_str({})?;\n    {outcome}session.run(Input::from({}).with_values(values)).await?;",
                raw(&json!(values).to_string()),
                raw(text),
            ),
            ClientAction::Decide(decisions) => {
                let decisions = decisions.iter().map(|(call, decision)| {
                    let decision = serde_json::to_string(decision).unwrap_or_default();
                    format!("({}, {})", raw(call), raw(&decision))
                });
                let decisions = decisions.collect::<Vec<_>>().join(", ");
                writeln!(body, "    {outcome}resume_with(&session, &[{decisions}]).await?;")
            }
        };
    }
    let decided = match acts.iter().any(|act| matches!(act, ClientAction::Decide(_))) {
        true => DECIDED,
        false => "",
    };
    let input = match body.contains("Input::from") {
        true => "use stepfold::agent_loop::Input;\n",
        false => "",
    };
    format!(
        "\
// Session `{id}` of the app `{app}`, exported at version {version}.
//
// The model returns scripted replies. The tools of the agent run: replace those whose results change. Add this function,
// which builds the agent under test with the given model:
//
//     fn agent(model: Script) -> Agent

use stepfold::agent_loop::test_kit::Script;
{input}use stepfold::runner::Runner;
use stepfold::session_scopes::MemoryStore;

/// The replies of the model.
const SCRIPT: &str = {script};

/// The expected conversation.
const CONVERSATION: &str = {conversation};
{decided}
#[tokio::test]
async fn replays_the_recorded_session() -> Result<(), Box<dyn std::error::Error>> {{
    let runner = Runner::builder(agent(Script::parse(SCRIPT)?), MemoryStore::new()).build();
    let session = runner.create({user}, {id_text}, serde_json::from_str({first})?).await?;
{body}    assert_eq!(format!(\"{{:?}}\", outcome.exit()), {exit});
    let state = session.state().await?;
    assert_eq!(state.messages().to_string(), CONVERSATION);
    let values: serde_json::Map<String, serde_json::Value> = serde_json::from_str({values})?;
    for (key, value) in values {{
        assert!(state.get(key.as_str()).is_some_and(|found| found == value), \"{{key}}\");
    }}
    Ok(())
}}
",
        id = key.id.as_str().escape_default(),
        app = key.app.as_str().escape_default(),
        version = stored.version,
        script = raw(&script),
        conversation = raw(&run.transcript().to_string()),
        user = raw(key.user.as_str()),
        id_text = raw(key.id.as_str()),
        first = raw(&json!(first).to_string()),
        exit = raw(exit),
        values = raw(&json!(values).to_string()),
    )
}

/// Decides about calls by their ids, since the ids of requests differ in each session.
const DECIDED: &str = "
/// Resumes the run with decisions about the calls with these ids.
async fn resume_with(
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
";

/// A string of Rust: raw where that is needed, and no more than that.
fn raw(text: &str) -> String {
    if text.contains('\r') {
        // A raw string cannot have it alone.
        return format!("{text:?}");
    }
    if !text.contains(['"', '\\']) {
        return format!("\"{text}\"");
    }
    let mut hashes = String::new();
    while text.contains(&format!("\"{hashes}")) {
        hashes.push('#');
    }
    format!("r{hashes}\"{text}\"{hashes}")
}
