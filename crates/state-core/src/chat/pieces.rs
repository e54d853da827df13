//! Splits replies into chunks as servers stream them: for models that play a server.

use super::{Chunk, Message, ToolCallChunk};

/// The maximum number of characters in one piece of a short text.
const CHARACTERS: usize = 12;

/// The approximate maximum of pieces of a text; a long text has longer pieces.
const PIECES: usize = 48;

impl Chunk {
    /// The chunks of a message as a server streams it: text, reasoning and arguments of calls in pieces, with lengths
    /// derived from the seed. Folding them gives the same message as folding those of [`Chunk::of`].
    ///
    /// # Examples
    /// ```
    /// use stepfold_state_core::chat::{Chunk, Message};
    ///
    /// let chunks = Chunk::streamed(&Message::assistant("area 3 has 12 stalls"), 7);
    /// let texts = chunks.iter().map(|chunk| match chunk {
    ///     Chunk::Text(text) => text.as_str(),
    ///     _ => "",
    /// });
    /// assert_eq!(texts.collect::<String>(), "area 3 has 12 stalls");
    /// assert!(chunks.len() > 1);
    /// ```
    pub fn streamed(message: &Message, seed: u64) -> Vec<Chunk> {
        let mut splitter = ChunkSplitter(seed);
        Chunk::of(message).into_iter().flat_map(|chunk| splitter.split(chunk)).collect()
    }
}

/// Splits chunks into pieces with lengths derived from a seed (`SplitMix64`).
struct ChunkSplitter(u64);

impl ChunkSplitter {
    /// The next length, from 1 to `most`.
    fn length(&mut self, most: usize) -> usize {
        // NOTE: This crate draws no random numbers: equal seeds give equal chunks, so that a test can be
        // repeated.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let most = u64::try_from(most.max(1)).unwrap_or(u64::MAX);
        usize::try_from((mixed ^ (mixed >> 31)) % most).unwrap_or_default() + 1
    }

    fn split(&mut self, chunk: Chunk) -> Vec<Chunk> {
        match chunk {
            Chunk::Text(text) => self.pieces(&text).map(Chunk::Text).collect(),
            Chunk::Reasoning(text) => self.pieces(&text).map(Chunk::Reasoning).collect(),
            Chunk::ToolCall(call) => {
                let index = call.index;
                let mut pieces = self.pieces(&call.arguments);
                let first = ToolCallChunk { arguments: pieces.next().unwrap_or_default(), ..call.clone() };
                let rest = pieces.map(|arguments| ToolCallChunk::new(index, arguments));
                std::iter::once(first).chain(rest).map(Chunk::ToolCall).collect()
            }
            whole => vec![whole],
        }
    }

    /// The pieces of a text; at least two if it has two characters.
    fn pieces<'a>(&'a mut self, text: &'a str) -> impl Iterator<Item = String> + 'a {
        let count = text.chars().count();
        let longest = CHARACTERS.max(2 * count / PIECES);
        let (mut rest, mut is_first) = (text, true);
        std::iter::from_fn(move || {
            // NOTE: A text in one piece would not exercise the reader of a stream.
            let most =
                if std::mem::take(&mut is_first) { longest.min(count.saturating_sub(1)) } else { longest };
            let length = self.length(most);
            let end = rest.char_indices().nth(length).map_or(rest.len(), |(at, _)| at);
            let (piece, more) = rest.split_at(end);
            rest = more;
            (!piece.is_empty()).then(|| piece.to_owned())
        })
    }
}
