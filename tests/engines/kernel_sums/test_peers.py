"""Against code nobody here wrote: torch, scikit-learn, statsmodels."""

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KernelDensity
from statsmodels.nonparametric.kernel_regression import KernelReg
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import regard
from regard import masks, scores


@pytest.mark.parametrize("engine", ["dense", "flash", "stream"])
@pytest.mark.parametrize("case", ["plain", "causal", "boolean", "bias", "scale"])
def test_torch_scaled_dot_product_attention(engine, case):
    query, key, value = torch.randn(2, 3, 5, 16), torch.randn(2, 3, 9, 16), torch.randn(2, 3, 9, 8)
    holes, bias = torch.rand(2, 1, 5, 9) > 0.4, torch.randn(3, 5, 9)
    theirs = {
        "plain": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": holes},
        "bias": {"attn_mask": bias},
        "scale": {"scale": 1.0},
    }[case]
    ours = {
        "causal": {"mask": masks.causal},
        "boolean": {"mask": holes},
        "bias": {"mask": bias},
        "scale": {"score": scores.dot},
    }.get(case, {})
    assert_close(
        regard.attend(query, key, value, engine=engine, **ours),
        scaled_dot_product_attention(query, key, value, **theirs),
    )


@pytest.mark.parametrize("engine", ["dense", "flash", "stream"])
def test_torch_multihead_attention_causal_and_padded(engine):
    batch, length, size, heads = 3, 7, 24, 4
    layer = nn.MultiheadAttention(size, heads, batch_first=True).eval()
    x, lengths = torch.randn(batch, length, size), torch.tensor([7, 4, 1])
    hidden = torch.arange(length) >= lengths[:, None]  # True = may NOT look
    future = torch.ones(length, length).triu(1).bool()
    theirs, weight = layer(x, x, x, key_padding_mask=hidden, attn_mask=future, average_attn_weights=False)

    def split(y):
        return y.view(batch, length, heads, -1).transpose(1, 2)

    query, key, value = map(split, (x @ layer.in_proj_weight.T + layer.in_proj_bias).chunk(3, dim=-1))
    mask = masks.both(masks.causal, masks.padding(lengths))
    mean = regard.attend(query, key, value, mask=mask, engine=engine)
    assert_close(layer.out_proj(mean.transpose(1, 2).reshape(batch, length, size)), theirs)
    assert_close(regard.look(query, key, mask=mask), weight)
    top = regard.look(query, key, mask=mask, top=3)
    assert_close(top.weight, weight.topk(3).values)


@pytest.mark.parametrize(
    ("kernel", "ours", "constant"),
    [
        ("gaussian", scores.Gaussian, -1.5 * math.log(2 * math.pi)),
        ("exponential", scores.Laplace, -math.log(8 * math.pi)),
        ("epanechnikov", scores.Epanechnikov, math.log(15 / (8 * math.pi))),
        ("tophat", scores.Boxcar, math.log(3 / (4 * math.pi))),
    ],
)
@pytest.mark.parametrize("bandwidth", [0.5, 2.0])
def test_sklearn_kernel_density_is_the_log_weight(kernel, ours, constant, bandwidth):
    """In three dimensions; the constant is the log of one over the kernel's integral."""
    points, queries = np.random.default_rng(1).normal(size=(401, 3)), np.random.default_rng(2).normal(size=(53, 3))
    theirs = KernelDensity(kernel=kernel, bandwidth=bandwidth).fit(points).score_samples(queries)
    key, query = torch.tensor(points), torch.tensor(queries)
    parts = regard.attend_parts(query, key, key, score=ours(bandwidth))
    density = parts.log_weight + constant - math.log(len(points)) - 3 * math.log(bandwidth)
    near = torch.tensor(theirs) > -30  # where no point is near, theirs has a residue of its rounding
    assert_close(density[near], torch.tensor(theirs)[near], rtol=1e-6, atol=1e-6)
    assert (density[~near] == -math.inf).all()
    assert near.sum() > 40


@pytest.mark.parametrize("engine", ["dense", "flash", "stream"])
def test_statsmodels_kernel_regression_is_the_gaussian_mean(engine):
    points = np.random.default_rng(1).normal(size=(97, 2))
    values = np.sin(points[:, 0]) + points[:, 1] ** 2
    queries = np.random.default_rng(2).normal(size=(31, 2))
    theirs, _ = KernelReg(
        values, points, var_type="cc", reg_type="lc", bw=[0.4, 0.9], rng=np.random.default_rng(0)
    ).fit(queries)
    mean = regard.attend(
        torch.tensor(queries),
        torch.tensor(points),
        torch.tensor(values)[:, None],
        score=scores.Gaussian(torch.tensor([0.4, 0.9], dtype=torch.float64)),
        engine=engine,
    )
    assert_close(mean.squeeze(1), torch.tensor(theirs))
