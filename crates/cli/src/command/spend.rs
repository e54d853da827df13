//! `stepfold spend`: what was spent on models, by session, user, model or day.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;
use stepfold::session_scopes::{ListSpend, SessionStore as _, SpendRecord, SpendState};
use stepfold::state_core::chat::Cost;

use crate::args::{SessionArgs, SpendGroup};
use crate::context::CommandContext;
use crate::error::CommandEnding;
use crate::show::{self, counted};

pub(super) async fn spend(
    target: &SessionArgs,
    by: SpendGroup,
    csv: bool,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target)?;
    let mut report = SpendReport::default();
    // NOTE: the id `-` is a placeholder: only the app of the key is used.
    let mut request = ListSpend::new(context.runner.key(context.user.as_str(), "-")?.app);
    loop {
        let page = context.runner.store().spend(request.clone()).await?;
        let Some(last) = page.last() else { break };
        let is_asked = |record: &&SpendRecord| {
            target.session.as_deref().is_none_or(|id| {
                record.key.id.as_str() == id && record.key.user.as_str() == context.user.as_str()
            })
        };
        page.iter().filter(is_asked).for_each(|record| report.add(by, record));
        request = request.after(last);
    }
    match (json, csv) {
        (true, _) => show::line(report.json(by).to_string()),
        (false, true) => report.csv(by).into_iter().for_each(show::line),
        (false, false) => report.show(),
    }
    Ok(CommandEnding::Done)
}

/// The sums of some requests.
#[derive(Clone, Copy, Default)]
struct SpendSum {
    requests: u64,
    /// Those that count as their estimates.
    estimated: u64,
    input_tokens: u64,
    output_tokens: u64,
    cost: Cost,
    /// Those whose price was unknown.
    unpriced: u64,
}

impl SpendSum {
    fn add(&mut self, record: &SpendRecord) {
        let amounts = record.amounts;
        self.requests += 1;
        self.estimated += u64::from(record.state != SpendState::Settled);
        self.input_tokens = self.input_tokens.saturating_add(amounts.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(amounts.output_tokens);
        match amounts.nanodollars {
            Some(nanodollars) => self.cost = self.cost + Cost::from_nanodollars(nanodollars),
            None => self.unpriced += 1,
        }
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "estimated": self.estimated,
            "input_tokens": self.input_tokens,
            "nanodollars": self.cost.nanodollars(),
            "output_tokens": self.output_tokens,
            "requests": self.requests,
            "unpriced": self.unpriced,
        })
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{}  {} in, {} out  {}",
            self.cost,
            self.input_tokens,
            self.output_tokens,
            counted(self.requests, "request")
        );
        for (count, what) in [(self.estimated, "estimated"), (self.unpriced, "without a price")] {
            if count > 0 {
                let _ = write!(text, ", {count} {what}");
            }
        }
        text
    }
}

#[derive(Default)]
struct SpendReport {
    groups: BTreeMap<String, SpendSum>,
    total: SpendSum,
}

impl SpendReport {
    fn add(&mut self, by: SpendGroup, record: &SpendRecord) {
        let group = match by {
            SpendGroup::Session => format!("{}/{}", record.key.user, record.key.id),
            SpendGroup::User => record.key.user.to_string(),
            SpendGroup::Model => record.model.to_string(),
            // The day of the time in UTC, as it prints.
            SpendGroup::Day => record.at.to_string().chars().take(10).collect(),
        };
        self.groups.entry(group).or_default().add(record);
        self.total.add(record);
    }

    fn json(&self, by: SpendGroup) -> serde_json::Value {
        let rows = self.groups.iter().map(|(group, sum)| {
            let mut row = sum.json();
            row[by.name()] = json!(group);
            row
        });
        json!({"spend": rows.collect::<Vec<_>>(), "total": self.total.json()})
    }

    fn csv(&self, by: SpendGroup) -> Vec<String> {
        let head = format!("{},requests,input_tokens,output_tokens,usd,estimated,unpriced", by.name());
        let rows = self.groups.iter().map(|(group, sum)| {
            let SpendSum { requests, estimated, input_tokens, output_tokens, cost, unpriced } = sum;
            let (dollars, rest) = (cost.nanodollars() / 1_000_000_000, cost.nanodollars() % 1_000_000_000);
            let group = csv_field(group);
            format!(
                "{group},{requests},{input_tokens},{output_tokens},{dollars}.{rest:09},{estimated},{unpriced}"
            )
        });
        [head].into_iter().chain(rows).collect()
    }

    fn show(&self) {
        if self.total.requests == 0 {
            show::note("nothing was spent: requests are listed here once the file has `[[budgets]]`");
            return;
        }
        for (group, sum) in &self.groups {
            show::line(format!("{group}  {}", sum.text()));
        }
        show::note(format!("in all {}", self.total.text()));
    }
}

/// A field of a row: quoted where it has a separator, and never a formula of a spreadsheet.
fn csv_field(text: &str) -> String {
    let text = match text.starts_with(['=', '+', '-', '@']) {
        true => format!("'{text}"),
        false => text.to_owned(),
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::csv_field;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        for (text, field) in [
            ("ada/s1", "ada/s1"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=1+1", "'=1+1"),
        ] {
            assert_eq!(csv_field(text), field);
        }
    }
}
