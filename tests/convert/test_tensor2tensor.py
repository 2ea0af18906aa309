"""tensor2tensor's variables: layouts, shards, what a file does not say, and what is refused."""

import re

import numpy as np
import pytest
import torch
from bundle_writer import write_bundle
from tensor2tensor_cases import archive

from positionwise import FeedForward
from positionwise.convert import from_tensor2tensor, join_shards, split_shards
from positionwise.convert.tensor2tensor import convert_tensor2tensor
from positionwise.errors import ConvertError
from positionwise.transformer import (
    EncoderLayer,
    FeedForwardBlock,
    ParameterAttention,
    TransformerConfig,
    TransformerForTranslation,
)
from positionwise.transformer.models import Encoder
from shared import shared_file

FULL = "transformer_full_d16_v37_shared"
OPTIONS = {"num_heads": 4, "target_space_id": 9}


def variables(name):
    return {key[4:]: value for key, value in archive(name).items() if key.startswith("var/")}


def logits(model):
    stored = archive(FULL)
    with torch.no_grad():
        out = model(input_ids=torch.from_numpy(stored["in/inputs"]).long(),
                    labels=torch.from_numpy(stored["in/targets"]).long())  # fmt: skip
    torch.testing.assert_close(out.logits, torch.from_numpy(stored["out/logits"])[:, :, 0, 0].to(out.logits.dtype),
                               rtol=2e-6, atol=2e-6)  # fmt: skip
    return out.logits


def test_the_checkpoint_is_the_model():
    source = shared_file("fixtures/tensor2tensor/checkpoint_v37_shared")
    made = convert_tensor2tensor(source, **OPTIONS)
    assert isinstance(made.module, TransformerForTranslation)
    assert not made.module.training
    logits(made.module)
    assert (len(made.rows), len(made.set_aside)) == (81, 163)
    assert {re.sub(r".*/", "", name) for name in made.set_aside} == {"Adam", "Adam_1", "global_step"}
    same = [from_tensor2tensor(each, **OPTIONS) for each in (
        source / "model.ckpt-1234", source / "model.ckpt-1234.index", str(source),
        shared_file(f"fixtures/tensor2tensor/{FULL}.npz"), archive(FULL), variables(FULL),
    )]  # fmt: skip
    assert all(torch.equal(logits(each), logits(made.module)) for each in same)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_of_several_files(tmp_path, shards):
    write_bundle(tmp_path / "model.ckpt-7", variables(FULL) | {"global_step": np.int64(7)}, shards=shards)
    logits(from_tensor2tensor(tmp_path / "model.ckpt-7", **OPTIONS))


def two_axes(arrays):
    """The layout from v1.3.0 on: kernels of two axes, ``ffn/conv1`` for ``conv_hidden_relu/conv1_single``."""
    renamed = {}
    for name, value in arrays.items():
        name = name.replace("conv_hidden_relu/", "ffn/").replace("_single/", "/")
        renamed[name] = value[0, 0] if value.ndim == 4 and value.shape[:2] == (1, 1) else value
    return renamed


def test_both_layouts_are_told_apart():
    for name in ("ffn_k1_d8_ff32", "ffn_block_d16_ff32"):
        old, new = from_tensor2tensor(variables(name)), from_tensor2tensor(two_axes(variables(name)))
        assert type(old) is type(new)
        assert all(torch.equal(one, new.state_dict()[key]) for key, one in old.state_dict().items())
    logits(from_tensor2tensor(two_axes(variables(FULL)), **OPTIONS))


@pytest.mark.parametrize("prefix", ["", "transformer/", "transformer/parallel_0/"])
def test_outer_scopes_do_not_matter(prefix):
    logits(from_tensor2tensor({prefix + name: value for name, value in variables(FULL).items()}, **OPTIONS))


def test_what_the_variables_are_decides_what_is_made():
    layer = {name: value for name, value in variables(FULL).items() if "encoder/layer_0/" in name}
    stack = {name: value for name, value in variables(FULL).items() if "/encoder/" in name}
    attention = {
        name: value for name, value in variables("ffn_block_parameter_attention").items() if "norm" not in name
    }
    norm = {name: value for name, value in variables("ffn_block_d16_ff32").items() if "norm" in name}
    assert type(from_tensor2tensor(variables("ffn_k1_d8_ff32"))) is FeedForward
    assert type(from_tensor2tensor(variables("ffn_block_d16_ff32"))) is FeedForwardBlock
    assert type(from_tensor2tensor(attention)) is ParameterAttention
    assert type(from_tensor2tensor(layer, num_heads=4)) is EncoderLayer
    assert type(from_tensor2tensor(stack, num_heads=4)) is Encoder
    block = from_tensor2tensor(norm)
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(block(x), block.feed_forward_norm(2 * x))  # ffn_layer none: LN(x + x)
    decoder = {name: value for name, value in variables(FULL).items() if "decoder/layer_1/" in name}
    renamed = {name.replace("layer_1/", "layer_0/"): value for name, value in decoder.items()}
    assert type(from_tensor2tensor(renamed, num_heads=4)).__name__ == "DecoderLayer"


