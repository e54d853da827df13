//! `cargo xtask release`: the crates that are published, in an order in which they can be.
//!
//! A dry run: nothing is uploaded, here or anywhere in xtask. Development dependencies count as well: a crate
//! can be published only when all that it names with a version is.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::Metadata;

use crate::Error;
use crate::cli::ReleaseOptions;
use crate::console::say;
use crate::process::Call;
use crate::workspace;

/// Says the order, and packages the crates.
///
/// # Errors
/// When no order is possible, or a crate cannot be packaged.
pub fn run(options: ReleaseOptions) -> Result<(), Error> {
    let metadata = workspace::metadata()?;
    let order = order(&crates(&metadata))?;
    for (place, name) in order.iter().enumerate() {
        say(format_args!("{:>2}. {name}", place + 1));
    }
    if options.order {
        return Ok(());
    }
    let call = package(&order, options.verify);
    say(format_args!("   {call}"));
    call.run(metadata.workspace_root.as_std_path())?;
    say("packaged; nothing was uploaded");
    Ok(())
}

/// Each crate that is published, with those of ours that it needs first.
fn crates(metadata: &Metadata) -> BTreeMap<String, BTreeSet<String>> {
    let packages = metadata.workspace_packages();
    let published =
        packages.iter().filter(|package| package.publish.as_ref().is_none_or(|to| !to.is_empty()));
    let needs = |package: &cargo_metadata::Package| {
        // One without a version is left out of what is published.
        let ours = package
            .dependencies
            .iter()
            .filter(|needed| needed.path.is_some() && needed.req.to_string() != "*");
        ours.map(|needed| needed.name.clone()).collect()
    };
    published.map(|package| (package.name.to_string(), needs(package))).collect()
}

/// Every crate after those that it needs; of those that could be next, the first by name.
fn order(crates: &BTreeMap<String, BTreeSet<String>>) -> Result<Vec<String>, Error> {
    let mut order: Vec<String> = Vec::new();
    while order.len() < crates.len() {
        let is_ready = |needs: &BTreeSet<String>| needs.iter().all(|needed| order.contains(needed));
        let next = crates.iter().find(|(name, needs)| !order.contains(name) && is_ready(needs));
        let Some((name, _)) = next else {
            let stuck = crates.keys().filter(|name| !order.contains(name)).cloned().collect::<Vec<_>>();
            return Err(Error::NoOrder { crates: stuck.join(", ") });
        };
        order.push(name.clone());
    }
    Ok(order)
}

/// Packages them together, so that each finds the others though none is published.
fn package(order: &[String], verify: bool) -> Call {
    let mut arguments = vec!["package", "--allow-dirty"];
    if !verify {
        arguments.push("--no-verify");
    }
    arguments.extend(order.iter().flat_map(|name| ["--package", name.as_str()]));
    Call::cargo(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(crates: &[(&str, &[&str])], expected: &str) {
        let crates = crates.iter().map(|(name, needs)| {
            ((*name).to_owned(), needs.iter().map(|needed| (*needed).to_owned()).collect())
        });
        let found = match order(&crates.collect()) {
            Ok(order) => order.join(" "),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_needed_comes_first() {
        check(&[("a", &["c"]), ("b", &[]), ("c", &["b"])], "b c a");
        check(&[], "");
    }

    #[test]
    fn no_order_is_an_error_that_names_the_crates() {
        let expected =
            "there is no order in which these can be published, each needs another one first: a, c";
        check(&[("a", &["c"]), ("b", &[]), ("c", &["a"])], expected);
        // One that is not published can never be there.
        check(&[("a", &["examples"])], &expected.replace("a, c", "a"));
    }

    #[test]
    fn this_workspace_can_be_published() {
        let order = order(&crates(&workspace::metadata().unwrap())).unwrap();
        let place = |name: &str| order.iter().position(|other| other == name);
        assert!(place("stepfold-state-core") < place("stepfold-runner"));
        assert!(place("stepfold-runner") < place("stepfold"));
        assert_eq!((place("xtask"), place("stepfold-examples")), (None, None));
    }

    /// The job of CI, the page of promises and the manifests name the same one.
    #[test]
    fn the_oldest_rust_is_one() {
        let metadata = workspace::metadata().unwrap();
        let read = |path: &str| {
            let path = metadata.workspace_root.as_std_path().join(path);
            workspace::read_text(path).unwrap().unwrap()
        };
        for package in metadata.workspace_packages() {
            let oldest = package.rust_version.as_ref().expect("the workspace has one for all");
            let oldest = format!("{}.{}", oldest.major, oldest.minor);
            assert!(read(".github/workflows/ci.yml").contains(&format!("rust-toolchain@{oldest}\n")));
            assert!(read("docs/stability.md").contains(&format!("| the oldest Rust | {oldest};")));
        }
    }

    #[test]
    fn all_are_packaged_at_once() {
        let call = package(&["b".to_owned(), "a".to_owned()], false).to_string();
        assert_eq!(call, "cargo package --allow-dirty --no-verify --package b --package a");
    }
}
