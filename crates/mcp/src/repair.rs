//! Repairs messages that are almost JSON-RPC: half a character where a text was truncated, `NaN` for a number, a text
//! for an error.
//!
//! The SDK drops such a message, and its call would end with its timeout.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

/// The code of an error without one: JSON-RPC reserves it for servers.
const NO_CODE: i32 = -32_000;

/// Repairs a message; `None` if it is valid.
pub(crate) fn repaired(message: &[u8]) -> Option<Vec<u8>> {
    match as_json(message) {
        Some(json) => Some(as_response(&json).unwrap_or(json)),
        None => as_response(message),
    }
}

/// The fields of a message that decide whether it is valid.
#[derive(Deserialize)]
struct RpcEnvelope {
    jsonrpc: Option<Value>,
    id: Option<Value>,
    method: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "present")]
    result: bool,
    #[serde(default, deserialize_with = "present_value")]
    error: Option<Value>,
}

fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

fn present_value<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl RpcEnvelope {
    fn is_valid(&self) -> bool {
        let is_error = |error: &Value| code_of(error).is_some() && error["message"].is_string();
        self.jsonrpc.as_ref().is_some_and(|version| version == "2.0")
            && self.id.as_ref().is_none_or(|id| number_of(id).is_none())
            && match &self.error {
                None => self.result,
                Some(error) => !self.result && is_error(error),
            }
    }
}

/// Repairs a response: one without its version, with the id as text, with an error that is null or has no code, or without
/// both result and error. `None` if it is valid or no response.
fn as_response(message: &[u8]) -> Option<Vec<u8>> {
    let envelope: RpcEnvelope = serde_json::from_slice(message).ok()?;
    let is_response = envelope.method.is_none() && envelope.id.as_ref().is_some_and(|id| !id.is_null());
    // NOTE: Valid responses, which are nearly all, are not parsed again as a whole.
    if !is_response || envelope.is_valid() {
        return None;
    }
    let mut fields: Map<String, Value> = serde_json::from_slice(message).ok()?;
    fields.insert("jsonrpc".to_owned(), json!("2.0"));
    if let Some(id) = fields.get("id").and_then(number_of) {
        fields.insert("id".to_owned(), json!(id));
    }
    match fields.remove("error").filter(|error| !error.is_null()) {
        None => drop(fields.entry("result").or_insert_with(|| json!({}))),
        Some(error) => {
            fields.remove("result");
            fields.insert("error".to_owned(), as_error(error));
        }
    }
    Some(Value::Object(fields).to_string().into_bytes())
}

/// Parses an id that a server returned as text. Our ids are numbers.
fn number_of(id: &Value) -> Option<u32> {
    id.as_str()?.parse().ok()
}

fn code_of(error: &Value) -> Option<i32> {
    error["code"].as_i64()?.try_into().ok()
}

fn as_error(error: Value) -> Value {
    let code = code_of(&error).unwrap_or(NO_CODE);
    let words = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match error {
        Value::Object(fields) => {
            let message = match fields.get("message") {
                Some(message) if !message.is_null() => words(message),
                _ if fields.contains_key("data") => String::new(),
                _ => Value::Object(fields.clone()).to_string(),
            };
            let mut error = json!({"code": code, "message": message});
            if let Some(data) = fields.get("data") {
                error["data"] = data.clone();
            }
            error
        }
        other => json!({"code": NO_CODE, "message": words(&other)}),
    }
}

/// Repairs invalid JSON: a lone surrogate and bytes that are not UTF-8 become U+FFFD, `NaN` and `Infinity` become
/// null, and a control character in a string is escaped. `None` if there is none of these.
fn as_json(message: &[u8]) -> Option<Vec<u8>> {
    let is_text = std::str::from_utf8(message).is_ok();
    let text = if is_text { std::borrow::Cow::Borrowed(message) } else { lossy(message) };
    match rewritten(&text) {
        None if is_text => None,
        None => Some(text.into_owned()),
        rewritten => rewritten,
    }
}

fn lossy(message: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    String::from_utf8_lossy(message).into_owned().into_bytes().into()
}

fn rewritten(text: &[u8]) -> Option<Vec<u8>> {
    let mut written: Option<Vec<u8>> = None;
    // NOTE: A scanner of strings and escapes suffices: nothing else of JSON is repaired.
    let (mut place, mut is_in_string) = (0, false);
    while let Some(byte) = text.get(place) {
        let (length, replacement) = match byte {
            b'"' => {
                is_in_string = !is_in_string;
                (1, None)
            }
            b'\\' if is_in_string => escape(&text[place..]),
            control if is_in_string && *control < b' ' => (1, Some(format!("\\u{control:04x}"))),
            b'N' | b'I' | b'-' if !is_in_string => invalid_number(&text[place..]),
            _ => (1, None),
        };
        let end = (place + length).min(text.len());
        if let Some(replacement) = replacement {
            written.get_or_insert_with(|| text[..place].to_vec()).extend(replacement.bytes());
        } else if let Some(written) = &mut written {
            written.extend(&text[place..end]);
        }
        place = end;
    }
    written
}

