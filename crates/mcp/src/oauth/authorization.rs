//! The authorization at one server: adds its token to requests, and lets the user sign in when the server requires it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::Url;
use rmcp::service::ServiceError;
use rmcp::transport::auth::{
    AuthClient, AuthError, AuthorizationManager, AuthorizationMetadata, AuthorizationRequest,
    AuthorizationSession, OAuthClientConfig, OAuthHttpClient, OAuthHttpClientError, OAuthHttpClientFuture,
    OAuthHttpRequest, WWWAuthenticateParams,
};
use stepfold_state_core::ErrorChain;

use super::credentials::{OAuthCredentials, SdkCredentialStore};
use super::sign_in::query;
use super::{OAuth, SignIn};
use crate::http::{self, AuthorizationDenied};

/// The name of this program at an authorization server.
const CLIENT_NAME: &str = "stepfold";

/// The longest response of an authorization server.
const RESPONSE_BYTES: usize = 1024 * 1024;

/// The timeout of a response of an authorization server.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// An HTTP client that sends the token.
pub(crate) type AuthorizedClient = AuthClient<reqwest::Client>;

/// The authorization at one server, shared by all connections to it.
pub(crate) struct ServerAuthorization {
    oauth: OAuth,
    url: String,
    /// Shared by all connections, so that a sign-in applies to open ones.
    client: tokio::sync::Mutex<Option<AuthorizedClient>>,
    /// Held while a user signs in.
    sign_in_lock: tokio::sync::Mutex<()>,
    sign_ins: AtomicU64,
}

impl ServerAuthorization {
    pub(crate) fn new(oauth: OAuth, url: String) -> Self {
        ServerAuthorization {
            oauth,
            url,
            client: tokio::sync::Mutex::default(),
            sign_in_lock: tokio::sync::Mutex::default(),
            sign_ins: AtomicU64::new(0),
        }
    }

    /// The number of sign-ins, to tell whether a request was sent before the last one.
    pub(crate) fn sign_ins(&self) -> u64 {
        self.sign_ins.load(Ordering::Acquire)
    }

    /// Returns a client with the stored credentials. Without credentials it sends none, and the server responds with a
    /// challenge.
    pub(crate) async fn client(&self, http: reqwest::Client) -> Result<AuthorizedClient, String> {
        let manager = Box::pin(self.stored_manager(&http)).await.map_err(|error| self.error_text(&error))?;
        Ok(self.replace_manager(manager, http).await)
    }

    /// Reloads the stored credentials, which another process may have changed.
    pub(crate) async fn reload(&self) -> Result<(), String> {
        self.client(http::client(RESPONSE_TIMEOUT)?).await.map(drop)
    }

    /// Lets the user sign in for a challenge, unless a user did since the request was sent.
    pub(crate) async fn authorize(
        &self,
        challenge: &str,
        sign_ins_before: u64,
    ) -> Result<(), AuthorizationDenied> {
        let _asking = self.sign_in_lock.lock().await;
        // NOTE: Concurrent requests fail together: one sign-in serves all of them.
        if self.sign_ins() != sign_ins_before {
            return Ok(());
        }
        if let Some(sign_in) = &self.oauth.sign_in {
            return Box::pin(self.run_sign_in(sign_in, Some(challenge)))
                .await
                .map_err(AuthorizationDenied::Failed);
        }
        let scope = self.challenged_scopes(challenge).join(" ");
        let scope = if scope.is_empty() { String::new() } else { format!(" with scope `{scope}`") };
        Err(AuthorizationDenied::NoUserToAsk(format!("not signed in{scope}; {}", self.oauth.advice)))
    }

    /// Lets the user sign in, even if credentials are stored.
    pub(crate) async fn sign_in(&self, sign_in: &SignIn) -> Result<(), String> {
        let _asking = self.sign_in_lock.lock().await;
        Box::pin(self.run_sign_in(sign_in, None)).await
    }

    /// Forgets the credentials.
    pub(crate) async fn sign_out(&self) -> Result<(), String> {
        self.oauth.credentials.save(None).map_err(|error| error.to_string())?;
        *self.client.lock().await = None;
        Ok(())
    }

