"""Named arrays from another library, each used once, with an account of what went where."""

from __future__ import annotations

import difflib
import functools
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from positionwise.errors import ConvertError, MissingGroupError

Arrays = Mapping[str, Any]
"""Names to arrays: NumPy's, or anything that NumPy or PyTorch reads as one."""


@dataclass(frozen=True)
class Row:
    """One of the source's tensors and the parameters that hold it now."""

    source: str
    shape: tuple[int, ...]
    target: str


@dataclass(frozen=True)
class Conversion:
    """A module with another library's weights."""

    module: nn.Module
    """In evaluation mode, as ``from_pretrained`` leaves a model."""
    rows: tuple[Row, ...]
    set_aside: tuple[str, ...]
    """Tensors that are no weights of the module: an optimizer's, a step counter's."""
    config: Any
    """What the module was built from: a spec or a configuration."""
    assumed: tuple[str, ...] = ()
    """What neither the source nor the caller says, and the value taken instead."""


class Tensors:
    """The tensors of a source: taken one by one, so that none is used twice and none is left over unseen."""

    def __init__(self, arrays: Arrays, set_aside: Iterable[str] = ()) -> None:
        aside = set(set_aside)
        self.set_aside = tuple(name for name in arrays if name in aside)
        self.tensors = {name: _tensor(name, value) for name, value in arrays.items() if name not in aside}
        self.rows: list[Row] = []

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def names(self, start: str = "") -> list[str]:
        """The names that begin with ``start``, used or not, in the source's order."""
        return [name for name in self.tensors if name.startswith(start)]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that must be there."""
        return tuple(self._find(name).shape)

    def take(self, name: str, target: str) -> Tensor:
        """A tensor that must be there, noted as gone to ``target``."""
        found = self._find(name)
        self.rows.append(Row(name, tuple(found.shape), target))
        return found

    def _find(self, name: str) -> Tensor:
        if name not in self.tensors:
            near = difflib.get_close_matches(name, self.tensors, n=1)
            raise ConvertError(f"expected a tensor {name!r}; got none of that name" +
                               (f" (there is {near[0]!r})" if near else ""))  # fmt: skip
        return self.tensors[name]

    @property
    def dtype(self) -> torch.dtype:
        """The widest floating-point type among the tensors."""
        return functools.reduce(torch.promote_types, (tensor.dtype for tensor in self.tensors.values()))

    def load(
        self, module: nn.Module, state: Mapping[str, Tensor], config: Any = None, assumed: tuple[str, ...] = ()
    ) -> Conversion:
        """Give the module its state, each number as it was; a module without a spec or configuration needs one given.

        Raises:
            ConvertError: for a shape that the module does not have, or a tensor that was not used; it names them.
        """
        used = {row.source for row in self.rows}
        if unknown := [name for name in self.tensors if name not in used]:
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            raise ConvertError(f"expected tensors of a known name; got {', '.join(map(repr, unknown[:3]))}{more}")
        for name, held in module.state_dict().items():
            if name in state and state[name].shape != held.shape:
                came = " and ".join(f"{row.source} {row.shape}" for row in self.rows if name in row.target.split(", "))
                raise ConvertError(f"expected {name} of shape {tuple(held.shape)}; got {tuple(state[name].shape)}, "
                                   f"made of {came}")  # fmt: skip
        module.to(self.dtype).load_state_dict(dict(state), strict=True)
        known = getattr(module, "spec", None) or getattr(module, "config", None) or config
        return Conversion(module.eval(), tuple(self.rows), self.set_aside, known, assumed)


def _tensor(name: str, value: Any) -> Tensor:
    """An array as a tensor of its own storage; floating point and finite, or an error that names it."""
    try:
        tensor = value.detach().clone() if isinstance(value, Tensor) else torch.from_numpy(_native(np.array(value)))
    except (TypeError, ValueError) as error:
        raise ConvertError(f"expected numbers in {name!r}; got {error}") from None
    if not tensor.is_floating_point():
        raise ConvertError(f"expected floating-point numbers in {name!r}; got {tensor.dtype}")
    if not bool(tensor.isfinite().all()):
        raise ConvertError(f"expected finite numbers in {name!r}; got NaN or infinity")
    return tensor


def _native(array: Any) -> Any:
    """An array of a type that PyTorch reads: its bytes in the machine's order, bfloat16 widened to float32.

    NumPy itself does not know bfloat16: without ml_dtypes it is two bytes of no type, the upper half of a float32.
    """
    if array.dtype.name == "bfloat16" or array.dtype.str == "|V2":
        return np.asarray(array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of an ``.npz`` file; nothing is unpickled.

    Raises:
        ConvertError: for a file that is damaged, or an array that would have to be unpickled; it names it.
    """
    name = str(path)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {}
            for name in archive.files:
                arrays[name] = archive[name]
            return arrays
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, FileNotFoundError):
            raise ConvertError(f"expected a file at {path}; got none") from None
        raise ConvertError(f"expected arrays in {path}; got {error} at {name!r}") from None


def read_safetensors(path: Path) -> dict[str, Any]:
    """The tensors of a ``.safetensors`` file.

    Raises:
        ConvertError: for a file that is missing or damaged.
        MissingGroupError: without safetensors.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        message = f"{path.name} needs {error.name}: pip install 'positionwise[models]'"
        raise MissingGroupError(message, name=error.name) from None
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise ConvertError(f"expected tensors in {path}; got {error}") from None


def read(source: Any, readers: Mapping[str, Callable[[Path], Arrays]], otherwise: Callable[[Path], Arrays]) -> Arrays:
    """A mapping as it is, or a file read by its suffix."""
    arrays = source if isinstance(source, Mapping) else _from_file(source, readers, otherwise)
    if wrong := [name for name in arrays if not isinstance(name, str)]:
        raise ConvertError(f"expected names as the mapping's keys; got {wrong[0]!r}")
    return arrays


def _from_file(
    source: Any, readers: Mapping[str, Callable[[Path], Arrays]], otherwise: Callable[[Path], Arrays]
) -> Arrays:
    if not isinstance(source, (str, Path)):
        raise ConvertError(f"expected a mapping of names to arrays or a path; got {type(source).__name__}")
    path = Path(source)
    for suffix, reader in readers.items():
        if path.name.endswith(suffix):
            return reader(path)
    return otherwise(path)
