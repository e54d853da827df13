//! Attacks of a real hostile page in the browser of a logged-in user: nothing is readable, and nothing changes.

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::browser::play;
use crate::http::site::Site;

/// Serves an empty page at any path; its address.
async fn hostile() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let page = service_fn(|_| async {
                let page = Full::new(Bytes::from_static(b"<!doctype html><title>evil</title><body>evil"));
                Response::builder().header("content-type", "text/html").body(page)
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), page),
            );
        }
    });
    format!("http://{address}")
}

/// All that an attack could have changed.
async fn everything(site: &Site) -> Value {
    let sessions = site.get("ada", "/sessions").await.json();
    json!([
        sessions,
        site.get("ada", "/sessions/s1").await.json(),
        site.get("ada", "/sessions/s1/events").await.json()
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interop_browser_of_a_hostile_page() {
    let site = Site::new("assistant: It is transferred.\n").await;
    assert_eq!(site.post("root", "/sessions", json!({"id": "s1"})).await.status, 201);
    let before = everything(&site).await;
    let token = site.bearer("root").split_once(' ').unwrap().1.to_owned();
    let configuration =
        json!({"victim": format!("http://{}", site.address), "token": token, "hostile": hostile().await});
    let Some(results) = play("hostile.cjs", &configuration).await else { return };
    // The victim is logged in: the browser has a cookie that counts.
    assert_eq!((&results["login"], &results["own"]), (&json!(204), &json!(200)));
    for (page, status) in [
        // Cookies come with these requests, and the origin refuses them.
        ("other port", 403),
        ("other name of this host", 403),
        ("other origin", 403),
        ("rebound", 421),
    ] {
        let found = &results[page];
        for (attack, read) in found["read"].as_object().unwrap() {
            // A rebound page has the origin of its own requests, and reads why they are refused.
            let is_refusal = page == "rebound" && (read["status"] == 421 || read["text"] != Value::Null);
            let told = read.to_string();
            assert!(read.is_null() || is_refusal && !told.contains("s1"), "{page}, {attack}: {told}");
        }
        assert_eq!(found["statuses"], json!([status]), "{page}: {found}");
        for frame in found["framed"].as_array().unwrap() {
            assert_eq!(
                frame, "chrome-error://chromewebdata/",
                "{page} shows a page of the server in a frame"
            );
        }
    }
    assert_eq!(everything(&site).await, before);
}
