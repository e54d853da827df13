//! The common address of workers: connections go to the one that the test says.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

/// How long a worker may be silent when it is connected to.
const SILENCE: Duration = Duration::from_secs(2);

/// Passes each connection on to a worker that is healthy.
#[derive(Clone)]
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    workers: Arc<Mutex<Vec<SocketAddr>>>,
    folder: Arc<Mutex<Option<PathBuf>>>,
}

impl Balancer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let workers = Arc::new(Mutex::new(Vec::new()));
        let folder = Arc::default();
        let balancer = Balancer { address, workers, folder };
        tokio::spawn(accept(listener, balancer.clone()));
        balancer
    }

    /// Connections go to the workers that have a file of their address in a folder, in turn, the oldest first.
    pub(crate) async fn of_folder(folder: &Path) -> Self {
        let balancer = Balancer::start().await;
        *balancer.folder.lock().unwrap() = Some(folder.to_owned());
        balancer
    }

    /// New connections go to these workers, in turn.
    pub(crate) fn to(&self, workers: &[SocketAddr]) {
        *self.workers.lock().unwrap() = workers.to_vec();
    }
}

async fn accept(listener: TcpListener, balancer: Balancer) {
    loop {
        let (mut from, _) = listener.accept().await.unwrap();
        let balancer = balancer.clone();
        tokio::spawn(async move {
            for next in balancer.in_turn() {
                // One that was killed refuses, and one that is frozen is silent, while a healthy one sends its settings of HTTP/2
                // at once: the next one is asked.
                let Ok(mut to) = TcpStream::connect(next).await else { continue };
                if let Ok(Ok(())) = tokio::time::timeout(SILENCE, to.readable()).await {
                    // It ends when one of both does.
                    let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
                    return;
                }
            }
        });
    }
}

impl Balancer {
    /// The workers for a new connection, the one whose turn it is first.
    fn in_turn(&self) -> Vec<SocketAddr> {
        let mut workers = self.workers.lock().unwrap();
        if let Some(folder) = &*self.folder.lock().unwrap() {
            let known = written(folder);
            workers.retain(|worker| known.contains(worker));
            let new: Vec<_> = known.into_iter().filter(|worker| !workers.contains(worker)).collect();
            workers.extend(new);
        }
        let turn = workers.clone();
        if !workers.is_empty() {
            workers.rotate_left(1);
        }
        turn
    }
}

/// The addresses that workers have written down, the oldest first.
fn written(folder: &Path) -> Vec<SocketAddr> {
    let files = std::fs::read_dir(folder).unwrap().filter_map(Result::ok);
    let mut files: Vec<_> = files
        .filter_map(|file| {
            let address = file.file_name().to_str()?.parse().ok()?;
            Some((file.metadata().ok()?.modified().ok()?, address))
        })
        .collect();
    files.sort_unstable();
    files.into_iter().map(|(_, address)| address).collect()
}
