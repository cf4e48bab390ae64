"""Train translators on Multi30k and score them: the settings of each run, and the run.

    python -m benchmarks.translation_quality --data FOLDER --run transformer --out FOLDER     one run
    torchrun --nproc-per-node 2 -m -- benchmarks.translation_quality …                        with two processes

Sentences are lower-cased, punctuation is normalised, and words are tokenised with Moses's rules (`sacremoses`), as in
the published results. BLEU is sacreBLEU's on those tokens of test_2016_flickr. The epoch is chosen on the validation
set; the test set is translated once. A run writes a model folder and a JSON file with its settings, validation BLEU per
epoch, minutes and scores.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.harness import THREADS, machine
from regard import Translator
from regard.data.text import read_lines
from regard.estimators.translation.evidence import translation_score
from regard.training import ProcessGroup

PARTS = ("train", "val", "test_2016_flickr")
COMMON: dict[str, Any] = {"vocabulary": 8000, "joint": True, "random_state": 0, "optimizer": "adamw"}
RECURRENT = COMMON | {"size": 128, "hidden": 256, "dropout": 0.3, "epochs": 18, "learning_rate": 2e-3}
BLOCKS = COMMON | {
    "model": "transformer",
    "blocks": 4,
    "heads": 4,
    "size": 128,
    "hidden": 256,
    "dropout": 0.3,
    "batch_tokens": 4096,
    "learning_rate": 5e-3,
    "warm": 1000,
    "average": 8,
}
RUNS: dict[str, dict[str, Any]] = {
    "transformer": BLOCKS | {"attention_dropout": 0.3, "epochs": 55},
    "transformer-splits": BLOCKS | {"piece_dropout": 0.05, "epochs": 50},
    "transformer-longer": BLOCKS | {"piece_dropout": 0.05, "epochs": 72},  # transformer-splits, resumed
    "transformer-105": BLOCKS | {"piece_dropout": 0.05, "epochs": 105},  # transformer-longer, resumed
    "transformer-135": BLOCKS | {"piece_dropout": 0.05, "epochs": 135},  # transformer-longer, resumed
    "transformer-5000": BLOCKS | {"vocabulary": 5000, "batch_tokens": 2048, "learning_rate": 4e-3, "epochs": 48},
    "bahdanau": RECURRENT | {"model": "bahdanau"},
    "bahdanau-muon": RECURRENT | {"model": "bahdanau", "optimizer": "muon", "learning_rate": 3e-3},
    "luong": RECURRENT | {"model": "luong"},
    "rnn": RECURRENT | {"model": "rnn"},
}
"""Settings by name, the same for both directions."""
LENGTHS = (1, 9, 11, 13, 15, 18, 22, 1000)
"""Bin edges for BLEU by source length, in words."""


class Corpus(NamedTuple):
    """One part of the corpus in two languages, line by line."""

    source: list[str]
    target: list[str]


def corpora(data: Path, source: str, target: str) -> dict[str, Corpus]:
    """All parts of the corpus, tokenised."""
    return {part: Corpus(tokenised(data, part, source), tokenised(data, part, target)) for part in PARTS}


def tokenised(data: Path, part: str, language: str) -> list[str]:
    """The lines of a part, preprocessed as in the published results."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normal, words = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    lines = read_lines(data / "multi30k" / f"{part}.{language}")
    return [words.tokenize(normal.normalize(line.lower()), return_str=True, escape=False) for line in lines]


def run(data: Path, name: str, direction: str, out: Path, group: ProcessGroup) -> dict[str, Any]:
    """Train, translate the test set, and write the results; with several processes, the main one writes."""
    source, target = direction.split("-")
    parts = corpora(data, source, target)
    translator = Translator(**RUNS[name])
    folder = out / f"{name}-{direction}"
    began, used = time.perf_counter(), time.process_time()
    translator.fit(*parts["train"], validation=parts["val"], checkpoint=folder.with_suffix(".run"), resume=True)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    cpu = float(group.sum(torch.tensor(cpu)))
    if not group.is_main:
        return {}
    translator.save(folder)
    results = {
        "run": name,
        "direction": direction,
        "settings": RUNS[name],
        "machine": machine(),
        "processes": group.size,
        "minutes": round(seconds / 60, 1),
        "processor_minutes": round(cpu / 60, 1),
        "validation_bleu": [round(-value, 2) for value in translator.history_.validation],
        "averaged": translator.history_.averaged,
        **measure_scores(translator, parts["test_2016_flickr"]),
    }
    (out / f"{name}-{direction}.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return results


def measure_scores(translator: Translator, part: Corpus) -> dict[str, Any]:
    """Scores on a part of the corpus, with beam 5."""
    began = time.perf_counter()
    translations = translator.translate(part.source, beam=5)
    seconds = time.perf_counter() - began
    score = translation_score(translations, part.target, tokenize="none")
    return {
        "bleu": round(float(score), 2),
        "signature": score.signature,
        "chrf": round(score.chrf, 2),
        "translation_seconds": round(seconds, 1),
        "bleu_by_length": bleu_by_length(part, translations),
    }


def bleu_by_length(part: Corpus, translations: list[str]) -> list[dict[str, Any]]:
    """BLEU of the sentences in each bin of source length."""
    count = [len(source.split()) for source in part.source]
    bins = []
    for low, high in itertools.pairwise(LENGTHS):
        some = [index for index, words in enumerate(count) if low <= words < high]
        score = translation_score([translations[i] for i in some], [part.target[i] for i in some], tokenize="none")
        words = f"{low}–{high - 1}" if high < LENGTHS[-1] else f"{low} and more"
        bins.append({"words": words, "sentences": len(some), "bleu": round(float(score), 2)})
    return bins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with multi30k/train.en and so on")
    parser.add_argument("--run", choices=list(RUNS), required=True)
    parser.add_argument("--direction", default="en-de", help="source-target, such as en-de or de-en")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model and the results")
    options = parser.parse_args()
    group = ProcessGroup.from_environment()
    torch.set_num_threads(max(1, THREADS // group.size))
    options.out.mkdir(parents=True, exist_ok=True)
    results = run(options.data, options.run, options.direction, options.out, group)
    if group.is_main:
        print(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
