//! ingle-python.
