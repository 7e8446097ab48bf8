//! Replies waiting for their step: put in in any order, taken in order of step, and within a step
//! in order of lane.

/// A ring of rows, one per step from `base` on, with a place for every lane.
#[derive(Clone, Debug)]
pub struct Calendar<T> {
    /// log2 of the places of a row.
    shift: u32,
    /// The same of its words in `taken`.
    word_shift: u32,
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
        let shift = lanes.next_power_of_two().trailing_zeros();
        let word_shift = shift.saturating_sub(6);
        let rows = 64;
        Calendar {
            shift,
            word_shift,
            values: vec![T::default(); rows << shift],
            taken: vec![0; rows << word_shift],
            rows: rows as u64,
            base: 0,
            waiting: 0,
        }
    }

    #[inline(always)]
    fn row(&self, step: u64) -> usize {
        (step & (self.rows - 1)) as usize
    }

    /// Put `value` into `step`, which has not been taken yet; a lane holds one value a step.
    #[inline(always)]
    pub fn put(&mut self, step: u64, lane: u32, value: T) {
        if step < self.base || step - self.base >= self.rows {
            self.make_room(step);
        }
        let (row, lane) = (self.row(step), lane as usize);
        self.values[(row << self.shift) | lane] = value;
        let word = &mut self.taken[(row << self.word_shift) | (lane / 64)];
        debug_assert!(*word >> (lane % 64) & 1 == 0);
        *word |= 1 << (lane % 64);
        self.waiting += 1;
    }

    /// Hand out everything before `horizon` in order: step, lane, value.
    #[inline]
    pub fn take(&mut self, horizon: u64, mut each: impl FnMut(u64, u32, T)) {
        let (shift, word_shift) = (self.shift, self.word_shift);
        while self.waiting > 0 && self.base < horizon {
            let row = self.row(self.base);
            let values = &self.values[row << shift..(row + 1) << shift];
            let words = &mut self.taken[row << word_shift..(row + 1) << word_shift];
            for (w, word) in words.iter_mut().enumerate() {
                let mut bits = std::mem::take(word);
                while bits != 0 {
                    let lane = (w << 6) | bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    self.waiting -= 1;
                    each(self.base, lane as u32, values[lane]);
                }
            }
            self.base += 1;
        }
        if self.waiting == 0 {
            // What comes next comes no earlier.
            self.base = self.base.max(horizon);
        }
    }

    /// Everything that waits, in order: step, lane, value.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32, &T)> {
        let turn = if self.waiting == 0 { 0 } else { self.rows };
        (self.base..self.base + turn).flat_map(move |step| {
            let row = self.row(step);
            (0..1usize << self.shift)
                .filter(move |lane| {
                    self.taken[(row << self.word_shift) | (lane / 64)] >> (lane % 64) & 1 == 1
                })
                .map(move |lane| (step, lane as u32, &self.values[(row << self.shift) | lane]))
        })
    }

    /// Make `step` one of the rows.
    #[cold]
    fn make_room(&mut self, step: u64) {
        if self.waiting == 0 {
            // Other lanes may follow with somewhat earlier steps.
            self.base = step.saturating_sub(self.rows / 4);
            return;
        }
        let holds = |d: &u64| {
            let row = self.row(self.base + d);
            self.taken[row << self.word_shift..(row + 1) << self.word_shift]
                .iter()
                .any(|&w| w != 0)
        };
        let furthest = (0..self.rows).rev().find(holds).unwrap_or(0);
        let base = self.base.min(step);
        let needed = (self.base + furthest).max(step) - base + 1;
        if needed > self.rows {
            let (shift, word_shift) = (self.shift, self.word_shift);
            let rows = needed.next_power_of_two();
            let mut values = vec![T::default(); (rows as usize) << shift];
            let mut taken = vec![0; (rows as usize) << word_shift];
            for d in 0..self.rows {
                let from = self.row(self.base + d);
                let to = ((self.base + d) & (rows - 1)) as usize;
                values[to << shift..(to + 1) << shift]
                    .copy_from_slice(&self.values[from << shift..(from + 1) << shift]);
                taken[to << word_shift..(to + 1) << word_shift]
                    .copy_from_slice(&self.taken[from << word_shift..(from + 1) << word_shift]);
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
