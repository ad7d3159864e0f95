//! ingle-cpu.
