"""Every way to spoil one of tensor2tensor's variables is an error that names it."""

import numpy as np
import pytest
from tensor2tensor_cases import archive

from positionwise.convert import from_tensor2tensor, join_shards
from positionwise.errors import ConvertError


def separable(taps=(3, 1), second=(31, 1), **sizes):
    """A network of wide kernels alone."""
    return network("conv_hidden_relu", taps, second, **sizes)


def network(scope, *taps, d_model=6, d_ff=10):
    rng, arrays = np.random.default_rng(0), {}
    for i, (into, out) in enumerate(((d_model, d_ff), (d_ff, d_model))):
        at = f"{scope}/conv{i + 1}_single"
        arrays |= {f"{at}/depthwise_kernel": rng.standard_normal((*taps[i], into, 1)),
                   f"{at}/pointwise_kernel": rng.standard_normal((1, 1, into, out)),
                   f"{at}/bias": rng.standard_normal(out)}  # fmt: skip
    return arrays


def variables(name):
    return {key[4:]: value for key, value in archive(name).items() if key.startswith("var/")}


def layer(model, side):
    return {name: value for name, value in variables(model).items() if f"body/{side}/layer_0/" in name}


def wide_layer():
    """A layer of the kind with wide kernels."""
    arrays = layer("transformer_full_d16_v37_shared", "encoder")
    scope = "body/encoder/layer_0/conv_hidden_relu"
    kept = {name: value for name, value in arrays.items() if not name.startswith(scope)}
    return kept | network(scope, (3, 1), (31, 1), d_model=16, d_ff=32)


FULL, LEARNED = "transformer_full_d16_v37_shared", "transformer_full_d16_v21_paramattn"
WHOLE = {"num_heads": 4, "target_space_id": 9}
SOURCES = {
    "model": (variables(FULL), WHOLE),
    "model of parameter attention": (variables(LEARNED), WHOLE),
    "encoder layer": (layer(FULL, "encoder"), {"num_heads": 4}),
    "decoder layer": (layer(LEARNED, "decoder"), {}),
    "wide layer": (wide_layer(), {"num_heads": 4}),
    "network": (variables("ffn_k1_d8_ff32"), {}),
    "wide network": (separable(), {"padding": "same"}),
    "block": (variables("ffn_block_d16_ff32"), {}),
    "parameter attention": (variables("ffn_block_parameter_attention"), {}),
    "self-attention": (variables("mha_self_pad"), {"num_heads": 4}),
    "cross-attention": (variables("mha_encdec"), {"num_heads": 4}),
}
CHANGES = {
    "a column short": lambda a: a[..., :-1],
    "a column more": lambda a: np.concatenate([a, a[..., :1]], -1),
    "a row short": lambda a: a[..., :-1, :] if a.ndim > 1 else a[:-1],
    "an axis more": lambda a: a[None],
    "flat": lambda a: a.reshape(-1) if a.ndim > 1 else a[:, None],
    "no axes": lambda a: np.float64(1),
    "empty": lambda a: a[:0],
    "all empty": lambda a: np.zeros(0),
    "nan": lambda a: a * np.nan,
    "integers": lambda a: a.astype(int),
    "a string": lambda a: "x",
    "ragged": lambda a: [[1.0], [1.0, 2.0]],
}
# What is as good a network as before: another d_model or d_out, another kernel, another table of target spaces.
LEGAL = {
    ("network", "a row short", "conv1_single/kernel"), ("wide network", "a row short", "depthwise_kernel"),
    ("model", "a row short", "target_space_embedding/kernel"),
    ("model of parameter attention", "a row short", "target_space_embedding/kernel"),
}  # fmt: skip


def some(arrays):
    """All names, or a whole model's every fifth."""
    return [*arrays][:: 5 if len(arrays) > 40 else 1]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("source", SOURCES)
def test_the_variable_that_is_wrong_is_the_one_that_is_named(source, change):
    arrays, options = SOURCES[source]
    from_tensor2tensor(arrays, **options)
    for name in some(arrays):
        if any(source == at and change == how and name.endswith(end) for at, how, end in LEGAL):
            continue
        with pytest.raises(ConvertError) as error:
            from_tensor2tensor({**arrays, name: CHANGES[change](arrays[name])}, **options)
        assert repr(name) in str(error.value), (name, str(error.value))
        assert len(str(error.value)) < 400
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", SOURCES)
def test_the_variable_that_is_missing_or_renamed_is_the_one_that_is_named(source):
    arrays, options = SOURCES[source]
    for name in some(arrays):
        left = {key: value for key, value in arrays.items() if key != name}
        for given in (left, left | {f"{name}_x": arrays[name]}, left | {f"other/{name}": arrays[name]}):
            with pytest.raises(ConvertError) as error:
                from_tensor2tensor(given, **options)
            parts = (name.removeprefix("body/"),) if "space" in name else (name,)
            if "weights_" in name:
                parts = name.rpartition("/")[::2]
            assert all(part in str(error.value) for part in parts), (name, str(error.value))


@pytest.mark.parametrize("source", SOURCES)
def test_a_variable_too_many_is_named(source):
    arrays, options = SOURCES[source]
    for name in some(arrays):
        with pytest.raises(ConvertError, match=f"'{name}_copy'"):
            from_tensor2tensor(arrays | {f"{name}_copy": arrays[name]}, **options)


@pytest.mark.parametrize("shard", range(16))
def test_each_shard_has_its_own_size(shard):
    arrays = variables(FULL)
    name = f"symbol_modality_37_16/shared/weights_{shard}"
    size = len(arrays[name])
    for rows in {2, 3, 1, 4, 0} - {size}:
        with pytest.raises(ConvertError, match=f"expected {size} of the table's 37 rows in '{name}', one of 16 shards; "
                                               f"got {rows}"):  # fmt: skip
            from_tensor2tensor({**arrays, name: np.zeros((rows, 16), np.float32)}, **WHOLE)


def test_shards_alone_are_held_to_their_axes():
    for shards in ({"a": np.float32(1)}, {"a": np.ones((2, 3)), "b": np.ones(3)}, {"a": np.ones((1, 2, 3))}):
        with pytest.raises(ConvertError, match=f"in '{[*shards][-1]}'"):
            join_shards(shards)
    with pytest.raises(ConvertError, match="at least one row and one shard"):
        join_shards({})


def test_an_option_of_an_archive_is_an_integer():
    for value in (np.ones(2), np.float32(4), np.array("four")):
        with pytest.raises(ConvertError, match="expected an integer in 'meta/num_heads'"):
            from_tensor2tensor({**archive(FULL), "meta/num_heads": value})


def test_wide_kernels_of_a_layer_are_of_the_published_sizes():
    scope = "body/encoder/layer_0/conv_hidden_relu"
    for taps, second, guilty in (((5, 1), (31, 1), "conv1"), ((3, 1), (3, 1), "conv2"), ((1, 1), (31, 1), "conv1")):
        arrays = wide_layer() | network(scope, taps, second, d_model=16, d_ff=32)
        with pytest.raises(ConvertError, match=f"in a layer's '{scope}/{guilty}_single/depthwise_kernel'"):
            from_tensor2tensor(arrays, num_heads=4)


def test_an_even_kernel_cannot_be_causal():
    with pytest.raises(ConvertError, match=r"odd kernel sizes with padding 'left'; got \(2, 1\)"):
        from_tensor2tensor(separable((2, 1), (3, 1)), padding="left")
