//! Kernels from `name=value` options: what a command line needs, without knowing any.
//!
//! [`KINDS`] describes every kind of kernel and its options; [`parse_args`] makes a [`KernelSpec`]
//! of values given as text. Names may be written with `-` or `_`.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    ConvLayout, CostModel, ElementType, Form, GivenCost, Kernel, KernelSpec, MatmulFormula, bad,
};
use crate::error::{ErrorCode, TraceError, closest};
use crate::model::Resources;

type Result<T> = std::result::Result<T, TraceError>;

/// A kind of kernel.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it computes, in a line.
    pub about: &'static str,
    /// Its options, beside [`COST_ARGS`] and [`RESOURCE_ARGS`].
    pub args: &'static [Arg],
}

/// An option.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// Its name, with `_` between words.
    pub name: &'static str,
    /// How its value is written.
    pub value: ArgValue,
    /// Whether it must be given.
    pub required: bool,
    /// The value when it is not given, as text; empty: as `help` says, or there is none.
    pub default: &'static str,
    /// What it means, in a line.
    pub help: &'static str,
}

/// How the value of an option is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgValue {
    /// A whole number.
    Whole,
    /// So many whole numbers with `x` between them, for example `128x128x64`.
    Sizes(usize),
    /// `true` or `false`; a command line may offer a flag.
    Flag,
    /// An element type.
    Element,
    /// A [`Form`].
    Form,
    /// A [`ConvLayout`].
    Layout,
    /// A [`MatmulFormula`].
    Formula,
    /// Costs of tiles by name: `tile=cycles` or `tile=cycles:overlap`, with commas between them.
    Costs,
}

