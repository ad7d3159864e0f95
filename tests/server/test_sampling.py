"""Sampling numbers on both endpoints, plain and streamed."""

import concurrent.futures
import json

import pytest

from server.reciter import Recital
from server.twice import ASKED, PATHS, both, refused_bytes_twice, refused_twice
from server.worker import Worker, joined, whole

BODY = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
LIKES_A, LIKES_B = "\2", "\3"


@pytest.fixture(params=PATHS)
def ask(request, cpu):
    return getattr(cpu, request.param)


def ids_of(ask, *arguments, **fields):
    """The token ids of each choice, found by both ways."""
    answer = both(ask, *arguments, return_token_ids=True, **fields)
    return [choice["token_ids"] for choice in answer["choices"]]


@pytest.fixture
def refused(ask, cpu):
    """The field that a refusal names, on the endpoint of `ask`."""
    name, key = ("chat", "messages") if ask == cpu.chat else ("complete", "prompt")

    def refuse(**fields):
        return refused_twice(cpu, PATHS[name], **{key: BODY[key]}, **fields)["param"]

    return refuse


def test_logit_bias_holds_for_every_choice(ask):
    for temperature in (0, 1):
        fields = {"temperature": temperature, "seed": 3}
        liked = ids_of(ask, **fields, logit_bias={"298": 100}, n=3)
        assert liked == [[298] * 8] * 3
        assert ids_of(ask, **fields, logit_bias={"298": 100}, max_tokens=1) == [[298]]
        free = ids_of(ask, **fields, n=3, max_tokens=30)
        banned = {token for ids in free for token in ids[:3]}
        bias = {str(token): -100 for token in banned}
        held = ids_of(ask, **fields, n=3, max_tokens=30, logit_bias=bias)
        assert not banned & {token for ids in held for token in ids}


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


def test_zero_is_a_value_and_not_absent(ask):
    greedy = ids_of(ask, max_tokens=12)
    zeros = {"temperature": 0, "top_k": 0, "seed": 0, "presence_penalty": 0, "min_p": 0}
    assert ids_of(ask, max_tokens=12, **zeros) == greedy
    assert ids_of(ask, max_tokens=12, temperature=0.0) == greedy
    # Unless it is a seed too, the two ways would differ.
    sampled = ids_of(ask, max_tokens=12, temperature=1, seed=0)
    assert sampled == ids_of(ask, max_tokens=12, temperature=1, seed=0)
    assert sampled != greedy


def test_top_k_limits_and_its_off_values_are_off(ask, refused):
    fields = {"temperature": 1, "seed": 5}
    free = ids_of(ask, **fields)
    for off in (-1, 0, 388, 100_000, None):
        assert ids_of(ask, **fields, top_k=off) == free
    greedy = ids_of(ask)
    assert ids_of(ask, **fields, top_k=1) == greedy != free
    assert refused(top_k=-5) == refused(top_k=-2) == refused(top_k=1.5) == "top_k"


@pytest.mark.parametrize("seed", [0, -1, 7, 2**63 - 1, -(2**63)])
def test_same_seed_same_text_alone_and_in_company(ask, cpu, seed):
    fields = {"temperature": 1, "seed": seed, "max_tokens": 12}
    alone = both(ask, **fields)
    assert all(both(ask, **fields)["choices"] == alone["choices"] for _ in range(4))
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        others = [
            pool.submit(cpu.complete, f"no. {i}", temperature=1, max_tokens=20 + i, stream=i > 3)
            for i in range(7)
        ]
        mine = [pool.submit(ask, **fields, stream=stream) for stream in (False, True)]
        assert whole(mine[0].result()) == joined(mine[1].result()) == whole(alone)
        for other in others:
            other.result()


def test_seeds_beyond_64_bit_are_refused(refused):
    assert refused(seed=2**64) == refused(seed=2**63) == refused(seed=-(2**63) - 1) == "seed"
    assert refused(seed=1.5) == refused(seed="7") == "seed"


def test_seeds_change_samples_and_nothing_greedy(ask):
    sampled = {tuple(ids_of(ask, temperature=1, seed=s, max_tokens=12)[0]) for s in (0, 1, -1)}
    assert len(sampled) == 3
    assert len({tuple(ids_of(ask, seed=seed)[0]) for seed in (0, 1, -1)}) == 1


def test_choices_of_one_seed_differ_and_repeat(ask):
    fields = {"temperature": 1, "seed": 7, "max_tokens": 12}
    three = ids_of(ask, **fields, n=3)
    assert len(set(map(tuple, three))) == 3
    assert ids_of(ask, **fields, n=3) == three
    assert ids_of(ask, **fields, n=2) == three[:2], "a choice does not know how many there are"
    assert ids_of(ask, **fields) == three[:1]


