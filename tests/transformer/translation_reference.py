"""The translation Transformer in NumPy float64, from the papers' formulas: what the PyTorch code is judged by.

``w`` is a mapping of state-dict names to float64 arrays, ``at`` a prefix of those names; nothing here calls torch.
"""

import math

import numpy as np

import reference
from reference import array, linear


def weights(module):
    return {name: array(value) for name, value in module.state_dict().items()}


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(w, at, x, memory, heads, keep=None):
    """softmax(q·kᵀ/√key_dim)·v; keep is (B, T, S), and a row of which nothing is kept is averaged over all of S."""
    parts = [linear(*pair) for pair in
             ((a, w[f"{at}{name}.weight"], w[f"{at}{name}.bias"]) for a, name in
              ((x, "query"), (memory, "key"), (memory, "value")))]  # fmt: skip
    q, k, v = (part.reshape(*part.shape[:2], heads, -1) for part in parts)
    scores = np.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
    if keep is not None:
        keep = np.broadcast_to(keep, (len(x), x.shape[1], memory.shape[1]))
        none = ~keep.any(-1, keepdims=True)
        scores = np.where(none[:, None], 0.0, np.where(keep[:, None], scores, -np.inf))
    heads_out = np.einsum("bhts,bshd->bthd", softmax(scores), v).reshape(*x.shape[:2], -1)
    return linear(heads_out, w[f"{at}output.weight"], w[f"{at}output.bias"])


def layer_norm(w, at, x, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * w[f"{at}weight"] + w[f"{at}bias"]


def residual(w, at, x, sublayer, c):
    norm = lambda h: layer_norm(w, at, h, c.layer_norm_eps)  # noqa: E731
    return x + sublayer(norm(x)) if c.norm_first else norm(x + sublayer(x))


def feed_forward(w, at, x, c):
    if c.ffn_layer == "none":
        return x
    if c.ffn_layer == "parameter_attention":
        return parameter_attention(w, at, x, c.d_model)
    return reference.feed_forward(x, *(wide_map(w, f"{at}{name}") for name in ("layer1", "layer2", "linear_v")),
                                  c.activation)  # fmt: skip


def wide_map(w, at):
    """A map, behind its causal kernel where it has one; None where it is not there."""
    if f"{at}.depthwise" in w:
        kernel, inner = w[f"{at}.depthwise"][:, 0], wide_map(w, f"{at}.pointwise")
        return lambda h: inner(reference.depthwise(h, kernel, "left"))
    return (lambda h: linear(h, w[f"{at}.weight"], w.get(f"{at}.bias"))) if f"{at}.weight" in w else None


def parameter_attention(w, at, x, d_model):
    """Each position by itself: the keys of a head scored against its query, unscaled but for √heads."""
    keys, values = w[f"{at}keys"], w[f"{at}values"]
    queries = linear(x, w[f"{at}query.weight"], w[f"{at}query.bias"])
    queries = queries.reshape(*x.shape[:-1], len(keys), keys.shape[-1])
    scores = math.sqrt(len(keys)) * np.einsum("...hk,hmk->...hm", queries, keys)
    heads = np.einsum("...hm,hmv->...hv", softmax(scores), math.sqrt(d_model) * values)
    return linear(
        heads.reshape(*x.shape[:-1], len(keys) * values.shape[-1]), w[f"{at}output.weight"], w[f"{at}output.bias"]
    )


def feed_forward_block(w, at, x, c):
    return residual(w, f"{at}feed_forward_norm.", x, lambda h: feed_forward(w, f"{at}feed_forward.", h, c), c)


def encoder_layer(w, at, x, c, keep=None):
    def own(h):
        return attention(w, f"{at}self_attention.", h, h, c.num_heads, keep)

    return feed_forward_block(w, at, residual(w, f"{at}self_attention_norm.", x, own, c), c)


def decoder_layer(w, at, x, memory, c, keep=None, memory_keep=None):
    causal = np.tril(np.ones((x.shape[1], x.shape[1]), bool))[None]
    keep = causal if keep is None else causal & keep

    def own(h):
        return attention(w, f"{at}self_attention.", h, h, c.num_heads, keep)

    def other(h):
        return attention(w, f"{at}cross_attention.", h, memory, c.num_heads, memory_keep)

    x = residual(w, f"{at}self_attention_norm.", x, own, c)
    return feed_forward_block(w, at, residual(w, f"{at}cross_attention_norm.", x, other, c), c)


def sinusoids(start, length, width):
    """tensor2tensor's: [sin ‖ cos] of p·exp(−i·ln(10⁴)/(width/2 − 1)), an odd width ending in zeros."""
    half = width // 2
    table = np.zeros((length, width))
    for row in range(length):
        for i in range(half):
            angle = (start + row) * math.exp(-i * math.log(1e4) / max(half - 1, 1))
            table[row, i], table[row, half + i] = math.sin(angle), math.cos(angle)
    return table


def embed(w, side, ids, c):
    x = w["source_embedding.weight" if c.share_embeddings else f"{side}_embedding.weight"][ids]
    x = x * (math.sqrt(c.d_model) if c.embedding_scale else 1.0)
    if c.mask_pad_embedding:
        x = np.where((ids == c.pad_token_id)[..., None], 0.0, x)
    if side == "source" and c.target_spaces:
        x = x + w["target_space_embedding.weight"][c.target_space_id]
    if c.positions == "learned":
        x = x + w[f"{side}_positions.weight"][: ids.shape[1]]
    return x + (sinusoids(0, ids.shape[1], c.d_model) if c.positions == "sinusoidal" else 0.0)


def logits(model, source, target, keep=None):
    """Scores of every next word: source (B, S), target (B, T) as the decoder reads it, keep (B, S)."""
    w, c = weights(model), model.config
    keep = (source != c.pad_token_id if keep is None else keep)[:, None]
    x = embed(w, "source", source, c)
    for i in range(c.encoder_layers):
        x = encoder_layer(w, f"encoder.layers.{i}.", x, c, keep)
    memory = layer_norm(w, "encoder.norm.", x, c.layer_norm_eps) if c.norm_first else x
    y = embed(w, "target", target, c)
    for i in range(c.decoder_layers):
        y = decoder_layer(w, f"decoder.layers.{i}.", y, memory, c, None, keep)
    y = layer_norm(w, "decoder.norm.", y, c.layer_norm_eps) if c.norm_first else y
    if not c.tie_word_embeddings:
        return linear(y, w["output.weight"], w.get("output.bias"))
    return linear(y, w["source_embedding.weight" if c.share_embeddings else "target_embedding.weight"])


def loss(scores, labels, smoothing, pad):
    """Cross-entropy to the target (1 − ε, each other word ε / (V − 1)) less its entropy, over the labels that count."""
    size, losses = scores.shape[-1], []
    for row, label in zip(scores.reshape(-1, size), labels.ravel(), strict=True):
        if label in (pad, -100):
            continue
        log_p = row - row.max() - math.log(np.exp(row - row.max()).sum())
        goal = np.full(size, smoothing / (size - 1))
        goal[label] = 1 - smoothing
        told = goal[goal > 0]
        losses.append(-(goal * log_p).sum() + (told * np.log(told)).sum())
    return float(np.mean(losses))
