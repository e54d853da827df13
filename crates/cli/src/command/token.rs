//! `stepfold token`: a token for `serve --tokens`.

use serde_json::json;
use stepfold::server::http::{Principal, Role, Token};

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
        TokenRole::Administer => Role::Administer,
    };
    // NOTE: An invalid user is an error before the token is printed.
    Principal::new(user, role).map_err(|error| UsageError(error.to_string()))?;
    let token = Token::random()?;
    let line = match name {
        Some(name) => format!("{} {name}", token.line(user, role)),
        None => token.line(user, role),
    };
    if json {
        show::line(json!({"token": token.secret(), "line": line}).to_string());
    } else {
        show::note("the token, for its holder, and the line of the file with its hash:");
        show::line(token.secret());
        show::line(line);
    }
    Ok(CommandEnding::Done)
}
