"""bad_words over HTTP: in no answer, whatever else binds it; plain and streamed."""

import json
import re

import pytest

from server import twice
from server.worker import whole

ORDINARY = """apple banana cherry grape lemon melon orange peach plum quince river stone table chair
window garden kitchen hammer nail screw paint brush paper pencil letter number figure shape circle
square winter summer autumn spring monday friday morning evening midnight noon yellow purple silver
golden bronze copper iron steel wooden plastic cotton woollen leather velvet marble granite gravel
meadow forest desert island harbour village castle bridge tunnel tower palace temple market station
doctor farmer sailor soldier teacher painter singer dancer driver baker butcher barber tailor miller
horse donkey camel sheep goat rabbit turtle lizard spider beetle hornet falcon eagle sparrow raven
pewter pepper ginger garlic onion carrot turnip cabbage spinach lettuce radish parsley
salmon herring trout lobster oyster the and is of to a in that it he e t""".split()
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["class", "other"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def both(ask, *arguments, **fields):
    """The texts and ends of an answer, after checking that the streamed one says the same."""
    return whole(twice.both(ask, *arguments, **fields))


@pytest.mark.parametrize("worker", ["cpu", "sim"])
def test_as_many_ordinary_words_as_are_allowed(request, worker):
    ask = request.getfixturevalue(worker).complete
    words = ORDINARY[-128:]
    assert len(words) == 128
    for seed in range(3):
        fields = {"max_tokens": 200, "temperature": 1, "seed": seed, "n": 2}
        assert any(word in text for text, _ in both(ask, **fields).values() for word in words)
        for text, ends in both(ask, **fields, bad_words=words).values():
            assert not [word for word in words if word in text], (seed, text)
            assert ends in (["stop"], ["length"])


def test_words_of_every_kind(cpu):
    """Single letters, halves of answers, marks that mean something in patterns, other scripts."""
    fields = {"max_tokens": 60, "temperature": 1}
    free = [cpu.complete(**fields, seed=seed)["choices"][0]["text"] for seed in range(4)]
    letters = sorted({c for c in "".join(free) if c.isascii() and c.isprintable()})[:6]
    pairs = [text[3:5] for text in free if "\ufffd" not in text[3:5]]
    words = [*letters, *pairs, "/", "\\", "]", "\n", "(?i)x", "é", "🙂", "{2}"]
    for seed in range(4):
        for text, _ in both(cpu.complete, **fields, seed=seed, bad_words=words).values():
            assert not [word for word in words if word in text], (seed, words, text)
            assert len(text) > 5


def test_the_largest_words_are_taken(cpu):
    words = [chr(0x4E00 + i) * 256 for i in range(128)]
    assert both(cpu.complete, bad_words=words) == both(cpu.complete)
    reply = cpu.post("/v1/completions", {"prompt": "x", "bad_words": ["x\ufffd"]})
    assert (reply.status, reply.error["param"]) == (400, "bad_words")
    assert "U+FFFD" in reply.error["message"]


def test_beside_a_schema_an_answer_takes_what_is_left(cpu):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for fields in ({"response_format": form}, {"guided_json": SCHEMA}):
        words = ["ass", "true", "\n", "\r"]
        bound = {"max_tokens": 60, "temperature": 1, "bad_words": words, **fields}
        for seed in range(3):
            for text, ends in both(cpu.chat, **bound, seed=seed).values():
                assert json.loads(text) == {"a": "other", "b": False}
                assert ends == ["stop"]
    for text, _ in both(cpu.complete, guided_regex="[a-d]{9}", bad_words=["a", "cd"]).values():
        assert re.fullmatch("[bcd]{1,9}", text)
        assert "cd" not in text


def test_an_answer_without_a_way_on_ends(cpu):
    stuck = both(cpu.complete, guided_choice=["no", "nor"], bad_words=["no"])
    assert stuck == {0: ("", ["content_filter"])}
    (letter,) = cpu.post("/tokenize", {"prompt": "b", "add_special_tokens": False}).json["tokens"]
    fields = {"allowed_token_ids": [letter], "bad_words": ["bbb"], "n": 2}
    for more in ({}, {"min_tokens": 5}, {"ignore_eos": True}):
        end = ("bb", ["content_filter"])
        assert both(cpu.complete, **fields, **more) == {0: end, 1: end}
    free = both(cpu.complete, **fields | {"bad_words": ["bx"]})
    assert free[0] == ("b" * 8, ["length"])


def test_beside_what_keeps_an_answer_going(cpu):
    fields = {"max_tokens": 50, "temperature": 1, "bad_words": list("etaoin"), "seed": 1}
    for more in ({"ignore_eos": True}, {"min_tokens": 50}):
        for text, ends in both(cpu.complete, **fields, **more).values():
            assert not set(text) & set("etaoin")
            assert ends == ["length"]


def test_others_in_the_same_steps_are_not_bound(cpu):
    free = both(cpu.complete, ["One", "Two", "Three"], max_tokens=30)
    stream = cpu.open_stream(bad_words=list("etaoin"), max_tokens=200)
    try:
        assert both(cpu.complete, ["One", "Two", "Three"], max_tokens=30) == free
    finally:
        stream.close()
