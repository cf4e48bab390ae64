"""Generate a story with a small Llama, printed token by token.

    python examples/tell_story.py stories260K.bin tok512.bin --prompt "Once upon a time"

The files are those of llama2.c (huggingface.co/karpathy/tinyllamas); a folder in Hugging Face's layout with a
tokenizer.json works too: pass it twice. Temperature 0 always takes the most likely token; above 0, tokens are sampled,
and the same seed gives the same story.
"""

import argparse
from collections.abc import Iterator

import torch

from regard.models.language import LanguageModel
from regard.models.pretrained import load, tokenizer


def tokens(model: LanguageModel, ids: list[int], length: int, temperature: float, seed: int) -> Iterator[int]:
    """The tokens that follow `ids`, until `length` tokens in total or the end of the context."""
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        cache, last = model.begin(torch.tensor([ids[:-1]], dtype=torch.long)), ids[-1]
        for _ in range(min(length, model.context) - len(ids)):
            cache, log_p = model.step(cache, torch.tensor([last]))
            if temperature == 0:
                last = int(log_p.argmax())
            else:
                last = int(torch.multinomial((log_p[0] / temperature).softmax(dim=0), 1, generator=generator))
            yield last


def main() -> None:
    """Read the prompt, then generate until the story ends."""
    parser = argparse.ArgumentParser(description="Generate a story with a small language model.")
    parser.add_argument("model", help="llama2.c's .bin, or a folder in Hugging Face's layout")
    parser.add_argument("tokenizer", help="llama2.c's tokenizer .bin, or a folder with tokenizer.json")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--length", type=int, default=400, help="maximum number of tokens")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not options.temperature >= 0:
        parser.error(f"--temperature must be at least 0, got {options.temperature}")
    model, words = load(options.model), tokenizer(options.tokenizer)
    if not isinstance(model, LanguageModel):
        parser.error(f"{options.model} is not a language model")
    ids = words.encode(options.prompt)
    if not ids:
        parser.error("--prompt must not be empty for this model")
    printed = words.decode(ids)
    print(printed, end="", flush=True)
    for number in tokens(model, list(ids), options.length, options.temperature, options.seed):
        if number in (getattr(words, "begin", None), getattr(words, "end", None)):
            break
        ids.append(number)
        story = words.decode(ids)
        if not story.endswith("\ufffd"):  # wait for all bytes of a character
            print(story[len(printed) :], end="", flush=True)
            printed = story
    print()


if __name__ == "__main__":
    main()
