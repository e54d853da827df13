//! The comparison of what is there with what may be: pure, so that tests can feed it violations.

use super::crates::{Crate, Edge, EdgeKind, WorkspaceCrates};
use super::rules::{FENCES, Fence, Layer, Reach, Row, layer};

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A crate that no rule speaks of.
    #[error(
        "{folder}: package `{package}` is in no layer; add it to xtask/src/layers/rules.rs and ARCHITECTURE.md"
    )]
    UnknownCrate {
        /// The package.
        package: String,
        /// The folder of the package.
        folder: String,
    },
    /// Folder and package do not go together.
    #[error("{folder}: package `{package}` belongs in {expected}: folder crates/x holds package stepfold-x")]
    WrongFolder {
        /// The package.
        package: String,
        /// The folder of the package.
        folder: String,
        /// The expected folder.
        expected: &'static str,
    },
    /// An arrow that the table does not have.
    #[error("`{from}` -> `{to}` ({kind}): {rule}; `{from}` may use: {allowed}")]
    ForbiddenEdge {
        /// The dependent crate.
        from: String,
        /// The dependency.
        to: String,
        /// In which section of the manifest.
        kind: &'static str,
        /// The rule that is broken.
        rule: &'static str,
        /// The allowed dependencies.
        allowed: String,
    },
    /// A library on the wrong side of a fence.
    #[error("`{package}` has `{library}` by way of {path}: {reason}; allowed in: {allowed}")]
    FencedLibrary {
        /// The crate of ours.
        package: String,
        /// The library.
        library: &'static str,
        /// The path of dependencies to the library.
        path: String,
        /// The reason for the rule.
        reason: &'static str,
        /// The crates that may have it.
        allowed: String,
    },
}

/// Every rule that the workspace breaks.
pub fn check(workspace: &WorkspaceCrates) -> Vec<Violation> {
    workspace.crates.iter().flat_map(check_crate).collect()
}

fn check_crate(krate: &Crate) -> Vec<Violation> {
    let Some(layer) = layer(&krate.package) else {
        return vec![Violation::UnknownCrate {
            package: krate.package.clone(),
            folder: krate.folder.clone(),
        }];
    };
    let mut violations = Vec::new();
    violations.extend(check_folder(krate, layer));
    violations.extend(krate.edges.iter().filter_map(|edge| check_edge(layer, edge)));
    violations.extend(FENCES.iter().flat_map(|fence| check_fence(krate, fence)));
    violations
}

fn check_folder(krate: &Crate, layer: &Layer) -> Option<Violation> {
    (krate.folder != layer.folder).then(|| Violation::WrongFolder {
        package: krate.package.clone(),
        folder: krate.folder.clone(),
        expected: layer.folder,
    })
}

fn check_edge(from: &Layer, edge: &Edge) -> Option<Violation> {
    let rule = match edge.kind {
        EdgeKind::Normal | EdgeKind::Build => broken_by_use(from, edge),
        // Programs see only the facade, in their tests as well.
        EdgeKind::Dev if from.row == Row::Programs => broken_by_use(from, edge),
        EdgeKind::Dev => broken_by_test(from, edge),
    };
    rule.map(|rule| Violation::ForbiddenEdge {
        from: from.package.to_owned(),
        to: edge.to.clone(),
        kind: section(edge.kind),
        rule,
        allowed: allowed(from),
    })
}

fn broken_by_use(from: &Layer, edge: &Edge) -> Option<&'static str> {
    let to = edge.to.as_str();
    if from.may_use.contains(&to) || (from.by_feature.contains(&to) && edge.optional) {
        None
    } else if from.by_feature.contains(&to) {
        Some("it must be optional, turned on by a feature")
    } else if from.row == Row::Programs {
        Some("programs use only the facade")
    } else {
        Some("each crate uses only the layers below it that the table names")
    }
}

fn broken_by_test(from: &Layer, edge: &Edge) -> Option<&'static str> {
    let is_below = layer(&edge.to).is_some_and(|to| to.row < from.row);
    (!is_below).then_some("tests too may use only crates of lower floors")
}

fn section(kind: EdgeKind) -> &'static str {
    match kind {
        EdgeKind::Normal => "dependencies",
        EdgeKind::Build => "build-dependencies",
        EdgeKind::Dev => "dev-dependencies",
    }
}

fn allowed(layer: &Layer) -> String {
    let allowed: Vec<&str> = layer.may_use.iter().chain(layer.by_feature).copied().collect();
    match allowed.len() {
        0 => "nothing of ours".to_owned(),
        _ => allowed.join(", "),
    }
}

