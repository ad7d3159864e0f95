//! The last batches of one engine, for subscribers that have missed some. Publisher thread.

use std::collections::VecDeque;
use std::sync::Arc;

/// Batches with consecutive sequence numbers, the newest last.
#[derive(Debug)]
pub(super) struct History {
    batches: VecDeque<Arc<[u8]>>,
    next_sequence: u64,
    num_bytes: usize,
    max_batches: usize,
}

impl History {
    pub(super) fn new(max_batches: usize) -> Self {
        Self { batches: VecDeque::new(), next_sequence: 0, num_bytes: 0, max_batches }
    }

    /// Keeps a batch and numbers it; old ones go when there are too many, or too many bytes.
    pub(super) fn push(&mut self, batch: Arc<[u8]>) -> u64 {
        self.num_bytes += batch.len();
        self.batches.push_back(batch);
        while self.batches.len() > self.max_batches || self.num_bytes > MAX_BYTES {
            let Some(oldest) = self.batches.pop_front() else { break };
            self.num_bytes -= oldest.len();
        }
        self.next_sequence += 1;
        self.next_sequence - 1
    }

    /// The first batch from number `from` on that is still there, with its number.
    pub(super) fn first_from(&self, from: u64) -> Option<(u64, &Arc<[u8]>)> {
        let oldest = self.next_sequence - self.batches.len() as u64;
        let number = from.max(oldest);
        let place = usize::try_from(number - oldest).ok()?;
        self.batches.get(place).map(|batch| (number, batch))
    }
}

/// Of all kept batches together.
const MAX_BYTES: usize = 128 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_found_by_number_while_they_are_kept() {
        let mut history = History::new(3);
        assert_eq!(history.first_from(0), None);
        for number in 0..5_u8 {
            assert_eq!(history.push(Arc::from([number])), u64::from(number));
        }
        let first = |from| history.first_from(from).map(|(number, batch)| (number, batch[0]));
        assert_eq!((first(0), first(3), first(4)), (Some((2, 2)), Some((3, 3)), Some((4, 4))));
        assert_eq!((first(5), first(u64::MAX)), (None, None));
        let mut large = History::new(3);
        large.push(vec![0; MAX_BYTES].into());
        large.push(Arc::from([1]));
        assert_eq!(large.first_from(0).map(|(number, _)| number), Some(1));
    }
}
