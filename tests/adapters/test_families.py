"""What an attack on `find` and `account` found: options of families, and blocks that are built another way."""

import copy

import pytest
import torch
import transformers
from quiet import quietly
from torch import nn
from torch.nn import functional as F

from positionwise import account, find

SMALL = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
MOBILE = {**SMALL, "true_hidden_size": 12, "intra_bottleneck_size": 12, "embedding_size": 8}
GROUPED = {"num_hidden_groups": 2, "intermediate_size": 48, "embedding_size": 8}


def network(d, f):
    return 2 * d * f + d + f


@pytest.mark.parametrize(
    ("name", "options", "networks", "instances", "applications"),
    [
        ("Albert", {**SMALL, **GROUPED, "num_hidden_layers": 5}, 2 * network(24, 48), 2, 5),
        ("Bert", {**SMALL, "intermediate_size": 48, "chunk_size_feed_forward": 4}, 2 * network(24, 48), 2, 2),
        ("MobileBert", {**MOBILE, "intermediate_size": 12}, 8 * network(12, 12), 8, 8),
        ("MobileBert", {**MOBILE, "intermediate_size": 40}, 8 * network(12, 40), 8, 8),
        ("Hubert", {**SMALL, "num_conv_pos_embedding_groups": 2, "do_stable_layer_norm": True,
                    "feat_extract_norm": "layer", "intermediate_size": 48},
         2 * network(24, 48), 2, 2),
        ("Perceiver", {"num_blocks": 3, "num_self_attends_per_block": 2, "d_latents": 24, "d_model": 24,
                       "num_self_attention_heads": 2, "num_cross_attention_heads": 2}, 3 * network(24, 24), 3, 7),
        ("Funnel", {"vocab_size": 50, "d_model": 24, "d_inner": 48, "n_head": 2, "d_head": 12, "block_sizes": [1, 1],
                    "block_repeats": [1, 3], "num_decoder_layers": 1}, 3 * network(24, 48), 3, 5),
        ("SqueezeBert", {**SMALL, "embedding_size": 24, "intermediate_size": 48, "q_groups": 1, "k_groups": 1,
                         "v_groups": 1, "intermediate_groups": 4, "output_groups": 4},
         2 * (2 * 24 * 48 // 4 + 24 + 48), 2, 2),
    ],
)  # fmt: skip
def test_options_of_families(name, options, networks, instances, applications):
    with quietly():
        part = account(getattr(transformers, f"{name}Config")(**options)).feed_forward
    assert (part.total, part.instances, part.applications) == (networks, instances, applications)


def test_every_shared_block_is_proven():
    with quietly():
        kinds = [*["mamba"] * 3, "hybrid"] * 2 + ["hybrid"]
        config = transformers.Zamba2Config(num_mem_blocks=2, num_hidden_layers=9, layers_block_type=kinds)
        groups = account(config).feed_forward.groups
    assert {(group.gate_half, group.evidence) for group in groups} == {("first", "numbers")}
    assert (sum(group.applications for group in groups), sum(group.instances for group in groups)) == (3, 2)


@pytest.mark.parametrize("experts", [1, 8])
@pytest.mark.parametrize("shared", [8, 12])
def test_a_router_is_told_from_widths_that_are_the_number_of_experts(experts, shared):
    sizes = {"moe_intermediate_size": 8, "shared_expert_intermediate_size": shared, "num_experts_per_tok": 1}
    config = transformers.Qwen2MoeConfig(**SMALL, num_key_value_heads=2, num_experts=experts, **sizes)
    with quietly():
        (group,) = account(config).feed_forward.groups
    assert group.components[0].calculation == f"24 × {experts}"
    assert group.per_instance == 24 * experts + 3 * 24 * (8 * experts + shared) + 24
    assert group.active_per_instance == 24 * experts + 3 * 24 * (8 + shared) + 24


class Experts(nn.Module):
    """Stacked experts: the two best for each token, all of them at once, or each expert its own tokens."""

    def __init__(self, choice):
        super().__init__()
        self.choice = choice
        self.router = nn.Linear(16, 6, bias=False)
        self.w1 = nn.Parameter(torch.zeros(6, 16, 96))
        self.w2 = nn.Parameter(torch.zeros(6, 48, 16))

    def forward(self, x):
        flat = x.reshape(-1, 16)
        weights = self.router(flat).softmax(-1)
        if self.choice == "all":
            gate, up = torch.einsum("td,edf->tef", flat, self.w1).chunk(2, -1)
            return torch.einsum("tef,efd,te->td", F.silu(gate) * up, self.w2, weights).view(x.shape)
        chosen = weights.topk(2, -1).indices if self.choice == "best" else weights.topk(4, 0).indices
        out = torch.zeros_like(flat)
        for expert in range(6):
            rows = (chosen == expert).any(-1).nonzero()[:, 0] if self.choice == "best" else chosen[:, expert]
            gate, up = (flat[rows] @ self.w1[expert]).chunk(2, -1)
            out[rows] += (F.silu(gate) * up) @ self.w2[expert]
        return out.view(x.shape)


@pytest.mark.parametrize(("choice", "met"), [("best", 2), ("tokens of an expert", None)])
def test_how_many_experts_a_token_meets_is_seen_or_not_known(choice, met):
    (site,) = find(Experts(choice))
    assert (site.mixture.experts, site.mixture.top_k, site.d_model, site.d_ff) == (6, met, 16, 48)
    assert site.active == (96 + 2 * 3 * 16 * 48 if met else site.per_instance)


class Block(nn.Module):
    """A layer by itself: attention with one map for queries, keys and values, and a network with what is between."""

    def __init__(self, network, between=None):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(16), Attention(), nn.LayerNorm(16)
        self.mlp = network
        self.between = between

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        return self.proj(F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1)))


