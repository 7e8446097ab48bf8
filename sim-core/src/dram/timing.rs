//! The timing table in the form the channel runs on.
//!
//! All levels are collapsed into three: *top* (rank or pseudo-channel, the channel where there is neither), bank group
//! and bank. A rule at a level between or above raises the ready times of all nodes of the next kind below it. So a
//! ready time is the maximum of three numbers, and most rules touch one.
//!
//! Refresh commands and the precharges for them are asked for rarely. Rules that delay only those are not applied when
//! the earlier command issues; they are evaluated from the times of the last commands when a refresh is due (`late`).

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

/// A rule whose node the command fixes: `target` waits `cycles`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Simple {
    pub target: u8,
    pub cycles: u32,
}

/// What one command does to ready times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Rules that are usual for the command, at fixed places (see [`Effects::usual`]); 0 if absent.
    pub near: [u64; 8],
    /// Nothing in the lists below.
    pub plain: bool,
    /// Whether the time of its last issue is needed by `late`.
    pub stamped: bool,
    /// At its own top node.
    pub top: Vec<Simple>,
    /// At its bank group.
    pub group: Vec<Simple>,
    /// At its bank.
    pub bank: Vec<Simple>,
    /// Windows of activates at its top node.
    pub windows: Vec<Rule>,
    /// At the whole channel, where that is not the top node.
    pub channel: Vec<Simple>,
    /// At other nodes between top and bank group with the same parent: their level.
    pub mid_siblings: Vec<Rule>,
    /// Everything else: other windows, siblings, levels that cover several nodes.
    pub other: Vec<Rule>,
    /// All rules as given, for commands to a whole scope.
    pub all: Vec<Rule>,
}

impl Effects {
    /// The usual rules of a command in the order of `near`: distance of the node from the bank (0 bank, 1 group, 2
    /// top), target.
    fn usual(cmd: usize) -> &'static [(u8, Cmd)] {
        use Cmd::{Act, Pre, Rd, Wr};
        match cmd {
            c if c == Rd as usize || c == Wr as usize => {
                &[(2, Rd), (2, Wr), (1, Rd), (1, Wr), (0, Pre)]
            }
            c if c == Act as usize => &[(2, Act), (1, Act), (0, Act), (0, Pre), (0, Rd), (0, Wr)],
            c if c == Pre as usize => &[(2, Pre), (0, Act)],
            _ => &[],
        }
    }

    /// Moves the usual rules from the lists to `near`.
    fn extract(&mut self, cmd: usize) {
        for (i, &(up, target)) in Effects::usual(cmd).iter().enumerate() {
            let list = match up {
                0 => &mut self.bank,
                1 => &mut self.group,
                _ => &mut self.top,
            };
            for r in list.iter().filter(|r| r.target == target as u8) {
                self.near[i] = self.near[i].max(r.cycles.into());
            }
            list.retain(|r| r.target != target as u8);
        }
        self.plain = self.bank.is_empty()
            && self.group.is_empty()
            && self.top.is_empty()
            && self.mid_siblings.is_empty()
            && self.other.is_empty();
    }
}

/// A rule that delays a refresh or its precharge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub before: u8,
    pub target: u8,
    pub level: u8,
    pub cycles: u32,
}

/// Compiled rules and the shape they refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timing {
    /// By the command that triggers them.
    pub effects: [Effects; 16],
    pub late: Vec<Late>,
    pub banks: usize,
    pub groups: usize,
    pub tops: usize,
    /// log2 of banks per group.
    pub bank_shift: u32,
    /// log2 of banks per top node.
    pub top_shift: u32,
    /// log2 of banks below one node, for each level down to the bank.
    pub level_shift: Vec<u32>,
    /// The banks of each top node and of each group as masks.
    pub slices: Vec<[u64; 4]>,
    pub group_banks: Vec<[u64; 4]>,
    /// Ring slots needed.
    pub ring_slots: usize,
    /// The bank level.
    pub bank_level: u8,
    /// The top level.
    pub top_level: u8,
    /// LPDDR5: ticks from the first to the second half of an activate at most; from a read and from a write command to
    /// the end of the data clock.
    pub act2_limit: u64,
    pub wck_read: u64,
    pub wck_write: u64,
    /// Ticks are half clocks.
    pub half: bool,
    /// Ticks a refresh takes.
    pub refresh_ticks: u64,
}

