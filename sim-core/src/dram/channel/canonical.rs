//! The state as words that do not depend on when and where.

use super::{BankState, Entry, Exact, NEVER, NIL, at, get};
use crate::dram::frame::Frame;
use crate::dram::spec::DramSpec;

impl<const W: usize> Exact<W> {
    /// As [`crate::dram::Channel::canonical`].
    pub fn canonical(
        &self,
        spec: &DramSpec,
        now: u64,
        frame: &Frame,
        name: &mut impl FnMut(u32, &mut Vec<u64>),
        out: &mut Vec<u64>,
    ) {
        let clk = now + 1;
        debug_assert_eq!(self.clk, clk);
        let tb = &spec.table;
        // What is past binds nobody. Most is, so only the rest is listed, by its place.
        let mut place = 0u64;
        let mut sparse = |value: u64, out: &mut Vec<u64>| {
            if value != 0 {
                out.extend([place, value]);
            }
            place += 1;
        };
        let later = |t: u64| t.saturating_sub(clk);
        // A rule looks back at most so far.
        let longest = spec.constraints.iter().map(|c| c.cycles).max().unwrap_or(0);
        let ago = |t: u64| {
            if t == 0 || clk - t > u64::from(longest) {
                0
            } else {
                clk - t + 1
            }
        };
        for &t in &self.channel_ready {
            sparse(later(t), out);
        }
        for (ready, nodes) in [
            (&self.top_ready, tb.tops),
            (&self.group_ready, tb.groups),
            (&self.bank_ready, tb.banks),
        ] {
            for of_command in ready {
                for i in 0..nodes {
                    sparse(later(*at(of_command, i)), out);
                }
            }
        }
        for (last, e) in self.last.iter().zip(&tb.effects) {
            for b in (0..tb.banks).filter(|_| e.stamped) {
                sparse(ago(*at(last, b)), out);
            }
        }
        for &t in &self.rings {
            sparse(ago(t), out);
        }
        out.push(NEVER);

        out.extend([u64::from(self.write_mode), later(self.wck_expiry)]);
        out.push(match self.next_refresh {
            NEVER => NEVER,
            t => later(t),
        });
        out.push(if tb.half { clk & 1 } else { 0 });
        out.extend([self.next_refresh_bank, self.len[0], self.len[1]].map(u64::from));
        out.extend([later(self.last_depart), u64::from(self.blocked)]);
        // The command bus: a rising edge that a falling one may pair with.
        if self.rising.edge >= clk {
            out.push(self.rising.edge - clk);
            out.extend([self.rising.pc, self.rising.bank].map(u64::from));
        } else {
            out.push(NEVER);
        }

        // Ages as ranks.
        let mut ages: Vec<u64> = Vec::with_capacity(self.outstanding());
        let each = |mut i: u16, f: &mut dyn FnMut(&Entry)| {
            while i != NIL {
                f(&self.entries[i as usize]);
                i = self.entries[i as usize].next;
            }
        };
        for l in self.banks.iter().flatten().flat_map(|b| &b.lists) {
            each(l.hit, &mut |e| ages.push(e.seq));
            each(l.miss, &mut |e| ages.push(e.seq));
        }
        ages.sort_unstable();
        let mut entry = |e: &Entry, out: &mut Vec<u64>| {
            let rank = ages.binary_search(&e.seq).map_or(NEVER, |r| r as u64);
            out.extend([rank, clk - e.arrive, u64::from(e.waited)]);
            out.extend(frame.addr(e.addr));
            out.push(if e.opened == 0 { NEVER } else { clk - e.opened });
            out.push(self.refresh_time - e.refreshed);
            out.push(u64::from(e.write) << 1 | u64::from(e.counted));
            name(e.tag, out);
        };
        for b in 0..tb.banks {
            let bank = at(&self.banks, b);
            let held = get(&self.held, b);
            out.push((bank.state as u64) << 1 | u64::from(held));
            if bank.state == BankState::Open {
                out.extend(frame.row(bank.row));
            }
            for head in bank.lists.iter().flat_map(|l| [l.hit, l.miss]) {
                each(head, &mut |e| entry(e, out));
                out.push(NEVER);
            }
            if held {
                let older = (0..tb.banks)
                    .filter(|&o| get(&self.held, o))
                    .filter(|&o| at(&self.holder_age, o) < at(&self.holder_age, b))
                    .count();
                out.push(older as u64);
                entry(&self.entries[bank.holder as usize], out);
            }
        }
        out.push(self.due.len() as u64);
        for d in &self.due {
            out.extend([u64::from(d.lo), u64::from(d.hi), u64::from(d.single)]);
        }
        if !self.due.is_empty() {
            out.push(clk - self.due_since);
        }
        out.extend([self.act2.is_some(), self.cas.is_some()].map(u64::from));
        if let Some(a) = self.act2 {
            out.extend([u64::from(a.bank), later(a.deadline)]);
            entry(&self.entries[a.entry as usize], out);
        }
        if let Some(c) = self.cas {
            out.push(u64::from(c.bank) << 1 | u64::from(c.write));
            out.push(c.source as u64);
        }
        out.push(self.pending.iter().count() as u64);
        for p in self.pending.iter() {
            out.extend([later(p.depart), p.cause as u64]);
            name(p.tag, out);
        }
        out.push(self.front.iter().count() as u64);
        for f in self.front.iter() {
            out.push(f.at.wrapping_sub(clk));
            out.extend(frame.addr(f.addr));
            out.push(u64::from(f.write));
            name(f.tag, out);
        }
    }
}
