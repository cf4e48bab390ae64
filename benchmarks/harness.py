"""What the benchmarks share: a case, its time and peak memory beside a peer's, and the table of them.

Time      both sides in one process, in turns (ours, peer, ours, peer, …), the best of several rounds,
          after both have run once and their results were found to agree. The allocator is as it comes:
          who builds large matrices pays the kernel for fresh pages at every call, which on a virtual
          machine can be most of the time.
Memory    the peak of what one call needs in a process of its own beside its inputs and its results: the
          highest resident memory during the call (VmHWM, reset before it) less the resident memory before
          it (VmRSS) and less what is returned, outputs and gradients, which nobody can do without. Before,
          a short input has loaded what loads lazily (compiled loops, thread pools), and the allocator is
          told to keep nothing back: one arena, a mapping of its own for all that is large, and a trim.
          Linux only; elsewhere "n/a".

A ratio is ours / peer: below 1 ours is quicker, or smaller.
"""

import argparse
import ctypes
import gc
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

THREADS = 2
SEED = 0
PATIENCE = 30.0
"""Seconds after which a case is given no more rounds, once it has had three."""
ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

COLOURS = {"yes": "green", "no": "red"}
PROGRESS = Console(stderr=True)

Inputs = TypeVar("Inputs")
Side = Literal["ours", "peer"]
SIDES: tuple[Side, Side] = ("ours", "peer")


@dataclass(frozen=True)
class Case(Generic[Inputs]):
    """One thing done by us and by a peer, and what our share of the peer's time and memory must be."""

    name: str  # "what / the peer", unlike any other
    build: Callable[[int], Inputs]  # the inputs, from a seed
    ours: Callable[[Inputs], Sequence[Tensor]]
    peer: Callable[[Inputs], Sequence[Tensor]]
    time_bound: float
    memory_bound: float | None = None
    short: Callable[[int], Inputs] | None = None
    """Inputs that load all that `build`'s do, but are small; where there are none, memory is not measured."""
    alike: tuple[Callable[[Inputs], Sequence[Tensor]], Callable[[Inputs], Sequence[Tensor]]] | None = None
    """What is compared instead of ours and the peer's, where those draw random numbers."""
    tolerance: float = 1e-4
    """How far results may be apart, as a share of the peer's largest number."""

    def run(self, side: Side, inputs: Inputs) -> Sequence[Tensor]:
        return self.ours(inputs) if side == "ours" else self.peer(inputs)

    @property
    def bounds(self) -> str:
        memory = "" if self.memory_bound is None else f", memory {share(self.memory_bound)}"
        return f"time {share(self.time_bound)}{memory}"


@dataclass(frozen=True)
class Row:
    """What was found of a case: seconds, and bytes where they can be measured."""

    case: str
    must_reach: str
    ours_seconds: float
    peer_seconds: float
    time_ratio: float
    ours_bytes: int | None
    peer_bytes: int | None
    memory_ratio: float | None
    reached: str  # yes, no; n/a where time was reached and memory could not be measured


@dataclass(frozen=True)
class Finding:
    """What was found where the question is not only one of time and memory beside a peer's."""

    case: str
    must_reach: str
    measured: str
    reached: str  # yes, no, not run
    peak_bytes: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """What `measured` says, and more, for --json."""


def compare(case: Case[Any], module: str, repeats: int) -> Row:
    """Check, time and weigh one case."""
    ours, peer = times(case, repeats)
    ours_bytes, peer_bytes = (memory_of(case, module, side) for side in SIDES)
    memory_ratio = ours_bytes / max(1, peer_bytes) if ours_bytes is not None and peer_bytes is not None else None
    if ours / peer > case.time_bound:
        reached = "no"
    elif case.memory_bound is None:
        reached = "yes"
    elif memory_ratio is None:
        reached = "n/a"
    else:
        reached = "yes" if memory_ratio <= case.memory_bound else "no"
    return Row(case.name, case.bounds, ours, peer, ours / peer, ours_bytes, peer_bytes, memory_ratio, reached)


def times(case: Case[Any], repeats: int) -> tuple[float, float]:
    """The best seconds of both sides, in turns."""
    inputs = case.build(SEED)
    ours, peer = case.alike or (case.ours, case.peer)
    check_agreement(case, ours(inputs), peer(inputs))
    if case.alike:
        for side in SIDES:
            case.run(side, inputs)
    best: dict[Side, float] = dict.fromkeys(SIDES, math.inf)
    begin = time.perf_counter()
    for done in range(repeats):
        if done >= 3 and time.perf_counter() - begin > PATIENCE:
            break
        for side in SIDES:
            start = time.perf_counter()
            case.run(side, inputs)
            best[side] = min(best[side], time.perf_counter() - start)
    return best["ours"], best["peer"]


def check_agreement(case: Case[Any], ours: Sequence[Tensor], peer: Sequence[Tensor]) -> None:
    """Numbers must be close; of indices one in a thousand may differ, where weights are all but equal."""
    for number, (our, their) in enumerate(zip(ours, peer, strict=True)):
        if our.shape != their.shape:
            raise RuntimeError(f"{case.name}: result {number} is {list(our.shape)}, the peer's {list(their.shape)}")
        if their.is_floating_point():
            error, allowed = float((our - their).abs().max() / their.abs().max()), case.tolerance
        else:
            error, allowed = float((our != their).float().mean()), 1e-3
        if not error <= allowed:  # NaN too is not
            raise RuntimeError(f"{case.name}: result {number} is {error:.1e} off the peer's, must be ≤ {allowed:.0e}")


