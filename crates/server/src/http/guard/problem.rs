//! Errors as problem documents (RFC 9457).

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use schemars::JsonSchema;
use serde::Serialize;
use stepfold_agent_loop::{DecisionError, EditError};
use stepfold_runner::{Remedy, RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_session_scopes::{ErrorKind, SessionError};
use stepfold_state_core::ErrorChain;

use super::gate::GateRefusal;

/// A problem: its document, on the heap, since most requests have none.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(in crate::http) struct Problem(Box<ProblemDocument>);

/// A problem document.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(in crate::http) struct ProblemDocument {
    /// A URI of the kind of problem: `urn:stepfold:problem:` and the kind.
    r#type: String,
    /// The kind of problem, in words.
    title: &'static str,
    /// The status of the response.
    status: u16,
    /// The failure, and the remedy.
    detail: String,
    /// The kind of problem: what programs branch on.
    kind: &'static str,
    /// The remedy: `retry` the same request soon, `wait` until someone has acted, or `never`.
    remedy: &'static str,
    /// The version that the request expected, of a conflict.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<u64>,
    /// The version of the session, of a conflict.
    #[serde(skip_serializing_if = "Option::is_none")]
    actual: Option<u64>,
    /// The ids of the requests that wait for decisions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pending: Vec<String>,
    /// Whether the message of the request was stored nevertheless.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    accepted: bool,
    /// The same in the form of OpenAI, from its operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<OpenAiError>,
    #[serde(skip)]
    retry_after: Option<u32>,
}

/// An error in the form of OpenAI.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(in crate::http) struct OpenAiError {
    /// The failure, and the remedy.
    message: String,
    /// The type of the error: of the client, of its rights, of a limit, or of the server.
    r#type: &'static str,
    /// The kind of problem.
    code: &'static str,
    /// Always null.
    param: Option<String>,
}

/// The form of a problem document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum ProblemForm {
    Plain,
    /// Also as clients of OpenAI read it.
    OpenAi,
}

