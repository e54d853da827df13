//! Two sessions side by side, within a bound of time, whatever their lengths.
//!
//! A diff of sequences that have nothing in common costs the product of their lengths. So commits that only one side has
//! are not compared at all, the others by number instead of text, and the comparison of what is left ends after
//! [`LONGEST`].

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use similar::{Algorithm, DiffOp, capture_diff_slices_deadline};
use tokio::time::Instant;

/// The time after which commits that have not been compared yet count as different.
const LONGEST: Duration = Duration::from_secs(1);

/// A row of both: the indices of a commit on the left and on the right, and whether they are the same.
pub(in crate::http) type AlignedPair = (Option<usize>, Option<usize>, bool);

/// The commits of both sides, in order: equal ones in one row, and those between them side by side.
pub(in crate::http) fn aligned(left: &[String], right: &[String]) -> Vec<AlignedPair> {
    let (left, right) = numbered(left, right);
    let (of_left, of_right) = (on_both(&left, &right), on_both(&right, &left));
    let numbers = |places: &[usize], all: &[usize]| places.iter().map(|at| all[*at]).collect::<Vec<_>>();
    let equal = equal(&numbers(&of_left, &left), &numbers(&of_right, &right));
    let mut pairs = Vec::new();
    let (mut here, mut there) = (0, 0);
    for (one, other) in equal {
        let (one, other) = (of_left[one], of_right[other]);
        side_by_side(&mut pairs, (here, one), (there, other));
        pairs.push((Some(one), Some(other), true));
        (here, there) = (one + 1, other + 1);
    }
    side_by_side(&mut pairs, (here, left.len()), (there, right.len()));
    pairs
}

/// The places of equal commits, growing on both sides: first of those that are there once on each side, then of others
/// between them.
fn equal(left: &[usize], right: &[usize]) -> Vec<(usize, usize)> {
    let latest = (Instant::now() + LONGEST).into_std();
    let mut found = Vec::new();
    let (mut here, mut there) = (0, 0);
    for (one, other) in unique(left, right).into_iter().chain([(left.len(), right.len())]) {
        let (old, new) = (&left[here..one], &right[there..other]);
        for operation in capture_diff_slices_deadline(Algorithm::Myers, old, new, Some(latest)) {
            if let DiffOp::Equal { old_index, new_index, len } = operation {
                found.extend((0..len).map(|at| (here + old_index + at, there + new_index + at)));
            }
        }
        if one < left.len() {
            found.push((one, other));
        }
        (here, there) = (one + 1, other + 1);
    }
    found
}

/// The places of numbers that are there once on each side: as many as grow on both.
fn unique(left: &[usize], right: &[usize]) -> Vec<(usize, usize)> {
    let once = |side: &[usize]| {
        let mut places = HashMap::new();
        for (place, number) in side.iter().enumerate() {
            places.entry(*number).and_modify(|place| *place = None).or_insert(Some(place));
        }
        places
    };
    let (of_left, of_right) = (once(left), once(right));
    let place = |of: &HashMap<usize, Option<usize>>, number: usize| of.get(&number).copied().flatten();
    let pair = |number: &usize| Some((place(&of_left, *number)?, place(&of_right, *number)?));
    longest_growing(&left.iter().filter_map(pair).collect::<Vec<_>>())
}

/// The longest part of these pairs in which the second numbers grow.
fn longest_growing(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    // Of each length, the last pair with the least second number; and the pair before each.
    let mut last: Vec<usize> = Vec::new();
    let mut before = Vec::with_capacity(pairs.len());
    for (at, (_, second)) in pairs.iter().enumerate() {
        let length = last.partition_point(|of_length| pairs[*of_length].1 < *second);
        before.push(length.checked_sub(1).map(|shorter| last[shorter]));
        match last.get_mut(length) {
            Some(of_length) => *of_length = at,
            None => last.push(at),
        }
    }
    let newest = std::iter::successors(last.last().copied(), |at| before[*at]);
    let mut longest: Vec<_> = newest.map(|at| pairs[at]).collect();
    longest.reverse();
    longest
}

