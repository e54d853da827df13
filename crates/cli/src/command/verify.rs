//! `stepfold verify`: is what is stored what was written?

use serde_json::json;
use stepfold::session_scopes::{FaultKind, SessionStore as _, Verified, VerifySessions};

use crate::args::Place;
use crate::desk::Desk;
use crate::error::Ending;
use crate::show::{self, counted};

pub(super) async fn verify(place: &Place, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::to_check(place)?;
    let what = match &place.session {
        Some(id) => VerifySessions::session(desk.runner.key(desk.user.as_str(), id.as_str())?),
        None => VerifySessions::all(),
    };
    let verified = desk.runner.store().verify(what).await?;
    if json {
        show::line(as_json(&verified).to_string());
    } else {
        verified.faults.iter().for_each(|fault| show::line(fault.to_string()));
        show::note(summary(&verified));
    }
    Ok(if verified.is_whole() { Ending::Done } else { Ending::Failed })
}

fn summary(verified: &Verified) -> String {
    let faults = match (verified.faults.len() as u64, verified.is_cut) {
        (0, _) => "all is whole".to_owned(),
        (faults, false) => format!("{} found", counted(faults, "fault")),
        (faults, true) => format!("more than {} found", counted(faults, "fault")),
    };
    let (sessions, events) = (counted(verified.sessions, "session"), counted(verified.events, "event"));
    format!("{faults}: {sessions}, {events} and {} were checked", counted(verified.values, "value"))
}

fn as_json(verified: &Verified) -> serde_json::Value {
    let faults = verified.faults.iter().map(|fault| {
        let kind = match fault.kind {
            FaultKind::Missing => "missing",
            _ => "damaged",
        };
        json!({"detail": fault.detail, "kind": kind, "place": fault.place.to_string()})
    });
    json!({
        "events": verified.events,
        "faults": faults.collect::<Vec<_>>(),
        "is_cut": verified.is_cut,
        "sessions": verified.sessions,
        "values": verified.values,
        "whole": verified.is_whole(),
    })
}
