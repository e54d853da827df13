//! `stepfold serve --demo`: two agents with scripted models, and example sessions.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use serde_json::json;
use stepfold::agent_loop::RunEvent;
use stepfold::prelude::*;
use stepfold::runner::InvocationEvent;
use stepfold::server::http::App;
use stepfold::session_scopes::{AnyStore, EventRange, Label, LabelVersion, ListSessions, SessionStore as _};
use tempfile::TempDir;

use super::serve::LOCAL;

const FILES: [(&str, &str); 4] = [
    ("stalls.toml", include_str!("../demo/stalls.toml")),
    ("stalls.script", include_str!("../demo/stalls.script")),
    ("library.toml", include_str!("../demo/library.toml")),
    ("library.script", include_str!("../demo/library.script")),
];

/// Writes the files of the agents into a temporary folder, which is deleted with the process.
pub(super) fn unpack() -> anyhow::Result<(TempDir, Vec<PathBuf>)> {
    let folder = TempDir::new().context("a folder for the files of the demo cannot be created")?;
    let mut agents = Vec::new();
    for (name, text) in FILES {
        let path = folder.path().join(name);
        std::fs::write(&path, text).context("the files of the demo cannot be written")?;
        if path.extension().is_some_and(|extension| extension == "toml") {
            agents.push(path);
        }
    }
    Ok((folder, agents))
}

/// Creates the sessions, unless the store has some: one waits for an approval, one is a fork with a rewound lane, one was
/// interrupted. Afterwards the runners of these apps are shut down.
pub(super) async fn seed(apps: &[App], store: &AnyStore) -> anyhow::Result<()> {
    for app in apps {
        let known = store.list(ListSessions::new(app.name(), LOCAL)?.limit(1)).await?;
        match app.name() {
            _ if !known.sessions.is_empty() => {}
            "stalls" => stalls(app.runner()).await?,
            _ => library(app.runner()).await?,
        }
        app.runner().shutdown(Duration::ZERO).await;
    }
    Ok(())
}

async fn stalls(runner: &Runner) -> anyhow::Result<()> {
    let waits = runner.create(LOCAL, "waits-for-approval", json!({})).await?;
    waits.run("I am Ada. How many stalls does area 3 have?").await?;
    let common = waits.read(EventRange::None).await?.version;
    waits.run("And area 5?").await?;
    let label = LabelVersion::new(waits.key().clone(), Label::new("one area counted")?, common);
    runner.store().set_label(label).await?;
    let fork = waits.fork("fork-with-a-rewind", Some(common)).await?;
    fork.run("And area 6?").await?;
    fork.rewind(common).await?;
    fork.run("And area 5?").await?;
    // This run waits for a decision on the page.
    waits.run("Pay the fee of the bakery.").await?;
    let killed = runner.create(LOCAL, "killed-in-a-call", json!({})).await?;
    let surveying = killed.send("Survey the whole market.").await?;
    // NOTE: The shutdown interrupts this run in the middle of its call: the page shows how to resume it.
    let begun = surveying.subscribe(0).filter(|seen| {
        std::future::ready(matches!(seen, InvocationEvent::Event { event: RunEvent::ToolStarted { .. }, .. }))
    });
    std::pin::pin!(begun).next().await;
    Ok(())
}

async fn library(runner: &Runner) -> anyhow::Result<()> {
    let durability = runner.create(LOCAL, "durability", json!({})).await?;
    durability.run("What do our pages say about durability?").await?;
    Ok(())
}
