//! Matrix products: one, or a batch of them.

use serde::{Deserialize, Serialize};

use super::cost::{CostModel, Work};
use super::element::ElementType;
use super::write::{Pipeline, Step, Stream, Writer};
use super::{Grid, bad, check_sizes, check_stages, check_tile, grid_product, product, require};
use crate::error::TraceError;
use crate::model::{Trace, Unit};

type Result<T> = std::result::Result<T, TraceError>;

/// How a product of tiles runs on the matrix unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// One matmul tile a K step.
    #[default]
    Dot,
    /// A preload and a matmul for each piece of B as large as the array. Edge tiles skip the pieces
    /// they do not have.
    Systolic,
}

impl Form {
    /// Every form, with its word.
    pub const ALL: &'static [(&'static str, Form)] =
        &[("dot", Form::Dot), ("systolic", Form::Systolic)];
}

/// `C[M, N] = A[M, K] * B[K, N]`, or a batch of such products.
///
/// A work-item computes one `tile[0]` x `tile[1]` tile of C in K steps of `tile[2]`. M, N, K (and
/// the batch) are parameters of the trace: the trace is the same for every shape. Program id p0
/// counts tiles of C, in groups of `group` rows of tiles as in Triton's tutorial; p1 (a batch) the
/// product; the last axis the part of K, if it is split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matmul {
    /// Rows of C.
    pub m: u64,
    /// Columns of C.
    pub n: u64,
    /// Length of the sums.
    pub k: u64,
    /// Products in a batch; none: a single product.
    #[serde(default)]
    pub batch: Option<u64>,
    /// A batch whose products share B.
    #[serde(default)]
    pub shared_b: bool,
    /// Tile sizes along M, N and K.
    pub tile: [u64; 3],
    /// Buffers per operand in the K loop; 0: as many as the scratchpad has room for. Default 2.
    #[serde(default = "two")]
    pub stages: u32,
    /// Rows of tiles in a group of the program order. Default 1: tiles in row-major order.
    #[serde(default = "one")]
    pub group: u64,
    /// Parts of K that work-items of their own sum; C then has a leading axis of so many partial
    /// sums, which a `reduction` adds up. Default 1.
    #[serde(default = "one")]
    pub split_k: u64,
    /// Work-items that share the tiles of C (of one product and part of K), as in a persistent
    /// kernel: each takes every so many-th tile. Default 0: a work-item for each tile.
    #[serde(default)]
    pub persistent: u64,
    /// Element type of A and B. Default f16.
    #[serde(default = "f16")]
    pub dtype: ElementType,
    /// Element type of the sums. Default f32.
    #[serde(default = "f32")]
    pub acc: ElementType,
    /// Element type of C; default that of A and B, and that of the sums if K is split.
    #[serde(default)]
    pub out: Option<ElementType>,
    /// A lies as [K, M].
    #[serde(default)]
    pub trans_a: bool,
    /// B lies as [N, K].
    #[serde(default)]
    pub trans_b: bool,
    /// How a product of tiles runs. Default `dot`.
    #[serde(default)]
    pub form: Form,
    /// The sums lie in registers and take no scratchpad.
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

impl Matmul {
    /// A product with every option at its default.
    pub fn new(m: u64, n: u64, k: u64, tile: [u64; 3]) -> Self {
        Matmul {
            m,
            n,
            k,
            batch: None,
            shared_b: false,
            tile,
            stages: two(),
            group: one(),
            split_k: one(),
            persistent: 0,
            dtype: f16(),
            acc: f32(),
            out: None,
            trans_a: false,
            trans_b: false,
            form: Form::default(),
            acc_in_registers: false,
        }
    }

    fn out(&self) -> ElementType {
        self.out.unwrap_or(if self.split_k > 1 {
            self.acc
        } else {
            self.dtype
        })
    }

    pub(super) fn check(&self) -> Result<()> {
        let at = "kernel.matmul";
        check_sizes(at, &[("m", self.m), ("n", self.n), ("k", self.k)])?;
        if let Some(batch) = self.batch {
            check_sizes(at, &[("batch", batch)])?;
        } else if self.shared_b {
            return Err(bad(
                "kernel.matmul.shared_b",
                "a single product shares nothing",
                "give a batch",
            ));
        }
        check_tile(at, "tile", &self.tile)?;
        check_stages(at, self.stages)?;
        require(&format!("{at}.group"), self.group, 1, 1 << 32)?;
        require(&format!("{at}.split_k"), self.split_k, 1, 1 << 16)
    }

