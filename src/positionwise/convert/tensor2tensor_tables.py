"""tensor2tensor's embeddings and softmax, each in the shards of ``shards.py``, as whole tables."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from positionwise.convert.shards import join_shards, shard_sizes
from positionwise.convert.tensor2tensor_names import TABLE
from positionwise.convert.tensors import Tensors
from positionwise.errors import ConvertError

_PLACES = {"shared": "source_embedding", "input_emb": "source_embedding", "target_emb": "target_embedding",
           "softmax": "output"}  # fmt: skip


def read_tables(tensors: Tensors) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The model's tables, and what they say of the configuration."""
    found, rows = _shards(tensors)
    state = {}
    for kind, shards in found.items():
        target = f"{_PLACES[kind]}.weight"
        names = _in_order(tensors, shards)
        _check_rows({name: tensors.shape(name)[0] for name in names}, rows[kind])
        state[target] = join_shards({name: tensors.take(name, target) for name in names})
    if "shared" in found:
        return state, {"vocab_size": rows["shared"]}
    return state, {"vocab_size": rows["input_emb"], "target_vocab_size": rows["target_emb"],
                   "share_embeddings": False, "tie_word_embeddings": False}  # fmt: skip


def _shards(tensors: Tensors) -> tuple[dict[str, dict[int, str]], dict[str, int]]:
    """The shards' names by table and number, and the rows of each table."""
    found: dict[str, dict[int, str]] = {}
    rows: dict[str, int] = {}
    for name in tensors.names():
        if match := TABLE.match(name):
            size, width, kind = int(match[1]), int(match[2]), match[3]
            if rows.setdefault(kind, size) != size:
                raise ConvertError(f"expected one vocabulary in {kind}; got {rows[kind]} and {name!r}")
            if tensors.shape(name)[1] != width:
                raise ConvertError(f"expected rows of {width}, as the name says, in {name!r}; "
                                   f"got {tensors.shape(name)}")  # fmt: skip
            found.setdefault(kind, {})[int(match[4])] = name
    kinds = sorted(found)
    if kinds not in (["shared"], ["input_emb", "softmax", "target_emb"]):
        raise ConvertError(f"expected the table shared, or input_emb, target_emb and softmax; got {', '.join(kinds)}")
    return found, rows


def _in_order(tensors: Tensors, shards: dict[int, str]) -> list[str]:
    scope = next(iter(shards.values())).rpartition("/")[0]
    if missing := set(range(max(shards) + 1)) - shards.keys():
        raise ConvertError(f"expected shards 0 to {max(shards)} in {scope!r}; got no weights_{min(missing)}")
    if strange := [name for name in tensors.names(f"{scope}/") if name not in shards.values()]:
        raise ConvertError(f"expected shards weights_0 and on in {scope!r}; got {strange[0]!r}")
    return [shards[i] for i in range(len(shards))]


def _check_rows(held: dict[str, int], rows: int) -> None:
    """A table's name and the count of its shards give the rows of each."""
    count, names = len(held), [*held]
    scope = names[0].rpartition("/")[0]
    if [*held.values()] == shard_sizes(rows, count + 1)[:-1] and sum(held.values()) < rows:
        raise ConvertError(f"expected {rows} rows in weights_0 to weights_{count - 1} of {scope!r}; got "
                           f"{sum(held.values())}, as without weights_{count}")  # fmt: skip
    wrong = [(name, size) for name, size in zip(names, shard_sizes(rows, count), strict=True) if held[name] != size]
    if wrong:
        name, size = wrong[0]
        raise ConvertError(f"expected {size} of the table's {rows} rows in {name!r}, one of {count} shards; got "
                           f"{held[name]}")  # fmt: skip
