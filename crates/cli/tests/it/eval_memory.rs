//! The memory of `stepfold eval` does not grow with the cases of a data set.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use crate::room::Room;

/// Peak memory of a command in KiB, and the number of lines that it prints.
fn peak(room: &Room, words: &str) -> (u64, usize) {
    let mut child = room.command(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let output = child.stdout.take().unwrap();
    let lines = std::thread::spawn(move || BufReader::new(output).lines().count());
    let mut peak = 0;
    let ended = loop {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(peak);
        if let Some(ended) = child.try_wait().unwrap() {
            break ended;
        }
        // tidy: allow sleep, because Linux tells the peak of a process only while it lives
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(ended.success(), "{words}");
    (peak, lines.join().unwrap())
}

/// Peak memory of a run of a recorded turn under so many names, of a comparison, and of a report.
fn peaks(cases: usize) -> [u64; 3] {
    let room = Room::new("", "assistant: There are 4.\n");
    room.say("run a.toml -s s1 'how many?'", "");
    room.say("eval add a.toml one.jsonl -s s1", "");
    let case = std::fs::read_to_string(room.path("one.jsonl")).unwrap();
    let (mut data_set, filling) = (String::new(), "x".repeat(200));
    for number in 0..cases {
        data_set += &case.replacen("local/s1/1", &format!("case {number} {filling}"), 1);
    }
    room.write("cases.jsonl", &data_set);
    let (run, lines) = peak(&room, "eval run a.toml cases.jsonl --mode replay --report one.report");
    assert_eq!(lines, cases + 2);
    std::fs::copy(room.path("one.report"), room.path("two.report")).unwrap();
    let (compare, _) = peak(&room, "eval compare one.report two.report");
    let (report, _) = peak(&room, "eval report one.report --format junit");
    [run, compare, report]
}

#[test]
fn twenty_thousand_cases_need_little_more_memory_than_a_thousand() {
    let (few, many) = (peaks(1_000), peaks(20_000));
    // The results are 8 MB, and in memory several times as many. Of a case some twenty bytes are kept, and a hundred for each report
    // of a comparison.
    let grown = few.into_iter().zip(many).map(|(few, many)| many.saturating_sub(few));
    let faults: Vec<_> = ["run", "compare", "report"]
        .into_iter()
        .zip(grown.zip([5_000, 8_000, 4_000]))
        .filter(|(_, (grown, most))| grown > most)
        .collect();
    assert!(few.iter().all(|peak| *peak > 0) && faults.is_empty(), "KiB: {few:?}, then {many:?}: {faults:?}");
}
