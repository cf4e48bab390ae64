"""Shared by all benchmarks: a case, its time and peak memory compared with a peer's, and the printed table.

Time      Both sides run in one process, alternating (ours, peer, ours, peer, …); the best of several rounds counts.
          Before, both run once and their results are compared. The allocator keeps its default settings: code that
          builds large matrices pays for fresh pages in every call, which on a virtual machine can be most of the time.
Memory    The peak of one call in a process of its own, beyond its inputs and results: the highest resident memory
          during the call (VmHWM, reset before it) minus the resident memory before it (VmRSS) and minus outputs and
          gradients. Before, a small input loads everything that loads lazily (compiled loops, thread pools), and the
          allocator is set to return memory at once: one arena, a mapping per large block, and a trim.
          Linux only; elsewhere "n/a".

A ratio is ours / peer: below 1, ours is faster or smaller.
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
"""Seconds after which a case gets no more rounds, once it has had three."""
ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

COLOURS = {"yes": "green", "no": "red"}
PROGRESS = Console(stderr=True)

Inputs = TypeVar("Inputs")
Side = Literal["ours", "peer"]
SIDES: tuple[Side, Side] = ("ours", "peer")


@dataclass(frozen=True)
class Case(Generic[Inputs]):
    """A task done by us and by a peer, with upper bounds on the ratio of our time and memory to the peer's."""

    name: str  # "case / peer", unique
    build: Callable[[int], Inputs]  # the inputs, from a seed
    ours: Callable[[Inputs], Sequence[Tensor]]
    peer: Callable[[Inputs], Sequence[Tensor]]
    time_bound: float
    memory_bound: float | None = None
    warm_up: Callable[[int], Inputs] | None = None
    """Small inputs that load the same code as those of `build`; without them memory is not measured."""
    checked: tuple[Callable[[Inputs], Sequence[Tensor]], Callable[[Inputs], Sequence[Tensor]]] | None = None
    """Deterministic versions of both sides whose results are compared, if `ours` and `peer` draw random numbers."""
    tolerance: float = 1e-4
    """Largest difference between the results, relative to the peer's largest number."""

    def run(self, side: Side, inputs: Inputs) -> Sequence[Tensor]:
        return self.ours(inputs) if side == "ours" else self.peer(inputs)

    @property
    def bounds(self) -> str:
        memory = "" if self.memory_bound is None else f", memory {bound_text(self.memory_bound)}"
        return f"time {bound_text(self.time_bound)}{memory}"


@dataclass(frozen=True)
class Row:
    """The measurements of a case."""

    case: str
    target: str
    ours_seconds: float
    peer_seconds: float
    time_ratio: float
    ours_bytes: int | None
    peer_bytes: int | None
    memory_ratio: float | None
    met: str  # yes, no; n/a if the time bound is met and memory could not be measured


@dataclass(frozen=True)
class Finding:
    """A result that is not only a comparison of time and memory, such as an accuracy."""

    case: str
    target: str
    measured: str
    met: str  # yes, no, not run
    peak_bytes: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """The numbers in `measured`, and more, for --json."""


def compare(case: Case[Any], module: str, repeats: int) -> Row:
    """Compare the results of one case, then measure time and memory."""
    ours, peer = times(case, repeats)
    ours_bytes, peer_bytes = (memory_of(case, module, side) for side in SIDES)
    memory_ratio = ours_bytes / max(1, peer_bytes) if ours_bytes is not None and peer_bytes is not None else None
    if ours / peer > case.time_bound:
        met = "no"
    elif case.memory_bound is None:
        met = "yes"
    elif memory_ratio is None:
        met = "n/a"
    else:
        met = "yes" if memory_ratio <= case.memory_bound else "no"
    return Row(case.name, case.bounds, ours, peer, ours / peer, ours_bytes, peer_bytes, memory_ratio, met)


def times(case: Case[Any], repeats: int) -> tuple[float, float]:
    """The best time of both sides in seconds, measured alternately."""
    inputs = case.build(SEED)
    ours, peer = case.checked or (case.ours, case.peer)
    check_agreement(case, ours(inputs), peer(inputs))
    if case.checked:
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
    """Raise if the results differ. One index in a thousand may, because weights can be nearly equal."""
    for number, (our, their) in enumerate(zip(ours, peer, strict=True)):
        if our.shape != their.shape:
            raise RuntimeError(
                f"{case.name}: result {number} has shape {list(our.shape)}, the peer's {list(their.shape)}"
            )
        if their.is_floating_point():
            error, allowed = float((our - their).abs().max() / their.abs().max()), case.tolerance
        else:
            error, allowed = float((our != their).float().mean()), 1e-3
        if not error <= allowed:  # also raises on NaN
            raise RuntimeError(
                f"{case.name}: result {number} differs from the peer's by {error:.1e}, must be ≤ {allowed:.0e}"
            )


def memory_of(case: Case[Any], module: str, side: Side) -> int | None:
    """Peak extra bytes of one side, measured by `peak_extra` in a fresh process."""
    if case.warm_up is None or not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, "-m", module, "--memory", case.name, side]
    run = subprocess.run(command, env=os.environ | ALLOCATOR, stdout=subprocess.PIPE, text=True, check=True)
    return int(run.stdout)


def peak_extra(case: Case[Any], side: Side) -> int:
    """Bytes that one call adds to the peak memory of this process."""
    assert case.warm_up is not None
    case.run(side, case.warm_up(SEED))
    inputs = case.build(SEED)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    results = case.run(side, inputs)
    returned = sum(result.numel() * result.element_size() for result in results)
    return max(0, resident("VmHWM") - before - returned)


