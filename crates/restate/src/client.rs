//! Requests to sessions, through the ingress of Restate.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use restate_sdk::ingress::{self, RequestExecutor, RequestTarget, SendStatus};
use restate_sdk::serde::Json;
use rustls_platform_verifier::BuilderVerifierExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stepfold_agent_loop::{Decisions, Input};
use stepfold_session_scopes::{AppId, SessionId, SessionKey, UserId};

use crate::error::RestateError;
use crate::key::object_key;
use crate::limits::RemoteReport;
use crate::wire::{DecideRequest, OBJECT, PendingRequests, TurnRequest, check_size};

/// Sends requests to sessions that [workers](crate::RestateWorker) serve, through the ingress of a Restate server of
/// version 1.7 or newer. Cloning is cheap.
///
/// Any client of HTTP can do the same: see the crate's first page.
#[derive(Clone)]
pub struct RestateClient {
    http: ingress::Client<IngressTransport>,
    app: AppId,
}

impl RestateClient {
    /// A client of the server at a URL, for the sessions of an application: that of the workers'
    /// [runner](stepfold_runner::RunnerBuilder::app), by default the name of its agent. Nothing is sent yet.
    ///
    /// # Errors
    /// [`RestateError::Address`] for a URL without `http://` or `https://` and a host, or with a query;
    /// [`RestateError::Id`].
    ///
    /// # Examples
    /// ```
    /// use stepfold_restate::RestateClient;
    ///
    /// let client = RestateClient::connect("http://127.0.0.1:8080", "clerk")?;
    /// let session = client.session("ada", "s1")?;
    /// assert!(RestateClient::connect("127.0.0.1:8080", "clerk").is_err());
    /// # Ok::<(), stepfold_restate::RestateError>(())
    /// ```
    pub fn connect(url: &str, app: impl Into<Arc<str>>) -> Result<Self, RestateError> {
        let app = AppId::new(app)?;
        let invalid = |reason: String| RestateError::Address { url: url.to_owned(), reason };
        let uri = url.parse::<Uri>().map_err(|error| invalid(error.to_string()))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(invalid("must begin with http:// or https://".to_owned()));
        }
        let http = ingress::Client::new(uri, transport()?).map_err(|error| invalid(error.to_string()))?;
        Ok(RestateClient { http, app })
    }

    /// Sends a token with each request, as Restate Cloud wants it.
    ///
    /// # Errors
    /// [`RestateError::Token`] for characters that cannot be sent.
    pub fn auth_token(mut self, token: &str) -> Result<Self, RestateError> {
        self.http = self.http.with_restate_auth_token(token).map_err(|_| RestateError::Token)?;
        Ok(self)
    }

    /// A session of a user. Nothing is sent yet.
    ///
    /// # Errors
    /// [`RestateError::Id`].
    pub fn session(
        &self,
        user: impl Into<Arc<str>>,
        id: impl Into<Arc<str>>,
    ) -> Result<RemoteSession, RestateError> {
        let key = SessionKey { app: self.app.clone(), user: UserId::new(user)?, id: SessionId::new(id)? };
        Ok(RemoteSession { client: self.clone(), key })
    }
}

impl fmt::Debug for RestateClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("app", &self.app).finish_non_exhaustive()
    }
}

/// A session that workers serve. See [`RestateClient::session`].
#[derive(Clone, Debug)]
pub struct RemoteSession {
    client: RestateClient,
    key: SessionKey,
}

impl RemoteSession {
    /// The address of the session.
    pub fn key(&self) -> &SessionKey {
        &self.key
    }

    /// Runs a turn under an idempotency key, and waits for its end, or until it waits for decisions. May be called any
    /// number of times with the same key, also after an error: see [`run_as`](stepfold_runner::SessionHandle::run_as).
    ///
    /// # Errors
    /// [`RestateError::Refused`] with status 409 while an earlier run waits for decisions: the message is stored, and comes
    /// after that run. [`RestateError::TooLarge`] for more than [`MAX_REQUEST_BYTES`](crate::MAX_REQUEST_BYTES).
    pub async fn run_as(
        &self,
        idempotency_key: impl Into<String>,
        input: impl Into<Input>,
    ) -> Result<RemoteReport, RestateError> {
        Ok(self.turn(idempotency_key.into(), input.into())?.call().await?.into_body()?.0)
    }

