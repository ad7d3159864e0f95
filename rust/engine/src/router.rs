//! [3] Which of several engines takes a request: the policy. Plain data without clock and threads: the
//! same requests and the same loads, in the same order, give the same choices.
//!
//! A request goes where it costs the least: its own prompt tokens that the engine has not cached, the
//! prompt tokens queued before it, and a share of each step for every choice that runs or waits there.
//! Two rules stand above that. No engine takes a request while it has many more choices than the least
//! busy one, or no slot left where another one has, however much it has cached. A session stays on its engine as long as that rule allows it.

use std::collections::HashMap;

use ingle_core::TenantId;

/// Chooses engines and remembers its choices.
#[derive(Debug)]
pub(crate) struct Router {
    /// The engine that each session was sent to last.
    sessions: Sessions,
    /// The same for each tenant; as many as there are API keys.
    tenants: HashMap<TenantId, usize>,
    /// Prompt tokens that each engine got and had not cached.
    sent_tokens: Vec<u64>,
}

/// A request as the router sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    /// Of all its prompts together.
    pub(crate) num_tokens: u64,
    /// Names the client's session, if it has one.
    pub(crate) session: Option<u64>,
    pub(crate) tenant: TenantId,
}

/// An engine as the router sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Prompt tokens of the request that its prefix cache has, or will have before the request runs.
    pub(crate) num_cached: u64,
    /// Prompt tokens of other requests that it has still to compute.
    pub(crate) num_queued: u64,
    /// Choices that run or wait there.
    pub(crate) num_choices: u32,
    /// The request would have to wait for a slot.
    pub(crate) is_full: bool,
    /// It has made no progress for so long that `/health` reports it as stuck.
    pub(crate) is_stuck: bool,
}

impl Router {
    pub(crate) fn new(num_engines: usize) -> Self {
        Self {
            sessions: Sessions::default(),
            tenants: HashMap::new(),
            sent_tokens: vec![0; num_engines],
        }
    }

    /// The number of the engine for the request; there is a candidate for each engine.
    pub(crate) fn choose(&mut self, ask: &Ask, candidates: &[Candidate]) -> usize {
        let bounds = Bounds::of(candidates);
        let may_take = |number: usize| bounds.allow(&candidates[number]);
        let of_session = ask.session.and_then(|session| self.sessions.find(session));
        let of_tenant = self.tenants.get(&ask.tenant).filter(|_| self.tenants.len() > 1).copied();
        let chosen = of_session.filter(|&number| may_take(number)).or_else(|| {
            let able = (0..candidates.len()).filter(|&number| may_take(number));
            able.min_by_key(|&number| {
                let is_foreign = of_tenant != Some(number);
                // Among equals, the one whose cache has been filled less.
                (cost(ask, &candidates[number]), is_foreign, self.sent_tokens[number], number)
            })
        });
        let chosen = chosen.unwrap_or(0);
        if let Some(session) = ask.session {
            self.sessions.put(session, chosen);
        }
        self.tenants.insert(ask.tenant, chosen);
        self.sent_tokens[chosen] += missing(ask, &candidates[chosen]);
        chosen
    }
}

/// Token rows to compute before the request's first token, and in its steps.
fn cost(ask: &Ask, candidate: &Candidate) -> u64 {
    missing(ask, candidate)
        + candidate.num_queued
        + TOKENS_A_CHOICE * u64::from(candidate.num_choices)
}

fn missing(ask: &Ask, candidate: &Candidate) -> u64 {
    ask.num_tokens.saturating_sub(candidate.num_cached)
}

/// Which engines may take a request, whatever they have cached. The least busy one always may.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// All are stuck, so that this says nothing.
    with_stuck: bool,
    /// None of the others has a free slot.
    with_full: bool,
    most_choices: u32,
}

impl Bounds {
    fn of(candidates: &[Candidate]) -> Self {
        let with_stuck = candidates.iter().all(|candidate| candidate.is_stuck);
        let able = candidates.iter().filter(|candidate| with_stuck || !candidate.is_stuck);
        let least = able.clone().map(|candidate| candidate.num_choices).min().unwrap_or(0);
        Self {
            with_stuck,
            with_full: able.clone().all(|candidate| candidate.is_full),
            most_choices: least.saturating_add((least / SLACK_SHARE).max(SLACK)),
        }
    }

