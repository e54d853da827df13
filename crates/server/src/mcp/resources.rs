//! The sessions of the user as resources: their states, and their transcripts in notation.

use rmcp::model as wire;
use serde_json::{Map, Value};
use stepfold_runner::SessionHandle;
use stepfold_session_scopes::{ListSessions, SessionStore as _};
use stepfold_state_core::state::{MESSAGES, State};

use super::AgentServer;
use super::wording::in_words;

/// The prefix of the id of a session.
const SCHEME: &str = "stepfold://sessions/";

/// The number of sessions in a list: those that were written last.
const LISTED: usize = 100;

/// The readable parts of a session, with their media types.
const PARTS: [(&str, &str); 2] = [("state", "application/json"), ("transcript", "text/plain")];

impl AgentServer {
    pub(super) async fn resources(&self) -> Result<Vec<wire::Resource>, wire::ErrorData> {
        let failed = |error: &dyn std::error::Error| wire::ErrorData::internal_error(in_words(error), None);
        let key = self.runner.key(&*self.user, "any").map_err(|error| failed(&error))?;
        let list = ListSessions::new(key.app.as_str(), &*self.user).map_err(|error| failed(&error))?;
        let listed = self.runner.store().list(list.limit(LISTED)).await.map_err(|error| failed(&error))?;
        let resources = listed.sessions.iter().flat_map(|session| {
            let id = session.key.id.as_str();
            PARTS.map(|(part, kind)| {
                wire::Resource::new(format!("{SCHEME}{id}/{part}"), format!("{part} of {id}"))
                    .with_mime_type(kind)
            })
        });
        Ok(resources.collect())
    }

    pub(super) fn resource_templates() -> Vec<wire::ResourceTemplate> {
        let template = |(part, kind): (&str, &str)| {
            wire::ResourceTemplate::new(format!("{SCHEME}{{session}}/{part}"), format!("{part} of a session"))
                .with_mime_type(kind)
        };
        PARTS.map(template).to_vec()
    }

    pub(super) async fn resource(&self, uri: &str) -> Result<wire::ReadResourceResult, wire::ErrorData> {
        let unknown = || wire::ErrorData::resource_not_found(format!("unknown resource `{uri}`"), None);
        let (id, part) =
            uri.strip_prefix(SCHEME).and_then(|rest| rest.rsplit_once('/')).ok_or_else(unknown)?;
        let (_, kind) = PARTS.into_iter().find(|(known, _)| *known == part).ok_or_else(unknown)?;
        let session = self.existing(id).await.ok_or_else(unknown)?;
        let state = session.state().await;
        let state = state.map_err(|error| wire::ErrorData::internal_error(in_words(&error), None))?;
        let text = if part == "state" { values(&state).to_string() } else { state.messages().to_string() };
        let contents = wire::ResourceContents::text(text, uri).with_mime_type(kind);
        Ok(wire::ReadResourceResult::new(vec![contents]))
    }

    /// A session that is there: to ask for one makes none.
    pub(super) async fn existing(&self, id: &str) -> Option<SessionHandle> {
        self.runner.find_session(&*self.user, id).await.ok().flatten()
    }
}

fn values(state: &State) -> Value {
    let values = state.iter().filter(|(key, _)| *key != MESSAGES);
    let values = values.filter_map(|(key, value)| Some((key.to_owned(), serde_json::to_value(value).ok()?)));
    Value::Object(values.collect::<Map<_, _>>())
}