    pub(super) fn launch(&self) -> Result<Grid> {
        let tiles = grid_product(&[self.m.div_ceil(self.tile[0]), self.n.div_ceil(self.tile[1])])?;
        let items = match self.persistent {
            0 => tiles,
            most => tiles.min(most),
        };
        let mut grid = vec![items];
        let mut params = vec![("M", self.m), ("N", self.n), ("K", self.k)];
        if let Some(batch) = self.batch {
            grid.push(batch);
            params.push(("BATCH", batch));
        }
        if self.split_k > 1 {
            grid.push(self.split_k);
        }
        Ok(Grid { grid, params })
    }

    pub(super) fn generate(&self, cost: &CostModel) -> Result<Trace> {
        let [bm, bn, bk] = self.tile;
        let split = self.split_k;
        let axes = 1 + u8::from(self.batch.is_some()) + u8::from(split > 1);
        let mut w = Writer::new(axes, cost);
        for name in ["M", "N", "K"] {
            w.param(name);
        }
        let (batch, split_axis) = match self.batch {
            Some(_) => {
                w.param("BATCH");
                ("BATCH, ", "p2")
            }
            None => ("", "p1"),
        };
        let b_batch = if self.shared_b { "" } else { batch };
        let a_extents = if self.trans_a { "K, M" } else { "M, K" };
        let b_extents = if self.trans_b { "N, K" } else { "K, N" };
        w.tensor("A", self.dtype, "in", &format!("{batch}{a_extents}"));
        w.tensor("B", self.dtype, "in", &format!("{b_batch}{b_extents}"));
        let parts = if split > 1 {
            format!("{split}, ")
        } else {
            String::new()
        };
        w.tensor("C", self.out(), "out", &format!("{parts}{batch}M, N"));

        // Loads of step t. Element (row, column) of an operand that lies as [rows, columns].
        let a_base = if self.batch.is_some() {
            "p1 * M * K + "
        } else {
            ""
        };
        let b_base = if self.batch.is_some() && !self.shared_b {
            "p1 * K * N + "
        } else {
            ""
        };
        let m_valid = format!("min({bm}, M - m)");
        let n_valid = format!("min({bn}, N - n)");
        let t = if split > 1 { "(first_step + t)" } else { "t" };
        // Loads run ahead of the loop's bound: the step is clamped so that the binder sees that all
        // parts of an even split are alike.
        let k_valid = if split > 1 {
            format!("min({bk}, K - (first_step + min(t, part - 1)) * {bk})")
        } else {
            format!("min({bk}, K - t * {bk})")
        };
        let load_a = if self.trans_a {
            format!(
                "A[{a_base}{t} * {bk} * M + m] dims [{bk}: M valid {k_valid}, {bm}: 1 valid {m_valid}]"
            )
        } else {
            format!(
                "A[{a_base}m * K + {t} * {bk}] dims [{bm}: K valid {m_valid}, {bk}: 1 valid {k_valid}]"
            )
        };
        let load_b = if self.trans_b {
            format!(
                "B[{b_base}n * K + {t} * {bk}] dims [{bn}: K valid {n_valid}, {bk}: 1 valid {k_valid}]"
            )
        } else {
            format!(
                "B[{b_base}{t} * {bk} * N + n] dims [{bk}: N valid {k_valid}, {bn}: 1 valid {n_valid}]"
            )
        };
        let streams = [
            Stream {
                name: "a",
                elements: product(&[bm, bk])?,
                element: self.dtype,
                load: &load_a,
                group: 0,
            },
            Stream {
                name: "b",
                elements: product(&[bk, bn])?,
                element: self.dtype,
                load: &load_b,
                group: 0,
            },
        ];
        let all = format!("ceil_div(K, {bk})");
        let steps = match split {
            1 => all,
            _ => format!("max(0, min(part, {all} - first_step))"),
        };
        let pipeline = Pipeline {
            steps,
            stages: self.stages,
            streams: &streams,
            lets: &[],
        };

        let sums = product(&[bm, bn])?;
        if self.acc_in_registers {
            w.virtual_buffer("acc");
        } else {
            w.buffer("acc", sums, self.acc)?;
        }
        pipeline.declare(&mut w)?;
        let on_acc = |ops| Work::Vector {
            elements: sums,
            bits: self.acc.bits(),
            ops,
        };
        w.tile("zero", Unit::Vector, on_acc(1))?;
        Multiply::declare(
            &mut w,
            self.form,
            bm,
            &[(
                "dot",
                Work::Dot {
                    m: bm,
                    n: bn,
                    k: bk,
                },
            )],
        )?;
        let cast = self.out() != self.acc;
        if cast {
            w.tile("cast", Unit::Vector, on_acc(1))?;
        }

        let mut base = String::new();
        if split > 1 {
            let products = if self.batch.is_some() { "BATCH * " } else { "" };
            base = format!("{split_axis} * {products}M * N + ");
        }
        if self.batch.is_some() {
            base.push_str("p1 * M * N + ");
        }
        let store = format!(
            "store C[{base}m * N + n] dims [{bm}: N valid {m_valid}, {bn}: 1 valid {n_valid}] reads [acc]"
        );
        if split > 1 {
            w.set("part", &format!("ceil_div(ceil_div(K, {bk}), {split})"));
            w.set("first_step", &format!("{split_axis} * part"));
        }
        let body = |w: &mut Writer<'_>, id: &str| {
            self.place(w, id);
            w.compute("zero", &[], &["acc"]);
            pipeline.write(w, |w, step| self.product_of_tiles(w, step, cost))?;
            if cast {
                w.compute("cast", &["acc"], &["acc"]);
            }
            w.line(&store);
            Ok(())
        };
        if self.persistent == 0 {
            body(&mut w, "p0")?;
        } else {
            let head = format!("for id in p0..ceil_div(M, {bm}) * ceil_div(N, {bn}) step g0");
            w.block(&head, |w| body(w, "id"))?;
        }
        w.finish(if self.batch.is_some() {
            "batched_matmul"
        } else {
            "matmul"
        })
    }

    /// Which tile of C: groups of `group` rows of tiles share columns of B.
    fn place(&self, w: &mut Writer<'_>, id: &str) {
        let [bm, bn, _] = self.tile;
        if self.group == 1 {
            w.set("cols", &format!("ceil_div(N, {bn})"));
            w.set("m", &format!("{id} / cols * {bm}"));
            w.set("n", &format!("{id} % cols * {bn}"));
        } else {
            let group = self.group;
            w.set("in_group", &format!("{group} * ceil_div(N, {bn})"));
            w.set("first", &format!("{id} / in_group * {group}"));
            w.set("rows", &format!("min({group}, ceil_div(M, {bm}) - first)"));
            w.set("m", &format!("(first + {id} % in_group % rows) * {bm}"));
            w.set("n", &format!("{id} % in_group / rows * {bn}"));
        }
    }

    /// One K step: wait, and multiply.
    fn product_of_tiles(
        &self,
        w: &mut Writer<'_>,
        step: &Step<'_>,
        cost: &CostModel,
    ) -> Result<()> {
        let k0 = if self.split_k > 1 {
            "(first_step + k)"
        } else {
            "k"
        };
        let [_, bn, bk] = self.tile;
        step.wait(w, 0)?;
        let free: Vec<String> = step.free("a").into_iter().chain(step.free("b")).collect();
        let mut writes = vec!["acc"];
        writes.extend(free.iter().map(String::as_str));
        let multiply = Multiply {
            a: &step.buffer("a"),
            b: &step.buffer("b"),
            writes: &writes,
            dot: "dot",
            valid: [
                &format!("min({bk}, K - {k0} * {bk})"),
                &format!("min({bn}, N - n)"),
            ],
        };
        multiply.write(w, self.form, cost)?;
        w.release(&free);
        Ok(())
    }
}

