//! Bounds the view within a turn: it only grows until the model's context window would overflow, then shrinks
//! by a large share.
//!
//! Providers cache the computation of a prompt and charge about a tenth for a cached prefix, which must match
//! byte for byte. A trim at every step would change the prefix of every request. So the view only grows from
//! step to step, and when it shrinks, it shrinks well below the limit, so that the next requests share a
//! prefix again.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use stepfold_state_core::chat::{Role, Transcript};

use crate::approximate::ApproximateTokens;
use crate::cleared::{self, ClearedResults};
use crate::cut::SizeUnit;
use crate::kept::MessageRanges;
use crate::pins::Pins;
use crate::tokens::TokenCounter;
use crate::view::{TrimReason, TrimRule, View, leading_systems};

/// The token limit of a conversation within a turn, and the target size after an overflow.
///
/// The limit is the model's context window minus the rest of the request and the reply: tools, instructions
/// that are not in the transcript, and the longest reply. Leave a margin that suits the counter.
///
/// # Examples
/// ```
/// use stepfold_trim::{Trim, Window, token_counter};
/// use stepfold_state_core::chat::{Message, Transcript};
///
/// let ten_each = token_counter("ten", |_| 10);
/// let window = Window::new(60).shrink_to_percent(70).counted_by(ten_each);
/// let mut log: Transcript = "user: hello\nassistant: hi\nuser: count the stalls".parse()?;
///
/// // When a turn begins, the trim selects the messages ...
/// let mut turn = window.begin(Trim::keep_last(100).view(&log), &log);
/// // ... and before each further request the view grows by the new messages,
/// let step: Transcript = "assistant: > c1 count(area=1)\ntool c1: 3".parse()?;
/// log.extend(step.iter().cloned());
/// turn = turn.grown(&log);
/// assert_eq!((turn.tokens(), turn.view().is_whole()), (50, true));
///
/// // until it would exceed the limit: then it shrinks to 70 percent or less, old turns first.
/// let step: Transcript = "assistant: > c2 count(area=2)\ntool c2: 4".parse()?;
/// log.extend(step.iter().cloned());
/// turn = turn.grown(&log);
/// assert_eq!(turn.tokens(), 30);
/// assert_eq!(turn.transcript().to_string(), "\
/// user:      count the stalls
/// assistant: > c2 count(area=2)
/// tool c2:   4
/// ");
/// # Ok::<(), stepfold_state_core::chat::NotationError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Window {
    limit: usize,
    percent: u8,
    clearing: Option<Clearing>,
    counter: Arc<dyn TokenCounter>,
}

/// The results that a window clears before it drops anything.
#[derive(Clone, Debug)]
struct Clearing {
    newest_steps: usize,
    pins: Option<Pins>,
}

impl Window {
    /// Limits the view to `limit` tokens, counted by [`ApproximateTokens`]; on overflow it shrinks to 70
    /// percent of them.
    pub fn new(limit: usize) -> Self {
        // NOTE: Far below the limit, for the prompt cache: a view that loses a little at each step has a new
        // prefix at each step (docs/decisions/trimming.md).
        Window { limit, percent: 70, clearing: None, counter: Arc::new(ApproximateTokens) }
    }

    /// The pins whose results it never clears, if it has some.
    pub fn pins(&self) -> Option<&Pins> {
        self.clearing.as_ref()?.pins.as_ref()
    }

    /// On overflow, shows the results of all but the newest `newest_steps` steps with calls as one line each, before
    /// anything is dropped; nothing is dropped if the view is at its [target](Window::target) then. For an agent that
    /// makes a hundred calls in one turn: it keeps its calls, and so knows what it has done.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::{View, Window};
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let page = "stall ".repeat(200);
    /// let step = |page_number: u32| format!("assistant: > c{page_number} read(page={page_number})\ntool c{page_number}: {page}\n");
    /// let log: Transcript = format!("user: what do the pages say?\n{}{}{}", step(1), step(2), step(3)).parse()?;
    /// let window = Window::new(500).clear_results(1);
    /// let turn = window.begin(View::whole(&log), &log);
    /// assert_eq!((turn.view().dropped(), turn.view().cleared().to_string()), (0, "2..3, 4..5".to_owned()));
    /// assert!(turn.fits());
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    #[must_use]
    pub fn clear_results(mut self, newest_steps: usize) -> Self {
        let pins = self.clearing.and_then(|clearing| clearing.pins);
        self.clearing = Some(Clearing { newest_steps, pins });
        self
    }

    /// Never clears results of the tools that `pins` name. Pins of a window keep nothing from being dropped.
    #[must_use]
    pub fn with_pins(mut self, pins: Pins) -> Self {
        if let Some(clearing) = &mut self.clearing {
            clearing.pins = Some(pins);
        }
        self
    }

