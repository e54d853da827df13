//! Metrics of a process that serves nothing else: a worker's.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use http::{Method, Request, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::http::app::App;
use crate::http::metrics::Metrics;
use crate::http::operation::reply::OpenMetrics;

/// Limits the connections served at once, and the duration of each: a reader of metrics needs less.
const AT_ONCE: usize = 16;

const PATIENCE: Duration = Duration::from_secs(10);

impl Metrics {
    /// Serves these metrics and the load of a runner at `GET /metrics`, until it is dropped: for a process that serves
    /// nothing else, such as a worker. There is no authentication; metrics name no user, session or text. At most 16
    /// connections are served at once, each with one request and for at most 10 seconds.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// use stepfold_agent_loop::Agent;
    /// use stepfold_agent_loop::test_kit::Script;
    /// use stepfold_runner::Runner;
    /// use stepfold_server::http::Metrics;
    /// use stepfold_session_scopes::MemoryStore;
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// use tokio::net::{TcpListener, TcpStream};
    ///
    /// # let model = Script::parse("assistant: area 3")?;
    /// let runner = Runner::builder(Agent::builder(model).build()?, MemoryStore::new()).build();
    /// let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let address = listener.local_addr()?;
    /// tokio::spawn(async move { Metrics::new().serve(listener, runner).await });
    ///
    /// let (mut stream, mut told) = (TcpStream::connect(address).await?, String::new());
    /// stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
    /// stream.read_to_string(&mut told).await?;
    /// assert!(told.starts_with("HTTP/1.1 200") && told.contains("stepfold_blocked_sessions"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn serve(&self, listener: TcpListener, app: impl Into<App>) -> Infallible {
        let app = Arc::new(app.into());
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        loop {
            // It is never closed.
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { continue };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let answered = answer(stream, self.clone(), Arc::clone(&app));
                    tokio::spawn(async move {
                        // NOTE: A reader that is too slow connects again.
                        let _ = tokio::time::timeout(PATIENCE, answered).await;
                        drop(permit);
                    });
                }
                // NOTE: One client failed, or no file descriptor is left, which takes a while.
                Err(error) => {
                    tracing::warn!(%error, "a connection for metrics could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn answer(stream: TcpStream, metrics: Metrics, app: Arc<App>) -> Result<(), hyper::Error> {
    let service = service_fn(move |request: Request<Incoming>| {
        let (metrics, app) = (metrics.clone(), Arc::clone(&app));
        async move { Ok::<_, Infallible>(answered(&request, &metrics, &app).await) }
    });
    http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service).await
}

async fn answered(request: &Request<Incoming>, metrics: &Metrics, app: &App) -> Response {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            metrics.read(app.name(), app.runner()).await;
            OpenMetrics(metrics.text()).into_response()
        }
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")]).into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}
