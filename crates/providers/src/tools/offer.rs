//! The tools of a request for a server: each in a form that it accepts, or left out alone, with the reason.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

use serde_json::{Map, Value};
use stepfold_state_core::chat::{
    ChatRequest, Content, Message, ModelError, OmittedTool, Part, Role, ToolCall, ToolChoice, ToolSpec,
};

use super::keys::rename;
use super::{RenamedKeys, ReplyForm, schema};
use crate::rules::RequestRules;
use crate::rules::names::wire_name;
use crate::wire;

/// The tools of a request in the form that a server accepts.
#[derive(Debug)]
pub(crate) struct ToolOffer {
    /// The tools as they are given.
    given: Arc<[ToolSpec]>,
    /// The offered tools, with their names and parameters on the wire.
    wired: Arc<[ToolSpec]>,
    /// The names that differ on the wire, by the names on the wire.
    names: HashMap<String, String>,
    /// The properties that differ on the wire, by the names of the tools.
    keys: HashMap<String, RenamedKeys>,
    omitted: Vec<OmittedTool>,
    /// The tools as the dialect of the model writes them.
    written: OnceLock<Box<[u8]>>,
    /// Logs omitted tools once.
    logged: Once,
}

impl ToolOffer {
    pub(crate) fn new(rules: &RequestRules, given: &Arc<[ToolSpec]>) -> Self {
        let mut offer = ToolOffer {
            given: Arc::clone(given),
            wired: Arc::clone(given),
            names: HashMap::new(),
            keys: HashMap::new(),
            omitted: Vec::new(),
            written: OnceLock::new(),
            logged: Once::new(),
        };
        let mut wired: Vec<ToolSpec> = Vec::with_capacity(given.len());
        for spec in given.iter() {
            match offer.wire(rules, &wired, spec) {
                Ok(spec) => wired.push(spec),
                Err(reason) => {
                    offer.omitted.push(OmittedTool::new(&spec.name, reason));
                }
            }
        }
        if wired != **given {
            offer.wired = wired.into();
        }
        offer
    }

    /// A tool on the wire.
    ///
    /// # Errors
    /// Why it cannot be offered.
    fn wire(
        &mut self,
        rules: &RequestRules,
        others: &[ToolSpec],
        spec: &ToolSpec,
    ) -> Result<ToolSpec, String> {
        let schemas = &rules.schemas;
        if others.len() >= schemas.max_tools {
            return Err(format!("this provider takes at most {} tools", schemas.max_tools));
        }
        let name = wire_name(&rules.tool_names, &spec.name);
        // NOTE: Two names may be equal after mapping only if they are equal before: providers refuse a request with
        // both.
        if others.iter().any(|other| other.name == name) {
            return Err("another tool has its name".to_owned());
        }
        let mut parameters = schema::parameters(schemas, &spec.parameters)?;
        let keys = schemas.keys.map(|rules| rename(&rules, &mut parameters)).unwrap_or_default();
        if !keys.is_plain() {
            self.keys.insert(spec.name.clone(), keys);
        }
        if let Cow::Owned(wired) = &name {
            self.names.insert(wired.clone(), spec.name.clone());
        }
        let mut wired = spec.clone();
        (wired.name, wired.parameters) = (name.into_owned(), parameters);
        Ok(wired)
    }

    /// The tools that are offered, as JSON: written once.
    pub(crate) fn written(&self, write: impl FnOnce(&[ToolSpec]) -> Vec<u8>) -> &[u8] {
        self.written.get_or_init(|| write(&self.wired).into())
    }

    /// The tools that are left out, each with the reason.
    pub(crate) fn omitted(&self) -> &[OmittedTool] {
        &self.omitted
    }

    /// Logs, once, the tools that are left out.
    pub(crate) fn log_omitted(&self) {
        self.logged.call_once(|| {
            for OmittedTool { name, reason, .. } in &self.omitted {
                tracing::warn!(
                    tool = name,
                    reason,
                    "a tool is left out of requests: the provider cannot take it"
                );
            }
        });
    }

    /// Describes the tools that are left out or changed.
    pub(crate) fn changes(&self) -> impl Iterator<Item = String> {
        let omitted =
            self.omitted.iter().map(|tool| format!("tool `{}` is left out: {}", tool.name, tool.reason));
        let names = self.renamed().map(|(wired, name)| format!("tool `{name}` is called `{wired}`"));
        let keys = self.keys.keys().map(|name| format!("tool `{name}`: properties have other names"));
        let mut changes: Vec<String> = omitted.chain(names).chain(keys).collect();
        changes.sort();
        changes.into_iter()
    }

    /// The name of a tool by that on the wire.
    pub(crate) fn name<'a>(&'a self, wired: &'a str) -> &'a str {
        self.names.get(wired).map_or(wired, String::as_str)
    }