    /// Sets the share of the limit that the view shrinks to; values above 100 count as 100. With a small share the view
    /// shrinks rarely, and drops many messages each time.
    #[must_use]
    pub fn shrink_to_percent(mut self, percent: u8) -> Self {
        self.percent = percent.min(100);
        self
    }

    /// Limits the view to `limit` tokens, and keeps the rest.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Counts tokens with `counter`.
    #[must_use]
    pub fn counted_by(mut self, counter: impl TokenCounter + 'static) -> Self {
        self.counter = Arc::new(counter);
        self
    }

    /// The token limit of a conversation.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// The tokens that a view shrinks to.
    pub const fn target(&self) -> usize {
        let percent = self.percent as usize;
        // NOTE: Multiplied in two parts, so that no limit overflows.
        self.limit / 100 * percent + self.limit % 100 * percent / 100
    }

    /// Begins a turn at the last user message of `log` with this `view`; shrinks it at once if it exceeds the
    /// limit.
    pub fn begin(&self, view: View, log: &Transcript) -> TurnView {
        self.resume(view, log, log.len())
    }

    /// Resumes a turn that was interrupted, or that another user message has joined: its user message is at
    /// `turn_start` of the log, and user messages from there on stay.
    ///
    /// With the [kept](View::kept) ranges of the last view, the turn continues as if it had not been
    /// interrupted.
    ///
    /// # Examples
    /// ```
    /// use stepfold_trim::{View, Window};
    /// use stepfold_state_core::chat::Transcript;
    ///
    /// let log: Transcript = "user: count\nassistant: 1\nassistant: 2\nuser: faster\nassistant: 3".parse()?;
    /// let turn = Window::new(20).resume(View::whole(&log), &log, 0);
    /// assert_eq!(turn.transcript().to_string(), "user:      count\nuser:      faster\nassistant: 3\n");
    /// # Ok::<(), stepfold_state_core::chat::NotationError>(())
    /// ```
    pub fn resume(&self, view: View, log: &Transcript, turn_start: usize) -> TurnView {
        let view = view.grown(log);
        let tokens = self.count(view.transcript());
        let last_turn = log.turn_start(log.len()).unwrap_or(0);
        let turn_start = turn_start.min(last_turn);
        let mut turn = TurnView { window: self.clone(), view, tokens, turn_start };
        turn.fit(log);
        turn
    }

    /// The reason of a change of this window, which nothing is counted in yet.
    fn reason(&self, why: TrimRule) -> TrimReason {
        TrimReason { policy: self.to_string().into(), dropped: 0, cleared: 0, why }
    }

    fn count(&self, messages: &Transcript) -> usize {
        self.measure().of_all(messages.iter().map(|message| &**message))
    }

    fn measure(&self) -> SizeUnit<'_> {
        SizeUnit::Tokens(&self.counter)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "window({} tokens, shrinks to {}", self.limit, self.target())?;
        if let Some(Clearing { newest_steps, pins }) = &self.clearing {
            write!(f, ", clears results before the newest {newest_steps} steps")?;
            if let Some(pins) = pins {
                write!(f, " but {pins}")?;
            }
        }
        f.write_str(")")
    }
}

/// The view within a turn: it grows with the log, and shrinks when the [`Window`] would overflow.
///
/// If the window [clears results](Window::clear_results), that comes first. Older turns are dropped next, whole and
/// the oldest first; then the oldest steps of this turn, whole. The leading system messages, a summary, the user
/// messages of this turn and its last step always stay; without that step the model would repeat its request. If
/// these alone exceed the limit, [`fits`](TurnView::fits) is false.
///
/// # Examples
/// ```
/// use stepfold_trim::{View, Window};
/// use stepfold_state_core::chat::{Message, Transcript};
///
/// let mut log = Transcript::new().with(Message::user("a question of some length"));
/// let turn = Window::new(1_000).begin(View::whole(&log), &log);
/// log.push(Message::assistant("an answer"));
/// let turn = turn.grown(&log);
/// assert!(turn.fits() && turn.transcript().ptr_eq(&log));
/// assert!(!Window::new(5).begin(View::whole(&log), &log).fits());
/// ```
#[derive(Clone, Debug)]
pub struct TurnView {
    window: Window,
    view: View,
    tokens: usize,
    /// The index in the log where the turn begins.
    turn_start: usize,
}

impl TurnView {
    /// The current view.
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// The messages that are sent to the model.
    pub const fn transcript(&self) -> &Transcript {
        self.view.transcript()
    }

    /// The tokens of the view.
    pub const fn tokens(&self) -> usize {
        self.tokens
    }

    /// Whether the view is within the limit. If not, nothing more can be dropped.
    pub const fn fits(&self) -> bool {
        self.tokens <= self.window.limit
    }

