"""A router's side of the KV events, through libzmq.

It subscribes as vLLM's and llm-d's routers do, keeps an index of the worker's cache, and says how
many tokens of a prompt the worker has.
"""

from typing import Any

import msgspec
import zmq

END = (-1).to_bytes(8, "big", signed=True)
LIMIT_MS = 20_000


def batch_decoder(array_like):
    """Decodes a batch as a subscriber with vLLM's structs does (vllm/distributed/kv_events.py).

    Events are maps since vLLM 0.24 and were lists before; the batch is a list in both.
    """

    class Event(msgspec.Struct, array_like=array_like, tag=True, forbid_unknown_fields=True):
        pass

    class BlockStored(Event):
        block_hashes: list[int]
        parent_block_hash: int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list[tuple[Any, ...] | None] | None = None

    class BlockRemoved(Event):
        block_hashes: list[int]
        medium: str | None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, array_like=True):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        data_parallel_rank: int | None = None

    return msgspec.msgpack.Decoder(Batch)


class RouterIndex:
    """One worker's published blocks, found by what they contain and not by the worker's hash."""

    def __init__(self, endpoint, replay_endpoint=None, topic=b"", array_like=False):
        self.decoder = batch_decoder(array_like)
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, topic)
        monitor = self.sub.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.sub.connect(endpoint)
        assert monitor.poll(LIMIT_MS), "no handshake"
        self.sub.disable_monitor()
        monitor.close()
        self.replays = None
        if replay_endpoint:
            self.replays = self.context.socket(zmq.DEALER)
            self.replays.connect(replay_endpoint)
        self.next_sequence = 0
        self.num_stored = self.num_removed = self.num_cleared = self.num_replayed = 0
        self.block_size = None
        self.blocks = {}
        """Worker's hash -> content: (content of the parent, tokens, salt)."""
        self.contents = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)

    def take(self, timeout_ms=0, drop=()):
        """Takes what has come; batches whose number is in `drop` are lost. Fills gaps by replay."""
        while self.sub.poll(timeout_ms):
            timeout_ms = 0
            _, sequence, payload = self.sub.recv_multipart()
            sequence = int.from_bytes(sequence, "big")
            if sequence in drop:
                continue
            if sequence < self.next_sequence:
                continue
            if sequence > self.next_sequence:
                self.replay()
                assert self.next_sequence > sequence, "the replay did not fill the gap"
                continue
            self.apply(payload)

    def take_until(self, is_enough):
        """Takes batches until `is_enough()`; fails after a while without any."""
        while not is_enough():
            assert self.sub.poll(LIMIT_MS), "no more events"
            self.take()

    def replay(self):
        """Asks for everything from the first batch that it lacks."""
        self.replays.send_multipart([b"", self.next_sequence.to_bytes(8, "big")])
        while True:
            assert self.replays.poll(LIMIT_MS), "no answer"
            empty, sequence, payload = self.replays.recv_multipart()
            assert empty == b""
            if sequence == END:
                assert payload == b""
                return
            if int.from_bytes(sequence, "big") >= self.next_sequence:
                assert int.from_bytes(sequence, "big") == self.next_sequence
                self.num_replayed += 1
                self.apply(payload)

    def apply(self, payload):
        self.next_sequence += 1
        batch = self.decoder.decode(payload)
        assert batch.ts > 1.7e9
        self.rank = batch.data_parallel_rank
        for event in batch.events:
            getattr(self, type(event).__name__)(event)

    def BlockStored(self, event):  # noqa: N802 # The event's name.
        assert (event.lora_id, event.medium, event.lora_name) == (None, "GPU", None)
        size = self.block_size = event.block_size
        assert len(event.token_ids) == len(event.block_hashes) * size
        parent = event.parent_block_hash
        content = None if parent is None else self.blocks[parent]
        for place, name in enumerate(event.block_hashes):
            own = tuple(event.token_ids[place * size : (place + 1) * size])
            keys = event.extra_keys[place] if event.extra_keys else None
            content = (content, own, keys[0] if keys else None)
            assert name not in self.blocks, "stored twice"
            self.blocks[name] = content
            self.contents.add(content)
            self.num_stored += 1

    def BlockRemoved(self, event):  # noqa: N802
        assert event.medium == "GPU"
        for name in event.block_hashes:
            self.contents.remove(self.blocks.pop(name))
            self.num_removed += 1

    def AllBlocksCleared(self, _):  # noqa: N802
        self.blocks.clear()
        self.contents.clear()
        self.num_cleared += 1

    def num_cached(self, prompt, salt=None):
        """Tokens at the prompt's start that the worker will not compute, as the router sees it."""
        content, num_blocks = None, 0
        for at in range(0, len(prompt) - 1, self.block_size):
            tokens = tuple(prompt[at : at + self.block_size])
            content = (content, tokens, salt if at == 0 else None)
            # The last token is always computed.
            if len(tokens) < self.block_size or at + self.block_size >= len(prompt):
                break
            if content not in self.contents:
                break
            num_blocks += 1
        return num_blocks * self.block_size
