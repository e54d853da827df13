//! The operations of the API, each once: routes, roles and the OpenAPI document are made from this table.

mod apps;
mod branches;
mod budgets;
mod erasures;
#[cfg(feature = "eval")]
mod experiments;
mod history;
mod login;
mod model;
mod runs;
mod scripted_test;
mod search;
mod sessions;
mod shared_values;
mod spend;
mod transfer;

use http::Method;

pub(super) use self::shared_values::check_shared;
use crate::http::guard::auth::Role;
use crate::http::operation::ApiOperation;

macro_rules! operations {
    ($($method:ident $path:expr, $role:ident, $id:literal, $handler:path, $summary:literal;)*) => {
        vec![$(ApiOperation::new(Method::$method, $path, Role::$role, $id, $summary, $handler)),*]
    };
}

/// All operations.
pub(super) fn operations() -> Vec<ApiOperation> {
    let mut operations = operations! {
        POST "/login", Read, "login", login::login, "Sets a cookie with the bearer token of this request.";
        POST "/logout", Read, "logout", login::logout, "Removes the cookie.";
        GET "/me", Read, "read_principal", apps::me, "Reads the user and the role of the caller.";
        GET "/metrics", Administer, "metrics", apps::metrics, "The metrics of this process, in the format of OpenMetrics.";
        GET "/live", Read, "live_all", runs::live_all, "Streams changes of all sessions of the principal; or the live streams of some of them, as one.";
        GET "/apps", Read, "list_apps", apps::list, "Lists the apps.";
        GET "/apps/{app}", Read, "read_app", apps::read, "Reads an app.";
        GET "/apps/{app}/graph", Read, "read_graph", apps::graph, "Reads the nodes and edges of an app that is a graph.";
        GET "/apps/{app}/upgrade", Read, "check_upgrade", apps::upgrade, "Checks the unfinished runs beside the agent of today: those of the principal, or of all users for an administrator.";
        GET "/apps/{app}/spend", Read, "read_spend", spend::spend, "Adds up what was spent on models under budgets.";
        GET "/apps/{app}/budgets", Read, "list_budgets", budgets::list, "Lists budgets with their sums and limits: those of the principal's user; those that users share, and those of other users, for the role `raise_budgets`.";
        POST "/apps/{app}/budgets", RaiseBudgets, "raise_budget", budgets::raise, "Raises the limit of a budget for its current window, and continues a run that waits for it.";
        GET "/apps/{app}/budgets/raises", Read, "list_raises", budgets::raises, "Lists raises of budgets, newest first: who raised which limit, when, from what to what. Those of the principal's user; all for the role `raise_budgets`.";
        GET "/apps/{app}/sessions", Read, "list_sessions", sessions::list, "Lists sessions, the one that was written last first.";
        GET "/apps/{app}/search", Read, "search", search::search, "Finds messages by words, best first: in all sessions of the principal, or in one.";
        POST "/apps/{app}/sessions", Act, "create_session", sessions::create, "Creates a session.";
        GET "/apps/{app}/sessions/{session}", Read, "read_session", sessions::read, "Reads a session and what it waits for.";
        // NOTE: A deletion takes the record away, with the decisions in it; a rewind hides, and can be taken back
        // (docs/decisions/server.md).
        DELETE "/apps/{app}/sessions/{session}", Administer, "delete_session", sessions::delete, "Deletes a session for good.";
        GET "/apps/{app}/sessions/{session}/events", Read, "list_events", history::events, "Lists commits, in order.";
        GET "/apps/{app}/sessions/{session}/events/{version}", Read, "read_event", history::event, "Reads a commit.";
        GET "/apps/{app}/sessions/{session}/blame", Read, "blame", history::blame, "Lists the writes of a key.";
        PATCH "/apps/{app}/sessions/{session}/state", Act, "edit_state", history::edit_state, "Changes values between runs, or of a run that is paused.";
        PATCH "/apps/{app}/sessions/{session}/results", Act, "edit_results", history::edit_results, "Changes recorded results, and arguments of calls that have not begun, of a run that is paused.";
        GET "/apps/{app}/sessions/{session}/state", Read, "read_state", history::state, "Reads the state at a version.";
        GET "/apps/{app}/sessions/{session}/diff", Read, "diff", history::diff, "Lists the changes between two versions.";
        // NOTE: Below a session, not `/compare?a=&b=`: the session of a path is found for the principal before a handler
        // runs (docs/decisions/server.md).
        GET "/apps/{app}/sessions/{session}/compare", Read, "compare", history::compare, "Compares a session with another one, such as a fork.";
        GET "/apps/{app}/sessions/{session}/model", Read, "read_model_step", model::shown, "Reads what the model was shown at a step.";
        GET "/apps/{app}/sessions/{session}/usage", Read, "read_usage", model::usage, "Reads the tokens of a session and their cost.";
        GET "/apps/{app}/sessions/{session}/cache", Read, "read_prompt_cache", model::cache, "Lists the requests to the model: the prefix that each shares with the one before, and what broke it.";
        GET "/apps/{app}/sessions/{session}/export", Read, "export", transfer::export, "Exports a session: whole as JSON, or as a scripted test.";
        POST "/apps/{app}/erasures", Administer, "erase", erasures::erase, "Erases content for good: events, a call, a session with its forks, or a user.";
        GET "/apps/{app}/erasures", Administer, "list_erasures", erasures::list, "Lists the records of erasures, oldest first: when, by whom and why, never of what.";
        POST "/apps/{app}/import", Act, "import", transfer::import, "Creates a session from an export.";
        GET "/apps/{app}/sessions/{session}/labels", Read, "list_labels", branches::labels, "Lists the labels of versions.";
        PUT "/apps/{app}/sessions/{session}/labels/{label}", Act, "set_label", branches::set_label, "Labels a version.";
        DELETE "/apps/{app}/sessions/{session}/labels/{label}", Act, "remove_label", branches::remove_label, "Removes a label.";
        GET "/apps/{app}/sessions/{session}/forks", Read, "list_forks", branches::forks, "Lists the forks of a session.";
        POST "/apps/{app}/sessions/{session}/fork", Act, "fork", history::fork, "Creates a session that shares the history up to a version.";
        POST "/apps/{app}/sessions/{session}/rewind", Act, "rewind", history::rewind, "Goes back to a version; nothing is deleted.";
        POST "/apps/{app}/sessions/{session}/replay", Read, "replay", history::replay, "Replays every run without model and tools, and reports the first divergence.";
        GET "/apps/{app}/sessions/{session}/live", Read, "live", runs::live, "Streams commits and unfinished text as server-sent events.";
        POST "/apps/{app}/sessions/{session}/messages", Act, "send", runs::send, "Accepts a message, and starts a run.";
        DELETE "/apps/{app}/sessions/{session}/messages/{message}", Act, "withdraw", runs::withdraw, "Withdraws a message that was not taken yet.";
        POST "/apps/{app}/sessions/{session}/run", Act, "run", runs::run, "Accepts a message, and waits for the result of its run.";
        POST "/apps/{app}/sessions/{session}/decisions", Act, "decide", runs::decide, "Decides about requests, in one commit, and continues the run.";
        POST "/apps/{app}/sessions/{session}/complete", Act, "complete", runs::complete, "Delivers the outcome of a call that came later, under its token.";
        POST "/apps/{app}/sessions/{session}/resume", Act, "resume", runs::resume, "Continues a run that was interrupted or failed.";
        POST "/apps/{app}/sessions/{session}/abandon", Act, "abandon", runs::abandon, "Ends a run that waits, was interrupted or failed.";
        POST "/apps/{app}/sessions/{session}/cancel", Act, "cancel", runs::cancel, "Cancels the run, in any process.";
    };
    #[cfg(feature = "eval")]
    operations.extend(operations! {
        POST "/apps/{app}/cases", Act, "add_cases", experiments::add_cases, "Adds turns of stored sessions to a data set: of the principal, or of another user for an administrator.";
        DELETE "/apps/{app}/data-sets/{data_set}", Act, "delete_data_set", experiments::delete_data_set, "Deletes a data set. Reports of its experiments stay; one that is under way keeps it.";
        GET "/apps/{app}/experiments", Read, "list_experiments", experiments::list, "Lists the data sets and experiments of the principal.";
        POST "/apps/{app}/experiments", Act, "run_experiment", experiments::run, "Accepts an experiment, which confronts the agent, or a changed one, with a data set. It is run in the background, and continues after a restart.";
        GET "/apps/{app}/experiments/{experiment}", Read, "read_experiment", experiments::read, "Reads an experiment with its results so far, and compares them with those of another one.";
        DELETE "/apps/{app}/experiments/{experiment}", Act, "delete_experiment", experiments::delete, "Deletes an experiment. One that waits or runs is cancelled.";
    });
    for operation in &mut operations {
        operation.takes_key =
            matches!(operation.id, "send" | "run" | "decide" | "edit_state" | "edit_results");
        operation.is_heavy = matches!(
            operation.id,
            "import"
                | "export"
                | "compare"
                | "replay"
                | "read_prompt_cache"
                | "check_upgrade"
                | "read_spend"
                | "search"
                | "add_cases"
                | "list_experiments"
                | "read_experiment"
        );
        operation.is_whole = operation.is_heavy || operation.id == "read_model_step";
    }
    operations
}
