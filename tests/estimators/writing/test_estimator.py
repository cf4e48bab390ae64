"""The Writer: it learns a text, goes on with it, and shows what it looked at."""

import copy
import json
import math
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import regard
from regard import saving
from regard.data.text import text_or_file
from regard.data.tokenizers import encode_text
from regard.estimators.writing.batches import Windows, mean_loss
from regard.estimators.writing.estimator import Writer
from regard.training import Muon

LINE = "the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n"
SMALL = {"context": 24, "blocks": 2, "heads": 2, "size": 32, "dropout": 0.0, "verbose": False, "random_state": 1}


@pytest.fixture(scope="module")
def writer():
    return Writer(steps=250, batch_size=16, learning_rate=5e-3, warm=20, **SMALL).fit(LINE * 60)


@pytest.fixture(scope="module")
def piecewise():
    settings = SMALL | {"tokens": "pieces", "vocabulary": 300}
    return Writer(steps=60, batch_size=8, learning_rate=5e-3, warm=10, **settings).fit((LINE + "žluťoučký kůň\n") * 60)


def test_it_learns_a_text_by_heart(writer):
    assert writer.perplexity(LINE * 5) < 1.3
    assert writer.write("the quick brown", 40, temperature=0) == LINE[:55]
    # A text in another order is a surprise.
    assert writer.perplexity(LINE[::-1] * 5) > 20
    assert writer.score(LINE * 5) == pytest.approx(-math.log(writer.perplexity(LINE * 5)))


def test_writing_goes_on_beyond_the_context(writer):
    whole = writer.write("the quick", 200, temperature=0)
    assert whole == (LINE * 4)[:209]


def test_one_seed_gives_one_text(writer):
    first, same, other = (writer.write("the ", 60, temperature=2.0, seed=seed) for seed in (5, 5, 6))
    assert first == same
    assert first != other
    assert len(writer.write("the ", 60, top_k=3, seed=1)) == 64
    streamed = list(writer.stream("the ", 60, temperature=2.0, seed=5))
    assert "the " + "".join(streamed) == first
    assert len(streamed) == 60


def test_one_seed_gives_one_model():
    first, second = (Writer(steps=4, **SMALL).fit(LINE * 20) for _ in range(2))
    for one, two in zip(first.model_.parameters(), second.model_.parameters(), strict=True):
        assert torch.equal(one, two)


def test_pieces_write_whole_characters(piecewise):
    assert piecewise.tokenizer_.get_vocab_size() <= 300
    ids = piecewise.tokenizer_.encode("žluťoučký kůň").ids
    assert len(ids) < len("žluťoučký kůň".encode())
    # Bytes of one character come as tokens of their own, and are held back until it is whole.
    with pytest.MonkeyPatch.context() as patch:
        tokens = piecewise.tokenizer_.encode("a☃b").ids
        assert len(tokens) > 3
        patch.setattr(
            "regard.estimators.writing.estimator.sample", lambda *_, **__: (torch.tensor([token]) for token in tokens)
        )
        assert list(piecewise.stream("x", len(tokens))) == ["a", "☃", "b"]
    assert piecewise.perplexity("unseen Ωmega ☃☃") > 1


