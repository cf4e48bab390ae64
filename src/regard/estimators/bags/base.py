"""What all estimators over bags share: reading bags and targets, the scale of features, classes, evidence, saving.

An estimator over bags is a sum over instances: output(bag) = constant + Σᵢ contribution(xᵢ; bag). Subclasses define
`_contributions`, or `_outputs` and `_explain`; predictions and evidence follow from them. Scikit-learn's
`check_estimator` needs tables [n, d] and does not apply: here X is what `regard.data.bags.as_bags` takes.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from regard.data.bags import Bags, Floats, Integers, Labels, align_targets, as_bags
from regard.data.columns import Scale, Unit, fit_scale, is_missing
from regard.data.tables import select_columns
from regard.estimators.bags.evidence import BagEvidence, top_evidence
from regard.estimators.common import (
    SavedEstimator,
    State,
    check_memory,
    checked_top,
    restore_target,
    saved_target,
    target_names,
)
from regard.estimators.settings import check_settings, saved_settings, setting, with_settings
from regard.saving import to_json

if TYPE_CHECKING:
    from sklearn.utils import Tags

Arrays = dict[str, Any]


def _check_column(name: str, value: object) -> None:
    """Raise unless a value names a column of a frame, or is None."""
    if value is not None and not isinstance(value, str | int):
        raise ValueError(f"{name} must be the name of a column or None, got {value!r}")


def _parse_class_weight(text: str) -> str | None:
    """The class weight that an option can give."""
    if text not in ("balanced", "none"):
        raise ValueError(f"--class-weight must be balanced or none, got {text!r}; in Python it can be weights by class")
    return None if text == "none" else text


@with_settings
class OverBags(SavedEstimator):
    """An estimator that takes bags. Methods with an underscore are for subclasses."""

    standardise: bool = setting("scale features to mean 0, deviation 1", default=True)
    bag: str | None = setting("column of a frame that names the bag of each row", default=None, check=_check_column)
    _saved: ClassVar[dict[str, str]] = {}  # the learned attributes, by the names of their arrays in a folder

    def __sklearn_tags__(self) -> "Tags":
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags

    def evidence(self, X: object, top: int | None = None) -> BagEvidence:  # noqa: N803
        """The `top` instances behind each prediction, by weight, and the weight of the rest; by default all."""
        bags, classes = self._read(X), getattr(self, "classes_", None)
        count = checked_top(top, int(bags.sizes.max(initial=0)), "instances")
        check_memory(len(bags), count, "bags", numbers_per_weight=2 + (1 if classes is None else len(classes)))
        return top_evidence(bags, *self._explain(bags), count, classes)

    def _learned(self) -> State:
        settings = saved_settings(self) | self.structure_
        weights = getattr(self, "class_weight", None)
        if isinstance(weights, dict):  # saved as pairs: JSON would make text of the keys
            settings["class_weight"] = [[to_json(label), to_json(weight)] for label, weight in weights.items()]
        config = {
            "settings": settings,
            "features": self.n_features_in_,
            "names": list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None,
            "target": saved_target(self),
        }
        scale = {"scale.centre": self.scale_.centre, "scale.spread": self.scale_.spread}
        return State(config, scale | self._arrays())

    def _arrays(self) -> Arrays:
        return {name: np.asarray(getattr(self, attribute)) for name, attribute in self._saved.items()}

    def _restore(self, config: dict[str, Any], arrays: Arrays) -> None:
        weights = getattr(self, "class_weight", None)
        if isinstance(weights, list):
            self.set_params(class_weight=dict(weights))
        self.n_features_in_ = config["features"]
        self.structure_ = self._structure()
        if config["names"] is not None:
            self.feature_names_in_ = np.array(config["names"], dtype=object)
        self.scale_ = Scale(arrays["scale.centre"], arrays["scale.spread"])
        restore_target(self, config["target"])
        self._set_arrays(arrays)

    def _set_arrays(self, arrays: Arrays) -> None:
        for name, attribute in self._saved.items():
            setattr(self, attribute, arrays[name] if arrays[name].ndim else arrays[name].item())

    def _read_training(self, X: object, y: object, centre: bool) -> tuple[Bags, Labels]:  # noqa: N803
        """Training bags, not scaled, and one target for each; sets what `fit` learns about features and targets.

        Without `centre`, features are divided by their root mean square: a quadratic form of them stays one.
        """
        check_settings(self)
        self._check_settings()
        bags = as_bags(X, by=self.bag if hasattr(X, "columns") else None)
        target = align_targets(y, bags)
        self.n_features_in_ = bags.instances.shape[1]
        if bags.features is not None:
            self.feature_names_in_ = np.array(bags.features, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self.targets_ = target_names(y) or ["y"]
        self.structure_ = self._structure()
        unit: Unit | None = ("standard" if centre else "root mean square") if self.standardise else None
        with np.errstate(over="ignore", invalid="ignore"):
            self.scale_ = fit_scale(bags.instances, None, unit)
            squares = np.square(bags.instances / self.scale_.spread).sum()
        # Outputs and losses have squares of features, and squares of these.
        if not np.isfinite(self.scale_.spread).all() or not np.isfinite(squares * squares):
            largest = np.abs(bags.instances).max()
            raise ValueError(f"features must have a finite variance in float64, got numbers up to {largest:g}")
        return bags, target

    def _read(self, X: object) -> Bags:  # noqa: N803
        """New bags, not scaled, with the features of training; those of a frame are found by name."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        if hasattr(X, "columns") and names is not None and self.bag is not None:
            X = select_columns(X, [self.bag, *names])  # noqa: N806
        bags = as_bags(X, by=self.bag if hasattr(X, "columns") else None)
        count = bags.instances.shape[1]
        if count != self.n_features_in_:
            raise ValueError(f"the model was fitted on bags with {self.n_features_in_} features, these have {count}")
        if names is not None and bags.features is not None and bags.features != tuple(names):
            raise ValueError(f"the model was fitted on features {list(names)}, these bags have {list(bags.features)}")
        return bags

    def _check_settings(self) -> None:
        """Raise on settings that do not fit together; called by `fit`."""

    def _structure(self) -> dict[str, Any]:
        """The settings that the learned arrays depend on; later changes by `set_params` do not affect the model."""
        return {name: getattr(self, name) for name in ("attention", "hidden_size", "heads") if hasattr(self, name)}

    def _scaled(self, bags: Bags) -> Bags:
        return replace(bags, instances=self.scale_(bags.instances))

    def _contributions(self, bags: Bags) -> Floats:
        """What each instance adds to the outputs, [N, outputs]."""
        raise NotImplementedError

    def _set_intercept(self, bags: Bags, target: Floats) -> None:
        """Set the constant with the smallest squared error."""
        self.intercept_: Floats | float = float(np.mean(target - bags.sums(self._contributions(bags))[:, 0]))

    def _outputs(self, bags: Bags) -> Floats:
        """The outputs of bags, [B, outputs]."""
        return bags.sums(self._contributions(bags)) + self.intercept_

    def _explain(self, bags: Bags) -> tuple[Floats, Floats]:
        """The weights [N] of instances, adding up to 1 in each bag, and their contributions [N, outputs].

        Without attention a weight is the fraction of the bag's |contributions|; equal if all are 0.
        """
        contribution, bag = self._contributions(bags), bags.bag_index
        size = np.abs(contribution).sum(axis=1)
        total = bags.sums(size)
        weight = np.where(total[bag] > 0, size / np.where(total > 0, total, 1.0)[bag], 1.0 / bags.sizes[bag])
        return weight, contribution


