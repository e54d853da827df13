//! Budgets of agent files, and the list of spend.

use expect_test::expect;
use stepfold::session_scopes::{
    AppId, Author, BudgetId, BudgetRaise, RaiseBudgets, SessionStore, SqliteStore, Timestamp,
};

use crate::room::Room;

const TWO_REQUESTS: &str = "[[budgets]]\nname = \"trial\"\nrequests = 2\n\n[params]\nmax_output_tokens = 50\n\n\
    [prices.\"a.script\"]\ninput = 1.0\noutput = 4.0\n";

/// The third request waits, in another process as well, until the file has a higher limit.
#[test]
fn a_run_waits_until_its_budget_is_raised() {
    let room = Room::new(TWO_REQUESTS, "assistant: one\nassistant: two\nassistant: three\n");
    room.say("run a.toml -s s1 1", "");
    room.say("run a.toml -s s1 2", "");
    let waits = room.say("run a.toml -s s1 3", "");
    let words = "the run waits: budget `trial` of app a exhausted: 2 requests spent and 0 requests reserved of 2 requests, \
                 the request needs 1 requests; raise its limit, or cancel the run";
    assert!(waits.contains(words), "{waits}");
    assert!(!waits.contains("three"), "{waits}");
    let listed = room.say("sessions a.toml", "");
    assert!(
        listed.contains(", waits for budget `trial` of app a") && !listed.contains("interrupted"),
        "{listed}"
    );
    assert_eq!(room.json("sessions a.toml --json")[0]["status"], "waits");
    let agent = std::fs::read_to_string(room.path("a.toml")).unwrap();
    room.write("a.toml", &agent.replace("requests = 2", "requests = 3"));
    let resumed = room.say("resume a.toml -s s1", "");
    assert!(resumed.contains("three"), "{resumed}");
    let spent = room.json("spend a.toml --json --by session");
    assert_eq!(spent["spend"][0]["session"], "local/s1");
    assert_eq!((&spent["total"]["requests"], &spent["total"]["estimated"]), (&3.into(), &3.into()));
    let table = room.say("spend a.toml --csv --by user", "");
    assert!(
        table.contains("user,requests,input_tokens,output_tokens,usd,estimated,unpriced\nlocal,3,"),
        "{table}"
    );
    let other = room.json("spend a.toml --json -s s2");
    assert_eq!(other["total"]["requests"], 0);
}

