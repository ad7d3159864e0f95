//! The cache salts that clients gave, by the number that the core has of them. Callers write, the publisher
//! reads. Exists only with KV events.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Salts of late. One that was not used for long may be gone; its blocks are then not published.
#[derive(Debug, Default)]
pub(crate) struct SaltTable {
    generations: Mutex<Generations>,
}

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<u64, Option<Arc<str>>>,
    old: HashMap<u64, Option<Arc<str>>>,
}

impl SaltTable {
    /// Requests of this number have this salt, or none.
    pub(crate) fn note(&self, number: u64, salt: Option<&str>) {
        let mut state = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if state.young.contains_key(&number) {
            return;
        }
        if state.young.len() >= MAX_SALTS {
            state.old = std::mem::take(&mut state.young);
        }
        state.young.insert(number, salt.map(Arc::from));
    }

    /// The salt behind a number; `None` if it is forgotten.
    pub(super) fn find(&self, number: u64) -> Option<Option<Arc<str>>> {
        let state = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        state.young.get(&number).or_else(|| state.old.get(&number)).cloned()
    }
}

/// Of one generation; there are two.
const MAX_SALTS: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_is_known_until_many_others_have_come() {
        let table = SaltTable::default();
        table.note(1, Some("a"));
        table.note(2, None);
        assert_eq!(table.find(1), Some(Some("a".into())));
        assert_eq!((table.find(2), table.find(3)), (Some(None), None));
        (3..MAX_SALTS as u64 + 3).for_each(|number| table.note(number, Some("b")));
        assert_eq!(table.find(1), Some(Some("a".into())), "of the old generation");
        (3 << 20..MAX_SALTS as u64 + (3 << 20)).for_each(|number| table.note(number, None));
        assert_eq!(table.find(1), None);
    }
}
