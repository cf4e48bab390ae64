"""A small Llama tells a story, and shows it as it comes.

    python examples/tell_story.py stories260K.bin tok512.bin --prompt "Once upon a time"

The files are those of llama2.c (huggingface.co/karpathy/tinyllamas); a folder in Hugging Face's layout with a
tokenizer.json will do as well: give it twice. Temperature 0 always takes the likeliest token; above it, tokens are
drawn, and the same seed draws the same.
"""

import argparse
from collections.abc import Iterator

import torch

from regard.models.language import LanguageModel
from regard.models.pretrained import load, tokenizer


def tokens(model: LanguageModel, ids: list[int], length: int, temperature: float, seed: int) -> Iterator[int]:
    """The tokens that go on from `ids`, until so many have been read and written."""
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
    """Read the prompt, then write on until the story ends."""
    parser = argparse.ArgumentParser(description="A small language model tells a story.")
    parser.add_argument("model", help="llama2.c's .bin, or a folder in Hugging Face's layout")
    parser.add_argument("tokenizer", help="llama2.c's tokenizer .bin, or a folder with tokenizer.json")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--length", type=int, default=400, help="in tokens, at most")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if not asked.temperature >= 0:
        parser.error(f"the temperature must be 0 or more, got {asked.temperature}")
    model, words = load(asked.model), tokenizer(asked.tokenizer)
    if not isinstance(model, LanguageModel):
        parser.error(f"{asked.model} holds no language model")
    ids = words.encode(asked.prompt)
    if not ids:
        parser.error("this model needs a prompt to go on from")
    written = words.decode(ids)
    print(written, end="", flush=True)
    for number in tokens(model, list(ids), asked.length, asked.temperature, asked.seed):
        if number in (getattr(words, "begin", None), getattr(words, "end", None)):
            break
        ids.append(number)
        story = words.decode(ids)
        if not story.endswith("\ufffd"):  # a letter of several bytes is shown once it is whole
            print(story[len(written) :], end="", flush=True)
            written = story
    print()


if __name__ == "__main__":
    main()
