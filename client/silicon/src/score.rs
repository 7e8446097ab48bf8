//! How well one order agrees with another.

use serde::{Deserialize, Serialize};

/// Kendall's tau-b of two lists of equal length: 1 for the same order, -1 for the reverse, ties
/// allowed for. `None` if either list is all ties (or has fewer than two entries).
///
/// O(n log n): sorted by the first list, discordant pairs are inversions of the second, which a merge
/// sort counts.
pub fn kendall_tau(a: &[f64], b: &[f64]) -> Option<f64> {
    let n = a.len().min(b.len());
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| a[i].total_cmp(&a[j]).then(b[i].total_cmp(&b[j])));
    let pairs = |n: usize| n as u64 * (n as u64).saturating_sub(1) / 2;
    let ties = |same: &dyn Fn(usize, usize) -> bool, order: &[usize]| -> u64 {
        order
            .chunk_by(|&i, &j| same(i, j))
            .map(|run| pairs(run.len()))
            .sum()
    };
    let tied_a = ties(&|i, j| a[i] == a[j], &order);
    let tied_both = ties(&|i, j| a[i] == a[j] && b[i] == b[j], &order);
    let mut second: Vec<f64> = order.iter().map(|&i| b[i]).collect();
    let discordant = inversions(&mut second);
    let tied_b: u64 = second
        .chunk_by(|x, y| x == y)
        .map(|run| pairs(run.len()))
        .sum();
    let all = pairs(n);
    let concordant = (all + tied_both) as f64 - (tied_a + tied_b + discordant) as f64;
    let scale = ((all - tied_a) as f64 * (all - tied_b) as f64).sqrt();
    (scale > 0.0).then(|| (concordant - discordant as f64) / scale)
}

/// Sorts, and counts the pairs that were out of order.
fn inversions(list: &mut Vec<f64>) -> u64 {
    let mut count = 0;
    let mut from = std::mem::take(list);
    let mut width = 1;
    while width < from.len() {
        let mut to = Vec::with_capacity(from.len());
        for pair in from.chunks(2 * width) {
            let (left, right) = pair.split_at(width.min(pair.len()));
            let (mut i, mut j) = (0, 0);
            while i < left.len() || j < right.len() {
                if j == right.len() || i < left.len() && left[i] <= right[j] {
                    to.push(left[i]);
                    i += 1;
                } else {
                    count += (left.len() - i) as u64;
                    to.push(right[j]);
                    j += 1;
                }
            }
        }
        from = to;
        width *= 2;
    }
    *list = from;
    count
}

/// How well predicted times rank measured ones. What too few times do not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    /// Kendall's tau-b over all entries.
    pub kendall_tau: Option<f64>,
    /// The same over the 50 entries with the shortest measured times.
    pub tau_top50: Option<f64>,
    /// Measured time of the entry predicted fastest, over the shortest measured time, less 1.
    pub regret: Option<f64>,
    /// Likewise, of the best among the five predicted fastest.
    pub regret_top5: Option<f64>,
}

/// Indices in ascending order of the values; of equal ones the earlier first.
pub fn order(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&i, &j| values[i].total_cmp(&values[j]));
    order
}

impl Score {
    /// Of two lists of equal length. What failed has an infinite predicted time.
    pub fn of(predicted: &[f64], measured: &[f64]) -> Score {
        let fastest = order(measured);
        let top = &fastest[..fastest.len().min(50)];
        let of = |list: &[f64]| top.iter().map(|&i| list[i]).collect::<Vec<_>>();
        let mut picks = order(predicted);
        picks.retain(|&i| predicted[i].is_finite());
        let regret = |n: usize| {
            let picked = picks.iter().take(n).map(|&i| measured[i]);
            let time = picked.min_by(f64::total_cmp)?;
            Some(time / measured[*fastest.first()?] - 1.0)
        };
        Score {
            kendall_tau: kendall_tau(predicted, measured),
            tau_top50: kendall_tau(&of(predicted), &of(measured)),
            regret: regret(1),
            regret_top5: regret(5),
        }
    }

