//! What the operator sets of KV events. Any thread.

use serde::Deserialize;

/// What to publish, beside the sockets: `Engine::start_with`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvEventOptions {
    /// First frame of every message.
    #[serde(default)]
    pub topic: String,
    /// Batches kept for replay.
    pub buffer_steps: usize,
    /// Messages that may wait for one subscriber; more are dropped.
    pub hwm: usize,
    /// Whether each engine has a second socket, for replays.
    pub replays: bool,
    /// How events are written.
    pub encoding: Encoding,
}

/// Form of batches and events in MessagePack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Lists of values, as vLLM has written them since 0.9.
    #[default]
    Array,
    /// Maps by field name, as later releases do.
    Map,
}
