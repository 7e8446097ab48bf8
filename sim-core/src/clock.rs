//! Three clocks on one exact timeline.
//!
//! Step `i` of a clock with period P happens at time `i * P`; all clocks start together at time 0.
//! What falls on one instant happens in the order core, DRAM, NoC, so a conversion either keeps an
//! equal instant ("at or after") or skips it ("strictly after").

use crate::machine::Clocks;

/// Converts steps of one clock into steps of another, exactly.
///
/// `num / den` is the period of the source clock over the period of the target clock, reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    num: u64,
    den: u64,
}

impl Conversion {
    /// From a clock with period `from` to one with period `to` (same unit, both above 0).
    pub fn new(from: u64, to: u64) -> Conversion {
        let g = gcd(from, to).max(1);
        Conversion {
            num: from / g,
            den: (to / g).max(1),
        }
    }

    /// Whether both clocks tick together.
    pub fn is_identity(self) -> bool {
        self.num == self.den
    }

    /// First target step whose time is at or after source step `step`.
    #[inline]
    pub fn at_or_after(self, step: u64) -> u64 {
        if self.num == self.den {
            return step;
        }
        match step.checked_mul(self.num) {
            Some(t) => t.div_ceil(self.den),
            None => narrow((step as u128 * self.num as u128).div_ceil(self.den as u128)),
        }
    }

    /// Where in a target period source step `step` lies: equal phases, equal futures.
    pub fn phase(self, step: u64) -> u64 {
        (u128::from(step) * u128::from(self.num) % u128::from(self.den)) as u64
    }

    /// First target step whose time is strictly after source step `step`.
    #[inline]
    pub fn after(self, step: u64) -> u64 {
        self.last_at_or_before(step).saturating_add(1)
    }

    /// Last target step whose time is at or before source step `step`.
    #[inline]
    pub fn last_at_or_before(self, step: u64) -> u64 {
        if self.num == self.den {
            return step;
        }
        match step.checked_mul(self.num) {
            Some(t) => t / self.den,
            None => narrow(step as u128 * self.num as u128 / self.den as u128),
        }
    }
}

fn narrow(x: u128) -> u64 {
    u64::try_from(x).unwrap_or(u64::MAX)
}

/// Greatest common divisor.
pub(crate) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The conversions the memory path needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Core steps to NoC steps.
    pub core_to_noc: Conversion,
    /// NoC steps to core steps.
    pub noc_to_core: Conversion,
    /// Core steps to DRAM steps.
    pub core_to_dram: Conversion,
    /// DRAM steps to NoC steps.
    pub dram_to_noc: Conversion,
    /// DRAM steps to core steps.
    pub dram_to_core: Conversion,
}

impl Timeline {
    /// The timeline of a machine's clocks. Frequencies must be above 0 and below 10^9 kHz, which
    /// machine validation guarantees.
    pub fn new(clocks: &Clocks) -> Timeline {
        let between = |from: u64, to: u64| -> Conversion {
            if clocks.truncate_to_ps {
                // The reference divides 1,000,000 by the frequency in MHz and drops the rest.
                let period = |khz: u64| (1_000_000_000 / khz.max(1)).max(1);
                Conversion::new(period(from), period(to))
            } else {
                // The ratio of two periods is the inverse ratio of the frequencies.
                Conversion::new(to.max(1), from.max(1))
            }
        };
        Timeline {
            core_to_noc: between(clocks.core_khz, clocks.noc_khz),
            noc_to_core: between(clocks.noc_khz, clocks.core_khz),
            core_to_dram: between(clocks.core_khz, clocks.dram_khz),
            dram_to_noc: between(clocks.dram_khz, clocks.noc_khz),
            dram_to_core: between(clocks.dram_khz, clocks.core_khz),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_exact_at_ties_and_far_out() {
        // 1063 ps and 769 ps: the periods of 940 and 1300 MHz truncated.
        let c = Conversion::new(1063, 769);
        for step in [0u64, 1, 2, 768, 769, 770, 1_000_000_000_000] {
            let t = step as u128 * 1063;
            let first = c.at_or_after(step) as u128;
            assert!(first * 769 >= t && (first == 0 || (first - 1) * 769 < t));
            let next = c.after(step) as u128;
            assert!(next * 769 > t && (next - 1) * 769 <= t);
        }
        assert_eq!(
            c.at_or_after(769),
            1063,
            "a tie belongs to the same instant"
        );
        assert_eq!(c.after(769), 1064);
    }

    #[test]
    fn equal_clocks_are_the_identity() {
        let c = Conversion::new(1063, 1063);
        assert!(c.is_identity());
        assert_eq!((c.at_or_after(7), c.after(7)), (7, 8));
    }
}
