//! Graphs from files: shown as they run, decided about, killed and resumed, looked at.

use std::io::{BufRead as _, BufReader};
use std::process::Command;

use expect_test::{Expect, expect};

use crate::room::{Room, json_lines};

/// Plans areas, counts each of them, and plans again until it is enough. The judge is satisfied when it is asked for
/// the second time.
const STALLS: &str = r#"
model = "script:g.script"
edges = [
    { from = "START", to = "plan" },
    { from = "plan", to = "count", each = "areas" },
    { from = "count", to = "judge" },
    { from = "report", to = "END" },
]

[[routes]]
from = "judge"
key = "verdict"
cases = { enough = "report", more = "plan" }
otherwise = "report"

[state.round]
type = "integer"
handler = "sum"
default = 0

[state.areas]
type = "array"
handler = "replace_values"

[state.verdict]
type = "string"

[state.notes]
type = { type = "array", items = { type = "string" } }

[nodes.plan]
agent = "planner.toml"
asks = "Plan round {round}."
answers = { areas = "areas", tasks = "areas", round = "rounds" }

[nodes.count]
agent = { instructions = "You count stalls, in round {round}." }
asks = "How many stalls has {item.title}?"
answers = "notes"
tracked = true

[nodes.judge]
command = ["sh", "-c", "cat >> judged; if test -e second; then echo enough; else touch second; echo more; fi"]
answers = "verdict"
reads = ["round", "notes"]

[nodes.report]
agent = { instructions = "Report on {notes}." }

[limits]
parallel = 1
"#;

const PLANNER: &str = r#"
instructions = "You plan."

[output]
schema = { type = "object", properties = { areas = { type = "array" } }, required = ["areas"] }
"#;

const STALLS_SCRIPT: &str = r#"
user: Plan round 0.
assistant: {"areas": [{"id": 1, "title": "area 3"}, {"id": 2, "title": "area 7"}], "rounds": 1}
user: Plan round 1.
assistant: {"areas": [{"id": 3, "title": "area 9"}], "rounds": 1}
user: How many stalls has area 3?
assistant: Twelve.
user: How many stalls has area 7?
assistant: Let me count.
  Twenty-eight.
user: How many stalls has area 9?
assistant: None.
user: which area has most stalls?
assistant: Area 7.
"#;

fn stalls() -> Room {
    let room = Room::new("", "");
    room.write("g.toml", STALLS);
    room.write("g.script", STALLS_SCRIPT);
    room.write("planner.toml", PLANNER);
    room
}

fn check_in_order(room: &Room, line: &str, expect: Expect) {
    expect.assert_eq(&room.say_in_order(line));
}

