"""Attention beyond one process, against one process on the same cores.

    python -m benchmarks.scale

Ring attention: 2 processes of one thread each hold half of the sequence; one process of two threads holds it all.
Both run forward and backward. All start alike and read their inputs from one seed. Memory is the peak of a process
beyond what it had before its inputs were made, so with inputs, outputs and gradients; of the two, the larger. It is
measured in a round of its own, with the allocator set to return memory at once. Time is
the best of several rounds that alternate between one process and two, each begun by all processes together; beside it
stands the CPU time, that of both processes added up, which other work on the machine disturbs less.
"""

import contextlib
import ctypes
import datetime
import gc
import multiprocessing
import os
import socket
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks import harness
from benchmarks.harness import Finding

HEADS, SIZE = 8, 64
TIME_BOUND, MEMORY_BOUND = 1.2, 0.5


def run(rank: int, count: int, port: int, pipe: Connection) -> None:
    """One of `count` processes: for each number of tokens from the pipe, a round, whose measures are sent back."""
    import regard

    torch.set_num_threads(harness.THREADS // count)
    if count > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=count, timeout=datetime.timedelta(minutes=5))

    def both_ways(length: int) -> tuple[float, float, int]:
        part = length // count
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = harness.resident("VmRSS")
        generator = torch.Generator().manual_seed(rank)
        query, key, value = (
            torch.randn(1, HEADS, part, SIZE, generator=generator, requires_grad=True) for _ in range(3)
        )
        if count > 1:
            dist.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        mean = regard.distributed.attend(query, key, value)
        mean.backward(torch.ones_like(mean))
        if count > 1:
            dist.barrier()
        seconds = time.perf_counter() - start, time.process_time() - cpu
        return *seconds, harness.resident("VmHWM") - before

    both_ways(256 * count)  # loads what is loaded lazily
    pipe.send(None)
    with contextlib.suppress(EOFError):  # the pipe is closed at the end
        while True:
            pipe.send(both_ways(pipe.recv()))


class Team:
    """Some processes that run rounds together."""

    def __init__(self, count: int, environment: dict[str, str]) -> None:
        before = os.environ.copy()
        os.environ |= environment
        context = multiprocessing.get_context("spawn")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pairs = [context.Pipe() for _ in range(count)]
        for rank, (_, pipe) in enumerate(pairs):
            context.Process(target=run, args=(rank, count, port, pipe), daemon=True).start()
        self.pipes = [pipe for pipe, _ in pairs]
        for pipe in self.pipes:
            pipe.recv()
        os.environ.clear()
        os.environ.update(before)

    def round(self, tokens: int) -> tuple[float, float, int]:
        """Seconds, CPU seconds of all, and peak bytes of one process."""
        for pipe in self.pipes:
            pipe.send(tokens)
        seconds, cpu, peak = zip(*(pipe.recv() for pipe in self.pipes), strict=True)
        return max(seconds), sum(cpu), max(peak)


def ring(tokens: int, repeats: int) -> Finding:
    """Two processes against one."""
    seconds, cpu, peak = {}, {}, {}
    for count in (1, 2):
        peak[count] = Team(count, {"OMP_NUM_THREADS": "1", **harness.ALLOCATOR}).round(tokens)[2]
        harness.note(f"{count} processes: {peak[count] / 2**20:.0f} MiB each")
    teams = {count: Team(count, {"OMP_NUM_THREADS": "1"}) for count in (1, 2)}
    for number in range(repeats):
        for count, team in teams.items():
            taken, work, _ = team.round(tokens)
            seconds[count], cpu[count] = min(seconds.get(count, taken), taken), min(cpu.get(count, work), work)
            harness.note(f"round {number + 1}, {count} processes: {taken:.1f} s, {work:.1f} s of CPU time")
    slower, larger = seconds[2] / seconds[1], peak[2] / peak[1]
    return Finding(
        f"ring attention, 2 processes, {tokens:,} tokens, {HEADS} heads of {SIZE}, both ways / one process",
        f"time ≤ {TIME_BOUND}, memory ≤ {MEMORY_BOUND}",
        f"{seconds[2]:.2f} of {seconds[1]:.2f} s: {slower:.2f} (CPU time {cpu[2] / cpu[1]:.2f});"
        f" {peak[2] / 2**20:.0f} of {peak[1] / 2**20:.0f} MiB each: {larger:.2f}",
        harness.yes_no(slower <= TIME_BOUND and larger <= MEMORY_BOUND),
        peak[2],
        {"seconds": seconds, "cpu": cpu, "bytes": peak},
    )


def main() -> None:
    parser = harness.options_parser("benchmarks.scale", repeats=3, memory=False)
    parser.add_argument("--tokens", metavar="N", type=int, default=16384, help="length of the whole sequence")
    options = parser.parse_args()
    harness.report([ring(options.tokens, options.repeats)], harness.machine(), options.json)


if __name__ == "__main__":
    main()
