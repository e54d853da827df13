//! The rows of the specification of scopes and sessions, each with the cases of the exam that show it.
//!
//! Further rows are tests of the stores' own crate. A row whose case is renamed or dropped fails here.

use std::collections::BTreeSet;

use stepfold_exam::StoreExam;
use stepfold_session_scopes::MemoryStore;

const ROWS: &[(&str, &[&str])] = &[
    ("prefixes", &["create_splits_the_initial_state_by_scope"]),
    (
        "create",
        &[
            "create_splits_the_initial_state_by_scope",
            "create_sends_shared_values_through_their_handlers",
            "create_makes_an_id_when_there_is_none",
            "create_stores_the_defaults_of_the_day",
        ],
    ),
    ("create with an id in use", &["create_with_an_id_in_use_changes_nothing"]),
    ("read", &["shared_values_are_always_the_current_ones"]),
    ("append", &["an_append_writes_all_scopes", "an_append_is_made_whole_or_not_at_all"]),
    ("temp:", &["temp_is_never_stored"]),
    (
        "addressing",
        &[
            "one_id_is_another_session_for_each_user_and_app",
            "a_known_id_opens_nothing_of_another_tenant",
            "ids_are_names_and_nothing_else",
        ],
    ),
    ("order of events", &["get_gives_the_events_that_are_asked_for"]),
    ("stale writer", &["a_stale_writer_gets_a_conflict", "of_sixteen_stale_appends_one_is_accepted"]),
    (
        "repeated append",
        &[
            "a_repeated_append_gives_the_first_receipt",
            "an_event_id_with_other_content_is_an_error",
            "of_sixteen_repeats_one_is_made",
            "a_write_with_an_idempotency_key_is_made_once",
        ],
    ),
    ("counters", &["parallel_writers_lose_nothing", "every_handler_does_what_it_does_in_a_state"]),
    ("delete a key", &["removals_remove_and_null_is_a_value"]),
    ("keys", &["keys_are_checked_in_deltas", "a_scope_takes_its_own_keys_only"]),
    (
        "rewind",
        &[
            "a_rewind_brings_back_every_version",
            "a_rewind_leaves_app_and_user_alone",
            "a_rewind_hides_what_was_said_and_erases_nothing",
            "a_rewind_can_be_rewound",
            "a_rewind_is_repeated_and_refused_as_an_append",
        ],
    ),
    ("erase a user", &["delete_erases_the_user_when_asked"]),
    ("list", &["lists_are_paged_newest_first", "lists_give_metadata_unless_asked_for_more"]),
    ("get last n", &["get_gives_the_events_that_are_asked_for", "get_without_state_gives_none"]),
    ("long histories, many keys", &["long_lists_grow_and_shrink"]),
    ("consistent read", &["state_and_events_are_of_one_version"]),
    (
        "strings",
        &[
            "nul_and_any_unicode_survive",
            "a_value_of_a_mebibyte_survives",
            "deep_values_survive_up_to_the_limit",
        ],
    ),
    ("streamed reply", &["everything_on_an_event_survives"]),
    ("everything on an event", &["everything_on_an_event_survives", "numbers_survive_exactly"]),
    (
        "fork",
        &[
            "a_fork_begins_with_every_version",
            "forks_and_their_origin_go_their_own_ways",
            "a_fork_of_a_fork_can_go_back_to_the_beginning",
            "a_fork_outlives_its_origin",
        ],
    ),
    (
        "retention",
        &[
            "retention_deletes_events_and_keeps_the_state",
            "retention_by_time",
            "retention_of_one_session_leaves_its_forks_whole",
        ],
    ),
    (
        "another schema",
        &[
            "compatible_changes_load",
            "incompatible_changes_are_an_error_that_names_both_types",
            "registered_migrations_run",
            "a_key_that_is_declared_no_more_stays_in_the_store",
        ],
    ),
    ("scopes without a session", &["scopes_are_read_and_written_without_a_session"]),
];

#[tokio::test]
async fn every_row_is_shown_by_a_case_that_passes() {
    let passed = StoreExam::new("rows", async || Ok(MemoryStore::new())).run().await.passed().unwrap();
    let passed: BTreeSet<&str> = passed.into_iter().collect();
    for (row, cases) in ROWS {
        for case in *cases {
            assert!(passed.contains(case), "row \"{row}\" names {case}, which is no case");
        }
    }
}
