"""Reading Keras 3's files without Keras: HDF5 weights, and the JSON beside them. Nothing in them is executed."""

from __future__ import annotations

import io
import json
import re
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from positionwise.errors import ConvertError, MissingGroupError

KNOWN_LAYERS = {
    "Dense", "Dropout", "Embedding", "InputLayer", "LayerNormalization", "MultiHeadAttention", "NotEqual",
    "PositionalEmbedding", "TransformerDecoder", "TransformerEncoder",
}  # fmt: skip
"""Classes whose meaning we know; NotEqual is the padding mask of the book's model."""


def read_weights(source: Path | io.BytesIO, name: str = "") -> dict[str, Any]:
    """The datasets of a ``.weights.h5`` file by their paths, numbered layers in the order of their numbers.

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
            for at in sorted(datasets, key=_natural):
                if datasets[at].external or datasets[at].is_virtual:
                    raise ConvertError(f"expected {at!r} inside {name}; got a reference to another file")
                arrays[at] = datasets[at][()]
            return arrays
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConvertError):
            raise
        raise ConvertError(f"expected HDF5 weights in {name}; got {error} at {at!r}") from None


def _natural(path: str) -> list[tuple[str, int]]:
    """A key by which ``layer_2`` comes before ``layer_10``, and ``layer`` before both."""
    return [(re.sub(r"_?\d+$", "", part), int((re.search(r"\d+$", part) or ["0"])[0])) for part in path.split("/")]


def read_keras(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The weights of a ``.keras`` archive and its layers' descriptions, in the model's order.

    Raises:
        ConvertError: for a damaged archive, and for a layer of a class that we do not know, naming it.
    """
    if not path.is_file():
        raise ConvertError(f"expected a file at {path}; got none")
    try:
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
            weights = archive.read("model.weights.h5")
        layers = config["config"].get("layers") or [config]
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConvertError(f"expected a .keras archive at {path}; got {error}") from None
    for layer in layers:
        kind = layer.get("class_name") if isinstance(layer, dict) else layer
        if kind not in KNOWN_LAYERS:
            raise ConvertError(
                f"expected layers of known classes in {path}; got {kind!r}, which is not read or executed"
            )
    return read_weights(io.BytesIO(weights), f"{path} (model.weights.h5)"), layers
