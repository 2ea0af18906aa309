"""Networks in plain PyTorch: what is found in them, what is not, and what is said instead."""

import pytest
from plain_models import (
    Attention,
    D,
    GlobalResponseNorm,
    GluMlp,
    H,
    Inline,
    Interleaved,
    Layer,
    Mamba,
    Mixer,
    Mixture,
    Mlp,
    Perceptron,
    Projector,
    Raw,
    SqueezeExcite,
    Stack,
    SwiGLU,
    with_lora,
)
from torch import nn
from torch.nn import functional as F

from positionwise import FeedForward, account
from positionwise.adapters import find
from positionwise.transformer import TransformerForTranslation
from shared import config

PLAIN = (D, H, "gelu", False, None)
SIZE = 2 * D * H + D + H
GATED = 3 * D * H + D + 2 * H


def said(site):
    return site.d_model, site.d_ff, site.activation, site.is_gated, site.gate_half


def sequential():
    return nn.Sequential(nn.Linear(D, H), nn.GELU(), nn.Linear(H, D))


@pytest.mark.parametrize(
    ("make", "expected", "size"),
    [
        (Mlp, PLAIN, SIZE),
        (lambda: Mlp(norm=nn.LayerNorm), PLAIN, SIZE),
        (lambda: Mlp(nn.ReLU6), (D, H, "relu6", False, None), SIZE),
        (lambda: Mlp(norm=GlobalResponseNorm), PLAIN, SIZE),
        (lambda: Mlp(nn.Tanh), (D, H, "tanh", False, None), SIZE),
        (lambda: GluMlp(gate_last=False), (D, H, "silu", True, "first"), GATED),
        (lambda: GluMlp(gate_last=True), (D, H, "silu", True, "second"), GATED),
        (Interleaved, (D, H, "gelu", True, "odd"), 3 * D * H),
        (SwiGLU, (D, H, "silu", True, None), GATED),
        (sequential, PLAIN, SIZE),
        (lambda: FeedForward(D, H, activation="gelu"), PLAIN, SIZE),
        (lambda: FeedForward(D, H, activation="silu", is_gated=True), (D, H, "silu", True, None), GATED),
        (with_lora, PLAIN, SIZE),
        (Raw, (D, H, "relu", False, None), 2 * D * H),
    ],
)
def test_a_network_alone_and_in_a_layer(make, expected, size):
    (alone,) = find(make())
    assert (alone.path, said(alone), alone.per_instance) == ("", expected, size)
    model = Stack(Layer(make()), Layer(make()))
    found = find(model)
    assert [site.path for site in found] == ["layers.0.parts.0", "layers.1.parts.0"]
    assert [said(site) for site in found] == [expected] * 2
    assert all(site.position_wise and site.module is model.get_submodule(site.path) for site in found)
    assert found.unplaced == ()
    assert account(model).total == sum(parameter.numel() for parameter in model.parameters())


def test_which_of_two_maps_is_the_gate():
    (site,) = find(SwiGLU())
    assert [entry.path for entry in site.maps] == ["fc1_g", "fc1_x", "fc2"]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    ("activation", "name"),
    [("relu", "relu"), ("gelu", "gelu"), (F.silu, "silu"), (nn.Tanh(), "tanh"), (lambda z: F.relu(z) ** 2, "relu2")],
)
def test_pytorchs_own_layers(norm_first, activation, name):
    fields = {"activation": activation, "norm_first": norm_first, "batch_first": norm_first}
    layers = {
        "": nn.TransformerEncoderLayer(D, 2, H, **fields),
        "layer": nn.ModuleDict({"layer": nn.TransformerDecoderLayer(D, 2, H, **fields, bias=False)}),
    }
    for path, model in layers.items():
        (site,) = find(model)
        assert (site.path, said(site)) == (path, (D, H, name, False, None))
        assert [entry.path for entry in site.maps] == ["linear1", "linear2"]
        assert site.biases == ((path == ""),) * 2


def test_pytorchs_transformer():
    model = nn.Transformer(D, 2, 2, 3, H, activation="gelu", batch_first=True)
    found = find(model)
    assert [site.path for site in found] == [
        *(f"encoder.layers.{i}" for i in range(2)),
        *(f"decoder.layers.{i}" for i in range(3)),
    ]
    assert {said(site) for site in found} == {PLAIN}
    part = account(model).feed_forward
    assert [(group.path, group.total) for group in part.groups] == [
        ("encoder.layers.*", 2 * SIZE),
        ("decoder.layers.*", 3 * SIZE),
    ]


def test_our_own_transformer():
    found = find(TransformerForTranslation(config()))
    assert [site.path for site in found] == [
        f"{side}.layers.{i}.feed_forward" for side in ("encoder", "decoder") for i in range(2)
    ]
    assert {said(site) for site in found} == {(16, 24, "relu", False, None)}


