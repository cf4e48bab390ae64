"""A training step of each model family of transformers, with "regard", "sdpa" and "eager" attention.

    python -m benchmarks.hugging_face_families                 all families; about twenty minutes
    python -m benchmarks.hugging_face_families --only llama    those with this text in their name

Random weights, 2 layers of size 256 with 8 heads, 2 × 512 positions of which 171 are padding (images and sounds have
none), float32, no dropout. A step is forward and backward.

Time      CPU time on one thread, in one process, by turns; the best of several rounds.
Memory    The peak of a step beyond what was there before and the gradients, in a process of its own for each family.
Agrees    The largest difference from "eager", relative to its largest number: of the output where a query sees a key,
          and of the gradients.
"""

import ctypes
import gc
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import ALLOCATOR, machine, note, options_parser, resident

WAYS = ("regard", "sdpa", "eager")
Step = Callable[[], tuple[Tensor, list[Tensor]]]  # the output and the gradients


def steps_of(family: str) -> dict[str, Step]:
    """A training step for each way to attend that the family has."""
    import transformers

    import regard.integrations.transformers  # noqa: F401  # registers "regard"
    from benchmarks.families import LARGE, build, inputs_of

    transformers.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    inputs, steps = inputs_of(family, size=LARGE), {}
    for way in WAYS:
        try:
            steps[way] = _step(build(family, way, size=LARGE).train(), inputs)
        except ValueError as error:  # "sdpa" is not for all families
            note(f"{family}, {way}: {str(error).splitlines()[0][:100]}")
    return steps


def _step(model: Any, inputs: dict[str, Tensor]) -> Step:
    def run() -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        torch.manual_seed(0)
        outputs = model(**inputs)
        if "last_hidden_state" in outputs:
            output = outputs.last_hidden_state
            if output.shape[:2] == inputs.get("attention_mask", output[..., 0]).shape and "attention_mask" in inputs:
                output = output[inputs["attention_mask"].bool()]
        else:
            output = torch.cat([outputs.text_embeds, outputs.image_embeds])
        (output * torch.linspace(-1, 1, output.shape[-1])).sum().backward()
        return output.detach(), [x.grad for x in model.parameters() if x.grad is not None]

    return run


def times(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """The best CPU time of each step, in seconds, by turns."""
    best = dict.fromkeys(steps, math.inf)
    for _ in range(repeats):
        for way, step in steps.items():
            start = time.process_time()
            step()
            best[way] = min(best[way], time.process_time() - start)
    return best


def difference(steps: dict[str, Step]) -> float:
    """The largest difference between ours and eager, relative to eager's largest number."""
    (output, gradients), (expected, expected_gradients) = steps["regard"](), steps["eager"]()
    largest = max(float(x.abs().max()) for x in expected_gradients)
    apart = max(float((x - y).abs().max()) for x, y in zip(gradients, expected_gradients, strict=True))
    return max(apart / largest, float((output - expected).abs().max() / expected.abs().max()))


def peaks(family: str) -> list[int]:
    """Bytes that a step adds to the peak memory of this process, for each way; -1 if the family does not have it."""
    steps, found = steps_of(family), []
    for way in WAYS:
        if way not in steps:
            found.append(-1)
            continue
        steps[way]()  # its gradients stay
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = resident("VmRSS")
        steps[way]()
        found.append(max(0, resident("VmHWM") - before))
    return found


def measure_peaks(family: str) -> list[int]:
    """`peaks` in a fresh process with an allocator that returns memory at once."""
    command = [sys.executable, "-m", "benchmarks.hugging_face_families", "--memory", family]
    run = subprocess.run(command, env=os.environ | ALLOCATOR, stdout=subprocess.PIPE, text=True, check=True)
    return [int(number) for number in run.stdout.splitlines()[-1].split()]


def main() -> None:
    """Run the families that the command line asks for."""
    parser = options_parser("benchmarks.hugging_face_families", repeats=7, memory=False)
    parser.add_argument("--memory", metavar="FAMILY", help="print the peak extra bytes of each way, in this process")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        print(*peaks(options.memory))
        return
    from benchmarks.families import FAMILIES

    print(*(f"{name} {fact}" for name, fact in machine().items()), sep="  ", end="\n\n")
    print("| family | / sdpa | / eager | MiB | sdpa | eager | differs by |\n|---|---:|---:|---:|---:|---:|---:|")
    for family in [name for name in FAMILIES if options.only in name]:
        steps = steps_of(family)
        apart = difference(steps)
        best = times(steps, options.repeats)
        ratios = [f"{best['regard'] / best[way]:.2f}" if way in best else "–" for way in ("sdpa", "eager")]
        memory = ["–" if peak < 0 else f"{peak / 2**20:.0f}" for peak in measure_peaks(family)]
        print(f"| `{family}` |", " | ".join([*ratios, *memory, f"{apart:.0e}"]), "|", flush=True)


if __name__ == "__main__":
    main()