impl Timing {
    pub fn compile(spec: &DramSpec) -> Timing {
        let depth = spec.levels.len();
        let bank_level = depth - 1;
        let banks: usize = spec.levels.iter().product::<u32>() as usize;
        let mut level_shift = vec![0; depth];
        let mut below = 0;
        for l in (0..depth).rev() {
            level_shift[l] = below;
            below += spec.levels[l].trailing_zeros();
        }
        // The group is the parent of the bank; a hierarchy without one has the channel as top and as group.
        let group_level = bank_level.saturating_sub(1);
        let top_level = usize::from(depth >= 4);
        let bank_shift = level_shift[group_level];
        let top_shift = level_shift[top_level];
        let get = |n: &str| u64::from(spec.timing.get(n).copied().unwrap_or(0));
        let mut t = Timing {
            effects: Default::default(),
            late: Vec::new(),
            banks,
            groups: banks >> bank_shift,
            tops: banks >> top_shift,
            bank_shift,
            top_shift,
            level_shift,
            slices: node_banks(banks, top_shift),
            group_banks: node_banks(banks, bank_shift),
            ring_slots: 0,
            bank_level: bank_level as u8,
            top_level: top_level as u8,
            act2_limit: get("nAAD"),
            wck_read: get("nCL") + get("nBL_min") + get("nWCKPST"),
            wck_write: get("nCWL") + get("nBL_min") + get("nWCKPST"),
            half: spec.bus == Bus::DualHalf,
            refresh_ticks: match spec.refresh {
                Refresh::PerBank { .. } => get("nRFCpb"),
                _ => get("nRFC"),
            },
        };
        let mut used = [false; CMDS];
        let mut late = [false; CMDS];
        for c in [
            Cmd::Act,
            Cmd::Act2,
            Cmd::Pre,
            Cmd::CasRd,
            Cmd::CasWr,
            Cmd::Rd,
            Cmd::Wr,
        ] {
            used[c as usize] = true;
        }
        if spec.row_policy == RowPolicy::Closed {
            used[Cmd::RdA as usize] = true;
            used[Cmd::WrA as usize] = true;
        }
        let refresh: &[Cmd] = match spec.refresh {
            Refresh::None => &[],
            Refresh::AllBank { .. } => &[Cmd::PreAll, Cmd::RefAll],
            Refresh::PerBank { .. } => &[Cmd::RefBank],
        };
        for &c in refresh {
            used[c as usize] = true;
            late[c as usize] = true;
        }
        for c in &spec.constraints {
            // A level with one node under each parent is the parent.
            let mut level = c.level as usize;
            if c.sibling && (level == 0 || spec.levels[level] == 1) {
                continue;
            }
            while !c.sibling && level > top_level && level < bank_level && spec.levels[level] == 1 {
                level -= 1;
            }
            if !c.sibling && level == 0 && t.tops == 1 {
                level = top_level;
            }
            for &b in c.before.iter().filter(|&&b| used[b as usize]) {
                for &a in c.after.iter().filter(|&&a| used[a as usize]) {
                    let floor = if c.window > 1 { 0 } else { gap(spec.bus, b, a) };
                    if c.cycles <= floor {
                        continue;
                    }
                    if late[a as usize] && c.window == 1 && !c.sibling {
                        t.effects[b as usize].stamped = true;
                        t.late.push(Late {
                            before: b as u8,
                            target: a as u8,
                            level: level as u8,
                            cycles: c.cycles,
                        });
                        continue;
                    }
                    t.add(b, a, level as u8, c.cycles, c.window, c.sibling);
                }
            }
        }
        for (cmd, e) in t.effects.iter_mut().enumerate() {
            for r in &e.all {
                let simple = Simple {
                    target: r.target,
                    cycles: r.cycles,
                };
                // A rule that a wider and stronger one covers never binds.
                let covered = e.all.iter().any(|w| {
                    w.window == 1
                        && !w.sibling
                        && !r.sibling
                        && w.target == r.target
                        && w.level < r.level
                        && w.cycles >= r.cycles
                });
                if r.window == 1 && covered {
                    continue;
                }
                match r.level as usize {
                    l if l > top_level && l < bank_level && r.window == 1 && r.sibling => {
                        e.mid_siblings.push(*r)
                    }
                    0 if r.window == 1 && !r.sibling && top_level > 0 => e.channel.push(simple),
                    l if l == top_level
                        && r.window > 1
                        && !r.sibling
                        && cmd == Cmd::Act as usize =>
                    {
                        e.windows.push(*r)
                    }
                    _ if r.window > 1 || r.sibling => e.other.push(*r),
                    l if l == bank_level => e.bank.push(simple),
                    l if l == top_level => e.top.push(simple),
                    l if l == group_level => e.group.push(simple),
                    _ => e.other.push(*r),
                }
            }
            e.extract(cmd);
        }
        t
    }

    fn add(&mut self, before: Cmd, after: Cmd, level: u8, cycles: u32, window: u8, sibling: bool) {
        let all = &mut self.effects[before as usize].all;
        let same = |r: &&mut Rule| {
            r.target == after as u8 && r.level == level && r.sibling == sibling && r.window == 1
        };
        if window == 1
            && let Some(r) = all.iter_mut().find(same)
        {
            r.cycles = r.cycles.max(cycles);
            return;
        }
        let mut ring = 0;
        if window > 1 {
            ring = self.ring_slots as u32;
            self.ring_slots += (self.banks >> self.level_shift[level as usize]) * window as usize;
        }
        all.push(Rule {
            target: after as u8,
            level,
            cycles,
            window,
            sibling,
            ring,
        });
    }
}

/// The banks below each node that has `1 << shift` of them.
fn node_banks(banks: usize, shift: u32) -> Vec<[u64; 4]> {
    let mut nodes = vec![[0; 4]; banks >> shift];
    for b in 0..banks.min(256) {
        nodes[b >> shift][b / 64] |= 1u64 << (b % 64);
    }
    nodes
}

/// The least number of ticks from one command to the next on the command bus, whatever the table says: shorter rules
/// never bind.
pub(crate) fn gap(bus: Bus, before: Cmd, after: Cmd) -> u32 {
    let column = |c| matches!(c, Cmd::Rd | Cmd::Wr | Cmd::RdA | Cmd::WrA);
    match (bus, column(before), column(after)) {
        (Bus::Single | Bus::Lpddr, ..) => 1,
        // Column commands go on every second half clock.
        (Bus::DualHalf, true, true) => 2,
        (_, x, y) => u32::from(x == y),
    }
}