/// The media type of problem documents.
pub(in crate::http) const MEDIA_TYPE: &str = "application/problem+json";

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        Problem(Box::new(ProblemDocument {
            r#type: format!("urn:stepfold:problem:{kind}"),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            kind,
            remedy: "never",
            expected: None,
            actual: None,
            pending: Vec::new(),
            accepted: false,
            error: None,
            retry_after: None,
        }))
    }

    fn remedy(mut self, remedy: Remedy) -> Self {
        self.0.remedy = match remedy {
            Remedy::Retry => "retry",
            Remedy::Wait => "wait",
            Remedy::Never => "never",
        };
        self
    }

    fn after(mut self, seconds: u32) -> Self {
        self.0.retry_after = Some(seconds);
        self.remedy(Remedy::Retry)
    }

    pub(in crate::http) fn in_form(mut self, form: ProblemForm) -> Self {
        if form == ProblemForm::OpenAi {
            self.0.error = Some(self.in_form_of_openai());
        }
        self
    }

    pub(in crate::http) fn in_form_of_openai(&self) -> OpenAiError {
        let r#type = match self.0.status {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        OpenAiError { message: self.0.detail.clone(), r#type, code: self.0.kind, param: None }
    }

    /// The problem of a message whose run failed or was refused: it says whether the message is stored nevertheless.
    pub(in crate::http) async fn of_message(session: &SessionHandle, id: &str, error: RunnerError) -> Self {
        // NOTE: Other errors know it.
        let may_wait = error.is_of_other_agent() || error.is_invalid_record();
        let mut problem = Problem::from(error);
        if may_wait
            && session.inbox().await.is_ok_and(|inbox| inbox.iter().any(|message| message.id.as_str() == id))
        {
            problem.0.accepted = true;
            problem
                .0
                .detail
                .push_str("; the message is stored, and is taken once the run continues or is abandoned");
        }
        problem
    }

    pub(in crate::http) fn detail(&self) -> &str {
        &self.0.detail
    }

    pub(in crate::http) fn kind(&self) -> &'static str {
        self.0.kind
    }

    /// Whether it is about content whose key is not there.
    pub(in crate::http) fn is_sealed(&self) -> bool {
        self.kind() == "sealed"
    }

    pub(in crate::http) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(in crate::http) fn denied(denied: GateRefusal) -> Self {
        match denied {
            GateRefusal::Host => Problem::new(
                StatusCode::MISDIRECTED_REQUEST,
                "host",
                "Unknown host",
                "unknown host: the server answers to its own names only; add one with `--host-name`",
            ),
            GateRefusal::Origin => Problem::new(
                StatusCode::FORBIDDEN,
                "origin",
                "Foreign origin",
                "request of a page of another origin: allow the origin with `--allow-origin`; a server behind a proxy with TLS has \
                 `--https`",
            ),
            GateRefusal::ContentType => Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "content_type",
                "Unsupported media type",
                "unsupported media type: requests that change something have the content type application/json",
            ),
        }
    }

    pub(in crate::http) fn unauthenticated() -> Self {
        let detail = "missing or unknown token: send `Authorization: Bearer TOKEN`";
        Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "Not authenticated", detail)
    }

    pub(in crate::http) fn unavailable(detail: &str) -> Self {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Unavailable", detail).after(1)
    }

    pub(in crate::http) fn forbidden(needs: super::auth::Role) -> Self {
        let detail = format!("forbidden: the role `{needs}` is required");
        Problem::new(StatusCode::FORBIDDEN, "forbidden", "Forbidden", detail)
    }

    /// `instead`: what anyone may do.
    pub(in crate::http) fn open_import(instead: &str) -> Self {
        let detail = format!(
            "forbidden: the role `{}` is required to continue a run that was imported before its end; {instead}",
            super::auth::Role::Administer
        );
        Problem::new(StatusCode::FORBIDDEN, "forbidden", "Forbidden", detail)
    }

    pub(in crate::http) fn unknown_path() -> Self {
        let detail = "unknown path; GET /api/v1/openapi.json lists the known ones";
        Problem::new(StatusCode::NOT_FOUND, "unknown_path", "Unknown path", detail)
    }

    pub(in crate::http) fn method() -> Self {
        let detail = "method not allowed here; GET /api/v1/openapi.json lists the allowed ones";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method", "Method not allowed", detail)
    }

    pub(in crate::http) fn unknown_app(app: &str) -> Self {
        let detail = format!("unknown app `{app}`; GET /api/v1/apps lists the known ones");
        Problem::new(StatusCode::NOT_FOUND, "unknown_app", "Unknown app", detail)
    }

    /// The same for a session of another user and for one that does not exist.
    pub(in crate::http) fn unknown_session(session: &str) -> Self {
        let detail = format!(
            "unknown session `{session}`; the list of sessions has the known ones, or create it first"
        );
        Problem::new(StatusCode::NOT_FOUND, "unknown_session", "Unknown session", detail)
    }

    #[cfg(feature = "eval")]
    pub(in crate::http) fn unknown_experiment(name: &str) -> Self {
        let detail = format!("unknown experiment `{name}`; the list of experiments has the known ones");
        Problem::new(StatusCode::NOT_FOUND, "unknown_experiment", "Unknown experiment", detail)
    }

    #[cfg(feature = "eval")]
    pub(in crate::http) fn unknown_data_set(name: &str) -> Self {
        let detail = format!("unknown data set `{name}`; the list of experiments has the known ones");
        Problem::new(StatusCode::NOT_FOUND, "unknown_data_set", "Unknown data set", detail)
    }

    #[cfg(feature = "eval")]
    pub(in crate::http) fn data_set_in_use(name: &str, experiment: &str) -> Self {
        let detail = format!(
            "data set `{name}` is that of experiment `{experiment}`, which is under way: wait for its end, or delete it"
        );
        Problem::new(StatusCode::CONFLICT, "data_set_in_use", "Data set in use", detail)
    }

    #[cfg(feature = "eval")]
    pub(in crate::http) fn busy_data_set(name: &str) -> Self {
        let detail = format!(
            "data set `{name}` is being changed by another process, a command for example: repeat the request after its end"
        );
        Problem::new(StatusCode::CONFLICT, "data_set_in_use", "Data set in use", detail).remedy(Remedy::Wait)
    }

    #[cfg(feature = "eval")]
    pub(in crate::http) fn busy_copies(why: &std::io::Error) -> Self {
        let detail =
            format!("copies in data sets could not be erased: {why}; repeat the request after its end");
        Problem::new(StatusCode::CONFLICT, "data_set_in_use", "Data set in use", detail).remedy(Remedy::Wait)
    }

    #[cfg(feature = "eval")]
    pub(in crate::http) fn experiment_under_way(name: &str) -> Self {
        let detail = format!(
            "another experiment `{name}` is under way: wait for its end, delete it, or use another name"
        );
        Problem::new(StatusCode::CONFLICT, "exists", "Already exists", detail)
    }

    #[cfg(feature = "eval")]
    pub(in crate::http) fn no_experiments(app: &str) -> Self {
        let detail = format!("app `{app}` keeps no experiments: it was registered without a folder for them");
        Problem::new(StatusCode::NOT_FOUND, "no_experiments", "No experiments", detail)
    }

    #[cfg(feature = "eval")]
    pub(in crate::http) fn failed_experiment(why: &str) -> Self {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "experiment", "Experiment failed", why)
    }

    pub(in crate::http) fn unknown_version(version: u64) -> Self {
        let detail = format!("the session has no commit at version {version}, or retention has deleted it");
        Problem::new(StatusCode::NOT_FOUND, "unknown_version", "Unknown version", detail)
    }

    pub(in crate::http) fn unknown_label(label: &str) -> Self {
        let detail = format!("unknown label `{label}`; the list of labels has the known ones");
        Problem::new(StatusCode::NOT_FOUND, "unknown_label", "Unknown label", detail)
    }

    pub(in crate::http) fn no_model_step(version: u64) -> Self {
        let detail = format!(
            "no model is asked at version {version}: it is of no run, of a graph itself, or of an agent whose tools are not \
             known; name a run inside with `path`"
        );
        Problem::new(StatusCode::CONFLICT, "no_model_step", "No step of a model", detail)
    }

    pub(in crate::http) fn no_test(why: &str) -> Self {
        let detail = format!("the session cannot be a scripted test: {why}");
        Problem::new(StatusCode::CONFLICT, "no_test", "No scripted test", detail)
    }

    pub(in crate::http) fn unsupported(what: &str) -> Self {
        let detail = format!("the store of the sessions has no {what}");
        Problem::new(StatusCode::NOT_IMPLEMENTED, "unsupported", "Unsupported by the store", detail)
    }

    pub(in crate::http) fn no_graph(app: &str) -> Self {
        let detail =
            format!("app `{app}` has no graph: it is not a graph, or was registered without its shape");
        Problem::new(StatusCode::NOT_FOUND, "no_graph", "No graph", detail)
    }

    pub(in crate::http) fn not_waiting(message: &str) -> Self {
        let detail = format!("message `{message}` does not wait: it was taken, or withdrawn before");
        Problem::new(StatusCode::CONFLICT, "not_waiting", "Not waiting", detail)
    }

    pub(in crate::http) fn invalid(what: &str, why: impl std::fmt::Display) -> Self {
        let detail = format!("invalid {what}: {why}");
        Problem::new(StatusCode::BAD_REQUEST, "invalid", "Invalid request", detail)
    }

    pub(in crate::http) fn too_large(limit: usize) -> Self {
        let detail = format!("request body too large: at most {limit} bytes are accepted");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "Too large", detail)
    }

    pub(in crate::http) fn too_slow() -> Self {
        let detail = "request timed out: its body did not arrive in time";
        Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "Request timeout", detail).after(1)
    }

    pub(in crate::http) fn takes_too_long(timeout: std::time::Duration) -> Self {
        let detail =
            format!("request timed out: the session could not be read within {} s", timeout.as_secs());
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        Problem::new(unavailable, "timeout", "Request timeout", detail).remedy(Remedy::Never)
    }

    pub(in crate::http) fn too_many(what: &str, limit: usize) -> Self {
        let detail = format!("too many {what}: at most {limit} are allowed at once");
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many", "Too many requests", detail).after(2)
    }

    /// A request that needs more memory than a user may hold.
    pub(in crate::http) fn no_memory(bytes: usize, limit: usize) -> Self {
        let detail = format!(
            "the request needs about {bytes} bytes of memory, and at most {limit} are allowed: ask for less at once, or raise \
             `memory_per_user`"
        );
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "Too large", detail)
    }

    /// All users together hold as much as the server may.
    pub(in crate::http) fn busy() -> Self {
        let detail = "the server holds as many bytes for requests as it may: try again";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Server busy", detail).after(2)
    }

    /// A conflict of versions.
    pub(in crate::http) fn conflict(expected: u64, actual: u64) -> Self {
        let detail = format!("the session is at version {actual}, not {expected}; read it again");
        let mut problem = Problem::new(StatusCode::CONFLICT, "conflict", "Conflict", detail);
        (problem.0.expected, problem.0.actual) = (Some(expected), Some(actual));
        problem
    }

    /// The cause is ours: it is logged, and not sent.
    fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = %ErrorChain(error), "request failed");
        let detail = "the request failed; the log of the server has the cause";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error", detail)
    }
}

