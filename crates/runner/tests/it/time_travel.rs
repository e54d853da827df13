//! The laws of time travel: whatever a session has gone through, each of its versions can be forked, rewound to, stored
//! and replayed, and nothing of it depends on what others do meanwhile, or on the store.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use expect_test::expect;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;
use stepfold_graph::{AgentNode, END, Graph, NodeContext, NodeError, START, Update};
use stepfold_runner::agent_loop::test_kit::Script;
use stepfold_runner::agent_loop::trim::{Summarize, Trim};
use stepfold_runner::agent_loop::{Agent, AgentBuilder, Decision, Input, Run};
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, CreateSession, DeleteSession, Deleted, EnqueueInput, EventRange, ForkSession,
    GetSession, IdempotencyKey, InboxKind, ListSessions, PostgresOptions, PruneBound, PruneSession, Pruned,
    Receipt, RewindSession, ScopeKey, ScopeValues, Session, SessionError, SessionPage, SessionStore,
    Timestamp, WriteScope,
};
use stepfold_runner::{Runner, RunnerError, RunnerErrorKind, SessionHandle};
use stepfold_state_core::chat::{
    ChatModel, ChatRequest, Chunk, FinishReason, Message, ReplyStream, Role, ToolCall,
};
use stepfold_state_core::state::{Handler, Schema, State, ValueRef};
use stepfold_tools::{Approval, Effect, Tool, ToolContext, ToolError, Toolset};

use crate::world::{Fault, World, each_store, one_of, process};

/// The keys that were handed out, over all processes.
#[derive(Clone, Default)]
struct Keys(Arc<Mutex<Vec<String>>>);

impl Keys {
    fn tool(&self, name: &str) -> Tool {
        let (keys, word) = (self.clone(), name.to_owned());
        let function = move |context: ToolContext| {
            keys.0.lock().unwrap().push(context.idempotency_key().to_owned());
            let word = word.clone();
            async move {
                context.writer().set("log", json!([word]))?;
                context.writer().set("n", json!(1))?;
                context.writer().set("app:n", json!(1))?;
                let n = context.state().get("n").map(ValueRef::to_json);
                Ok::<_, ToolError>(json!(format!("{word} at {}", n.unwrap_or_default())))
            }
        };
        let tool = Tool::new(name, "Does what its name says.", function).effect(Effect::Idempotent);
        let tool = tool.writes(["log", "n", "app:n"]);
        let tool = if name == "see" { tool.reads(["n"]) } else { tool };
        tool.approval(if name == "pay" { Approval::Always } else { Approval::Never }).build().unwrap()
    }

    fn handed_out(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// An interrupted call runs again under its own key.
    fn forget_repeats(&self, since: usize) {
        let mut keys = self.0.lock().unwrap();
        let mut seen = HashSet::new();
        let once: Vec<String> = keys.drain(since..).filter(|key| seen.insert(key.clone())).collect();
        keys.extend(once);
    }

    fn are_distinct(&self) -> bool {
        let keys = self.0.lock().unwrap();
        keys.iter().collect::<HashSet<_>>().len() == keys.len()
    }
}

fn schema() -> Schema {
    let schema =
        Schema::builder().key::<String>("app:motto").key::<Vec<String>>("log").key::<String>("topic");
    let schema = schema.key::<u64>("n").handler(Handler::sum());
    schema.key::<u64>("app:n").handler(Handler::sum()).build().unwrap()
}

/// Calls the tools that the user names, all in one reply, and then says that it is done.
struct ByWords;

impl ChatModel for ByWords {
    fn id(&self) -> &'static str {
        "test/by-words"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        request.messages.check().unwrap();
        let said = request.messages.iter().rev().find(|message| message.role() == Role::User);
        let said = said.map(|message| message.text().into_owned()).unwrap_or_default();
        let has_called = request.messages.last().is_some_and(|message| message.role() == Role::Tool);
        let words = said.split_whitespace().filter(|_| !has_called);
        let message = words.fold(Message::new(Role::Assistant), |message, word| {
            let arguments = if word == "clerk" { json!({"task": "pay look"}) } else { json!({}) };
            message.with_part(ToolCall::new("c1", word, arguments))
        });
        let (message, reason) = match message.has_tool_calls() {
            true => (message, FinishReason::ToolCalls),
            false => (Message::assistant(format!("done: {said}")), FinishReason::Stop),
        };
        ReplyStream::from_chunks(Chunk::of(&message).into_iter().chain([Chunk::Finished(reason)]))
    }
}

/// An agent whose instructions show a value that all sessions share, with tools, one of which is an agent that asks.
fn agent(keys: &Keys) -> AgentBuilder {
    let clerk = Agent::builder(ByWords).name("clerk").schema(schema());
    let clerk = clerk.tools([keys.tool("pay"), keys.tool("look")]).build().unwrap();
    let clerk = clerk.as_tool("clerk", "Pays.").share(["n"]).build().unwrap();
    Agent::builder(ByWords)
        .name("office")
        .schema(schema())
        .instructions("Be {app:motto?}. Look at {topic?}.")
        .tools([keys.tool("look"), keys.tool("see"), keys.tool("pay"), clerk])
}

