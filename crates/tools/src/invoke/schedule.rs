//! Which calls of a reply wait for which: a pure function of what their tools read and write.
//!
//! A call waits for the other calls of the reply that write a key that it reads, wherever the model wrote
//! them, and two calls that write one key of which one replaces its value keep their order. All others run
//! together. Calls that wait for each other keep the order of the reply. (As Haystack 3.4 does it;
//! semantics.md, section 2.)

use std::collections::{BTreeSet, HashMap, HashSet};

use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};

/// What one call reads and writes.
#[derive(Clone, Debug, Default)]
pub(super) struct CallAccess<'a> {
    pub(super) reads: Vec<&'a str>,
    /// Each key with whether the write replaces what is there.
    pub(super) writes: Vec<(&'a str, bool)>,
}

/// The calls that are ready, and those that still wait.
#[derive(Debug)]
pub(super) struct Schedule {
    /// For each call, the calls that it waits for, without those that these wait for anyway.
    waits_for: Vec<Vec<usize>>,
    /// The same the other way round.
    awaited_by: Vec<Vec<usize>>,
    /// How many calls each call still waits for.
    unfinished: Vec<usize>,
    /// Calls that wait for nothing and are not started.
    ready: BTreeSet<usize>,
    started: Vec<bool>,
    /// Calls that ended before.
    skipped: Vec<bool>,
}

impl Schedule {
    pub(super) fn new(calls: &[CallAccess<'_>]) -> Self {
        let waits_for = dependencies(calls);
        let mut awaited_by = vec![Vec::new(); calls.len()];
        for (call, earlier_calls) in waits_for.iter().enumerate() {
            for earlier in earlier_calls {
                awaited_by[*earlier].push(call);
            }
        }
        let unfinished: Vec<usize> = waits_for.iter().map(Vec::len).collect();
        let ready = (0..calls.len()).filter(|call| unfinished[*call] == 0).collect();
        let nothing = vec![false; calls.len()];
        Schedule { waits_for, awaited_by, unfinished, ready, started: nothing.clone(), skipped: nothing }
    }

    /// The calls whose writes the call sees, in call order: those that it waits for, directly or through
    /// others.
    pub(super) fn behind(&self, call: usize) -> BTreeSet<usize> {
        let mut behind = BTreeSet::new();
        let mut open = vec![call];
        while let Some(call) = open.pop() {
            open.extend(self.waits_for[call].iter().copied().filter(|earlier| behind.insert(*earlier)));
        }
        behind
    }

    /// Up to `limit` calls that wait for nothing any more, in call order. They count as started then.
    pub(super) fn take_ready(&mut self, limit: usize) -> Vec<usize> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(call) = self.ready.pop_first()
        {
            self.started[call] = true;
            taken.push(call);
        }
        taken
    }

    /// All calls that were not started. They count as started then.
    pub(super) fn take_rest(&mut self) -> Vec<usize> {
        let rest = (0..self.started.len()).filter(|call| !self.started[*call]).collect();
        self.started.fill(true);
        self.ready.clear();
        rest
    }

    /// A call that ended before: it counts as started, and as finished once those that it waits for are. It may
    /// have been answered without them, and others wait for these through it.
    pub(super) fn skip(&mut self, call: usize) {
        self.started[call] = true;
        self.skipped[call] = true;
        if self.ready.remove(&call) {
            self.finish(call);
        }
    }

    /// To be told once of each call that ended.
    pub(super) fn finish(&mut self, call: usize) {
        let mut finished = vec![call];
        while let Some(call) = finished.pop() {
            for later in &self.awaited_by[call] {
                self.unfinished[*later] -= 1;
                match self.unfinished[*later] {
                    0 if self.skipped[*later] => finished.push(*later),
                    0 if !self.started[*later] => drop(self.ready.insert(*later)),
                    _ => {}
                }
            }
        }
    }
}

/// The writers of one key that a call behind them may have to wait for. Whoever waits for a replacing one waits
/// for all before it, too.
#[derive(Default)]
struct Writers {
    last_replacing: Option<usize>,
    merging_since: Vec<usize>,
}