    /// Returns the names that differ on the wire, each as the name on the wire and the original.
    pub(crate) fn renamed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.names.iter().map(|(wired, name)| (wired.as_str(), name.as_str()))
    }

    /// Returns the renamed properties of a tool, if there are some.
    pub(crate) fn keys(&self, name: &str) -> Option<&RenamedKeys> {
        self.keys.get(name)
    }

    /// Whether some tools have renamed properties.
    pub(crate) fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Whether calls are the same on the wire.
    pub(crate) fn is_plain(&self) -> bool {
        self.names.is_empty() && self.keys.is_empty()
    }

    /// The arguments of a call in the conversation, with the names of properties on the wire. Those of a tool that is not
    /// offered any more stay as they are.
    pub(crate) fn wire_arguments<'a>(
        &self,
        name: &str,
        arguments: &'a Map<String, Value>,
    ) -> Cow<'a, Map<String, Value>> {
        match self.keys(name) {
            Some(keys) => Cow::Owned(keys.fields_to_wire(arguments)),
            None => Cow::Borrowed(arguments),
        }
    }

    /// A message of the conversation with the arguments of its calls on the wire. (The names of calls are the dialect's:
    /// they are mapped whether their tools are offered or not.)
    pub(crate) fn wire_message<'a>(&self, message: &'a Message) -> Cow<'a, Message> {
        let has_keys = |call: &ToolCall| self.keys.contains_key(&call.name);
        if self.keys.is_empty() || message.role() != Role::Assistant || !message.tool_calls().any(has_keys) {
            return Cow::Borrowed(message);
        }
        let parts = message.parts().iter().map(|part| {
            let mut part: Part = part.clone();
            if let Content::ToolCall(call) = &mut part.content
                && let Some(arguments) = call.arguments.as_object()
            {
                call.arguments = self.wire_arguments(&call.name, arguments).into_owned().into();
            }
            part
        });
        let wired =
            Message::from_parts(message.role(), parts.collect()).with_extras(message.extras().clone());
        Cow::Owned(match message.name() {
            Some(name) => wired.with_name(name),
            None => wired,
        })
    }

    /// The request with the tools and the choice among them on the wire.
    ///
    /// # Errors
    /// The choice demands a tool that is left out.
    pub(crate) fn wire_request(&self, request: &ChatRequest) -> Result<ChatRequest, ModelError> {
        let mut wired = request.clone();
        wired.tools = Arc::clone(&self.wired);
        let omitted = |name: &str| self.omitted.iter().find(|tool| tool.name == name);
        match &request.tool_choice {
            ToolChoice::Named(name) => {
                let is_offered = |wired: &ToolSpec| self.name(&wired.name) == name;
                if let Some(OmittedTool { reason, .. }) =
                    omitted(name).filter(|_| !self.wired.iter().any(is_offered))
                {
                    return Err(wire::unsupported(format!(
                        "unsupported tool `{name}`, which the tool choice demands: {reason}"
                    )));
                }
                if let Some((wire, _)) = self.names.iter().find(|(_, own)| *own == name) {
                    wired.tool_choice = ToolChoice::Named(wire.clone());
                }
            }
            ToolChoice::Required if self.wired.is_empty() && request.params.server_tools.is_empty() => {
                if let Some(OmittedTool { name, reason, .. }) = self.omitted.first() {
                    return Err(wire::unsupported(format!(
                        "no tool can be offered, and the tool choice demands one: `{name}`: {reason}"
                    )));
                }
            }
            _ => {}
        }
        Ok(wired)
    }
}

/// The number of offers of a model that are kept.
const MAX_OFFERS: usize = 16;

/// The last offers of a model: the tools of a request are mostly those of one before, of the same agent or of another one.
#[derive(Debug, Default)]
pub(crate) struct OfferCache(Mutex<Vec<Arc<ToolOffer>>>);

impl OfferCache {
    pub(crate) fn of(&self, rules: &RequestRules, tools: &Arc<[ToolSpec]>) -> Arc<ToolOffer> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // NOTE: Identity first: the steps of a run share one list of tools, and a comparison reads all schemas.
        let is_it = |offer: &Arc<ToolOffer>| Arc::ptr_eq(&offer.given, tools);
        let place =
            last.iter().position(is_it).or_else(|| last.iter().position(|offer| offer.given == *tools));
        let offer = match place {
            Some(0) => return Arc::clone(&last[0]),
            Some(place) => last.remove(place),
            None => Arc::new(ToolOffer::new(rules, tools)),
        };
        last.insert(0, Arc::clone(&offer));
        last.truncate(MAX_OFFERS);
        offer
    }
}

/// A request in the form for the wire, with the data to restore its reply.
#[derive(Debug)]
pub(crate) struct PreparedRequest {
    pub(crate) request: ChatRequest,
    pub(crate) offer: Arc<ToolOffer>,
    pub(crate) form: ReplyForm,
}