class Scaled(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.inner, self.between, self.outer = nn.Linear(16, 48), between, nn.Linear(48, 16)

    def forward(self, x):
        return self.outer(self.between(F.gelu(self.inner(x))))


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(48))

    def forward(self, x):
        return x * self.weight


@pytest.mark.parametrize("between", [nn.Identity(), nn.Dropout(0.5), nn.LayerNorm(48), Scale()], ids=repr)
def test_a_layer_by_itself_and_what_stands_between_the_maps(between):
    found = find(Block(Scaled(between)))
    ((site,), unplaced) = found.sites, found.unplaced
    assert (site.path, site.per_instance, unplaced) == ("mlp", network(16, 48), ())
    assert site.normed is (not isinstance(between, nn.Identity | nn.Dropout))
    equation = account(Block(Scaled(between))).feed_forward.groups[0].equation
    assert ("norm" in equation) is site.normed


class Called(nn.Module):
    """One class, whose function and flag are the instance's own."""

    def __init__(self, function, last):
        super().__init__()
        self.function, self.last = function, last
        self.wide, self.narrow = nn.Linear(16, 96), nn.Linear(48, 16)

    def forward(self, x):
        one, two = self.wide(x).chunk(2, -1)
        return self.narrow(one * self.function(two) if self.last else self.function(one) * two)


def test_layers_of_one_class_are_each_looked_at_where_they_hold_other_functions_or_flags():
    kinds = [(F.silu, False), (F.silu, True), (F.gelu, True), (torch.relu, False)]
    found = find(nn.ModuleList([Called(*kind) for kind in kinds]))
    assert [site.activation for site in found] == ["silu", "silu", "gelu", "relu"]
    assert [site.gate_half for site in found] == ["first", "second", "second", "first"]


def test_a_network_that_two_layers_share_is_not_missed_in_the_second():
    shared = Scaled(nn.Identity())
    counted = account(nn.Sequential(Block(shared), Block(shared)))
    part = counted.feed_forward
    assert (part.total, part.instances, part.applications, counted.unplaced) == (network(16, 48), 1, 2, ())


def test_a_parametrised_weight_is_not_asked_for():
    block = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(16, 48)), nn.ReLU(), nn.Linear(48, 16))
    before = copy.deepcopy(block.state_dict())
    assert account(block.train()).feed_forward.instances == 1
    assert all(torch.equal(value, before[name]) for name, value in block.state_dict().items())


class Told(nn.Module):
    """One class, told what to do by an integer, a dictionary, an object or its own place."""

    def __init__(self, how, kind):
        super().__init__()
        self.how, self.swap, self.options, self.layer_idx = how, kind, {"gelu": kind}, kind
        self.config = type("Config", (), {"gelu": kind})()
        self.inner, self.outer = nn.Linear(16, 48), nn.Linear(48, 16)

    def forward(self, x):
        told = {"integer": self.swap, "dictionary": self.options["gelu"], "object": self.config.gelu}
        z = self.inner(x)
        return self.outer(F.gelu(z) if told.get(self.how, self.layer_idx) else F.relu(z))