def test_several_networks_in_a_layer_with_its_maps_in_itself():
    model = Stack(Inline(), Inline())
    found = find(model)
    assert [(site.path, said(site), [entry.path for entry in site.maps]) for site in found] == [
        (f"layers.{i}", *rest)
        for i in range(2)
        for rest in (
            ((D, H, "relu", False, None), ["up", "down"]),
            ((D, 32, "silu", True, None), ["gate", "up2", "down2"]),
        )
    ]
    assert found.unplaced == ()


def test_several_networks_in_parts_of_a_layer():
    found = find(Stack(Layer(Mlp(), SwiGLU())))
    assert [(site.path, site.is_gated) for site in found] == [("layers.0.parts.0", False), ("layers.0.parts.1", True)]


def test_a_network_across_the_tokens_is_not_position_wise():
    tokens, channels = find(Stack(Mixer()))
    assert (tokens.path, tokens.d_model, tokens.d_ff, tokens.position_wise) == ("layers.0.tokens", 9, 24, False)
    assert (channels.path, channels.d_model, channels.position_wise) == ("layers.0.channels", D, True)
    assert any("not position-wise" in note for note in tokens.notes)


def test_a_mixture_of_experts_is_one_network():
    (site,) = find(Stack(Layer(Mixture(experts=5, top_k=2))))
    assert (site.path, said(site)) == ("layers.0.parts.0", PLAIN)
    assert (site.mixture.experts, site.mixture.top_k) == (5, 2)
    assert site.per_instance == 5 * SIZE + 5 * D
    assert site.active == 2 * SIZE + 5 * D


def test_a_shared_block_is_one_site_and_tied_weights_are_two():
    layer = Layer(Mlp())
    shared = account(Stack(layer, layer, layer)).feed_forward
    assert (len(find(Stack(layer, layer, layer))), shared.instances, shared.applications) == (1, 1, 3)
    model = Stack(Layer(Mlp()), Layer(Mlp()))
    first, second = (layer.parts[0] for layer in model.layers)
    second.fc1.weight = first.fc1.weight
    counted = account(model)
    assert len(find(model)) == 2
    assert counted.feed_forward.total == 2 * SIZE - D * H
    assert counted.total == sum(parameter.numel() for parameter in model.parameters())


def test_what_lora_adds_is_counted_beside_the_network():
    model = Stack(Layer(with_lora()))
    part = account(model).feed_forward
    assert part.groups[0].per_instance == SIZE
    assert part.total == SIZE + 2 * 2 * (D + H)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Projector, "its output is not as wide as its input (12 → 32 → 32, gelu): a projection or a head"),
        (Perceptron, "a perceptron of three maps or more"),
        (SqueezeExcite, "no feed-forward network was recognised"),
        (Mamba, "what lies between them is not of one position alone"),
    ],
)
def test_what_only_looks_like_a_network_is_said_and_not_counted(make, reason):
    for model, place in ((make(), ""), (Stack(Layer(make())), "layers.0.parts.0")):
        found = find(model)
        assert len(found) == 0
        (said,) = [entry for entry in found.unplaced if entry.path == place]
        assert reason in said.reason
        assert str(said) == f"{place or 'the module itself'}: {said.reason}"


@pytest.mark.parametrize("norm", [nn.Identity, nn.BatchNorm2d])
def test_a_network_of_convolutions_of_one_position(norm):
    block = Layer()
    block.mlp = Mlp(nn.ReLU6, norm, conv=True)
    for model, path in ((block.mlp, ""), (Stack(block, block), "layers.0.mlp")):
        (site,) = find(model)
        assert (site.path, said(site), site.per_instance) == (path, (D, H, "relu6", False, None), SIZE)
        assert site.layout == "nn.Conv2d (out, in, 1, 1)"


@pytest.mark.parametrize("wide", [D, 20, 2 * D])
def test_attention_is_no_network_whatever_its_width(wide):
    assert len(find(Attention(wide))) == 0
    layer = Layer(Mlp())
    layer.attention = Attention(wide)
    assert [site.path for site in find(Stack(layer))] == ["layers.0.parts.0"]


def test_a_head_and_a_projector_beside_the_layers():
    body = Stack(Layer(Mlp()))
    model = nn.ModuleDict({"body": body, "projector": Projector(), "head": sequential()})
    found = find(model)
    assert [site.path for site in found] == ["body.layers.0.parts.0"]
    assert {entry.path for entry in found.unplaced} == {"projector", "head"}
    assert any("it stands outside of the layers" in entry.reason for entry in found.unplaced)


def test_a_model_without_networks():
    for model in (nn.Module(), nn.Sequential(), nn.Linear(3, 4), nn.Embedding(3, 4), nn.ModuleList([nn.Linear(3, 3)])):
        found = find(model)
        assert (len(found), found.unplaced) == (0, ())
