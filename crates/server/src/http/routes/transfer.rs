//! Sessions as files: exported whole, imported as new sessions, and as scripted tests.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use stepfold_agent_loop::{Ids as _, RandomIds};
use stepfold_session_scopes::{
    CreateSession, Event, EventId, EventRange, GetSession, Label, MemoryStore, ReadLabels, Scope,
    SessionError, SessionSchema, SessionStore as _, Timestamp,
};

use super::history::session_at;
use super::scripted_test;
use super::shared_values::own_and_shared;
use crate::http::app::SessionTarget;
use crate::http::guard::auth::Principal;
use crate::http::guard::limits::Limits;
use crate::http::guard::problem::Problem;
use crate::http::guard::strict;
use crate::http::loading::page_plan::reserve_whole;
use crate::http::operation::reply::{ApiReply, CreatedReply, MediaSchemas, text_schema};
use crate::http::operation::request::{ApiRequest, AppTarget, RequestBody, exact_numbers};
use crate::http::rows::import_mark::{ImportedRow, check_newest, marked, unmarked};
use crate::http::rows::{ParentRow, SessionRow};

/// The format of an export.
const FORMAT: &str = "stepfold.session";

const FORMAT_VERSION: u64 = 1;

/// A session as a file.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct ExportRow {
    /// Always `stepfold.session`.
    format: String,
    /// The version of the format: 1.
    format_version: u64,
    /// The app that it is of.
    app: String,
    /// The id that it had.
    id: String,
    /// When it was created (RFC 3339).
    created: String,
    /// The session that it was forked from. Its history up to there is in `events`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<ParentRow>,
    /// The number of its commits.
    version: u64,
    /// The oldest version that it can go back to. One other than 0 cannot be imported.
    oldest: u64,
    /// Its own values at the oldest version.
    first: Map<String, Value>,
    /// Its own values at the newest one: what the events add up to.
    values: Map<String, Value>,
    /// The values that it shares with other sessions (`user:`, `app:`), for readers. They are not imported.
    #[serde(default)]
    shared: Map<String, Value>,
    /// All commits, those that were rewound as well.
    events: Vec<StoredRow>,
    /// The labels of its versions.
    #[serde(default)]
    labels: Vec<ExportedLabel>,
}

/// An [`ExportRow`] that is read. What an import does not use is passed over, and what it reads once is text until then: a
/// tree of values takes many times the memory of its text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::zero_sized_map_values, reason = "what is passed over has to be an object")]
struct ImportRow {
    format: String,
    format_version: u64,
    #[serde(rename = "app")]
    _app: String,
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "created")]
    _created: String,
    #[serde(default, rename = "parent")]
    _parent: Option<ParentRow>,
    version: u64,
    oldest: u64,
    first: Map<String, Value>,
    values: BTreeMap<String, Box<RawValue>>,
    #[serde(default, rename = "shared")]
    _shared: BTreeMap<String, IgnoredAny>,
    events: Vec<StoredRow>,
    #[serde(default)]
    labels: Vec<ExportedLabel>,
}

/// A commit as it is stored.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StoredRow {
    version: u64,
    id: String,
    /// Microseconds since 1970.
    at: i64,
    /// The body, in the format of the stores.
    #[schemars(with = "Value")]
    body: Box<RawValue>,
}

/// A label of an exported session.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExportedLabel {
    label: String,
    version: u64,
}

/// The options of an export.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportQuery {
    /// Its form; `json` by default.
    #[serde(default)]
    r#as: ExportForm,
}

/// The form of an export.
#[derive(Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ExportForm {
    /// All of it, which can be imported.
    #[default]
    Json,
    /// A scripted test, in Rust.
    Test,
}

/// An exported session.
pub(super) enum ExportReply {
    Json(Box<ExportRow>),
    Test { name: String, text: String },
}

impl ApiReply for ExportReply {
    fn shapes(generator: &mut SchemaGenerator) -> MediaSchemas {
        vec![("application/json", generator.subschema_for::<ExportRow>()), ("text/x-rust", text_schema())]
    }
}

impl IntoResponse for ExportReply {
    fn into_response(self) -> Response {
        let (name, response) = match self {
            ExportReply::Json(row) => (format!("{}.json", file_name(&row.id)), Json(row).into_response()),
            ExportReply::Test { name, text } => {
                let kind = [(header::CONTENT_TYPE, "text/x-rust; charset=utf-8")];
                (format!("{}.rs", file_name(&name)), (kind, text).into_response())
            }
        };
        let disposition = format!("attachment; filename=\"{name}\"");
        ([(header::CONTENT_DISPOSITION, disposition)], response).into_response()
    }
}

