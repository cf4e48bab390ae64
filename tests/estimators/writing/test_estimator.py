"""The Writer: it learns a text, continues it, shows what it looked at, and raises errors."""

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
from helpers.writing_cases import LINE, SMALL, TINY
from torch.testing import assert_close

import regard
from regard import saving
from regard.data.tokenizers import encode_text
from regard.estimators import common
from regard.estimators.writing import estimator as module
from regard.estimators.writing.estimator import Writer, mean_loss, window_batches
from regard.models.language import LanguageModel
from regard.training import Muon


def test_it_learns_a_text_by_heart(writer):
    assert writer.perplexity(LINE * 5) < 1.3
    assert writer.write("the quick brown", 40, temperature=0) == LINE[:55]
    assert writer.perplexity(LINE[::-1] * 5) > 20  # the reversed text is unlikely
    assert writer.score(LINE * 5) == pytest.approx(-math.log(writer.perplexity(LINE * 5)))


def test_a_text_may_be_longer_than_the_context(writer):
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


def test_one_seed_gives_one_model(tiny):
    again = Writer(**TINY).fit(LINE * 40)
    for one, two in zip(tiny.model_.parameters(), again.model_.parameters(), strict=True):
        assert torch.equal(one, two)


def test_pieces_write_whole_characters(piecewise):
    assert piecewise.tokenizer_.get_vocab_size() <= 300
    ids = piecewise.tokenizer_.encode("žluťoučký kůň").ids
    assert len(ids) < len("žluťoučký kůň".encode())
    # The bytes of one character are several tokens: nothing is given until it is complete.
    with pytest.MonkeyPatch.context() as patch:
        tokens = piecewise.tokenizer_.encode("a☃b").ids
        assert len(tokens) > 3
        patch.setattr(module, "sample", lambda *_, **__: (torch.tensor([token]) for token in tokens))
        assert list(piecewise.stream("x", len(tokens))) == ["a", "☃", "b"]
    assert piecewise.perplexity("unseen Ωmega ☃☃") > 1


