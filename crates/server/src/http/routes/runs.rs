//! Runs: messages, decisions, and the live stream.

use std::collections::BTreeMap;

use axum::Json;
use axum::response::NoContent;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, StatusCode};
use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use stepfold_agent_loop::state_core::chat::{Content, Media, Message, Part, Role};
use stepfold_agent_loop::{Decisions, Ids as _, Input, RandomIds};
use stepfold_runner::{DecisionReceipt, Invocation, SessionChange, SessionHandle, WhenBusy};
use stepfold_session_scopes::InvocationId;

use super::shared_values::check_shared;
use crate::http::app::SessionTarget;
use crate::http::guard::limits::{LimitPermit, Limits};
use crate::http::guard::problem::Problem;
use crate::http::operation::reply::{AcceptedReply, EventStream};
use crate::http::operation::request::{
    ApiRequest, JsonBody, PathParameter, SessionPart, WholeServer, find_session,
};
use crate::http::rows::upgrade::not_continued_at;
use crate::http::rows::{Accepted, Decided, DecisionRow, RunRow, exit};
use crate::http::streams::live_stream::FollowRequest;
use crate::http::streams::sse::StreamPosition;
use crate::http::streams::{live_stream, user_feed};

/// A message of the user.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewMessage {
    /// The text; it may be empty if there are files.
    text: String,
    /// Images and files, after the text.
    #[serde(default)]
    files: Vec<NewFile>,
    /// Values to write to the state first, by key, merged by their handlers (reducers).
    #[serde(default)]
    values: Map<String, Value>,
    /// The treatment of the message while a run is active in the session; by default that of the app.
    #[serde(default)]
    when_busy: Option<MessageBusyPolicy>,
}

/// The treatment of a message while a run is active in its session.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "WhenBusy")]
enum MessageBusyPolicy {
    /// It waits until that run has ended.
    Wait,
    /// It joins that run, before the next request to the model.
    Steer,
    /// The active run is cancelled first.
    Interrupt,
    /// It is refused: 409.
    Refuse,
}

impl From<MessageBusyPolicy> for WhenBusy {
    fn from(policy: MessageBusyPolicy) -> Self {
        match policy {
            MessageBusyPolicy::Wait => WhenBusy::Wait,
            MessageBusyPolicy::Steer => WhenBusy::Steer,
            MessageBusyPolicy::Interrupt => WhenBusy::Interrupt,
            MessageBusyPolicy::Refuse => WhenBusy::Refuse,
        }
    }
}

/// An image or a file of a message.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewFile {
    /// The media type, such as `image/png` or `application/pdf`. An image is a PNG, JPEG, GIF or WebP.
    media_type: String,
    /// The content, in Base64.
    data: String,
    /// The name of the file.
    #[serde(default)]
    name: Option<String>,
}

impl NewMessage {
    fn into_input(self, limits: &Limits) -> Result<Input, Problem> {
        if self.files.len() > limits.files {
            let why = format!("at most {} are accepted", limits.files);
            return Err(Problem::invalid("files of a message", why));
        }
        // Providers refuse an empty text beside a file.
        let has_text = !self.text.is_empty() || self.files.is_empty();
        let text = has_text.then(|| Ok(Part::text(self.text)));
        let files = self.files.into_iter().map(|file| file.into_part(limits).map(Part::from));
        let parts = text.into_iter().chain(files).collect::<Result<Vec<Part>, Problem>>()?;
        let message = Message::from_parts(Role::User, parts);
        let input = Input::new().with_message(message);
        Ok(if self.values.is_empty() { input } else { input.with_values(Value::Object(self.values)) })
    }
}

