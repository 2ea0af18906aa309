"""Accounts of specs, blocks, and modules that hold blocks."""

import pytest
import torch
from torch import nn

from positionwise import FeedForward, FFNSpec, account
from positionwise.transformer import TransformerForTranslation
from reference import VARIANTS
from shared import SEPARATE, config

OPTIONS = [
    {}, {"bias1": False}, {"bias2": False}, {"d_out": 5}, {"kernel_size": 3}, {"kernel_size": (3, 2), "dilation": 2},
    {"second_kernel_size": 31, "padding": "left"}, {"activation": nn.PReLU()}, {"activation": nn.PReLU(12)},
    {"is_gated": True}, {"is_gated": True, "bias_gate": False, "kernel_size": 5}, {"activation": torch.sin},
]  # fmt: skip


class Layer(nn.Module):
    """A block beside a parameter and a buffer of its own."""

    def __init__(self, d_ff=12):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.ffn = FeedForward(8, d_ff)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.zeros(5))


def numbers(module):
    return sum(parameter.numel() for parameter in module.parameters())


def rows(counted):
    return {row.name: row.parameters for row in counted.components}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_spec_and_its_block_have_one_account(options):
    spec = FFNSpec(8, 12, **options)
    block = FeedForward(8, 12, **options)
    for counted in (account(spec), account(block)):
        assert counted.total == counted.feed_forward.total == spec.parameters == numbers(block)
        assert counted.components == spec.components
        (group,) = counted.feed_forward.groups
        assert (group.path, group.instances, group.applications) == ("FeedForward", 1, 1)
        assert (group.d_model, group.d_ff, group.gated) == (8, 12, spec.is_gated)
        assert (group.equation, group.output.symbol) == (spec.equation, "y")
        assert counted.feed_forward.share == 1


def test_a_group_names_the_activation_and_the_output_width():
    for name, expected in (("gelu_tanh", "gelu_tanh"), ("swish", "silu"), (torch.sin, "sin"), (nn.PReLU(), "PReLU")):
        assert account(FFNSpec(8, 12, activation=name)).feed_forward.groups[0].activation == expected
    assert account(FFNSpec(8, 12, d_out=5)).feed_forward.groups[0].output.axes[-1] == ("5", "d_out")
    assert account(FFNSpec(8, 12)).feed_forward.groups[0].output.axes[-1] == ("8", "d_model")


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_variant(name):
    block = FeedForward.variant(name, 8, 12, match_parameters=True)
    assert account(block).total == numbers(block)


def test_independent_blocks_are_instances_of_one_group():
    counted = account(nn.ModuleList([FeedForward(8, 12), FeedForward(8, 12)]))
    (group,) = counted.feed_forward.groups
    assert (group.path, group.instances, group.applications) == ("*", 2, 2)
    assert (group.per_instance, group.total, counted.total, counted.tied) == (212, 424, 424, ())
    assert rows(counted) == {"*: First linear map": 216, "*: Second linear map": 208}


def test_blocks_of_different_sizes_are_groups_of_their_own():
    counted = account(nn.ModuleList([FeedForward(8, 12), FeedForward(8, 16), FeedForward(8, 12)]))
    assert [(group.d_ff, group.instances) for group in counted.feed_forward.groups] == [(12, 2), (16, 1)]
    counted = account(nn.ModuleList([FeedForward(8, 12), FeedForward(8, 12, activation="gelu")]))
    assert [group.activation for group in counted.feed_forward.groups] == ["relu", "gelu"]


def test_blocks_with_an_activation_of_their_own_are_still_of_one_kind():
    blocks = nn.ModuleList([FeedForward(8, 12, activation=nn.PReLU()) for _ in range(3)])
    counted = account(blocks)
    assert counted.total == counted.feed_forward.total == numbers(blocks) == 3 * 213
    assert [(group.instances, group.per_instance) for group in counted.feed_forward.groups] == [(3, 213)]


def once_under_two_names(kind):
    block = FeedForward(8, 12)
    if kind == "list":
        return nn.ModuleList([block, block])
    if kind == "names":
        return nn.ModuleDict({"first": block, "second": block})
    return nn.ModuleDict({"encoder": nn.ModuleList([block]), "decoder": nn.ModuleList([block])})


