"""`Captioner`: captions of generated scenes, evidence, saving, resuming, and errors."""

import copy
import json

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.caption_cases import SCENES, TINY, MeanColours
from sklearn.base import clone
from torch import nn
from torch.testing import assert_close

import regard
from regard import Captioner
from regard.data.samples import scenes
from regard.data.tokenizers import END, UNKNOWN
from regard.estimators.captioning.training import caption_text, caption_tokens
from regard.models.captioner import HardCaptionDecoder
from regard.models.image_encoders import SmallResNet

SHORT = TINY | {"epochs": 3}


@pytest.fixture(scope="module")
def scene_captioners():
    """Hard attention trained together with its encoder, and soft attention on that encoder, which is now frozen."""
    training = scenes(2000, seed=1)
    data = training.images, training.captions
    hard = Captioner("hard", encoder=SmallResNet(64), **SCENES).fit(*data)
    return {"hard": hard, "soft": Captioner(encoder=hard.encoder_.encoder, **SCENES | {"epochs": 5}).fit(*data)}


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_captions_of_scenes_are_exact_and_nouns_look_at_their_objects(scene_captioners, attention):
    captioner, test = scene_captioners[attention], scenes(100, seed=2)
    captions = captioner.caption(test.images, beam=3)
    assert np.mean([one == other for one, other in zip(captions, test.captions, strict=True)]) >= 0.9
    lifts = []
    for scene in range(40):
        evidence = captioner.evidence(test.images[scene], test.captions[scene])
        assert evidence.words == test.captions[scene].split()
        grid = evidence.weight.shape[1]
        lifts += [evidence.weight[noun][test.cells(scene, noun, grid)].mean() * grid**2 for noun in test.nouns[scene]]
    assert np.mean(lifts) >= 3  # relative to equal weights
    assert np.mean(np.array(lifts) >= 3) >= 0.8
    assert captioner.score(test.images, test.captions) > 90


def test_a_loaded_model_is_the_saved_one(tiny, few, tmp_path):
    tiny.save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["settings"]["encoder"] == "SmallResNet"
    with pytest.raises(ValueError, match=r"your own encoder, SmallResNet.*Captioner.load\(folder, encoder=…\)"):
        regard.load(tmp_path / "model")
    encoder = SmallResNet(16, image_size=16)
    torch.manual_seed(7)
    again = Captioner.load(tmp_path / "model", encoder=encoder)
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(7))
    assert again.caption(few.images[:7]) == tiny.caption(few.images[:7])
    assert_close(again.evidence(few.images[3]).weight, tiny.evidence(few.images[3]).weight)
    assert again.history_ == tiny.history_._replace(loss=())


def test_an_encoder_by_name_is_saved_with_the_model(few, tmp_path):
    captioner = Captioner("hard", **TINY | {"encoder": "small", "epochs": 1, "tokens": "pieces", "vocabulary": 300})
    captioner.fit(few.images[:20], few.captions[:20]).save(tmp_path / "model")
    again = regard.load(tmp_path / "model")
    assert again.caption(few.images[:7]) == captioner.caption(few.images[:7])
    assert float(again.decoder_.baseline) == float(captioner.decoder_.baseline)


@pytest.mark.slow
def test_one_seed_one_result_and_the_users_encoder_is_not_changed(few):
    before = [parameter.clone() for parameter in TINY["encoder"].parameters()]
    captioner = Captioner(**SHORT).fit(few.images, few.captions)
    assert clone(captioner).fit(few.images, few.captions).history_ == captioner.history_
    for parameter, was in zip(TINY["encoder"].parameters(), before, strict=True):
        assert torch.equal(parameter, was)
    other = Captioner(**SHORT | {"random_state": 1}).fit(few.images, few.captions)
    assert other.history_ != captioner.history_
    mirrored = Captioner(**SHORT | {"mirror": True}).fit(few.images, few.captions)
    assert mirrored.history_ != captioner.history_


def test_captions_in_a_batch_are_those_of_single_images(tiny, few):
    together = tiny.caption(few.images[:9], beam=4)
    assert [tiny.caption(few.images[index : index + 1], beam=4)[0] for index in range(9)] == together
    assert len(tiny.caption(few.images[:2], beam=1)) == 2
    assert tiny.caption([]) == []


def test_scores_use_all_references(tiny, few):
    captions = tiny.caption(few.images[:9])
    scores = tiny.scores(
        few.images[:9], [[caption, own] for caption, own in zip(few.captions[:9], captions, strict=True)]
    )
    assert list(scores) == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr-D"]
    assert scores["BLEU-1"] == pytest.approx(100)
    assert tiny.score(few.images[:9], few.captions[:9]) == tiny.scores(few.images[:9], few.captions[:9])["BLEU-4"]


