//! The relevance of texts to the words of a query.

/// The weights of further occurrences of a word, and of the length of a text.
const K1: f64 = 1.2;
const B: f64 = 0.75;

/// The scores of texts by BM25, with k1 = 1.2 and b = 0.75, from counts alone: the same to the last bit wherever they are computed.
///
/// # Examples
/// ```
/// use stepfold_state_core::Bm25;
///
/// // Of 100 texts with 5,000 words together, one has the first word, and 50 the second.
/// let bm25 = Bm25::new(100, 5_000);
/// let (rare, frequent) = (bm25.weight(1), bm25.weight(50));
/// assert!(bm25.score(rare, 1, 50) > bm25.score(frequent, 1, 50));
/// assert!(bm25.score(rare, 2, 50) > bm25.score(rare, 1, 50));
/// assert!(bm25.score(rare, 1, 20) > bm25.score(rare, 1, 200));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Bm25 {
    texts: f64,
    average_length: f64,
}

impl Bm25 {
    /// For so many texts, with so many words together.
    pub fn new(texts: u64, words: u64) -> Self {
        Bm25 { texts: real(texts), average_length: real(words) / real(texts.max(1)) }
    }

    /// The weight of a word that so many texts have, by how much it tells them apart: above 0.
    pub fn weight(&self, with_word: u64) -> f64 {
        let odds = (self.texts - real(with_word) + 0.5) / (real(with_word) + 0.5);
        odds.ln_1p()
    }

    /// The part of a text's score that is of a word of this [weight](Bm25::weight), which it has so often, by its length in
    /// words.
    pub fn score(&self, weight: f64, count: u64, length: u64) -> f64 {
        let (count, length) = (real(count), real(length));
        let damped = count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * length / self.average_length));
        weight * damped
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of texts and words")]
fn real(number: u64) -> f64 {
    number as f64
}