@pytest.mark.parametrize("how", ["integer", "dictionary", "object", "place"])
def test_layers_of_one_class_that_are_told_otherwise_are_each_looked_at(how):
    found = find(nn.ModuleList([Told(how, kind) for kind in (0, 1)]))
    assert [site.activation for site in found] == ["relu", "gelu"]


class Other(nn.Module):
    """Two maps that fit, in a layer with a network: a gate on the input, or the queries of attention."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.norm, self.mlp = kind, nn.LayerNorm(16), Scaled(nn.Identity())
        self.small = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16), nn.Sigmoid())
        self.attention = Queries()

    def forward(self, x):
        x = x * self.small(x) if self.kind == "gate" else x + self.attention(x)
        return x + self.mlp(self.norm(x))


class Queries(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        self.value = nn.Linear(16, 16)

    def forward(self, x):
        query = self.query(x)
        return F.scaled_dot_product_attention(query, query, self.value(x))


def test_gates_and_attentions_own_perceptrons_are_said_and_not_counted():
    found = find(nn.ModuleList([Other("gate"), Other("attention")]))
    assert [site.path for site in found] == ["0.mlp", "1.mlp"]
    reasons = {entry.path: entry.reason for entry in found.unplaced}
    assert "a gate" in reasons["0.small"]
    assert "a part of attention" in reasons["0.attention.query"]


class Listed(nn.Module):
    """Experts in a list, each behind a norm and a wrapper, of which a router chooses two."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(16), "net": Scaled(nn.Identity())}) for _ in range(6)
        )
        self.router = nn.Linear(16, 6, bias=False)

    def forward(self, x):
        flat = x.reshape(-1, 16)
        chosen = self.router(flat).topk(2, -1).indices
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).any(-1).nonzero()[:, 0]
            out[rows] += expert["net"](expert["norm"](flat[rows]))
        return out.view(x.shape)


def test_experts_of_a_list_are_a_mixture_whatever_they_are_wrapped_in():
    (site,) = find(Listed())
    assert (site.mixture.experts, site.mixture.top_k) == (6, 2)
    assert site.per_instance == 6 * network(16, 48) + 96


class Stack(nn.Module):
    """As many layers as its head has classes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Scaled(nn.Identity()) for _ in range(4))
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def test_a_stack_with_as_many_classes_as_layers_is_no_mixture():
    found = find(Stack())
    assert [(site.path, site.mixture) for site in found] == [(f"layers.{i}", None) for i in range(4)]


class Shared(Listed):
    """A mixture with a network for every token beside the chosen ones, all in one forward."""

    def __init__(self):
        super().__init__()
        self.shared = Scaled(nn.Identity())

    def forward(self, x):
        flat = x.reshape(-1, 16)
        weights, chosen = F.softmax(self.router(flat), -1).topk(2, -1)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            out[rows] += weights[rows, place, None] * expert["net"](expert["norm"](flat[rows]))
        return out.view(x.shape) + self.shared(x)


def test_a_shared_expert_beside_a_softmax_is_no_part_of_attention():
    (site,) = find(Shared())
    assert [part.name for part in site.components] == ["Router", "Experts", "Shared expert(s)"]
    assert site.per_instance == 7 * network(16, 48) + 96


def test_the_equation_of_a_clamped_gate_is_no_plain_product():
    sizes = {"intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    with quietly():
        (group,) = account(transformers.GptOssConfig(**SMALL, **sizes)).feed_forward.groups
    assert r"\operatorname{clamped swiglu}(W_1 x + b_1,\, V x + c)" in group.equation
    assert r"\odot" not in group.equation


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(16, 48), nn.Linear(16, 48), nn.Linear(48, 16)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * (1 + self.up(x)))


def test_what_is_added_to_the_linear_branch_is_in_the_equation():
    (group,) = account(Shifted()).feed_forward.groups
    assert group.activation == "silu, up + 1"
    assert r"\mathrm{SiLU}(W_1 x + b_1) \odot \left(V x + c + 1\right)" in group.equation
