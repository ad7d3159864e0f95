"""A SentencePiece tokenizer over HTTP: spaces inside tokens, a space before the text, bytes for
what has no token. Each request is made plain and streamed.
"""

import itertools

import pytest
import tokenizers

from server.reciter import ECHO, SPECIAL, Recital, shown_text
from server.twice import both, text_of
from server.worker import Worker

SENTENCE = ["▁Hel", "lo", "▁wor", "ld", ",", "▁this", "▁is", "▁fine", "."]
TWO_SPACES = ["▁", "▁two", "x", "▁▁", "end"]
GLUED = ["no", "▁lead", "ing"]
EMOJI = ["<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁ok"]
CALLED = [
    "<think>", "\n", "hm", "▁h", "m", "</", "think", ">", "▁Su", "re", "!", "<tool", "_call>",
    '▁{"name"', ':▁"f"', ',▁"arguments":', '▁{"city":', '▁"Bo', 'nn"}', "▁}", "</tool", "_call",
    ">▁",
]  # fmt: skip
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
DIGITS = "\n12 34, é"


class SentencePieces(Recital):
    """Recites given tokens. A text's last character is its cue and comes as a byte."""

    def __init__(self):
        super().__init__()
        self._ids = {f"<0x{byte:02X}>": len(SPECIAL) + byte for byte in range(256)}
        for piece in ["▁", *"0123456789"]:
            self.id(piece)

    def recite(self, cue, pieces):
        """Whatever ends with the byte `cue` is followed by these tokens and the end of text."""
        self.pieces[cue] = pieces
        chain = [f"<0x{ord(cue):02X}>", *pieces, 1]
        for before, after in itertools.pairwise(chain):
            self.prefer(before, after)

    def tokenizer(self):
        special = {text: i for i, text in enumerate(SPECIAL)}
        begin = {"id": "<|bos|>", "ids": [0], "tokens": ["<|bos|>"]}
        added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": i, "content": text, "special": True, **added} for text, i in special.items()
            ],
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Prepend", "prepend": "▁"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                ],
            },
            "pre_tokenizer": None,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [
                    {"SpecialToken": {"id": "<|bos|>", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                ],
                "pair": [
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"Sequence": {"id": "B", "type_id": 1}},
                ],
                "special_tokens": {"<|bos|>": begin},
            },
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": "<|pad|>",
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "byte_fallback": True,
                "ignore_merges": False,
                "vocab": special | self._ids,
                "merges": [],
            },
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    recital = SentencePieces()
    for cue, pieces in zip("\1\2\3\4\5", TEXTS, strict=True):
        recital.recite(cue, pieces)
    # The markers make it a reasoning model with tools; the last character still decides.
    markers = "{# <think> #}{% if tools %}{# <tool_call> #}{% endif %}"
    return recital.save(tmp_path_factory.mktemp("sp"), ECHO + markers)


TEXTS = [SENTENCE, TWO_SPACES, GLUED, EMOJI, CALLED]


@pytest.fixture(scope="module")
def worker(folder):
    with Worker("--device", "cpu", "--max-num-seqs", "8", model=folder) as worker:
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()


@pytest.fixture(scope="module")
def reference(folder):
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_an_answer_goes_on_exactly_where_the_prompt_ends(worker, reference):
    for cue, pieces in zip("\1\2\3\4", TEXTS, strict=False):
        prompt = f"Say{cue}"
        answer = both(worker.complete, prompt, max_tokens=30, return_token_ids=True)
        [choice] = answer["choices"]
        prompt_ids, ids = choice["prompt_token_ids"], choice["token_ids"]
        assert prompt_ids == reference.encode(prompt).ids
        assert [reference.id_to_token(token) for token in ids] == [*pieces, "<|eos|>"]
        assert reference.decode(prompt_ids) == prompt
        assert reference.decode(prompt_ids + ids) == prompt + choice["text"]
        assert text_of(worker.complete, prompt, max_tokens=30, echo=True) == prompt + choice["text"]
        assert text_of(worker.chat, prompt, max_tokens=30) == choice["text"]
    assert text_of(worker.complete, "x\1", max_tokens=30) == " Hello world, this is fine."
    assert text_of(worker.complete, "x\2", max_tokens=30) == "  twox  end"
    assert text_of(worker.complete, "x\3", max_tokens=30) == "no leading"


def test_each_event_adds_whole_characters(worker):
    events = worker.complete("x\4", max_tokens=30, stream=True)
    texts = [event["choices"][0]["text"] for event in events]
    assert texts == ["🙂", " ok", ""]
    events = worker.complete("x\1", max_tokens=30, stream=True, stop=["ld, th", "fine?"])
    texts = [event["choices"][0]["text"] for event in events]
    assert "".join(texts) == " Hello wor"


