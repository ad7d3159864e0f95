//! ingle-text.