def test_perplexity_is_the_definition(writer):
    text = (LINE * 3)[:100]
    ids = torch.tensor(encode_text(writer.tokenizer_, text))
    # Each token given those before it in its window: windows of 24 that overlap by 12.
    total = 0.0
    for index in range(1, len(ids)):
        start = 0 if index <= 24 else 12 * ((index - 13) // 12)
        log_p = writer.model_(ids[None, start:index]).log_softmax(dim=-1)
        total -= float(log_p[0, -1, ids[index]])
    assert math.log(writer.perplexity(text)) == pytest.approx(total / (len(ids) - 1), rel=1e-4)


@pytest.mark.parametrize("length", [2, 3, 24, 25, 26, 48, 49, 50, 97])
def test_every_token_is_counted_once(length):
    class Uniform(torch.nn.Module):
        context = 24

        def forward(self, tokens):
            logits = torch.zeros(*tokens.shape, 97)
            logits[..., 0] = 1.0
            return logits

    # All tokens have the same probability, so that the mean is that of one of them if the count is right.
    expected = -float(torch.nn.functional.log_softmax(torch.tensor([1.0] + [0.0] * 96), dim=0)[1])
    for overlap in (0, 12):
        assert mean_loss(Uniform(), torch.arange(length) % 96 + 1, overlap) == pytest.approx(expected, rel=1e-5)


def test_evidence_is_what_the_model_looked_at(writer):
    text = LINE[:19]
    found = writer.evidence(text, top=19)
    assert found.index.shape == (2, 2, 19, 19)
    assert found.tokens == list(text)
    weights = [found.matrix(block, head) for block in range(2) for head in range(2)]
    for matrix in weights:
        assert np.allclose(matrix.sum(axis=1), 1.0, atol=1e-5)
        assert not np.triu(matrix, 1).any()  # no token looks ahead
    with regard.watch(writer.model_) as records:
        writer.model_(torch.tensor([encode_text(writer.tokenizer_, text)]))
    whole = torch.stack([layer[0][0] for layer in records.values()]).flatten(0, 1).numpy()
    assert np.allclose(np.stack(weights), whole, atol=1e-5)
    frame = writer.evidence(text, top=3).to_frame()
    last = frame[(frame.place == 18) & (frame.block == 1) & (frame["head"] == 0)]
    assert last["rank"].tolist() == [1, 2, 3]
    assert last["weight"].sum() + last["rest"].iloc[0] == pytest.approx(1.0, abs=1e-6)
    assert last["weight"].tolist() == sorted(last["weight"], reverse=True)
    assert [text[index] for index in last["looked_at_place"]] == last["looked_at"].tolist()


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
    loaded, expected = regard.load(tmp_path / "model").model_.state_dict(), small.model_.state_dict()
    assert {tensor.dtype for tensor in loaded.values()} == {torch.bfloat16}
    assert_close(dict(loaded), dict(expected), rtol=0, atol=0)


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(tmp_path):
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
    resumed = Writer(**settings).fit(tmp_path / "text.txt", checkpoint=tmp_path / "run", resume=True)
    whole = Writer(**settings).fit(tmp_path / "text.txt")
    for one, two in zip(resumed.model_.parameters(), whole.model_.parameters(), strict=True):
        assert torch.equal(one, two)
    assert resumed.history_ == whole.history_


def test_a_run_cannot_resume_on_another_text(tmp_path, monkeypatch):
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
    resumed = Writer(**settings).fit(LINE * 20, checkpoint=tmp_path / "run", resume=True)
    assert len(calls) == 7  # steps 6 to 12
    assert len(resumed.history_.validation) == 3


def test_a_stream_does_not_change_the_callers_inference_mode(writer):
    first, second = writer.stream("the", 5), writer.stream("the", 5)
    next(first), next(second)
    assert not torch.is_inference_mode_enabled()
    assert len(list(first)) == len(list(second)) == 4
    assert not torch.is_inference_mode_enabled()


def test_a_fit_that_fails_leaves_the_model_unchanged(tiny):
    before = tiny.write("the", 9, seed=0)
    with pytest.raises(ValueError, match="too short"):
        tiny.fit("xyz")
    assert tiny.write("the", 9, seed=0) == before


@pytest.mark.slow
def test_the_held_out_part_is_not_trained_on():
    """The last tenth of the text has other letters: no training batch has them."""
    batches = []

    class Spy(Writer):
        def _build_network(self, tokenizer):
            model = super()._build_network(tokenizer)
            loss = model.loss
            model.loss = lambda batch: (batches.append(batch) if model.training else None, loss(batch))[1]
            return model

    model = Spy(steps=9, **SMALL).fit("ab" * 450 + "cd" * 50)
    letters = set("".join(model.tokenizer_.decode(row.tolist()) for batch in batches for row in batch))
    assert letters == {"a", "b"}


@pytest.mark.parametrize(("optimizer", "kind"), [("muon", Muon), ("adamw", torch.optim.AdamW)])
def test_settings_reach_the_training(monkeypatch, optimizer, kind):
    given = {}

    def watched(model, batches, loss, recipe, **settings):
        given.update(vars(recipe), model=model)
        return train(model, batches, loss, recipe, **settings)

    train = common.train
    monkeypatch.setattr(common, "train", watched)
    settings = {"clip": 0.3, "accumulate": 2, "patience": 3, "warm": 4, "weight_decay": 0.2, "dropout": 0.25}
    settings["optimizer"] = optimizer
    Writer(steps=9, validate_every=4, learning_rate=0.01, **SMALL | settings).fit(LINE * 20)
    assert (given["clip"], given["accumulate"], given["patience"], given["epochs"]) == (0.3, 2, 3, 3)
    assert given["model"].decoder.blocks[0].dropout.p == 0.25
    assert type(given["optimizer"]) is kind
    *matrices, gains = given["optimizer"].param_groups
    assert gains["weight_decay"] == 0.0
    for group in matrices:
        assert (group["weight_decay"], group["betas"]) == (0.2, (0.9, 0.99))
        assert all(parameter.ndim > 1 for parameter in group["params"])
    assert [given["schedule"].lr_lambdas[0](step) for step in (0, 3)] == [0.25, 1.0]


def test_windows_are_parts_of_the_text_and_depend_on_the_epoch():
    ids = torch.arange(50)
    batches = list(window_batches(ids, 7, 5, 9, (3, 0)))
    assert len(batches) == 9
    assert all(batch.shape == (5, 8) for batch in batches)
    assert all((batch == batch[:, :1] + torch.arange(8)).all() for batch in batches)
    assert max(int(batch.max()) for batch in window_batches(ids, 7, 50, 20, (3, 0))) == 49
    assert not torch.equal(torch.stack(batches), torch.stack(list(window_batches(ids, 7, 5, 9, (3, 1)))))
    assert torch.equal(torch.stack(batches), torch.stack(list(window_batches(ids, 7, 5, 9, (3, 0)))))


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
def test_invalid_settings_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        Writer(**SMALL | settings).fit(LINE * 20)


def test_unknown_characters_are_read_but_never_written(writer):
    assert writer.perplexity("the cat sat on the mat. " * 20) > 1
    assert writer.perplexity("see notes.txt") > 1  # a text, not a path
    assert writer.write("ẞ the", 5, seed=0).startswith("ẞ the")
    assert "�" not in writer.write("the", 200, temperature=50.0, seed=0)


def test_invalid_runs_raise(tmp_path):
    with pytest.raises(ValueError, match="resume=True needs checkpoint"):
        Writer(**SMALL).fit(LINE * 20, resume=True)
    with pytest.raises(ValueError, match="needs a seed"):
        Writer(**SMALL | {"random_state": None}).fit(LINE * 20, checkpoint=tmp_path / "run")
    with pytest.raises(TypeError, match="a path or a text, got bytes"):
        Writer(**SMALL).fit(b"text")
    with pytest.raises(FileNotFoundError, match=r"there is no file none\.txt"):
        Writer(**SMALL).fit("none.txt")


@pytest.mark.parametrize(
    ("prompt", "settings", "error", "message"),
    [
        ("", {}, ValueError, "prompt must have at least one character"),
        (3, {}, TypeError, "prompt must be a text, got int"),
        (None, {}, TypeError, "prompt must be a text, got NoneType"),
        (b"the", {}, TypeError, "prompt must be a text, got bytes"),
        ("caf\udce9", {}, ValueError, "prompt is not UTF-8 at character 4: write it in UTF-8"),
        ("the", {"length": 0}, ValueError, "length must be a positive whole number, got 0"),
        ("the", {"length": True}, ValueError, "length must be a positive whole number, got True"),
        ("the", {"temperature": -1}, ValueError, "temperature must be"),
    ],
    ids=ascii,
)
def test_invalid_prompts_and_settings_of_write_raise(writer, prompt, settings, error, message):
    with pytest.raises(error, match=message):
        writer.stream(prompt, **settings)  # before the first token is asked for
    with pytest.raises(error, match=message):
        writer.write(prompt, **settings)


def test_invalid_texts_raise(writer):
    with pytest.raises(ValueError, match="text must have 1 to 24 tokens, the context, got 68"):
        writer.evidence(LINE)
    with pytest.raises(TypeError, match="text must be a text, got int"):
        writer.evidence(5)
    with pytest.raises(ValueError, match="top must be a positive whole number, or None for all tokens, got 0"):
        writer.evidence("the quick", top=0)
    with pytest.raises(ValueError, match="text must have at least 2 tokens, got 1"):
        writer.perplexity("a")
    with pytest.raises(ValueError, match="the text is empty"):
        writer.perplexity("")


def test_numpy_numbers_are_allowed_and_top_none_gives_all_weights(writer):
    assert writer.write("the", np.int64(3), seed=1) == writer.write("the", 3, seed=1)
    whole = writer.evidence("the quick", top=None)
    assert_close(whole.rest, np.zeros_like(whole.rest), atol=1e-6, rtol=0)