/// A name of a file, of an id that may have any characters.
fn file_name(id: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    id.chars().map(plain).collect()
}

pub(super) async fn export(request: ApiRequest<SessionTarget, ExportQuery>) -> Result<ExportReply, Problem> {
    let session = &request.target.session;
    reserve_whole(&request.memory, request.target.runner(), session.key()).await?;
    if let ExportForm::Test = request.query.r#as {
        let text = scripted_test::test_of(&request.target).await?;
        return Ok(ExportReply::Test { name: session.key().id.to_string(), text });
    }
    let stored = session.read(EventRange::All).await?;
    let first = session_at(&request.target, Some(stored.oldest), EventRange::None).await?;
    let labels = request.target.runner().store().labels(ReadLabels::new(session.key().clone())).await?;
    let events = stored.events.iter().map(|committed| {
        let body = RawValue::from_string(unmarked(&committed.event).to_body()?).unwrap_or_default();
        let (id, at) = (committed.event.id.to_string(), committed.event.at.as_micros());
        Ok(StoredRow { version: committed.version, id, at, body })
    });
    let (values, shared) = own_and_shared(&stored);
    Ok(ExportReply::Json(Box::new(ExportRow {
        format: FORMAT.to_owned(),
        format_version: FORMAT_VERSION,
        app: request.target.app.name().to_owned(),
        id: stored.key.id.to_string(),
        created: stored.created.to_string(),
        parent: SessionRow::of(&stored).parent,
        version: stored.version,
        oldest: stored.oldest,
        first: own_and_shared(&first).0,
        values,
        shared,
        events: events.collect::<Result<_, Problem>>()?,
        labels: labels
            .into_iter()
            .map(|(label, version)| ExportedLabel { label: label.to_string(), version })
            .collect(),
    })))
}

/// The body of an import, which has a limit of its own.
pub(super) struct ImportBody(ImportRow);

impl RequestBody for ImportBody {
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<ExportRow>())
    }

    fn limit(limits: &Limits) -> usize {
        limits.import
    }

    fn read(bytes: &[u8]) -> Result<Self, Problem> {
        let read = strict::from_slice(bytes).map_err(|error| Problem::invalid("export", error));
        read.and_then(|export| exact_numbers(bytes, "export", ImportBody(export)))
    }
}

/// The session that is made.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ImportQuery {
    /// Its id; a random one by default.
    id: Option<String>,
}

pub(super) async fn import(
    request: ApiRequest<AppTarget, ImportQuery, ImportBody>,
) -> Result<CreatedReply<SessionRow>, Problem> {
    let (AppTarget(app), ImportBody(row)) = (request.target, request.body);
    let runner = app.runner();
    let events = marked(events_of(&row)?, &request.principal, runner.now());
    let labels = labels_of(&row)?;
    let id = request.query.id.unwrap_or_else(|| RandomIds.next());
    let key = runner.key(request.principal.user().as_str(), id.as_str())?;
    let new_session = CreateSession::with_key(key.clone(), runner.schema(), runner.now())
        .values(Value::Object(row.first.clone()))?
        .with_events(events)
        .with_labels(labels);
    let new_session = checked(&request.principal, &row, new_session).await?;
    let store = runner.store();
    let created = store.create(new_session).await?;
    if created.version != row.version {
        return Err(Problem::unsupported("imports"));
    }
    let session = runner.find_session(key.user.as_str(), key.id.as_str()).await?;
    let session = session.ok_or_else(|| Problem::unknown_session(&id))?;
    // A run that waits for a deadline is found by recovery then; a failure here changes nothing about the import.
    if let Err(error) = session.note_deadline().await {
        tracing::warn!(session = %session.key(), %error, "the deadline of an import could not be noted");
    }
    let mut value = SessionRow::of(&session.read_events(EventRange::None).await?);
    value.imported = ImportedRow::read(&session).await?;
    Ok(CreatedReply::session(&app, &id, value))
}