#[test]
fn a_run_fans_out_chooses_and_goes_round() {
    let room = stalls();
    check_in_order(
        &room,
        "run g.toml -s s1 'which area has most stalls?'",
        expect![[r#"
            session s1
            plan | starts
            plan | {"areas": [{"id": 1, "title": "area 3"}, {"id": 2, "title": "area 7"}], "rounds": 1}
            plan | done
              ~ areas: unset -> [{"id":1,"title":"area 3"},{"id":2,"title":"area 7"}]
              ~ round: 0 -> 1
              task 1 pending: area 3
              task 2 pending: area 7
              0 % (0 of 2)
              task 1 running: area 3
              task 2 running: area 7
            count#0 | starts with {"id":1,"title":"area 3"}
            count#0 | Twelve.
            count#0 | done
              task 1 completed: area 3
              50 % (1 of 2)
            count#1 | starts with {"id":2,"title":"area 7"}
            count#1 | Let me count.
            count#1 | Twenty-eight.
            count#1 | done
              task 2 completed: area 7
              100 % (2 of 2)
              ~ notes: unset -> ["Twelve.","Let me count.\nTwenty-eight."]
            judge | starts
            judge | done
              ~ verdict: unset -> "more"
            judge -> plan: verdict is more
            plan | starts
            plan | {"areas": [{"id": 3, "title": "area 9"}], "rounds": 1}
            plan | done
              ~ areas: [{"id":1,"title":"area 3"},{"id":2,"title":"area 7"}] -> [{"id":3,"title":"area 9"}]
              ~ round: 1 -> 2
              task 3 pending: area 9
              66 % (2 of 3)
              task 3 running: area 9
            count#0 | starts with {"id":3,"title":"area 9"}
            count#0 | None.
            count#0 | done
              task 3 completed: area 9
              100 % (3 of 3)
              ~ notes: + ["None."] (3 items)
            judge | starts
            judge | done
              ~ verdict: "more" -> "enough"
            judge -> report: verdict is enough
            report | starts
            Area 7.
            report | done
            continue: stepfold chat g.toml --session s1
        "#]],
    );
    expect![[r#"{"node":"judge","state":{"round":1,"notes":["Twelve.","Let me count.\nTwenty-eight."]}}{"node":"judge","state":{"round":2,"notes":["Twelve.","Let me count.\nTwenty-eight.","None."]}}"#]].assert_eq(&std::fs::read_to_string(room.path("judged")).unwrap());
}

#[test]
fn what_the_nodes_did_can_be_read_and_replayed() {
    let room = stalls();
    room.say("run g.toml -s s1 'which area has most stalls?'", "");
    room.check("inspect g.toml", expect![[r#"
        session s1 of g/local, version 29
        head 29:DIGEST

            1  began     user:      which area has most stalls?
            2  planned   plan
            3  inner     plan | began     user:      Plan round 0.
            4  inner     plan | replied   assistant: {"areas": [{"id": 1, "title": "area 3"}, {"id": 2, "title": "area 7"}], "rounds": 1}
            5  answered  plan is done
                         ~ areas: unset -> [{"id":1,"title":"area 3"},{"id":2,"title":"area 7"}]
                         ~ round: 0 -> 1
                         ~ task 1 pending: area 3
                         ~ task 2 pending: area 7
                         ~ 0 % (0 of 2)
            6  planned   count#0 with {"id":1,"title":"area 3"}
                         count#1 with {"id":2,"title":"area 7"}
                         ~ task 1 running: area 3
                         ~ task 2 running: area 7
            7  inner     count#0 | began     user:      How many stalls has area 3?
            8  inner     count#0 | replied   assistant: Twelve.
            9  answered  count#0 is done
           10  inner     count#1 | began     user:      How many stalls has area 7?
           11  inner     count#1 | replied   assistant: Let me count.
                         count#1 |                      Twenty-eight.
           12  answered  count#1 is done
                         ~ notes: unset -> ["Twelve.","Let me count.\nTwenty-eight."]
                         ~ outputs: + [{"node":"count","task_id":1,"content":"Twelve."},{"node":"count","task_id":2,"content":"Let me count.\nTwenty-eight."}] (2 items)
                         ~ task 1 completed: area 3
                         ~ task 2 completed: area 7
                         ~ 100 % (2 of 2)
           13  planned   judge
           14  answered  judge is done
                         ~ verdict: unset -> "more"
           15  planned   judge -> plan: verdict is more
                         plan
           16  inner     plan | began     user:      Plan round 1.
           17  inner     plan | replied   assistant: {"areas": [{"id": 3, "title": "area 9"}], "rounds": 1}
           18  answered  plan is done
                         ~ areas: [{"id":1,"title":"area 3"},{"id":2,"title":"area 7"}] -> [{"id":3,"title":"area 9"}]
                         ~ round: 1 -> 2
                         ~ task 3 pending: area 9
                         ~ 66 % (2 of 3)
           19  planned   count#0 with {"id":3,"title":"area 9"}
                         ~ task 3 running: area 9
           20  inner     count#0 | began     user:      How many stalls has area 9?
           21  inner     count#0 | replied   assistant: None.
           22  answered  count#0 is done
                         ~ notes: + ["None."] (3 items)
                         ~ outputs: + [{"node":"count","task_id":3,"content":"None."}] (3 items)
                         ~ task 3 completed: area 9
                         ~ 100 % (3 of 3)
           23  planned   judge
           24  answered  judge is done
                         ~ verdict: "more" -> "enough"
           25  planned   judge -> report: verdict is enough
                         report
           26  inner     report | began
           27  inner     report | replied   assistant: Area 7.
           28  answered  report is done
                         assistant: Area 7.
           29  planned   the graph reached its end

        areas = [{"id":3,"title":"area 9"}]  (version 18, replace_values, the last of 2 writes)
        current_node = "report"  (version 25, replace_values, the last of 10 writes)
        current_task_id = 3  (version 19, replace_values, the last of 3 writes)
        errors = []  (not written in this session)
        execution_counts = {"plan":2,"count":2,"judge":2,"report":1}  (version 25, merge_maps, the last of 7 writes)
        notes = ["Twelve.","Let me count.\nTwenty-eight.","None."]  (version 22, merge_lists, the last of 3 writes)
        outputs = [{"node":"count","task_id":1,"content":"Twelve."},{"node":"count","task_id":2,"content":"Let me count.\nTwenty-eight."},{"node":"count","task_id":3,"content":"None."}]  (version 22, merge_lists, the last of 3 writes)
        overall_progress = 100  (version 22, replace_values, the last of 4 writes)
        round = 2  (version 18, sum, the last of 2 writes)
        tasks = [{"id":1,"title":"area 3","status":"completed"},{"id":2,"title":"area 7","status":"completed"},{"id":3,"title":"area 9","status":"completed"}]  (version 22, upsert_by(id), the last of 8 writes)
        verdict = "enough"  (version 24, replace_values, the last of 2 writes)
    "#]]);
    room.check(
        "replay g.toml",
        expect![[r#"
        session s1: the same again, 1 run
    "#]],
    );
}

#[test]
fn a_pipe_gets_the_reply_only_and_json_gets_all() {
    let room = stalls();
    let output = room.command("run g.toml -s s1 'which area has most stalls?'").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Area 7.\n");

    std::fs::remove_file(room.path("second")).unwrap();
    let said = room.say("--json run g.toml -s s2 'which area has most stalls?'", "");
    let lines = json_lines(&said);
    let percentages: Vec<u64> =
        lines.iter().filter_map(|line| line["progress"]["percentage"].as_u64()).collect();
    assert_eq!(percentages, [0, 0, 50, 100, 66, 66, 100]);
    let starts = lines.iter().filter_map(|line| line["event"]["node_started"]["node"].as_str());
    let starts: Vec<&str> = starts.collect();
    assert_eq!(starts, ["plan", "count", "count", "judge", "plan", "count", "judge", "report"]);
    let outcome = &lines.last().unwrap()["outcome"];
    assert_eq!((&outcome["exit"], &outcome["text"]), (&"end".into(), &"Area 7.".into()));
}

/// Branches side by side: each line says whose it is, whatever the order of the lines.
#[test]
fn branches_side_by_side_stay_readable() {
    let room = stalls();
    room.write("g.toml", &STALLS.replace("parallel = 1", "parallel = 8"));
    let said = room.say_in_order("run g.toml -s s1 'which area has most stalls?'");
    let of = |label: &str| {
        let lines = said.lines().filter(|line| line.starts_with(label)).map(|line| format!("{line}\n"));
        lines.collect::<String>()
    };
    expect![[r#"
        count#1 | starts with {"id":2,"title":"area 7"}
        count#1 | Let me count.
        count#1 | Twenty-eight.
        count#1 | done
    "#]]
    .assert_eq(&of("count#1"));
    room.check(
        "state get g.toml notes",
        expect![[r#"
            ["Twelve.","Let me count.\nTwenty-eight.","None."]
        "#]],
    );
}

#[test]
fn all_that_works_with_a_session_works_with_that_of_a_graph() {
    let room = stalls();
    room.say("run g.toml -s s1 'which area has most stalls?'", "");
    room.check(
        "state set g.toml round=5",
        expect![[r#"
            session s1 is at version 30
        "#]],
    );
    room.check(
        "state get g.toml round",
        expect![[r#"
            7
        "#]],
    );
    room.check(
        "inspect g.toml --diff 1..6",
        expect![[r#"
            areas: unset -> [{"id":1,"title":"area 3"},{"id":2,"title":"area 7"}]
            current_node: unset -> "count"
            current_task_id: unset -> 2
            execution_counts: unset -> {"plan":1,"count":1}
            overall_progress: unset -> 0
            round: 0 -> 1
            tasks: unset -> [{"id":1,"title":"area 3","status":"running"},{"id":2,"title":"area 7","status":"running"}]
        "#]],
    );
    room.check(
        "fork g.toml --at 12 --to s2",
        expect![[r#"
            s2
            | continue: stepfold resume g.toml --session s2
        "#]],
    );
    room.check(
        "rewind g.toml -s s1 1",
        expect![[r#"
            session s1 is as it was at version 1; that is version 31
        "#]],
    );
    room.check(
        "delete g.toml -s s1",
        expect![[r#"
            session s1 is deleted, with 31 events
        "#]],
    );
    // The fork is in the middle of the first round, and continues from there.
    check_in_order(
        &room,
        "resume g.toml -s s2",
        expect![[r#"
            session s2
            continues with "which area has most stalls?", interrupted in step 3
            judge | starts
            judge | done
              ~ verdict: unset -> "enough"
            judge -> report: verdict is enough
            report | starts
            Area 7.
            report | done
        "#]],
    );
}

#[test]
fn a_chat_continues_with_one_conversation() {
    let room = Room::new("", "");
    room.write(
        "g.toml",
        r#"
        model = "script:g.script"
        edges = [{ from = "START", to = ["note", "answer"] }]
        nodes.note.command = ["sh", "-c", "echo '{\"writes\": {\"turns\": 1}, \"outputs\": {\"seen\": true}}'"]
        nodes.answer.agent = {}
        state.turns = { type = "integer", handler = "sum", default = 0 }
        state.outputs.type = "array"
        limits.parallel = 1
        "#,
    );
    room.write("g.script", "assistant: Hello.\nassistant: Hello again.");
    room.check_with("chat g.toml -s s1", "hello\nand again\n/state\n", expect![[r#"
        Hello.
        Hello again.
        | session s1
        | note   | starts
        | note   | seen: true
        | note   | done
        | answer | starts
        | answer | done
        |   ~ outputs: unset -> [{"node":"note","kind":"seen","content":true}]
        |   ~ turns: 0 -> 1
        | note   | starts
        | note   | seen: true
        | note   | done
        | answer | starts
        | answer | done
        |   ~ outputs: + [{"node":"note","kind":"seen","content":true}] (2 items)
        |   ~ turns: 1 -> 2
        | outputs = [{"node":"note","kind":"seen","content":true},{"node":"note","kind":"seen","content":true}]
        | turns = 2
    "#]]);
}

/// A program that waits for a decision, and an agent whose tool does, in one step.
const PAYING: &str = r#"
limits.parallel = 1
model = "script:g.script"
edges = [
    { from = "START", to = "pay", each = "bills" },
    { from = "START", to = "clerk" },
    { from = ["pay", "clerk"], to = "done" },
]

[state.bills]
type = { type = "array", items = { type = "object" } }
default = [{ euro = 5 }, { euro = 7 }]

[state.paid]
type = "array"

[nodes.pay]
command = { argv = ["sh", "-c", "tee -a paid"], output = "json" }
answers = { paid = "item" }
reads = []
approval = "always"
effect = "at_most_once"
go_on_after_error = true

[nodes.clerk]
asks = "File it."

[nodes.clerk.agent.tools.file]
description = "Files a bill."
approval = "always"
command = { argv = ["echo", "filed"] }

[nodes.done]
says = "Paid: {paid?}"
"#;

#[test]
fn nodes_wait_for_decisions_in_another_process() {
    let room = Room::new("", "");
    room.write("g.toml", PAYING);
    room.write("g.script", "assistant: > f1 file()\nassistant: It is filed.");
    room.check(
        "run g.toml -s s1 'pay the bills'",
        expect![[r#"
            | session s1
            | pay#0 | starts with {"euro":5}
            | pay#1 | starts with {"euro":7}
            | clerk | starts
            | decide about pay#0/run#DIGEST: pay {"item":{"euro":5}}
            | decide about pay#1/run#DIGEST: pay {"item":{"euro":7}}
            | decide about clerk/f1#DIGEST: file {}
            | the run waits for a decision, and is stored; decide with
            |   stepfold resume g.toml --session s1 --approve pay#0/run#DIGEST
            |   stepfold resume g.toml --session s1 --reject pay#0/run#DIGEST=REASON
            |   stepfold resume g.toml --session s1 --modify pay#0/run#DIGEST=JSON
            exit 3
        "#]],
    );
    room.check(
        "run g.toml -s s1 'and now?'",
        expect![[r#"
            | session s1
            | decide about pay#0/run#DIGEST: pay {"item":{"euro":5}}
            | decide about pay#1/run#DIGEST: pay {"item":{"euro":7}}
            | decide about clerk/f1#DIGEST: file {}
            | the run waits for a decision, and is stored; decide with
            |   stepfold resume g.toml --session s1 --approve pay#0/run#DIGEST
            |   stepfold resume g.toml --session s1 --reject pay#0/run#DIGEST=REASON
            |   stepfold resume g.toml --session s1 --modify pay#0/run#DIGEST=JSON
            | the message was not taken: the run before it has not ended; decide and send it again, or give that run up with
            |   stepfold resume g.toml --session s1 --abandon
            exit 3
        "#]],
    );
    room.check(
        "resume g.toml --approve pay#0/run --reject 'clerk/f1=not now'",
        expect![[r#"
            | session s1
            | continues with "pay the bills", which waits in step 2 for a decision about pay#0/run#DIGEST, pay#1/run#DIGEST, clerk/f1#DIGEST
            | pay#0 | starts with {"euro":5}
            | pay#0 | done
            | clerk | starts
            | clerk | It is filed.
            | clerk | done
            | decide about pay#1/run#DIGEST: pay {"item":{"euro":7}}
            | the run waits for a decision, and is stored; decide with
            |   stepfold resume g.toml --session s1 --approve pay#1/run#DIGEST
            |   stepfold resume g.toml --session s1 --reject pay#1/run#DIGEST=REASON
            |   stepfold resume g.toml --session s1 --modify pay#1/run#DIGEST=JSON
            exit 3
        "#]],
    );
    assert_eq!(
        std::fs::read_to_string(room.path("paid")).unwrap(),
        "{\"item\":{\"euro\":5},\"node\":\"pay\",\"state\":{}}"
    );
    room.check_with(
        "resume g.toml --interactive",
        "m\n{\"item\": {\"euro\": 6}}\n",
        expect![[r#"
            Paid: [{"euro":5},{"euro":6}]
            | session s1
            | continues with "pay the bills", which waits in step 2 for a decision about pay#1/run#DIGEST
            | decide about pay#1/run#DIGEST: pay {"item":{"euro":7}}
            | pay#1 | starts with {"euro":7}
            | pay#1 | done
            |   ~ paid: unset -> [{"euro":5},{"euro":6}]
            | done | starts
            | done | done
        "#]],
    );
    inspected_with_their_decisions(&room);
}

fn inspected_with_their_decisions(room: &Room) {
    room.check(
        "inspect g.toml",
        expect![[r#"
        session s1 of g/local, version 20
        head 20:DIGEST

            1  began     user:      pay the bills
            2  planned   clerk
                         pay#0 with {"euro":5}
                         pay#1 with {"euro":7}
            3  started   starts pay#0
            4  asks      pay#0 asks: > run pay(item={"euro": 5})
            5  started   starts pay#1
            6  asks      pay#1 asks: > run pay(item={"euro": 7})
            7  inner     clerk | began     user:      File it.
            8  inner     clerk | replied   assistant: > f1 file()
            9  decided   pay#0/run#DIGEST approved, clerk/f1#DIGEST rejected: not now
           10  started   starts pay#0
           11  answered  pay#0 is done
           12  inner     clerk | decided   tool f1 file!: tool 'file' not run: the call was rejected: not now
           13  inner     clerk | replied   assistant: It is filed.
           14  answered  clerk is done
           15  decided   pay#1/run#DIGEST approved with {"item":{"euro":6}}
           16  started   starts pay#1
           17  answered  pay#1 is done
                         ~ paid: unset -> [{"euro":5},{"euro":6}]
           18  planned   done
           19  answered  done is done
                         assistant: Paid: [{"euro":5},{"euro":6}]
           20  planned   the graph reached its end

        bills = [{"euro":5},{"euro":7}]  (not written in this session)
        paid = [{"euro":5},{"euro":6}]  (version 17, merge_lists, the last of 2 writes)
    "#]],
    );
}

/// Kills a graph of which one branch is done and the other one at work.
fn killed(effect: &str) -> Room {
    let room = Room::new("", "");
    room.write(
        "g.toml",
        &format!(
            r#"
            model = "script:g.script"
            edges = [{{ from = "START", to = ["quick", "slow", "agent"] }}, {{ from = ["quick", "slow", "agent"], to = "end" }}]
            state.did.type = "array"
            limits.parallel = 1

            [nodes.quick]
            command = ["sh", "-c", "echo quick | tee -a did"]
            answers = "did"

            [nodes.agent]
            asks = "Do it."
            answers = "did"
            agent.tools.work = {{ description = "Works.", command = {{ argv = ["sh", "-c", "echo tool >> did"] }} }}

            [nodes.slow]
            command = ["sh", "-c", "echo slow >> did; test -e go || read line < gate; echo slow"]
            answers = "did"
            effect = "{effect}"
            go_on_after_error = true

            [nodes.end]
            says = "Did {{did}}."
            "#
        ),
    );
    room.write("g.script", "assistant: > w1 work()\nassistant: agent");
    assert!(Command::new("mkfifo").arg(room.path("gate")).status().unwrap().success());
    let mut child = room.command("run g.toml -s s1 go").spawn().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines();
    notes.find(|line| line.as_ref().unwrap().contains("slow  | starts")).unwrap().unwrap();
    // It opens when the program does: it is at work then.
    let gate = std::fs::OpenOptions::new().write(true).open(room.path("gate")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    room.write("go", "");
    drop(gate);
    room
}

#[test]
fn after_a_kill_only_what_has_no_outcome_runs_again() {
    let room = killed("idempotent");
    check_in_order(
        &room,
        "resume g.toml",
        expect![[r#"
            session s1
            continues with "go", interrupted in step 2 with slow open
            slow  | starts
            slow  | done
              ~ did: unset -> ["quick","agent","slow"]
            end | starts
            end | done
            Did ["quick","agent","slow"].
        "#]],
    );
    assert_eq!(std::fs::read_to_string(room.path("did")).unwrap(), "quick\ntool\nslow\nslow\n");
}

#[test]
fn after_a_kill_what_must_not_run_twice_does_not() {
    let room = killed("at_most_once");
    check_in_order(
        &room,
        "resume g.toml",
        expect![[r#"
            session s1
            continues with "go", interrupted in step 2
              ~ did: unset -> ["quick","agent"]
            slow  | failed: it had started when the process was interrupted, and is not run again
            end | starts
            end | done
            Did ["quick","agent"].
            outcome unknown: slow had started when the process was interrupted, and was not run again; look whether it happened
        "#]],
    );
    assert_eq!(std::fs::read_to_string(room.path("did")).unwrap(), "quick\ntool\nslow\n");
    room.check(
        "inspect g.toml",
        expect![[r#"
            session s1 of g/local, version 14
            head 14:DIGEST

                1  began     user:      go
                2  planned   quick, agent, slow
                3  answered  quick is done
                4  inner     agent | began     user:      Do it.
                5  inner     agent | replied   assistant: > w1 work()
                6  inner     starts agent/w1
                7  inner     agent | answered  tool w1 work: ""
                8  inner     agent | replied   assistant: agent
                9  answered  agent is done
               10  started   starts slow
               11  interrupted slow: its outcome is unknown
                             ~ did: unset -> ["quick","agent"]
               12  planned   end
               13  answered  end is done
                             assistant: Did ["quick","agent"].
               14  planned   the graph reached its end

            did = ["quick","agent"]  (version 11, merge_lists, the last of 2 writes)
        "#]],
    );
}

/// The agent of a node is killed at its second call: the first one is not made again.
#[test]
fn after_a_kill_the_agent_of_a_node_continues_where_it_was() {
    let room = Room::new("", "");
    room.write(
        "g.toml",
        r#"
        model = "script:g.script"
        edges = [{ from = "START", to = "work" }]

        [nodes.work.agent.tools.first]
        description = "Is done at once."
        command = { argv = ["sh", "-c", "echo first >> did"] }

        [nodes.work.agent.tools.second]
        description = "Takes long."
        effect = "idempotent"
        command = { argv = ["sh", "-c", "echo second >> did; test -e go || read line < gate"] }
        "#,
    );
    room.write("g.script", "assistant: > c1 first()\nassistant: > c2 second()\nassistant: Done.");
    assert!(Command::new("mkfifo").arg(room.path("gate")).status().unwrap().success());
    let mut child = room.command("run g.toml -s s1 go").spawn().unwrap();
    let gate = std::fs::OpenOptions::new().write(true).open(room.path("gate")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    room.write("go", "");
    drop(gate);
    check_in_order(
        &room,
        "resume g.toml",
        expect![[r#"
            session s1
            continues with "go", interrupted in step 2 with work open
            work | starts
            work | > c2 second()
            work |   c2:
            Done.
            work | done
        "#]],
    );
    assert_eq!(std::fs::read_to_string(room.path("did")).unwrap(), "first\nsecond\nsecond\n");
}

#[test]
fn a_node_that_fails_fails_the_run_unless_the_file_says_what_then() {
    let room = Room::new("", "");
    let graph = |rules: &str| {
        format!(
            r#"
            edges = [{{ from = "START", to = "try" }}, {{ from = "try", to = "after" }}, {{ from = "rescue", to = "END" }}]
            nodes.after.says = "That worked."
            nodes.rescue.says = "{{item.node}} failed: {{item.error}}"
            nodes.try.command = ["sh", "-c", "test -e there || {{ echo it is not there >&2; exit 3; }}"]
            nodes.try.on_error = "rescue"
            {rules}
            "#
        )
    };
    room.write("g.toml", &graph("nodes.try.retries = 1"));
    check_in_order(
        &room,
        "run g.toml -s s1 go",
        expect![[r#"
        session s1
        try | starts
        try | failed: the program failed (exit status: 3): it is not there
        rescue#0 | starts with {"error":"the program failed (exit status: 3): it is not the ...
        rescue#0 | done
        try failed: the program failed (exit status: 3): it is not there
        continue: stepfold chat g.toml --session s1
    "#]],
    );
    let fails = graph("").replace(
        "nodes.try.on_error = \"rescue\"",
        "nodes.after.goes_to = []\nnodes.after.on_error = \"rescue\"",
    );
    room.write("f.toml", &fails);
    check_in_order(
        &room,
        "run f.toml -s s1 go",
        expect![[r#"
        session s1
        try | starts
        try | failed: the program failed (exit status: 3): it is not there
        error: the run failed after 1 step: node 'try' failed: the program failed (exit status: 3): it is not there
        what was done is stored; continue with
          stepfold resume f.toml --session s1
    "#]],
    );
    room.write("there", "");
    check_in_order(
        &room,
        "resume f.toml",
        expect![[r#"
            session s1
            continues with "go", interrupted in step 2 with try open
            try | starts
            try | done
            after | starts
            after | done
            That worked.
        "#]],
    );
}

/// A run that ended since a node failed for good leaves nothing to be resumed: the message that came after it is taken.
#[test]
fn a_message_is_answered_also_if_a_node_of_the_run_before_it_has_failed() {
    let room = Room::new("", "");
    let graph = r#"
        edges = [{ from = "START", to = "pay" }, { from = "pay", to = "done" }]
        nodes.done.says = "Paid."
        [nodes.pay]
        command = ["sh", "-c", "test -e tried || { touch tried; exit 3; }"]
        approval = "always"
        effect = "at_most_once"
    "#;
    room.write("g.toml", graph);
    let said = room.say("run g.toml -s s1 go", "");
    assert!(said.ends_with("exit 3\n"), "{said}");
    room.check_with(
        "run g.toml -s s1 --interactive again",
        "y\ny\n",
        expect![[r#"
        Paid.
        | session s1
        | the message is not taken yet: the session waits for a decision; decide first
        | decide about pay/run#DIGEST: pay {}
        | pay | starts
        | pay | failed: the program failed (exit status: 3)
        | the run ended: node 'pay' failed: the program failed (exit status: 3)
        | pay | starts
        | decide about pay/run#DIGEST: pay {}
        | pay | starts
        | pay | done
        | done | starts
        | done | done
        | continue: stepfold chat g.toml --session s1
    "#]],
    );
    let said = room.say("sessions g.toml", "");
    assert!(!said.contains("inbox") && !said.contains("waits"), "{said}");
}

#[test]
fn a_program_says_what_it_writes_and_where_it_goes() {
    let room = Room::new("", "");
    let graph = r#"
        edges = [{ from = "START", to = "pick" }]
        state.found.type = "integer"
        nodes.pick.goes_to = ["left", "END"]
        nodes.left.says = "Left with {found}."
        nodes.pick.command = ["sh", "-c", "cat out"]
        "#;
    room.write("g.toml", graph);
    let check = |out: &str, expect: Expect| {
        room.write("out", out);
        check_in_order(&room, "run g.toml go -s s1", expect);
        room.say("resume g.toml --abandon", "");
    };
    check(
        r#"{"writes": {"found": 3}, "goto": "left"}"#,
        expect![[r#"
        session s1
        pick | starts
        pick | done
          ~ found: unset -> 3
        left | starts
        left | done
        Left with 3.
        continue: stepfold chat g.toml --session s1
    "#]],
    );
    check(
        r#"{"say": "Here.", "goto": ["END"]}"#,
        expect![[r#"
        session s1
        pick | starts
        pick | done
        Here.
        continue: stepfold chat g.toml --session s1
    "#]],
    );
    check(
        "found 3",
        expect![[r#"
        session s1
        pick | starts
        pick | failed: invalid program output: expected an object of `writes`, `say`, `outputs` and `goto` (expected ident at line 1 column 2); for other output set `answers`
        error: the run failed after 1 step: node 'pick' failed: invalid program output: expected an object of `writes`, `say`, `outputs` and `goto` (expected ident at line 1 column 2); for other output set `answers`
        what was done is stored; continue with
          stepfold resume g.toml --session s1
    "#]],
    );
    check(
        r#"{"found": 3}"#,
        expect![[r#"
            session s1
            pick | starts
            pick | failed: invalid program output: expected an object of `writes`, `say`, `outputs` and `goto` (unknown field `found`, expected one of `writes`, `say`, `outputs`, `goto` at line 1 column 8); for other output set ...
            error: the run failed after 1 step: node 'pick' failed: invalid program output: expected an object of `writes`, `say`, `outputs` and `goto` (unknown field `found`, expected one of `writes`, `say`, `outputs`, `goto` at line 1 column 8); for other output set `answers`
            what was done is stored; continue with
              stepfold resume g.toml --session s1
        "#]],
    );
    check(
        r#"{"writes": {"found": "three"}}"#,
        expect![[r#"
        session s1
        pick | starts
        pick | failed: invalid value for key "found": expected integer, found string at $
        error: the run failed after 1 step: node 'pick' failed: invalid value for key "found": expected integer, found string at $
        what was done is stored; continue with
          stepfold resume g.toml --session s1
    "#]],
    );
    check(
        r#"{"goto": "right"}"#,
        expect![[r#"
            session s1
            pick | starts
            pick | failed: invalid target `right`: not in `goes_to`; available: left, END
            error: the run failed after 1 step: node 'pick' failed: invalid target `right`: not in `goes_to`; available: left, END
            what was done is stored; continue with
              stepfold resume g.toml --session s1
        "#]],
    );
}

#[test]
fn a_graph_can_be_a_node_of_another() {
    let room = stalls();
    room.write(
        "outer.toml",
        r#"
        edges = [{ from = "START", to = "stalls" }, { from = "stalls", to = "thanks" }]
        nodes.stalls = { agent = "g.toml" }
        nodes.thanks.says = "Thank you."
        "#,
    );
    check_in_order(
        &room,
        "run outer.toml -s s1 'which area has most stalls?'",
        expect![[r#"
            session s1
            stalls | starts
            stalls > plan | starts
            stalls > plan | {"areas": [{"id": 1, "title": "area 3"}, {"id": 2, "title": "area 7"}], "rounds": 1}
            stalls > plan | done
            stalls > count#0 | starts with {"id":1,"title":"area 3"}
            stalls > count#0 | Twelve.
            stalls > count#0 | done
            stalls > count#1 | starts with {"id":2,"title":"area 7"}
            stalls > count#1 | Let me count.
            stalls > count#1 | Twenty-eight.
            stalls > count#1 | done
            stalls > judge | starts
            stalls > judge | done
            stalls | judge -> plan: verdict is more
            stalls > plan | starts
            stalls > plan | {"areas": [{"id": 3, "title": "area 9"}], "rounds": 1}
            stalls > plan | done
            stalls > count#0 | starts with {"id":3,"title":"area 9"}
            stalls > count#0 | None.
            stalls > count#0 | done
            stalls > judge | starts
            stalls > judge | done
            stalls | judge -> report: verdict is enough
            stalls > report | starts
            stalls > report | Area 7.
            stalls > report | done
            stalls | done
            Area 7.
            thanks | starts
            thanks | done
            Thank you.
            continue: stepfold chat outer.toml --session s1
        "#]],
    );
    let said = room.say("inspect outer.toml", "");
    let lines: Vec<&str> =
        said.lines().filter(|line| line.contains("count#1") && line.contains("replied")).collect();
    expect!["   13  inner     stalls | inner     count#1 | replied   assistant: Let me count."]
        .assert_eq(&lines.join("\n"));
    room.check(
        "replay outer.toml",
        expect![[r#"
            session s1: the same again, 1 run
        "#]],
    );
}

#[test]
fn a_cassette_holds_what_all_agents_said() {
    let room = stalls();
    room.say("run g.toml -s s1 --cassette t.cassette --mode record 'which area has most stalls?'", "");
    for name in ["g.script", "second"] {
        std::fs::remove_file(room.path(name)).unwrap();
    }
    let said =
        room.say("run g.toml -s s2 --cassette t.cassette --mode replay 'which area has most stalls?'", "");
    assert!(said.starts_with("Area 7.\n"), "{said}");

    room.write("planner.toml", &format!("model = \"script:other.script\"{PLANNER}"));
    room.write("other.script", "assistant: {}");
    room.write("g.script", STALLS_SCRIPT);
    room.check("run g.toml --cassette u.cassette 'which area?'", expect![[r#"
        | error: a cassette records one model, and the agents of this graph use several; set one for all of them with --model
        exit 2
    "#]]);
}

/// The model, its parameters and who agrees are of each run.
#[test]
fn agents_follow_the_state() {
    let room = Room::new("", "");
    room.write(
        "g.toml",
        r#"
        model = "script:g.script"
        per_run = true
        edges = [{ from = "START", to = "work" }]
        state.auto = { type = "boolean", default = true }
        state.model_id.type = "string"
        nodes.work.agent.tools.pay = { description = "Pays.", command = { argv = ["echo", "paid"] } }
        "#,
    );
    room.write("g.script", "assistant: > c1 pay()\nassistant: Paid.");
    room.write("other.script", "assistant: I never pay.");
    check_in_order(
        &room,
        "run g.toml -s s1 pay",
        expect![[r#"
        session s1
        work | starts
        work | > c1 pay()
        work |   c1: paid
        Paid.
        work | done
        continue: stepfold chat g.toml --session s1
    "#]],
    );
    let said = room.say("run g.toml -s s2 --set auto=false pay", "");
    assert!(said.contains("| decide about work/c1#DIGEST: pay {}\n") && said.ends_with("exit 3\n"), "{said}");
    let said = room.say("run g.toml -s s3 --set model_id=script:other.script pay", "");
    assert!(said.starts_with("I never pay.\n"), "{said}");
    let said = room.say("run g.toml -s s4 --set model_id=script:none pay", "");
    assert!(said.contains("unknown model \"script:none\" in the state"), "{said}");
}

#[test]
fn an_interrupt_leaves_the_session_usable() {
    let room = Room::new("", "");
    room.write(
        "g.toml",
        r#"
        edges = [{ from = "START", to = "slow" }, { from = "slow", to = "end" }]
        nodes.slow.command = ["sh", "-c", "test -e go || read line < gate"]
        nodes.end.says = "There."
        "#,
    );
    assert!(Command::new("mkfifo").arg(room.path("gate")).status().unwrap().success());
    let child = room.command("run g.toml -s s1 go").spawn().unwrap();
    // It opens when the program does: it is at work then.
    let _gate = std::fs::OpenOptions::new().write(true).open(room.path("gate")).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{notes}");
    assert!(notes.contains("the run ended: the run was cancelled"), "{notes}");
    room.write("go", "");
    check_in_order(
        &room,
        "run g.toml -s s1 again",
        expect![[r#"
        session s1
        slow | starts
        slow | done
        end | starts
        end | done
        There.
        continue: stepfold chat g.toml --session s1
    "#]],
    );
}

#[test]
fn a_graph_is_drawn() {
    let room = stalls();
    room.check(
        "draw g.toml",
        expect![[r#"
            flowchart TD
                start([START])
                n0["plan"]
                n1["count"]
                n2["judge"]
                n3["report"]
                end_([END])
                start --> n0
                n0 -->|"each of areas"| n1
                n1 --> n2
                n2 -.-> n3
                n2 -.-> n0
                n3 --> end_
        "#]],
    );
    let dot = room.say("draw g.toml --as dot", "");
    assert!(dot.starts_with("digraph \"g\" {\n"), "{dot}");
    room.check(
        "draw planner.toml",
        expect![[r#"
        | error: planner.toml describes an agent; there is nothing to draw without nodes
        exit 2
    "#]],
    );
}

/// What the example shows can be run as it says.
#[test]
fn the_example_runs() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/agents");
    let room = Room::new("", "");
    for name in ["library.toml", "library.script", "librarian.toml"] {
        let text = std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
        // One page after the other, so that the lines have an order.
        room.write(name, &text.replace("[limits]", "[limits]\nparallel = 1"));
    }
    check_in_order(
        &room,
        "run library.toml -s s1 --model script:library.script 'What do our pages say about durability?'",
        expect![[r#"
            session s1
            pick | starts
            pick | {"pages": [{"id": 1, "title": "durability"}, {"id": 2, "title": "sessions"}]}
            pick | done
              ~ pages: unset -> [{"id":1,"title":"durability"},{"id":2,"title":"sessions"}]
              task 1 pending: durability
              task 2 pending: sessions
              0 % (0 of 2)
              task 1 running: durability
              task 2 running: sessions
            read#0 | starts with {"id":1,"title":"durability"}
            read#0 | Each event is one commit, so a process may die at any instant.
            read#0 | done
              task 1 completed: durability
              50 % (1 of 2)
            read#1 | starts with {"id":2,"title":"sessions"}
            read#1 | A session has a version, and a stale writer is told so.
            read#1 | done
              task 2 completed: sessions
              100 % (2 of 2)
              ~ read: unset -> ["Each event is one commit, so a process may die at any instant.","A session has a version, and a stale writer is told so."]
            judge | starts
            judge | {"verdict": "enough"}
            judge | done
              ~ verdict: unset -> "enough"
            judge -> report: verdict is enough
            report | starts
            Nothing is lost: each event is one commit, and writers do not overwrite each other.
            report | done
            continue: stepfold chat library.toml --model script:library.script --session s1
        "#]],
    );
}