    /// Redacts secrets: texts of servers may repeat them.
    pub(crate) fn redact(&self, text: &str) -> String {
        let known = self.oauth.credentials.load().ok().flatten();
        let mut redact = text.to_owned();
        let configured = self.oauth.client.iter().filter_map(|(_, secret)| secret.as_deref());
        for secret in known.iter().flat_map(OAuthCredentials::secrets).chain(configured) {
            if !secret.is_empty() {
                redact = redact.replace(secret, "[secret]");
            }
        }
        redact
    }

    fn error_text(&self, error: &AuthError) -> String {
        let advice = match error {
            AuthError::TokenRefreshFailed(_) => "; try again, or sign in again",
            _ => "",
        };
        self.redact(&format!("{}{advice}", ErrorChain(error)))
    }

    async fn replace_manager(
        &self,
        manager: AuthorizationManager,
        http: reqwest::Client,
    ) -> AuthorizedClient {
        let mut client = self.client.lock().await;
        if let Some(known) = &*client {
            *known.auth_manager.lock().await = manager;
            return known.clone();
        }
        client.insert(AuthClient::new(http, manager)).clone()
    }

    fn credential_store(&self, client_secret: Option<String>) -> SdkCredentialStore {
        SdkCredentialStore { store: Arc::clone(&self.oauth.credentials), client_secret }
    }

    async fn manager(&self, http: &reqwest::Client) -> Result<AuthorizationManager, AuthError> {
        let http = Arc::new(AuthorizationHttp(http.clone()));
        AuthorizationManager::new_with_oauth_http_client(&*self.url, http).await
    }

    async fn stored_manager(&self, http: &reqwest::Client) -> Result<AuthorizationManager, AuthError> {
        let mut manager = self.manager(http).await?;
        let known = self.oauth.credentials.load();
        let known = known.map_err(|error| AuthError::CredentialStoreError(error.to_string()))?;
        let secret = known.and_then(|known| known.client_secret);
        manager.set_credential_store(self.credential_store(secret.clone()));
        if manager.initialize_from_store().await?
            && let Some(secret) = secret
        {
            let (id, _) = manager.get_credentials().await?;
            // NOTE: The redirect address is unused by a refresh.
            manager.configure_client(OAuthClientConfig::new(id, &*self.url).with_client_secret(secret))?;
        }
        Ok(manager)
    }