def test_layers_are_in_the_order_of_their_numbers():
    stack = {name: value for name, value in variables(FULL).items() if "encoder/layer_0/" in name}
    many = {}
    for i in reversed(range(11)):
        many |= {name.replace("layer_0/", f"layer_{i}/"): value + i for name, value in stack.items()}
    encoder = from_tensor2tensor(many, num_heads=4)
    weights = [layer.self_attention.query.weight.detach() for layer in encoder.layers]
    assert [round((weight - weights[0]).mean().item()) for weight in weights] == [*range(11)]


def separate(rows=(37, 37)):
    """The model with three tables of their own, one shard each."""
    arrays = {name: value for name, value in variables(FULL).items() if "symbol_modality" not in name}
    rng = np.random.default_rng(0)
    for kind, size in (("input_emb", rows[0]), ("target_emb", rows[1]), ("softmax", rows[1])):
        table = rng.standard_normal((size, 16)).astype(np.float32)
        arrays[f"symbol_modality_{size}_16/{kind}/weights_0"] = table
    return arrays


@pytest.mark.parametrize("rows", [(37, 37), (37, 21)], ids=str)
def test_separate_tables(rows):
    model = from_tensor2tensor(separate(rows), **OPTIONS)
    held = [model.source_embedding.weight, model.target_embedding.weight, model.output.weight]
    stored = [value for name, value in separate(rows).items() if "symbol_modality" in name]
    assert all(np.array_equal(ours.detach().numpy(), theirs) for ours, theirs in zip(held, stored, strict=True))
    assert model.output.bias is None
    assert model(input_ids=torch.tensor([[5, 1]]), labels=torch.tensor([[7, 1]])).logits.shape == (1, 2, rows[1])


def test_two_vocabularies_do_not_share_a_table():
    arrays = variables(FULL) | {"symbol_modality_21_16/shared/weights_0": np.zeros((21, 16), np.float32)}
    with pytest.raises(ConvertError, match="one vocabulary in shared; got 37 and 'symbol_modality_21_16"):
        from_tensor2tensor(arrays, **OPTIONS)


@pytest.mark.parametrize("rows", [1, 15, 16, 37, 37_000])
@pytest.mark.parametrize("count", [1, 2, 16])
def test_shards_are_split_and_joined(rows, count):
    table = torch.arange(rows * 2.0).reshape(rows, 2)
    shards = split_shards(table, count)
    assert list(shards) == [f"weights_{i}" for i in range(count)]
    assert [len(shard) for shard in shards.values()] == [rows // count + (i < rows % count) for i in range(count)]
    assert torch.equal(join_shards(shards), table)
    assert torch.equal(
        join_shards({name: shard.numpy() for name, shard in split_shards(table.numpy(), count).items()}), table
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("body/encoder/layer_0/conv_hidden_relu/conv2_single/bias"), "conv2_single/bias'; got none"),
        (lambda v: v.update({"body/extra/kernel": np.zeros(3, np.float32)}), "known name; got 'body/extra/kernel'"),
        (lambda v: v.update({"body/encoder/layer_0/layer_norm/layer_norm_bias": np.zeros(15, np.float32)}),
         "; got 15 in 'body/encoder/layer_0/layer_norm/layer_norm_bias'"),
        (lambda v: v.update({"body/encoder/layer_0/layer_norm/layer_norm_bias": np.full(16, np.nan, np.float32)}),
         "finite numbers in 'body/encoder/layer_0/layer_norm/layer_norm_bias'"),
        (lambda v: v.update({"body/encoder/layer_0/layer_norm/layer_norm_bias": np.array([None] * 16)}),
         "numbers in 'body/encoder/layer_0/layer_norm/layer_norm_bias'"),
        (lambda v: v.update({"body/encoder/layer_0/layer_norm/layer_norm_bias": np.zeros(16, np.int32)}),
         "floating-point numbers in 'body/encoder/layer_0/layer_norm/layer_norm_bias'; got torch.int32"),
        (lambda v: v.pop("symbol_modality_37_16/shared/weights_7"), "got no weights_7"),
        (lambda v: v.pop("symbol_modality_37_16/shared/weights_15"), "37 rows in weights_0 to weights_14"),
        (lambda v: v.update({"symbol_modality_37_16/shared/weights_7": np.zeros((1, 16), np.float32)}),
         "2 of the table's 37 rows in 'symbol_modality_37_16/shared/weights_7', one of 16 shards; got 1"),
        (lambda v: v.update({"symbol_modality_37_16/shared/weights_7": np.zeros((2, 15), np.float32)}), "weights_7"),
        (lambda v: [v.pop(name) for name in list(v) if "encoder/layer_0" in name], "got no layer_0"),
        (lambda v: [v.pop(name) for name in list(v) if "/decoder/" in name], "encoder and decoder; got 2 and 0"),
        (lambda v: v.pop("body/decoder/layer_1/encdec_attention/kv_transform_single/kernel"), "kv_transform"),
        (lambda v: v.update({"body/encoder/layer_1/encoder_self_attention/qkv_transform_single/kernel":
                             np.zeros((1, 1, 16, 45), np.float32)}), "layer_1/encoder_self_attention/qkv_transform"),
        (lambda v: v.update({"body/encoder/layer_0/conv_hidden_relu/conv1_single/kernel":
                             np.zeros((3, 1, 16, 32), np.float32)}), "conv_hidden_relu/conv1_single/kernel"),
    ],
    ids=["missing", "extra", "shape", "nan", "objects", "integers", "shard missing", "last shard missing",
         "shard short", "shard narrow", "layer missing", "decoder missing", "map missing", "map narrow", "kernel wide"],
)  # fmt: skip
def test_what_is_wrong_is_named(change, message):
    arrays = variables(FULL)
    change(arrays)
    with pytest.raises(ConvertError) as error:
        from_tensor2tensor(arrays, **OPTIONS)
    assert message in str(error.value)
    assert len(str(error.value)) < 400


