//! Unit admission tables: what each compute tile asks of named units, how busy that makes them, and
//! how one matmul is spread over several systolic arrays.
//!
//! A table row says that one run of a tile gives `admitted` pieces of work to a unit that takes
//! `capacity_per_cycle` of them each core cycle. All arithmetic is on exact fractions, so that no
//! result depends on how a floating-point sum rounds.

use std::collections::BTreeMap;
use std::fmt;
use tilesim_traces::model::Admission;

/// Largest table, in bytes.
pub const MAX_TABLE_BYTES: usize = 16 << 20;
/// Most rows of a table.
pub const MAX_ROWS: usize = 1 << 18;
/// Longest name of a unit or of what it counts, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Largest capacity per cycle: whole numbers up to here are exact.
pub const MAX_CAPACITY: u64 = 1 << 53;

/// Why a table, or what it says of a tile, is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    /// Stable code, for example `units.over_capacity`.
    pub code: &'static str,
    /// Where: `line 3`, or the name of a unit.
    pub path: String,
    /// What is wrong: lower-case, no full stop.
    pub message: String,
    /// What to do about it; empty when there is nothing to add.
    pub hint: String,
}

impl UnitError {
    fn new(code: &'static str, path: impl Into<String>, message: impl Into<String>) -> UnitError {
        UnitError {
            code,
            path: path.into(),
            message: message.into(),
            hint: String::new(),
        }
    }

    fn hint(mut self, hint: impl Into<String>) -> UnitError {
        self.hint = hint.into();
        self
    }
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)?;
        if !self.hint.is_empty() {
            write!(f, " ({})", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for UnitError {}

/// The codes a [`UnitError`] can carry.
pub mod code {
    /// The table is longer than the limit.
    pub const TOO_LARGE: &str = "units.too_large";
    /// A row that is not five good fields.
    pub const SYNTAX: &str = "units.syntax";
    /// A unit with two capacities or two kinds of work.
    pub const CONTRADICTION: &str = "units.contradiction";
    /// Two rows for one tile and unit.
    pub const DUPLICATE: &str = "units.duplicate";
    /// Splitting needs an array unit, and the table has none.
    pub const NO_ARRAY_UNIT: &str = "units.no_array_unit";
    /// A unit admits more than its capacity allows.
    pub const OVER_CAPACITY: &str = "units.over_capacity";
    /// Numbers too large to reckon with exactly.
    pub const OVERFLOW: &str = "units.overflow";
}

/// Reads a table: `tile`, `unit`, `unit of work`, `capacity per cycle`, `admitted`, separated by
/// tabs, a row a line. Empty lines and lines that start with `#` are skipped. Gives the rows of each
/// tile, in the order of the text.
///
/// # Errors
///
/// A row is malformed, a unit's capacity or work differs between rows, or a tile has two rows for a
/// unit. The path is the line.
pub fn parse_table(text: &str) -> Result<BTreeMap<u32, Vec<Admission>>, UnitError> {
    if text.len() > MAX_TABLE_BYTES {
        return Err(UnitError::new(
            code::TOO_LARGE,
            "table",
            format!("has {} bytes, more than {MAX_TABLE_BYTES}", text.len()),
        ));
    }
    let mut tiles: BTreeMap<u32, Vec<Admission>> = BTreeMap::new();
    let mut units: BTreeMap<&str, (&str, u64, usize)> = BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let at = || format!("line {number}");
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if seen.len() == MAX_ROWS {
            return Err(UnitError::new(
                code::TOO_LARGE,
                at(),
                format!("the table has more than {MAX_ROWS} rows"),
            ));
        }
        let fields: Vec<&str> = line.split('\t').collect();
        let [tile, unit, work, capacity, admitted] = fields.as_slice() else {
            return Err(UnitError::new(
                code::SYNTAX,
                at(),
                format!(
                    "expected 5 fields separated by tabs, found {}",
                    fields.len()
                ),
            )
            .hint("tile, unit, unit of work, capacity per cycle, admitted"));
        };
        for (what, name) in [("unit", unit), ("unit of work", work)] {
            if name.is_empty()
                || name.len() > MAX_NAME_BYTES
                || name.contains(|c: char| c.is_whitespace() || c.is_control())
            {
                return Err(UnitError::new(
                    code::SYNTAX,
                    at(),
                    format!(
                        "the {what} must be a name without spaces of 1 to {MAX_NAME_BYTES} bytes"
                    ),
                ));
            }
        }
        let whole = |what: &str, text: &str, most: u64| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            match text.parse::<u64>() {
                Ok(value) if digits && value <= most => Ok(value),
                _ => Err(UnitError::new(
                    code::SYNTAX,
                    at(),
                    format!("the {what} is not a whole number from 0 to {most}"),
                )),
            }
        };
        let tile = whole("tile", tile, u64::from(u32::MAX))? as u32;
        let capacity = whole("capacity", capacity, MAX_CAPACITY)?;
        let admitted = whole("admitted work", admitted, u64::MAX)?;
        if capacity == 0 {
            return Err(UnitError::new(
                code::SYNTAX,
                at(),
                "a capacity of 0 takes no work",
            ));
        }
        let (known_work, known_capacity, first) =
            *units.entry(unit).or_insert((work, capacity, number));
        if known_work != *work || known_capacity != capacity {
            return Err(UnitError::new(
                code::CONTRADICTION,
                at(),
                format!("unit {unit} has another capacity or unit of work than on line {first}"),
            ));
        }
        if !seen.insert((tile, *unit)) {
            return Err(UnitError::new(
                code::DUPLICATE,
                at(),
                format!("a second row for tile {tile} and unit {unit}"),
            ));
        }
        tiles.entry(tile).or_default().push(Admission {
            unit: (*unit).to_owned(),
            work: (*work).to_owned(),
            capacity_per_cycle: capacity as f64,
            admitted,
        });
    }
    Ok(tiles)
}

