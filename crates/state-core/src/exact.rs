//! Rejects JSON that cannot be stored exactly.
//!
//! The JSON reader silently takes the nearest decimal for a number that does not fit 64 bits, and the last of two
//! equal keys. Values of a model are read this way, and an approver sees them as they were read. Values of a person or
//! a client are rejected with the reason. The studio has the same rule, in `json.js` of the server.

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The reason why JSON was refused by [`read_exact`] or [`check_exact`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExactError {
    /// Not JSON, or an object with a key twice.
    #[error("invalid JSON: {0}")]
    Json(serde_json::Error),
    /// An integer beyond 64 bits.
    #[error(
        "the integer {number} is out of range (-9223372036854775808 to 18446744073709551615): write it as a string"
    )]
    IntegerRange {
        /// The number, shortened.
        number: String,
    },
    /// A decimal beyond the range of 64 bits.
    #[error("the number {number} is out of range (up to 1.8e308)")]
    NumberRange {
        /// The number, shortened.
        number: String,
    },
    /// A decimal with more digits than 64 bits hold.
    #[error(
        "the number {number} has more digits than can be stored: it would become {stored}. Write it as a string"
    )]
    Digits {
        /// The number, shortened.
        number: String,
        /// The nearest number.
        stored: f64,
    },
    /// `-0`, which would become a decimal.
    #[error("-0 is not an integer: write 0, or -0.0")]
    NegativeZero,
}

/// Reads JSON of a person or a client exactly, or rejects it.
///
/// # Errors
/// Invalid JSON, an object with a key twice, a number that 64 bits cannot hold.
///
/// # Examples
/// ```
/// use stepfold_state_core::read_exact;
///
/// assert_eq!(read_exact("[2512292042121000001, 1.0, -0.0]")?.to_string(), "[2512292042121000001,1.0,-0.0]");
/// let refused = read_exact("0.123456789012345678901234567890").unwrap_err();
/// assert!(refused.to_string().ends_with("it would become 0.12345678901234568. Write it as a string"));
/// assert!(read_exact("18446744073709551616").is_err() && read_exact("1e400").is_err());
/// assert!(read_exact(r#"{"euro": 5, "euro": 999}"#).is_err());
/// # Ok::<(), stepfold_state_core::ExactError>(())
/// ```
pub fn read_exact(json: &str) -> Result<Value, ExactError> {
    // NOTE: The text is checked, not the value: JSON's reader silently takes the nearest number
    // (docs/decisions/state.md).
    if let Err(inexact) = check_exact(json.as_bytes()) {
        // NOTE: Only JSON has numbers: `DE97092768130343894445` and `x: -` have none.
        let syntax = serde_json::from_str::<IgnoredAny>(json);
        return Err(syntax.map_or_else(ExactError::Json, |_| inexact));
    }
    let mut reader = serde_json::Deserializer::from_str(json);
    let value = UniqueKeysVisitor.deserialize(&mut reader).map_err(ExactError::Json)?;
    reader.end().map_err(ExactError::Json)?;
    Ok(value)
}

/// Checks that each number of a JSON text is read exactly as written. Does not check the rest of the syntax.
///
/// A decimal may have its shortest digits, or up to 17 exact ones: both name one 64-bit number.
///
/// # Errors
/// A number that 64 bits cannot hold. Of a text that is not JSON, any of its parts may be taken as such a number.
pub fn check_exact(json: &[u8]) -> Result<(), ExactError> {
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        at += match byte {
            b'"' => text_length(&json[at..]),
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
                let length = json[at..].iter().take_while(|byte| is_part(byte)).count();
                check_number(&String::from_utf8_lossy(&json[at..at + length]))?;
                length
            }
            _ => 1,
        };
    }
    Ok(())
}

/// Counts the values in a JSON text, at any depth: many small values take many times the memory of their text. Does not
/// check the syntax.
///
/// # Examples
/// ```
/// use stepfold_state_core::count_values;
///
/// assert_eq!(count_values(br#"{"text": "[1, 2]", "list": [1, []]}"#), 5);
/// ```
pub fn count_values(json: &[u8]) -> usize {
    let (mut at, mut values) = (0, 1);
    while let Some(byte) = json.get(at) {
        at += match byte {
            b'"' => text_length(&json[at..]),
            b',' => {
                values += 1;
                1
            }
            // NOTE: A comma counts the next value, so the bracket counts the first one.
            b'[' | b'{' => {
                let next = json[at + 1..].iter().find(|byte| !byte.is_ascii_whitespace());
                values += usize::from(next.is_some_and(|next| !matches!(next, b']' | b'}')));
                1
            }
            _ => 1,
        };
    }
    values
}

/// The length of a text with its quotes.
fn text_length(json: &[u8]) -> usize {
    let mut at = 1;
    loop {
        match json.get(at) {
            None => return at,
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
        }
    }
}

fn check_number(number: &str) -> Result<(), ExactError> {
    // NOTE: The number may be a megabyte long.
    let shortened = || match number.len() > 60 {
        true => format!("{}... ({} characters)", &number[..40], number.len()),
        false => number.to_owned(),
    };
    if number == "-0" {
        return Err(ExactError::NegativeZero);
    }
    if !number.contains(['.', 'e', 'E']) {
        let is_held = number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok();
        // NOTE: Other invalid text is left to the reader, which reports its position.
        let is_integer = number.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
        return match is_held || !is_integer {
            true => Ok(()),
            false => Err(ExactError::IntegerRange { number: shortened() }),
        };
    }
    let (Some(written), Ok(stored)) = (DecimalValue::of(number), number.parse::<f64>()) else {
        return Ok(());
    };
    if !stored.is_finite() {
        return Err(ExactError::NumberRange { number: shortened() });
    }
    let digits = written.digits.len().saturating_sub(1);
    // NOTE: Two forms are accepted: the shortest one, and 17 digits as `%.17g` prints them.
    let prints = [Value::from(stored).to_string(), format!("{stored:.0$e}", digits.min(16))];
    match prints.iter().any(|printed| DecimalValue::of(printed).is_some_and(|printed| printed == written)) {
        true => Ok(()),
        false => Err(ExactError::Digits { number: shortened(), stored }),
    }
}

