//! A table of values with reusable places.

/// Values by index; freed places are used again, last freed first.
#[derive(Clone, Debug, Default)]
pub struct Slab<T> {
    values: Vec<T>,
    free: Vec<u32>,
}

impl<T: Copy> Slab<T> {
    /// An empty table.
    pub fn new() -> Slab<T> {
        Slab {
            values: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Store a value; its index.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.values[at as usize] = value;
                at
            }
            None => {
                self.values.push(value);
                (self.values.len() - 1) as u32
            }
        }
    }

    /// Take a value out.
    #[inline]
    pub fn remove(&mut self, at: u32) -> T {
        self.free.push(at);
        self.values[at as usize]
    }

    /// Look at a value.
    #[inline]
    pub fn get(&self, at: u32) -> &T {
        &self.values[at as usize]
    }

    /// Change a value.
    #[inline]
    pub fn get_mut(&mut self, at: u32) -> &mut T {
        &mut self.values[at as usize]
    }
}
