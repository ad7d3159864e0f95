"""Sampling numbers."""

import concurrent.futures
import json

import pytest

from server.twice import ASKED, refused_bytes_twice
from server.worker import whole


def text_of(answer):
    return whole(answer)[0][0]


def texts_of(answer):
    return [text for text, _ in whole(answer).values()]


def refused(worker, **body):
    reply = worker.post("/v1/completions", {"prompt": "x"} | body)
    assert reply.status == 400, reply.body
    return reply.error["param"].split("[")[0].split(".")[0]


def test_logit_bias_forces_and_bans_tokens(cpu):
    ids = {"return_token_ids": True}
    for temperature in (0, 1):
        biased = cpu.complete(**ids, logit_bias={"298": 100}, n=2, temperature=temperature)
        assert [c["token_ids"] for c in biased["choices"]] == [[298] * 8] * 2
    first = cpu.complete(**ids, max_tokens=1)["choices"][0]["token_ids"][0]
    banned = cpu.complete(**ids, n=4, temperature=2, logit_bias={str(first): -100}, max_tokens=50)
    assert all(first not in choice["token_ids"] for choice in banned["choices"])


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty", "min_p"])
@pytest.mark.parametrize("path", ASKED)
def test_numbers_that_are_not_finite_are_refused(cpu, path, field, number):
    body = json.dumps(ASKED[path] | {field: "here"}).encode()
    error = refused_bytes_twice(cpu, path, body.replace(b'"here"', number))
    if number == b"1e999":
        assert error["param"] == field
    else:
        assert error["code"] == "invalid_json"


def test_zero_is_a_value_and_not_absent(cpu):
    zeros = {"temperature": 0, "top_k": 0, "seed": 0, "presence_penalty": 0, "min_p": 0}
    assert text_of(cpu.complete(**zeros)) == text_of(cpu.complete(**zeros))
    assert text_of(cpu.complete(**zeros)) == text_of(cpu.complete())


def test_top_k_limits_and_its_off_values_are_off(cpu):
    fields = {"temperature": 1, "seed": 5}
    free = text_of(cpu.complete(**fields))
    for off in (-1, 0, 388, 100_000):
        assert text_of(cpu.complete(**fields, top_k=off)) == free
    assert text_of(cpu.complete(**fields, top_k=1)) == text_of(cpu.complete())
    assert refused(cpu, top_k=-5) == "top_k"


@pytest.mark.parametrize("seed", [0, -1, 7, 2**63 - 1, -(2**63)])
def test_same_seed_same_text_five_times_and_in_company(cpu, seed):
    fields = {"temperature": 1, "seed": seed, "max_tokens": 12}
    alone = [text_of(cpu.complete(**fields)) for _ in range(5)]
    assert len(set(alone)) == 1
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        prompts = [f"neighbour {i}" for i in range(7)]
        others = [
            pool.submit(cpu.complete, p, temperature=1, max_tokens=20 + i)
            for i, p in enumerate(prompts)
        ]
        mine = pool.submit(cpu.complete, **fields).result()
        for other in others:
            other.result()
    assert text_of(mine) == alone[0]


def test_seeds_beyond_64_bit_are_refused(cpu):
    assert refused(cpu, seed=2**64) == "seed"
    assert refused(cpu, seed=-(2**63) - 1) == "seed"


def test_different_seeds_differ_and_greedy_ignores_them(cpu):
    sampled = {text_of(cpu.complete(temperature=1, seed=s, max_tokens=12)) for s in range(4)}
    assert len(sampled) == 4
    assert len({text_of(cpu.complete(seed=s)) for s in range(4)}) == 1


def test_choices_of_one_seed_differ_and_repeat(cpu):
    fields = {"temperature": 1, "seed": 7, "n": 3, "max_tokens": 12}
    texts = texts_of(cpu.complete(**fields))
    assert len(set(texts)) == 3
    assert texts_of(cpu.complete(**fields)) == texts


def test_unseeded_requests_differ(cpu):
    assert len({text_of(cpu.complete(temperature=1, max_tokens=12)) for _ in range(3)}) == 3


def test_sampling_defaults_are_shown(cpu):
    [card] = cpu.get("/v1/models").json["data"]
    assert card["default_sampling_params"]["temperature"] == 1.0
    assert "temperature 1" in cpu.summary


def test_penalties_change_greedy_text(cpu):
    fields = {"max_tokens": 60, "ignore_eos": True}
    plain = text_of(cpu.complete(**fields))
    for penalty in (
        {"repetition_penalty": 1.3},
        {"presence_penalty": 2},
        {"frequency_penalty": 2},
    ):
        assert text_of(cpu.complete(**fields, **penalty)) != plain, penalty
    for off in ({"repetition_penalty": 1}, {"presence_penalty": 0}, {"frequency_penalty": 0}):
        assert text_of(cpu.complete(**fields, **off)) == plain
    assert refused(cpu, repetition_penalty=0) == "repetition_penalty"
    assert refused(cpu, repetition_penalty=-1) == "repetition_penalty"


def test_allowed_token_ids_are_checked_and_honoured(cpu):
    assert refused(cpu, allowed_token_ids=[]) == "allowed_token_ids"
    assert refused(cpu, allowed_token_ids=[388]) == "allowed_token_ids"
    before = text_of(cpu.complete(max_tokens=30))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        neighbour = pool.submit(cpu.complete, max_tokens=30)
        bad = pool.submit(refused, cpu, allowed_token_ids=[5, 2**31 - 1])
        only = pool.submit(cpu.complete, allowed_token_ids=[298], return_token_ids=True)
        assert bad.result() == "allowed_token_ids"
        assert set(only.result()["choices"][0]["token_ids"]) == {298}
        assert text_of(neighbour.result()) == before


def test_top_p_and_min_p_always_leave_one_token(cpu):
    assert refused(cpu, top_p=0) == "top_p"
    greedy = text_of(cpu.complete())
    assert text_of(cpu.complete(temperature=2, min_p=1, seed=1)) == greedy
    assert text_of(cpu.complete(temperature=2, top_p=1e-6, seed=1)) == greedy


def test_min_tokens(cpu):
    only_end = {"allowed_token_ids": [1, 298], "logit_bias": {"1": 50}, "max_tokens": 6}
    assert cpu.complete(**only_end)["usage"]["completion_tokens"] == 1
    assert cpu.complete(**only_end, min_tokens=4)["usage"]["completion_tokens"] == 5
    assert refused(cpu, min_tokens=9, max_tokens=5) == "min_tokens"
