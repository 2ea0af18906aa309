"""docs/equivalence.md: what the originals chose, what we offer for it, and the errors that the tests measure."""

import math
from itertools import groupby

import keras_cases
import labml_cases
import tensor2tensor_cases
import torch

INTRODUCTION = """\
# Equal to the three published implementations

positionwise reproduces three published implementations number by number, and loads their weights:

```python
from positionwise.convert import from_keras, from_labml, from_tensor2tensor
```

`positionwise convert SOURCE --from tensor2tensor|keras|labml --out DIR` does the same from files, with a table of what
went where. This page is written by `make pages` from what the tests measure; they fail when an error grows.

An error is the largest difference in a tensor, as a share of the tensor's largest number. The originals of
tensor2tensor and Keras computed in float32, so that about 1e-7 is their own rounding. A gradient is compared for each
of the original's variables.
"""

CHOICES = {
    "tensor2tensor v1.0.14 (revision 0c66117d4297)": [
        ("Kernels", "Glorot uniform, biases 0", '`init="xavier_uniform"` (default)'),
        ("Embeddings", "N(0, 1/d), in 16 shards, × √d, id 0 is zero",
         "N(0, 1/d), one table, `embedding_scale`, `mask_pad_embedding` (defaults)"),
        ("Softmax", "shares the embedding's table, no bias; or a table of its own",
         "`tie_word_embeddings`, `share_embeddings` (defaults: shared)"),
        ("Norm", "after the residual, ε 1e-6, biased variance, none at the end",
         "`norm_first=False`, `layer_norm_eps=1e-6` (defaults)"),
        ("Attention", "queries × (key channels / heads)^-½; key and value channels may differ",
         "the same; `key_dim`, `value_dim` for each head"),
        ("Masks", "−1e9 is added; padding is where the embedding is zero; the target is causal only",
         "half the dtype's lowest number is added; padding is `pad_token_id` or `attention_mask`; the same"),
        ("Positions", "[sines ‖ cosines], not interleaved", '`positions="sinusoidal"` (default)'),
        ("Target space", "a row of 32 is added to the embedded source", "`target_spaces=32`, `target_space_id`"),
        ("Dropout", "`residual_dropout` after each sublayer and on the embedded input; `relu_dropout` on the hidden "
         "units; `attention_dropout`", "`dropout` and `embedding_dropout`; `hidden_dropout`; `attention_dropout`"),
        ("Network", "`ffn_layer`: `conv_hidden_relu`, `conv_hidden_relu_with_sepconv`, `parameter_attention`, `none`",
         "`ffn_layer`, the same names"),
        ("Wide kernels", "VALID unless asked; LEFT in the layer; axis 1 is convolved, whatever the rank",
         "`padding`: `same` unless asked, `left` in the layer; an integer kernel convolves the axis before d_model, a "
         "pair the two axes before it; a converted block does as there"),
        ("Loss", "smoothed cross-entropy less its constant, over targets that are not 0",
         "the same; `label_smoothing`"),
        ("Decoder's input", "the targets shifted right behind a zero", "`decoder_start_token_id=0` (default)"),
    ],
    "Keras 3.15.1: the book's classes and KerasHub's encoder": [
        ("Kernels", "Glorot uniform, biases 0", '`init="xavier_uniform"` (default)'),
        ("Embeddings", "U(±0.05), not scaled",
         "N(0, 1/d), `embedding_scale=False`; the range ±0.05 is no option of ours"),
        ("Norm", "after the residual, ε 1e-3 (KerasHub 1e-5, before it with `normalize_first`), biased variance",
         "`layer_norm_eps`, `norm_first`"),
        ("Attention", "queries / √key_dim, biases everywhere", "the same; `key_dim`"),
        ("Masks", "(B, S), true = keep; a row of which nothing is kept attends evenly; the target is causal only, "
         "cross-attention has the source's mask", "the same, and (B, S, S)"),
        ("Positions", "learned, for each side", '`positions="learned"`, `max_positions`'),
        ("Dropout", "0.5 before the output layer, none elsewhere", "`output_dropout=0.5`, the others 0"),
        ("KerasHub's dropout", "on the attention weights and on each sublayer's output",
         "`attention_dropout`, `dropout`; read from a `.keras` file"),
        ("Decoder's input and labels", "the target without its last word, and without its first",
         "`decoder_input_ids` and `labels` likewise; without `decoder_input_ids` the labels are shifted behind "
         "`decoder_start_token_id`, which is 0 unless set to the id of `[start]`"),
        ("Words", "TextVectorization's vocabularies, one for each side", "not read: ids in, ids out"),
        ("Output", "dense with a bias, then softmax",
         "`tie_word_embeddings=False`, `output_bias=True`; we return logits"),
        ("Padding", "id 0 is embedded like any other", "`mask_pad_embedding=False`"),
        ("Loss", "Σ w·ce / (B·T): padding stands in the denominator", "over the valid targets: ours × valid / (B·T)"),
        ("Adam", "ε = 1e-7 beside √v, before v's bias is corrected", "`torch.optim.Adam` with eps = 1e-7 / √(1 − β₂ᵗ) "
         "at step t"),
        ("GELU", "exact", "`gelu`; the tanh form is `gelu_tanh`"),
    ],
    "labml (e6b3c8a6)": [
        ("Call", "`FeedForward(d_model, d_ff, dropout, activation, is_gated, bias1, bias2, bias_gate)`", "the same"),
        ("State dict", "`layer1`, `layer2`, `linear_v`", "the same"),
        ("Maps", "`nn.Linear`'s own initialisation", '`init="pytorch"`; the default is Glorot uniform'),
        ("Dropout", "on the hidden units, after the gate's product", "the same"),
        ("Activation", "one object for all blocks; an unknown name fails at the first call",
         "one for each block; an unknown name fails when it is given"),
        ("Gate's bias", "on in the class, off in its configuration", "on in both"),
        ("Variant", "a misspelled name is an ungated ReLU network", "an error that lists the names"),
        ("Depth-scaled weights", "`linear_v` is left out", "no such scaling; `linear_v` is drawn like `layer1`"),
        ("Width", "gated blocks keep d_ff: 1.5 × the parameters", "the same, or `match_parameters=True`"),
        ("GELU", "the exact form, for GPT-2's weights too", "`gelu` and `gelu_tanh` are two names"),
    ],
}  # fmt: skip

