//! scratch
#![allow(missing_docs, clippy::unwrap_used)]
use std::sync::atomic::{AtomicUsize, Ordering};
use tilesim_core::machine::Machine;
use tilesim_silicon::{data::*, kernel::*, score::*};
fn main() {
    let data = Data::h200().unwrap();
    let machine = match std::env::var("MACHINE") {
        Ok(f) => {
            tilesim_core::machine::load(
                "h",
                &std::fs::read_to_string(f).unwrap(),
                &|_: &str| Err(String::new()),
                Default::default(),
            )
            .unwrap()
            .machine
        }
        Err(_) => Machine::preset("h200").unwrap(),
    };
    let k = Constants::default();
    let only: Vec<String> = std::env::args().skip(1).collect();
    let verbose = std::env::var("V").is_ok();
    let mut scores = vec![];
    for s in &data.shapes {
        if !only.is_empty() && !only.contains(&s.name) {
            continue;
        }
        let start = std::time::Instant::now();
        let next = AtomicUsize::new(0);
        let rows: Vec<(usize, f64, f64, u64)> = std::thread::scope(|sc| {
            let hs: Vec<_> = (0..2)
                .map(|_| {
                    sc.spawn(|| {
                        let mut out = vec![];
                        loop {
                            let i = next.fetch_add(1, Ordering::Relaxed);
                            let Some(m) = data.configs.get(i) else {
                                return out;
                            };
                            let (t, l) = launch(m, s.size, &machine, &k).unwrap();
                            let a = std::time::Instant::now();
                            let r = tilesim_core::simulate(&machine, &t, &l, &mut ()).unwrap();
                            let us = r.cycles as f64 / (machine.clocks.core_khz as f64 / 1e3)
                                + k.launch_us;
                            out.push((i, us, a.elapsed().as_secs_f64(), r.cycles));
                        }
                    })
                })
                .collect();
            hs.into_iter().flat_map(|h| h.join().unwrap()).collect()
        });
        let mut pred = vec![0.0; data.configs.len()];
        let mut cpu = 0.0;
        let mut worst = (0.0, 0);
        for r in rows {
            pred[r.0] = r.1;
            cpu += r.2;
            if r.2 > worst.0 {
                worst = (r.2, r.0);
            }
        }
        let meas: Vec<f64> = s.time_us.iter().map(|t| t.unwrap()).collect();
        let sc = Score::of(&pred, &meas).unwrap();
        scores.push(sc);
        println!(
            "{:18} tau {:.3} top50 {:.3} regret {:.1}% top5 {:.1}%  wall {:.1} cpu {:.1} slowest {:?}",
            s.name,
            sc.tau,
            sc.tau_top50,
            100. * sc.regret,
            100. * sc.regret_top5,
            start.elapsed().as_secs_f64(),
            cpu,
            worst
        );
        if verbose {
            for (i, m) in data.configs.iter().enumerate() {
                let c = m.config;
                let st = step_cost(m, true, &machine, &k);
                println!(
                    "  {i:3} {:3} {:3} {:3} w{} s{} R{} t {:8.1} pred {:8.1} log {:+.2} unit {:.0} lat {:.0} l2 {:.0} cold {:.0}",
                    c.bm,
                    c.bn,
                    c.bk,
                    c.num_warps,
                    c.num_stages,
                    residents(&machine, m, true),
                    meas[i],
                    pred[i],
                    (pred[i] / meas[i]).ln(),
                    st.unit,
                    st.latency,
                    m.slopes.l2,
                    m.slopes.cold
                );
            }
        }
    }
    println!("{:?}", Score::mean(&scores));
}