/// The body and the headers of the response.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let retry = self.0.retry_after.map(|seconds| [(header::RETRY_AFTER, seconds.to_string())]);
        let realm =
            (self.0.status == 401).then_some([(header::WWW_AUTHENTICATE, "Bearer realm=\"stepfold\"")]);
        let kind = [(header::CONTENT_TYPE, MEDIA_TYPE)];
        (self.status(), retry, realm, kind, Json(self)).into_response()
    }
}

impl From<SessionError> for Problem {
    fn from(error: SessionError) -> Self {
        Problem::from(&error)
    }
}

impl From<&SessionError> for Problem {
    fn from(error: &SessionError) -> Self {
        use StatusCode as S;
        let detail = error.to_string();
        match (error, error.kind()) {
            (SessionError::Conflict { expected, actual, .. }, _) => {
                Problem::conflict(*expected, *actual).remedy(Remedy::Retry)
            }
            (SessionError::NoSuchVersion { .. }, _) => {
                Problem::new(S::NOT_FOUND, "unknown_version", "Unknown version", detail)
            }
            (SessionError::TooLarge { .. }, _) => {
                Problem::new(S::PAYLOAD_TOO_LARGE, "too_large", "Too large", detail)
            }
            (SessionError::IdempotencyKeyReused { .. } | SessionError::EventReused { .. }, _) => {
                Problem::new(S::CONFLICT, "key_reused", "Idempotency key reused", detail)
            }
            (SessionError::ErasureReused { .. }, _) => {
                Problem::new(S::CONFLICT, "key_reused", "Erasure id reused", detail)
            }
            (SessionError::NotFound { key }, _) => Problem::unknown_session(key.id.as_str()),
            (_, ErrorKind::AlreadyExists) => Problem::new(S::CONFLICT, "exists", "Already exists", detail),
            (SessionError::Erased { .. }, _) => Problem::new(S::GONE, "erased", "Content erased", detail),
            (_, ErrorKind::Sealed) => Problem::new(S::GONE, "sealed", "Content sealed", detail),
            (_, ErrorKind::Invalid) => Problem::new(S::BAD_REQUEST, "invalid", "Invalid request", detail),
            (_, ErrorKind::Full) => {
                Problem::new(S::TOO_MANY_REQUESTS, "inbox_full", "Inbox full", detail).after(5)
            }
            (_, ErrorKind::Claimed | ErrorKind::ClaimLost) => {
                Problem::new(S::CONFLICT, "claimed", "Claimed by another worker", detail).after(1)
            }
            (_, ErrorKind::Unsupported) => {
                Problem::new(S::NOT_IMPLEMENTED, "unsupported", "Unsupported by the store", detail)
            }
            (_, ErrorKind::Transient) => {
                tracing::warn!(error = %ErrorChain(error), "the store is unavailable");
                Problem::unavailable("the store of the sessions is unavailable")
            }
            _ => Problem::internal(error),
        }
    }
}

