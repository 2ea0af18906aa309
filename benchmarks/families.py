"""Counts the default model of every configuration that transformers has, and says how its networks were found.

python benchmarks/families.py > benchmarks/results/families.txt
"""

import time
import warnings
from collections import Counter

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from machine import describe
from positionwise import account
from positionwise.errors import AccountError


def count(model_type: str) -> tuple[str, str]:
    """(kind of answer, line) of one model type."""
    start = time.process_time()
    try:
        counted = account(CONFIG_MAPPING[model_type]())
    except AccountError as error:
        return "refused", str(error)[:160]
    except Exception as error:  # the configuration's own defaults do not fit each other
        return "no default configuration", f"{type(error).__name__}: {str(error)[:120]}"
    groups = counted.feed_forward.groups
    evidence = {group.evidence for group in groups}
    kind = "none found" if not groups else "proven on numbers" if evidence == {"numbers"} else "some by structure"
    seconds = time.process_time() - start
    found = f"{counted.feed_forward.instances:,} networks in {len(groups)} groups, {counted.feed_forward.share:.1%}"
    return kind, f"{counted.total:,}; {found}; not placed: {len(counted.unplaced)}; {seconds:.1f} s"


def main() -> None:
    """A line for each model type, then how many there are of each kind."""
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    kinds: Counter[str] = Counter()
    print(describe())
    for model_type in sorted(CONFIG_MAPPING):
        kind, line = count(model_type)
        kinds[kind] += 1
        print(f"{model_type}: {kind}: {' '.join(line.split())}", flush=True)
    print(*(f"{number} {kind}" for kind, number in kinds.most_common()), sep="\n")


if __name__ == "__main__":
    main()
