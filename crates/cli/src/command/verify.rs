//! `stepfold verify`: verifies stored data against its checksums.

use serde_json::json;
use stepfold::session_scopes::{
    EventRange, GetSession, SessionError, SessionKey, SessionStore as _, StoreFaultKind, Verified,
    VerifySessions,
};
use stepfold::terminal::TextStyle;

use crate::args::SessionArgs;
use crate::context::CommandContext;
use crate::error::CommandEnding;
use crate::head::HistoryHead;
use crate::show::{self, counted};

pub(super) async fn verify(
    target: &SessionArgs,
    expected: Option<HistoryHead>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_verify(target).await?;
    let key = match &target.session {
        Some(id) => Some(context.runner.key(context.user.as_str(), id.as_str())?),
        None => None,
    };
    let what = key.clone().map_or_else(VerifySessions::all, VerifySessions::session);
    let mut report =
        VerifyReport { verified: context.runner.store().verify(what).await?, head: None, expected: None };
    if let Some(key) = key {
        // An unreadable session is among the faults.
        report.head = read_head(&context, &key, None).await.ok().flatten().map(|(head, _)| head);
        if let Some(expected) = expected {
            report.expected = Some((expected, check_head(expected, &context, &key).await));
        }
    }
    // NOTE: Damage is a result, not an error: it is printed in full, and the exit status is 1.
    match json {
        true => show::line(report.json().to_string()),
        false => report.show(),
    }
    Ok(if report.is_good() { CommandEnding::Done } else { CommandEnding::Failed })
}

struct VerifyReport {
    verified: Verified,
    /// The head of the verified session, if it was one.
    head: Option<HistoryHead>,
    /// The expected head, and the result of its check.
    expected: Option<(HistoryHead, HeadCheck)>,
}

impl VerifyReport {
    fn is_good(&self) -> bool {
        self.verified.is_whole() && self.expected.as_ref().is_none_or(|(_, found)| found.is_contained())
    }

    fn show(&self) {
        self.verified
            .faults
            .iter()
            .for_each(|fault| show::line(show::styled(TextStyle::BAD, fault.to_string())));
        for erased in &self.verified.erasures {
            let note = &erased.erasure;
            show::single_line(&format!(
                "erased: session {}, version {}: at {} by {}: {}",
                erased.key, erased.version, note.at, note.by, note.reason
            ));
        }
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
                StoreFaultKind::Missing => "missing",
                _ => "damaged",
            };
            json!({"detail": fault.detail, "kind": kind, "place": fault.place.to_string()})
        });
        let mut object = json!({
            "erased": self.verified.erased,
            "events": self.verified.events,
            "faults": faults.collect::<Vec<_>>(),
            "is_cut": self.verified.is_cut,
            "sessions": self.verified.sessions,
            "values": self.verified.values,
            "whole": self.verified.is_whole(),
        });
        if let Some(head) = self.head {
            object["head"] = json!(head.to_string());
        }
        if let Some((head, found)) = &self.expected {
            object["expected"] = json!({
                "contained": found.is_contained(),
                "detail": found.words(*head),
                "head": head.to_string(),
            });
        }
        object
    }
}

fn summary(verified: &Verified) -> String {
    let faults = match (verified.faults.len() as u64, verified.is_cut) {
        (0, _) => "no damage found".to_owned(),
        (faults, false) => format!("{} found", counted(faults, "fault")),
        (faults, true) => format!("more than {} found", counted(faults, "fault")),
    };
    let (sessions, events) = (counted(verified.sessions, "session"), counted(verified.events, "event"));
    let erased = match verified.erased {
        0 => String::new(),
        erased => format!("; the content of {} was erased", counted(erased, "event")),
    };
    format!("{faults}: {sessions}, {events} and {} were checked{erased}", counted(verified.values, "value"))
}

/// Reads the head of a session at a version, with the number of events after it.
async fn read_head(
    context: &CommandContext,
    key: &SessionKey,
    version: Option<u64>,
) -> Result<Option<(HistoryHead, u64)>, SessionError> {
    let mut get = GetSession::new(key.clone()).events(EventRange::None).without_state();
    get.version = version;
    let session = context.runner.store().get(get).await?;
    Ok(HistoryHead::of(&session).map(|head| (head, session.newest - session.version)))
}

/// Checks that the history of a session still contains the expected head.
async fn check_head(expected: HistoryHead, context: &CommandContext, key: &SessionKey) -> HeadCheck {
    match read_head(context, key, Some(expected.version)).await {
        Ok(Some((head, later))) if head == expected => HeadCheck::Contained { later },
        Ok(Some(_)) => HeadCheck::Changed,
        Ok(None) => HeadCheck::Unknown("the store keeps no digests".to_owned()),
        Err(error) => HeadCheck::Unknown(error.to_string()),
    }
}

/// The result of checking an expected head.
enum HeadCheck {
    /// The history contains it; so many events follow.
    Contained { later: u64 },
    /// The history up to that version has another head.
    Changed,
    /// The head cannot be read, for this reason.
    Unknown(String),
}

impl HeadCheck {
    fn is_contained(&self) -> bool {
        matches!(self, HeadCheck::Contained { .. })
    }

    /// The text of the result.
    fn words(&self, head: HistoryHead) -> String {
        let version = head.version;
        match self {
            HeadCheck::Contained { later: 0 } => {
                format!("unchanged: the history ends in the head of version {version}")
            }
            HeadCheck::Contained { later } => {
                let later = counted(*later, "event");
                format!(
                    "unchanged up to version {version}: the history contains its head, {later} before the newest"
                )
            }
            HeadCheck::Changed => {
                format!("changed: the history up to version {version} has another head than {head}")
            }
            HeadCheck::Unknown(why) => {
                format!("missing: the head of version {version} cannot be read: {why}")
            }
        }
    }
}
