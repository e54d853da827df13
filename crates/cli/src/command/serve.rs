//! `stepfold serve`: serves agents over HTTP.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::join_all;
use serde_json::json;
use stepfold::prelude::*;
use stepfold::runner::{RecoverOptions, RunnerBuilder};
use stepfold::server::http::{Access, App, Limits, Metrics, Principal, Role, Server, Token, Tokens};
use stepfold::session_scopes::{AnyStore, MemoryStore, Timestamp};
use tokio::net::TcpListener;

use super::demo;
use super::eval::experiments;
use crate::archive::AgentFiles;
use crate::args::{BusyPolicy, CassetteMode, RunArgs, ServeArgs};
use crate::context::{LoadedAgent, with_spend_limits, with_traces};
use crate::error::{CommandEnding, UsageError};
use crate::model::ModelSource;
use crate::show;
use crate::signals::EndSignals;
use crate::store::{StoreAccess, open_store};

/// The user of the sessions if there is no file of tokens.
pub(super) const LOCAL: &str = "local";

/// The time for load balancers to notice a shutdown.
const SHUTDOWN_DELAY: Duration = Duration::from_secs(5);

pub(super) async fn serve(options: &ServeArgs, json: bool) -> anyhow::Result<CommandEnding> {
    if options.tokens.is_none() && !options.bind.ip().is_loopback() {
        let words = "`--bind` to other hosts needs `--tokens FILE`: make tokens with `stepfold token`";
        return Err(UsageError(words.to_owned()).into());
    }
    let (tokens, printed) = tokens(options)?;
    let (metrics, store) = (Metrics::new(), store(options).await?);
    let demo = options.demo.then(demo::unpack).transpose()?;
    let agents = demo.as_ref().map_or(&options.agents, |(_, agents)| agents);
    if options.demo {
        // NOTE: Seeding shuts its runners down, so the server gets new ones below.
        demo::seed(&apps(options, agents, &store, &metrics)?, &store).await?;
    }
    let apps = apps(options, agents, &store, &metrics)?;
    let mut limits = Limits::default();
    limits.memory = usize::try_from(options.memory)? << 20;
    limits.memory_per_user = limits.memory / 4;
    limits.drain = Duration::from_secs(options.drain);
    limits.shutdown_delay = match options.shutdown_delay {
        Some(seconds) => Duration::from_secs(seconds),
        // NOTE: On a loopback address no load balancer probes the server.
        None if options.bind.ip().is_loopback() => Duration::ZERO,
        None => SHUTDOWN_DELAY,
    };
    let mut server = Server::builder().auth(tokens).metrics(&metrics).limits(limits);
    for name in &options.host_names {
        server = server.host_name(name);
    }
    for origin in &options.origins {
        server = server.allow_origin(origin);
    }
    if let Some(folder) = &options.adk_web {
        server = server.adk_web(folder);
    }
    if let Some(path) = &options.access_log {
        server = server.access_log(access_log(path)?);
    }
    if options.public_cards {
        server = server.public_agent_cards();
    }
    if options.https {
        server = server.secure_cookies();
    }
    for app in &apps {
        server = server.app(app.clone());
    }
    let server = server.build().map_err(|error| UsageError(error.to_string()))?;
    let listener = TcpListener::bind(options.bind).await.with_context(|| {
        format!(
            "{} cannot be bound: another process may use the port; `--bind 127.0.0.1:0` takes a free one",
            options.bind
        )
    })?;
    report(&listener, &apps, printed.as_ref(), json)?;
    // NOTE: The interrupted run of the demo is left for the user to resume.
    let recovered = || apps.iter().filter(|_| !options.demo).map(App::runner);
    let recovery = tokio::spawn(join_all(recovered().map(|runner| runner.recover(RecoverOptions::new()))));
    let retention = tokio::spawn(join_all(recovered().map(Runner::run_retention)));
    let ended = until_ended(server, listener).await;
    // NOTE: After a second signal the server returns without stopping its runs.
    join_all(apps.iter().map(|app| app.runner().shutdown(Duration::ZERO))).await;
    for ended in recovery.await?.into_iter().chain(retention.await?) {
        ended?;
    }
    ended
}

/// Opens the access log: a line for each request.
fn access_log(path: &Path) -> anyhow::Result<impl Fn(&Access) + Send + Sync + 'static> {
    let file: Box<dyn Write + Send> = if path == Path::new("-") {
        Box::new(std::io::stderr())
    } else {
        let file = OpenOptions::new().append(true).create(true).open(path);
        Box::new(file.with_context(|| format!("the access log {} cannot be opened", path.display()))?)
    };
    let file = Mutex::new(file);
    Ok(move |access: &Access| {
        let line = format!("{}\n", access.common_log(now()));
        // NOTE: One write per line, so that rotation cuts no line. A failing log does not fail the request.
        let _ = file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
    })
}

#[expect(clippy::disallowed_methods, reason = "a log tells when a request was answered")]
fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

