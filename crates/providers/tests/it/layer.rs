//! The layers, on a paused clock that advances only for waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expect_test::{Expect, expect};
use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt, stream};
use stepfold_providers::layer::{
    ChatModelExt, ConcurrencyLimit, Fallback, Layers, RateLimit, Retry, Timeout, Trace, TraceContent,
};
use stepfold_providers::{Scripted, ScriptedReply};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, Extras, FinishReason, Message, ModelError, ModelErrorKind, ModelParams,
    ReplyStream, Role, Transcript, Usage,
};
use tokio::time::Instant;

fn request() -> ChatRequest {
    ChatRequest::new(Transcript::new().with(Message::user("which area?")))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// What the model says, what it was asked for, and how long it took.
async fn ask(model: &impl ChatModel) -> String {
    let start = Instant::now();
    let said = match model.respond(request()).into_reply().await {
        Ok(reply) => reply.message.text().into_owned(),
        Err(error) => format!("error: {error}"),
    };
    format!("{said} after {:?}\n", start.elapsed())
}

fn policy() -> Retry {
    // Without luck a pause is as long as it is at least.
    Retry::default().seed(1)
}

fn limited(retry_after: Option<u64>) -> ScriptedReply {
    let error = ModelError::new(ModelErrorKind::RateLimited, "as the script says").with_provider("scripted");
    retry_after.map(seconds).into_iter().fold(error, ModelError::with_retry_after).into()
}

#[tokio::test(start_paused = true)]
async fn retry_waits_as_long_as_requested() {
    let script = Scripted::new([limited(Some(7)), "ok".into()]);
    expect![[r#"
        ok after 7s
    "#]]
    .assert_eq(&ask(&script.layer(policy())).await);

    let loading = ModelError::new(ModelErrorKind::Overloaded, "loading").with_retry_after(seconds(3));
    let script = Scripted::new([ScriptedReply::from(loading), "ok".into()]);
    expect![[r#"
        ok after 3s
    "#]]
    .assert_eq(&ask(&script.layer(policy())).await);
}

#[tokio::test(start_paused = true)]
async fn retry_pauses_grow_within_their_jitter() {
    let replies = || (0..4).map(|_| limited(None)).chain([ScriptedReply::from("ok")]);
    for seed in 0..50 {
        let policy = Retry::attempts(5).seed(seed);
        let start = Instant::now();
        let reply = Scripted::new(replies()).layer(policy).respond(request()).into_reply().await;
        assert_eq!(reply.unwrap().message.text(), "ok");
        // Half a second, 1, 2 and 4: at least once, at most twice.
        let took = start.elapsed().as_secs_f64();
        assert!((7.5..15.1).contains(&took), "{took}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_error_names_all_attempts() {
    let script = Scripted::new([limited(Some(1)), ModelErrorKind::Overloaded.into(), limited(Some(2))]);
    let model = script.clone().layer(Retry::attempts(3).seed(1));
    let error = model.respond(request()).into_reply().await.unwrap_err();
    assert_eq!((error.kind(), error.retry_after()), (&ModelErrorKind::RateLimited, Some(seconds(2))));
    let text = error.to_string();
    assert!(text.contains("3 attempts in "), "{text}");
    for attempt in ["1: rate limited, retry after 1s", "2: overloaded", "3: rate limited, retry after 2s"] {
        assert!(text.contains(attempt), "{text}");
    }
    assert_eq!(script.verify(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_cause_that_all_attempts_share_is_named_once() {
    let overloaded = || ScriptedReply::from(ModelErrorKind::Overloaded);
    let script = Scripted::new([overloaded(), overloaded(), overloaded()]);
    let model = script.layer(Retry::attempts(3).seed(1));
    let text = model.respond(request()).into_reply().await.unwrap_err().to_string();
    assert!(text.contains("(3 attempts in ") && text.matches("as the script says").count() == 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn retry_gives_up_at_once_when_there_is_no_point() {
    // It would have to wait for a day.
    let script = Scripted::new([limited(Some(86_400)), "never".into()]);
    check(
        &script.clone().layer(policy()),
        expect![[r#"
        error: rate limited, retry after 86400s (scripted): as the script says after 0ns
    "#]],
    )
    .await;
    // The same would come again.
    let script = Scripted::new([ModelErrorKind::Authentication.into(), ScriptedReply::from("never")]);
    check(
        &script.clone().layer(policy()),
        expect![[r#"
        error: not authorized (scripted): as the script says after 0ns
    "#]],
    )
    .await;
    assert_eq!(script.remaining(), 1);
}

async fn check(model: &impl ChatModel, expected: Expect) {
    expected.assert_eq(&ask(model).await);
}

#[tokio::test(start_paused = true)]
async fn nothing_that_was_handed_on_is_sent_again() {
    let broken = ScriptedReply::from("area").truncated();
    let script = Scripted::new([broken, "never".into()]);
    let model = script.clone().layer(policy()).layer(Fallback::to(Scripted::new(["never"])));
    let error = model.respond(request()).into_reply().await.unwrap_err();
    assert_eq!(error.kind(), &ModelErrorKind::Truncated);
    assert_eq!(error.partial().unwrap().message.text(), "area");
    assert_eq!(script.remaining(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_part_without_content_does_not_begin_a_reply() {
    let usage = Usage::new(1, 0);
    let silent = ScriptedReply::from("").with_id("r1").with_usage(usage).truncated();
    let script = Scripted::new([silent, ScriptedReply::from("ok").with_id("r2")]);
    let reply = script.layer(policy()).respond(request()).into_reply().await.unwrap();
    assert_eq!(
        (reply.message.text().as_ref(), reply.id.as_deref(), reply.usage),
        ("ok", Some("r2"), Usage::default())
    );
}

#[tokio::test(start_paused = true)]
async fn fallback_asks_the_next_one_under_its_own_name() {
    let first = Scripted::new([ModelErrorKind::Authentication]).named("a/one");
    let second = Scripted::new([ModelErrorKind::Overloaded]).named("b/two");
    let third = Scripted::new(["ok"]).named("c/three");
    let model = first.clone().layer(Fallback::to(second).or(third.clone()));
    let reply = model.respond(request().with_model("one-large")).into_reply().await.unwrap();
    assert_eq!(reply.message.text(), "ok");
    assert_eq!(first.last_request().unwrap().model.as_deref(), Some("one-large"));
    assert_eq!(third.last_request().unwrap().model, None);
    assert_eq!(model.id(), "a/one");
}

/// What is addressed to one provider does not make the request fail at another.
#[tokio::test(start_paused = true)]
async fn fallback_leaves_out_what_is_addressed_to_another_provider() {
    let failing = |id: &str| Scripted::new([ModelErrorKind::Overloaded]).named(id.to_owned());
    let models = [failing("a/one"), failing("a/two"), failing("b/three"), failing("c")];
    let [first, second, third, fourth] = models.clone();
    let model = first.layer(Fallback::to(second).or(third).or(fourth));
    let extras = Extras::from_iter([("thinking", true)]);
    let params = ModelParams::default().with_temperature(0.5).with_extra("thinking", true);
    model.respond(request().with_params(params)).into_reply().await.unwrap_err();
    let asked = models.map(|model| model.last_request().unwrap().params);
    assert!(asked.iter().all(|params| params.temperature == Some(0.5)));
    assert_eq!(asked.map(|params| params.extras), [extras.clone(), extras, Extras::new(), Extras::new()]);
}

/// Fields of the message may come before the reply: they are no part of it that a reader has seen.
#[tokio::test(start_paused = true)]
async fn fields_of_the_message_are_no_beginning() {
    let broken = Message::new(Role::Assistant).with_extra("container", "c1");
    let broken = ScriptedReply::from(broken).truncated();
    let model = Scripted::new([broken, "ok".into()]).layer(policy());
    let reply = model.respond(request()).into_reply().await.unwrap();
    assert_eq!(reply.message, Message::assistant("ok"));
}

#[tokio::test(start_paused = true)]
async fn fallback_stops_at_what_is_wrong_everywhere_and_names_all() {
    let model = Scripted::new([ModelErrorKind::Refused]).layer(Fallback::to(Scripted::new(["never"])));
    check(
        &model,
        expect![[r#"
        error: refused (scripted): as the script says after 0ns
    "#]],
    )
    .await;
    let model = Scripted::new([ModelErrorKind::NotFound])
        .named("a/one")
        .layer(Fallback::to(Scripted::new([ModelErrorKind::Overloaded]).named("b/two")));
    check(&model, expect![[r#"
        error: overloaded (scripted): as the script says (all models failed: a/one: not found (scripted): as the script says; b/two: overloaded (scripted): as the script says) after 0ns
    "#]])
    .await;
}

#[tokio::test(start_paused = true)]
async fn rates_of_requests_and_tokens() {
    let texts = || (0..5).map(|_| "ok");
    let model = Scripted::new(texts()).layer(RateLimit::per_minute(2));
    let start = Instant::now();
    let all = join_all((0..5).map(|_| async {
        model.respond(request()).into_reply().await.unwrap();
        start.elapsed().as_secs()
    }));
    assert_eq!(all.await, [0, 0, 30, 60, 90]);

    let limit = RateLimit::per_minute(1_000).tokens_per_minute(600).estimated_by(|_| 400);
    let model = Scripted::new(texts()).layer(limit);
    let start = Instant::now();
    for expected in [0, 20, 60] {
        model.respond(request()).into_reply().await.unwrap();
        assert_eq!(start.elapsed().as_secs(), expected);
    }
    // Larger than the bucket: it waits for a full one, and does not wait for ever.
    let limit = RateLimit::per_minute(1_000).tokens_per_minute(600).estimated_by(|_| 4_000);
    let model = Scripted::new(texts()).layer(limit);
    let start = Instant::now();
    for expected in [0, 60] {
        model.respond(request()).into_reply().await.unwrap();
        assert_eq!(start.elapsed().as_secs(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrency_counts_until_a_stream_is_over_or_dropped() {
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let slow = Slow { running: Arc::clone(&running), most: Arc::clone(&most) };
    let model = slow.layer(ConcurrencyLimit::new(3));
    join_all((0..10).map(|_| async { model.respond(request()).into_reply().await.unwrap() })).await;
    assert_eq!((running.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (0, 3));

    let model = Scripted::new([ScriptedReply::silence(), "ok".into()]).layer(ConcurrencyLimit::new(1));
    let mut hanging = model.respond(request());
    assert!(hanging.next().now_or_never().is_none());
    let mut waiting = model.respond(request());
    assert!(waiting.next().now_or_never().is_none());
    drop(hanging);
    assert_eq!(waiting.into_reply().await.unwrap().message.text(), "ok");
}

/// A model that takes its time and counts how many do so at once.
struct Slow {
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl ChatModel for Slow {
    fn id(&self) -> &'static str {
        "test/slow"
    }

    fn respond(&self, request: ChatRequest) -> stepfold_state_core::chat::ReplyStream {
        let (running, most) = (Arc::clone(&self.running), Arc::clone(&self.most));
        let reply = async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            crate::pass(seconds(1)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Scripted::new(["ok"]).respond(request)
        };
        stepfold_state_core::chat::ReplyStream::new(reply.flatten_stream())
    }
}

#[tokio::test(start_paused = true)]
async fn each_timeout_says_which_it_was() {
    let limits = |first, idle, total| {
        Timeout::NONE.first_token(seconds(first)).idle(seconds(idle)).total(seconds(total))
    };
    let model = Scripted::new([ScriptedReply::silence()]).named("a/one").layer(limits(5, 7, 99));
    check(
        &model,
        expect![[r#"
            error: timed out before the first chunk (a, model one): the limit is 5s after 5s
        "#]],
    )
    .await;
    let model = Scripted::new([ScriptedReply::from("so").hanging()]).layer(limits(5, 7, 99));
    check(
        &model,
        expect![[r#"
            error: timed out between chunks (scripted): the limit is 7s after 7s
        "#]],
    )
    .await;
    let model = Scripted::new([ScriptedReply::from("so").hanging()]).layer(limits(5, 7, 6));
    check(
        &model,
        expect![[r#"
            error: timed out (scripted): the limit is 6s after 6s
        "#]],
    )
    .await;
    let model = Scripted::new([ScriptedReply::from("so").hanging(), "ok".into()]);
    let retried = model.layer(Timeout::NONE.idle(seconds(1))).layer(policy());
    let error = retried.respond(request()).into_reply().await.unwrap_err();
    assert_eq!(error.partial().unwrap().message.text(), "so");
}

/// Finishes its reply, and keeps the stream open.
struct Lingering;

impl ChatModel for Lingering {
    fn id(&self) -> &'static str {
        "test/lingering"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let reply = [Chunk::Text("area 3".to_owned()), Chunk::Finished(FinishReason::Stop)];
        ReplyStream::new(stream::iter(reply.map(Ok)).chain(stream::pending()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_reply_is_not_lost_to_a_timeout() {
    for (timeout, expected) in [
        (Timeout::NONE.total(seconds(3)), "area 3 after 3s\n"),
        (Timeout::NONE.idle(seconds(5)), "area 3 after 5s\n"),
    ] {
        assert_eq!(ask(&Lingering.layer(timeout)).await, expected);
    }
}

#[test]
fn traces_have_the_names_of_the_conventions_and_no_content() {
    let usage = Usage::new(12, 3);
    let reply =
        || ScriptedReply::from("area 3").with_usage(usage).with_id("r1").finished(FinishReason::Length);
    let told = spans(|| {
        let model = Scripted::new([reply()]).named("openai/gpt").layer(Trace::default());
        model.respond(request()).into_reply().now_or_never().unwrap().unwrap();
    });
    expect![[r#"
        gen_ai.operation.name=chat
        gen_ai.provider.name=openai
        gen_ai.request.model=gpt
        gen_ai.response.finish_reasons=["length"]
        gen_ai.response.id=r1
        gen_ai.usage.cache_creation.input_tokens=0
        gen_ai.usage.cache_read.input_tokens=0
        gen_ai.usage.input_tokens=12
        gen_ai.usage.output_tokens=3
        otel.kind=client
        otel.name=chat gpt
    "#]]
    .assert_eq(&told);
    let told = spans(|| {
        let model = Scripted::new([reply()]).layer(Trace::new(TraceContent::Include));
        model.respond(request()).into_reply().now_or_never().unwrap().unwrap();
    });
    assert!(told.contains("which area?") && told.contains("area 3"), "{told}");
    let told = spans(|| {
        let error = ModelError::new(ModelErrorKind::Refused, "you said area 3");
        let model = Scripted::new([error]).layer(Trace::default());
        model.respond(request()).into_reply().now_or_never().unwrap().unwrap_err();
    });
    assert!(told.contains("error.type=refused\n") && !told.contains("area 3"), "{told}");
}

/// The fields of all spans that are made meanwhile, sorted.
fn spans(act: impl FnOnce()) -> String {
    let fields = Arc::new(Mutex::new(Vec::new()));
    tracing::subscriber::with_default(Collector(Arc::clone(&fields)), act);
    let mut lines = fields.lock().unwrap().clone();
    lines.sort();
    lines.join("\n") + "\n"
}

/// A subscriber that keeps what spans say.
struct Collector(Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for &Collector {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{}={value:?}", field.name()));
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.0.lock().unwrap().push(format!("{}={value}", field.name()));
    }
}

impl tracing::Subscriber for Collector {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span()
    }

    fn new_span(&self, attributes: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        attributes.record(&mut { self });
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut { self });
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Begins, then says a word a second, and is always ready: no timeout would be looked at by waiting for it.
struct Chatterbox(&'static str, fn() -> Chunk);

impl ChatModel for Chatterbox {
    fn id(&self) -> &'static str {
        "chatterbox"
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let word = self.1;
        let begun = (!self.0.is_empty()).then(|| Chunk::Text(self.0.to_owned()));
        let words = std::iter::repeat_with(move || {
            // The clock moves on when it is polled first; to wait for others is what this stream never does.
            let _ = tokio::time::advance(Duration::from_secs(1)).now_or_never();
            word()
        });
        let end = [Chunk::Finished(FinishReason::Stop)];
        ReplyStream::from_chunks(begun.into_iter().chain(words.take(1_000)).chain(end))
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_always_ready_is_timed_out() {
    let total = Timeout::NONE.total(seconds(10));
    check(
        &Chatterbox("", || Chunk::Text("so ".to_owned())).layer(total),
        expect![[r#"
            error: timed out (chatterbox): the limit is 10s after 10s
        "#]],
    )
    .await;
}

/// What keeps a connection alive is not an answer.
#[tokio::test(start_paused = true)]
async fn a_stream_of_keep_alives_is_timed_out() {
    let limits = Timeout::NONE.first_token(seconds(5));
    check(
        &Chatterbox("", || Chunk::Usage(Usage::default())).layer(limits),
        expect![[r#"
            error: timed out before the first chunk (chatterbox): the limit is 5s after 5s
        "#]],
    )
    .await;
    let limits = Timeout::NONE.idle(seconds(7));
    check(
        &Chatterbox("so", || Chunk::Text(String::new())).layer(limits),
        expect![[r#"
            error: timed out between chunks (chatterbox): the limit is 7s after 7s
        "#]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_predicate_says_which_errors_are_worth_another_attempt() {
    let replies = || [ScriptedReply::from(ModelErrorKind::NotFound), "ok".into()];
    let (plain, asked) = (Scripted::new(replies()), Scripted::new(replies()));
    let plain = plain.layer(policy()).respond(request()).into_reply().await;
    assert_eq!(plain.unwrap_err().kind(), &ModelErrorKind::NotFound);
    let retry = policy().when(|error| error.kind() == &ModelErrorKind::NotFound);
    let reply = asked.layer(retry.clone()).respond(request()).into_reply().await.unwrap();
    assert_eq!(reply.message.text(), "ok");
    let overloaded = Scripted::new([ScriptedReply::from(ModelErrorKind::Overloaded), "never".into()]);
    let error = overloaded.layer(retry).respond(request()).into_reply().await.unwrap_err();
    assert_eq!(error.kind(), &ModelErrorKind::Overloaded);
}

#[tokio::test(start_paused = true)]
async fn a_stack_is_applied_to_several_models_with_limits_of_their_own() {
    let stack = Layers::new().with(RateLimit::per_minute(1)).with(policy());
    let models = [(); 2].map(|()| {
        let replies = [ScriptedReply::from(ModelErrorKind::Overloaded), "ok".into()];
        Scripted::new(replies).layer(stack.clone())
    });
    for model in models {
        // The repeated request waits for the rate: the limit is inside of the retry.
        let text = ask(&model).await;
        assert_eq!(text, "ok after 60s\n");
    }
}

/// The total limit is on the time of the model, not of the reader.
#[tokio::test(start_paused = true)]
async fn the_time_of_the_reader_does_not_count() {
    let limits = Timeout::NONE.first_token(seconds(5)).idle(seconds(5)).total(seconds(5));
    let mut reply = Scripted::new(["one two three four"]).layer(limits).respond(request());
    while let Some(chunk) = reply.next().await {
        chunk.unwrap();
        crate::pass(seconds(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_nothing_is_no_wish_for_haste() {
    let script = Scripted::new([limited(Some(0)), limited(Some(0)), "ok".into()]);
    let start = Instant::now();
    script.layer(policy()).respond(request()).into_reply().await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(1_500), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_estimate_of_tokens_does_not_overflow() {
    let model = Scripted::new(["ok"]).layer(RateLimit::per_minute(10).tokens_per_minute(600));
    let params = ModelParams::default().with_max_output_tokens(u64::MAX);
    model.respond(request().with_params(params)).into_reply().await.unwrap();
}
