//! Serves connections: with limits of their own, and an orderly end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::future::join_all;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

#[cfg(feature = "eval")]
use crate::http::app::App;
use crate::http::guard::access::PeerAddress;
use crate::http::guard::limits::Limits;
use crate::http::phase::ServerPhase;
use crate::http::server::Server;

/// The pause after a connection could not be accepted: the process has no file descriptors left, for example.
const PAUSE: Duration = Duration::from_millis(100);

/// The time that connections have to close after their last response.
const LAST_RESPONSES: Duration = Duration::from_secs(5);

impl Server {
    /// Serves connections until the process ends. See [`serve_until`](Server::serve_until) for an orderly end.
    pub async fn serve(self, listener: TcpListener) {
        self.serve_until(listener, std::future::pending()).await;
    }

    /// Serves connections until the future is ready. Then `/readyz` says so, for the [time](Limits::shutdown_delay) in
    /// which load balancers learn of it. After that live streams end with the event `bye`, no connection is accepted, and
    /// runs have the [time to complete](Limits::drain), and experiments stop after the cases at hand. What is left stops at its
    /// last commit, and another process can continue with it at once.
    ///
    /// Returns whether all work completed.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::Runner;
    /// use stepfold_server::http::{Principal, Role, Server, Token, Tokens};
    /// use stepfold_session_scopes::MemoryStore;
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let token = Token::random()?;
    /// let tokens = Tokens::new().with(&token, Principal::new("ada", Role::Administer)?);
    /// let server = Server::builder().app(runner).auth(tokens).build()?;
    ///
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    /// // In a program, a signal.
    /// drop(stop);
    /// assert!(server.serve_until(listener, async { drop(stopped.await) }).await);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn serve_until(self, listener: TcpListener, stop: impl Future<Output = ()>) -> bool {
        let (router, connections) = (self.router(), GracefulShutdown::new());
        #[cfg(feature = "eval")]
        self.start_experiments();
        let permits = Arc::new(Semaphore::new(self.limits().connections));
        let accept = async {
            loop {
                // Clients beyond the limit wait in the queue of the system.
                let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        let connection =
                            connection((stream, peer), router.clone(), self.limits(), &connections);
                        tokio::spawn(async move {
                            connection.await;
                            drop(permit);
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        };
        let leave = async {
            stop.await;
            self.shared.phase.send_replace(ServerPhase::Leaving);
            // NOTE: A load balancer learns of the stop by a probe. With the listener closed at once, requests until then
            // were refused (docs/decisions/server.md).
            tokio::time::sleep(self.limits().shutdown_delay).await;
        };
        tokio::select! {
            () = accept => {}
            () = leave => {}
        }
        self.shared.phase.send_replace(ServerPhase::Stopping);
        drop(listener);
        let drain = self.limits().drain;
        let runs = join_all(self.apps().map(|app| app.runner().shutdown(drain)));
        #[cfg(feature = "eval")]
        let (completed, has_ended) = tokio::join!(runs, self.end_experiments());
        #[cfg(not(feature = "eval"))]
        let (completed, has_ended) = (runs.await, true);
        self.shared.phase.send_replace(ServerPhase::Stopped);
        #[cfg(feature = "mcp")]
        self.shared.mcp.stop();
        if tokio::time::timeout(LAST_RESPONSES, connections.shutdown()).await.is_err() {
            tracing::info!("connections were still open, and are closed");
        }
        has_ended && completed.into_iter().all(|is_complete| is_complete)
    }
}

#[cfg(feature = "eval")]
impl Server {
    /// Starts the workers of experiments: those that were interrupted continue.
    fn start_experiments(&self) {
        for app in self.shared.apps.values() {
            if let Some(folder) = app.experiment_folder() {
                folder.work(app, self.limits(), self.shared.phase.subscribe());
            }
        }
    }

    /// Waits for the cases at hand. Returns whether no experiment is left under way.
    async fn end_experiments(&self) -> bool {
        let folders = self.apps().filter_map(App::experiment_folder);
        let ended = join_all(folders.map(|folder| folder.ended_work())).await;
        ended.into_iter().all(|has_ended| has_ended)
    }
}

/// Serves one connection. It ends when the client is gone, is too slow, or the server stops.
fn connection(
    (stream, peer): (TcpStream, SocketAddr),
    router: Router,
    limits: &Limits,
    connections: &GracefulShutdown,
) -> impl Future<Output = ()> + use<> {
    // An event is sent when it happens, not with the next one.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_timeout));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: http::Request<Incoming>| {
        request.extensions_mut().insert(PeerAddress(peer.ip()));
        router.call(request)
    });
    let served = http.serve_connection(TokioIo::new(Box::pin(stream)), service);
    let served = connections.watch(served);
    async move {
        if let Err(error) = served.await {
            tracing::debug!(%error, "a connection has ended");
        }
    }
}
