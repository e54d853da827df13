//! Encrypted connections to PostgreSQL: to whom, and who is refused.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use stepfold_session_scopes::{ErrorKind, PostgresStore};
use tokio_postgres::NoTls;

use crate::scenario::{append, create, event, get, key};
use crate::server::{Server, programs, server};

/// A server that offers TLS, with a certificate for `127.0.0.1` and `localhost`, and the folder with `ca.pem`, which has
/// signed it, and `other.pem`, which has not.
fn tls_server() -> Option<&'static (Server, PathBuf)> {
    static SERVER: OnceLock<Option<(Server, PathBuf)>> = OnceLock::new();
    const OPTIONS: &str = "-c ssl=on -c ssl_cert_file=../server.pem -c ssl_key_file=../server.key";
    // Says on CI that there is no PostgreSQL.
    server()?;
    let start = |programs: PathBuf| {
        let folder = tempfile::Builder::new().prefix("stepfold-tls-").tempdir().unwrap().keep();
        // The server is another user's.
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let before = format!("out={}\n{CERTIFICATES}", folder.display());
        (Server::start(&programs, &before, OPTIONS), folder)
    };
    SERVER.get_or_init(|| programs().map(start)).as_ref()
}

const CERTIFICATES: &str = r#"
key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
{
for ca in ca other; do openssl req -x509 $key -days 9 -subj "/CN=$ca" -keyout "$ca.key" -out "$ca.pem" || exit 1; done
openssl req $key -subj /CN=server -keyout server.key -out server.csr || exit 1
echo "subjectAltName=DNS:localhost,IP:127.0.0.1" >names
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 9 -extfile names -out server.pem || exit 1
chmod 600 server.key
cp ca.pem other.pem "$out" || exit 1
} 2>&1 || exit 1
"#;

/// How many connections of stores to a database are encrypted, and how many are not.
async fn encrypted(url: &str) -> (i64, i64) {
    let (looker, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    let driver = tokio::spawn(connection);
    let query = "SELECT COUNT(*) FILTER (WHERE ssl), COUNT(*) FILTER (WHERE NOT ssl) FROM pg_stat_ssl \
                 JOIN pg_stat_activity USING (pid) WHERE application_name = 'stepfold' AND datname = current_database()";
    let row = looker.query_one(query, &[]).await.unwrap();
    drop(looker);
    driver.await.unwrap().unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn connections_are_encrypted_as_the_address_says() {
    let Some((server, folder)) = tls_server() else { return };
    let ca = folder.join("ca.pem");
    for (name, options, is_encrypted) in [
        ("default_mode", String::new(), true),
        ("disable", "?sslmode=disable".to_owned(), false),
        ("prefer", "?sslmode=prefer".to_owned(), true),
        ("require", "?sslmode=require".to_owned(), true),
        ("require_ca", format!("?sslmode=require&sslrootcert={}", ca.display()), true),
        ("verify", format!("?sslmode=verify-full&sslrootcert={}", ca.display()), true),
    ] {
        let url = server.database(name).await;
        let store = PostgresStore::open(url.clone() + &options).await.unwrap();
        create(&store, &key("s")).await;
        append(&store, &key("s"), 0, event("e")).await.unwrap();
        assert_eq!(get(&store, &key("s")).await.version, 1);
        let (with, without) = encrypted(&url).await;
        assert_eq!((with > 0, without > 0), (is_encrypted, !is_encrypted), "{name}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_who_it_should_be_is_refused_for_good() {
    let Some((server, folder)) = tls_server() else { return };
    let (ca, other) = (folder.join("ca.pem"), folder.join("other.pem"));
    let (ca, other) = (ca.display(), other.display());
    let url = server.database("refused").await;
    let plain = url.clone();
    let elsewhere = url.replace("127.0.0.1", "other.example") + "?hostaddr=127.0.0.1";
    for (url, cause) in [
        (format!("{url}?sslmode=verify-full&sslrootcert={other}"), "UnknownIssuer"),
        (format!("{url}?sslmode=require&sslrootcert={other}"), "UnknownIssuer"),
        (format!("{url}?sslmode=prefer&sslrootcert={other}"), "UnknownIssuer"),
        (format!("{elsewhere}&sslmode=verify-full&sslrootcert={ca}"), "not valid for name"),
        // Nothing that the system trusts has signed it.
        (format!("{url}?sslmode=verify-full"), "certificate"),
        (format!("{url}?sslmode=verify-full&sslrootcert=system"), "certificate"),
    ] {
        let error = PostgresStore::open(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{url}: {error:?}");
        assert!(error.to_string().contains(cause), "{url}: {error}");
    }
    assert_eq!(encrypted(&plain).await, (0, 0));
    // Who does not look at certificates gets in by any name.
    PostgresStore::open(format!("{elsewhere}&sslmode=require")).await.unwrap();
}

#[tokio::test]
async fn a_server_without_tls_is_refused_by_require_and_taken_by_prefer() {
    let Some(server) = server() else { return };
    let url = server.database("plain").await;
    for mode in ["require", "verify-full"] {
        let error = PostgresStore::open(format!("{url}?sslmode={mode}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Broken, "{error:?}");
        assert!(error.to_string().contains("server does not support TLS"), "{}", error.to_string());
    }
    PostgresStore::open(format!("{url}?sslmode=prefer")).await.unwrap();
}

#[tokio::test]
async fn a_file_without_certificates_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for (path, cause) in [(empty, "no certificate"), (folder.path().join("none.pem"), "No such file")] {
        let url = format!("postgres://a@127.0.0.1:1/d?sslmode=verify-full&sslrootcert={}", path.display());
        let error = PostgresStore::open(url).await.unwrap_err();
        assert!(
            error.to_string().contains("sslrootcert") && error.to_string().contains(cause),
            "{}",
            error.to_string()
        );
    }
}
