//! `stepfold work`: brings runs to their end that no process has, of all users of the agent.

use futures_util::StreamExt as _;
use serde_json::json;
use stepfold::runner::{RecoverOptions, SessionChange};

use crate::args::{Asked, Place};
use crate::desk::Desk;
use crate::error::{Ending, Misuse};
use crate::show;

pub(super) async fn work(
    place: &Place,
    asked: &Asked,
    parallel: usize,
    is_once: bool,
    json: bool,
) -> anyhow::Result<Ending> {
    if place.session.is_some() {
        return Err(Misuse("`work` is about all sessions: leave `--session` out".to_owned()).into());
    }
    let desk = Desk::to_work(place, asked)?;
    desk.work(async {
        let mut options = RecoverOptions::new().parallel(parallel);
        if is_once {
            options = options.once();
        }
        let mut changes = desk.runner.watch();
        let recovery = desk.runner.recover(options);
        tokio::pin!(recovery);
        loop {
            tokio::select! {
                biased;
                Some(change) = changes.next() => tell(&change, json),
                ended = &mut recovery => {
                    ended?;
                    break;
                }
            }
        }
        // Those that came with the end.
        while let Some(Some(change)) = futures_util::FutureExt::now_or_never(changes.next()) {
            tell(&change, json);
        }
        Ok(Ending::Done)
    })
    .await
}

/// Says that an invocation has ended; each commit goes by in silence.
fn tell(change: &SessionChange, json: bool) {
    let SessionChange::Changed { key, version, is_running: false, .. } = change else { return };
    let (user, session) = (key.user.as_str(), key.id.as_str());
    if json {
        show::line(json!({"session": session, "user": user, "version": version}).to_string());
    } else {
        show::line(format!("{user}/{session} worked in, up to version {version}"));
    }
}