def test_evidence_of_each_word_as_a_table_and_a_picture(tiny, few):
    pytest.importorskip("matplotlib").use("Agg")
    evidence = tiny.evidence(few.images[0], "all is red today", top=3)
    assert evidence.caption == "all is red today"
    assert evidence.weight.shape == (4, 2, 2)
    assert_close(evidence.weight.sum(axis=(1, 2)), np.ones(4), atol=1e-5, rtol=0)
    frame = evidence.to_frame()
    assert list(frame.columns) == ["place", "word", "rank", "row", "column", "weight"]
    assert len(frame) == 12
    best = frame[frame["rank"] == 1].iloc[2]
    assert best["weight"] == evidence.weight[2].max() == evidence.weight[2, best["row"], best["column"]]
    assert len(tiny.evidence(few.images[0]).to_frame()) == 4 * len(tiny.evidence(few.images[0]))
    assert evidence.plot() is not None


@pytest.mark.slow
def test_a_frozen_encoder_encodes_each_image_once(few, tmp_path):
    encoder, counts = MeanColours(), []
    settings = SHORT | {"encoder": encoder, "cache": tmp_path / "cache"}
    encoder.register_forward_hook(lambda module, images, grid: counts.append(len(images[0])))
    first = Captioner(**settings).fit(few.images, few.captions)
    assert sum(counts) < 40 + 10, "each image once in three epochs, and a few to know the shape of a grid"
    assert first.evidence(few.images[0]).weight.shape[1:] == (3, 3)
    assert first.get_params()["encoder"] is encoder
    counts.clear()
    again = Captioner(**settings).fit(few.images, few.captions)
    assert sum(counts) < 10
    assert again.history_ == first.history_
    assert Captioner(**settings | {"cache": None}).fit(few.images, few.captions).history_ == first.history_
    with pytest.raises(ValueError, match=r"has other grids than the encoder computes now"):
        Captioner(**settings | {"encoder": MeanColours(4)}).fit(few.images, few.captions)


@pytest.mark.slow
def test_a_stopped_run_is_resumed(few, tmp_path, monkeypatch):
    settings = SHORT | {"soft_start": 0.0}
    whole = Captioner("hard", **settings).fit(few.images, few.captions)
    loss, calls = HardCaptionDecoder.loss, []

    def broken(decoder, *arguments, **more):
        calls.append(1)
        if len(calls) == 6:  # four batches per epoch: one epoch is in the checkpoint
            raise KeyboardInterrupt
        return loss(decoder, *arguments, **more)

    monkeypatch.setattr(HardCaptionDecoder, "loss", broken)
    with pytest.raises(KeyboardInterrupt):
        Captioner("hard", **settings).fit(few.images, few.captions, checkpoint=tmp_path / "run")
    with pytest.raises(FileExistsError, match="resume=True"):
        Captioner("hard", **settings).fit(few.images, few.captions, checkpoint=tmp_path / "run")
    again = Captioner("hard", **settings).fit(few.images, few.captions, checkpoint=tmp_path / "run", resume=True)
    assert again.history_ == whole.history_
    assert again.caption(few.images[:5]) == whole.caption(few.images[:5])


@pytest.mark.parametrize("other", ["images", "captions", "validation", "encoder"])
def test_a_run_is_not_resumed_with_other_data(few, tmp_path, other):
    settings = TINY | {"epochs": 1}
    validation = few.images[30:], few.captions[30:]
    usual = {"images": few.images[:30], "captions": few.captions[:30], "validation": validation}
    Captioner(**settings).fit(**usual, checkpoint=tmp_path / "run")
    changed = {
        "images": {"images": 255 - few.images[:30]},
        "captions": {"captions": few.captions[:30][::-1]},
        "validation": {"validation": (few.images[30:], few.captions[30:][::-1])},
        "encoder": {},
    }
    if other == "encoder":
        settings = settings | {"encoder": SmallResNet(16, image_size=16)}  # with new weights
    with pytest.raises(ValueError, match="data"):
        Captioner(**settings).fit(**usual | changed[other], checkpoint=tmp_path / "run", resume=True)


def test_columns_of_images_and_captions_are_taken_in_their_order(few):
    frame = pd.DataFrame({"image": list(few.images), "caption": few.captions}).sample(frac=1, random_state=3)
    settings = TINY | {"epochs": 1}
    ours = Captioner(**settings).fit(frame["image"], frame["caption"])
    right = Captioner(**settings).fit(list(frame["image"]), list(frame["caption"]))
    assert ours.history_ == right.history_
    assert ours.scores(frame["image"], frame["caption"]) == right.scores(list(frame["image"]), list(frame["caption"]))


def test_captions_without_a_word_are_not_used_in_validation(few):
    captions = list(few.captions)
    captions[held_out_indices(few)[0]] = "..."
    with pytest.warns(UserWarning, match="1 validation images whose captions have no word"):
        captioner = Captioner(**TINY | {"epochs": 1}).fit(few.images, captions)
    assert captioner.left_out_["unscored"] == 1
    with pytest.raises(ValueError, match=r"captions of image 2 must have a word to be scored, got \['!'\]"):
        captioner.scores(few.images[:3], [*few.captions[:2], "!"])
    with pytest.raises(ValueError, match="must have a caption with a word, got none in 1 images"):
        Captioner(**TINY).fit(few.images, few.captions, validation=(few.images[:1], ["?"]))


