//! The view that a model has of a long conversation, from an agent file's tables for it.

use stepfold::trim::{Pins, Summarize, Trim, Window};

use crate::form::agent::{AgentFileForm, PinCount, PinsForm};
use crate::form::{FaultCollector, near};

/// The view when a turn begins.
pub(super) fn trim(form: &AgentFileForm, faults: &mut FaultCollector) -> Trim {
    let trim = &form.trim;
    let kept = trim.keep_last.map(Trim::keep_last);
    for (is_given, field, words) in [
        (trim.pins.is_some(), "pins", "pins require `keep_last`: add it"),
        (trim.when_over.is_some(), "when_over", "a threshold requires `keep_last`: add it"),
    ] {
        if is_given && kept.is_none() {
            faults.add(&["trim", field], words);
        }
    }
    if let Some(keep_last) = trim.keep_last {
        check_over("trim", trim.when_over, keep_last, faults);
    }
    if let Some(pins) = &trim.pins {
        check_tools(form, &["trim", "pins", "results_of"], &pins.results_of, faults);
    }
    if let Some(clear) = &form.clear_results {
        check_tools(form, &["clear_results", "except"], &clear.except, faults);
    }
    let kept = kept.map(|kept| trim.when_over.into_iter().fold(kept, Trim::when_over));
    let kept = kept.map(|kept| trim.pins.iter().map(pins).fold(kept, Trim::with_pins));
    let cleared = form.clear_results.as_ref().map(|clear| {
        let policy = Trim::clear_results(clear.newest_steps, clear.above_tokens);
        policy.with_pins(Pins::up_to(0).results_of(&clear.except))
    });
    let caps = [
        trim.max_tokens.map(Trim::max_tokens),
        trim.cap_messages.map(Trim::cap_messages),
        trim.cap_tokens.map(Trim::cap_tokens),
    ];
    // NOTE: Results are cleared before tokens are counted: a limit then leaves more of the conversation.
    [kept, cleared].into_iter().chain(caps).flatten().fold(Trim::none(), Trim::then)
}

/// Refuses names that are nearly those of tools. Other unknown ones may be of servers, or of tools that were there when a session
/// began.
fn check_tools(form: &AgentFileForm, path: &[&str], names: &[String], faults: &mut FaultCollector) {
    for (place, name) in names.iter().enumerate().filter(|(_, name)| !form.tools.has(name)) {
        if let Some(near) = near(name, form.tools.names()) {
            let place = place.to_string();
            let path = [path, &[place.as_str()]].concat();
            faults.add(&path, format!("unknown tool `{name}`; did you mean `{near}`?"));
        }
    }
}

/// Refuses a threshold that is less than the number of kept messages.
fn check_over(table: &str, when_over: Option<usize>, keep_last: usize, faults: &mut FaultCollector) {
    if let Some(over) = when_over.filter(|over| *over < keep_last) {
        let words = format!("invalid value {over}: must be at least the {keep_last} of `keep_last`");
        faults.add(&[table, "when_over"], words);
    }
}

fn pins(form: &PinsForm) -> Pins {
    let pins = match form.counts {
        PinCount::Shown => Pins::up_to(form.messages),
        PinCount::Pinned => Pins::messages(form.messages),
    };
    pins.results_of(&form.results_of)
}

/// The window within a turn.
pub(super) fn window(form: &AgentFileForm, faults: &mut FaultCollector) -> Option<Window> {
    let window = match (&form.window, form.trim.window) {
        (Some(_), Some(_)) => {
            faults.add(&["trim", "window"], "two windows: leave this one, or the table `[window]`");
            return None;
        }
        (None, tokens) => Window::new(tokens?),
        (Some(window), None) => {
            let percent = window.shrink_to_percent;
            if percent.is_some_and(|percent| percent == 0 || percent > 100) {
                faults.add(&["window", "shrink_to_percent"], "invalid share: must be 1 to 100");
            }
            percent.into_iter().fold(Window::new(window.tokens), Window::shrink_to_percent)
        }
    };
    if form.window.as_ref().is_some_and(|window| window.tokens == 0) {
        faults.add(&["window", "tokens"], "invalid number 0: must be at least 1");
    }
    let Some(clear) = &form.clear_results else { return Some(window) };
    let pins = Pins::up_to(0).results_of(&clear.except);
    Some(window.clear_results(clear.newest_steps).with_pins(pins))
}

/// The summaries of what is no longer shown.
pub(super) fn summarize(form: &AgentFileForm, faults: &mut FaultCollector) -> Option<Summarize> {
    let form = form.summarize.as_ref()?;
    check_over("summarize", form.when_over, form.keep_last, faults);
    let keep = Trim::keep_last(form.keep_last);
    let thresholds = [form.when_over.map(Trim::cap_messages), form.when_over_tokens.map(Trim::cap_tokens)];
    let mut summarize = Summarize::beyond(keep);
    if let Some(threshold) = thresholds.into_iter().flatten().reduce(Trim::then) {
        summarize = summarize.once(threshold);
    }
    if let Some(instructions) = &form.instructions {
        summarize = summarize.instructed(instructions.as_str());
    }
    Some(summarize)
}
