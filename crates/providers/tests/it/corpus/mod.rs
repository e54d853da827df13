//! Whole bodies as servers send them. Each is a file in `tests/corpus`, and its result is in a file
//! next to it; `UPDATE_EXPECT=1` renews the results.
//!
//! The name of a file says what the server said of it: `text.sse` is a stream of events, `busy.429.json` is
//! JSON with that status.

mod laws;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use expect_test::expect_file;
use stepfold_providers::anthropic::Anthropic;
use stepfold_providers::gemini::Gemini;
use stepfold_providers::layer::Timeout;
use stepfold_providers::openai::{OpenAi, OpenAiResponses};
use stepfold_providers::probe::{self, ProbeResponse};
use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, ModelError, Reply, Transcript};
use tokio::runtime::Runtime;

use crate::server::{Check, Play, Server, check_any, check_gemini, show};

/// A key that must not be seen anywhere.
const KEY: &str = "sk-do-not-show-me-1234567890";

/// One body.
#[derive(Clone)]
struct Entry {
    path: PathBuf,
    dialect: Dialect,
    status: u16,
    content_type: &'static str,
    body: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Dialect {
    OpenAi,
    Responses,
    Anthropic,
    Gemini,
}

/// The folders, and what they hold.
const FOLDERS: [(&str, Dialect); 4] = [
    ("openai", Dialect::OpenAi),
    ("responses", Dialect::Responses),
    ("anthropic", Dialect::Anthropic),
    ("gemini", Dialect::Gemini),
];

impl Entry {
    fn open(path: &Path, dialect: Dialect) -> Self {
        let name = path.file_name().unwrap().to_str().unwrap();
        let words: Vec<&str> = name.split('.').collect();
        let (status, extension) = match words[..] {
            [_, extension] => (200, extension),
            [_, status, extension] => (status.parse().unwrap(), extension),
            _ => panic!("{name} is no name of a body"),
        };
        let content_type = match extension {
            "sse" => "text/event-stream; charset=utf-8",
            "json" => "application/json",
            "html" => "text/html",
            "txt" => "text/plain",
            "untyped" => "",
            other => panic!("{name}: what is {other}?"),
        };
        Entry { path: path.to_owned(), dialect, status, content_type, body: fs::read(path).unwrap() }
    }

    fn is_stream(&self) -> bool {
        self.status == 200 && self.content_type.starts_with("text/event-stream")
    }

    fn with_body(&self, body: impl Into<Vec<u8>>) -> Self {
        Entry { body: body.into(), ..self.clone() }
    }

    /// In one piece.
    fn whole(&self) -> Vec<Vec<u8>> {
        vec![self.body.clone()]
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with the body {:?}", self.path.display(), self.body.escape_ascii().to_string())
    }
}

/// Everything in the corpus, in the order of its names.
fn entries() -> Vec<Entry> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let folder = |name: &str, dialect| {
        let files = fs::read_dir(root.join(name)).unwrap().map(|file| file.unwrap().path());
        let mut paths: Vec<PathBuf> = files.filter(|path| !is_expectation(path)).collect();
        paths.sort();
        paths.into_iter().map(move |path| Entry::open(&path, dialect))
    };
    FOLDERS.iter().flat_map(|(name, dialect)| folder(name, *dialect)).collect()
}

fn is_expectation(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "expect")
}

/// Reads bodies without a socket, on a paused clock: an endless wait is detected at once.
struct Reader {
    runtime: Runtime,
    models: Models,
}

/// A model of each dialect.
struct Models {
    openai: OpenAi,
    responses: OpenAiResponses,
    anthropic: Anthropic,
    gemini: Gemini,
}

impl Reader {
    fn new() -> Self {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        Reader { runtime, models: models("http://127.0.0.1:1") }
    }

