//! Authentication: the principals that send requests, their roles, and their tokens.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use futures_util::future::BoxFuture;
use http::HeaderMap;
use sha2::{Digest as _, Sha256};
use stepfold_session_scopes::UserId;
use subtle::ConstantTimeEq as _;
use thiserror::Error;

/// The beginning of each token, by which scanners of secrets find one.
const PREFIX: &str = "stepfold_";

/// The rights of a principal. Each role has the rights of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Reads its own sessions.
    Read,
    /// Sends messages, decides about requests, cancels, forks and rewinds, in its own sessions.
    Act,
    /// Reads and raises the budgets of all users.
    RaiseBudgets,
    /// Deletes sessions, writes values that users share (`app:`), imports runs that have not ended, and reads metrics.
    Administer,
}

impl Role {
    /// The name of the role, as in a file of tokens.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Act => "act",
            Role::RaiseBudgets => "raise_budgets",
            Role::Administer => "administer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = TokensError;

    fn from_str(text: &str) -> Result<Self, TokensError> {
        let roles = [Role::Read, Role::Act, Role::RaiseBudgets, Role::Administer];
        let found = roles.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| TokensError::UnknownRole { role: text.to_owned() })
    }
}

/// An authenticated sender of requests.
///
/// Its user is the tenant: it cannot see other users' sessions. Its name is recorded as the author of decisions.
///
/// # Examples
/// ```
/// use stepfold_server::http::{Principal, Role};
///
/// let principal = Principal::new("ada", Role::Act)?.named("ada@laptop");
/// assert_eq!((principal.user().as_str(), principal.name()), ("ada", "ada@laptop"));
/// assert!(principal.may(Role::Read) && !principal.may(Role::Administer));
/// # Ok::<(), stepfold_session_scopes::SessionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    user: UserId,
    name: Arc<str>,
    role: Role,
}

impl Principal {
    /// A principal of this user, with the user's name.
    ///
    /// # Errors
    /// [`SessionError::InvalidId`](stepfold_session_scopes::SessionError::InvalidId).
    pub fn new(user: impl Into<Arc<str>>, role: Role) -> Result<Self, stepfold_session_scopes::SessionError> {
        let user = UserId::new(user)?;
        Ok(Principal { name: user.as_str().into(), user, role })
    }

    /// Sets the name that is recorded as the author of decisions.
    #[must_use]
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// The user whose sessions it works in.
    pub fn user(&self) -> &UserId {
        &self.user
    }

    /// The author of its decisions.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether its role has the rights of this one.
    pub fn may(&self, role: Role) -> bool {
        self.role >= role
    }
}

/// The credentials of a request.
#[derive(Debug)]
pub struct Credentials<'a> {
    token: Option<&'a str>,
    headers: &'a HeaderMap,
}

impl<'a> Credentials<'a> {
    pub(in crate::http) fn new(token: Option<&'a str>, headers: &'a HeaderMap) -> Self {
        Credentials { token, headers }
    }

    /// The bearer token: of the header `Authorization`, or of the cookie that [`/api/v1/login`](crate::http) sets.
    pub fn token(&self) -> Option<&'a str> {
        self.token
    }

    /// A header, such as one that a reverse proxy sets after it has authenticated the user. The proxy must remove it from
    /// requests of clients.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Authenticates the senders of requests.
///
/// An application implements it for its identity provider (OIDC, a session of its own, a header of a reverse proxy); the
/// server calls it once for each request, after the rules about hosts and origins.
///
/// # Examples
/// ```
/// use futures_util::future::BoxFuture;
/// use stepfold_server::http::{AuthError, Authenticate, Credentials, Principal, Role};
///
/// /// The proxy in front authenticates, and is the only one that reaches the server.
/// struct Proxied;
///
/// impl Authenticate for Proxied {
///     fn authenticate<'a>(
///         &'a self,
///         credentials: &'a Credentials<'a>,
///     ) -> BoxFuture<'a, Result<Option<Principal>, AuthError>> {
///         let principal = credentials
///             .header("x-forwarded-user")
///             .and_then(|user| Principal::new(user, Role::Act).ok());
///         Box::pin(async move { Ok(principal) })
///     }
/// }
/// ```
pub trait Authenticate: Send + Sync + 'static {
    /// The principal, or `None` if the credentials are missing or wrong.
    fn authenticate<'a>(
        &'a self,
        credentials: &'a Credentials<'a>,
    ) -> BoxFuture<'a, Result<Option<Principal>, AuthError>>;
}

/// Why no request can be authenticated at the moment: the identity provider does not answer, for example.
#[derive(Debug, Error)]
#[error("authentication unavailable: {reason}")]
pub struct AuthError {
    reason: String,
}

impl AuthError {
    /// For this reason, which is logged and not sent.
    pub fn new(reason: impl Into<String>) -> Self {
        AuthError { reason: reason.into() }
    }
}