@pytest.mark.parametrize("kind", ["list", "names", "stacks"])
def test_one_block_under_two_names_is_counted_once_and_applied_twice(kind):
    counted = account(once_under_two_names(kind))
    part = counted.feed_forward
    assert (counted.total, part.total, part.instances, part.applications) == (212, 212, 1, 2)
    assert len(counted.tied) == 4


def test_nested_blocks_parameters_beside_them_and_buffers():
    model = nn.ModuleDict({"first": Layer(), "stack": nn.Sequential(Layer(), nn.Sequential(Layer()))})
    counted = account(model)
    assert [group.path for group in counted.feed_forward.groups] == ["first.ffn", "stack.*.ffn", "stack.*.*.ffn"]
    assert counted.total == numbers(model) == 3 * (212 + 16 + 3)
    assert (counted.feed_forward.total, counted.buffers) == (636, 15)
    assert rows(counted)["stack.1.0.scale"] == rows(counted)["first.scale"] == 3
    assert rows(counted)["first.norm.weight"] == 8


def test_a_module_without_blocks():
    counted = account(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    assert (counted.total, counted.buffers) == (24, 9)
    assert rows(counted) == {"0": 16, "1.weight": 4, "1.bias": 4}
    assert (counted.feed_forward.groups, counted.feed_forward.total, counted.feed_forward.share) == ((), 0, 0)


def test_a_layer_inside_a_block_may_be_any_module():
    block = FeedForward(8, 12)
    block.layer1 = nn.Sequential(nn.Linear(8, 12))
    assert account(block).total == 212


def test_a_block_tied_to_something_outside_is_counted_once():
    model = nn.ModuleDict({"table": nn.Embedding(12, 8), "ffn": FeedForward(8, 12)})
    model["ffn"].layer1.weight = model["table"].weight
    counted = account(model)
    assert counted.total == numbers(model) == 212
    assert counted.tied == (("table.weight", "ffn.layer1.weight"),)


def tie(first, second, what):
    if what == "weight":
        second.layer1.weight = first.layer1.weight
    else:
        setattr(second, what, getattr(first, what))


@pytest.mark.parametrize(("what", "total"), [("weight", 438 - 96), ("layer1", 438 - 108), ("activation", 438 - 7)])
def test_what_two_blocks_share_is_counted_once(what, total):
    blocks = nn.ModuleList([FeedForward(8, 12, activation=nn.PReLU(7)), FeedForward(8, 12, activation=nn.PReLU(7))])
    tie(*blocks, what)
    counted = account(blocks)
    assert counted.total == numbers(blocks) == total
    assert sum(row.parameters for row in counted.components) == total
    assert counted.tied[0][0].startswith("0.")
    assert counted.feed_forward.total <= total
    assert counted.feed_forward.share <= 1


def test_what_a_wrapped_layer_adds_is_counted():
    block = FeedForward(8, 12)
    block.layer1.adapter = nn.Linear(8, 2)  # as LoRA's are held
    block.layer1.register_forward_hook(lambda layer, args, y: y)
    model = nn.ModuleDict({"ffn": block, "other": nn.Linear(2, 2)})
    counted = account(model)
    assert counted.total == numbers(model) == 212 + 18 + 6
    assert sum(row.parameters for row in counted.components) == counted.total
    assert counted.feed_forward.groups[0].per_instance == 212


@pytest.mark.parametrize(
    "fields", [{}, {**SEPARATE, "tie_word_embeddings": False, "output_bias": True}, {"is_gated": True}], ids=str
)
def test_a_model_has_its_configurations_account(fields):
    with torch.device("meta"):
        built = TransformerForTranslation(config(**fields))
    whole, counted = account(config(**fields)), account(built)
    assert counted.total == whole.total == numbers(built)
    told = ("path", "instances", "applications", "components", "total")
    assert [[getattr(g, name) for name in told] for g in counted.feed_forward.groups] == [
        [getattr(g, name) for name in told] for g in whole.feed_forward.groups
    ]


def test_counting_changes_nothing_and_draws_nothing():
    block = FeedForward(8, 12)
    before, state = {name: value.clone() for name, value in block.state_dict().items()}, torch.get_rng_state()
    account(block, batch=2, sequence=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in block.state_dict().items())
    assert all(p.grad is None for p in block.parameters())
