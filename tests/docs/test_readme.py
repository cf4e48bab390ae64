"""What the README shows runs, and prints what it says; so do the examples."""

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path

import matplotlib.image
import pytest
import torch

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_readme_has_code_with_its_result():
    assert len(BLOCKS) == 1
    for block, _ in BLOCKS:
        assert len([line for line in block.splitlines() if line and not line.startswith(("import", "from"))]) <= 12


@pytest.mark.parametrize(("code", "printed"), BLOCKS)
def test_the_code_of_the_readme_prints_what_it_says(code, printed):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "README.md", "exec"), {})
    assert said.getvalue() == printed


def test_links_in_the_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists() or target.startswith("https://"), f"{page.name}: {target}"


def test_the_example_learns_and_draws(tmp_path, monkeypatch, capsys):
    out = tmp_path / "deep" / "kernel_regression.png"
    monkeypatch.setattr(sys, "argv", ["kernel_regression.py", str(out)])
    runpy.run_path(str(ROOT / "examples" / "kernel_regression.py"), run_name="__main__")
    errors = [float(error) for error in re.findall(r"true curve: ([\d.]+)", capsys.readouterr().out)]
    assert len(errors) == 3
    assert errors == sorted(errors, reverse=True)  # average, nonparametric, learned
    assert errors[2] < 0.3
    image = torch.tensor(matplotlib.image.imread(out))
    assert image.std() > 0.1


def test_attention_needs_fewer_bags_in_the_example(tmp_path, capsys):
    example = runpy.run_path(str(ROOT / "examples" / "bag_samples.py"))
    example["main"](tmp_path / "deep" / "bags.png", 1, counts=(20, 60))
    rows = re.findall(r"^(\w+) +(\D+?\d?) +([\d.]+) +([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    last = {(case, name): float(error) for case, name, _, error in rows}
    assert len(last) == 10
    assert last["linear", "linear attention"] < 0.2 < last["linear", "full quadratic"] < last["linear", "flat"]
    assert last["softmax", "softmax attention"] < 0.5 < last["softmax", "full quadratic"]
    assert torch.tensor(matplotlib.image.imread(tmp_path / "deep" / "bags.png")).std() > 0.1


CHAPTERS = sorted(f"course/{page.stem}" for page in (ROOT / "docs" / "course").glob("*.md"))


def test_every_chapter_is_a_formula_a_line_a_figure_and_an_exercise():
    assert CHAPTERS
    nav = (ROOT / "mkdocs.yml").read_text()
    for chapter in CHAPTERS:
        text = (ROOT / "docs" / f"{chapter}.md").read_text()
        assert text.count("# this is the line") == 1, chapter
        assert re.search(r"regard\.attend\(.*# this is the line", text), chapter
        for part in ("## What to notice", "## Exercise", "!["):
            assert part in text, chapter
        assert re.search(r"^    \S.*[=←]", text, re.MULTILINE), chapter
        assert f"{chapter}.md" in nav


@pytest.mark.parametrize("page", ["bags", "captions", "language", "layers", "tables", "translation", *CHAPTERS])
def test_the_code_in_the_documents_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    assert blocks
    with contextlib.redirect_stdout(io.StringIO()):
        for code in blocks:
            exec(compile(code, f"{page}.md", "exec"), {})


def test_attention_in_a_network_of_digits_trains_and_is_drawn(tmp_path, monkeypatch, capsys):
    out = tmp_path / "deep" / "digits.png"
    monkeypatch.setattr(sys, "argv", ["conv_digits.py", str(out)])
    runpy.run_path(str(ROOT / "examples" / "conv_digits.py"), run_name="__main__")
    accuracy, gain = re.findall(r"before: ([\d.]+) +gain (-?[\d.]+)", capsys.readouterr().out)[0]
    assert float(accuracy) > 0.93
    assert abs(float(gain)) > 0.05  # it starts at 0, where attention does nothing
    assert torch.tensor(matplotlib.image.imread(out)).std() > 0.1
