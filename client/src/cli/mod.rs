//! The command line: one module per verb.

mod args;
mod compare;
mod demo;
mod files;
mod folder;
mod import;
mod import_machine;
mod kernel;
mod lists;
mod machine;
mod output;
mod progress;
mod rank;
mod record;
mod replay;
mod serve;
mod simulate;
mod sweep;
mod trace;
mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tilesim_server::error::{Kind, ServiceError};

/// Simulates tile kernels: how many cycles, and where did they go.
#[derive(Parser)]
#[command(name = "tilesim", version, propagate_version = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 ok, 1 internal error, 2 usage, 3 invalid input or deadlock, \
4 some launches failed, 5 all failed, 6 cycle budget or deadline exceeded, 7 server unreachable \
(after 5 attempts within 2 seconds, or as --connect-attempts says).";

#[derive(Subcommand)]
enum Command {
    /// Start a server, simulate a 512-cubed matrix product on it with two grids, and stop it.
    Demo(demo::Demo),
    /// Run the server (what `tilesimd` does).
    Serve(serve::Serve),
    /// Look at, convert and store traces.
    #[command(subcommand)]
    Trace(trace::Trace),
    /// Look at and check machines.
    #[command(subcommand)]
    Machine(machine::MachineCommand),
    /// Write a trace from the kernel library, or a list of candidates of many configurations.
    #[command(subcommand)]
    Kernel(kernel::Kernel),
    /// Turn what other simulators use into traces.
    #[command(subcommand)]
    Import(import::Import),
    /// Run a producer's shared object on this machine and write what it emits as a trace.
    Record(record::Record),
    #[command(name = tilesim_record::CHILD, hide = true)]
    RecordChild(record::RecordChild),
    /// Put our figures beside another simulator's.
    #[command(subcommand)]
    Compare(compare::Compare),
    /// Simulate one launch.
    Simulate(simulate::Simulate),
    /// Simulate one launch under several machine settings.
    Sweep(sweep::Sweep),
    /// Order candidates by simulated cycles.
    Rank(rank::Rank),
    /// Simulate a list of launches.
    Replay(replay::Replay),
    /// Rank what was measured on hardware, and score the order.
    #[command(subcommand)]
    Validate(validate::Validate),
}

/// How a verb can fail.
#[derive(Debug)]
enum Failure {
    /// With one problem; `true` asks for JSON.
    Service(ServiceError, bool),
    /// With problems that have been told already.
    Told(u8),
    /// In a way that no input should cause.
    Internal(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Internal(error)
    }
}

type Outcome = Result<(), Failure>;

/// Exit codes.
mod exit {
    pub const INTERNAL: u8 = 1;
    pub const INVALID: u8 = 3;
    pub const SOME_FAILED: u8 = 4;
    pub const ALL_FAILED: u8 = 5;
    pub const BUDGET: u8 = 6;
    pub const UNREACHABLE: u8 = 7;
}

/// The exit code of a failure.
fn exit_code(error: &ServiceError) -> u8 {
    match error.kind {
        Kind::Invalid | Kind::Precondition | Kind::NotFound => exit::INVALID,
        Kind::OverBudget { .. } | Kind::Deadline => exit::BUDGET,
        Kind::Unavailable | Kind::Exhausted => exit::UNREACHABLE,
        Kind::Cancelled | Kind::Unimplemented | Kind::DataLoss | Kind::Internal => exit::INTERNAL,
    }
}

/// The exit code of a list of which some failed.
fn list_outcome(failed: usize, total: usize) -> Outcome {
    match failed {
        0 => Ok(()),
        failed if failed == total => Err(Failure::Told(exit::ALL_FAILED)),
        _ => Err(Failure::Told(exit::SOME_FAILED)),
    }
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(serve) => serve.run(),
        Command::Trace(trace::Trace::Check(check)) => check.run(),
        Command::Trace(trace::Trace::Show(show)) => show.run(),
        Command::Trace(trace::Trace::Convert(convert)) => convert.run(),
        Command::Machine(machine) => run_async(machine.run()),
        Command::Trace(trace::Trace::Put(put)) => run_async(put.run()),
        Command::Kernel(kernel) => kernel.run(),
        Command::Import(import) => import.run(),
        Command::Record(record) => record.run(),
        Command::RecordChild(child) => child.run(),
        Command::Compare(compare) => run_async(compare.run()),
        Command::Demo(demo) => run_async(demo.run()),
        Command::Simulate(simulate) => run_async(simulate.run()),
        Command::Sweep(sweep) => run_async(sweep.run()),
        Command::Rank(rank) => run_async(rank.run()),
        Command::Replay(replay) => run_async(replay.run()),
        Command::Validate(validate) => run_async(validate.run()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Told(code)) => ExitCode::from(code),
        Err(Failure::Service(error, json)) => {
            output::error(&error.problem, json);
            ExitCode::from(exit_code(&error))
        }
        Err(Failure::Internal(error)) => {
            if is_broken_pipe(&error) {
                return ExitCode::SUCCESS;
            }
            eprintln!("error: {error:#}");
            ExitCode::from(exit::INTERNAL)
        }
    }
}

/// Whoever read our output has had enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

fn run_async(verb: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::Internal(e.into()))?;
    runtime.block_on(verb)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