def memory_of(case: Case[Any], module: str, side: Side) -> int | None:
    """Peak extra bytes of one side, from a fresh process that runs `peak_extra`."""
    if case.short is None or not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, "-m", module, "--memory", case.name, side]
    run = subprocess.run(command, env=os.environ | ALLOCATOR, stdout=subprocess.PIPE, text=True, check=True)
    return int(run.stdout)


def peak_extra(case: Case[Any], side: Side) -> int:
    """Bytes that one call adds to this process at its peak."""
    assert case.short is not None
    case.run(side, case.short(SEED))
    inputs = case.build(SEED)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    results = case.run(side, inputs)
    returned = sum(result.numel() * result.element_size() for result in results)
    return max(0, resident("VmHWM") - before - returned)


def resident(field: Literal["VmRSS", "VmHWM"]) -> int:
    """Resident bytes of this process, now or at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def table(rows: Sequence[Row]) -> Table:
    """The rows as they are printed."""
    made = Table(box=box.MARKDOWN)
    made.add_column("case / peer")
    for heading in ("ours ms", "peer ms", "ratio"):
        made.add_column(heading, justify="right", no_wrap=True)
    for heading in ("must reach", "reached"):
        made.add_column(heading, no_wrap=True)
    for heading in ("ours MiB", "peer MiB", "ratio"):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(
            row.case,
            figure(row.ours_seconds * 1e3),
            figure(row.peer_seconds * 1e3),
            f"{row.time_ratio:.3f}",
            row.must_reach,
            row.reached,
            *(figure(None if x is None else x / 2**20) for x in (row.ours_bytes, row.peer_bytes)),
            "n/a" if row.memory_ratio is None else f"{row.memory_ratio:.4f}",
            style=COLOURS.get(row.reached),
        )
    return made


def findings_table(findings: Sequence[Finding]) -> Table:
    """The findings as they are printed."""
    made = Table(box=box.MARKDOWN)
    for heading in ("case", "must reach", "measured"):
        made.add_column(heading)
    made.add_column("peak MiB", justify="right", no_wrap=True)
    made.add_column("reached", no_wrap=True)
    for row in findings:
        peak = "" if row.peak_bytes is None else figure(row.peak_bytes / 2**20)
        made.add_row(row.case, row.must_reach, row.measured, peak, row.reached, style=COLOURS.get(row.reached))
    return made


def report(findings: Sequence[Finding], facts: Mapping[str, str], file: Path | None) -> None:
    """Print what was found, and where; with a file, also as JSON."""
    out = Console(width=None if sys.stdout.isatty() else 200)
    out.print("  ".join(f"{name} {value}" for name, value in facts.items()), highlight=False)
    out.print(findings_table(findings))
    if file:
        found = {"machine": dict(facts), "findings": [asdict(finding) for finding in findings]}
        file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


def note(text: str) -> None:
    """A line on stderr for who waits."""
    PROGRESS.print(f"{time.strftime('%H:%M:%S')}  {text}", highlight=False, soft_wrap=True)


def lacking(data: Path | None, files: Sequence[str], told: str) -> str:
    """What to put where, in words, as the docstring of `told` says; nothing where all is there."""
    if data is None:
        return f"give --data a folder as the docstring of {told} says"
    missing = [file for file in files if not (data / file).exists()]
    return f"{data} lacks {', '.join(missing)}: see {told}" if missing else ""


def said(reached: bool) -> str:
    return "yes" if reached else "no"


def figure(number: float | None) -> str:
    return "n/a" if number is None else f"{number:,.1f}" if number < 1000 else f"{number:,.0f}"


def share(bound: float) -> str:
    """≤ 1.05 or ≤ 1/8, as one would say it."""
    return f"≤ {bound:g}" if bound >= 1 else f"≤ 1/{1 / bound:g}"


def main(cases: Sequence[Case[Any]], module: str) -> None:
    """The command of a benchmark file: `main(CASES, __spec__.name)`."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--only", metavar="NAME", default="", help="cases whose name has this in it")
    parser.add_argument("--repeats", metavar="N", type=int, default=30, help="rounds at most, 30 if not given")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write what was found to a file")
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "SIDE"), help="peak extra bytes of one side, alone")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    if options.memory:
        name, side = options.memory
        print(peak_extra(next(case for case in cases if case.name == name), side))
        return
    chosen = [case for case in cases if options.only in case.name]
    if options.repeats < 1 or not chosen:
        names = "\n  ".join(case.name for case in cases)
        parser.error(f"--repeats must be at least 1 and --only part of a case's name, one of\n  {names}")
    facts = machine()
    rows = []
    for number, case in enumerate(chosen, 1):
        PROGRESS.print(f"{number}/{len(chosen)}  {case.name}", highlight=False)
        rows.append(compare(case, module, options.repeats))
    out = Console(width=None if sys.stdout.isatty() else 200)
    out.print("  ".join(f"{name} {value}" for name, value in facts.items()), highlight=False)
    out.print(table(rows))
    if options.json:
        found = {"machine": facts, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
