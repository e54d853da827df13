//! The forks of a session, and labels on its versions.

use crate::error::SessionError;
use crate::ids::{Label, SessionId, SessionKey};
use crate::time::Timestamp;

/// The forks of a session to be listed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListForks {
    /// The session.
    pub key: SessionKey,
}

impl ListForks {
    /// All of the session.
    pub fn new(key: SessionKey) -> Self {
        ListForks { key }
    }
}

/// A session that was made from another one's history: of the same app and user.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForkInfo {
    /// The fork.
    pub id: SessionId,
    /// The version that it begins with.
    pub version: u64,
    /// The time of its creation.
    pub created: Timestamp,
}

impl ForkInfo {
    /// A fork that begins with this version.
    pub const fn new(id: SessionId, version: u64, created: Timestamp) -> Self {
        ForkInfo { id, version, created }
    }
}

/// The labels of a session to be read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReadLabels {
    /// The session.
    pub key: SessionKey,
}

impl ReadLabels {
    /// All of the session.
    pub fn new(key: SessionKey) -> Self {
        ReadLabels { key }
    }
}

/// A label to be given to a version, or taken away.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LabelVersion {
    /// The session.
    pub key: SessionKey,
    /// The label. It names one version of the session; a version may have several.
    pub label: Label,
    /// The version to be labelled; `None` removes the label.
    pub version: Option<u64>,
}

impl LabelVersion {
    /// Sets a label to a version, even if it labels another one so far.
    ///
    /// # Examples
    /// ```
    /// # futures_util::FutureExt::now_or_never(async {
    /// use stepfold_session_scopes::{
    ///     CreateSession, GetSession, Label, LabelVersion, MemoryStore, ReadLabels, SessionSchema, SessionStore, Timestamp,
    /// };
    ///
    /// let (store, schema) = (MemoryStore::new(), SessionSchema::new(Default::default()));
    /// let key = store.create(CreateSession::new("my_app", "alice", &schema, Timestamp::from_micros(0))?).await?.key;
    /// let label = Label::new("before the tests")?;
    /// assert_eq!(store.set_label(LabelVersion::new(key.clone(), label.clone(), 0)).await?, None);
    ///
    /// // Read the labelled version.
    /// let labels = store.labels(ReadLabels::new(key.clone())).await?;
    /// let (_, version) = labels.into_iter().find(|(known, _)| *known == label).unwrap();
    /// assert_eq!(store.get(GetSession::new(key.clone()).at_version(version)).await?.version, 0);
    ///
    /// assert_eq!(store.set_label(LabelVersion::removal(key, label)).await?, Some(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap().unwrap();
    /// ```
    pub fn new(key: SessionKey, label: Label, version: u64) -> Self {
        LabelVersion { key, label, version: Some(version) }
    }

    /// Removes a label.
    pub fn removal(key: SessionKey, label: Label) -> Self {
        LabelVersion { key, label, version: None }
    }

    /// Rejects a version that the session does not have.
    pub(crate) fn check_version(&self, oldest: u64, newest: u64) -> Result<(), SessionError> {
        match self.version {
            Some(version) if !(oldest..=newest).contains(&version) => {
                Err(SessionError::no_such_version(&self.key, version, oldest, newest))
            }
            _ => Ok(()),
        }
    }

    /// Rejects a new label above the limit of a session.
    pub(crate) fn check_count(&self, is_new: bool, count: usize) -> Result<(), SessionError> {
        if self.version.is_some() && is_new && count >= MAX_LABELS {
            return Err(SessionError::TooManyLabels { key: Box::new(self.key.clone()), limit: MAX_LABELS });
        }
        Ok(())
    }
}

/// The maximum number of labels of a session.
pub const MAX_LABELS: usize = 1_000;
