//! The checks of xtask, run over the real workspace: `cargo test` is the whole truth on a laptop.

mod architecture;
mod disallowed_methods;

use xtask::cli::TidyOptions;

#[test]
fn every_arrow_between_the_crates_points_down() {
    xtask::layers::run().unwrap();
}

#[test]
fn the_repository_is_tidy() {
    xtask::tidy::run(TidyOptions::default()).unwrap();
}

/// The check above would pass on an empty workspace as well.
#[test]
fn the_workspace_is_read_with_its_arrows_and_trees() {
    let metadata = xtask::workspace::metadata().unwrap();
    let workspace = xtask::layers::WorkspaceCrates::from_metadata(&metadata).unwrap();
    let find = |name| workspace.crates.iter().find(|krate| krate.package == name).unwrap();
    let loop_arrows = &find("stepfold-agent-loop").edges;
    assert!(loop_arrows.iter().any(|edge| edge.to == "stepfold-tools"));
    let tree = &find("stepfold-tools").tree;
    assert_eq!(tree["rpds"], ["stepfold-state-core", "rpds"]);
    assert!(!tree.contains_key("proptest"), "dev-dependencies are no part of the tree");
}
