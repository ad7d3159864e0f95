"""Who may take memory while there is little of it."""

import asyncio

import pytest

from ingle.errors import OverloadedError
from ingle.server.headroom import CALLS_A_LOOK, Headroom
from ingle.server.turns import Turns

MIB = 1 << 20


class Machine:
    """Memory that a test takes and gives back."""

    def __init__(self, left, idle=0):
        self.left, self.idle = left, idle
        self.num_looks = self.num_given_back = 0

    def room(self, enough):
        self.num_looks += 1
        return self.left

    def give_back(self):
        self.num_given_back += 1
        self.left, self.idle = self.left + self.idle, 0


def held(room, num_mib):
    """Reserves and gives back."""
    with room.reserve("a", num_mib * MIB):
        pass


def headroom(machine):
    return Headroom(machine.room, machine.give_back)


def test_a_reservation_counts_until_its_block_ends():
    room = headroom(Machine(100 * MIB))
    with room.reserve("a", 60 * MIB):
        with pytest.raises(OverloadedError, match="may take 30 MiB of memory, 24 MiB are left"):
            held(room, 30)
        with room.reserve("a", 20 * MIB) as more:
            with pytest.raises(OverloadedError):
                more(5 * MIB)
            more(4 * MIB)
    with room.reserve("a", 84 * MIB):
        pass


def test_what_the_allocator_keeps_is_given_back_before_anything_is_refused():
    machine = Machine(100 * MIB)
    room = headroom(machine)
    machine.left, machine.idle = 20 * MIB, 50 * MIB
    with room.reserve("a", 30 * MIB):
        assert machine.left == 70 * MIB


def test_refusals_do_not_walk_the_heap_each_time():
    machine = Machine(100 * MIB)
    room = headroom(machine)
    for _ in range(50):
        with pytest.raises(OverloadedError):
            held(room, 200)
    assert machine.num_given_back <= 2


def test_small_requests_are_refused_only_while_next_to_nothing_is_left():
    machine = Machine(100 * MIB)
    room = headroom(machine)
    room.refuse_if_short()
    machine.left = 10 * MIB
    while room.looks_in:
        room.refuse_if_short()
    with pytest.raises(OverloadedError) as refused:
        room.refuse_if_short()
    assert refused.value.status == 503
    # While it is short, each request looks.
    machine.left = 30 * MIB
    room.refuse_if_short()
    num_looks = machine.num_looks
    for _ in range(CALLS_A_LOOK):
        room.refuse_if_short()
    assert machine.num_looks == num_looks


def test_a_worker_that_starts_with_little_answers_small_requests():
    room = headroom(Machine(8 * MIB))
    room.refuse_if_short()
    with pytest.raises(OverloadedError):
        held(room, 7)


async def test_work_keeps_its_memory_when_its_caller_leaves():
    machine = Machine(100 * MIB)
    room = headroom(machine)
    turns = Turns(room, 1)
    go_on, begun = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work():
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)

    caller = asyncio.create_task(turns.run("a", 80 * MIB, work))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    with pytest.raises(OverloadedError):
        held(room, 10)
    go_on.set()
    # The one thread is free again when the first work has ended.
    await turns.run("a", 0, lambda: None)
    held(room, 80)
    # Refused work gives its turn back.
    with pytest.raises(OverloadedError):
        await turns.run("a", 90 * MIB, work)
    assert not turns._running
    turns.close()


def test_one_of_several_tenants_gets_half_at_most():
    room = headroom(Machine(116 * MIB))
    # Alone it gets all but what is kept free.
    with room.reserve("a", 100 * MIB):
        pass
    with room.reserve("b", 10 * MIB):
        with pytest.raises(OverloadedError, match="may take 60 MiB of memory, 50 MiB are left"):
            held(room, 60)
        with room.reserve("a", 45 * MIB), room.reserve("b", 40 * MIB):
            pass
