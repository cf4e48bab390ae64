"""Cached grids are those of the encoder, whatever happened to the run that wrote them; each is computed once."""

import multiprocessing
import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.feature_cases import Counting, Scaled, compute_grids, count_new_grids, photos, read_all
from numpy.testing import assert_array_equal
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

from regard import files
from regard.data import encoder_cache as module
from regard.data.encoder_cache import cached_grids, fingerprint

assert_near = partial(assert_close, rtol=2**-11, atol=2**-24)
"""Equal, except for the rounding to float16."""


@pytest.mark.usefixtures("small_files")
def test_cached_grids_are_those_of_the_encoder_and_are_computed_once(tmp_path, encoder):
    images = photos(tmp_path, 7)
    grids, new = count_new_grids(encoder, images, encoder, tmp_path / "cache")
    expected = compute_grids(encoder, images)
    assert (new, expected.shape) == (7, (7, 9, 5))
    assert_near(read_all(grids, 7), expected)
    assert_near(grids(torch.tensor([5, 0, 5])), expected[[5, 0, 5]])
    assert read_all(grids, 7).dtype == torch.float32
    reordered, new = count_new_grids(encoder, images[::-1], encoder, str(tmp_path / "cache"))
    assert new == 0
    assert_near(read_all(reordered, 7), expected.flip(0))


@pytest.mark.usefixtures("small_files")
def test_the_progress_bar_counts_new_images(tmp_path, encoder, monkeypatch):
    noted, old = [], photos(tmp_path, 2)
    cached_grids(old, encoder, tmp_path / "cache")
    monkeypatch.setattr(module.ProgressBar, "update", lambda bar, done, **numbers: noted.append((done, [*numbers])))
    cached_grids([*old, *photos(tmp_path, 7, seed=1)], encoder, tmp_path / "cache")
    assert noted == [(done, ["images/s"]) for done in (2, 3, 5, 6, 7)]


@pytest.mark.usefixtures("small_files")
def test_new_images_are_added_and_duplicates_are_computed_once(tmp_path, encoder):
    old, new = photos(tmp_path, 4), photos(tmp_path, 5, seed=1)
    copy = tmp_path / "copy.png"
    copy.write_bytes(new[0].read_bytes())
    cached_grids(old, encoder, tmp_path / "cache")
    mixed = [new[0], old[2], *new[1:], copy, old[0]]
    grids, new = count_new_grids(encoder, mixed, encoder, tmp_path / "cache")
    assert new == 5
    assert_near(read_all(grids, len(mixed)), compute_grids(encoder, mixed))


def test_grids_are_found_by_content_not_by_name(tmp_path, encoder):
    one, other = photos(tmp_path, 2)
    cached_grids([one, other], encoder, tmp_path / "cache")
    one.write_bytes(photos(tmp_path, 1, seed=5)[0].read_bytes())
    grids, new = count_new_grids(encoder, [one, other], encoder, tmp_path / "cache")
    assert new == 1
    assert_near(read_all(grids, 2), compute_grids(encoder, [one, other]))


def test_grids_of_arrays_are_cached(tmp_path, encoder):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 24, 24, 3), dtype=np.uint8)
    grids, new = count_new_grids(encoder, pixels, encoder, tmp_path)
    assert new == 3
    assert_near(read_all(grids, 3), compute_grids(encoder, pixels))
    assert count_new_grids(encoder, list(pixels[1:]), encoder, tmp_path)[1] == 0


def test_grids_are_stored_in_float16_unless_a_number_is_too_large(tmp_path):
    images = [np.full((8, 8), value, np.uint8) for value in (3, 100, 255)]
    folders = tmp_path / "small", tmp_path / "large"
    grids = [cached_grids(images, Scaled(factor), folder) for factor, folder in zip((1 / 3, 1e3), folders, strict=True)]
    small, large = (read_all(each, 3) for each in grids)
    assert small.dtype == large.dtype == torch.float32
    assert_near(small[1].mean(), torch.tensor(100 / 3))
    assert not torch.equal(small[1].mean(), torch.tensor(100 / 3))  # it is rounded
    assert large[1].mean() == 1e5
    stored = [load_file(path)["grids"].dtype for folder in folders for path in folder.rglob("*.safetensors")]
    assert stored == [torch.float16, torch.float32]


