//! The calls that a producer makes, and the loading of one: all `unsafe` code of the project.
//!
//! # Safety
//!
//! This module runs code that nobody has checked, so no argument here proves that it behaves. What is
//! argued is that *our* side keeps its part: pointers are read only for the counts that came with
//! them, after a check for null, alignment and plausible size; no reference to them outlives a call;
//! state is behind a lock that is never held while foreign code runs. A producer that lies about its
//! pointers crashes the child process, which is what that process is for.
//!
//! The same names have other parameters in other versions of the interface. They are all integers
//! and pointers, which the two processor families below pass one a register or one a stack slot of 8
//! bytes, so one definition reads them all: the longest, with the slots that differ as `u64`.
//! Versions that pass fewer leave the last ones undefined, and they are not looked at then.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::RecordError;
use crate::stream::{Raw, Writer};

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
const SUPPORTED: bool = false;
#[cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
const SUPPORTED: bool = true;

/// Buffers of one op, dimensions of one transfer: more is another version of the interface.
const MOST_BUFFERS: i32 = 256;
const MOST_DIMS: i32 = 16;
const MOST_IDS: i32 = 64;
const MOST_SIZES: i32 = 1 << 16;

type TileFn = extern "C" fn(*mut c_void, *mut i64, i32);

struct State {
    abi: u32,
    writer: Writer,
    inside: bool,
    error: Option<String>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes a record on, unless something went wrong before.
fn tell(make: impl FnOnce(&State) -> Result<Raw, String>) {
    let mut state = lock();
    let Some(state) = state.as_mut() else { return };
    if state.error.is_some() {
        return;
    }
    let outcome = make(state).and_then(|raw| match raw {
        Raw::Item(_) => state.writer.write(&raw),
        _ if !state.inside => Err("an op outside every work-item".to_owned()),
        raw => state.writer.write(&raw),
    });
    if let Err(error) = outcome {
        state.error = Some(error);
    }
}

fn versions(abi: u32) -> String {
    format!("this is not how trace ABI {abi} calls: is it another version (--abi)?")
}

/// The numbers at a pointer.
fn numbers(at: *const i64, n: i32, most: i32, abi: u32, what: &str) -> Result<Vec<i64>, String> {
    if n == 0 {
        return Ok(Vec::new());
    }
    let count = usize::try_from(n).ok().filter(|_| n <= most);
    let Some(count) = count.filter(|_| !at.is_null() && at.is_aligned()) else {
        return Err(format!(
            "{n} {what} at {:#x}: {}",
            at as usize,
            versions(abi)
        ));
    };
    // SAFETY: not null, aligned, and `count` numbers long by the interface (see the module).
    Ok(unsafe { std::slice::from_raw_parts(at, count) }.to_vec())
}

#[unsafe(no_mangle)]
extern "C" fn togsim_abi_version() -> i32 {
    lock().as_ref().map_or(15, |s| s.abi as i32)
}

#[unsafe(no_mangle)]
extern "C" fn togsim_core_alloc(_: *mut c_void) -> i32 {
    enter(&[]);
    0
}

#[unsafe(no_mangle)]
extern "C" fn togsim_compute_barrier(_: *mut c_void) {}

fn enter(ids: &[i64]) {
    if let Some(state) = lock().as_mut() {
        state.inside = true;
    }
    tell(|_| Ok(Raw::Item(ids.to_vec())));
}

#[unsafe(no_mangle)]
extern "C" fn togsim_dispatch(ctx: *mut c_void, tile: Option<TileFn>, ids: *mut i64, n: i32) {
    let abi = lock().as_ref().map_or(15, |s| s.abi);
    let fail = |error: String| {
        if let Some(state) = lock().as_mut() {
            state.error.get_or_insert(error);
        }
    };
    if lock().as_ref().is_some_and(|s| s.inside) {
        return fail("a work-item that dispatches another".to_owned());
    }
    match (tile, numbers(ids, n, MOST_IDS, abi, "loop indices")) {
        (Some(tile), Ok(list)) => {
            enter(&list);
            tile(ctx, ids, n);
            if let Some(state) = lock().as_mut() {
                state.inside = false;
            }
        }
        (None, _) => fail("a work-item without a function".to_owned()),
        (_, Err(error)) => fail(error),
    }
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
extern "C" fn togsim_dma(
    _: *mut c_void,
    direction: i32,
    argument: i32,
    offset: u64,
    ndim: i32,
    dims: *const i64,
    strides: *const i64,
    bits: i32,
    is_async: i32,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
) {
    tell(|state| {
        let abi = state.abi;
        // From here on the versions differ: (semaphore, reads, writes, indirect) or
        // (tag, slot, reads, writes).
        let (key, reads, writes, indirect) = if abi >= 14 {
            ((a, 0), (b, c), (d, e), f as i32 != 0)
        } else {
            ((u64::from(a as u32), b), (c, d), (e, f), false)
        };
        let list =
            |(at, n): (u64, u64)| numbers(at as *const i64, n as i32, MOST_BUFFERS, abi, "buffers");
        if !matches!(direction, 0 | 1) || !(1..=4096).contains(&bits) || argument < 0 {
            return Err(versions(abi));
        }
        let dims = numbers(dims, ndim, MOST_DIMS, abi, "dimensions")?;
        let strides = if strides.is_null() {
            let mut run = 1i64;
            let mut all: Vec<i64> = dims
                .iter()
                .rev()
                .map(|d| {
                    let stride = run;
                    run = run.saturating_mul(*d);
                    stride
                })
                .collect();
            all.reverse();
            all
        } else {
            numbers(strides, ndim, MOST_DIMS, abi, "strides")?
        };
        Ok(Raw::Dma {
            store: direction == 1,
            tensor: argument as u32,
            offset: offset as i64,
            bits: bits as u32,
            semaphore: (is_async != 0 && (abi >= 14 || direction == 0)).then_some(key),
            indirect,
            dims,
            strides,
            reads: list(reads)?,
            writes: list(writes)?,
        })
    });
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
extern "C" fn togsim_compute(
    _: *mut c_void,
    tile: u64,
    unit: i32,
    _: i32,
    _: *const i64,
    reads: *const i64,
    n_reads: i32,
    writes: *const i64,
    n_writes: i32,
) {
    tell(|state| {
        Ok(Raw::Compute {
            tile,
            unit,
            reads: numbers(reads, n_reads, MOST_BUFFERS, state.abi, "buffers")?,
            writes: numbers(writes, n_writes, MOST_BUFFERS, state.abi, "buffers")?,
        })
    });
}

#[unsafe(no_mangle)]
extern "C" fn togsim_memory_barrier(_: *mut c_void, a: u64, b: u64) {
    tell(|state| {
        Ok(if state.abi >= 14 {
            Raw::Wait {
                key: (a, 0),
                expected: Some(b as i64),
            }
        } else {
            Raw::Wait {
                key: (u64::from(a as u32), b),
                expected: None,
            }
        })
    });
}

/// The calls, so that the linker keeps them.
#[used]
static CALLS: [fn() -> *const c_void; 7] = [
    || togsim_abi_version as *const c_void,
    || togsim_core_alloc as *const c_void,
    || togsim_compute_barrier as *const c_void,
    || togsim_dispatch as *const c_void,
    || togsim_dma as *const c_void,
    || togsim_compute as *const c_void,
    || togsim_memory_barrier as *const c_void,
];

/// Loads a shared object and runs its `togsim_kernel`. `abi` of `None` takes what the object says.
pub(crate) fn run(
    path: &Path,
    abi: Option<u32>,
    shape: &[i64],
    writer: Writer,
) -> Result<(), RecordError> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
    if !SUPPORTED {
        return Err(RecordError::Load(
            "recording works on Linux on x86-64 and AArch64 only".to_owned(),
        ));
    }
    std::hint::black_box(&CALLS);
    let fail = |e: libloading::Error| {
        RecordError::Load(format!("cannot load {}: {}", path.display(), chain(&e)))
    };
    // SAFETY: runs the object's initialisers, which is what the user asked for (see the module).
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(fail)?;
    let number = |name: &str| -> Option<i32> {
        // SAFETY: a 32-bit constant by the interface; copied at once.
        unsafe {
            let symbol: Symbol<*const i32> = library.get(name.as_bytes()).ok()?;
            let at: *const i32 = *symbol;
            (!at.is_null() && at.is_aligned()).then(|| *at)
        }
    };
    let count = number("togsim_spad_buffer_count");
    let said = number("togsim_producer_abi_version").and_then(|v| u32::try_from(v).ok());
    // Objects of version 14 and later say it themselves; only later ones state buffer sizes.
    let abi = abi
        .or(said)
        .unwrap_or(if count.is_some() { 15 } else { 12 });
    if !(11..=15).contains(&abi) {
        return Err(RecordError::Load(format!(
            "trace ABI {abi}; 11 to 15 are known"
        )));
    }
    let sizes = match count {
        Some(n) if (0..=MOST_SIZES).contains(&n) => {
            // SAFETY: `n` numbers by the interface; copied at once.
            unsafe {
                library
                    .get::<*const i64>(b"togsim_spad_buffer_bytes")
                    .ok()
                    .map(|symbol| numbers(*symbol, n, MOST_SIZES, abi, "buffer sizes"))
            }
            .transpose()
            .map_err(RecordError::Load)?
        }
        Some(n) => return Err(RecordError::Load(format!("{n} scratchpad buffers"))),
        None => None,
    };
    // SAFETY: the entry point's type by the interface.
    let kernel: Symbol<extern "C" fn(*mut c_void, *mut i64, i32)> =
        unsafe { library.get(b"togsim_kernel") }.map_err(fail)?;
    // The producer may change its copy. It is longer than it says, for producers that read on.
    let mut arguments = shape.to_vec();
    arguments.resize(shape.len() + 64, 0);
    let n = i32::try_from(shape.len())
        .map_err(|_| RecordError::Load("too many shape arguments".to_owned()))?;
    let mut writer = writer;
    writer
        .write(&Raw::Head { abi, sizes })
        .map_err(RecordError::Load)?;
    *lock() = Some(State {
        abi,
        writer,
        inside: false,
        error: None,
    });
    // The producer hands this pointer back to us and must not look behind it.
    let mut opaque: [c_char; 64] = [0; 64];
    kernel(opaque.as_mut_ptr().cast(), arguments.as_mut_ptr(), n);
    // Whatever the object registered to run at its end may still be called: it stays loaded.
    std::mem::forget(library);
    match lock().take() {
        Some(State {
            error: Some(error), ..
        }) => Err(RecordError::Load(error)),
        Some(mut state) => {
            state.writer.write(&Raw::End).map_err(RecordError::Load)?;
            state.writer.finish().map_err(RecordError::Load)
        }
        None => Err(RecordError::Load("the recorder is gone".to_owned())),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(e) = inner {
        text = format!("{text}: {e}");
        inner = e.source();
    }
    text
}