def test_unknown_words_are_not_written_and_a_caption_is_one_line(few, tiny):
    unknown = tiny.tokenizer_.token_to_id(UNKNOWN)
    assert unknown is not None
    grid = tiny.encoder_.grids(few.images[:3])
    sure = copy.deepcopy(tiny.decoder_)
    with torch.no_grad():
        sure.read.bias[unknown] += 1000
        sure.read.bias[END] -= 1000
    for size in (1, 3):
        tokens = caption_tokens(sure, [grid], tiny.tokenizer_, 7, beam=size)
        assert [len(one) for one in tokens] == [7, 7, 7]
        assert all(unknown not in one for one in tokens)
    assert caption_text(Lines(), [1, 2]) == "two lines"


class Lines:
    """A tokenizer whose text has line ends."""

    def decode(self, tokens):
        return " two\n lines \n"


def test_mirrored_images_need_an_encoder_that_is_trained(few):
    with pytest.raises(ValueError, match=r"mirror=True needs an encoder that is trained;"):
        Captioner(**TINY | {"encoder": MeanColours(), "mirror": True}).fit(few.images, few.captions)


def test_a_warning_says_what_is_left_out(few):
    captions = [*few.captions[:30], *[""] * 10]
    with pytest.warns(
        UserWarning, match=r"left out: 10 of 40 images without a caption \('30', '31', '32', '33', '34', and 5 more\)"
    ):
        captioner = Captioner(**TINY | {"epochs": 1}).fit(few.images, captions)
    assert captioner.left_out_["images"] == list(range(30, 40))
    with pytest.warns(UserWarning, match=r"captions that are too long"):
        captioner = Captioner(**TINY | {"longest": 9, "epochs": 1}).fit(few.images, few.captions)
    assert captioner.left_out_["long"] == sum(len(caption.split()) > 9 for caption in few.captions) - sum(
        len(few.captions[index].split()) > 9 for index in held_out_indices(few)
    )


def held_out_indices(few):
    return sorted(np.random.default_rng(0).permutation(len(few.images))[: round(0.25 * len(few.images))])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "firm"}, "attention must be soft or hard, got 'firm'"),
        ({"encoder": "large"}, "encoder must be small, efficientnet-lite0 or an nn.Module, got 'large'"),
        ({"encoder": nn.Flatten()}, "channels, rows, columns"),
        ({"epochs": 0}, "epochs must be a positive whole number, got 0"),
        ({"dropout": 1.0}, "dropout must be a number of at least 0 and below 1, got 1.0"),
        ({"tied": "no"}, "tied must be True or False, got 'no'"),
        ({"mirror": "yes"}, "mirror must be True or False, got 'yes'"),
        ({"spread": -1}, "spread must be a number of at least 0, got -1"),
        ({"least": 99}, "no word occurs least=99 times in 30 captions"),
        ({"cache": "somewhere"}, "cache needs a frozen encoder"),
        ({"soft_start": -0.5}, "soft_start must be a number of at least 0 and at most 1, got -0.5"),
        ({"expected": 2.0}, "expected must be a number of at least 0 and at most 1, got 2.0"),
    ],
)
def test_errors_name_the_setting(few, settings, message):
    with pytest.raises(ValueError, match=message):
        Captioner(**{**TINY, **settings}).fit(few.images, few.captions)


def test_errors_name_images_that_cannot_be_read(tiny, few, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no image .*gone\.jpg"):
        Captioner(**TINY).fit([tmp_path / "gone.jpg"] * 3, ["a cat"] * 3)
    (tmp_path / "half.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 20)
    with pytest.raises(ValueError, match=r"half\.png"):
        tiny.caption([tmp_path / "half.png"])
    with pytest.raises(TypeError, match=r"images must be a list of paths or arrays, got str: put one in a list"):
        tiny.caption("photo.jpg")
    with pytest.raises(ValueError, match=r"images must be .count, height, width, 3"):
        tiny.caption(few.images[0])


def test_a_folder_of_another_estimator_raises(tmp_path):
    regard.NadarayaWatson(1.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]).save(tmp_path / "model")
    with pytest.raises(ValueError, match="must hold a Captioner, got a NadarayaWatson"):
        Captioner.load(tmp_path / "model")


@pytest.mark.parametrize("beam", [0, 2.5, True])
def test_an_invalid_beam_raises(tiny, few, beam):
    with pytest.raises(ValueError, match=f"beam must be a positive whole number, got {beam}"):
        tiny.caption(few.images[:1], beam=beam)


def test_predict_is_caption(tiny, few):
    assert tiny.predict(few.images[:3]) == tiny.caption(few.images[:3])
