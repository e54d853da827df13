//! Finds sensitive data in texts, without a regular expression: each finder also knows from where on the end of a text may
//! become a part of its kind, which an expression does not say.

use std::ops::Range;

/// The most bytes that a card number, an account number or a telephone number takes, with separators.
const MAX_NUMBER: usize = 160;

/// The bytes of the separator of two groups of a number at a place: a space or a hyphen, also one that does not break a line.
fn separator(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at..)? {
        [b' ' | b'-', ..] => Some(1),
        [0xC2, 0xA0, ..] => Some(2),
        [0xE2, 0x80, 0x89 | 0x91 | 0xAF, ..] => Some(3),
        _ => None,
    }
}

/// Whether a byte may be of a separator.
fn is_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'-' | 0xC2 | 0xA0 | 0xE2 | 0x80 | 0x89 | 0x91 | 0xAF)
}

/// The place before an escaped character, of JSON or of an address, if one ends here: what follows begins a word of its own.
pub(super) fn before_escape(bytes: &[u8], at: usize) -> Option<usize> {
    let are_hex = |digits: &[u8]| digits.iter().all(u8::is_ascii_hexdigit);
    let length = match &bytes[at.saturating_sub(6)..at] {
        [b'\\', b'u', digits @ ..] if digits.len() == 4 && are_hex(digits) => 6,
        [.., b'%', one, other] if are_hex(&[*one, *other]) => 3,
        [.., b'\\', b'n' | b'r' | b't' | b'b' | b'f'] => 2,
        _ => return None,
    };
    Some(at - length)
}

fn follows_escape(bytes: &[u8], at: usize) -> bool {
    before_escape(bytes, at).is_some()
}

/// The prefixes of keys, with the least number of characters after each.
const KEYS: [(&str, usize); 22] = [
    ("sk-", 16),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("rk_live_", 16),
    ("ghp_", 20),
    ("gho_", 20),
    ("ghu_", 20),
    ("ghs_", 20),
    ("ghr_", 20),
    ("github_pat_", 20),
    ("glpat-", 16),
    ("xoxb-", 10),
    ("xoxp-", 10),
    ("xoxa-", 10),
    ("xapp-", 10),
    ("gsk_", 20),
    ("xai-", 20),
    ("AIza", 30),
    ("hf_", 20),
    ("npm_", 20),
    ("AKIA", 16),
    ("ASIA", 16),
];

fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

pub(super) fn keys(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut found: Vec<Range<usize>> = Vec::new();
    for (prefix, least) in KEYS {
        for (start, _) in text.match_indices(prefix) {
            // NOTE: asked first, or each prefix in a long run of them would read the rest of the run.
            let is_inside = start.checked_sub(1).is_some_and(|before| is_key_byte(bytes[before]));
            if is_inside && !follows_escape(bytes, start) {
                continue;
            }
            let after = start + prefix.len();
            let length = bytes[after..].iter().take_while(|byte| is_key_byte(**byte)).count();
            if length >= least {
                found.push(start..after + length);
            }
        }
    }
    found.sort_unstable_by_key(|range| (range.start, range.end));
    found.dedup_by_key(|range| range.start);
    found
}

pub(super) fn open_key(text: &str) -> usize {
    let open = text.bytes().rev().take_while(|byte| is_key_byte(*byte)).count();
    text.len() - open
}

/// Whether a character may stand in the part of an address before `@`, or in the domain after it.
fn is_mailbox(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '.' | '_' | '%' | '+' | '-')
}

fn is_domain(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '.' | '-')
}

pub(super) fn emails(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (at, _) in text.match_indices('@') {
        let free = found.last().map_or(0, |last| last.end);
        if at < free {
            continue;
        }
        let before = &text[free..at];
        let local = before.char_indices().rev().take_while(|(_, char)| is_mailbox(*char)).last();
        let Some((start, _)) = local else { continue };
        // Quotation marks and the like stand around an address.
        let outside = before[start..].find(char::is_alphanumeric);
        let Some(outside) = outside else { continue };
        let domain = &text[at + 1..];
        let end = domain.find(|char| !is_domain(char)).unwrap_or(domain.len());
        let domain = domain[..end].trim_end_matches(['.', '-']);
        let top = domain.rsplit_once('.').map(|(rest, top)| (rest.is_empty(), top));
        let is_top = |top: &str| top.chars().count() >= 2 && top.starts_with(char::is_alphabetic);
        if top.is_some_and(|(is_bare, top)| !is_bare && is_top(top)) {
            found.push(free + start + outside..at + 1 + domain.len());
        }
    }
    found
}

pub(super) fn open_email(text: &str) -> usize {
    let is_open = |char: char| is_mailbox(char) || char == '@';
    text.char_indices()
        .rev()
        .take_while(|(_, char)| is_open(*char))
        .last()
        .map_or(text.len(), |(start, _)| start)
}