def test_changed_weights_have_other_grids(tmp_path, encoder):
    images = photos(tmp_path, 3)
    cached_grids(images, encoder, tmp_path / "cache")
    with torch.no_grad():
        next(encoder.parameters())[0, 0, 0, 0] += 1
    grids, new = count_new_grids(encoder, images, encoder, tmp_path / "cache")
    assert new == 3
    assert_near(read_all(grids, len(images)), compute_grids(encoder, images))


def test_the_fingerprint_depends_on_preparation_and_size(encoder):
    class Brighter(Counting):
        def prepare(self, images):
            return super().prepare(images) + 0.25

    same, brighter, larger = Counting(), Brighter(), Counting(image_size=32)
    for other in (same, brighter, larger):
        other.load_state_dict(encoder.state_dict())
    brighter.__class__.__qualname__ = "Counting"
    assert fingerprint(same) == fingerprint(encoder)
    prints = {fingerprint(one) for one in (encoder, brighter, larger)}
    assert len(prints) == 3


def test_the_fingerprint_depends_on_shapes_and_types_of_weights():
    prints = set()
    for zeros in (torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(3, dtype=torch.float64)):
        made = Scaled(1.0)
        made.register_buffer("table", zeros)
        prints.add(fingerprint(made))
    assert len(prints) == 3


def test_no_gradients_are_compute_grids(tmp_path, encoder):
    modes = []
    encoder.register_forward_hook(lambda *_: modes.append((torch.is_grad_enabled(), encoder.training)))
    images = photos(tmp_path, 3)
    for _ in range(2):  # computed, and compared
        cached_grids(images, encoder.train(), tmp_path / "cache")
        assert modes[-1] == (False, False)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux has /proc/self/maps")
def test_files_are_mapped_into_memory(tmp_path, encoder):
    grids = cached_grids(photos(tmp_path, 2), encoder, tmp_path / "cache")
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    assert str(file) in Path("/proc/self/maps").read_text()
    before = read_all(grids, 2).clone()
    read_all(grids, 2).zero_()  # the returned tensor is a copy
    assert_array_equal(read_all(grids, 2), before)


def test_the_modes_of_the_encoder_are_restored(tmp_path, encoder):
    encoder.train()
    encoder.blocks[1].eval()
    modes = [part.training for part in encoder.modules()]
    before = encoder.blocks[1].running_mean.clone()
    cached_grids(photos(tmp_path, 2), encoder, tmp_path / "cache")
    assert [part.training for part in encoder.modules()] == modes
    assert_close(encoder.blocks[1].running_mean, before, rtol=0, atol=0)


class Activated(nn.Module):
    """A layer, and an activation without weights; `gain` is not in the `repr`."""

    image_size = 24

    def __init__(self, layer, activation, gain=1.0):
        super().__init__()
        self.layer, self.activation, self.gain = layer, activation, gain

    def prepare(self, images):
        return torch.as_tensor(images).movedim(-1, 1).float() / 255

    def forward(self, image):
        return self.gain * self.activation(self.layer(image))


def test_encoders_with_other_modules_never_share_grids(tmp_path):
    layer = nn.Conv2d(3, 5, 3, 2)
    first, second = Activated(layer, nn.ReLU()), Activated(layer, nn.Hardswish())
    images = photos(tmp_path, 5)
    cached_grids(images[:2], first, tmp_path / "cache")
    cached_grids(images[2:], second, tmp_path / "cache")
    grids = cached_grids(images, first, tmp_path / "cache")
    assert_near(read_all(grids, 5), compute_grids(first, images))


def test_a_grid_of_each_file_is_checked(tmp_path):
    layer, images = nn.Conv2d(3, 5, 3, 2), photos(tmp_path, 5)
    cached_grids(images[:2], Activated(layer, nn.ReLU()), tmp_path / "cache")
    cached_grids(images[2:], Activated(layer, nn.ReLU(), gain=2.0), tmp_path / "cache")
    with pytest.raises(ValueError, match="has other grids than the encoder computes now"):
        cached_grids(images, Activated(layer, nn.ReLU()), tmp_path / "cache")


def test_grids_of_another_encoder_in_the_folder_raise(tmp_path, encoder):
    images = photos(tmp_path, 2)
    cached_grids(images, encoder, tmp_path / "cache")
    (mine,) = (tmp_path / "cache").iterdir()
    with torch.no_grad():
        next(encoder.parameters()).add_(1)
    other = tmp_path / "cache" / f"Counting-{fingerprint(encoder)[:16]}"
    mine.rename(other)
    with pytest.raises(ValueError, match=r"has other grids than the encoder computes now .* use another"):
        cached_grids(images, encoder, tmp_path / "cache")


