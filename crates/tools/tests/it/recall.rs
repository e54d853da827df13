//! Recall: what an agent finds of the part of its conversation that it is not shown.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use stepfold_tools::state_core::chat::{Message, ToolCall, ToolResult, Transcript};
use stepfold_tools::state_core::state::{Schema, State};
use stepfold_tools::{Invocation, InvokeOptions, Tools, Toolset, recall_tools};

/// A conversation with recall.
struct Session {
    state: State,
    tools: Tools,
    options: InvokeOptions,
}

impl Session {
    fn of(recall: &Toolset, log: Transcript) -> Self {
        let mut state = State::new(&Schema::builder().build().unwrap());
        state.replace_messages(log);
        let tools = recall.static_tools().unwrap();
        Session { state, tools, options: InvokeOptions::default() }
    }

    fn call(&self, tool: &str, arguments: Value) -> Result<Value, String> {
        let calls = vec![ToolCall::new("now", tool, arguments)];
        let invocation = Invocation::new(&self.tools, self.state.clone(), calls, self.options.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let done = runtime.block_on(invocation.finish());
        let result = &done.outcomes[0].result;
        match result.is_error() {
            true => Err(result.text().into_owned()),
            false => Ok(serde_json::from_str(&result.text()).unwrap()),
        }
    }

    fn found(&self, query: &str) -> Vec<usize> {
        let found = self.call("recall_search", json!({"query": query})).unwrap();
        let found = found["found"].as_array().unwrap().iter();
        found.map(|one| usize::try_from(one["message"].as_u64().unwrap()).unwrap()).collect()
    }
}

fn result(id: &str, tool: &str, text: &str) -> Message {
    Message::tool(ToolResult::value(id, tool, text))
}

fn log() -> Transcript {
    [
        Message::system("The fee is secret."),
        Message::user("The fee of the bakery is 5 euro."),
        Message::assistant("Noted: order AB-1042/x."),
        Message::user("三号服务区的档口费用是多少?"),
        result(
            "c7",
            "read",
            &format!("{} the stove of Mrs. Wójcik {}", "stall ".repeat(400), "oven ".repeat(400)),
        ),
        result("c8", "recall_search", "bakery bakery bakery fee fee"),
        Message::user("วันนี้จ่ายค่าน้ำประปาแล้ว"),
        Message::user("ລາຄາຕະຫຼາດ, តម្លៃនៅផ្សារ, ဈေးနှုန်း"),
        Message::user("商店街の人々はﾊﾟﾝﾔに行く"),
        // The same letters in other words.
        Message::user("น่ ก่ำ, 人 々"),
    ]
    .into_iter()
    .collect()
}

#[test]
fn words_numbers_identifiers_and_two_letter_words_are_found() {
    let session = Session::of(&recall_tools().unwrap(), log());
    for (query, expected) in [
        ("bakery fees", vec![1]),
        ("ab-1042", vec![2]),
        ("费用", vec![3]),
        ("服务区", vec![3]),
        // Thai with tone marks, Lao, Khmer, Burmese, and Japanese with a mark of repetition and narrow katakana.
        ("น้ำ", vec![6]),
        ("ค่าน้ำ", vec![6]),
        ("ຕະຫຼາດ", vec![7]),
        ("ផ្សារ", vec![7]),
        ("ဈေး", vec![7]),
        ("人々", vec![8]),
        ("ﾊﾟﾝ", vec![8]),
        ("wójcik", vec![4]),
        ("nothing like it", vec![]),
        // Quotes and operators are words or nothing.
        ("\"fee\" AND (bakery OR *) -- '; DROP TABLE", vec![1]),
    ] {
        assert_eq!(session.found(query), expected, "{query}");
    }
    let found = session.call("recall_search", json!({"query": "Wójcik"})).unwrap();
    let one = &found["found"][0];
    assert_eq!((&one["of"], &one["tool"], &one["call_id"]), (&json!("tool"), &json!("read"), &json!("c7")));
    let excerpt = one["excerpt"].as_str().unwrap();
    assert!(excerpt.contains("the stove of Mrs. Wójcik") && excerpt.chars().count() <= 250, "{excerpt}");
}

#[test]
fn what_is_shown_is_not_found() {
    let mut session = Session::of(&recall_tools().unwrap(), log());
    session.options.shown = Arc::new([1..2, 4..usize::MAX]);
    assert_eq!(session.found("bakery fee order wójcik"), [2]);
}

#[test]
fn a_long_result_is_read_in_parts() {
    let session = Session::of(&recall_tools().unwrap(), log());
    let (mut from, mut text) = (json!(0), String::new());
    while !from.is_null() {
        let part =
            session.call("recall_read", json!({"call_id": "c7", "from": from, "characters": 1_000})).unwrap();
        text.push_str(part["text"].as_str().unwrap());
        from = part["next"].clone();
    }
    assert_eq!(text, log().get(4).unwrap().tool_result().unwrap().text());
    assert_eq!(
        session.call("recall_read", json!({"message": 1})).unwrap()["text"],
        "The fee of the bakery is 5 euro."
    );
    for (arguments, error) in [
        (json!({"call_id": "c99"}), "no result of a call \"c99\" in this conversation"),
        (json!({"message": 10}), "no message 10: the conversation has the numbers 0 to 9"),
        // The instructions are not part of what was said.
        (json!({"message": 0}), "no message 0: the conversation has the numbers 0 to 9"),
        (json!({}), "give the number of a message, or the id of a call"),
        (json!({"message": 1, "from": 32}), "nothing to read from character 32: message 1 has 32"),
    ] {
        let told = session.call("recall_read", arguments.clone()).unwrap_err();
        assert!(told.contains(error), "{arguments}: {told}");
    }
    // A conversation of another program repeats an id: the newest is read, and the others can be.
    let again = Session::of(&recall_tools().unwrap(), log().with(result("c7", "read", "again")));
    let read = again.call("recall_read", json!({"call_id": "c7"})).unwrap();
    assert_eq!((&read["text"], &read["older_messages_of_this_call_id"]), (&json!("again"), &json!([4])));
    let told = session.call("recall_search", json!({"query": " ?! the "})).unwrap_err();
    assert!(told.contains("the query has no words to search for"), "{told}");
}

/// One set of tools for many conversations, which grow, are forked, rewound and edited between the searches.
#[derive(Clone, Debug)]
enum Change {
    Say(usize, u8),
    Fork(usize),
    Rewind(usize, prop::sample::Index),
    Edit(usize, prop::sample::Index, u8),
    Search(usize, u8),
}

fn change() -> impl Strategy<Value = Change> {
    let which = || 0..4_usize;
    prop_oneof![
        5 => (which(), 0..20_u8).prop_map(|(which, word)| Change::Say(which, word)),
        1 => which().prop_map(Change::Fork),
        1 => (which(), any::<prop::sample::Index>()).prop_map(|(which, at)| Change::Rewind(which, at)),
        1 => (which(), any::<prop::sample::Index>(), 0..20_u8).prop_map(|(which, at, word)| Change::Edit(which, at, word)),
        4 => (which(), 0..20_u8).prop_map(|(which, word)| Change::Search(which, word)),
    ]
}

proptest! {
    /// An index that is kept finds what a new one finds: all messages with the word, of this conversation as it is now.
    #[test]
    fn kept_indexes_find_what_is_there_now(changes in prop::collection::vec(change(), 1..40)) {
        let recall = recall_tools().unwrap();
        let mut logs = vec![Transcript::new(); 4];
        for change in changes {
            match change {
                Change::Say(which, word) => logs[which].push(Message::user(format!("word{word} and more"))),
                Change::Fork(which) => logs[(which + 1) % 4] = logs[which].clone(),
                Change::Rewind(which, at) => {
                    let length = at.index(logs[which].len() + 1);
                    logs[which] = logs[which].iter().take(length).cloned().collect();
                }
                Change::Edit(which, at, word) if !logs[which].is_empty() => {
                    let at = at.index(logs[which].len());
                    logs[which].replace(at, Message::user(format!("word{word} now")));
                }
                Change::Edit(..) => {}
                Change::Search(which, word) => {
                    let log = &logs[which];
                    let has_word = |index: &usize| {
                        let text = log.get(*index).unwrap().text().into_owned();
                        text.split(' ').any(|found| found == format!("word{word}"))
                    };
                    let expected: BTreeSet<usize> = (0..log.len()).filter(has_word).collect();
                    let session = Session::of(&recall, log.clone());
                    let found = session.call("recall_search", json!({"query": format!("word{word}"), "limit": 20})).unwrap();
                    let found = found["found"].as_array().unwrap().iter();
                    let found: BTreeSet<usize> = found.map(|one| usize::try_from(one["message"].as_u64().unwrap()).unwrap()).collect();
                    prop_assert_eq!(found.len(), expected.len().min(20));
                    prop_assert!(found.is_subset(&expected));
                }
            }
        }
    }
}

const PEOPLE: [&str; 10] =
    ["Ada", "Bruno", "Chen", "Dilnoza", "Esra", "Farid", "Greta", "Hiro", "Ines", "Jonas"];
const THINGS: [&str; 10] = [
    "bakery stall",
    "fish counter",
    "flower stand",
    "bicycle repair",
    "tea house",
    "book corner",
    "shoe shop",
    "cheese cellar",
    "print shop",
    "music school",
];
const FACTS: [&str; 4] =
    ["pays a yearly fee of", "opened in the year", "has the permit number", "owes the amount of"];
const NAMES: [&str; 10] = ["王芳", "李伟", "张敏", "刘洋", "陈静", "杨磊", "赵丽", "黄强", "周杰", "吴霞"];
const PLACES: [&str; 10] = [
    "一号档口",
    "二号档口",
    "三号档口",
    "四号档口",
    "五号档口",
    "六号档口",
    "七号档口",
    "八号档口",
    "九号档口",
    "十号档口",
];
const MATTERS: [&str; 4] = ["每年的租金是", "开业的年份是", "许可证的编号是", "欠款的金额是"];

/// 200 questions over 50 sessions in English and Chinese: the message with the answer is among the first five.
#[test]
fn answers_are_among_the_first_five() {
    let recall = recall_tools().unwrap();
    let mut random = fastrand_of(7);
    let (mut asked, mut found) = (0, 0);
    for session in 0..50 {
        let is_chinese = session % 2 == 1;
        let mut log = Transcript::new();
        let mut facts = Vec::new();
        for message in 0..120 {
            let (who, what, how) = (random(10), random(10), random(4));
            let number = 1_000 + random(9_000);
            let text = match is_chinese {
                false => format!(
                    "{} runs the {}, which {} {number}. The weather was fine and the market full.",
                    PEOPLE[who], THINGS[what], FACTS[how]
                ),
                true => format!(
                    "{}经营{}，{}{number}。今天天气很好，市场里人很多。",
                    NAMES[who], PLACES[what], MATTERS[how]
                ),
            };
            facts.push((message, who, what, how));
            log.push(if message % 2 == 0 {
                Message::user(text)
            } else {
                result(&format!("c{message}"), "read", &text)
            });
        }
        let of = Session::of(&recall, log);
        for _ in 0..4 {
            let (_, who, what, how) = facts[random(facts.len())];
            let question = match is_chinese {
                false => format!("What did {} say: the {} {}?", PEOPLE[who], THINGS[what], FACTS[how]),
                true => format!("{}的{}{}多少？", NAMES[who], PLACES[what], MATTERS[how]),
            };
            // Equal facts are told more than once: any of them answers.
            let answers =
                facts.iter().filter(|fact| (fact.1, fact.2, fact.3) == (who, what, how)).map(|fact| fact.0);
            let answers: BTreeSet<usize> = answers.collect();
            asked += 1;
            found += usize::from(of.found(&question).iter().any(|index| answers.contains(index)));
        }
    }
    assert_eq!(asked, 200);
    assert!(found * 10 >= asked * 9, "{found} of {asked}");
}

/// Small random numbers below a bound.
fn fastrand_of(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |bound| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % bound
    }
}
