//! Random owners over a tiny pool, with hashes cut to two bits so that they collide all the time:
//! contents alone must decide what is found.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::{BlockTable, CachedBlock, ChainHasher, KvCache, Link, Parent, PrefixWatcher};
use crate::{BlockId, StepId, TokenId};

const BLOCK_SIZE: u32 = 2;
const NUM_BLOCKS: u32 = 12;

#[derive(Clone, Debug)]
enum Operation {
    /// A request with this salt and these blocks of tokens, each of one of three kinds.
    Open(u64, Vec<u32>),
    /// The owner of this number (modulo) ends; if set, a step still names it for a while.
    End(usize, bool),
    /// The leaving owner of this number (modulo) is named no more.
    Complete(usize),
    /// The block's content turns out to be worthless.
    Forget(u32),
    /// Nothing may be found any more.
    Clear,
    /// The pool hands out so many blocks from now on.
    Resize(u32),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let open = (0..2_u64, prop::collection::vec(0..3_u32, 1..5));
    let operation = prop_oneof![
        4 => open.prop_map(|(salt, kinds)| Operation::Open(salt, kinds)),
        3 => (0..9_usize, any::<bool>()).prop_map(|(who, late)| Operation::End(who, late)),
        2 => (0..9_usize).prop_map(Operation::Complete),
        1 => (0..NUM_BLOCKS).prop_map(Operation::Forget),
        1 => Just(Operation::Clear),
        2 => (0..=NUM_BLOCKS).prop_map(Operation::Resize),
    ];
    prop::collection::vec(operation, 1..120)
}

/// What a watcher has learnt.
#[derive(Debug, Default)]
struct Known(Mutex<HashSet<(u128, u64)>>);

impl PrefixWatcher for Known {
    fn added(&self, block: &CachedBlock<'_>) {
        let is_new = self.0.lock().unwrap().insert((block.hash, block.serial));
        assert!(is_new, "{block:?} is added twice");
    }

    fn removed(&self, hash: u128, serial: u64) {
        let was_there = self.0.lock().unwrap().remove(&(hash, serial));
        assert!(was_there, "hash {hash} is removed and was not there");
    }

    fn cleared(&self) {
        self.0.lock().unwrap().clear();
    }
}

/// The pool and what its blocks really hold.
struct Model {
    kv: KvCache,
    known: Arc<Known>,
    content: HashMap<BlockId, (u64, Vec<TokenId>)>,
    owners: Vec<BlockTable>,
    leaving: Vec<BlockTable>,
}

impl Model {
    fn open(&mut self, salt: u64, kinds: &[u32]) {
        let tokens: Vec<TokenId> =
            kinds.iter().flat_map(|&kind| [TokenId(kind), TokenId(kind + 1)]).collect();
        let prefix = |place: usize| (salt, tokens[..(place + 1) * BLOCK_SIZE as usize].to_vec());
        let block_tokens = |place: usize| &tokens[place * 2..place * 2 + 2];
        let mut parent = Parent::Salt(salt);
        let mut found = Vec::new();
        for (place, &kind) in kinds.iter().enumerate() {
            let Some(block) = self.kv.prefix.block_of(0, hash(kind)) else { break };
            if !self.kv.prefix.matches(block, &link(hash(kind), parent, block_tokens(place))) {
                break;
            }
            assert_eq!(self.content[&block], prefix(place), "a hit on another prefix");
            parent = self.kv.prefix.as_parent(block);
            found.push(block);
        }
        let num_unowned = found.iter().filter(|&&block| self.kv.pool.is_unowned(block)).count();
        let num_available = self.kv.num_available() as usize - num_unowned;
        if kinds.len() - found.len() > num_available {
            return;
        }
        for &block in &found {
            self.kv.pool.share(block);
        }
        let mut table = BlockTable::default();
        table.open(&found, 0, Some(parent));
        for place in found.len()..kinds.len() {
            let block = self.kv.allocate().unwrap();
            assert!(block.0 < self.kv.pool.end(), "block {block} has no memory");
            let held = |table: &BlockTable| table.blocks.contains(&block);
            assert!(
                !self.owners.iter().chain(&self.leaving).any(held),
                "block {block} has an owner"
            );
            table.blocks.push(block);
            self.content.insert(block, prefix(place));
        }
        for (place, &kind) in kinds.iter().enumerate().skip(found.len()) {
            let link = link(hash(kind), parent, block_tokens(place));
            parent = self.kv.register(table.blocks[place], &link, StepId(1));
        }
        self.owners.push(table);
    }

    fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Open(salt, kinds) => self.open(*salt, kinds),
            Operation::End(who, is_late) if !self.owners.is_empty() => {
                let mut table = self.owners.swap_remove(who % self.owners.len());
                if *is_late {
                    table.blocks.iter().for_each(|&block| self.kv.pool.leave(block));
                    self.leaving.push(table);
                } else {
                    table.close().for_each(|block| self.kv.pool.release(block));
                }
            }
            Operation::Complete(who) if !self.leaving.is_empty() => {
                let mut table = self.leaving.swap_remove(who % self.leaving.len());
                table.close().for_each(|block| self.kv.pool.release_leaving(block));
            }
            Operation::Forget(block) => self.kv.forget(BlockId(*block)),
            Operation::Clear => {
                let num_known = self.known.0.lock().unwrap().len();
                assert_eq!(self.kv.forget_all() as usize, num_known);
            }
            Operation::Resize(end) => {
                self.kv.set_end(*end);
                let tables = self.owners.iter().chain(&self.leaving);
                let owned: HashSet<BlockId> =
                    tables.flat_map(|table| table.blocks.iter().copied()).collect();
                let beyond = owned.iter().filter(|block| block.0 >= *end).count();
                assert_eq!(self.kv.pool.num_owned_beyond() as usize, beyond);
                let last = owned.iter().map(|block| block.0 + 1).max();
                assert_eq!(self.kv.pool.owned_end(), last.unwrap_or(0));
            }
            Operation::End(..) | Operation::Complete(_) => {}
        }
        let mut owners = vec![(0, 0); NUM_BLOCKS as usize];
        for block in self.owners.iter().flat_map(|table| &table.blocks) {
            owners[block.index()].0 += 1;
        }
        for block in self.leaving.iter().flat_map(|table| &table.blocks) {
            owners[block.index()].1 += 1;
        }
        self.kv.pool.verify_owners(&owners);
        self.kv.verify();
        let known = self.known.0.lock().unwrap();
        for kind in 0..2 {
            let is_found = self.kv.prefix.block_of(0, hash(kind)).is_some();
            let is_known = known.iter().any(|&(known, _)| known == hash(kind));
            assert_eq!(is_known, is_found, "what the watcher knows of {kind}");
        }
    }
}

