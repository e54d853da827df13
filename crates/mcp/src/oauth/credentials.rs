//! The credentials from a sign-in, and their stores. Secrets are never shown.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::transport::auth::{
    AuthError, CredentialRefreshGuard, CredentialStore as RmcpCredentialStore, StoredCredentials,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The version of the stored form.
const VERSION: u32 = 1;

type BoxError = Box<dyn Error + Send + Sync>;

/// The tokens of a user at a server, and the client that they were given to. Secrets: the serialised form has all of them.
#[derive(Clone, Serialize, Deserialize)]
pub struct OAuthCredentials {
    version: u32,
    client_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client_secret: Option<String>,
    /// The authorization server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    pub(super) access_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<String>,
    /// In seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_in: Option<u64>,
    /// In seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    received_at: Option<u64>,
    /// The granted scopes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) scopes: Vec<String>,
}

impl OAuthCredentials {
    /// The scopes that were granted.
    pub fn scopes(&self) -> impl Iterator<Item = &str> {
        self.scopes.iter().map(String::as_str)
    }

    /// Converts the credentials of the SDK; `None` if there is no token.
    fn of(stored: &StoredCredentials, client_secret: Option<String>) -> Option<Self> {
        // NOTE: The fields of a token response are private in the SDK; its JSON form is that of RFC 6749.
        let token = serde_json::to_value(stored.token_response.as_ref()?).ok()?;
        let text = |name: &str| token[name].as_str().map(str::to_owned);
        Some(OAuthCredentials {
            version: VERSION,
            client_id: stored.client_id.clone(),
            client_secret,
            issuer: stored.issuer.clone(),
            access_token: text("access_token")?,
            refresh_token: text("refresh_token"),
            expires_in: token["expires_in"].as_u64(),
            received_at: stored.token_received_at,
            scopes: stored.granted_scopes.clone(),
        })
    }

    fn stored(&self) -> Result<StoredCredentials, BoxError> {
        if self.version != VERSION {
            let words = format!("unknown version {} of stored credentials: sign in again", self.version);
            return Err(words.into());
        }
        let mut token = json!({"access_token": self.access_token, "token_type": "bearer"});
        if let Some(refresh_token) = &self.refresh_token {
            token["refresh_token"] = json!(refresh_token);
        }
        if let Some(seconds) = self.expires_in {
            token["expires_in"] = json!(seconds);
        }
        let token = serde_json::from_value(token)?;
        let stored = StoredCredentials::new(
            self.client_id.clone(),
            Some(token),
            self.scopes.clone(),
            self.received_at,
        );
        Ok(stored.with_issuer(self.issuer.clone()))
    }

    /// The secret values, to redact them.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        [Some(&self.access_token), self.refresh_token.as_ref(), self.client_secret.as_ref()]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}

impl fmt::Debug for OAuthCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("client_id", &self.client_id)
            .field("issuer", &self.issuer)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

/// A store of the credentials of a user at one server. Implemented by programs, and called before each request and
/// after each sign-in and refresh.
pub trait CredentialStore: Send + Sync {
    /// The credentials; none before a sign-in.
    ///
    /// # Errors
    /// The credentials cannot be read.
    fn load(&self) -> Result<Option<OAuthCredentials>, Box<dyn Error + Send + Sync>>;

    /// Replaces the stored credentials; `None` deletes them.
    ///
    /// # Errors
    /// The credentials cannot be saved.
    fn save(&self, credentials: Option<&OAuthCredentials>) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Locks the credentials against refreshes by other processes until the result is dropped: most authorization servers
    /// accept a refresh token once. By default there is no lock.
    ///
    /// # Errors
    /// The lock cannot be acquired.
    fn lock(&self) -> Result<Box<dyn Any + Send>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(()))
    }
}

/// Credentials for as long as the process runs.
#[derive(Default)]
pub(super) struct MemoryCredentials(Mutex<Option<OAuthCredentials>>);

impl CredentialStore for MemoryCredentials {
    fn load(&self) -> Result<Option<OAuthCredentials>, BoxError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn save(&self, credentials: Option<&OAuthCredentials>) -> Result<(), BoxError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = credentials.cloned();
        Ok(())
    }
}

/// Credentials in a JSON file that only its owner can read, shared by all processes that name it. Its name with
/// `.lock` is a lock while a token is refreshed.
#[derive(Clone, Debug)]
pub struct CredentialFile {
    path: PathBuf,
}

impl CredentialFile {
    /// Stores credentials at this path. A missing folder is created.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        CredentialFile { path: path.into() }
    }

    /// Stores credentials in a folder, in a file per server.
    pub fn in_folder(folder: impl AsRef<Path>, url: &str) -> Self {
        let host = reqwest::Url::parse(url).ok().and_then(|url| Some(url.host_str()?.to_owned()));
        let host = host.unwrap_or_default().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
        let digest = &blake3::hash(url.as_bytes()).to_hex()[..16];
        CredentialFile::new(folder.as_ref().join(format!("{host}-{digest}.json")))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn sibling(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(ending);
        name.into()
    }

    fn create(&self, ending: &str) -> io::Result<(PathBuf, File)> {
        let path = self.sibling(ending);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        // NOTE: Set when the file is created: a later change would leave a moment for others to read it.
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path)?;
        Ok((path, file))
    }

    fn failed(&self, what: &str, error: &dyn fmt::Display) -> BoxError {
        format!("credentials in {} cannot be {what}: {error}", self.path.display()).into()
    }
}

