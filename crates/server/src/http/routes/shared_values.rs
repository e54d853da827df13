//! Values that sessions share: told apart from those of a session, and written by administrators.

use serde_json::{Map, Value};
use stepfold_session_scopes::{Scope, Session};

use crate::http::guard::auth::{self, Principal};
use crate::http::guard::problem::Problem;

/// Values that all users share are written by administrators only.
pub(in crate::http) fn check_shared(
    principal: &Principal,
    values: &Map<String, Value>,
) -> Result<(), Problem> {
    match values.keys().any(|key| Scope::of(key) == Scope::App) && !principal.may(auth::Role::Administer) {
        true => Err(Problem::forbidden(auth::Role::Administer)),
        false => Ok(()),
    }
}

/// The values of a session: its own, and those that it shares.
pub(in crate::http) fn own_and_shared(session: &Session) -> (Map<String, Value>, Map<String, Value>) {
    let Value::Object(values) = session.to_json() else { return Default::default() };
    values.into_iter().partition(|(key, _)| Scope::of(key) == Scope::Session)
}
