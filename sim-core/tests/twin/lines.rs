//! Which memory lines a transfer touches, and which channel a line lies in.

use std::collections::BTreeSet;

use tilesim_core::machine::{ChannelMap, DramConfig};
use tilesim_traces::launch::{ResolvedIndirect, Transfer, WorkItem};

/// The lines (address / request bytes) a transfer touches, each once, in address order.
pub fn lines(item: &WorkItem, t: &Transfer, request_bytes: u32) -> Vec<u64> {
    let line_bytes = u64::from(request_bytes);
    let mut set = BTreeSet::new();
    let mut add_bytes = |first: i128, last: i128| {
        let mut byte = first;
        while byte <= last {
            set.insert(byte as u64 / line_bytes);
            // On to the first byte of the next line.
            byte += i128::from(line_bytes - byte as u64 % line_bytes);
        }
    };
    let bits = i128::from(t.element_bits);
    let starts: Vec<i128> = match t.indirect {
        ResolvedIndirect::None => vec![0],
        ResolvedIndirect::Indices(span) => item.indices[span.range()]
            .iter()
            .map(|i| i128::from(*i))
            .collect(),
        ResolvedIndirect::Lines { count, bytes } => {
            let first = t.first_bit.div_euclid(8);
            let total = i128::from(count) * i128::from(bytes);
            if total > 0 {
                add_bytes(first, first + total - 1);
            }
            return set.into_iter().collect();
        }
    };
    let dims = &item.dims[t.dims.range()];
    if dims.iter().any(|d| d.extent == 0) {
        return Vec::new();
    }
    for start in starts {
        // Count through all elements, last dimension fastest.
        let mut at = vec![0u64; dims.len()];
        loop {
            let mut offset = start;
            for (i, d) in at.iter().zip(dims) {
                offset += i128::from(*i) * i128::from(d.stride);
            }
            let bit = t.first_bit + offset * bits;
            add_bytes(bit.div_euclid(8), (bit + bits - 1).div_euclid(8));
            let mut d = dims.len();
            while d > 0 {
                d -= 1;
                at[d] += 1;
                if at[d] < dims[d].extent {
                    break;
                }
                at[d] = 0;
                if d == 0 {
                    d = usize::MAX;
                    break;
                }
            }
            if dims.is_empty() || d == usize::MAX {
                break;
            }
        }
    }
    set.into_iter().collect()
}

const IPOLY_16: [u64; 13] = [3, 6, 12, 11, 5, 10, 7, 14, 15, 13, 9, 1, 2];
const IPOLY_32: [u64; 15] = [5, 10, 20, 13, 26, 17, 7, 14, 28, 29, 31, 27, 19, 3, 6];
const IPOLY_64: [u64; 19] = [
    3, 6, 12, 24, 48, 35, 5, 10, 20, 40, 19, 38, 15, 30, 60, 59, 53, 41, 17,
];

/// The channel of a line of a machine's DRAM.
pub fn channel(line: u64, dram: &DramConfig) -> usize {
    let channels = u64::from(dram.channels);
    let Some(numa) = &dram.numa else {
        return in_partition(line, channels, dram.channel_map);
    };
    // Which range of addresses, and so which partition; then as if it had only its own ranges.
    let (partitions, bytes) = (u64::from(numa.partitions), u64::from(dram.request_bytes));
    let range = line * bytes / numa.partition_bytes;
    let own = range / partitions * numa.partition_bytes + line * bytes % numa.partition_bytes;
    let channels = channels / partitions;
    (range % partitions * channels) as usize + in_partition(own / bytes, channels, dram.channel_map)
}

fn in_partition(line: u64, channels: u64, map: ChannelMap) -> usize {
    if channels == 1 || map == ChannelMap::Interleave {
        return (line % channels) as usize;
    }
    let constants: &[u64] = if channels <= 16 {
        &IPOLY_16
    } else if channels <= 32 {
        &IPOLY_32
    } else {
        &IPOLY_64
    };
    let high = line / channels;
    let mut index = line % channels;
    for (bit, constant) in constants.iter().enumerate() {
        if high >> bit & 1 == 1 {
            index ^= constant;
        }
    }
    (index % channels) as usize
}