/// Core cycles of a compute tile that is spread over several systolic arrays.
///
/// A tile of `cycles` whose admissions give r rows to the array unit (capacity q rows a cycle) is
/// spread over n = min(`arrays`, max(1, ceil(r / `lanes`))) arrays and takes ceil(`cycles` - r/q +
/// max(r/q/n, the largest admitted/capacity of its other units)), at least 1 and at most `cycles`. A
/// tile of 0 cycles stays one.
///
/// # Errors
///
/// [`code::NO_ARRAY_UNIT`] if the tile has no row for `unit`; [`code::OVER_CAPACITY`] if an array
/// would be over 100 % busy; [`code::OVERFLOW`] for numbers near 2^64.
pub fn split_cycles(
    cycles: u64,
    admissions: &[Admission],
    arrays: u32,
    lanes: u32,
    unit: &str,
) -> Result<u64, UnitError> {
    let Some(array) = admissions.iter().find(|row| row.unit == unit) else {
        return Err(no_array_unit(unit));
    };
    if cycles == 0 {
        return Ok(0);
    }
    let overflow = || {
        UnitError::new(
            code::OVERFLOW,
            unit,
            "cycles and admissions are too large to split exactly",
        )
    };
    let rows = array.admitted;
    let n = rows
        .div_ceil(u64::from(lanes.max(1)))
        .max(1)
        .min(u64::from(arrays.max(1)));
    let whole = Ratio::cycles(array).ok_or_else(overflow)?;
    let part = whole.divided_by(n).ok_or_else(overflow)?;
    let mut longest = part;
    for row in admissions.iter().filter(|row| row.unit != unit) {
        let other = Ratio::cycles(row).ok_or_else(overflow)?;
        if longest.less(&other).ok_or_else(overflow)? {
            longest = other;
        }
    }
    // ceil(cycles - whole + longest) = cycles - floor(whole - longest); a longer `longest` than
    // `whole` means no gain, and the tile keeps its cycles.
    let saved = whole.minus_floor(&longest).ok_or_else(overflow)?;
    let spread = u64::try_from(u128::from(cycles).saturating_sub(saved))
        .unwrap_or(u64::MAX)
        .max(1);
    // The array's rows must fit into the cycles that are left.
    if Ratio::whole(spread).less(&part).ok_or_else(overflow)? {
        return Err(UnitError::new(
            code::OVER_CAPACITY,
            unit,
            format!(
                "{rows} {} on {n} of {arrays} arrays in {spread} cycles are more than {} per cycle each",
                array.work, array.capacity_per_cycle
            ),
        )
        .hint("the tile's cycles and its admissions contradict each other"));
    }
    Ok(spread)
}

