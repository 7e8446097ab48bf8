//! The child process: limits itself, then runs the producer.

use std::fs::File;
use std::path::Path;

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::RecordError;
use crate::stream::Writer;

/// Runs a producer as the arguments after the hidden verb say: the shared object, the file to write,
/// the trace ABI (0: what the object says), seconds of processor time, bytes of memory, bytes of the
/// file, and the shape arguments. Gives the process's exit code.
pub fn child_main(arguments: &[String]) -> u8 {
    match run(arguments) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

fn run(arguments: &[String]) -> Result<(), RecordError> {
    let bad = || RecordError::Load("this verb is for tilesim itself".to_owned());
    let [object, file, abi, seconds, memory, size, shape @ ..] = arguments else {
        return Err(bad());
    };
    let number = |text: &String| text.parse::<u64>().map_err(|_| bad());
    let abi = match number(abi)? {
        0 => None,
        abi => Some(u32::try_from(abi).map_err(|_| bad())?),
    };
    let shape = shape
        .iter()
        .map(|s| s.parse::<i64>().map_err(|_| bad()))
        .collect::<Result<Vec<_>, _>>()?;
    for (resource, most) in [
        (Resource::Cpu, number(seconds)?),
        (Resource::As, number(memory)?),
        (Resource::Fsize, number(size)?),
        (Resource::Core, 0),
    ] {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit).map_err(|e| RecordError::Io {
            what: "cannot limit the producer's process".to_owned(),
            error: e.into(),
        })?;
    }
    let out = File::options()
        .write(true)
        .create_new(true)
        .open(file)
        .map_err(|error| RecordError::Io {
            what: format!("cannot write {file}"),
            error,
        })?;
    crate::shim::run(Path::new(object), abi, &shape, Writer::new(out))
}