    fn allow(self, candidate: &Candidate) -> bool {
        candidate.num_choices <= self.most_choices
            && (self.with_stuck || !candidate.is_stuck)
            && (self.with_full || !candidate.is_full)
    }
}

/// The engine of each recent session. At most `MAX_SESSIONS` in each map; when `now` is full it replaces
/// `before`, so the sessions not seen for longest are forgotten.
#[derive(Debug, Default)]
struct Sessions {
    now: HashMap<u64, usize>,
    before: HashMap<u64, usize>,
}

impl Sessions {
    fn find(&self, session: u64) -> Option<usize> {
        self.now.get(&session).or_else(|| self.before.get(&session)).copied()
    }

    fn put(&mut self, session: u64, engine: usize) {
        if self.now.len() >= MAX_SESSIONS && !self.now.contains_key(&session) {
            self.before = std::mem::take(&mut self.now);
        }
        self.now.insert(session, engine);
    }
}

/// What a choice that runs or waits costs those beside it, in prompt tokens: the rows that it will have
/// in their steps. Half of a usual answer of 128 tokens.
const TOKENS_A_CHOICE: u64 = 64;
/// Choices that an engine may have more than the least busy one.
const SLACK: u32 = 8;
/// With many choices it may be this part of the least busy one's.
const SLACK_SHARE: u32 = 4;
/// Sessions that are remembered, and as many again of those before: about 3 MB together.
const MAX_SESSIONS: usize = 1 << 15;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ask(num_tokens: u64) -> Ask {
        Ask { num_tokens, session: None, tenant: TenantId(0) }
    }

    fn with(num_cached: u64, num_queued: u64, num_choices: u32) -> Candidate {
        Candidate { num_cached, num_queued, num_choices, ..Candidate::default() }
    }

    #[test]
    fn a_request_goes_where_its_prefix_is_unless_the_queue_there_costs_more() {
        let mut router = Router::new(2);
        let choose =
            |router: &mut Router, first| router.choose(&ask(1000), &[first, with(0, 0, 0)]);
        assert_eq!(choose(&mut router, with(960, 0, 0)), 0);
        assert_eq!(choose(&mut router, with(960, 900, 0)), 0);
        assert_eq!(choose(&mut router, with(960, 1000, 0)), 1);
        assert_eq!(choose(&mut router, with(960, 0, 8)), 0);
        assert_eq!(choose(&mut router, with(300, 0, 8)), 1);
    }

    #[test]
    fn an_engine_that_has_many_more_choices_takes_nothing_whatever_it_has_cached() {
        let mut router = Router::new(2);
        let choose = |router: &mut Router, most, least| {
            router.choose(&ask(1 << 20), &[with(1 << 20, 0, most), with(0, 0, least)])
        };
        assert_eq!((choose(&mut router, 8, 0), choose(&mut router, 9, 0)), (0, 1));
        assert_eq!((choose(&mut router, 125, 100), choose(&mut router, 126, 100)), (0, 1));
    }

    #[test]
    fn a_session_stays_where_it_was_and_moves_for_good_when_it_must() {
        let mut router = Router::new(2);
        let of = |session| Ask { session: Some(session), ..ask(100) };
        let even = [with(0, 0, 3), with(0, 0, 3)];
        let first = router.choose(&of(7), &even);
        let mut worse = even;
        worse[first] = with(0, 5000, 6);
        worse[1 - first].num_cached = 100;
        assert_eq!(router.choose(&of(7), &worse), first, "neither queue nor cache moves it");
        assert_eq!(router.choose(&of(8), &worse), 1 - first, "another session goes elsewhere");
        worse[first].num_choices = 12;
        assert_eq!(router.choose(&of(7), &worse), 1 - first);
        assert_eq!(router.choose(&of(7), &even), 1 - first);
    }

    #[test]
    fn a_stuck_engine_takes_nothing_while_another_one_moves() {
        let mut router = Router::new(2);
        let stuck = Candidate { is_stuck: true, ..with(1000, 0, 1) };
        assert_eq!(router.choose(&ask(1000), &[stuck, with(0, 0, 200)]), 1);
        assert_eq!(router.choose(&ask(1000), &[stuck, stuck]), 0);
    }

    #[test]
    fn an_engine_without_a_free_slot_takes_nothing_while_another_has_one() {
        let mut router = Router::new(2);
        let full = Candidate { is_full: true, ..with(1000, 0, 4) };
        assert_eq!(router.choose(&ask(1000), &[full, with(0, 0, 3)]), 1);
        assert_eq!(router.choose(&ask(1000), &[full, Candidate { is_full: true, ..full }]), 0);
        let stuck = Candidate { is_stuck: true, ..with(0, 0, 0) };
        assert_eq!(
            router.choose(&ask(1000), &[full, stuck]),
            0,
            "a stuck one's slots do not count"
        );
        let of = Ask { session: Some(1), ..ask(10) };
        assert_eq!(router.choose(&of, &[with(0, 0, 0), with(0, 0, 1)]), 0);
        assert_eq!(router.choose(&of, &[full, with(0, 0, 3)]), 1, "a session moves");
    }

    #[test]
    fn idle_engines_fill_their_caches_in_turn_and_keep_a_tenant() {
        let mut router = Router::new(2);
        let idle = [Candidate::default(); 2];
        let chosen: Vec<usize> = (0..4).map(|_| router.choose(&ask(100), &idle)).collect();
        assert_eq!(chosen, [0, 1, 0, 1], "one tenant alone says nothing");
        let of = |tenant| Ask { tenant: TenantId(tenant), ..ask(100) };
        let homes: Vec<usize> = (1..4).map(|tenant| router.choose(&of(tenant), &idle)).collect();
        let again: Vec<usize> = (1..4).map(|tenant| router.choose(&of(tenant), &idle)).collect();
        assert_eq!(homes, again);
        assert!(homes.contains(&0) && homes.contains(&1));
    }

    #[test]
    fn sessions_are_bounded_and_the_oldest_go_first() {
        let mut sessions = Sessions::default();
        let many = 3 * MAX_SESSIONS as u64;
        for session in 0..many {
            sessions.put(session, 1);
            assert_eq!(sessions.find(session), Some(1));
        }
        assert!(sessions.now.len() + sessions.before.len() <= 2 * MAX_SESSIONS);
        assert_eq!(sessions.find(0), None);
        assert!(
            (many - MAX_SESSIONS as u64..many).all(|session| sessions.find(session) == Some(1))
        );
    }

    /// Requests that come and go, with caches and sessions that pull them anywhere.
    fn loads() -> impl Strategy<Value = Vec<(u8, u16, Option<u8>, u8, u8)>> {
        let session = prop::option::of(0..6_u8);
        prop::collection::vec((0..4_u8, 0..3000_u16, session, 0..5_u8, 0..3_u8), 1..200)
    }

    const MAX_NUM_SEQS: u32 = 20;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_choice_widens_the_gap_beyond_the_slack(steps in loads(), num_engines in 2..5_usize) {
            let (mut router, mut twin) = (Router::new(num_engines), Router::new(num_engines));
            let mut running = vec![0_u32; num_engines];
            for (favourite, num_cached, session, ends, tenant) in steps {
                let candidates: Vec<Candidate> = (0..num_engines)
                    .map(|number| {
                        let is_favourite = number == usize::from(favourite) % num_engines;
                        let num_cached = if is_favourite { u64::from(num_cached) } else { 0 };
                        let is_full = running[number] >= MAX_NUM_SEQS;
                        Candidate { is_full, ..with(num_cached, 0, running[number]) }
                    })
                    .collect();
                let ask = Ask {
                    num_tokens: 3000,
                    session: session.map(u64::from),
                    tenant: TenantId(u32::from(tenant)),
                };
                let chosen = router.choose(&ask, &candidates);
                prop_assert_eq!(twin.choose(&ask, &candidates), chosen, "the same again");
                let least = running.iter().copied().min().unwrap();
                prop_assert!(running[chosen] <= least + SLACK.max(least / SLACK_SHARE));
                prop_assert!(running[chosen] < MAX_NUM_SEQS || least >= MAX_NUM_SEQS);
                running[chosen] += 1;
                // An engine without work gets some as soon as another has more than the slack.
                if least == 0 && running.iter().all(|&count| count == 0 || count > SLACK + 1) {
                    prop_assert_eq!(running[chosen], 1);
                }
                let ended = usize::from(ends) % num_engines;
                running[ended] = running[ended].saturating_sub(u32::from(ends > 2));
            }
        }
    }
}
