//! An approximate token counter that needs no model's vocabulary.
//!
//! It splits text into runs of letters, digits, blanks and signs, as the pre-tokenizers of byte-pair encoders
//! do, and charges the average cost of each run.

use std::io;
use std::sync::Arc;

use serde::Serialize;
use stepfold_state_core::chat::{Content, Message, Part, ToolContent, ToolSpec};

use crate::tokens::TokenCounter;

/// Estimates the tokens of a message without a model's vocabulary.
///
/// One pass over the bytes, without allocation. Each text, call and result is counted, plus
/// [`PER_MESSAGE`](ApproximateTokens::PER_MESSAGE) and, for a call,
/// [`PER_CALL`](ApproximateTokens::PER_CALL). An image or a file costs
/// [`PER_MEDIA`](ApproximateTokens::PER_MEDIA), whatever its size. Extras are not counted.
///
/// # Accuracy
///
/// Relative error against OpenAI's encoders `o200k_base` and `cl100k_base`, on pieces of 1,500 characters:
/// over all pieces, and the range of 90 % of the pieces. Positive values are overestimates.
///
#[doc = include_str!("tokens.md")]
///
/// Other encoders differ from these by as much as these do from each other. Leave a margin of a tenth, more
/// for scripts further down; or implement [`TokenCounter`] with your model's encoder.
///
/// # Examples
/// ```
/// use stepfold_trim::{ApproximateTokens, TokenCounter};
/// use stepfold_state_core::chat::Message;
///
/// // 6 tokens in `o200k_base`, and 4 for the message around them.
/// assert_eq!(ApproximateTokens.count(&Message::user("which area has most stalls?")), 10);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApproximateTokens;

impl ApproximateTokens {
    /// The counter's name in a printed policy.
    pub const NAME: &'static str = "approximate";
    /// The overhead of a message in a wire format, in tokens.
    pub const PER_MESSAGE: usize = 4;
    /// The overhead of a tool call in a wire format, in tokens.
    pub const PER_CALL: usize = 8;
    /// The tokens charged for an image or a file. A picture of a megapixel costs some 800 to 1,400 tokens and a
    /// screenshot of 1920 x 1080 some 1,100 to 2,700 (GPT-4o, Gemini, Claude), by the formulas that the
    /// providers publish.
    pub const PER_MEDIA: usize = 1_500;

    /// Estimates the tokens of a text.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::ApproximateTokens;
    ///
    /// assert_eq!(ApproximateTokens::of_text("哪个服务区档口最多?"), 10);
    /// ```
    pub fn of_text(text: &str) -> usize {
        let mut scanner = TokenScanner::default();
        scanner.text(text);
        scanner.tokens()
    }

    /// Estimates the tokens of several messages: of a [`Transcript`](stepfold_state_core::chat::Transcript) by
    /// reference, or of a part of one.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::ApproximateTokens;
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let log: Transcript = "user: which area has most stalls?\nassistant: area 3".parse()?;
    /// assert_eq!(ApproximateTokens::of_messages(&log), 17);
    /// assert_eq!(ApproximateTokens::of_messages(log.iter_from(1)), 7);
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn of_messages<'a>(messages: impl IntoIterator<Item = &'a Arc<Message>>) -> usize {
        messages.into_iter().map(|message| ApproximateTokens.count(message)).sum()
    }

    /// Estimates the tokens of a tool's definition in a request: of its JSON, which is not built.
    ///
    /// # Examples
    /// ```
    /// use serde_json::json;
    /// use stepfold_trim::ApproximateTokens;
    /// use stepfold_state_core::chat::ToolSpec;
    ///
    /// let tool = ToolSpec::new("count", "Counts stalls.", json!({"type": "object"}));
    /// let text = serde_json::to_string(&tool)?;
    /// assert_eq!(ApproximateTokens::of_tool(&tool), ApproximateTokens::of_text(&text));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn of_tool(tool: &ToolSpec) -> usize {
        let mut scanner = TokenScanner::default();
        scanner.json(tool);
        scanner.tokens()
    }
}

impl TokenCounter for ApproximateTokens {
    fn name(&self) -> &str {
        ApproximateTokens::NAME
    }

    fn count(&self, message: &Message) -> usize {
        let mut scanner = TokenScanner::default();
        scanner.parts(message.parts());
        scanner.tokens() + ApproximateTokens::PER_MESSAGE
    }
}

/// The class of a UTF-8 byte. Only the first byte of a character counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByteClass {
    /// A continuation byte.
    Inside,
    Lower,
    Upper,
    /// A letter of two bytes: Latin with marks, Greek, Cyrillic, Hebrew, Arabic.
    Accented,
    Digit,
    Blank,
    Break,
    /// ASCII punctuation.
    Sign,
    /// A character of three bytes from an alphabet: Indic scripts, Thai, Georgian.
    Syllable,
    /// Dashes, quotes, arrows and full-width signs.
    Symbol,
    /// Chinese, Japanese, Korean.
    Ideograph,
    /// Four bytes: emoji, rare ideographs.
    Astral,
}

