//! Orders the calls of a reply: a pure function of the keys that their tools read and write.
//!
//! A call waits for the earlier calls of the reply that write a key that it reads, and two calls that write one key keep
//! their order if one of them replaces its value. All others run concurrently. No call waits for a later one, as a model
//! that asks for a value before it changes it expects. (Haystack 3.4 moves a reader after later writers.)

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

/// The keys that one call reads and writes.
#[derive(Clone, Debug, Default)]
pub(super) struct CallAccess<'a> {
    pub(super) reads: Vec<&'a str>,
    /// Each key, with whether the write replaces the value.
    pub(super) writes: Vec<(&'a str, bool)>,
}

/// The ready and the waiting calls.
#[derive(Debug)]
pub(super) struct CallSchedule {
    calls: Vec<ScheduledCall>,
    /// Ready calls, the first one on top. Those that were started or skipped meanwhile are ignored.
    ready: BinaryHeap<Reverse<usize>>,
}

/// One call.
#[derive(Debug)]
struct ScheduledCall {
    /// The calls that it waits for, without transitive ones.
    waits_for: Vec<usize>,
    /// The calls that wait for it.
    awaited_by: Vec<usize>,
    /// The number of calls that it still waits for.
    unfinished: usize,
    is_started: bool,
    /// It ended before.
    is_skipped: bool,
}

impl CallSchedule {
    /// Asks for the keys of `count` calls only if one of them may wait for another one.
    pub(super) fn of<'a>(count: usize, access: impl FnOnce() -> Vec<CallAccess<'a>>) -> Self {
        match count {
            // NOTE: Most replies have one call, and its keys need not be collected.
            0 | 1 => CallSchedule::waiting_for((0..count).map(|_| Vec::new())),
            _ => CallSchedule::new(&access()),
        }
    }

    fn new(calls: &[CallAccess<'_>]) -> Self {
        CallSchedule::waiting_for(dependencies(calls).into_iter())
    }

    fn waiting_for(calls: impl Iterator<Item = Vec<usize>>) -> Self {
        let entry = |waits_for: Vec<usize>| ScheduledCall {
            unfinished: waits_for.len(),
            waits_for,
            awaited_by: Vec::new(),
            is_started: false,
            is_skipped: false,
        };
        let mut calls: Vec<ScheduledCall> = calls.map(entry).collect();
        for call in 0..calls.len() {
            for place in 0..calls[call].waits_for.len() {
                let earlier = calls[call].waits_for[place];
                calls[earlier].awaited_by.push(call);
            }
        }
        let is_ready =
            |(call, entry): (usize, &ScheduledCall)| (entry.unfinished == 0).then_some(Reverse(call));
        let ready = calls.iter().enumerate().filter_map(is_ready).collect();
        CallSchedule { calls, ready }
    }

    /// The calls whose writes the call sees, in call order: those that it waits for, directly or
    /// transitively.
    pub(super) fn predecessors(&self, call: usize) -> BTreeSet<usize> {
        let mut predecessors = BTreeSet::new();
        let mut open = self.calls[call].waits_for.clone();
        while let Some(call) = open.pop() {
            if predecessors.insert(call) {
                open.extend(&self.calls[call].waits_for);
            }
        }
        predecessors
    }

    /// Takes up to `limit` ready calls, in call order. They count as started.
    pub(super) fn take_ready(&mut self, limit: usize) -> Vec<usize> {
        let mut taken = Vec::with_capacity(limit.min(self.ready.len()));
        while taken.len() < limit
            && let Some(Reverse(call)) = self.ready.pop()
        {
            if !std::mem::replace(&mut self.calls[call].is_started, true) {
                taken.push(call);
            }
        }
        taken
    }

    /// Takes all calls that were not started. They count as started.
    pub(super) fn take_rest(&mut self) -> Vec<usize> {
        self.ready.clear();
        let start = |(call, entry): (usize, &mut ScheduledCall)| {
            (!std::mem::replace(&mut entry.is_started, true)).then_some(call)
        };
        self.calls.iter_mut().enumerate().filter_map(start).collect()
    }

    /// Skips a call that ended before: it counts as started, and as finished once those that it waits for
    /// are. It may have been answered without them, and others wait for these through it.
    pub(super) fn skip(&mut self, call: usize) {
        let entry = &mut self.calls[call];
        let was_ready = entry.unfinished == 0 && !entry.is_started;
        entry.is_started = true;
        entry.is_skipped = true;
        if was_ready {
            self.finish(call);
        }
    }

    /// Must be called once for each call that ended.
    pub(super) fn finish(&mut self, call: usize) {
        let mut freed = std::mem::take(&mut self.calls[call].awaited_by);
        while let Some(call) = freed.pop() {
            let entry = &mut self.calls[call];
            entry.unfinished -= 1;
            if entry.unfinished > 0 {
                continue;
            }
            if entry.is_skipped {
                freed.append(&mut entry.awaited_by);
            } else if !entry.is_started {
                self.ready.push(Reverse(call));
            }
        }
    }
}