/// Returns the length of an escape, and its replacement if it is half a character.
fn escape(text: &[u8]) -> (usize, Option<String>) {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    match (unit(0), unit(6)) {
        (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, None),
        (Some(0xd800..=0xdfff), _) => (6, Some("\\ufffd".to_owned())),
        _ => (2, None),
    }
}

/// Returns the length of a word that some languages write for a number, and null as its replacement.
fn invalid_number(text: &[u8]) -> (usize, Option<String>) {
    let words = ["NaN", "Infinity", "-Infinity", "-NaN"];
    let found = words.into_iter().find(|word| text.starts_with(word.as_bytes()));
    found.map_or((1, None), |word| (word.len(), Some("null".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(message: &[u8], expected: &str) {
        let repaired = repaired(message).unwrap();
        assert_eq!(std::str::from_utf8(&repaired).unwrap(), expected);
        serde_json::from_slice::<serde_json::Value>(&repaired).unwrap();
        assert_eq!(super::repaired(&repaired), None);
    }

    #[test]
    fn what_is_json_for_its_writer_alone_is_repaired() {
        check(br#"{"a":"cut \ud83d"}"#, r#"{"a":"cut \ufffd"}"#);
        check(br#"{"a":"\ud83d\ud83d\ude00\ude00\\"}"#, r#"{"a":"\ufffd\ud83d\ude00\ufffd\\"}"#);
        check(br#"{"a":[NaN,-Infinity,Infinity,-1]}"#, r#"{"a":[null,null,null,-1]}"#);
        check(b"{\"a\":\"x\ty\"}", r#"{"a":"x\u0009y"}"#);
        check(b"{\"a\":\"\xff\"}", "{\"a\":\"\u{fffd}\"}");
    }

    /// As `check`, for messages that are written again: their fields may be in another order.
    #[track_caller]
    fn check_json(message: &[u8], expected: &str) {
        let read = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&repaired(message).unwrap()), read(expected.as_bytes()));
    }

    #[test]
    fn a_response_in_another_form_is_one() {
        let error = |error: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"error\":{error}}}");
        let expected = |error: &str| format!("{{\"error\":{error},\"id\":7,\"jsonrpc\":\"2.0\"}}");
        for (given, is) in [
            ("\"boom\"", r#"{"code":-32000,"message":"boom"}"#),
            (r#"{"message":"boom"}"#, r#"{"code":-32000,"message":"boom"}"#),
            (
                r#"{"code":"E1","message":null,"data":{"why":1}}"#,
                r#"{"code":-32000,"data":{"why":1},"message":""}"#,
            ),
            (r#"{"code":1,"reason":"boom"}"#, r#"{"code":1,"message":"{\"code\":1,\"reason\":\"boom\"}"}"#),
            ("[1]", r#"{"code":-32000,"message":"[1]"}"#),
        ] {
            check_json(error(given).as_bytes(), &expected(is));
        }
        for (given, is) in [
            (r#"{"id":7,"result":1}"#, r#"{"id":7,"jsonrpc":"2.0","result":1}"#),
            (
                r#"{"jsonrpc":"1.0","id":"7","result":{},"error":null}"#,
                r#"{"id":7,"jsonrpc":"2.0","result":{}}"#,
            ),
            (r#"{"jsonrpc":"2.0","id":7}"#, r#"{"id":7,"jsonrpc":"2.0","result":{}}"#),
        ] {
            check_json(given.as_bytes(), is);
        }
        for message in [
            r#"{"jsonrpc":"2.0","id":7,"result":null}"#,
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"","data":null}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}"#,
            r#"{"jsonrpc":"2.0","id":"q1","method":"ping"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message"}"#,
        ] {
            assert_eq!(repaired(message.as_bytes()), None, "{message}");
        }
    }

    #[test]
    fn what_is_json_stays() {
        for message in [
            r#"{"a":"NaN, -Infinity \" Infinity","b":-1.5e-3}"#,
            r#"{"\\":"\\ud83d","a":"\ud83d\ude00"}"#,
            "{\"a\" :\t[1,\t2]}",
            "",
            "starting",
        ] {
            assert_eq!(repaired(message.as_bytes()), None, "{message}");
        }
        // What cannot be read is read no further.
        for cut in [r#"{"a":"\"#, r#"{"a":"\ud8"#, r#"{"a":"\ud83d\"#] {
            let _ = repaired(cut.as_bytes());
        }
    }
}
