"""What all estimators over bags share: how bags come in, the units of their features, classes, evidence, saving.

An estimator over bags is a sum over instances: output(bag) = constant + Σᵢ contribution(xᵢ; bag). What the parts are,
its `explain` says; `outputs`, predictions and evidence follow. Scikit-learn's `check_estimator` is for tables [n, d]
and does not apply: here X is `regard.data.bags.Bags`, or what `as_bags` takes.
"""

from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from regard.data.bag_targets import per_bag
from regard.data.bags import Bags, as_bags
from regard.data.columns import Scale, scale_of
from regard.data.tables import pick
from regard.estimators.bags.evidence import BagEvidence, gathered
from regard.estimators.evidence import check_room, checked_top
from regard.estimators.settings import restored_classes, saved_classes, saved_settings, target_names
from regard.saving import jsonable, write

Array = Any


class OverBags(BaseEstimator):  # type: ignore[misc]
    """Bags in, outputs and evidence out."""

    bag: str | None
    standardise: bool
    scale_: Scale
    targets_: list[str]
    made_with_: dict[str, Any]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags

    def see(self, X: Any, y: Any) -> tuple[Bags, Array]:  # noqa: N803
        """The bags to learn from, as they are, and one target for each."""
        self.check_settings()
        bags = as_bags(X, by=self.bag if hasattr(X, "columns") else None)
        target = per_bag(y, bags)
        self.n_features_in_ = bags.instances.shape[1]
        if bags.features is not None:
            self.feature_names_in_ = np.array(bags.features, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self.targets_ = target_names(y) or ["y"]
        self.made_with_ = self.structure()
        with np.errstate(over="ignore", invalid="ignore"):
            self.scale_ = self.units(bags.instances)
            squares = np.square(bags.instances / self.scale_.spread).sum()
        if not np.isfinite(self.scale_.spread).all() or not np.isfinite(squares * squares):
            largest = np.abs(bags.instances).max()
            raise ValueError(f"features must have a standard deviation, and are too large for one: up to {largest:g}")
        return bags, target

    def asked(self, X: Any) -> Bags:  # noqa: N803
        """New bags, as they are, with the features of those of training; a frame's are found by name."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        if hasattr(X, "columns") and names is not None and self.bag is not None:
            X = pick(X, [self.bag, *names])  # noqa: N806
        bags = as_bags(X, by=self.bag if hasattr(X, "columns") else None)
        found = bags.instances.shape[1]
        if found != self.n_features_in_:
            raise ValueError(f"the model was fitted on bags with {self.n_features_in_} features, these have {found}")
        if names is not None and bags.features is not None and bags.features != tuple(names):
            raise ValueError(f"the model was fitted on features {list(names)}, these bags have {list(bags.features)}")
        return bags

    def structure(self) -> dict[str, Any]:
        """The settings that say what is learned; a fitted model keeps them, whatever `set_params` says later."""
        return {name: getattr(self, name) for name in ("attention", "hidden_size", "heads") if hasattr(self, name)}

    def units(self, instances: Array) -> Scale:
        """The units of the features, by the instances of training."""
        return scale_of(instances, None, "standard" if self.standardise else None)

    def scaled(self, bags: Bags) -> Bags:
        """Bags in the units of training."""
        return bags.with_instances(self.scale_(bags.instances))

    def check_settings(self) -> None:
        """What must hold of the settings; scikit-learn's habit is to check them in `fit`."""

    def explain(self, bags: Bags) -> tuple[Array, Array]:
        """The weights [N] of instances, adding up to 1 in each bag, and what each adds to the outputs, [N, outputs]."""
        raise NotImplementedError

    def outputs(self, bags: Bags) -> Array:
        """The outputs of bags, [B, outputs]."""
        raise NotImplementedError

    def evidence(self, X: Any, top: int | None = None) -> BagEvidence:  # noqa: N803
        """The instances behind each prediction, by weight, and the weight of the rest; all of them without `top`."""
        bags, classes = self.asked(X), getattr(self, "classes_", None)
        wide = checked_top(top, int(bags.sizes.max(initial=0)), "instances")
        check_room(len(bags), wide, "bags", numbers=2 + (1 if classes is None else len(classes)))
        return gathered(bags, *self.explain(bags), wide, classes)

    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder, from which `regard.load` reads it."""
        check_is_fitted(self)
        return write(folder, *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """All there is to a fitted model: what JSON can hold, and arrays."""
        names = getattr(self, "feature_names_in_", None)
        config = {
            "estimator": type(self).__name__,
            "settings": saved_settings(self) | self.made_with_,
            "features": self.n_features_in_,
            "names": None if names is None else list(names),
            "target": self.target_state(),
        }
        scale = {"scale.centre": self.scale_.centre, "scale.spread": self.scale_.spread}
        return config, scale | self.learned_arrays()

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, Array]) -> Self:
        """The model that `state` was taken of."""
        model = cls(**config["settings"])
        model.n_features_in_ = config["features"]
        model.made_with_ = model.structure()
        if config["names"] is not None:
            model.feature_names_in_ = np.array(config["names"], dtype=object)
        model.scale_ = Scale(arrays["scale.centre"], arrays["scale.spread"])
        model.restore_target(config["target"])
        model.restore(arrays)
        return model

    def target_state(self) -> dict[str, Any]:
        return {"names": self.targets_}

    def restore_target(self, state: dict[str, Any]) -> None:
        self.targets_ = state["names"]

    def learned_arrays(self) -> dict[str, Array]:
        """What was learned, by name."""
        raise NotImplementedError

    def restore(self, arrays: dict[str, Array]) -> None:
        """Take what was learned from arrays."""
        raise NotImplementedError


class ClassifierOverBags(ClassifierMixin, OverBags):  # type: ignore[misc]
    """One class a bag. With two classes there is one output, the logit of the second; with more, one for each."""

    classes_: Array
    class_weight: Any

    def see_classes(self, X: Any, y: Any) -> tuple[Bags, Array]:  # noqa: N803
        """The bags to learn from, and the place of each bag's class in `classes_`."""
        bags, target = self.see(X, y)
        absent = [is_missing(label) for label in target.tolist()]
        if any(absent):
            raise ValueError(f"y must have a class for each bag, and has none for {bags.call(absent.index(True))}")
        check_classification_targets(target)
        self.classes_, place = np.unique(target, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs two classes, got 1 class: {self.classes_.tolist()}")
        return bags, place

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """The logits, [B, classes]; with two classes that of the second, [B]."""
        logit = self.outputs(self.asked(X))
        return logit[:, 0] if len(self.classes_) == 2 else logit

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """The probability of each class, [B, classes]."""
        logit = self.decision_function(X)
        return softmax(logit, axis=1) if logit.ndim == 2 else np.stack([expit(-logit), expit(logit)], axis=1)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The most probable class, [B]."""
        logit = self.decision_function(X)
        return self.classes_[logit.argmax(axis=1) if logit.ndim == 2 else (logit > 0).astype(int)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """The share of bags that are predicted right."""
        bags = self.asked(X)
        return float(super().score(bags, per_bag(y, bags), sample_weight))

    def weights_of_classes(self, place: Array) -> Array:
        """What each class counts for, [classes], given the class of each bag by its place."""
        weight = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[place])
        if not (weight >= 0).all() or not 0 < weight[place].sum() < np.inf:
            raise ValueError(f"class_weight must be at least 0, and not 0 for all, got {self.class_weight!r}")
        return weight

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        config, arrays = super().state()
        if isinstance(self.class_weight, dict):  # as pairs: the keys of a JSON object are text
            pairs = [[jsonable(label), jsonable(weight)] for label, weight in self.class_weight.items()]
            config["settings"]["class_weight"] = pairs
        return config, arrays

    @classmethod
    def from_state(cls, config: dict[str, Any], arrays: dict[str, Array]) -> Self:
        settings = dict(config["settings"])
        if isinstance(settings["class_weight"], list):
            settings["class_weight"] = dict(settings["class_weight"])
        return super().from_state({**config, "settings": settings}, arrays)

    def target_state(self) -> dict[str, Any]:
        return {**super().target_state(), **saved_classes(self.classes_)}

    def restore_target(self, state: dict[str, Any]) -> None:
        super().restore_target(state)
        self.classes_ = restored_classes(state)


class RegressorOverBags(RegressorMixin, OverBags):  # type: ignore[misc]
    """One number a bag."""

    def see_numbers(self, X: Any, y: Any) -> tuple[Bags, Array]:  # noqa: N803
        """The bags to learn from, and the number of each."""
        bags, target = self.see(X, y)
        try:
            target = target.astype(np.float64)
        except (ValueError, TypeError):
            raise ValueError(f"y must hold numbers for a regression, got {target.tolist()[0]!r}") from None
        if not np.isfinite(target).all():
            place = int(np.argmin(np.isfinite(target)))
            raise ValueError(f"y must hold finite numbers, got {target[place]} for {bags.call(place)}")
        with np.errstate(over="ignore"):
            if not np.isfinite(np.square(target).sum()):
                raise ValueError(f"y must have a variance, and is too large for one: up to {np.abs(target).max():g}")
        return bags, target

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The predictions, [B]."""
        return self.outputs(self.asked(X))[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """R², the share of the variance of y that is explained."""
        bags = self.asked(X)
        return float(super().score(bags, per_bag(y, bags), sample_weight))


def is_missing(label: Any) -> bool:
    """Whether a label is None, NaN, or what pandas has for it, which not every install has."""
    return label is None or type(label).__name__ in ("NAType", "NaTType") or label != label


def shares(size: Array, bags: Bags) -> Array:
    """Sizes [N] ≥ 0 as parts of their bag's sum; equal parts where all are 0."""
    total, bag = bags.sums(size), bags.bag
    even = 1.0 / bags.sizes[bag]
    return np.where(total[bag] > 0, size / np.where(total > 0, total, 1.0)[bag], even)
