//! Every request counts: attempts of layers, other models, summaries, repairs, nodes, rescues, images.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use stepfold_agent_loop::test_kit::Script;
use stepfold_agent_loop::{Agent, AgentBuilder, ExhaustedBudget, Exit, Outcome, Pause};
use stepfold_graph::{AgentNode, END, Graph, START};
use stepfold_runner::session_scopes::{
    AnyStore, AppId, ListSpend, MemoryStore, SessionStore, SpendRecord, SpendState,
};
use stepfold_runner::{Budget, Runner, RunnerBuilder};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, Content, Cost, FinishReason, Media, Message, ModelError, ModelErrorKind,
    ModelParams, NextAttempt, Price, PriceSource, Prices, ReplyStream, Usage,
};
use stepfold_tools::{Tool, ToolError};
use stepfold_trim::{Summarize, Trim, token_counter};

use crate::world::ManualClock;

type Items = Vec<Result<Chunk, ModelError>>;

/// A model that says what it is told, item by item, and counts the items that were asked for.
#[derive(Clone)]
struct Told {
    id: &'static str,
    replies: Arc<Mutex<VecDeque<Items>>>,
    polled: Arc<AtomicUsize>,
}

impl Told {
    fn new(id: &'static str, replies: impl IntoIterator<Item = Items>) -> Self {
        let replies = Arc::new(Mutex::new(replies.into_iter().collect()));
        Told { id, replies, polled: Arc::default() }
    }
}

impl ChatModel for Told {
    fn id(&self) -> &str {
        self.id
    }

    fn respond(&self, _: ChatRequest) -> ReplyStream {
        let items = self.replies.lock().unwrap().pop_front().unwrap_or_default();
        let polled = Arc::clone(&self.polled);
        ReplyStream::new(stream::iter(items).inspect(move |_| {
            polled.fetch_add(1, Ordering::SeqCst);
        }))
    }
}

fn says(text: &str) -> Items {
    vec![
        Ok(Chunk::Text(text.to_owned())),
        Ok(Chunk::Usage(Usage::new(10, 40))),
        Ok(Chunk::Finished(FinishReason::Stop)),
    ]
}

fn after(error: ModelErrorKind) -> NextAttempt {
    NextAttempt::after(&ModelError::new(error, "as the test wants"))
}

fn builder(model: Told) -> AgentBuilder {
    Agent::builder(model).params(ModelParams::default().with_max_output_tokens(50))
}

fn runner(agent: Agent, store: &AnyStore) -> RunnerBuilder {
    let counter = token_counter("exact", |_: &Message| 10);
    Runner::builder(agent, store.clone()).app("shop").unwrap().count_tokens_with(counter)
}

fn store() -> AnyStore {
    AnyStore::new(MemoryStore::new())
}

async fn say(runner: &Runner, message: impl Into<Message>) -> Outcome {
    let session = runner.session("ada", "s1").await.unwrap();
    Outcome::clone(&*session.run(message.into()).await.unwrap())
}

fn exhausted(outcome: &Outcome) -> &ExhaustedBudget {
    match outcome.exit() {
        Exit::Paused(Pause::Budget(exhausted)) => exhausted,
        other => panic!("the run has not paused for a budget: {other}"),
    }
}

async fn spend(store: &AnyStore) -> Vec<SpendRecord> {
    store.spend(ListSpend::new(AppId::new("shop").unwrap())).await.unwrap()
}

/// The states of the requests, sorted: their times may be equal.
async fn states(store: &AnyStore) -> Vec<&'static str> {
    let mut states: Vec<_> = spend(store).await.iter().map(|record| record.state.as_str()).collect();
    states.sort_unstable();
    states
}

#[tokio::test]
async fn each_attempt_of_a_layer_is_a_request_and_a_lost_one_counts_as_its_estimate() {
    let store = store();
    let lost = Ok(Chunk::NextAttempt(after(ModelErrorKind::Transient)));
    let refused = Ok(Chunk::NextAttempt(after(ModelErrorKind::RateLimited)));
    let model = Told::new("test/told", [[vec![lost, refused], says("done")].concat()]);
    let runner = runner(builder(model).build().unwrap(), &store).budget(Budget::tokens("all", 1_000)).build();
    assert_eq!(say(&runner, Message::user("hello")).await.text(), "done");
    assert_eq!(states(&store).await, ["settled", "unsettled"]);
    let tokens = |one: &SpendRecord| one.amounts.input_tokens + one.amounts.output_tokens;
    assert_eq!(spend(&store).await.iter().map(tokens).sum::<u64>(), 60 + 50);
}

