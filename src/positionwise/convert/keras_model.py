"""The book's translation model out of Keras's layers."""

from __future__ import annotations

import re
from typing import Any

from positionwise.convert.keras_layers import Axes, State, blocks, fit, fit_blocks, take, take_map, variable
from positionwise.convert.keras_names import Owner
from positionwise.convert.keras_said import Said
from positionwise.convert.tensors import Conversion, Tensors
from positionwise.errors import ConvertError
from positionwise.transformer import TransformerForTranslation

_OUTPUT: Axes = {"": (("d_model", "words"), ("words",))}
_SIDES = {"source": 0, "encoder": 0, "target": 1, "decoder": 1}


def translation(tensors: Tensors, found: list[Owner], said: Said) -> Conversion:
    """Two embeddings, encoders and decoders, and one output map, with positions or without."""
    kinds = {"encoder": "blocks", "decoder": "blocks", "map": "map", "embedding": "table", "table": "table"}
    by_kind: dict[str, list[Owner]] = {"blocks": [], "map": [], "table": [], "": []}
    for owner in found:
        by_kind[kinds.get(owner.kind, "")].append(owner)
    encoders, decoders = ([each for each in by_kind["blocks"] if each.kind == kind] for kind in ("encoder", "decoder"))
    if not encoders or not decoders or [len(by_kind[kind]) for kind in ("map", "table", "")] != [1, 2, 0]:
        listed = ", ".join(f"{owner.name} ({owner.kind})" for owner in found)
        raise ConvertError(
            f"expected a layer, or two embeddings, encoders and decoders and one output map; got {listed}"
        )
    if said.field("norm_first"):
        raise ConvertError(NO_NORM)
    output = by_kind["map"][0]
    if (activation := said.dense_activations([output])[0]) not in (None, "softmax", "identity"):
        raise ConvertError(f"expected {said.label(output)!r} to be softmax or linear; got {activation!r}")
    layers = encoders + decoders
    sizes = fit_blocks(tensors, layers)
    words = fit(tensors, [(output, _OUTPUT)], {"d_model": sizes["d_model"]})["words"]
    state, fields = _embeddings(tensors, _sides(tensors, by_kind["table"], output, words, said), sizes["d_model"])
    state |= take_map(tensors, output, "", "output")
    dropout, undropped = said.output_dropout()
    config, assumed = said.config(
        sizes, layers, encoder_layers=len(encoders), decoder_layers=len(decoders), output_dropout=dropout, **fields
    )
    state |= blocks(tensors, encoders, "encoder.layers.") | blocks(tensors, decoders, "decoder.layers.")
    return tensors.load(TransformerForTranslation(config), state, assumed=assumed + undropped)


NO_NORM = ("expected post-norm layers, or one layer; got several pre-norm ones: our pre-norm Encoder ends in a norm, "
           "which these weights do not have (convert the layers one by one)")  # fmt: skip


def _part(table: Owner) -> str:
    """Where a table's words are."""
    return "tokens" if table.kind == "embedding" else ""


def _sides(tensors: Tensors, tables: list[Owner], output: Owner, words: int, said: Said) -> list[Owner]:
    """Source, then target: by their names, or else by their numbers; the target's table has the output's rows.

    Where names do not say it and only the table of the lower number has the output's rows, it is the target's.
    """
    tables = sorted(tables, key=lambda table: table.numbers)
    names = [set(re.findall("[A-Z]?[a-z]+|[A-Z]+", said.label(table))) for table in tables]
    sides = [{_SIDES[word.lower()] for word in one - other if word.lower() in _SIDES}
             for one, other in (names, names[::-1])]  # fmt: skip
    by_name = sides[0] != sides[1] and all(len(each) < 2 for each in sides)
    rows = {table.name: _rows(tensors, table, _part(table)) for table in tables}
    if by_name:
        first_is_source = sides[0] == {0} or sides[1] == {1}
    else:
        first_is_source = rows[tables[1].name] == words or rows[tables[0].name] != words
    ordered = tables if first_is_source else tables[::-1]
    if rows[ordered[1].name] != words:
        raise ConvertError(f"expected {variable(ordered[1], _part(ordered[1]), 0)!r} of the {words} words of "
                           f"{variable(output, '', 0)!r}; got {rows[ordered[1].name]} rows")  # fmt: skip
    return ordered


def _rows(tensors: Tensors, table: Owner, part: str) -> int | str:
    shape = tensors.shape(variable(table, part, 0))
    return shape[0] if shape else "no"


def _embeddings(tensors: Tensors, tables: list[Owner], d_model: int) -> tuple[State, dict[str, Any]]:
    """The tables' state and the configuration's fields that follow from them."""
    state: State = {}
    fields: dict[str, Any] = {"positions": "none"}
    positions: dict[str, int] = {}
    for side, size, owner in zip(("source", "target"), ("vocab_size", "target_vocab_size"), tables, strict=True):
        axes: dict[str, tuple[tuple[str, ...], ...]] = {_part(owner): ((size, "d_model"),)}
        if "positions" in owner.parts:
            axes["positions"] = (("max_positions", "d_model"),)
        found = fit(tensors, [(owner, axes)], {"d_model": d_model})
        fields[size] = found[size]
        state |= take(tensors, owner, _part(owner), {0: f"{side}_embedding.weight"})
        if "positions" in axes:
            positions[variable(owner, "positions", 0)] = found["max_positions"]
            state |= take(tensors, owner, "positions", {0: f"{side}_positions.weight"})
    if len(positions) == 1 or len(set(positions.values())) > 1:
        got = " and ".join(f"{rows} in {name!r}" for name, rows in positions.items())
        raise ConvertError(f"expected as many positions on both sides; got {got}" + " alone" * (len(positions) == 1))
    if positions:
        fields |= {"positions": "learned", "max_positions": next(iter(positions.values()))}
    return state, fields
