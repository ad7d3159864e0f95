"""Gated delta nets, the output gate and the score of a shared network against float64."""

import numpy as np
import pytest
import torch
from contract import CONSTANTS, FORMULAS, words_of
from delta_net import Kept, Net, Weights, advance
from device import U64, Kernels, poison, relative_error, u32

DTYPES = {"bf16": (torch.bfloat16, 0, 1e-2), "f16": (torch.float16, 1, 2e-3)}
NETS = [
    Net(1, 2, 128, 128),
    Net(16, 48, 128, 128),
    Net(2, 2, 64, 32),
    Net(2, 4, 32, 64),
    Net(1, 3, 256, 256),
    Net(2, 4, 32, 32, kernel=2),
]
SLOTS = 6
PADDING = 3
PLACE_PAD, LAYER_AT = 1024, 512  # bytes of other layers in a place

# slot, start, tokens, ends of copies; one begins while the convolution still sees what was before.
ROWS = [
    (2, 7, 1, []),
    (0, 0, 37, [8, 16, 37]),
    (3, 5, 6, [6, 9, 11]),
    (1, 1, 2, [2]),
    (4, 2, 1, [3]),
]

# Prompts of more than a chunk, whole chunks, copies within chunks and at their ends; rows that stay
# token by token.
LONG_ROWS = [
    (2, 7, 1, []),
    (0, 0, 150, [64, 100, 150]),
    (3, 5, 70, [6, 75]),
    (1, 0, 64, []),
    (4, 2, 128, [66, 130]),
    (5, 0, 63, [63]),
]