/// Each text as a number, the same for equal texts.
fn numbered<'a>(left: &'a [String], right: &'a [String]) -> (Vec<usize>, Vec<usize>) {
    let mut numbers: HashMap<&'a str, usize> = HashMap::new();
    let mut of = |texts: &'a [String]| {
        let number = |text: &'a String| {
            let next = numbers.len();
            *numbers.entry(text).or_insert(next)
        };
        texts.iter().map(number).collect()
    };
    (of(left), of(right))
}

/// The places of those that the other side has as well.
fn on_both(these: &[usize], others: &[usize]) -> Vec<usize> {
    let known: HashSet<_> = others.iter().collect();
    let is_known = |at: &usize| these.get(*at).is_some_and(|number| known.contains(number));
    (0..these.len()).filter(is_known).collect()
}

/// Rows of different commits, as many as the longer side has.
fn side_by_side(pairs: &mut Vec<AlignedPair>, left: (usize, usize), right: (usize, usize)) {
    let rows = (left.1 - left.0).max(right.1 - right.0);
    let at = |(from, to): (usize, usize), row: usize| (from + row < to).then_some(from + row);
    pairs.extend((0..rows).map(|row| (at(left, row), at(right, row), false)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(left: &str, right: &str, expected: &str) {
        let texts = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        let (left, right) = (texts(left), texts(right));
        let text = |of: &[String], at: Option<usize>| at.map_or("-".to_owned(), |at| of[at].clone());
        let row = |(here, there, same): &AlignedPair| {
            format!("{}{}{}", text(&left, *here), if *same { "=" } else { "|" }, text(&right, *there))
        };
        let rows: Vec<String> = aligned(&left, &right).iter().map(row).collect();
        assert_eq!(rows.join(" "), expected);
    }

    #[test]
    fn equal_commits_stand_in_one_row_and_others_side_by_side() {
        check("", "", "");
        check("ab", "ab", "a=a b=b");
        check("abc", "xbyz", "a|x b=b c|y -|z");
        check("abcd", "d", "a|- b|- c|- d=d");
        check("b", "aab", "-|a -|a b=b");
        check("ab", "xyz", "a|x b|y -|z");
        check("aXbYc", "aZbc", "a=a X|Z b=b Y|- c=c");
        // A block that has moved, and commits that are there several times.
        check("abcdX", "Xabcd", "-|X a=a b=b c=c d=d X|-");
        check("xxaxx", "xax", "x=x x|- a=a x=x x|-");
    }

    /// Each commit of a side is in one row, in order, and only equal ones are said to be.
    fn check_complete(left: &[String], right: &[String]) -> usize {
        let pairs = aligned(left, right);
        let (here, there): (Vec<_>, Vec<_>) = (
            pairs.iter().filter_map(|pair| pair.0).collect(),
            pairs.iter().filter_map(|pair| pair.1).collect(),
        );
        assert!(here.iter().copied().eq(0..left.len()) && there.iter().copied().eq(0..right.len()));
        let same = pairs.iter().filter(|pair| pair.2);
        same.map(|(here, there, _)| assert_eq!(left[here.unwrap()], right[there.unwrap()])).count()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test of how long it takes")]
    fn long_sessions_are_aligned_in_a_bounded_time() {
        const LENGTH: usize = 30_000;
        let side = |of: &dyn Fn(usize) -> String| (0..LENGTH).map(of).collect::<Vec<_>>();
        let began = std::time::Instant::now();
        // Nothing in common; all in common, the other way round; and few texts, in no order.
        let (left, right) = (side(&|at| format!("l{at}")), side(&|at| format!("r{at}")));
        assert_eq!(check_complete(&left, &right), 0);
        let reversed = side(&|at| format!("l{}", LENGTH - 1 - at));
        assert_eq!(check_complete(&left, &reversed), 1);
        let mixed =
            |factor: usize| side(&|at| (at.wrapping_mul(factor).wrapping_mul(at ^ 0x4d) % 13).to_string());
        check_complete(&mixed(2_654_435_761), &mixed(40_503));
        // One commit of many differs.
        let changed = side(&|at| if at == 100 { "other".to_owned() } else { format!("l{at}") });
        assert_eq!(check_complete(&left, &changed), LENGTH - 1);
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }
}
