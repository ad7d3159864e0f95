//! The latest traced observation of a histogram's bucket: one writer, any number of readers, no lock.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::trace::TraceId;

/// A sequence lock around plain atomics: the version is odd while the writer writes.
#[derive(Debug, Default)]
pub(crate) struct Exemplar {
    version: AtomicU64,
    trace: [AtomicU64; 2],
    value: AtomicU64,
    /// Since 1970.
    at_ms: AtomicU64,
}

impl Exemplar {
    /// Keeps this observation. Only one thread may call it.
    pub(crate) fn set(&self, value: u64, trace: TraceId) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // What follows is not seen before the odd version is.
        fence(Ordering::Release);
        self.trace[0].store((trace.0 >> 64) as u64, Ordering::Relaxed);
        self.trace[1].store(trace.0 as u64, Ordering::Relaxed);
        self.value.store(value, Ordering::Relaxed);
        self.at_ms.store(now.as_millis() as u64, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Appends ` # {trace_id="..."} value time`; nothing if there is none, or if the writer is at it.
    pub(crate) fn render(&self, out: &mut String, scale: f64) {
        let version = self.version.load(Ordering::Acquire);
        if version == 0 || version % 2 == 1 {
            return;
        }
        let [high, low] = self.trace.each_ref().map(|half| half.load(Ordering::Relaxed));
        let value = self.value.load(Ordering::Relaxed) as f64 * scale;
        let at_s = self.at_ms.load(Ordering::Relaxed) as f64 / 1e3;
        fence(Ordering::Acquire);
        if self.version.load(Ordering::Relaxed) == version {
            let id = TraceId(u128::from(high) << 64 | u128::from(low));
            let _ = write!(out, " # {{trace_id=\"{id}\"}} {value:?} {at_s:.3}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_reader_beside_the_writer_never_sees_halves_of_two() {
        const ROUNDS: u64 = 20_000;
        let exemplar = Exemplar::default();
        let mut out = String::new();
        exemplar.render(&mut out, 1.0);
        assert_eq!(out, "");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 1..=ROUNDS {
                    exemplar.set(round, TraceId(u128::from(round) << 64 | u128::from(round)));
                }
            });
            while !writer.is_finished() {
                out.clear();
                exemplar.render(&mut out, 1.0);
                let Some(shown) = out.strip_prefix(" # {trace_id=\"") else { continue };
                let (id, rest) = shown.split_once("\"} ").unwrap();
                let value: f64 = rest.split(' ').next().unwrap().parse().unwrap();
                assert_eq!(id[..16], id[16..]);
                assert_eq!(u64::from_str_radix(&id[16..], 16).unwrap() as f64, value);
            }
        });
        out.clear();
        exemplar.render(&mut out, 1.0);
        assert!(out.contains(&format!("{ROUNDS:016x}\"}} {ROUNDS}.0 ")), "{out}");
    }
}
