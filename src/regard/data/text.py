"""Text in: files of text, and tokens by the package `tokenizers`.

    characters(text)             a token for each character that occurs
    pieces(texts, vocabulary)    BPE over bytes: pieces of words by how often they occur; nothing is unknown to it
    words(texts, least)          a token for each word that occurs so often, in lower case and without punctuation

All are `tokenizers.Tokenizer`, which saves itself as `tokenizer.json`. What `characters` and `words` have not seen is
`UNKNOWN`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.tables import INSTALL

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNKNOWN = "�"
AT_ONCE = 1 << 16
"""Characters that are made tokens of at a time."""


def tokenizers() -> Any:
    """The package, or what to do without it."""
    try:
        import tokenizers
    except ImportError:
        raise ModuleNotFoundError(f"tokens need the package tokenizers: {INSTALL}") from None
    return tokenizers


def read_text(path: str | Path) -> str:
    """A file of UTF-8; an error says in which line it is not."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; a text is a file")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    text = decoded(path.read_bytes(), str(path))
    if not text.strip():
        raise ValueError(f"{path} is empty")
    return text


def decoded(raw: bytes, name: str) -> str:
    """What bytes of UTF-8 say, with lines that end alike."""
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(f"{name} is not UTF-8: line {line} has the byte 0x{raw[error.start]:02x}") from None


def text_of(text: str | Path) -> str:
    """The content of a file, or a text as it is: what has no blanks and ends in .txt is a file, there or not."""
    if isinstance(text, Path):
        return read_text(text)
    if not isinstance(text, str):
        raise TypeError(f"text must be a path or a text, got {type(text).__name__}")
    if not text.strip():
        raise ValueError("the text is empty")
    named = text.endswith(".txt") and not any(mark.isspace() for mark in text)
    return read_text(text) if named or is_file(text) else text


def as_text(name: str, text: Any) -> str:
    """A text, once it is one: bytes that were no UTF-8 are none."""
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a text, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is not UTF-8 at character {error.start + 1}: write it in UTF-8") from None
    return text


def is_file(text: str) -> bool:
    """Whether a text is the path of a file; most are no path at all."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def characters(text: Iterable[str], special: tuple[str, ...] = (), *, lower: bool = False) -> "Tokenizer":
    """A token for each character of a text; the special ones are the first.

    >>> tokenizer = characters("banana")
    >>> tokenizer.encode("nab").ids, tokenizer.decode([2, 3, 3]), tokenizer.encode("x").tokens
    ([3, 1, 2], 'bnn', ['�'])
    """
    package = tokenizers()
    normal = package.normalizers.Lowercase().normalize_str if lower else str  # not Python's: of Σ it knows two
    seen = {one for part in text for one in normal(part)}
    first = [*special, UNKNOWN]
    vocabulary = {token: place for place, token in enumerate([*first, *sorted(seen - {UNKNOWN})])}
    tokenizer = package.Tokenizer(package.models.WordLevel(vocabulary, unk_token=UNKNOWN))
    if lower:
        tokenizer.normalizer = package.normalizers.Lowercase()
    tokenizer.pre_tokenizer = package.pre_tokenizers.Split(package.Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = package.decoders.Fuse()
    return tokenizer  # type: ignore[no-any-return]


def pieces(
    texts: Iterable[str],
    vocabulary: int,
    special: tuple[str, ...] = (),
    *,
    lower: bool = False,
    sentences: bool = False,
) -> "Tokenizer":
    """BPE over bytes with at most so many tokens, of which the special ones are the first.

    Special tokens are never found in a text: a text that has their letters in it has those letters. `sentences`: each
    text begins as if a blank stood before it, so that its first word is the same pieces as anywhere else.

    >>> tokenizer = pieces(["the cat sat on the mat"] * 9, vocabulary=280)
    >>> tokenizer.decode(tokenizer.encode("the hat ☃").ids)
    'the hat ☃'
    """
    package = tokenizers()
    if vocabulary < 256 + len(special):
        raise ValueError(
            f"vocabulary must be at least {256 + len(special)}, the bytes and special tokens, got {vocabulary}"
        )
    tokenizer = package.Tokenizer(package.models.BPE())
    if lower:
        tokenizer.normalizer = package.normalizers.Lowercase()
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=sentences)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.encode_special_tokens = True
    return tokenizer  # type: ignore[no-any-return]


def words(texts: Iterable[str], least: int = 1, special: tuple[str, ...] = ()) -> "Tokenizer":
    """A token for each word that occurs at least so often; the special ones are the first, then the commonest.

    A word is letters, digits, and apostrophes and hyphens within it; all else is dropped, and capitals are made small.

    >>> tokenizer = words(["A dog, a dog's ball!", "a T-shirt ..."])
    >>> tokenizer.encode("A cat's dog.").tokens, tokenizer.decode([1, 2])
    (['a', '�', 'dog'], 'a ball')
    """
    package = tokenizers()
    tokenizer = package.Tokenizer(package.models.WordLevel({UNKNOWN: 0}, unk_token=UNKNOWN))
    tokenizer.normalizer = package.normalizers.Lowercase()
    word = package.Regex(r"\w+(['’-]\w+)*")
    tokenizer.pre_tokenizer = package.pre_tokenizers.Split(word, "removed", invert=True)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(part for part, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text.lower()))
    common = sorted((word for word, count in counts.items() if count >= least), key=lambda word: (-counts[word], word))
    vocabulary = {token: place for place, token in enumerate([*special, UNKNOWN, *common])}
    tokenizer.model = package.models.WordLevel(vocabulary, unk_token=UNKNOWN)
    return tokenizer  # type: ignore[no-any-return]


def restored(saved: str) -> "Tokenizer":
    """The tokenizer that was saved as this text."""
    try:
        tokenizer = tokenizers().Tokenizer.from_str(saved)
    except Exception as error:  # the package has no error of its own
        raise ValueError(f"the tokenizer is broken: {error}") from None
    tokenizer.encode_special_tokens = True  # which is not saved with it
    return tokenizer  # type: ignore[no-any-return]


def encoded(tokenizer: "Tokenizer", text: str) -> list[int]:
    """The tokens of a long text, some lines at a time."""
    return [token for part in tokenizer.encode_batch(list(parts(text))) for token in part.ids]


def parts(text: str) -> Iterator[str]:
    """A text in parts that end with a line, where lines are not too long."""
    start = 0
    while start < len(text):
        end = min(len(text), start + AT_ONCE)
        if end < len(text):
            end = text.rfind("\n", start, end) + 1 or end
        yield text[start:end]
        start = end
