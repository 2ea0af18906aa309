"""Reading Keras 3's files without Keras: HDF5 weights, and the JSON beside them. Nothing in them is executed."""

from __future__ import annotations

import io
import json
import re
import reprlib
import zipfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from positionwise.errors import ConvertError, MissingGroupError

KNOWN_LAYERS = {
    "Dense", "Dropout", "Embedding", "InputLayer", "LayerNormalization", "MultiHeadAttention", "NotEqual",
    "PositionalEmbedding", "TransformerDecoder", "TransformerEncoder",
}  # fmt: skip
"""Classes whose meaning we know; NotEqual is the padding mask of the book's model."""
_DAMAGED = (OSError, EOFError, KeyError, ValueError, TypeError, RuntimeError, MemoryError, NotImplementedError,
            zipfile.BadZipFile, zlib.error)  # fmt: skip
"""What zipfile, json and h5py raise for a file that is not what it says; RecursionError is a RuntimeError."""


def read_weights(source: Path | io.BytesIO, name: str = "") -> dict[str, Any]:
    """The datasets of a ``.weights.h5`` file by their paths.

    Raises:
        ConvertError: for a file that is no HDF5 or is damaged, or a dataset kept in another file; it names it.
    """
    if find_spec("h5py") is None:
        raise MissingGroupError("reading Keras's files needs h5py: pip install 'positionwise[convert]'", name="h5py")
    import h5py

    name = name or str(source)
    if isinstance(source, Path) and not source.is_file():
        raise ConvertError(f"expected a file at {source}; got none")
    at = "its beginning"
    try:
        with h5py.File(source, "r") as file:
            datasets: dict[str, Any] = {}
            file.visititems(lambda path, found: datasets.update({path: found}) if hasattr(found, "shape") else None)
            arrays = {}
            for at in datasets:
                if datasets[at].external or datasets[at].is_virtual:
                    raise ConvertError(f"expected {at!r} inside {name}; got a reference to another file")
                arrays[at] = datasets[at][()]
            return arrays
    except _DAMAGED as error:
        if isinstance(error, ConvertError):
            raise
        raise ConvertError(f"expected HDF5 weights in {name}; got {error} at {at!r}") from None


def read_keras(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The weights of a ``.keras`` archive, and its layers' descriptions by the layers' names among the weights.

    Raises:
        ConvertError: for a damaged archive, and for a layer of a class that we do not know, naming it.
    """
    if not path.is_file():
        raise ConvertError(f"expected a file at {path}; got none")
    try:
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
            weights = archive.read("model.weights.h5")
    except _DAMAGED as error:
        raise ConvertError(f"expected a .keras archive at {path}; got {error}") from None
    layers = _layers(config, path)
    return read_weights(io.BytesIO(weights), f"{path} (model.weights.h5)"), layers


def _layers(config: Any, path: Path) -> dict[str, dict[str, Any]]:
    """The layers of a model's configuration.

    Keras names a layer's weights by its class and, from the second of a class on, its place among them.
    """
    inner = config.get("config") if isinstance(config, dict) else None
    layers = inner.get("layers", [config]) if isinstance(inner, dict) else inner
    if not isinstance(layers, list) or not layers:
        raise ConvertError(f"expected a list of layers in {path}; got {reprlib.repr(layers)}")
    found: dict[str, dict[str, Any]] = {}
    counts: dict[str, int] = {}
    for layer in layers:
        kind = layer.get("class_name") if isinstance(layer, dict) else layer
        if not isinstance(kind, str) or kind not in KNOWN_LAYERS:
            raise ConvertError(f"expected layers of known classes in {path}; got {reprlib.repr(kind)}, which is not "
                               "read or executed")  # fmt: skip
        if not isinstance(layer.get("config"), dict):
            raise ConvertError(f"expected a {kind} with its config in {path}; got {reprlib.repr(layer.get('config'))}")
        name, number = re.sub("(?<=[a-z])(?=[A-Z])", "_", kind).lower(), counts.get(kind, 0)
        counts[kind] = number + 1
        found[f"{name}_{number}" if number else name] = layer
    return found
