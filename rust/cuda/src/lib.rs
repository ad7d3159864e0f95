//! ingle-cuda.
