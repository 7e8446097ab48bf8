//! Two-dimensional convolution as an implicit matrix product.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::cost::{CostModel, Work};
use super::element::ElementType;
use super::matmul::{Form, Multiply};
use super::write::{Pipeline, Stream, Writer};
use super::{Grid, bad, check_sizes, check_stages, check_tile, grid_product, product, require};
use crate::error::TraceError;
use crate::model::{Trace, Unit};

type Result<T> = std::result::Result<T, TraceError>;

/// How images lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConvLayout {
    /// Image, row, column, channel; filters as [rows, columns, channels, filters].
    #[default]
    Nhwc,
    /// Image, channel, row, column; filters as [filters, channels, rows, columns].
    Nchw,
}

impl ConvLayout {
    /// Every layout, with its word.
    pub const ALL: &'static [(&'static str, ConvLayout)] =
        &[("nhwc", ConvLayout::Nhwc), ("nchw", ConvLayout::Nchw)];
}

/// Convolution of `images` images of `height` x `width` pixels of `channels` with `filters` filters.
///
/// A work-item computes `tile[0]` rows by `tile[1]` columns of one result image for `tile[2]`
/// filters; it sums over filter positions and `tile[3]` channels at a time. Program id p0 counts
/// blocks of filters, p1 blocks of pixels. Padding is never loaded: only pixels that exist move.
/// Images, sizes, channels and filters are parameters of the trace; the filter's own geometry is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conv {
    /// Images.
    pub images: u64,
    /// Rows of pixels.
    pub height: u64,
    /// Columns of pixels.
    pub width: u64,
    /// Channels of the input.
    pub channels: u64,
    /// Filters: channels of the result.
    pub filters: u64,
    /// Rows and columns of a filter.
    pub kernel: [u64; 2],
    /// Pixels between results, along rows and columns. Default 1.
    #[serde(default = "ones")]
    pub stride: [u64; 2],
    /// Rows and columns of padding on each side. Default 0.
    #[serde(default)]
    pub padding: [u64; 2],
    /// Pixels between positions of a filter. Default 1.
    #[serde(default = "ones")]
    pub dilation: [u64; 2],
    /// Tile sizes along result rows, result columns, filters and channels.
    pub tile: [u64; 4],
    /// Buffers per operand; 0: as many as the scratchpad has room for. Default 2.
    #[serde(default = "two")]
    pub stages: u32,
    /// How images lie. Default `nhwc`.
    #[serde(default)]
    pub layout: ConvLayout,
    /// Element type in memory. Default f16.
    #[serde(default = "f16")]
    pub dtype: ElementType,
    /// Element type of the sums. Default f32.
    #[serde(default = "f32")]
    pub acc: ElementType,
    /// How a product of tiles runs. Default `dot`.
    #[serde(default)]
    pub form: Form,
    /// The sums lie in registers and take no scratchpad.
    #[serde(default)]
    pub acc_in_registers: bool,
}

