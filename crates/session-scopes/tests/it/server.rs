//! A PostgreSQL server of the tests' own: on loopback, in a temporary folder, as an unprivileged user.
//!
//! It is started once for each test process and ends with it, however that ends: a shell waits for the
//! pipe to this process to close, and then stops the server and removes its folder.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;

use tokio_postgres::NoTls;

/// The running server. Where PostgreSQL is not installed there is none, and the test says so and ends; on CI it fails.
pub(crate) fn server() -> Option<&'static Server> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    let server = SERVER.get_or_init(|| programs().map(|programs| Server::start(&programs, "", "")));
    if server.is_none() {
        #[expect(clippy::disallowed_methods, reason = "CI says by this what it is")]
        let is_required = std::env::var_os("CI").is_some();
        check_missing(is_required);
    }
    server.as_ref()
}

/// The result of a test without PostgreSQL.
pub(crate) fn check_missing(is_required: bool) {
    const MISSING: &str = "PostgreSQL is not installed (Debian: `apt-get install postgresql`)";
    assert!(!is_required, "{MISSING}, and CI needs it");
    eprintln!("SKIPPED: {MISSING}");
}

/// Where `initdb` and `postgres` are.
pub(crate) fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    let others =
        ["/usr/local/bin", "/usr/local/pgsql/bin", "/usr/bin", "/opt/homebrew/bin"].map(PathBuf::from);
    let mut found: Vec<PathBuf> =
        debian.chain(others).filter(|folder| folder.join("initdb").exists()).collect();
    found.sort();
    found.pop()
}

pub(crate) struct Server {
    port: u16,
    #[allow(dead_code, reason = "another crate's tests include this file and make no dump")]
    programs: PathBuf,
    #[allow(dead_code, reason = "another crate's tests include this file and read no raw files")]
    folder: PathBuf,
    /// Held for its pipe: the server stops when it closes.
    _watch: Child,
}

const WATCH: &str = r#"
"$0/initdb" -D "$1/data" -U stepfold -A trust -E UTF8 --no-locale --no-sync >"$1/initdb.log" 2>&1 || { cat "$1/initdb.log"; exit 1; }
"$0/postgres" -D "$1/data" -k "$1" -p "$2" -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=200 $3 2>&1 &
cat >/dev/null
kill -INT $!
wait $!
rm -rf "$1"
"#;

impl Server {
    /// Runs `before` in the server's folder, then the server with these options more.
    pub(crate) fn start(programs: &Path, before: &str, options: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("stepfold-pg-").tempdir().unwrap().keep();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = unprivileged(&folder);
        command
            .args(["sh", "-c", &(before.to_owned() + WATCH)])
            .arg(programs)
            .arg(&folder)
            .arg(port.to_string());
        command.arg(options);
        let command =
            command.current_dir(&folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut watch = command.spawn().unwrap();
        let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
        let mut log = String::new();
        loop {
            let line = lines.next().unwrap_or_else(|| panic!("PostgreSQL did not start:\n{log}")).unwrap();
            log.push_str(&line);
            log.push('\n');
            if line.contains("ready to accept connections") {
                break;
            }
        }
        thread::spawn(move || lines.for_each(drop));
        // The programs may be links to those of a folder that has all.
        let linked = programs.join("initdb").canonicalize().unwrap();
        let programs = linked.parent().unwrap().to_owned();
        Server { port, programs, folder, _watch: watch }
    }

    /// The files of the tables of all databases, their indexes and long values; not the log.
    #[allow(dead_code, reason = "another crate's tests include this file and read no raw files")]
    pub(crate) fn files_of_tables(&self) -> PathBuf {
        self.folder.join("data/base")
    }

    /// All files of the server, with its log of writes.
    #[allow(dead_code, reason = "another crate's tests include this file and read no raw files")]
    pub(crate) fn all_files(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Writes the content of a database to a file, as a backup does.
    #[allow(dead_code, reason = "another crate's tests include this file and make no dump")]
    pub(crate) fn dump(&self, database: &str, path: &Path) {
        let mut command = Command::new(self.programs.join("pg_dump"));
        command.arg("--file").arg(path).arg(self.url_of(database));
        assert!(command.status().unwrap().success());
    }

    /// Makes a database of such a file.
    #[allow(dead_code, reason = "another crate's tests include this file and make no dump")]
    pub(crate) async fn restore(&self, database: &str, path: &Path) {
        self.database(database).await;
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["--quiet", "--output", "/dev/null", "-v", "ON_ERROR_STOP=1", "--file"]).arg(path);
        assert!(command.arg(self.url_of(database)).status().unwrap().success());
    }

    pub(crate) fn url_of(&self, database: &str) -> String {
        format!("postgres://stepfold@127.0.0.1:{}/{database}", self.port)
    }

    /// The address of a database that is made for this.
    pub(crate) async fn database(&self, name: &str) -> String {
        self.run("postgres", &format!("CREATE DATABASE {name}")).await;
        self.url_of(name)
    }

    /// Runs a statement by hand.
    pub(crate) async fn run(&self, database: &str, statement: &str) {
        let (client, connection) = tokio_postgres::connect(&self.url_of(database), NoTls).await.unwrap();
        let driver = tokio::spawn(connection);
        client.batch_execute(statement).await.unwrap();
        drop(client);
        let _ = driver.await;
    }
}

/// What runs the rest of its arguments, as another user if we are root: `initdb` refuses root.
pub(crate) fn unprivileged(folder: &Path) -> Command {
    let output = Command::new("id").arg("-u").output().unwrap();
    if String::from_utf8_lossy(&output.stdout).trim() != "0" {
        return Command::new("env");
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = ["postgres", "nobody"].into_iter().find(|user| users.contains(&format!("{user}:"))).unwrap();
    assert!(Command::new("chown").arg(user).arg(folder).status().unwrap().success());
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).args(["--clear-groups", "--"]);
    command
}
