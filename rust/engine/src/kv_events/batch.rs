//! A batch of events in MessagePack, with the fields of vLLM's `KVEventBatch` (vllm/distributed/kv_events.py).
//! Publisher thread.

use super::index::Event;
use super::settings::Encoding;

/// Encodes one batch. `timestamp` in seconds since 1970.
pub(super) fn encode(
    events: &[Event],
    encoding: Encoding,
    timestamp: f64,
    rank: u64,
    block_size: u32,
) -> Vec<u8> {
    let mut pack = Pack { out: Vec::new(), encoding };
    // The batch itself is a list in both encodings.
    pack.list(3);
    pack.float(timestamp);
    pack.list(events.len());
    for event in events {
        put_event(&mut pack, event, block_size);
    }
    pack.number(rank);
    pack.out
}

fn put_event(pack: &mut Pack, event: &Event, block_size: u32) {
    match event {
        Event::Stored { hashes, parent, tokens, salt } => {
            pack.event("BlockStored", 8);
            pack.field("block_hashes");
            pack.numbers(hashes.iter().copied());
            pack.field("parent_block_hash");
            match parent {
                Some(parent) => pack.number(*parent),
                None => pack.nothing(),
            }
            pack.field("token_ids");
            pack.numbers(tokens.iter().map(|&token| u64::from(token)));
            pack.field("block_size");
            pack.number(u64::from(block_size));
            pack.field("lora_id");
            pack.nothing();
            pack.field("medium");
            pack.text(MEDIUM);
            pack.field("lora_name");
            pack.nothing();
            pack.field("extra_keys");
            put_extra_keys(pack, salt.as_deref(), hashes.len());
        }
        Event::Removed(hashes) => {
            pack.event("BlockRemoved", 2);
            pack.field("block_hashes");
            pack.numbers(hashes.iter().copied());
            pack.field("medium");
            pack.text(MEDIUM);
        }
        Event::Cleared => pack.event("AllBlocksCleared", 0),
    }
}

/// One entry a block: what the hash depends on beside the tokens. Only a chain's first block has any.
fn put_extra_keys(pack: &mut Pack, salt: Option<&str>, num_blocks: usize) {
    let Some(salt) = salt else { return pack.nothing() };
    pack.list(num_blocks);
    pack.list(1);
    pack.text(salt);
    for _ in 1..num_blocks {
        pack.nothing();
    }
}

/// Writes MessagePack (<https://github.com/msgpack/msgpack/blob/master/spec.md>), integers at their shortest.
struct Pack {
    out: Vec<u8>,
    encoding: Encoding,
}

impl Pack {
    /// Begins an event of this type with so many fields.
    fn event(&mut self, tag: &str, num_fields: usize) {
        let len = 1 + num_fields;
        match self.encoding {
            Encoding::Array => self.list(len),
            Encoding::Map => self.out.push(0x80 | len as u8),
        }
        self.field("type");
        self.text(tag);
    }

    /// The name of the value that follows, where there are names.
    fn field(&mut self, name: &str) {
        if self.encoding == Encoding::Map {
            self.text(name);
        }
    }

    fn nothing(&mut self) {
        self.out.push(0xc0);
    }

    fn float(&mut self, value: f64) {
        self.out.push(0xcb);
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    fn number(&mut self, value: u64) {
        let bytes = value.to_be_bytes();
        let (head, len): (u8, usize) = match value {
            0..=0x7f => return self.out.push(bytes[7]),
            0x80..=0xff => (0xcc, 1),
            0x100..=0xffff => (0xcd, 2),
            0x1_0000..=0xffff_ffff => (0xce, 4),
            _ => (0xcf, 8),
        };
        self.out.push(head);
        self.out.extend_from_slice(&bytes[8 - len..]);
    }

    fn numbers(&mut self, values: impl ExactSizeIterator<Item = u64>) {
        self.list(values.len());
        values.for_each(|value| self.number(value));
    }

    fn text(&mut self, text: &str) {
        let len = text.len() as u32;
        match len {
            0..=31 => self.out.push(0xa0 | len as u8),
            _ => {
                self.out.push(0xdb);
                self.out.extend_from_slice(&len.to_be_bytes());
            }
        }
        self.out.extend_from_slice(text.as_bytes());
    }

    fn list(&mut self, len: usize) {
        let len = len as u32;
        match len {
            0..=15 => self.out.push(0x90 | len as u8),
            _ => {
                self.out.push(0xdd);
                self.out.extend_from_slice(&len.to_be_bytes());
            }
        }
    }
}

/// Where the blocks are: the device's own pool, on a CPU too, as in vLLM. Others would be offload tiers.
const MEDIUM: &str = "GPU";