fn ones() -> [u64; 2] {
    [1, 1]
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

impl Conv {
    /// Rows and columns of a result image.
    pub fn result(&self) -> Result<[u64; 2]> {
        let one = |axis: usize, name: &str, size: u64| {
            let pick = |values: [u64; 2]| values.get(axis).copied().unwrap_or(1);
            let reach = pick(self.dilation) * (pick(self.kernel) - 1) + 1;
            let room = size + 2 * pick(self.padding);
            if reach > room {
                return Err(bad(
                    &format!("kernel.conv.{name}"),
                    format!("a filter that reaches over {reach} pixels has only {room}"),
                    "pad the image or use a smaller filter",
                ));
            }
            Ok((room - reach) / pick(self.stride).max(1) + 1)
        };
        self.check_ranges()?;
        Ok([one(0, "height", self.height)?, one(1, "width", self.width)?])
    }

    fn check_ranges(&self) -> Result<()> {
        let at = "kernel.conv";
        check_sizes(
            at,
            &[
                ("images", self.images),
                ("height", self.height),
                ("width", self.width),
                ("channels", self.channels),
                ("filters", self.filters),
            ],
        )?;
        for (name, values, least) in [
            ("kernel", self.kernel, 1),
            ("stride", self.stride, 1),
            ("padding", self.padding, 0),
            ("dilation", self.dilation, 1),
        ] {
            for (i, value) in values.iter().enumerate() {
                require(&format!("{at}.{name}[{i}]"), *value, least, 1 << 16)?;
            }
        }
        check_tile(at, "tile", &self.tile)?;
        check_stages(at, self.stages)
    }

    pub(super) fn check(&self) -> Result<()> {
        self.result().map(|_| ())
    }

    pub(super) fn launch(&self) -> Result<Grid> {
        let [rows, cols] = self.result()?;
        let [th, tw, tf, _] = self.tile;
        let pixels = grid_product(&[self.images, rows.div_ceil(th), cols.div_ceil(tw)])?;
        Ok(Grid {
            grid: vec![self.filters.div_ceil(tf), pixels],
            params: vec![
                ("IMAGES", self.images),
                ("H", self.height),
                ("W", self.width),
                ("C", self.channels),
                ("F", self.filters),
            ],
        })
    }

    pub(super) fn generate(&self, cost: &CostModel) -> Result<Trace> {
        let [th, tw, tf, tc] = self.tile;
        let [fh, fw] = self.kernel;
        let [sh, sw] = self.stride;
        let [ph, pw] = self.padding;
        let [dh, dw] = self.dilation;
        let out = |size: &str, pad: u64, dilation: u64, filter: u64, stride: u64| {
            // Padding and reach are below 2^33 each.
            let (room, reach) = (2 * pad + 1, dilation * (filter - 1) + 1);
            let size = match room.cmp(&reach) {
                Ordering::Less => format!("{size} - {}", reach - room + 1),
                Ordering::Equal => format!("{size} - 1"),
                Ordering::Greater if room == reach + 1 => size.to_owned(),
                Ordering::Greater => format!("{size} + {}", room - reach - 1),
            };
            format!("(({size}){} + 1)", over(stride))
        };
        let (rows, cols) = (out("H", ph, dh, fh, sh), out("W", pw, dw, fw, sw));
        let nhwc = self.layout == ConvLayout::Nhwc;
        let mut w = Writer::new(2, cost);
        for name in ["IMAGES", "H", "W", "C", "F"] {
            w.param(name);
        }
        if nhwc {
            w.tensor("X", self.dtype, "in", "IMAGES, H, W, C");
            w.tensor("FILTER", self.dtype, "in", &format!("{fh}, {fw}, C, F"));
            w.tensor(
                "Y",
                self.dtype,
                "out",
                &format!("IMAGES, {rows}, {cols}, F"),
            );
        } else {
            w.tensor("X", self.dtype, "in", "IMAGES, C, H, W");
            w.tensor("FILTER", self.dtype, "in", &format!("F, C, {fh}, {fw}"));
            w.tensor(
                "Y",
                self.dtype,
                "out",
                &format!("IMAGES, F, {rows}, {cols}"),
            );
        }

        let positions = product(&[fh, fw])?;
        // Loads run ahead of the loop's bound: the row is clamped so that the binder sees its range.
        let down = match fh {
            1 => String::new(),
            _ => format!(" + min(position / {fw}, {}){}", fh - 1, times(dh)),
        };
        let across = match fw {
            1 => String::new(),
            _ => format!(" + position % {fw}{}", times(dw)),
        };
        // Pixel (y, x) is where the filter's position meets the tile's first result; results i from
        // `above` on, and j from `left` on, meet pixels that exist.
        let lets = [
            ("position", "t / blocks".to_owned()),
            ("c", format!("t % blocks * {tc}")),
            ("y", format!("i0{}{}{down}", times(sh), less(ph))),
            ("x", format!("j0{}{}{across}", times(sw), less(pw))),
            ("above", format!("max(0, {})", ceil_div("-y", sh))),
            ("left", format!("max(0, {})", ceil_div("-x", sw))),
        ];
        let high = format!(
            "max(0, min(min({th}, rows - i0), {}) - above)",
            ceil_div("H - y", sh)
        );
        let wide = format!(
            "max(0, min(min({tw}, cols - j0), {}) - left)",
            ceil_div("W - x", sw)
        );
        let deep = format!("min({tc}, C - c)");
        let many = format!("min({tf}, F - f)");
        let (y, x) = (
            format!("y + above{}", times(sh)),
            format!("x + left{}", times(sw)),
        );
        let (load_x, load_f) = if nhwc {
            (
                format!(
                    "X[((image * H + {y}) * W + {x}) * C + c] dims [{th}: W * C{} valid {high}, {tw}: C{} valid {wide}, {tc}: 1 valid {deep}]",
                    times(sh),
                    times(sw)
                ),
                format!(
                    "FILTER[(position * C + c) * F + f] dims [{tc}: F valid {deep}, {tf}: 1 valid {many}]"
                ),
            )
        } else {
            (
                format!(
                    "X[((image * C + c) * H + {y}) * W + {x}] dims [{tc}: H * W valid {deep}, {th}: W{} valid {high}, {tw}: {sw} valid {wide}]",
                    times(sh)
                ),
                format!(
                    "FILTER[(f * C + c) * {positions} + position] dims [{tf}: C * {positions} valid {many}, {tc}: {positions} valid {deep}]"
                ),
            )
        };
        let pixels = product(&[th, tw])?;
        let stream = |name, elements, load| Stream {
            name,
            elements,
            element: self.dtype,
            load,
            group: 0,
        };
        let streams = [
            stream("a", product(&[pixels, tc])?, &load_x),
            stream("b", product(&[tc, tf])?, &load_f),
        ];
        let pipeline = Pipeline {
            steps: format!("{positions} * blocks"),
            stages: self.stages,
            streams: &streams,
            lets: &lets,
        };

        let sums = product(&[pixels, tf])?;
        w.buffer(
            "acc",
            if self.acc_in_registers { 0 } else { sums },
            self.acc,
        )?;
        pipeline.declare(&mut w)?;
        let on_acc = Work::Vector {
            elements: sums,
            bits: self.acc.bits(),
            ops: 1,
        };
        w.tile("zero", Unit::Vector, on_acc)?;
        let dot = Work::Dot {
            m: pixels,
            n: tf,
            k: tc,
        };
        Multiply::declare(&mut w, self.form, pixels, &[("dot", dot)])?;
        let cast = self.dtype != self.acc;
        if cast {
            w.tile("cast", Unit::Vector, on_acc)?;
        }

        w.set("rows", &rows);
        w.set("cols", &cols);
        w.set("down", &format!("ceil_div(rows, {th})"));
        w.set("across", &format!("ceil_div(cols, {tw})"));
        w.set("image", "p1 / (down * across)");
        w.set("i0", &format!("p1 / across % down * {th}"));
        w.set("j0", &format!("p1 % across * {tw}"));
        w.set("f", &format!("p0 * {tf}"));
        w.set("blocks", &format!("ceil_div(C, {tc})"));
        w.compute("zero", &[], &["acc"]);
        pipeline.write(&mut w, |w, step| {
            step.wait(w, 0)?;
            let free: Vec<String> = step.free("a").into_iter().chain(step.free("b")).collect();
            let mut writes = vec!["acc"];
            writes.extend(free.iter().map(String::as_str));
            let multiply = Multiply {
                a: &step.buffer("a"),
                b: &step.buffer("b"),
                writes: &writes,
                dot: "dot",
                valid: [&format!("min({tc}, C - k % blocks * {tc})"), &many],
            };
            multiply.write(w, self.form, cost)?;
            w.release(&free);
            Ok(())
        })?;
        if cast {
            w.compute("cast", &["acc"], &["acc"]);
        }
        let (high, wide) = (
            format!("min({th}, rows - i0)"),
            format!("min({tw}, cols - j0)"),
        );
        w.line(&if nhwc {
            format!(
                "store Y[((image * rows + i0) * cols + j0) * F + f] dims [{th}: cols * F valid {high}, {tw}: F valid {wide}, {tf}: 1 valid {many}] reads [acc]"
            )
        } else {
            format!(
                "store Y[((image * F + f) * rows + i0) * cols + j0] dims [{tf}: rows * cols valid {many}, {th}: cols valid {high}, {tw}: 1 valid {wide}] reads [acc]"
            )
        });
        w.finish("conv")
    }
}

// Parts of expressions that leave out what does nothing.

fn times(factor: u64) -> String {
    if factor == 1 {
        String::new()
    } else {
        format!(" * {factor}")
    }
}

fn over(divisor: u64) -> String {
    if divisor == 1 {
        String::new()
    } else {
        format!(" / {divisor}")
    }
}

fn less(by: u64) -> String {
    if by == 0 {
        String::new()
    } else {
        format!(" - {by}")
    }
}

fn ceil_div(value: &str, by: u64) -> String {
    if by == 1 {
        format!("({value})")
    } else {
        format!("ceil_div({value}, {by})")
    }
}