    async fn run_sign_in(&self, sign_in: &SignIn, challenge: Option<&str>) -> Result<(), String> {
        let failed = |error: AuthError| format!("the sign-in failed: {}", self.error_text(&error));
        let http = http::client(RESPONSE_TIMEOUT)?;
        let visit = sign_in.begin().await?;
        let mut manager = self.manager(&http).await.map_err(failed)?;
        let resolved = manager.resolve_metadata_from_challenge(challenge).await.map_err(failed)?;
        self.check(&resolved.metadata)?;
        manager.set_metadata(resolved.metadata.clone());
        let scopes = self.scopes(&manager, challenge).await?;
        let client = self.identify(&mut manager, &resolved.metadata, &visit.redirect, &scopes).await;
        let (id, secret) = client.map_err(failed)?;
        manager.set_credential_store(self.credential_store(secret.clone()));
        let mut request = AuthorizationRequest::new(&*visit.redirect)
            .with_preregistered_client(id)
            .with_initial_scope_selection()
            .with_scopes(scopes);
        if let Some(secret) = secret {
            request = request.with_client_secret(secret);
        }
        let session =
            AuthorizationSession::new(manager, request).await.map_err(|(_, error)| failed(error))?;
        let page = session.get_authorization_url().to_owned();
        let back = visit.finish(page.clone()).await?;
        check_redirect(&page, &back).map_err(|reason| format!("the sign-in failed: {reason}"))?;
        session.handle_callback_url(&back).await.map_err(failed)?;
        self.replace_manager(session.auth_manager, http).await;
        self.sign_ins.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Requires TLS for the page and for tokens, unless the user's own URL has none.
    fn check(&self, metadata: &AuthorizationMetadata) -> Result<(), String> {
        let is_plain = self.url.starts_with("http://");
        // NOTE: The metadata comes from the server, and a page over plain HTTP could be from anyone on the network.
        for endpoint in [&metadata.authorization_endpoint, &metadata.token_endpoint] {
            let scheme = Url::parse(endpoint).ok().map(|url| url.scheme().to_owned());
            let is_safe = match scheme.as_deref() {
                Some("https") => true,
                Some("http") => is_plain,
                _ => false,
            };
            if !is_safe {
                return Err(format!(
                    "invalid address of the authorization server `{endpoint}`: must begin with https://"
                ));
            }
        }
        Ok(())
    }

    /// The scopes that a challenge names.
    fn challenged_scopes(&self, challenge: &str) -> Vec<String> {
        let scope =
            Url::parse(&self.url).ok().and_then(|url| WWWAuthenticateParams::parse(challenge, &url).scope);
        scope.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the scopes to request: those granted before, those set, and those that the server requires now.
    async fn scopes(
        &self,
        manager: &AuthorizationManager,
        challenge: Option<&str>,
    ) -> Result<Vec<String>, String> {
        let known = self.oauth.credentials.load().map_err(|error| error.to_string())?;
        let mut scopes = known.map(|known| known.scopes).unwrap_or_default();
        scopes.extend(self.oauth.scopes.iter().cloned());
        match challenge.map(|challenge| self.challenged_scopes(challenge)) {
            Some(challenged_scopes) if !challenged_scopes.is_empty() => scopes.extend(challenged_scopes),
            _ if self.oauth.scopes.is_empty() => scopes.extend(manager.select_initial_scopes(&[]).await),
            _ => {}
        }
        let mut sign_ins_before = std::collections::HashSet::new();
        scopes.retain(|scope| sign_ins_before.insert(scope.clone()));
        Ok(scopes)
    }

    /// Returns the id and the secret of the client: as configured, the URL of its document, or registered now.
    async fn identify(
        &self,
        manager: &mut AuthorizationManager,
        metadata: &AuthorizationMetadata,
        redirect: &str,
        scopes: &[String],
    ) -> Result<(String, Option<String>), AuthError> {
        if let Some(client) = &self.oauth.client {
            return Ok(client.clone());
        }
        let takes_documents = metadata.additional_fields.get("client_id_metadata_document_supported");
        if let Some(url) = &self.oauth.metadata_url
            && takes_documents.and_then(serde_json::Value::as_bool) == Some(true)
        {
            // NOTE: A document needs no registration, and no secret.
            return Ok((url.clone(), None));
        }
        let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let client = manager.register_client(CLIENT_NAME, redirect, &scopes).await?;
        Ok((client.client_id, client.client_secret))
    }
}

/// Checks that a redirect belongs to the page, and has no error.
fn check_redirect(page: &str, back: &str) -> Result<(), String> {
    if query(page, "state") != query(back, "state") {
        return Err("the `state` of the redirect is not that of the request; try again".to_owned());
    }
    match query(back, "error") {
        Some(error) => {
            let described = query(back, "error_description");
            let described = described.map(|words| format!(": {words}")).unwrap_or_default();
            Err(format!("the authorization server refused it with `{error}`{described}"))
        }
        None => Ok(()),
    }
}

/// Returns the error of a request that was not sent, or refused before any effect, for lack of a usable token.
pub(crate) fn not_sent(error: &ServiceError) -> Option<&AuthError> {
    let ServiceError::TransportSend(error) = error else { return None };
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error.error.as_ref());
    while let Some(current) = source {
        if let Some(error) = current.downcast_ref::<AuthError>() {
            return Some(error);
        }
        source = current.source();
    }
    None
}

/// The HTTP client for authorization servers. It never follows redirects: a body may hold a secret.
struct AuthorizationHttp(reqwest::Client);

impl OAuthHttpClient for AuthorizationHttp {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let mut sent = reqwest::Request::try_from(request.request)?;
            *sent.timeout_mut() = Some(request.timeout.unwrap_or(RESPONSE_TIMEOUT));
            let mut response = self.0.execute(sent).await?;
            let mut received = ::http::Response::builder().status(response.status());
            for (name, value) in response.headers() {
                received = received.header(name, value);
            }
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await? {
                if body.len() + chunk.len() > RESPONSE_BYTES {
                    let error_text = format!("the response has more than {RESPONSE_BYTES} bytes");
                    return Err(OAuthHttpClientError::from(error_text));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(received.body(body)?)
        })
    }
}
