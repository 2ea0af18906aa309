"""The model as a thing that is drawn, copied, saved and read."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from positionwise import FeedForward
from positionwise.transformer import TransformerForTranslation
from positionwise.transformer.embedding import Positions
from shared import SEPARATE, config, model, sentences

KINDS = [
    {}, {**SEPARATE, "tie_word_embeddings": False, "output_bias": True}, {"norm_first": True, "target_spaces": 2},
    {"positions": "learned", "max_positions": 9, "key_dim": 5},
    {"activation": "silu", "is_gated": True, "bias1": False}, {"ffn_layer": "none", "value_dim": 6},
    {"ffn_layer": "conv_hidden_relu_with_sepconv"}, {"ffn_layer": "parameter_attention", "parameter_key_dim": 3},
]  # fmt: skip
every_kind = pytest.mark.parametrize("fields", KINDS, ids=str)


def logits(built):
    torch.manual_seed(5)
    return built(input_ids=sentences(5, 3), labels=sentences(4, 6)).logits


def storages(built):
    return [p.untyped_storage().data_ptr() for p in built.parameters()]


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_what_is_saved_is_what_is_read(fields, dtype, tmp_path):
    built = model(dtype, **fields)
    built.save_pretrained(tmp_path)
    read = TransformerForTranslation.from_pretrained(tmp_path, dtype=dtype)
    assert not read.training
    assert read.dtype == dtype
    assert {n: p.tolist() for n, p in read.named_parameters()} == {n: p.tolist() for n, p in built.named_parameters()}
    assert torch.equal(logits(read), logits(built))
    assert read.config.to_dict() | {"_name_or_path": ""} == built.config.to_dict() | {"_name_or_path": ""}
    source = sentences(4, 6)
    assert torch.equal(read.generate(source, max_new_tokens=5), built.generate(source, max_new_tokens=5))


@every_kind
def test_a_change_of_dtype_after_reading(fields, tmp_path):
    built = model(torch.float32, **fields)
    built.save_pretrained(tmp_path)
    read = TransformerForTranslation.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in read.parameters()} == {torch.bfloat16}
    assert torch.equal(logits(read), logits(built.to(torch.bfloat16)))


@every_kind
def test_every_name_of_the_state_dict_has_its_own_storage(fields):
    built = model(**fields)
    state = built.state_dict()
    addresses = [value.untyped_storage().data_ptr() for value in state.values()]
    assert len(set(addresses)) == len(addresses) == len(list(built.parameters()))
    assert all(value.untyped_storage().nbytes() == 8 * value.numel() for value in state.values())


def test_a_state_dict_is_loaded_strictly():
    first, second = model(), model()
    assert not torch.equal(logits(first), logits(second))
    second.load_state_dict(first.state_dict(), strict=True)
    assert torch.equal(logits(first), logits(second))


@every_kind
def test_a_copy_is_equal_and_independent(fields):
    built = model(**fields)
    other = copy.deepcopy(built)
    before = logits(built)
    assert torch.equal(logits(other), before)
    assert not set(storages(built)) & set(storages(other))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(logits(built), before)


def test_every_layer_has_a_feed_forward_network_of_its_own():
    built = model(encoder_layers=6, decoder_layers=6)
    blocks = [part for part in built.modules() if isinstance(part, FeedForward)]
    assert len(blocks) == 12
    addresses = [p.untyped_storage().data_ptr() for block in blocks for p in block.parameters()]
    assert len(set(addresses)) == len(addresses) == 48
    with torch.no_grad():
        blocks[0].layer1.weight.zero_()
    assert all(block.layer1.weight.count_nonzero() for block in blocks[1:])


def draw(**fields):
    """A model with the weights that its constructor draws, wide enough to tell two distributions apart."""
    return TransformerForTranslation(config(d_model=16, d_ff=128, vocab_size=4000, key_dim=8, **fields))


def read_without(names, folder, **fields):
    """A model read from a file that lacks the parameters of which ``names`` is a part."""
    model(torch.float32, d_model=16, d_ff=128, vocab_size=4000, key_dim=8, **fields).save_pretrained(folder)
    file = folder / "model.safetensors"
    held = load_file(file)
    kept = {name: value for name, value in held.items() if not any(part in name for part in names)}
    assert len(kept) < len(held)
    save_file(kept, file, metadata={"format": "pt"})
    return TransformerForTranslation.from_pretrained(folder, dtype=torch.float32), kept


def published(built):
    """Embeddings N(0, 1/d_model), linear maps Glorot uniform with biases zero, norms one and zero."""
    seen = set()
    for name, part in built.named_modules():
        if isinstance(part, nn.Embedding) or isinstance(part, Positions) and part.kind == "learned":
            assert part.weight.std().item() == pytest.approx(0.25, rel=0.1 if part.weight.numel() > 3000 else 0.2), name
            assert abs(part.weight.mean().item()) < 0.25 * 5 / part.weight.numel() ** 0.5, name
        elif isinstance(part, nn.LayerNorm):
            assert (part.weight == 1).all() and not part.bias.any(), name  # noqa: PT018
        elif isinstance(part, nn.Linear):
            limit = (6 / sum(part.weight.shape)) ** 0.5
            assert 0.97 * limit < part.weight.abs().max().item() <= limit, name
            assert abs(part.weight.std().item() / limit * 3**0.5 - 1) < 0.1, name
            assert part.bias is None or not part.bias.any(), name
        else:
            continue
        seen.add(type(part))
    return seen


@pytest.mark.parametrize(
    "fields", [{}, {"target_spaces": 64, "share_embeddings": False, "positions": "learned", "max_positions": 300},
               {"tie_word_embeddings": False, "output_bias": True}, {"is_gated": True}, {"norm_first": True}], ids=str,
)  # fmt: skip
def test_thepublished_initialisation(fields):
    assert published(draw(**fields)) >= {nn.Embedding, nn.LayerNorm, nn.Linear}


def test_what_a_file_lacks_is_drawn_as_published(tmp_path):
    read, kept = read_without(["weight", "bias"], tmp_path, positions="learned", max_positions=300)
    assert not kept
    published(read)


@pytest.mark.parametrize("how", ["drawn", "read"])
def test_pytorchs_initialisation_is_that_of_every_map(how, tmp_path):
    fields = {"init": "pytorch", "tie_word_embeddings": False, "output_bias": True}
    built = draw(**fields) if how == "drawn" else read_without(["weight", "bias"], tmp_path, **fields)[0]
    maps = [part for part in built.modules() if isinstance(part, nn.Linear)]
    assert len(maps) == 2 * 6 + 2 * 10 + 1
    for part in maps:
        limit = part.in_features**-0.5
        assert 0.97 * limit < part.weight.abs().max().item() <= limit
        assert 0 < part.bias.abs().max().item() <= limit


@pytest.mark.parametrize("init", ["xavier_uniform", "pytorch"])
@pytest.mark.parametrize("lacking", ["encoder.layers.0.feed_forward.layer1.bias", "layers.1.self_attention.key.bias"])
def test_what_a_file_lacks_is_drawn_and_the_rest_is_read(init, lacking, tmp_path):
    read, kept = read_without([lacking], tmp_path, init=init)
    changed = [name for name, p in read.named_parameters() if name in kept and not torch.equal(p, kept[name])]
    assert changed == []


def test_two_models_draw_different_weights_and_a_seed_draws_the_same():
    first, second = draw(), draw()
    assert not torch.equal(first.source_embedding.weight, second.source_embedding.weight)
    torch.manual_seed(0)
    assert torch.equal(draw().encoder.layers[1].feed_forward.layer2.weight,
                       first.encoder.layers[1].feed_forward.layer2.weight)  # fmt: skip


def test_a_model_is_built_on_the_meta_device():
    with torch.device("meta"):
        built = TransformerForTranslation(config(d_model=512, d_ff=2048, num_heads=8))
    assert {p.device.type for p in built.parameters()} == {"meta"}
    out = built(input_ids=torch.ones(2, 3, dtype=torch.long, device="meta"),
                labels=torch.ones(2, 4, dtype=torch.long, device="meta"))  # fmt: skip
    assert out.logits.shape == (2, 4, 23)
