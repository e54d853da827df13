//! Suggestions for unknown names: the nearest known one, else all of them.

use stepfold::prelude::*;
use stepfold::state_core::state::KeySchema;

/// Returns `; did you mean ...?` if a known name is near, otherwise the list of known names.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    match near(name, known.iter().copied()) {
        Some(near) => format!("; did you mean `{near}`?"),
        None if known.is_empty() => "; available: none".to_owned(),
        None => format!("; available: {}", known.join(", ")),
    }
}

/// The nearest known name, if it is near.
pub(crate) fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, near) = known.map(|known| (distance(name, known), known)).min()?;
    (distance <= 1 + near.len() / 4).then_some(near)
}

/// The edit distance: changed, inserted and omitted letters.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, letter) in left.chars().enumerate() {
        let mut diagonal = above;
        row[0] = above + 1;
        for (place, other) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[place + 1];
            row[place + 1] = replaced.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[right.len()]
}

/// The fault of a key that the state does not declare.
pub(crate) fn unknown_key(key: &str, schema: &Schema) -> Option<String> {
    let is_known = schema.is_open() || schema.key(key).is_some();
    (!is_known)
        .then(|| format!("unknown state key `{key}`{}", nearest(key, schema.keys().map(KeySchema::name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_name_is_offered() {
        let names = || ["instructions", "limits"].into_iter();
        assert_eq!(nearest("instruction", names()), "; did you mean `instructions`?");
        assert_eq!(nearest("color", names()), "; available: instructions, limits");
    }
}
