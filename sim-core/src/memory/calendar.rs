//! Replies waiting for their step: put in in any order, taken in order of step, and within a step
//! in order of lane.

/// A ring of rows, one per step from `base` on, with a place for every lane.
#[derive(Clone, Debug)]
pub struct Calendar<T> {
    lanes: usize,
    /// Words of a row in `taken`.
    words: usize,
    values: Vec<T>,
    /// Places that hold something: one bit per lane.
    taken: Vec<u64>,
    /// Rows; a power of two.
    rows: u64,
    /// Step of the first row that may hold something.
    base: u64,
    waiting: usize,
}

impl<T: Copy + Default> Calendar<T> {
    /// An empty calendar with so many lanes.
    pub fn new(lanes: u32) -> Calendar<T> {
        let lanes = lanes as usize;
        let words = lanes.div_ceil(64);
        let rows = 64;
        Calendar {
            lanes,
            words,
            values: vec![T::default(); rows * lanes],
            taken: vec![0; rows * words],
            rows: rows as u64,
            base: 0,
            waiting: 0,
        }
    }

    #[inline]
    fn row(&self, step: u64) -> usize {
        (step & (self.rows - 1)) as usize
    }

    /// Put `value` into `step`, which has not been taken yet; a lane holds one value a step.
    #[inline]
    pub fn put(&mut self, step: u64, lane: u32, value: T) {
        if self.waiting == 0 {
            self.base = step;
        }
        if step < self.base || step - self.base >= self.rows {
            self.make_room(step);
        }
        let (row, lane) = (self.row(step), lane as usize);
        self.values[row * self.lanes + lane] = value;
        let word = &mut self.taken[row * self.words + lane / 64];
        debug_assert!(*word >> (lane % 64) & 1 == 0);
        *word |= 1 << (lane % 64);
        self.waiting += 1;
    }

    /// Hand out everything before `horizon` in order: step, lane, value.
    #[inline]
    pub fn take(&mut self, horizon: u64, mut each: impl FnMut(u64, u32, T)) {
        while self.waiting > 0 && self.base < horizon {
            let row = self.row(self.base);
            let values = &self.values[row * self.lanes..(row + 1) * self.lanes];
            for (w, word) in self.taken[row * self.words..(row + 1) * self.words]
                .iter_mut()
                .enumerate()
            {
                let mut bits = std::mem::take(word);
                self.waiting -= bits.count_ones() as usize;
                while bits != 0 {
                    let lane = w * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    each(self.base, lane as u32, values[lane]);
                }
            }
            self.base += 1;
        }
    }

    /// Everything that waits, in order: step, lane, value.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32, &T)> {
        let turn = if self.waiting == 0 { 0 } else { self.rows };
        (self.base..self.base + turn).flat_map(move |step| {
            let row = self.row(step);
            (0..self.lanes)
                .filter(move |lane| {
                    self.taken[row * self.words + lane / 64] >> (lane % 64) & 1 == 1
                })
                .map(move |lane| (step, lane as u32, &self.values[row * self.lanes + lane]))
        })
    }

    /// Make `step` one of the rows.
    #[cold]
    fn make_room(&mut self, step: u64) {
        let holds = |d: &u64| {
            let row = self.row(self.base + d);
            self.taken[row * self.words..(row + 1) * self.words]
                .iter()
                .any(|&w| w != 0)
        };
        let furthest = (0..self.rows).rev().find(holds).unwrap_or(0);
        let base = self.base.min(step);
        let needed = (self.base + furthest).max(step) - base + 1;
        if needed > self.rows {
            let rows = needed.next_power_of_two();
            let mut values = vec![T::default(); rows as usize * self.lanes];
            let mut taken = vec![0; rows as usize * self.words];
            for d in 0..self.rows {
                let from = self.row(self.base + d);
                let to = ((self.base + d) & (rows - 1)) as usize;
                values[to * self.lanes..(to + 1) * self.lanes]
                    .copy_from_slice(&self.values[from * self.lanes..(from + 1) * self.lanes]);
                taken[to * self.words..(to + 1) * self.words]
                    .copy_from_slice(&self.taken[from * self.words..(from + 1) * self.words]);
            }
            self.values = values;
            self.taken = taken;
            self.rows = rows;
        }
        self.base = base;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn comes_out_in_order(
            lanes in prop_oneof![1u32..6, 60u32..140],
            pushes in prop::collection::vec((0u64..400, 0u32..140, prop::bool::ANY), 1..200),
        ) {
            let mut calendar = Calendar::new(lanes);
            let (mut now, mut got, mut want) = (0u64, Vec::new(), Vec::new());
            let mut seen = std::collections::BTreeSet::new();
            for (i, &(ahead, lane, take)) in pushes.iter().enumerate() {
                let (step, lane) = (now + ahead, lane % lanes);
                if seen.insert((step, lane)) {
                    calendar.put(step, lane, i);
                    want.push((step, lane, i));
                }
                if take {
                    let waiting: Vec<_> = calendar.iter().map(|(s, l, &v)| (s, l, v)).collect();
                    let mut left: Vec<_> =
                        want.iter().copied().filter(|w| !got.contains(w)).collect();
                    left.sort_unstable();
                    prop_assert_eq!(waiting, left);
                    now += 100;
                    calendar.take(now, |s, l, v| got.push((s, l, v)));
                }
            }
            calendar.take(u64::MAX, |s, l, v| got.push((s, l, v)));
            want.sort_unstable();
            prop_assert_eq!(got, want);
        }
    }
}
