"""Two revisions of this project compared: the time of our side of every case, and its peak memory.

    git worktree add ../before REVISION
    python -m benchmarks.revisions ../before                      all cases; about a quarter of an hour
    python -m benchmarks.revisions ../before --only "training step"

Each revision runs in a process of its own, with its own `benchmarks`; rounds alternate (before, after, before, …) and
the best of several counts. Cases are matched by position in their module. Peers do not run.
"""

import argparse
import importlib
import math
import os
import subprocess
import sys
import time
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.harness import ALLOCATOR, THREADS, machine, note, number_text, print_table

MODULES = ("attend", "kernel", "language", "translation", "captioning")
HERE = Path(__file__).parents[1]
PATIENCE = 10.0
"""Seconds after which a case gets no more rounds, once it has had three."""


SERVER = """
import importlib, os, sys, time, torch
module, number, threads = sys.argv[1:]
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print must not get between the answers
torch.set_num_threads(int(threads))
case = importlib.import_module(module).CASES[int(number)]
print(case.name, file=out, flush=True)
inputs = case.build(0)
case.ours(inputs)
for _ in sys.stdin:
    begin = time.perf_counter()
    case.ours(inputs)
    print(time.perf_counter() - begin, file=out, flush=True)
"""
"""Prints the name of a case, then the time of a round for every line that it reads."""


class Revision:
    """A process that runs our side of one case of a revision."""

    def __init__(self, folder: Path, module: str, number: int, threads: int) -> None:
        self.module = f"benchmarks.{module}"
        self.environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (folder / "src", folder)))}
        command = [sys.executable, "-c", SERVER, self.module, str(number), str(threads)]
        self.process = subprocess.Popen(
            command, env=self.environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.name = self.answer()

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.module} of {self.environment['PYTHONPATH']} ended with {self.process.wait()}")
        return line.rstrip("\n")

    def seconds(self) -> float:
        """The time of one more round."""
        assert self.process.stdin is not None
        print("run", file=self.process.stdin, flush=True)
        return float(self.answer())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def mebibytes(self) -> float | None:
        """The peak memory, if the case measures it."""
        command = [sys.executable, "-m", self.module, "--memory", self.name, "ours"]
        run = subprocess.run(command, env=self.environment | ALLOCATOR, capture_output=True, text=True)
        return int(run.stdout) / 2**20 if run.returncode == 0 else None


def compare(module: str, number: int, options: argparse.Namespace) -> list[str]:
    """One row of the table."""
    sides = [Revision(folder.resolve(), module, number, options.threads) for folder in (options.before, HERE)]
    best = [math.inf, math.inf]
    begin = time.perf_counter()
    for done in range(options.rounds):
        if done >= 3 and time.perf_counter() - begin > PATIENCE:
            break
        best = [min(seconds, side.seconds()) for seconds, side in zip(best, sides, strict=True)]
    for side in sides:
        side.close()
    times = [number_text(seconds * 1e3) for seconds in best]
    return [sides[1].name, *times, f"{best[1] / best[0]:.2f}", *(number_text(side.mebibytes()) for side in sides)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revisions")
    parser.add_argument("before", metavar="FOLDER", type=Path, help="the other revision's working tree")
    parser.add_argument("--only", metavar="TEXT", default="", help="run only the cases whose name contains TEXT")
    parser.add_argument("--rounds", metavar="N", type=int, default=20, help="maximum number of rounds")
    parser.add_argument("--threads", metavar="N", type=int, default=THREADS, help="of torch; 1 on a busy machine")
    options = parser.parse_args()
    table = Table(box=box.MARKDOWN)
    table.add_column("case")
    for heading in ("before ms", "after ms", "after / before", "before MiB", "after MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for module in MODULES:
        for number, case in enumerate(importlib.import_module(f"benchmarks.{module}").CASES):
            if options.only in case.name:
                row = compare(module, number, options)
                note("  ".join(row))
                table.add_row(*row)
    print_table(table, machine())


if __name__ == "__main__":
    main()