/// The accepted tokens; and the new token that is printed if there is no file.
fn tokens(options: &ServeArgs) -> anyhow::Result<(Tokens, Option<Token>)> {
    let Some(path) = &options.tokens else {
        let token = Token::random()?;
        let principal = Principal::new(LOCAL, Role::Administer)?;
        return Ok((Tokens::new().with(&token, principal), Some(token)));
    };
    let read = std::fs::read_to_string(path);
    let path = path.display();
    let text =
        read.map_err(|error| UsageError(format!("file of tokens {path} could not be read: {error}")))?;
    let tokens = Tokens::parse(&text).map_err(|error| UsageError(format!("{path}: {error}")))?;
    if tokens.is_empty() {
        let words = format!("{path}: missing tokens; add lines of `stepfold token`");
        return Err(UsageError(words).into());
    }
    Ok((tokens, None))
}

async fn store(options: &ServeArgs) -> anyhow::Result<AnyStore> {
    match &options.store {
        None if options.demo => Ok(AnyStore::new(MemoryStore::new())),
        named => open_store(named.as_deref(), options.keys.as_deref(), StoreAccess::Create).await,
    }
}

fn apps(
    options: &ServeArgs,
    agents: &[PathBuf],
    store: &AnyStore,
    metrics: &Metrics,
) -> anyhow::Result<Vec<App>> {
    let model = RunArgs {
        model: options.model.clone(),
        cassette: None,
        mode: CassetteMode::default(),
        interactive: false,
        by: None,
        budgets: options.budgets.clone(),
        when_claimed: BusyPolicy::default(),
        last: false,
        when_changed: None,
    };
    let (models, _failures) = ModelSource::command_line(&model);
    let models = if options.demo { models.counting_tokens() } else { models };
    let mut names = BTreeSet::new();
    let mut apps = Vec::new();
    for path in agents {
        let loaded = LoadedAgent::read(path, &models)?;
        let archive = AgentFiles::of(&loaded, path, store, Some(&model));
        let LoadedAgent {
            agent,
            schema,
            shape,
            prices,
            when_changed,
            spend_limits,
            redaction,
            retention,
            ..
        } = loaded;
        if !names.insert(agent.name().to_owned()) {
            let words = format!("{}: another file has the name `{}` too", path.display(), agent.name());
            return Err(UsageError(words).into());
        }
        let observer = metrics.observer();
        models.recall.connect(store.clone());
        let spend_limits = spend_limits.with_file(options.budgets.as_deref())?;
        let builder = with_spend_limits(Runner::builder(agent, store.clone()), &prices, spend_limits);
        let builder = builder.archive(archive);
        let builder = redaction.into_iter().fold(builder, |builder, redaction| redaction.add_to(builder));
        let builder = retention.into_iter().fold(builder, RunnerBuilder::retention);
        let runner = with_traces(builder)
            .schema(schema)
            .process_worker()
            .when_changed(when_changed)
            .observe(move |_| observer.clone())
            .build();
        let app = App::from(runner).prices(prices);
        let folder = experiments(options, app.name(), path)?;
        let app = folder.into_iter().fold(app, App::experiments);
        apps.push(match shape {
            Some(shape) => app.graph(shape),
            None => app,
        });
    }
    Ok(apps)
}

/// Prints the address of the server.
fn report(listener: &TcpListener, apps: &[App], token: Option<&Token>, json: bool) -> anyhow::Result<()> {
    let address = listener.local_addr()?;
    let names: Vec<&str> = apps.iter().map(App::name).collect();
    let mut url = format!("http://{address}/");
    if let Some(token) = token {
        url.push_str("#token=");
        url.push_str(token.secret());
    }
    if json {
        let token = token.map(Token::secret);
        show::line(
            json!({"url": url, "address": address.to_string(), "token": token, "apps": names}).to_string(),
        );
    } else {
        show::note(format!("serving {}; Ctrl-C ends it", names.join(", ")));
        show::line(url);
    }
    Ok(())
}

/// Serves until a signal; then until the runs have completed or their time is over.
async fn until_ended(server: Server, listener: TcpListener) -> anyhow::Result<CommandEnding> {
    let mut signals = EndSignals::listen()?;
    let (ending, ended) = tokio::sync::oneshot::channel();
    let stop = async move {
        let ended = signals.received().await;
        show::note("stopping: runs have some time to complete; again Ctrl-C stops them at their last commit");
        // The receiver awaits it below.
        let _ = ending.send(ended);
        signals.into_interrupts()
    };
    let (stopping, mut interrupts) = tokio::sync::oneshot::channel();
    let serving = server.serve_until(listener, async {
        let _ = stopping.send(stop.await);
    });
    tokio::pin!(serving);
    let completed = tokio::select! {
        completed = &mut serving => completed,
        () = async {
            match (&mut interrupts).await {
                Ok(mut interrupts) => drop(interrupts.next().await),
                // NOTE: The server has ended before a signal: only `serving` completes then.
                Err(_) => std::future::pending().await,
            }
        } => false,
    };
    if !completed {
        show::note("some runs have not completed; the next process resumes them");
    }
    ended.await.context("the server has ended without a signal")?
}
