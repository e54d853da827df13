//! OAuth for servers at a URL: the client, the store of its credentials, and the sign-in of the user.
//!
//! The SDK implements the protocol (metadata of RFC 9728 and RFC 8414, registration, PKCE, refreshing). Requests are sent
//! without a token until the server requires one.

mod authorization;
mod credentials;
mod sign_in;

use std::sync::Arc;

pub(crate) use self::authorization::{ServerAuthorization, not_sent};
use self::credentials::MemoryCredentials;
pub use self::credentials::{CredentialFile, CredentialStore, OAuthCredentials};
pub use self::sign_in::SignIn;

/// The OAuth 2.1 client of a server.
///
/// Without a [`sign_in`](OAuth::sign_in) it uses and refreshes the stored credentials. A start that needs others is an
/// [error](crate::McpError::Unauthorized); a call becomes a question of the run, which waits until a user has
/// [signed in](crate::McpServer::sign_in), in any process.
///
/// # Examples
/// ```
/// use stepfold_mcp::{CredentialFile, OAuth, McpServer, SignIn};
///
/// let oauth = OAuth::new()
///     .scopes(["search"])
///     .credentials(CredentialFile::new("/var/lib/helper/search.json"))
///     .sign_in(SignIn::browser(|page| println!("please visit {page}")));
/// let server = McpServer::http("search", "https://mcp.example.com/mcp").oauth(oauth).build()?;
/// # Ok::<(), stepfold_mcp::McpError>(())
/// ```
#[derive(Clone)]
#[must_use = "it does nothing until a server is given it"]
pub struct OAuth {
    client: Option<(String, Option<String>)>,
    metadata_url: Option<String>,
    scopes: Vec<String>,
    credentials: Arc<dyn CredentialStore>,
    sign_in: Option<SignIn>,
    advice: String,
}

impl Default for OAuth {
    fn default() -> Self {
        OAuth::new()
    }
}

impl OAuth {
    /// Creates an authorization that registers itself, keeps its credentials in memory and asks no user.
    pub fn new() -> Self {
        OAuth {
            client: None,
            metadata_url: None,
            scopes: Vec::new(),
            credentials: Arc::new(MemoryCredentials::default()),
            sign_in: None,
            advice: "sign in with `Server::sign_in`".to_owned(),
        }
    }

    /// Sets a client that is registered at the authorization server, with its secret if it has one. By default the program
    /// registers itself (RFC 7591).
    pub fn client(mut self, id: impl Into<String>, secret: Option<String>) -> Self {
        self.client = Some((id.into(), secret));
        self
    }

    /// Sets the URL of a document that describes the program, for authorization servers that take one as the client's id.
    pub fn client_metadata_url(mut self, url: impl Into<String>) -> Self {
        self.metadata_url = Some(url.into());
        self
    }

    /// Sets the scopes to ask for; by default those that the server names.
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.scopes = scopes.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the store of credentials; memory by default.
    pub fn credentials(mut self, store: impl CredentialStore + 'static) -> Self {
        self.credentials = Arc::new(store);
        self
    }

    /// Lets the user sign in whenever the server requires it: at the start, and during a call that needs more scopes. The
    /// request waits for the sign-in, beyond its timeout.
    pub fn sign_in(mut self, sign_in: SignIn) -> Self {
        self.sign_in = Some(sign_in);
        self
    }

    /// Sets the advice in errors and questions for a user who is not signed in.
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }
}

impl std::fmt::Debug for OAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OAuth").field("scopes", &self.scopes).finish_non_exhaustive()
    }
}