class Layer:
    """One layer's weights and memory on the device, and a step's inputs."""

    def __init__(self, net: Net, name: str, rows=ROWS, joined: bool = False, chunks: bool = False):
        self.net, self.rows, self.chunks = net, rows, chunks
        self.dtype, flag, self.tolerance = DTYPES[name]
        torch.manual_seed(7)
        heads, width = net.value_heads, net.channels
        sizes = {"KEY_DIM": net.key_dim, "VALUE_DIM": net.value_dim, "CONV_KERNEL": net.kernel}
        self.kernels = Kernels("delta_net", {}, ACT_DTYPE=flag, **sizes)
        self.long_kernels = Kernels("delta_chunks", {}, ACT_DTYPE=flag, **sizes)
        self.name = name
        self.tokens = sum(row[2] for row in rows)
        padded = self.tokens + PADDING
        columns = width + net.values + (2 * heads if joined else 0)
        self.projected = torch.randn(padded, columns, device="cuda").to(self.dtype)
        self.scores = torch.randn(padded, 2 * heads, device="cuda")
        if joined:
            self.scores = self.projected[:, width + net.values :].float()
        self.conv = torch.randn(width, net.kernel, device="cuda") * 0.5
        self.log_rate = torch.randn(heads, device="cuda") * 0.5 - 1
        self.decay_bias = torch.randn(heads, device="cuda") * 0.2
        self.norm = 1 + 0.2 * torch.randn(net.value_dim, device="cuda")
        self.state_bytes = net.values * net.key_dim * 4
        inputs = (net.kernel - 1) * width * 2
        self.stride = -(-(self.state_bytes + inputs) // 256) * 256 + PLACE_PAD
        places = SLOTS + sum(len(row[3]) for row in rows)
        self.memory = torch.full((places, self.stride), 0xAB, dtype=torch.uint8, device="cuda")
        for slot, start, *_ in rows:
            self.state(slot).copy_(torch.randn_like(self.state(slot)) * 0.3)
            self.inputs(slot).normal_()
            self.inputs(slot)[: max(net.kernel - 1 - start, 0)] = 0
        self.mixed = poison(padded, width, dtype=self.dtype)
        self.factors = poison(padded, 2 * heads, dtype=torch.float32)
        self.dots = poison(padded, net.key_heads, dtype=torch.float32)
        self.read = poison(padded, net.values, dtype=torch.float32)
        self.gated = poison(padded, net.values, dtype=self.dtype)

    def state(self, place: int) -> torch.Tensor:
        part = self.memory[place, LAYER_AT : LAYER_AT + self.state_bytes].view(torch.float32)
        return part.view(self.net.value_heads, self.net.value_dim, self.net.key_dim)

    def inputs(self, place: int) -> torch.Tensor:
        at, rows = LAYER_AT + self.state_bytes, self.net.kernel - 1
        part = self.memory[place, at : at + rows * self.net.channels * 2].view(self.dtype)
        return part.view(rows, self.net.channels)

    def kept(self, place: int) -> Kept:
        return Kept(numbers(self.inputs(place)), numbers(self.state(place)))

    def places(self) -> list[tuple[int, int, int]]:
        """Slot, end and place of each copy."""
        ends = [(slot, end) for slot, _, _, ends in self.rows for end in ends]
        return [(slot, end, SLOTS + index) for index, (slot, end) in enumerate(ends)]

    def step(self) -> torch.Tensor:
        words, saves, first = [], [], 0
        copies = iter(self.places())
        for slot, start, tokens, ends in self.rows:
            words += words_of(
                "StepRow",
                slot=slot,
                start=start,
                num_tokens=tokens,
                first_token=first,
                first_save=len(saves) // 2,
                num_saves=len(ends),
            )
            for _ in ends:
                _, end, place = next(copies)
                saves += words_of("StateSave", end=end, place=place)
            first += tokens
        head = len(words_of("StepHeader"))
        header = {"num_rows": len(self.rows), "num_tokens": first, "rows_at": head}
        return u32(words_of("StepHeader", saves_at=head + len(words), **header) + words + saves)

    def run(self, pdl: bool = False) -> None:
        net = self.net
        slots, positions = [], []
        for slot, start, tokens, _ in self.rows:
            slots += [slot] * tokens
            positions += range(start, start + tokens)
        slots = u32(slots + [CONSTANTS["NONE"]] * PADDING)
        positions = u32(positions + [0] * PADDING)
        place, heads = self.place_and_heads()
        scores = self.scores if self.projected.shape[1] == net.channels + net.values else None
        padded = self.tokens + PADDING
        launch, end = self.kernels.launch, f"{self.name}_sm80"
        vectors = (self.conv, self.log_rate, self.decay_bias)
        mixed = (self.mixed, self.factors, self.dots)
        grid = (padded, -(-(net.key_heads + net.value_heads) // 8))
        inputs = (self.projected, scores, *vectors, positions, slots, *place)
        launch(f"delta_conv_{end}", grid, 256, *inputs, *heads, *mixed, pdl=pdl)
        self.rule(self.step(), pdl)
        grid = (padded, -(-net.value_heads // 8))
        inputs = (self.projected, self.read, self.norm, slots)
        launch(f"delta_norm_{end}", grid, 256, *inputs, *heads, self.gated, 1e-6, pdl=pdl)
        torch.cuda.synchronize()

    def place_and_heads(self) -> tuple[tuple, tuple]:
        place = (U64(self.memory.data_ptr()), U64(self.stride), U64(LAYER_AT))
        return place, (self.net.key_heads, self.net.value_heads, self.projected.shape[1])

    def rule(self, step: torch.Tensor, pdl: bool = False) -> None:
        """The delta rule of all rows."""
        place, heads = self.place_and_heads()
        # More blocks than rows, as a padded step has them.
        grid = (self.net.values // CONSTANTS["DELTA_COLUMNS"], len(self.rows) + 2)
        least = CONSTANTS["DELTA_CHUNK" if self.chunks else "NONE"]
        inputs = (step, self.projected, self.mixed, self.factors, self.dots, *place, *heads)
        entry = f"delta_rule_{self.name}_sm80"
        self.kernels.launch(entry, grid, 256, *inputs, least, self.read, pdl=pdl)
        if self.chunks:
            inputs = (step, self.projected, self.mixed, self.factors, *place, *heads)
            smem = FORMULAS["delta_chunk_bytes"](self.net.key_dim)
            entry = f"delta_chunks_{self.name}_sm80"
            launch = self.long_kernels.launch
            launch(entry, grid, 256, *inputs, least, self.read, smem=smem, pdl=pdl)


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy()


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("net", NETS, ids=str)
def test_a_step_is_near_float64_and_keeps_what_follows_need(net, joined, name):
    """Prompts, chunks and decoding rows in one step, copies of their states, padding."""
    if joined and net.value_heads % 4:
        pytest.skip("rows would not be aligned")
    check(Layer(net, name, joined=joined))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("net", [net for net in NETS if net.key_dim <= 128], ids=str)
def test_long_rows_in_chunks_are_near_float64_and_keep_what_follows_needs(net, name):
    check(Layer(net, name, LONG_ROWS, chunks=True))


@pytest.mark.parametrize("net", NETS[:2], ids=str)
def test_chunks_say_what_token_by_token_says_of_a_prompt(net):
    """With decays from 1 to 0, so that a state lasts or is erased within a chunk."""
    layers = [Layer(net, "bf16", [(1, 0, 1000, [])], chunks=chunks) for chunks in (True, False)]
    for layer in layers:
        layer.log_rate.copy_(torch.linspace(-8, 6, net.value_heads))
        layer.run()
    chunked, whole = layers
    assert relative_error(chunked.read[:1000], whole.read[:1000]) < 2e-3
    assert relative_error(chunked.state(1), whole.state(1)) < 2e-3


def check(layer: Layer) -> None:
    net = layer.net
    weights = Weights(*map(numbers, (layer.conv, layer.log_rate, layer.decay_bias, layer.norm)))
    before = {slot: layer.kept(slot) for slot, *_ in layer.rows}
    untouched = layer.memory.clone()
    layer.run(pdl=True)
    first, copies = 0, layer.places()
    for slot, start, tokens, _ in layer.rows:
        kept = before[slot] if start > 0 else Kept.empty(net)
        rows = slice(first, first + tokens)
        projected = layer.projected[rows, : net.channels + net.values]
        inputs = (numbers(projected), numbers(layer.scores[rows]))
        results, after = advance(net, weights, kept, *inputs)
        got = numbers(layer.gated[rows])
        assert np.abs(got - results).max() < layer.tolerance * np.abs(results).max(), slot
        mine = [(end, place) for owner, end, place in copies if owner == slot]
        for end, place in [(start + tokens, slot), *mine]:
            wanted, found = after[end - start - 1], layer.kept(place)
            assert np.array_equal(found.inputs, wanted.inputs), (slot, end)
            difference = np.abs(found.state - wanted.state).max()
            assert difference < layer.tolerance * np.abs(wanted.state).max(), (slot, end)
        first += tokens
    assert not layer.gated[layer.tokens :].any()
    assert torch.equal(layer.memory[:, :LAYER_AT], untouched[:, :LAYER_AT])
    end = LAYER_AT + layer.state_bytes + (net.kernel - 1) * net.channels * 2
    assert torch.equal(layer.memory[:, end:], untouched[:, end:])


@pytest.mark.parametrize("net", NETS[:3], ids=str)
def test_bits_do_not_depend_on_how_a_prompt_is_cut_or_what_runs_beside_it(net):
    whole = Layer(net, "bf16", [(1, 0, 24, [16, 24])])
    whole.run()
    beside = [(0, 0, 9, []), (1, 0, 7, []), (4, 3, 1, [])]
    parts = Layer(net, "bf16", beside)
    parts.projected[9:16] = whole.projected[:7]
    parts.scores[9:16] = whole.scores[:7]
    for tensor in ("conv", "log_rate", "decay_bias", "norm"):
        getattr(parts, tensor).copy_(getattr(whole, tensor))
    parts.run()
    assert torch.equal(parts.gated[9:16], whole.gated[:7])
    rest = Layer(net, "bf16", [(1, 7, 17, [16])])
    rest.projected[:17] = whole.projected[7:24]
    rest.scores[:17] = whole.scores[7:24]
    for tensor in ("conv", "log_rate", "decay_bias", "norm"):
        getattr(rest, tensor).copy_(getattr(whole, tensor))
    rest.memory[1] = parts.memory[1]
    rest.run()
    assert torch.equal(rest.gated[:17], whole.gated[7:24])
    for mine, theirs in [(1, 1), (SLOTS, SLOTS)]:
        assert torch.equal(rest.state(mine), whole.state(theirs))
        assert torch.equal(rest.inputs(mine), whole.inputs(theirs))
    assert torch.equal(whole.state(SLOTS + 1), whole.state(1))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(2, 1, 32), (24, 4, 256), (3, 1, 64)])
def test_the_output_gate_is_near_float64(heads, kv_heads, head_dim, scaled, name):
    dtype, flag, _ = DTYPES[name]
    width = (2 * heads + 2 * kv_heads) * head_dim
    qkv = (torch.randn(5, width, device="cuda") * 3).to(dtype)
    attended = torch.randn(5, heads * head_dim, device="cuda").to(dtype)
    row_scale, scale = (torch.rand(n, device="cuda") + 0.5 if scaled else None for n in (5, width))
    full = qkv.double()
    if scaled:
        full = full * row_scale.double()[:, None] * scale.double()
    gate = full[:, : 2 * heads * head_dim].view(5, heads, 2, head_dim)[:, :, 1].reshape(5, -1)
    wanted = attended.double() * torch.sigmoid(gate)
    kernels = Kernels("output_gate", {"num_heads": heads, "num_kv_heads": kv_heads}, ACT_DTYPE=flag)
    grid = (5, -(-heads * head_dim // CONSTANTS["GATE_COLUMNS"]))
    inputs = (qkv, row_scale, scale, attended, head_dim)
    kernels.launch(f"output_gate_{name}_sm80", grid, 256, *inputs)
    assert relative_error(attended, wanted) < 4e-3


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(("hidden", "width"), [(64, 8), (2048, 512), (2056, 264)])
def test_the_score_of_a_shared_network_is_near_float64(hidden, width, name):
    dtype, flag, _ = DTYPES[name]
    x = torch.randn(5, hidden, device="cuda").to(dtype)
    score = torch.randn(hidden, device="cuda") * hidden**-0.5
    gated = torch.randn(5, width, device="cuda").to(dtype)
    wanted = gated.double() * torch.sigmoid(x.double() @ score.double())[:, None]
    kernels = Kernels("shared_score", {"hidden_size": hidden}, ACT_DTYPE=flag)
    kernels.launch(f"shared_score_{name}_sm80", 5, 256, x, score, gated, width)
    assert relative_error(gated, wanted) < 4e-3