impl NewFile {
    fn into_part(self, limits: &Limits) -> Result<Content, Problem> {
        let NewFile { media_type, data, name } = self;
        let invalid = |why: String| Problem::invalid("file of a message", why);
        let media_type = media_type.to_ascii_lowercase();
        if !is_media_type(&media_type) {
            return Err(invalid(format!("expected a media type such as `image/png`, found `{media_type}`")));
        }
        let bytes = BASE64
            .decode(&data)
            .map_err(|error| invalid(format!("its data is not valid Base64: {error}")))?;
        if bytes.is_empty() {
            return Err(invalid("it is empty".to_owned()));
        }
        if bytes.len() > limits.file {
            return Err(Problem::too_large(limits.file));
        }
        let is_image = media_type.starts_with("image/");
        if is_image && image_type(&bytes) != Some(media_type.as_str()) {
            let found = image_type(&bytes).unwrap_or("no PNG, JPEG, GIF or WebP");
            return Err(invalid(format!("expected {media_type}, found {found}")));
        }
        let media = Media::base64(data, media_type);
        let media = match name {
            Some(name) => media.named(name),
            None => media,
        };
        Ok(if is_image { Content::Image(media) } else { Content::File(media) })
    }
}

/// A type and a subtype, without parameters.
fn is_media_type(text: &str) -> bool {
    let is_name = |name: &str| {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte);
        !name.is_empty() && name.len() < 128 && name.bytes().all(is_of_name)
    };
    text.split_once('/').is_some_and(|(kind, subtype)| is_name(kind) && is_name(subtype))
}

/// The type of an image, by its first bytes.
fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

pub(super) async fn send(
    request: ApiRequest<SessionTarget, (), JsonBody<NewMessage>>,
) -> Result<AcceptedReply<Accepted>, Problem> {
    let key = request.idempotency_key()?;
    check_shared(&request.principal, &request.body.0.values)?;
    let when_busy = request.body.0.when_busy;
    let input = request.body.0.into_input(&request.shared.limits)?;
    let permit = request.shared.usage.run_permit(request.principal.user(), &request.shared.limits)?;
    let mut session = request.target.session;
    if let Some(when_busy) = when_busy {
        session = session.when_busy(when_busy.into());
    }
    let invocation = match key {
        Some(key) => session.send_once(key, input).await?,
        None => session.send(input).await?,
    };
    Ok(AcceptedReply(hold_permit(invocation, permit)))
}

/// Holds the permit of a run until it ends or waits.
pub(super) fn hold_permit(invocation: Invocation, permit: LimitPermit) -> Accepted {
    let accepted = Accepted { invocation: invocation.id().to_string() };
    tokio::spawn(async move {
        // The runner logs a failure.
        let _ = invocation.outcome().await;
        drop(permit);
    });
    accepted
}

pub(super) async fn run(
    request: ApiRequest<SessionTarget, (), JsonBody<NewMessage>>,
) -> Result<Json<RunRow>, Problem> {
    let key = request.idempotency_key()?.unwrap_or_else(|| RandomIds.next());
    check_shared(&request.principal, &request.body.0.values)?;
    if request.body.0.when_busy.is_some() {
        return Err(Problem::invalid("when_busy", "a run waits for its turn; send a message instead"));
    }
    let input = request.body.0.into_input(&request.shared.limits)?;
    let _permit = request.shared.usage.run_permit(request.principal.user(), &request.shared.limits)?;
    let session = request.target.session;
    match session.run_as(key.as_str(), input).await {
        Ok(report) => Ok(Json(RunRow::of(report))),
        Err(error) => Err(Problem::of_message(&session, &key, error).await),
    }
}

pub(super) async fn withdraw(request: ApiRequest<SessionPart<InvocationId>>) -> Result<NoContent, Problem> {
    let SessionPart { session: SessionTarget { session, .. }, part: message } = request.target;
    match session.withdraw(&message).await? {
        true => Ok(NoContent),
        false => Err(Problem::not_waiting(message.as_str())),
    }
}

impl PathParameter for InvocationId {
    const PARAMETER: &'static str = "message";

    fn read(text: &str) -> Result<Self, Problem> {
        Ok(InvocationId::new(text)?)
    }
}

