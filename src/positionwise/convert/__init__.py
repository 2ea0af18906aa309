"""Other libraries' weights as our modules: tensor2tensor, Keras, labml."""

from collections.abc import Callable

from positionwise.convert.axis_one import AxisOneFeedForward
from positionwise.convert.keras import convert_keras, from_keras
from positionwise.convert.labml import convert_labml, from_labml
from positionwise.convert.save import load_part
from positionwise.convert.shards import join_shards, split_shards
from positionwise.convert.tensor2tensor import convert_tensor2tensor, from_tensor2tensor
from positionwise.convert.tensorbundle import read_bundle
from positionwise.convert.tensors import Conversion

CONVERTERS: dict[str, Callable[..., Conversion]] = {
    "tensor2tensor": convert_tensor2tensor,
    "keras": convert_keras,
    "labml": convert_labml,
}
"""Libraries by name, and what reads their weights into a `Conversion`."""

__all__ = [
    "CONVERTERS",
    "AxisOneFeedForward",
    "Conversion",
    "from_keras",
    "from_labml",
    "from_tensor2tensor",
    "join_shards",
    "load_part",
    "read_bundle",
    "split_shards",
]
