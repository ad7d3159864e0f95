//! [4] One admitted request and its progress. Engine thread only.

use std::borrow::Cow;
use std::mem::offset_of;

use crate::ids::RequestIndex;
use crate::kv::{BlockTable, GroupBlocks, Parent};
use crate::ticket::{OVERDUE_AFTER, Rank, Ticket};
use crate::{
    BlockId, Micros, NewRequest, Pooling, RequestId, RequestKind, SlotId, SnapshotId, StepId,
    TokenId,
};

/// Where a request stands.
///
/// ```text
/// Blocked -> Waiting -> Running -> (ended) Leaving -> gone
///               ^          v
///               +---- Preempted
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waits for its leader's prompt; not in the queue.
    Blocked,
    /// In the queue, holds nothing.
    Waiting,
    /// Has a slot and blocks; prefill until `num_submitted` reaches `prefill_end`, then decode.
    Running,
    /// Left out of further plans; goes back to the queue once no submitted step names it.
    Preempted,
    /// Has ended; keeps slot and blocks until no submitted step names it.
    Leaving,
}

/// A request and its progress.
///
/// ```text
/// tokens  [0, num_prompt)             the prompt
///         [num_prompt, num_tokens())  generated and committed
/// KV      [0, num_submitted)          computed or in flight
/// ```
///
/// What every step reads shares three cache lines, in this order. With hundreds of requests each further line
/// is a cache miss per request and step.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct LiveRequest {
    pub(crate) phase: Phase,
    /// Its last row is late-sampled and the mask has not been issued.
    pub(crate) is_mask_pending: bool,
    /// Left out of the step that is being planned.
    pub(crate) is_paused: bool,
    /// Rows in flight were computed from a failed step's blocks: their results are dropped.
    pub(crate) is_tainted: bool,
    pub(crate) is_prompt_reported: bool,
    /// A step that completes the prompt has been submitted; choices that follow it may start.
    pub(crate) is_prompt_submitted: bool,
    pub(crate) has_started: bool,
    /// Of the open slot; meaningless while it waits.
    pub(crate) slot: SlotId,
    /// Submitted steps that name it.
    pub(crate) num_in_flight: u32,
    pub(crate) num_prompt: u32,
    pub(crate) num_submitted: u32,
    /// Tokens known when the slot was opened: these are computed from host ids, later ones from what
    /// the slot sampled.
    pub(crate) prefill_end: u32,
    pub(crate) table: BlockTable,
    pub(crate) num_cached: u32,
    /// Blocks found in the prefix cache when it started last, and still held.
    pub(crate) num_shared_blocks: u32,
    pub(crate) started_after: Micros,
    pub(crate) generated: Vec<TokenId>,
    pub(crate) ticket: Ticket,
    pub(crate) request: NewRequest,

    pub(crate) rank: Rank,
    /// Blocks of the groups of layers behind the first.
    pub(crate) other_groups: Vec<GroupBlocks>,
    /// Places in the block tables that were found in the prefix cache when it started last.
    pub(crate) num_shared_places: u32,
    /// Of the state after its latest tokens, if it has been committed and not replaced.
    pub(crate) last_snapshot: Option<(SnapshotId, Parent)>,
    /// Where its chain of blocks starts, if it takes part in a prefix cache.
    pub(crate) root: Option<Parent>,
    /// The latest step that fills a block it got from the prefix cache.
    pub(crate) depends_on: Option<StepId>,
    pub(crate) admitted_at: Micros,
    /// All time spent waiting before `queued_at`.
    pub(crate) waited: Micros,
    pub(crate) queued_at: Micros,
    pub(crate) num_prompt_log_probs: u32,
    /// The request whose prompt it waits for.
    pub(crate) leader: Option<RequestIndex>,
    /// Requests that wait for its prompt.
    pub(crate) followers: Vec<RequestIndex>,
}

/// Bytes of a cache line.
const LINE: usize = 64;
const _: () = {
    assert!(offset_of!(LiveRequest, table.num_registered) == LINE, "the step's part of the table");
    assert!(offset_of!(LiveRequest, generated) == 2 * LINE);
    assert!(offset_of!(LiveRequest, request.prompt) <= 4 * LINE, "what comes before is the step's");
};

