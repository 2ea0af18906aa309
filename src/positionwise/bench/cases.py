"""What is measured: rows of cases, as data that also travels on a worker's command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from positionwise.errors import SpecError, unknown_name

TOKENS = (1, 4, 16, 64, 256, 1024, 4096)
ENGINES = ("onnxruntime", "openvino")
"""Contenders that only some users have installed."""
OURS = "positionwise"
VARIANTS: dict[str, dict[str, Any]] = {f"{OURS} lean": {"backend": "lean"}, f"{OURS} float32": {"dtype": "float32"}}
"""Contenders that are our own block with other options."""
_LABELS = {("relu", False): "ReLU", ("gelu", False): "GELU", ("relu", True): "ReGLU", ("silu", True): "SwiGLU"}


@dataclass(frozen=True)
class Case:
    """One block at one number of tokens, and who is to compute it."""

    row: str
    mode: str
    """``forward``, without gradients, or ``train``: forward and backward."""
    d_model: int
    d_ff: int
    tokens: int
    activation: str = "relu"
    is_gated: bool = False
    dtype: str = "float32"
    density: float = 0.5
    """Share of positive pre-activations, set by the first map's bias."""
    backend: str = "auto"
    recompute: bool = False
    between: bool = False
    """Whether a LayerNorm stands before the block and a linear map after it, both timed too."""
    memory: str = ""
    """Bytes to measure of eager PyTorch and of ours: ``saved`` for backward, at the ``peak``, or none."""
    contenders: tuple[str, ...] = ("eager", OURS)
    against: tuple[str, ...] = ("eager",)
    """What ratios are taken against, the one that recommendations go by first; ``best`` is the fastest other."""

    @property
    def label(self) -> str:
        """The block in words, without its tokens."""
        return f"{_LABELS[self.activation, self.is_gated]} {self.d_model}×{self.d_ff}"

    @property
    def work(self) -> str:
        """The mode in words."""
        return "forward" if self.mode == "forward" else "forward and backward"

    def as_of(self, contender: str) -> tuple[str, Case]:
        """The library that a contender is, and the case as it computes it."""
        return (OURS, replace(self, **VARIANTS[contender])) if contender in VARIANTS else (contender, self)


@dataclass(frozen=True)
class Job:
    """What one worker does."""

    case: Case
    library: str
    threads: int
    seconds: float
    """Of a round."""
    task: str = "time"
    """``time``, or ``peak``: its memory."""

    def to_json(self) -> str:
        """The worker's argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job that an argument holds."""
        fields = json.loads(text)
        case = fields.pop("case")
        lists: dict[str, Any] = {name: tuple(case.pop(name)) for name in ("contenders", "against")}
        return cls(Case(**case, **lists), **fields)


RELU: dict[str, Any] = {"d_model": 512, "d_ff": 2048}
GELU = RELU | {"activation": "gelu"}
SWIGLU: dict[str, Any] = {"d_model": 512, "d_ff": 1365, "activation": "silu", "is_gated": True}
WIDE: dict[str, Any] = {"d_model": 1024, "d_ff": 4096}


def _forward() -> Iterator[Case]:
    row: dict[str, Any] = {
        "row": "forward", "mode": "forward", "contenders": ("eager", "compile", *ENGINES, OURS),
        "against": ("best", "eager"),
    }  # fmt: skip
    yield from (Case(**row, **block, tokens=tokens) for block in (RELU, WIDE) for tokens in TOKENS)


def _activations() -> Iterator[Case]:
    yield from (Case("activations", "forward", **block, tokens=t) for block in (GELU, SWIGLU) for t in TOKENS)


def _between() -> Iterator[Case]:
    for block in (RELU, GELU, SWIGLU):
        yield from (Case("between", "forward", **block, tokens=tokens, between=True) for tokens in TOKENS)


def _train() -> Iterator[Case]:
    row: dict[str, Any] = {
        "row": "train", "mode": "train", "contenders": ("eager", "compile", OURS), "against": ("best",),
        "memory": "saved",
    }  # fmt: skip
    yield from (Case(**row, **block, tokens=t) for block in (RELU, GELU, SWIGLU) for t in (256, 1024, 4096))


def _recompute() -> Iterator[Case]:
    for block in (GELU, SWIGLU):
        yield Case("recompute", "train", **block, tokens=4096, recompute=True, memory="peak")


def _sparse() -> Iterator[Case]:
    for block, density in ((RELU, 0.1), (RELU, 0.03), (RELU | {"is_gated": True}, 0.1)):
        yield Case("sparse", "train", **block, tokens=1024, density=density, backend="sparse")
    lean = f"{OURS} lean"
    yield Case(
        "sparse", "forward", **WIDE, tokens=1, density=0.1, backend="sparse", contenders=(lean, OURS), against=(lean,)
    )


def _bfloat16() -> Iterator[Case]:
    wide = f"{OURS} float32"
    for mode in ("forward", "train"):
        yield Case(
            "bfloat16", mode, **RELU, tokens=256, dtype="bfloat16", contenders=("eager", wide, OURS),
            against=(wide, "eager"),
        )  # fmt: skip


ROWS: dict[str, Callable[[], Iterator[Case]]] = {
    "forward": _forward,
    "activations": _activations,
    "between": _between,
    "train": _train,
    "recompute": _recompute,
    "sparse": _sparse,
    "bfloat16": _bfloat16,
}
"""The table's rows, in its order."""


def chosen(rows: Iterable[str] = (), tokens: Iterable[int] = ()) -> list[Case]:
    """The cases of some rows (all, if none is named) at some numbers of tokens (at all that a row has, likewise).

    Raises:
        SpecError: for a row that is not in the table, or a number of tokens that no chosen row has.
    """
    names, wanted = set(rows), set(tokens)
    for name in sorted(names - ROWS.keys()):
        raise unknown_name("--rows", name, ROWS)
    cases = [case for name, row in ROWS.items() if not names or name in names for case in row()]
    known = sorted({case.tokens for case in cases})
    for number in sorted(wanted.difference(known)):
        raise SpecError(f"expected --tokens of the chosen rows ({', '.join(map(str, known))}); got {number}")
    return [case for case in cases if not wanted or case.tokens in wanted]
