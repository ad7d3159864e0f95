"""`ingle plan` against the engine itself: the same requests on the sim device, in real time."""

import asyncio
import random
import time

import pytest

import ingle
from ingle.plan import simulate
from server.worker import TINY

SLOWDOWN = 4
"""Of device and clients alike, so that what the host takes weighs less."""
NUM_REQUESTS = 150
GAP_S = 0.05
"""Between requests, on average: about three quarters of what the simulated card can do."""


def load():
    """Requests as (seconds, prompt tokens, answer tokens): lengths of chats, random arrivals."""
    chance = random.Random(7)
    at, arrivals = 0.0, []
    for _ in range(NUM_REQUESTS):
        at += chance.expovariate(1 / GAP_S)
        arrivals.append((at, chance.randrange(20, 1600), chance.randrange(20, 200)))
    return arrivals


async def replay(engine, arrivals):
    """Times to first token and mean times per later token, in ms of the modelled card."""
    began = time.perf_counter()
    found = []

    async def one(at, num_prompt, num_answer):
        await asyncio.sleep(began + at * SLOWDOWN - time.perf_counter())
        sent = time.perf_counter()
        params = ingle.SamplingParams(max_tokens=num_answer, ignore_eos=True)
        first, count = None, 0
        async for delta in engine.stream([5] * num_prompt, params):
            count += len(delta.token_ids)
            first = first or time.perf_counter()
        assert count == num_answer
        ended = time.perf_counter()
        scale = 1e3 / SLOWDOWN
        found.append((scale * (first - sent), scale * (ended - first) / (num_answer - 1)))

    await asyncio.gather(*(one(*arrival) for arrival in arrivals))
    return found


@pytest.mark.long
def test_a_plan_is_within_a_tenth_of_a_run_on_the_sim_device():
    arrivals = load()
    planned = simulate(
        arrivals,
        workers=1,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        max_model_len=2048,
        attainment=1.0,
        seed=1,
    )["report"]
    with ingle.Engine(
        str(TINY),
        device="sim",
        sim_speed=str(1 / SLOWDOWN),
        enable_prefix_caching=False,
    ) as engine:
        found = asyncio.run(replay(engine, arrivals))
    for place, name in enumerate(("ttft_ms", "tpot_ms")):
        values = sorted(each[place] for each in found)
        mean = sum(values) / len(values)
        assert mean == pytest.approx(planned[name]["mean"], rel=0.1), (name, values)
        assert values[len(values) // 2] == pytest.approx(planned[name]["p50"], rel=0.1), name
