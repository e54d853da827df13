//! Admits a request: by its host and origin, the token of its principal, and the role of the principal.

use http::request::Parts;
use http::{HeaderMap, header};

use crate::http::guard::auth::{Credentials, Principal, Role};
use crate::http::guard::gate::{RequestOrigin, cookie_name};
use crate::http::guard::problem::Problem;
use crate::http::state::ServerState;

/// The principal of a request that passes the rules about hosts and origins, and has this role.
pub(in crate::http) async fn admit(
    shared: &ServerState,
    parts: &Parts,
    needs: Role,
) -> Result<Principal, Problem> {
    let principal = authenticate(shared, parts).await?;
    if principal.may(needs) { Ok(principal) } else { Err(Problem::forbidden(needs)) }
}

pub(in crate::http) async fn authenticate(shared: &ServerState, parts: &Parts) -> Result<Principal, Problem> {
    let headers = &parts.headers;
    let admitted = shared.rules.admit(&parts.method, &parts.uri, headers).map_err(Problem::denied)?;
    let name = cookie_name(headers);
    let token = bearer(headers).or_else(|| match admitted {
        RequestOrigin::Own => cookie(headers, &name),
        // NOTE: A browser sends cookies with requests of any page, so that they prove nothing for a foreign one.
        RequestOrigin::Foreign => None,
    });
    match shared.auth.authenticate(&Credentials::new(token, headers)).await {
        Ok(Some(principal)) => Ok(principal),
        Ok(None) => Err(Problem::unauthenticated()),
        Err(error) => {
            tracing::error!(%error, "a request could not be authenticated");
            Err(Problem::unavailable("authentication is unavailable"))
        }
    }
}

/// The token of the header `Authorization`.
pub(in crate::http) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value)
}