def test_perplexity_is_the_definition(writer):
    text = (LINE * 3)[:100]
    ids = torch.tensor(encode_text(writer.tokenizer_, text))
    # Every token, given what its window shows: windows of 24 that overlap by 12.
    total = 0.0
    for place in range(1, len(ids)):
        start = 0 if place <= 24 else 12 * ((place - 13) // 12)
        log_p = writer.model_(ids[None, start:place]).log_softmax(dim=-1)
        total -= float(log_p[0, -1, ids[place]])
    assert math.log(writer.perplexity(text)) == pytest.approx(total / (len(ids) - 1), rel=1e-4)


@pytest.mark.parametrize("length", [2, 3, 24, 25, 26, 48, 49, 50, 97])
def test_every_token_is_counted_once(writer, length):
    counted = []

    class Counting(torch.nn.Module):
        context = 24

        def forward(self, tokens):
            counted.append(tokens)
            logits = torch.zeros(*tokens.shape, 97)
            logits[..., 0] = 1.0
            return logits

    # Each token has the same probability, so that the mean is that of one of them if the count is right.
    expected = -float(torch.nn.functional.log_softmax(torch.tensor([1.0] + [0.0] * 96), dim=0)[1])
    for overlap in (0, 12):
        assert mean_loss(Counting(), torch.arange(length) % 96 + 1, overlap) == pytest.approx(expected, rel=1e-5)


def test_evidence_is_what_the_model_looked_at(writer):
    text = LINE[:19]
    found = writer.evidence(text, top=19)
    assert found.index.shape == (2, 2, 19, 19)
    assert found.tokens == list(text)
    weights = [found.matrix(block, head) for block in range(2) for head in range(2)]
    for matrix in weights:
        assert np.allclose(matrix.sum(axis=1), 1.0, atol=1e-5)
        assert not np.triu(matrix, 1).any()  # nothing of the future
    with regard.watch(writer.model_) as seen:
        writer.model_(torch.tensor([encode_text(writer.tokenizer_, text)]))
    whole = torch.stack([layer[0][0] for layer in seen.values()]).flatten(0, 1).numpy()
    assert np.allclose(np.stack(weights), whole, atol=1e-5)
    few = writer.evidence(text, top=3)
    frame = few.to_frame()
    mine = frame[(frame.place == 18) & (frame.block == 1) & (frame["head"] == 0)]
    assert mine["rank"].tolist() == [1, 2, 3]
    assert mine["weight"].sum() + mine["rest"].iloc[0] == pytest.approx(1.0, abs=1e-6)
    assert mine["weight"].tolist() == sorted(mine["weight"], reverse=True)
    assert [text[place] for place in mine["looked_at_place"]] == mine["looked_at"].tolist()
    axes = few.plot(block=1, head=0)
    assert axes.get_title() == "block 1, head 0, the 3 largest weights of each"


def test_a_saved_writer_writes_the_same(writer, piecewise, tmp_path):
    for model in (writer, piecewise):
        model.save(tmp_path / "model")
        again = regard.load(tmp_path / "model")
        assert again.write("the", 30, seed=2) == model.write("the", 30, seed=2)
        assert again.get_params() == model.get_params()
        assert again.history_ == model.history_._replace(loss=())
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json",
        "model-2.safetensors",
        "tokenizer-2.json",
    ]
    (tmp_path / "model" / "tokenizer-2.json").unlink()
    with pytest.raises(ValueError, match=r"tokenizer-2.json cannot be read"):
        regard.load(tmp_path / "model")