def test_unseeded_requests_differ(ask):
    found = [whole(ask(temperature=1, max_tokens=12))[0][0] for _ in range(3)]
    assert len(set(found)) == 3


def test_min_tokens_keep_an_answer_from_ending(ask, refused):
    only_end = {"allowed_token_ids": [1, 298], "logit_bias": {"1": 50}, "max_tokens": 6}
    assert both(ask, **only_end)["usage"]["completion_tokens"] == 1
    assert both(ask, **only_end, min_tokens=4)["usage"]["completion_tokens"] == 5
    assert refused(min_tokens=9, max_tokens=5) == "min_tokens"


def test_penalties_change_greedy_text(ask, refused):
    fields = {"max_tokens": 60, "ignore_eos": True}
    plain = ids_of(ask, **fields)
    for penalty in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        assert ids_of(ask, **fields, **{penalty: 1.5}) != plain, penalty
        off = 1 if penalty == "repetition_penalty" else 0
        assert ids_of(ask, **fields, **{penalty: off}) == plain
    assert refused(repetition_penalty=0) == refused(repetition_penalty=-1) == "repetition_penalty"
    assert refused(presence_penalty=2.1) == "presence_penalty"
    assert refused(frequency_penalty=-2.1) == "frequency_penalty"


@pytest.fixture(scope="module")
def two_letters(tmp_path_factory):
    """A model that says A or B: after A or B, A has the logit 10, B has 9."""
    recital = Recital()
    for before in (b"A", b"B", LIKES_A.encode()):
        recital.prefer(before, b"A", 10)
        recital.prefer(before, b"B", 9)
    folder = recital.save(tmp_path_factory.mktemp("letters"))
    with Worker("--device", "cpu", model=folder) as worker:
        yield worker
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("cue", ["", "A", "AAAA", "BA", "AB" * 20])
@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        ({}, "AAAAAA"),
        # 10, then 9 - 0.6 - ... A: 10, 8 | B: 9, 7 | again A, since both have been said.
        ({"presence_penalty": 2}, "ABAAAA"),
        # A: 10, 9.4, 8.8 | B: 9, 8.4 | A: 8.8 > 8.4, 8.2 | B: 8.4.
        ({"frequency_penalty": 0.6}, "AABAB" + "A"),
        # Below 0 it draws on: nothing but A.
        ({"presence_penalty": -2, "frequency_penalty": -2}, "AAAAAA"),
    ],
)
def test_presence_and_frequency_penalties_count_the_answer_not_the_prompt(
    two_letters, name, cue, penalty, expected
):
    answer = both(getattr(two_letters, name), cue + "A", max_tokens=6, **penalty)
    assert [text for text, _ in whole(answer).values()] == [expected]


@pytest.mark.parametrize("name", PATHS)
def test_repetition_penalty_counts_the_prompt_too(two_letters, name):
    # 10 / 1.2 = 8.3 is less than 9; with both in the prompt the larger stays the larger.
    for prompt, expected in {LIKES_A: "AB", "A": "BA", "B": "AA", "AB": "AA"}.items():
        answer = both(getattr(two_letters, name), prompt, max_tokens=2, repetition_penalty=1.2)
        assert whole(answer)[0][0] == expected, prompt


PENALTIES = [
    {"frequency_penalty": 0.7},
    {"presence_penalty": 1.5},
    {"repetition_penalty": 1.4},
    {"frequency_penalty": 0.4, "presence_penalty": 0.3, "temperature": 1, "seed": 4},
]


def penalised(*arguments):
    """Four answers at once under each penalty; and how often one was preempted."""
    prompts = [f"prompt {i}" for i in range(4)]
    common = {"max_tokens": 180, "ignore_eos": True}
    with Worker("--device", "cpu", *arguments) as worker:
        answers = [both(worker.complete, prompts, **common, **each) for each in PENALTIES]
        count = worker.metric("vllm:num_preemptions_total")
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()
    return [answer["choices"] for answer in answers], count


def test_preemption_forgets_no_penalty():
    undisturbed, none = penalised()
    # 16 blocks of 16 tokens for four answers of 12 blocks each.
    disturbed, some = penalised("--kv-cache-memory-bytes", 262144)
    assert none == 0
    assert some >= 2 * len(PENALTIES), "each time, plain and streamed"
    assert disturbed == undisturbed


