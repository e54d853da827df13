//! The commands, one function each.

mod agents;
mod approval_ids;
mod branches;
mod cache;
mod chat;
mod check;
mod check_runs;
mod demo;
mod draw;
mod erase;
mod erasures;
mod eval;
mod history;
mod inbox;
mod inspect;
mod keys;
mod login;
mod mcp;
mod new;
mod resources;
mod resume;
mod retain;
mod run;
mod search;
mod serve;
mod sessions;
mod spend;
mod state;
mod token;
mod trim;
mod verify;
mod wire;
mod work;

use stepfold::runner::RecoverOptions;

use crate::args::{
    CliCommand, CommandLine, FileKind, KeysCommand, LabelCommand, ResultCommand, StateCommand,
};
use crate::error::CommandEnding;
use crate::form::agent::AgentFileForm;
use crate::form::graph::GraphForm;
use crate::form::json_schema;
use crate::show;

/// Runs the command.
pub(crate) async fn run(args: &CommandLine) -> anyhow::Result<CommandEnding> {
    let json = args.json;
    match &args.command {
        CliCommand::Run { target, options, question, set, key, resources } => {
            let sent = run::QuestionArgs { question, set, resources };
            run::run(target, options, &sent, key.as_deref(), json).await
        }
        CliCommand::Chat { target, options } => chat::chat(target, options, json).await,
        CliCommand::Mcp { target, options } => mcp::mcp(target, options).await,
        CliCommand::Serve(options) => serve::serve(options, json).await,
        CliCommand::Keys { command: KeysCommand::Rotate { keys } } => keys::rotate(keys, json).await,
        CliCommand::Token { user, role, name } => token::token(user, *role, name.as_deref(), json),
        CliCommand::Sessions { target, limit } => sessions::sessions(target, limit.get(), json).await,
        CliCommand::Inspect { target, at, wire: true, model, .. } => {
            wire::wire(target, at.as_ref(), model.as_deref(), json).await
        }
        CliCommand::Inspect { target, cache: true, .. } => cache::cache(target, json).await,
        CliCommand::Inspect { target, at, diff, all, full, .. } => {
            let what =
                inspect::InspectOptions { at: at.as_ref(), diff: diff.as_deref(), all: *all, full: *full };
            inspect::inspect(target, &what, json).await
        }
        CliCommand::Resume { target, options, abandon: true, .. } => {
            resume::abandon(target, options, json).await
        }
        CliCommand::Resume { target, options, approve, reject, modify, with_changed_agent, key, .. } => {
            let decided = resume::DecisionArgs { approve, reject, modify, key: key.as_deref() };
            resume::resume(target, options, &decided, *with_changed_agent, json).await
        }
        CliCommand::Work { target, options, list: true, .. } => work::list(target, options, json).await,
        CliCommand::Work { target, options, parallel, once, metrics, .. } => {
            let recover_options = RecoverOptions::new().parallel(parallel.get());
            let recover_options = if *once { recover_options.once() } else { recover_options };
            work::work(target, options, recover_options, *metrics, json).await
        }
        CliCommand::Inbox { target, remove } => inbox::inbox(target, remove, json).await,
        CliCommand::Replay { target } => history::replay(target, json).await,
        CliCommand::Eval { command } => Box::pin(eval::eval(command, json)).await,
        CliCommand::Fork { target, at, to, with } => {
            history::fork(target, at.as_ref(), to.as_deref(), with, json).await
        }
        CliCommand::Forks { target } => branches::forks(target, json).await,
        CliCommand::Compare { target, left, right } => branches::compare(target, left, right, json).await,
        CliCommand::Rewind { target, to, when_claimed } => {
            history::rewind(target, to, *when_claimed, json).await
        }
        CliCommand::Label { command: LabelCommand::Set { target, label, at } } => {
            branches::set_label(target, label, at.as_ref(), json).await
        }
        CliCommand::Label { command: LabelCommand::Remove { target, label } } => {
            branches::remove_label(target, label, json).await
        }
        CliCommand::Label { command: LabelCommand::List { target } } => branches::labels(target, json).await,
        CliCommand::Delete { target, user_state, when_claimed } => {
            sessions::delete(target, *user_state, *when_claimed, json).await
        }
        CliCommand::Erase { target, erased } => erase::erase(target, erased, json).await,
        CliCommand::Erasures { target } => erasures::erasures(target, json).await,
        CliCommand::Retain { target, options } => retain::retain(target, options, json).await,
        CliCommand::Trim { target, limit } => trim::trim(target, limit.get(), json).await,
        CliCommand::Search { target, query, limit } => search::search(target, query, limit.get(), json).await,
        CliCommand::Agents { target, prune } => agents::agents(target, *prune, json).await,
        CliCommand::Spend { target, raises: true, .. } => spend::raises(target, json).await,
        CliCommand::Spend { target, by, csv, .. } => spend::spend(target, *by, *csv, json).await,
        CliCommand::Verify { target, head } => verify::verify(target, *head, json).await,
        CliCommand::State { command: StateCommand::Get { target, key } } => {
            state::get(target, key.as_deref(), json).await
        }
        CliCommand::State { command: StateCommand::Set { target, replace, values } } => {
            state::set(target, values, *replace, json).await
        }
        CliCommand::Result { command: ResultCommand::Set { target, error, call, result } } => {
            state::set_result(target, call, result, *error, json).await
        }
        CliCommand::Check { agents, servers, runs, store, keys } => {
            let checked = Box::pin(check::check(agents, *servers, json)).await;
            match (runs, &checked) {
                (true, CommandEnding::Done) => {
                    check_runs::check_runs(agents, (store.as_deref(), keys.as_deref()), json).await
                }
                _ => Ok(checked),
            }
        }
        CliCommand::Resources { agent, read, arguments } => {
            Box::pin(resources::resources(agent, read.as_deref(), arguments, json)).await
        }
        CliCommand::Login { agent, server } => login::login(agent, server.as_deref(), json).await,
        CliCommand::Logout { agent, server } => login::logout(agent, server.as_deref(), json).await,
        CliCommand::New { folder, rust } => new::new(folder, *rust, json),
        CliCommand::Completions { shell } => Ok(new::completions(*shell)),
        CliCommand::Man { folder } => new::man(folder, json),
        CliCommand::Draw { graph, language } => draw::draw(graph, *language, json),
        CliCommand::Schema { of } => schema(*of),
    }
}

/// Prints the JSON Schema of a kind of file.
fn schema(of: FileKind) -> anyhow::Result<CommandEnding> {
    let schema = match of {
        FileKind::Agent => json_schema::<AgentFileForm>(),
        FileKind::Graph => json_schema::<GraphForm>(),
    };
    show::line(serde_json::to_string_pretty(&schema)?);
    Ok(CommandEnding::Done)
}