/// Decisions about requests.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewDecisions {
    /// The decisions, by the ids of the requests.
    decisions: BTreeMap<String, DecisionRow>,
    /// Continues the run even if the agent has changed since it began.
    #[serde(default)]
    with_changed_agent: bool,
}

pub(super) async fn decide(
    request: ApiRequest<SessionTarget, (), JsonBody<NewDecisions>>,
) -> Result<AcceptedReply<Decided>, Problem> {
    let key = request.idempotency_key()?;
    let JsonBody(NewDecisions { decisions, with_changed_agent }) = request.body;
    if decisions.is_empty() {
        return Err(Problem::invalid("decisions", "expected at least one"));
    }
    let permit = request.shared.usage.run_permit(request.principal.user(), &request.shared.limits)?;
    let decisions: Decisions = decisions.into_iter().map(|(id, decision)| (id, decision.into())).collect();
    let session = request.target.session;
    let mut resume = session.resume().decide_all(decisions).by(request.principal.name());
    if let Some(key) = key {
        resume = resume.idempotency_key(key);
    }
    if with_changed_agent {
        resume = resume.with_changed_agent();
    }
    let (receipt, continues) = resume.submit().await?;
    hold_permit(continues, permit);
    let DecisionReceipt { version, requests, by, invocation, .. } = receipt;
    let invocation = invocation.to_string();
    let not_continued = not_continued_at(&session, version, with_changed_agent).await;
    Ok(AcceptedReply(Decided { invocation, version, requests, by, not_continued }))
}

/// An outcome that comes later.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewOutcome {
    /// The token of the request.
    token: String,
    /// The result, as the tool would have given it; null is a result.
    #[serde(default, deserialize_with = "given")]
    result: Option<Value>,
    /// Why the call failed, instead of a result.
    error: Option<String>,
}

/// A field that is there, null or not.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

pub(super) async fn complete(
    request: ApiRequest<SessionTarget, (), JsonBody<NewOutcome>>,
) -> Result<Json<Completed>, Problem> {
    let NewOutcome { token, result, error } = request.body.0;
    let outcome = match (result, error) {
        (Some(result), None) => Ok(result),
        (None, Some(error)) => Err(error),
        _ => return Err(Problem::invalid("outcome", "expected one of `result` and `error`")),
    };
    // A token says which session it is of: another one's is unknown here.
    let SessionTarget { app, session } = request.target;
    if app.runner().session_of_token(&token)? != *session.key() {
        return Err(Problem::invalid("token", "it belongs to another session"));
    }
    // It may continue the run, in this process.
    let permit = request.shared.usage.run_permit(request.principal.user(), &request.shared.limits)?;
    let receipt = app.runner().complete(&token, outcome).by(request.principal.name()).await?;
    if let Some(invocation) = session.running() {
        hold_permit(invocation, permit);
    }
    let not_continued = not_continued_at(&session, receipt.version, false).await;
    Ok(Json(Completed { version: receipt.version, requests: receipt.requests, not_continued }))
}

/// A stored outcome.
#[derive(Serialize, JsonSchema)]
pub(super) struct Completed {
    /// The version of the session with it.
    version: u64,
    /// The requests that it has answered.
    requests: Vec<String>,
    /// Why this version of the agent does not continue the run, in words: the run waits for a version that does, or for
    /// `"with_changed_agent": true` in `POST …/resume`. Absent if it continues.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_continued: Vec<String>,
}

/// A resumption.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Resumption {
    /// Continues the run even if the agent has changed since it began.
    #[serde(default)]
    with_changed_agent: bool,
}

