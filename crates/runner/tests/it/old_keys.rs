//! A repeated `run_as` with the key of an old run reads that run, and not the session.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use stepfold_agent_loop::Agent;
use stepfold_runner::session_scopes::{
    AnyStore, AppendEvent, Claim, ClaimSession, CreateSession, DeleteSession, Deleted, DequeueInput,
    EnqueueInput, Enqueued, FindEvent, FindTagged, ForkSession, GetSession, InboxEntry, ListSessions,
    PruneSession, Pruned, ReadInbox, Receipt, ReleaseClaim, RenewClaim, Renewed, RewindSession, ScopeKey,
    ScopeValues, Session, SessionError, SessionPage, SessionStore, WriteScope,
};
use stepfold_runner::{RunReport, Runner, SessionHandle};
use stepfold_state_core::chat::{ChatModel, ChatRequest, Chunk, FinishReason, ReplyStream};
use stepfold_state_core::state::ValueRef;

use crate::world::{each_store, hand_on, over_each_store, process};

/// A store that counts the events that are read.
#[derive(Clone)]
struct Counting {
    store: AnyStore,
    events: Arc<AtomicUsize>,
}

impl SessionStore for Counting {
    async fn get(&self, request: GetSession) -> Result<Session, SessionError> {
        let session = self.store.get(request).await?;
        self.events.fetch_add(session.events.len(), Ordering::SeqCst);
        Ok(session)
    }

    hand_on! { store =>
        create: CreateSession => Session;
        find_event: FindEvent => Option<u64>;
        find_tagged: FindTagged => Vec<Option<u64>>;
        list: ListSessions => SessionPage;
        delete: DeleteSession => Deleted;
        append: AppendEvent => Receipt;
        fork: ForkSession => Session;
        rewind: RewindSession => Receipt;
        read_scope: ScopeKey => ScopeValues;
        write_scope: WriteScope => ScopeValues;
        prune: PruneSession => Pruned;
        claim: ClaimSession => Claim;
        renew: RenewClaim => Renewed;
        release: ReleaseClaim => ();
        enqueue: EnqueueInput => Enqueued;
        inbox: ReadInbox => Vec<InboxEntry>;
        dequeue: DequeueInput => Vec<u64>;
    }
}

/// Repeats what it is asked.
struct Echo;

impl ChatModel for Echo {
    fn id(&self) -> &'static str {
        "echo"
    }

    fn respond(&self, request: ChatRequest) -> ReplyStream {
        let said = request.messages.last().map(|message| message.text().into_owned()).unwrap_or_default();
        ReplyStream::from_chunks([Chunk::Text(said), Chunk::Finished(FinishReason::Stop)])
    }
}

async fn session(store: &Counting) -> SessionHandle {
    let agent = Agent::builder(Echo).build().unwrap();
    Runner::builder(agent, store.clone()).app("old").unwrap().build().session("ada", "s1").await.unwrap()
}

/// The report for a key in a process that has not read the session, and how many events that reads.
async fn repeated(store: &Counting, turn: usize) -> (RunReport, usize) {
    let session = session(store).await;
    store.events.store(0, Ordering::SeqCst);
    let report = session.run_as(format!("k{turn}"), format!("turn {turn}")).await.unwrap();
    (report, store.events.load(Ordering::SeqCst))
}

async fn old_keys(store: AnyStore) {
    let store = Counting { store, events: Arc::default() };
    let writer = session(&store).await;
    let mut reports = Vec::new();
    for turn in 0..200 {
        reports.push(writer.run_as(format!("k{turn}"), format!("turn {turn}")).await.unwrap());
        if turn == 10 || turn == 199 {
            let (report, read) = repeated(&store, 3).await;
            assert_eq!((&report, &*report.text), (&reports[3], "turn 3"));
            // A page, and the event with the input, which is compared.
            assert!(read <= 17, "{read} events were read after {turn} turns");
        }
    }
    // In the process that has the session in memory, too.
    store.events.store(0, Ordering::SeqCst);
    assert_eq!(writer.run_as("k100", "turn 100").await.unwrap(), reports[100]);
    let read = store.events.load(Ordering::SeqCst);
    assert!(read <= 17, "{read} events were read");

    // What a rewind has hidden is told by the whole record, as before.
    writer.rewind(reports[150].version).await.unwrap();
    assert_eq!(repeated(&store, 160).await.0, reports[160]);
    assert_eq!(repeated(&store, 150).await.0, reports[150]);
}

over_each_store!(an_old_key_is_found_by_an_index: old_keys);

/// The outcome of an old run has the session's values of then, in the process that ran it and in one that knows nothing.
#[test]
fn the_outcome_of_an_old_run_has_the_values_of_its_end() {
    let script: String =
        (0..4).map(|turn| format!("assistant: > c{turn} save()\nassistant: done {turn}\n")).collect();
    each_store(|world| {
        process(async {
            let values = async |session: &SessionHandle, turn: usize| {
                let sent = session.send_once(format!("k{turn}"), format!("turn {turn}")).await.unwrap();
                let outcome = sent.await.unwrap();
                assert_eq!(outcome.text(), format!("done {turn}"));
                ["n", "log"].map(|key| outcome.state().get(key).map(ValueRef::to_json))
            };
            let session = world.session(world.agent(&script)).await;
            for turn in 0..4 {
                let then = [Some(json!(turn + 1)), Some(json!(vec!["save"; turn + 1]))];
                assert_eq!(values(&session, turn).await, then);
                let knows_nothing = world.session(world.agent("")).await;
                for old in 0..=turn {
                    let then = [Some(json!(old + 1)), Some(json!(vec!["save"; old + 1]))];
                    assert_eq!(values(&session, old).await, then, "turn {old} after {turn}");
                    assert_eq!(values(&knows_nothing, old).await, then, "turn {old} after {turn}");
                }
            }
        });
    });
}
