//! What reading the past costs, end against start: ratios, as the goals are.

use std::time::Duration;

use stepfold_session_scopes::{
    EventRange, Expected, ForkSession, GetSession, LabelVersion, ListForks, RewindSession, SessionStore,
};

use crate::{Bench, Memory, Sqlite, Writer, create, event, key, now, schema, start};

/// How many reads are measured together.
const READS: u32 = 200;

/// Prints what reads of a long session take against those of a short one. Goal: at most 1.2 times as long, but for what
/// is looked up in the past, which may take a logarithm longer.
pub(crate) fn ratios() {
    println!("reads of a session, end against start (a number written by each event)");
    print::<Memory>("memory");
    print::<Sqlite>("SQLite");
}

fn print<B: Bench>(name: &str) {
    let (short, long) = (with_events::<B>(10), with_events::<B>(10_000));
    let at = |bench: &B, version| {
        let get = GetSession::new(key("s")).events(EventRange::Last(1)).at_version(version);
        read(bench, &get)
    };
    line(name, "as it was at version 5 of 10,000, against 5 of 10", at(&short, 5), at(&long, 5));
    line(name, "as it was at version 9,995, against 5 of 10", at(&short, 5), at(&long, 9_995));

    let fork = |bench: &B, version| {
        time(bench, |bench| {
            let fork = ForkSession::new(key("s"), now()).at_version(version);
            bench.wait(bench.store().fork(fork)).expect("the version is there");
        })
    };
    line(name, "a fork at version 5,000 of 10,000, against 5 of 10", fork(&short, 5), fork(&long, 5_000));
    let forks = |bench: &B| {
        time(bench, |bench| {
            bench.wait(bench.store().forks(ListForks::new(key("s")))).expect("the session is there");
        })
    };
    println!("  {name:8} its 200 forks, listed: {:.1} us", micros(forks(&long)));
    let label = |bench: &B, version| {
        time(bench, |bench| {
            let label = LabelVersion::new(key("s"), "here".parse().expect("it is valid"), version);
            bench.wait(bench.store().set_label(label)).expect("the version is there");
        })
    };
    line(name, "a label on version 5,000 of 10,000, against 5 of 10", label(&short, 5), label(&long, 5_000));

    for bench in [&short, &long] {
        rewind(bench, 0);
    }
    let visible = |bench: &B| read(bench, &GetSession::new(key("s")).visible());
    line(name, "rewound to 0, visible events, 10,000 against 10", visible(&short), visible(&long));
    let all = |bench: &B| once(bench, &GetSession::new(key("s")));
    line(name, "rewound to 0, all events, 10,000 against 10", all(&short), all(&long));

    let (few, many) = (with_rewinds::<B>(10), with_rewinds::<B>(3_000));
    line(name, "3,000 rewinds behind it, against 10", visible(&few), visible(&many));
}

fn with_events<B: Bench>(events: u64) -> B {
    let bench = B::open();
    let mut writer = Writer { writes: 1, ..Writer::new(key("s"), &schema()) };
    bench.wait(create(bench.store(), key("s"), &writer.schema));
    bench.wait(writer.append(bench.store(), events));
    bench
}

/// A session that went back to its beginning so often, each time after one more event.
fn with_rewinds<B: Bench>(rewinds: u64) -> B {
    let bench = with_events::<B>(0);
    let mut writer = Writer { writes: 1, ..Writer::new(key("s"), &schema()) };
    for _ in 0..rewinds {
        bench.wait(writer.append(bench.store(), 1));
        rewind(&bench, 0);
        writer.version += 1;
    }
    bench
}

fn rewind<B: Bench>(bench: &B, to: u64) {
    let event = event();
    let request =
        RewindSession::new(key("s"), Expected::Any, to, event.id, event.invocation, event.author, event.at);
    bench.wait(bench.store().rewind(request)).expect("the version is there");
}

fn read<B: Bench>(bench: &B, get: &GetSession) -> Duration {
    time(bench, |bench| drop(bench.wait(bench.store().get(get.clone())).expect("the session is there")))
}

/// What one read takes, the fastest of three, where it takes long.
fn once<B: Bench>(bench: &B, get: &GetSession) -> Duration {
    let one = || {
        let start = start();
        drop(bench.wait(bench.store().get(get.clone())).expect("the session is there"));
        start.elapsed()
    };
    (0..3).map(|_| one()).min().unwrap_or_default()
}

/// What one of so many takes, in the fastest of five batches.
fn time<B: Bench>(bench: &B, run: impl Fn(&B)) -> Duration {
    let batch = || {
        let start = start();
        (0..READS / 5).for_each(|_| run(bench));
        start.elapsed() / (READS / 5)
    };
    (0..5).map(|_| batch()).min().unwrap_or_default()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn line(name: &str, what: &str, start: Duration, end: Duration) {
    let (start, end) = (micros(start), micros(end));
    println!("  {name:8} {what:52} {:6.2} times ({end:.1} against {start:.1} us)", end / start);
}
