//! What a piece of work costs: CPU time of the process and the most memory it held at once.
//!
//! A test program installs [`CountingAllocator`] and runs one measured piece at a time: the counters are
//! those of the whole process, threads that the work starts included.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Forwards to the system's allocator and counts live bytes.
#[derive(Debug)]
pub struct CountingAllocator;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grow(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call goes to `System` with the caller's own pointer and layout; the counters do not
// touch the memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is also that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller passes what `alloc` of this type gave, which `System` allocated.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What one piece of work cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// CPU time of all threads of the process.
    pub cpu: Duration,
    /// The most bytes that were live at once, above what was live before. 0 without `CountingAllocator`.
    pub peak_bytes: usize,
}

/// Runs `work` and measures it.
pub fn measured<T>(work: impl FnOnce() -> T) -> (T, Cost) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let started = cpu_time();
    let value = work();
    let cpu = cpu_time().saturating_sub(started);
    let peak_bytes = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    (value, Cost { cpu, peak_bytes })
}

/// CPU time that this process has used so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
