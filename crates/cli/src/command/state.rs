//! `stepfold state get` and `state set`: the state of a session, from outside of a run.

use serde_json::{Value, json};
use stepfold::agent_loop::{Ids as _, RandomIds};
use stepfold::runner::{SystemClock, WallClock as _, is_unfinished};
use stepfold::session_scopes::{
    AppendClaim, AppendEvent, Author, Event, EventId, EventKind, EventRange, GetSession, InvocationId, Scope,
    SessionStore as _, TakeOver,
};
use stepfold::state_core::state::{Delta, MESSAGES};

use crate::args::Place;
use crate::desk::{Desk, values};
use crate::error::{Ending, Misuse};
use crate::migrate::{Fit, fit};
use crate::show;

pub(super) async fn get(place: &Place, key: Option<&str>, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::to_read(place)?;
    let session = desk.session().await?.read(EventRange::None).await?;
    // Whatever the agent declares today: what is stored can be read.
    let state = session.state(&desk.untyped)?;
    let Some(key) = key else {
        let values = state.iter().filter(|(key, _)| *key != MESSAGES);
        let seen = values.filter_map(|(key, value)| {
            let fit = fit(&session, desk.runner.schema(), key);
            Some((key.to_owned(), seen(&desk, key, value.to_json(), fit)?))
        });
        if json {
            show::line(Value::Object(seen.collect()).to_string());
        } else {
            seen.for_each(|(key, value)| show::row(&show::key_and_value("", &format!("{key} = {value}")), 4));
        }
        return Ok(Ending::Done);
    };
    if let Some(value) = state.get(key) {
        let value = match fit(&session, desk.runner.schema(), key) {
            // A key that is named is shown.
            Fit::Undeclared => Some(value.to_json()),
            fit => seen(&desk, key, value.to_json(), fit),
        };
        if let Some(value) = value {
            // A value is JSON in any case.
            show::line(value.to_string());
            return Ok(Ending::Done);
        }
    }
    let schema = desk.runner.agent().schema();
    if schema.key(key).is_none() && !schema.is_open() {
        let known: Vec<&str> = schema.keys().map(stepfold::state_core::state::KeySchema::name).collect();
        return Err(Misuse(format!("unknown key `{key}`; available: {}", known.join(", "))).into());
    }
    if json {
        show::line("null");
    } else {
        show::note(format!("{key} is not set"));
    }
    Ok(Ending::Failed)
}

/// The value of a key as the agent sees it; as it is stored, with a note, if it cannot. None for what it does not see.
fn seen(desk: &Desk, key: &str, stored: Value, fit: Fit) -> Option<Value> {
    match fit {
        Fit::Fits => Some(stored),
        Fit::Migrated(Some(value)) => Some(value),
        Fit::Migrated(None) => desk.runner.schema().schema().key(key)?.default().cloned(),
        Fit::Undeclared => None,
        Fit::Misfit(why) => {
            show::note(format!("invalid stored value of {key}: {why}"));
            Some(stored)
        }
    }
}

pub(super) async fn set(place: &Place, pairs: &[String], json: bool) -> anyhow::Result<Ending> {
    let values = values(pairs)?;
    let desk = Desk::to_write(place)?;
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
    let get = GetSession::new(session.key().clone()).events(EventRange::Last(1)).without_state();
    let stored = desk.runner.store().get(get.now(SystemClock.now())).await?;
    if let Some(claim) = desk.runner.other_worker(&stored) {
        let (key, owner) = (session.key(), &claim.owner);
        anyhow::bail!("session {key} is claimed by {owner} until at least {}; wait for it", claim.expires);
    }
    let take_over = stored.claim.as_ref().map_or(TakeOver::Never, |claim| TakeOver::Token(claim.token));
    if stored.events.last().is_some_and(|newest| is_unfinished(&newest.event)) {
        let words = "a run of the session has not ended; bring it to its end with `stepfold resume`, or give it up \
                     with `stepfold resume --abandon`";
        return Err(Misuse(words.to_owned()).into());
    }
    let version = stored.version;
    let name = RandomIds.next();
    let event = Event::new(
        EventId::new(format!("{name}.0"))?,
        InvocationId::new(name)?,
        Author::new("user")?,
        SystemClock.now(),
    );
    let event = event.with_kind(EventKind::new("state")).with_delta(delta);
    let append = AppendEvent::new(session.key().clone(), version, event, schema);
    let append = append.with_claim(AppendClaim::Once { take_over });
    let receipt = desk.runner.store().append(append).await?;
    let id = session.key().id.as_str();
    show::line(if json {
        json!({"session": id, "version": receipt.version}).to_string()
    } else {
        format!("session {id} is at version {}", receipt.version)
    });
    Ok(Ending::Done)
}
