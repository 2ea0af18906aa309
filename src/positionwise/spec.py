r"""The feed-forward network as data: what it is made of, what it costs, and its equation.

Axes: tokens are the positions of all sequences together; ``d_model`` is the width of the input, ``d_ff`` the width
that enters the second map, ``d_out`` the width of the output.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from positionwise import activations
from positionwise.errors import SpecError, unknown_name

PADDINGS = ("same", "left", "valid")
BACKENDS = ("auto", "reference", "lean", "sparse")
INITIALISATIONS = ("xavier_uniform", "pytorch")
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

Kernel = int | tuple[int, int]


@dataclass(frozen=True)
class Component:
    """A named part of a block with the calculation of its size."""

    name: str
    calculation: str
    parameters: int

    def to_dict(self) -> dict[str, Any]:
        """The component as JSON would hold it."""
        return {"name": self.name, "calculation": self.calculation, "parameters": int(self.parameters)}


@dataclass(frozen=True)
class FFNSpec:
    """The fields of `FeedForward`, checked and never adjusted.

    Raises:
        SpecError: for a size, name or combination that no block can have.
    """

    d_model: int
    d_ff: int
    dropout: float = 0.1
    activation: Any = "relu"
    is_gated: bool = False
    bias1: bool = True
    bias2: bool = True
    bias_gate: bool = True
    d_out: int | None = None
    kernel_size: Kernel = 1
    second_kernel_size: Kernel = 1
    padding: str = "same"
    dilation: Kernel = 1
    init: str = "xavier_uniform"
    backend: str = "auto"
    recompute: bool = False
    chunk_size: int | None = None
    device: Any = None
    dtype: Any = None

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("d_model", "d_ff"):
            _check_size(name, getattr(self, name))
        if self.d_out is not None:
            _check_size("d_out", self.d_out)
        _check_dropout(self.dropout)
        activations.resolve(self.activation)
        for name in ("is_gated", "bias1", "bias2", "bias_gate", "recompute"):
            if not isinstance(getattr(self, name), bool):
                raise SpecError(f"expected {name} to be True or False; got {getattr(self, name)!r}")
        for name in ("kernel_size", "second_kernel_size", "dilation"):
            _check_kernel(name, getattr(self, name))
        for name, known in (("padding", PADDINGS), ("backend", BACKENDS), ("init", INITIALISATIONS)):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        self._check_left_padding()
        self._check_chunks()
        _bytes_per_element(self.dtype)

    def _check_left_padding(self) -> None:
        reach = (*spans(self.kernel_size, 1), *spans(self.second_kernel_size, 1))
        if self.padding == "left" and any(span % 2 for span in reach):
            raise SpecError(f"expected odd kernel sizes with padding 'left'; got {self._kernels()}")

    def _check_chunks(self) -> None:
        if self.chunk_size is None:
            return
        _check_size("chunk_size", self.chunk_size)
        if not self.recompute:
            raise SpecError(f"expected chunk_size to be None without recompute=True; got {self.chunk_size}")

    def _kernels(self) -> str:
        return f"{self.kernel_size!r} and {self.second_kernel_size!r}"

    @property
    def output_width(self) -> int:
        """d_out, or d_model where d_out is None."""
        return self.d_model if self.d_out is None else self.d_out

    @property
    def convolved_axes(self) -> int:
        """How many axes before d_model the kernels mix: 0 for the position-wise network, 1 or 2 for wide kernels."""
        if self.kernel_size == 1 and self.second_kernel_size == 1:  # what most calls ask, without a loop
            return 0
        kernels = [kernel for kernel in (self.kernel_size, self.second_kernel_size) if taps(kernel)]
        return max([0, *(2 if isinstance(kernel, tuple) else 1 for kernel in kernels)])

    @property
    def components(self) -> tuple[Component, ...]:
        """The learned parts, each with its calculation written out."""
        parts = _map("First", self.kernel_size, self.d_model, self.d_ff, self.bias1)
        if self.is_gated:
            parts += _map("Gate", self.kernel_size, self.d_model, self.d_ff, self.bias_gate)
        parts += _map("Second", self.second_kernel_size, self.d_ff, self.output_width, self.bias2)
        return (*parts, *_activation_component(self.activation))

    @property
    def parameters(self) -> int:
        """How many numbers the block learns."""
        return sum(part.parameters for part in self.components)

    def flops(self, tokens: int) -> int:
        """Floating-point operations of one forward pass over ``tokens`` positions.

        A multiply-add counts as two; biases, the activation, the gate's product and dropout are not counted. With
        padding ``valid`` the later positions are fewer, so this is an upper bound there.
        """
        return self.flops_by_map(tokens, tokens)

    def flops_by_map(self, first_tokens: int, second_tokens: int) -> int:
        """The same where the maps write to different numbers of positions."""
        for tokens in (first_tokens, second_tokens):
            if not isinstance(tokens, Integral) or tokens < 0:
                raise SpecError(f"expected a number of tokens of at least 0; got {tokens!r}")
        d, f, out = self.d_model, self.d_ff, self.output_width
        first = (d * f + taps(self.kernel_size) * d) * (2 if self.is_gated else 1)
        second = f * out + taps(self.second_kernel_size) * f
        return 2 * (first_tokens * first + second_tokens * second)

    def saved_tensors(self) -> tuple[str, ...]:
        """The hidden-sized tensors that are kept for backward in training.

        ``z`` is the first map's output, ``f(z)`` the hidden units, ``v`` the gate's map. Wide kernels are computed by
        the reference path whatever the backend.

        Raises:
            SpecError: for an activation that is not in the table, whose own tensors are not known.
        """
        row = activations.resolve(self.activation)
        if row.saved is None:
            raise SpecError(f"expected an activation of the table to know what it saves; got {self.activation!r}")
        if self.recompute:
            return ()
        if self.backend == "reference" or self.convolved_axes:
            return self._saved_by_reference(row)
        kept = (row.saved or ("z",))[0]  # of what autograd keeps for f', the one that is enough
        return (kept, "v") if self.is_gated else (kept,)

    def _saved_by_reference(self, row: activations.Activation) -> tuple[str, ...]:
        names = list(row.saved or ())
        hidden = "z" if row.name == "identity" else "f(z)"
        if self.is_gated:
            names += [hidden, "v"]
            hidden = "f(z)·v"
        if 0 < self.dropout < 1:
            names.append("dropout mask")
        if self.dropout:
            hidden = f"dropout({hidden})"
        return tuple(dict.fromkeys([*names, hidden]))

    def saved_for_backward(self, tokens: int) -> int:
        """Bytes that are kept for backward in training over ``tokens`` positions.

        The input counts, parameters do not, and storage that two tensors share counts once. The size of an element
        is that of ``dtype`` (float32 where it is None).

        Raises:
            SpecError: for an activation that is not in the table, and for wide kernels with padding ``valid``, which
                shortens the sequence: the tokens alone do not tell.
        """
        if self.convolved_axes and self.padding == "valid":
            raise SpecError("expected padding 'same' or 'left' to count what wide kernels save; got 'valid'")
        per_token = self.d_model + len(self.saved_tensors()) * self.d_ff
        if taps(self.kernel_size) and not self.recompute:
            per_token += self.d_model * (2 if self.is_gated else 1)
        if taps(self.second_kernel_size) and not self.recompute:
            per_token += self.d_ff
        seed = 8 if self.dropout and (self.backend != "reference" or self.recompute) and not self.convolved_axes else 0
        return tokens * per_token * _bytes_per_element(self.dtype) + seed

    @property
    def equation(self) -> str:
        """The network in LaTeX, x a column: y = W₂ f(W₁x + b₁) + b₂, dropout left out (it is the identity at rest)."""
        row = activations.resolve(self.activation)
        x1 = r"(K_1 * x)" if taps(self.kernel_size) else "x"
        hidden = row.equation.replace("{z}", f"W_1 {x1}" + (" + b_1" if self.bias1 else ""))
        if row.name == "identity" and self.is_gated:
            hidden = rf"\left({hidden}\right)"
        if self.is_gated:
            xv = r"(K_V * x)" if taps(self.kernel_size) else "x"
            hidden += rf" \odot \left(V {xv}" + (" + c" if self.bias_gate else "") + r"\right)"
        if taps(self.second_kernel_size):
            hidden = rf"K_2 * \left({hidden}\right)"
        return rf"y = W_2 \left({hidden}\right)" + (" + b_2" if self.bias2 else "")

    def options(self) -> dict[str, Any]:
        """The fields as the keyword arguments that build this spec, or its block, again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def pair(dilation: Kernel) -> tuple[int, int]:
    """A dilation as (h, w); an integer holds for both axes."""
    return dilation if isinstance(dilation, tuple) else (dilation, dilation)


