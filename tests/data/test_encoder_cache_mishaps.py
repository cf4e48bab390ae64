"""Grids from the disk are those of the encoder, whatever happened to the run that wrote them."""

import multiprocessing
import os
import time

import numpy as np
import pytest
import torch
from helpers.feature_cases import Counting, Loud, computed, counted, photos
from torch import nn
from torch.testing import assert_close

from regard import files
from regard.data import encoder_cache as module
from regard.data.encoder_cache import features, fingerprint


def test_grids_of_another_encoder_in_its_place_are_refused(tmp_path, encoder):
    images = photos(tmp_path, 2)
    features(images, encoder, tmp_path / "cache")
    (mine,) = (tmp_path / "cache").iterdir()
    with torch.no_grad():
        next(encoder.parameters()).add_(1)
    other = tmp_path / "cache" / f"Counting-{fingerprint(encoder, True)[:16]}"
    mine.rename(other)
    with pytest.raises(
        ValueError, match=r"holds grids of another encoder, .* belong: delete it, or give another folder"
    ):
        features(images, encoder, tmp_path / "cache")


def test_a_broken_file_is_named(tmp_path, encoder):
    images = photos(tmp_path, 2)
    features(images, encoder, tmp_path / "cache")
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"\.safetensors is broken .*: delete it, and its grids are computed again"):
        features(images, encoder, tmp_path / "cache")
    file.unlink()
    assert counted(encoder, images, encoder, tmp_path / "cache")[1] == 2


class Stopping(Counting):
    """Its process is killed, as from outside, at some image."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def forward(self, image):
        grid = super().forward(image)
        if self.seen > self.after:
            os._exit(9)
        return grid


def killed(images, folder, state):
    """A run that ends in the middle of its second file."""
    module.IN_FILE, module.AT_ONCE = 3, 2
    torch.set_num_threads(1)
    encoder = Stopping(after=2 + 3 + 1)
    encoder.__class__.__name__ = encoder.__class__.__qualname__ = "Counting"
    encoder.load_state_dict(state)
    features(images, encoder, folder)


@pytest.mark.usefixtures("small_files")
def test_a_run_that_is_killed_keeps_what_it_finished(tmp_path, encoder):
    images = photos(tmp_path, 8)
    arguments = ([str(path) for path in images], tmp_path / "cache", encoder.state_dict())
    process = multiprocessing.get_context("spawn").Process(target=killed, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 9
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 1
    found, seen = counted(encoder, images, encoder, tmp_path / "cache")
    assert seen == 5
    assert_close(found[:], computed(encoder, images), rtol=2**-11, atol=2**-24)


@pytest.mark.usefixtures("small_files")
def test_an_image_that_cannot_be_read_costs_no_more_than_itself(tmp_path, encoder):
    images = photos(tmp_path, 8)
    images[5].write_bytes(images[5].read_bytes()[:60])
    for _ in range(2):  # what the first run has kept is in order, or the second would say so
        with pytest.raises(ValueError, match=r"photo-0-5\.png is cut short or broken"):
            features(images, encoder, tmp_path / "cache")
    del images[5]
    found, written = counted(encoder, images, encoder, tmp_path / "cache")
    assert written == 2  # the first file had three, the second was cut off after two
    assert_close(found[:], computed(encoder, images), rtol=2**-11, atol=2**-24)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, encoder, monkeypatch):
    images = photos(tmp_path, 2)

    def broken(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", broken)
    with pytest.raises(OSError, match="No space left"):
        features(images, encoder, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_old_temporary_files_are_removed_and_young_ones_left(tmp_path, encoder):
    images = photos(tmp_path, 1)
    features(images, encoder, tmp_path / "cache")
    (place,) = (tmp_path / "cache").iterdir()
    old, young = place / ".a.safetensors.0123abcd.tmp", place / ".b.safetensors.0123abcd.tmp"
    for path in (old, young):
        path.write_bytes(b"cut")
    os.utime(old, (time.time() - 2 * files.LEFTOVER_AGE,) * 2)
    features(images, encoder, tmp_path / "cache")
    assert (old.exists(), young.exists()) == (False, True)


def test_grids_that_do_not_fit_are_refused_with_their_image(tmp_path):
    images = [np.zeros((8, 8), np.uint8), np.full((8, 8), 100, np.uint8)]
    message = r"the grid of image 1 must be finite in float16, got values up to 100000: use half=False"
    with pytest.raises(ValueError, match=message):
        features(images, Loud(1e3), tmp_path)
    assert features(images, Loud(1e3), tmp_path, half=False)[1].max() == 1e5
    with pytest.raises(ValueError, match=r"the grid of image 0 must be finite, got values up to nan"):
        features(images, Loud(float("nan")), tmp_path / "other", half=False)


def test_what_changed_besides_the_weights_is_noticed(tmp_path):
    images = [np.full((8, 8), value, np.uint8) for value in (100, 50)]
    features(images, Loud(1.0), tmp_path)
    assert features(images, Loud(1.001), tmp_path)[1].max() == 50
    with pytest.raises(
        ValueError, match=r"holds grids that the encoder does not make now, off by 5: something besides"
    ):
        features([np.zeros((8, 8), np.uint8), *images], Loud(1.05), tmp_path)


def test_what_makes_no_sense_is_refused(tmp_path, encoder):
    with pytest.raises(ValueError, match="images must be at least one, got none"):
        features([], encoder, tmp_path)
    with pytest.raises(
        TypeError, match="features need an encoder with image_size and prepare, Conv2d has no image_size"
    ):
        features(["a.png"], nn.Conv2d(3, 3, 3), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no image .*a\.png"):
        features([tmp_path / "a.png"], encoder, tmp_path)
