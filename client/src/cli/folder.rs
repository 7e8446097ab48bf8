//! PyTorchSim kernel folders, wherever a trace file is asked for.

use std::{path::Path, sync::Arc};

use tilesim_server::{error::ServiceError, ids::Digest};
use tilesim_traces::{
    LaunchArgs, TraceError, ValidTrace,
    import::pytorchsim::{self, AxisExtent, CycleSource, Imported, KernelFolder, Options, Report},
};

use super::files::TraceFile;

/// Reads and imports a kernel folder. Nothing in it is compiled or run.
pub fn import(path: &Path, options: &Options) -> Result<(TraceFile, Arc<Imported>), ServiceError> {
    let place = |e: TraceError| place(path, e);
    let folder = KernelFolder::read(path).map_err(place)?;
    let imported = pytorchsim::import(&folder, options).map_err(place)?;
    let trace = ValidTrace::try_from(imported.trace.clone()).map_err(place)?;
    let imported = Arc::new(imported);
    let file = TraceFile {
        name: path
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
        digest: Digest(trace.digest().0),
        trace,
        imported: Some(Arc::clone(&imported)),
    };
    Ok((file, imported))
}

/// Says in which folder an error is.
fn place(path: &Path, error: TraceError) -> ServiceError {
    let mut error = ServiceError::from(error);
    let shown = path.display().to_string();
    let inside = &error.problem.path;
    if inside.is_empty() {
        error.problem.path = shown;
    } else if *inside != shown {
        error.problem.path = path.join(inside).display().to_string();
    }
    error
}

/// Puts the grid and parameters of a folder's launch in place of its shape arguments, which is what
/// `--grid` gives for a folder. For most producers both are the same numbers.
pub fn map_shape(file: &TraceFile, args: &mut LaunchArgs) -> Result<(), ServiceError> {
    let Some(imported) = &file.imported else {
        return Ok(());
    };
    let report = &imported.report;
    let fixed: Option<Vec<u64>> = report
        .grid
        .iter()
        .map(|e| match e {
            AxisExtent::Fixed(n) => Some(*n),
            _ => None,
        })
        .collect();
    if let (Some(fixed), true) = (fixed, report.params.is_empty()) {
        if args.grid.is_empty() || args.grid == fixed {
            args.grid = fixed;
            return Ok(());
        }
        return Err(ServiceError::invalid(
            "launch.axis_count",
            "--grid",
            "this producer asks for no shape arguments: it always makes the same work-items",
        )
        .hint(format!("give --grid {}", list(&fixed))));
    }
    let shape: Vec<u64> = if args.grid.is_empty() {
        report.shape.clone().ok_or_else(|| {
            ServiceError::invalid(
                "launch.axis_count",
                "--grid",
                "no shape arguments are given, and the folder has none",
            )
            .hint("give them with --grid, or write them to trace_shape.txt")
        })?
    } else {
        args.grid.clone()
    };
    let shape = shape
        .iter()
        .map(|&n| i64::try_from(n))
        .collect::<Result<Vec<i64>, _>>()
        .map_err(|_| {
            ServiceError::invalid("launch.grid", "--grid", "a shape argument beyond 2^63")
        })?;
    let launch = match imported.launch(&shape) {
        Ok(launch) => launch,
        // Parameters may come by name instead.
        Err(error) => {
            let plain = shape.len() == report.grid.len()
                && (0..)
                    .zip(&report.grid)
                    .all(|(k, e)| *e == AxisExtent::Shape(k));
            if plain && !args.params.is_empty() {
                return Ok(());
            }
            return Err(ServiceError::from(error).hint(format!(
                "for a kernel folder --grid takes the producer's shape arguments: {}",
                axes(report)
            )));
        }
    };
    args.grid = launch.grid;
    for (name, value) in launch.params {
        args.params.entry(name).or_insert(value);
    }
    Ok(())
}

fn list(numbers: &[u64]) -> String {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    words.join(",")
}

/// How many work-items each axis has.
fn axes(report: &Report) -> String {
    let words: Vec<String> = report
        .grid
        .iter()
        .enumerate()
        .map(|(axis, extent)| match extent {
            AxisExtent::Shape(k) => format!("p{axis} has shape argument {k}"),
            AxisExtent::Fixed(n) => format!("p{axis} has always {n}"),
            AxisExtent::Formula(_) => format!("p{axis} has a formula over shape arguments"),
        })
        .collect();
    words.join(", ")
}

/// An import's report, a line each.
pub fn report_lines(file: &TraceFile, imported: &Imported) -> Vec<String> {
    let Imported { trace, report } = imported;
    let how = if report.abi_inferred {
        "inferred"
    } else {
        "as given"
    };
    let mut lines = vec![
        format!("kernel {}, digest {}", trace.header.kernel, file.digest),
        format!("source {}, trace ABI {} ({how})", report.source, report.abi),
        format!("grid: {}", axes(report)),
    ];
    if let Some(shape) = &report.shape {
        lines.push(format!("shape arguments of the folder: {}", list(shape)));
    }
    for (param, k) in trace.params.iter().zip(&report.params) {
        lines.push(format!("parameter {} is shape argument {k}", param.name));
    }
    let admissions = trace.tiles.iter().filter(|t| !t.admissions.is_empty());
    lines.push(format!(
        "{} tensors, {} buffers, {} compute tiles ({}; {} with unit admissions), transfers outside \
         their tensor are {}",
        trace.tensors.len(),
        trace.buffers.len(),
        trace.tiles.len(),
        match report.cycles {
            CycleSource::Table => "cycles from the table",
            CycleSource::Gem5 => "cycles from gem5",
            CycleSource::None => "without cycles",
        },
        admissions.count(),
        match trace.bounds {
            tilesim_traces::model::Bounds::Strict => "refused",
            tilesim_traces::model::Bounds::Off => "counted",
        },
    ));
    if report.unrolled > 0 {
        lines.push(format!(
            "{} loop iterations were followed one by one",
            report.unrolled
        ));
    }
    lines.push(format!("read: {}", report.used.join(", ")));
    lines.extend(report.notes.iter().map(|n| format!("note: {n}")));
    lines
}