fn dependencies(calls: &[CallAccess<'_>]) -> Vec<Vec<usize>> {
    let mut writers: HashMap<&str, Writers> = HashMap::new();
    let mut waits_for = vec![Vec::new(); calls.len()];
    for index in order(calls) {
        let call = &calls[index];
        let mut earlier = BTreeSet::new();
        let reads = call.reads.iter().map(|key| (*key, true));
        for (key, waits_for_merging) in reads.chain(call.writes.iter().copied()) {
            let Some(writers) = writers.get(key) else { continue };
            earlier.extend(writers.last_replacing);
            if waits_for_merging {
                earlier.extend(&writers.merging_since);
            }
        }
        for (key, replaces) in &call.writes {
            let writers = writers.entry(key).or_default();
            if *replaces {
                *writers = Writers { last_replacing: Some(index), merging_since: Vec::new() };
            } else {
                writers.merging_since.push(index);
            }
        }
        waits_for[index] = earlier.into_iter().collect();
    }
    waits_for
}

/// The calls such that readers come behind the writers of what they read: the order of the reply, unless
/// it has a reader before its writer.
fn order(calls: &[CallAccess<'_>]) -> Vec<usize> {
    let in_reply = (0..calls.len()).collect();
    if !has_reader_before_writer(calls) {
        return in_reply;
    }
    let graph = waiting(calls);
    let mut group_of = vec![0; graph.node_count()];
    let groups = tarjan_scc(&graph);
    for (group, members) in groups.iter().enumerate() {
        for node in members {
            group_of[node.index()] = group;
        }
    }
    let awaited: Vec<HashSet<usize>> = (groups.iter().enumerate())
        .map(|(group, members)| {
            let nodes = members.iter().flat_map(|node| graph.neighbors(*node));
            nodes.map(|node| group_of[node.index()]).filter(|other| *other != group).collect()
        })
        .collect();
    let mut is_done = vec![false; groups.len()];
    let mut open: Vec<usize> = in_reply;
    let mut order = Vec::with_capacity(calls.len());
    while !open.is_empty() {
        // Nodes of keys alone are no calls: they are done when all that they wait for is.
        for group in 0..groups.len() {
            let is_key = groups[group].iter().all(|node| node.index() >= calls.len());
            is_done[group] |= is_key && awaited[group].iter().all(|other| is_done[*other]);
        }
        // What waits for each other is one group, so that some group can always go next.
        let free = |call: &&usize| awaited[group_of[**call]].iter().all(|other| is_done[*other]);
        let Some(group) = open.iter().find(free).map(|call| group_of[*call]) else { break };
        is_done[group] = true;
        order.extend(open.extract_if(.., |call| group_of[*call] == group));
    }
    order
}

fn has_reader_before_writer(calls: &[CallAccess<'_>]) -> bool {
    let mut written_later = HashSet::new();
    calls.iter().rev().any(|call| {
        let reads_one = call.reads.iter().any(|key| written_later.contains(key));
        written_later.extend(call.writes.iter().map(|(key, _)| *key));
        reads_one
    })
}

/// Edges from each call to what it waits for. Readers wait for a key, which waits for its writers: so the
/// edges are as many as the reads and writes, not as many as pairs.
fn waiting<'a>(calls: &[CallAccess<'a>]) -> DiGraph<(), ()> {
    let mut graph = DiGraph::new();
    let nodes: Vec<NodeIndex> = calls.iter().map(|_| graph.add_node(())).collect();
    let mut keys: HashMap<&'a str, NodeIndex> = HashMap::new();
    let mut last_replacing: HashMap<&'a str, NodeIndex> = HashMap::new();
    let mut writers: HashMap<&'a str, Vec<NodeIndex>> = HashMap::new();
    for (call, node) in calls.iter().zip(&nodes) {
        for key in &call.reads {
            let key = *keys.entry(key).or_insert_with(|| graph.add_node(()));
            graph.add_edge(*node, key, ());
        }
        for (key, replaces) in &call.writes {
            let key_node = *keys.entry(key).or_insert_with(|| graph.add_node(()));
            graph.add_edge(key_node, *node, ());
            let earlier = writers.entry(key).or_default();
            if *replaces {
                graph.extend_with_edges(earlier.drain(..).map(|earlier| (*node, earlier)));
                last_replacing.insert(key, *node);
            } else if let Some(replacing) = last_replacing.get(key) {
                graph.add_edge(*node, *replacing, ());
            }
            earlier.push(*node);
        }
    }
    graph
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls as `reads -> writes`, where `!` marks a replacing write; the expectation is what each waits for.
    fn check(calls: &[&str], expected: &[&[usize]]) {
        let calls: Vec<CallAccess<'_>> = calls
            .iter()
            .map(|call| {
                let (reads, writes) = call.split_once("->").unwrap();
                CallAccess {
                    reads: reads.split_whitespace().collect(),
                    writes: writes
                        .split_whitespace()
                        .map(|key| (key.trim_end_matches('!'), key.ends_with('!')))
                        .collect(),
                }
            })
            .collect();
        let schedule = Schedule::new(&calls);
        let behind: Vec<Vec<usize>> =
            (0..calls.len()).map(|call| schedule.behind(call).into_iter().collect()).collect();
        assert_eq!(behind, expected.iter().map(|set| set.to_vec()).collect::<Vec<_>>());
    }

    #[test]
    fn independent_calls_wait_for_nothing() {
        check(&["->", "a ->", "-> b", "a -> c!"], &[&[], &[], &[], &[]]);
    }

    #[test]
    fn a_reader_waits_for_all_writers() {
        check(&["documents ->", "-> documents", "documents ->"], &[&[1], &[], &[1]]);
        check(&["a ->", "b -> a", "-> b"], &[&[1, 2], &[2], &[]]);
    }

    #[test]
    fn calls_that_wait_for_each_other_keep_their_order() {
        check(&["a -> b", "b -> a"], &[&[], &[0]]);
        check(&["k ->", "k -> k!", "k -> k!"], &[&[1, 2], &[], &[1]]);
        check(&["k -> m", "k -> k", "k -> k", "m ->"], &[&[1, 2], &[], &[1], &[0, 1, 2]]);
    }

    #[test]
    fn replacing_writers_keep_their_order_beside_readers() {
        check(&["x -> k!", "-> k!", "-> x"], &[&[2], &[0, 2], &[]]);
    }

    #[test]
    fn merging_writers_run_together_and_replacing_ones_in_order() {
        check(&["-> list", "-> list", "-> list!", "-> list"], &[&[], &[], &[0, 1], &[0, 1, 2]]);
    }

    #[test]
    fn waiting_goes_through_others() {
        check(&["-> a", "a -> b", "b ->"], &[&[], &[0], &[0, 1]]);
    }

    #[test]
    fn a_call_does_not_wait_for_itself() {
        check(&["a -> a a!", "a -> a! a"], &[&[], &[0]]);
    }

    #[test]
    fn hands_out_ready_calls_within_the_limit() {
        let reader = CallAccess { reads: vec!["k"], writes: vec![] };
        let writer = CallAccess { reads: vec![], writes: vec![("k", false)] };
        let mut schedule = Schedule::new(&[writer, reader, CallAccess::default(), CallAccess::default()]);
        assert_eq!(schedule.take_ready(2), [0, 2]);
        assert_eq!(schedule.take_ready(2), [3]);
        assert!(schedule.take_ready(2).is_empty());
        schedule.finish(0);
        assert_eq!(schedule.take_ready(2), [1]);
        assert!(schedule.take_rest().is_empty());
    }

    #[test]
    fn others_are_waited_for_through_a_call_that_was_answered_without_them() {
        let reader = CallAccess { reads: vec!["k"], writes: vec![] };
        let writer = CallAccess { reads: vec![], writes: vec![("k", true)] };
        let mut schedule = Schedule::new(&[reader, writer.clone(), writer]);
        schedule.skip(2);
        assert_eq!(schedule.take_ready(9), [1]);
        schedule.finish(1);
        assert_eq!(schedule.take_ready(9), [0]);
    }

    #[test]
    fn what_was_given_up_is_not_handed_out() {
        let writer = CallAccess { reads: vec![], writes: vec![("k", true)] };
        let mut schedule = Schedule::new(&[writer.clone(), writer.clone(), writer]);
        assert_eq!(schedule.take_ready(9), [0]);
        assert_eq!(schedule.take_rest(), [1, 2]);
        for call in [1, 2, 0] {
            schedule.finish(call);
        }
        assert!(schedule.take_ready(9).is_empty());
    }

    #[test]
    fn hundreds_of_calls_in_a_row_are_cheap() {
        // With all dependencies written out, these were some 170 million.
        let writer = CallAccess { reads: vec!["k"], writes: vec![("k", true)] };
        let mut schedule = Schedule::new(&vec![writer; 1_000]);
        for call in 0..1_000 {
            assert_eq!(schedule.take_ready(64), [call]);
            assert_eq!(schedule.behind(call).len(), call);
            schedule.finish(call);
        }
    }
}
