//! Encrypted connections: a server whose certificate is not trusted, and the authority of one's own that makes it so.
//!
//! `tests/tls` holds an authority, and the certificate and the key of a server on this machine, good for a hundred years.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use stepfold_providers::openai::OpenAi;
use stepfold_state_core::chat::{ChatModel, ChatRequest, Message, ModelErrorKind, Transcript};

const AUTHORITY: &[u8] = include_bytes!("../tls/authority.pem");
const CERTIFICATE: &[u8] = include_bytes!("../tls/server.pem");
const KEY: &[u8] = include_bytes!("../tls/server.key");

const REPLY: &str = r#"{"choices":[{"message":{"content":"area 3"},"finish_reason":"stop"}]}"#;

/// A server that gives the same reply on each connection, whatever it is asked. It lives as long as the process.
fn serve() -> String {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).unwrap();
    let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
    let config = Arc::new(builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, socket.unwrap());
            // A client that does not trust the server is gone before it has sent anything.
            if stream.read(&mut [0; 16_384]).is_ok_and(|count| count > 0) {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
                let _ = write!(stream, "{head}content-length: {}\r\n\r\n{REPLY}", REPLY.len());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    url
}

#[tokio::test]
async fn a_server_is_trusted_by_an_authority_of_ones_own_and_not_without() {
    let url = serve();
    let request = || ChatRequest::new(Transcript::new().with(Message::user("which area?")));
    let stranger = OpenAi::at(&url, "m").build().unwrap();
    let error = stranger.respond(request()).into_reply().await.unwrap_err();
    assert_eq!(error.kind(), &ModelErrorKind::Untrusted, "{error}");
    assert!(
        !error.is_retryable() && error.message().starts_with("invalid certificate of https://"),
        "{error}"
    );
    let known = OpenAi::at(&url, "m").root_certificates(AUTHORITY).build().unwrap();
    let reply = known.respond(request()).into_reply().await.unwrap();
    assert_eq!(reply.message.text(), "area 3");
}
