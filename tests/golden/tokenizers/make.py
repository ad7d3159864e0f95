"""Makes the small SentencePiece models and tekken.json of this folder, and cases.json with the ids
that their own libraries give.

    python -m venv v && v/bin/pip install sentencepiece==0.2.3 tiktoken==0.14.0 protobuf
    v/bin/python tests/golden/tokenizers/make.py

Not part of the test suite, which needs neither library. Training is deterministic.
"""

import base64
import io
import itertools
import json
import random
import tempfile
from pathlib import Path

import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2

HERE = Path(__file__).resolve().parent
CORPUS = [
    "The fire in the hearth burns low, and the house is quiet at night.",
    "She said that she'd seen the sea once, twice, three times: 1, 2, 3, 10, 100, 1000.",
    "def add(left, right):\n    return left + right",
    "Zürich, naïve, café, señor, straße: größer als das Haus.",
    "Быстрая лиса прыгает через ленивую собаку, и собака спит.",
    "日本の首都は東京です。中国的首都是北京。",
    "the then there these those other another mother brother together gather weather",
    "https://example.org/path?query=value&other=1#fragment",
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}',
    "ﬁne \uff46\uff55\uff4c\uff4c\u3000\uff57ide ① ² ㎏ … Ⅷ",
]
SYMBOLS = ["<tool>", "<|x|>", "  "]
PIECES = [
    "the ",
    " house",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "a",
    "é",
    "e\u0301",
    "ﬁ",
    "①",
    "²",
    "Ⅷ",
    "\uff46\uff55",
    "\u3000",
    "日本",
    "は",
    "собака",
    "🙂",
    "👩‍👩‍👧",
    "<tool>",
    "<|x|>",
    "<s>",
    "</s>",
    "<unk>",
    "▁",
    "▁▁",
    "<0x41>",
    "100",
    "7",
    "weather",
    "XYZ",
    "\u00a0",
    "\u200b",
    "\u0000",
    "ß",
    "\uff41",
    "…",
    "㎏",
    "don't",
    "Ab",
    "AB",
    "aB",
    "¡",
    "/",
    "//\n",
]
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MODELS = {
    "bpe-llama": {
        "model_type": "bpe",
        "byte_fallback": True,
        "vocab_size": 480,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "bpe-gemma": {
        "model_type": "bpe",
        "byte_fallback": True,
        "vocab_size": 480,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "user_defined_symbols": SYMBOLS,
    },
    "bpe-rules": {
        "model_type": "bpe",
        "vocab_size": 220,
        "rules": True,
        "user_defined_symbols": SYMBOLS[:2],
    },
    "unigram-rules": {
        "model_type": "unigram",
        "vocab_size": 180,
        "rules": True,
        "user_defined_symbols": SYMBOLS[:2],
    },
    "unigram-bytes": {
        "model_type": "unigram",
        "vocab_size": 440,
        "byte_fallback": True,
        "rules": True,
        "remove_extra_whitespaces": False,
    },
}


RULES = {
    "ﬁ": "fi",
    "①": "1",
    "²": "2",
    "Ⅷ": "VIII",
    "㎏": "kg",
    "…": "...",
    "e\u0301": "é",
    "\u00a0": " ",
    "\u3000": " ",
    "\t": " ",
    "\n": " ",
    "\r": " ",
    "\r\n": " ",
    "\u200b": "",
    "AB": "ab",
    "\u0001": "",
    **{chr(c): chr(c - 0xFEE0) for c in range(0xFF01, 0xFF5F)},
}
"""Rules as NFKC has them, few, so that the compiled map is small."""


def texts():
    draw = random.Random(7)
    yield from ["", " ", "a", "  a  b ", *CORPUS]
    for _ in range(70):
        yield "".join(draw.choice(PIECES) for _ in range(draw.randint(1, 12)))


def sentencepiece_model(fields):
    out = io.BytesIO()
    fields = dict(fields)
    if fields.pop("rules", False):
        hexes = [" ".join(f"{ord(c):X}" for c in text) for pair in RULES.items() for text in pair]
        path = Path(tempfile.mkdtemp()) / "rules.tsv"
        path.write_text(
            "".join(f"{a}\t{b}\n" for a, b in zip(hexes[::2], hexes[1::2], strict=True))
        )
        fields["normalization_rule_tsv"] = str(path)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 3),
        model_writer=out,
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **fields,
    )
    return out.getvalue()


def tekken():
    """Merges of the corpus on bytes, most frequent pair first."""
    words = [[bytes([b]) for b in w.encode()] for line in CORPUS for w in line.split(" ")]
    ranks = {bytes([b]): b for b in range(256)}
    while len(ranks) < 420:
        counts = {}
        for word in words:
            for pair in itertools.pairwise(word):
                counts[pair] = counts.get(pair, 0) + 1
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        ranks[best[0] + best[1]] = len(ranks)
        for word in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = [best[0] + best[1]]
                at += 1
    # Tokens that no merge of smaller ones makes are found as whole words alone.
    ranks[b" once upon"] = len(ranks)
    ranks["größer".encode()] = len(ranks)
    ranks[b"   "] = len(ranks)
    return ranks


def main():
    cases = {}
    for name, fields in MODELS.items():
        model = sentencepiece_model(fields)
        (HERE / f"{name}.model").write_bytes(model)
        if name == "bpe-rules":
            proto = sentencepiece_model_pb2.ModelProto.FromString(model)
            rules = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
            (HERE / "charsmap.txt").write_text(rules)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        cases[name] = [
            {
                "text": text,
                "ids": processor.encode(text),
                "decoded": processor.decode(processor.encode(text)),
            }
            for text in texts()
        ]
    ranks = tekken()
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    vocab = [
        {
            "rank": rank,
            "token_bytes": base64.b64encode(data).decode(),
            "token_str": data.decode(errors="ignore") or None,
        }
        for data, rank in ranks.items()
    ]
    size = len(vocab) + 10
    # The last entries are beyond the configured size, as in the published files.
    spare = [
        {
            "rank": len(vocab) + i,
            "token_bytes": base64.b64encode(b"spare%d" % i).decode(),
            "token_str": None,
        }
        for i in range(3)
    ]
    file = {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(vocab) + 3,
            "default_vocab_size": size,
            "default_num_special_tokens": 10,
            "version": "v7",
        },
        "vocab": vocab + spare,
        "special_tokens": [
            {"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(special)
        ],
    }
    text = json.dumps(file).replace('{"rank"', '\n{"rank"')
    (HERE / "tekken.json").write_text(text + "\n")
    encoding = tiktoken.Encoding(
        "tekken", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    cases["tekken"] = [
        {
            "text": text,
            "ids": [10 + i for i in encoding.encode(text, disallowed_special=())],
            "decoded": text,
        }
        for text in [*texts(), "once upon a time", " once upon", "größer"]
    ]
    lines = [
        f'"{name}": [\n' + ",\n".join(json.dumps(case, ensure_ascii=False) for case in found) + "]"
        for name, found in cases.items()
    ]
    (HERE / "cases.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