def test_allowed_token_ids_and_bad_words_are_checked_and_honoured(cpu, ask, refused):
    steady = {"max_tokens": 40, "ignore_eos": True}
    before = both(cpu.complete, "steady", **steady)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        plain = pool.submit(cpu.complete, "steady", **steady)
        streamed = pool.submit(cpu.complete, "steady", **steady, stream=True)
        for value in ([], [388], [5, 2**31 - 1], [-1], ["5"], 5):
            assert refused(allowed_token_ids=value).startswith("allowed_token_ids")
        for value in ([""], ["x" * 300], [5], ["a"] * 200):
            assert refused(bad_words=value).startswith("bad_words")
        assert ids_of(ask, allowed_token_ids=[298, 298]) == [[298] * 8]
        # " b" is a token of its own, 298; there are others that contain it.
        for fields in ({"logit_bias": {"298": 20}}, {"logit_bias": {"298": 20}, "n": 2}):
            free = both(ask, **fields)
            assert all(" b" in text for text, _ in whole(free).values())
            bound = both(ask, **fields, bad_words=[" b"])
            assert not any(" b" in text for text, _ in whole(bound).values())
        assert whole(plain.result()) == joined(streamed.result()) == whole(before)


def test_top_p_and_min_p_always_leave_one_token(ask, refused):
    assert refused(top_p=0) == refused(top_p=-0.1) == refused(top_p=1.01) == "top_p"
    assert refused(min_p=1.01) == refused(min_p=-0.1) == "min_p"
    greedy = ids_of(ask)
    for fields in (
        {"min_p": 1},
        {"top_p": 1e-6},
        {"top_p": 1e-30},
        {"min_p": 1, "top_p": 1e-9},
        {"min_p": 1, "top_p": 1e-9, "top_k": 1},
    ):
        assert ids_of(ask, temperature=2, seed=1, **fields) == greedy


def test_any_top_p_above_zero_is_served(ask):
    assert ids_of(ask, temperature=2, seed=1, top_p=1e-300) == ids_of(ask)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of A and B whose generation_config.json differs from OpenAI's defaults."""
    recital = Recital()
    for after, logit in ((b"A", 21), (b"B", 20), (b"C", 17)):
        for before in (b"A", b"B", b"C", b"x"):
            recital.prefer(before, after, logit)
    generation = {"temperature": 0.5, "top_k": 2, "top_p": 0.95, "repetition_penalty": 1.01}
    return recital.save(tmp_path_factory.mktemp("defaults"), do_sample=True, **generation)


THEIRS = {"temperature": 0.5, "top_k": 2, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.01}
OURS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


@pytest.mark.parametrize(
    ("arguments", "defaults", "others"),
    [((), THEIRS, OURS), (("--generation-config", "none"), OURS, THEIRS)],
    ids=["auto", "none"],
)
def test_sampling_defaults_are_those_that_are_shown(folder, arguments, defaults, others):
    with Worker("--device", "cpu", *arguments, model=folder) as worker:
        [card] = worker.get("/v1/models").json["data"]
        assert card["default_sampling_params"] == pytest.approx(defaults)
        shown = worker.summary.replace("\n", " ")
        assert f"temperature {defaults['temperature']:g}, top_k {defaults['top_k']}" in shown
        fields = {"seed": 11, "max_tokens": 30, "n": 4, "ignore_eos": True}
        for ask in (worker.complete, worker.chat):
            unsaid = ids_of(ask, "x", **fields, temperature=None)
            assert unsaid == ids_of(ask, "x", **fields, **defaults)
            assert unsaid != ids_of(ask, "x", **fields, **others)
            # Each field alone is the default's, unless it is said; zero is said.
            for name, value in others.items():
                said = ids_of(ask, "x", **fields, **{"temperature": None, name: value})
                assert said == ids_of(ask, "x", **fields, **defaults | {name: value})
            cold = ids_of(ask, "x", **fields, temperature=0, repetition_penalty=1)
            assert len(set(map(tuple, cold))) == len(set(cold[0])) == 1
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()


@pytest.mark.parametrize("default", [0, 1])
def test_top_k_zero_is_off_in_requests_and_in_defaults(tmp_path, default):
    recital = Recital()
    recital.prefer(b"x", b"A", 5)
    model = recital.save(tmp_path / "model", top_k=default, temperature=1.0, top_p=1.0)
    with Worker("--device", "cpu", model=model) as worker:
        for ask in (worker.complete, worker.chat):
            fields = {"n": 4, "temperature": 1, "seed": 1}
            kinds = {
                said: len(set(map(tuple, ids_of(ask, "x", **fields, top_k=said))))
                for said in (None, 0, -1, 1)
            }
            assert kinds == {None: 1 if default else 4, 0: 4, -1: 4, 1: 1}
        worker.wait_until_idle()
        assert worker.stop() == 0, worker.errors()
