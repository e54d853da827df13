//! Agent2Agent: what a client may not do, and what a task is.

use http::Method;
use serde_json::{Value, json};
use stepfold_server::http::Limits;

use super::live::waiting_site;
use super::site::{Reply, Site};

const VERSION: (&str, &str) = ("a2a-version", "1.0");

async fn post(site: &Site, name: &str, headers: &[(&str, &str)], message: &Value) -> Reply {
    let bearer = site.bearer(name);
    let mut all = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
    all.extend(headers);
    site.raw(Method::POST, "/a2a/clerk", &all, &message.to_string()).await
}

async fn call(site: &Site, name: &str, method: &str, params: Value) -> Value {
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let answer = post(site, name, &[VERSION], &message).await.json();
    assert_eq!(answer["id"], 7);
    answer
}

fn say(text: &str) -> Value {
    json!({"message": {"messageId": text, "role": "ROLE_USER", "contextId": "s1", "parts": [{"text": text}]}})
}

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test]
async fn the_card_is_for_readers_and_names_this_host() {
    let site = Site::new("").await;
    for path in ["/.well-known/agent-card.json", "/a2a/clerk/.well-known/agent-card.json"] {
        assert_eq!(site.raw(Method::GET, path, &[], "").await.problem().0, 401, "{path}");
        let bearer = site.bearer("reader");
        let card = site.raw(Method::GET, path, &[("authorization", &bearer)], "").await.json();
        assert_eq!((card["name"].as_str(), card["description"].as_str()), (Some("clerk"), Some("Pays.")));
        let url = format!("http://{}/a2a/clerk", site.address);
        assert_eq!(card["supportedInterfaces"][0]["url"], url);
        assert_eq!(site.raw(Method::GET, path, &[("host", "evil.test")], "").await.problem().0, 421);
    }
}

#[tokio::test]
async fn requests_are_those_of_the_protocol() {
    let site = Site::new("assistant: hello\n").await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}});
    for version in ["0.3", "2.0", ""] {
        let refused = post(&site, "ada", &[("a2a-version", version)], &list).await.json();
        assert_eq!(code(&refused), -32009, "{version}");
    }
    assert_eq!(code(&post(&site, "ada", &[VERSION], &json!([])).await.json()), -32600);
    assert_eq!(code(&call(&site, "ada", "message/send", say("hi")).await), -32601);
    for method in ["CreateTaskPushNotificationConfig", "ListTaskPushNotificationConfigs"] {
        assert_eq!(code(&call(&site, "ada", method, json!({})).await), -32003);
    }
    let mut pushed = say("hi");
    pushed["configuration"] = json!({"taskPushNotificationConfig": {"url": "http://127.0.0.1:1/"}});
    assert_eq!(code(&call(&site, "ada", "SendMessage", pushed).await), -32003);
    assert_eq!(code(&call(&site, "ada", "GetExtendedAgentCard", json!({})).await), -32007);
    let data = json!({"message": {"messageId": "m", "parts": [{"url": "http://127.0.0.1:1/"}]}});
    assert_eq!(code(&call(&site, "ada", "SendMessage", data).await), -32005);
    assert_eq!(
        post(&site, "reader", &[VERSION], &json!({"id": 1, "method": "SendMessage", "params": say("hi")}))
            .await
            .problem()
            .0,
        403
    );
    let bearer = site.bearer("ada");
    let form = [("authorization", bearer.as_str()), ("content-type", "text/plain"), VERSION];
    let refused = site.raw(Method::POST, "/a2a/clerk", &form, &list.to_string()).await;
    assert_eq!(refused.problem().0, 415);
}

#[tokio::test]
async fn a_task_is_its_users() {
    let site = Site::new("assistant: hello\n").await;
    let task = call(&site, "ada", "SendMessage", say("hi")).await["result"]["task"].clone();
    assert_eq!((task["id"].as_str(), task["contextId"].as_str()), (Some("hi@s1"), Some("s1")), "{task}");
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(task["history"][0]["parts"], json!([{"text": "hi"}]));
    for method in ["GetTask", "CancelTask", "SubscribeToTask"] {
        assert_eq!(code(&call(&site, "bob", method, json!({"id": "hi@s1"})).await), -32001, "{method}");
    }
    assert_eq!(call(&site, "bob", "ListTasks", json!({})).await["result"]["tasks"], json!([]));
    let listed = call(&site, "reader", "ListTasks", json!({"status": "TASK_STATE_COMPLETED"})).await;
    assert_eq!(listed["result"]["tasks"][0], task);
    // The same message again is the same task.
    let again = call(&site, "ada", "SendMessage", say("hi")).await;
    assert_eq!(again["result"]["task"]["artifacts"], task["artifacts"], "{again}");
}