impl CredentialStore for CredentialFile {
    fn load(&self) -> Result<Option<OAuthCredentials>, BoxError> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("read", &error)),
        };
        // NOTE: The text of a JSON error could contain a secret.
        let read = serde_json::from_slice(&text).map(Some);
        read.map_err(|_| self.failed("read", &"invalid JSON; delete the file and sign in again"))
    }

    fn save(&self, credentials: Option<&OAuthCredentials>) -> Result<(), BoxError> {
        let Some(credentials) = credentials else {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed("deleted", &error)),
                _ => Ok(()),
            };
        };
        let written = || {
            let (path, mut file) = self.create(&format!(".{}", std::process::id()))?;
            file.write_all(&serde_json::to_vec(credentials)?)?;
            file.sync_all()?;
            // NOTE: A rename is atomic: a crash or another process never leaves half a file.
            fs::rename(path, &self.path)
        };
        written().map_err(|error| self.failed("written", &error))
    }

    fn lock(&self) -> Result<Box<dyn Any + Send>, BoxError> {
        let locked = || {
            let (path, file) = self.create(".lock")?;
            wait_for_lock(&file, &path, LOCK_TIMEOUT).map(|()| file)
        };
        Ok(Box::new(locked().map_err(|error| self.failed("locked", &error))?))
    }
}

/// The time for which a process waits for another one that refreshes the token.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// The time between two attempts to get the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Locks a file, and waits for another process, at most so long: a stopped process never lets go of it.
fn wait_for_lock(file: &File, path: &Path, timeout: Duration) -> io::Result<()> {
    let mut waited = Duration::ZERO;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if waited < timeout => {
                std::thread::sleep(LOCK_PAUSE);
                waited += LOCK_PAUSE;
            }
            Err(TryLockError::WouldBlock) => {
                let path = path.display();
                let why =
                    format!("another process holds {path} for longer than {timeout:?}, and may be stopped");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
    }
}

/// The adapter of a store to the trait of the SDK.
pub(super) struct SdkCredentialStore {
    pub(super) store: Arc<dyn CredentialStore>,
    /// Of the client that the tokens are given to.
    pub(super) client_secret: Option<String>,
}

fn unusable(error: &BoxError) -> AuthError {
    AuthError::CredentialStoreError(error.to_string())
}

#[async_trait::async_trait]
impl RmcpCredentialStore for SdkCredentialStore {
    async fn load(&self) -> Result<Option<StoredCredentials>, AuthError> {
        let known = self.store.load().map_err(|error| unusable(&error))?;
        known.map(|known| known.stored().map_err(|error| unusable(&error))).transpose()
    }

    async fn save(&self, credentials: StoredCredentials) -> Result<(), AuthError> {
        let credentials = OAuthCredentials::of(&credentials, self.client_secret.clone());
        self.store.save(credentials.as_ref()).map_err(|error| unusable(&error))
    }

    async fn clear(&self) -> Result<(), AuthError> {
        self.store.save(None).map_err(|error| unusable(&error))
    }

    async fn acquire_refresh_guard(&self) -> Result<Option<CredentialRefreshGuard>, AuthError> {
        let store = Arc::clone(&self.store);
        // NOTE: A file lock blocks its thread until another process has refreshed.
        let lock = tokio::task::spawn_blocking(move || store.lock()).await;
        let lock = lock.map_err(|error| AuthError::CredentialStoreError(error.to_string()))?;
        Ok(Some(CredentialRefreshGuard::new(lock.map_err(|error| unusable(&error))?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is on the disks of users: a change of it is a new version.
    const GOLDEN: &str = include_str!("credentials_v1.json");

    fn credentials() -> OAuthCredentials {
        OAuthCredentials {
            version: VERSION,
            client_id: "client-7".to_owned(),
            client_secret: Some("hush".to_owned()),
            issuer: Some("https://auth.example.com".to_owned()),
            access_token: "access-1".to_owned(),
            refresh_token: Some("refresh-1".to_owned()),
            expires_in: Some(3600),
            received_at: Some(1_767_225_600),
            scopes: vec!["files:read".to_owned(), "files:write".to_owned()],
        }
    }

    #[test]
    fn the_stored_file_is_the_golden_one_and_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = CredentialFile::in_folder(folder.path(), "https://mcp.example.com/v1");
        assert_eq!(file.path().file_name().unwrap(), "mcp-example-com-e60475fc8712b45f.json");
        file.save(Some(&credentials())).unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), GOLDEN.trim_end());

        fs::write(file.path(), GOLDEN).unwrap();
        let read = file.load().unwrap().unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(credentials()).unwrap());
        let stored = read.stored().unwrap();
        let again = OAuthCredentials::of(&stored, read.client_secret.clone()).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), GOLDEN.trim_end());
    }

    #[test]
    fn a_file_with_the_least_that_was_ever_written_is_read() {
        let least = r#"{"version":1,"client_id":"c","access_token":"a"}"#;
        let read: OAuthCredentials = serde_json::from_str(least).unwrap();
        assert!(read.stored().is_ok());
        assert_eq!(serde_json::to_string(&read).unwrap(), least);
    }

    #[test]
    fn a_file_of_a_newer_version_is_refused_with_advice() {
        let newer = GOLDEN.replace("\"version\":1", "\"version\":2");
        let read: OAuthCredentials = serde_json::from_str(&newer).unwrap();
        let error = read.stored().unwrap_err().to_string();
        assert_eq!(error, "unknown version 2 of stored credentials: sign in again");
    }

    #[test]
    fn a_lock_that_is_held_for_ever_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.lock");
        let (held, other) = (File::create(&path).unwrap(), File::create(&path).unwrap());
        let short = Duration::from_millis(30);
        wait_for_lock(&held, &path, short).unwrap();
        let error = wait_for_lock(&other, &path, short).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("tokens.lock for longer than 30ms"), "{error}");
        drop(held);
        wait_for_lock(&other, &path, Duration::ZERO).unwrap();
    }
}
