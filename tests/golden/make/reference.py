"""A decoder in numpy and float64: what the small reference cases are computed with.

It reads config.json as transformers 5 writes it, and weights by their published names. Everything
is written out plainly, a position and a layer at a time, and shares no code with the engine.
`test_recipes.py` compares it with answers of transformers.

Shapes: hidden states [num_tokens, hidden_size], heads [num_tokens, num_heads, head_dim].
"""

from dataclasses import dataclass, replace

import numpy as np

Config = dict
Weights = dict[str, np.ndarray]


@dataclass
class Family:
    """How a family differs from Llama."""

    norm_plus_one: bool = False
    """Norm weights are stored less one."""
    norms: str = "before"
    """Where norms stand: `before` attention and MLP, `after` them, or `around` them."""
    head_norm: str | None = None
    """Norm of queries and keys: of each `head`, or of their `whole` width."""
    scaled_embedding: bool = False
    gelu: bool = False
    output_gate: bool = False
    """Each head's query is followed by a gate of what attention gives."""
    wide_heads: bool = False
    """Gemma 4: layers that see everything have heads of their own, and all that comes with it."""
    llama4: bool = False
    """Neighbours rotate together, chunks instead of windows, scores scale what experts get."""
    latent: bool = False
    """Keys and values of all heads are products of one vector a token."""
    fused_nets: bool = False
    """Projections of a gated delta net are one tensor, the parts of a key head together."""


FAMILIES = {
    "llama": Family(),
    "qwen3": Family(head_norm="head"),
    "smollm3": Family(),
    "qwen3_moe": Family(head_norm="head"),
    "glm4_moe": Family(head_norm="head"),
    "olmo3": Family(norms="after", head_norm="whole"),
    "gemma3_text": Family(
        norm_plus_one=True, norms="around", head_norm="head", scaled_embedding=True, gelu=True
    ),
}
FAMILIES["gemma4_text"] = FAMILIES["gemma4_unified_text"] = Family(
    norms="around", head_norm="head", scaled_embedding=True, gelu=True, wide_heads=True
)

FAMILIES["llama4_text"] = Family(llama4=True)

LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4")
FAMILIES |= {name: Family(latent=True) for name in LATENT}

SIGMOID = ("glm4_moe", "glm4_moe_lite", "deepseek_v3")
"""Families whose scores of experts are sigmoids, corrected for the choice."""

HYBRID = Family(norm_plus_one=True, head_norm="head", output_gate=True)
FAMILIES |= {
    "qwen3_5_text": HYBRID,
    "qwen3_5_moe_text": HYBRID,
    "qwen3_next": replace(HYBRID, fused_nets=True),
}


