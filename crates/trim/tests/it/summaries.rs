//! Summaries: the request, the view, and the guarantees of a trim for both.

use expect_test::expect;
use proptest::prelude::*;
use stepfold_state_core::chat::{Message, Transcript};
use stepfold_trim::{Summarize, Summary, SummaryRole, Trim, TrimError, View};

use crate::histories::{self, last_user, lead};
use crate::shown;

const LOG: &str = "\
system:    be brief
user:      which area has most stalls?
assistant: ~\"hm\"   > c1 search(q=\"stalls\")   > c2 fetch(id=7)
tool c1:   [3, 4]
tool c2!:  timed out
assistant: area 3
user:      is it open on weekends, and if so how long?
assistant: yes
user:      thanks
";

#[test]
fn what_is_asked_and_what_is_shown() {
    let log: Transcript = LOG.parse().unwrap();
    let summarize = Summarize::beyond(Trim::keep_last(1)).once(Trim::cap_messages(8)).message_characters(30);
    let plan = summarize.plan(&log, None).unwrap();
    expect![[r#"
        Write a summary of this conversation.
        <conversation>
        user:      which area has most stalls?
        assistant: > c1 search(q="stalls")   > c2 fetch(id=7)
        tool c1:   [3, 4]
        tool c2!:  timed out
        assistant: area 3
        user:      is it open on weekends, and if[13 more characters]
        assistant: yes
        </conversation>"#]]
    .assert_eq(&plan.request().get(1).unwrap().text());
    let summary = plan.finish("Area 3 has most stalls.").unwrap();
    expect![[r#"
        # 2 of 9 messages (0..1, 8..9) and a summary
        system:    be brief
        user:      [Summary of 7 earlier messages, written by a model. They are not shown any more.]
                   Area 3 has most stalls.
                   [End of the summary. The conversation goes on.]
        user:      thanks
    "#]]
    .assert_eq(&shown(&summary.view(&log)));

    // Nothing to do until the trigger drops something; then the last summary is part of the request.
    let mut log = log;
    for index in 0..3 {
        assert!(summarize.plan(&log, Some(&summary)).is_none());
        log.push(Message::assistant(format!("reply {index}")));
        log.push(Message::user(format!("question {index}")));
    }
    let plan = summarize.plan(&log, Some(&summary)).unwrap();
    expect![[r#"
        The summary of what came before:
        <summary>
        Area 3 has most stalls.
        </summary>

        Write a new summary of that and of what followed.
        <conversation>
        user:      thanks
        assistant: reply 0
        user:      question 0
        assistant: reply 1
        user:      question 1
        assistant: reply 2
        </conversation>"#]]
    .assert_eq(&plan.request().get(1).unwrap().text());
    expect![[r#"
        # 2 of 15 messages (0..1, 14..15) and a summary
        system:    be brief
        user:      [Summary of 13 earlier messages, written by a model. They are not shown any more.]
                   Shorter.
                   [End of the summary. The conversation goes on.]
        user:      question 2
    "#]]
    .assert_eq(&shown(&plan.finish("Shorter.").unwrap().view(&log)));
}

#[test]
fn a_system_message_if_asked_for() {
    let log: Transcript = "system: be brief\nuser: one\nassistant: 1\nuser: two".parse().unwrap();
    let summarize = Summarize::beyond(Trim::keep_last(1)).shown_as(SummaryRole::System);
    let view = summarize.plan(&log, None).unwrap().finish("One.\n").unwrap().view(&log);
    expect![[r#"
        # 2 of 4 messages (0..1, 3..4) and a summary
        system:    be brief
        system:    [Summary of 2 earlier messages, written by a model. They are not shown any more.]
                   One.
                   [End of the summary. The conversation goes on.]
        user:      two
    "#]]
    .assert_eq(&shown(&view));
}

#[test]
fn images_are_named_and_not_sent() {
    let log: Transcript =
        "user: \"look\"   @{\"image\": {\"url\": \"https://example.com/a.png\"}}\nuser: bye".parse().unwrap();
    let plan = Summarize::beyond(Trim::keep_last(1)).plan(&log, None).unwrap();
    expect![[r#"
        Write a summary of this conversation.
        <conversation>
        user:      "look"   "[image]"
        </conversation>"#]]
    .assert_eq(&plan.request().get(1).unwrap().text());
}

#[test]
fn a_blank_summary_is_refused() {
    let log: Transcript = "user: one\nuser: two".parse().unwrap();
    let plan = Summarize::beyond(Trim::keep_last(1)).plan(&log, None).unwrap();
    assert_eq!(plan.finish(" \n"), Err(TrimError::BlankSummary { messages: 1 }));
}

/// The plans of a long history, each within one request.
#[test]
fn a_long_history_takes_several_requests() {
    let log: Transcript = (0..6)
        .flat_map(|turn| [Message::user(format!("question {turn}")), Message::assistant("answer")])
        .collect();
    let summarize = Summarize::beyond(Trim::keep_last(2)).request_tokens(5).counted_by(histories::ones());
    let (mut summary, mut replaced) = (None, Vec::new());
    while let Some(plan) = summarize.plan(&log, summary.as_ref()) {
        replaced.push(plan.replaced().to_string());
        summary = Some(plan.finish("so far, so good").unwrap());
    }
    assert_eq!(replaced, ["0..4", "4..8", "8..10"]);
    assert_eq!(summary.unwrap().replaced(), 10);
}

proptest! {
    #[test]
    fn a_summary_keeps_the_promises_of_a_trim(
        mut log in histories::well_formed(),
        more in prop::collection::vec(histories::step(), 0..4),
        keep in histories::trim(),
        once in histories::trim(),
        request_tokens in 0..200_usize,
    ) {
        let summarize = Summarize::beyond(keep.clone()).once(once).request_tokens(request_tokens);
        let mut summary: Option<Summary> = None;
        while let Some(plan) = summarize.plan(&log, summary.as_ref()) {
            prop_assert!(!plan.replaced().is_empty());
            prop_assert_eq!(plan.request().check(), Ok(()));
            let next = plan.finish("so far, so good").unwrap();
            let before = summary.as_ref().map_or(0, Summary::replaced);
            prop_assert_eq!(next.replaced(), before + plan.replaced().len());
            summary = Some(next);
        }
        let Some(summary) = summary else { return Ok(()) };
        log.extend(more.into_iter().flatten());
        let view = summary.view(&log);
        prop_assert_eq!(view.transcript().check(), Ok(()));
        prop_assert_eq!(view.transcript().len(), view.kept().len() + 1);
        prop_assert_eq!(view.dropped(), summary.replaced());
        prop_assert!((0..lead(&log)).all(|index| view.kept().contains(index)));
        prop_assert!(last_user(&log).is_none_or(|index| view.kept().contains(index)));
        prop_assert_eq!(&**view.transcript().get(lead(&log)).unwrap(), &summary.message());

        // A trim of it keeps the summary.
        let narrowed = keep.narrow(&view, &log);
        prop_assert!(narrowed.summary().is_some());
        prop_assert_eq!(narrowed.transcript().check(), Ok(()));
    }

    /// With one request for everything, the view is that of the trim, and the summary.
    #[test]
    fn a_summary_replaces_what_the_trim_leaves_out(log in histories::well_formed(), keep in histories::trim()) {
        let trimmed = keep.view(&log);
        match Summarize::beyond(keep).plan(&log, None) {
            None => prop_assert_eq!(trimmed.dropped(), 0),
            Some(plan) => {
                let view: View = plan.finish("so far, so good").unwrap().view(&log);
                prop_assert_eq!(view.kept(), trimmed.kept());
            }
        }
    }
}
