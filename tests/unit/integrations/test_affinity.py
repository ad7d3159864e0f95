import json
import random
from collections import deque

from ingle.integrations.affinity import CHUNK_BYTES, MOST_KEYS, Affinity, InFlight, prompt_keys


def chat(*texts, **fields):
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"messages": messages, **fields}).encode()


LONG = "word " * 400


def test_a_longer_conversation_begins_with_the_keys_of_the_shorter():
    first = prompt_keys(chat(LONG))
    second = prompt_keys(chat(LONG, LONG + "more"))
    assert len(first) == len(LONG) // CHUNK_BYTES
    assert second[: len(first)] == first
    assert len(second) > len(first)


def test_fields_that_change_no_prompt_change_no_key():
    assert prompt_keys(chat(LONG, temperature=0)) == prompt_keys(chat(LONG, max_tokens=7))


def test_what_shares_no_cache_shares_no_key():
    plain = prompt_keys(chat(LONG))
    others = [
        prompt_keys(chat("x" + LONG)),
        prompt_keys(chat(LONG, cache_salt="a")),
        prompt_keys(chat(LONG), tenant="key"),
        prompt_keys(chat(LONG), session="s"),
        prompt_keys(chat(LONG), session="s", tenant="key"),
    ]
    assert len({keys[0] for keys in [plain, *others]}) == len(others) + 1
    assert prompt_keys(chat("other text"), session="s") == prompt_keys(chat(LONG), session="s")


def test_a_short_prompt_has_a_key_and_a_body_that_is_no_request_none():
    assert len(prompt_keys(chat("Hi"))) == 1
    assert len(prompt_keys(b'{"prompt": [1, 2, 3]}')) == 1
    for body in (b"", b"{", b"[]", b"[" * 10_000, b"\xff"):
        assert prompt_keys(body) == []


def test_a_prompt_goes_where_its_beginning_went_unless_that_one_is_busy():
    affinity = Affinity(slack=4)
    affinity.note([1, 2, 3], "b")
    loads = {"a": 0.0, "b": 3.0, "c": 0.0}
    assert affinity.order([1, 2, 9], loads) == ["b", "a", "c"]
    assert affinity.order([7], loads) == ["a", "c", "b"]
    assert affinity.order([1, 2], loads | {"b": 5.0})[0] == "a"
    assert affinity.order([1, 2], loads, avoid={"b"})[-1] == "b"
    affinity.note([1, 2], "a")
    assert affinity.order([1, 2, 3], loads | {"b": 0.0})[0] == "b", "the longest overlap wins"
    assert affinity.order([1], {}) == []


def test_conversations_stay_together_and_workers_even():
    chance, affinity = random.Random(3), Affinity()
    homes, moved = {}, 0
    loads = dict.fromkeys("abcd", 0.0)
    running = deque()
    for _ in range(4000):
        talk = chance.randrange(200)
        keys = [talk * 1000 + turn for turn in range(chance.randrange(1, 5))]
        home = affinity.order(keys, loads)[0]
        affinity.note(keys, home)
        moved += homes.setdefault(talk, home) != home
        loads[home] += 1
        running.append(home)
        if len(running) > 16:
            loads[running.popleft()] -= 1
    assert moved < 400
    sizes = [list(homes.values()).count(name) for name in "abcd"]
    assert min(sizes) > 20, sizes


def test_requests_that_come_at_once_are_spread():
    affinity, in_flight = Affinity(), InFlight()
    reported = {"a": 0, "b": 0, "c": 0, "d": 0}
    homes = [affinity.choose([number], in_flight, reported)[0] for number in range(16)]
    assert [homes.count(name) for name in "abcd"] == [4, 4, 4, 4]
    in_flight.leave("c")
    assert affinity.choose([99], in_flight, reported)[0] == "c"
    assert affinity.choose([98], in_flight, {"a": 9, "b": 9, "c": 9, "d": 0})[0] == "d"


def test_the_table_is_bounded():
    affinity = Affinity()
    affinity.note(list(range(MOST_KEYS + 10)), "a")
    assert affinity.order([0], {"a": 1.0, "b": 0.0})[0] == "b"
    assert affinity.order([20], {"a": 1.0, "b": 0.0})[0] == "a"
