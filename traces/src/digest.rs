//! The identity of a trace: BLAKE3 over its canonical content.
//!
//! Content is everything that can change a result or its meaning: kernel name, what costs were
//! measured on, axes, parameters, tensors, bounds, buffers, tiles, body, dispatch, resources. The producer, its
//! version, origins, comments and the names of loop variables are not content. A dispatch order that
//! is left out equals the default spelled out.
//!
//! The canonical bytes are written here, field by field, independent of any encoding: numbers are
//! little-endian, lists and strings carry their length, choices their code, expressions are in
//! prefix order.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bind::Bound;
use crate::codes::{binary_code, direction_code, role_code, unary_code, unit_code};
use crate::model::*;
use crate::validate::ValidTrace;

/// Names the canonical form; a change of it changes this.
const DOMAIN: &[u8] = b"tilesim trace digest 1\0";

/// A BLAKE3 digest. Its text form is 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// A text that is not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 hexadecimal digits")]
pub struct BadDigest;

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(BadDigest);
        }
        let mut out = [0u8; 32];
        for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| BadDigest)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| BadDigest)?;
        }
        Ok(Self(out))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl ValidTrace {
    /// The trace's identity.
    pub fn digest(&self) -> Digest {
        digest(self)
    }
}

/// The identity of a valid trace.
pub fn digest(trace: &ValidTrace) -> Digest {
    let mut w = Writer {
        hasher: blake3::Hasher::new(),
        buffer: Vec::with_capacity(4096),
    };
    w.bytes(DOMAIN);
    w.trace(trace);
    w.flush();
    Digest(*w.hasher.finalize().as_bytes())
}

/// Names the canonical form of a launch.
const LAUNCH_DOMAIN: &[u8] = b"tilesim launch digest 1\0";

impl Bound {
    /// The identity of the launch: the trace and everything a launch decides, as resolved: grid,
    /// parameter values, and each tensor's place and extents. Two launches that only spell these
    /// differently (a default given or left out) share it; limits play no part.
    pub fn digest(&self) -> Digest {
        let mut w = Writer {
            hasher: blake3::Hasher::new(),
            buffer: Vec::with_capacity(4096),
        };
        w.bytes(LAUNCH_DOMAIN);
        w.bytes(&self.trace().digest().0);
        w.list(&self.grid(), |w, extent| w.u64(*extent));
        w.list(self.params(), |w, value| w.i64(*value));
        w.list(self.tensors(), |w, tensor| {
            w.u64(tensor.base);
            w.list(&tensor.extents, |w, extent| w.u64(*extent));
        });
        w.flush();
        Digest(*w.hasher.finalize().as_bytes())
    }
}

struct Writer {
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

impl Writer {
    fn flush(&mut self) {
        self.hasher.update(&self.buffer);
        self.buffer.clear();
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= 3072 {
            self.flush();
        }
    }

    fn u8(&mut self, v: u8) {
        self.bytes(&[v]);
    }

    fn u32(&mut self, v: u32) {
        self.bytes(&v.to_le_bytes());
    }

    fn u64(&mut self, v: u64) {
        self.bytes(&v.to_le_bytes());
    }

    fn i64(&mut self, v: i64) {
        self.bytes(&v.to_le_bytes());
    }

