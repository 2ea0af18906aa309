"""FLOPs and bytes against what PyTorch measures on a real forward pass."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from positionwise import FeedForward, FFNSpec, account
from positionwise.errors import AccountError
from positionwise.transformer import TransformerForTranslation
from reference import VARIANTS
from shared import SEPARATE, config

MODELS = [
    {}, {"key_dim": 5, "norm_first": True}, {**SEPARATE, "tie_word_embeddings": False, "output_bias": True},
    {"activation": "silu", "is_gated": True, "encoder_layers": 3, "decoder_layers": 1}, {"encoder_layers": 0},
    {"decoder_layers": 0, "positions": "learned", "max_positions": 20, "target_spaces": 2},
]  # fmt: skip
every_model = pytest.mark.parametrize("fields", MODELS, ids=str)
CONVENTION = "a multiply-add counts as two"


def measured(call):
    """FLOPs of a call; attention as the products that it is made of, which the counter sees on every device."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        call()
    return counter.get_total_flops()


@every_model
@pytest.mark.parametrize(("batch", "sequence"), [(2, 5), (1, 1), (3, 8)])
def test_a_models_flops_are_those_of_its_forward_pass(fields, batch, sequence):
    built, counted = TransformerForTranslation(config(**fields)).eval(), account(config(**fields), batch=batch,
                                                                                 sequence=sequence)  # fmt: skip
    ids = torch.full((batch, sequence), 3)
    assert counted.flops == counted.to_dict()["flops"] == measured(lambda: built(ids, None, ids))
    assert any(CONVENTION in note for note in counted.notes)


@every_model
def test_a_groups_flops_and_bytes_are_those_of_its_blocks(fields, saved_bytes):
    made = {**fields, "hidden_dropout": 0.1}
    built, counted = TransformerForTranslation(config(**made)).train(), account(config(**made), batch=2, sequence=5)
    x = torch.randn(2, 5, 16, requires_grad=True)
    assert len(counted.feed_forward.groups) == (built.config.encoder_layers > 0) + (built.config.decoder_layers > 0)
    for group in counted.feed_forward.groups:
        blocks = [layer.feed_forward for layer in getattr(built, group.path.partition(".")[0]).layers]
        assert group.applications == len(blocks)
        assert group.flops == measured(lambda blocks=blocks: [block(x) for block in blocks])
        assert group.saved_for_backward == sum(saved_bytes(block, x) for block in blocks)
        assert (group.flops, group.saved_for_backward) == tuple(
            group.to_dict()[key] for key in ("flops", "saved_for_backward")
        )


@pytest.mark.parametrize("name", sorted(VARIANTS))
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_blocks_flops_and_bytes(name, dropout, saved_bytes):
    block = FeedForward.variant(name, 8, 12, dropout=dropout)
    x = torch.randn(3, 7, 8, requires_grad=True)
    for target in (block, block.spec):
        (group,) = account(target, batch=3, sequence=7).feed_forward.groups
        assert group.flops == measured(lambda: block(x))
        assert group.saved_for_backward == saved_bytes(block, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("how", ["dtype", "to"])
def test_bytes_are_of_the_blocks_own_dtype(dtype, how, saved_bytes):
    block = FeedForward(8, 12, dtype=dtype) if how == "dtype" else FeedForward(8, 12).to(dtype)
    (group,) = account(block, batch=3, sequence=7).feed_forward.groups
    assert group.saved_for_backward == saved_bytes(block, torch.randn(3, 7, 8, dtype=dtype, requires_grad=True))


MIXED = {
    "dropout": [{"dropout": 0.0}, {"dropout": 0.5}],
    "activation": [{"activation": "relu", "dropout": 0.0}, {"activation": "gelu", "dropout": 0.0}],
    "dtype": [{"dtype": torch.float32}, {"dtype": torch.float64}],
}


@pytest.mark.parametrize("options", MIXED.values(), ids=MIXED)
def test_blocks_that_save_differently_are_summed_each_as_it_is(options, saved_bytes):
    blocks = nn.ModuleList([FeedForward(8, 12, **each) for each in options])
    expected = sum(
        saved_bytes(block, torch.randn(3, 7, 8, dtype=block.layer1.weight.dtype, requires_grad=True))
        for block in blocks
    )  # fmt: skip
    groups = account(blocks, batch=3, sequence=7).feed_forward.groups
    assert sum(group.saved_for_backward for group in groups) == expected


def test_a_block_that_is_applied_twice_costs_twice():
    block = FeedForward(8, 12)
    (once,) = account(block, batch=3, sequence=7).feed_forward.groups
    (twice,) = account(nn.ModuleList([block, block]), batch=3, sequence=7).feed_forward.groups
    assert (twice.flops, twice.saved_for_backward) == (2 * once.flops, 2 * once.saved_for_backward)
    assert twice.total == once.total


@pytest.mark.parametrize("options", [{"activation": torch.sin}, {"kernel_size": 3, "padding": "valid"}], ids=str)
def test_bytes_that_are_not_known_are_left_out(options):
    (group,) = account(FFNSpec(8, 12, **options), batch=3, sequence=7).feed_forward.groups
    assert group.saved_for_backward is None
    assert "saved_for_backward" not in group.to_dict()
    assert group.flops == FFNSpec(8, 12, **options).flops(21)


@pytest.mark.parametrize("target", ["transformer-base", FFNSpec(8, 12), FeedForward(8, 12), config()], ids=repr)
def test_without_sizes_there_are_no_costs(target):
    entry = account(target).to_dict()
    groups = entry["feed_forward"]["groups"]
    assert not any(key in part for part in (entry, *groups) for key in ("flops", "saved_for_backward"))
    assert not any(CONVENTION in note for note in entry["notes"])


@pytest.mark.parametrize("target", ["transformer-base", FFNSpec(8, 12), FeedForward(8, 12), config()], ids=repr)
@pytest.mark.parametrize(
    ("sizes", "words"),
    [({"batch": 2}, "both batch and sequence or neither; got 2 and None"),
     ({"sequence": 3}, "both batch and sequence or neither; got None and 3"),
     ({"batch": 0, "sequence": 3}, "at least 1; got 0 and 3"),
     ({"batch": 2, "sequence": -1}, "at least 1; got 2 and -1")],
)  # fmt: skip
def test_half_the_sizes_or_none_at_all_is_refused(target, sizes, words):
    with pytest.raises(AccountError, match=words):
        account(target, **sizes)


@pytest.mark.parametrize("sizes", [{"batch": 2.5, "sequence": 3}, {"batch": "2", "sequence": 3}], ids=str)
def test_sizes_that_are_no_integers_are_refused(sizes):
    with pytest.raises(AccountError, match="batch and sequence"):
        account(FFNSpec(8, 12), **sizes)