/// A run of digits with single separators between groups: the place of each group.
fn digit_groups(bytes: &[u8], start: usize) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let mut at = start;
    loop {
        let length = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        groups.push(at..at + length);
        at += length;
        let between =
            separator(bytes, at).filter(|length| bytes.get(at + length).is_some_and(u8::is_ascii_digit));
        let Some(between) = between else { return groups };
        at += between;
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

pub(super) fn cards(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit) {
        let start = at + digit;
        // An escaped character, such as `%20`, has none of the number's digits.
        if start > 0
            && bytes[start - 1] == b'%'
            && start + 2 <= bytes.len()
            && follows_escape(bytes, start + 2)
        {
            at = start + 2;
            continue;
        }
        let groups = digit_groups(bytes, start);
        at = groups.last().map_or(start + 1, |last| last.end);
        cards_in(bytes, &groups, &mut found);
    }
    found
}

/// The card numbers of a run, which begin and end with groups: the longest first.
fn cards_in(bytes: &[u8], groups: &[Range<usize>], found: &mut Vec<Range<usize>>) {
    let mut first = 0;
    while first < groups.len() {
        let mut digits = 0;
        let ends = groups[first..].iter().enumerate().map_while(|(number, group)| {
            digits += group.len();
            (digits <= 19).then_some((first + number, digits))
        });
        let ends: Vec<_> = ends.filter(|(_, digits)| *digits >= 13).collect();
        let is_card = |(last, _): &&(usize, usize)| is_card(bytes, groups[first].start..groups[*last].end);
        match ends.iter().rev().find(is_card) {
            Some((last, _)) => {
                found.push(groups[first].start..groups[*last].end);
                first = last + 1;
            }
            None => first += 1,
        }
    }
}

fn is_card(bytes: &[u8], range: Range<usize>) -> bool {
    let digits: Vec<u32> = bytes[range.clone()]
        .iter()
        .filter(|byte| byte.is_ascii_digit())
        .map(|byte| u32::from(byte - b'0'))
        .collect();
    // The first two digits say the network.
    let is_of_network = match (digits.len(), digits[0] * 10 + digits[1]) {
        (13, first) => matches!(first, 40..=49),
        (14, first) => matches!(first, 30 | 36 | 38 | 39),
        (15, first) => matches!(first, 20 | 21 | 34 | 37),
        (16, first) => {
            matches!(first, 22..=27 | 30 | 35 | 36 | 38 | 40..=58 | 60 | 62..=65 | 67)
        }
        (_, first) => matches!(first, 50 | 56..=58 | 62 | 63 | 67),
    };
    is_of_network && has_check_digit(&digits) && !is_inside(bytes, &range)
}

/// Whether digits are a part of a word, or of a number with a decimal point.
fn is_inside(bytes: &[u8], range: &Range<usize>) -> bool {
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let before = range.start.checked_sub(1);
    let ends_word =
        before.is_some_and(|before| is_word(bytes[before])) && !follows_escape(bytes, range.start);
    let ends_number =
        before.is_some_and(|before| bytes[before] == b'.') && is_digit(range.start.checked_sub(2));
    let begins_word = bytes.get(range.end).is_some_and(|after| is_word(*after));
    let begins_number = bytes.get(range.end) == Some(&b'.') && is_digit(Some(range.end + 1));
    ends_word || ends_number || begins_word || begins_number
}

/// The algorithm of Luhn.
fn has_check_digit(digits: &[u32]) -> bool {
    let doubled = |(place, digit): (usize, &u32)| match place % 2 {
        0 => *digit,
        _ => digit * 2 / 10 + digit * 2 % 10,
    };
    digits.iter().rev().enumerate().map(doubled).sum::<u32>() % 10 == 0
}

pub(super) fn open_card(text: &str) -> usize {
    let is_number = |byte: u8| byte.is_ascii_digit() || is_separator(byte);
    // A point may be that of a decimal number.
    let bytes = text.strip_suffix('.').unwrap_or(text).as_bytes();
    let run = bytes.iter().rev().take_while(|byte| is_number(**byte)).count();
    let start = bytes.len() - run;
    match bytes[start..].iter().position(u8::is_ascii_digit) {
        None => text.len(),
        // NOTE: a word or a number before the digits is held with them, since it decides whether they are a number of their own.
        Some(0) => {
            let is_part = |byte: u8| is_word(byte) || byte == b'.';
            start - bytes[..start].iter().rev().take_while(|byte| is_part(**byte)).count()
        }
        Some(digit) => start + digit,
    }
}

/// The lengths of account numbers by country.
const IBANS: &str = "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 EE20 EG29 \
                     ES24 FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 \
                     LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 \
                     QA29 RO24 RS22 SA24 SC31 SE24 SI19 SK24 SM27 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20";

fn iban_length(country: &str) -> Option<usize> {
    IBANS.split(' ').find_map(|entry| entry.strip_prefix(country)?.parse().ok())
}

/// The result of reading an account number from a place on.
enum ReadNumber {
    /// It ends here.
    Found(usize),
    /// The text ends before it does.
    Open,
    None,
}