    fn str(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    fn option<T>(&mut self, value: Option<T>, f: impl FnOnce(&mut Self, T)) {
        match value {
            None => self.u8(0),
            Some(value) => {
                self.u8(1);
                f(self, value);
            }
        }
    }

    fn list<T>(&mut self, items: &[T], mut f: impl FnMut(&mut Self, &T)) {
        self.u64(items.len() as u64);
        for item in items {
            f(self, item);
        }
    }

    fn trace(&mut self, t: &Trace) {
        self.str(&t.header.kernel);
        self.option(t.header.measured_on.as_ref(), |w, on| {
            for value in [on.lanes, on.vector_bits, on.array_rows, on.array_cols] {
                w.option(value, Self::u32);
            }
            w.option(on.element.as_deref(), Self::str);
        });
        self.u8(t.axes);
        self.list(&t.params, |w, p| {
            w.str(&p.name);
            w.option(p.default, Self::i64);
        });
        self.list(&t.tensors, |w, tensor| {
            w.str(&tensor.name);
            w.u32(tensor.element_bits);
            w.u8(role_code(tensor.role));
            w.list(&tensor.extents, Self::expr);
            match &tensor.layout {
                Layout::RowMajor => w.u8(0),
                Layout::Tiled(tile) => {
                    w.u8(1);
                    w.list(tile, |w, extent| w.u64(*extent));
                }
            }
        });
        self.u8(match t.bounds {
            Bounds::Strict => 0,
            Bounds::Off => 1,
        });
        self.list(&t.buffers, |w, b| {
            w.str(&b.name);
            w.u64(b.bytes);
        });
        self.list(&t.tiles, Self::tile);
        self.block(&t.body);
        let order: Vec<u8> = if t.dispatch.order.is_empty() {
            (0..t.axes).collect()
        } else {
            t.dispatch.order.clone()
        };
        self.list(&order, |w, axis| w.u8(*axis));
        self.option(t.dispatch.key.as_ref(), Self::expr);
        // Left out when nothing is declared: traces from before resources keep their digest. What
        // comes before tells its own end, so this cannot be taken for part of it.
        if t.resources != Resources::default() {
            self.u64(t.resources.registers);
            self.u64(t.resources.threads);
        }
    }

    fn tile(&mut self, tile: &Tile) {
        self.str(&tile.name);
        self.option(tile.unit, |w, unit| w.u8(unit_code(unit)));
        self.option(tile.cycles, Self::u64);
        self.u64(tile.overlap);
        match &tile.source {
            CostSource::Measured => self.u8(0),
            CostSource::Analytic(formula) => {
                self.u8(1);
                self.str(formula);
            }
            CostSource::Declared => self.u8(2),
        }
        self.list(&tile.admissions, |w, a| {
            w.str(&a.unit);
            w.str(&a.work);
            w.u64(a.capacity_per_cycle.to_bits());
            w.u64(a.admitted);
        });
    }

    fn buffers(&mut self, ids: &[BufferId]) {
        self.list(ids, |w, id| w.u32(id.0));
    }

    fn block(&mut self, body: &[Stmt]) {
        self.u64(body.len() as u64);
        for stmt in body {
            match stmt {
                Stmt::For(f) => {
                    self.u8(0);
                    self.expr(&f.lo);
                    self.expr(&f.hi);
                    self.expr(&f.step);
                    self.block(&f.body);
                }
                Stmt::If(i) => {
                    self.u8(1);
                    self.expr(&i.cond);
                    self.block(&i.then);
                    self.block(&i.otherwise);
                }
                Stmt::Dma(dma) => {
                    self.u8(2);
                    self.dma(dma);
                }
                Stmt::Compute(c) => {
                    self.u8(3);
                    self.u32(c.tile.0);
                    self.u8(unit_code(c.unit));
                    self.buffers(&c.reads);
                    self.buffers(&c.writes);
                }
                Stmt::Wait(wait) => {
                    self.u8(4);
                    self.u32(wait.semaphore.0);
                    self.expr(&wait.expected);
                }
            }
        }
    }

    fn dma(&mut self, dma: &Dma) {
        self.u8(direction_code(dma.direction));
        self.u32(dma.tensor.0);
        self.expr(&dma.offset);
        self.list(&dma.dims, |w, dim| {
            w.expr(&dim.extent);
            w.expr(&dim.stride);
            w.option(dim.valid.as_ref(), Self::expr);
        });
        self.u32(dma.element_bits);
        self.option(dma.semaphore, |w, s| w.u32(s.0));
        self.buffers(&dma.reads);
        self.buffers(&dma.writes);
        match &dma.indirect {
            None => self.u8(0),
            Some(Indirect::Indices(indices)) => {
                self.u8(1);
                self.list(indices, Self::expr);
            }
            Some(Indirect::Lines { count, bytes }) => {
                self.u8(2);
                self.expr(count);
                self.u32(*bytes);
            }
        }
    }

    fn expr(&mut self, e: &Expr) {
        match e {
            Expr::Const(c) => {
                self.u8(0);
                self.i64(*c);
            }
            Expr::Pid(axis) => self.bytes(&[1, *axis]),
            Expr::Grid(axis) => self.bytes(&[2, *axis]),
            Expr::Param(id) => {
                self.u8(3);
                self.u32(id.0);
            }
            Expr::Var(id) => {
                self.u8(4);
                self.u32(id.0);
            }
            Expr::Unary(op, a) => {
                self.bytes(&[5, unary_code(*op)]);
                self.expr(a);
            }
            Expr::Binary(op, a, b) => {
                self.bytes(&[6, binary_code(*op)]);
                self.expr(a);
                self.expr(b);
            }
            Expr::Select(c, a, b) => {
                self.u8(7);
                self.expr(c);
                self.expr(a);
                self.expr(b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    fn of(text: &str) -> Digest {
        text::parse_valid(text).unwrap().digest()
    }

    const TEXT: &str = "tilesim trace 1 kernel \"k\" producer \"p\" version \"1\" origin \"a\" \"b\" axes 2 \
        buffer acc 64 tile t cycles 5 source measured \
        body { for k in 0..4 { compute t vector writes [acc] wait 0 for k + p0 } }";

    #[test]
    fn what_is_content() {
        let base = of(TEXT);
        for (from, to) in [
            ("producer \"p\"", "producer \"q\""),
            ("version \"1\"", ""),
            ("origin \"a\" \"b\"", "# nothing\n"),
            ("for k in 0..4", "for other in 0..4"),
            ("body", "dispatch order p0 p1 body"),
        ] {
            let text = TEXT.replace(from, to).replace(
                "for k + p0",
                if to.contains("other") {
                    "for other + p0"
                } else {
                    "for k + p0"
                },
            );
            assert_eq!(of(&text), base, "{text}");
        }
        for (from, to) in [
            ("kernel \"k\"", "kernel \"l\""),
            ("axes 2", "axes 3"),
            ("axes 2", "measured lanes 4 axes 2"),
            ("cycles 5", "cycles 6"),
            ("k + p0", "p0 + k"),
            ("0..4", "0..5"),
            ("body", "dispatch order p1 p0 body"),
            ("acc 64", "acc 65"),
            ("axes 2", "axes 2 bounds off"),
        ] {
            assert_ne!(of(&TEXT.replace(from, to)), base, "{from} -> {to}");
        }
    }

    #[test]
    fn digests_stay() {
        // Results are stored under digests: this value may only change with DOMAIN.
        assert_eq!(
            of(TEXT).to_string(),
            "7683c554e2cdf2e8967c94bc116b82e2017842c240b809134f62a6cd37bcb808"
        );
    }

    #[test]
    fn launches_that_mean_the_same_share_a_digest() {
        let trace = text::parse_valid(
            "tilesim trace 1 axes 1 param K = 4 tensor A: 8 bit in [K] body { load A[0] }",
        )
        .unwrap();
        let of = |change: &dyn Fn(&mut crate::LaunchArgs)| {
            let mut args = crate::LaunchArgs {
                grid: vec![3],
                ..Default::default()
            };
            change(&mut args);
            Bound::new(&trace, &args, &crate::Limits::default())
                .unwrap()
                .digest()
        };
        let base = of(&|_| ());
        assert_eq!(of(&|a| _ = a.params.insert("K".into(), 4)), base);
        assert_eq!(of(&|a| _ = a.placement.insert("A".into(), 0)), base);
        assert_eq!(of(&|a| a.allow_overlap = true), base);
        assert_ne!(of(&|a| a.grid = vec![4]), base);
        assert_ne!(of(&|a| _ = a.params.insert("K".into(), 5)), base);
        assert_ne!(of(&|a| _ = a.placement.insert("A".into(), 64)), base);
        assert_ne!(of(&|a| _ = a.extents.insert("A".into(), vec![9])), base);
    }

    #[test]
    fn text_form() {
        let d = of(TEXT);
        assert_eq!(d.to_string().parse(), Ok(d));
        assert_eq!("xyz".parse::<Digest>(), Err(BadDigest));
        let json = serde_json::to_string(&d).unwrap();
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), d);
    }
}
