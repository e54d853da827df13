//! `stepfold inbox`: accepted messages that wait in the inbox.

use serde_json::json;
use stepfold::runner::WaitingMessage;

use crate::args::SessionArgs;
use crate::context::CommandContext;
use crate::error::{CommandEnding, UsageError};
use crate::show;

pub(super) async fn inbox(
    target: &SessionArgs,
    remove: &[String],
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = if remove.is_empty() {
        CommandContext::for_read(target).await?
    } else {
        CommandContext::for_write(target).await?
    };
    let session = context.session().await?;
    let waiting = session.inbox().await?;
    if remove.is_empty() {
        list(&waiting, json);
        return Ok(CommandEnding::Done);
    }
    let mut withdrawn = Vec::new();
    for message in chosen(&waiting, remove)? {
        if session.withdraw(&message.id).await? {
            withdrawn.push(message.id.as_str());
        }
    }
    show::line(match json {
        true => json!({"withdrawn": withdrawn}).to_string(),
        false => format!("{} withdrawn", show::counted(withdrawn.len() as u64, "message")),
    });
    Ok(CommandEnding::Done)
}

fn list(waiting: &[WaitingMessage], json: bool) {
    if json {
        let messages = waiting.iter().map(|message| {
            json!({"at": message.at.to_string(), "id": message.id.as_str(), "message": message.input.to_json()})
        });
        return show::line(serde_json::Value::Array(messages.collect()).to_string());
    }
    for message in waiting {
        let (at, text) = (show::moment(message.at), show::message_text(message));
        let row = show::styled(show::NAME, message.id.as_str()).with(show::DIM, format!("  {at}  "));
        show::row(&row.and(show::short(&text)), 4);
    }
    if waiting.is_empty() {
        show::note("no message waits");
    }
}

/// Selects messages by id, or by a prefix that only one id has.
fn chosen<'a>(waiting: &'a [WaitingMessage], ids: &[String]) -> Result<Vec<&'a WaitingMessage>, UsageError> {
    let mut chosen = Vec::new();
    for id in ids {
        let begin: Vec<&WaitingMessage> = match id.as_str() {
            "all" => waiting.iter().collect(),
            id => waiting.iter().filter(|message| message.id.as_str().starts_with(id)).collect(),
        };
        let whole = begin.iter().find(|message| message.id.as_str() == id);
        match (whole, begin.as_slice()) {
            (Some(whole), _) => chosen.push(*whole),
            (None, all) if id == "all" => chosen.extend(all),
            (None, [one]) => chosen.push(one),
            (None, []) => return Err(UsageError(format!("no message with the id `{id}` waits"))),
            (None, _) => {
                return Err(UsageError(format!("ambiguous id `{id}`: several messages begin with it")));
            }
        }
    }
    Ok(chosen)
}
