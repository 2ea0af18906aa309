"""Cases 14–20 of shared/cases: faults that users met in tools that count, each with its whole kind."""

import warnings

import pytest
import torch
from torch import nn
from torch.ao.quantization import quantize_dynamic
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from positionwise import FeedForward, FFNSpec, account
from positionwise.transformer import TransformerForTranslation
from shared import SIZES, config


def rows(counted):
    return {row.name: row.parameters for row in counted.components}


@pytest.mark.parametrize(
    ("part", "total"),
    [(nn.Linear(10, 10, bias=False), 100), (nn.Conv1d(4, 6, 3, bias=False), 72), (FeedForward(10, 20), 430)],
    ids=["linear", "convolution", "block"],
)
def test_case_14_a_module_used_twice_is_counted_once(part, total):
    for model in (nn.Sequential(part, nn.ReLU(), part), nn.ModuleList([part, nn.ModuleList([part])])):
        counted = account(model)
        assert counted.total == total
        assert len(counted.tied) == len(list(part.parameters()))


class Direct(nn.Module):
    """A parameter beside a child."""

    def __init__(self, child):
        super().__init__()
        self.child = child
        self.scale = nn.Parameter(torch.ones(7))


@pytest.mark.parametrize("child", [nn.Linear(3, 4), FeedForward(3, 4), nn.ReLU()], ids=lambda part: type(part).__name__)
def test_case_15_a_parameter_beside_children_is_counted(child):
    for model, name in ((Direct(child), "scale"), (nn.Sequential(Direct(child)), "0.scale")):
        counted = account(model)
        assert counted.total == 7 + sum(p.numel() for p in child.parameters())
        assert rows(counted)[name] == 7


def test_case_16_tied_embeddings_are_counted_once_and_said_so():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(50, 8)
            self.ffn = FeedForward(8, 12)
            self.output = nn.Linear(8, 50, bias=False)
            self.output.weight = self.table.weight

    counted = account(Language())
    assert counted.total == 400 + 212
    assert counted.to_dict()["tied"] == [["table.weight", "output.weight"]]
    tied, untied = account(config()), account(config(tie_word_embeddings=False))
    assert untied.total - tied.total == 23 * 16
    assert "once" in " ".join(tied.to_dict()["notes"])
    assert "once" in str(tied)


@pytest.mark.parametrize("part", [None, "layer1", "layer2"])
def test_case_17_frozen_parameters_are_in_the_total_and_on_a_line_of_their_own(part):
    model = nn.Sequential(nn.Linear(4, 8), FeedForward(8, 12))
    (model[0] if part is None else getattr(model[1], part)).requires_grad_(False)
    frozen = {None: 40, "layer1": 108, "layer2": 104}[part]
    counted = account(model)
    assert (counted.total, counted.trainable, counted.frozen) == (252, 252 - frozen, frozen)
    line = next(line for line in str(counted).splitlines() if "frozen" in line)
    assert line.split()[-1] == str(frozen)
    assert counted.to_dict()["trainable"] == 252 - frozen
    assert "frozen" not in str(account(FFNSpec(8, 12)))


def test_case_18_large_totals_are_exact_integers():
    table = account(nn.Embedding(61_416_549, 1, device="meta"))
    assert (type(table.total), table.total) == (int, 61_416_549)
    spec = FFNSpec(16_777_217, 16_777_219, bias2=False)  # 2²⁴ + 1 and 2²⁴ + 3: no float32 holds them
    total = 2 * 16_777_217 * 16_777_219 + 16_777_219
    counted = account(spec, batch=3, sequence=5)
    assert (counted.total, counted.to_dict()["total"]) == (total, total)
    assert f"{total:,}" in str(counted)
    assert counted.feed_forward.groups[0].flops == 2 * 15 * 2 * 16_777_217 * 16_777_219
    base = account("transformer-base", vocab_size=33_554_433)
    assert base.total == 63_098_880 + (33_554_433 - 37_000) * 512


class Packed(nn.Module):
    """A linear map of 4-bit numbers, two to a byte."""

    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        packed = torch.zeros(in_features * out_features // 2, 1, dtype=torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None


def quantised(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao says that it moves to torchao
        return quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["packed", "quantised", "float16"])
def test_case_19_packed_storage_counts_as_the_map_that_it_is(kind, bias):
    model = nn.Sequential(nn.Linear(8, 12, bias), nn.ReLU(), nn.Linear(12, 8, bias), nn.LayerNorm(8))
    if kind == "packed":
        model[0], model[2] = Packed(8, 12, bias), Packed(12, 8, bias)
    model = {"packed": lambda: model, "quantised": lambda: quantised(model), "float16": model.half}[kind]()
    counted = account(model)
    assert counted.total == 192 + (20 if bias else 0) + 16
    assert sum(rows(counted).values()) == counted.total


@pytest.mark.parametrize("kind", ["packed", "quantised", "float16"])
def test_case_19_a_block_of_packed_layers_counts_as_the_block_that_it_is(kind):
    model = nn.Sequential(FeedForward(8, 12))
    if kind == "packed":
        model[0].layer1, model[0].layer2 = Packed(8, 12), Packed(12, 8)
    model = {"packed": lambda: model, "quantised": lambda: quantised(model), "float16": model.half}[kind]()
    counted = account(model)
    assert counted.total == counted.feed_forward.total == 212


def measured(call):
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("sequence", [1, 4, 9])
def test_case_20_attention_counts_like_the_products_it_is_made_of(sequence):
    built = TransformerForTranslation(config()).eval()
    ids = torch.full((2, sequence), 3)
    assert account(config(), batch=2, sequence=sequence).flops == measured(lambda: built(ids, None, ids))


def test_case_20_flops_are_quadratic_in_the_sequence_length():
    at = {n: account(config(), batch=1, sequence=n).flops for n in (1, 2, 3, 4, 1000)}
    first = [at[n + 1] - at[n] for n in (1, 2, 3)]
    second = [first[1] - first[0], first[2] - first[1]]
    attentions = SIZES["encoder_layers"] + 2 * SIZES["decoder_layers"]
    assert second == [2 * 2 * 2 * attentions * SIZES["d_model"]] * 2  # two products, a multiply-add is two, Δ²(n²) = 2
    linear = at[1] - second[0] // 2
    assert at[1000] == 1000 * linear + 1_000_000 * second[0] // 2


def test_case_20_flops_are_linear_in_the_batch_and_of_the_feed_forward_networks_in_the_sequence():
    one, many = (account(config(), batch=batch, sequence=6) for batch in (1, 7))
    assert many.flops == 7 * one.flops
    short, long = (account(config(), batch=2, sequence=n).feed_forward.groups[0] for n in (3, 300))
    assert (long.flops, long.saved_for_backward) == (100 * short.flops, 100 * short.saved_for_backward)


def test_case_20_a_product_counts_alike_however_it_is_written():
    x, first, second = torch.randn(5, 8), torch.randn(8, 12), torch.randn(12, 8)
    counted = account(FeedForward(8, 12), batch=1, sequence=5).feed_forward.groups[0].flops
    assert counted == 2 * 2 * 5 * 8 * 12
    assert counted == measured(lambda: x @ first @ second) == measured(lambda: FeedForward(8, 12)(x))
