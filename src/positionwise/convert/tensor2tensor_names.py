"""What tensor2tensor's names say: which variables are an optimizer's, and which parts the others belong to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from positionwise.errors import ConvertError

# Optimizers' slots by the name that TensorFlow gives them, and counters and averages of the training.
_SLOT = re.compile(
    r"(^|/)(Adam|AdamW|LazyAdam|Nadam|AMSGrad|Adadelta|Adagrad|ProximalAdagrad|Momentum|RMSProp|Ftrl|GradientDescent|"
    r"Adafactor|ExponentialMovingAverage)(_\d+)?$"
)
_COUNTER = re.compile(
    r"(^|/)(beta\d_power|global_step|learning_rate|\w*loss_scale\w*|good_steps|problem_\d+_steps)(_\d+)?$"
    r"|^(training|optimize|OptimizeLoss|losses_avg|train_stats)/"
)
TABLE = re.compile(r"(?:.*/)?symbol_modality_(\d+)_(\d+)/(shared|input_emb|target_emb|softmax)/weights_(\d+)$")
TARGET_SPACE = re.compile(r"(.*/)?target_space_embedding/kernel$")
LAYER = re.compile(r"(?:.*?/)??(encoder|decoder)/layer_(\d+)$")
# Where a model's own names begin. Data parallelism puts its scopes before the layers, not before the tables.
_BEGINNING = re.compile(
    r"(?:^|/)(?:body/)?(?:model/)?(?:parallel_\w+/)?(?:body/)?"
    r"(?:(?:encoder|decoder)/layer_\d+/|target_space_embedding/kernel$|symbol_modality_\d+_\d+/)"
)
LEAF = re.compile(
    r"(?:(?P<scope>.*)/)?(?:(?P<map>qkv_transform|q_transform|kv_transform|output_transform|conv1|conv2)(?:_single)?/"
    r"(?P<part>kernel|bias|depthwise_kernel|pointwise_kernel)|(?P<leaf>layer_norm_scale|layer_norm_bias|k|v))$"
)
"""A variable of a part, and the part's scope: a map's, a norm's, or the keys and values of parameter attention."""


def optimizer_variables(names: Iterable[str]) -> list[str]:
    """The names of an optimizer's variables.

    TensorFlow calls a slot ``VARIABLE/SLOT``, perhaps inside scopes of the optimizer's own. No weight is called so: a
    variable is no scope.
    """
    known = set(names)

    def is_slot(name: str) -> bool:
        scopes = name.split("/")[:-1]
        return any("/".join(scopes[start : end + 1]) in known for end in range(len(scopes)) for start in range(end + 1))

    return [name for name in known if _COUNTER.search(name) or _SLOT.search(name) or is_slot(name)]


def refuse_foreign(names: Iterable[str]) -> None:
    """All of one model's variables stand under one prefix; those under another are not of a known name."""
    roots: dict[str, list[str]] = {}
    for name in names:
        if match := _BEGINNING.search(name):
            roots.setdefault(name[: match.start()], []).append(name)
    first, *others = sorted(roots.items(), key=lambda item: -len(item[1])) or [("", [])]
    if others:
        where = f"under the prefix {first[0]!r}" if first[0] else "without a prefix"
        raise ConvertError(f"expected all of the model's tensors {where}, as {first[1][0]!r}; got {others[0][1][0]!r}")


class Units:
    """The parts that variables form, by kind: scopes, and how many variables each has."""

    def __init__(self, names: Iterable[str]) -> None:
        matches = [match for name in names if (match := LEAF.match(name))]
        self.learned = {match["scope"] or "" for match in matches if match["leaf"] in ("k", "v")}
        self.counts: dict[str, Counter[str]] = {}
        for match in matches:
            self.counts.setdefault(self.kind(match), Counter())[match["scope"] or ""] += 1

    def kind(self, match: re.Match[str]) -> str:
        """The kind of a variable's part: ``parameter_attention``, ``attention``, ``feed_forward`` or ``norm``."""
        if match["leaf"] in ("layer_norm_scale", "layer_norm_bias"):
            return "norm"
        if match["map"] in ("conv1", "conv2"):
            return "feed_forward"
        return "parameter_attention" if (match["scope"] or "") in self.learned else "attention"

    @property
    def kinds(self) -> set[str]:
        """The kinds of which there is a part; one variable of a part's four or more is a stray name, not a part."""
        return {kind for kind, found in self.counts.items() if kind == "norm" or max(found.values()) > 1}

    def within(self, kind: str, scope: str = "") -> Counter[str]:
        """The parts of a kind at a scope or inside it."""
        found = self.counts.get(kind, Counter())
        inside = f"{scope}/" if scope else ""
        return Counter({name: count for name, count in found.items() if name == scope or name.startswith(inside)})

    def only(self, kind: str, scope: str = "") -> str | None:
        """The scope of the one part of a kind, that of most variables; None where there is none."""
        ranked = self.within(kind, scope).most_common(2)
        if len(ranked) == 2 and ranked[0][1] == ranked[1][1] > 1:
            what = kind.replace("_", " ")
            raise ConvertError(f"expected variables of one part; got {what} in {ranked[0][0]!r} and {ranked[1][0]!r}")
        return ranked[0][0] if ranked else None

    def layers(self) -> Counter[str]:
        """The scopes that attention and norms stand in."""
        found: Counter[str] = Counter()
        for kind in ("attention", "norm"):
            for scope, count in self.within(kind).items():
                found[scope.rpartition("/")[0]] += count
        return found


def layer_scopes(units: Units) -> dict[str, list[str]]:
    """The scopes of the encoder's and of the decoder's layers, in their order.

    One layer may have any number, or none: then what stands in it says which side it is of.
    """
    found: dict[str, dict[int, str]] = {"encoder": {}, "decoder": {}}
    ranked = [scope for scope, _ in units.layers().most_common()]
    for scope in ranked:
        if match := LAYER.match(scope):
            found[match[1]].setdefault(int(match[2]), scope)
    layers = [scope for side in found.values() for scope in side.values()]
    if not ranked:
        return {"encoder": [], "decoder": []}
    if len(layers) < 2:
        scope = (layers or ranked)[0]
        parts = {name.rpartition("/")[2] for name in units.within("attention", scope)}
        side = "decoder" if parts & {"decoder_self_attention", "encdec_attention"} else "encoder"
        return {"encoder": [], "decoder": [], side: [scope]}
    for side, numbered in found.items():
        if missing := set(range(len(numbered))) - numbered.keys():
            raise ConvertError(f"expected layers 0 to {max(numbered)} of the {side}; got no layer_{min(missing)}")
    return {side: [numbered[i] for i in range(len(numbered))] for side, numbered in found.items()}