/// The events of an export: all of them, in order, each once.
fn events_of(row: &ImportRow) -> Result<Vec<Event>, Problem> {
    let invalid = |why: String| Problem::invalid("export", why);
    if row.format != FORMAT || row.format_version != FORMAT_VERSION {
        let found = format!("`{}` {}", row.format, row.format_version);
        return Err(invalid(format!("expected format `{FORMAT}` {FORMAT_VERSION}, found {found}")));
    }
    if row.oldest != 0 {
        return Err(invalid("retention has deleted its beginning, so that it cannot be imported".to_owned()));
    }
    if let Some(key) = row.first.keys().find(|key| Scope::of(key) != Scope::Session) {
        return Err(invalid(format!("`first` has key `{key}`, which is not a key of the session scope")));
    }
    if row.events.len() as u64 != row.version {
        return Err(invalid(format!("expected {} events, found {}", row.version, row.events.len())));
    }
    let mut ids = BTreeSet::new();
    let event = |(before, stored): (u64, &StoredRow)| {
        let version = stored.version;
        if version != before + 1 {
            return Err(invalid(format!("expected version {} in `events`, found {version}", before + 1)));
        }
        if !ids.insert(stored.id.clone()) {
            return Err(invalid(format!("event {} of version {version} is there twice", stored.id)));
        }
        let at = Timestamp::from_micros(stored.at);
        let event = Event::from_body(EventId::new(stored.id.as_str())?, at, stored.body.get());
        // NOTE: a note and content together could not be erased here, and the content would count as erased.
        event
            .and_then(Event::without_erased_content)
            .map_err(|error| invalid(format!("event of version {version}: {error}")))
    };
    (0..).zip(&row.events).map(event).collect()
}

fn labels_of(row: &ImportRow) -> Result<Vec<(Label, u64)>, Problem> {
    let mut names = BTreeSet::new();
    let label = |exported: &ExportedLabel| {
        if !names.insert(exported.label.clone()) {
            return Err(Problem::invalid("export", format!("label `{}` is there twice", exported.label)));
        }
        if exported.version > row.version {
            let why = format!("label `{}` names version {}", exported.label, exported.version);
            return Err(Problem::invalid("export", why));
        }
        Ok((Label::new(exported.label.as_str())?, exported.version))
    };
    row.labels.iter().map(label).collect()
}

/// The session that can be made: under the schema of today, or, where that is of other types, as its values were stored, if
/// the schema reads or migrates them.
async fn checked(
    principal: &Principal,
    row: &ImportRow,
    request: CreateSession,
) -> Result<CreateSession, Problem> {
    let schema = &request.schema;
    let Err(problem) = check(principal, row, &request, schema).await else { return Ok(request) };
    let mut stored = request.clone();
    stored.schema = schema.untyped();
    match check(principal, row, &stored, schema).await {
        Ok(()) => Ok(stored),
        Err(forbidden) if forbidden.status() == StatusCode::FORBIDDEN => Err(forbidden),
        Err(_) => Err(problem),
    }
}

/// Makes the session in memory first: its events have to add up to the values that it had, which the schema of today reads,
/// and a run that has not ended is for administrators.
async fn check(
    principal: &Principal,
    row: &ImportRow,
    request: &CreateSession,
    schema: &SessionSchema,
) -> Result<(), Problem> {
    // NOTE: In memory first, so that a damaged file leaves nothing behind. Shared values are not imported: they belong to
    // other sessions too (docs/decisions/server.md).
    let store = MemoryStore::new();
    let made = match store.create(request.clone()).await {
        // One to which a rewind goes back.
        Err(error @ SessionError::NoSuchVersion { .. }) => return Err(Problem::invalid("export", error)),
        made => made?,
    };
    let read = store.get(GetSession::new(made.key)).await?;
    read.state(schema).map_err(|error| Problem::invalid("export", error))?;
    let (values, _) = own_and_shared(&read);
    // Erased writes add up to nothing: the keys that they changed may differ.
    let is_erased = |key: &String| {
        let erased = read.events.iter().filter(|committed| committed.event.erasure().is_some());
        erased.flat_map(|committed| committed.event.actions.delta.iter()).any(|write| write.key() == key)
    };
    let is_same = |key: &String| {
        let (Some(value), Some(text)) = (values.get(key), row.values.get(key)) else { return false };
        serde_json::from_str::<Value>(text.get()).is_ok_and(|told| told == *value)
    };
    // A key that was declared later begins with its default.
    let is_default = |key: &String| {
        let is_new = !row.first.contains_key(key) && !row.values.contains_key(key);
        is_new && schema.schema().key(key).is_some_and(|declared| declared.default() == values.get(key))
    };
    let differs = |key: &&String| !is_same(key) && !is_default(key) && !is_erased(key);
    if let Some(key) = values.keys().chain(row.values.keys()).find(differs) {
        let why = format!("its events do not add up to its `values`: `{key}` differs");
        return Err(Problem::invalid("export", why));
    }
    check_newest(principal, read.visible_events().last(), "end or abandon the run before the export")
}