const CLASSES: [ByteClass; 256] = {
    let mut classes = [ByteClass::Sign; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte {
            0x80..=0xBF => ByteClass::Inside,
            0x61..=0x7A => ByteClass::Lower,
            0x41..=0x5A => ByteClass::Upper,
            0xC0..=0xDF => ByteClass::Accented,
            0x30..=0x39 => ByteClass::Digit,
            0x20 | 0x09 => ByteClass::Blank,
            0x0A | 0x0D => ByteClass::Break,
            0xE0 | 0xE1 => ByteClass::Syllable,
            0xE2 | 0xEF => ByteClass::Symbol,
            0xE3..=0xEE => ByteClass::Ideograph,
            0xF0..=0xFF => ByteClass::Astral,
            _ => ByteClass::Sign,
        };
        byte += 1;
    }
    classes
};

/// A run of characters that is encoded together.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum CharacterRun {
    #[default]
    None,
    /// Capitals, then small letters; a capital after small letters begins another word.
    Word {
        has_small: bool,
    },
    Digits,
    Blanks,
    Breaks,
    Signs,
}

/// Adds up the costs of a text's runs, in hundredths of a token.
///
/// The prices are least-squares fits, rounded, to the two encoders named at [`ApproximateTokens`].
#[derive(Default)]
struct TokenScanner {
    // NOTE: Integers, so that sums are exact and equal on every machine.
    hundredths: u64,
    run: CharacterRun,
    length: u64,
    capitals: u64,
}

impl TokenScanner {
    fn parts(&mut self, parts: &[Part]) {
        for part in parts {
            self.part(&part.content);
            self.close();
        }
    }

    fn part(&mut self, content: &Content) {
        match content {
            Content::Text(text) | Content::Reasoning(text) => self.text(text),
            Content::ToolCall(call) => {
                self.add(ApproximateTokens::PER_CALL);
                self.text(&call.name);
                self.close();
                match call.arguments.as_object() {
                    Some(map) => self.json(map),
                    None => self.text(&call.arguments.to_text()),
                }
            }
            Content::ToolResult(result) => match result.content() {
                ToolContent::Value(value) if !value.is_string() => self.json(value),
                ToolContent::Parts(parts) => self.parts(parts),
                _ => self.text(&result.text()),
            },
            Content::Unknown(part) => self.json(part.fields()),
            // Images, files and other content without text.
            _ => self.add(ApproximateTokens::PER_MEDIA),
        }
    }

    /// Counts the text of a JSON value without building it.
    fn json(&mut self, value: &impl Serialize) {
        // Writing to a counter cannot fail, nor can serialising maps of strings to values.
        let _ = serde_json::to_writer(&mut *self, value);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match CLASSES[usize::from(*byte)] {
                ByteClass::Inside => {}
                ByteClass::Lower => self.small_letter(0),
                ByteClass::Accented => self.small_letter(25),
                ByteClass::Upper => self.capital(),
                ByteClass::Digit => self.extend(CharacterRun::Digits),
                ByteClass::Blank => self.extend(CharacterRun::Blanks),
                ByteClass::Break => self.extend(CharacterRun::Breaks),
                ByteClass::Sign => self.extend(CharacterRun::Signs),
                ByteClass::Syllable | ByteClass::Symbol => self.alone(70),
                ByteClass::Ideograph => self.alone(95),
                ByteClass::Astral => self.alone(200),
            }
        }
    }

    fn small_letter(&mut self, surcharge: u64) {
        if !matches!(self.run, CharacterRun::Word { .. }) {
            self.close();
        }
        self.run = CharacterRun::Word { has_small: true };
        self.length += 1;
        self.hundredths += surcharge;
    }

    fn capital(&mut self) {
        self.extend(CharacterRun::Word { has_small: false });
        self.capitals += 1;
    }

    /// Adds a character to a run of this kind.
    fn extend(&mut self, run: CharacterRun) {
        if self.run != run {
            self.close();
            self.run = run;
        }
        self.length += 1;
    }

    /// Adds a character that belongs to no run.
    fn alone(&mut self, price: u64) {
        self.close();
        self.hundredths += price;
    }

    /// Charges the run that ends here.
    fn close(&mut self) {
        let length = self.length;
        self.hundredths += match self.run {
            CharacterRun::None => 0,
            CharacterRun::Word { .. } => {
                let capitals = self.capitals.saturating_sub(1);
                100 + 12 * (length.saturating_sub(6) + length.saturating_sub(10)) + 20 * capitals
            }
            CharacterRun::Digits => 140 * length.div_ceil(3),
            // A single blank belongs to the next word.
            CharacterRun::Blanks if length == 1 => 0,
            CharacterRun::Blanks => 80,
            CharacterRun::Breaks => 50,
            CharacterRun::Signs => 75 + 22 * (length - 1),
        };
        self.run = CharacterRun::None;
        self.length = 0;
        self.capitals = 0;
    }

    fn add(&mut self, tokens: usize) {
        self.hundredths += 100 * tokens as u64;
    }

    /// The total, rounded up.
    fn tokens(mut self) -> usize {
        self.close();
        usize::try_from(self.hundredths.div_ceil(100)).unwrap_or(usize::MAX)
    }
}

impl io::Write for TokenScanner {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
