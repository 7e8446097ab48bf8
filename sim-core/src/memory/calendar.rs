//! Replies waiting for their step: put in any order of lanes, taken in order of step, and within a
//! step in order of lane.

use std::collections::VecDeque;

/// Most rows of the ring; with many lanes fewer, so that it holds at most [`MAX_PLACES`].
const MAX_ROWS: u64 = 4096;
/// Most places of the ring, unless [`FEWEST_ROWS`] need more.
const MAX_PLACES: u64 = 1 << 20;
const FEWEST_ROWS: u64 = 64;

/// A ring of rows, one per step from `base` on, with a place for every lane. What lies further ahead
/// than the ring may reach waits in a queue per lane: memory is bounded by what waits, not by how far
/// ahead.
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
    /// Everything before this step has been taken.
    base: u64,
    /// How much the ring holds, and a step before which it holds nothing.
    near: usize,
    first_near: u64,
    /// Per lane what the ring did not reach when it was put, and the first step of all that.
    far: Vec<VecDeque<(u64, T)>>,
    first_far: u64,
}

impl<T: Copy + Default> Calendar<T> {
    /// An empty calendar with so many lanes.
    pub fn new(lanes: u32) -> Calendar<T> {
        let shift = lanes.next_power_of_two().trailing_zeros();
        let word_shift = shift.saturating_sub(6);
        let rows = FEWEST_ROWS as usize;
        Calendar {
            shift,
            word_shift,
            values: vec![T::default(); rows << shift],
            taken: vec![0; rows << word_shift],
            rows: FEWEST_ROWS,
            base: 0,
            near: 0,
            first_near: u64::MAX,
            far: (0..lanes).map(|_| VecDeque::new()).collect(),
            first_far: u64::MAX,
        }
    }

    #[inline(always)]
    fn row(&self, step: u64) -> usize {
        (step & (self.rows - 1)) as usize
    }

    /// Put `value` into `step`, which has not been taken yet and lies after everything that was put
    /// into this lane before.
    #[inline(always)]
    pub fn put(&mut self, step: u64, lane: u32, value: T) {
        debug_assert!(step >= self.base);
        if step - self.base >= self.rows && !self.reach(step) {
            self.first_far = self.first_far.min(step);
            self.far[lane as usize].push_back((step, value));
            return;
        }
        self.place(step, lane as usize, value);
    }

    #[inline(always)]
    fn place(&mut self, step: u64, lane: usize, value: T) {
        let row = self.row(step);
        self.values[(row << self.shift) | lane] = value;
        let word = &mut self.taken[(row << self.word_shift) | (lane / 64)];
        debug_assert!(*word >> (lane % 64) & 1 == 0);
        *word |= 1 << (lane % 64);
        self.near += 1;
        self.first_near = self.first_near.min(step);
    }

    /// Hand out everything before `horizon` in order: step, lane, value.
    #[inline]
    pub fn take(&mut self, horizon: u64, mut each: impl FnMut(u64, u32, T)) {
        let (shift, word_shift) = (self.shift, self.word_shift);
        while self.base < horizon {
            if self.near == 0 {
                self.first_near = u64::MAX;
            }
            // Nothing lies before the first of both.
            let first = self.first_near.min(self.first_far);
            self.base = first.clamp(self.base, horizon);
            if self.base == horizon {
                break;
            }
            if self.first_far <= self.base {
                self.fetch();
            }
            let row = self.row(self.base);
            let values = &self.values[row << shift..(row + 1) << shift];
            let words = &mut self.taken[row << word_shift..(row + 1) << word_shift];
            for (w, word) in words.iter_mut().enumerate() {
                let mut bits = std::mem::take(word);
                while bits != 0 {
                    let lane = (w << 6) | bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    self.near -= 1;
                    each(self.base, lane as u32, values[lane]);
                }
            }
            self.base += 1;
        }
    }

    /// Everything that waits, in order: step, lane, value.
    pub fn waiting(&self) -> Vec<(u64, u32, T)> {
        let mut all = Vec::with_capacity(self.near);
        let mut step = self.first_near.max(self.base);
        while all.len() < self.near {
            let row = self.row(step);
            let values = &self.values[row << self.shift..];
            let words = row << self.word_shift..(row + 1) << self.word_shift;
            for (w, &word) in self.taken[words].iter().enumerate() {
                let mut bits = word;
                while bits != 0 {
                    let lane = w << 6 | bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    all.push((step, lane as u32, values[lane]));
                }
            }
            step += 1;
        }
        for (lane, far) in self.far.iter().enumerate() {
            all.extend(far.iter().map(|&(step, value)| (step, lane as u32, value)));
        }
        all.sort_by_key(|&(step, lane, _)| (step, lane));
        all
    }

    /// Moves into the ring what it now reaches of what lay further ahead.
    #[cold]
    fn fetch(&mut self) {
        let mut first = u64::MAX;
        for lane in 0..self.far.len() {
            while let Some(&(step, value)) = self.far[lane].front() {
                if step - self.base >= self.rows {
                    first = first.min(step);
                    break;
                }
                self.far[lane].pop_front();
                self.place(step, lane, value);
            }
        }
        self.first_far = first;
    }

    /// Makes the ring reach `step`, if it may become that long.
    #[cold]
    fn reach(&mut self, step: u64) -> bool {
        let most = (MAX_PLACES >> self.shift).clamp(FEWEST_ROWS, MAX_ROWS);
        let needed = step - self.base + 1;
        if needed > most {
            return false;
        }
        let rows = needed.next_power_of_two();
        let (shift, word_shift) = (self.shift, self.word_shift);
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
        true
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
            pushes in prop::collection::vec(
                (
                    prop_oneof![6 => 0u64..400, 2 => 0u64..20_000, 1 => 0u64..1 << 40],
                    0u32..140,
                    prop::option::of(prop_oneof![6 => 0u64..300, 1 => 0u64..1 << 40]),
                ),
                1..200,
            ),
        ) {
            let mut calendar = Calendar::new(lanes);
            let (mut now, mut got, mut want) = (0u64, Vec::new(), Vec::new());
            let mut free = vec![0u64; lanes as usize];
            for (i, &(ahead, lane, take)) in pushes.iter().enumerate() {
                let lane = lane % lanes;
                let free = &mut free[lane as usize];
                let step = (now + ahead).max(*free);
                *free = step + 1;
                calendar.put(step, lane, i);
                want.push((step, lane, i));
                if let Some(time) = take {
                    let mut left: Vec<_> =
                        want.iter().copied().filter(|w| !got.contains(w)).collect();
                    left.sort_unstable();
                    prop_assert_eq!(calendar.waiting(), left);
                    now += time;
                    calendar.take(now, |s, l, v| got.push((s, l, v)));
                    prop_assert!(got.iter().all(|g| g.0 < now));
                }
            }
            calendar.take(u64::MAX, |s, l, v| got.push((s, l, v)));
            want.sort_unstable();
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn memory_does_not_grow_with_the_distance() {
        let mut calendar = Calendar::new(1024);
        for lane in 0..1024 {
            calendar.put(1 << 50 | u64::from(lane), lane, lane);
        }
        assert_eq!(calendar.rows, FEWEST_ROWS);
        let mut got = 0;
        calendar.take(1 << 51, |step, lane, value| {
            assert_eq!((step, lane), (1 << 50 | u64::from(got), got));
            assert_eq!(value, got);
            got += 1;
        });
        assert_eq!(got, 1024);
        for step in (1 << 51..).step_by(100).take(10_000) {
            calendar.put(step, 0, 0);
        }
        assert!(calendar.values.len() as u64 <= MAX_PLACES);
    }
}
