//! The cost of replies, by the prices of their app.

use std::borrow::Cow;

use stepfold_agent_loop::Agent;
use stepfold_state_core::chat::{Cost, Prices, Usage};

use super::event::ItemRow;

/// The prices of an app, and its agent, whose models they are of.
#[derive(Clone, Debug)]
pub(in crate::http) struct AppPricing {
    agent: Agent,
    pub(in crate::http) prices: Prices,
}

impl AppPricing {
    pub(in crate::http) fn new(agent: Agent, prices: Prices) -> Self {
        AppPricing { agent, prices }
    }

    /// The agent inside of these items.
    fn agent(&self, path: &[ItemRow]) -> Option<&Agent> {
        path.iter().try_fold(&self.agent, |agent, item| {
            let mut inside = agent.inside().into_iter();
            inside.find(|(name, _)| *name == item.name).map(|(_, agent)| agent)
        })
    }

    /// The model of a reply or a summary inside of these items: as it was reported, or that of the agent.
    pub(in crate::http) fn model<'a>(
        &'a self,
        path: &[ItemRow],
        reported: Option<&'a str>,
    ) -> Option<Cow<'a, str>> {
        let own = || self.agent(path).map(|agent| Cow::Borrowed(agent.model().id()));
        reported.map(Cow::Borrowed).or_else(own)
    }

    /// The cost: by the price of the model, or as the provider has reported it.
    pub(in crate::http) fn cost(
        &self,
        path: &[ItemRow],
        reported: Option<&str>,
        usage: &Usage,
    ) -> Option<Cost> {
        // The name that is reported may be one of many that the provider has for the model.
        let names = [reported.map(Cow::Borrowed), self.model(path, None)];
        let mut names = names.into_iter().flatten();
        let known = names.find(|name| self.prices.price(name).is_some());
        self.prices.cost(&known.unwrap_or_default(), usage)
    }
}

/// An amount in dollars, exactly, without a sign: "0.00125".
pub(in crate::http) fn dollars(cost: Cost) -> String {
    let nano = cost.nanodollars();
    let text = format!("{}.{:09}", nano / 1_000_000_000, nano % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_said_exactly() {
        let said = |nano| dollars(Cost::from_nanodollars(nano));
        for (nano, text) in [
            (0, "0"),
            (1, "0.000000001"),
            (1_250_000, "0.00125"),
            (10_000_000_000, "10"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            assert_eq!(said(nano), text);
        }
    }
}
