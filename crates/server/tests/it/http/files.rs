//! Messages with images and files.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use stepfold_agent_loop::Agent;
use stepfold_runner::Runner;
use stepfold_server::http::{App, Limits};
use stepfold_session_scopes::MemoryStore;
use stepfold_state_core::chat::{ChatModel, ChatRequest, Chunk, Content, FinishReason, ReplyStream};

use super::site::Site;

/// A model that keeps what it is sent.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<ChatRequest>>>);

impl ChatModel for Seen {
    fn id(&self) -> &'static str {
        "seen"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        self.0.lock().unwrap().push(request);
        ReplyStream::from_chunks([Chunk::Text("A stall.".to_owned()), Chunk::Finished(FinishReason::Stop)])
    }
}

/// The first bytes of a PNG, in Base64.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUg==";

async fn site(limits: Limits) -> (Site, Seen) {
    let seen = Seen::default();
    let agent = Agent::builder(seen.clone()).name("clerk").build().unwrap();
    let site = Site::of(App::from(Runner::builder(agent, MemoryStore::new()).build()), limits).await;
    site.post("ada", "/sessions", json!({"id": "s1"})).await;
    (site, seen)
}

#[tokio::test]
async fn a_model_is_sent_the_files_of_a_message() {
    let (site, seen) = site(Limits::default()).await;
    let files = json!([
        {"media_type": "image/png", "data": PNG, "name": "stall.png"},
        {"media_type": "application/pdf", "data": "JVBERi0xLjc="},
    ]);
    let run = site.post("ada", "/sessions/s1/run", json!({"text": "what is it?", "files": files})).await;
    assert_eq!((run.status.as_u16(), &run.json()["text"]), (200, &json!("A stall.")), "{}", run.text);
    {
        let requests = seen.0.lock().unwrap();
        let message = requests[0].messages.last().unwrap();
        let [text, image, file] = message.parts() else { panic!("{message:?}") };
        assert_eq!(text.content, Content::Text("what is it?".to_owned()));
        let Content::Image(image) = &image.content else { panic!("{image:?}") };
        assert_eq!(
            (image.media_type.as_deref(), image.name.as_deref()),
            (Some("image/png"), Some("stall.png"))
        );
        assert!(
            matches!(&file.content, Content::File(file) if file.media_type.as_deref() == Some("application/pdf"))
        );
    }
    // They are stored with the message, and a later request has them again.
    let told = site.get("reader", "/sessions/s1/model").await.json();
    assert!(told["messages"][0]["message"].to_string().contains(PNG), "{told}");
    assert_eq!(site.post("ada", "/sessions/s1/run", json!({"text": "sure?"})).await.status, 200);
    assert_eq!(seen.0.lock().unwrap()[1].messages.get(0).unwrap().parts().len(), 3);
}

#[tokio::test]
async fn files_are_checked_before_anything_is_stored() {
    let mut limits = Limits::default();
    (limits.files, limits.file) = (1, 16);
    let (site, seen) = site(limits).await;
    let file = |media_type: &str, data: &str| json!({"media_type": media_type, "data": data});
    let refused: [(Vec<Value>, (u16, &str)); 7] = [
        (vec![file("image/png", PNG), file("image/png", PNG)], (400, "invalid")),
        (vec![file("image/jpeg", PNG)], (400, "invalid")),
        (vec![file("image/svg+xml", "PHN2Zz4=")], (400, "invalid")),
        (vec![file("png", PNG)], (400, "invalid")),
        (vec![file("image/png", "not Base64")], (400, "invalid")),
        (vec![file("text/plain", "")], (400, "invalid")),
        (vec![file("text/plain", "eHh4eHh4eHh4eHh4eHh4eHh4")], (413, "too_large")),
    ];
    for (files, problem) in refused {
        for path in ["/sessions/s1/run", "/sessions/s1/messages"] {
            let reply = site.post("ada", path, json!({"text": "", "files": files})).await;
            assert_eq!(reply.problem(), (problem.0, problem.1.to_owned()), "{files:?}");
        }
    }
    assert_eq!(site.get("ada", "/sessions/s1").await.json()["version"], 0);
    assert!(seen.0.lock().unwrap().is_empty());
}