/// The advice of the library, with the routes of a session in place of its methods.
pub(in crate::http) fn in_routes(words: &str) -> String {
    const ROUTES: [(&str, &str); 6] = [
        ("decide with `resume()`", "decide with `POST …/decisions`"),
        ("`resume()`", "`POST …/resume`"),
        ("`abandon()`", "`POST …/abandon`"),
        ("`withdraw()`", "`DELETE …/messages/{message}`"),
        ("`with_changed_agent()`", "`\"with_changed_agent\": true` in `POST …/resume`"),
        ("wait for it, or take the session over with `when_claimed`", "wait for it"),
    ];
    ROUTES.iter().fold(words.to_owned(), |words, (method, route)| words.replace(method, route))
}

impl From<RunnerError> for Problem {
    fn from(error: RunnerError) -> Self {
        use StatusCode as S;
        let (detail, remedy) = (in_routes(&error.to_string()), error.remedy());
        let of_kind = |status, kind, title| Problem::new(status, kind, title, detail.clone()).remedy(remedy);
        match &error.kind {
            _ if error.is_invalid_record() => {
                tracing::warn!(error = %ErrorChain(&error), "invalid record");
                of_kind(S::CONFLICT, "invalid_record", "Invalid record")
            }
            RunnerErrorKind::InvalidId { source }
            | RunnerErrorKind::Store { source, .. }
            | RunnerErrorKind::Conflict { source, .. } => Problem::from(&**source),
            RunnerErrorKind::Claimed { is_accepted, .. } => {
                let mut problem = of_kind(S::CONFLICT, "claimed", "Claimed by another worker").after(1);
                problem.0.accepted = *is_accepted;
                problem
            }
            RunnerErrorKind::ClaimLost { .. } => of_kind(S::CONFLICT, "claim_lost", "Claim lost").after(1),
            RunnerErrorKind::EarlierRunFailed { .. } => {
                let mut problem = of_kind(S::CONFLICT, "earlier_run_failed", "Earlier run failed");
                problem.0.accepted = true;
                problem
            }
            RunnerErrorKind::EarlierCannotBegin { is_accepted, .. } => {
                let mut problem =
                    of_kind(S::CONFLICT, "earlier_cannot_begin", "Earlier message cannot begin");
                problem.0.accepted = *is_accepted;
                problem
            }
            RunnerErrorKind::Run { .. } => of_kind(S::BAD_GATEWAY, "run_failed", "Run failed"),
            RunnerErrorKind::Input { .. } => of_kind(S::UNPROCESSABLE_ENTITY, "input", "Invalid input"),
            RunnerErrorKind::Edit { error, .. } => match **error {
                EditError::KeyReused { .. } => of_kind(S::CONFLICT, "key_reused", "Idempotency key reused"),
                _ => of_kind(S::UNPROCESSABLE_ENTITY, "edit", "Invalid edit"),
            },
            RunnerErrorKind::InvalidToken { .. } => {
                of_kind(S::UNPROCESSABLE_ENTITY, "invalid_token", "Invalid token")
            }
            RunnerErrorKind::NotAwaited { .. } => of_kind(S::CONFLICT, "not_awaited", "Not awaited"),
            RunnerErrorKind::LeftToPerson { .. } => {
                of_kind(S::CONFLICT, "left_to_person", "Left to a person")
            }
            RunnerErrorKind::InvalidBudget { .. } => {
                of_kind(S::UNPROCESSABLE_ENTITY, "invalid_budget", "Invalid budget")
            }
            RunnerErrorKind::Busy { .. } => of_kind(S::CONFLICT, "busy", "Session busy").after(1),
            RunnerErrorKind::Pending { pending, is_accepted, .. } => {
                let mut problem = of_kind(S::CONFLICT, "pending", "Decisions pending");
                (problem.0.pending, problem.0.accepted) = (pending.clone(), *is_accepted);
                problem
            }
            RunnerErrorKind::CannotWait => of_kind(S::CONFLICT, "cannot_wait", "Input cannot wait"),
            RunnerErrorKind::Decision { error, .. } => match **error {
                DecisionError::AlreadyDecided { .. } => of_kind(S::CONFLICT, "decided", "Already decided"),
                DecisionError::KeyReused { .. } => {
                    of_kind(S::CONFLICT, "key_reused", "Idempotency key reused")
                }
                DecisionError::NotPending { .. } => of_kind(S::CONFLICT, "not_pending", "Not pending"),
                _ => of_kind(S::UNPROCESSABLE_ENTITY, "decision", "Invalid decision"),
            },
            RunnerErrorKind::Withdrawn => of_kind(S::GONE, "withdrawn", "Message removed"),
            RunnerErrorKind::Erased { .. } => of_kind(S::GONE, "erased", "Content erased"),
            RunnerErrorKind::UnknownBudget { .. } => {
                of_kind(S::NOT_FOUND, "unknown_budget", "Unknown budget")
            }
            RunnerErrorKind::NotRaised { .. } => of_kind(S::CONFLICT, "not_raised", "Budget not raised"),
            RunnerErrorKind::UnknownCall { .. } => of_kind(S::NOT_FOUND, "unknown_call", "Unknown call"),
            RunnerErrorKind::NothingToResume => {
                of_kind(S::CONFLICT, "nothing_to_resume", "Nothing to resume")
            }
            _ if error.is_of_other_agent() => of_kind(S::CONFLICT, "agent_changed", "Agent changed"),
            RunnerErrorKind::Diverged { .. } => of_kind(S::CONFLICT, "diverged", "Replay diverged"),
            RunnerErrorKind::ShutDown { is_accepted, .. } => {
                let mut problem = Problem::unavailable("the server is shutting down");
                problem.0.accepted = *is_accepted;
                problem
            }
            _ => Problem::internal(&error),
        }
    }
}

