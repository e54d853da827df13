//! The JSON reader and writer of the studio, in node: what the core holds comes back bit for bit, and what it does not hold
//! is refused, by the same rule as [`read_exact`].

use std::path::Path;

use fastrand::Rng;
use serde_json::{Map, Value, json};
use stepfold_state_core::read_exact;

use crate::browser::in_node;

/// What the module makes of each text; `None` without node.
fn seen(texts: &[String]) -> Option<Vec<Value>> {
    in_node("json.mjs", &Path::new(env!("CARGO_MANIFEST_DIR")).join("page/json.js"), texts)
}

fn number(luck: &mut Rng) -> Value {
    let bits = luck.u64(..) >> luck.u32(0..64);
    match luck.u8(0..6) {
        0 => json!(bits),
        1 => json!(bits.cast_signed()),
        2 => json!(f64::from_bits(luck.u64(..))),
        3 => json!(luck.i32(-3..3)),
        // Whole decimals, and those that look like integers.
        4 => json!(f64::from(luck.i32(-3..3))),
        _ => json!(f64::from(luck.i32(..)) * 10_f64.powi(luck.i32(-30..30))),
    }
}

fn value(luck: &mut Rng, depth: u32) -> Value {
    let text = |luck: &mut Rng| -> String {
        let characters =
            ["a", "\"", "\\", "\n", "\u{202e}", "é", "😀", "1.0", "__proto__", "\u{0}", ": 1.50,"];
        (0..luck.usize(0..4)).map(|_| *luck.choice(&characters).unwrap()).collect()
    };
    match luck.u8(0..if depth == 0 { 6 } else { 9 }) {
        0 => Value::Null,
        1 => luck.bool().into(),
        2 => text(luck).into(),
        3..6 => number(luck),
        6 | 7 => (0..luck.usize(0..5)).map(|_| value(luck, depth - 1)).collect(),
        _ => {
            let fields = (0..luck.usize(0..5)).map(|_| (text(luck), value(luck, depth - 1)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
    }
}

#[test]
fn what_the_core_holds_comes_back_bit_for_bit() {
    let mut luck = Rng::with_seed(31);
    let mut values: Vec<Value> = (0..20_000).map(|_| value(&mut luck, 4)).collect();
    values.extend([
        json!(u64::MAX),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(-0.0),
        json!(1.0),
        json!(5e-324),
    ]);
    values.extend([json!(2_512_292_042_121_000_001_u64), json!({"__proto__": 1.0, "toString": 2.0})]);
    let texts: Vec<String> = values.iter().map(Value::to_string).collect();
    let Some(seen) = seen(&texts) else { return };
    for (text, seen) in texts.iter().zip(&seen) {
        // Keys of digits come first in JavaScript; all else is the same text.
        let same =
            |what: &str| serde_json::from_str::<Value>(seen[what].as_str().unwrap()).unwrap().to_string();
        assert_eq!((&same("read"), &same("typed"), &same("laid")), (text, text, text), "{seen}");
    }
}

#[test]
fn the_page_refuses_what_the_core_refuses() {
    let mut luck = Rng::with_seed(33);
    let digits = |luck: &mut Rng, most: usize| -> String {
        (0..luck.usize(1..most)).map(|_| *luck.choice(b"0123456789000999").unwrap() as char).collect()
    };
    let mut texts: Vec<String> = (0..20_000)
        .map(|_| {
            let sign = if luck.bool() { "-" } else { "" };
            let fraction = if luck.bool() { format!(".{}", digits(&mut luck, 30)) } else { String::new() };
            let power = match luck.u8(0..4) {
                0 => format!("{}{}", luck.choice(&["e", "E+", "e-"]).unwrap(), digits(&mut luck, 4)),
                _ => String::new(),
            };
            format!("{sign}{}{fraction}{power}", digits(&mut luck, 22))
        })
        .collect();
    // Decimals that are as near to a number of 64 bits as another one with as many digits.
    texts.extend((0..2_000).map(|_| {
        let (places, odd) = (luck.i32(2..6), luck.i32(..) | 1);
        let tied = 2_f64.powi(52 - luck.i32(places..30)) + f64::from(odd) / 2_f64.powi(places);
        let mut digits = format!("{tied:.0$}", places.unsigned_abs() as usize);
        assert_eq!(digits.pop(), Some('5'));
        let last = digits.pop().filter(char::is_ascii_digit).unwrap_or('0');
        let up = char::from_u32(u32::from(last) + 1).filter(char::is_ascii_digit).filter(|_| luck.bool());
        digits + up.unwrap_or(last).to_string().as_str()
    }));
    let others = [
        "-0",
        "18446744073709551615",
        "18446744073709551616",
        "-9223372036854775808",
        "-9223372036854775809",
        "1e400",
        "1e-400",
        "0.123456789012345678901234567890",
        r#"{"a":1,"a":2}"#,
        r#"{"a":{"b":1,"b":1}}"#,
        r#""\ud800""#,
        r#""\ud83d\ude00""#,
        "",
        "[1,",
        "[1,]",
        "{\"a\":}",
        "{a:1}",
        "'a'",
        "nul",
        "truex",
        "[1 2]",
        "\"a\nb\"",
        "\"\\x\"",
        "\u{a0}1",
        "NaN",
        "Infinity",
        "// 1",
        "1 2",
        " [ ] ",
        "\t{ }\n",
        "[[1.0]]",
        "1e99999999999999999999",
        "1e-99999999999999999999",
        "0e99999999999999999999",
        "0.10000000000000001",
    ];
    texts.extend(others.map(str::to_owned));
    texts.extend([20, 127, 128, 129].map(|depth| format!("{}1{}", "[".repeat(depth), "]".repeat(depth))));
    let Some(seen) = seen(&texts) else { return };
    let mut refused = 0;
    for (text, seen) in texts.iter().zip(&seen) {
        let core = read_exact(text).ok().map(|value| value.to_string());
        let page = seen["typed"].as_str().map(|text| read_exact(text).unwrap().to_string());
        assert_eq!(page, core, "{text}: {seen}");
        refused += usize::from(core.is_none());
    }
    assert!((5_000..18_000).contains(&refused), "{refused} of {}", texts.len());
}
