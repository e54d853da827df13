//! `stepfold serve` is killed again and again while it runs an experiment: the report is that of a server that was not killed.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::room::Room;
use crate::serve_kill::Site;

const AGENT: &str = r#"
[tools.look]
description = "Looks at an area."
parameters = { properties = { area = { type = "integer" } }, required = ["area"] }
effect = "pure"
command = { argv = ["sh", "-c", "echo looked >> ledger; sleep 0.1; echo 4"] }
"#;

const KILLS: u32 = 6;
const CASES: usize = 20;

fn site() -> Site {
    let room = Room::new(AGENT, "assistant: > c1 look(area=3)\nassistant: There are 4.\n");
    let mut cases = String::new();
    for case in 0..CASES {
        let expect = json!(["answered", "no_failed_calls", {"text_contains": ["4"]}]);
        let case = json!({"name": format!("c{case:02}"), "say": "how many?", "expect": expect});
        let _ = writeln!(cases, "{case}");
    }
    std::fs::create_dir_all(room.path("experiments/a/ada")).unwrap();
    room.write("experiments/a/ada/mine.jsonl", &cases);
    Site::new(room)
}

const OPTIONS: &str = "--model script:a.script --experiments experiments";
const EXPERIMENTS: &str = "/api/v1/apps/a/experiments";

fn begin(site: &Site, name: &str) {
    let body = json!({"name": name, "data_set": "mine", "allow": ["look"]}).to_string();
    let (status, row) = site.ask(0, &format!("POST {EXPERIMENTS}"), "", &body).expect("an answer");
    assert_eq!((status, &row["name"], &row["expected"]), (202, &json!(name), &json!(CASES)), "{row}");
}

fn read(site: &Site, name: &str) -> Option<Value> {
    let (status, body) = site.ask(0, &format!("GET {EXPERIMENTS}/{name}"), "", "")?;
    assert_eq!(status, 200, "{body}");
    Some(body["experiment"].clone())
}

fn until_ended(site: &Site, name: &str) -> Value {
    for _ in 0..2_400 {
        let row = read(site, name).expect("the server answers");
        if !["waiting", "running"].contains(&row["status"].as_str().unwrap()) {
            return row;
        }
        // tidy: allow sleep, because a client of the API learns of results by asking
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{name} does not end");
}

#[test]
fn a_killed_server_continues_its_experiment() {
    let site = site();
    let looked = || std::fs::read_to_string(site.room.path("ledger")).unwrap_or_default().lines().count();
    let mut server = site.start_with(OPTIONS);
    begin(&site, "whole");
    let row = until_ended(&site, "whole");
    assert_eq!((&row["status"], &row["passed"], looked()), (&json!("done"), &json!(CASES), CASES), "{row}");

    begin(&site, "killed");
    let mut results = 0;
    for kill in 1..=KILLS {
        // tidy: allow sleep, because the kill comes at another moment each time
        std::thread::sleep(Duration::from_millis(130 + 37 * u64::from(kill)));
        server.kill().unwrap();
        server.wait().unwrap();
        server = site.start_with(OPTIONS);
        let row = read(&site, "killed").expect("the server answers");
        let now = row["cases"].as_u64().unwrap();
        assert!(now >= results, "no result is lost: {results}, then {row}");
        results = now;
    }
    assert!(results > 0, "some results were taken");
    let row = until_ended(&site, "killed");
    assert_eq!((&row["status"], &row["passed"]), (&json!("done"), &json!(CASES)), "{row}");
    let report =
        |name: &str| std::fs::read_to_string(site.room.path(&format!("experiments/a/ada/{name}.report")));
    assert_eq!(report("killed").unwrap(), report("whole").unwrap());
    // Each kill costs the case at hand.
    let again = looked() - 2 * CASES;
    assert!(again <= KILLS as usize, "{again} cases were tried again");
    assert_eq!(std::fs::read_dir(site.room.path("experiments/a/.jobs")).unwrap().count(), 0);
    server.kill().unwrap();
    server.wait().unwrap();
}
