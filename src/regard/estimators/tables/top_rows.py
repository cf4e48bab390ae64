"""Which training rows a smoother looks at: the largest weights of each query."""

import math
from typing import Any

import numpy as np
from scipy.spatial import KDTree

from regard.engines.kernel_sums.dispatch import log_kernel
from regard.estimators.tables.smoother import KERNELS, Smoother, line

TREE_FROM = 10**8
"""Pairs from which the largest weights are found by a tree of neighbours."""
Array = Any


def largest(smoother: Smoother, number: Array, code: Array, top: int) -> tuple[Array, Array, Array]:
    """The rows with the largest weights, their weights, and the weight of the rest."""
    monotone = smoother.order == 0 and smoother.weight is None and not len(smoother.blur)
    named = isinstance(smoother.kernel, str) and smoother.kernel in KERNELS
    if monotone and named and len(number) * len(smoother.number) >= TREE_FROM:
        return nearest_rows(smoother, number, code, top)
    indices, weights, rests = [], [], []
    for rows, weight, log_weight in smoother.blocks(number, code):
        if smoother.order == 1:
            weight = leaning(smoother, number[rows], code[rows], weight)
        blind = np.flatnonzero(log_weight == -math.inf)
        if len(blind):
            weight[blind] = smoother.nearest_weight(number[rows][blind], code[rows][blind])
        size = np.abs(weight)
        index = np.argpartition(-size, top - 1, axis=1)[:, :top]
        index = np.take_along_axis(index, np.argsort(-np.take_along_axis(size, index, 1), axis=1, kind="stable"), 1)
        found = np.take_along_axis(weight, index, 1)
        indices.append(np.where(found == 0, -1, index))
        weights.append(found)
        rests.append(weight.sum(axis=1) - found.sum(axis=1))
    if not indices:
        return np.empty((0, top), int), np.empty((0, top)), np.empty(0)
    rest = np.concatenate(rests)
    return np.concatenate(indices), np.concatenate(weights), np.where(np.abs(rest) < 1e-12, 0.0, rest)


def nearest_rows(smoother: Smoother, number: Array, code: Array, top: int) -> tuple[Array, Array, Array]:
    """The same where weights fall with the distance: by a tree of neighbours, for many pairs."""
    points = smoother.points(number, code, smoother.value[:, :1])
    distance, index = KDTree(points.key).query(points.query, k=top, workers=-1)
    distance, index = distance.reshape(len(number), -1), index.reshape(len(number), -1)
    log_weight = smoother.pool(number, code, smoother.value[:, :1]).log_weight[:, None]
    blind = log_weight == -math.inf
    score = log_kernel(points.kind, distance**2)
    weight = np.where(blind, 0.0, np.exp(np.minimum(score - np.where(blind, 0.0, log_weight), 0.0)))
    tied = blind & (distance <= distance[:, :1] * (1 + 1e-12))
    weight = np.where(tied, 1 / np.maximum(1, tied.sum(axis=1, keepdims=True)), weight)
    return np.where(weight > 0, index, -1), weight, np.maximum(0.0, 1 - weight.sum(axis=1))


def leaning(smoother: Smoother, number: Array, code: Array, weight: Array) -> Array:
    """What each row counts for in a local linear fit; it adds up to 1, and may be negative."""
    found = smoother.moments(number, code, smoother.value[:, :1])
    lean = line(found, smoother.spread).lean
    query = smoother.stretch(number)
    along = lean @ smoother.key.T - np.einsum("md,md->m", lean, query + found.offset)[:, None]
    return weight * (1 - along)
