//! The timing table in the form the channel runs on.
//!
//! All levels above the bank are collapsed into one ready time per (command, bank group): a rule at a higher level
//! raises the ready times of every group below its node. What remains is two look-ups per question, group and bank.

use super::spec::{Bus, DramSpec, Refresh, RowPolicy};
use super::standards::{CMDS, Cmd};

/// After the command that owns it: `target` waits `cycles` at nodes of `level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub target: u8,
    /// Level of the node; the bank level means the bank itself.
    pub level: u8,
    pub cycles: u32,
    pub window: u8,
    pub sibling: bool,
    /// First index of this rule's rings, one ring of `window` times per node, if `window > 1`.
    pub ring: u32,
}

/// Compiled rules and the shape they refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timing {
    /// Rules by the command that triggers them.
    pub rules: Vec<Vec<Rule>>,
    pub banks: usize,
    pub groups: usize,
    /// log2 of banks per group.
    pub bank_shift: u32,
    /// log2 of groups below one node, for each level above the bank.
    pub group_shift: Vec<u32>,
    /// Ring slots needed.
    pub ring_slots: usize,
    /// The bank level.
    pub bank_level: u8,
}

impl Timing {
    pub fn compile(spec: &DramSpec) -> Timing {
        let depth = spec.levels.len();
        let banks: usize = spec.levels.iter().product::<u32>() as usize;
        let bank_shift = spec.levels[depth - 1].trailing_zeros();
        let groups = banks >> bank_shift;
        let mut group_shift = vec![0; depth - 1];
        let mut below = 0;
        for l in (0..depth - 1).rev() {
            group_shift[l] = below;
            below += spec.levels[l].trailing_zeros();
        }
        let mut used = [false; CMDS];
        for c in [Cmd::Act, Cmd::Act2, Cmd::Pre, Cmd::CasRd, Cmd::CasWr, Cmd::Rd, Cmd::Wr] {
            used[c as usize] = true;
        }
        if spec.row_policy == RowPolicy::Closed {
            used[Cmd::RdA as usize] = true;
            used[Cmd::WrA as usize] = true;
        }
        match spec.refresh {
            Refresh::None => {}
            Refresh::AllBank { .. } => {
                used[Cmd::PreAll as usize] = true;
                used[Cmd::RefAll as usize] = true;
            }
            Refresh::PerBank { .. } => used[Cmd::RefBank as usize] = true,
        }
        let mut t = Timing {
            rules: vec![Vec::new(); CMDS],
            banks,
            groups,
            bank_shift,
            group_shift,
            ring_slots: 0,
            bank_level: depth as u8 - 1,
        };
        // A rule of 0 ticks never binds; on a bus of one command per tick a rule of 1 tick never binds.
        let floor = match spec.bus {
            Bus::Single | Bus::Lpddr => 1,
            Bus::Dual | Bus::DualHalf => 0,
        };
        for c in spec.constraints.iter().filter(|c| c.cycles > floor || (c.window > 1 && c.cycles > 0)) {
            for &b in c.before.iter().filter(|&&b| used[b as usize]) {
                for &a in c.after.iter().filter(|&&a| used[a as usize]) {
                    let rules = &mut t.rules[b as usize];
                    let same = rules.iter_mut().find(|r| {
                        r.target == a as u8 && r.level == c.level && r.sibling == c.sibling && r.window == 1
                    });
                    if c.window == 1
                        && let Some(r) = same
                    {
                        r.cycles = r.cycles.max(c.cycles);
                        continue;
                    }
                    let mut ring = 0;
                    if c.window > 1 {
                        ring = t.ring_slots as u32;
                        let nodes = if c.level == t.bank_level { banks } else { groups >> t.group_shift[c.level as usize] };
                        t.ring_slots += nodes * c.window as usize;
                    }
                    rules.push(Rule {
                        target: a as u8,
                        level: c.level,
                        cycles: c.cycles,
                        window: c.window,
                        sibling: c.sibling,
                        ring,
                    });
                }
            }
        }
        t
    }
}
