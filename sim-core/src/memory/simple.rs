//! The `simple` DRAM channel: a fixed latency behind one admission per DRAM step, under a bandwidth
//! cap.
//!
//! The cap is a credit in bytes. It starts at two requests, gains `bytes_per_cycle` in every DRAM
//! step before admission, pays one request per admission and is never capped. So admission number m
//! (from 0) needs `bytes_per_cycle x (step + 1) >= request x (m - 1)`: a bound on its step that
//! depends on m alone, kept here as an exact fraction.

/// The immutable part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleDram {
    latency: u64,
    /// Steps per admission as `whole + part / unit`; `None` when the cap never binds.
    pace: Option<Pace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    whole: u64,
    part: u64,
    unit: u64,
}

/// One channel's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimpleChannel {
    /// First step the channel may admit in, after the one before.
    free_at: u64,
    /// Admissions so far, up to 2: the first two are free of the cap.
    started: u8,
    /// Earliest end of credit for the next admission: steps, and a remainder over `unit`. Below 0
    /// after a jump over work that left credit over.
    due: i64,
    part: u64,
    /// Admissions that the cap has held up.
    held: u64,
    /// Least credit left over at an admission that it has not held up, since the last reset: steps,
    /// and fractions where that is least.
    spare: u64,
    spare_part: u64,
}

/// A channel's bandwidth credit, in fractions of a step: see [`SimpleDram::unit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// Left over now; below 0 where the next admission must wait.
    pub slack: i128,
    /// Admissions that have waited for credit so far.
    pub held: u64,
    /// Least that was left over at one that has not, since [`SimpleChannel::reset_spare`].
    pub spare: i128,
}

impl SimpleDram {
    /// `latency` in DRAM steps; the cap in bytes per DRAM step (finite, above 0).
    pub fn new(latency: u32, bytes_per_cycle: Option<f64>, request_bytes: u32) -> SimpleDram {
        let pace = bytes_per_cycle
            .filter(|&b| b > 0.0 && b < f64::from(request_bytes))
            .map(|b| {
                // b = mantissa x 2^-shift, exactly.
                let bits = b.to_bits();
                let exponent = (bits >> 52 & 0x7ff) as i32 - 1075;
                let mantissa = (bits & ((1 << 52) - 1)) | 1 << 52;
                // b < request_bytes < 2^32, so exponent < -20; below 2^-64 bytes per cycle the pace
                // saturates, which no run can tell apart.
                let shift = (-exponent).clamp(0, 90) as u32;
                let steps = u128::from(request_bytes) << shift;
                Pace {
                    whole: u64::try_from(steps / u128::from(mantissa)).unwrap_or(u64::MAX >> 8),
                    part: (steps % u128::from(mantissa)) as u64,
                    unit: mantissa,
                }
            });
        SimpleDram {
            latency: u64::from(latency),
            pace,
        }
    }

    /// Fractions of a step that credit is counted in; 1 when there is no cap.
    pub fn unit(&self) -> u64 {
        self.pace.map_or(1, |p| p.unit)
    }

    /// Least steps from admission to return.
    pub fn min_latency(&self) -> u64 {
        self.latency
    }

    /// A request reaches the channel in step `at`. Returns (admitted, returned).
    #[inline(always)]
    pub fn admit(&self, channel: &mut SimpleChannel, at: u64) -> (u64, u64) {
        let mut step = at.max(channel.free_at);
        if let Some(pace) = self.pace {
            if channel.started < 2 {
                channel.started += 1;
            } else {
                channel.due = channel.due.saturating_add_unsigned(pace.whole);
                channel.part += pace.part;
                if channel.part >= pace.unit {
                    channel.part -= pace.unit;
                    channel.due = channel.due.saturating_add(1);
                }
                // The first step with enough credit is ceil(due) - 1.
                let needed = channel.due - i64::from(channel.part == 0);
                if needed > step as i64 {
                    step = needed as u64;
                    channel.held += 1;
                } else {
                    let spare = (step as i64).saturating_sub(needed) as u64;
                    if spare <= channel.spare {
                        channel.note_spare(spare, pace.unit);
                    }
                }
            }
        }
        channel.free_at = step + 1;
        (step, step.saturating_add(self.latency))
    }
}

impl SimpleChannel {
    /// Append what decides the channel's future but its credit to `out`, steps relative to `now`.
    pub fn canonical(&self, now: u64, out: &mut Vec<u64>) {
        out.push(self.free_at.saturating_sub(now));
        out.push(u64::from(self.started));
    }

    /// An admission had so many whole steps of credit left over.
    #[inline]
    fn note_spare(&mut self, spare: u64, unit: u64) {
        let part = if self.part == 0 { 0 } else { unit - self.part };
        if spare < self.spare || part < self.spare_part {
            self.spare_part = part;
        }
        self.spare = spare;
    }

    /// Credit in step `now`.
    pub fn credit(&self, dram: &SimpleDram, now: u64) -> Credit {
        let unit = i128::from(dram.unit());
        Credit {
            slack: (i128::from(now) - i128::from(self.due)) * unit - i128::from(self.part),
            held: self.held,
            spare: i128::from(self.spare) * unit + i128::from(self.spare_part),
        }
    }

    /// Start to look for the least credit left over.
    pub fn reset_spare(&mut self) {
        self.spare = u64::MAX;
    }

    /// Add credit, in the same fractions of a step.
    pub fn add_slack(&mut self, dram: &SimpleDram, more: i128) {
        let unit = i128::from(dram.unit());
        let due = i128::from(self.due) * unit + i128::from(self.part) - more;
        self.due = i64::try_from(due.div_euclid(unit)).unwrap_or(i64::MIN / 2);
        self.part = due.rem_euclid(unit) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The credit as it is stated, one step at a time.
    fn naive(bytes: f64, request: f64, arrivals: &[u64]) -> Vec<u64> {
        let mut credit = 2.0 * request;
        let (mut step, mut next) = (0u64, 0usize);
        let mut out = Vec::new();
        while next < arrivals.len() {
            credit += bytes;
            if arrivals[next] <= step && credit >= request {
                credit -= request;
                out.push(step);
                next += 1;
            }
            step += 1;
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn admissions_follow_the_credit(
            bytes in prop_oneof![
                (1u32..3300).prop_map(|x| f64::from((x as f32 / 100.0) * 1.000_1)),
                (1u32..64).prop_map(f64::from),
            ],
            gaps in prop::collection::vec(0u64..12, 1..80),
        ) {
            let mut at = 0;
            let arrivals: Vec<u64> = gaps.iter().map(|g| { at += g; at }).collect();
            let dram = SimpleDram::new(7, Some(bytes), 32);
            let mut channel = SimpleChannel::default();
            let got: Vec<u64> = arrivals.iter().map(|&a| dram.admit(&mut channel, a).0).collect();
            prop_assert_eq!(got, naive(bytes, 32.0, &arrivals));
        }
    }
}
