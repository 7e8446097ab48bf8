//! Which channel a memory line belongs to, and its number inside the channel.

use crate::machine::{ChannelMap, DramConfig};

/// Constants of the irreducible-polynomial hash (GPGPU-Sim's IPOLY), one per bit of the line number
/// above the channel bits.
const IPOLY_16: [u16; 13] = [3, 6, 12, 11, 5, 10, 7, 14, 15, 13, 9, 1, 2];
const IPOLY_32: [u16; 15] = [5, 10, 20, 13, 26, 17, 7, 14, 28, 29, 31, 27, 19, 3, 6];
const IPOLY_64: [u16; 19] = [
    3, 6, 12, 24, 48, 35, 5, 10, 20, 40, 19, 38, 15, 30, 60, 59, 53, 41, 17,
];

const HALF: usize = 10;

/// Address ranges of the partitions.
#[derive(Clone, Copy, Debug)]
struct Partitions {
    count: u64,
    /// log2 of the lines of one range.
    shift: u32,
}

/// Consecutive lines with one number inside their channels.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// That number.
    pub inner: u64,
    /// How many lines.
    pub lines: u64,
    /// Place of the first among the lines of that number.
    first: u64,
    hash: u64,
    /// First channel of the partition.
    base: u64,
}

/// Maps line numbers to channels.
#[derive(Clone, Debug)]
pub struct ChannelMapper {
    partitions: Option<Partitions>,
    /// Channels of a partition.
    channels: u64,
    /// log2 of the channel count, when it is a power of two.
    shift: Option<u32>,
    /// The hash of the low and the next ten bits of the rest; linear over XOR, so two look-ups do.
    low: Box<[u16; 1 << HALF]>,
    high: Box<[u16; 1 << HALF]>,
}

impl ChannelMapper {
    /// For a machine's DRAM: a line's address range picks its partition, its number among the
    /// lines of that partition a channel there.
    pub fn of(dram: &DramConfig) -> ChannelMapper {
        let Some(numa) = &dram.numa else {
            return ChannelMapper::new(dram.channel_map, dram.channels);
        };
        let lines = numa.partition_bytes / u64::from(dram.request_bytes.max(1));
        ChannelMapper {
            partitions: Some(Partitions {
                count: u64::from(numa.partitions),
                shift: lines.max(1).ilog2(),
            }),
            ..ChannelMapper::new(dram.channel_map, dram.channels / numa.partitions.max(1))
        }
    }

    /// For `channels` channels (at least 1) in one partition.
    pub fn new(map: ChannelMap, channels: u32) -> ChannelMapper {
        let channels = channels.max(1);
        let constants: &[u16] = match map {
            ChannelMap::Interleave => &[],
            ChannelMap::Ipoly if channels == 1 => &[],
            ChannelMap::Ipoly => match channels.next_power_of_two() {
                0..=16 => &IPOLY_16,
                32 => &IPOLY_32,
                _ => &IPOLY_64,
            },
        };
        let table = |from: usize| {
            let mut t = Box::new([0u16; 1 << HALF]);
            for (x, entry) in t.iter_mut().enumerate() {
                for bit in 0..HALF {
                    if x >> bit & 1 == 1 {
                        *entry ^= constants.get(from + bit).copied().unwrap_or(0);
                    }
                }
            }
            t
        };
        ChannelMapper {
            partitions: None,
            channels: u64::from(channels),
            shift: channels
                .is_power_of_two()
                .then(|| channels.trailing_zeros()),
            low: table(0),
            high: table(HALF),
        }
    }

    /// Lines by whose multiples every line can move and stay in its channel; `None` where the map is
    /// not periodic.
    pub fn period(&self) -> Option<u64> {
        let plain = self.low.iter().chain(self.high.iter()).all(|&h| h == 0);
        (plain && self.partitions.is_none()).then_some(self.channels)
    }

    /// The channel of a line and the line's number inside it.
    #[inline]
    pub fn locate(&self, line: u64) -> (u32, u64) {
        let group = self.group(line);
        (self.channel(&group, 0), group.inner)
    }

