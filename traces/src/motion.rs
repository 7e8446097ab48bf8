//! How transfers move from work-item to work-item.
//!
//! Where control is uniform and offsets are affine in the program ids, all work-items do the same,
//! each at its own place; then the place is known without expanding the item.

use crate::bind::Bound;
use crate::error::TraceError;
use crate::launch::{OpKind, WorkItem};
use crate::model::Bounds;
use crate::program::DmaPlan;

/// Rows of the grid that [`Bound::out_of_bounds`] walks at most, per transfer.
const MAX_ROWS: u128 = 1 << 20;

/// How the transfers of one `dma` statement move with the program ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Motion {
    /// The statement, as [`crate::launch::Op`] names it.
    pub site: u32,
    /// Bits by which one step along each axis moves them.
    pub steps: [i128; 3],
    /// No work-item touches a bit before this one, counted from address 0 ...
    pub first_bit: i128,
    /// ... or from this one on.
    pub end_bit: i128,
    /// No work-item leaves the tensor.
    pub in_bounds: bool,
}

impl DmaPlan {
    fn motion(&self) -> Option<Motion> {
        let shape = self.shape.as_ref().filter(|_| self.lines.is_none())?;
        let bits = i128::from(self.template.element_bits);
        let steps = self.steps?.map(|step| i128::from(step) * bits);
        let at = |element: i128| self.base_bits.checked_add(element.checked_mul(bits)?);
        let first_bit = at(self.offsets.lo.checked_add(shape.lo)?)?;
        let end_bit = match shape.valid {
            0 => first_bit,
            _ => at(self.offsets.hi.checked_add(shape.hi)?.checked_add(1)?)?,
        };
        Some(Motion {
            site: self.site,
            steps,
            first_bit,
            end_bit,
            in_bounds: self.in_bounds,
        })
    }
}

impl Bound {
    /// How each `dma` statement of the body moves. `None` unless all work-items do the same
    /// wherever they are: control is uniform, they are dispatched in axis order, whatever depends on
    /// program ids is affine in them, and none can be refused for leaving a tensor.
    pub fn motions(&self) -> Option<Vec<Motion>> {
        if !self.control_is_uniform() || self.keyed.is_some() || self.program.curved {
            return None;
        }
        let motions: Option<Vec<Motion>> = self.program.dmas.iter().map(DmaPlan::motion).collect();
        let strict = self.trace().bounds == Bounds::Strict;
        motions.filter(|all| !strict || all.iter().all(|m| m.in_bounds))
    }

    /// How many transfers of the whole launch leave their tensor, as expansion counts them. `None`
    /// where [`Bound::motions`] is, and where counting would take long.
    ///
    /// # Errors
    ///
    /// What expanding the first work-item says.
    pub fn out_of_bounds(&self) -> Result<Option<u64>, TraceError> {
        let Some(motions) = self.motions() else {
            return Ok(None);
        };
        if self.items() == 0 || motions.iter().all(|m| m.in_bounds) {
            return Ok(Some(0));
        }
        let mut first = WorkItem::default();
        self.expand([0; 3], &mut first)?;
        Ok(self.leaving(&first, &motions))
    }

    fn leaving(&self, first: &WorkItem, motions: &[Motion]) -> Option<u64> {
        let mut sum = 0u64;
        for op in &first.ops {
            let OpKind::Dma(number) = op.kind else {
                continue;
            };
            let transfer = first.transfers.get(number as usize)?;
            let at = self.program.dmas.iter().position(|p| p.site == op.site)?;
            let (plan, motion) = (self.program.dmas.get(at)?, motions.get(at)?);
            let shape = plan.shape.as_ref()?;
            if motion.in_bounds || shape.valid == 0 {
                continue;
            }
            let bits = i128::from(transfer.element_bits);
            let start =
                (transfer.first_bit - plan.base_bits).checked_add(shape.lo.checked_mul(bits)?)?;
            let length = shape.hi.checked_sub(shape.lo)?.checked_add(1)?;
            let last = plan.size_bits.checked_sub(length.checked_mul(bits)?)?;
            let inside = inside(self.grid(), start, motion.steps, last)?;
            sum = sum.checked_add(self.items() - inside)?;
        }
        Some(sum)
    }
}

/// Program ids of `grid` for which `start` plus the steps is from 0 to `last`.
fn inside(grid: [u64; 3], start: i128, steps: [i128; 3], last: i128) -> Option<u64> {
    let mut axes = [0, 1, 2];
    axes.sort_by_key(|&a| grid[a]);
    let [a, b, c] = axes;
    let (mut low, mut high) = (start, start);
    for (&n, &step) in grid.iter().zip(&steps) {
        let reach = step.checked_mul(i128::from(n.saturating_sub(1)))?;
        low = low.checked_add(reach.min(0))?;
        high = high.checked_add(reach.max(0))?;
    }
    if low >= 0 && high <= last {
        return grid.iter().try_fold(1u64, |all, &n| all.checked_mul(n));
    }
    if high < 0 || low > last {
        return Some(0);
    }
    if u128::from(grid[a]) * u128::from(grid[b]) > MAX_ROWS {
        return None;
    }
    let mut sum = 0u64;
    for i in 0..grid[a] {
        for j in 0..grid[b] {
            let at = start + steps[a] * i128::from(i) + steps[b] * i128::from(j);
            sum = sum.checked_add(row_inside(grid[c], at, steps[c], last))?;
        }
    }
    Some(sum)
}

/// Numbers k below `n` for which `at + k * step` is from 0 to `last`.
fn row_inside(n: u64, at: i128, step: i128, last: i128) -> u64 {
    // Turned around where it walks down.
    let (at, step) = if step < 0 {
        (last - at, -step)
    } else {
        (at, step)
    };
    if step == 0 {
        return if (0..=last).contains(&at) { n } else { 0 };
    }
    let from = (-at).max(0).div_euclid(step) + i128::from((-at).max(0) % step != 0);
    let to = (last - at).div_euclid(step) + 1;
    (to.min(i128::from(n)) - from).max(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn places_inside_are_counted(
            grid in proptest::array::uniform3(1u64..7),
            start in -30i128..30,
            steps in proptest::array::uniform3(-9i128..10),
            last in -5i128..60,
        ) {
            let mut naive = 0;
            for i in 0..grid[0] {
                for j in 0..grid[1] {
                    for k in 0..grid[2] {
                        let at = start
                            + steps[0] * i128::from(i)
                            + steps[1] * i128::from(j)
                            + steps[2] * i128::from(k);
                        naive += u64::from(at >= 0 && at <= last);
                    }
                }
            }
            prop_assert_eq!(inside(grid, start, steps, last), Some(naive));
        }
    }
}
