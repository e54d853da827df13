//! The index by which recall finds messages of a conversation: built when it is first searched, and grown with it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use stepfold_state_core::chat::{Message, Role, Transcript};
use stepfold_state_core::{Bm25, WordIndex, search_word_hash, searched_text};

use super::RECALL_READ;
use super::recall::RECALL_SEARCH;

/// The conversations whose index is kept, and the words in these together, of eight bytes each.
const MAX_INDEXES: usize = 16;
const MAX_WORDS: usize = 8_000_000;

/// The indexes of the conversations that were searched last, the newest at the end.
#[derive(Default)]
pub(super) struct RecallIndexes(Mutex<Vec<RecallIndex>>);

impl RecallIndexes {
    /// The messages of a conversation that have some of these words, best first.
    pub(super) fn search(&self, log: &Transcript, words: &[String]) -> Vec<usize> {
        let taken = {
            let mut indexes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = indexes.iter().rposition(|index| index.is_prefix_of(log));
            known.map(|place| indexes.remove(place))
        };
        // NOTE: Indexed and searched outside of the lock: another conversation does not wait for it.
        let mut index = taken.unwrap_or_default();
        index.grow(log);
        let found = index.search(words);
        let mut indexes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.push(index);
        let mut words: usize = indexes.iter().map(|index| index.words).sum();
        while indexes.len() > MAX_INDEXES || (words > MAX_WORDS && indexes.len() > 1) {
            words -= indexes.remove(0).words;
        }
        found
    }
}

/// The index over one conversation. It keeps no text: what is erased elsewhere is not here.
#[derive(Default)]
struct RecallIndex {
    /// The messages that it has, to know the conversation again.
    messages: Vec<Weak<Message>>,
    /// The numbers of their words.
    lengths: Vec<usize>,
    /// Their words: a part for those that each search added, merged as they grow.
    parts: Vec<WordIndex>,
    words: usize,
}

impl RecallIndex {
    /// Whether the conversation begins with the messages of this index. An edited result is another message.
    fn is_prefix_of(&self, log: &Transcript) -> bool {
        let are_same =
            |(known, message): (&Weak<Message>, &Arc<Message>)| known.as_ptr() == Arc::as_ptr(message);
        !self.messages.is_empty()
            && self.messages.len() <= log.len()
            && self.messages.iter().zip(log.iter()).all(are_same)
    }

    fn grow(&mut self, log: &Transcript) {
        let mut part = WordIndex::default();
        for message in log.iter_from(self.messages.len()) {
            let number = u32::try_from(self.messages.len()).unwrap_or(u32::MAX);
            let is_searched = is_searched(message);
            let length = if is_searched { part.add(number, &searched_text(message)) } else { 0 };
            self.messages.push(Arc::downgrade(message));
            self.lengths.push(length);
        }
        self.words += part.len();
        // NOTE: the part before is twice as long as this one, or becomes one with it: so there are few.
        while let Some(mut before) = self.parts.pop_if(|before| before.len() <= part.len() * 2) {
            before.append(&part, 0);
            part = before;
        }
        part.sort();
        self.parts.push(part);
    }

    /// The numbers of the messages with some of these words, best first (BM25).
    fn search(&self, words: &[String]) -> Vec<usize> {
        let messages = self.lengths.iter().filter(|length| **length > 0).count();
        let bm25 = Bm25::new(messages as u64, self.words as u64);
        let mut scores = vec![0.0; self.lengths.len()];
        for word in words {
            let mut with = Vec::new();
            for part in &self.parts {
                part.find(search_word_hash(word), |message, count| with.push((message as usize, count)));
            }
            let weight = bm25.weight(with.len() as u64);
            for (message, count) in with {
                scores[message] += bm25.score(weight, u64::from(count), self.lengths[message] as u64);
            }
        }
        let mut found: Vec<usize> = (0..scores.len()).filter(|message| scores[*message] > 0.0).collect();
        // NOTE: Of equal scores the newest first: a search gives the same again, and later words count more.
        found.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then_with(|| b.cmp(a)));
        found
    }
}

/// Messages of users and of the model, and results, but those of these tools: what they found is there already.
fn is_searched(message: &Message) -> bool {
    match message.role() {
        Role::System => false,
        Role::Tool => {
            message.tool_result().is_some_and(|result| ![RECALL_SEARCH, RECALL_READ].contains(&result.name()))
        }
        _ => true,
    }
}