    /// The lines from `line` on that have its number inside their channels.
    #[inline]
    pub fn group(&self, line: u64) -> Group {
        let Some(partitions) = self.partitions else {
            return self.within(line);
        };
        let (range, rest) = (
            line >> partitions.shift,
            line & ((1 << partitions.shift) - 1),
        );
        let partition = range % partitions.count;
        let group = self.within((range / partitions.count) << partitions.shift | rest);
        Group {
            lines: group.lines.min((1 << partitions.shift) - rest),
            base: partition * self.channels,
            ..group
        }
    }

    /// The channel of line `i` of a group.
    #[inline]
    pub fn channel(&self, group: &Group, i: u64) -> u32 {
        let channel = (group.first + i) ^ group.hash;
        let channel = match self.shift {
            Some(_) => channel & (self.channels - 1),
            None => channel % self.channels,
        };
        (group.base + channel) as u32
    }

    /// The same as [`ChannelMapper::group`] inside one partition.
    #[inline]
    fn within(&self, line: u64) -> Group {
        let (first, inner) = match self.shift {
            Some(shift) => (line & (self.channels - 1), line >> shift),
            None => (line % self.channels, line / self.channels),
        };
        let mask = (1u64 << HALF) - 1;
        let hash = self.low[(inner & mask) as usize] ^ self.high[((inner >> HALF) & mask) as usize];
        Group {
            inner,
            lines: self.channels - first,
            first,
            hash: u64::from(hash),
            base: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_aligned_group_of_lines_is_a_permutation_of_the_channels() {
        for map in [ChannelMap::Interleave, ChannelMap::Ipoly] {
            for channels in [1u32, 2, 4, 8, 16, 32, 64, 128] {
                let m = ChannelMapper::new(map, channels);
                for group in [0u64, 1, 77, 4096, 123_456_789] {
                    let mut seen: Vec<u32> = (0..u64::from(channels))
                        .map(|i| m.locate(group * u64::from(channels) + i).0)
                        .collect();
                    seen.sort_unstable();
                    assert_eq!(seen, (0..channels).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn a_partition_has_its_ranges_and_channels_to_itself() {
        for map in [ChannelMap::Interleave, ChannelMap::Ipoly] {
            for (partitions, per) in [(2u64, 16u32), (3, 4), (4, 1), (2, 6)] {
                let one = ChannelMapper::new(map, per);
                let m = ChannelMapper {
                    partitions: Some(Partitions {
                        count: partitions,
                        shift: 7,
                    }),
                    ..one.clone()
                };
                assert_eq!(m.period(), None);
                let mut seen = std::collections::BTreeSet::new();
                for line in 0..(128 * partitions * 5) {
                    let (channel, inner) = m.locate(line);
                    // Two lines of one group may meet where the hash is folded.
                    let folded = map == ChannelMap::Ipoly && !per.is_power_of_two();
                    assert!(
                        seen.insert((channel, inner)) || folded,
                        "line {line} has a place of its own"
                    );
                    let range = line / 128;
                    assert_eq!(u64::from(channel / per), range % partitions);
                    let group = m.group(line);
                    for i in 0..group.lines {
                        let place = (m.channel(&group, i), group.inner);
                        assert_eq!(place, m.locate(line + i), "line {line} + {i}");
                    }
                    let own = range / partitions * 128 + line % 128;
                    assert_eq!((channel % per, inner), one.locate(own), "line {line}");
                }
            }
        }
    }

    #[test]
    fn the_hash_follows_its_constants() {
        let m = ChannelMapper::new(ChannelMap::Ipoly, 16);
        assert_eq!(m.locate(1 << 4), (3, 1));
        assert_eq!(m.locate(1 << 16 | 5), (2 ^ 5, 1 << 12));
        assert_eq!(m.locate(1 << 17).0, 0, "higher bits do nothing");
        let m = ChannelMapper::new(ChannelMap::Ipoly, 4);
        assert_eq!(m.locate(1 << 2), (3, 1));
        assert_eq!(m.locate(1 << 4), (12 & 3, 4));
    }
}
