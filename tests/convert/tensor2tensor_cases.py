"""tensor2tensor's fixtures run through our modules: the relative error of every quantity.

Weights are loaded by ``from_tensor2tensor`` alone. A gradient is compared under the original's variable name: loading
``grad_var/*`` as if they were weights gives our gradients their places.
"""

from dataclasses import replace
from unittest import mock

import numpy as np
import torch

from positionwise import hidden_density
from positionwise.convert.tensor2tensor import convert_tensor2tensor
from positionwise.transformer.attention import additive_mask
from positionwise.transformer.embedding import sinusoids
from shared import shared_file


def archive(name):
    with np.load(shared_file(f"fixtures/tensor2tensor/{name}.npz"), allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def tensor(array, dtype):
    value = torch.from_numpy(np.array(array))
    return value.to(dtype) if value.is_floating_point() else value


def relative(ours, theirs):
    """The largest difference, as a share of the largest number."""
    ours, theirs = (torch.as_tensor(each).detach().double() for each in (ours, theirs))
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def convert(arrays, dtype, prefix="var/", **options):
    """What ``from_tensor2tensor`` makes of the arrays under a prefix, its rows too."""
    weights = {name[len(prefix) :]: value for name, value in arrays.items() if name.startswith(prefix)}
    wide = {name: value.astype(np.float64) for name, value in weights.items()}
    made = convert_tensor2tensor(wide, **options)
    made.module.to(dtype)
    return made


def load(arrays, dtype, **options):
    return convert(arrays, dtype, **options).module


def gradients(module, arrays, prefix="grad_var/", **options):
    """The error of the gradient of each of the original's variables, which may be several of our parameters."""
    stored = convert(arrays, torch.float64, prefix, **options)
    ours, theirs = dict(module.named_parameters()), dict(stored.module.named_parameters())
    assert ours.keys() == theirs.keys()
    errors = {}
    for row in stored.rows:
        names = row.target.split(", ")
        parts = ([part[name].flatten() for name in names] for part in ({n: p.grad for n, p in ours.items()}, theirs))
        errors[f"gradient of {row.source}"] = relative(*map(torch.cat, parts))
    return errors


def run(arrays, module, call, inputs, **options):
    """Errors of output, input gradients and parameter gradients of sum(out · R)."""
    dtype = next(module.parameters()).dtype
    given = [tensor(arrays[f"in/{name}"], dtype).requires_grad_() for name in inputs]
    y = call(*given)
    (y * tensor(arrays["R"], dtype)).sum().backward()
    errors = {"output": relative(y, arrays["out/y"])}
    for name, x in zip(inputs, given, strict=True):
        errors[f"gradient of {name}"] = relative(x.grad, arrays[f"grad_in/{name}"])
    return errors | gradients(module, arrays, **options)


def feed_forward(name, dtype=torch.float32):
    """The layer alone, with its hidden units and their density."""
    arrays = archive(name)
    padding = next((each for each in ("same", "left", "valid") if each in name), None)
    ffn = load(arrays, dtype, padding=padding)
    hidden = []
    hook = ffn.layer2.register_forward_pre_hook(lambda module, inputs: hidden.append(inputs[0].detach()))
    ffn(tensor(arrays["in/x"], dtype))
    hook.remove()
    errors = run(arrays, ffn, ffn, ["x"], padding=padding)
    stored = arrays["mid/h_relu"]
    errors["hidden units"] = relative(hidden[0].reshape(stored.shape), stored)
    logit = hidden_density.hidden_density_logit(hidden[0])
    return errors | {"hidden_density_logit": relative(logit, arrays["mid/hidden_density_logit"])}


def feed_forward_training(name, dtype=torch.float32):
    """The layer in training: dropout draws the stored mask, which is known where the ReLU let something through."""
    arrays = archive(name)
    ffn = load(arrays, dtype).train()
    rate, stored = float(arrays["meta/relu_dropout"]), arrays["mid/h_dropped"]
    mask = tensor(arrays["mid/keep_mask_where_relu_pos"], dtype).flatten(1, 2) / (1 - rate)
    hidden = []

    def draw(units, p, training):
        assert (training, p) == (True, rate)
        hidden.append(units.detach() * mask)
        return units * mask

    ffn.spec = replace(ffn.spec, backend="reference")  # the path that asks PyTorch's dropout
    ffn.dropout = rate
    with mock.patch("positionwise.functional.F.dropout", draw):
        errors = run(arrays, ffn, ffn, ["x"])
    logit = hidden_density.hidden_density_logit(hidden[0])
    errors["hidden units after dropout"] = relative(hidden[0].reshape(stored.shape), stored)
    return errors | {"hidden_density_logit": relative(logit, arrays["mid/hidden_density_logit"])}


def block(name, dtype=torch.float32):
    """The layer with residual and norm, for a choice of ``ffn_layer``."""
    arrays = archive(name)
    built = load(arrays, dtype)
    middle = built.feed_forward(tensor(arrays["in/x"], dtype))
    return run(arrays, built, built, ["x"]) | {"network": relative(middle, arrays["mid/ffn_out"])}


def encoder_layer(name, dtype=torch.float32):
    """Encoder layers behind the target space and the timing signal."""
    arrays = archive(name)
    heads = int(arrays["meta/num_heads"])
    layer = load(arrays, dtype, num_heads=heads)
    keep = tensor(arrays["mid/padding"], dtype) == 0
    space = tensor(arrays["var/target_space_embedding/kernel"], dtype)[int(arrays["meta/target_space_id"])]

    def call(emb):
        x = emb + space + sinusoids(0, emb.shape[1], emb.shape[2]).to(dtype)
        errors["input"] = relative(x, arrays["mid/encoder_input"])
        return layer(x, keep)

    errors = {}
    return run(arrays, layer, call, ["emb"], num_heads=heads) | errors


def attention(name, dtype=torch.float32):
    """Attention alone: to itself with a padding mask, or to a memory."""
    arrays = archive(name)
    layer = load(arrays, dtype, num_heads=4)
    mask = additive_mask(tensor(arrays["mid/bias"], dtype)[:, 0, 0] == 0, dtype)
    if "in/m" in arrays:
        return run(arrays, layer, lambda x, m: layer(x, m, mask), ["x", "m"], num_heads=4)
    return run(arrays, layer, lambda x: layer(x, mask=mask), ["x"], num_heads=4)


def model(name, dtype=torch.float32):
    """The whole model: logits, loss, and the loss's gradients."""
    arrays = archive(name)
    options = {key: int(arrays[f"meta/{key}"]) for key in ("num_heads", "target_space_id")}
    built = load(arrays, dtype, **options)
    ids, labels = (tensor(arrays[f"in/{side}"], dtype).long() for side in ("inputs", "targets"))
    out = built(input_ids=ids, labels=labels)
    out.loss.backward()
    stored = arrays["out/logits"]
    errors = {
        "logits": relative(out.logits.reshape(stored.shape), stored),
        "loss": relative(out.loss, arrays["out/loss"]),
    }
    return errors | gradients(built, arrays, "grad_loss_var/", **options)


def norm(name, dtype=torch.float32):
    """Layer norm of x, or of x + y."""
    arrays = archive(name)
    layer = load(arrays, dtype).feed_forward_norm
    inputs = [key for key in ("x", "y") if f"in/{key}" in arrays]
    given = [tensor(arrays[f"in/{key}"], dtype).requires_grad_() for key in inputs]
    y = layer(sum(given))
    (y * tensor(arrays["R"], dtype)).sum().backward()
    stored = convert(arrays, torch.float64, "grad_var/").module.feed_forward_norm
    errors = {"output": relative(y, arrays["out/y"])}
    errors |= {
        f"gradient of {key}": relative(x.grad, arrays[f"grad_in/{key}"]) for key, x in zip(inputs, given, strict=True)
    }
    return errors | {
        f"gradient of {key}": relative(getattr(layer, key).grad, getattr(stored, key)) for key in ("weight", "bias")
    }


def timing(name, dtype=torch.float32):
    """The timing signal added to zeros."""
    stored = archive(name)["out/y"]
    return {"output": relative(sinusoids(0, *stored.shape[1:])[None], stored)}


CASES = {
    **dict.fromkeys(["ffn_k1_d8_ff32", "ffn_k1_d16_ff64_4d_w1", "ffn_sep_k3_k3_same", "ffn_sep_k3_k3_left",
                     "ffn_sep_k3_k31_left", "ffn_sep_k3x3_left_4d"], feed_forward),
    **dict.fromkeys(["ffn_block_d16_ff32", "ffn_block_conv_hidden_relu_with_sepconv",
                     "ffn_block_parameter_attention"], block),
    "ffn_k1_dropout04_train": feed_forward_training,
    "encoder_layer_d16": encoder_layer,
    **dict.fromkeys(["mha_self_pad", "mha_encdec"], attention),
    **dict.fromkeys(["layer_norm_d8", "transformer_residual"], norm),
    "timing_signal_d16": timing,
    **dict.fromkeys(["transformer_full_d16_v37_shared", "transformer_full_d16_v21_paramattn"], model),
}  # fmt: skip


def measure(name, dtype=torch.float32):
    """The errors of a fixture by quantity."""
    return CASES[name](name, dtype)
