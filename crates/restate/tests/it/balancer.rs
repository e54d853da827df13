//! The common address of workers: connections go to the one that the test says.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};

/// Passes each connection on to a worker.
#[derive(Clone)]
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    workers: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Balancer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let workers = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn(accept(listener, Arc::clone(&workers)));
        Balancer { address, workers }
    }

    /// New connections go to these workers, in turn.
    pub(crate) fn to(&self, workers: &[SocketAddr]) {
        *self.workers.lock().unwrap() = workers.to_vec();
    }
}

async fn accept(listener: TcpListener, workers: Arc<Mutex<Vec<SocketAddr>>>) {
    loop {
        let (mut from, _) = listener.accept().await.unwrap();
        let workers = Arc::clone(&workers);
        tokio::spawn(async move {
            let next = {
                let mut workers = workers.lock().unwrap();
                if !workers.is_empty() {
                    workers.rotate_left(1);
                }
                workers.last().copied()
            };
            let Some(next) = next else { return };
            if let Ok(mut to) = TcpStream::connect(next).await {
                // It ends when one of both does.
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            }
        });
    }
}
