"""BLEU and chrF as sacreBLEU computes them, and exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Scores:
    """How close translations come to their references; BLEU, chrF and exact match from 0 to 100."""

    sentences: int
    bleu: float
    """Against each source's first reference."""
    bleu_all_references: float
    chrf: float
    """Against each source's first reference."""
    exact_match: float
    """Share of translations that equal one of their references."""
    bleu_signature: str
    chrf_signature: str

    def to_dict(self) -> dict[str, Any]:
        """The scores as JSON would hold them."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"BLEU {self.bleu:.2f} (all references {self.bleu_all_references:.2f})  chrF {self.chrf:.2f}  "
            f"exact match {self.exact_match:.1f} %  {self.sentences:,} sentences\n"
            f"{self.bleu_signature}\n{self.chrf_signature}"
        )


def score(translations: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Score translations against one or more references each.

    Source: Post 2018, arXiv 1804.08771 (sacreBLEU); chrF: Popović 2015.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(), CHRF()
    first = [[refs[0] for refs in references]]
    most = max((len(refs) for refs in references), default=1)
    every: list[Any] = [[refs[i] if i < len(refs) else None for refs in references] for i in range(most)]
    single = bleu.corpus_score(translations, first)
    signature = str(bleu.get_signature())
    exact = sum(text in refs for text, refs in zip(translations, references, strict=True))
    return Scores(
        sentences=len(translations),
        bleu=single.score,
        bleu_all_references=BLEU().corpus_score(translations, every).score,
        chrf=chrf.corpus_score(translations, first).score,
        exact_match=100 * exact / max(len(translations), 1),
        bleu_signature=f"BLEU|{signature}",
        chrf_signature=f"chrF|{chrf.get_signature()}",
    )
