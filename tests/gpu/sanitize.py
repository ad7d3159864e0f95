"""Runs every kernel once or twice on small shapes, for compute-sanitizer.

Run: compute-sanitizer --tool memcheck|racecheck|initcheck|synccheck python sanitize.py [PART ...]
"""

from __future__ import annotations

import sys

import numpy as np
import test_attention
import test_delta_net
import test_four_bit_products
import test_four_bit_wgmma
import test_gemm
import test_layer_parts
import test_sampler
import test_small
import test_step_prepare
import torch
from sampler_definition import Params


def small() -> None:
    test_small.test_embedding_is_exact("bf16", 64, True)
    test_small.test_rms_norm_is_near_float64("bf16", 5, 576, True)
    test_small.test_gates_are_near_float64("bf16", 3, 2040, 0, True, True)
    test_small.test_the_soft_cap_is_near_float64_and_keeps_what_is_not_finite(5000, True)
    test_step_prepare.test_metadata_is_unpacked_for_every_kernel(1, 7, True, False, False)
    test_step_prepare.test_metadata_is_unpacked_for_every_kernel(1, 7, True, False, True)


def attention() -> None:
    test_attention.test_keys_are_rotated_and_written_to_their_blocks("bf16", 96, 32, 1, True)
    rows = [(70, 1), (3, 20), (300, 1), (15, 1), (64, 40), (0, 1)]
    for head_dim, grid in ((16, 9), (64, 9), (128, 40), (256, 6)):
        for no_split in (False, True):
            out, reference = test_attention.run_attention(
                rows, 8, 2, head_dim, grid=grid, stages=2, window=100, no_split=no_split
            )
            assert test_attention.relative_error(out, reference) < 4e-3
    out, reference = test_attention.run_attention(rows, 8, 2, 64, grid=9, has_sinks=True)
    assert test_attention.relative_error(out, reference) < 4e-3
    if torch.cuda.get_device_capability() != (9, 0):
        return
    for head_dim, has_sinks in ((64, True), (256, False)):
        out, reference = test_attention.run_attention(
            rows, 8, 2, head_dim, grid=9, stages=2, window=100, prompts=True, has_sinks=has_sinks
        )
        assert test_attention.relative_error(out, reference) < 4e-3


def layers() -> None:
    """What layers of some families have and others have not."""
    test_step_prepare.test_plans_of_layers_that_differ(True, True, True)
    test_layer_parts.test_three_norms_of_one_row_are_near_float64(3, 132, "bf16", True)
    test_layer_parts.test_experts_join_the_network_beside_them(3, 132, 8, True, "bf16", True)
    test_layer_parts.test_what_layers_get_of_the_token(9, 24, "bf16")
    test_gemm.test_moe_route_by_logits_or_with_scales(60, 4, {"MOE_SCALES": 1}, 1)
    test_gemm.test_rows_of_experts_are_scaled_once(70, 16, 2, 5120, "bf16", True)
    for rule in test_attention.RULES:
        test_attention.test_what_families_do_to_queries_keys_and_values(64, rule, "bf16", True)
    rows = [(70, 1), (3, 20), (300, 1), (15, 1), (64, 40), (0, 1)]
    chunks = {"window": 24, "chunks": True}
    settings = [(512, {"window": 100}), (512, {"no_split": True}), (64, chunks)]
    if torch.cuda.get_device_capability() == (9, 0):
        settings.append((64, {"prompts": True, **chunks}))
    for head_dim, setting in settings:
        out, reference = test_attention.run_attention(rows, 8, 2, head_dim, grid=6, **setting)
        assert test_attention.relative_error(out, reference) < 4e-3


def gemm() -> None:
    for tile, epilogue in ((0, 0), (1, 1), (2, 2), (3, 3), (5, 2)):
        for shape in ((64, 576), (64, 1032)):
            test_gemm.check_gemm("bf16", test_gemm.TILES[tile], epilogue, shape, True)
    test_gemm.test_moe_route_and_sort(3, 60, 4, 1)
    test_gemm.test_moe_route_with_bias_or_sigmoid(60, 4, "MOE_SIGMOID", 1)
    test_gemm.test_products_of_experts_are_near_float64("bf16", 70, 8, 2, 136, 64, 1, True)


def four_bit() -> None:
    tiles = test_four_bit_products.FOUR_BIT_TILES
    for name, tile, epilogue in (("bf16-128", tiles[0], 1), ("mxfp4", tiles[4], 2)):
        test_four_bit_products.test_products_are_near_float64(name, tile, epilogue)
    test_four_bit_products.test_widened_matrices_are_rounded_once("bf16-32")
    experts = ("mxfp4", test_four_bit_products.EXPERT_TILES[0], 9, 300, 4, 256, 64)
    test_four_bit_products.test_products_of_experts_are_near_float64(*experts)
    if torch.cuda.get_device_capability() != (9, 0):
        return
    tiles = test_four_bit_wgmma.WGMMA_TILES
    cases = (("bf16-128", tiles[0], 1), ("f16-zeros-64", tiles[-1], 2), ("mxfp4", tiles[4], 0))
    for name, tile, epilogue in cases:
        test_four_bit_wgmma.test_products_are_near_float64(name, tile, epilogue)
    experts = ("mxfp4", test_four_bit_wgmma.EXPERT_WGMMA_TILES[0], 9, 300, 4, 256, 64)
    test_four_bit_wgmma.test_products_of_experts_are_near_float64(*experts)


def states() -> None:
    for net in (test_delta_net.NETS[0], test_delta_net.NETS[2]):
        test_delta_net.test_a_step_is_near_float64_and_keeps_what_follows_need(net, False, "bf16")
    test_delta_net.test_the_output_gate_is_near_float64(2, 1, 32, True, "bf16")
    test_delta_net.test_the_score_of_a_shared_network_is_near_float64(64, 8, "bf16")


def sampler() -> None:
    test_sampler.test_log_probs_are_near_float64(5000, 5000, 2.0, True)
    test_sampler.test_pooled_states_do_not_depend_on_chunks(64)
    rng = np.random.default_rng(3)
    params = [test_sampler.random_params(rng, 5000) for _ in range(12)]
    params += [Params(temperature=1.0, top_k=k, top_p=0.99) for k in (7, 200, 4000)]
    for spread in (3.0, 0.0):
        logits = (rng.normal(size=(15, 5000)) * spread).astype(np.float32)
        test_sampler.check(logits, params, 4990)


if __name__ == "__main__":
    torch.manual_seed(0)
    parts = ["small", "attention", "layers", "gemm", "four_bit", "states", "sampler"]
    for part in sys.argv[1:] or parts:
        globals()[part]()  # every part asserts its own results too
    torch.cuda.synchronize()
