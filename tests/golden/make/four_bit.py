"""Linear layers in 4 bits, as the three kinds of checkpoints store them. Numpy only.

Each function takes a weight [out, in] and gives the stored tensors by suffix, as type and values,
and what the stored tensors stand for, in f64.
"""

from collections.abc import Callable

import numpy as np

Stored = dict[str, tuple[str, np.ndarray]]
Packed = tuple[Stored, np.ndarray]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
"""Which of eight columns the nibbles of a word hold, from the lowest on."""


def quantise(
    weight: np.ndarray, groups: np.ndarray, symmetric: bool, scales_as: Callable
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes 0 to 15 [out, in], scales and zeros [out, num_groups]; `groups` is each column's."""
    num_groups = int(groups.max()) + 1
    codes = np.zeros(weight.shape, np.int64)
    scales = np.zeros((len(weight), num_groups))
    zeros = np.full((len(weight), num_groups), 8, np.int64)
    for group in range(num_groups):
        columns = np.flatnonzero(groups == group)
        part = weight[:, columns]
        if symmetric:
            scale = np.abs(part).max(1) / 7
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale = (high - low) / 15
            zeros[:, group] = np.clip(np.rint(-low / scale), 0, 15)
        scales[:, group] = scales_as(scale)
        steps = np.rint(part / scales[:, group, None]) + zeros[:, group, None]
        codes[:, columns] = np.clip(steps, 0, 15)
    return codes, scales, zeros


def dequantised(
    codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray
) -> np.ndarray:
    return (codes - zeros[:, groups]) * scales[:, groups]


def packed(nibbles: np.ndarray) -> np.ndarray:
    """Eight values of the last axis in a word, the first one lowest."""
    eight = nibbles.reshape(*nibbles.shape[:-1], -1, 8).astype(np.uint32)
    words = (eight << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32)
    return words.view(np.int32)


def f16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float64)


def bf16(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def gptq(weight: np.ndarray, group_size: int, act_order: bool, seed: int) -> Packed:
    """GPTQ, first form: zeros are stored less one. With act order, groups lie among each other."""
    columns = weight.shape[1]
    groups = np.arange(columns) // group_size
    if act_order:
        groups = groups[np.random.default_rng(seed).permutation(columns)]
    codes, scales, zeros = quantise(weight, groups, True, f16)
    stored: Stored = {
        "qweight": ("I32", packed(codes).T),
        "qzeros": ("I32", packed((zeros - 1).T)),
        "scales": ("F16", scales.T),
        "g_idx": ("I32", groups.astype(np.int32)),
    }
    return stored, dequantised(codes, scales, zeros, groups)


def awq(weight: np.ndarray, group_size: int) -> Packed:
    """AWQ's gemm order, with zero points."""
    groups = np.arange(weight.shape[1]) // group_size
    codes, scales, zeros = quantise(weight, groups, False, f16)

    def words(values: np.ndarray) -> np.ndarray:
        """[n, out] in words of eight outputs."""
        eight = values.reshape(len(values), -1, 8)[:, :, AWQ_ORDER]
        return packed(eight.reshape(len(values), -1))

    stored: Stored = {
        "qweight": ("I32", words(codes.T)),
        "qzeros": ("I32", words(zeros.T)),
        "scales": ("F16", scales.T),
    }
    return stored, dequantised(codes, scales, zeros, groups)


def w4a16(weight: np.ndarray, group_size: int | None, act_order: bool, seed: int) -> Packed:
    """compressed-tensors, pack-quantized and symmetric; without a group size a scale a row."""
    rows, columns = weight.shape
    groups = np.arange(columns) // (group_size or columns)
    if act_order:
        groups = groups[np.random.default_rng(seed).permutation(columns)]
    codes, scales, zeros = quantise(weight, groups, True, bf16)
    stored: Stored = {
        "weight_packed": ("I32", packed(codes)),
        "weight_scale": ("BF16", scales),
        "weight_shape": ("I64", np.array([rows, columns])),
    }
    if act_order:
        stored["weight_g_idx"] = ("I32", groups.astype(np.int32))
    return stored, dequantised(codes, scales, zeros, groups)


def nibbles(words: np.ndarray) -> np.ndarray:
    """The eight values of each word, along the last axis: what `packed` was given."""
    shifts = 4 * np.arange(8, dtype=np.uint32)
    values = (np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts) & 15
    return values.reshape(*words.shape[:-1], -1).astype(np.int64)


def unpacked(tensors: dict[str, np.ndarray]) -> np.ndarray:
    """The weight [out, in] that a layer's stored tensors, by suffix, stand for."""
    if "weight_packed" in tensors:
        rows, columns = tensors["weight_shape"]
        codes = nibbles(tensors["weight_packed"])[:rows, :columns]
        scales = tensors["weight_scale"].astype(np.float64)
        zeros = np.full(scales.shape, 8, np.int64)
        if "weight_zero_point" in tensors:
            zeros = nibbles(tensors["weight_zero_point"].T)[:, :rows].T
        usual = np.arange(columns) * scales.shape[1] // columns
        return dequantised(codes, scales, zeros, tensors.get("weight_g_idx", usual))
    scales = tensors["scales"].astype(np.float64).T
    if "g_idx" in tensors:
        codes = nibbles(tensors["qweight"].T)
        zeros = nibbles(tensors["qzeros"]).T + 1
        return dequantised(codes, scales, zeros, tensors["g_idx"])
    order = np.argsort(AWQ_ORDER)

    def in_order(words: np.ndarray) -> np.ndarray:
        values = nibbles(words)
        return values.reshape(len(values), -1, 8)[:, :, order].reshape(len(values), -1).T

    codes, zeros = in_order(tensors["qweight"]), in_order(tensors["qzeros"])
    columns = codes.shape[1]
    return dequantised(codes, scales, zeros, np.arange(columns) * scales.shape[1] // columns)