fn read_iban(bytes: &[u8], start: usize) -> ReadNumber {
    let is_inside = start.checked_sub(1).is_some_and(|before| is_word(bytes[before]));
    if is_inside && !follows_escape(bytes, start) {
        return ReadNumber::None;
    }
    let head: String =
        bytes[start..].iter().take(4).map(|byte| char::from(byte.to_ascii_uppercase())).collect();
    let are_letters = head.bytes().take(2).all(|byte| byte.is_ascii_uppercase());
    let are_digits = head.bytes().skip(2).all(|byte| byte.is_ascii_digit());
    if head.is_empty() || !are_letters || !are_digits {
        return ReadNumber::None;
    }
    let length = if head.len() < 2 { None } else { iban_length(&head[..2]) };
    let Some(length) = length else {
        return if head.len() < 2 { ReadNumber::Open } else { ReadNumber::None };
    };
    if head.len() < 4 {
        return ReadNumber::Open;
    }
    let (mut number, mut at) = (Vec::with_capacity(length), start);
    while number.len() < length {
        let is_after_group = number.len() >= 4 && bytes[at - 1].is_ascii_alphanumeric();
        match (bytes.get(at), separator(bytes, at)) {
            (None, _) => return ReadNumber::Open,
            (Some(byte), _) if byte.is_ascii_alphanumeric() => {
                number.push(byte.to_ascii_uppercase());
                at += 1;
            }
            (_, Some(length)) if is_after_group => at += length,
            // A separator of several bytes may be incomplete.
            (Some(byte), None) if is_after_group && is_separator(*byte) && bytes.len() - at < 3 => {
                return ReadNumber::Open;
            }
            _ => return ReadNumber::None,
        }
    }
    match bytes.get(at) {
        Some(byte) if is_word(*byte) => ReadNumber::None,
        _ if has_check_digits(&number) => ReadNumber::Found(at),
        _ => ReadNumber::None,
    }
}

/// The remainder of ISO 7064 is 1.
fn has_check_digits(number: &[u8]) -> bool {
    let moved = number[4..].iter().chain(&number[..4]);
    let remainder = moved.fold(0u32, |remainder, byte| match byte {
        b'0'..=b'9' => (remainder * 10 + u32::from(byte - b'0')) % 97,
        _ => (remainder * 100 + u32::from(byte - b'A') + 10) % 97,
    });
    remainder == 1
}

pub(super) fn ibans(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    // An account number has digits in the third and fourth place.
    while let Some(digit) = bytes[at..].iter().position(u8::is_ascii_digit) {
        let place = at + digit;
        at = place + 1;
        let start = place
            .checked_sub(2)
            .filter(|start| found.last().is_none_or(|last: &Range<usize>| last.end <= *start));
        if let Some(start) = start
            && let ReadNumber::Found(end) = read_iban(bytes, start)
        {
            found.push(start..end);
            at = end;
        }
    }
    found
}

pub(super) fn open_iban(text: &str) -> usize {
    let bytes = text.as_bytes();
    let first = bytes.len().saturating_sub(MAX_NUMBER);
    let is_open = |start: &usize| match read_iban(bytes, *start) {
        ReadNumber::Open => true,
        // A letter after it would make it none.
        ReadNumber::Found(end) => end == bytes.len(),
        ReadNumber::None => false,
    };
    (first..bytes.len()).find(is_open).unwrap_or(bytes.len())
}

/// The end of a telephone number after its `+`: of 8 to 15 digits in whole groups, as many as fit. Another number may follow.
fn phone_end(bytes: &[u8], start: usize) -> Option<usize> {
    let (mut digits, mut found, mut between, mut at) = (0, None, 0, start + 1);
    while let Some(byte) = bytes.get(at) {
        let length = separator(bytes, at);
        match byte {
            b'0'..=b'9' if digits == 0 && *byte == b'0' => break,
            b'0'..=b'9' => {
                (digits, between) = (digits + 1, 0);
                let ends_group = !bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
                if ends_group && (8..=15).contains(&digits) {
                    found = Some(at + 1);
                }
            }
            b'(' | b')' | b'.' | b'/' if between < 2 && digits > 0 => between += 1,
            _ if length.is_some() && between < 2 && digits > 0 => between += 1,
            _ => break,
        }
        at += length.unwrap_or(1);
    }
    found
}

pub(super) fn phones(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let (mut found, mut free) = (Vec::new(), 0);
    for (start, _) in text.match_indices('+') {
        if start < free {
            continue;
        }
        if let Some(end) = phone_end(bytes, start) {
            found.push(start..end);
            free = end;
        }
    }
    found
}

pub(super) fn open_phone(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_part =
        |byte: u8| byte.is_ascii_digit() || is_separator(byte) || matches!(byte, b'(' | b')' | b'.' | b'/');
    let rest = bytes.iter().rev().take_while(|byte| is_part(**byte)).count();
    match bytes.len().checked_sub(rest + 1) {
        Some(start) if bytes[start] == b'+' => start,
        _ => bytes.len(),
    }
}