PORTING = """\
## Porting a Keras model

A `.keras` file says ε, activation, norm and dropout; a `.weights.h5` file or a mapping does not, and the original
classes' defaults are assumed unless `from_keras` is told otherwise.

```python
import torch
from positionwise.convert import from_keras

model = from_keras("translation.keras")  # TransformerForTranslation, in evaluation mode
english, spanish = torch.tensor([[5, 9, 4, 0]]), torch.tensor([[2, 7, 11, 3]])
logits = model(input_ids=english, decoder_input_ids=spanish[:, :-1]).logits  # id 0 of the source is masked
written = model.generate(english, decoder_start_token_id=2, eos_token_id=3)  # the ids of [start] and [end]
hidden = model.encoder.layers[0](torch.randn(1, 4, 16), torch.tensor([[True, True, True, False]]))  # x, mask
hidden = model.decoder.layers[0](torch.randn(1, 3, 16), hidden, memory_mask=torch.tensor([[1, 1, 1, 0]]))
```

"""

RECIPE = """\
## Changing a tensor2tensor checkpoint's vocabulary

The table lies in shards whose sizes depend on its rows: join, change, split, and name the new size.

```python
import torch
from positionwise.convert import from_tensor2tensor, join_shards, read_bundle, split_shards

variables = read_bundle("model.ckpt-1234")
old, new = "symbol_modality_37_16/shared/weights_", "symbol_modality_40_16/shared/"
count = sum(name.startswith(old) and name[len(old) :].isdigit() for name in variables)
table = join_shards({f"{old}{i}": variables.pop(f"{old}{i}") for i in range(count)})
rows = torch.randn(3, table.shape[1]) * table.shape[1] ** -0.5  # as new rows are drawn
for name, shard in split_shards(torch.cat([table, rows]), count).items():
    variables[new + name] = shard
model = from_tensor2tensor(variables, num_heads=4, target_space_id=9)
```
"""


def rounded(error):
    """An error rounded up to one figure."""
    if error == 0:
        return "0"
    power = math.floor(math.log10(error))
    figure = math.ceil(error / 10**power)
    return f"{figure}e{power}" if figure < 10 else f"1e{power + 1}"


def choices(rows):
    table = ["| | original | ours |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(table)


def measured(cases, measure):
    """A row for each fixture: how many quantities, and the largest error in both dtypes."""
    rows = {}
    for name in cases:
        found = [measure(name, dtype) for dtype in (torch.float32, torch.float64)]
        rows[name] = (str(len(found[0])), *(max(errors.values()) for errors in found))
    return rows


def labml_rows():
    """labml's 52 cases by activation and mode: float64 alone."""
    kind = lambda name: name.rpartition("_")[0] or name  # noqa: E731
    rows = {}
    for group, names in groupby(labml_cases.NAMES, kind):
        errors = [error for name in names for error in labml_cases.errors(labml_cases.cases()[name]).values()]
        rows[group] = (str(len(errors)), max(errors))
    return rows


def errors():
    """All measured rows by chapter."""
    found = [
        measured(tensor2tensor_cases.CASES, tensor2tensor_cases.measure),
        measured(keras_cases.CASES, keras_cases.measure),
        labml_rows(),
    ]
    return dict(zip(CHOICES, found, strict=True))


def page(found):
    """The page's text, the errors rounded up."""
    parts = [INTRODUCTION]
    for chapter, rows in found.items():
        columns = ["float32", "float64"] if len(next(iter(rows.values()))) == 3 else ["float64"]
        table = [f"| fixture | arrays compared | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
        for name, (count, *figures) in rows.items():
            table.append(f"| `{name}` | {count} | {' | '.join(map(rounded, figures))} |")
        parts += [
            f"## {chapter}\n\n{choices(CHOICES[chapter])}\n\nThe largest error in each fixture:\n",
            "\n".join(table) + "\n",
        ]
    return "\n".join([*parts, PORTING + RECIPE])