def taps(size: Kernel) -> int:
    """How many weights a channel's kernel has; 0 for the width-1 kernel, which is a plain linear map."""
    h, w = size if isinstance(size, tuple) else (size, 1)
    return 0 if h * w == 1 else h * w


def spans(size: Kernel, dilation: Kernel) -> tuple[int, int]:
    """By how much a kernel reaches beyond one position, on the second axis before d_model and on the one before it."""
    steps = pair(dilation)
    if isinstance(size, tuple):
        return (size[0] - 1) * steps[0], (size[1] - 1) * steps[1]
    return 0, (size - 1) * steps[0]


def _map(name: str, kernel: Kernel, wide_in: int, wide_out: int, bias: bool) -> tuple[Component, ...]:
    """A linear map, preceded by its depthwise kernel when it is wider than one."""
    parameters = wide_in * wide_out + (wide_out if bias else 0)
    calculation = f"{wide_in:,} × {wide_out:,}" + (f" + {wide_out:,}" if bias else "")
    linear = Component(f"{name} linear map", calculation, parameters)
    if not taps(kernel):
        return (linear,)
    shape = " × ".join(f"{size:,}" for size in (kernel if isinstance(kernel, tuple) else (kernel,)))
    return Component(f"{name} depthwise kernel", f"{shape} × {wide_in:,}", taps(kernel) * wide_in), linear


def _activation_component(activation: Any) -> tuple[Component, ...]:
    """An activation module with parameters of its own, such as PReLU, is a component."""
    parameters = getattr(activation, "parameters", None)
    sizes = [parameter.numel() for parameter in parameters()] if callable(parameters) else []
    if not sizes:
        return ()
    return (Component("Activation", " + ".join(f"{size:,}" for size in sizes), sum(sizes)),)


def _check_size(name: str, value: object) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise SpecError(f"expected {name} to be an integer of at least 1; got {value!r}")


def _check_dropout(value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) <= 1:
        raise SpecError(f"expected dropout to be a number from 0 to 1; got {value!r}")


def _check_kernel(name: str, value: object) -> None:
    sizes = value if isinstance(value, tuple) and len(value) == 2 else (value,)
    for size in sizes:
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise SpecError(f"expected {name} to be a positive integer or a pair (h, w) of them; got {value!r}")


def _bytes_per_element(dtype: Any) -> int:
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in BYTES:
        raise SpecError(f"expected dtype to be one of {', '.join(BYTES)}; got {dtype!r}")
    return BYTES[name]
