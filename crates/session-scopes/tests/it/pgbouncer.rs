//! PgBouncer in front of a server of the tests.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};

use crate::server::unprivileged;

/// A pooler that ends with the test: a shell waits for the pipe to this process to close.
pub(crate) struct Pooler {
    port: u16,
    _watch: Child,
    _folder: tempfile::TempDir,
}

const WATCH: &str = r#""$0" -q pooler.ini & cat >/dev/null; kill -INT $!; wait $!"#;

impl Pooler {
    /// One in front of a server, with this many connections to a database; none where PgBouncer is not installed.
    pub(crate) fn start(url: &str, mode: &str, connections: usize) -> Option<Self> {
        let program = ["/usr/sbin/pgbouncer", "/usr/local/bin/pgbouncer", "/usr/bin/pgbouncer"];
        let Some(program) = program.into_iter().find(|path| Path::new(path).exists()) else {
            eprintln!("SKIPPED: PgBouncer is not installed (Debian: `apt-get install pgbouncer`)");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("stepfold-pooler-").tempdir().unwrap();
        let server: u16 = url.rsplit(':').next().unwrap().split('/').next().unwrap().parse().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server} user=stepfold\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
             default_pool_size = {connections}\nmax_client_conn = 200\n"
        );
        fs::write(folder.path().join("pooler.ini"), settings).unwrap();
        let mut command = unprivileged(folder.path());
        command.args(["sh", "-c", WATCH, program]).current_dir(folder.path());
        let watch =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::yield_now();
        }
        Some(Pooler { port, _watch: watch, _folder: folder })
    }

    pub(crate) fn url(&self, url: &str) -> String {
        let (_, database) = url.rsplit_once('/').unwrap();
        format!("postgres://stepfold@127.0.0.1:{}/{database}", self.port)
    }
}