/// The error of splitting without an array unit.
fn no_array_unit(unit: &str) -> UnitError {
    UnitError::new(
        code::NO_ARRAY_UNIT,
        unit,
        "the admissions have no array unit of this name",
    )
    .hint("cores.array_unit names the array unit; splitting needs its rows")
}

/// Core cycles of each tile of a kernel when its matmuls are spread: [`split_cycles`] on every tile
/// with a row for the array unit, the tile's own cycles on the others. `tiles` are the cycles and
/// admissions of each.
///
/// # Errors
///
/// As [`split_cycles`], but [`code::NO_ARRAY_UNIT`] only if no tile has a row for the unit.
pub fn split_tiles<'a>(
    tiles: impl IntoIterator<Item = (u64, &'a [Admission])>,
    arrays: u32,
    lanes: u32,
    unit: &str,
) -> Result<Vec<u64>, UnitError> {
    let mut found = false;
    let mut durations = Vec::new();
    for (cycles, admissions) in tiles {
        if admissions.iter().any(|row| row.unit == unit) {
            found = true;
            durations.push(split_cycles(cycles, admissions, arrays, lanes, unit)?);
        } else {
            durations.push(cycles);
        }
    }
    if found || durations.is_empty() {
        Ok(durations)
    } else {
        Err(no_array_unit(unit))
    }
}

/// How much work each unit was given, summed over runs of tiles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnitUse {
    units: Vec<UnitTotal>,
}

/// What one unit was given.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitTotal {
    /// Unit name.
    pub unit: String,
    /// What is counted.
    pub work: String,
    /// How much it takes per core cycle.
    pub capacity_per_cycle: f64,
    /// How much it was given.
    pub admitted: u128,
}

impl UnitUse {
    /// Adds `runs` runs of a tile.
    pub fn add(&mut self, admissions: &[Admission], runs: u64) {
        for row in admissions {
            let amount = u128::from(row.admitted) * u128::from(runs);
            match self.units.iter_mut().find(|total| total.unit == row.unit) {
                Some(total) => total.admitted = total.admitted.saturating_add(amount),
                None => self.units.push(UnitTotal {
                    unit: row.unit.clone(),
                    work: row.work.clone(),
                    capacity_per_cycle: row.capacity_per_cycle,
                    admitted: amount,
                }),
            }
        }
    }

    /// The units, in the order in which they were first seen.
    pub fn totals(&self) -> &[UnitTotal] {
        &self.units
    }

    /// Refuses a unit that was given more than it can take in `cycles` core cycles.
    ///
    /// # Errors
    ///
    /// [`code::OVER_CAPACITY`], naming the first such unit.
    pub fn check(&self, cycles: u64) -> Result<(), UnitError> {
        self.units.iter().try_for_each(|total| total.check(cycles))
    }
}

impl UnitTotal {
    /// Core cycles the unit is busy: work over capacity, rounded half up.
    pub fn active_cycles(&self) -> u128 {
        Ratio::of(self.admitted, self.capacity_per_cycle).map_or(u128::MAX, |ratio| ratio.rounded())
    }

    /// Share of `cycles` core cycles in which the unit is busy, in percent; 0 for no cycles.
    pub fn percent(&self, cycles: u64) -> f64 {
        if cycles == 0 {
            return 0.0;
        }
        100.0 * (self.admitted as f64 / self.capacity_per_cycle) / cycles as f64
    }

    /// Refuses more work than the unit can take in `cycles` core cycles.
    ///
    /// # Errors
    ///
    /// [`code::OVER_CAPACITY`].
    pub fn check(&self, cycles: u64) -> Result<(), UnitError> {
        let fits = Ratio::of(self.admitted, self.capacity_per_cycle)
            .and_then(|busy| Ratio::whole(cycles).less(&busy))
            .is_some_and(|over| !over);
        if fits {
            return Ok(());
        }
        Err(UnitError::new(
            code::OVER_CAPACITY,
            self.unit.as_str(),
            format!(
                "admits {} {} in {cycles} cycles, more than {} per cycle",
                self.admitted, self.work, self.capacity_per_cycle
            ),
        )
        .hint("the tiles' cycles and their admissions contradict each other"))
    }
}