pub(super) async fn resume(
    request: ApiRequest<SessionTarget, (), JsonBody<Resumption>>,
) -> Result<AcceptedReply<Accepted>, Problem> {
    let permit = request.shared.usage.run_permit(request.principal.user(), &request.shared.limits)?;
    let session = &request.target.session;
    let changes = request.target.runner().watch(session.key()).await;
    // The run is active already: resumed by recovery, or for another message.
    if let Some(invocation) = session.driving() {
        return Ok(AcceptedReply(hold_permit(invocation, permit)));
    }
    let mut resume = session.resume();
    if request.body.0.with_changed_agent {
        resume = resume.with_changed_agent();
    }
    let invocation = resume.start()?;
    let mut events = invocation.subscribe(0);
    let has_begun = tokio::select! {
        first = events.next() => first.is_some(),
        () = until_continued(session, changes) => true,
    };
    // It fails before its first event, if it cannot continue.
    if !has_begun && let Err(error) = invocation.outcome().await {
        return Err(error.into());
    }
    Ok(AcceptedReply(hold_permit(invocation, permit)))
}

/// Waits until a run continues in the session of these changes, by whatever invocation of this process.
async fn until_continued(session: &SessionHandle, changes: impl Stream<Item = SessionChange> + Unpin) {
    // NOTE: The end of a run before which others wait is told as running, too.
    let continues = |change: &SessionChange| {
        let is_running = matches!(change, SessionChange::Changed { is_running: true, .. });
        std::future::ready(is_running && session.driving().is_some())
    };
    match changes.filter(continues).next().await {
        Some(_) => {}
        None => std::future::pending().await,
    }
}

/// The end of a run.
#[derive(Serialize, JsonSchema)]
pub(super) struct EndRow {
    /// The exit reason.
    exit: Value,
}

pub(super) async fn abandon(request: ApiRequest<SessionTarget>) -> Result<Json<EndRow>, Problem> {
    let outcome = request.target.session.abandon().await?;
    Ok(Json(EndRow { exit: exit(outcome.exit()) }))
}

/// Whether a run was cancelled.
#[derive(Serialize, JsonSchema)]
pub(super) struct CancelRow {
    /// Whether the run was cancelled: false if there was no unfinished run, or it had ended before.
    cancelled: bool,
}

pub(super) async fn cancel(request: ApiRequest<SessionTarget>) -> Result<AcceptedReply<CancelRow>, Problem> {
    Ok(AcceptedReply(CancelRow { cancelled: request.target.session.cancel_everywhere().await? }))
}

/// The start of a live stream.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LiveQuery {
    /// The version after which commits are sent, or the id of an event, after which all is sent as after a reconnection;
    /// the newest version by default.
    after: Option<String>,
}

pub(super) async fn live(request: ApiRequest<SessionTarget, LiveQuery>) -> Result<EventStream, Problem> {
    let last = last_event_id(&request.headers, StreamPosition::parse)?;
    let after = request.query.after.as_deref().map_or(Ok(StreamStart::Newest), StreamStart::parse)?;
    let (last, after) = after.or(last);
    let stream_permit = request.shared.stream_permit(&request.principal)?;
    let SessionTarget { app, session } = request.target;
    let followed = FollowRequest { runner: app.runner().clone(), session, last, after };
    Ok(EventStream(live_stream::open(&request.shared.channels, followed, stream_permit).await?))
}

