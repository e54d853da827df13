//! Finds field names that look like other names, and text that hides or reorders characters.
//!
//! A model chooses the names of fields of an open object, and may be tricked into writing `еuro` with a Cyrillic letter
//! next to `euro`. An approver is warned. The tables are a selection of Unicode's confusable characters (UTS 39):
//! letters of other scripts with the shape of an ASCII letter. A false warning does no harm: nothing is rejected.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::invisible::{InvisibleKind, escape_all_invisible};

/// The maximum number of warnings about one value.
const MAX_WARNINGS: usize = 20;

/// ASCII characters, each with its lookalikes.
const LOOKALIKES: [(char, &str); 38] = [
    ('a', "аАɑαΑᴀꭺᎪªꓮ∂"),
    ('b', "ВвΒʙЬьᏴƄᑲꓐ"),
    ('c', "сСϲϹᴄⅽⲥᏟꮯꓚ¢"),
    ('d', "ԁԀⅾᏧᎠᗪꓒ"),
    ('e', "еЕҽΕεєЄ℮ℯᴇᎬꓰ"),
    ('f', "ϝϜſẝƒꓝ"),
    ('g', "ɡցԍԌɢᏀᶃꓖ"),
    ('h', "һҺհнНΗʜℎᎻꓧ"),
    ('i', "іιɩıɪΙⅰι"),
    ('l', "ӏӀІ∣ǀⅼ׀וןꓲ١۱"),
    ('j', "јЈϳյᴊᎫꓙ"),
    ('k', "кКκΚᴋᏦⲕꓗ"),
    ('m', "мМΜⅿᴍᎷꓟ"),
    ('n', "ոռпΝηɴꓠ"),
    ('o', "оОοΟօՕσᴏⲟ০०๐໐٥۵ﻩꓳ"),
    ('p', "рРρΡᴘⲣᏢꓑ"),
    ('q', "ԛԚգզ"),
    ('r', "гᴦⲅʀᏒꓣ"),
    ('s', "ѕЅʂꜱᏚꓢ"),
    ('t', "тТτΤᴛᎢꓔ"),
    ('u', "υսᴜʋꓴ"),
    ('v', "νѵѴⅴᴠᏙꓦ"),
    ('w', "ԝԜաѡᴡᎳꓪ"),
    ('x', "хХχΧⅹⲭꓫ"),
    ('y', "уУγΥүҮʏყꓬ"),
    ('z', "ΖᴢᏃꓜ"),
    ('2', "ƧᒿꙄ"),
    ('3', "зЗӡʒƷ"),
    ('4', "Ꮞ"),
    ('5', "Ƽ"),
    ('6', "бᏮ"),
    ('8', "ȣ৪"),
    ('9', "୨"),
    ('-', "‐‑‒–—―−﹘➖ー⁃"),
    ('_', "ˍ﹍﹎﹏‿"),
    ('.', "․·‧•"),
    ('\'', "’‘ʼʹ′＇`´"),
    ('/', "⁄∕╱"),
];

/// Latin letters without their marks.
const ACCENTED: [(char, &str); 24] = [
    ('a', "àáâãäåāăąǎạảấầ"),
    ('c', "çćĉċč"),
    ('d', "ďđð"),
    ('e', "èéêëēĕėęěẹẻế"),
    ('g', "ĝğġģǧ"),
    ('h', "ĥħḥ"),
    ('i', "ìíîïĩīĭįǐịỉ"),
    ('j', "ĵ"),
    ('k', "ķ"),
    ('l', "ĺļľŀł"),
    ('n', "ñńņňŋ"),
    ('o', "òóôõöøōŏőǒọỏố"),
    ('r', "ŕŗř"),
    ('s', "śŝşšș"),
    ('t', "ţťŧț"),
    ('u', "ùúûüũūŭůűųǔụủ"),
    ('w', "ŵẁẃẅ"),
    ('y', "ýÿŷ"),
    ('z', "źżž"),
    ('e', "ё"),
    ('i', "їΐϊί"),
    ('o', "ό"),
    ('a', "ά"),
    ('u', "ύϋΰ"),
];

/// Returns warnings for an approver of a value: field names that look like other names, and characters that hide or
/// reorder text. Names are shown with escapes.
///
/// # Examples
/// ```
/// use serde_json::json;
/// use stepfold_state_core::warnings;
///
/// assert_eq!(
///     warnings(&json!({"euro": 5, "\u{435}uro": 999})),
///     [
///         "the field name \"\\u0435uro\" looks like \"euro\" and has other characters",
///         "the field names \"euro\" and \"\\u0435uro\" look alike",
///     ]
/// );
/// assert!(warnings(&json!({"euro": 5, "Straße": "é 漢", "цена": 1})).is_empty());
/// ```
pub fn warnings(value: &Value) -> Vec<String> {
    let mut found = WarningCollector::default();
    found.check(value);
    if found.invisible > 0 {
        let warning = match found.invisible {
            1 => "1 character that hides or reorders text is shown as an escape".to_owned(),
            count => format!("{count} characters that hide or reorder text are shown as escapes"),
        };
        found.warnings.insert(0, warning);
    }
    if found.omitted > 0 {
        found.warnings.push(format!("{} more warnings about field names", found.omitted));
    }
    found.warnings
}