fn check_fence(krate: &Crate, fence: &Fence) -> Vec<Violation> {
    if fence.allowed.contains(&krate.package.as_str()) {
        return Vec::new();
    }
    let found = fence.libraries.iter().filter_map(|&library| {
        let path = krate.tree.get(library)?;
        let is_in_reach = fence.reach == Reach::Tree || path.len() == 1;
        // One mistake, one line: a crate of ours below that may not have it either reports it itself.
        let below = path.first().and_then(|first| layer(first));
        let is_reported_below = below.is_some_and(|below| !fence.allowed.contains(&below.package));
        (is_in_reach && !is_reported_below).then(|| Violation::FencedLibrary {
            package: krate.package.clone(),
            library,
            path: path.join(" -> "),
            reason: fence.reason,
            allowed: fence.allowed.join(", "),
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::{Crate, Edge, EdgeKind, Row, WorkspaceCrates, check, layer};
    use crate::layers::rules::LAYERS;

    /// A crate in its proper folder, with these edges and these paths to libraries.
    fn krate(package: &str, edges: &[(&str, EdgeKind)], paths: &[&[&str]]) -> Crate {
        let edge = |&(to, kind): &(&str, EdgeKind)| Edge { to: to.to_owned(), kind, optional: false };
        let owned = |path: &[&str]| path.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        Crate {
            package: package.to_owned(),
            folder: layer(package).map_or("crates/new", |layer| layer.folder).to_owned(),
            edges: edges.iter().map(edge).collect(),
            tree: paths.iter().map(|path| (path[path.len() - 1].to_owned(), owned(path))).collect(),
        }
    }

    fn expect_violations(krate: Crate, expected: &Expect) {
        let workspace = WorkspaceCrates { crates: vec![krate] };
        let lines = check(&workspace).into_iter().map(|violation| format!("{violation}\n"));
        expected.assert_eq(&lines.collect::<String>());
    }

    fn expect_clean(krate: Crate) {
        expect_violations(krate, &expect![""]);
    }

    #[test]
    fn arrows_of_the_table_pass() {
        use EdgeKind::{Build, Dev, Normal};
        expect_clean(krate("stepfold-tools", &[("stepfold-state-core", Normal)], &[]));
        expect_clean(krate("stepfold-tools", &[("stepfold-tools-macros", Build)], &[]));
        // Tests of the loop script the model, which is on a lower row.
        expect_clean(krate("stepfold-agent-loop", &[("stepfold-providers", Dev)], &[]));
        expect_clean(krate("stepfold-cli", &[("stepfold", Normal)], &[]));
    }

    #[test]
    fn an_arrow_upwards_is_named_with_what_is_allowed() {
        expect_violations(
            krate("stepfold-tools", &[("stepfold-runner", EdgeKind::Normal)], &[]),
            &expect![[r"
                `stepfold-tools` -> `stepfold-runner` (dependencies): each crate uses only the layers below it that the table names; `stepfold-tools` may use: stepfold-state-core, stepfold-tools-macros
            "]],
        );
    }

    #[test]
    fn an_arrow_sideways_in_a_build_script_is_refused() {
        expect_violations(
            krate("stepfold-agent-loop", &[("stepfold-session-scopes", EdgeKind::Build)], &[]),
            &expect![[r#"
                `stepfold-agent-loop` -> `stepfold-session-scopes` (build-dependencies): each crate uses only the layers below it that the table names; `stepfold-agent-loop` may use: stepfold-state-core, stepfold-tools, stepfold-trim
            "#]],
        );
    }

    #[test]
    fn tests_may_not_look_up_or_sideways() {
        expect_violations(
            krate(
                "stepfold-session-scopes",
                &[("stepfold-runner", EdgeKind::Dev), ("stepfold-tools", EdgeKind::Dev)],
                &[],
            ),
            &expect![[r"
                `stepfold-session-scopes` -> `stepfold-runner` (dev-dependencies): tests too may use only crates of lower floors; `stepfold-session-scopes` may use: stepfold-state-core
                `stepfold-session-scopes` -> `stepfold-tools` (dev-dependencies): tests too may use only crates of lower floors; `stepfold-session-scopes` may use: stepfold-state-core
            "]],
        );
    }

    /// A crate's tests never use the exam of its own row or of a lower one: cargo would allow such a cycle.
    #[test]
    fn tests_below_the_exam_do_not_use_it() {
        let exam = |from| krate(from, &[("stepfold-exam", EdgeKind::Dev)], &[]);
        for below in LAYERS.iter().filter(|layer| layer.row < Row::Exams) {
            let workspace = WorkspaceCrates { crates: vec![exam(below.package)] };
            assert_eq!(check(&workspace).len(), 1, "{}", below.package);
        }
        expect_clean(exam("stepfold-restate"));
    }

    #[test]
    fn programs_see_only_the_facade_in_tests_too() {
        expect_violations(
            krate(
                "stepfold-cli",
                &[("stepfold-runner", EdgeKind::Normal), ("stepfold-state-core", EdgeKind::Dev)],
                &[],
            ),
            &expect![[r"
                `stepfold-cli` -> `stepfold-runner` (dependencies): programs use only the facade; `stepfold-cli` may use: stepfold
                `stepfold-cli` -> `stepfold-state-core` (dev-dependencies): programs use only the facade; `stepfold-cli` may use: stepfold
            "]],
        );
    }

    #[test]
    fn the_facade_takes_providers_only_by_feature() {
        let mut facade = krate("stepfold", &[("stepfold-providers", EdgeKind::Normal)], &[]);
        expect_violations(
            facade.clone(),
            &expect![[r#"
                `stepfold` -> `stepfold-providers` (dependencies): it must be optional, turned on by a feature; `stepfold` may use: stepfold-state-core, stepfold-tools, stepfold-trim, stepfold-session-scopes, stepfold-agent-loop, stepfold-graph, stepfold-runner, stepfold-providers, stepfold-mcp, stepfold-otel, stepfold-eval, stepfold-exam, stepfold-restate, stepfold-server, stepfold-terminal
            "#]],
        );
        facade.edges[0].optional = true;
        expect_clean(facade);
    }

    #[test]
    fn a_crate_that_no_rule_knows_is_refused() {
        expect_violations(
            krate("stepfold-new", &[], &[]),
            &expect![[r"
                crates/new: package `stepfold-new` is in no layer; add it to xtask/src/layers/rules.rs and ARCHITECTURE.md
            "]],
        );
    }

    #[test]
    fn a_package_in_another_folder_is_refused() {
        let mut tools = krate("stepfold-tools", &[], &[]);
        tools.folder = "crates/toolbox".to_owned();
        expect_violations(
            tools,
            &expect![[r"
                crates/toolbox: package `stepfold-tools` belongs in crates/tools: folder crates/x holds package stepfold-x
            "]],
        );
    }

    #[test]
    fn the_foot_has_no_runtime_however_deep() {
        expect_violations(
            krate("stepfold-state-core", &[], &[&["jsonschema", "reqwest", "tokio"]]),
            &expect![[r#"
                `stepfold-state-core` has `tokio` by way of jsonschema -> reqwest -> tokio: state-core never waits and starts no threads; allowed in: stepfold-tools, stepfold-session-scopes, stepfold-providers, stepfold-otel, stepfold-agent-loop, stepfold-graph, stepfold-mcp, stepfold-runner, stepfold-exam, stepfold-eval, stepfold-restate, stepfold-server, stepfold-terminal, stepfold, stepfold-cli, stepfold-examples
            "#]],
        );
        expect_clean(krate("stepfold-tools", &[], &[&["tokio"], &["rayon"]]));
    }

    #[test]
    fn http_stays_in_providers() {
        expect_violations(
            krate("stepfold-runner", &[], &[&["reqwest"]]),
            &expect![[r#"
                `stepfold-runner` has `reqwest` by way of reqwest: only providers, clients of MCP servers, hosts and exporters of spans talk to the network; allowed in: stepfold-providers, stepfold-otel, stepfold-mcp, stepfold-restate, stepfold-server, stepfold, stepfold-cli, stepfold-examples
            "#]],
        );
        expect_clean(krate("stepfold-providers", &[], &[&["async-openai"], &["async-openai", "reqwest"]]));
    }

    #[test]
    fn sql_stays_in_session_scopes() {
        expect_violations(
            krate("stepfold-providers", &[], &[&["cache", "rusqlite"]]),
            &expect![[r#"
                `stepfold-providers` has `rusqlite` by way of cache -> rusqlite: only session stores talk to databases; allowed in: stepfold-session-scopes, stepfold-runner, stepfold-exam, stepfold-eval, stepfold-restate, stepfold-server, stepfold-terminal, stepfold, stepfold-cli, stepfold-examples
            "#]],
        );
        expect_clean(krate("stepfold-runner", &[], &[&["stepfold-session-scopes", "rusqlite"]]));
    }

    #[test]
    fn a_fenced_library_is_reported_where_it_comes_in() {
        expect_clean(krate("stepfold-runner", &[], &[&["stepfold-agent-loop", "reqwest"]]));
        expect_violations(
            krate("stepfold-agent-loop", &[], &[&["stepfold-providers", "reqwest"]]),
            &expect![[r#"
                `stepfold-agent-loop` has `reqwest` by way of stepfold-providers -> reqwest: only providers, clients of MCP servers, hosts and exporters of spans talk to the network; allowed in: stepfold-providers, stepfold-otel, stepfold-mcp, stepfold-restate, stepfold-server, stepfold, stepfold-cli, stepfold-examples
            "#]],
        );
    }

    #[test]
    fn libraries_do_not_name_anyhow_or_a_subscriber() {
        expect_violations(
            krate("stepfold-tools", &[], &[&["anyhow"], &["tracing-subscriber"]]),
            &expect![[r#"
                `stepfold-tools` has `anyhow` by way of anyhow: a library's errors are types that its callers can match on; allowed in: stepfold-cli, stepfold-examples, xtask
                `stepfold-tools` has `tracing-subscriber` by way of tracing-subscriber: where traces go is for the program to say, not for a library; allowed in: stepfold-otel, stepfold, stepfold-cli, stepfold-examples, xtask
            "#]],
        );
        // What a library does inside is its own affair.
        expect_clean(krate("stepfold-tools", &[], &[&["prost", "anyhow"]]));
        expect_clean(krate("stepfold-cli", &[], &[&["anyhow"]]));
    }
}