/// Another session of the application changes what all of them share.
async fn others_write(world: &World, motto: &str) {
    let schema = stepfold_runner::session_scopes::SessionSchema::new(schema());
    let delta = [schema.schema().write("app:motto", motto).unwrap()].into_iter().collect();
    let scope = ScopeKey::app("stalls").unwrap();
    world.store().write_scope(WriteScope::new(scope, delta, &schema)).await.unwrap();
}

/// Approves until nothing is pending.
async fn finish(session: &SessionHandle) {
    while session.last_run().await.unwrap().is_some_and(|run| run.exit().is_none()) {
        let pending = session.pending().await.unwrap();
        let approve = pending.into_iter().map(|request| (request.id, Decision::Approve));
        session.resume().decide_all(approve.collect::<Vec<_>>()).await.unwrap();
    }
}

async fn say(session: &SessionHandle, words: &str) {
    session.run(words).await.unwrap();
    finish(session).await;
}

async fn version(session: &SessionHandle) -> u64 {
    session.read(EventRange::None).await.unwrap().version
}

/// The conversation, and the values of the session's own.
async fn shown(session: &SessionHandle) -> String {
    let run = session.last_run().await.unwrap();
    let mut text = run.map(|run| run.transcript().to_string()).unwrap_or_default();
    let stored = session.read(EventRange::All).await.unwrap();
    let serde_json::Value::Object(mut values) = stored.to_json() else { unreachable!() };
    values.sort_keys();
    for (key, value) in values.into_iter().filter(|(key, _)| !key.starts_with("app:")) {
        writeln!(text, "{key} = {value}").unwrap();
    }
    text
}

/// A store that refuses all writes.
struct Refusing(AnyStore);

fn refused<T>() -> Result<T, SessionError> {
    Err(SessionError::Store { what: "write", source: "the store is for reading only".into() })
}

impl SessionStore for Refusing {
    async fn create(&self, _: CreateSession) -> Result<Session, SessionError> {
        refused()
    }

    async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
        self.0.get(request).await
    }

    async fn list(&self, request: ListSessions) -> Result<SessionPage, SessionError> {
        self.0.list(request).await
    }

    async fn append(&self, _: AppendEvent) -> Result<Receipt, SessionError> {
        refused()
    }

    async fn delete(&self, _: DeleteSession) -> Result<Deleted, SessionError> {
        refused()
    }

    async fn fork(&self, _: ForkSession) -> Result<Session, SessionError> {
        refused()
    }

    async fn rewind(&self, _: RewindSession) -> Result<Receipt, SessionError> {
        refused()
    }

    async fn read_scope(&self, scope: ScopeKey) -> Result<ScopeValues, SessionError> {
        self.0.read_scope(scope).await
    }

    async fn write_scope(&self, _: WriteScope) -> Result<ScopeValues, SessionError> {
        refused()
    }

    async fn prune(&self, _: PruneSession) -> Result<Pruned, SessionError> {
        refused()
    }
}

/// Neither a model nor a tool is asked, and nothing is written, not even for a moment.
#[test]
fn a_replay_writes_nothing() {
    each_store(|world| {
        process(async {
            let agent = || agent(&Keys::default());
            let session = world.session(agent()).await;
            say(&session, "look pay").await;
            let fork = session.fork("fork", Some(2)).await.unwrap();
            finish(&fork).await;
            let store = Refusing(AnyStore::new(world.store()));
            let runner = Runner::builder(agent().build().unwrap(), store).app("stalls").unwrap().build();
            for id in ["s1", "fork"] {
                let session = runner.session("ada", id).await.unwrap();
                assert_eq!(session.replay(runner.agent()).await.unwrap(), 1);
            }
        });
    });
}

