//! What addresses and rows are counted from when states are compared.
//!
//! Work that repeats moves through memory. Moving every address of a channel by a multiple of
//! the row step ([`super::AddressMap::row_step_bits`]) changes rows and nothing else, each row to another one, so two states that
//! differ by such a move behave alike. Several streams may move by different distances as long as
//! none ever opens a row of another: then no row of one is compared with a row of another but to
//! find them different.

use super::spec::DramSpec;

/// One set of rows that moves as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First address of it, in units of the row step ...
    pub first: u64,
    /// ... and the first one behind it.
    pub end: u64,
    /// How far it has moved, in the same units, modulo 2^64.
    pub moved: u64,
}

/// Names addresses and rows of a channel relative to where their areas are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    areas: Vec<Area>,
    /// log2 of the row step in bytes.
    step_bits: u32,
    /// Bits of a row's number that a move leaves alone.
    fixed_bits: u32,
    row_mask: u32,
    /// Steps of the device, less one.
    steps_mask: u64,
}

impl Frame {
    /// For the channels of a spec. One area is all of memory; several must not meet in a row, nor
    /// wrap around the end of the device. `None` where the mapping scatters row bits.
    pub fn new(spec: &DramSpec, areas: Vec<Area>) -> Option<Frame> {
        Some(Frame {
            areas,
            step_bits: spec.map.row_step_bits(),
            fixed_bits: spec.map.fixed_row_bits()?,
            row_mask: spec.rows.max(1) - 1,
            steps_mask: (1 << (spec.map.width() - spec.map.row_step_bits())) - 1,
        })
    }

    /// The areas.
    pub fn areas(&self) -> &[Area] {
        &self.areas
    }

    /// The same, to move them.
    pub fn areas_mut(&mut self) -> &mut [Area] {
        &mut self.areas
    }

    /// Which area a place in units of the row step belongs to, and how far that has moved.
    fn area(&self, unit: u64) -> (u64, u64) {
        match self.areas.as_slice() {
            [] => (0, 0),
            [all] => (0, all.moved),
            areas => areas
                .iter()
                .zip(0..)
                .find(|(a, _)| (a.first..a.end).contains(&unit))
                .map_or((u64::MAX, 0), |(a, number)| (number, a.moved)),
        }
    }

    /// Name of a byte address inside the channel: two words.
    #[inline]
    pub fn addr(&self, addr: u64) -> [u64; 2] {
        let (area, moved) = self.area(addr >> self.step_bits & self.steps_mask);
        [area, addr.wrapping_sub(moved.wrapping_shl(self.step_bits))]
    }

    /// Name of a row.
    #[inline]
    pub fn row(&self, row: u32) -> [u64; 2] {
        let (area, moved) = self.area(u64::from(row >> self.fixed_bits.min(31)));
        let moved = moved.wrapping_shl(self.fixed_bits) as u32;
        [area, u64::from(row.wrapping_sub(moved) & self.row_mask)]
    }
}
