"""A gated delta net in float64, a token at a time: what tests compare kernels/delta_net.cu with.

Pure numpy; needs no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Net:
    """Sizes."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int = 4

    @property
    def values(self) -> int:
        """Width of v, and of the gate."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """q, k, v."""
        return 2 * self.key_heads * self.key_dim + self.values


@dataclass
class Weights:
    """Those of delta_net.cu, and the norm's eps."""

    conv: np.ndarray
    log_rate: np.ndarray
    decay_bias: np.ndarray
    norm: np.ndarray
    eps: float = 1e-6


@dataclass
class Kept:
    """Of a sequence: inputs [kernel - 1, channels], state [value_heads, value_dim, key_dim]."""

    inputs: np.ndarray
    state: np.ndarray

    @classmethod
    def empty(cls, net: Net) -> Kept:
        """Of a sequence without tokens."""
        shape = (net.value_heads, net.value_dim, net.key_dim)
        return cls(np.zeros((net.kernel - 1, net.channels)), np.zeros(shape))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def advance(
    net: Net, weights: Weights, kept: Kept, projected: np.ndarray, scores: np.ndarray
) -> tuple[np.ndarray, list[Kept]]:
    """Gated results [num_tokens, values], and what is kept after each token.

    projected [num_tokens, channels + values], scores [num_tokens, 2 * value_heads].
    """
    results, after = [], []
    inputs, state = kept.inputs.copy(), kept.state.copy()
    of_head = np.arange(net.value_heads) // (net.value_heads // net.key_heads)
    keys = net.key_heads * net.key_dim
    for row, score in zip(projected, scores, strict=True):
        seen = np.concatenate([inputs, row[None, : net.channels]])
        mixed = silu((seen * weights.conv.T).sum(0))
        q, k = (mixed[at : at + keys].reshape(net.key_heads, -1) for at in (0, keys))
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
        q, k = q[of_head] * net.key_dim**-0.5, k[of_head]
        v = mixed[2 * keys :].reshape(net.value_heads, net.value_dim)
        writes = 1 / (1 + np.exp(-score[: net.value_heads]))
        softplus = np.log1p(np.exp(score[net.value_heads :] + weights.decay_bias))
        state = state * np.exp(-np.exp(weights.log_rate) * softplus)[:, None, None]
        change = writes[:, None] * (v - np.einsum("hvk,hk->hv", state, k))
        state = state + change[:, :, None] * k[:, None, :]
        out = np.einsum("hvk,hk->hv", state, q)
        out = out / np.sqrt((out * out).mean(-1, keepdims=True) + weights.eps) * weights.norm
        z = row[net.channels :].reshape(out.shape)
        results.append((out * silu(z)).reshape(-1))
        inputs = seen[1:]
        after.append(Kept(inputs, state))
    return np.array(results), after