/// The writers of one key that a later call may have to wait for. A call that waits for a replacing write
/// waits for all writes before it, too.
#[derive(Default)]
struct KeyWriters {
    last_replacing: Option<usize>,
    merging_since: Vec<usize>,
}

fn dependencies(calls: &[CallAccess<'_>]) -> Vec<Vec<usize>> {
    let mut waits_for = vec![Vec::new(); calls.len()];
    if calls.iter().all(|call| call.writes.is_empty()) {
        return waits_for;
    }
    let mut writers: HashMap<&str, KeyWriters> = HashMap::new();
    for (index, call) in calls.iter().enumerate() {
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
                *writers = KeyWriters { last_replacing: Some(index), merging_since: Vec::new() };
            } else {
                writers.merging_since.push(index);
            }
        }
        waits_for[index] = earlier.into_iter().collect();
    }
    waits_for
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls as `reads -> writes`, where `!` marks a replacing write; the expectation lists the calls that
    /// each waits for.
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
        let schedule = CallSchedule::new(&calls);
        let predecessors: Vec<Vec<usize>> =
            (0..calls.len()).map(|call| schedule.predecessors(call).into_iter().collect()).collect();
        assert_eq!(predecessors, expected.iter().map(|set| set.to_vec()).collect::<Vec<_>>());
    }

    #[test]
    fn independent_calls_wait_for_nothing() {
        check(&["->", "a ->", "-> b", "a -> c!"], &[&[], &[], &[], &[]]);
    }

    #[test]
    fn a_reader_waits_for_earlier_writers_and_not_for_later_ones() {
        check(&["documents ->", "-> documents", "documents ->"], &[&[], &[], &[1]]);
        check(&["a ->", "b -> a", "-> b", "a ->"], &[&[], &[], &[], &[1]]);
        check(&["x -> k!", "-> k!", "-> x"], &[&[], &[0], &[]]);
    }

    #[test]
    fn calls_that_read_and_write_one_key_keep_their_order() {
        check(&["a -> b", "b -> a"], &[&[], &[0]]);
        check(&["k ->", "k -> k!", "k -> k!"], &[&[], &[], &[1]]);
        check(&["k -> m", "k -> k", "k -> k", "m ->"], &[&[], &[], &[1], &[0]]);
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
        let mut schedule = CallSchedule::new(&[writer, reader, CallAccess::default(), CallAccess::default()]);
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
        let mut schedule = CallSchedule::new(&[writer.clone(), writer, reader]);
        schedule.skip(1);
        assert_eq!(schedule.take_ready(9), [0]);
        schedule.finish(0);
        assert_eq!(schedule.take_ready(9), [2]);
    }

    #[test]
    fn what_was_abandoned_is_not_handed_out() {
        let writer = CallAccess { reads: vec![], writes: vec![("k", true)] };
        let mut schedule = CallSchedule::new(&[writer.clone(), writer.clone(), writer]);
        assert_eq!(schedule.take_ready(9), [0]);
        assert_eq!(schedule.take_rest(), [1, 2]);
        for call in [1, 2, 0] {
            schedule.finish(call);
        }
        assert!(schedule.take_ready(9).is_empty());
    }

    #[test]
    fn hundreds_of_calls_in_a_row_are_cheap() {
        // Written out, the dependencies would be some 170 million.
        let writer = CallAccess { reads: vec!["k"], writes: vec![("k", true)] };
        let mut schedule = CallSchedule::new(&vec![writer; 1_000]);
        for call in 0..1_000 {
            assert_eq!(schedule.take_ready(64), [call]);
            assert_eq!(schedule.predecessors(call).len(), call);
            schedule.finish(call);
        }
    }
}
