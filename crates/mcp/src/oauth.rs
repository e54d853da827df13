//! OAuth for servers at a URL: the user visits a page, and comes back with a code.
//!
//! What the protocol asks for (metadata, registration, PKCE, refreshing) is the SDK's. The program shows the page, and may keep
//! the credentials.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::transport::auth::{
    AuthClient, AuthError, AuthorizationManager, AuthorizationRequest, CredentialStore, OAuthState,
    StoredCredentials,
};
use serde_json::Value;

type Visiting = Pin<Box<dyn Future<Output = Option<String>> + Send>>;
type Visit = dyn Fn(String) -> Visiting + Send + Sync;
type Keep = dyn Fn(Option<Value>) + Send + Sync;

/// How the user authorizes this program at a server, by OAuth 2.1.
///
/// # Examples
/// ```
/// use stepfold_mcp::{OAuth, Server};
///
/// # fn listen_for_the_redirect() -> Option<String> { None }
/// let oauth = OAuth::new("http://127.0.0.1:7777/callback", |page| async move {
///     println!("please visit {page}");
///     // The address that the browser was sent back to; none if the user does not want to.
///     listen_for_the_redirect()
/// });
/// let server = Server::http("search", "https://mcp.example.com/mcp").oauth(oauth.scopes(["search"])).build()?;
/// # Ok::<(), stepfold_mcp::McpError>(())
/// ```
#[derive(Clone)]
pub struct OAuth {
    redirect: String,
    visit: Arc<Visit>,
    client: Option<(String, Option<String>)>,
    metadata_url: Option<String>,
    scopes: Vec<String>,
    known: Option<Value>,
    keep: Option<Arc<Keep>>,
}

impl OAuth {
    /// Creates an authorization whose pages the program shows. `redirect` is where the browser is sent back to; `visit` gets the
    /// page and gives the whole address of the way back, or none.
    pub fn new<F, Fut>(redirect: impl Into<String>, visit: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<String>> + Send + 'static,
    {
        OAuth {
            redirect: redirect.into(),
            visit: Arc::new(move |page| Box::pin(visit(page))),
            client: None,
            metadata_url: None,
            scopes: Vec::new(),
            known: None,
            keep: None,
        }
    }

    /// Sets a client that is registered at the authorization server, with its secret if it has one. Without it the program
    /// registers itself.
    #[must_use]
    pub fn client(mut self, id: impl Into<String>, secret: Option<String>) -> Self {
        self.client = Some((id.into(), secret));
        self
    }

    /// Sets the URL of a document that describes the program, for authorization servers that take one as the client's id.
    #[must_use]
    pub fn client_metadata_url(mut self, url: impl Into<String>) -> Self {
        self.metadata_url = Some(url.into());
        self
    }

    /// Sets the scopes to ask for; by default those that the server names.
    #[must_use]
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.scopes = scopes.into_iter().map(Into::into).collect();
        self
    }

    /// Keeps the credentials from one process to the next: `known` is what `keep` was given last: `None` when they are
    /// to be forgotten. They are secrets.
    #[must_use]
    pub fn kept(
        mut self,
        known: Option<Value>,
        keep: impl Fn(Option<Value>) + Send + Sync + 'static,
    ) -> Self {
        self.known = known;
        self.keep = Some(Arc::new(keep));
        self
    }

    fn store(&self) -> Store {
        let known = self.known.clone().and_then(|known| serde_json::from_value(known).ok());
        Store { known: Arc::new(Mutex::new(known)), keep: self.keep.clone() }
    }

    fn request(&self, challenge: &str) -> AuthorizationRequest {
        let mut request = AuthorizationRequest::new(&*self.redirect)
            .with_client_name("stepfold")
            .with_scopes(self.scopes.clone())
            .with_challenge(challenge);
        if let Some((id, secret)) = &self.client {
            request = request.with_preregistered_client(id);
            if let Some(secret) = secret {
                request = request.with_client_secret(secret);
            }
        }
        match &self.metadata_url {
            Some(url) => request.with_client_metadata_url(url),
            None => request,
        }
    }
}

/// The authorization at one server, shared by all connections to it.
#[derive(Clone)]
pub(crate) struct Authorization {
    oauth: OAuth,
    url: String,
    store: Store,
}

pub(crate) type Client = AuthClient<reqwest::Client>;

impl Authorization {
    pub(crate) fn new(oauth: OAuth, url: String) -> Self {
        let store = oauth.store();
        Authorization { oauth, url, store }
    }

    /// A client with the credentials that there are. Without any it asks without, and the server says what it wants.
    pub(crate) async fn client(&self, http: reqwest::Client) -> Result<Client, AuthError> {
        let mut manager = AuthorizationManager::new(&*self.url).await?;
        manager.set_credential_store(self.store.clone());
        if self.store.is_there() {
            manager.initialize_from_store().await?;
        }
        Ok(AuthClient::new(http, manager))
    }

    /// Has the user authorize what a server has asked for.
    pub(crate) async fn authorize(&self, challenge: &str, http: reqwest::Client) -> Result<Client, String> {
        let failed = |error: AuthError| format!("authorization failed: {error}");
        let mut state = OAuthState::new(&*self.url, None).await.map_err(failed)?;
        if let OAuthState::Unauthorized(manager) = &mut state {
            manager.set_credential_store(self.store.clone());
        }
        state.start_authorization(self.oauth.request(challenge)).await.map_err(failed)?;
        let page = state.get_authorization_url().await.map_err(failed)?;
        let back = (self.oauth.visit)(page).await;
        let back = back.ok_or_else(|| "authorization failed: the user did not come back".to_owned())?;
        state.handle_callback_url(&back).await.map_err(failed)?;
        let manager = state.into_authorization_manager();
        let manager = manager.ok_or_else(|| "authorization failed: there is no token".to_owned())?;
        Ok(AuthClient::new(http, manager))
    }
}

/// Credentials in memory, and where the program keeps them.
#[derive(Clone)]
struct Store {
    known: Arc<Mutex<Option<StoredCredentials>>>,
    keep: Option<Arc<Keep>>,
}

impl Store {
    fn is_there(&self) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn set(&self, credentials: Option<StoredCredentials>) {
        if let Some(keep) = &self.keep {
            keep(credentials.as_ref().and_then(|known| serde_json::to_value(known).ok()));
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = credentials;
    }
}

#[async_trait::async_trait]
impl CredentialStore for Store {
    async fn load(&self) -> Result<Option<StoredCredentials>, AuthError> {
        Ok(self.known.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn save(&self, credentials: StoredCredentials) -> Result<(), AuthError> {
        self.set(Some(credentials));
        Ok(())
    }

    async fn clear(&self) -> Result<(), AuthError> {
        self.set(None);
        Ok(())
    }
}