/// The statuses of problem documents that each operation may answer with.
pub(in crate::http) fn common() -> [(u16, &'static str); 16] {
    [
        (400, "The request is invalid."),
        (401, "The token is missing or unknown."),
        (403, "The role does not suffice, or the request is from a page of another origin."),
        (404, "The app or the session is unknown, or the session belongs to another user."),
        (408, "The body did not arrive in time."),
        (409, "The request conflicts with the session: see `kind`."),
        (410, "The message was withdrawn, or the content was erased, or is sealed and its key is not there."),
        (413, "The body, a file or a value is too large."),
        (415, "The content type is not `application/json`."),
        (421, "The server does not serve this host."),
        (422, "The agent does not accept it: an input, a decision, an edit or a token."),
        (429, "A limit is reached."),
        (500, "The server failed."),
        (501, "The store of the sessions cannot do it."),
        (502, "The run failed."),
        (503, "The server is unavailable."),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stepfold_runner::{RunnerError, RunnerErrorKind};
    use stepfold_session_scopes::{InvocationId, SessionKey};

    use super::Problem;

    /// Clients have routes, and no methods of the library.
    #[test]
    fn no_problem_names_a_method() {
        let key = SessionKey::new("clerk", "ada", "s1").unwrap();
        let error = |kind| RunnerError::new(&key, kind);
        let changed = || RunnerErrorKind::AgentChanged { changes: vec!["instructions changed".to_owned()] };
        let kinds = [
            changed(),
            RunnerErrorKind::PinnedAgent { digest: "abc".to_owned(), source: Arc::new("it is gone".into()) },
            RunnerErrorKind::Pending { pending: vec!["c1".to_owned()], is_accepted: false, outcome: None },
            RunnerErrorKind::EarlierCannotBegin {
                earlier: InvocationId::new("m1").unwrap(),
                is_accepted: true,
                source: Arc::new(error(changed())),
            },
        ];
        for kind in kinds {
            let detail = Problem::from(error(kind)).detail().to_owned();
            assert!(!detail.contains("()`") && detail.contains(" …/"), "{detail}");
        }
    }
}
