//! Servers that never come to an end, in all dialects, on a clock that jumps.

use std::time::Duration;

use stepfold_providers::layer::Timeout;
use stepfold_providers::probe::ProbeResponse;
use stepfold_state_core::chat::{ModelError, ModelErrorKind, Reply, TimeoutKind};
use tokio::time::Instant;

use crate::wires::{WIRES, Wire};

/// What comes of these pieces, and how long it takes.
async fn read(
    wire: &Wire,
    timeouts: Timeout,
    pieces: Vec<Vec<u8>>,
    pause: Duration,
) -> (Result<Reply, ModelError>, Duration) {
    let response = ProbeResponse { status: 200, content_type: "text/event-stream", pieces, pause };
    let start = Instant::now();
    let reply = (wire.read)(timeouts, response).into_reply().await;
    (reply, start.elapsed())
}

fn bytes(pieces: &[&str]) -> Vec<Vec<u8>> {
    pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect()
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_whole_is_not_lost_to_what_follows() {
    for wire in &WIRES {
        let mut pieces = vec![wire.begin, wire.finish];
        pieces.extend([": ping\n\n"; 1_000]);
        let timeouts = Timeout::default().total(3 * SECOND);
        let (reply, took) = read(wire, timeouts, bytes(&pieces), SECOND).await;
        assert_eq!(reply.unwrap().message.text(), "area", "{}", wire.name);
        assert!(took <= 7 * SECOND, "{}: {took:?}", wire.name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_only_keeps_the_connection_alive_times_out() {
    for wire in &WIRES {
        let mut pieces = vec![wire.begin];
        pieces.extend([": ping\n\n"; 1_000]);
        let timeouts = Timeout::default().idle(10 * SECOND);
        let (reply, took) = read(wire, timeouts, bytes(&pieces), 2 * SECOND).await;
        let error = reply.unwrap_err();
        assert_eq!(error.kind(), &ModelErrorKind::TimedOut(TimeoutKind::Idle), "{}: {error}", wire.name);
        assert_eq!(error.partial().unwrap().message.text(), "area", "{}", wire.name);
        assert!(took <= 60 * SECOND, "{}: {took:?}", wire.name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_has_a_bound_in_bytes() {
    for wire in &WIRES {
        let mut pieces = bytes(&[wire.begin]);
        // Long lines, which are read faster than many.
        let comment = [b":", &b" ".repeat(1 << 20)[..], b"\n\n"].concat();
        pieces.extend(std::iter::repeat_n(comment, 80));
        let (reply, _) = read(wire, Timeout::NONE, pieces, Duration::ZERO).await;
        let error = reply.unwrap_err();
        assert!(matches!(error.kind(), ModelErrorKind::ReplyTooLarge { .. }), "{}: {error}", wire.name);
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_limits_are_limits() {
    for wire in &WIRES {
        let longest = Some(Duration::MAX);
        let timeouts = Timeout::NONE.first_token(longest).idle(longest).total(longest);
        let (reply, _) = read(wire, timeouts, bytes(&[wire.begin, wire.finish]), SECOND).await;
        assert_eq!(reply.unwrap().message.text(), "area", "{}", wire.name);
    }
}
