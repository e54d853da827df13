//! Questions to a person: whether a plan is right, and whether a call may be made.

use std::io;

use serde_json::Value;
use stepfold::agent_loop::{ApprovalRequest, AskReason};
use stepfold::prelude::*;
use stepfold::state_core::escape_all_invisible;
use stepfold::terminal::{Printer, approval, stdout_form};
use stepfold_examples::{ask, say};

use crate::graph::Plan;

/// Asks on standard output and reads from standard input. Remembers an approval of everything.
#[derive(Debug, Default)]
pub(crate) struct Person {
    agrees_to_all: bool,
}

impl Person {
    /// The decision on each request; none for those that were not answered.
    pub(crate) fn decide(&mut self, requests: &[ApprovalRequest]) -> io::Result<Vec<(String, Decision)>> {
        let mut decisions = Vec::new();
        for request in requests {
            let Some(decision) = self.ask(request)? else { break };
            decisions.push((request.id.clone(), decision));
        }
        Ok(decisions)
    }

    fn ask(&mut self, request: &ApprovalRequest) -> io::Result<Option<Decision>> {
        let plan = plan_of(request);
        let question = if let Some(plan) = &plan {
            say("The plan:");
            for (number, task) in (1..).zip(&plan.tasks) {
                let (title, question) =
                    (escape_all_invisible(&task.title), escape_all_invisible(&task.question));
                say(format!("  {number}. {title}: {question}"));
            }
            "Is it right? yes, no and why, keep 1 2, all (yes to everything): "
        } else {
            // Whole: what is agreed to is what is shown.
            let form = stdout_form();
            Printer::in_form(form).line(approval(request, form));
            "May it? yes, no and why, all (yes to everything): "
        };
        loop {
            if self.agrees_to_all {
                return Ok(Some(Decision::Approve));
            }
            let Some(line) = ask(question)? else {
                say("");
                return Ok(None);
            };
            match answer(&line, plan.as_ref()) {
                Some(Answer::All) => self.agrees_to_all = true,
                Some(Answer::Decision(decision)) => return Ok(Some(decision)),
                None => say("That is not one of the answers."),
            }
        }
    }
}

/// The plan that a request is about.
fn plan_of(request: &ApprovalRequest) -> Option<Plan> {
    if request.reason != AskReason::Node {
        return None;
    }
    serde_json::from_value(Value::Object(request.call.arguments.as_object()?.clone())).ok()
}

#[derive(Debug, PartialEq)]
enum Answer {
    All,
    Decision(Decision),
}

fn answer(line: &str, plan: Option<&Plan>) -> Option<Answer> {
    let line = line.trim();
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let decision = match (word, plan) {
        ("all" | "a", _) => return Some(Answer::All),
        ("yes" | "y", _) => Decision::Approve,
        ("no" | "n", _) => Decision::reject(rest.trim()),
        ("keep" | "k", Some(plan)) => {
            let numbers = rest.split([' ', ',']).filter(|number| !number.is_empty());
            let numbers: Option<Vec<usize>> = numbers.map(|number| number.parse().ok()).collect();
            let kept = numbers?.into_iter().map(|number| plan.tasks.get(number.checked_sub(1)?).cloned());
            let kept = Plan { tasks: kept.collect::<Option<Vec<_>>>()? };
            if kept.tasks.is_empty() {
                return None;
            }
            Decision::modify(serde_json::to_value(kept).ok()?)
        }
        _ => return None,
    };
    Some(Answer::Decision(decision))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Option<Decision>) {
        let plan: Plan = serde_json::from_value(json!({"tasks": [
            {"title": "one", "question": "?"}, {"title": "two", "question": "?"},
        ]}))
        .unwrap();
        assert_eq!(answer(line, Some(&plan)), expected.map(Answer::Decision), "{line}");
    }

    #[test]
    fn answers_are_words() {
        check("yes\n", Some(Decision::Approve));
        check(" n  too broad \n", Some(Decision::reject("too broad")));
        check("keep 2", Some(Decision::modify(json!({"tasks": [{"title": "two", "question": "?"}]}))));
        for none in ["", "keep", "keep 0", "keep 3", "keep x", "maybe"] {
            check(none, None);
        }
        assert_eq!(answer("a", None), Some(Answer::All));
        assert_eq!(answer("keep 1", None), None);
    }
}
