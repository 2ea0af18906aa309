"""Keras's fixtures run through our modules: the relative error of every quantity."""

import json
import math
from contextlib import contextmanager

import numpy as np
import torch
from tensor2tensor_cases import relative, tensor
from torch.nn import functional as F

from positionwise.convert.keras import convert_keras
from positionwise.transformer.attention import additive_mask
from shared import shared_file


def archive(name):
    with np.load(shared_file(f"fixtures/keras/{name}.npz"), allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def options(name, arrays):
    """What the weights alone do not say."""
    meta = json.loads(str(arrays["meta"]))
    config = meta.get("config", {})
    return {"activation": config.get("activation"), "norm_first": config.get("normalize_first")}


def convert(arrays, dtype, prefix="w:", **said):
    weights = {
        name[len(prefix) :]: value.astype(np.float64) for name, value in arrays.items() if name.startswith(prefix)
    }
    made = convert_keras(weights, **said)
    made.module.to(dtype)
    return made


def gradients(module, arrays, **said):
    stored = convert(arrays, torch.float64, "g:", **said).module
    theirs = {name: p.detach() for name, p in stored.named_parameters()}
    ours = dict(module.named_parameters())
    assert ours.keys() == theirs.keys()
    # A key's bias changes no softmax: its gradient is zero but for rounding, judged by its query's.
    scale = lambda name: theirs[name.replace("key.bias", "query.bias")].abs().max()  # noqa: E731
    return {
        f"gradient of {name}": float((ours[name].grad.double() - theirs[name]).detach().abs().max() / scale(name))
        for name in ours
    }


@contextmanager
def outputs_of(module):
    """The outputs of a module's children, and the hidden units, by name."""
    seen = {}
    hooks = [
        child.register_forward_hook(lambda m, i, y, name=name: seen.update({name: y.detach()}))
        for name, child in module.named_modules()
        if name
    ]
    hooks.append(module.feed_forward.layer2.register_forward_pre_hook(lambda m, x: seen.update(hidden=x[0].detach())))
    yield seen
    for hook in hooks:
        hook.remove()


def scores(attention, x, memory, keep):
    """The attention weights, which the layer itself does not return."""
    q, k = attention._split(attention.query(x)), attention._split(attention.key(memory))
    return (q @ k.mT / math.sqrt(q.shape[-1]) + additive_mask(keep, x.dtype)).softmax(-1)


def encoder(name, dtype=torch.float32):
    """The book's encoder block."""
    arrays = archive(name)
    layer = convert(arrays, dtype).module
    x = tensor(arrays["source"], dtype).requires_grad_()
    keep = tensor(arrays["source_mask"], dtype)
    with outputs_of(layer) as seen:
        y = layer(x, keep)
    (y * tensor(arrays["grad_output"], dtype)).sum().backward()
    found = {
        "output": (y, "output"),
        "output, nothing masked": (layer(x, torch.ones_like(keep)), "output_all_ones_mask"),
        "output, a row fully masked": (
            layer(x, tensor(arrays["source_mask_fully_masked_row0"], dtype)), "output_fully_masked_row0"
        ),
        "gradient of source": (x.grad, "grad_source"),
        "attention": (seen["self_attention"], "t:attn_out"),
        "attention weights": (scores(layer.self_attention, x, x, keep), "t:attn_scores"),
        "after the first norm": (seen["self_attention_norm"], "t:after_ln1"),
        "hidden units": (seen["hidden"], "t:ffn_hidden"),
        "network": (seen["feed_forward"], "t:ffn_out"),
    }  # fmt: skip
    return {key: relative(ours, arrays[stored]) for key, (ours, stored) in found.items()} | gradients(layer, arrays)


def decoder(name, dtype=torch.float32):
    """The book's decoder block."""
    arrays = archive(name)
    layer = convert(arrays, dtype).module
    x, memory = (tensor(arrays[side], dtype).requires_grad_() for side in ("target", "source"))
    keep = tensor(arrays["source_mask"], dtype)
    with outputs_of(layer) as seen:
        y = layer(x, memory, memory_mask=keep)
    (y * tensor(arrays["grad_output"], dtype)).sum().backward()
    causal = torch.ones(1, x.shape[1], x.shape[1], dtype=torch.bool).tril()
    found = {
        "output": (y, "output"),
        "gradient of target": (x.grad, "grad_target"),
        "gradient of source": (memory.grad, "grad_source"),
        "self-attention": (seen["self_attention"], "t:self_attn_out"),
        "self-attention weights": (scores(layer.self_attention, x, x, causal), "t:self_attn_scores"),
        "after the first norm": (seen["self_attention_norm"], "t:after_ln1"),
        "cross-attention": (seen["cross_attention"], "t:cross_attn_out"),
        "cross-attention weights": (
            scores(layer.cross_attention, seen["self_attention_norm"], memory, keep), "t:cross_attn_scores"
        ),
        "after the second norm": (seen["cross_attention_norm"], "t:after_ln2"),
    }  # fmt: skip
    return {key: relative(ours, arrays[stored]) for key, (ours, stored) in found.items()} | gradients(layer, arrays)


def hub_encoder(name, dtype=torch.float32):
    """KerasHub's encoder: no mask, a padding mask, and it joined with a causal one."""
    arrays = archive(name)
    layer = convert(arrays, dtype, **options(name, arrays)).module
    x, keep = tensor(arrays["inputs"], dtype), tensor(arrays["padding_mask"], dtype)
    pairs = keep[:, None, :] & tensor(arrays["attention_mask_causal"], dtype)
    found = {
        "output": (layer(x, keep), "output"),
        "output, padding and causal mask": (layer(x, pairs), "output_padding_and_causal"),
        "output, no mask": (layer(x), "output_no_mask"),
    }
    return {key: relative(ours, arrays[stored]) for key, (ours, stored) in found.items()}


def keras_loss(arrays, probabilities):
    """sum(w·ce) / (B·T): padding stands in the denominator."""
    labels, weights = (torch.from_numpy(arrays[name]) for name in ("labels", "sample_weight"))
    found = F.nll_loss(probabilities.log().flatten(0, 1), labels.long().flatten(), reduction="none")
    return (found * weights.flatten()).sum() / labels.numel()


def translation(name, dtype=torch.float32):
    """The book's model: forward, greedy ids, loss, and three steps of Keras's Adam."""
    arrays = archive(name)
    model = convert(arrays, dtype).module
    sources, targets = (torch.from_numpy(arrays[side]).long() for side in ("english", "spanish"))
    out = model(input_ids=sources, decoder_input_ids=targets)
    found = {
        "logits": (out.logits, "logits"),
        "probabilities": (out.logits.softmax(-1), "probs"),
        "encoder's output": (out.encoder_last_hidden_state, "encoder_output"),
        "decoder's output": (model.decode(targets, out[-1], sources != 0, None), "decoder_output"),
        "loss": (keras_loss(arrays, out.logits.softmax(-1)), "keras_loss"),
    }
    errors = {key: relative(ours, arrays[stored]) for key, (ours, stored) in found.items()}
    start = int(targets[0, 0])
    ids = model.generate(sources, decoder_start_token_id=start, eos_token_id=None, max_new_tokens=7, do_sample=False)
    errors["greedy ids that differ"] = float((ids != torch.from_numpy(arrays["greedy_ids_no_stop"])).sum())
    return errors | adam_steps(arrays, model, sources, targets)


def adam_steps(arrays, model, sources, targets):
    """Keras adds its ε to √v before the correction of v's bias: PyTorch's ε at step t is then ε / √(1 − β₂ᵗ)."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.999))
    losses = []
    for step in range(1, 4):
        optimizer.param_groups[0]["eps"] = 1e-7 / math.sqrt(1 - 0.999**step)
        loss = keras_loss(arrays, model(input_ids=sources, decoder_input_ids=targets).logits.softmax(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    after = model(input_ids=sources, decoder_input_ids=targets).logits.softmax(-1)
    stored = convert(arrays, torch.float64, "w_after_train:").module.state_dict()
    ours = model.state_dict()
    # Of a key's bias Adam makes steps of its gradient's rounding alone; the probabilities do not depend on it.
    worst = max(float((ours[name].double() - stored[name]).abs().max()) for name in ours if "key.bias" not in name)
    return {
        "losses of three steps": relative(torch.tensor(losses), arrays["train_losses"]),
        "probabilities after three steps": relative(after, arrays["probs_after_train"]),
        "weights after three steps, absolute": worst,
    }


CASES = {
    "encoder": encoder,
    "encoder_keydim16": encoder,
    "decoder": decoder,
    "hub_encoder_postnorm": hub_encoder,
    "hub_encoder_prenorm_gelu": hub_encoder,
    "translation": translation,
}


def measure(name, dtype=torch.float32):
    """The errors of a fixture by quantity."""
    return CASES[name](name, dtype)
