//! Replies waiting for their step: pushed in any order, taken in order of step, and within a step
//! in the order in which they were pushed.

/// A ring of lists, one per step, from `base` on.
#[derive(Clone, Debug)]
pub struct Calendar<T> {
    steps: Vec<Vec<T>>,
    /// Step of the first list that may hold something.
    base: u64,
    waiting: usize,
}

impl<T: Copy> Calendar<T> {
    /// An empty calendar.
    pub fn new() -> Calendar<T> {
        Calendar {
            steps: (0..64).map(|_| Vec::new()).collect(),
            base: 0,
            waiting: 0,
        }
    }

    /// Put `value` into `step`, which has not been taken yet.
    #[inline]
    pub fn push(&mut self, step: u64, value: T) {
        if self.waiting == 0 {
            self.base = step;
        }
        let step = if step < self.base {
            self.rewind(step)
        } else {
            step
        };
        if step - self.base >= self.steps.len() as u64 {
            self.grow(step - self.base + 1);
        }
        let mask = self.steps.len() as u64 - 1;
        self.steps[(step & mask) as usize].push(value);
        self.waiting += 1;
    }

    /// Hand out everything before `horizon`, in order.
    #[inline]
    pub fn take(&mut self, horizon: u64, mut each: impl FnMut(u64, T)) {
        let mask = self.steps.len() as u64 - 1;
        while self.waiting > 0 && self.base < horizon {
            let list = &mut self.steps[(self.base & mask) as usize];
            self.waiting -= list.len();
            for value in list.drain(..) {
                each(self.base, value);
            }
            self.base += 1;
        }
    }

    /// Everything that waits, in order of step.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let mask = self.steps.len() as u64 - 1;
        let turn = if self.waiting == 0 {
            0
        } else {
            self.steps.len() as u64
        };
        (self.base..self.base + turn).flat_map(move |step| {
            self.steps[(step & mask) as usize]
                .iter()
                .map(move |value| (step, value))
        })
    }

    /// Make room below `base`.
    #[cold]
    fn rewind(&mut self, step: u64) -> u64 {
        let mask = self.steps.len() as u64 - 1;
        let back = self.base - step;
        // The furthest list in use must stay within one turn of the new base.
        let furthest = (0..self.steps.len() as u64)
            .rev()
            .find(|d| !self.steps[((self.base + d) & mask) as usize].is_empty())
            .unwrap_or(0);
        if furthest + back >= self.steps.len() as u64 {
            self.grow(furthest + back + 1);
        }
        self.base = step;
        step
    }

    #[cold]
    fn grow(&mut self, needed: u64) {
        let old = self.steps.len() as u64;
        let new = needed.next_power_of_two().max(old * 2);
        let mut steps: Vec<Vec<T>> = (0..new).map(|_| Vec::new()).collect();
        for d in 0..old {
            let s = self.base + d;
            steps[(s & (new - 1)) as usize] =
                std::mem::take(&mut self.steps[(s & (old - 1)) as usize]);
        }
        self.steps = steps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn comes_out_in_order(
            pushes in prop::collection::vec((0u64..400, prop::bool::ANY), 1..200),
        ) {
            let mut calendar = Calendar::new();
            let (mut now, mut got, mut want) = (0u64, Vec::new(), Vec::new());
            for (i, &(ahead, take)) in pushes.iter().enumerate() {
                calendar.push(now + ahead, i);
                want.push((now + ahead, i));
                if take {
                    now += 100;
                    calendar.take(now, |s, v| got.push((s, v)));
                }
            }
            calendar.take(u64::MAX, |s, v| got.push((s, v)));
            // Steps in order; a later push may not precede what was taken before it.
            want.sort();
            let mut sorted = got.clone();
            sorted.sort();
            prop_assert_eq!(&sorted, &want);
            prop_assert!(got.windows(2).all(|w| w[0].0 <= w[1].0));
        }
    }
}