fn link(hash: u128, parent: Parent, tokens: &[TokenId]) -> Link<'_> {
    Link { group: 0, hash, parent, tokens }
}

fn hash(kind: u32) -> u128 {
    u128::from(kind & 1)
}

proptest! {
    #[test]
    fn test_blocks_are_conserved_and_hits_are_exact_under_collisions(operations in operations()) {
        let (mut kv, known) = (KvCache::new(NUM_BLOCKS, BLOCK_SIZE, 0), Arc::<Known>::default());
        kv.prefix.watch(known.clone());
        let mut model = Model {
            kv,
            known,
            content: HashMap::new(),
            owners: Vec::new(),
            leaving: Vec::new(),
        };
        for operation in &operations {
            model.apply(operation);
        }
    }
}

#[test]
fn test_evicted_parent_hides_its_children_for_good() {
    let mut kv = KvCache::new(4, BLOCK_SIZE, 0);
    let tokens = [[TokenId(1), TokenId(2)], [TokenId(3), TokenId(4)]];
    let (first, second) = (kv.allocate().unwrap(), kv.allocate().unwrap());
    let parent = kv.register(first, &link(10, Parent::Salt(0), &tokens[0]), StepId(1));
    kv.register(second, &link(11, parent, &tokens[1]), StepId(1));
    assert!(kv.prefix.matches(second, &link(11, parent, &tokens[1])));
    kv.forget(first);
    let again = kv.allocate().unwrap();
    let parent = kv.register(again, &link(10, Parent::Salt(0), &tokens[0]), StepId(2));
    let same = link(11, parent, &tokens[1]);
    assert!(!kv.prefix.matches(second, &same), "its parent was another entry");
}

#[test]
fn test_groups_keep_blocks_of_one_hash_apart_and_are_hidden_with_the_first() {
    let mut kv = KvCache::new(4, BLOCK_SIZE, 0);
    let known = Arc::<Known>::default();
    kv.prefix.watch(known.clone());
    let tokens = [TokenId(1), TokenId(2)];
    let (first, second) = (kv.allocate().unwrap(), kv.allocate().unwrap());
    let parent = kv.register(first, &link(10, Parent::Salt(0), &tokens), StepId(1));
    let beside = |parent| Link { group: 1, ..link(10, parent, &tokens) };
    kv.register(second, &beside(parent), StepId(1));
    assert_eq!(kv.prefix.block_of(0, 10), Some(first));
    assert_eq!(kv.prefix.block_of(1, 10), Some(second));
    assert!(kv.prefix.matches(second, &beside(parent)));
    assert!(!kv.prefix.matches(second, &link(10, parent, &tokens)), "of another group");
    assert_eq!(known.0.lock().unwrap().len(), 1, "the watcher hears of the first group");
    kv.forget(first);
    let again = kv.allocate().unwrap();
    let parent = kv.register(again, &link(10, Parent::Salt(0), &tokens), StepId(2));
    assert!(!kv.prefix.matches(second, &beside(parent)), "it stood beside another entry");
    kv.verify();
}

#[test]
fn test_a_prompt_has_the_hashes_of_its_full_blocks() {
    let tokens: Vec<TokenId> = (0..7).map(TokenId).collect();
    let mut kv = KvCache::new(1, BLOCK_SIZE, 5);
    let mut before = kv.prefix.root_hash(Parent::Salt(9));
    let mut chain = Vec::new();
    for block in tokens.chunks_exact(BLOCK_SIZE as usize) {
        before = kv.prefix.chain_hash(before, block);
        chain.push(before);
    }
    assert_eq!(chain.len(), 3);
    assert_eq!(*ChainHasher::new(BLOCK_SIZE, 5).of_prompt(9, &tokens), *chain);
    assert_ne!(*ChainHasher::new(BLOCK_SIZE, 5).of_prompt(8, &tokens), *chain);
    assert_ne!(*ChainHasher::new(BLOCK_SIZE, 6).of_prompt(9, &tokens), *chain);
}

#[test]
fn test_secret_and_salt_change_every_hash() {
    let mut hashes = std::collections::HashSet::new();
    for secret in [1, 2] {
        let mut kv = KvCache::new(1, BLOCK_SIZE, secret);
        for root in [Parent::Salt(0), Parent::Salt(1), Parent::Leader(crate::RequestId(0))] {
            let root = kv.prefix.root_hash(root);
            hashes.insert(kv.prefix.chain_hash(root, &[TokenId(1), TokenId(2)]));
        }
    }
    assert_eq!(hashes.len(), 6);
}
