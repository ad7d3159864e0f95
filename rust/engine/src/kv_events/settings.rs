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

/// Form of an event in MessagePack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// A list of its values, as in vLLM from 0.9 to 0.23.
    Array,
    /// A map by field name, as in vLLM since 0.24.
    #[default]
    Map,
}
