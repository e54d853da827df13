//! The crates of the workspace with their dependencies, read from `cargo metadata`.
//!
//! Features are resolved once for the whole workspace with every feature on, as `cargo metadata` does it.
//! A library feature that one crate turns on is therefore seen in the tree of every crate that has that
//! library: the check errs on the strict side, and so does a build of the workspace.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use cargo_metadata::{DependencyKind, Metadata, Node, NodeDep, Package, PackageId};

use crate::Error;
use crate::workspace::{package_names, relative};

/// The crates of the workspace.
#[derive(Clone, Debug, Default)]
pub struct WorkspaceCrates {
    /// In the order of cargo.
    pub crates: Vec<Crate>,
}

/// One crate of the workspace.
#[derive(Clone, Debug, Default)]
pub struct Crate {
    /// The package's name.
    pub package: String,
    /// Its folder, from the root of the workspace.
    pub folder: String,
    /// Its dependencies on other crates of the workspace.
    pub edges: Vec<Edge>,
    /// Everything that is built with it as a normal dependency, with the shortest path to it: the names
    /// from a direct dependency to the library itself.
    pub tree: BTreeMap<String, Vec<String>>,
}

/// A dependency on another crate of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The package that is used.
    pub to: String,
    /// The kind of dependency.
    pub kind: EdgeKind,
    /// True if it needs a feature.
    pub optional: bool,
}

/// The kind of a dependency: for the library, its build, or its tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    /// In the crate itself.
    Normal,
    /// In its build script.
    Build,
    /// In its tests, benches and examples.
    Dev,
}

impl WorkspaceCrates {
    /// Reads the output of `cargo metadata`.
    ///
    /// # Errors
    /// When the metadata was asked for without its resolved graph.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        let graph = Graph::new(metadata)?;
        let ours = package_names(metadata);
        let packages = metadata.workspace_packages().into_iter();
        let crates = packages.map(|package| Crate {
            package: package.name.to_string(),
            folder: folder(metadata, package),
            edges: edges(package, &ours),
            tree: graph.normal_tree(&package.id),
        });
        Ok(WorkspaceCrates { crates: crates.collect() })
    }
}

fn folder(metadata: &Metadata, package: &Package) -> String {
    let manifest = package.manifest_path.as_std_path();
    let folder = manifest.parent().unwrap_or(manifest);
    relative(metadata.workspace_root.as_std_path(), folder)
}

fn edges(package: &Package, ours: &BTreeSet<String>) -> Vec<Edge> {
    let of_ours = package
        .dependencies
        .iter()
        .filter(|dependency| ours.contains(&dependency.name) && *dependency.name != *package.name);
    of_ours
        .map(|dependency| Edge {
            to: dependency.name.clone(),
            kind: edge_kind(dependency.kind),
            optional: dependency.optional,
        })
        .collect()
}

fn edge_kind(kind: DependencyKind) -> EdgeKind {
    match kind {
        DependencyKind::Build => EdgeKind::Build,
        DependencyKind::Development => EdgeKind::Dev,
        _ => EdgeKind::Normal,
    }
}

/// The resolved dependency graph.
struct Graph<'m> {
    names: HashMap<&'m PackageId, &'m str>,
    nodes: HashMap<&'m PackageId, &'m Node>,
}

impl<'m> Graph<'m> {
    fn new(metadata: &'m Metadata) -> Result<Self, Error> {
        let resolve = metadata.resolve.as_ref().ok_or(Error::NoResolve)?;
        let packages = metadata.packages.iter();
        Ok(Graph {
            names: packages.map(|package| (&package.id, package.name.as_str())).collect(),
            nodes: resolve.nodes.iter().map(|node| (&node.id, node)).collect(),
        })
    }

    /// Everything below `root`, breadth first, so that the path kept for each is a shortest one.
    fn normal_tree(&self, root: &'m PackageId) -> BTreeMap<String, Vec<String>> {
        let mut tree = BTreeMap::new();
        let mut seen = BTreeSet::from([root]);
        let mut queue = VecDeque::from([(root, Vec::new())]);
        while let Some((id, path)) = queue.pop_front() {
            for used in self.normal_dependencies(id) {
                if seen.insert(used) {
                    let name = self.names.get(used).copied().unwrap_or(&used.repr);
                    let mut path: Vec<String> = path.clone();
                    path.push(name.to_owned());
                    tree.entry(name.to_owned()).or_insert(path.clone());
                    queue.push_back((used, path));
                }
            }
        }
        tree
    }

    fn normal_dependencies(&self, id: &PackageId) -> impl Iterator<Item = &'m PackageId> + use<'m> {
        let node = self.nodes.get(id).copied();
        let dependencies = node.map_or(&[][..], |node| &node.deps);
        let normal = dependencies.iter().filter(|used| is_normal(used));
        normal.map(|used| &used.pkg)
    }
}

fn is_normal(dependency: &NodeDep) -> bool {
    let mut kinds = dependency.dep_kinds.iter();
    kinds.any(|info| info.kind == DependencyKind::Normal)
}
