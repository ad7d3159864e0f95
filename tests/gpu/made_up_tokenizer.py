"""A tokenizer.json for models whose text is noise. Needs ingle, no torch.

Each word of `ingle bench` is one token, and every other id a word of four letters.

Run: python made_up_tokenizer.py FOLDER CONFIG [--tokenizer FILE]; it writes that config.json and a
tokenizer of its size to FOLDER, for `ingle serve FOLDER --load-format dummy`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from ingle.bench.workload import requests


def make_shape(folder: Path, config: Path, tokenizer: Path | None = None) -> Path:
    """A copy of a config.json with a tokenizer beside it; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    document = json.loads(config.read_text())
    vocab = document.get("text_config", document)["vocab_size"]
    write_tokenizer(folder, vocab, tokenizer)
    shutil.copyfile(config, folder / "config.json")
    return folder


def write_tokenizer(folder: Path, vocab: int, given: Path | None) -> tuple[int, int]:
    """Copies the given tokenizer.json, or makes one up; returns its ids of start and end."""
    if given is not None:
        shutil.copyfile(given, folder / "tokenizer.json")
        added = {
            entry["content"]: entry["id"] for entry in json.loads(given.read_text())["added_tokens"]
        }
        begin, end = "<|begin_of_text|>", "<|end_of_text|>"
    else:
        document, added = made_up_tokenizer(vocab)
        (folder / "tokenizer.json").write_text(json.dumps(document))
        begin, end = SPECIALS
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "chat_template": "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return added[begin], added[end]


def made_up_tokenizer(vocab: int) -> tuple[dict, dict[str, int]]:
    """Byte-level BPE: the bytes, the words of the load, and four-letter words up to `vocab`."""
    (load,) = requests("fixed:4000:1", 1, seed=0)
    words = sorted(set(load.prompt().split()))
    tokens = byte_letters()
    known, merges = set(tokens), []
    for word in words:
        piece = SPACE
        for letter in word:
            if piece + letter not in known:
                merges.append([piece, letter])
                tokens.append(piece + letter)
                known.add(piece + letter)
            piece += letter
    number = 0
    while len(tokens) < vocab - len(SPECIALS):
        filler = SPACE + "".join(LETTERS[number // 26**place % 26] for place in range(4))
        number += 1
        if filler not in known:
            tokens.append(filler)
    added = {text: vocab - len(SPECIALS) + i for i, text in enumerate(SPECIALS)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    document = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": text, "special": True} | flags for text, i in added.items()
        ],
        "normalizer": None,
        "pre_tokenizer": level | {"trim_offsets": True},
        "post_processor": None,
        "decoder": level | {"trim_offsets": True},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    return document, added


def byte_letters() -> list[str]:
    """The letter that byte-level BPE writes for each byte, in the bytes' order (GPT-2's rule)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


SPACE = chr(0x120)
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIALS = ("<|begin_of_text|>", "<|end_of_text|>")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("config", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    options = parser.parse_args()
    print(make_shape(options.folder, options.config, options.tokenizer))
