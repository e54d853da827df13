//! Connections, each with the statements that it has prepared.
//!
//! A statement is prepared once it was used: its first use on a connection sends it as a text, which needs no further
//! round trip and stays in order with the statements around it. All that were used so are prepared together, before the
//! connection is used the next time.

use std::collections::HashMap;
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool::managed::{self, Metrics, RecycleError, RecycleResult};
use futures_util::future::try_join_all;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, Error, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::statements::SqlStatement;
use crate::keys::sealer::{ContentKey, Sealer};

/// A connection that was idle for longer than this is tested before use.
pub(super) const TRUSTED_IDLE_TIME: Duration = Duration::from_secs(5);

/// A connection of the pool, which gets it back when this is dropped.
pub(super) struct Object {
    connection: managed::Object<ConnectionManager>,
    /// The key of the user whose content the current operation reads or writes. It is here and not in the connection, so that
    /// no idle connection keeps it.
    sealer: Option<Arc<Sealer>>,
}

impl Object {
    /// A connection of the pool, with the key of the content of an operation.
    pub(super) fn new(connection: managed::Object<ConnectionManager>, sealer: Option<Arc<Sealer>>) -> Self {
        Object { connection, sealer }
    }

    /// The key of the content of the current operation.
    pub(super) fn key(&self) -> ContentKey<'_> {
        ContentKey::of(self.sealer.as_ref())
    }

    /// Takes the connection out of the pool.
    pub(super) fn take(self) -> StoreConnection {
        managed::Object::take(self.connection)
    }
}

impl Deref for Object {
    type Target = StoreConnection;

    fn deref(&self) -> &StoreConnection {
        &self.connection
    }
}

pub(super) type Pool = managed::Pool<ConnectionManager>;

/// Makes the connections of a pool.
#[derive(Debug)]
pub(super) struct ConnectionManager {
    config: Config,
    tls: TlsConnector,
    /// The statements that configure a connection; `None` if a pooler gives its transactions several of the server.
    settings: Option<Arc<str>>,
}

/// The connector, which shows nothing of itself.
struct TlsConnector(MakeRustlsConnect);

impl std::fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsConnector")
    }
}

impl ConnectionManager {
    pub(super) fn new(config: Config, tls: MakeRustlsConnect, settings: Option<Arc<str>>) -> Self {
        ConnectionManager { config, tls: TlsConnector(tls), settings }
    }
}

impl managed::Manager for ConnectionManager {
    type Type = StoreConnection;
    type Error = Error;

    async fn create(&self) -> Result<StoreConnection, Error> {
        let (client, connection) = self.config.connect(self.tls.0.clone()).await?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::warn!(%error, "a connection to the database ended");
            }
        });
        let statements = self.settings.is_some().then(Mutex::default);
        let connection = StoreConnection { client, driver, statements };
        if let Some(settings) = &self.settings {
            connection.batch_execute(settings).await?;
        }
        Ok(connection)
    }

    async fn recycle(&self, connection: &mut StoreConnection, metrics: &Metrics) -> RecycleResult<Error> {
        if connection.is_closed() {
            return Err(RecycleError::message("the connection is closed"));
        }
        // NOTE: tests only connections that were idle for long, which saves a round trip for each operation.
        if metrics.last_used() > TRUSTED_IDLE_TIME {
            connection.simple_query("").await?;
        }
        Ok(connection.prepare_used().await?)
    }
}

/// A connection to the database.
pub(super) struct StoreConnection {
    client: Client,
    driver: JoinHandle<()>,
    /// `None` through a pooler, where a prepared statement may be in another connection of the server.
    statements: Option<Mutex<ConnectionStatements>>,
}

/// The statements of a connection, by their texts.
#[derive(Default)]
struct ConnectionStatements {
    prepared: HashMap<&'static str, Statement>,
    /// Those that were used and are not prepared yet.
    used: Vec<&'static str>,
}

impl Deref for StoreConnection {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for StoreConnection {
    fn drop(&mut self) {
        // NOTE: it would wait for unread answers, while the server keeps the locks of an open transaction.
        self.driver.abort();
    }
}

impl StoreConnection {
    /// Whether a pooler gives each transaction another connection of the server, so that settings are those of a
    /// transaction.
    pub(super) fn is_pooled(&self) -> bool {
        self.statements.is_none()
    }

    fn locked(&self) -> Option<MutexGuard<'_, ConnectionStatements>> {
        let statements = self.statements.as_ref()?;
        Some(statements.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The prepared statement; `None` if its text has to be sent.
    pub(super) fn prepared(&self, sql: SqlStatement) -> Option<Statement> {
        let mut statements = self.locked()?;
        let found = statements.prepared.get(sql.text()).cloned();
        if found.is_none() && !statements.used.contains(&sql.text()) {
            statements.used.push(sql.text());
        }
        found
    }

    /// Prepares the statements that were used, in one round trip.
    async fn prepare_used(&self) -> Result<(), Error> {
        let used = self.locked().map(|mut statements| mem::take(&mut statements.used)).unwrap_or_default();
        if used.is_empty() {
            return Ok(());
        }
        let prepared = try_join_all(used.iter().map(|text| self.client.prepare(text))).await?;
        if let Some(mut statements) = self.locked() {
            statements.prepared.extend(used.into_iter().zip(prepared));
        }
        Ok(())
    }
}
