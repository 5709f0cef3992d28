"""On the same budget the default search finds a better real model than random search does.

The model is a kernel machine in NumPy, trained on real measurements that scikit-learn's wheel carries. Seeds
are fixed: the results don't depend on chance.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from reconciler.training_service.state.trial_records import Measurement, TrialRecord, TrialState
from reconciler.training_service.tuning.search import suggest
from reconciler.training_service.tuning.study import Algorithm, Kind, Metric, Parameter, Scale, Value
from tests.support.training_service.studies import study, trial

BUDGET = 28
SEEDS = range(12)
TRAINED = 280  # rows to train on; the others are for the test


@dataclass
class KernelRidge:
    """Ridge regression with a radial kernel, of a table's last column on components of the others."""

    table: Any

    def loss(self, gamma: float, alpha: float, components: int, scaling: str) -> float:
        """Return the mean square error on the test rows; 1 is as good as guessing the mean."""
        features, target = self.table[:, :-1], self.table[:, -1]
        target = (target - target[:TRAINED].mean()) / target[:TRAINED].std()
        features = features - features[:TRAINED].mean(axis=0)
        if scaling == "variance":
            features = features / features[:TRAINED].std(axis=0)
        elif scaling == "range":
            features = features / np.ptp(features[:TRAINED], axis=0)
        _, _, axes = np.linalg.svd(features[:TRAINED], full_matrices=False)
        features = features @ axes[:components].T
        train, test = features[:TRAINED], features[TRAINED:]
        weights = np.linalg.solve(kernel(train, train, gamma) + alpha * np.eye(TRAINED), target[:TRAINED])
        return float(np.mean((kernel(test, train, gamma) @ weights - target[TRAINED:]) ** 2))


def kernel(one: Any, other: Any, gamma: float) -> Any:
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None] - 2 * one @ other.T
    return np.exp(-gamma * np.maximum(squares, 0))


def tumours(wheelhouse: Path) -> Any:
    """Return the Wisconsin breast cancer data: 569 rows of 30 measures, and the diagnosis."""
    (wheel,) = wheelhouse.glob("scikit_learn-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = archive.read("sklearn/datasets/data/breast_cancer.csv")
    rows = np.genfromtxt(io.BytesIO(found), delimiter=",", skip_header=1)
    return rows[np.random.default_rng(0).permutation(len(rows))]


def best(model: KernelRidge, algorithm: Algorithm, seed: int) -> float:
    """Return the least loss that a search with this seed finds within the budget."""
    found = study(
        Parameter("gamma", Kind.DOUBLE, 1e-6, 1e2, scale=Scale.LOG),
        Parameter("alpha", Kind.DOUBLE, 1e-8, 1e4, scale=Scale.LOG),
        Parameter("components", Kind.INTEGER, 1, model.table.shape[1] - 1),
        Parameter("scaling", Kind.CATEGORICAL, values=("none", "range", "variance")),
        metrics=(Metric("loss", maximize=False),),
        algorithm=algorithm,
        seed=seed,
    )
    trials: list[TrialRecord] = []
    losses: list[float] = []
    for number in range(1, BUDGET + 1):
        point = suggest(found, trials)
        assert point
        losses.append(loss(model, point))
        final = Measurement(1, 1.0, {"loss": losses[-1]})
        trials.append(trial(number, [], TrialState.SUCCEEDED, point, final=final))
    return min(losses)


def loss(model: KernelRidge, point: dict[str, Value]) -> float:
    arguments: dict[str, Any] = point
    return model.loss(**arguments)


def test_the_default_search_beats_random_search(wheelhouse: Path) -> None:
    model = KernelRidge(tumours(wheelhouse))
    searched = [best(model, Algorithm.DEFAULT, seed) for seed in SEEDS]
    at_random = [best(model, Algorithm.RANDOM, seed) for seed in SEEDS]
    assert fmean(searched) < 0.95 * fmean(at_random)
    assert median(searched) < 0.95 * median(at_random)
    seeds_won = sum(one < other for one, other in zip(searched, at_random, strict=True))
    pairs_won = sum(one < other for one in searched for other in at_random)
    assert seeds_won >= 0.6 * len(SEEDS)
    assert pairs_won >= 0.65 * len(SEEDS) ** 2
