//! Toolsets: what is offered at a step, and what is refused, with the whole text of each refusal.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use expect_test::{Expect, expect};
use serde_json::json;
use stepfold_tools::state_core::state::{Schema, SchemaBuilder, State};
use stepfold_tools::{Resource, Resources, Tool, ToolError, ToolSource, Tools, Toolset, ToolsetError};

fn tool(name: &str) -> Tool {
    described(name, "Does it.")
}

fn described(name: &str, description: &str) -> Tool {
    async fn done() -> Result<&'static str, ToolError> {
        Ok("done")
    }
    Tool::new(name, description, done).build().unwrap()
}

fn set<const N: usize>(name: &str, tools: [&str; N]) -> Toolset {
    Toolset::new(name, tools.map(tool))
}

fn state() -> State {
    State::new(&Schema::builder().build().unwrap())
}

fn text_of(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        write!(text, ": {error}").unwrap();
        source = error.source();
    }
    text
}

async fn resolved(set: &Toolset, state: &State) -> String {
    match set.resolve(state).await {
        Ok(tools) => tools.names().collect::<Vec<_>>().join(" "),
        Err(error) => text_of(&error),
    }
}

/// What the check says and what a step gets.
async fn check(set: impl Into<Toolset>, expected: Expect) {
    let set = set.into();
    let state = state();
    let checked = match set.check(state.schema(), &Resources::new()) {
        Ok(()) => "fine".to_owned(),
        Err(error) => text_of(&error),
    };
    expected.assert_eq(&format!("check: {checked}\nstep:  {}\n", resolved(&set, &state.clone()).await));
}

/// A source that counts how often it is asked, and lists one tool more each time.
#[derive(Default)]
struct Growing {
    asked: AtomicUsize,
}

impl ToolSource for Growing {
    async fn tools(&self, _: &State) -> Result<Vec<Tool>, Box<dyn Error + Send + Sync>> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        Ok((1..=asked).map(|number| tool(&format!("tool_{number}"))).collect())
    }
}

fn listing<const N: usize>(name: &str, tools: [&str; N]) -> Toolset {
    let tools = tools.map(tool);
    Toolset::dynamic_with(name, move |_| {
        let tools = tools.to_vec();
        async move { Ok(tools) }
    })
}

fn failing(name: &str) -> Toolset {
    Toolset::dynamic_with(name, |_| async { Err("connection refused".into()) })
}