impl LiveRequest {
    pub(crate) fn new(request: NewRequest, ticket: Ticket, now: Micros) -> Self {
        Self {
            phase: Phase::Waiting,
            slot: SlotId::first(0),
            num_in_flight: 0,
            num_prompt: u32::try_from(request.prompt.len()).unwrap_or(u32::MAX),
            num_submitted: 0,
            prefill_end: 0,
            is_mask_pending: false,
            is_paused: false,
            is_tainted: false,
            rank: Rank::default(),
            table: BlockTable::default(),
            generated: Vec::new(),
            request,
            ticket,
            other_groups: Vec::new(),
            num_shared_places: 0,
            last_snapshot: None,
            root: None,
            depends_on: None,
            num_cached: 0,
            num_shared_blocks: 0,
            admitted_at: now,
            waited: Micros(0),
            queued_at: now,
            has_started: false,
            started_after: Micros(0),
            is_prompt_submitted: false,
            is_prompt_reported: false,
            num_prompt_log_probs: 0,
            leader: None,
            followers: Vec::new(),
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.request.id
    }

    /// Tokens that the host knows.
    pub(crate) fn num_tokens(&self) -> u32 {
        self.num_prompt + self.num_generated()
    }

    pub(crate) fn num_generated(&self) -> u32 {
        u32::try_from(self.generated.len()).unwrap_or(u32::MAX)
    }

    /// Tokens before the first row that decodes.
    pub(crate) fn num_prefill_left(&self) -> u32 {
        self.prefill_end.saturating_sub(self.num_submitted)
    }

    pub(crate) fn is_prefill(&self) -> bool {
        self.num_submitted < self.prefill_end
    }

    /// Whether one more decode row makes sense: the tokens that submitted rows will bring count, so
    /// nothing is ever scheduled beyond `max_tokens`.
    pub(crate) fn can_decode(&self) -> bool {
        let num_promised = self.num_submitted + 1 - self.num_prompt;
        num_promised < self.request.stop.max_tokens && !self.is_mask_pending && !self.is_embedding()
    }

    pub(crate) fn is_embedding(&self) -> bool {
        matches!(self.request.kind, RequestKind::Embed(_))
    }

    /// Whether it may skip what the prefix cache holds: not while every position has a result.
    pub(crate) fn takes_cache_hits(&self) -> bool {
        let needs_all_positions = match self.request.kind {
            RequestKind::Embed(pooling) => pooling == Pooling::Mean,
            RequestKind::Generate => {
                self.request.prompt_log_probs.is_some() && self.generated.is_empty()
            }
        };
        !needs_all_positions
    }

    /// The known tokens of positions `[start, end)`; copied only where prompt and output meet.
    pub(crate) fn tokens(&self, start: u32, end: u32) -> Cow<'_, [TokenId]> {
        let (start, end, num_prompt) = (start as usize, end as usize, self.num_prompt as usize);
        if end <= num_prompt {
            Cow::Borrowed(&self.request.prompt[start..end])
        } else if start >= num_prompt {
            Cow::Borrowed(&self.generated[start - num_prompt..end - num_prompt])
        } else {
            Cow::Owned(
                [&self.request.prompt[start..], &self.generated[..end - num_prompt]].concat(),
            )
        }
    }

    /// Blocks of the positions below `end` that the executor does not know yet, group by group; now it
    /// does.
    pub(crate) fn take_unsent(&mut self, end: u32, block_size: u32) -> Vec<BlockId> {
        let places = self.table.take_unsent(end, block_size);
        if places.is_empty() {
            return Vec::new();
        }
        let mut unsent = self.table.blocks[places.clone()].to_vec();
        for other in &self.other_groups {
            unsent.extend_from_slice(&other.blocks[places.clone()]);
        }
        unsent
    }

    /// The ticket for waiting from `now` on: earlier waits count.
    pub(crate) fn queue_at(&mut self, now: Micros, block_size: u32) -> Ticket {
        self.ticket.num_blocks = self.num_tokens().div_ceil(block_size);
        self.phase = Phase::Waiting;
        self.queued_at = now;
        self.ticket.overdue_at = Micros((now.0 + OVERDUE_AFTER.0).saturating_sub(self.waited.0));
        self.ticket
    }
}
