//! ingle-sim.
