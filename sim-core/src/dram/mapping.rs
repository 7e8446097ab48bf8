//! Where an address lies: bits of the byte address inside a channel to bank, row and column.
//!
//! A mapping is a bijection between transaction numbers below the capacity and places in the device. It is given as an
//! order of fields (`RoBaRaCoCh`) or as an explicit list that says, for each address bit, which bit of which field it
//! is. Bits above the capacity are ignored, as the reference ignores them.

use serde::{Deserialize, Serialize};

use super::spec::DramSpecError;

/// A field of a DRAM address below the channel.
///
/// `Level(i)` is the i-th level of the hierarchy (1 = just below the channel), so that rank, pseudo-channel, stack id,
/// bank group and bank are named the same way for all standards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Field {
    /// A level between the channel and the row, counted from the channel (the channel itself is 0).
    Level(u8),
    /// The row.
    Row,
    /// The column, in transactions.
    Column,
}

/// The shape of a channel in address bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// log2 of the size of each level below the channel down to the bank.
    pub levels: Vec<u32>,
    pub row: u32,
    /// Column bits in transactions.
    pub column: u32,
    /// Byte bits inside a transaction.
    pub tx: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seg {
    from: u32,
    mask: u64,
    to: u32,
}

impl Seg {
    /// The same as a rotation to the right and the bits to keep then.
    fn rotation(&self) -> (u32, u64) {
        (self.from.wrapping_sub(self.to) & 63, self.mask << self.to)
    }
}

/// A compiled address mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressMap {
    /// For each address bit above the transaction offset, from the lowest: its field and the bit inside that field.
    bits: Vec<(Field, u32)>,
    tx: u32,
    bank: Vec<Seg>,
    row: Vec<Seg>,
    column: Vec<Seg>,
    /// Up to four segments of the bank and one of the row, if that is all: how far to rotate the address to the right
    /// and which bits to keep then.
    short: Option<[(u32, u64); 5]>,
}

impl AddressMap {
    pub(crate) fn empty() -> AddressMap {
        AddressMap {
            bits: vec![],
            tx: 0,
            bank: vec![],
            row: vec![],
            column: vec![],
            short: None,
        }
    }

    /// The mapping that lists fields from the lowest address bits up.
    pub(crate) fn from_fields(
        shape: &Shape,
        fields: &[Field],
    ) -> Result<AddressMap, DramSpecError> {
        let mut bits = Vec::new();
        for &f in fields {
            for i in 0..shape.bits(f)? {
                bits.push((f, i));
            }
        }
        AddressMap::from_bits(shape, bits)
    }

    /// The mapping given bit by bit, from the lowest address bit above the transaction offset up.
    pub(crate) fn from_bits(
        shape: &Shape,
        bits: Vec<(Field, u32)>,
    ) -> Result<AddressMap, DramSpecError> {
        let mut want: Vec<(Field, u32)> = Vec::new();
        for (i, &w) in shape.levels.iter().enumerate() {
            want.extend((0..w).map(|b| (Field::Level(i as u8 + 1), b)));
        }
        want.extend((0..shape.row).map(|b| (Field::Row, b)));
        want.extend((0..shape.column).map(|b| (Field::Column, b)));
        let mut have = bits.clone();
        have.sort_unstable();
        want.sort_unstable();
        if have != want {
            return Err(DramSpecError::at(
                "addr_mapper",
                format!(
                    "every address bit of the device must appear exactly once ({} bits needed)",
                    want.len()
                ),
            ));
        }
        let mut m = AddressMap {
            tx: shape.tx,
            bank: vec![],
            row: vec![],
            column: vec![],
            short: None,
            bits,
        };
        for (i, &(f, b)) in m.bits.iter().enumerate() {
            let from = m.tx + i as u32;
            let (list, to) = match f {
                Field::Row => (&mut m.row, b),
                Field::Column => (&mut m.column, b),
                Field::Level(l) => {
                    let below: u32 = shape.levels[l as usize..].iter().sum();
                    (&mut m.bank, below + b)
                }
            };
            match list.last_mut() {
                Some(s)
                    if s.from + s.mask.count_ones() == from && s.to + s.mask.count_ones() == to =>
                {
                    s.mask = (s.mask << 1) | 1;
                }
                _ => list.push(Seg { from, mask: 1, to }),
            }
        }
        if m.bank.len() <= 4 && m.row.len() <= 1 {
            let mut short = [(0, 0); 5];
            for (at, s) in m.bank.iter().enumerate() {
                short[at] = s.rotation();
            }
            if let Some(s) = m.row.first() {
                short[4] = s.rotation();
            }
            m.short = Some(short);
        }
        Ok(m)
    }

