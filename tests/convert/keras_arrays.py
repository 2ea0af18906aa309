"""Keras's fixtures as arrays by name, and archives made of layers."""

import io
import json
import zipfile

import h5py
import numpy as np
from keras_cases import archive

from shared import shared_file


def weights(name):
    """The variables by their own paths."""
    return {key[2:]: value for key, value in archive(name).items() if key.startswith("w:")}


def datasets(name):
    """The variables by their paths in the weights file, without the optimizer's."""
    with h5py.File(shared_file(f"fixtures/keras/{name}.weights.h5")) as file:
        found = {}
        file.visititems(lambda path, each: found.update({path: each[()]}) if isinstance(each, h5py.Dataset) else None)
    return {path: value for path, value in found.items() if not path.startswith("optimizer")}


def dense_pair(first="dense", second="dense_1", shapes=((4, 6), (6, 5))):
    """Two dense layers' variables by their own paths."""
    rng = np.random.default_rng(0)
    return {f"{name}/{part}": rng.standard_normal(size)
            for name, shape in zip((first, second), shapes, strict=True)
            for part, size in (("kernel", shape), ("bias", shape[1:]))}  # fmt: skip


def stored(arrays):
    """The variables as in a weights file."""
    leaves = {"kernel": "vars/0", "bias": "vars/1"}
    return {f"layers/{name.rpartition('/')[0]}/{leaves[name.rpartition('/')[2]]}": a for name, a in arrays.items()}


def write_keras(path, config, arrays):
    """A ``.keras`` archive: a configuration (or its text) and weights."""
    target = io.BytesIO()
    with h5py.File(target, "w") as file:
        for name, value in arrays.items():
            file[name] = value
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("config.json", config if isinstance(config, str) else json.dumps(config))
        made.writestr("model.weights.h5", target.getvalue())
    return path


def model_of(*layers):
    """A model's configuration out of (class, config) pairs."""
    return {"config": {"layers": [{"class_name": kind, "config": config} for kind, config in layers]}}
