//! Request streams of the reference data, and the drivers that offer them as the reference did.
#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use tilesim_core::dram::{
    Channel, ChannelMapper, CommandRecord, Done, DramSpec, DramStats, RamulatorFile,
};

/// A file of the golden data.
pub fn gold(path: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/golden/dram")
        .join(path)
}

/// Its text, unpacked.
pub fn golden_text(path: &str) -> String {
    let bytes = std::fs::read(gold(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    let bytes = if path.ends_with(".zst") {
        zstd::decode_all(&bytes[..]).unwrap()
    } else {
        bytes
    };
    String::from_utf8(bytes).unwrap()
}

/// A golden device file, by its name without `.yaml`.
pub fn golden_spec(name: &str) -> RamulatorFile {
    DramSpec::from_ramulator(&golden_text(&format!("devices/{name}.yaml")))
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub type Req = (u64, bool);

struct Xor(u64);

impl Xor {
    fn next(&mut self) -> u64 {
        let mut x = self.0;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0 = x;
        x.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// The request file `name` of the reference (`seq`, `rand`, ... with `tx` bytes), `n` requests.
pub fn stream(name: &str, tx: u64, n: usize) -> Vec<Req> {
    let mut rnd = Xor(if name == "mixrand" {
        0xD1B5_4A32_D192_ED03
    } else {
        0x9E37_79B9_7F4A_7C15
    });
    let mut random = |_| (rnd.next() >> 11) % ((256 << 20) / tx) * tx;
    let write = |i: u64| i % 3 == 2;
    (0..n as u64)
        .map(|i| match name {
            "seq" => (i * tx, false),
            "rand" => (random(i), false),
            "mixseq" => (i * tx, write(i)),
            "mixrand" => (random(i), write(i)),
            "mix3arr" => ((i % 3) * (64 << 20) + i / 3 * tx, write(i)),
            "tile" => {
                let per = 512 / tx;
                let (k, row, tile) = (i % per, i / per % 128, i / per / 128);
                (
                    tile / 16 * 128 * 8192 + row * 8192 + tile % 16 * 512 + k * tx,
                    false,
                )
            }
            "rowstride.DDR4" => (i % 65536 * 8192 * 16, false),
            "rowstride.HBM2" => (i % 16384 * 2048 * 16, false),
            "rowstride.HBM3" => (i % 16384 * 4096 * 16, false),
            "rowstride.LPDDR5" => (i % 32768 * 2048 * 16, false),
            _ => panic!("unknown stream {name}"),
        })
        .collect()
}

pub struct Run {
    pub ticks: u64,
    pub completions: Vec<Done>,
    /// Tick of acceptance per request, where the driver knows it.
    pub accepted: Vec<u64>,
    pub log: Vec<CommandRecord>,
    pub stats: Vec<DramStats>,
}

impl Run {
    pub fn sum(&self, f: impl Fn(&DramStats) -> u64) -> u64 {
        self.stats.iter().map(f).sum()
    }
}

/// One channel, everything offered at tick 0, as many per tick as fit: one `advance` call.
pub fn run_one(spec: &DramSpec, reqs: &[Req], log: bool) -> Run {
    let mut spec = spec.clone();
    spec.accepts_per_tick = u32::MAX;
    let mut ch = Channel::new(&spec);
    let mut out = Vec::with_capacity(reqs.len());
    let mut cmds = Vec::new();
    for (i, &(addr, write)) in reqs.iter().enumerate() {
        ch.push(0, addr, write, i as u32);
    }
    // Steps that shrink towards the end, so that the channel stops in the tick of the last completion.
    let mut horizon = 0;
    while out.len() < reqs.len() {
        let left = (reqs.len() - out.len()) as u64;
        horizon = if left > 128 {
            horizon + left
        } else {
            ch.next_event().min(ch.next_activity(&spec)).max(horizon) + 1
        };
        if log {
            ch.advance_logged(&spec, horizon, &mut out, &mut cmds);
        } else {
            ch.advance(&spec, horizon, &mut out);
        }
    }
    let ticks = out.iter().map(|c| c.tick + 1).max().unwrap_or(0);
    Run {
        ticks,
        completions: out,
        accepted: Vec::new(),
        log: cmds,
        stats: vec![ch.stats().clone()],
    }
}

/// Any number of channels, in trace order, the head blocking all; `window > 0` bounds what is outstanding.
pub fn run_many(file: &RamulatorFile, reqs: &[Req], window: usize, log: bool) -> Run {
    let spec = &file.spec;
    let tx = spec.tx_bytes();
    let mapper = match file.mapper {
        ChannelMapper::PassThrough => ChannelMapper::Interleave { interleave_bits: 0 },
        m => m,
    };
    let mut chs: Vec<Channel> = (0..file.channels).map(|_| Channel::new(spec)).collect();
    let (mut out, mut cmds, mut accepted) = (Vec::new(), Vec::new(), Vec::new());
    let mut t = 0;
    while out.len() < reqs.len() {
        while let Some(&(addr, write)) = reqs.get(accepted.len()) {
            if window > 0 && accepted.len() - out.len() >= window {
                break;
            }
            let (c, a) = mapper.split(addr, file.channels, tx);
            if !chs[c as usize].try_accept(spec, a, write, accepted.len() as u32, &mut out) {
                break;
            }
            accepted.push(t);
        }
        // Nothing can change before the first event of any channel.
        let mut next = u64::MAX;
        for ch in &chs {
            next = next.min(ch.next_event());
            next = next.min(ch.next_activity(spec));
        }
        t = next.max(t) + 1;
        for ch in &mut chs {
            if log {
                ch.advance_logged(spec, t, &mut out, &mut cmds);
            } else {
                ch.advance(spec, t, &mut out);
            }
        }
    }
    let ticks = out.iter().map(|c| c.tick + 1).max().unwrap_or(0);
    let stats = chs.iter().map(|c| c.stats().clone()).collect();
    Run {
        ticks,
        completions: out,
        accepted,
        log: cmds,
        stats,
    }
}