def test_an_error_names_a_broken_file(tmp_path, encoder):
    images = photos(tmp_path, 2)
    cached_grids(images, encoder, tmp_path / "cache")
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"\.safetensors is broken .*: delete it, and its grids are computed again"):
        cached_grids(images, encoder, tmp_path / "cache")
    file.unlink()
    assert count_new_grids(encoder, images, encoder, tmp_path / "cache")[1] == 2


class Stopping(Counting):
    """Its process is killed at some image."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def forward(self, image):
        grid = super().forward(image)
        if self.encoded > self.after:
            os._exit(9)
        return grid


def run_until_killed(images, folder, state):
    """A run that is killed in the middle of its second file."""
    module.GRIDS_PER_FILE, module.BATCH = 3, 2
    torch.set_num_threads(1)
    encoder = Stopping(after=3 + 1)
    encoder.__class__.__name__ = encoder.__class__.__qualname__ = "Counting"
    encoder.load_state_dict(state)
    cached_grids(images, encoder, folder)


@pytest.mark.slow
@pytest.mark.usefixtures("small_files")
def test_a_killed_run_leaves_the_files_it_finished(tmp_path, encoder):
    images = photos(tmp_path, 8)
    arguments = ([str(path) for path in images], tmp_path / "cache", encoder.state_dict())
    process = multiprocessing.get_context("spawn").Process(target=run_until_killed, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 9
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 1
    grids, new = count_new_grids(encoder, images, encoder, tmp_path / "cache")
    assert new == 5
    assert_near(read_all(grids, len(images)), compute_grids(encoder, images))


@pytest.mark.usefixtures("small_files")
def test_grids_before_an_image_that_cannot_be_read_are_not_lost(tmp_path, encoder):
    images = photos(tmp_path, 8)
    images[5].write_bytes(images[5].read_bytes()[:60])
    for _ in range(2):  # the second run would raise if the first had left a broken file
        with pytest.raises(ValueError, match=r"photo-0-5\.png is cut short or broken"):
            cached_grids(images, encoder, tmp_path / "cache")
    del images[5]
    grids, new = count_new_grids(encoder, images, encoder, tmp_path / "cache")
    assert new == 2  # the first file had three, the second was cut off after two
    assert_near(read_all(grids, len(images)), compute_grids(encoder, images))


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, encoder, monkeypatch):
    images = photos(tmp_path, 2)

    def broken(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", broken)
    with pytest.raises(OSError, match="No space left"):
        cached_grids(images, encoder, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_old_temporary_files_are_removed_and_young_ones_left(tmp_path, encoder):
    images = photos(tmp_path, 1)
    cached_grids(images, encoder, tmp_path / "cache")
    (folder,) = (tmp_path / "cache").iterdir()
    old, young = folder / ".a.safetensors.0123abcd.tmp", folder / ".b.safetensors.0123abcd.tmp"
    for path in (old, young):
        path.write_bytes(b"cut")
    os.utime(old, (time.time() - 2 * files.LEFTOVER_AGE,) * 2)
    cached_grids(images, encoder, tmp_path / "cache")
    assert (old.exists(), young.exists()) == (False, True)


def test_grids_that_are_not_finite_raise_with_their_image(tmp_path):
    images = [np.zeros((8, 8), np.uint8), np.full((8, 8), 100, np.uint8)]
    with pytest.raises(ValueError, match=r"the grid of image 0 must be finite, got values up to nan"):
        cached_grids(images, Scaled(float("nan")), tmp_path)
    with pytest.raises(ValueError, match=r"the grid of image 1 must be finite, got values up to inf"):
        cached_grids(images, Scaled(1e37), tmp_path)


def test_a_change_that_is_not_in_the_fingerprint_is_detected(tmp_path):
    images = [np.full((8, 8), value, np.uint8) for value in (100, 50)]
    cached_grids(images, Scaled(1.0), tmp_path)
    assert read_all(cached_grids(images, Scaled(1.001), tmp_path), 2)[1].max() == 50
    with pytest.raises(
        ValueError, match=r"has other grids than the encoder computes now \(difference 5\): something other"
    ):
        cached_grids([np.zeros((8, 8), np.uint8), *images], Scaled(1.05), tmp_path)


def test_an_image_that_does_not_exist_raises(tmp_path, encoder):
    with pytest.raises(FileNotFoundError, match=r"there is no image .*a\.png"):
        cached_grids([tmp_path / "a.png"], encoder, tmp_path)
