//! `stepfold spend`: what was spent on models, by session, user, model or day.

use std::fmt::Write as _;

use serde_json::json;
use stepfold::runner::{SpendGroup, SpendQuery, SpendReport, SpendSum};
use stepfold::session_scopes::{BudgetRaise, UserId};
use stepfold::state_core::chat::Cost;

use crate::args::{SessionArgs, SpendGroupArg};
use crate::context::CommandContext;
use crate::error::CommandEnding;
use crate::show::{self, counted};

pub(super) async fn spend(
    target: &SessionArgs,
    by: SpendGroupArg,
    csv: bool,
    json: bool,
) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target).await?;
    let by = SpendGroup::from(by);
    let query = match target.session.as_deref() {
        None => SpendQuery::by(by),
        Some(id) => {
            let key = context.runner.key(context.user.as_str(), id)?;
            SpendQuery::by(by).of_user(key.user).of_session(key.id)
        }
    };
    let report = context.runner.spend(query).await?;
    match (json, csv) {
        (true, _) => show::line(report_json(&report, by).to_string()),
        (false, true) => report_csv(&report, by).into_iter().for_each(show::line),
        (false, false) => show_report(&report),
    }
    Ok(CommandEnding::Done)
}

/// The raises of the app's budgets, newest first.
pub(super) async fn raises(target: &SessionArgs, json: bool) -> anyhow::Result<CommandEnding> {
    let context = CommandContext::for_read(target).await?;
    let raises = context.runner.budget_raises(None).await?;
    match json {
        true => show::line(json!({"raises": raises.iter().map(raise_json).collect::<Vec<_>>()}).to_string()),
        false if raises.is_empty() => show::note("no budget was raised"),
        false => raises.iter().map(raise_text).for_each(show::line),
    }
    Ok(CommandEnding::Done)
}

fn raise_json(raise: &BudgetRaise) -> serde_json::Value {
    let BudgetRaise { user, budget, shared_by, unit, from, to, by, at, .. } = raise;
    json!({
        "at": at.to_string(), "budget": budget, "by": by.as_str(), "from": from, "scope": shared_by, "to": to,
        "unit": unit, "user": user.as_ref().map(UserId::as_str),
    })
}

fn raise_text(raise: &BudgetRaise) -> String {
    let BudgetRaise { budget, shared_by, unit, from, to, by, at, .. } = raise;
    let amount = |amount: u64| match &**unit {
        "usd" => Cost::from_nanodollars(amount).to_string(),
        unit => format!("{amount} {unit}"),
    };
    format!("{at}  {budget} of {shared_by}  {} -> {}  by {by}", amount(*from), amount(*to))
}

fn sum_json(sum: &SpendSum) -> serde_json::Value {
    json!({
        "estimated": sum.estimated,
        "input_tokens": sum.input_tokens,
        "nanodollars": sum.cost.nanodollars(),
        "output_tokens": sum.output_tokens,
        "requests": sum.requests,
        "unpriced": sum.unpriced,
    })
}

fn sum_text(sum: &SpendSum) -> String {
    let SpendSum { requests, estimated, input_tokens, output_tokens, cost, unpriced, .. } = *sum;
    let mut text =
        format!("{cost}  {input_tokens} in, {output_tokens} out  {}", counted(requests, "request"));
    for (count, what) in [(estimated, "estimated"), (unpriced, "without a price")] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

fn report_json(report: &SpendReport, by: SpendGroup) -> serde_json::Value {
    let rows = report.groups.iter().map(|(group, sum)| {
        let mut row = sum_json(sum);
        row[by.as_str()] = json!(group);
        row
    });
    json!({"spend": rows.collect::<Vec<_>>(), "total": sum_json(&report.total)})
}

fn report_csv(report: &SpendReport, by: SpendGroup) -> Vec<String> {
    let head = format!("{},requests,input_tokens,output_tokens,usd,estimated,unpriced", by.as_str());
    let rows = report.groups.iter().map(|(group, sum)| {
        let SpendSum { requests, estimated, input_tokens, output_tokens, cost, unpriced, .. } = sum;
        let (dollars, rest) = (cost.nanodollars() / 1_000_000_000, cost.nanodollars() % 1_000_000_000);
        let group = csv_field(group);
        format!(
            "{group},{requests},{input_tokens},{output_tokens},{dollars}.{rest:09},{estimated},{unpriced}"
        )
    });
    [head].into_iter().chain(rows).collect()
}

fn show_report(report: &SpendReport) {
    if report.total.requests == 0 {
        show::note("nothing was spent: requests are listed here once the file has `[[budgets]]`");
        return;
    }
    for (group, sum) in &report.groups {
        show::line(format!("{group}  {}", sum_text(sum)));
    }
    show::note(format!("in all {}", sum_text(&report.total)));
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