@with_settings
class ClassifierOverBags(ClassifierMixin, OverBags):  # type: ignore[misc]
    """One class per bag. With two classes there is one output, the logit of the second; with more, one per class."""

    class_weight: dict[Any, float] | Literal["balanced"] | None = setting(
        "balanced, or weights by class", default=None, parse=_parse_class_weight
    )

    def decision_function(self, X: object) -> Floats:  # noqa: N803
        """The logits, [B, classes]; with two classes the logit of the second, [B]."""
        logit = self._outputs(self._read(X))
        return logit[:, 0] if len(self.classes_) == 2 else logit

    def predict_proba(self, X: object) -> Floats:  # noqa: N803
        """The probability of each class, [B, classes]."""
        logit = self._outputs(self._read(X))
        return np.asarray(softmax(np.pad(logit, ((0, 0), (int(logit.shape[1] == 1), 0))), axis=1))  # the first has 0

    def predict(self, X: object) -> Labels:  # noqa: N803
        """The most probable class, [B]."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def score(self, X: object, y: object, sample_weight: object = None) -> float:  # noqa: N803
        """The accuracy: the fraction of bags with the right class."""
        bags = self._read(X)
        return float(super().score(bags, align_targets(y, bags), sample_weight))

    def _read_classes(self, X: object, y: object) -> tuple[Bags, Integers]:  # noqa: N803
        """Training bags, and the index of each bag's class in `classes_`."""
        bags, target = self._read_training(X, y, centre=True)
        missing = [is_missing(label) for label in target.tolist()]
        if any(missing):
            raise ValueError(f"y must have a class for each bag, got none for {bags.describe(missing.index(True))}")
        check_classification_targets(target)
        self.classes_, index = np.unique(target, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least two classes, got 1 class: {self.classes_.tolist()}")
        return bags, index

    def _class_weights(self, index: Integers) -> Floats:
        """The weight of each class, [classes], from the class index of each bag."""
        weight = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_[index])
        if not (weight >= 0).all() or not 0 < weight[index].sum() < np.inf:
            raise ValueError(f"class_weight must be at least 0, and not 0 for all, got {self.class_weight!r}")
        return np.asarray(weight)


class RegressorOverBags(RegressorMixin, OverBags):  # type: ignore[misc]
    """One number per bag."""

    def predict(self, X: object) -> Floats:  # noqa: N803
        """The predictions, [B]."""
        return self._outputs(self._read(X))[:, 0]

    def score(self, X: object, y: object, sample_weight: object = None) -> float:  # noqa: N803
        """R², the fraction of the variance of y that is explained."""
        bags = self._read(X)
        return float(super().score(bags, align_targets(y, bags), sample_weight))

    def _read_numbers(self, X: object, y: object, centre: bool = True) -> tuple[Bags, Floats]:  # noqa: N803
        """Training bags, and the number of each."""
        bags, labels = self._read_training(X, y, centre)
        try:
            target = labels.astype(np.float64)
        except (ValueError, TypeError):
            raise ValueError(f"y must be numbers for a regression, got {labels.tolist()[0]!r}") from None
        if not np.isfinite(target).all():
            index = int(np.argmin(np.isfinite(target)))
            raise ValueError(f"y must be finite numbers, got {target[index]} for {bags.describe(index)}")
        with np.errstate(over="ignore"):
            if not np.isfinite(np.square(target).sum()):
                largest = np.abs(target).max()
                raise ValueError(f"y must have a finite variance in float64, got numbers up to {largest:g}")
        return bags, target