    #[inline]
    fn gather(segs: &[Seg], addr: u64) -> u64 {
        let mut v = 0;
        for s in segs {
            v |= (addr.wrapping_shr(s.from) & s.mask).wrapping_shl(s.to);
        }
        v
    }

    /// Flat bank number (channel-wide) and row of a byte address inside the channel.
    #[inline]
    pub fn bank_row(&self, addr: u64) -> (u32, u32) {
        if let Some([a, b, c, d, row]) = &self.short {
            let part = |s: &(u32, u64)| addr.rotate_right(s.0) & s.1;
            let bank = part(a) | part(b) | part(c) | part(d);
            return (bank as u32, part(row) as u32);
        }
        self.gather_bank_row(addr)
    }

    #[cold]
    #[inline(never)]
    fn gather_bank_row(&self, addr: u64) -> (u32, u32) {
        (
            AddressMap::gather(&self.bank, addr) as u32,
            AddressMap::gather(&self.row, addr) as u32,
        )
    }

    /// Column of a byte address, in transactions.
    #[inline]
    pub fn column(&self, addr: u64) -> u32 {
        AddressMap::gather(&self.column, addr) as u32
    }

    /// The byte address (of a transaction's first byte) that lies at a place; the inverse of the mapping.
    pub fn address(&self, bank: u32, row: u32, column: u32) -> u64 {
        let scatter = |segs: &[Seg], v: u64| {
            segs.iter()
                .map(|s| ((v >> s.to) & s.mask) << s.from)
                .sum::<u64>()
        };
        scatter(&self.bank, bank.into())
            | scatter(&self.row, row.into())
            | scatter(&self.column, column.into())
    }

    /// Address bits used, the transaction offset included; the capacity is `1 << width` bytes.
    pub fn width(&self) -> u32 {
        self.tx + self.bits.len() as u32
    }

    /// log2 of the bytes by which addresses can move with no effect but on the rows: all higher bits
    /// are row bits.
    pub fn row_step_bits(&self) -> u32 {
        let below = self.bits.iter().rposition(|(f, _)| *f != Field::Row);
        self.tx + below.map_or(0, |i| i as u32 + 1)
    }

    /// Row bits below [`AddressMap::row_step_bits`], which such a move leaves alone. The others are
    /// the row's highest only where the mapping lists them in order.
    pub fn fixed_row_bits(&self) -> Option<u32> {
        let step = (self.row_step_bits() - self.tx) as usize;
        let fixed = self.bits[..step]
            .iter()
            .filter(|(f, _)| *f == Field::Row)
            .count() as u32;
        let in_order = self.bits[step..]
            .iter()
            .zip(fixed..)
            .all(|(&(_, bit), want)| bit == want);
        in_order.then_some(fixed)
    }

    /// The mapping bit by bit, from the lowest bit above the transaction offset.
    pub fn bits(&self) -> &[(Field, u32)] {
        &self.bits
    }
}

impl Shape {
    fn bits(&self, f: Field) -> Result<u32, DramSpecError> {
        match f {
            Field::Row => Ok(self.row),
            Field::Column => Ok(self.column),
            Field::Level(l) => self
                .levels
                .get((l as usize).wrapping_sub(1))
                .copied()
                .ok_or_else(|| {
                    DramSpecError::at("addr_mapper", format!("the device has no level {l}"))
                }),
        }
    }
}

/// How a byte address of the memory system is split over channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChannelMapper {
    /// The caller has chosen the channel; addresses pass through.
    PassThrough,
    /// Channel bits lie `interleave_bits` above the transaction offset.
    Interleave {
        /// log2 of the number of transactions that stay together.
        interleave_bits: u32,
    },
}

impl ChannelMapper {
    /// Channel and address inside the channel, for `channels` channels (a power of two) of `tx_bytes` transactions.
    #[inline]
    pub fn split(&self, addr: u64, channels: u32, tx_bytes: u32) -> (u32, u64) {
        match *self {
            ChannelMapper::PassThrough => (0, addr),
            ChannelMapper::Interleave { interleave_bits } => {
                if channels <= 1 {
                    return (0, addr);
                }
                let shift = tx_bytes.trailing_zeros() + interleave_bits;
                let width = channels.trailing_zeros();
                let ch = (addr >> shift) & ((1 << width) - 1);
                let low = addr & ((1 << shift) - 1);
                (ch as u32, ((addr >> (shift + width)) << shift) | low)
            }
        }
    }
}
