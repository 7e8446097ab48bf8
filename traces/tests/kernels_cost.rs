//! Cost formulas of the kernel library against published and measured points.

#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tilesim_traces::ErrorCode;
use tilesim_traces::kernels::{CostModel, MatmulFormula, Work};
use tilesim_traces::model::CostSource;

fn golden(name: &str) -> String {
    let path = format!(
        "{}/../tests/golden/systolic/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn rows(name: &str) -> Vec<std::collections::HashMap<String, String>> {
    let text = golden(name);
    let mut lines = text.lines();
    let head: Vec<String> = lines
        .next()
        .unwrap()
        .split(',')
        .map(str::to_owned)
        .collect();
    lines
        .map(|l| {
            head.iter()
                .cloned()
                .zip(l.split(',').map(str::to_owned))
                .collect()
        })
        .collect()
}

fn cycles(side: u32, matmul: MatmulFormula, work: Work) -> u64 {
    let model = CostModel {
        array_rows: side,
        array_cols: side,
        matmul,
        ..CostModel::default()
    };
    let cost = model.analytic(work).unwrap();
    assert!(matches!(cost.source, CostSource::Analytic(_)));
    cost.cycles
}

fn formula(dataflow: &str) -> MatmulFormula {
    match dataflow {
        "ws" => MatmulFormula::ScaleSimWs,
        "os" => MatmulFormula::ScaleSimOs,
        other => panic!("{other}"),
    }
}

#[test]
fn scale_sim_gemms_are_equal() {
    let mut checked = 0;
    for row in rows("results_scalesim.csv") {
        let number = |key: &str| row[key].parse::<u64>().unwrap();
        if row["topology"] != "gemm" {
            continue;
        }
        let work = Work::Dot {
            m: number("M"),
            n: number("N"),
            k: number("K"),
        };
        let side = number("array") as u32;
        assert_eq!(
            cycles(side, formula(&row["dataflow"]), work),
            number("total_cycles"),
            "{row:?}"
        );
        checked += 1;
    }
    assert_eq!(checked, 65);
}

#[test]
fn scale_sim_layers_are_equal() {
    let mut checked = 0;
    for row in rows("results_resnet50.csv") {
        let number = |key: &str| row[key].parse::<u64>().unwrap();
        let stride = number("stride");
        let along = |size: u64, filter: u64| (size - filter + stride).div_ceil(stride);
        let m = along(number("H"), number("R")) * along(number("W"), number("S"));
        let work = Work::Dot {
            m,
            n: number("F"),
            k: number("R") * number("S") * number("C"),
        };
        let side = number("array") as u32;
        assert_eq!(
            cycles(side, formula(&row["dataflow"]), work),
            number("total_cycles"),
            "{row:?}"
        );
        checked += 1;
    }
    assert_eq!(checked, 100);
}

#[test]
fn stonne_points_are_equal() {
    for (m, n, k, want) in [
        (16, 16, 32, 66),
        (16, 16, 16, 50),
        (32, 32, 16, 200),
        (64, 64, 32, 1056),
    ] {
        assert_eq!(
            cycles(16, MatmulFormula::StonneOs, Work::Dot { m, n, k }),
            want
        );
    }
    // The README has 10 cycles for a 4 x 4 array in hardware; the SCALE-Sim formula counts one fewer.
    assert_eq!(
        cycles(4, MatmulFormula::ScaleSimOs, Work::Dot { m: 4, n: 4, k: 4 }) + 1,
        10
    );
}

#[test]
fn pieces_add_up_to_the_whole() {
    for (m, n, k) in [(128, 128, 128), (77, 300, 129), (1, 1, 1), (1000, 64, 512)] {
        let pieces = u64::div_ceil(k, 32) * u64::div_ceil(n, 32);
        let whole = |f| cycles(32, f, Work::Dot { m, n, k });
        let sum =
            |f| pieces * (cycles(32, f, Work::Preload) + cycles(32, f, Work::Stream { rows: m }));
        assert_eq!(
            sum(MatmulFormula::ScaleSimWs),
            whole(MatmulFormula::ScaleSimWs) + 1
        );
        assert!(whole(MatmulFormula::PytorchsimWs) <= sum(MatmulFormula::PytorchsimWs));
        assert!(whole(MatmulFormula::OnnximWs) <= sum(MatmulFormula::OnnximWs));
        let peak = whole(MatmulFormula::Peak);
        for (_, f) in MatmulFormula::ALL {
            assert!(peak <= whole(*f), "{f:?}");
        }
    }
    // Two arrays take half the pieces each.
    let two = CostModel {
        arrays: 2,
        array_rows: 32,
        array_cols: 32,
        ..CostModel::default()
    };
    let work = |n| Work::Dot { m: 50, n, k: 32 };
    let one = CostModel {
        arrays: 1,
        ..two.clone()
    };
    let cycles_of = |model: &CostModel, n| model.analytic(work(n)).unwrap().cycles;
    assert_eq!(cycles_of(&two, 128), cycles_of(&one, 64));
    assert_eq!(cycles_of(&two, 96), cycles_of(&one, 64));
    // ONNXim: R + C - 2 + max(rows, 4), the next preload R cycles after the last.
    let stream = |rows| cycles(16, MatmulFormula::OnnximWs, Work::Stream { rows });
    assert_eq!((stream(1), stream(4), stream(100)), (34, 34, 130));
    assert_eq!(cycles(16, MatmulFormula::OnnximWs, Work::Preload), 16);
}

#[test]
fn pytorchsim_table() {
    let model = CostModel {
        matmul: MatmulFormula::PytorchsimWs,
        ..CostModel::default()
    };
    let cost = |work| {
        let c = model.analytic(work).unwrap();
        (c.cycles, c.overlap)
    };
    assert_eq!(cost(Work::Preload), (255, 0));
    assert_eq!(cost(Work::Stream { rows: 128 }), (382, 254));
    assert_eq!(cost(Work::Stream { rows: 8 }), (262, 254));
    // 128 lanes of 256 bits: 1024 floats a cycle.
    assert_eq!(
        cost(Work::Vector {
            elements: 16384,
            bits: 32,
            ops: 3
        }),
        (48, 0)
    );
    assert_eq!(
        cost(Work::Vector {
            elements: 1,
            bits: 32,
            ops: 1
        }),
        (1, 0)
    );
    assert_eq!(
        cost(Work::Reduce {
            elements: 16384,
            bits: 32
        }),
        (7 * 17, 0)
    );
}

#[test]
fn what_has_no_answer() {
    let model = CostModel {
        matmul: MatmulFormula::ScaleSimOs,
        ..CostModel::default()
    };
    assert_eq!(
        model.analytic(Work::Preload).unwrap_err().code,
        ErrorCode::BadValue
    );
    for (_, matmul) in MatmulFormula::ALL {
        let model = CostModel {
            matmul: *matmul,
            ..CostModel::default()
        };
        let most = u64::MAX;
        for work in [
            Work::Dot {
                m: most,
                n: most,
                k: most,
            },
            Work::Dot {
                m: most,
                n: 1,
                k: 1,
            },
            Work::Dot {
                m: 1,
                n: 1,
                k: most,
            },
            Work::Stream { rows: most },
            Work::Vector {
                elements: most,
                bits: 0,
                ops: most,
            },
            Work::Vector {
                elements: most,
                bits: u32::MAX,
                ops: 1,
            },
            Work::Reduce {
                elements: most,
                bits: 64,
            },
            Work::Dot { m: 0, n: 0, k: 0 },
        ] {
            let _ = model.analytic(work);
        }
    }
    let broken = CostModel {
        array_rows: 0,
        lanes: 0,
        ..CostModel::default()
    };
    let error = broken.analytic(Work::Dot { m: 1, n: 1, k: 1 }).unwrap_err();
    assert_eq!(error.path, "cost.array_rows");
    assert_eq!(CostModel::read_table("3\t1\n4\t0\n").unwrap().len(), 2);
    assert_eq!(CostModel::read_table("3 x").unwrap_err().path, "cost.table");
}