#[test]
fn raises_are_listed_with_who_raised_what() {
    let room = Room::new(TWO_REQUESTS, "assistant: one\n");
    room.say("run a.toml --store s.db -s s1 1", "");
    let none = room.say("spend a.toml --store s.db --raises", "");
    assert!(none.contains("no budget was raised"), "{none}");
    let raise = |budget: &str, unit: &str, limits: (u64, u64), second: i64| {
        let (app, by) = (AppId::new("a").unwrap(), Author::new("carol").unwrap());
        let record = BudgetRaise::new(app, budget, by, Timestamp::from_micros(second * 1_000_000));
        let record = record.shared_by("app a", unit).limits(limits.0, limits.1);
        RaiseBudgets::new([BudgetId::new(budget).unwrap()], limits.1).recorded(record)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(room.path("s.db")).unwrap();
        store.raise_budgets(raise("trial", "requests", (2, 3), 1)).await.unwrap();
        store.raise_budgets(raise("month", "usd", (2_500_000_000, 4_000_000_000), 2)).await.unwrap();
    });
    room.check(
        "spend a.toml --store s.db --raises",
        expect![[r#"
        1970-01-01T00:00:02.000000Z  month of app a  $2.500000 -> $4.000000  by carol
        1970-01-01T00:00:01.000000Z  trial of app a  2 requests -> 3 requests  by carol
    "#]],
    );
    let raises = room.json("spend a.toml --store s.db --raises --json");
    assert_eq!(
        raises["raises"][1],
        serde_json::json!({
            "at": "1970-01-01T00:00:01.000000Z", "budget": "trial", "by": "carol", "from": 2, "scope": "app a", "to": 3,
            "unit": "requests", "user": null,
        })
    );
}

/// A file of budgets holds in all agents, for each principal: also in a worker, and beside the agent's own.
#[test]
fn a_file_of_budgets_holds_for_each_principal_in_all_agents() {
    let room = Room::new("", "assistant: one\nassistant: two\n");
    let agent = std::fs::read_to_string(room.path("a.toml")).unwrap();
    room.write("b.toml", &agent);
    room.write("budgets.toml", "[[budgets]]\nname = \"each\"\nrequests = 1\n");
    room.say("run a.toml --store s.db --budgets budgets.toml -s s1 1", "");
    let waits = room.say("run b.toml --store s.db --budgets budgets.toml -s s1 1", "");
    assert!(waits.contains("the run waits: budget `each` of principal local exhausted"), "{waits}");
    // Another user has its own; without the file nothing holds.
    room.say("run b.toml --store s.db --user ada --budgets budgets.toml -s s1 1", "");
    let worked = room.say("work b.toml --store s.db --once --budgets budgets.toml", "");
    assert!(!worked.contains("two"), "{worked}");
    room.write(
        "twice.toml",
        "[[budgets]]\nname = \"each\"\nrequests = 1\n\n[[budgets]]\nname = \"each\"\nuse = 2\n",
    );
    room.check(
        "run a.toml --budgets twice.toml 1",
        expect![[r#"
        | error: twice.toml:6:1: duplicate budget `each`: each needs a name of its own
        | twice.toml:7:1: unknown field `use`; did you mean `usd`?
        exit 2
    "#]],
    );
    room.write("own.toml", &format!("{agent}\n[[budgets]]\nname = \"each\"\nrequests = 5\n"));
    room.check(
        "run own.toml --budgets budgets.toml 1",
        expect![[r#"
        | error: budgets.toml: the agent has a budget `each` too: rename one of them
        exit 2
    "#]],
    );
}

#[test]
fn faults_of_budgets_have_their_lines() {
    let room = Room::new("", "");
    room.write(
        "f.toml",
        r#"instructions = "Hi."

[[budgets]]
name = "both"
usd = 1.0
tokens = 5

[[budgets]]
requests = 5

[[budgets]]
name = "zone"
requests = 5
time_zone = "Europe/Berlin"

[[budgets]]
name = "zone"
requests = 5
window = "day"
time_zone = "Europe/Berlyn"
warn_at = 80

[[budgets]]
name = "team"
usd = -1.0
scope = "user"
group = "x"
when_exhausted = "stop"

[[budgets]]
name = "rolling"
requests = 5
hours = 5
window = "day"

[[budgets]]
name = "none"
requests = 5
hours = 0

[[budgets]]
name = "nothing"
requests = 0

[[rate_limits]]
requests = 0

[[rate_limits]]
key = "team"
"#,
    );
    room.check("check f.toml", expect![[r#"
        f.toml:3:1: invalid budget `both`: expected one limit, `usd`, `tokens` or `requests`
        f.toml:8:1: missing `name` of a budget
        f.toml:14:1: `time_zone` has no effect without `window`: set `day` or `month`
        f.toml:17:1: duplicate budget `zone`: each needs a name of its own
        f.toml:20:1: unknown time zone `Europe/Berlyn`; use a name of the IANA database, such as Europe/Berlin or UTC
        f.toml:21:1: invalid share: must be more than 0 and at most 1, as in `0.8`
        f.toml:25:1: invalid limit: must be more than zero dollars
        f.toml:27:1: `group` takes the place of `scope`: remove one of them
        f.toml:28:1: expected one of pause, fail
        f.toml:33:1: `hours` takes the place of `window` and `time_zone`: remove one of them
        f.toml:39:1: invalid window: must be at least one hour
        f.toml:43:1: invalid limit: must be more than zero
        f.toml:45:1: missing `key` of a rate limit: a name for the key of the provider
        f.toml:46:1: invalid limit: must be more than zero
        f.toml:48:1: invalid rate limit: expected `requests` or `tokens` per minute, or both
        exit 2
    "#]]);
}

/// A limit that holds nothing must not look like one.
#[test]
fn budgets_of_agents_inside_of_a_graph_are_faults() {
    let room = Room::new("", "");
    room.write("inner.toml", "instructions = \"Hi.\"\n\n[[budgets]]\nname = \"inner\"\nrequests = 5\n");
    room.write(
        "g.toml",
        r#"edges = [{ from = "START", to = "a" }, { from = "a", to = "b" }, { from = "b", to = "END" }]

[[budgets]]
name = "whole"
requests = 5

[nodes.a]
agent = "inner.toml"

[nodes.b.agent]
instructions = "Hi."
budgets = [{ name = "inline", requests = 5 }]
"#,
    );
    room.check("check g.toml", expect![[r#"
        g.toml:8:1: invalid file inner.toml
        g.toml:12:1: unsupported budgets: a graph's budgets count the requests of its agents; declare them in the graph file
        inner.toml:3:3: unsupported budgets: a graph's budgets count the requests of its agents; declare them in the graph file
        exit 2
    "#]]);
    // Alone, its budgets hold.
    room.check(
        "check inner.toml",
        expect![[r#"
        inner.toml: ok
    "#]],
    );
}
