"""Models whose classes and attributes all have other names: what is found depends on structure, not on names."""

import ast
import inspect
import re
import sys
import types

import pytest
import torch
import transformers
from quiet import quietly
from torch import nn
from transformers.generation import GenerationMixin

from positionwise.accounting.placed import pattern
from positionwise.adapters import find

MODELS = {
    "LlamaForCausalLM": {"num_hidden_layers": 3},
    "GPT2LMHeadModel": {},
    "BertForMaskedLM": {"num_hidden_layers": 3},
    "T5ForConditionalGeneration": {"feed_forward_proj": "gated-gelu"},
    "BartForConditionalGeneration": {"encoder_layers": 2, "decoder_layers": 2},
    "Qwen2MoeForCausalLM": {"num_hidden_layers": 3},
    "GptOssForCausalLM": {"num_hidden_layers": 3},
    "GlmForCausalLM": {"num_hidden_layers": 3},
    "MoonshineForConditionalGeneration": {},
    "ModernBertForMaskedLM": {"num_hidden_layers": 4},
    "SegformerForSemanticSegmentation": {},
    "AlbertForMaskedLM": {},
    "Zamba2ForCausalLM": {
        "num_hidden_layers": 13,
        "layers_block_type": [*["mamba"] * 6, "hybrid", *["mamba"] * 5, "hybrid"],
    },
}
each_model = pytest.mark.parametrize("name", MODELS)


def built(cls):
    with quietly(), torch.device("meta"):
        return cls(cls.config_class(**MODELS[getattr(cls, "original", cls.__name__)]))


# Names that are the library's to read (of tensors, of its base classes, of PyTorch's layers, of what its attention
# functions ask of a module), so that no model can have others.
LIBRARY = {
    *dir(torch.Tensor), *dir(transformers.PreTrainedModel), *dir(GenerationMixin), *vars(nn.Linear(1, 1)),
    *vars(nn.Embedding(1, 1)), "weight", "bias", "config", "gradient_checkpointing", "num_key_value_groups",
    "is_causal", "norm",
}  # fmt: skip


class Renamer(ast.NodeTransformer):
    """Gives every class of a modeling file, and every attribute and method of its own, a name without meaning."""

    def __init__(self, tree):
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        methods = {f.name for c in classes for f in c.body if isinstance(f, ast.FunctionDef)} - {"forward"}
        stored = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
        own = sorted(name for name in (methods | stored) - LIBRARY if not name.startswith("__"))
        self.names = {name: f"a{index}" for index, name in enumerate(own)}
        self.names |= {node.name: f"C{index}" for index, node in enumerate(classes)}
        self.inside = 0

    def _in_text(self, node):
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " not in part.value:
                part.value = re.sub(r"\w+", lambda word: self.names.get(word[0], word[0]), part.value)

    def visit_ClassDef(self, node):
        node.name = self.names[node.name]
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                part.name = self.names.get(part.name, part.name)
            elif isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None:
                self._in_text(part.value)  # names of tied weights, the base model's prefix
        return self.visit_FunctionDef(node)

    def visit_FunctionDef(self, node):
        node.decorator_list = [one for one in node.decorator_list if "auto_docstring" not in ast.unparse(one)]
        return self.generic_visit(node)

    def visit_JoinedStr(self, node):
        self._in_text(node)
        return self.generic_visit(node)

    def visit_Name(self, node):
        node.id = self.names.get(node.id, node.id) if node.id in self.names and node.id[0].isupper() else node.id
        return node

    def visit_Attribute(self, node):
        self.generic_visit(node)
        owner = ast.unparse(node.value)
        if not owner.endswith("config") and owner.partition(".")[0] not in {"torch", "nn", "F", "math", "init"}:
            node.attr = self.names.get(node.attr, node.attr)
        return node


def renamed(name, monkeypatch):
    """The class of the model in a copy of its file in which everything is renamed."""
    original = sys.modules[getattr(transformers, name).__module__]
    tree = ast.parse(inspect.getsource(original))
    names = Renamer(tree)
    code = compile(ast.fix_missing_locations(names.visit(tree)), "renamed", "exec")
    module = types.ModuleType(f"{original.__package__}.renamed")
    module.__package__, module.__file__ = original.__package__, original.__file__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(code, module.__dict__)
    cls = getattr(module, names.names[name])
    cls.original = name
    return cls


def said(site):
    """Everything that a site says but its path, its modules and the names of its parameters."""
    return (
        site.path.count("."), site.d_model, site.d_ff, site.activation, site.is_gated, site.gate_half, site.layout,
        site.components, site.biases, site.position_wise, site.mixture, site.evidence, site.notes, site.active,
        [tuple(parameter.shape) for _, parameter in site.parameters],
    )  # fmt: skip


@each_model
def test_a_model_of_other_names_has_the_same_sites(name, monkeypatch):
    with quietly():
        model, other = built(getattr(transformers, name)), built(renamed(name, monkeypatch))
    words = {word for path, _ in other.named_modules() for word in path.split(".") if word and not word.isdigit()}
    assert all(re.fullmatch(r"a\d+|norm", word) for word in words)
    own = {type(part).__name__ for part in other.modules() if type(part).__module__.endswith("renamed")}
    assert own
    assert all(re.fullmatch(r"C\d+", word) for word in own)
    with quietly():
        expected, found = find(model), find(other)
    assert expected
    assert [said(site) for site in found] == [said(site) for site in expected]
    assert bool(found.unplaced) == bool(expected.unplaced)


def scramble(model):
    """Gives the parts of a built model other names and other classes, so that its code, which is left, does not run."""
    kinds = {}
    for part in list(model.modules()):
        if not isinstance(part, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            part._modules = {f"a{index}": child for index, child in enumerate(part._modules.values())}
        cls = type(part)
        part.__class__ = kinds.setdefault(cls, type(f"C{len(kinds)}", (cls,), {}))


def counted(site):
    return frozenset(id(parameter) for _, parameter in site.parameters)


def is_told(path, found):
    """Whether a place, one like it in the same stack, or one around or in it is among what could not be placed."""
    place = pattern(path) + "."
    told = [pattern(entry.path) + "." for entry in found.unplaced]
    return any(place.startswith(one) or one.startswith(place) for one in told)


@each_model
def test_where_no_code_runs_a_site_is_found_by_structure_or_told(name):
    with quietly():
        model = built(getattr(transformers, name))
        before = find(model)
        scramble(model)
        after = find(model)
    assert before
    places = {id(part): path for path, part in model.named_modules()}
    known, whole = {counted(site): site for site in before}, {counted(site) for site in after}
    for site in after:
        same = known.get(counted(site))
        if same is None:  # a mixture's shared expert by itself: the mixture is told then
            assert any(counted(site) < parameters and one.mixture for parameters, one in known.items())
            continue
        assert (site.d_model, site.d_ff, site.is_gated) == (same.d_model, same.d_ff, same.is_gated)
        assert (site.components, site.position_wise) == (same.components, same.position_wise)
        assert site.gate_half in (same.gate_half, None)
    for parameters in known.keys() - whole:
        assert is_told(places[id(known[parameters].module)], after)


def test_some_sites_are_found_by_structure_alone():
    with quietly():
        model = built(transformers.BertForMaskedLM)
        scramble(model)
        found = find(model)
    assert [(site.evidence, site.d_model, site.d_ff, site.activation) for site in found] == [
        ("structure", 768, 3072, "gelu")
    ] * 3
