//! Data sets for pydantic-evals and ADK: their own programs load what is written, and evaluate by it.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::chromium::told;
use crate::eval::paying_room;
use crate::installed::installed;
use crate::room::Room;

/// A written case beside those of sessions, whose texts mean something else to careless readers of YAML.
const WRITTEN: &str = r#"
[[case]]
name = "no: 12:30"
say = "pay\n\t- \"1e3\" # ~ \u2028 \U0001F600"
expect = [{ text_contains = ["paid", "12"] }, { text_equals = "I have paid 12." }, { max_tokens = 9 }]

[[case]]
name = "values"
say = "pay"
values = { euro = 12, rate = 1e100 }
expect = [{ text_contains = ["13"] }]
"#;

fn script(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(name)
}

#[test]
fn pydantic_evals_loads_a_data_set_and_evaluates_by_it() {
    let Some(python) = installed("STEPFOLD_INTEROP_PYDANTIC_EVALS") else { return };
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl --newest 1", "");
    std::fs::write(room.path("written.toml"), WRITTEN).unwrap();
    room.say("eval export written.toml written.yaml", "");
    room.say("eval import written.yaml cases.jsonl", "");
    room.say("eval export cases.jsonl cases.yaml", "");
    let mut peer = Command::new(&python);
    peer.arg(script("evals.py")).args([room.path("cases.yaml"), room.path("again.yaml")]);
    let seen = told(&mut peer);
    let recorded =
        seen["cases"].as_object().unwrap().keys().find(|name| name.contains("/s")).unwrap().clone();
    let expected = json!({
        "name": "cases",
        "cases": {
            recorded.as_str(): {"inputs": "pay the bill", "evaluators": []},
            "no: 12:30": {
                "inputs": "pay\n\t- \"1e3\" # ~ \u{2028} \u{1f600}",
                "evaluators": ["Contains", "Contains", "Equals"],
            },
            "values": {"inputs": {"say": "pay", "values": {"euro": 12, "rate": 1e100}}, "evaluators": ["Contains"]},
        },
        "scores": {
            recorded.as_str(): {},
            "no: 12:30": {"Contains": true, "Contains_2": true, "Equals": true},
            "values": {"Contains": false},
        },
        "failures": 0,
    });
    assert_eq!(seen, expected, "{seen:#}");
    // Written again by its program, it is the same data set.
    let again = room.say("eval import again.yaml again.jsonl", "");
    assert!(again.starts_with("3 cases added to again.jsonl; 0 already there, 0 unsuited"), "{again}");
    let lines = |name: &str| std::fs::read_to_string(room.path(name)).unwrap();
    assert_eq!(lines("again.jsonl"), lines("cases.jsonl"));
}

/// The summary of `adk eval` of the agent that pays.
fn adk_eval(python: &Path, room: &Room, file: &str) -> String {
    let folder = room.path("clerk");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("__init__.py"), "from . import agent\n").unwrap();
    std::fs::copy(script("adk_eval_agent.py"), folder.join("agent.py")).unwrap();
    std::fs::write(room.path("config.json"), r#"{"criteria": {"tool_trajectory_avg_score": 1.0}}"#).unwrap();
    let mut adk = Command::new(python.with_file_name("adk"));
    adk.current_dir(room.folder()).args(["eval", "clerk", file, "--config_file_path", "config.json"]);
    let output = adk.output().unwrap();
    // Its status is 1 where a test has failed.
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("Eval Run Summary"), "{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn adk_evaluates_by_an_eval_set() {
    let Some(python) = installed("STEPFOLD_INTEROP_ADK") else { return };
    let room = paying_room();
    room.say("eval add a.toml cases.jsonl --newest 2", "");
    room.say("eval export cases.jsonl cases.json", "");
    let passed = adk_eval(&python, &room, "cases.json");
    assert!(passed.contains("Tests passed: 2") && passed.contains("Tests failed: 0"), "{passed}");

    // Other calls are expected: it sees them.
    let expected = "[[case]]\nname = \"w\"\nsay = \"pay\"\nexpect = [{ calls = { order = \"exact\", calls = [{ tool = \
                    \"pay\", arguments = { amount = 13 } }] } }]\n";
    std::fs::write(room.path("other.toml"), expected).unwrap();
    room.say("eval export other.toml other.json", "");
    let failed = adk_eval(&python, &room, "other.json");
    assert!(failed.contains("Tests passed: 0") && failed.contains("Tests failed: 1"), "{failed}");
}
