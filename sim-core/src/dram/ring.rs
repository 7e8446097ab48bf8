//! A queue in a ring whose size is a power of two.

/// First in, first out; grows, never shrinks.
#[derive(Clone, Debug)]
pub(crate) struct Ring<T> {
    slots: Vec<T>,
    head: usize,
    len: usize,
}

impl<T: Copy> Ring<T> {
    /// An empty ring with room for `room` values; `blank` fills free places.
    pub fn new(room: usize, blank: T) -> Ring<T> {
        Ring {
            slots: vec![blank; room.next_power_of_two()],
            head: 0,
            len: 0,
        }
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn at(&self, i: usize) -> usize {
        self.head.wrapping_add(i) & self.slots.len().wrapping_sub(1)
    }

    #[inline(always)]
    pub fn front(&self) -> Option<&T> {
        if self.len == 0 {
            None
        } else {
            self.slots.get(self.head)
        }
    }

    #[inline(always)]
    pub fn push_back(&mut self, value: T) {
        if self.len == self.slots.len() {
            self.grow();
        }
        let at = self.at(self.len);
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = value;
        }
        self.len = self.len.wrapping_add(1);
    }

    /// Drops the first value, if any.
    #[inline(always)]
    pub fn drop_front(&mut self) {
        if self.len != 0 {
            self.head = self.at(1);
            self.len = self.len.wrapping_sub(1);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).map(|i| &self.slots[self.at(i)])
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.slots.rotate_left(self.head);
        self.head = 0;
        self.slots.extend_from_within(..);
    }
}

impl<T: Copy + PartialEq> PartialEq for Ring<T> {
    fn eq(&self, other: &Ring<T>) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Copy + Eq> Eq for Ring<T> {}