#[tokio::test]
async fn tools_are_offered_in_declared_order() {
    check(
        set("web", ["search", "fetch"]),
        expect![[r#"
        check: fine
        step:  search fetch
    "#]],
    )
    .await;
    check(
        tool("alone"),
        expect![[r#"
        check: fine
        step:  alone
    "#]],
    )
    .await;
    check(
        vec![tool("b"), tool("a")],
        expect![[r#"
        check: fine
        step:  b a
    "#]],
    )
    .await;
    check(
        ["b", "a"].map(tool).into_iter().collect::<Toolset>(),
        expect![[r#"
        check: fine
        step:  b a
    "#]],
    )
    .await;
    check(
        Toolset::merged("all", [set("web", ["search"]), listing("remote", ["read"]), tool("last").into()]),
        expect![[r#"
            check: fine
            step:  search read last
        "#]],
    )
    .await;
}

#[tokio::test]
async fn clashes_name_both_origins() {
    let web = || set("web", ["search", "fetch"]);
    check(
        set("web", ["search", "fetch", "search"]),
        expect![[r#"
        check: invalid tools: search: duplicate name in toolset "web": rename one of the two
        step:  invalid tools: search: duplicate name in toolset "web": rename one of the two
    "#]],
    )
    .await;
    check(Toolset::merged("all", [web(), set("files", ["fetch", "search"])]), expect![[r#"
        check: invalid tools: fetch: duplicate name in toolsets "web" and "files": prefix or filter one of them; search: duplicate name in toolsets "web" and "files": prefix or filter one of them
        step:  invalid tools: fetch: duplicate name in toolsets "web" and "files": prefix or filter one of them; search: duplicate name in toolsets "web" and "files": prefix or filter one of them
    "#]]).await;
    // The origin is the set that brought the tool, however deep it was merged.
    let inner = Toolset::merged("inner", [set("files", ["read"]), web()]);
    check(
        Toolset::merged("all", [inner, set("mail", ["fetch"])]),
        expect![[r#"
        check: invalid tools: fetch: duplicate name in toolsets "web" and "mail": prefix or filter one of them
        step:  invalid tools: fetch: duplicate name in toolsets "web" and "mail": prefix or filter one of them
    "#]],
    )
    .await;
    // What a dynamic set has is known at the step.
    check(Toolset::merged("all", [web(), listing("remote", ["search"])]), expect![[r#"
        check: fine
        step:  invalid tools: search: duplicate name in toolsets "web" and "remote": prefix or filter one of them
    "#]]).await;
    check(
        Toolset::merged("all", [web(), web().prefixed("other_")]),
        expect![[r#"
        check: fine
        step:  search fetch other_search other_fetch
    "#]],
    )
    .await;
}

#[tokio::test]
async fn prefixes() {
    check(
        set("web", ["search", "fetch"]).prefixed("web_"),
        expect![[r#"
        check: fine
        step:  web_search web_fetch
    "#]],
    )
    .await;
    check(
        set("web", ["search"]).prefixed("b_").prefixed("a_"),
        expect![[r#"
        check: fine
        step:  a_b_search
    "#]],
    )
    .await;
    check(set("web", ["search", "fetch"]).prefixed("the web: "), expect![[r#"
        check: invalid tools: the web: search: name: expected 1 to 64 letters, digits, '_' or '-'; the web: fetch: name: expected 1 to 64 letters, digits, '_' or '-'
        step:  invalid tools: the web: search: name: expected 1 to 64 letters, digits, '_' or '-'; the web: fetch: name: expected 1 to 64 letters, digits, '_' or '-'
    "#]]).await;
    check(
        listing("remote", ["search"]).prefixed("r_"),
        expect![[r#"
        check: fine
        step:  r_search
    "#]],
    )
    .await;
    check(listing("remote", ["search"]).prefixed("x".repeat(60)), expect![[r#"
        check: fine
        step:  invalid tools: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxsearch: name: expected 1 to 64 letters, digits, '_' or '-'
    "#]]).await;
    let merged = Toolset::merged("all", [set("web", ["search"]), listing("remote", ["read"])]);
    check(
        merged.prefixed("all_"),
        expect![[r#"
        check: fine
        step:  all_search all_read
    "#]],
    )
    .await;
}

#[tokio::test]
async fn filters() {
    let web = || set("web", ["search", "fetch", "post"]);
    check(
        web().filtered(|tool| tool.name() != "post"),
        expect![[r#"
        check: fine
        step:  search fetch
    "#]],
    )
    .await;
    check(
        web().only(["post", "search"]),
        expect![[r#"
        check: fine
        step:  search post
    "#]],
    )
    .await;
    check(web().only(["post", "serach", "fecth"]), expect![[r#"
        check: invalid tools: fecth: unknown tool of toolset "web"; available: search, fetch, post; serach: unknown tool of toolset "web"; available: search, fetch, post
        step:  invalid tools: fecth: unknown tool of toolset "web"; available: search, fetch, post; serach: unknown tool of toolset "web"; available: search, fetch, post
    "#]]).await;
    check(
        web().prefixed("web_").only(["post"]),
        expect![[r#"
        check: invalid tools: post: unknown tool of toolset "web"; available: web_search, web_fetch, web_post
        step:  invalid tools: post: unknown tool of toolset "web"; available: web_search, web_fetch, web_post
    "#]],
    )
    .await;
    // A dynamic set may have the tool at another step.
    check(
        listing("remote", ["read", "write"]).only(["read", "delete"]),
        expect![[r#"
        check: fine
        step:  read
    "#]],
    )
    .await;
    check(
        Toolset::merged("all", [web(), listing("remote", ["read"])]).only(["read", "post"]),
        expect![[r#"
        check: fine
        step:  post read
    "#]],
    )
    .await;
    // Each combinator sees what the one before left.
    check(
        listing("remote", ["read"]).prefixed("r_").only(["r_read"]),
        expect![[r#"
        check: fine
        step:  r_read
    "#]],
    )
    .await;
    check(
        listing("remote", ["read"]).only(["read"]).prefixed("r_"),
        expect![[r#"
        check: fine
        step:  r_read
    "#]],
    )
    .await;
}

#[tokio::test]
async fn a_dynamic_set_is_asked_again_at_each_step_and_a_static_one_never() {
    let source = Arc::new(Growing::default());
    let set =
        Toolset::merged("all", [set("web", ["search"]), Toolset::dynamic("growing", Arc::clone(&source))]);
    assert!(!set.is_static());
    let state = state().clone();
    for step in ["search tool_1", "search tool_1 tool_2", "search tool_1 tool_2 tool_3"] {
        assert_eq!(resolved(&set.clone(), &state).await, step);
    }
    assert_eq!(source.asked.load(Ordering::Relaxed), 3);
    set.check(state.schema(), &Resources::new()).unwrap();
    assert_eq!(source.asked.load(Ordering::Relaxed), 3);

    let fixed = Toolset::merged("fixed", [self::set("a", ["x"]), self::set("b", ["y"]).prefixed("b_")]);
    assert!(fixed.is_static());
    let (first, second) =
        (fixed.resolve(&state).await.unwrap(), fixed.clone().resolve(&state).await.unwrap());
    assert!(Arc::ptr_eq(&first.specs(), &second.specs()), "made once");
}

#[tokio::test]
async fn a_dynamic_set_sees_the_state() {
    let by_role = Toolset::dynamic_with("by_role", |state: State| async move {
        let is_admin = state.get("user:role").is_some_and(|role| role == "admin");
        Ok(if is_admin { vec![tool("refund")] } else { Vec::new() })
    });
    let mut state = State::new(&Schema::builder().key::<String>("user:role").build().unwrap());
    assert_eq!(resolved(&by_role, &state.clone()).await, "");
    state.set("user:role", "admin").unwrap();
    assert_eq!(resolved(&by_role, &state.clone()).await, "refund");
}

#[tokio::test]
async fn the_first_failing_set_is_named() {
    let all = Toolset::merged("all", [set("web", ["x"]), failing("files"), failing("mail")]);
    check(
        all.clone(),
        expect![[r#"
        check: fine
        step:  toolset "files" failed to list its tools: connection refused
    "#]],
    )
    .await;
    let error = all.resolve(&state().clone()).await.unwrap_err();
    assert!(matches!(error, ToolsetError::List { toolset, .. } if toolset == "files"));
}

#[tokio::test]
async fn all_faults_of_all_tools_are_reported_at_once() {
    struct Clock;
    async fn tell(_: Resource<Clock>) -> Result<&'static str, ToolError> {
        Ok("noon")
    }
    let reads = tool("plain");
    let typo = Tool::new("save", "Saves.", || async { Ok::<_, ToolError>(json!({"x": 1})) })
        .output_to_state("reslut", "x")
        .build()
        .unwrap();
    let clock = Tool::new("clock", "Tells the time.", tell).build().unwrap();
    let tools = Toolset::new("mine", [typo, clock, reads.clone(), reads]);
    check(tools.only(["save", "clock", "plain", "gone"]), expect![[r#"
        check: invalid tools: gone: unknown tool of toolset "mine"; available: save, clock, plain, plain; plain: duplicate name in toolset "mine": rename one of the two; save: state key "reslut": not declared: add it to the agent's schema, or to that of the graph around it; clock: resource it::toolset::all_faults_of_all_tools_are_reported_at_once::{{closure}}::Clock: missing from the resources of the run
        step:  invalid tools: gone: unknown tool of toolset "mine"; available: save, clock, plain, plain; plain: duplicate name in toolset "mine": rename one of the two
    "#]]).await;
    // Dynamic tools are checked when they are there.
    let lone = Tools::of([Tool::new("clock", "Tells the time.", tell).build().unwrap()]).unwrap();
    let error = lone.check(state().schema(), &Resources::new()).unwrap_err();
    expect![[r#"
        invalid tools: clock: resource it::toolset::all_faults_of_all_tools_are_reported_at_once::{{closure}}::Clock: missing from the resources of the run
    "#]].assert_eq(&format!("{error}\n"));
    lone.check(state().schema(), &Resources::new().with(Clock)).unwrap();
}

#[test]
fn tools_of_one_step() {
    let tools = Tools::of(["b", "a"].map(tool)).unwrap();
    assert_eq!(tools.len(), 2);
    assert_eq!(tools.iter().map(Tool::name).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(tools.get("a").unwrap().name(), "a");
    assert!(tools.get("c").is_none());
    assert!(Arc::ptr_eq(&tools.specs(), &tools.clone().specs()));
    assert_eq!(tools.specs()[0].name, "b");
    assert!(Tools::default().is_empty());
    let error = Tools::of(["a", "a"].map(tool)).unwrap_err();
    expect![[r#"
        invalid tools: a: duplicate name in toolset "tools": rename one of the two
    "#]]
    .assert_eq(&format!("{error}\n"));
}

#[cfg(feature = "search")]
mod searchable {
    use serde_json::Value;
    use stepfold_tools::state_core::chat::ToolCall;
    use stepfold_tools::state_core::state::Handler;
    use stepfold_tools::{FOUND_TOOLS, Invocation, InvokeOptions, SearchableToolset, settle};

    use super::*;

    fn declared() -> SchemaBuilder {
        SearchableToolset::declare_in(Schema::builder())
    }

    fn office() -> Toolset {
        let tools = [
            described("send_invoice", "Sends an invoice to a customer."),
            described("listInvoices", "Lists what was billed."),
            described("book_flight", "Books a flight for an employee."),
            described("create_GitHub-issue", "Reports a bug."),
            described("now", "Says the time."),
        ];
        SearchableToolset::new("office", tools).always_visible(["now"]).build().unwrap()
    }

    /// One step: what was offered, the calls, and what they come to in the state.
    async fn step(set: &Toolset, state: &mut State, calls: &[(&str, Value)]) -> String {
        let tools = set.resolve(&state.clone()).await.unwrap();
        let mut text = format!("offered: {}\n", tools.names().collect::<Vec<_>>().join(" "));
        let calls = calls.iter().enumerate();
        let calls: Vec<ToolCall> = calls
            .map(|(at, (name, arguments))| ToolCall::new(format!("c{at}"), *name, arguments.clone()))
            .collect();
        let mut done = Invocation::new(&tools, state.clone(), calls, InvokeOptions::default()).finish().await;
        settle(state, &mut done.outcomes);
        for outcome in &done.outcomes {
            writeln!(text, "{}: {}", outcome.tool(), words(&outcome.result.text())).unwrap();
        }
        text
    }

    /// What a search found, or the text of another result.
    fn words(text: &str) -> String {
        let Ok(Value::Object(found)) = serde_json::from_str(text) else { return text.to_owned() };
        let tools = found["tools"].as_array().unwrap().iter();
        let tools = tools.map(|tool| {
            format!("{} ({})", tool["name"].as_str().unwrap(), tool["description"].as_str().unwrap())
        });
        format!("{} -- {}", tools.collect::<Vec<_>>().join(", "), found["note"].as_str().unwrap())
    }

    fn query(text: &str) -> Value {
        json!({"query": text})
    }

    #[tokio::test]
    async fn found_tools_are_offered_from_the_next_step_on() {
        let office = office();
        let schema = declared().build().unwrap();
        office.check(&schema, &Resources::new()).unwrap();
        let mut state = State::new(&schema);
        let early = [("search_tools", query("invoices")), ("send_invoice", json!({}))];
        expect![[r#"
            offered: search_tools now
            search_tools: send_invoice (Sends an invoice to a customer.), listInvoices (Lists what was billed.) -- these tools can be called from the next step on
            send_invoice: unknown tool 'send_invoice'; available: search_tools, now
        "#]].assert_eq(&step(&office, &mut state, &early).await);
        expect![[r#"
            offered: search_tools now send_invoice listInvoices
            send_invoice: done
        "#]]
        .assert_eq(&step(&office, &mut state, &[("send_invoice", json!({}))]).await);
        // Finds add up, in the order in which they were found.
        let both = [("search_tools", query("bug on github")), ("search_tools", query("Flights"))];
        expect![[r#"
            offered: search_tools now send_invoice listInvoices
            search_tools: create_GitHub-issue (Reports a bug.) -- these tools can be called from the next step on
            search_tools: book_flight (Books a flight for an employee.) -- these tools can be called from the next step on
        "#]].assert_eq(&step(&office, &mut state, &both).await);
        expect![[r#"
            offered: search_tools now send_invoice listInvoices create_GitHub-issue book_flight
        "#]]
        .assert_eq(&step(&office, &mut state, &[]).await);
    }

    #[tokio::test]
    async fn runs_do_not_see_what_others_found() {
        let office = office();
        let schema = declared().build().unwrap();
        let (mut first, mut second) = (State::new(&schema), State::new(&schema));
        step(&office, &mut first, &[("search_tools", query("flight"))]).await;
        step(&office, &mut second, &[("search_tools", query("customer"))]).await;
        assert_eq!(resolved(&office, &first.clone()).await, "search_tools now book_flight");
        assert_eq!(resolved(&office, &second.clone()).await, "search_tools now send_invoice");
        assert_eq!(resolved(&office, &State::new(&schema).clone()).await, "search_tools now");
    }

    #[tokio::test]
    async fn searches_that_find_nothing_say_so() {
        let office = office();
        let mut state = State::new(&declared().build().unwrap());
        let calls = [
            ("search_tools", query("weather")),
            ("search_tools", query("the of")),
            ("search_tools", query("  ")),
            ("search_tools", json!({"query": "invoice", "limit": 1})),
            ("search_tools", json!({"query": "invoice", "limit": 1_000})),
            ("search_tools", json!({"query": "time", "limit": null})),
            ("search_tools", json!({"limit": "many"})),
        ];
        expect![[r#"
            offered: search_tools now
            search_tools:  -- no tool matches; try other words for what you want to do, such as another verb or the name of a system
            search_tools:  -- no tool matches; try other words for what you want to do, such as another verb or the name of a system
            search_tools: the query is empty; say in a few words what the tool should do
            search_tools: send_invoice (Sends an invoice to a customer.) -- these tools can be called from the next step on
            search_tools: send_invoice (Sends an invoice to a customer.), listInvoices (Lists what was billed.) -- these tools can be called from the next step on
            search_tools: now (Says the time.) -- these tools can be called from the next step on
            search_tools: invalid arguments for tool 'search_tools': expected integer or null, found string at $.limit; "query" is a required property at $
        "#]].assert_eq(&step(&office, &mut state, &calls).await);
    }

    #[tokio::test]
    async fn hundreds_of_tools_are_searched_in_a_fixed_order() {
        let verbs = ["create", "read", "update", "delete", "list", "export"];
        let tools: Vec<Tool> = (0..100)
            .flat_map(|thing| {
                verbs.map(|verb| {
                    described(&format!("{verb}_thing{thing}"), &format!("Can {verb} thing{thing}."))
                })
            })
            .collect();
        let set = SearchableToolset::new("things", tools).limits(3, 10).build().unwrap();
        let mut state = State::new(&declared().build().unwrap());
        assert_eq!(resolved(&set, &state.clone()).await, "search_tools");
        step(&set, &mut state, &[("search_tools", query("update thing42"))]).await;
        let offered = resolved(&set, &state.clone()).await;
        assert_eq!(offered, "search_tools update_thing42 create_thing42 delete_thing42");
        // 100 tools fit equally well: the first by name are found, the same every time.
        for _ in 0..3 {
            let mut state = State::new(&declared().build().unwrap());
            step(&set, &mut state, &[("search_tools", json!({"query": "export", "limit": 99}))]).await;
            let found = state.get(FOUND_TOOLS).unwrap().unwrap();
            assert_eq!(found.len(), 10);
            assert_eq!(found[..3], ["export_thing0", "export_thing1", "export_thing10"]);
        }
    }

    #[tokio::test]
    async fn parameters_are_searched() {
        let by_parameter = Tool::new("lookup", "Looks up.", |_: stepfold_tools::RawArgs| async { Ok::<_, ToolError>(1) })
            .parameters(json!({
                "type": "object",
                "properties": {
                    "zipCode": {"type": "string"},
                    "window": {"type": "object", "properties": {"day": {"type": "string", "description": "A calendar date."}}},
                },
            }))
            .build()
            .unwrap();
        let set = SearchableToolset::new("set", [by_parameter, tool("other")]).build().unwrap();
        for text in ["zip", "zipcode", "calendar", "window"] {
            let mut state = State::new(&declared().build().unwrap());
            step(&set, &mut state, &[("search_tools", query(text))]).await;
            assert_eq!(state.get(FOUND_TOOLS).unwrap().unwrap(), ["lookup"], "{text}");
        }
    }

    #[tokio::test]
    async fn several_searchable_sets_share_the_key() {
        let web = SearchableToolset::new("web", ["fetch", "post"].map(tool))
            .search_tool_prefix("web_")
            .build()
            .unwrap();
        let all = Toolset::merged("all", [web, office().prefixed("office_"), set("plain", ["plain"])]);
        let schema = declared().build().unwrap();
        all.check(&schema, &Resources::new()).unwrap();
        let mut state = State::new(&schema);
        let calls = [("web_search_tools", query("fetch")), ("office_search_tools", query("flight"))];
        expect![[r#"
            offered: web_search_tools office_search_tools office_now plain
            web_search_tools: fetch (Does it.) -- these tools can be called from the next step on
            office_search_tools: office_book_flight (Books a flight for an employee.) -- these tools can be called from the next step on
        "#]].assert_eq(&step(&all, &mut state, &calls).await);
        expect![[r#"
            offered: web_search_tools fetch office_search_tools office_now office_book_flight plain
            office_book_flight: done
        "#]]
        .assert_eq(&step(&all, &mut state, &[("office_book_flight", json!({}))]).await);
    }

    #[tokio::test]
    async fn filters_change_what_can_be_found() {
        let state = State::new(&declared().build().unwrap());
        let mut flights = state.clone();
        let only = office().only(["book_flight"]);
        step(&only, &mut flights, &[("search_tools", query("flight invoice time"))]).await;
        assert_eq!(resolved(&only, &flights.clone()).await, "search_tools book_flight");
        // With nothing left to search there is nothing to search with.
        assert_eq!(resolved(&office().filtered(|_| false), &state.clone()).await, "");
    }

    #[tokio::test]
    async fn what_is_wrong_is_said_kindly() {
        let check = |schema: SchemaBuilder, set: Toolset, expected: Expect| {
            let error = set.check(&schema.build().unwrap(), &Resources::new()).unwrap_err();
            expected.assert_eq(&format!("{error}\n"));
        };
        check(
            Schema::builder(),
            office(),
            expect![[r#"
            invalid tools: search_tools: invalid state key "temp:found_tools" for found tools: not declared by the schema; declare it with `SearchableToolset::declare_in(Schema::builder())`
        "#]],
        );
        check(
            Schema::builder().open(),
            office().prefixed("o_"),
            expect![[r#"
            invalid tools: o_search_tools: invalid state key "temp:found_tools" for found tools: not declared by the schema; declare it with `SearchableToolset::declare_in(Schema::builder())`
        "#]],
        );
        check(
            Schema::builder().key(FOUND_TOOLS),
            office(),
            expect![[r#"
            invalid tools: search_tools: invalid state key "temp:found_tools" for found tools: merged by merge_lists instead of union, which would lose or duplicate results; declare it with `SearchableToolset::declare_in(Schema::builder())`
        "#]],
        );
        check(
            Schema::builder().key::<Vec<u32>>("temp:found_tools").handler(Handler::union()),
            office(),
            expect![[r#"
                invalid tools: search_tools: invalid state key "temp:found_tools" for found tools: not declared as a list of strings; declare it with `SearchableToolset::declare_in(Schema::builder())`
            "#]],
        );
        // Hidden tools clash as well: they would once they are found.
        let clash = Toolset::merged("all", [office(), set("flights", ["book_flight"])]);
        check(
            declared(),
            clash.clone(),
            expect![[r#"
            invalid tools: book_flight: duplicate name in toolsets "office" and "flights": prefix or filter one of them
        "#]],
        );
        expect![[r#"invalid tools: book_flight: duplicate name in toolsets "office" and "flights": prefix or filter one of them"#]].assert_eq(&resolved(&clash, &state().clone()).await);

        let build = |set: SearchableToolset, expected: Expect| {
            expected.assert_eq(&format!("{}\n", set.build().unwrap_err()));
        };
        build(
            SearchableToolset::new("none", Toolset::default()),
            expect![[r#"
            invalid tools: none: must contain tools to search
        "#]],
        );
        build(
            SearchableToolset::new("remote", listing("mcp", ["read"])),
            expect![[r#"
            invalid tools: toolset "mcp": dynamic toolsets cannot be searched: list the tools first
        "#]],
        );
        build(
            SearchableToolset::new("twice", ["a", "a", "search_tools"].map(tool)),
            expect![[r#"
                invalid tools: a: duplicate name in toolset "twice": rename one of the two; search_tools: duplicate name in toolset "twice": rename one of the two
            "#]],
        );
        let options = SearchableToolset::new("odd", [tool("a")]).always_visible(["b"]).limits(9, 3);
        build(
            options.search_tool_prefix("the "),
            expect![[r#"
                invalid tools: the search_tools: invalid default limit 9: must be at most the maximum of 3; b: unknown always visible tool; not in toolset "odd"; the search_tools: name: expected 1 to 64 letters, digits, '_' or '-'
            "#]],
        );
        build(
            SearchableToolset::new("inner", set("web", ["a"]).only(["b"])),
            expect![[r#"
            invalid tools: b: unknown tool of toolset "web"; available: a; inner: must contain tools to search
        "#]],
        );
    }

    #[tokio::test]
    async fn a_schema_without_the_key_offers_what_is_always_there() {
        assert_eq!(resolved(&office(), &state().clone()).await, "search_tools now");
        // Without the check, the search ends the run instead of returning unusable tools.
        let mut state = state();
        let tools = office().resolve(&state.clone()).await.unwrap();
        let calls = vec![ToolCall::new("c1", "search_tools", query("flight"))];
        let mut done = Invocation::new(&tools, state.clone(), calls, InvokeOptions::default()).finish().await;
        settle(&mut state, &mut done.outcomes);
        assert!(done.error.is_some());
    }
}
