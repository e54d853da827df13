//! `stepfold erasures`: the records of erasures.

use serde_json::json;
use stepfold::session_scopes::{ErasureRecord, ListErasures, SessionStore as _};

use crate::args::SessionArgs;
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show::{self, counted};

pub(super) async fn erasures(target: &SessionArgs, json: bool) -> anyhow::Result<CommandEnding> {
    if target.session.is_some() {
        let words = "records of erasures name no session: leave `--session` out; `verify --session` lists erased events";
        return Err(UsageError(words.to_owned()).into());
    }
    let context = CommandContext::for_read(target).await?;
    let app = context.runner.key(target.user.as_str(), "-")?.app;
    let mut request = ListErasures::new(app);
    let mut count = 0;
    loop {
        let page = context.runner.store().erasures(request.clone()).await?;
        for record in &page {
            count += 1;
            show_record(record, json);
        }
        match page.last().filter(|_| page.len() == request.limit) {
            Some(last) => request = request.after(last),
            None => break,
        }
    }
    if !json {
        show::note(counted(count, "erasure"));
    }
    Ok(CommandEnding::Done)
}

fn show_record(record: &ErasureRecord, json: bool) {
    let ErasureRecord { id, kind, at, by, reason, sessions, events, .. } = record;
    show::single_line(&match json {
        true => json!({
            "at": at.to_string(),
            "by": by.as_str(),
            "events": events,
            "id": id.as_str(),
            "kind": kind.as_str(),
            "reason": reason,
            "sessions": sessions,
        })
        .to_string(),
        false => format!(
            "{at}  {kind}, {}, {}, by {by}: {reason}  ({id})",
            counted(*sessions, "session"),
            counted(*events, "event")
        ),
    });
}
