//! `stepfold state get` and `state set`: the state of a session, from outside of a run.

use serde_json::json;
use stepfold::agent_loop::{Ids as _, RandomIds};
use stepfold::runner::{SystemClock, WallClock as _};
use stepfold::session_scopes::{
    AppendEvent, Author, Event, EventId, EventKind, EventRange, InvocationId, Scope, SessionStore as _,
};
use stepfold::state_core::state::{Delta, MESSAGES};

use crate::args::Place;
use crate::desk::{Desk, values};
use crate::error::{Ending, Misuse};
use crate::show;

pub(super) async fn get(place: &Place, key: Option<&str>, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::without_model(place)?;
    let session = desk.session().await?.read(EventRange::None).await?;
    let state = session.state(desk.runner.schema())?;
    let Some(key) = key else {
        let values = state.iter().filter(|(key, _)| *key != MESSAGES);
        if json {
            let values = values.map(|(key, value)| (key.to_owned(), value.to_json()));
            show::line(&serde_json::Value::Object(values.collect()).to_string());
        } else {
            values.for_each(|(key, value)| show::line(&format!("{key} = {value}")));
        }
        return Ok(Ending::Done);
    };
    if let Some(value) = state.get(key) {
        // A value is JSON in any case.
        show::line(&value.to_json().to_string());
        return Ok(Ending::Done);
    }
    let schema = desk.runner.agent().schema();
    if schema.key(key).is_none() && !schema.is_open() {
        let known: Vec<&str> = schema.keys().map(stepfold::state_core::state::KeySchema::name).collect();
        return Err(
            Misuse(format!("the agent declares no key `{key}`; there are: {}", known.join(", "))).into()
        );
    }
    if json {
        show::line("null");
    } else {
        show::note(&format!("{key} is not set"));
    }
    Ok(Ending::Failed)
}

pub(super) async fn set(place: &Place, pairs: &[String], json: bool) -> anyhow::Result<Ending> {
    let values = values(pairs)?;
    let desk = Desk::without_model(place)?;
    let session = desk.session().await?;
    let schema = desk.runner.schema();
    let mut delta = Delta::new();
    for (key, value) in values.as_object().into_iter().flatten() {
        if Scope::of(key) == Scope::Temp {
            return Err(
                Misuse(format!("`{key}` is of one run and never stored; use `run --set` for it")).into()
            );
        }
        delta.push(
            schema.schema().write(key.as_str(), value.clone()).map_err(|error| Misuse(error.to_string()))?,
        );
    }
    // A write between the steps of a run would be one that the run does not know of.
    if session.last_run().await?.is_some_and(|run| run.exit().is_none()) {
        let words = "a run of the session has not ended; bring it to its end with `stepfold resume`, or give it up \
                     with `stepfold resume --abandon`";
        return Err(Misuse(words.to_owned()).into());
    }
    let version = session.read(EventRange::None).await?.version;
    let name = RandomIds.next();
    let event = Event::new(
        EventId::new(format!("{name}.0"))?,
        InvocationId::new(name)?,
        Author::new("user")?,
        SystemClock.now(),
    );
    let event = event.with_kind(EventKind::new("state")).with_delta(delta);
    let append = AppendEvent::new(session.key().clone(), version, event, schema);
    let receipt = desk.runner.store().append(append).await?;
    let id = session.key().id.as_str();
    show::line(&if json {
        json!({"session": id, "version": receipt.version}).to_string()
    } else {
        format!("session {id} is at version {}", receipt.version)
    });
    Ok(Ending::Done)
}