def test_every_renamed_variable_is_named():
    for name in variables(FULL):
        arrays = {key if key != name else f"{key}_x": value for key, value in variables(FULL).items()}
        with pytest.raises(ConvertError) as error:
            from_tensor2tensor(arrays, **OPTIONS)
        parts = name.rsplit("/", 2)
        assert any(part in str(error.value) for part in (name, "/".join(parts[-2:]), parts[-1])), error.value


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (FULL, {"target_space_id": 9}, "expected num_heads"),
        (FULL, {"num_heads": 4}, "expected target_space_id"),
        (FULL, {"num_heads": 5, "target_space_id": 9}, "5 heads divide"),
        ("ffn_sep_k3_k3_left", {}, "expected padding"),
    ],
)  # fmt: skip
def test_what_the_variables_do_not_say_must_be_said(name, options, message):
    with pytest.raises(ConvertError, match=message):
        from_tensor2tensor(variables(name), **options)


@pytest.mark.parametrize("source", [{}, {"a": np.zeros(3, np.float32)}, 7, {3: np.zeros(2)}], ids=str)
def test_a_source_that_is_none(source):
    with pytest.raises(ConvertError, match="^expected"):
        from_tensor2tensor(source)


def test_a_target_space_beyond_the_table():
    with pytest.raises(ValueError, match="target_space_id below target_spaces=32; got 32"):
        from_tensor2tensor(variables(FULL), num_heads=4, target_space_id=32)


def test_nothing_is_unpickled_from_an_archive(tmp_path):
    np.savez(tmp_path / "bad.npz", **{"ffn/conv1/kernel": np.array([print], dtype=object)})
    with pytest.raises(ConvertError, match="bad.npz.*'ffn/conv1/kernel'"):
        from_tensor2tensor(tmp_path / "bad.npz")
    (tmp_path / "cut.npz").write_bytes(shared_file(f"fixtures/tensor2tensor/{FULL}.npz").read_bytes()[:5000])
    with pytest.raises(ConvertError, match="cut.npz"):
        from_tensor2tensor(tmp_path / "cut.npz")
    with pytest.raises(ConvertError, match="expected a file at .*none.npz"):
        from_tensor2tensor(tmp_path / "none.npz")


@pytest.mark.parametrize(
    "keyword",
    ["strides", "dilation_rate", "data_format", "use_bias", "kernel_initializer", "kernel_regularizer", "force2d",
     "trainable", "name", "reuse"],
)  # fmt: skip
def test_keywords_that_reached_the_originals_convolutions_are_refused_by_name(keyword):
    for build in (FeedForward, TransformerConfig):
        with pytest.raises((TypeError, ValueError), match=keyword):
            build(d_model=8, d_ff=16, **{keyword: 1})