    /// The result of a body that arrives in these pieces.
    fn read(&self, entry: &Entry, pieces: Vec<Vec<u8>>) -> Result<Reply, ModelError> {
        let Entry { status, content_type, .. } = *entry;
        let response = ProbeResponse { status, content_type, pieces, pause: Duration::ZERO };
        self.runtime.block_on(async {
            let reply = match entry.dialect {
                Dialect::OpenAi => probe::reply(&self.models.openai, response),
                Dialect::Responses => probe::reply(&self.models.responses, response),
                Dialect::Anthropic => probe::reply(&self.models.anthropic, response),
                Dialect::Gemini => probe::reply(&self.models.gemini, response),
            };
            let limit = Duration::from_secs(3_600);
            tokio::time::timeout(limit, reply.into_reply()).await.expect("nobody waits for ever")
        })
    }

    /// The same as text.
    fn show(&self, entry: &Entry, pieces: Vec<Vec<u8>>) -> String {
        show(self.read(entry, pieces), KEY)
    }
}

/// All models, behind this address.
fn models(url: &str) -> Models {
    let timeouts = Timeout::NONE;
    let v1 = format!("{url}/v1");
    let openai = OpenAi::at(&v1, "some-model").key(KEY).timeout(timeouts).build();
    let responses = OpenAiResponses::at(&v1, "some-model").key(KEY).timeout(timeouts).build();
    let anthropic = Anthropic::new("claude", KEY).base_url(url).timeout(timeouts).build();
    let gemini = Gemini::new("gemini", KEY).base_url(&v1).timeout(timeouts).build();
    Models {
        openai: openai.unwrap(),
        responses: responses.unwrap(),
        anthropic: anthropic.unwrap(),
        gemini: gemini.unwrap(),
    }
}

/// The text, without the middle of what is very long.
fn shortened(text: &str) -> String {
    let count = text.chars().count();
    if count < 3_000 {
        return text.to_owned();
    }
    let begin: String = text.chars().take(200).collect();
    let end: String = text.chars().skip(count - 200).collect();
    format!("{begin}\n({} more characters)\n{end}", count - 400)
}

#[test]
fn every_body_has_the_result_in_the_file_next_to_it() {
    let reader = Reader::new();
    for entry in entries() {
        let shown = reader.show(&entry, entry.whole());
        let mut path = entry.path.clone().into_os_string();
        path.push(".expect");
        expect_file![PathBuf::from(path)].assert_eq(&shortened(&shown));
        let lines = entry.body.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        assert_eq!(reader.show(&entry, lines), shown, "line by line: {}", entry.path.display());
        let bytes = entry.body.chunks(1).map(<[u8]>::to_vec).collect();
        assert_eq!(reader.show(&entry, bytes), shown, "byte by byte: {}", entry.path.display());
    }
}

#[test]
fn every_expectation_has_its_body() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    for (folder, _) in FOLDERS {
        for file in fs::read_dir(root.join(folder)).unwrap() {
            let path = file.unwrap().path();
            assert!(!is_expectation(&path) || path.with_extension("").exists(), "{}", path.display());
        }
    }
}

/// What is read without a socket is what the public models read.
#[tokio::test]
async fn a_socket_changes_nothing() {
    for entry in entries() {
        let headers = format!("content-type: {}", entry.content_type);
        let play = Play::new(entry.status, &headers, entry.body.clone());
        let check: Check = match entry.dialect {
            Dialect::Gemini => check_gemini,
            _ => check_any,
        };
        let server = Server::start([play], usize::MAX, check).await;
        let models = models(&server.url);
        let request = ChatRequest::new(Transcript::new().with(Message::user("which area?")));
        let reply = match entry.dialect {
            Dialect::OpenAi => models.openai.respond(request),
            Dialect::Responses => models.responses.respond(request),
            Dialect::Anthropic => models.anthropic.respond(request),
            Dialect::Gemini => models.gemini.respond(request),
        };
        let shown = show(reply.into_reply().await, KEY);
        // A runtime within a runtime is not to be had.
        let without = std::thread::scope(|scope| {
            scope.spawn(|| Reader::new().show(&entry, entry.whole())).join().unwrap()
        });
        assert_eq!(shown, without, "{}", entry.path.display());
    }
}