#[tokio::test]
async fn an_attempt_that_does_not_fit_is_not_sent() {
    let store = store();
    let lost = Ok(Chunk::NextAttempt(after(ModelErrorKind::Transient)));
    let model = Told::new("test/told", [[vec![lost], says("done")].concat(), says("later")]);
    let agent = builder(model.clone()).build().unwrap();
    let few = runner(agent.clone(), &store).budget(Budget::requests("all", 1)).build();
    let outcome = say(&few, Message::user("hello")).await;
    assert_eq!((exhausted(&outcome).spent, exhausted(&outcome).reserved), (1, 0));
    assert_eq!(model.polled.load(Ordering::SeqCst), 1, "the second attempt was sent");
    let more = runner(agent, &store).budget(Budget::requests("all", 2)).build();
    assert_eq!(more.session("ada", "s1").await.unwrap().resume().await.unwrap().text(), "later");
    assert_eq!(states(&store).await, ["settled", "unsettled"]);
}

#[tokio::test]
async fn another_model_is_reserved_and_settled_at_its_own_price() {
    let dear = after(ModelErrorKind::Overloaded).of_model("test/dear");
    let answers = |name: &str| Ok(Chunk::Identity { id: None, model: Some(name.to_owned()) });
    let prices =
        Prices::new().with("test/cheap", Price::new(1.0, 1.0)).with("test/dear", Price::new(100.0, 1_000.0));
    // The provider may report a name without its own, or one that has no price: then the price of the asked model counts.
    for name in ["dear", "test/dear", "dear-as-the-provider-names-it"] {
        let reply = [vec![Ok(Chunk::NextAttempt(dear.clone())), answers(name)], says("done")].concat();
        let store = store();
        let agent = builder(Told::new("test/cheap", [reply.clone(), reply])).build().unwrap();
        let rich =
            runner(agent.clone(), &store).prices(prices.clone()).budget(Budget::usd("all", 1.0)).build();
        assert_eq!(say(&rich, Message::user("hello")).await.text(), "done");
        let spent = spend(&store).await;
        assert_eq!((spent.len(), spent[0].amounts.nanodollars), (1, Some(41_000_000)), "{name}");
        // 10 tokens at $100 and 50 at $1000 a million do not fit, while those of the cheap model would.
        let poor = runner(agent, &store).prices(prices.clone()).budget(Budget::usd("poor", 0.05)).build();
        let outcome = say(&poor, Message::user("again")).await;
        assert!(exhausted(&outcome).requested > 51_000_000, "{}", exhausted(&outcome));
    }
}

/// A source of prices that rise with time.
struct Rising;

impl PriceSource for Rising {
    fn cost(&self, model: &str, usage: &Usage, at: SystemTime) -> Option<Cost> {
        let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let price = if seconds < 1_700_000_100 { 1.0 } else { 1_000.0 };
        (model == "test/told").then(|| Price::new(price, price).cost(usage))
    }
}

#[tokio::test]
async fn models_that_the_table_does_not_have_cost_what_the_source_says_for_the_time_of_the_request() {
    let clock = ManualClock::new();
    let prices = Prices::new().with("test/own", Price::new(2.0, 2.0));
    let of = |model: &'static str, store: &AnyStore| {
        let agent = builder(Told::new(model, [says("done")])).build().unwrap();
        let runner = runner(agent, store).prices(prices.clone()).default_prices(Rising).clock(clock.clone());
        runner.budget(Budget::usd("all", 1.0)).build()
    };
    let cost = async |model| {
        let store = store();
        say(&of(model, &store), Message::user("hello")).await;
        spend(&store).await[0].amounts.nanodollars
    };
    assert_eq!((cost("test/told").await, cost("test/own").await), (Some(50_000), Some(100_000)));
    let store = store();
    let unknown = of("test/other", &store).session("ada", "s1").await.unwrap();
    let error = unknown.run("hello").await.unwrap_err();
    assert!(error.to_string().contains("unknown price of model `test/other`"), "{error}");
    clock.advance(Duration::from_secs(200));
    assert_eq!((cost("test/told").await, cost("test/own").await), (Some(50_000_000), Some(100_000)));
}

#[tokio::test]
async fn summaries_are_requests_of_their_model() {
    let store = store();
    let model = Told::new("test/told", (0..4).map(|_| says("done")));
    let short = Told::new("test/short", (0..4).map(|_| says("It was about stalls.")));
    let agent = builder(model).summary_model(short).summarize(Summarize::beyond(Trim::keep_last(1)));
    let runner = runner(agent.build().unwrap(), &store).budget(Budget::requests("all", 100)).build();
    for _ in 0..3 {
        say(&runner, Message::user("hello")).await;
    }
    let spent = spend(&store).await;
    let of = |id: &str| spent.iter().filter(|record| &*record.model == id).count();
    assert_eq!(of("test/told"), 3);
    assert!(of("test/short") > 0, "{spent:?}");
    assert!(spent.iter().all(|record| record.state == SpendState::Settled), "{spent:?}");
}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "its schema is what counts")]
struct Area {
    number: u64,
}

#[tokio::test]
async fn repairs_of_structured_output_are_requests() {
    let store = store();
    let model =
        Told::new("test/told", [says("three"), says("{\"number\": \"three\"}"), says("{\"number\": 3}")]);
    let agent = builder(model).output::<Area>().build().unwrap();
    let runner = runner(agent, &store).budget(Budget::requests("all", 100)).build();
    assert_eq!(say(&runner, Message::user("hello")).await.exit(), &Exit::Output);
    assert_eq!(states(&store).await, ["settled"; 3]);
}

