//! The last words of a run: its result as text for its caller. Pure.

use std::borrow::Cow;
use std::sync::Arc;

use stepfold_state_core::chat::{Content, Message, Role, ToolContent, ToolResult};

use crate::agent::Agent;
use crate::exit::Exit;
use crate::run::is_note;

impl Exit {
    /// The last words of a run that ended so, with these messages at its end: the text of its last reply; where that has
    /// none, the result of the exit tool, if it says something (not null, and not an empty text, object or list); else
    /// none. Never the result of another call.
    ///
    /// # Examples
    /// ```
    /// use stepfold_agent_loop::Exit;
    /// use stepfold_agent_loop::state_core::chat::Transcript;
    ///
    /// let said: Transcript = "\
    /// user:      how many?
    /// assistant: > c1 finish(answer=\"42\")   > c2 look()
    /// tool c1:   42
    /// tool c2:   7
    /// ".parse()?;
    /// assert_eq!(Exit::Tool("finish".to_owned()).last_words(&said).as_deref(), Some("42"));
    /// assert_eq!(Exit::MaxSteps.last_words(&said), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn last_words<'a, M>(&self, messages: M) -> Option<String>
    where
        M: IntoIterator<Item = &'a Arc<Message>, IntoIter: DoubleEndedIterator>,
    {
        last_words(messages, |tool| matches!(self, Exit::Tool(exit) if exit == tool))
    }

    /// The same of a run of this agent. A graph ends with the exit tools of the agents in it.
    pub(crate) fn last_words_of<'a, M>(&self, agent: &Agent, messages: M) -> Option<String>
    where
        M: IntoIterator<Item = &'a Arc<Message>, IntoIter: DoubleEndedIterator>,
    {
        match self {
            Exit::End => last_words(messages, |tool| ends_with(agent, tool)),
            exit => exit.last_words(messages),
        }
    }
}

fn last_words<'a, M>(messages: M, is_exit: impl Fn(&str) -> bool) -> Option<String>
where
    M: IntoIterator<Item = &'a Arc<Message>, IntoIter: DoubleEndedIterator>,
{
    let mut results = Vec::new();
    for message in messages.into_iter().rev() {
        match message.role() {
            Role::Tool => results.push(message),
            Role::Assistant => {
                let text = message.text();
                if !text.trim().is_empty() {
                    return Some(text.into_owned());
                }
                let results = results.iter().rev().filter_map(|message| message.tool_result());
                let of_exit = results.filter(|result| is_exit(result.name()) && !result.is_error());
                return of_exit.map(without_notes).find(|text| !is_blank_result(text)).map(Cow::into_owned);
            }
            _ => return None,
        }
    }
    None
}

/// Whether an agent, or one in a graph, ends with this tool.
fn ends_with(agent: &Agent, tool: &str) -> bool {
    let Some(planner) = &agent.config().planner else {
        return agent.config().exit_tools.iter().any(|exit| exit == tool);
    };
    let mut agents = planner.names().iter().filter_map(|name| planner.agent(name));
    agents.any(|inside| ends_with(inside.agent(), tool))
}

/// The text of a result, without the notes of the loop for the model.
fn without_notes(result: &ToolResult) -> Cow<'_, str> {
    let ToolContent::Parts(parts) = result.content() else { return result.text() };
    let texts = parts.iter().filter_map(|part| match &part.content {
        Content::Text(text) if !is_note(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// Whether a result says nothing.
fn is_blank_result(text: &str) -> bool {
    matches!(text.trim(), "" | "null" | "{}" | "[]")
}