def test_a_writer_in_bfloat16_is_saved_as_it_is(writer, tmp_path):
    small = copy.deepcopy(writer)
    small.model_.bfloat16()
    small.save(tmp_path / "model")
    found, kept = regard.load(tmp_path / "model").model_.state_dict(), small.model_.state_dict()
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    assert_close(dict(found), dict(kept), rtol=0, atol=0)


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path):
    (tmp_path / "text.txt").write_text(LINE * 40)
    settings = SMALL | {"steps": 40, "validate_every": 4, "batch_size": 4, "dropout": 0.2}
    code = f"""
import time
from regard import Writer
from regard.models.language import LanguageModel
loss = LanguageModel.loss
LanguageModel.loss = lambda model, batch: (time.sleep(0.02), loss(model, batch))[1]
Writer(**{settings!r}).fit({str(tmp_path / "text.txt")!r}, checkpoint={str(tmp_path / "run")!r})
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / saving.CONFIG).exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    steps = json.loads((tmp_path / "run" / saving.CONFIG).read_text())["checkpoint"]["steps"]
    assert 0 < steps < 40
    with pytest.raises(FileExistsError, match="resume it with resume=True"):
        Writer(**settings).fit(tmp_path / "text.txt", checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match=r"must keep its settings: .* has size=32, got size=64"):
        Writer(**settings | {"size": 64}).fit(tmp_path / "text.txt", checkpoint=tmp_path / "run", resume=True)
    again = Writer(**settings).fit(tmp_path / "text.txt", checkpoint=tmp_path / "run", resume=True)
    whole = Writer(**settings).fit(tmp_path / "text.txt")
    for one, two in zip(again.model_.parameters(), whole.model_.parameters(), strict=True):
        assert torch.equal(one, two)
    assert again.history_ == whole.history_


def test_another_text_of_the_same_length_does_not_go_on(tmp_path, monkeypatch):
    from regard.models.language import LanguageModel

    loss, calls = LanguageModel.loss, []

    def broken(model, batch):
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return loss(model, batch)

    monkeypatch.setattr(LanguageModel, "loss", broken)
    settings = SMALL | {"steps": 12, "validate_every": 5}
    with pytest.raises(KeyboardInterrupt):
        Writer(**settings).fit(LINE * 20, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match=r"must keep its settings: .* has data="):
        Writer(**settings).fit(LINE[::-1] * 20, checkpoint=tmp_path / "run", resume=True)
    calls.clear()
    monkeypatch.setattr(LanguageModel, "loss", lambda model, batch: (calls.append(1), loss(model, batch))[1])
    found = Writer(**settings).fit(LINE * 20, checkpoint=tmp_path / "run", resume=True)
    assert len(calls) == 7  # steps 6 to 12
    assert len(found.history_.validation) == 3


def test_a_stream_leaves_the_callers_mode_alone(writer):
    first, second = writer.stream("the", 5), writer.stream("the", 5)
    next(first), next(second)
    assert not torch.is_inference_mode_enabled()
    assert len(list(first)) == len(list(second)) == 4
    assert not torch.is_inference_mode_enabled()


def test_a_fit_that_fails_leaves_the_model_as_it_was():
    model = Writer(steps=4, **SMALL).fit(LINE * 20)
    before = model.write("the", 9, seed=0)
    with pytest.raises(ValueError, match="too short"):
        model.fit("xyz")
    assert model.write("the", 9, seed=0) == before


def test_the_held_out_part_is_not_learned():
    """Of a text whose last tenth is of other letters, those are never seen in training."""
    seen = []

    class Spy(Writer):
        def make_model(self, tokenizer):
            model = super().make_model(tokenizer)
            loss = model.loss
            model.loss = lambda batch: (seen.append(batch) if model.training else None, loss(batch))[1]
            return model

    model = Spy(steps=9, **SMALL).fit("ab" * 450 + "cd" * 50)
    letters = set("".join(model.tokenizer_.decode(row.tolist()) for batch in seen for row in batch))
    assert letters == {"a", "b"}


@pytest.mark.parametrize(("optimizer", "kind"), [("muon", Muon), ("adamw", torch.optim.AdamW)])
def test_settings_reach_the_training(monkeypatch, optimizer, kind):
    from regard.estimators.writing import estimator as module

    given = {}

    def watched(model, batches, loss, recipe, **settings):
        given.update(vars(recipe), model=model)
        return train(model, batches, loss, recipe, **settings)

    train = module.train
    monkeypatch.setattr(module, "train", watched)
    settings = {"clip": 0.3, "accumulate": 2, "patience": 3, "warm": 4, "weight_decay": 0.2, "dropout": 0.25}
    settings["optimizer"] = optimizer
    Writer(steps=9, validate_every=4, learning_rate=0.01, **SMALL | settings).fit(LINE * 20)
    assert (given["clip"], given["accumulate"], given["patience"], given["epochs"]) == (0.3, 2, 3, 3)
    assert given["model"].decoder.blocks[0].dropout.dropout == 0.25
    assert type(given["optimizer"]) is kind
    *matrices, gains = given["optimizer"].param_groups
    assert gains["weight_decay"] == 0.0
    for group in matrices:
        assert (group["weight_decay"], group["betas"]) == (0.2, (0.9, 0.99))
        assert all(parameter.ndim > 1 for parameter in group["params"])
    assert [given["schedule"].lr_lambdas[0](step) for step in (0, 3)] == [0.25, 1.0]


def test_windows_are_of_the_text_and_depend_on_the_epoch():
    ids = torch.arange(50)
    batches = list(Windows(ids, 7, 5, 9, (3, 0)))
    assert len(batches) == 9
    assert all(batch.shape == (5, 8) for batch in batches)
    assert all((batch == batch[:, :1] + torch.arange(8)).all() for batch in batches)
    assert max(int(batch.max()) for batch in Windows(ids, 7, 50, 20, (3, 0))) == 49
    assert not torch.equal(torch.stack(batches), torch.stack(list(Windows(ids, 7, 5, 9, (3, 1)))))
    assert torch.equal(torch.stack(batches), torch.stack(list(Windows(ids, 7, 5, 9, (3, 0)))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3}, "heads must divide size, got size=32 and heads=3"),
        ({"context": 100_000}, "the text is too short"),
        ({"tokens": "words"}, "tokens must be characters or pieces, got 'words'"),
        ({"steps": 0}, "steps must be a positive whole number, got 0"),
        ({"optimizer": "adam"}, "optimizer must be muon or adamw, got 'adam'"),
        ({"validation_fraction": 1.0}, "validation_fraction must be a number above 0 and below 1"),
        ({"tokens": "pieces", "vocabulary": 100}, "vocabulary must be at least 256"),
        ({"learning_rate": -1.0}, "learning_rate must be a number above 0"),
        ({"learning_rate": "abc"}, "learning_rate must be a number above 0, got 'abc'"),
        ({"clip": "x"}, "clip must be a number above 0"),
        ({"weight_decay": -1.0}, "weight_decay must be a number of at least 0, got -1.0"),
        ({"warm": "x"}, "warm must be a whole number of at least 0"),
        ({"patience": 0}, "patience must be a positive whole number or None, got 0"),
        ({"vocabulary": "many"}, "vocabulary must be a positive whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Writer(**SMALL | settings).fit(LINE * 20)


def test_what_cannot_be_read_or_written_says_why(writer, tmp_path):
    with pytest.raises(ValueError, match="give a prompt"):
        writer.write("", 5)
    with pytest.raises(ValueError, match="length must be a positive whole number, got 0"):
        writer.write("the", 0)
    with pytest.raises(ValueError, match="temperature must be"):
        writer.write("the", 5, temperature=-1)
    with pytest.raises(ValueError, match="a text of 1 to 24 tokens, the context, can be looked at, got 68"):
        writer.evidence(LINE)
    with pytest.raises(ValueError, match="at least 2 tokens"):
        writer.perplexity("a")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none.txt"):
        text_or_file(str(tmp_path / "none.txt"))
    (tmp_path / "bad.txt").write_bytes(b"good\nba\xffd\n")
    with pytest.raises(ValueError, match="not UTF-8: line 2 has the byte 0xff"):
        text_or_file(tmp_path / "bad.txt")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="is empty"):
        text_or_file(tmp_path / "empty.txt")
    with pytest.raises(ValueError, match="resume=True needs checkpoint"):
        Writer(**SMALL).fit(LINE * 20, resume=True)
    with pytest.raises(ValueError, match="needs a seed"):
        Writer(**SMALL | {"random_state": None}).fit(LINE * 20, checkpoint=tmp_path / "run")
    with pytest.raises(TypeError, match="a path or a text, got bytes"):
        Writer(**SMALL).fit(b"text")
    with pytest.raises(ValueError, match="the text is empty"):
        writer.perplexity("")
    # A text of one line is no path, however long, and what it has not seen is unknown, not an error.
    assert writer.perplexity("the cat sat on the mat. " * 20) > 1
    assert writer.perplexity("see notes.txt") > 1
    assert writer.write("ẞ the", 5, seed=0).startswith("ẞ the")
    assert "�" not in writer.write("the", 200, temperature=50.0, seed=0)


def test_what_is_no_text_is_named(writer):
    for given in (3, None, b"the"):
        with pytest.raises(TypeError, match=f"prompt must be a text, got {type(given).__name__}"):
            writer.write(given, 3)
    with pytest.raises(ValueError, match="prompt is not UTF-8 at character 4: write it in UTF-8"):
        writer.write("caf\udce9", 3)
    with pytest.raises(TypeError, match="text must be a text, got int"):
        writer.evidence(5)


def test_counts_of_numpy_count_and_truths_do_not(writer):
    assert writer.write("the", np.int64(3), seed=1) == writer.write("the", 3, seed=1)
    with pytest.raises(ValueError, match="length must be a positive whole number, got True"):
        writer.write("the", True)
    whole = writer.evidence("the quick", top=None)
    assert_close(whole.rest, np.zeros_like(whole.rest), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="top must be a positive whole number, or None for all tokens, got 0"):
        writer.evidence("the quick", top=0)
