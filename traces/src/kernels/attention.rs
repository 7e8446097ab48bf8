//! Attention in one pass over keys and values (flash attention).

use serde::{Deserialize, Serialize};

use super::cost::{CostModel, Work};
use super::element::ElementType;
use super::matmul::{Form, Multiply};
use super::write::{Pipeline, Stream, Writer};
use super::{Grid, bad, check_sizes, check_stages, check_tile, product, require};
use crate::error::TraceError;
use crate::model::{Trace, Unit};

type Result<T> = std::result::Result<T, TraceError>;

/// `O = softmax(Q * K^T) * V` for each of `heads` heads (batch times heads), with online softmax.
///
/// A work-item takes `tile[0]` queries of one head and runs over keys and values in blocks of
/// `tile[1]`. Program id p0 counts blocks of queries, p1 heads. With `causal`, query i sees keys 0
/// to i + keys - queries, and blocks that no query of the tile sees are neither loaded nor computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Batch times query heads.
    pub heads: u64,
    /// Queries of a head.
    pub queries: u64,
    /// Keys of a head.
    pub keys: u64,
    /// Elements of a query or key.
    pub head_dim: u64,
    /// Query heads that share one head of keys and values. Default 1.
    #[serde(default = "one")]
    pub share: u64,
    /// Tile sizes along queries and keys.
    pub tile: [u64; 2],
    /// Mask keys after a query.
    #[serde(default)]
    pub causal: bool,
    /// Buffers of keys and of values; 0: as many as the scratchpad has room for. Default 2.
    #[serde(default = "two")]
    pub stages: u32,
    /// Element type in memory. Default f16.
    #[serde(default = "f16")]
    pub dtype: ElementType,
    /// Element type of the sums. Default f32.
    #[serde(default = "f32")]
    pub acc: ElementType,
    /// How a product of tiles runs. Default `dot`.
    #[serde(default)]
    pub form: Form,
    /// Scores, sums and results lie in registers and take no scratchpad.
    #[serde(default)]
    pub acc_in_registers: bool,
}

fn one() -> u64 {
    1
}

fn two() -> u32 {
    2
}

fn f16() -> ElementType {
    ElementType::F16
}

fn f32() -> ElementType {
    ElementType::F32
}

