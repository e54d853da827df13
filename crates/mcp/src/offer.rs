//! From the list of a server to the tools for a model: pure functions of the list and the rules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stepfold_tools::{Approval, Effect};

use crate::definition::{RefusedDefinition, ServerToolDefinition};
use crate::name::{NamePattern, mapped};

/// The rules of the user for the tools of a server.
#[derive(Clone, Debug)]
pub(crate) struct OfferRules {
    pub(crate) prefix: String,
    /// Empty for all tools.
    pub(crate) allow: Vec<NamePattern>,
    pub(crate) deny: Vec<NamePattern>,
    pub(crate) effects: Vec<(NamePattern, Effect)>,
    pub(crate) approvals: Vec<(NamePattern, Approval)>,
    pub(crate) trusts_hints: bool,
    pub(crate) call_timeout: Duration,
}

impl OfferRules {
    fn is_offered(&self, name: &str) -> bool {
        let is_in = |patterns: &[NamePattern]| patterns.iter().any(|pattern| pattern.matches(name));
        (self.allow.is_empty() || is_in(&self.allow)) && !is_in(&self.deny)
    }

    /// The effect of a tool: by the rules, then by the claims of a trusted server, else at most once.
    pub(crate) fn effect(&self, definition: &ServerToolDefinition) -> Effect {
        match last(&self.effects, &definition.name) {
            Some(effect) => *effect,
            None if self.trusts_hints && definition.claims("readOnlyHint") => Effect::Pure,
            None if self.trusts_hints && definition.claims("idempotentHint") => Effect::Idempotent,
            // NOTE: Hints are claims of the server: a wrong one would repeat an interrupted call.
            None => Effect::AtMostOnce,
        }
    }

    /// The approval rule of an unchanged tool.
    pub(crate) fn approval(&self, name: &str) -> Approval {
        last(&self.approvals, name).cloned().unwrap_or_default()
    }
}

/// Returns the rule of the last matching pattern.
fn last<'a, T>(rules: &'a [(NamePattern, T)], name: &str) -> Option<&'a T> {
    rules.iter().rev().find(|(pattern, _)| pattern.matches(name)).map(|(_, rule)| rule)
}

/// The current tools of a server that the rules allow.
#[derive(Debug, Default)]
pub(crate) struct ServerOffer {
    /// In the server's order, each with the name that the model calls it by.
    pub(crate) tools: Vec<(String, Arc<ServerToolDefinition>)>,
    /// The tools that the rules allow, and that cannot be offered.
    pub(crate) refused: Vec<RefusedDefinition>,
}

impl ServerOffer {
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<ServerToolDefinition>> {
        self.tools.iter().map(|(_, known)| known).find(|known| known.name == name)
    }
}

/// Selects the tools to offer.
pub(crate) fn offer(
    listed: Vec<Result<ServerToolDefinition, RefusedDefinition>>,
    rules: &OfferRules,
) -> ServerOffer {
    let mut offer = ServerOffer::default();
    let mut valid = Vec::with_capacity(listed.len());
    for entry in listed {
        match entry {
            Ok(definition) => valid.push(definition),
            Err(refused) => offer.refused.push(refused),
        }
    }
    offer.refused.retain(|refused| rules.is_offered(&refused.tool));
    let mut same_name: BTreeMap<String, Vec<Arc<ServerToolDefinition>>> = BTreeMap::new();
    let mut order = Vec::new();
    for definition in valid.into_iter().filter(|listed| rules.is_offered(&listed.name)) {
        let same = same_name.entry(definition.name.clone()).or_default();
        if same.is_empty() {
            order.push(definition.name.clone());
        }
        // NOTE: A list in pages may repeat a tool.
        if same.iter().all(|known| **known != definition) {
            same.push(Arc::new(definition));
        }
    }
    let mut taken: BTreeMap<String, String> = BTreeMap::new();
    for name in order {
        let same = same_name.remove(&name).unwrap_or_default();
        // NOTE: A call names the tool only, so that it is unknown which definition would answer. See
        // docs/decisions/mcp.md.
        let [definition] = same.as_slice() else {
            let reason = format!("the server offers {} different tools of this name", same.len());
            offer.refused.push(RefusedDefinition { tool: name, reason });
            continue;
        };
        let model_name = mapped(&rules.prefix, &name);
        if let Some(other) = taken.insert(model_name.clone(), name.clone()) {
            let reason = format!("the model would call it `{model_name}`, as it does the tool `{other}`");
            offer.refused.push(RefusedDefinition { tool: name, reason });
            continue;
        }
        offer.tools.push((model_name, Arc::clone(definition)));
    }
    offer
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules() -> OfferRules {
        OfferRules {
            prefix: "s_".to_owned(),
            allow: Vec::new(),
            deny: Vec::new(),
            effects: Vec::new(),
            approvals: Vec::new(),
            trusts_hints: false,
            call_timeout: Duration::from_secs(1),
        }
    }

    fn tool(name: &str, description: &str) -> ServerToolDefinition {
        let fields = json!({"name": name, "description": description, "inputSchema": {"type": "object"}});
        serde_json::from_value(fields).unwrap()
    }

    #[track_caller]
    fn check(listed: Vec<ServerToolDefinition>, rules: &OfferRules, offered: &[&str], refused: &[&str]) {
        let offer = offer(listed.into_iter().map(Ok).collect(), rules);
        assert_eq!(offer.tools.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), offered);
        let lines: Vec<String> =
            offer.refused.iter().map(|refused| format!("{}: {}", refused.tool, refused.reason)).collect();
        assert_eq!(lines, refused);
    }

    #[test]
    fn allow_and_deny_are_about_the_servers_own_names() {
        let listed = || vec![tool("read", ""), tool("write", ""), tool("write_all", "")];
        check(listed(), &rules(), &["s_read", "s_write", "s_write_all"], &[]);
        let deny = OfferRules { deny: vec![NamePattern::new("write*")], ..rules() };
        check(listed(), &deny, &["s_read"], &[]);
        let both = OfferRules {
            allow: vec![NamePattern::new("write*")],
            deny: vec![NamePattern::new("write")],
            ..rules()
        };
        check(listed(), &both, &["s_write_all"], &[]);
    }

    #[test]
    fn two_tools_of_one_name_are_not_offered_and_a_repeated_one_is() {
        let listed = vec![tool("read", "A."), tool("add", "Adds."), tool("read", "B."), tool("add", "Adds.")];
        check(listed, &rules(), &["s_add"], &["read: the server offers 2 different tools of this name"]);
    }

    #[test]
    fn hints_count_only_for_trusted_servers_and_the_user_is_stronger() {
        let mut read = tool("read", "");
        read.annotations = Some(json!({"readOnlyHint": true, "idempotentHint": true}));
        let mut put = tool("put", "");
        put.annotations = Some(json!({"idempotentHint": true}));
        assert_eq!(rules().effect(&read), Effect::AtMostOnce);
        let trusting = OfferRules { trusts_hints: true, ..rules() };
        assert_eq!((trusting.effect(&read), trusting.effect(&put)), (Effect::Pure, Effect::Idempotent));
        assert_eq!(trusting.effect(&tool("other", "")), Effect::AtMostOnce);
        let stricter = OfferRules { effects: vec![(NamePattern::new("*"), Effect::AtMostOnce)], ..trusting };
        assert_eq!(stricter.effect(&read), Effect::AtMostOnce);
    }
}