/// A fraction of whole numbers, not below 0.
#[derive(Clone, Copy, Debug)]
struct Ratio {
    over: u128,
    under: u128,
}

impl Ratio {
    fn whole(value: u64) -> Ratio {
        Ratio {
            over: u128::from(value),
            under: 1,
        }
    }

    /// Cycles for which a row keeps its unit busy.
    fn cycles(row: &Admission) -> Option<Ratio> {
        Ratio::of(u128::from(row.admitted), row.capacity_per_cycle)
    }

    /// Work over a capacity. A floating-point number is a whole number over a power of two, so the
    /// fraction is exact; capacities outside 2^-20 to 2^53 are refused.
    fn of(work: u128, capacity: f64) -> Option<Ratio> {
        if !(capacity > 0.0 && capacity <= MAX_CAPACITY as f64) {
            return None;
        }
        let mut scaled = capacity;
        let mut shift = 0;
        while scaled.fract() != 0.0 {
            scaled *= 2.0;
            shift += 1;
            if shift > 20 {
                return None;
            }
        }
        Some(Ratio {
            over: work.checked_mul(1 << shift)?,
            under: scaled as u128,
        })
    }

    fn divided_by(self, n: u64) -> Option<Ratio> {
        Some(Ratio {
            over: self.over,
            under: self.under.checked_mul(u128::from(n.max(1)))?,
        })
    }

    fn less(&self, other: &Ratio) -> Option<bool> {
        Some(self.over.checked_mul(other.under)? < other.over.checked_mul(self.under)?)
    }

    /// The whole part of the difference; 0 if it is not above 0.
    fn minus_floor(&self, other: &Ratio) -> Option<u128> {
        let mine = self.over.checked_mul(other.under)?;
        let theirs = other.over.checked_mul(self.under)?;
        let under = self.under.checked_mul(other.under)?;
        Some(mine.saturating_sub(theirs) / under)
    }

