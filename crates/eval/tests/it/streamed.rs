//! A data set of any size is streamed: memory does not grow with it.

use std::io::{BufReader, Read};

use stepfold_agent_loop::Agent;
use stepfold_agent_loop::test_kit::Script;
use stepfold_eval::{DataSet, Experiment};

/// A file of that many cases, which is never whole in memory.
struct Lines {
    next: u64,
    count: u64,
    line: Vec<u8>,
}

impl Read for Lines {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.line.is_empty() && self.next < self.count {
            self.next += 1;
            let filling = "x".repeat(400);
            let line = format!(
                "{{\"name\":\"case {}\",\"say\":\"which area? {filling}\",\"expect\":[{{\"text_contains\":[\"area 3\"]}}]}}\n",
                self.next
            );
            self.line = line.into_bytes();
        }
        let taken = self.line.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&self.line[..taken]);
        self.line.drain(..taken);
        Ok(taken)
    }
}

/// The resident memory of this process in KiB.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux has it");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_hundred_thousand_cases_need_no_more_memory_than_a_thousand() {
    let agent = Agent::builder(Script::parse("assistant: area 3").expect("a script").whole())
        .build()
        .expect("an agent");
    let experiment = Experiment::new(&agent).concurrency(4);
    let run = async |count| {
        let cases = DataSet::from_json_lines(BufReader::new(Lines { next: 0, count, line: Vec::new() }));
        let summary = experiment.run_each(cases, |_| Ok(())).await.expect("the cases are valid");
        assert_eq!((summary.cases, summary.passed), (count, count));
    };
    run(1_000).await;
    let before = resident();
    run(100_000).await;
    // The names are kept as hashes of eight bytes; the cases alone would be some 45 MiB.
    let grown = resident().saturating_sub(before);
    assert!(grown < 16 * 1024, "grown by {grown} KiB");
}

#[test]
fn faults_of_a_data_set_name_the_line() {
    let read = |text: &str| {
        DataSet::from_json_lines(text.as_bytes()).find_map(Result::err).map(|error| error.to_string())
    };
    let good = r#"{"name":"a","say":"hello"}"#;
    let error = read(&format!("{good}\n\n{{\"name\":\"b\"")).expect("the third line is cut");
    assert!(error.starts_with("invalid case at line 3, column "), "{error}");
    assert_eq!(
        read(&format!("{good}\n{good}")).expect("two have one name"),
        "duplicate case `a`; names must be unique in a data set"
    );
    assert_eq!(
        read(r#"{"name":"a"}"#).expect("it says nothing"),
        "invalid case `a`: missing message: set `say`, `messages` or `record`"
    );
    let pattern = r#"{"name":"a","say":"hello","expect":[{"text_matches":"("}]}"#;
    assert!(read(pattern).expect("the pattern is invalid").contains("invalid regular expression `(`"));
}

/// A sink that counts what is written into it.
#[cfg(target_os = "linux")]
struct Counting(u64);

#[cfg(target_os = "linux")]
impl std::io::Write for Counting {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_export_needs_no_more_memory_for_more_cases() {
    use stepfold_eval::{DataSetFormat, LeftOut};

    for format in [DataSetFormat::PydanticEvals, DataSetFormat::AdkEvalSet] {
        let write = |count| {
            let cases = DataSet::from_json_lines(BufReader::new(Lines { next: 0, count, line: Vec::new() }));
            let mut sink = Counting(0);
            let written = format.write_to(&mut sink, "areas", cases).expect("the cases are valid");
            let is_adk = format == DataSetFormat::AdkEvalSet;
            assert_eq!((written.content, written.left_out.count()), (count, if is_adk { count } else { 0 }));
            assert!(written.left_out.lines().len() <= LeftOut::MOST);
            sink.0
        };
        write(1_000);
        let before = resident();
        assert!(write(30_000) > 12 << 20);
        let grown = resident().saturating_sub(before);
        // Of what is left out the first lines are kept.
        assert!(grown < 12 * 1024, "{format}: grown by {grown} KiB");
    }
}