impl ArgValue {
    /// The words that are accepted, when only some are.
    pub fn words(self) -> Option<Vec<&'static str>> {
        fn first<T>(all: &[(&'static str, T)]) -> Option<Vec<&'static str>> {
            Some(all.iter().map(|(word, _)| *word).collect())
        }
        match self {
            ArgValue::Element => first(ElementType::ALL),
            ArgValue::Form => first(Form::ALL),
            ArgValue::Layout => first(ConvLayout::ALL),
            ArgValue::Formula => first(MatmulFormula::ALL),
            ArgValue::Flag => Some(vec!["true", "false"]),
            ArgValue::Whole | ArgValue::Sizes(_) | ArgValue::Costs => None,
        }
    }
}

const fn must(name: &'static str, value: ArgValue, help: &'static str) -> Arg {
    Arg {
        name,
        value,
        required: true,
        default: "",
        help,
    }
}

const fn may(
    name: &'static str,
    value: ArgValue,
    default: &'static str,
    help: &'static str,
) -> Arg {
    Arg {
        name,
        value,
        required: false,
        default,
        help,
    }
}

use ArgValue::{Costs, Element, Flag, Formula, Layout, Sizes, Whole};

const M: Arg = must("m", Whole, "rows of C");
const N: Arg = must("n", Whole, "columns of C");
const K: Arg = must("k", Whole, "length of the sums");
const MATMUL_TILE: Arg = must("tile", Sizes(3), "tile sizes along M, N and K");
const STAGES: Arg = may(
    "stages",
    Whole,
    "2",
    "buffers per streamed operand; 0: as many as the scratchpad holds",
);
const GROUP: Arg = may(
    "group",
    Whole,
    "1",
    "rows of tiles in a group of the program order",
);
const SPLIT_K: Arg = may(
    "split_k",
    Whole,
    "1",
    "parts of K that work-items of their own sum",
);
const PERSISTENT: Arg = may(
    "persistent",
    Whole,
    "0",
    "work-items that share the tiles of C; 0: one for each tile",
);
const F16: Arg = may("dtype", Element, "f16", "element type in memory");
const F32: Arg = may("dtype", Element, "f32", "element type in memory");
const ACC: Arg = may("acc", Element, "f32", "element type of the sums");
const OUT: Arg = may(
    "out",
    Element,
    "",
    "element type of C; default dtype, or acc if K is split",
);
const TRANS_A: Arg = may("trans_a", Flag, "false", "A lies as [K, M]");
const TRANS_B: Arg = may("trans_b", Flag, "false", "B lies as [N, K]");
const FORM: Arg = may(
    "form",
    ArgValue::Form,
    "dot",
    "one matmul tile a step, or preload and matmul per array of weights",
);
const REGISTERS: Arg = may(
    "acc_in_registers",
    Flag,
    "false",
    "sums lie in registers and take no scratchpad",
);
const ROWS: Arg = must("rows", Whole, "rows");
const COLS: Arg = must("cols", Whole, "columns");
const ROW_TILE: Arg = must("tile", Sizes(2), "tile sizes along rows and columns");
const ONLINE: Arg = may(
    "online",
    Flag,
    "false",
    "stream rows in pieces, for rows longer than the tile",
);

/// Every kind of kernel.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "matmul",
        about: "C[M, N] = A[M, K] * B[K, N]",
        args: &[
            M,
            N,
            K,
            MATMUL_TILE,
            STAGES,
            GROUP,
            SPLIT_K,
            PERSISTENT,
            F16,
            ACC,
            OUT,
            TRANS_A,
            TRANS_B,
            FORM,
            REGISTERS,
        ],
    },
    Kind {
        name: "batched_matmul",
        about: "a batch of matrix products of one size",
        args: &[
            must("batch", Whole, "products"),
            may("shared_b", Flag, "false", "the products share B"),
            M,
            N,
            K,
            MATMUL_TILE,
            STAGES,
            GROUP,
            SPLIT_K,
            PERSISTENT,
            F16,
            ACC,
            OUT,
            TRANS_A,
            TRANS_B,
            FORM,
            REGISTERS,
        ],
    },
    Kind {
        name: "conv",
        about: "two-dimensional convolution as an implicit matrix product",
        args: &[
            must("images", Whole, "images"),
            must("height", Whole, "rows of pixels"),
            must("width", Whole, "columns of pixels"),
            must("channels", Whole, "channels of the input"),
            must("filters", Whole, "filters: channels of the result"),
            must("kernel", Sizes(2), "rows and columns of a filter"),
            may("stride", Sizes(2), "1x1", "pixels between results"),
            may(
                "padding",
                Sizes(2),
                "0x0",
                "rows and columns of padding on each side",
            ),
            may(
                "dilation",
                Sizes(2),
                "1x1",
                "pixels between positions of a filter",
            ),
            must(
                "tile",
                Sizes(4),
                "tile sizes along result rows, columns, filters and channels",
            ),
            STAGES,
            may("layout", Layout, "nhwc", "how images lie in memory"),
            F16,
            ACC,
            FORM,
            REGISTERS,
        ],
    },
    Kind {
        name: "softmax",
        about: "softmax of each row of a matrix",
        args: &[ROWS, COLS, ROW_TILE, ONLINE, STAGES, F32],
    },
    Kind {
        name: "layer_norm",
        about: "layer normalisation of each row of a matrix",
        args: &[ROWS, COLS, ROW_TILE, ONLINE, STAGES, F32],
    },
    Kind {
        name: "attention",
        about: "softmax(Q * K^T) * V per head, in one pass over keys and values",
        args: &[
            must("heads", Whole, "batch times query heads"),
            must("queries", Whole, "queries of a head"),
            must("keys", Whole, "keys of a head"),
            must("head_dim", Whole, "elements of a query or key"),
            may(
                "share",
                Whole,
                "1",
                "query heads that share one head of keys and values",
            ),
            must("tile", Sizes(2), "tile sizes along queries and keys"),
            may("causal", Flag, "false", "mask keys after a query"),
            STAGES,
            F16,
            ACC,
            FORM,
            REGISTERS,
        ],
    },
    Kind {
        name: "elementwise",
        about: "one output of n inputs of the same size",
        args: &[
            must("n", Whole, "elements"),
            must("block", Whole, "elements of a work-item"),
            may("inputs", Whole, "2", "inputs"),
            may("ops", Whole, "1", "operations on each element"),
            F32,
        ],
    },
    Kind {
        name: "reduction",
        about: "a sum of a matrix along one axis",
        args: &[
            ROWS,
            COLS,
            may("axis", Whole, "1", "the axis that is summed: 0 or 1"),
            ROW_TILE,
            STAGES,
            F32,
            may(
                "out",
                Element,
                "",
                "element type of the result; default dtype",
            ),
        ],
    },
];