def resident(field: Literal["VmRSS", "VmHWM"]) -> int:
    """Resident bytes of this process, now or at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def machine() -> dict[str, str]:
    """Hardware and versions the numbers depend on."""
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
    """The printed table of the rows."""
    made = Table(box=box.MARKDOWN)
    made.add_column("case / peer")
    for heading in ("ours ms", "peer ms", "ratio"):
        made.add_column(heading, justify="right", no_wrap=True)
    for heading in ("target", "met"):
        made.add_column(heading, no_wrap=True)
    for heading in ("ours MiB", "peer MiB", "ratio"):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(
            row.case,
            number_text(row.ours_seconds * 1e3),
            number_text(row.peer_seconds * 1e3),
            f"{row.time_ratio:.3f}",
            row.target,
            row.met,
            *(number_text(None if x is None else x / 2**20) for x in (row.ours_bytes, row.peer_bytes)),
            "n/a" if row.memory_ratio is None else f"{row.memory_ratio:.4f}",
            style=COLOURS.get(row.met),
        )
    return made


def findings_table(findings: Sequence[Finding]) -> Table:
    """The printed table of the findings."""
    made = Table(box=box.MARKDOWN)
    for heading in ("case", "target", "measured"):
        made.add_column(heading)
    made.add_column("peak MiB", justify="right", no_wrap=True)
    made.add_column("met", no_wrap=True)
    for row in findings:
        peak = "" if row.peak_bytes is None else number_text(row.peak_bytes / 2**20)
        made.add_row(row.case, row.target, row.measured, peak, row.met, style=COLOURS.get(row.met))
    return made


def report(findings: Sequence[Finding], facts: Mapping[str, str], file: Path | None) -> None:
    """Print the findings and the machine; with a file, also write them as JSON."""
    print_table(findings_table(findings), facts)
    if file:
        write_json(file, {"machine": dict(facts), "findings": [asdict(finding) for finding in findings]})


def note(text: str) -> None:
    """Print a progress message on stderr."""
    PROGRESS.print(f"{time.strftime('%H:%M:%S')}  {text}", highlight=False, soft_wrap=True)


def missing_data(data: Path | None, files: Sequence[str], module: str) -> str:
    """A message that names the missing files, or "". The docstring of `module` describes the folder."""
    if data is None:
        return f"needs --data FOLDER, see the docstring of {module}"
    missing = [file for file in files if not (data / file).exists()]
    return f"{data} has no {', '.join(missing)}: see {module}" if missing else ""


def yes_no(met: bool) -> str:
    return "yes" if met else "no"


def number_text(number: float | None) -> str:
    return "n/a" if number is None else f"{number:,.1f}" if number < 1000 else f"{number:,.0f}"


def bound_text(bound: float) -> str:
    """A bound as text: ≤ 1.05 or ≤ 1/8."""
    return f"≤ {bound:g}" if bound >= 1 else f"≤ 1/{1 / bound:g}"


def print_table(table: Table, facts: Mapping[str, str] | None = None) -> None:
    """Print a table, below the facts about the machine if they are given."""
    out = Console(width=None if sys.stdout.isatty() else 200)
    if facts:
        out.print("  ".join(f"{name} {value}" for name, value in facts.items()), highlight=False)
    out.print(table)


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write measurements to a file."""
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def options_parser(
    module: str, *, repeats: int | None = None, data: str = "", memory: bool = True
) -> argparse.ArgumentParser:
    """The options that benchmarks share.

    repeats  the default of --repeats; None leaves the option out
    data     the help of --data; "" leaves the option out
    memory   whether there are cases whose memory is measured, with --memory
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--only", metavar="TEXT", default="", help="run only the rows whose name contains TEXT")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to a file")
    if data:
        parser.add_argument("--data", metavar="FOLDER", type=Path, help=data)
    if repeats:
        parser.add_argument("--repeats", metavar="N", type=int, default=repeats, help="maximum number of rounds")
    if memory:
        text = "print the peak extra bytes of one side, measured in this process"
        parser.add_argument("--memory", nargs=2, metavar=("CASE", "SIDE"), help=text)
    return parser


def print_memory(cases: Sequence[Case[Any]], case_and_side: tuple[str, Side]) -> None:
    """The output of `--memory`, which `memory_of` reads."""
    name, side = case_and_side
    print(peak_extra(next(case for case in cases if case.name == name), side))


def compare_selected(cases: Sequence[Case[Any]], module: str, options: argparse.Namespace) -> list[Row]:
    """Measure the cases that `--only` selects."""
    selected = [case for case in cases if options.only in case.name]
    rows = []
    for number, case in enumerate(selected, 1):
        note(f"{number}/{len(selected)}  {case.name}")
        rows.append(compare(case, module, options.repeats))
    return rows


def main(cases: Sequence[Case[Any]], module: str) -> None:
    """The command of a benchmark that consists of cases: `main(CASES, __spec__.name)`."""
    parser = options_parser(module, repeats=30)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    if options.memory:
        print_memory(cases, options.memory)
        return
    if options.repeats < 1 or not any(options.only in case.name for case in cases):
        names = "\n  ".join(case.name for case in cases)
        parser.error(f"--repeats must be at least 1, and --only part of a case's name, one of\n  {names}")
    facts = machine()
    rows = compare_selected(cases, module, options)
    print_table(table(rows), facts)
    if options.json:
        write_json(options.json, {"machine": facts, "rows": [asdict(row) for row in rows]})
