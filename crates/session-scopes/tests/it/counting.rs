//! A proxy between a store and its PostgreSQL that counts statements and round trips.
//!
//! A statement is an execution of one, prepared or not, `BEGIN` and `COMMIT` included: counted in the protocol, so the
//! figure is the same on each machine. A round trip is a message to the server after an answer of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// The time that an answer takes: the server is not on this machine.
const DISTANCE: Duration = Duration::from_millis(2);

/// What was sent to a server since the counts were taken last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// The texts of the executed statements, in order of their connections. A prepared one has the text of its preparation.
    pub(crate) statements: Vec<String>,
    /// The preparations of statements.
    pub(crate) prepared: usize,
    pub(crate) round_trips: usize,
}

impl Counts {
    fn add(&mut self, more: Counts) {
        self.statements.extend(more.statements);
        self.prepared += more.prepared;
        self.round_trips += more.round_trips;
    }
}

/// The proxy. It serves connections until its runtime ends.
#[derive(Clone)]
pub(crate) struct CountingProxy {
    counts: Arc<Mutex<Counts>>,
    /// The address of the database, through the proxy.
    pub(crate) address: String,
}

impl CountingProxy {
    /// A proxy for the database at this address.
    pub(crate) async fn start(address: &str) -> Self {
        let host = address.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = address.replace(&host, &listener.local_addr().unwrap().to_string());
        let proxy = CountingProxy { counts: Arc::default(), address };
        let counts = Arc::clone(&proxy.counts);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&host).await.unwrap();
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let has_answered = Arc::new(AtomicBool::new(true));
                let ((read, answers), (replies, write)) = (client.into_split(), server.into_split());
                tokio::spawn(pass_answers(replies, answers, Arc::clone(&has_answered)));
                tokio::spawn(pass_requests(read, write, Arc::clone(&counts), has_answered));
            }
        });
        proxy
    }

    /// What was sent since the last call, once nothing is sent any more.
    pub(crate) async fn settled(&self, what: &str) -> Counts {
        let mut counts = Counts::default();
        loop {
            // tidy: allow sleep, because a notice is sent some time after its commit, and nothing reports that.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let more = std::mem::take(&mut *self.counts.lock().unwrap());
            if more.statements.is_empty() {
                break;
            }
            counts.add(more);
        }
        let Counts { statements, prepared, round_trips } = &counts;
        println!("{what}: {} statements, {round_trips} round trips, {prepared} prepared", statements.len());
        counts
    }

    /// Fails if more statements were sent since the last call.
    pub(crate) async fn check(&self, what: &str, most: usize) -> Counts {
        let counts = self.settled(what).await;
        let statements = counts.statements.iter().take(40);
        let texts: Vec<String> =
            statements.map(|statement| statement.chars().take(120).collect::<String>()).collect();
        assert!(counts.statements.len() <= most, "{what}: at most {most}, and these: {texts:#?}");
        counts
    }
}

async fn pass_answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, has_answered: Arc<AtomicBool>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        // tidy: allow sleep, because statements that were sent without waiting for this answer must arrive before it.
        tokio::time::sleep(DISTANCE).await;
        has_answered.store(true, Ordering::SeqCst);
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

/// Passes on the messages of a client, and counts them.
async fn pass_requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    counts: Arc<Mutex<Counts>>,
    has_answered: Arc<AtomicBool>,
) {
    let mut messages = ClientMessages::default();
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        let is_trip = has_answered.swap(false, Ordering::SeqCst);
        messages.pending.extend_from_slice(&bytes[..read]);
        {
            let mut counts = counts.lock().unwrap();
            counts.round_trips += usize::from(is_trip);
            messages.count(&mut counts);
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

/// The messages of a client: a start without a type, then each with a type and a length.
#[derive(Default)]
struct ClientMessages {
    pending: Vec<u8>,
    has_started: bool,
    /// The texts of prepared statements by their names, and of the last one that was bound.
    prepared: HashMap<String, String>,
    bound: String,
}

impl ClientMessages {
    fn count(&mut self, counts: &mut Counts) {
        while let Some((kind, body)) = self.next() {
            let mut texts =
                body.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
            let mut text = || texts.next().unwrap_or_default();
            match kind {
                b'Q' => counts.statements.push(text()),
                b'P' => {
                    let name = text();
                    counts.prepared += usize::from(!name.is_empty());
                    self.prepared.insert(name, text());
                }
                b'B' => {
                    let (_portal, name) = (text(), text());
                    self.bound = self.prepared.get(&name).cloned().unwrap_or_default();
                }
                b'E' => counts.statements.push(self.bound.clone()),
                _ => {}
            }
        }
    }

    /// The next whole message: its type (0 for a start), and its body.
    fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let head = usize::from(self.has_started);
        let length = self.pending.get(head..head + 4)?;
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        if self.pending.len() < head + length {
            return None;
        }
        let message: Vec<u8> = self.pending.drain(..head + length).collect();
        let kind = if self.has_started { message[0] } else { 0 };
        // A request for encryption is a start as well, and another one comes after it.
        self.has_started |= length != 8;
        Some((kind, message[head + 4..].to_vec()))
    }
}
