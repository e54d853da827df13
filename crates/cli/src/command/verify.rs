//! `stepfold verify`: is what is stored what was written?

use serde_json::json;
use stepfold::session_scopes::{FaultKind, SessionStore as _, Verified, VerifySessions};
use stepfold::terminal::Look;

use crate::args::Place;
use crate::desk::Desk;
use crate::error::Ending;
use crate::head::{Found, Head};
use crate::show::{self, counted};

pub(super) async fn verify(place: &Place, expected: Option<Head>, json: bool) -> anyhow::Result<Ending> {
    let desk = Desk::to_check(place)?;
    let key = match &place.session {
        Some(id) => Some(desk.runner.key(desk.user.as_str(), id.as_str())?),
        None => None,
    };
    let what = key.clone().map_or_else(VerifySessions::all, VerifySessions::session);
    let mut report = Report { verified: desk.runner.store().verify(what).await?, head: None, expected: None };
    if let Some(key) = key {
        // What cannot be read is among the faults.
        report.head = Head::read(&desk, &key, None).await.ok().flatten().map(|(head, _)| head);
        if let Some(expected) = expected {
            report.expected = Some((expected, expected.look_for(&desk, &key).await));
        }
    }
    match json {
        true => show::line(report.json().to_string()),
        false => report.show(),
    }
    Ok(if report.is_good() { Ending::Done } else { Ending::Failed })
}

struct Report {
    verified: Verified,
    /// Of the session that was checked, if it was one.
    head: Option<Head>,
    /// The head that was noted, and whether it was found.
    expected: Option<(Head, Found)>,
}

impl Report {
    fn is_good(&self) -> bool {
        self.verified.is_whole() && self.expected.as_ref().is_none_or(|(_, found)| found.is_contained())
    }

    fn show(&self) {
        self.verified.faults.iter().for_each(|fault| show::line(show::styled(Look::BAD, fault.to_string())));
        if let Some((head, found)) = &self.expected {
            show::line(found.words(*head));
        }
        if let Some(head) = self.head {
            show::line(show::styled(show::DIM, format!("head {head}")));
        }
        show::note(summary(&self.verified));
    }

    fn json(&self) -> serde_json::Value {
        let faults = self.verified.faults.iter().map(|fault| {
            let kind = match fault.kind {
                FaultKind::Missing => "missing",
                _ => "damaged",
            };
            json!({"detail": fault.detail, "kind": kind, "place": fault.place.to_string()})
        });
        let mut told = json!({
            "events": self.verified.events,
            "faults": faults.collect::<Vec<_>>(),
            "is_cut": self.verified.is_cut,
            "sessions": self.verified.sessions,
            "values": self.verified.values,
            "whole": self.verified.is_whole(),
        });
        if let Some(head) = self.head {
            told["head"] = json!(head.to_string());
        }
        if let Some((head, found)) = &self.expected {
            told["expected"] = json!({
                "contained": found.is_contained(),
                "detail": found.words(*head),
                "head": head.to_string(),
            });
        }
        told
    }
}

fn summary(verified: &Verified) -> String {
    let faults = match (verified.faults.len() as u64, verified.is_cut) {
        (0, _) => "no damage found".to_owned(),
        (faults, false) => format!("{} found", counted(faults, "fault")),
        (faults, true) => format!("more than {} found", counted(faults, "fault")),
    };
    let (sessions, events) = (counted(verified.sessions, "session"), counted(verified.events, "event"));
    format!("{faults}: {sessions}, {events} and {} were checked", counted(verified.values, "value"))
}
