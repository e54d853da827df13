//! Graph files with faults: all of them are found at once, each with its line, and those of its agents with theirs.

use expect_test::{Expect, expect};

use crate::room::Room;

fn check(text: &str, expect: Expect) {
    let room = Room::new("", "");
    room.write("g.toml", text);
    room.check("check g.toml", expect);
}

const FAULTY: &str = r#"modle = "x"
model = "nobody:x"
per_run = true

[state.found]
type = "array"

[state.verdict]
type = "strng"

[nodes.plan]
agent = { instructions = "You help {who}.", tools = { a = { description = "A.", builtin = { name = "clock" } } } }
asks = "Plan {questoin}, {item}, {found.0} and {later?}."
answers = "notse"
reads = ["found"]

[nodes.none]
asks = "x"

[nodes.both]
says = "x"
command = ["true"]

[nodes.save]
command = { argv = ["./save.sh"], output_bytes = "many" }
answers = { found = "x", missing = "y" }
reads = ["fuond"]
at_limit = "rescue"
effect = "at_most_once"
retries = 2
timeout = "soon"

[nodes.wrong]
command = 3
on_error = "save"
go_on_after_error = true

[nodes.END]
says = "x"

[nodes.inline]
agent.state.own.type = "string"
shares = ["own"]

[limits]
steps = 0
branches = "all"

[[edges]]
from = "START"
to = ["plan", "plam"]

[[edges]]
from = ["plan", "START"]
to = "END"

[[edges]]
from = "END"
to = "START"
each = "found"

[[edges]]
from = ["plan", "save"]
to = "both"
each = "fuond"

[[edges]]
from = []
to = 3

[[routes]]
from = "judge"
key = "verdcit"
cases = { enough = "reprot", more = 3 }"#;