    /// Sends a turn, and returns when the server has stored it; workers run it even if the sender disconnects.
    /// Returns whether it is new: false if a request with this key is running.
    ///
    /// # Errors
    /// As [`run_as`](RemoteSession::run_as), but for what the run finds.
    pub async fn send(
        &self,
        idempotency_key: impl Into<String>,
        input: impl Into<Input>,
    ) -> Result<bool, RestateError> {
        let sent = self.turn(idempotency_key.into(), input.into())?.send().await?;
        Ok(sent.send_status() == SendStatus::Accepted)
    }

    /// Decides about requests of a run, by the idempotency key of its input, and waits as
    /// [`run_as`](RemoteSession::run_as) does. The same decisions again are a repeat.
    ///
    /// # Errors
    /// [`RestateError::Refused`] for decisions that do not fit.
    pub async fn decide(
        &self,
        run: impl Into<String>,
        decisions: impl Into<Decisions>,
    ) -> Result<RemoteReport, RestateError> {
        let body = DecideRequest { run: run.into(), decisions: decisions.into() };
        Ok(self.request::<_, RemoteReport>("decide", body)?.call().await?.into_body()?.0)
    }

    /// Sends decisions, and returns when the server has stored them; workers take them whatever happens to the sender, and
    /// also if none is alive now. Decisions that do not fit are refused there, which the sender does not hear.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn send_decisions(
        &self,
        run: impl Into<String>,
        decisions: impl Into<Decisions>,
    ) -> Result<(), RestateError> {
        let body = DecideRequest { run: run.into(), decisions: decisions.into() };
        self.request::<_, RemoteReport>("decide", body)?.send().await?;
        Ok(())
    }

    /// The requests that the session waits for.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn pending(&self) -> Result<PendingRequests, RestateError> {
        let request = self.client.http.request::<(), Json<PendingRequests>>(self.target("pending"), ());
        Ok(request.call().await?.into_body()?.0)
    }

    /// Cancels the run of the session, on whichever worker it is running, or if it waits or was interrupted. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn cancel(&self) -> Result<bool, RestateError> {
        let request = self.client.http.request::<(), Json<bool>>(self.target("cancel"), ());
        Ok(request.call().await?.into_body()?.0)
    }

    fn target(&self, handler: &str) -> RequestTarget {
        RequestTarget::object(OBJECT, object_key(&self.key), handler)
    }

    /// A request that joins one that is running under the same key.
    fn turn(
        &self,
        key: String,
        input: Input,
    ) -> Result<JsonRequest<TurnRequest, RemoteReport>, RestateError> {
        let body = TurnRequest { idempotency_key: Some(key.clone()), input };
        Ok(self.request("run", body)?.idempotency_key(key))
    }

    fn request<B: Serialize, R: DeserializeOwned>(
        &self,
        handler: &str,
        body: B,
    ) -> Result<JsonRequest<B, R>, RestateError> {
        let json = serde_json::to_vec(&body).map_err(|error| RestateError::Request(error.to_string()))?;
        check_size(json.len()).map_err(RestateError::TooLarge)?;
        Ok(self.client.http.request(self.target(handler), Json(body)))
    }
}

type JsonRequest<B, R> = ingress::Request<IngressTransport, Json<B>, Json<R>>;

/// The transport.
#[derive(Clone)]
struct IngressTransport(reqwest::Client);

impl RequestExecutor for IngressTransport {
    type Error = reqwest::Error;

    async fn execute(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, reqwest::Error> {
        let mut response = self.0.execute(request.try_into()?).await?;
        let mut answer = http::Response::new(Bytes::new());
        *answer.status_mut() = response.status();
        *answer.headers_mut() = std::mem::take(response.headers_mut());
        *answer.body_mut() = response.bytes().await?;
        Ok(answer)
    }
}

/// A client without a time limit for replies: a run may take hours.
fn transport() -> Result<IngressTransport, RestateError> {
    let failed = |error: &dyn fmt::Display| RestateError::Setup(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(rustls::ConfigBuilder::with_platform_verifier)
        .map_err(|error| failed(&error))?
        .with_no_client_auth();
    let client = reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(10))
        .tcp_nodelay(true)
        // NOTE: a redirect would send the token to another host.
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("stepfold/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(tls)
        .build();
    client.map(IngressTransport).map_err(|error| failed(&error))
}
