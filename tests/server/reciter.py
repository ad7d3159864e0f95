"""A tiny model that recites fixed texts, so that tests know each token beforehand.

Its layers add nothing: a token's row of the head is all that decides about the next one. Texts are
cut as LZ78 cuts them: each piece is the shortest that was not there before, so that the last token
alone says what follows. Such cuts run through the middle of characters and words.
"""

import itertools
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from server.worker import TINY

ROWS = 1024
END = 1
SPECIAL = ["<|bos|>", "<|eos|>", "<|pad|>", "<|im_start|>", "<|im_end|>"]
SURE = 40.0
"""Logit of the token that follows; all others have 0 and share a chance of 1e-14."""
ECHO = "{% for m in messages %}{{ m.content }}{% endfor %}"
"""A template that adds nothing: a chat's last character decides what is recited, as a prompt's."""


def shown_text(data):
    """The text of an answer of these bytes: U+FFFD for invalid ones, no character that was cut."""
    for size in range(1, min(4, len(data) + 1)):
        tail = data[-size:]
        for fill, count in itertools.product(b"\x80\xbf", range(1, 4)):
            whole = (tail + bytes([fill] * count)).decode(errors="ignore")
            if len(whole) == 1 and len(whole.encode()) == size + count:
                return data[:-size].decode(errors="replace")
    return data.decode(errors="replace")


class Recital:
    """Which token follows which, and the tokenizer for that."""

    def __init__(self):
        # Single bytes have the ids after the special tokens.
        self._ids = {bytes([byte]): len(SPECIAL) + byte for byte in range(256)}
        self._used = set()
        self._logits = []
        self.pieces = {}
        """The bytes of each token of each text."""

    def add(self, cue, text):
        """Whatever ends with the byte `cue` is followed by `text` and the end of text."""
        assert cue not in self.pieces
        assert cue.encode() not in self._used, "a text has been cut there already"
        self._used.add(cue.encode())
        data = text if isinstance(text, bytes) else text.encode()
        pieces = []
        while data:
            size = next((n for n in range(1, len(data)) if data[:n] not in self._used), len(data))
            pieces.append(data[:size])
            while pieces[-1] in self._used:
                pieces[-2:] = [b"".join(pieces[-2:])]
            self._used.add(pieces[-1])
            data = data[size:]
        self.pieces[cue] = pieces
        for before, after in zip([cue.encode(), *pieces], pieces, strict=False):
            self.prefer(before, after)
        self.prefer(pieces[-1] if pieces else cue.encode(), END)

    def prefer(self, before, after, logit=SURE):
        """Gives a piece, or an id, a logit after another one."""
        self._logits.append((self.id(after), self.id(before), logit))

    def id(self, piece):
        """The id of a piece; a new one gets the next id."""
        return piece if isinstance(piece, int) else self._ids.setdefault(piece, self.size)

    @property
    def size(self):
        """How many ids the tokenizer knows."""
        return len(SPECIAL) + len(self._ids)

    def save(self, folder, template=ECHO, **generation):
        """Writes the model; `generation` goes into generation_config.json. Returns its path."""
        assert self.size < ROWS
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "tokenizer.json", self.tokenizer())
        settings = json.loads((TINY / "tokenizer_config.json").read_text())
        write(folder / "tokenizer_config.json", settings | {"chat_template": template})
        write(folder / "generation_config.json", {"eos_token_id": END} | generation)
        config = json.loads((TINY / "config.json").read_text()) | {
            "dtype": "float32", "head_dim": 64, "hidden_size": ROWS, "intermediate_size": 32,
            "num_attention_heads": 1, "num_hidden_layers": 1, "num_key_value_heads": 1,
            "rms_norm_eps": 1e-9, "tie_word_embeddings": False, "vocab_size": ROWS,
        }  # fmt: skip
        write(folder / "config.json", config)
        save_file(self._tensors(), folder / "model.safetensors", {"format": "pt"})
        return folder

    def tokenizer(self):
        """The document of tokenizer.json: byte-level, as the tiny models' is."""
        known = json.loads((TINY / "tokenizer.json").read_text())
        letters = byte_letters()
        vocabulary = {text: i for i, text in enumerate(SPECIAL)}
        for piece, i in self._ids.items():
            vocabulary["".join(letters[byte] for byte in piece)] = i
        known["model"] |= {"vocab": vocabulary, "merges": []}
        return known

    def _tensors(self):
        head = np.zeros((ROWS, ROWS), np.float32)
        for after, before, logit in self._logits:
            head[after, before] = logit
        tensors = {
            "model.embed_tokens.weight": np.eye(ROWS, dtype=np.float32),
            # The norm makes the token's own place sqrt(ROWS); this undoes it.
            "model.norm.weight": np.full(ROWS, ROWS**-0.5, np.float32),
            "lm_head.weight": head,
        }
        shapes = {
            "self_attn.q_proj": (64, ROWS), "self_attn.k_proj": (64, ROWS),
            "self_attn.v_proj": (64, ROWS), "self_attn.o_proj": (ROWS, 64),
            "mlp.gate_proj": (32, ROWS), "mlp.up_proj": (32, ROWS), "mlp.down_proj": (ROWS, 32),
            "input_layernorm": (ROWS,), "post_attention_layernorm": (ROWS,),
        }  # fmt: skip
        for name, shape in shapes.items():
            tensors[f"model.layers.0.{name}.weight"] = np.zeros(shape, np.float32)
        return tensors


def write(path, document):
    path.write_text(json.dumps(document))


def byte_letters():
    """The characters by which byte-level tokenizers write bytes (GPT-2's `bytes_to_unicode`)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in shown}
    hidden = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