impl Attention {
    /// Attention with every option at its default.
    pub fn new(heads: u64, queries: u64, keys: u64, head_dim: u64, tile: [u64; 2]) -> Self {
        Attention {
            heads,
            queries,
            keys,
            head_dim,
            share: one(),
            tile,
            causal: false,
            stages: two(),
            dtype: f16(),
            acc: f32(),
            form: Form::default(),
            acc_in_registers: false,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let at = "kernel.attention";
        check_sizes(
            at,
            &[
                ("heads", self.heads),
                ("queries", self.queries),
                ("keys", self.keys),
            ],
        )?;
        require(&format!("{at}.head_dim"), self.head_dim, 1, super::MAX_TILE)?;
        require(&format!("{at}.share"), self.share, 1, self.heads)?;
        if !self.heads.is_multiple_of(self.share) {
            return Err(bad(
                "kernel.attention.share",
                format!("{} heads do not share evenly by {}", self.heads, self.share),
                "use a divisor of heads",
            ));
        }
        check_tile(at, "tile", &self.tile)?;
        check_stages(at, self.stages)
    }

    pub(super) fn launch(&self) -> Result<Grid> {
        Ok(Grid {
            grid: vec![self.queries.div_ceil(self.tile[0]), self.heads],
            params: vec![
                ("HEADS", self.heads),
                ("SQ", self.queries),
                ("SK", self.keys),
            ],
        })
    }

    pub(super) fn generate(&self, cost: &CostModel) -> Result<Trace> {
        let [bm, bn] = self.tile;
        let (d, share) = (self.head_dim, self.share);
        let mut w = Writer::new(2, cost);
        for name in ["HEADS", "SQ", "SK"] {
            w.param(name);
        }
        w.tensor("Q", self.dtype, "in", &format!("HEADS, SQ, {d}"));
        w.tensor("K", self.dtype, "in", &format!("HEADS / {share}, SK, {d}"));
        w.tensor("V", self.dtype, "in", &format!("HEADS / {share}, SK, {d}"));
        w.tensor("O", self.dtype, "out", &format!("HEADS, SQ, {d}"));

        let queries = product(&[bm, d])?;
        let scores = product(&[bm, bn])?;
        let block = product(&[bn, d])?;
        let head = if share == 1 {
            "p1".to_owned()
        } else {
            format!("p1 / {share}")
        };
        let load = |tensor: &str| {
            format!(
                "{tensor}[({head} * SK + t * {bn}) * {d}] dims [{bn}: {d} valid min({bn}, SK - t * {bn}), {d}: 1]"
            )
        };
        let (load_k, load_v) = (load("K"), load("V"));
        let stream = |name, load, group| Stream {
            name,
            elements: block,
            element: self.dtype,
            load,
            group,
        };
        let streams = [stream("k", &load_k, 0), stream("v", &load_v, 1)];
        let seen = if self.causal {
            format!("min(SK, max(0, min(m + {bm}, SQ) + SK - SQ))")
        } else {
            "SK".to_owned()
        };
        let pipeline = Pipeline {
            steps: format!("ceil_div({seen}, {bn})"),
            stages: self.stages,
            streams: &streams,
            lets: &[],
        };

        w.buffer("q", queries, self.dtype)?;
        w.buffer(
            "acc",
            if self.acc_in_registers { 0 } else { queries },
            self.acc,
        )?;
        // Of these no transfer moves anything: the core's rules count no scratchpad for them.
        w.buffer(
            "s",
            if self.acc_in_registers { 0 } else { scores },
            self.acc,
        )?;
        w.buffer(
            "stats",
            if self.acc_in_registers {
                0
            } else {
                product(&[bm, 2])?
            },
            self.acc,
        )?;
        pipeline.declare(&mut w)?;
        let bits = self.acc.bits();
        let vector = |elements, ops| Work::Vector {
            elements,
            bits,
            ops,
        };
        let reduce = Work::Reduce {
            elements: scores,
            bits,
        };
        w.tile("zero", Unit::Vector, vector(queries, 1))?;
        Multiply::declare(
            &mut w,
            self.form,
            bm,
            &[
                ("qk", Work::Dot { m: bm, n: bn, k: d }),
                ("pv", Work::Dot { m: bm, n: d, k: bn }),
            ],
        )?;
        w.tile("max", Unit::CrossLane, reduce)?;
        w.tile("exp", Unit::Vector, vector(scores, 3))?;
        w.tile("sum", Unit::CrossLane, reduce)?;
        w.tile("rescale", Unit::Vector, vector(queries, 1))?;
        w.tile("divide", Unit::Vector, vector(queries, 1))?;

        w.set("m", &format!("p0 * {bm}"));
        let rows =
            format!("[(p1 * SQ + m) * {d}] dims [{bm}: {d} valid min({bm}, SQ - m), {d}: 1]");
        w.line(&format!("load Q{rows} async 1000 writes [q]"));
        w.compute("zero", &[], &["acc"]);
        w.compute("zero", &[], &["stats"]);
        w.line(&format!("wait 1000 for {queries}"));
        pipeline.write(&mut w, |w, step| {
            let valid = format!("min({bn}, SK - k * {bn})");
            let whole = d.to_string();
            step.wait(w, 0)?;
            let free = step.free("k");
            let mut writes = vec!["s"];
            writes.extend(free.as_deref());
            let qk = Multiply {
                a: "q",
                b: &step.buffer("k"),
                writes: &writes,
                dot: "qk",
                valid: [&whole, &valid],
            };
            qk.write(w, self.form, cost)?;
            w.release(free.as_slice());
            w.compute("max", &["s", "stats"], &["stats"]);
            w.compute("exp", &["s", "stats"], &["s"]);
            w.compute("sum", &["s", "stats"], &["stats"]);
            w.compute("rescale", &["acc", "stats"], &["acc"]);
            step.wait(w, 1)?;
            let free = step.free("v");
            let mut writes = vec!["acc"];
            writes.extend(free.as_deref());
            let pv = Multiply {
                a: "s",
                b: &step.buffer("v"),
                writes: &writes,
                dot: "pv",
                valid: [&valid, &whole],
            };
            pv.write(w, self.form, cost)?;
            w.release(free.as_slice());
            Ok(())
        })?;
        w.compute("divide", &["acc", "stats"], &["acc"]);
        w.line(&format!("store O{rows} reads [acc]"));
        w.finish("attention")
    }
}
