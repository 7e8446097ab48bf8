//! A map that forgets what was used longest ago once its contents weigh too much.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// The map. `V` should be cheap to clone (an `Arc`).
pub struct Lru<K, V> {
    entries: HashMap<K, Slot<V>>,
    by_age: BTreeMap<u64, K>,
    clock: u64,
    weight: u64,
    capacity: u64,
}

struct Slot<V> {
    value: V,
    weight: u64,
    used: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> Lru<K, V> {
    /// An empty map for entries of `capacity` together.
    pub fn new(capacity: u64) -> Self {
        Self {
            entries: HashMap::new(),
            by_age: BTreeMap::new(),
            clock: 0,
            weight: 0,
            capacity,
        }
    }

    /// Looks an entry up and marks it as used.
    pub fn get(&mut self, key: &K) -> Option<V> {
        let slot = self.entries.get_mut(key)?;
        self.clock += 1;
        self.by_age.remove(&slot.used);
        self.by_age.insert(self.clock, key.clone());
        slot.used = self.clock;
        Some(slot.value.clone())
    }

    /// Adds an entry, or replaces it. One that is heavier than the whole map is not kept.
    pub fn insert(&mut self, key: K, value: V, weight: u64) {
        self.remove(&key);
        if weight > self.capacity {
            return;
        }
        self.clock += 1;
        self.weight += weight;
        self.by_age.insert(self.clock, key.clone());
        self.entries.insert(
            key,
            Slot {
                value,
                weight,
                used: self.clock,
            },
        );
        while self.weight > self.capacity {
            let Some((_, oldest)) = self.by_age.pop_first() else {
                break;
            };
            if let Some(slot) = self.entries.remove(&oldest) {
                self.weight -= slot.weight;
            }
        }
    }

    /// Forgets an entry.
    pub fn remove(&mut self, key: &K) {
        if let Some(slot) = self.entries.remove(key) {
            self.by_age.remove(&slot.used);
            self.weight -= slot.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_the_least_recently_used() {
        let mut lru = Lru::new(10);
        lru.insert(1, 'a', 4);
        lru.insert(2, 'b', 4);
        assert_eq!(lru.get(&1), Some('a'));
        lru.insert(3, 'c', 4);
        assert_eq!(
            (lru.get(&1), lru.get(&2), lru.get(&3)),
            (Some('a'), None, Some('c'))
        );
        lru.insert(4, 'd', 11);
        assert_eq!(lru.get(&4), None);
        lru.insert(1, 'z', 1);
        assert_eq!((lru.get(&1), lru.weight), (Some('z'), 5));
    }
}