/// One product of tiles that are in the scratchpad.
pub(super) struct Multiply<'n> {
    /// Buffer of the left tile.
    pub a: &'n str,
    /// Buffer of the right tile.
    pub b: &'n str,
    /// Buffers written: the sums, and what says that the operands are free again.
    pub writes: &'n [&'n str],
    /// The tile of form `dot`; form `systolic` uses `push` and `stream`.
    pub dot: &'n str,
    /// How much of the right tile is valid along the sums and along the columns.
    pub valid: [&'n str; 2],
}

impl Multiply<'_> {
    /// Writes it.
    pub fn write(&self, w: &mut Writer<'_>, form: Form, cost: &CostModel) -> Result<()> {
        match form {
            Form::Dot => {
                w.compute(self.dot, &[self.a, self.b], self.writes);
                Ok(())
            }
            Form::Systolic => {
                let (r, c) = (cost.array_rows, cost.array_cols);
                let [k, n] = self.valid;
                let pieces = format!("ceil_div({k}, {r}) * ceil_div({n}, {c})");
                w.block(&format!("for piece in 0..{pieces}"), |w| {
                    w.compute("push", &[self.b], &["weights"]);
                    w.compute("stream", &[self.a, "weights"], self.writes);
                    Ok(())
                })
            }
        }
    }

    /// Declares the tiles of products of `rows` rows: for each of `dots` its name and its work, or
    /// `push` and `stream`.
    pub fn declare(w: &mut Writer<'_>, form: Form, rows: u64, dots: &[(&str, Work)]) -> Result<()> {
        match form {
            Form::Dot => dots
                .iter()
                .try_for_each(|(name, work)| w.tile(name, Unit::Matmul, *work)),
            Form::Systolic => {
                w.virtual_buffer("weights");
                w.tile("push", Unit::Preload, Work::Preload)?;
                w.tile("stream", Unit::Matmul, Work::Stream { rows })
            }
        }
    }
}