#[derive(Default)]
struct WarningCollector {
    warnings: Vec<String>,
    /// Warnings beyond the maximum.
    omitted: usize,
    invisible: usize,
}

impl WarningCollector {
    fn check(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.check_text(text),
            Value::Array(items) => items.iter().for_each(|item| self.check(item)),
            Value::Object(fields) => {
                self.check_names(fields.keys());
                fields.values().for_each(|field| self.check(field));
            }
            _ => {}
        }
    }

    fn check_text(&mut self, text: &str) {
        let hides = |character: &char| match InvisibleKind::of(*character) {
            Some(InvisibleKind::Control) => !matches!(character, '\n' | '\r' | '\t'),
            kind => kind == Some(InvisibleKind::Hiding),
        };
        self.invisible += text.chars().filter(hides).count();
    }

    fn check_names<'a>(&mut self, names: impl Iterator<Item = &'a String>) {
        let mut known: HashMap<String, &str> = HashMap::new();
        for name in names {
            self.check_text(name);
            self.check_name(name);
            // NOTE: Two forms, since `I` looks like `l` but also is the capital of `i`: no single form finds both
            // pairs.
            for form in [skeleton(name), folded(name)] {
                match known.get(&form) {
                    Some(other) if *other != name => {
                        self.warn(format!(
                            "the field names {} and {} look alike",
                            quoted(other),
                            quoted(name)
                        ));
                        break;
                    }
                    _ => known.insert(form, name),
                };
            }
        }
    }

    fn check_name(&mut self, name: &str) {
        if name.is_ascii() {
            return;
        }
        let resembled = ascii_lookalike(name);
        if resembled.is_ascii() {
            let resembled = quoted(&resembled);
            self.warn(format!(
                "the field name {} looks like {resembled} and has other characters",
                quoted(name)
            ));
        } else if name.chars().any(|letter| letter.is_ascii_alphabetic()) && name.chars().any(is_other_script)
        {
            self.warn(format!("the field name {} mixes letters of different scripts", quoted(name)));
        }
    }

    fn warn(&mut self, warning: String) {
        match self.warnings.len() < MAX_WARNINGS {
            true => self.warnings.push(warning),
            false => self.omitted += 1,
        }
    }
}

/// A name in quotes, with escapes for all characters that look like others.
fn quoted(name: &str) -> String {
    let quoted = Value::from(name).to_string();
    let escaped = escape_all_invisible(&quoted);
    let is_plain =
        |letter: char| letter.is_ascii() || (ascii_of(letter).is_none() && !is_other_script(letter));
    let mut escaped_name = String::with_capacity(escaped.len());
    for letter in escaped.chars() {
        if is_plain(letter) {
            escaped_name.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            let _ = write!(escaped_name, "\\u{unit:04x}");
        }
    }
    escaped_name
}

/// Whether a letter is of a script other than Latin and not usually mixed with Latin letters.
fn is_other_script(letter: char) -> bool {
    letter.is_alphabetic()
        && !letter.is_ascii()
        && !matches!(letter, 'ª' | 'º' | '\u{c0}'..='\u{24f}' | '\u{1e00}'..='\u{1eff}')
        // Scripts of East Asia.
        && !matches!(letter, '\u{1100}'..='\u{11ff}' | '\u{2e80}'..='\u{a4cf}' | '\u{a960}'..='\u{a97f}' | '\u{ac00}'..='\u{d7ff}'
            | '\u{f900}'..='\u{faff}' | '\u{ff66}'..='\u{ffdc}' | '\u{20000}'..='\u{3ffff}')
}

/// The ASCII character that a character looks like.
fn ascii_of(character: char) -> Option<char> {
    let number = u32::from(character);
    let letter = |place: u32| char::from_u32(u32::from('a') + place);
    match number {
        // Full width.
        0xff01..=0xff5e => char::from_u32(number - 0xfee0),
        // Mathematical alphabets of 52 letters, and digits.
        0x1d400..=0x1d6a3 => letter((number - 0x1d400) % 26),
        0x1d7ce..=0x1d7ff => char::from_u32(u32::from('0') + (number - 0x1d7ce) % 10),
        // In circles, as small letters above.
        0x24b6..=0x24e9 => letter((number - 0x24b6) % 26),
        _ => {
            let found = LOOKALIKES.iter().find(|(_, others)| others.contains(character));
            found.map(|(ascii, _)| *ascii)
        }
    }
}