    /// The mean of several, each part over those that have it.
    pub fn mean<'s>(scores: impl Iterator<Item = &'s Score> + Clone) -> Score {
        let mean = |part: fn(&Score) -> Option<f64>| {
            let (mut sum, mut count) = (0.0, 0u32);
            for value in scores.clone().filter_map(part) {
                sum += value;
                count += 1;
            }
            (count > 0).then(|| sum / f64::from(count))
        };
        Score {
            kendall_tau: mean(|s| s.kendall_tau),
            tau_top50: mean(|s| s.tau_top50),
            regret: mean(|s| s.regret),
            regret_top5: mean(|s| s.regret_top5),
        }
    }
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;

    /// Pair by pair.
    fn slow(a: &[f64], b: &[f64]) -> Option<f64> {
        let (mut s, mut x, mut y) = (0i64, 0i64, 0i64);
        for i in 0..a.len() {
            for j in 0..i {
                let sign = |v: &[f64]| v[i].partial_cmp(&v[j]).map_or(0, |o| o as i64);
                s += sign(a) * sign(b);
                x += sign(a).abs();
                y += sign(b).abs();
            }
        }
        (x * y > 0).then(|| s as f64 / ((x * y) as f64).sqrt())
    }

    #[test]
    fn tau_is_that_of_all_pairs() {
        let mut seed = 7u64;
        let mut next = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) % most) as f64
        };
        for n in 0..40 {
            for values in [2, 5, 1000] {
                let a: Vec<f64> = (0..n).map(|_| next(values)).collect();
                let b: Vec<f64> = (0..n).map(|_| next(values)).collect();
                match (kendall_tau(&a, &b), slow(&a, &b)) {
                    (None, None) => {}
                    (Some(x), Some(y)) => assert!((x - y).abs() < 1e-12, "{a:?} {b:?}: {x} {y}"),
                    other => panic!("{a:?} {b:?}: {other:?}"),
                }
            }
        }
        // A published example: scipy.stats.kendalltau's.
        let tau = kendall_tau(&[12., 2., 1., 12., 2.], &[1., 4., 7., 1., 0.]);
        assert!((tau.unwrap_or(0.0) + 0.471_404_520_791_031_7).abs() < 1e-12);
    }

    fn near(a: Option<f64>, b: f64) {
        assert!(a.is_some_and(|a| (a - b).abs() < 1e-12), "{a:?}");
    }

    #[test]
    fn regret_is_of_the_pick() {
        let measured = [10.0, 12.0, 11.0, 20.0, 21.0, 22.0];
        let score = Score::of(&[2.0, 1.0, 3.0, 4.0, 5.0, 6.0], &measured);
        near(score.regret, 0.2);
        near(score.regret_top5, 0.0);
        let reverse = Score::of(&[6.0, 5.0, 4.0, 3.0, 2.0, 1.0], &measured);
        near(reverse.regret, 1.2);
        near(reverse.regret_top5, 0.1);
    }

    #[test]
    fn what_failed_is_last() {
        let measured = [10.0, 11.0, 12.0];
        let failed = Score::of(&[f64::INFINITY, 1.0, 2.0], &measured);
        let last = Score::of(&[3.0, 1.0, 2.0], &measured);
        assert_eq!(failed.kendall_tau, last.kendall_tau);
        // Nobody picks it.
        near(failed.regret_top5, 0.1);
        near(last.regret_top5, 0.0);
    }

    #[test]
    fn few_times_tell_little() {
        assert_eq!(Score::of(&[], &[]), Score::default());
        let one = Score::of(&[1.0], &[1.0]);
        assert_eq!((one.kendall_tau, one.regret), (None, Some(0.0)));
        let mean = Score::mean([one, Score::default()].iter());
        assert_eq!(mean, one);
    }
}
