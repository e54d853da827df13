//! Markdown of answers: what it looks like, and that it looks the same however it comes.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use stepfold_terminal::{Markdown, StyledText, TextStyle};

fn markdown(width: usize) -> Markdown {
    Markdown::new(width, StyledText::new(TextStyle::GOOD, "● "))
}

fn whole(width: usize, source: &str) -> StyledText {
    let mut markdown = markdown(width);
    let mut shown = markdown.push(source);
    shown.append(&markdown.end());
    shown
}

#[track_caller]
fn check(width: usize, source: &str, expect: &Expect) {
    expect.assert_eq(&whole(width, source).to_plain());
}

#[test]
fn words_are_wrapped_and_lines_stay() {
    check(
        40,
        "The United States, with **29** zones. Russia follows with 27, *Canada* with `23`.\nThat is all.\n\n\nA new paragraph.",
        &expect![[r#"
            ● The United States, with 29 zones.
              Russia follows with 27, Canada with
              23.
              That is all.

              A new paragraph.
        "#]],
    );
}

#[test]
fn heads_lists_quotes_code_and_tables() {
    check(
        44,
        "## Zones\n\n1. `Asia/Tokyo` is Japan's, but it also holds at one place in Australia\n   - nested\n\n> said by [a page](https://example.org)\n\n\
         ```sql\nSELECT name\n  FROM zones;\n```\n\n| country | zones |\n|---|---:|\n| **US** | 29 |\n| RU | 27 |\n\n---\nDone.",
        &expect![[r#"
            ● Zones

              1. Asia/Tokyo is Japan's, but it also
                 holds at one place in Australia
                 • nested

              │ said by a page (https://example.org)

                SELECT name
                  FROM zones;

              country  zones
              US       29
              RU       27

              ────────────────────────────────────────
              Done.
        "#]],
    );
}

#[test]
fn a_table_that_is_too_wide_is_shown_row_by_row() {
    check(
        30,
        "| country | why it has so many of them |\n|---|---|\n| US | it is large |\n| FR | it has islands |\n",
        &expect![[r#"
            ● • country: US
                why it has so many of
                them: it is large
              • country: FR
                why it has so many of
                them: it has islands
        "#]],
    );
}

#[test]
fn styles_are_those_of_the_terminal() {
    expect![[r#""\u{1b}[32m● \u{1b}[0mIt has \u{1b}[1m12 stalls\u{1b}[0m in \u{1b}[36marea\u{1b}[0m, \u{1b}[3mAda\u{1b}[0m.\n""#]]
        .assert_eq(&format!("{:?}", whole(60, "It has **12 stalls** in `area`, *Ada*.").to_ansi()));
}

#[test]
fn what_a_terminal_obeys_is_escaped() {
    check(
        60,
        "a\u{1b}[8mb **c\u{202e}d**",
        &expect![[r#"
        ● a\u001b[8mb c\u202ed
    "#]],
    );
}

#[test]
fn names_with_underscores_and_arithmetic_are_no_emphasis() {
    check(
        60,
        "last_query and last_rows: 2 * 3 * 4, a [1] b, x < y",
        &expect![[r#"
        ● last_query and last_rows: 2 * 3 * 4, a [1] b, x < y
    "#]],
    );
}

#[test]
fn whole_words_are_shown_while_they_come() {
    let mut markdown = markdown(60);
    let mut shown = Vec::new();
    for part in ["It ha", "s **twelve", " stalls** an", "d more"] {
        shown.push(markdown.push(part).to_plain());
    }
    shown.push(markdown.end().to_plain());
    assert_eq!(shown, ["● It", " has", " twelve stalls", " and", " more\n"].map(str::to_owned));
}

proptest! {
    /// An answer looks the same however it was cut into parts.
    #[test]
    fn parts_add_up(
        source in "([a-c_*`~\\[\\]()<>#|\\\\!&;.0-9 -]|\\n|word |\\*\\*|```\\n){0,60}",
        cuts in prop::collection::vec(1_usize..6, 1..40),
        width in 20_usize..50,
    ) {
        let mut markdown = markdown(width);
        let mut shown = StyledText::default();
        let (mut rest, mut cuts) = (source.as_str(), cuts.iter().cycle());
        while !rest.is_empty() {
            let (part, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            shown.append(&markdown.push(part));
            rest = after;
        }
        shown.append(&markdown.end());
        prop_assert_eq!(shown.to_ansi(), whole(width, &source).to_ansi());
    }

    /// No line is wider than the screen.
    #[test]
    fn lines_fit(source in "([a-z*`]{1,12} ?|\\n|- |# ){0,40}", width in 24_usize..60) {
        for line in whole(width, &source).to_plain().lines() {
            prop_assert!(StyledText::from(line).width() <= width, "{:?}", line);
        }
    }
}