def test_bad_words_see_spaces_inside_tokens(worker):
    fields = {"max_tokens": 12, "temperature": 0}
    for word, start in [("lo w", " Hello"), (" Hello", " Hel"), ("▁", " Hello world")]:
        text = text_of(worker.complete, "x\1", bad_words=[word], **fields)
        assert text.startswith(start)
        assert word not in text
    assert text_of(worker.complete, "x\4", bad_words=["🙂"], **fields)[:2] not in ("🙂 ", "🙂")


@pytest.mark.parametrize("seed", range(4))
def test_invalid_utf8_streams_as_the_plain_text(worker, seed):
    # Nothing is likelier than anything else after this, until a text's own token comes.
    fields = {"max_tokens": 400, "temperature": 2, "seed": seed, "ignore_eos": True}
    fields |= {"logit_bias": {str(token): -100 for token in range(len(SPECIAL))}}
    fields |= {"skip_special_tokens": False, "logprobs": True}
    answer = both(worker.chat, "zz", **fields)
    [choice] = answer["choices"]
    data = bytes(b for entry in choice["logprobs"]["content"] for b in entry["bytes"])
    message = choice["message"]
    assert (message.get("reasoning_content"), choice["finish_reason"]) == (None, "length")
    assert message["content"] == shown_text(data)
    assert "\ufffd" in message["content"], "the point of it"
    assert len(choice["logprobs"]["content"]) == 400


REASONED = {"reasoning_content": "hm hm", "content": "Sure!"}
ARGUMENTS = '{"city": "Bonn"}'


@pytest.mark.parametrize(
    ("stop", "reason", "message", "arguments"),
    [
        ("</think> and more than the tag has", "tool_calls", REASONED, ARGUMENTS),
        ("</tool_call> and then a good deal of text", "tool_calls", REASONED, ARGUMENTS),
        ('nn"}?', "tool_calls", REASONED, ARGUMENTS),
        ("m h", "stop", {"reasoning_content": "h", "content": None}, None),
        ("</think>", "stop", {"reasoning_content": "hm hm", "content": None}, None),
        ("re!", "stop", {"reasoning_content": "hm hm", "content": "Su"}, None),
        ("onn", "stop", REASONED, '{"city": "B'),
        ("Bonn", "stop", REASONED, '{"city": "'),
        ("</tool_call>", "stop", REASONED, ARGUMENTS),
    ],
)
def test_stops_come_before_the_parsers(worker, stop, reason, message, arguments):
    answer = both(worker.chat, "Go\5", max_tokens=100, tools=[TOOL], stop=[stop])
    [choice] = answer["choices"]
    assert choice["finish_reason"] == reason
    calls = choice["message"].get("tool_calls") or []
    expected = [{"name": "f", "arguments": arguments}] if arguments else []
    assert [call["function"] for call in calls] == expected
    assert {name: choice["message"].get(name) for name in message} == message


def test_a_limit_comes_before_the_parsers(worker):
    fields = {"tools": [TOOL], "stop": ["never comes"]}
    cut = set()
    for limit in range(1, len(CALLED) + 2):
        answer = both(worker.chat, "Go\5", max_tokens=limit, **fields)
        [choice] = answer["choices"]
        is_whole = limit > len(CALLED)
        assert choice["finish_reason"] == ("tool_calls" if is_whole else "length")
        for call in choice["message"].get("tool_calls") or []:
            assert ARGUMENTS.startswith(call["function"]["arguments"])
            cut.add(call["function"]["arguments"])
    assert {'{"city":', '{"city": "Bo', ARGUMENTS} <= cut


@pytest.mark.parametrize("prompt", [DIGITS, "\n\n7", "1 2\n", " 5", "5", "é\n1"])
def test_each_log_prob_entry_is_its_own_token(worker, reference, prompt):
    encoded = reference.encode(prompt)
    for form in (prompt, encoded.ids):
        answer = both(worker.complete, form, max_tokens=0, echo=True, logprobs=1)
        [choice] = answer["choices"]
        found = choice["logprobs"]
        assert choice["text"] == prompt
        assert found["tokens"] == [shown(token) for token in encoded.tokens]
        assert len(found["token_logprobs"]) == len(found["top_logprobs"]) == len(encoded.ids)
        # The space before the text is in its token and not in the text.
        data = [token_bytes(token) for token in encoded.tokens]
        starts = [b"".join(data[1:i]) for i in range(len(data))]
        offsets = [len(start.decode(errors="ignore").removeprefix(" ")) for start in starts]
        assert found["text_offset"] == offsets


def token_bytes(token):
    """What a token adds to the text."""
    if token.startswith("<0x"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


def shown(token):
    """As OpenAI shows a token."""
    try:
        return token_bytes(token).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes(token))