/// At its limit of steps a run asks once more, for a final answer: that is a request as well, and waits for the budget.
#[tokio::test]
async fn a_final_answer_is_a_request() {
    let store = store();
    let look = || Tool::new("look", "Looks.", async || Ok::<_, ToolError>("area 3")).build().unwrap();
    let of = |limit: u64| {
        let script = "assistant: > c1 look()\nassistant: so far area 3";
        let agent = Agent::builder(Script::parse(script).unwrap());
        let agent = agent.tools([look()]).max_steps(1).final_answer().build().unwrap();
        runner(agent, &store).budget(Budget::requests("all", limit)).build()
    };
    let few = of(1);
    assert_eq!(exhausted(&say(&few, Message::user("hello")).await).spent, 1);
    let more = of(2);
    let outcome = more.session("ada", "s1").await.unwrap().resume().await.unwrap();
    assert_eq!(outcome.text(), "so far area 3");
    assert_eq!(spend(&store).await.len(), 2);
}

#[tokio::test]
async fn a_request_that_is_sent_again_because_it_was_too_long_counts_once() {
    let store = store();
    let too_long = ModelErrorKind::TooLong { limit: Some(30), used: Some(60) };
    let too_long = vec![Err(ModelError::new(too_long, "as the test wants"))];
    let model = Told::new("test/told", [says("one"), says("two"), too_long, says("three")]);
    let runner = runner(builder(model).build().unwrap(), &store).budget(Budget::requests("all", 100)).build();
    for expected in ["one", "two", "three"] {
        assert_eq!(say(&runner, Message::user("hello")).await.text(), expected);
    }
    assert_eq!(states(&store).await, ["settled"; 3]);
}

#[tokio::test]
async fn agents_of_a_graph_spend_from_the_budgets_of_its_runs() {
    let store = store();
    let node = |text| AgentNode::new(builder(Told::new("test/told", [says(text)])).build().unwrap());
    let graph = Graph::builder("clerk").node("a", node("one")).node("b", node("two"));
    let graph = graph.chain([START, "a", "b", END]).build().unwrap();
    let few = runner(graph.clone().into(), &store).budget(Budget::requests("all", 1)).build();
    assert_eq!(exhausted(&say(&few, Message::user("hello")).await).spent, 1);
    let more = runner(graph.into(), &store).budget(Budget::requests("all", 2)).build();
    more.session("ada", "s1").await.unwrap().resume().await.unwrap();
    assert_eq!(states(&store).await, ["settled"; 2]);
}

/// Messages of earlier requests of the run are not counted again: a counter sees each message once, and the sums are the same.
#[tokio::test]
async fn a_growing_conversation_is_counted_once() {
    let (seen, store) = (Arc::new(AtomicUsize::new(0)), store());
    let counts = Arc::clone(&seen);
    let counter = token_counter("counting", move |message: &Message| {
        counts.fetch_add(1, Ordering::SeqCst);
        message.text().len() + 1
    });
    let look = Tool::new("look", "Looks.", async || Ok::<_, ToolError>("area 3")).build().unwrap();
    let calls: String = (0..3).map(|call| format!("assistant: > c{call} look()\n")).collect();
    let agent = Agent::builder(Script::parse(&format!("{calls}assistant: done")).unwrap()).tools([look]);
    let agent = agent.params(ModelParams::default().with_max_output_tokens(50)).build().unwrap();
    let runner = Runner::builder(agent, store.clone()).app("shop").unwrap().count_tokens_with(counter);
    let runner = runner.budget(Budget::requests("all", 100)).build();
    runner.session("ada", "s1").await.unwrap().run("hello").await.unwrap();
    let spent = spend(&store).await;
    assert_eq!(spent.len(), 4);
    // The question, and a call and its result of each step.
    assert_eq!(seen.load(Ordering::SeqCst), 7);
    let inputs: Vec<u64> = spent.iter().map(|record| record.amounts.input_tokens).collect();
    let first = inputs[0];
    assert!(inputs.iter().enumerate().all(|(step, tokens)| *tokens == first + 2 * step as u64), "{inputs:?}");
}

#[tokio::test]
async fn images_and_files_are_part_of_the_estimate() {
    let store = store();
    let requested = async |message: Message| {
        let agent = builder(Told::new("test/told", [])).build().unwrap();
        let runner = Runner::builder(agent, store.clone()).app("shop").unwrap();
        let runner = runner.budget(Budget::tokens("none", 0)).build();
        let session = runner.create("ada", format!("s{}", fastrand::u64(..)), serde_json::json!({})).await;
        exhausted(&session.unwrap().run(message).await.unwrap()).requested
    };
    let plain = requested(Message::user("hello")).await;
    let image = Content::Image(Media::url("https://example.com/a.png"));
    let with_image = requested(Message::user("hello").with_part(image)).await;
    assert!(with_image >= plain + 500, "{with_image} tokens with an image, {plain} without");
}
