"""Sums and gathers over ranks (ranks.cu): N ranks on one GPU, each with its stream and region.

Blocks of several ranks wait for each other here on the same multiprocessors. A launch has at most
a part of them, so that all ranks' blocks are resident together. Nothing is allocated or loaded
between the launches of two ranks: that may wait for the whole GPU.
"""

import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from contract import CONSTANTS
from device import U64, Kernels, relative_error

DTYPES = {"bf16": (torch.bfloat16, 0, 3e-3), "f16": (torch.float16, 1, 4e-4)}
GRID, FLAGS, MOST_ROWS = (CONSTANTS[f"EXCHANGE_{name}"] for name in ("GRID", "FLAGS", "ROWS"))
EPS = 1e-5


class Group:
    """Ranks with their regions, as rust/cuda/src/exchange.rs lays them out."""

    def __init__(self, ranks, hidden, vocab=0, logit_rows=0, name="bf16", exact=True):
        self.ranks, self.hidden, self.vocab, self.name = ranks, hidden, vocab, name
        self.logit_rows = logit_rows
        _, flag, _ = DTYPES[name]
        dims = {"hidden_size": hidden, "vocab_size": vocab}
        self.kernels = Kernels("ranks", dims, exact, ACT_DTYPE=flag)
        inbox_at = FLAGS * ranks * GRID * 8
        self.logits_at = inbox_at + 2 * ranks * MOST_ROWS * hidden * 4
        size = self.logits_at + logit_rows * vocab * 4
        self.memory = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(ranks)]
        addresses = torch.tensor([m.data_ptr() for m in self.memory], device="cuda")
        self.regions = [addresses.clone() for _ in range(ranks)]
        self.control = [torch.zeros(4, dtype=torch.int32, device="cuda") for _ in range(ranks)]
        self.fault = torch.zeros(2, dtype=torch.int32).pin_memory()
        self.streams = [torch.cuda.Stream() for _ in range(ranks)]
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.grid = max(sms // (2 * ranks), 1)
        self._load_kernels()

    def _load_kernels(self):
        """A kernel's first launch loads it, which waits for the GPU: none may be waiting then."""
        alone = CONSTANTS["CONTROL_ALONE"]
        self.control[0][alone] = 1
        row, residual = (torch.zeros(1, self.hidden, device="cuda") for _ in range(2))
        local = torch.zeros(1, self.vocab, device="cuda") if self.logit_rows else None
        torch.cuda.synchronize()
        self.reduce(0, row, residual)
        if local is not None:
            self.gather(0, local, 0, self.vocab)
        torch.cuda.synchronize()
        self.control[0][alone] = 0
        torch.cuda.synchronize()

    def head(self, rank):
        return (self.regions[rank], self.control[rank], self.fault, rank, self.ranks)

    def reduce(self, rank, partial, residual, out=None, bias=None, post_norm=None, norm=None):
        block = min(max(-(-self.hidden // 128) * 32, 32), 1024)
        rows = len(partial)
        with torch.cuda.stream(self.streams[rank]):
            self.kernels.launch(
                f"ranks_reduce_{self.name}_sm80", min(rows, self.grid), block, *self.head(rank),
                rows, partial, bias, post_norm, residual, norm, out, EPS, pdl=True,
            )  # fmt: skip

    def gather(self, rank, local, first, most_columns):
        rows, columns = local.shape
        grid = min(rows * -(-most_columns // CONSTANTS["GATHER_COLUMNS"]), self.grid)
        with torch.cuda.stream(self.streams[rank]):
            self.kernels.launch(
                "ranks_gather_f32_sm80", grid, 512, *self.head(rank), rows, U64(self.logits_at),
                first, columns, local, pdl=True,
            )  # fmt: skip

    def logits(self, rank, rows):
        part = self.memory[rank][self.logits_at :][: rows * self.vocab * 4]
        return part.view(torch.float32).view(rows, self.vocab)


def in_rank_order(partials):
    total = partials[0].clone()
    for partial in partials[1:]:
        total += partial
    return total


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("hidden", [64, 2880, 4096, 8192])
def test_sums_are_in_rank_order_and_equal_on_all_ranks(name, ranks, hidden):
    dtype, _, tolerance = DTYPES[name]
    group = Group(ranks, hidden, name=name, exact=hidden != 64)
    bias, post_norm, norm = (torch.rand(hidden, device="cuda") + 0.5 for _ in range(3))
    for rows in (1, 3, 64, MOST_ROWS):
        partials = [torch.randn(rows, hidden, device="cuda") for _ in range(ranks)]
        start = torch.randn(rows, hidden, device="cuda")
        total = in_rank_order(partials)
        for options in (
            {},
            {"bias": bias},
            {"norm": norm},
            {"bias": bias, "post_norm": post_norm, "norm": norm},
        ):
            residuals = [start.clone() for _ in range(ranks)]
            outs = [torch.zeros(rows, hidden, device="cuda", dtype=dtype) for _ in range(ranks)]
            torch.cuda.synchronize()
            for rank in range(ranks):
                group.reduce(rank, partials[rank], residuals[rank], outs[rank], **options)
            torch.cuda.synchronize()
            for rank in range(1, ranks):
                assert torch.equal(residuals[rank], residuals[0]), (rows, options.keys())
                assert torch.equal(outs[rank], outs[0]), (rows, options.keys())
            gained = total + bias if "bias" in options else total
            if "post_norm" in options:
                scale = (gained.double().square().mean(1, keepdim=True) + EPS).rsqrt()
                expected = start.double() + gained.double() * scale * post_norm.double()
                assert relative_error(residuals[0], expected) < 2e-6
            else:
                assert torch.equal(residuals[0], start + gained), (rows, options.keys())
            if "norm" in options:
                x = residuals[0].double()
                expected = x * (x.square().mean(1, keepdim=True) + EPS).rsqrt() * norm.double()
                assert relative_error(outs[0], expected) < tolerance


@pytest.mark.parametrize("ranks", [2, 4])
def test_exchanges_queued_behind_each_other_keep_apart(ranks):
    """Other sizes each time, pauses at any place, no wait of the host."""
    hidden, vocab = 1024, 640
    group = Group(ranks, hidden, vocab, 8)
    choose = random.Random(7)
    residuals = [torch.zeros(64, hidden, device="cuda") for _ in range(ranks)]
    expected = torch.zeros(64, hidden, device="cuda")
    kept, gathered = [], []
    for stream in group.streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1)
            residuals[0][:1].copy_(expected[:1])
            torch.zeros(4, vocab, device="cuda").copy_(group.logits(0, 4))
    torch.cuda.synchronize()
    for turn in range(120):
        rows = choose.choice([1, 2, 7, 64])
        partials = [torch.randn(rows, hidden, device="cuda") for _ in range(ranks)]
        expected[:rows] += in_rank_order(partials)
        columns = vocab // ranks
        # Two gathers in a row, without a sum between them.
        rounds = [
            (
                [torch.randn(4, columns, device="cuda") for _ in range(ranks)],
                [torch.zeros(4, vocab, device="cuda") for _ in range(ranks)],
            )
            for _ in range(2 if turn % 3 == 0 else 0)
        ]
        kept.append(partials)
        gathered += rounds
        torch.cuda.current_stream().synchronize()
        for rank in range(ranks):
            with torch.cuda.stream(group.streams[rank]):
                if choose.random() < 0.3:
                    torch.cuda._sleep(choose.randrange(1_000_000))
                group.reduce(rank, partials[rank], residuals[rank])
                for local, copies in rounds:
                    group.gather(rank, local[rank], rank * columns, columns)
                    copies[rank].copy_(group.logits(rank, 4))
    torch.cuda.synchronize()
    for rank in range(ranks):
        assert torch.equal(residuals[rank], expected), rank
    for local, copies in gathered:
        for copy in copies:
            assert torch.equal(copy, torch.cat(local, 1))


def test_uneven_columns_are_put_together():
    vocab, parts = 300, [(0, 128), (128, 128), (256, 44)]
    group = Group(3, 64, vocab, 5)
    full = torch.randn(5, vocab, device="cuda")
    locals_ = [full[:, start : start + count].contiguous() for start, count in parts]
    torch.cuda.synchronize()
    for rank, (start, _) in enumerate(parts):
        group.gather(rank, locals_[rank], start, 128)
    torch.cuda.synchronize()
    for rank in range(3):
        assert torch.equal(group.logits(rank, 5), full)


def test_replayed_graphs_exchange_anew():
    ranks, hidden = 2, 2048
    group = Group(ranks, hidden)
    partials = [torch.randn(4, hidden, device="cuda") for _ in range(ranks)]
    residuals = [torch.zeros(4, hidden, device="cuda") for _ in range(ranks)]
    graphs = []
    for rank in range(ranks):
        # The first launch loads the kernel, which may wait for the whole GPU.
        group.control[rank][CONSTANTS["CONTROL_ALONE"]] = 1
        torch.cuda.synchronize()
        group.reduce(rank, partials[rank], residuals[rank])
        torch.cuda.synchronize()
        group.control[rank].zero_()
        residuals[rank].zero_()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=group.streams[rank]):
            for _ in range(5):
                group.reduce(rank, partials[rank], residuals[rank])
        graphs.append(graph)
    for _ in range(50):
        for rank in range(ranks):
            with torch.cuda.stream(group.streams[rank]):
                graphs[rank].replay()
    torch.cuda.synchronize()
    expected, total = torch.zeros(4, hidden, device="cuda"), in_rank_order(partials)
    for _ in range(250):
        expected += total
    for rank in range(ranks):
        assert torch.equal(residuals[rank], expected)


def test_a_rank_that_is_alone_takes_its_own_part():
    group = Group(2, 128, 256, 2)
    group.control[1][CONSTANTS["CONTROL_ALONE"]] = 1
    partial, residual = (torch.randn(3, 128, device="cuda") for _ in range(2))
    expected = residual + partial
    local = torch.randn(2, 128, device="cuda")
    torch.cuda.synchronize()
    group.reduce(1, partial, residual)
    group.gather(1, local, 128, 128)
    torch.cuda.synchronize()
    assert torch.equal(residual, expected)
    assert torch.equal(group.logits(1, 2)[:, 128:], local)


@pytest.mark.parametrize("aborted", [False, True])
def test_a_missing_rank_ends_the_wait_and_is_named(aborted):
    """A trap ends the process's use of the GPU, so it happens in another one."""
    program = f"""
        import time, torch
        from test_ranks import Group
        group = Group(2, 128)
        partial, residual = (torch.zeros(1, 128, device="cuda") for _ in range(2))
        torch.cuda.synchronize()
        group.reduce(0, partial, residual)
        start = time.monotonic()
        group.fault[0] = {int(aborted)}
        try:
            torch.cuda.synchronize()
        except Exception as error:
            print("FAULT", int(group.fault[1]), round(time.monotonic() - start, 2), flush=True)
        import os
        os._exit(0)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    words = [line.split() for line in ran.stdout.splitlines() if line.startswith("FAULT")]
    assert words, ran.stdout + ran.stderr
    (_, named, seconds) = words[0]
    assert (int(named), float(seconds) < (1 if aborted else 12)) == (0 if aborted else 2, True)
