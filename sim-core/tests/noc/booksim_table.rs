//! Latency over injection, against BookSim 2 (tests/golden/noc).

use super::traffic::uniform;
use tilesim_core::noc::{FlitNetworkSpec, NetworkParams, Topology};

struct Row {
    net: String,
    flits: u32,
    rate: f64,
    /// `None`: unstable.
    latency: Option<f64>,
    accepted: Option<f64>,
}

fn rows() -> Vec<Row> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/golden/noc/results_booksim2.csv"
    );
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .skip(1)
        .map(|line| {
            let f: Vec<&str> = line.split(',').collect();
            Row {
                net: f[0].into(),
                flits: f[1].parse().unwrap(),
                rate: f[2].parse().unwrap(),
                latency: f[3].parse().ok(),
                accepted: f[6].parse().ok(),
            }
        })
        .collect()
}

fn spec(net: &str) -> FlitNetworkSpec {
    let topology = match net {
        "mesh8x8" => Topology::Mesh { k: 8, n: 2 },
        "fly4ary3" => Topology::Fly { k: 4, n: 3 },
        "xbar64" => Topology::Crossbar { ports: 64 },
        other => panic!("{other}"),
    };
    // The default routers are those of the table.
    FlitNetworkSpec::try_from(NetworkParams::new(topology)).unwrap()
}

/// Rows of `net`: latency within 3 % up to 70 % of saturation (taken low: 0.6 of a flit per node
/// and cycle for the fly and the crossbar, which the table does not drive that far) and within 8 %
/// beyond, what is accepted within 3 %.
fn check(net: &str, saturation: f64) {
    let spec = spec(net);
    let mut count = 0;
    for row in rows().iter().filter(|r| r.net == net) {
        let Some(latency) = row.latency else { continue };
        if (net, row.flits, row.rate) == ("mesh8x8", 4, 0.4) {
            continue; // deviation 1: see `the_knee_of_the_mesh`
        }
        let window = if row.rate < 0.1 { 40_000 } else { 10_000 };
        let m = uniform(&spec, row.flits, row.rate, 3000, window, 1);
        let off = m.latency / latency - 1.0;
        let tolerance = if row.rate <= 0.7 * saturation {
            0.03
        } else {
            0.08
        };
        assert!(
            off.abs() <= tolerance,
            "{net}, {} flits, rate {}: latency {:.3} against {latency} ({:+.2} %)",
            row.flits,
            row.rate,
            m.latency,
            off * 100.0
        );
        // The reference draws its own load: few packets at the lowest rates.
        if row.rate >= 0.05 {
            let accepted = row.accepted.unwrap();
            assert!(
                (m.accepted / accepted - 1.0).abs() <= 0.03,
                "{} {accepted}",
                m.accepted
            );
        }
        count += 1;
    }
    assert!(count >= 17, "{count} rows");
}

#[test]
fn mesh_follows_booksim() {
    check("mesh8x8", 0.42);
}

#[test]
fn fly_follows_booksim() {
    check("fly4ary3", 0.6);
}

#[test]
fn crossbar_follows_booksim() {
    check("xbar64", 0.6);
}

/// BookSim's 8x8 mesh is stable at 0.40 and not at 0.45, for both packet sizes: so are we, and our
/// saturation throughput lies between, within 5 % of it whatever BookSim's is in that interval or
/// of its middle.
#[test]
fn the_mesh_saturates_where_booksim_does() {
    let spec = spec("mesh8x8");
    for flits in [1, 4] {
        let stable = uniform(&spec, flits, 0.40, 3000, 10_000, 1);
        assert!(
            (stable.accepted - 0.40).abs() < 0.005,
            "{}",
            stable.accepted
        );
        let beyond = uniform(&spec, flits, 0.45, 10_000, 10_000, 1);
        assert!(beyond.latency > 500.0, "{}", beyond.latency);
        assert!(
            (0.40..0.45).contains(&beyond.accepted),
            "{}",
            beyond.accepted
        );
        assert!(
            (beyond.accepted / 0.425 - 1.0).abs() < 0.06,
            "{}",
            beyond.accepted
        );
    }
}

/// Deviation 1: at 0.40 with 4-flit packets the mesh is at the knee, where seeds alone move the
/// mean between 67 and 101 cycles. BookSim's 96.07 is met within 2 % of that load.
#[test]
fn the_knee_of_the_mesh() {
    let spec = spec("mesh8x8");
    let mean = |rate| {
        let runs: Vec<f64> = (0..5)
            .map(|seed| uniform(&spec, 4, rate, 3000, 7000, 100 + seed).latency)
            .collect();
        (runs.iter().sum::<f64>() / 5.0, runs)
    };
    let reference = 96.0708;
    let (at, runs) = mean(0.40);
    assert!(
        (at / reference - 1.0).abs() > 0.03,
        "closed: drop the deviation"
    );
    assert!((at / reference - 1.0).abs() < 0.25, "{at}");
    assert!(runs.iter().any(|r| *r > 0.9 * reference), "{runs:?}");
    assert!(mean(0.40 * 1.02).0 > reference);
    assert!(mean(0.40 * 0.98).0 < reference);
}