/// A secret that names a principal: 256 random bits.
///
/// Its `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A new one, from the system's random numbers.
    ///
    /// # Errors
    /// [`TokensError::Random`] when the system has none.
    #[expect(clippy::disallowed_methods, reason = "a secret must not come from a seed")]
    pub fn random() -> Result<Self, TokensError> {
        let mut bytes = [0_u8; 32];
        getrandom::fill(&mut bytes).map_err(|error| TokensError::Random { reason: error.to_string() })?;
        Ok(Token(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))))
    }

    /// The text, for its holder.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// The line of a file of [`Tokens`] for this token: only its hash is in it.
    pub fn line(&self, user: &str, role: Role) -> String {
        format!("sha256:{} {user} {role}", HEXLOWER.encode(&hash(&self.0)))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Tokens and their principals. Only hashes are kept; they are compared in constant time.
///
/// In a file, each line is `sha256:HEX USER ROLE`, and optionally the name that is recorded for decisions. Empty lines and
/// those that begin with `#` are skipped. A token has 256 random bits, so that a plain hash cannot be reversed.
///
/// # Examples
/// ```
/// use stepfold_server::http::{Role, Token, Tokens};
///
/// let token = Token::random()?;
/// let file = format!("# Ada's laptop\n{} ada@laptop\n", token.line("ada", Role::Act));
/// assert!(!file.contains(token.secret()));
/// let tokens = Tokens::parse(&file)?;
/// assert_eq!(tokens.find(token.secret()).expect("it is there").name(), "ada@laptop");
/// assert!(tokens.find("guessed").is_none());
/// # Ok::<(), stepfold_server::http::TokensError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tokens(Vec<TokenEntry>);

#[derive(Clone, Debug)]
struct TokenEntry {
    hash: [u8; 32],
    principal: Principal,
}

impl Tokens {
    /// No tokens.
    pub fn new() -> Self {
        Tokens::default()
    }

    /// Adds a token.
    #[must_use]
    pub fn with(mut self, token: &Token, principal: Principal) -> Self {
        self.0.push(TokenEntry { hash: hash(&token.0), principal });
        self
    }

    /// Reads a file of tokens.
    ///
    /// # Errors
    /// [`TokensError`], with the number of the line.
    pub fn parse(text: &str) -> Result<Self, TokensError> {
        let mut known = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if !text.is_empty() && !text.starts_with('#') {
                let at = |error: TokensError| TokensError::Line { line, source: Box::new(error) };
                known.push(TokenEntry::parse(text).map_err(at)?);
            }
        }
        Ok(Tokens(known))
    }

    /// Returns whether there are no tokens: such a server refuses everyone.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The principal of a token. It takes the same time wherever a token stands.
    pub fn find(&self, token: &str) -> Option<&Principal> {
        let hash = hash(token);
        let mut found = None;
        // NOTE: All entries are compared, also after the match: the time tells nothing about the place of a token.
        for known in &self.0 {
            if bool::from(known.hash.ct_eq(&hash)) {
                found = Some(&known.principal);
            }
        }
        found
    }
}

impl TokenEntry {
    fn parse(text: &str) -> Result<Self, TokensError> {
        let mut words = text.splitn(4, char::is_whitespace).map(str::trim);
        let (Some(hash), Some(user), Some(role)) = (words.next(), words.next(), words.next()) else {
            return Err(TokensError::Form);
        };
        let hash = hash.strip_prefix("sha256:").and_then(digest).ok_or(TokensError::Form)?;
        let principal = Principal::new(user, role.parse()?)
            .map_err(|error| TokensError::User { reason: error.to_string() })?;
        Ok(TokenEntry {
            hash,
            principal: match words.next() {
                Some(name) => principal.named(name),
                None => principal,
            },
        })
    }
}

impl Authenticate for Tokens {
    fn authenticate<'a>(
        &'a self,
        credentials: &'a Credentials<'a>,
    ) -> BoxFuture<'a, Result<Option<Principal>, AuthError>> {
        let found = credentials.token().and_then(|token| self.find(token)).cloned();
        Box::pin(async move { Ok(found) })
    }
}

/// An error of a file of tokens.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokensError {
    /// A line is invalid.
    #[error("invalid token on line {line}: {source}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The fault.
        r#source: Box<TokensError>,
    },
    /// A line does not have the form.
    #[error("expected `sha256:HEX USER ROLE`; `stepfold token` prints such a line")]
    Form,
    /// The role is unknown.
    #[error("unknown role `{role}`; available: read, act, raise_budgets, administer")]
    UnknownRole {
        /// The role.
        role: String,
    },
    /// The user's id is invalid.
    #[error("{reason}")]
    User {
        /// The reason.
        reason: String,
    },
    /// The system has no random numbers.
    #[error("no random numbers: {reason}")]
    Random {
        /// The reason.
        reason: String,
    },
}

// NOTE: A plain hash suffices: a token has 256 random bits, too many to search, and a slow hash would cost each request
// (docs/decisions/server.md).
fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// A SHA-256 from its hexadecimal digits.
fn digest(text: &str) -> Option<[u8; 32]> {
    HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_wrong_are_named() {
        let hash = "0".repeat(64);
        let error = |text: &str| Tokens::parse(text).unwrap_err().to_string();
        assert_eq!(
            error(&format!("\nsha256:{hash} ada boss")),
            "invalid token on line 2: unknown role `boss`; available: read, act, raise_budgets, administer"
        );
        for line in [
            "secret ada read",
            "sha256:00 ada read",
            "sha256:zz",
            &format!("sha256:{} ada read", "+0".repeat(32)),
            "ada",
        ] {
            assert!(error(line).contains("line 1: expected `sha256:HEX USER ROLE`"), "{line}");
        }
        assert!(error(&format!("sha256:{hash} a\u{7}b read")).contains("line 1"), "an id of a user");
    }

    #[test]
    fn a_token_is_not_shown() {
        let token = Token::random().unwrap();
        assert!(token.secret().len() > 50 && !format!("{token:?}").contains(&token.secret()[9..]));
        assert_ne!(token, Token::random().unwrap());
    }
}
