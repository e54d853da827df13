//! Agent files with faults: all of them are found at once, each with its line.

use expect_test::expect;

use crate::room::Room;

fn check(text: &str, expect: expect_test::Expect) {
    let room = Room::new("", "");
    room.write("f.toml", text);
    room.check("check f.toml", expect);
}

#[test]
fn every_fault_has_its_line() {
    check(
        r#"nmae = "x"
model = "nobody:x"
instructions = "You help {who}."
exit_on = ["submit", "conut"]
approval = "sometimes"

[limits]
steps = 0
time = "soon"

[state.visits]
type = "integr"

[state.total]
handler = "add"

[state."bad key"]
type = "string"

[tools.count]
description = "Counts."
command = { argv = ["./count.sh"], output_bytes = "many" }
outputs_to_state = { visitors = { source = "n" } }

[tools.both]
description = "Both."
command = { argv = ["true"] }
builtin = { name = "clock" }

[tools.none]
description = "None."

[tools.remember]
builtin = { name = "remember" }

[tools.ask]
description = "Asks."
retries = 2
parameters = { properties = { id = { type = "integer" } } }
http = { url = "https://example.org/{area}", hosts = ["api.example.org"] }

[trim]
pins = { messages = 3 }
"#,
        expect![[r#"
            f.toml:1:1: unknown field `nmae`; did you mean `name`?
            f.toml:2:1: unknown provider `nobody` in `nobody:x`; available: anthropic, gemini, openai, azure, openrouter, deepseek, qwen, moonshot, groq, mistral, together, xai, cerebras, perplexity, huggingface, zai, fireworks, venice, snowflake, ollama-cloud, ollama, vllm, llama.cpp, lmstudio
            f.toml:3:1: instructions: unknown state key "who": declare it in the agent's schema, or in that of the graph around it, or double the braces if it is text
            f.toml:4:12: unknown tool `submit`; available: count, both, none, remember, ask
            f.toml:4:22: unknown tool `conut`; did you mean `count`?
            f.toml:5:1: expected one of never, always, once
            f.toml:8:1: limits.steps: must be positive: the model could not be called
            f.toml:9:1: invalid duration: expected one such as 500ms, 30s or 2m
            f.toml:12:1: invalid JSON Schema: unknown type "integr"; available: null, boolean, integer, number, string, array, object
            f.toml:15:1: unknown handler "add"; known handlers: replace_values, merge_lists, union, upsert_by(field), keep_last(n), merge_maps, sum, max, min, first_wins
            f.toml:22:13: program ./count.sh not found, relative to the folder of this file
            f.toml:22:36: expected integer, found string
            f.toml:23:1: a field requires JSON output: add `output = "json"` to the command or the server
            f.toml:23:22: unknown state key `visitors`; did you mean `visits`?
            f.toml:25:8: invalid tool: expected one of `command`, `http` and `builtin`, found several
            f.toml:30:8: invalid tool: expected one of `command`, `http` and `builtin`
            f.toml:34:1: missing `keys` of `remember`: the keys that the model may write
            f.toml:40:10: unknown parameter `area`: declare it in `parameters`
            f.toml:40:10: host `example.org` not allowed; allowed: api.example.org
            f.toml:43:1: pins require `keep_last`: add it
            exit 2
        "#]],
    );
}

/// What a model is shown: each table is checked at its line.
#[test]
fn tables_about_the_context_have_their_faults() {
    check(
        r#"model = "ollama:x"

[trim]
when_over = 100
pins = { messages = 3, counts = "some" }


[clear_results]
newest = 3

[window]
tokens = 0
shrink_to_percent = 140

[summarize]
keep_last = 20
when_over = 10
model = "nobody:x"

[recall]
sessions = "all"
"#,
        expect![[r#"
            f.toml:4:1: a threshold requires `keep_last`: add it
            f.toml:5:1: pins require `keep_last`: add it
            f.toml:5:24: expected one of shown, pinned
            f.toml:9:1: unknown field `newest`; available: newest_steps, above_tokens, except
            f.toml:12:1: invalid number 0: must be at least 1
            f.toml:13:1: invalid share: must be 1 to 100
            f.toml:17:1: invalid value 10: must be at least the 20 of `keep_last`
            f.toml:18:1: unknown provider `nobody` in `nobody:x`; available: anthropic, gemini, openai, azure, openrouter, deepseek, qwen, moonshot, groq, mistral, together, xai, cerebras, perplexity, huggingface, zai, fireworks, venice, snowflake, ollama-cloud, ollama, vllm, llama.cpp, lmstudio
            f.toml:21:1: expected one of own, user
            exit 2
        "#]],
    );
}

#[test]
fn a_placeholder_that_is_not_closed_is_a_fault() {
    check(
        "instructions = \"\"\"You have {basket.\nYou are {user:name and {who}. {{text\"\"\"\n[state]\nbasket.type = \"string\"\nwho.type = \"string\"\n",
        expect![[r#"
            f.toml:1:1: instructions: `{basket` is not closed; write `{basket}`, or `{{basket` if it is text
            f.toml:1:1: instructions: `{user:name` (line 2 of it) is not closed; write `{user:name}`, or `{{user:name` if it is text
            exit 2
        "#]],
    );
    check(
        "model = \"ollama:x\"\nedges = [{ from = \"START\", to = \"a\" }]\n[nodes.a]\nasks = \"Have {basket\"\nagent = { instructions = \"Count {basket\" }\n",
        expect![[r#"
            f.toml:4:1: asks: `{basket` is not closed; write `{basket}`, or `{{basket` if it is text
            f.toml:5:11: instructions: `{basket` is not closed; write `{basket}`, or `{{basket` if it is text
            exit 2
        "#]],
    );
}

#[test]
fn an_empty_file_is_a_fault() {
    check(
        "",
        expect![[r#"
        f.toml:1:1: empty file: an agent has `instructions`, `tools` or a `model`, and a graph has `nodes`
        exit 2
    "#]],
    );
}

#[test]
fn a_bad_handler_is_found_after_a_bad_type() {
    check(
        "[state.a]\ntype = \"integr\"\nhandler = \"add\"\ndefault = 1\n[state.b]\ntype = \"string\"\nhandler = \"sum\"\ndefault = 2\n\
         [state.c]\ntype = \"integer\"\nhandler = \"plus\"\ndefault = \"x\"\n",
        expect![[r#"
            f.toml:2:1: invalid JSON Schema: unknown type "integr"; available: null, boolean, integer, number, string, array, object
            f.toml:3:1: unknown handler "add"; known handlers: replace_values, merge_lists, union, upsert_by(field), keep_last(n), merge_maps, sum, max, min, first_wins
            f.toml:7:1: invalid handler sum: requires number, found string
            f.toml:8:1: invalid default: invalid value for key "b": expected string, found integer at $
            f.toml:11:1: unknown handler "plus"; known handlers: replace_values, merge_lists, union, upsert_by(field), keep_last(n), merge_maps, sum, max, min, first_wins
            f.toml:12:1: invalid default: invalid value for key "c": expected integer, found string at $
            exit 2
        "#]],
    );
}

/// What does not fit is left out, and nothing that follows from that is told; what comes after it keeps its place.
#[test]
fn a_value_that_does_not_fit_is_reported_once() {
    check(
        "exit_on = [3, \"nope\"]\nparams.seed = 99999999999999999999\nlimits.steps = -1\n\n\
         [tools.a]\ndescription = \"A.\"\ncommand = { argv = 3 }\n\n\
         [tools.b]\ndescription = \"B.\"\ncomand = [\"true\"]\n\n\
         [tools.c]\ndescription = \"C.\"\nhttp = { url = \"https://example.org\" }\n",
        expect![[r#"
            f.toml:1:12: expected string, found integer
            f.toml:1:15: unknown tool `nope`; available: a, b, c
            f.toml:2:8: the number does not fit 64 bits
            f.toml:3:8: invalid value: integer `-1`, expected 0 or more
            f.toml:7:13: expected list, found integer
            f.toml:11:1: unknown field `comand`; did you mean `command`?
            f.toml:15:1: missing `hosts`
            exit 2
        "#]],
    );
}

#[test]
fn invalid_toml_has_lines_too() {
    check(
        "name = \n[tools\nx = 1\ny = [1,, 2]\n",
        expect![[r#"
            f.toml:1:8: string values must be quoted, expected literal string
            f.toml:2:7: unclosed table, expected `]`
            f.toml:4:8: extra comma in array, expected value
            exit 2
        "#]],
    );
}

#[test]
fn a_sound_file_is_ok_and_all_are_looked_at() {
    let room = Room::new("", "");
    room.write("f.toml", "exit_on = 3");
    room.check(
        "check a.toml f.toml",
        expect![[r#"
        a.toml: ok
        f.toml:1:1: expected list, found integer
        exit 2
    "#]],
    );
    room.check(
        "check --json f.toml",
        expect![[r#"
        {"faults":[{"line":1,"column":1,"message":"expected list, found integer"}],"file":"f.toml"}
        exit 2
    "#]],
    );
    room.check(
        "run f.toml hello",
        expect![[r#"
        | error: f.toml:1:1: expected list, found integer
        exit 2
    "#]],
    );
}

#[test]
fn the_schema_is_printed() {
    let room = Room::new("", "");
    let schema: serde_json::Value = serde_json::from_str(&room.say("schema", "")).unwrap();
    assert_eq!(schema["title"], "A stepfold agent");
    let fields: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
    assert_eq!(fields[..4], ["name", "model", "instructions", "state"]);
}

/// The files that the project shows are sound.
#[test]
fn the_examples_are_sound() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/agents");
    let room = Room::new("", "");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            let said = room.say(&format!("check '{}'", path.display()), "");
            // Of MCP servers it says that they were not started.
            let ok = format!("{}: ok", path.display());
            assert!(said.lines().count() == 1 && said.starts_with(&ok), "{said}");
            count += 1;
        }
    }
    assert!(count > 0);
}

/// The agent works without it, so that the file is in order.
#[test]
fn a_tool_that_the_model_is_not_offered_is_listed_with_the_reason() {
    let tool = |at: usize| {
        format!("[tools.t{at}]\ndescription = \"Tool {at}.\"\ncommand = {{ argv = [\"true\"] }}\n")
    };
    let tools: String = (100..229).map(tool).collect();
    let room = Room::new("", "");
    room.write("many.toml", &format!("model = \"openai:gpt-4.1\"\n{tools}"));
    room.check("check many.toml", expect![[r#"
        many.toml: ok
        many.toml: agent many: openai/gpt-4.1 is not offered the tool t228: this provider takes at most 128 tools
    "#]]);
    room.check("check many.toml --json", expect![[r#"
        {"faults":[],"file":"many.toml","omitted_tools":[{"agent":"many","model":"openai/gpt-4.1","reason":"this provider takes at most 128 tools","tool":"t228"}]}
    "#]]);
    room.write("anthropic.toml", &format!("model = \"anthropic:claude-sonnet-4-5\"\n{tools}"));
    room.check(
        "check anthropic.toml",
        expect![[r#"
        anthropic.toml: ok
    "#]],
    );
}