/// What a session goes through.
#[derive(Clone, Debug)]
enum Next {
    /// A turn, whose tools are called in one reply.
    Say(Vec<&'static str>),
    /// A turn in a process that dies at this append, before it is made or after; another process continues.
    Dies { words: Vec<&'static str>, append: usize, fault: Fault },
    /// Others write to what is shared.
    Others(&'static str),
    /// Back to some version, in percent of those that there are.
    Rewind(u64),
    /// Retention deletes the events up to some version, in percent of those that there are.
    Prune(u64),
}

/// A session, and what is done with its forks.
#[derive(Clone, Debug)]
struct Story {
    /// The agent is a node of a graph.
    is_graph: bool,
    /// The session is created with values.
    is_created: bool,
    nexts: Vec<Next>,
    /// The fork at this version, in percent of those that there are, is deleted and made again, and forked itself.
    again: u64,
}

impl Story {
    fn agent(&self, keys: &Keys) -> Agent {
        let instructions = "Be {app:motto?}. Look at {topic?}, {n?} times.";
        let office = agent(keys).instructions(instructions).build().unwrap();
        if !self.is_graph {
            return office;
        }
        let end =
            |_: NodeContext| async move { Ok::<_, NodeError>(Update::new().set("log", json!(["end"]))) };
        let graph = Graph::builder("office").schema(schema());
        let graph = graph.node("office", AgentNode::new(office)).node("end", end);
        graph.chain([START, "office", "end", END]).build().unwrap().agent().clone()
    }

    fn has_rewound(&self) -> bool {
        self.nexts.iter().any(|next| matches!(next, Next::Rewind(_)))
    }
}

fn stories() -> impl Strategy<Value = Story> {
    let words = prop::sample::select(vec!["look", "see", "pay", "clerk"]);
    let say = || prop::collection::vec(words.clone(), 0..4);
    let fault = prop::sample::select(vec![Fault::DiesBefore, Fault::DiesAfter]);
    let dies = (say(), 0_usize..8, fault);
    let next = prop_oneof![
        4 => say().prop_map(Next::Say),
        2 => dies.prop_map(|(words, append, fault)| Next::Dies { words, append, fault }),
        1 => prop::sample::select(vec!["brief", "kind"]).prop_map(Next::Others),
        1 => (0_u64..100).prop_map(Next::Rewind),
        1 => (0_u64..100).prop_map(Next::Prune),
    ];
    let nexts = (say().prop_map(Next::Say), prop::collection::vec(next, 0..3));
    let nexts = nexts.prop_map(|(first, rest)| [vec![first], rest].concat());
    (any::<bool>(), any::<bool>(), nexts, 0_u64..=100)
        .prop_map(|(is_graph, is_created, nexts, again)| Story { is_graph, is_created, nexts, again })
}

/// A session at a version: its messages, with their versions, and its values.
#[derive(Clone, Debug)]
struct Stage {
    version: u64,
    oldest: u64,
    said: Vec<(u64, Arc<Message>)>,
    values: String,
}

impl Stage {
    async fn of(session: &SessionHandle) -> Self {
        let stored = session.read(EventRange::All).await.unwrap();
        let said = stored.visible_events().flat_map(|committed| {
            let messages = committed.event.messages.iter();
            messages.map(move |message| (committed.version, message.clone()))
        });
        let said = said.collect();
        let serde_json::Value::Object(mut values) = stored.to_json() else { unreachable!() };
        values.retain(|key, _| !key.starts_with("app:"));
        values.sort_keys();
        let values = serde_json::Value::Object(values).to_string();
        Stage { version: stored.version, oldest: stored.oldest, said, values }
    }

    /// What is left of it after retention, with its calls numbered: the ids of calls that were deleted, or whose turn has
    /// lost its beginning, are free again, and a fork gives them to its own.
    fn without(&self, oldest: u64) -> String {
        let (mut count, mut numbers, mut text) = (0, HashMap::new(), String::new());
        for (_, message) in self.said.iter().filter(|(version, _)| *version > oldest) {
            for call in message.tool_calls() {
                count += 1;
                numbers.insert(&call.id, count);
            }
            let number = |text: String, (id, number): (&&String, &i32)| {
                text.replace(&format!("{id:?}"), &format!("call {number}"))
            };
            text += &numbers.iter().fold(format!("{message:?}\n"), number);
        }
        text + &self.values
    }
}

/// The session in its last process, and as it was after each step.
async fn go_through(world: &World, story: &Story, keys: &Keys) -> (SessionHandle, Vec<Stage>) {
    let open = async || {
        let runner = world.runner(story.agent(keys)).build();
        runner.session("ada", "s1").await.unwrap()
    };
    if story.is_created {
        let runner = world.runner(story.agent(keys)).build();
        runner.create("ada", "s1", json!({"topic": "stalls", "n": 3})).await.unwrap();
    }
    let mut session = open().await;
    let mut stages = vec![Stage::of(&session).await];
    for next in &story.nexts {
        let Stage { version, oldest, .. } = *stages.last().unwrap();
        let at = |percent: u64| oldest + (version - oldest) * percent / 100;
        match next {
            Next::Say(words) => say(&session, &words.join(" ")).await,
            Next::Dies { words, append, fault } => {
                let handed_out = keys.handed_out();
                world.wire.faults([(*append, *fault)]);
                let _ = world.wire.until_it_dies(say(&session, &words.join(" "))).await;
                world.wire.faults([]);
                session = open().await;
                finish(&session).await;
                keys.forget_repeats(handed_out);
            }
            Next::Others(motto) => others_write(world, motto).await,
            Next::Rewind(percent) => {
                session.rewind(at(*percent)).await.unwrap();
            }
            Next::Prune(percent) => {
                let prune = PruneSession::new(session.key().clone(), PruneBound::Version(at(*percent)));
                world.store().prune(prune).await.unwrap();
            }
        }
        stages.push(Stage::of(&session).await);
    }
    (session, stages)
}

/// Whether a fork that was made at a version, and has gone on, came to what its original was at the end of the run that it
/// was made in.
async fn came_to_the_same(fork: &SessionHandle, at: u64, stages: &[Stage]) {
    let oldest = stages.last().unwrap().oldest;
    let end = stages.iter().position(|stage| stage.version >= at).unwrap();
    let began_after = end.checked_sub(1).map_or(0, |before| stages[before].version);
    // A run whose beginning is gone cannot continue.
    if began_after < oldest && at < stages[end].version {
        return;
    }
    let (fork, original) = (Stage::of(fork).await.without(oldest), stages[end].without(oldest));
    assert_eq!(fork, original, "the fork at {at} went another way");
}

/// The complete result, which is the same on each store.
async fn obeys_the_laws(world: &World, story: &Story) -> String {
    let keys = Keys::default();
    let (session, stages) = go_through(world, story, &keys).await;
    let agent = story.agent(&keys);
    let mut text = shown(&session).await;
    let original = text.clone();
    let runs = session.replay(&agent).await.unwrap();
    others_write(world, "another one").await;
    assert_eq!(session.replay(&agent).await.unwrap(), runs);
    let Stage { version, oldest, .. } = *stages.last().unwrap();
    let again = oldest + (version - oldest) * story.again / 100;
    for at in oldest..=version {
        let mut fork = session.fork(format!("fork-{at}"), Some(at)).await.unwrap();
        is_stored_as_it_is(&fork).await;
        fork.replay(&agent).await.unwrap();
        finish(&fork).await;
        fork.replay(&agent).await.unwrap();
        came_to_the_same(&fork, at, &stages).await;
        if !story.has_rewound() {
            assert_eq!(session.compare(&fork).await.unwrap().common, at);
        }
        if at == again {
            let of_fork = fork.fork(format!("of-fork-{at}"), Some(at)).await.unwrap();
            finish(&of_fork).await;
            came_to_the_same(&of_fork, at, &stages).await;
            of_fork.replay(&agent).await.unwrap();
            fork.delete(false).await.unwrap();
            fork = session.fork(format!("fork-{at}"), Some(at)).await.unwrap();
            finish(&fork).await;
            came_to_the_same(&fork, at, &stages).await;
        }
        // Back, and on by another way.
        fork.rewind(oldest + (at - oldest) / 2).await.unwrap();
        say(&fork, "look see").await;
        fork.replay(&agent).await.unwrap();
        text += &shown(&fork).await;
    }
    assert!(keys.are_distinct(), "two calls share a key");
    assert_eq!(shown(&session).await, original, "a fork has changed its original");
    text
}

/// A run that waits or was interrupted is the same after it was stored and loaded.
async fn is_stored_as_it_is(session: &SessionHandle) {
    let Some(run) = session.last_run().await.unwrap() else { return };
    let loaded = Run::load(run.agent(), &run.to_json()).unwrap();
    assert_eq!(loaded.to_json(), run.to_json());
    assert_eq!(loaded.pending(), run.pending());
}

proptest! {
    #![proptest_config(one_of(64))]

    #[test]
    fn every_version_is_forked_rewound_stored_and_replayed(story in stories()) {
        let seen = Mutex::new(Vec::new());
        each_store(|world| seen.lock().unwrap().push(process(obeys_the_laws(world, &story))));
        let seen = seen.into_inner().unwrap();
        prop_assert!(seen.windows(2).all(|two| two[0] == two[1]), "the stores differ:\n{}", seen.join("\n---\n"));
    }
}

/// The ids of calls that retention deleted are free again: a fork gives one to its own call.
#[test]
fn a_fork_gives_ids_of_deleted_calls_to_its_own() {
    for percent in (0..100).step_by(8) {
        let nexts = vec![Next::Say(vec!["see"]), Next::Say(vec!["pay", "see"]), Next::Prune(percent)];
        let story = Story { is_graph: true, is_created: false, nexts, again: 92 };
        process(obeys_the_laws(&World::in_memory(), &story));
    }
}

/// The same over PostgreSQL, where time is real.
#[test]
fn every_version_is_forked_rewound_stored_and_replayed_over_postgres() {
    let Some(server) = crate::crash::server::server() else { return };
    let config = one_of(128);
    let databases = AtomicUsize::new(0);
    let law = |story: Story| {
        let in_memory = process(obeys_the_laws(&World::in_memory(), &story));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let over_postgres = runtime.block_on(async {
            let number = databases.fetch_add(1, Ordering::SeqCst);
            let address = server.database(&format!("laws_{number}")).await;
            let store = PostgresOptions::new(address).connections(1).open().await.unwrap();
            obeys_the_laws(&World::over_opened(AnyStore::new(store)), &story).await
        });
        prop_assert_eq!(in_memory, over_postgres);
        Ok(())
    };
    TestRunner::new(config).run(&stories(), law).unwrap();
}

/// Values that a session was created with, in all scopes, and what others make of them later.
#[test]
fn a_session_that_was_created_with_values_replays() {
    each_store(|world| {
        process(async {
            let agent = || agent(&Keys::default());
            let runner = world.runner(agent().build().unwrap()).build();
            let values = json!({"app:motto": "brief", "topic": "stalls", "app:n": 7});
            let session = runner.create("ada", "s1", values).await.unwrap();
            say(&session, "look").await;
            others_write(world, "kind").await;
            say(&session, "look").await;
            others_write(world, "strict").await;
            assert_eq!(session.replay(&agent().build().unwrap()).await.unwrap(), 2);
            let changed = agent().instructions("Be very {app:motto?}. Look at {topic?}.").build().unwrap();
            let error = session.replay(&changed).await.unwrap_err();
            let error = why_it_diverged(&error);
            expect![[r#"event 0 (began, step 0) differs at $.kind.began.instructions: recorded "Be brief. Look at stalls.", replayed "Be very brief. Look at stalls.""#]].assert_eq(&error);
        });
    });
}

#[test]
fn a_rewind_of_a_session_that_wrote_to_what_is_shared_replays() {
    each_store(|world| {
        process(async {
            let agent = || agent(&Keys::default()).instructions("{app:n?} times");
            let session = world.session(agent()).await;
            say(&session, "look look").await;
            let before = version(&session).await;
            say(&session, "look").await;
            session.rewind(before).await.unwrap();
            say(&session, "look").await;
            let run = session.last_run().await.unwrap().unwrap();
            assert_eq!(run.instructions(), Some("3 times"));
            assert_eq!(session.replay(&agent().build().unwrap()).await.unwrap(), 2);
        });
    });
}

#[test]
fn a_fork_whose_instructions_show_what_is_shared_replays() {
    each_store(|world| {
        process(async {
            let agent = || agent(&Keys::default());
            let session = world.session(agent()).await;
            others_write(world, "brief").await;
            say(&session, "look").await;
            others_write(world, "kind").await;
            for at in 0..=version(&session).await {
                let fork = session.fork(format!("fork-{at}"), Some(at)).await.unwrap();
                finish(&fork).await;
                say(&fork, "see").await;
                others_write(world, &format!("as {at}")).await;
                let runs = fork.replay(&agent().build().unwrap()).await.unwrap();
                assert_eq!(runs, if at == 0 { 1 } else { 2 });
            }
        });
    });
}

/// The agents of a graph see what is shared as it was when they began.
#[test]
fn a_graph_whose_agents_show_what_is_shared_replays() {
    each_store(|world| {
        process(async {
            let keys = Keys::default();
            let office = agent(&keys).build().unwrap();
            let graph = Graph::builder("office")
                .schema(schema())
                .node("first", AgentNode::new(office.clone()).asks("look"))
                .node("second", AgentNode::new(office).asks("see pay"))
                .chain([START, "first", "second", END])
                .build()
                .unwrap();
            let runner = world.runner(graph.agent().clone()).build();
            others_write(world, "brief").await;
            let session = runner.session("ada", "s1").await.unwrap();
            say(&session, "go").await;
            for at in 0..=version(&session).await {
                others_write(world, &format!("as {at}")).await;
                let fork = session.fork(format!("fork-{at}"), Some(at)).await.unwrap();
                finish(&fork).await;
                others_write(world, "kind").await;
                fork.replay(graph.agent()).await.unwrap();
            }
            assert!(keys.are_distinct());
        });
    });
}

#[test]
fn a_pruned_session_replays_from_where_its_record_begins() {
    each_store(|world| {
        process(async {
            let agent = || agent(&Keys::default()).instructions("{app:n?} times, {n?} here");
            let session = world.session(agent()).await;
            say(&session, "look look").await;
            let first = version(&session).await;
            say(&session, "look").await;
            say(&session, "see").await;
            for (keep_after, runs) in [(first - 1, 2), (first + 2, 1)] {
                let prune = PruneSession::new(session.key().clone(), PruneBound::Version(keep_after));
                world.store().prune(prune).await.unwrap();
                assert_eq!(session.replay(&agent().build().unwrap()).await.unwrap(), runs);
            }
        });
    });
}

/// At each of its versions: in the middle of runs, too. Turns that came before are gone, and others come after.
fn pruned_at_each_version(agent: impl Fn(&Keys) -> AgentBuilder) {
    each_store(|world| {
        process(async {
            let keys = Keys::default();
            let agent = || agent(&keys);
            let session = world.session(agent()).await;
            for words in ["look look", "see", "look", ""] {
                say(&session, words).await;
            }
            for at in 1..=version(&session).await {
                let fork = session.fork(format!("fork-{at}"), None).await.unwrap();
                let prune = PruneSession::new(fork.key().clone(), PruneBound::Version(at));
                world.store().prune(prune).await.unwrap();
                let runner = world.runner(agent().build().unwrap()).build();
                let fork = runner.session("ada", format!("fork-{at}")).await.unwrap();
                let runs = fork.replay(runner.agent()).await.unwrap();
                for more in 1..=2 {
                    say(&fork, "look").await;
                    let run = fork.last_run().await.unwrap().unwrap();
                    let messages = run.request().messages;
                    assert_eq!(messages.check(), Ok(()), "pruned at {at}:\n{messages}");
                    let request = messages.to_string();
                    assert!(
                        request.contains("look at "),
                        "pruned at {at}, it does not see the end:\n{request}"
                    );
                    assert_eq!(fork.replay(runner.agent()).await.unwrap(), runs + more);
                }
            }
        });
    });
}

#[test]
fn a_session_that_is_pruned_in_the_middle_of_a_step_stays_well_formed() {
    pruned_at_each_version(agent);
}

#[test]
fn a_pruned_session_of_an_agent_that_trims_replays() {
    pruned_at_each_version(|keys| agent(keys).trim(Trim::keep_last(3)));
}

#[test]
fn a_pruned_session_of_an_agent_that_summarizes_replays() {
    pruned_at_each_version(|keys| {
        let script = "assistant: So far, so good.\n".repeat(100);
        agent(keys)
            .summarize(Summarize::beyond(Trim::keep_last(1)).once(Trim::cap_messages(4)))
            .summary_model(Script::parse(&script).unwrap())
    });
}

/// The run continues in a process that finds less of the conversation than there was when it began.
#[test]
fn a_run_that_waits_continues_after_the_turns_before_it_were_pruned() {
    each_store(|world| {
        let keys = Keys::default();
        for trim in [Trim::none(), Trim::keep_last(3)] {
            let id = format!("s{}", trim.is_none());
            let agent = || agent(&keys).trim(trim.clone()).build().unwrap();
            process(async {
                let session = world.runner(agent()).build().session("ada", &*id).await.unwrap();
                say(&session, "look look").await;
                let before = version(&session).await;
                session.run("pay").await.unwrap();
                let prune = PruneSession::new(session.key().clone(), PruneBound::Version(before));
                world.store().prune(prune).await.unwrap();
            });
            process(async {
                let session = world.runner(agent()).build().session("ada", &*id).await.unwrap();
                finish(&session).await;
                let run = session.last_run().await.unwrap().unwrap();
                let request = run.request().messages.to_string();
                assert!(request.contains("user:      pay"), "{request}");
                assert_eq!(session.replay(&agent()).await.unwrap(), 1);
            });
        }
    });
}

/// Retention cuts where it falls, also in a step of an earlier turn while a run waits: what the model is shown then is
/// well-formed, and begins with a user message.
#[test]
fn a_run_that_waits_continues_after_a_turn_before_it_was_pruned_in_part() {
    each_store(|world| {
        let keys = Keys::default();
        let agent = || agent(&keys).build().unwrap();
        let open = |id: String| {
            let runner = world.runner(agent()).build();
            async move { runner.session("ada", id).await.unwrap() }
        };
        for at in 1.. {
            let id = format!("s{at}");
            let is_over = process(async {
                let session = open(id.clone()).await;
                say(&session, "look look").await;
                let before = version(&session).await;
                session.run("pay").await.unwrap();
                let prune = PruneSession::new(session.key().clone(), PruneBound::Version(at));
                world.store().prune(prune).await.unwrap();
                at == before
            });
            process(async {
                let session = open(id).await;
                finish(&session).await;
                let messages = session.last_run().await.unwrap().unwrap().request().messages;
                assert_eq!(messages.check(), Ok(()), "pruned at {at}:\n{messages}");
                let mut said = messages.iter().filter(|message| message.role() != Role::System);
                assert_eq!(said.next().unwrap().role(), Role::User, "pruned at {at}:\n{messages}");
                session.replay(&agent()).await.unwrap();
            });
            if is_over {
                break;
            }
        }
    });
}

/// Retention cuts into a run that waits, at each of its versions: the run is gone for all, and what is left of the conversation is
/// well-formed, in the session as it is and with what is said next, in the process that had it open and in another one.
#[test]
fn what_retention_leaves_of_a_run_that_waits_is_well_formed() {
    each_store(|world| {
        let keys = Keys::default();
        let open = |id: String| {
            let runner = world.runner(agent(&keys).build().unwrap()).build();
            async move { runner.session("ada", id).await.unwrap() }
        };
        let well_formed = async |session: &SessionHandle, place: &str| {
            let stored = session.state().await.unwrap().messages().clone();
            assert_eq!(stored.check(), Ok(()), "{place}:\n{stored}");
            let opens = stored.iter().find(|message| message.role() != Role::System);
            assert!(opens.is_none_or(|message| message.role() == Role::User), "{place}:\n{stored}");
        };
        process(async {
            for (words, joins) in [("look pay", false), ("clerk", false), ("look pay see", true)] {
                let session = open(format!("{words}{joins}")).await;
                say(&session, "look").await;
                let before = version(&session).await;
                session.run(words).await.unwrap();
                if joins {
                    // A user message inside of the run, from which on something is left of it. The run waits again.
                    let body = Input::from(words).to_json().unwrap();
                    let id = IdempotencyKey::new("joins").unwrap();
                    let at = Timestamp::from_micros(1);
                    let input = EnqueueInput::new(session.key().clone(), InboxKind::Steer, id, body, at);
                    world.store().enqueue(input).await.unwrap();
                    let request = session.pending().await.unwrap().remove(0);
                    session.resume().decide(request.id, Decision::Approve).await.unwrap();
                    assert_eq!(session.pending().await.unwrap().len(), 1, "it has joined");
                }
                for at in before + 1..=version(&session).await {
                    for is_open in [true, false] {
                        let id = format!("{words}-{joins}-{at}-{is_open}");
                        let fork = session.fork(id.as_str(), None).await.unwrap();
                        if is_open {
                            fork.last_run().await.unwrap().unwrap();
                        }
                        let prune = PruneSession::new(fork.key().clone(), PruneBound::Version(at));
                        world.store().prune(prune).await.unwrap();
                        let fork = if is_open { fork } else { open(id.clone()).await };
                        well_formed(&fork, &format!("{id}, pruned")).await;
                        say(&fork, "look").await;
                        well_formed(&fork, &format!("{id}, continued")).await;
                    }
                }
            }
        });
    });
}

/// Retention has cut into a run that waits: it is over for all. A process that has the session open from before continues from
/// the same conversation as one that opens it now.
#[test]
fn processes_agree_on_the_conversation_of_a_session_that_was_pruned() {
    each_store(|world| {
        process(async {
            let keys = Keys::default();
            let agent = || agent(&keys).build().unwrap();
            let open = async |id: &str| world.runner(agent()).build().session("ada", id).await.unwrap();
            for at in 1.. {
                let id = format!("s{at}");
                let early = open(&id).await;
                early.run("pay").await.unwrap();
                if at > version(&early).await {
                    break;
                }
                let prune = PruneSession::new(early.key().clone(), PruneBound::Version(at));
                world.store().prune(prune).await.unwrap();
                let late = open(&id).await;
                for session in [&late, &early, &late] {
                    say(session, "look").await;
                    let messages = session.last_run().await.unwrap().unwrap().request().messages;
                    assert_eq!(messages.check(), Ok(()), "pruned at {at}:\n{messages}");
                }
                let seen = [&early, &late].map(SessionHandle::last_run);
                let [early, late] = futures_util::future::join_all(seen).await.try_into().unwrap();
                let request = |run: Result<Option<Run>, _>| run.unwrap().unwrap().request().messages;
                assert_eq!(request(early).to_string(), request(late).to_string(), "pruned at {at}");
            }
        });
    });
}

/// The oldest version that is kept is one that a rewind took back.
#[test]
fn a_session_that_is_pruned_up_to_a_version_that_a_rewind_hid_replays() {
    each_store(|world| {
        process(async {
            let agent = || agent(&Keys::default()).instructions("{app:n?} times, {n?} here");
            let session = world.session(agent()).await;
            say(&session, "look").await;
            let first = version(&session).await;
            say(&session, "look look").await;
            let second = version(&session).await;
            session.rewind(first).await.unwrap();
            say(&session, "see").await;
            for oldest in first + 1..=second {
                let prune = PruneSession::new(session.key().clone(), PruneBound::Version(oldest));
                world.store().prune(prune).await.unwrap();
                let runs = session.replay(&agent().build().unwrap()).await.unwrap();
                assert_eq!(runs, 1, "pruned at {oldest}");
            }
        });
    });
}

/// A router chooses by what others have written while the graph waited.
#[test]
fn a_graph_that_continues_in_another_process_replays() {
    each_store(|world| {
        let keys = Keys::default();
        let graph = || {
            let word = |name: &'static str| {
                move |_: NodeContext| async move { Ok::<_, NodeError>(Update::new().set("log", json!([name]))) }
            };
            let by_motto = |state: &State| match state.get("app:motto") {
                Some(motto) if motto == "kind" => "kind",
                _ => "brief",
            };
            Graph::builder("office")
                .schema(schema())
                .node("ask", AgentNode::new(agent(&keys).build().unwrap()).asks("pay"))
                .node("brief", word("brief"))
                .node("kind", word("kind"))
                .edge(START, "ask")
                .route("ask", ["brief", "kind"], by_motto)
                .edge("brief", END)
                .edge("kind", END)
                .build()
                .unwrap()
        };
        process(async {
            others_write(world, "brief").await;
            let runner = world.runner(graph().agent().clone()).build();
            runner.session("ada", "s1").await.unwrap().run("go").await.unwrap();
            others_write(world, "kind").await;
        });
        process(async {
            let runner = world.runner(graph().agent().clone()).build();
            let session = runner.session("ada", "s1").await.unwrap();
            finish(&session).await;
            let run = session.last_run().await.unwrap().unwrap();
            assert_eq!(run.state().get("log").unwrap(), json!(["pay", "kind"]));
            others_write(world, "brief").await;
            assert_eq!(session.replay(runner.agent()).await.unwrap(), 1);
        });
    });
}

/// The tools of a server, as it lists them when it is asked.
#[test]
fn tools_that_are_asked_for_at_each_step_are_compared() {
    each_store(|world| {
        process(async {
            let keys = Keys::default();
            let remote = |names: &'static [&'static str]| {
                let keys = keys.clone();
                let agent = agent(&keys);
                agent.tools(Toolset::dynamic_with("remote", move |_| {
                    let tools = names.iter().map(|name| keys.tool(name)).collect();
                    async move { Ok(tools) }
                }))
            };
            let session = world.session(remote(&["look", "see"])).await;
            say(&session, "look").await;
            say(&session, "").await;
            assert_eq!(session.replay(&remote(&["look", "see"]).build().unwrap()).await.unwrap(), 2);
            let down = || {
                let down = Toolset::dynamic_with("remote", |_| async { Err("it is down".into()) });
                agent(&keys).tools(down)
            };
            let mut told = String::new();
            for changed in [remote(&["look", "pay"]), remote(&["see"]), down()] {
                let error = session.replay(&changed.build().unwrap()).await.unwrap_err();
                writeln!(told, "{}", why_it_diverged(&error)).unwrap();
            }
            expect![[r#"
                event 1 (replied, step 1) offers other tools, or with other bindings to the state
                event 2 (answered, step 1) differs for 'c1': recorded that it ran, replayed unknown tool 'look'; available: see
                tools of event 1 (replied, step 1) could not be listed: toolset "remote" failed to list its tools: it is down
            "#]]
            .assert_eq(&told);
        });
    });
}

fn why_it_diverged(error: &RunnerError) -> String {
    let RunnerError { kind: RunnerErrorKind::Diverged { version, source, .. }, .. } = error else {
        panic!("{error}")
    };
    assert!(error.to_string().ends_with(&format!(" diverged at version {version}: {source}")), "{error}");
    source.to_string()
}

/// What a live run would do otherwise is told for stored sessions, too.
#[test]
fn a_replay_says_where_a_live_run_would_fail() {
    each_store(|world| {
        process(async {
            let keys = Keys::default();
            let session = world.session(agent(&keys)).await;
            say(&session, "look").await;
            let told = async |agent: AgentBuilder| {
                let error = session.replay(&agent.build().unwrap()).await.unwrap_err();
                let RunnerError { kind: RunnerErrorKind::Diverged { version, .. }, .. } = error else {
                    panic!("{error}")
                };
                format!("v{version}: {}", why_it_diverged(&error))
            };
            let needy = {
                let parameters =
                    json!({"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]});
                let function = |_: stepfold_tools::RawArgs| async { Ok::<_, ToolError>(json!(1)) };
                let tool = Tool::new("look", "Looks.", function).parameters(parameters);
                tool.writes(["log", "n", "app:n"]).effect(Effect::Idempotent).build().unwrap()
            };
            let other = Schema::builder().key::<String>("topic").build().unwrap();
            let lines = [
                told(agent(&keys).tools(vec![keys.tool("see")])).await,
                told(agent(&keys).tools(vec![needy])).await,
                told(agent(&keys).tools(vec![keys.tool("look").renamed("peek").unwrap()])).await,
                told(agent(&keys).tools(Toolset::default()).schema(other).instructions("")).await,
            ];
            expect![[r#"
                v3: event 2 (answered, step 1) differs for 'c1': recorded that it ran, replayed unknown tool 'look'; available: see
                v3: event 2 (answered, step 1) differs for 'c1': recorded that it ran, replayed invalid arguments for tool 'look': "why" is a required property at $
                v3: event 2 (answered, step 1) differs for 'c1': recorded that it ran, replayed unknown tool 'look'; available: peek
                v1: state schema changed since the run was recorded: state key app:motto is gone; state key app:n is gone; state key log is gone; state key n is gone"#]].assert_eq(&lines.join("\n"));
        });
    });
}

#[test]
fn two_forks_are_compared() {
    each_store(|world| {
        process(async {
            let keys = Keys::default();
            let session = world.session(agent(&keys)).await;
            say(&session, "look").await;
            let common = version(&session).await;
            let (left, right) =
                (session.fork("left", None).await.unwrap(), session.fork("right", None).await.unwrap());
            let same = left.compare(&right).await.unwrap();
            assert!(same.is_same() && same.common == common, "{same:?}");
            say(&left, "look").await;
            say(&right, "see").await;
            let comparison = left.compare(&right).await.unwrap();
            assert_eq!(comparison.common, common);
            assert_eq!((comparison.left.len(), comparison.right.len()), (4, 4));
            let other = world.runner(agent(&keys).build().unwrap()).build();
            let stranger = other.session("ada", "stranger").await.unwrap();
            say(&stranger, "look").await;
            let changed: Vec<&str> = comparison.state.iter().map(|change| change.key.as_str()).collect();
            let text = format!("{}; changed: {}", comparison.first.unwrap(), changed.join(", "));
            expect![[r#"version 5 (began) on the left, version 5 (began) on the right; it differs at $.messages[0].parts[0].text: left "look", right "see"; changed: log, messages"#]].assert_eq(&text);
            let with_parent = session.compare(&left).await.unwrap();
            assert_eq!((with_parent.common, with_parent.left.len(), with_parent.right.len()), (common, 0, 4));
            let unrelated = left.compare(&stranger).await.unwrap();
            assert_eq!((unrelated.common, unrelated.right.len()), (0, 4));
        });
    });
}

/// Inputs are part of the record: also those that a run takes for keys that all sessions share.
#[test]
fn inputs_to_what_is_shared_replay() {
    each_store(|world| {
        process(async {
            let agent = || agent(&Keys::default());
            let session = world.session(agent()).await;
            let input = Input::new().say("look").with_values(json!({"app:motto": "loud"}));
            session.run(input).await.unwrap();
            others_write(world, "quiet").await;
            assert_eq!(session.replay(&agent().build().unwrap()).await.unwrap(), 1);
        });
    });
}
