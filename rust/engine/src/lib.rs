//! ingle-engine.