/// Options of every kind: machine facts and costs, each replacing what the caller's model says.
pub const COST_ARGS: &[Arg] = &[
    may(
        "array",
        Sizes(2),
        "",
        "rows and columns of a systolic array; default the machine's",
    ),
    may(
        "arrays",
        Whole,
        "",
        "systolic arrays that share one dot; default as the caller's model says",
    ),
    may("lanes", Whole, "", "vector lanes; default the machine's"),
    may(
        "vector_bits",
        Whole,
        "",
        "bits a lane works on in a cycle; default the machine's",
    ),
    may(
        "matmul_cost",
        Formula,
        "",
        "formula of products; default scale_sim_ws",
    ),
    may(
        "costs",
        Costs,
        "",
        "costs of tiles by name: tile=cycles[:overlap],...",
    ),
];

/// Options of every kind: what a work-item takes of a core besides scratchpad.
pub const RESOURCE_ARGS: &[Arg] = &[
    may(
        "registers",
        Whole,
        "0",
        "registers a work-item takes, of all its threads together",
    ),
    may("threads", Whole, "0", "threads a work-item takes"),
];

impl Kind {
    /// The option of this name, with `_` between words.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn option(&self, name: &str) -> Result<&'static Arg> {
        let all = || self.args.iter().chain(COST_ARGS).chain(RESOURCE_ARGS);
        all().find(|a| a.name == name).ok_or_else(|| {
            let names = || all().map(|a| a.name);
            let hint = match closest(name, names()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!(
                    "{} takes {}",
                    self.name,
                    names().collect::<Vec<_>>().join(", ")
                ),
            };
            TraceError::new(
                ErrorCode::UnknownKey,
                format!("options.{name}"),
                format!("{} has no such option", self.name),
            )
            .with_hint(hint)
        })
    }
}

/// The kind of this name.
///
/// # Errors
///
/// There is none.
pub fn kind(name: &str) -> Result<&'static Kind> {
    let wanted = name.replace('-', "_");
    KINDS.iter().find(|k| k.name == wanted).ok_or_else(|| {
        let names: Vec<&str> = KINDS.iter().map(|k| k.name).collect();
        let hint = match closest(&wanted, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("there are {}", names.join(", ")),
        };
        TraceError::new(
            ErrorCode::BadValue,
            "kernel",
            format!("no kernel is called {name:?}"),
        )
        .with_hint(hint)
    })
}

/// A kernel from options given as text. `cost` holds what the machine gives; options replace it.
///
/// # Errors
///
/// An unknown kind or option (with the nearest name), a missing one, a value that cannot be read or
/// is out of range. The path is `options.NAME`.
pub fn parse_args(
    kind_name: &str,
    options: &BTreeMap<String, String>,
    cost: &CostModel,
) -> Result<KernelSpec> {
    let kind = kind(kind_name)?;
    let mut fields = Map::new();
    let mut cost = cost.clone();
    let mut resources = Resources::default();
    let mut given: BTreeMap<String, &str> = BTreeMap::new();
    for (name, value) in options {
        let plain = name.trim_start_matches('-').replace('-', "_");
        if given.insert(plain.clone(), value).is_some() {
            return Err(bad(
                &format!("options.{plain}"),
                "given twice",
                "give it once",
            ));
        }
    }
    for (name, text) in &given {
        let path = format!("options.{name}");
        if let Some(arg) = kind.args.iter().find(|a| a.name == name) {
            fields.insert(name.clone(), read(&path, arg.value, text)?);
        } else if let Some(arg) = COST_ARGS.iter().find(|a| a.name == name) {
            set_cost(&mut cost, &path, arg, text)?;
        } else if name == "registers" {
            resources.registers = whole(&path, text)?;
        } else if name == "threads" {
            resources.threads = whole(&path, text)?;
        } else {
            kind.option(name)?;
        }
    }
    if let Some(arg) = kind
        .args
        .iter()
        .find(|a| a.required && !given.contains_key(a.name))
    {
        return Err(TraceError::new(
            ErrorCode::MissingKey,
            format!("options.{}", arg.name),
            format!("{} needs it", kind.name),
        )
        .with_hint(arg.help));
    }
    let kernel = match kind.name {
        "matmul" | "batched_matmul" => Kernel::Matmul(build(fields)?),
        "conv" => Kernel::Conv(build(fields)?),
        "softmax" => Kernel::Softmax(build(fields)?),
        "layer_norm" => Kernel::LayerNorm(build(fields)?),
        "attention" => Kernel::Attention(build(fields)?),
        "elementwise" => Kernel::Elementwise(build(fields)?),
        _ => Kernel::Reduction(build(fields)?),
    };
    let spec = KernelSpec {
        kernel,
        cost,
        resources,
    };
    spec.check()?;
    Ok(spec)
}

