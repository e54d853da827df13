//! Originals of replaced content, in memory only: they are no part of a stored run.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use stepfold_state_core::chat::{Arguments, Content, Message, Part, ToolResult, Transcript};

use crate::approval::{ApprovalRequest, Decision};

/// The originals of an item of the open step.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct KeptCall {
    pub(crate) arguments: Option<Arguments>,
    /// The decisions about requests inside of it.
    pub(crate) decisions: Vec<(String, Decision)>,
    /// Its questions.
    pub(crate) asked: Vec<ApprovalRequest>,
}

/// Sensitive content is not shown in debug output.
impl fmt::Debug for KeptCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptCall").finish_non_exhaustive()
    }
}

/// The originals of the messages of a run, for its model.
#[derive(Clone, Default)]
pub(crate) struct Originals {
    /// The stored message and its original, by the address of the stored one, which is held here.
    messages: HashMap<usize, (Arc<Message>, Arc<Message>)>,
    /// The results of calls by their ids.
    results: HashMap<String, ToolResult>,
}

impl fmt::Debug for Originals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Originals").field("messages", &self.messages.len()).finish_non_exhaustive()
    }
}

/// The originals that the commit of an event leaves.
#[derive(Default)]
pub(crate) struct KeptOriginals {
    /// Of items, by their places.
    pub(crate) calls: BTreeMap<usize, KeptCall>,
    /// Of messages, each after the stored one.
    pub(crate) messages: Vec<(Arc<Message>, Arc<Message>)>,
    pub(crate) results: Vec<ToolResult>,
}

impl KeptOriginals {
    /// Originals of replaced messages, where both have the same places.
    pub(crate) fn pair(&mut self, stored: &[Arc<Message>], originals: &[Arc<Message>]) {
        if stored.len() == originals.len() {
            let replaced = stored.iter().zip(originals).filter(|(stored, original)| stored != original);
            self.messages
                .extend(replaced.map(|(stored, original)| (Arc::clone(stored), Arc::clone(original))));
        }
    }
}

impl Originals {
    pub(crate) fn extend(&mut self, kept: KeptOriginals) {
        for (stored, original) in kept.messages {
            self.messages.insert(Arc::as_ptr(&stored).addr(), (stored, original));
        }
        self.results.extend(kept.results.into_iter().map(|result| (result.call_id().to_owned(), result)));
    }

    /// The conversation with the originals.
    pub(crate) fn of(&self, stored: &Transcript) -> Transcript {
        stored.iter().map(|message| self.original(message)).collect()
    }

    fn original(&self, stored: &Arc<Message>) -> Arc<Message> {
        if let Some((_, original)) = self.messages.get(&Arc::as_ptr(stored).addr()) {
            return Arc::clone(original);
        }
        let result = stored.tool_result().and_then(|result| self.results.get(result.call_id()));
        let Some(result) = result else { return Arc::clone(stored) };
        let parts = stored.parts().iter().map(|part| match &part.content {
            Content::ToolResult(_) => Part::from(result.clone()).with_extras(part.extras.clone()),
            _ => part.clone(),
        });
        let original =
            Message::from_parts(stored.role(), parts.collect()).with_extras(stored.extras().clone());
        Arc::new(original)
    }
}
