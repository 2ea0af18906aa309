"""Keras's translation model: which table is whose, and what the output is."""

import numpy as np
import pytest
import torch
from keras_arrays import datasets, model_of, weights, write_keras

from positionwise.convert import from_keras
from positionwise.errors import ConvertError

SOURCE = "layers/positional_embedding/"
TARGET = "layers/positional_embedding_1/"


def one_vocabulary():
    """The fixture with as many source as target words, so that rows do not say whose a table is."""
    arrays = datasets("translation")
    arrays[f"{SOURCE}token_embeddings/vars/0"] = arrays[f"{TARGET}token_embeddings/vars/0"] + 1
    return arrays


def renamed(arrays, first, second):
    names = {SOURCE: f"layers/{first}/", TARGET: f"layers/{second}/"}
    layers = {path: "/".join(path.split("/")[:2]) + "/" for path in arrays}
    return {names.get(layers[path], layers[path]) + path[len(layers[path]) :]: value for path, value in arrays.items()}


@pytest.mark.parametrize(
    "names",
    [("positional_embedding", "positional_embedding_1"), ("embedding_9", "embedding_10"), ("z_source", "a_target"),
     ("embedding_7_source", "embedding"), ("embedding_8", "target_embedding_7"), ("EncoderWords", "DecoderWords")],
)  # fmt: skip
def test_names_and_numbers_say_whose_a_table_is(names):
    arrays = renamed(one_vocabulary(), *names)
    for form in (arrays, dict(reversed(arrays.items())), dict(sorted(arrays.items()))):
        model = from_keras(form)
        table = torch.from_numpy(arrays[f"layers/{names[0]}/token_embeddings/vars/0"])
        assert torch.equal(model.source_embedding.weight, table)


def test_the_targets_table_has_the_outputs_words():
    model = from_keras(datasets("translation"))
    swapped = from_keras(renamed(datasets("translation"), "positional_embedding_1", "positional_embedding"))
    assert torch.equal(model.source_embedding.weight, swapped.source_embedding.weight)
    names = renamed(datasets("translation"), "target_embedding", "source_embedding")
    with pytest.raises(ConvertError, match="'layers/target_embedding/token_embeddings/vars/0' of the 29 words of "
                                           "'layers/dense/vars/0'; got 23 rows"):  # fmt: skip
        from_keras(names)


def test_a_description_names_the_tables(tmp_path):
    """Among the weights the tables have only numbers."""
    layers = [("PositionalEmbedding", {"name": "target_embedding"}), ("PositionalEmbedding", {"name": "source"})]
    path = write_keras(tmp_path / "m.keras", model_of(*layers), one_vocabulary())
    table = torch.from_numpy(datasets("translation")[f"{TARGET}token_embeddings/vars/0"])
    assert torch.equal(from_keras(path).source_embedding.weight, table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{SOURCE}position_embeddings/vars/0": (9, 16)},
         f"as many positions on both sides; got 9 in '{SOURCE}position_embeddings/vars/0' and 8 in '{TARGET}pos"),
        ({f"{SOURCE}position_embeddings/vars/0": None}, f"got 8 in '{TARGET}position_embeddings/vars/0' alone"),
        ({f"{SOURCE}token_embeddings/vars/0": (23, 15)}, r"token_embeddings/vars/0' of shape \(23, 16\); got \(23, 15"),
        ({f"{SOURCE}token_embeddings/vars/0": ()}, r"token_embeddings/vars/0' of shape \(vocab_size, 16\); got \(\)"),
        ({f"{TARGET}position_embeddings/vars/0": (8,)}, r"'layers/positional_embedding_1/position_.*; got \(8,\)"),
        ({"layers/dense/vars/0": (16,)}, r"'layers/dense/vars/0' of shape \(16, 29\); got \(16,\)"),
        ({"layers/dense/vars/1": ()}, r"'layers/dense/vars/1' of shape \(29,\); got \(\)"),
        ({"layers/dense/vars/0": (16, 30), "layers/dense/vars/1": (30,)}, "of the 30 words of 'layers/dense/vars/0'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_model_is_named(change, message):
    arrays = datasets("translation")
    for name, shape in change.items():
        arrays.pop(name)
        if shape is not None:
            arrays[name] = np.zeros(shape, np.float32)
    with pytest.raises(ConvertError, match=message):
        from_keras(arrays)


@pytest.mark.parametrize("activation", ["softmax", "linear"])
def test_the_output_is_softmax_or_linear(tmp_path, activation):
    layers = [("Dropout", {"rate": 0.25}), ("Dense", {"name": "words", "activation": activation})]
    model = from_keras(write_keras(tmp_path / "m.keras", model_of(*layers), datasets("translation")))
    assert model.config.output_dropout == 0.25


def test_an_output_of_another_activation_is_refused(tmp_path):
    layers = model_of(("Dense", {"name": "words", "activation": "relu"}))
    with pytest.raises(ConvertError, match="expected 'words' to be softmax or linear; got 'relu'"):
        from_keras(write_keras(tmp_path / "m.keras", layers, datasets("translation")))


@pytest.mark.parametrize("gone", ["transformer_encoder", "transformer_decoder", "output_dense"])
def test_a_model_that_lacks_a_layer_is_listed(gone):
    arrays = {path: value for path, value in weights("translation").items() if gone not in path}
    with pytest.raises(ConvertError, match=r"one output map; got source_embedding \(embedding\), "):
        from_keras(arrays)
