//! `stepfold token`: a token for `serve --tokens`.

use serde_json::json;
use stepfold::server::http::{Principal, Role, Token, Tokens};

use crate::args::TokenRole;
use crate::error::{CommandEnding, UsageError};
use crate::show;

pub(super) fn token(
    user: &str,
    role: TokenRole,
    name: Option<&str>,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let role = match role {
        TokenRole::Read => Role::Read,
        TokenRole::Act => Role::Act,
        TokenRole::RaiseBudgets => Role::RaiseBudgets,
        TokenRole::Administer => Role::Administer,
    };
    // NOTE: An invalid user is an error before the token is printed.
    Principal::new(user, role).map_err(|error| UsageError(error.to_string()))?;
    let token = Token::random()?;
    let line = match name {
        Some(name) => format!("{} {name}", token.line(user, role)),
        None => token.line(user, role),
    };
    check(&line, &token, user, name)?;
    if json {
        show::line(json!({"token": token.secret(), "line": line}).to_string());
    } else {
        show::note("the token, for its holder, and the line of the file with its hash:");
        show::line(token.secret());
        show::line(line);
    }
    Ok(CommandEnding::Done)
}

/// Checks that `serve --tokens` reads the line as it is meant: a user or a name may contain what a line cannot.
fn check(line: &str, token: &Token, user: &str, name: Option<&str>) -> Result<(), UsageError> {
    let tokens = Tokens::parse(line).unwrap_or_default();
    let read = tokens.find(token.secret()).map(|read| (read.user().as_str(), read.name()));
    if read == Some((user, name.unwrap_or(user))) {
        return Ok(());
    }
    Err(UsageError(match name {
        Some(name) if !user.contains(char::is_whitespace) => {
            format!(
                "invalid name `{name}`: must not be empty, have line breaks, or begin or end with a space"
            )
        }
        _ => format!("invalid user `{user}`: must not have spaces, which a file of tokens cannot hold"),
    }))
}