fn build<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T> {
    serde_json::from_value(Value::Object(fields))
        .map_err(|e| bad("options", e.to_string(), "check the values"))
}

fn set_cost(cost: &mut CostModel, path: &str, arg: &Arg, text: &str) -> Result<()> {
    let narrow = |value: u64| {
        u32::try_from(value)
            .map_err(|_| bad(path, format!("a value of {value}"), "use a smaller one"))
    };
    match (arg.name, arg.value) {
        ("array", _) => {
            let sizes = sizes(path, text, 2)?;
            if let [rows, cols] = sizes.as_slice() {
                (cost.array_rows, cost.array_cols) = (narrow(*rows)?, narrow(*cols)?);
            }
        }
        ("arrays", _) => cost.arrays = narrow(whole(path, text)?)?,
        ("lanes", _) => cost.lanes = narrow(whole(path, text)?)?,
        ("vector_bits", _) => cost.vector_bits = narrow(whole(path, text)?)?,
        (_, Costs) => {
            for part in text.split(',') {
                let form = "write tile=cycles or tile=cycles:overlap";
                let Some((tile, value)) = part.split_once('=') else {
                    return Err(bad(path, format!("{part:?} gives no cost"), form));
                };
                let (cycles, overlap) = value.split_once(':').unwrap_or((value, "0"));
                let given = GivenCost {
                    cycles: whole(path, cycles)?,
                    overlap: whole(path, overlap)?,
                };
                if cost.fixed.insert(tile.to_owned(), given).is_some() {
                    return Err(bad(
                        path,
                        format!("tile {tile:?} is given twice"),
                        "give it once",
                    ));
                }
            }
        }
        _ => {
            word(path, arg.value, text)?;
            let known = MatmulFormula::ALL.iter().find(|(word, _)| *word == text);
            cost.matmul = known.map_or(cost.matmul, |(_, formula)| *formula);
        }
    }
    Ok(())
}

fn read(path: &str, value: ArgValue, text: &str) -> Result<Value> {
    Ok(match value {
        Whole => Value::from(whole(path, text)?),
        Sizes(count) => Value::from(sizes(path, text, count)?),
        Flag => {
            Value::from(word(path, value, if text.is_empty() { "true" } else { text })? == "true")
        }
        _ => Value::from(word(path, value, text)?),
    })
}

fn whole(path: &str, text: &str) -> Result<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(value) if digits => Ok(value),
        _ => Err(bad(
            path,
            format!("{text:?} is not a whole number"),
            "write digits only",
        )),
    }
}

fn sizes(path: &str, text: &str, count: usize) -> Result<Vec<u64>> {
    let parts: Vec<&str> = text.split(['x', ',']).collect();
    if parts.len() != count {
        let form = vec!["128"; count].join("x");
        return Err(bad(
            path,
            format!("{text:?} is not {count} sizes"),
            &format!("write {count} numbers with x between them, such as {form}"),
        ));
    }
    parts.into_iter().map(|p| whole(path, p)).collect()
}

fn word<'t>(path: &str, value: ArgValue, text: &'t str) -> Result<&'t str> {
    let words = value.words().unwrap_or_default();
    if words.contains(&text) {
        return Ok(text);
    }
    let hint = match closest(text, words.iter().copied()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("use one of {}", words.join(", ")),
    };
    Err(bad(path, format!("{text:?} is not a known word"), &hint))
}