    fn rounded(&self) -> u128 {
        let whole = self.over / self.under;
        let rest = self.over % self.under;
        if rest >= self.under - rest {
            whole.saturating_add(1)
        } else {
            whole
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: &str = include_str!("../../tests/golden/pytorchsim/core_serial/units.tsv");
    const ONE_SUBTILE: &str =
        include_str!("../../tests/golden/pytorchsim/core_serial/units_one_subtile.tsv");
    const VPU700: &str = include_str!("../../tests/golden/pytorchsim/core_serial/units_vpu700.tsv");
    const NO_ARRAY: &str =
        include_str!("../../tests/golden/pytorchsim/core_serial/units_no_array.tsv");
    const CYCLES: &str = include_str!("../../tests/golden/pytorchsim/core_serial/cycles.tsv");
    const CC1100: &str =
        include_str!("../../tests/golden/pytorchsim/core_serial/cycles_cc1100.tsv");
    const CC230: &str = include_str!("../../tests/golden/pytorchsim/core_serial/cycles_cc230.tsv");

    fn split(cycles: &str, units: &str, arrays: u32) -> Result<Vec<u64>, UnitError> {
        let table = parse_table(units).unwrap();
        let cycles: Vec<u64> = cycles
            .lines()
            .map(|line| line.split('\t').next().unwrap().parse().unwrap())
            .collect();
        let tiles = cycles
            .iter()
            .zip(0..)
            .map(|(&c, tile)| (c, table[&tile].as_slice()));
        split_tiles(tiles, arrays, 256, "Systolic")
    }

    #[test]
    fn reference_durations() {
        for (cycles, units, expected) in [
            (CYCLES, UNITS, 1077),
            (CYCLES, ONE_SUBTILE, 1589),
            (CYCLES, VPU700, 1265),
            (CC1100, UNITS, 588),
        ] {
            assert_eq!(
                split(cycles, units, 2).unwrap(),
                [183, 16, 6, 14, 51, expected]
            );
        }
    }

    #[test]
    fn reference_refusals() {
        let error = split(CYCLES, NO_ARRAY, 2).unwrap_err();
        assert_eq!(
            (error.code, error.path.as_str()),
            (code::NO_ARRAY_UNIT, "Systolic")
        );
        let error = split(CC230, ONE_SUBTILE, 4).unwrap_err();
        assert_eq!(error.code, code::OVER_CAPACITY);
        assert_eq!(
            error.message,
            "256 rows on 1 of 4 arrays in 230 cycles are more than 1 per cycle each"
        );
    }

    fn row(unit: &str, capacity_per_cycle: f64, admitted: u64) -> Admission {
        Admission {
            unit: unit.into(),
            work: "rows".into(),
            capacity_per_cycle,
            admitted,
        }
    }

    #[test]
    fn split_is_exact_and_bounded() {
        // 100 - 100/3 + 100/3/2 = 83.33..., so 84.
        assert_eq!(
            split_cycles(100, &[row("A", 3.0, 100)], 2, 1, "A").unwrap(),
            84
        );
        // 90 - 30 + 15 = 75, no rounding up of what is whole.
        assert_eq!(
            split_cycles(90, &[row("A", 3.0, 90)], 2, 1, "A").unwrap(),
            75
        );
        assert_eq!(
            split_cycles(1000, &[row("A", 0.5, 400)], 4, 1, "A").unwrap(),
            400
        );
        assert_eq!(split_cycles(0, &[row("A", 1.0, 0)], 4, 1, "A").unwrap(), 0);
        // Another unit that is busier than the array alone leaves nothing to gain.
        let busy = [row("A", 1.0, 50), row("B", 1.0, 80)];
        assert_eq!(split_cycles(100, &busy, 4, 1, "A").unwrap(), 100);
        let error = split_cycles(100, &[row("A", 1e-9, 1)], 2, 1, "A").unwrap_err();
        assert_eq!(error.code, code::OVERFLOW);
        let error = split_cycles(u64::MAX, &[row("A", f64::NAN, 1)], 2, 1, "A").unwrap_err();
        assert_eq!(error.code, code::OVERFLOW);
    }

    #[test]
    fn utilisation() {
        let table = parse_table(UNITS).unwrap();
        let mut used = UnitUse::default();
        used.add(&table[&5], 8);
        let systolic = used
            .totals()
            .iter()
            .find(|total| total.unit == "Systolic")
            .unwrap();
        assert_eq!(systolic.active_cycles(), 8192);
        assert_eq!(systolic.percent(16384), 50.0);
        let issue = used
            .totals()
            .iter()
            .find(|total| total.unit == "Issue")
            .unwrap();
        assert_eq!(issue.active_cycles(), 620);
        assert!(used.check(8192).is_ok());
        let error = used.check(8191).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Systolic: admits 8192 rows in 8191 cycles, more than 1 per cycle (the tiles' cycles and \
             their admissions contradict each other)"
        );
    }

    #[test]
    fn bad_tables() {
        for (text, code, path) in [
            ("0\tA\trows\t1", code::SYNTAX, "line 1"),
            ("# comment\n\n0\tA\trows\t1\t2\t3", code::SYNTAX, "line 3"),
            ("0\t\trows\t1\t2", code::SYNTAX, "line 1"),
            ("0\tA B\trows\t1\t2", code::SYNTAX, "line 1"),
            ("-1\tA\trows\t1\t2", code::SYNTAX, "line 1"),
            ("+1\tA\trows\t1\t2", code::SYNTAX, "line 1"),
            ("0\tA\trows\t0\t2", code::SYNTAX, "line 1"),
            ("0\tA\trows\t1.5\t2", code::SYNTAX, "line 1"),
            (
                "0\tA\trows\t1\t18446744073709551616",
                code::SYNTAX,
                "line 1",
            ),
            (
                "0\tA\trows\t1\t2\n1\tA\trows\t2\t2",
                code::CONTRADICTION,
                "line 2",
            ),
            (
                "0\tA\trows\t1\t2\n1\tA\tcols\t1\t2",
                code::CONTRADICTION,
                "line 2",
            ),
            (
                "0\tA\trows\t1\t2\n0\tA\trows\t1\t2",
                code::DUPLICATE,
                "line 2",
            ),
        ] {
            let error = parse_table(text).unwrap_err();
            assert_eq!((error.code, error.path.as_str()), (code, path), "{text:?}");
        }
        let long = "0\tA\trows\t1\t2\n".repeat(MAX_TABLE_BYTES / 10);
        assert_eq!(parse_table(&long).unwrap_err().code, code::TOO_LARGE);
    }
}