    /// Extends the view by the log's new messages. Unless it has to shrink, the transcript keeps its prefix,
    /// and the cost is that of the new messages.
    #[must_use]
    pub fn grown(mut self, log: &Transcript) -> Self {
        self.grow(log);
        self
    }

    /// Extends the view in place; see [`grown`](TurnView::grown).
    pub fn grow(&mut self, log: &Transcript) {
        let seen = self.view.log_length();
        self.view.grow(log);
        if log.len() < seen {
            self.tokens = self.window.count(self.view.transcript());
        } else {
            let new = log.iter_from(seen).map(|message| &**message);
            self.tokens = self.tokens.saturating_add(self.window.measure().of_all(new));
        }
        self.fit(log);
    }

    /// Shrinks the view if it exceeds the limit.
    fn fit(&mut self, log: &Transcript) {
        if self.fits() {
            return;
        }
        self.clear(log);
        if self.tokens <= self.window.target() {
            return;
        }
        let (dropped, tokens) = self.dropped(log);
        if dropped.is_empty() {
            return;
        }
        let mut reason = self.window.reason(TrimRule::Overflow);
        reason.dropped = dropped.len();
        let kept = self.view.kept().without(&dropped);
        let cleared = self.view.cleared().within(&kept);
        self.view = self.view.narrowed(log, kept, cleared, vec![reason]);
        self.tokens = tokens;
    }

    /// Clears old results, if the window does so.
    fn clear(&mut self, log: &Transcript) {
        let Some(Clearing { newest_steps, pins }) = self.window.clearing.clone() else { return };
        let counter = Arc::clone(&self.window.counter);
        let rule = ClearedResults { newest_steps, above_tokens: 0, counter, pins };
        let kept = self.view.kept();
        let shown = cleared::shown(log, kept, self.view.cleared(), self.view.reader());
        let Some(places) = rule.places(&shown) else { return };
        let mut reason = self.window.reason(TrimRule::OldResults);
        reason.cleared = places.len();
        let cleared = self.view.cleared().union(&kept.compose(&places));
        self.view = self.view.narrowed(log, kept.clone(), cleared, vec![reason]);
        self.tokens = self.window.count(self.view.transcript());
    }

    /// The oldest droppable messages, as many as needed to reach the target; and the tokens of the rest.
    fn dropped(&self, log: &Transcript) -> (MessageRanges, usize) {
        let target = self.window.target();
        let (cleared, reader) = (self.view.cleared(), self.view.reader());
        let mut dropped = MessageRanges::default();
        let mut tokens = self.tokens;
        for DroppableBlock { range, is_boundary } in self.droppable(log) {
            if is_boundary && tokens <= target {
                break;
            }
            let messages = range.clone().filter_map(|index| cleared::message(log, index, cleared, reader));
            let counts = messages.map(|message| self.window.counter.count(&message));
            tokens = counts.fold(tokens, usize::saturating_sub);
            dropped.push(range);
        }
        (dropped, tokens)
    }

    /// The droppable blocks, oldest first.
    fn droppable(&self, log: &Transcript) -> Vec<DroppableBlock> {
        let lead = leading_systems(log);
        let mut blocks = blocks(self.view.kept(), log);
        // NOTE: The last step stays: without it the model would repeat its request. So do messages after it.
        let starts = blocks.iter().map(|block| block.range.start);
        let last_step = starts.rev().find(|start| role(log, *start) == Some(Role::Assistant));
        blocks.pop();
        blocks.retain_mut(|block| {
            let start = block.range.start;
            let is_of_this_turn = start >= self.turn_start;
            let is_user = role(log, start) == Some(Role::User);
            let is_last_step = Some(start) == last_step;
            // NOTE: Messages of an earlier turn are dropped with its user message, not alone.
            block.is_boundary = is_of_this_turn || is_user;
            start >= lead && !(is_of_this_turn && (is_user || is_last_step))
        });
        if let Some(first) = blocks.first_mut() {
            first.is_boundary = true;
        }
        blocks
    }
}

/// A message and the tool messages directly after it.
struct DroppableBlock {
    range: Range<usize>,
    /// Whether the messages before it can be dropped without it.
    is_boundary: bool,
}

/// The blocks of the kept messages.
fn blocks(kept: &MessageRanges, log: &Transcript) -> Vec<DroppableBlock> {
    let mut blocks: Vec<DroppableBlock> = Vec::new();
    for index in kept.indexes() {
        match blocks.last_mut() {
            Some(block) if block.range.end == index && role(log, index) == Some(Role::Tool) => {
                block.range.end = index + 1;
            }
            _ => blocks.push(DroppableBlock { range: index..index + 1, is_boundary: false }),
        }
    }
    blocks
}

fn role(log: &Transcript, index: usize) -> Option<Role> {
    log.get(index).map(|message| message.role())
}