class Reference:
    """One model. `prefix` stands before the names of its layers."""

    def __init__(self, config: Config, weights: Weights, prefix: str = "model."):
        self.config = config
        self.family = FAMILIES[config["model_type"]]
        self.weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
        if self.family.latent:
            self.unstack_experts()
        self.prefix = prefix
        heads = config["num_attention_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // heads
        self.eps = config["rms_norm_eps"]
        self.keys: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        """Keys and values of the last layer of each kind that has its own."""
        self.token_input: np.ndarray | None = None
        """Of the last run, what each layer gets of the tokens: [num_tokens, layers, size]."""
        self.margins: list[np.ndarray] = []
        """Of the last run, for each layer of experts: see `route`."""

    def unstack_experts(self) -> None:
        """Experts one by one, where transformers saves those of a layer together."""
        for name in [name for name in self.weights if name.endswith("experts.gate_up_proj")]:
            at = name.removesuffix("gate_up_proj")
            downs = self.weights.pop(f"{at}down_proj")
            for expert, both in enumerate(self.weights.pop(name)):
                gate, up = np.split(both, 2)
                parts = {"gate": gate, "up": up, "down": downs[expert]}
                self.weights |= {f"{at}{expert}.{p}_proj.weight": w for p, w in parts.items()}

    def logits(self, ids: list[int]) -> np.ndarray:
        """Logits after each of the ids: [num_tokens, vocab_size]."""
        self.margins = []
        embedding = self.get("embed_tokens.weight")
        h = embedding[ids]
        if self.family.scaled_embedding:
            h = h * self.config["hidden_size"] ** 0.5
        if self.config.get("hidden_size_per_layer_input"):
            self.token_input = self.inputs_of_layers(h, ids)
        for layer in range(self.config["num_hidden_layers"]):
            h = self.layer(h, layer)
            if self.family.wide_heads:
                h = self.finished(h, layer)
        h = self.norm(h, self.get("norm.weight"))
        head = self.weights.get(head_name(self.prefix), embedding)
        logits = h @ head.T
        cap = self.config.get("final_logit_softcapping")
        return cap * np.tanh(logits / cap) if cap else logits

    def inputs_of_layers(self, h: np.ndarray, ids: list[int]) -> np.ndarray:
        """What every layer gets of the tokens themselves: [num_tokens, layers, size]."""
        size = self.config["hidden_size_per_layer_input"]
        projected = self.linear(h, "per_layer_model_projection") / h.shape[-1] ** 0.5
        projected = projected.reshape(len(h), -1, size)
        projected = self.norm(projected, self.get("per_layer_projection_norm.weight"))
        rows = self.get("embed_tokens_per_layer.weight")[ids].reshape(projected.shape)
        return (projected + rows * size**0.5) / 2**0.5

    def finished(self, h: np.ndarray, layer: int) -> np.ndarray:
        """The end of a layer: what it gets of the token itself, and its scale."""
        at = f"layers.{layer}."
        if self.token_input is not None:
            gate = gelu(self.linear(h, f"{at}per_layer_input_gate"))
            gain = self.linear(gate * self.token_input[:, layer], f"{at}per_layer_projection")
            h = h + self.norm(gain, self.get(f"{at}post_per_layer_input_norm.weight"))
        return h * self.get(f"{at}layer_scalar")

    def get(self, name: str) -> np.ndarray:
        return self.weights[self.prefix + name]

    def norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        scale = weight + 1 if self.family.norm_plus_one else weight
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * scale

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        bias = self.weights.get(f"{self.prefix}{name}.bias", 0.0)
        return x @ self.get(f"{name}.weight").T + bias

    def layer(self, h: np.ndarray, layer: int) -> np.ndarray:
        at = f"layers.{layer}."

        def normed(x: np.ndarray, name: str) -> np.ndarray:
            return self.norm(x, self.get(f"{at}{name}_layernorm.weight"))

        match self.family.norms:
            case "before":
                h = h + self.mixer(normed(h, "input"), layer)
                return h + self.feed_forward(normed(h, "post_attention"), layer)
            case "after":
                h = h + normed(self.attention(h, layer), "post_attention")
                return h + normed(self.feed_forward(h, layer), "post_feedforward")
            case _:
                h = h + normed(self.attention(normed(h, "input"), layer), "post_attention")
                inner = self.feed_forward(normed(h, "pre_feedforward"), layer)
                if self.config.get("enable_moe_block"):
                    inner = self.beside(h, inner, layer)
                return h + normed(inner, "post_feedforward")

    def beside(self, h: np.ndarray, usual: np.ndarray, layer: int) -> np.ndarray:
        """Experts beside the usual network; they see the residual stream by norms of their own."""
        at = f"layers.{layer}."

        def normed(x: np.ndarray, name: str) -> np.ndarray:
            return self.norm(x, self.get(f"{at}{name}_feedforward_layernorm_{number}.weight"))

        seen = self.norm(h, self.get(f"{at}router.scale")) / h.shape[-1] ** 0.5
        best, shares = self.route(self.linear(seen, f"{at}router.proj"), at)
        shares = shares * self.get(f"{at}router.per_expert_scale")[best]
        number = 2
        inner = normed(h, "pre")
        out = np.zeros_like(h)
        for token, experts in enumerate(best):
            for share, expert in zip(shares[token], experts, strict=True):
                out[token] += share * self.gated(inner[token], f"{at}experts.{expert}.")
        out = normed(out, "post")
        number = 1
        return normed(usual, "post") + out

    def mixer(self, x: np.ndarray, layer: int) -> np.ndarray:
        is_net = self.kind(layer) == "linear_attention"
        return self.delta_net(x, layer) if is_net else self.attention(x, layer)

    def delta_net(self, x: np.ndarray, layer: int) -> np.ndarray:
        """Yang et al., Gated Delta Networks, equation 10, a token at a time."""
        config, at = self.config, f"layers.{layer}.linear_attn."
        keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
        key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
        tokens, shared = len(x), values // keys
        if self.family.fused_nets:
            rows = self.linear(x, f"{at}in_proj_qkvz").reshape(tokens, keys, -1)
            width = shared * value_dim
            parts = np.split(rows, np.cumsum([key_dim, key_dim, width]), axis=-1)
            q, k, v, z = (part.reshape(tokens, -1) for part in parts)
            rows = self.linear(x, f"{at}in_proj_ba").reshape(tokens, keys, 2, shared)
            b, a = (rows[:, :, part].reshape(tokens, -1) for part in (0, 1))
        else:
            rows = self.linear(x, f"{at}in_proj_qkv")
            q, k, v = np.split(rows, np.cumsum([keys * key_dim] * 2), axis=-1)
            z, b, a = (self.linear(x, f"{at}in_proj_{part}") for part in "zba")
        conv = self.get(f"{at}conv1d.weight")[:, 0].T
        before = np.zeros((len(conv) - 1, conv.shape[1]))
        seen = np.concatenate([before, np.concatenate([q, k, v], axis=-1)])
        mixed = silu(sum(seen[tap : tap + tokens] * conv[tap] for tap in range(len(conv))))
        q, k, v = np.split(mixed, np.cumsum([keys * key_dim] * 2), axis=-1)
        q, k = (unit(part.reshape(tokens, keys, key_dim)) for part in (q, k))
        q, k = (part.repeat(shared, axis=1) for part in (q * key_dim**-0.5, k))
        v = v.reshape(tokens, values, value_dim)
        rate = np.exp(self.get(f"{at}A_log"))
        fades = np.exp(-rate * np.log1p(np.exp(a + self.get(f"{at}dt_bias"))))
        writes = 1 / (1 + np.exp(-b))
        state = np.zeros((values, key_dim, value_dim))
        out = np.zeros_like(v)
        for token in range(tokens):
            state *= fades[token][:, None, None]
            known = np.einsum("hk,hkv->hv", k[token], state)
            change = writes[token][:, None] * (v[token] - known)
            state += k[token][:, :, None] * change[:, None, :]
            out[token] = np.einsum("hk,hkv->hv", q[token], state)
        out /= np.sqrt((out * out).mean(-1, keepdims=True) + self.eps)
        out = out * self.get(f"{at}norm.weight") * silu(z.reshape(out.shape))
        return self.linear(out.reshape(tokens, -1), f"{at}out_proj")

    def attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        config, at = self.config, f"layers.{layer}.self_attn."
        if self.family.wide_heads:
            return self.wide_attention(x, layer)
        if self.family.latent:
            return self.latent_attention(x, layer)
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        q, k, v = (self.linear(x, f"{at}{name}_proj") for name in "qkv")
        has_norm = self.family.head_norm and config.get("use_qk_norm", True)
        gates = None
        if self.family.output_gate:
            q, gates = np.split(q.reshape(len(x), heads, -1), 2, axis=-1)
        if has_norm and self.family.head_norm == "whole":
            q = self.norm(q, self.get(f"{at}q_norm.weight"))
            k = self.norm(k, self.get(f"{at}k_norm.weight"))
        q = q.reshape(len(x), heads, self.head_dim)
        k, v = (part.reshape(len(x), kv_heads, self.head_dim) for part in (k, v))
        if has_norm and self.family.head_norm == "head":
            q = self.norm(q, self.get(f"{at}q_norm.weight"))
            k = self.norm(k, self.get(f"{at}k_norm.weight"))
        kind = self.kind(layer)
        q, k = self.placed(q, k, layer)
        scale = (config.get("query_pre_attn_scalar") or self.head_dim) ** -0.5
        place = np.arange(len(x))
        seen = place[None, :] <= place[:, None]
        if kind == "sliding_attention":
            seen &= place[None, :] > place[:, None] - config["sliding_window"]
        if kind == "chunked_attention":
            chunk = place // config["attention_chunk_size"]
            seen &= chunk[None, :] == chunk[:, None]
        k, v = self.kept(k, v, layer)
        out = attended(q, k, v, (seen, scale))
        if gates is not None:
            out = out / (1 + np.exp(-gates))
        return self.linear(out.reshape(len(x), -1), f"{at}o_proj")

    def placed(self, q: np.ndarray, k: np.ndarray, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Queries and keys with their positions."""
        config, kind = self.config, self.kind(layer)
        if config.get("no_rope_layers", [1] * (layer + 1))[layer]:
            q, k = (self.rotated(part, kind) for part in (q, k))
            if self.family.llama4 and config["use_qk_norm"]:
                q, k = (self.norm(part, np.ones(self.head_dim)) for part in (q, k))
        elif self.family.llama4 and config["attn_temperature_tuning"]:
            lengths = np.floor((np.arange(len(q)) + 1) / config["floor_scale"])
            q = q * (np.log1p(lengths) * config["attn_scale"] + 1)[:, None, None]
        return q, k

    def kept(self, k: np.ndarray, v: np.ndarray, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of a layer as the cache holds them: [num_tokens, num_heads, head_dim]."""
        return k, v

    def wide_attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        """Of Gemma 4: sizes by kind of layer, a norm of values, keys perhaps another layer's."""
        config, at, kind = self.config, f"layers.{layer}.self_attn.", self.kind(layer)
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        size = self.head_dim
        if kind == "full_attention":
            by_layer = config.get("per_layer_config", {}).get(str(layer))
            size = (by_layer or {}).get("head_dim", config.get("global_head_dim", 512))
            if config.get("attention_k_eq_v"):
                own = (by_layer or config).get("num_global_key_value_heads")
                kv_heads = (by_layer or {}).get("num_key_value_heads", own or kv_heads)

        def turned(x: np.ndarray, name: str) -> np.ndarray:
            return self.rotated(self.norm(x, self.get(f"{at}{name}_norm.weight")), kind)

        q = turned(self.linear(x, f"{at}q_proj").reshape(len(x), heads, size), "q")
        if layer < config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0):
            k = self.linear(x, f"{at}k_proj").reshape(len(x), kv_heads, size)
            is_same = config.get("attention_k_eq_v") and kind == "full_attention"
            v = k if is_same else self.linear(x, f"{at}v_proj").reshape(k.shape)
            self.keys[kind] = self.kept(turned(k, "k"), self.norm(v, np.ones(size)), layer)
        k, v = self.keys[kind]
        place = np.arange(len(x))
        seen = place[None, :] <= place[:, None]
        if kind == "sliding_attention":
            seen &= place[None, :] > place[:, None] - config["sliding_window"]
        return self.linear(attended(q, k, v, (seen, 1.0)).reshape(len(x), -1), f"{at}o_proj")

    def latent_attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        """DeepSeek-AI, DeepSeek-V2, section 2.1, with keys and values of all heads written out."""
        config, at = self.config, f"layers.{layer}.self_attn."
        heads, plain = config["num_attention_heads"], config["qk_nope_head_dim"]

        def normed(x: np.ndarray, name: str) -> np.ndarray:
            # The classes do not pass rms_norm_eps on to these norms.
            scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
            return x * scale * self.get(f"{at}{name}_layernorm.weight")

        if config.get("q_lora_rank"):
            inner = normed(self.linear(x, f"{at}q_a_proj"), "q_a")
            q = self.linear(inner, f"{at}q_b_proj")
        else:
            q = self.linear(x, f"{at}q_proj")
        q = q.reshape(len(x), heads, -1)
        row = self.linear(x, f"{at}kv_a_proj_with_mqa")
        latent, turning = np.split(row, [config["kv_lora_rank"]], axis=-1)
        turning = self.rotated(turning[:, None], "full_attention")
        latent, turning = self.kept_latent(normed(latent, "kv_a"), turning[:, 0], layer)
        both = self.linear(latent, f"{at}kv_b_proj").reshape(len(x), heads, -1)
        k = [both[..., :plain], np.repeat(turning[:, None], heads, axis=1)]
        turned = self.rotated(q[..., plain:], "full_attention")
        q, k = np.concatenate([q[..., :plain], turned], -1), np.concatenate(k, -1)
        place = np.arange(len(x))
        scale, rope = q.shape[-1] ** -0.5, config["rope_parameters"]
        if rope["rope_type"] != "default":
            scale *= yarn_term(rope["factor"], rope.get("mscale_all_dim", 0)) ** 2
        if "llama_4_scaling_beta" in rope:
            lengths = np.floor(place / rope["original_max_position_embeddings"])
            q = q * (1 + rope["llama_4_scaling_beta"] * np.log1p(lengths))[:, None, None]
        seen = place[None, :] <= place[:, None]
        out = attended(q, k, both[..., plain:], (seen, scale))
        return self.linear(out.reshape(len(x), -1), f"{at}o_proj")

    def kept_latent(
        self, latent: np.ndarray, turning: np.ndarray, layer: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """A layer's latents and the keys that turn as the cache holds them."""
        return latent, turning

    def kind(self, layer: int) -> str:
        kinds = self.config.get("layer_types")
        return kinds[layer] if kinds else "full_attention"

    def rotated(self, x: np.ndarray, kind: str) -> np.ndarray:
        """Rotary embedding of the first dimensions of each head, in halves."""
        rope = self.config["rope_parameters"]
        rope = rope.get(kind, rope)
        # Of latent attention only what turns comes here, and some files state its share of a head.
        share = 1.0 if self.family.latent else rope.get("partial_rotary_factor", 1.0)
        size = int(x.shape[-1] * share)
        if rope.get("rope_type") == "proportional":
            # The first pairs turn as those of a whole head do, the others not at all.
            pairs, size = size // 2, x.shape[-1]
            frequencies, factor = rope_frequencies(rope | {"rope_type": "default"}, size)
            frequencies = np.where(np.arange(size // 2) < pairs, frequencies, 0.0)
        else:
            frequencies, factor = rope_frequencies(rope, size)
        angle = np.arange(len(x))[:, None] * frequencies[None, :]
        cos, sin = (f(angle)[:, None, :] * factor for f in (np.cos, np.sin))
        if self.family.llama4 or self.config.get("rope_interleave", self.family.latent):
            one, two = x[..., 0::2], x[..., 1::2]
            turned = np.stack([one * cos - two * sin, two * cos + one * sin], axis=-1)
            return turned.reshape(x.shape)
        one, two, rest = np.split(x, [size // 2, size], axis=-1)
        return np.concatenate([one * cos - two * sin, two * cos + one * sin, rest], axis=-1)

    def feed_forward(self, x: np.ndarray, layer: int) -> np.ndarray:
        at = f"layers.{layer}.mlp."
        if self.family.llama4:
            return self.scaled_experts(x, layer)
        if not self.has_experts(layer):
            return self.gated(x, at)
        config = self.config
        best, shares = self.route(x @ self.get(f"{at}gate.weight").T, at)
        out = np.zeros_like(x)
        for token, experts in enumerate(best):
            for share, expert in zip(shares[token], experts, strict=True):
                out[token] += share * self.gated(x[token], f"{at}experts.{expert}.")
        if config.get("n_shared_experts"):
            out += self.gated(x, f"{at}shared_experts.")
        if config.get("shared_expert_intermediate_size"):
            score = self.linear(x, f"{at}shared_expert_gate")
            out += self.gated(x, f"{at}shared_expert.") / (1 + np.exp(-score))
        return out

    def scaled_experts(self, x: np.ndarray, layer: int) -> np.ndarray:
        """Experts that see what their score scales, beside a network that all tokens visit."""
        at = f"layers.{layer}.feed_forward."
        if layer not in self.config["moe_layers"]:
            return self.gated(x, at)
        router = self.linear(x, f"{at}router")
        taken = self.config["num_experts_per_tok"]
        best = np.argsort(-router, axis=-1, kind="stable")[:, :taken]
        ranked = -np.sort(-router, axis=-1)
        self.margins.append(ranked[:, taken - 1] - ranked[:, taken])
        out = self.gated(x, f"{at}shared_expert.")
        both, down = (self.get(f"{at}experts.{part}_proj") for part in ("gate_up", "down"))
        for token, experts in enumerate(best):
            for expert in experts:
                share = 1 / (1 + np.exp(-router[token, expert]))
                gate, up = np.split(share * x[token] @ both[expert], 2)
                out[token] += silu(gate) * up @ down[expert]
        return out

    def route(self, router: np.ndarray, at: str) -> tuple[np.ndarray, np.ndarray]:
        """Experts of each token, [num_tokens, num_experts_per_tok], and their shares.

        Notes how far each token is from other experts, in the router's logits; of a sigmoid, which
        moves by a quarter of its logit at most, four times the distance.
        """
        config = self.config
        if config["model_type"] in SIGMOID:
            scores = 1 / (1 + np.exp(-router))
            order = scores + self.get(f"{at}gate.e_score_correction_bias")
            compared = 4 * order
        else:
            scores = order = softmax(router)
            compared = router
        taken = config.get("top_k_experts") or config["num_experts_per_tok"]
        left, margin = self.left_groups(order)
        order, compared = (np.where(left, -np.inf, part) for part in (order, compared))
        best = np.argsort(-order, axis=-1, kind="stable")[:, :taken]
        ranked = -np.sort(-compared, axis=-1)
        self.margins.append(np.minimum(margin, ranked[:, taken - 1] - ranked[:, taken]))
        shares = np.take_along_axis(scores, best, -1)
        if config.get("norm_topk_prob", True):
            shares = shares / shares.sum(-1, keepdims=True)
        return best, shares * config.get("routed_scaling_factor", 1.0)

    def left_groups(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Experts of groups that a token leaves out, and how far it is from other groups."""
        config = self.config
        num_groups = config.get("n_group") or 1
        chosen = config.get("topk_group") or num_groups
        if chosen == num_groups or config.get("topk_method") == "greedy":
            return np.zeros(order.shape, bool), np.full(len(order), np.inf)
        grouped = np.sort(order.reshape(len(order), num_groups, -1), axis=-1)
        count = 1 if config["model_type"] == "deepseek_v2" else 2
        judged = grouped[..., -count:].sum(-1)
        ranks = np.argsort(np.argsort(-judged, axis=-1, kind="stable"), axis=-1)
        # Two sigmoids move by half of what logits do at most, logarithms of softmax as logits.
        ranked = 2 * judged if config["model_type"] in SIGMOID else np.log(judged)
        ranked = -np.sort(-ranked, axis=-1)
        left = np.repeat(ranks >= chosen, grouped.shape[-1], axis=-1)
        return left, ranked[:, chosen - 1] - ranked[:, chosen]

    def has_experts(self, layer: int) -> bool:
        config = self.config
        if "mlp_layer_types" in config:
            return config["mlp_layer_types"][layer] == "sparse"
        if "first_k_dense_replace" in config:
            return layer >= config["first_k_dense_replace"]
        step = config.get("decoder_sparse_step", 1)
        is_sparse = layer not in config.get("mlp_only_layers", []) and (layer + 1) % step == 0
        experts = config.get("num_experts", config.get("num_local_experts", 0))
        if "enable_moe_block" in config:
            return False
        return experts > 0 and is_sparse

    def gated(self, x: np.ndarray, at: str) -> np.ndarray:
        gate, up = self.linear(x, f"{at}gate_proj"), self.linear(x, f"{at}up_proj")
        active = gelu(gate) if self.family.gelu else silu(gate)
        return self.linear(active * up, f"{at}down_proj")


def head_name(prefix: str) -> str:
    """The output layer's, where the names of layers begin with `prefix`."""
    return {"language_model.model.": "language_model."}.get(prefix, "") + "lm_head.weight"


def attended(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, rule: tuple[np.ndarray, float]
) -> np.ndarray:
    """Attention of all heads; `rule`: which keys a token sees, and the scale of scores."""
    seen, scale = rule
    shared = q.shape[1] // k.shape[1]
    out = np.zeros((*q.shape[:2], v.shape[-1]))
    for head in range(q.shape[1]):
        scores = np.where(seen, q[:, head] @ k[:, head // shared].T * scale, -np.inf)
        out[:, head] = softmax(scores) @ v[:, head // shared]
    return out


def gelu(x: np.ndarray) -> np.ndarray:
    """The tanh approximation."""
    return x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def softmax(x: np.ndarray) -> np.ndarray:
    grown = np.exp(x - x.max(-1, keepdims=True))
    return grown / grown.sum(-1, keepdims=True)


def yarn_term(factor: float, mscale: float) -> float:
    """What YaRN stretches by; 1 where `mscale` is 0."""
    return 0.1 * mscale * np.log(factor) + 1.0


def rope_frequencies(rope: Config, size: int) -> tuple[np.ndarray, float]:
    """Angle a position, by pair of dimensions, and what cosines and sines are multiplied with."""
    theta = rope["rope_theta"]
    plain = theta ** -(np.arange(0, size, 2) / size)
    factor = rope.get("factor", 1.0)
    match rope.get("rope_type", "default"):
        case "default":
            return plain, 1.0
        case "linear":
            return plain / factor, 1.0
        case "llama3":
            # Slow frequencies have fewer turns than `low` within the length, fast more than `high`.
            turns = rope["original_max_position_embeddings"] * plain / (2 * np.pi)
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            kept = np.clip((turns - low) / max(high - low, 1e-9), 0, 1)
            return plain / factor * (1 - kept) + plain * kept, 1.0
        case "yarn":
            # Peng et al., YaRN, section 3.2: slow pairs are interpolated, fast ones are not.
            length = rope["original_max_position_embeddings"]

            def pair(turns: float) -> float:
                return size * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(theta))

            low = max(np.floor(pair(rope.get("beta_fast", 32))), 0)
            high = min(np.ceil(pair(rope.get("beta_slow", 1))), size - 1)
            slow = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
            scaled = plain / factor * slow + plain * (1 - slow)
            mscale, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
            if mscale and all_dim:
                return scaled, yarn_term(factor, mscale) / yarn_term(factor, all_dim)
            return scaled, yarn_term(factor, 1.0)
        case other:
            raise ValueError(f"rope_type {other}")