fn last_event_id<T>(headers: &HeaderMap, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, Problem> {
    let Some(id) = headers.get("last-event-id") else { return Ok(None) };
    let position = id.to_str().ok().and_then(parse);
    position.map(Some).ok_or_else(|| Problem::invalid("Last-Event-ID", "it was not issued by this stream"))
}

/// The start for a client without a `Last-Event-ID`.
#[derive(Clone)]
enum StreamStart {
    Newest,
    Version(u64),
    /// An id names the life of the session as well: the versions of a session that was deleted are not those of its
    /// successor.
    Event(StreamPosition),
}

impl StreamStart {
    fn parse(text: &str) -> Result<Self, Problem> {
        if text.is_empty() {
            return Ok(StreamStart::Newest);
        }
        if let Some(position) = StreamPosition::parse(text) {
            return Ok(StreamStart::Event(position));
        }
        let invalid = |_| {
            let words = format!("expected a version, the id of an event, or nothing, found `{text}`");
            Problem::invalid("after", words)
        };
        text.parse().map(StreamStart::Version).map_err(invalid)
    }

    /// The last event and the version, where the header has more to say than the query: it is of this connection's own
    /// past.
    fn or(self, last: Option<StreamPosition>) -> (Option<StreamPosition>, Option<u64>) {
        match (last, self) {
            (Some(last), _) | (None, StreamStart::Event(last)) => (Some(last), None),
            (None, StreamStart::Version(version)) => (None, Some(version)),
            (None, StreamStart::Newest) => (None, None),
        }
    }
}

/// The sessions of a live stream.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LiveManyQuery {
    /// Sessions as `APP/SESSION`, separated by commas, whose live streams are sent as one; in a name, a comma is written
    /// `%2C`, and a percent sign `%25`. Without, the changes of all sessions are sent.
    sessions: Option<String>,
    /// For each session the version after which its commits are sent, or the id of an event of a stream of this session
    /// alone, separated by commas; the newest version where there is none. In the ids of this stream, those of its sessions
    /// are separated by `~`.
    after: Option<String>,
}

pub(super) async fn live_all(
    request: ApiRequest<WholeServer, LiveManyQuery>,
) -> Result<EventStream, Problem> {
    let (shared, principal) = (&request.shared, &request.principal);
    let Some(sessions) = &request.query.sessions else {
        let stream_permit = shared.stream_permit(principal)?;
        let body = user_feed::open(&shared.feeds, &shared.apps, principal.user(), stream_permit).await?;
        return Ok(EventStream(body));
    };
    let names: Vec<&str> = sessions.split(',').collect();
    if names.len() > shared.limits.sessions_per_stream {
        return Err(Problem::too_many("sessions of a live stream", shared.limits.sessions_per_stream));
    }
    let of_each = |what| Problem::invalid(what, "it must have one part for each session");
    let lasts = match last_event_id(&request.headers, StreamPosition::parse_many)? {
        None => vec![None; names.len()],
        Some(lasts) => lasts.into_iter().map(Some).collect(),
    };
    let versions = match &request.query.after {
        None => vec![StreamStart::Newest; names.len()],
        Some(after) => after.split(',').map(StreamStart::parse).collect::<Result<_, _>>()?,
    };
    if lasts.len() != names.len() {
        return Err(of_each("Last-Event-ID"));
    }
    if versions.len() != names.len() {
        return Err(of_each("after"));
    }
    let (mut followed, mut unknown) = (Vec::with_capacity(names.len()), None);
    for ((name, last), after) in names.into_iter().zip(lasts).zip(versions) {
        let name = percent_decode_str(name).decode_utf8_lossy();
        let (app, id) =
            name.split_once('/').ok_or_else(|| Problem::invalid("sessions", "expected APP/SESSION"))?;
        let app = shared.apps.get(app).ok_or_else(|| Problem::unknown_app(app))?;
        let (last, after) = after.or(last);
        match find_session(app, principal, id).await {
            Ok(session) => {
                followed.push(Ok(FollowRequest { runner: app.runner().clone(), session, last, after }));
            }
            // NOTE: A session that is gone is told as `gone`: with 404, a page that showed two sessions followed none after
            // a reconnection (docs/decisions/server.md).
            Err(problem) if problem.status() == StatusCode::NOT_FOUND => {
                let key = app.runner().key(principal.user().as_str(), id)?;
                followed.push(Err((key, last)));
                unknown = Some(problem);
            }
            Err(problem) => return Err(problem),
        }
    }
    if let Some(problem) = unknown
        && followed.iter().all(Result::is_err)
    {
        return Err(problem);
    }
    Ok(EventStream(
        live_stream::open_many(&shared.channels, followed, shared.stream_permit(principal)?).await?,
    ))
}