#[test]
fn every_fault_has_its_line() {
    check(
        FAULTY,
        expect![[r#"
            g.toml:1:1: unknown field `modle`; did you mean `model`?
            g.toml:2:1: unknown provider `nobody` in `nobody:x`; available: anthropic, gemini, openai, azure, openrouter, deepseek, qwen, moonshot, groq, mistral, together, xai, cerebras, perplexity, huggingface, zai, fireworks, venice, snowflake, ollama-cloud, ollama, vllm, llama.cpp, lmstudio
            g.toml:3:1: missing state keys: agents follow `model_id`, `params` and `auto`; declare at least one
            g.toml:9:1: invalid JSON Schema: unknown type "strng"; available: null, boolean, integer, number, string, array, object
            g.toml:12:11: instructions: unknown state key "who": declare it in the agent's schema, or in that of the graph around it, or double the braces if it is text
            g.toml:13:1: unknown state key `questoin`; declare it, or double the braces if it is text
            g.toml:13:1: unknown state key `later`; declare it, or double the braces if it is text
            g.toml:14:1: unknown state key `notse`; available: found, verdict, messages
            g.toml:15:1: unsupported field `reads`: only for a program
            g.toml:17:8: invalid node: expected one of `agent`, `command` and `says`
            g.toml:18:1: unsupported field `asks`: only for an agent
            g.toml:20:8: invalid node: expected one of `agent`, `command` and `says`, found several
            g.toml:25:13: program ./save.sh not found, relative to the folder of this file
            g.toml:25:35: expected integer, found string
            g.toml:26:1: a field requires JSON output: write the command as a table, with `output = "json"`
            g.toml:26:26: unknown state key `missing`; available: found, verdict, messages
            g.toml:27:10: unknown state key `fuond`; did you mean `found`?
            g.toml:28:1: unknown node `rescue`; available: plan, none, both, save, wrong, END, inline
            g.toml:30:1: unsupported retries: the node must not run twice
            g.toml:31:1: invalid duration: expected one such as 500ms, 30s or 2m
            g.toml:34:1: expected list or object, found integer
            g.toml:36:1: conflicts with `on_error`, which sets the next node
            g.toml:38:8: invalid node name END: it is reserved for the beginning and end of the graph
            g.toml:41:8: node `inline`: invalid shared key "own": both schemas must declare it equally
            g.toml:42:7: unsupported state: an agent inside a graph file uses the graph's state; declare the keys there
            g.toml:46:1: limits.steps: must be positive: no node could run
            g.toml:47:1: expected integer, found string
            g.toml:51:15: unknown node `plam`; did you mean `plan`?
            g.toml:54:17: invalid join: it waits for nodes, and START is not a node
            g.toml:55:1: invalid join: its target must be a node, not END
            g.toml:58:1: invalid source END: the graph ends there
            g.toml:59:1: invalid target START: the graph begins there
            g.toml:65:1: unknown state key `fuond`; did you mean `found`?
            g.toml:65:1: invalid join: it has one target; put a node between it and the branches
            g.toml:68:1: missing node
            g.toml:69:1: expected string or list, found integer
            g.toml:71:1: missing `otherwise`
            g.toml:72:1: unknown node `judge`; available: plan, none, both, save, wrong, END, inline
            g.toml:73:1: unknown state key `verdcit`; did you mean `verdict`?
            g.toml:74:11: unknown node `reprot`; available: plan, none, both, save, wrong, END, inline
            g.toml:74:30: expected string, found integer
            exit 2
        "#]],
    );
}

#[test]
fn what_leads_nowhere_has_its_line() {
    check(
        r#"
edges = [
    { from = "START", to = "judge" },
    { from = ["left", "right"], to = "both" },
    { from = "lost", to = "END" },
]

[[routes]]
from = "judge"
key = "verdict"
cases = { left = "left" }
otherwise = "right"

[state.verdict]
type = "string"

[state.execution_counts]
type = "string"

[nodes.judge]
command = ["true"]
max_executions = 0

[nodes.left]
says = "left"

[nodes.right]
says = "right"
at_limit = "right"

[nodes.both]
says = "both"

[nodes.lost]
says = "lost"

[limits]
parallel = 0
"#,
        expect![[r#"
            g.toml:20:8: node `judge`: must be allowed to run: raise its limit, or remove it
            g.toml:27:8: node `right`: invalid fallback: it cannot replace itself at its limit
            g.toml:34:8: node `lost`: not reachable from START: add a route to it, or remove it
            g.toml:38:1: limits.parallel: must be positive: nothing could run
            exit 2
        "#]],
    );
    check(
        r#"
edges = [
    { from = "START", to = "judge" },
    { from = ["left", "right"], to = "both" },
]
state.verdict.type = "string"
nodes.judge.command = ["true"]
nodes.left.says = "left"
nodes.right.says = "right"
nodes.both.says = "both"

[[routes]]
from = "judge"
key = "verdict"
cases = { left = "left" }
otherwise = "right"
"#,
        expect![[r#"
            g.toml:4:7: join at `both`: cannot complete: node `judge` chooses between the nodes that it waits for
            exit 2
        "#]],
    );
    check(
        r#"
edges = [{ from = "START" }]
nodes.a.says = "x"
routes = [{ from = "a", otherwise = "END" }]
"#,
        expect![[r#"
            g.toml:2:10: missing `to`
            g.toml:4:11: missing `key`
            g.toml:4:11: missing `cases`
            exit 2
        "#]],
    );
    check(
        "nodes.a.says = \"x\"\n",
        expect![[r#"
        g.toml:1:1: START: missing edge: add one from it
        exit 2
    "#]],
    );
}

#[test]
fn a_faulty_agent_file_is_named_with_its_own_lines() {
    let room = Room::new("", "");
    room.write(
        "g.toml",
        r#"
edges = [{ from = "START", to = ["one", "two", "three", "four", "five"] }]
nodes.one.agent = "sub/faulty.toml"
nodes.two.agent = "sub/faulty.toml"
nodes.three.agent = "nowhere.toml"
nodes.four.agent = "sub/round.toml"
nodes.five.agent = "sub/open.toml"
"#,
    );
    std::fs::create_dir(room.path("sub")).unwrap();
    room.write("sub/faulty.toml", "nmae = \"x\"\nmodel = \"script:none\"\n\n[limits]\nsteps = 0\n");
    room.write(
        "sub/round.toml",
        "edges = [{ from = \"START\", to = \"a\" }]\nnodes.a.agent = \"../g.toml\"\n",
    );
    room.write("sub/open.toml", "name = [");
    room.check(
        "check g.toml",
        expect![[r#"
            g.toml:3:11: invalid file sub/faulty.toml
            g.toml:4:11: invalid file sub/faulty.toml
            g.toml:5:13: file nowhere.toml could not be read: No such file or directory (os error 2)
            g.toml:6:12: invalid file sub/round.toml
            g.toml:7:12: invalid file sub/open.toml
            sub/faulty.toml:1:1: unknown field `nmae`; did you mean `name`?
            sub/faulty.toml:2:1: the script sub/none cannot be read: No such file or directory (os error 2)
            sub/faulty.toml:5:1: limits.steps: must be positive: the model could not be called
            sub/round.toml:2:9: recursive graph: ../g.toml contains this one
            sub/open.toml:1:9: unclosed array, expected `]`
            exit 2
        "#]],
    );
    room.check("check --json g.toml", expect![[r#"
        {"faults":[{"line":3,"column":11,"message":"invalid file sub/faulty.toml"},{"line":4,"column":11,"message":"invalid file sub/faulty.toml"},{"line":5,"column":13,"message":"file nowhere.toml could not be read: No such file or directory (os error 2)"},{"line":6,"column":12,"message":"invalid file sub/round.toml"},{"line":7,"column":12,"message":"invalid file sub/open.toml"},{"file":"sub/faulty.toml","line":1,"column":1,"message":"unknown field `nmae`; did you mean `name`?"},{"file":"sub/faulty.toml","line":2,"column":1,"message":"the script sub/none cannot be read: No such file or directory (os error 2)"},{"file":"sub/faulty.toml","line":5,"column":1,"message":"limits.steps: must be positive: the model could not be called"},{"file":"sub/round.toml","line":2,"column":9,"message":"recursive graph: ../g.toml contains this one"},{"file":"sub/open.toml","line":1,"column":9,"message":"unclosed array, expected `]`"}],"file":"g.toml"}
        exit 2
    "#]]);
    room.check(
        "run g.toml hello",
        expect![[r#"
            | error: g.toml:3:11: invalid file sub/faulty.toml
            | g.toml:4:11: invalid file sub/faulty.toml
            | g.toml:5:13: file nowhere.toml could not be read: No such file or directory (os error 2)
            | g.toml:6:12: invalid file sub/round.toml
            | g.toml:7:12: invalid file sub/open.toml
            | sub/faulty.toml:1:1: unknown field `nmae`; did you mean `name`?
            | sub/faulty.toml:2:1: the script sub/none cannot be read: No such file or directory (os error 2)
            | sub/faulty.toml:5:1: limits.steps: must be positive: the model could not be called
            | sub/round.toml:2:9: recursive graph: ../g.toml contains this one
            | sub/open.toml:1:9: unclosed array, expected `]`
            exit 2
        "#]],
    );
}

/// The agent of another file reads the graph's keys in its instructions and bindings; a key that neither has is a fault,
/// also where it may be absent.
#[test]
fn an_agent_of_another_file_reads_the_graphs_keys() {
    let room = Room::new("", "");
    let graph = |shares: &str| {
        format!(
            "state.notes.type = \"string\"\nstate.area.type = \"integer\"\n\n[[edges]]\nfrom = \"START\"\nto = \"write\"\n\n\
             [nodes.write]\nagent = \"writer.toml\"\n{shares}"
        )
    };
    let writer = |name: &str| {
        format!(
            "model = \"script:talk\"\ninstructions = \"Notes: {{{name}?}}, {{own?}}.\"\nstate.own.type = \"string\"\n\n\
             [tools.look]\ndescription = \"Looks.\"\ncommand = {{ argv = [\"true\"] }}\n\
             parameters = {{ properties = {{ n = {{ type = \"integer\" }} }} }}\ninputs_from_state = {{ area = \"n\" }}\n"
        )
    };
    room.write("talk", "assistant: done");
    room.write("writer.toml", &writer("notes"));
    room.write("g.toml", &graph(""));
    room.check(
        "check g.toml",
        expect![[r#"
        g.toml: ok
    "#]],
    );
    room.write("g.toml", &graph("shares = [\"area\"]\n"));
    room.check("check g.toml", expect![[r#"
        g.toml:9:1: invalid file writer.toml
        writer.toml:2:1: instructions: unknown state key "notes": declare it in the agent's schema, or in that of the graph around it, or double the braces if it is text
        exit 2
    "#]]);
    room.write("g.toml", &graph(""));
    room.write("writer.toml", &writer("nots"));
    room.check("check g.toml", expect![[r#"
        g.toml:9:1: invalid file writer.toml
        writer.toml:2:1: instructions: unknown state key "nots": declare it in the agent's schema, or in that of the graph around it, or double the braces if it is text
        exit 2
    "#]]);
}

#[test]
fn the_schema_is_printed() {
    let room = Room::new("", "");
    let schema: serde_json::Value = serde_json::from_str(&room.say("schema graph", "")).unwrap();
    assert_eq!(schema["title"], "A stepfold graph");
    let fields: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    assert_eq!(fields[..4], ["name", "model", "state", "open_state"]);
    let edge = &schema["properties"]["edges"]["items"];
    assert_eq!(edge["required"], serde_json::json!(["from", "to"]));
    // An agent in a node is described whole, for editors.
    let agent = &schema["properties"]["nodes"]["additionalProperties"]["properties"]["agent"];
    let forms: Vec<&serde_json::Value> =
        agent["anyOf"].as_array().unwrap().iter().map(|form| &form["type"]).collect();
    assert_eq!(forms, ["string", "object"]);
}