/// The name with lookalikes replaced by ASCII characters, and without invisible ones.
fn ascii_lookalike(name: &str) -> String {
    let visible = name.chars().filter(|letter| InvisibleKind::of(*letter).is_none());
    visible
        .map(|letter| if letter.is_ascii() { letter } else { ascii_of(letter).unwrap_or(letter) })
        .collect()
}

/// The skeleton of a name: without differences that eyes miss, in marks, spaces, `rn` and `m`, `0` and `O`, `1` and `l`.
fn skeleton(name: &str) -> String {
    let skeleton: String = ascii_lookalike(name)
        .chars()
        .filter(|letter| !letter.is_whitespace() && !is_mark(*letter))
        .map(|letter| match letter {
            'I' | 'l' | '1' | '|' => 'l',
            'O' | '0' => 'o',
            letter => base_letter(letter),
        })
        .collect();
    skeleton.replace("rn", "m").replace("vv", "w")
}

/// A name without case, marks and spaces.
fn folded(name: &str) -> String {
    let visible = ascii_lookalike(name).to_lowercase();
    // NOTE: The prefix keeps it apart from a skeleton in the same map.
    std::iter::once('\0')
        .chain(visible.chars().filter(|letter| !letter.is_whitespace() && !is_mark(*letter)).map(base_letter))
        .collect()
}

/// A letter in lower case, without its mark.
fn base_letter(letter: char) -> char {
    let lower = letter.to_lowercase().next().unwrap_or(letter);
    let found = ACCENTED.iter().find(|(_, marked)| marked.contains(lower));
    found.map_or(lower, |(base, _)| *base)
}

fn is_mark(character: char) -> bool {
    matches!(character, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_that_look_like_others_are_told() {
        for (name, looks) in [
            ("\u{435}uro", "euro"), // Cyrillic.
            ("\u{441}\u{430}\u{440}", "cap"),
            ("acc\u{3bf}unt", "account"), // Greek.
            ("\u{ff45}uro", "euro"),
            ("\u{1d41e}uro", "euro"),
            ("eu\u{200b}ro", "euro"),
            ("\u{202e}oru\u{202c}e", "orue"),
            ("\u{261}roup", "group"),
            ("account\u{2010}id", "account-id"),
        ] {
            let told = warnings(&json!([{"a": {name: 1}}]));
            assert!(
                told.iter().any(|told| told.contains(&format!("looks like \"{looks}\""))),
                "{name:?}: {told:?}"
            );
            assert!(told.iter().all(|told| told.is_ascii()), "{told:?}");
        }
        for pair in [
            ["euro", "Euro"],
            ["euro", "euro "],
            ["amount", "arnount"],
            ["total", "tota1"],
            ["O1", "0l"],
            ["user id", "userid"],
            ["caf\u{e9}", "cafe\u{301}"],
            ["euro", "eu\u{ad}ro"],
            ["id", "Id"],
            ["Id", "ld"],
            ["\u{434}\u{430}\u{442}\u{430}", "\u{434}\u{430}\u{442}a"],
        ] {
            let told = warnings(&json!({pair[0]: 1, pair[1]: 2}));
            assert!(told.iter().any(|told| told.ends_with("look alike")), "{pair:?}: {told:?}");
        }
        assert_eq!(
            warnings(&json!({"\u{43f}\u{430}y\u{436}": 1})),
            ["the field name \"\\u043f\\u0430y\\u0436\" mixes letters of different scripts"]
        );
    }

    #[test]
    fn ordinary_names_are_not_told() {
        let plain = json!({
            "euro": 5, "account_id": 1, "accountId2": 2, "from": "a\nb\tc", "to": "семья 👨\u{200d}👩 می\u{200c}خواهم", "größe": 1, "naïve": 2,
            "价格USD": 3, "金額": 4, "цена": 5, "дата": 6, "τιμή": 7, "$top": 8, "filter[name]": 9, "": 10, "a": 11, "b": 12,
        });
        assert_eq!(warnings(&plain), [""; 0]);
    }

    #[test]
    fn hidden_text_is_counted_and_warnings_are_bounded() {
        let hides = json!({"memo": "refund \u{202e}999 orue yap\u{202c}", "k\u{200b}": ["\u{1b}[8m"]});
        assert_eq!(warnings(&hides)[0], "4 characters that hide or reorder text are shown as escapes");
        let many: serde_json::Map<_, _> = (0..5_000).map(|n| (format!("{n}\u{435}"), json!(n))).collect();
        let told = warnings(&Value::Object(many));
        assert_eq!((told.len(), told.last().unwrap().as_str()), (21, "4980 more warnings about field names"));
    }
}