#[tokio::test]
async fn a_task_that_waits_takes_decisions_in_words() {
    let site = Site::new("assistant: > c1 pay()\nassistant: As you wish.\n").await;
    let task = call(&site, "ada", "SendMessage", say("pay")).await["result"]["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    assert_eq!(task["status"]["message"]["parts"][0]["text"], "Run pay with {}?");
    let answer = |text: &str| json!({"message": {"messageId": "a", "role": "ROLE_USER", "taskId": task["id"], "parts": [{"text": text}]}});
    assert_eq!(code(&call(&site, "ada", "SendMessage", answer("perhaps")).await), -32602);
    // Another message of the context waits until then, and can be taken back.
    let next = call(&site, "ada", "SendMessage", say("hello?")).await["result"]["task"].clone();
    assert_eq!(next["status"]["state"], "TASK_STATE_SUBMITTED", "{next}");
    let taken_back = call(&site, "ada", "CancelTask", json!({"id": next["id"]})).await;
    assert_eq!(taken_back["result"]["status"]["state"], "TASK_STATE_CANCELED", "{taken_back}");
    assert_eq!(code(&call(&site, "ada", "GetTask", json!({"id": next["id"]})).await), -32001);
    let task = call(&site, "ada", "SendMessage", answer("reject too dear")).await["result"]["task"].clone();
    assert_eq!(task["artifacts"][0]["parts"], json!([{"text": "As you wish."}]), "{task}");
    assert_eq!(code(&call(&site, "ada", "SendMessage", answer("approve")).await), -32004, "it has ended");
    assert_eq!(code(&call(&site, "ada", "SubscribeToTask", json!({"id": task["id"]})).await), -32004);
}

#[tokio::test]
async fn a_task_continues_without_its_client_and_is_cancelled_by_name() {
    let (site, open) = waiting_site(Limits::default()).await;
    let mut live = site.live("ada", "s1", None).await;
    let mut send = say("wait");
    send["configuration"] = json!({"returnImmediately": true});
    let task = call(&site, "ada", "SendMessage", send).await["result"]["task"].clone();
    live.until("tool_started").await;
    let got = call(&site, "ada", "GetTask", json!({"id": task["id"], "historyLength": 0})).await;
    assert_eq!(got["result"]["status"]["state"], "TASK_STATE_WORKING", "{got}");
    assert_eq!(got["result"]["history"], json!([]));
    // Who subscribes and leaves changes nothing.
    let subscribe =
        json!({"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task["id"]}});
    {
        let stream = post(&site, "ada", &[VERSION], &subscribe);
        tokio::select! {
            reply = stream => panic!("{}", reply.text),
            () = tokio::task::yield_now() => {}
        }
    }
    let cancelled = call(&site, "ada", "CancelTask", json!({"id": task["id"]})).await;
    assert_eq!(cancelled["result"]["status"]["state"], "TASK_STATE_CANCELED", "{cancelled}");
    drop(open);
}

/// What a principal may not ask for is not read. It may nest deeper than a value can.
#[tokio::test]
async fn the_role_comes_before_what_a_call_says() {
    let site = Site::new("").await;
    let deep = format!("{}1{}", "[".repeat(500), "]".repeat(500));
    let call = async |user: &str, method: &str, id: &str, params: &str| {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let bearer = site.bearer(user);
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json"), VERSION];
        site.raw(Method::POST, "/a2a/clerk", &headers, &body).await
    };
    for method in ["SendMessage", "SendStreamingMessage", "CancelTask"] {
        let refused = call("reader", method, "1", &deep).await;
        assert_eq!(refused.problem(), (403, "forbidden".to_owned()), "{method}: {}", refused.text);
        assert_eq!(call("ada", method, "1", &deep).await.json()["error"]["code"], -32602, "{method}");
    }
    let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(100_000));
    for (method, params) in [("GetTask", long.as_str()), ("ListTasks", &long), ("GetTask", &deep)] {
        assert_eq!(call("reader", method, "1", params).await.json()["error"]["code"], -32602, "{method}");
    }
    for id in [deep.as_str(), "{}"] {
        let told = call("reader", "ListTasks", id, "{}").await.json();
        assert_eq!((&told["error"]["code"], &told["id"]), (&json!(-32600), &json!(null)));
    }
    for id in ["7", "\"seven\"", "null"] {
        let told = call("reader", "ListTasks", id, "{}").await.json();
        assert_eq!(told["id"], serde_json::from_str::<Value>(id).unwrap());
    }
}

/// An erasure ends a task that waits, by content of the task itself or by that of an earlier one; a completed one stays completed.
#[tokio::test]
async fn a_task_is_ended_by_an_erasure() {
    for (versions, first, second) in [
        (json!([1]), "TASK_STATE_COMPLETED", "TASK_STATE_CANCELED"),
        (json!([2]), "TASK_STATE_COMPLETED", "TASK_STATE_CANCELED"),
        (json!([3]), "TASK_STATE_COMPLETED", "TASK_STATE_CANCELED"),
        (json!([1, 2, 3, 4]), "TASK_STATE_COMPLETED", "TASK_STATE_CANCELED"),
    ] {
        let site = Site::new("assistant: hello\nassistant: > c1 pay()\nassistant: never\n").await;
        call(&site, "ada", "SendMessage", say("hi")).await;
        let waits = call(&site, "ada", "SendMessage", say("pay")).await["result"]["task"].clone();
        assert_eq!(waits["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{waits}");
        let body = json!({"user": "ada", "session": "s1", "versions": versions, "reason": "ticket 20"});
        let erased = site.post("root", "/erasures", body).await;
        assert_eq!(erased.status, 200, "{}", erased.text);
        let listed = call(&site, "ada", "ListTasks", json!({})).await["result"]["tasks"].clone();
        let states = [&listed[1]["status"]["state"], &listed[0]["status"]["state"]];
        assert_eq!(states, [first, second], "{versions}: {listed}");
        let why = listed[0]["status"]["message"]["parts"][0]["text"].as_str().unwrap_or_default();
        assert!(why.contains("eras"), "{versions}: {listed}");
        let id = json!({"id": waits["id"]});
        assert_eq!(call(&site, "ada", "GetTask", id.clone()).await["result"], listed[0]);
        assert_eq!(code(&call(&site, "ada", "SubscribeToTask", id.clone()).await), -32004);
        assert_eq!(code(&call(&site, "ada", "CancelTask", id).await), -32002);
    }
}
