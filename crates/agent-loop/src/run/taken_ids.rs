//! Unique ids of calls in the conversation of a graph: agents that run side by side may give two calls the same id.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use stepfold_state_core::chat::{Message, ToolResult, with_unique_call_ids};

use super::call_ids::CallIdSet;

/// The taken ids of calls: those of the log, and those of new messages.
pub(super) struct TakenIds<'a> {
    log: &'a CallIdSet,
    new: HashSet<Box<str>>,
}

impl<'a> TakenIds<'a> {
    pub(super) fn new(log: &'a CallIdSet) -> Self {
        TakenIds { log, new: HashSet::new() }
    }

    /// The messages of one branch, in which calls with an id that is taken have another one, and their results with
    /// them.
    pub(super) fn unique(&mut self, messages: &[Arc<Message>]) -> Vec<Arc<Message>> {
        let mut renamed: HashMap<String, String> = HashMap::new();
        let unique = messages.iter().map(|message| match message.tool_result() {
            Some(result) => match renamed.get(result.call_id()) {
                Some(id) => {
                    let result = ToolResult::new(id, result.name(), result.content().clone());
                    Message::tool(result).with_extras(message.extras().clone()).into()
                }
                None => Arc::clone(message),
            },
            None if message.has_tool_calls() => self.unique_calls(message, &mut renamed),
            None => Arc::clone(message),
        });
        unique.collect()
    }

    fn unique_calls(
        &mut self,
        message: &Arc<Message>,
        renamed: &mut HashMap<String, String>,
    ) -> Arc<Message> {
        let is_taken = |id: &str| self.log.contains(id) || self.new.contains(id);
        // NOTE: New ids are counted from the number of earlier calls, not drawn at random, so that a replay gives the
        // same.
        let earlier = self.log.len() + self.new.len();
        let unique = match message.tool_calls().any(|call| is_taken(&call.id)) {
            true => Arc::new(with_unique_call_ids((**message).clone(), earlier, is_taken)),
            false => Arc::clone(message),
        };
        for (old, new) in message.tool_calls().zip(unique.tool_calls()) {
            if old.id != new.id {
                renamed.insert(old.id.clone(), new.id.clone());
            }
            self.new.insert(new.id.as_str().into());
        }
        unique
    }
}
