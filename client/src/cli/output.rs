//! What a person, or with `--json` a program, reads.

use std::io::{self, Write as _};

use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use tilesim_core::{Report, stack::Cause};
use tilesim_server::{
    error::Problem,
    runner::{Envelope, RunResult},
};

/// A result as JSON: the body's fields, and the envelope.
#[derive(Serialize)]
pub struct ResultJson<'a> {
    #[serde(flatten)]
    report: &'a Report,
    envelope: &'a Envelope,
}

impl<'a> From<&'a RunResult> for ResultJson<'a> {
    fn from(result: &'a RunResult) -> Self {
        Self {
            report: &result.report,
            envelope: &result.envelope,
        }
    }
}

/// A problem as JSON.
#[derive(Serialize)]
pub struct ErrorJson<'a> {
    error: &'a Problem,
}

/// Prints a line of JSON, indented.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("cannot write JSON")?;
    line(&text)
}

/// Prints a line.
pub fn line(text: &str) -> anyhow::Result<()> {
    writeln!(io::stdout().lock(), "{text}")?;
    Ok(())
}

/// Tells a problem: code, place, message, remedy.
pub fn error(problem: &Problem, as_json: bool) {
    if as_json && json(&ErrorJson { error: problem }).is_ok() {
        return;
    }
    eprintln!("{}", describe(problem));
}

/// A problem in a few lines.
pub fn describe(problem: &Problem) -> String {
    let mut text = format!("error[{}]: {}", problem.code, problem.message);
    if !problem.path.is_empty() {
        text.push_str(&format!("\n  at {}", problem.path));
    }
    if !problem.hint.is_empty() {
        text.push_str(&format!("\n  hint: {}", problem.hint));
    }
    text
}

/// An empty table in our style.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_header(header.iter().copied());
    table
}

/// Aligns all columns but the first `left` to the right.
pub fn align(table: &mut Table, left: usize) {
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// A share of a whole, in percent.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
}

/// A number with its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Prints a result for people: the total, the units, the cycle stack.
pub fn result(title: &str, result: &RunResult) -> anyhow::Result<()> {
    let RunResult { report, envelope } = result;
    line(&format!(
        "{title}: {} cycles, {} ns, {} work-items, {} DRAM requests ({}, {:.1} ms)",
        grouped(report.cycles),
        report.ns,
        grouped(report.work_items),
        grouped(report.dram_requests),
        match envelope.origin {
            tilesim_server::runner::Origin::Simulated => "simulated",
            tilesim_server::runner::Origin::Joined => "simulated for an equal request",
            tilesim_server::runner::Origin::Cached => "from the result cache",
        },
        envelope.run_ms,
    ))?;
    for note in &report.notes {
        line(&format!("note: {note}"))?;
    }
    units(report)?;
    admitted(report)?;
    numa(report)?;
    stack(report)
}

/// The stable name of a cause.
pub fn cause(cause: Cause) -> String {
    match serde_json::to_value(cause) {
        Ok(serde_json::Value::String(name)) => name,
        _ => format!("{cause:?}"),
    }
}

fn units(report: &Report) -> anyhow::Result<()> {
    if report.cores.iter().all(|c| c.units.is_empty()) {
        return Ok(());
    }
    let mut table = table(&["core", "unit", "active cycles", "utilisation"]);
    for core in &report.cores {
        for unit in &core.units {
            table.add_row([
                core.id.to_string(),
                unit.unit.to_string(),
                grouped(unit.active),
                percent(unit.active, unit.active + unit.idle),
            ]);
        }
    }
    align(&mut table, 2);
    line(&table.to_string())
}

fn numa(report: &Report) -> anyhow::Result<()> {
    if report.dram.numa.is_empty() {
        return Ok(());
    }
    let mut table = table(&["core", "local requests", "remote requests", "remote"]);
    for core in &report.dram.numa {
        table.add_row([
            core.core.to_string(),
            grouped(core.local),
            grouped(core.remote),
            percent(core.remote, core.local + core.remote),
        ]);
    }
    align(&mut table, 1);
    line(&table.to_string())
}

fn admitted(report: &Report) -> anyhow::Result<()> {
    if report.tiles.is_empty() {
        return Ok(());
    }
    let mut units = table(&[
        "core",
        "admitted by",
        "of",
        "work",
        "active cycles",
        "utilisation",
    ]);
    for core in &report.cores {
        for unit in &core.admitted {
            units.add_row([
                core.id.to_string(),
                unit.unit.clone(),
                unit.work.clone(),
                grouped(unit.admitted),
                grouped(unit.active),
                percent(unit.active, unit.active + unit.idle),
            ]);
        }
    }
    align(&mut units, 3);
    line(&units.to_string())?;
    let mut tiles = table(&["compute tile", "cycles", "runs"]);
    for tile in report.tiles.iter().filter(|t| t.runs > 0) {
        tiles.add_row([tile.tile.clone(), grouped(tile.cycles), grouped(tile.runs)]);
    }
    align(&mut tiles, 1);
    line(&tiles.to_string())
}

fn stack(report: &Report) -> anyhow::Result<()> {
    if report.cycle_stack.iter().all(|e| e.cycles == 0) {
        return Ok(());
    }
    let mut table = table(&["core", "where the cycles went", "cycles", "share"]);
    for entry in report.cycle_stack.iter().filter(|e| e.cycles > 0) {
        table.add_row([
            entry.core.to_string(),
            cause(entry.cause),
            grouped(entry.cycles),
            percent(entry.cycles, report.cycles),
        ]);
    }
    align(&mut table, 2);
    line(&table.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_digits() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }
}
