//! Global variables and what they say about the producer.

use super::*;

impl Exec<'_> {
    pub(super) fn globals(&mut self) -> Res<()> {
        let unit = self.unit;
        for item in &unit.order {
            match *item {
                Item::Global(i) => {
                    let Some(d) = unit.globals.get(i) else {
                        continue;
                    };
                    let v = self.declared(d)?;
                    let slot = self.slot(v, d.pos)?;
                    self.globals.insert(d.name.clone(), slot);
                }
                Item::Enum(from, to) => {
                    let mut next = 0i64;
                    for (name, value, pos) in unit.enumerators.get(from..to).unwrap_or_default() {
                        if let Some(e) = value {
                            let (x, _) = self.int(e)?;
                            next = x
                                .constant()
                                .ok_or_else(|| Diag::unsupported(*pos, "this enumerator"))?;
                        }
                        self.enums.insert(name.clone(), next);
                        next = next.wrapping_add(1);
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn global_int(&self, name: &str) -> Option<i64> {
        match self.globals.get(name).and_then(|s| self.slots.get(*s)) {
            Some(Value::Int(x, _)) => x.constant(),
            _ => None,
        }
    }

    pub(super) fn declared_abi(&self) -> Option<u32> {
        self.global_int("togsim_producer_abi_version")
            .and_then(|v| u32::try_from(v).ok())
    }

    pub(super) fn buffer_table(&self) -> Res<Option<Vec<u64>>> {
        let Some(d) = self
            .unit
            .globals
            .iter()
            .find(|g| &*g.name == "togsim_spad_buffer_bytes")
        else {
            return Ok(None);
        };
        let value = self.globals.get(&d.name).and_then(|s| self.slots.get(*s));
        let Some(Value::Arr(items)) = value else {
            return Err(Diag::value(
                d.pos,
                "togsim_spad_buffer_bytes is not an array",
            ));
        };
        let mut out = Vec::new();
        for v in items.iter() {
            match v {
                Value::Int(x, _) if x.constant().is_some_and(|c| c >= 0) => {
                    out.push(x.constant().unwrap_or(0) as u64);
                }
                _ => {
                    return Err(Diag::value(
                        d.pos,
                        "a scratchpad buffer needs a constant size of at least 0",
                    ));
                }
            }
        }
        if let Some(n) = self.global_int("togsim_spad_buffer_count") {
            let n = usize::try_from(n).unwrap_or(usize::MAX);
            if n > out.len() {
                return Err(Diag::value(
                    d.pos,
                    format!(
                        "togsim_spad_buffer_count is {n}, the table has {}",
                        out.len()
                    ),
                ));
            }
            out.truncate(n);
        }
        Ok(Some(out))
    }
}
