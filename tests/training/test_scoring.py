"""Scores are sacreBLEU's own."""

import json

import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from positionwise.training.scoring import Scores, score

TRANSLATIONS = ["Yo veo el gato rojo.", "Ella no come en casa hoy.", "¿Dónde está la niña?", "Nada"]
REFERENCES = [
    ["Yo veo el gato rojo.", "Veo al gato rojo."],
    ["Ella no come hoy en casa.", "Hoy ella no come en casa.", "Ella hoy no come en casa."],
    ["¿Dónde estaba la niña?"],
    ["Nada de nada, dijo él.", "Nada"],
]
FIRST = [[refs[0] for refs in REFERENCES]]


@pytest.fixture(scope="module")
def scores():
    return score(TRANSLATIONS, REFERENCES)


def test_the_first_reference_is_scored_as_sacrebleu_does(scores):
    assert scores.bleu == sacrebleu.corpus_bleu(TRANSLATIONS, FIRST).score
    assert scores.chrf == sacrebleu.corpus_chrf(TRANSLATIONS, FIRST).score
    assert 0 < scores.bleu < 100
    assert 0 < scores.chrf < 100
    assert scores.sentences == 4


def test_all_references_are_scored_as_sacrebleu_does(scores):
    streams = [[refs[i] if i < len(refs) else None for refs in REFERENCES] for i in range(3)]
    assert scores.bleu_all_references == sacrebleu.corpus_bleu(TRANSLATIONS, streams).score
    assert scores.bleu_all_references > scores.bleu


def test_one_reference_each_gives_one_bleu():
    scores = score(TRANSLATIONS, [refs[:1] for refs in REFERENCES])
    assert scores.bleu_all_references == scores.bleu


def test_exact_match_counts_any_reference(scores):
    assert scores.exact_match == 50.0  # the first and the fourth


@pytest.mark.parametrize(("text", "share"), [("Hola.", 100.0), ("hola.", 0.0), ("Hola. ", 0.0), ("Hola", 0.0)])
def test_an_exact_match_is_exact(text, share):
    assert score([text], [["Hola."]]).exact_match == share


def test_signatures_are_sacrebleus(scores):
    bleu, chrf = BLEU(), CHRF()
    bleu.corpus_score(TRANSLATIONS, FIRST)
    chrf.corpus_score(TRANSLATIONS, FIRST)
    assert scores.bleu_signature == f"BLEU|{bleu.get_signature()}"
    assert scores.chrf_signature == f"chrF|{chrf.get_signature()}"
    assert f"version:{sacrebleu.__version__}" in scores.bleu_signature
    assert "nrefs:1|case:mixed" in scores.bleu_signature


def test_perfect_translations_score_100():
    scores = score([refs[-1] for refs in REFERENCES], REFERENCES)
    assert scores.bleu_all_references == pytest.approx(100)
    assert scores.exact_match == 100


def test_translations_that_are_empty_score_nothing():
    scores = score(["", ""], [["Hola."], ["Nada de nada."]])
    assert (scores.bleu, scores.chrf, scores.exact_match) == (0, 0, 0)


def test_as_many_references_as_translations_are_expected():
    with pytest.raises(ValueError, match="zip|expected|length|same"):
        score(["Hola.", "Nada"], [["Hola."]])


def test_scores_go_through_json_and_read_as_text(scores):
    assert Scores(**json.loads(json.dumps(scores.to_dict()))) == scores
    first, *signatures = str(scores).splitlines()
    for figure in (f"BLEU {scores.bleu:.2f}", f"chrF {scores.chrf:.2f}", "exact match 50.0 %", "4 sentences"):
        assert figure in first
    assert signatures == [scores.bleu_signature, scores.chrf_signature]
