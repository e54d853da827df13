//! The commands, one function each.

mod branches;
mod chat;
mod check;
mod demo;
mod draw;
mod history;
mod inbox;
mod inspect;
mod login;
mod mcp;
mod requests;
mod resources;
mod resume;
mod run;
mod serve;
mod sessions;
mod state;
mod token;
mod verify;
mod wire;
mod work;

use stepfold::runner::RecoverOptions;

use crate::agent_file::form::Form;
use crate::agent_file::graph_form::GraphForm;
use crate::agent_file::json_schema;
use crate::args::{Args, Command, FileKind, LabelCommand, ResultCommand, StateCommand};
use crate::error::Ending;
use crate::show;

/// Does what was asked for.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Ending> {
    let json = args.json;
    match &args.command {
        Command::Run { place, asked, question, set, key, resources } => {
            let sent = run::Sent { question, set, resources };
            run::run(place, asked, &sent, key.as_deref(), json).await
        }
        Command::Chat { place, asked } => chat::chat(place, asked, json).await,
        Command::Mcp { place, asked } => mcp::mcp(place, asked).await,
        Command::Serve(asked) => serve::serve(asked, json).await,
        Command::Token { user, role, name } => token::token(user, *role, name.as_deref(), json),
        Command::Sessions { place, limit } => sessions::sessions(place, limit.get(), json).await,
        Command::Inspect { place, at, wire: true, model, .. } => {
            wire::wire(place, at.as_ref(), model.as_deref(), json).await
        }
        Command::Inspect { place, at, diff, all, full, .. } => {
            let what = inspect::What { at: at.as_ref(), diff: diff.as_deref(), all: *all, full: *full };
            inspect::inspect(place, &what, json).await
        }
        Command::Resume { place, asked, abandon: true, .. } => resume::abandon(place, asked, json).await,
        Command::Resume { place, asked, approve, reject, modify, with_changed_agent, key, .. } => {
            let decided = resume::Decided { approve, reject, modify, key: key.as_deref() };
            resume::resume(place, asked, &decided, *with_changed_agent, json).await
        }
        Command::Work { place, asked, list: true, .. } => work::list(place, asked, json).await,
        Command::Work { place, asked, parallel, once, metrics, .. } => {
            let options = RecoverOptions::new().parallel(parallel.get());
            let options = if *once { options.once() } else { options };
            work::work(place, asked, options, *metrics, json).await
        }
        Command::Inbox { place, remove } => inbox::inbox(place, remove, json).await,
        Command::Replay { place } => history::replay(place, json).await,
        Command::Fork { place, at, to } => history::fork(place, at.as_ref(), to.as_deref(), json).await,
        Command::Forks { place } => branches::forks(place, json).await,
        Command::Compare { place, left, right } => branches::compare(place, left, right, json).await,
        Command::Rewind { place, to, when_claimed } => history::rewind(place, to, *when_claimed, json).await,
        Command::Label { command: LabelCommand::Set { place, label, at } } => {
            branches::set_label(place, label, at.as_ref(), json).await
        }
        Command::Label { command: LabelCommand::Remove { place, label } } => {
            branches::remove_label(place, label, json).await
        }
        Command::Label { command: LabelCommand::List { place } } => branches::labels(place, json).await,
        Command::Delete { place, user_state, when_claimed } => {
            sessions::delete(place, *user_state, *when_claimed, json).await
        }
        Command::Verify { place, head } => verify::verify(place, *head, json).await,
        Command::State { command: StateCommand::Get { place, key } } => {
            state::get(place, key.as_deref(), json).await
        }
        Command::State { command: StateCommand::Set { place, replace, values } } => {
            state::set(place, values, *replace, json).await
        }
        Command::Result { command: ResultCommand::Set { place, error, call, result } } => {
            state::set_result(place, call, result, *error, json).await
        }
        Command::Check { agents, servers } => Ok(Box::pin(check::check(agents, *servers, json)).await),
        Command::Resources { agent, read, arguments } => {
            Box::pin(resources::resources(agent, read.as_deref(), arguments, json)).await
        }
        Command::Login { agent, server } => login::login(agent, server.as_deref(), json).await,
        Command::Logout { agent, server } => login::logout(agent, server.as_deref(), json).await,
        Command::Draw { graph, language } => draw::draw(graph, *language, json),
        Command::Schema { of } => {
            let schema = match of {
                FileKind::Agent => json_schema::<Form>(),
                FileKind::Graph => json_schema::<GraphForm>(),
            };
            show::line(serde_json::to_string_pretty(&schema)?);
            Ok(Ending::Done)
        }
    }
}