/// The value of a decimal: its digits without zeros around them, and the power of ten of the last one.
#[derive(PartialEq)]
struct DecimalValue {
    is_negative: bool,
    digits: String,
    power: i64,
}

impl DecimalValue {
    fn of(number: &str) -> Option<Self> {
        let (is_negative, number) = match number.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, number),
        };
        let (mantissa, power) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        // NOTE: A larger power belongs to a number that is out of range, or zero. Half the range, so that the lengths
        // below cannot overflow it.
        let most = if power.starts_with('-') { i64::MIN / 2 } else { i64::MAX / 2 };
        let power = power.parse().unwrap_or(most).clamp(i64::MIN / 2, i64::MAX / 2);
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let digits = all.trim_end_matches('0');
        let power =
            power - i64::try_from(fraction.len()).ok()? + i64::try_from(all.len() - digits.len()).ok()?;
        let digits = digits.trim_start_matches('0');
        let power = if digits.is_empty() { 0 } else { power };
        Some(DecimalValue { is_negative, digits: digits.to_owned(), power })
    }
}

/// Reads a value whose objects have each key once.
struct UniqueKeysVisitor;

impl<'de> DeserializeSeed<'de> for UniqueKeysVisitor {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeysVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut found = Vec::new();
        while let Some(item) = items.next_element_seed(UniqueKeysVisitor)? {
            found.push(item);
        }
        Ok(Value::Array(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut found = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            // NOTE: `serde_json` would keep the last value, and a client that keeps the first one would show a person
            // something else.
            if found.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            let value = fields.next_value_seed(UniqueKeysVisitor)?;
            found.insert(key, value);
        }
        Ok(Value::Object(found))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Texts with parts like numbers that cannot be stored.
    const NO_JSON: [&str; 12] = [
        "a -",
        "-",
        "x: -y",
        "-0 degrees",
        "DE97092768130343894445",
        "97092768130343894445 is the number",
        "[97092768130343894445",
        "1e400 units",
        "0.123456789012345678901234567890 exactly",
        "--18446744073709551616",
        "018446744073709551616",
        "{a: 1e400}",
    ];

    fn refusal(json: &str) -> String {
        read_exact(json).map_or_else(|error| error.to_string(), |value| format!("held: {value}"))
    }

    #[test]
    fn what_is_written_is_held_or_refused() {
        for held in [
            "0",
            "-1",
            "9007199254740993",
            "-9223372036854775808",
            "18446744073709551615",
            "1.0",
            "-0.0",
            "0.1",
            "5e-324",
            "1.7976931348623157e+308",
            "0.30000000000000004",
            "2512292042121000001",
            "9007199254740992.0",
        ] {
            assert_eq!(refusal(held), format!("held: {held}"));
        }
        // The same number, written otherwise: shortest, or with 17 digits.
        for (written, held) in [
            ("1e5", "100000.0"),
            ("1.50", "1.5"),
            ("-0e9", "-0.0"),
            ("0e-99999999999999999999", "0.0"),
            ("0.10000000000000001", "0.1"),
            ("1E+2", "100.0"),
        ] {
            assert_eq!(refusal(written), format!("held: {held}"));
        }
        for refused in [
            "-0",
            "18446744073709551616",
            "-9223372036854775809",
            "1e400",
            "-1e400",
            "1e-400",
            "1e99999999999999999999",
            "1e-99999999999999999999",
            "9007199254740993.0",
            "0.1000000000000000055511151231257827",
            "0.123456789012345678901234567890",
            r#"{"a":[1e400]}"#,
            r#"{"a":1,"a":1}"#,
            r#"[{"a":{"b":1,"b":1}}]"#,
            "01",
            "1.",
            "+1",
            "[1",
            "1 2",
            "",
        ] {
            assert!(!refusal(refused).starts_with("held"), "{refused}");
        }
        for text in NO_JSON {
            assert!(refusal(text).starts_with("invalid JSON: "), "{text}: {}", refusal(text));
        }
        assert!(refusal(r#"["1e400 \" 1e400", "\\", "-0"]"#).starts_with("held"));
        assert!(refusal(&"9".repeat(1_000_000)).len() < 300);
    }

    proptest! {
        /// Numbers printed by this program, or with `%.17g`, are read again bit for bit.
        #[test]
        fn all_that_is_held_is_accepted(bits: u64, signed: i64) {
            for value in [Value::from(bits), Value::from(signed), Value::from(f64::from_bits(bits))] {
                prop_assert_eq!(read_exact(&value.to_string()).unwrap().to_string(), value.to_string());
            }
            let number = f64::from_bits(bits);
            if number.is_finite() {
                let read = read_exact(&format!("{number:.16e}")).unwrap().as_f64().map(f64::to_bits);
                prop_assert_eq!(read, Some(bits));
            }
        }

        /// One more digit makes it another number, which is refused.
        #[test]
        fn one_digit_more_is_refused(bits: u64, digit in 1..=9_u8) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            let exact = format!("{number:.16e}");
            let (mantissa, power) = exact.split_once('e').unwrap();
            let longer = format!("{mantissa}{digit}e{power}");
            prop_assert!(read_exact(&longer).is_err(), "{}", longer);
        }
    }
}
