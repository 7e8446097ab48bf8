//! Events a bounded number of cycles ahead: one slot per cycle.

/// A ring of slots. An event lies at most `slots - 1` cycles ahead of the cycle being worked on,
/// so a slot holds the events of one cycle only, in the order in which they were added.
#[derive(Clone, Debug)]
pub(super) struct Wheel<T> {
    slots: Vec<Vec<T>>,
    mask: u64,
    pending: usize,
}

impl<T> Wheel<T> {
    /// A wheel for events up to `span` cycles ahead.
    pub(super) fn new(span: u64) -> Self {
        let len = (span + 1).next_power_of_two();
        Wheel {
            slots: (0..len).map(|_| Vec::new()).collect(),
            mask: len - 1,
            pending: 0,
        }
    }

    /// Adds an event; `at` is later than the cycle being worked on and within the span.
    #[inline]
    pub(super) fn add(&mut self, at: u64, event: T) {
        self.slots[(at & self.mask) as usize].push(event);
        self.pending += 1;
    }

    /// Takes the events of one cycle out; give the emptied vector back with [`Wheel::restore`].
    #[inline]
    pub(super) fn take(&mut self, at: u64) -> Vec<T> {
        let events = std::mem::take(&mut self.slots[(at & self.mask) as usize]);
        self.pending -= events.len();
        events
    }

    /// Returns a vector taken out, so that its room is used again.
    #[inline]
    pub(super) fn restore(&mut self, at: u64, mut events: Vec<T>) {
        events.clear();
        self.slots[(at & self.mask) as usize] = events;
    }

    /// True when the cycle has no event.
    #[inline]
    pub(super) fn is_quiet(&self, at: u64) -> bool {
        self.slots[(at & self.mask) as usize].is_empty()
    }

    /// The first cycle at or after `now` with an event.
    pub(super) fn next(&self, now: u64) -> Option<u64> {
        if self.pending == 0 {
            return None;
        }
        (now..=now + self.mask).find(|at| !self.is_quiet(*at))
    }

    /// Every event with the cycles until it is due, counted from `now`, soonest first.
    pub(super) fn iter(&self, now: u64) -> impl Iterator<Item = (u64, &T)> {
        (0..=self.mask).flat_map(move |ahead| {
            self.slots[((now + ahead) & self.mask) as usize]
                .iter()
                .map(move |e| (ahead, e))
        })
    }
}
