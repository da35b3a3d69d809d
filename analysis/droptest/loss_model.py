# SPDX-License-Identifier: Apache-2.0
"""Loss processes as specs write them: rate, mean burst, and a name for people."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from droptest.library import HALVES

NAN = float("nan")


def probability(value: Any) -> float:
    """A probability of a spec as a fraction: a number, or a text such as "5%". NaN where it is neither."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            return NAN
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NAN
    return float(value)


def percent(rate: float) -> str:
    """A fraction for people: 0.05 is "5 %"."""
    return "?" if math.isnan(rate) else f"{100 * rate:.6g} %"


@dataclass(frozen=True)
class LossModel:
    """One loss process.

    model: the spec's name. loss_rate: fraction of packets lost. mean_burst_packets: mean run of losses.
    label: the process without its rate, so that processes of one label make one curve over the rate.
    """

    model: str
    loss_rate: float
    mean_burst_packets: float
    label: str

    @property
    def lossless(self) -> bool:
        return self.model == "none" or self.loss_rate == 0

    @property
    def words(self) -> str:
        """The process with its rate, where it is known: "Bernoulli 5 %"; "no loss" where it loses nothing."""
        if self.lossless:
            return NO_LOSS.label
        return self.label if math.isnan(self.loss_rate) else f"{self.label} {percent(self.loss_rate)}"


# Models whose rate changes from step to step: only a run's statistics have its mean rate.
CHANGING = ("outage", "schedule")
NO_LOSS = LossModel("none", 0.0, 0.0, "no loss")


@dataclass(frozen=True)
class GilbertElliott:
    """The two-state chain: p = P(good to bad), r = P(bad to good), loss probability g and b in the two states."""

    p: float
    r: float
    g: float = 0.0
    b: float = 1.0

    @staticmethod
    def bernoulli(loss_rate: float) -> GilbertElliott:
        """Independent losses: the chain whose next state forgets the last one."""
        return GilbertElliott(loss_rate, 1 - loss_rate)

    @staticmethod
    def of_rate_and_burst(loss_rate: float, mean_burst_packets: float) -> GilbertElliott:
        """r = 1/B, p = L / (B (1 - L)). Source: Hasslinger and Hohlfeld 2008."""
        return GilbertElliott(loss_rate / (mean_burst_packets * (1 - loss_rate)), 1 / mean_burst_packets)

    @property
    def share_bad(self) -> float:
        return self.p / (self.p + self.r)

    @property
    def loss_rate(self) -> float:
        return (1 - self.share_bad) * self.g + self.share_bad * self.b

    @property
    def mean_burst_packets(self) -> float:
        """1 / P(next arrives | lost)."""
        after = self._vector_bad @ self._chain
        return float(self.loss_rate / (after @ (1 - self._loss)))

    @property
    def _loss(self) -> np.ndarray:
        return np.array([self.g, self.b])

    @property
    def _chain(self) -> np.ndarray:
        return np.array([[1 - self.p, self.p], [self.r, 1 - self.r]])

    @property
    def _stationary(self) -> np.ndarray:
        return np.array([1 - self.share_bad, self.share_bad])

    @property
    def _vector_bad(self) -> np.ndarray:
        return self._stationary * self._loss

    def bursts_per_packet(self, lengths: np.ndarray) -> np.ndarray:
        """Expected number of bursts of exactly each length, per packet of an endless link.

        With D1 = diag(g, b), D0 = I - D1, chain P and stationary law pi: a burst of length k begins at a packet with
        probability pi D0 P (D1 P)^k D0 1.
        """
        chain, loss = self._chain, self._loss
        lost_then_step = loss[:, None] * chain
        state = (self._stationary * (1 - loss)) @ chain
        by_length = np.zeros(int(lengths.max(initial=0)) + 1)
        for k in range(1, by_length.size):
            state = state @ lost_then_step
            by_length[k] = state @ (1 - loss)
        return by_length[lengths]


def from_spec(value: Any) -> LossModel:
    """A loss process of a spec. A model that is not known keeps its name and parameters as its label."""
    if not isinstance(value, dict):
        return LossModel("unknown", NAN, NAN, "unknown loss")
    model = str(value.get("model", "none" if not value else "unknown"))
    if model == "none":
        return NO_LOSS
    rate = probability(value.get("loss_rate"))
    if model == "bernoulli":
        burst = 1 / (1 - rate) if rate < 1 else math.inf
        return LossModel(model, rate, burst if rate else 0.0, "Bernoulli")
    if model == "gilbert_elliott":
        return _gilbert_elliott(value, rate)
    if model in CHANGING:
        return LossModel(model, NAN, NAN, _changing_label(model, value))
    hidden = ("model", "loss_rate", "sha256")
    others = ", ".join(f"{key} {_short(key, value[key])}" for key in sorted(value) if key not in hidden)
    return LossModel(model, rate, NAN, f"{model}{', ' if others else ''}{others}")


def _short(key: str, value: Any) -> str:
    return str(value).rsplit("/", 1)[-1] if key == "file" else str(value)


def _steps(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _changing_label(model: str, value: dict[str, Any]) -> str:
    """An outage or a schedule with the steps in which it changes."""
    parts = []
    try:
        if model == "outage":
            steps = ", ".join(_steps(w["from_step"], w["to_step"] - 1) for w in value["windows"])
            parts.append(f"outage in step{'' if steps.isdigit() else 's'} {steps}")
            if "otherwise" in value and not from_spec(value["otherwise"]).lossless:
                parts.append(f"else {from_spec(value['otherwise']).words}")
        else:
            parts += [f"from step {p['from_step']} {from_spec(p['loss']).words}" for p in value["phases"]]
    except (KeyError, TypeError):
        return model
    return "; ".join(parts)


def _gilbert_elliott(value: dict[str, Any], rate: float) -> LossModel:
    if "mean_burst_packets" in value:
        burst = value["mean_burst_packets"]
        burst = float(burst) if isinstance(burst, int | float) else NAN
        return LossModel("gilbert_elliott", rate, burst, f"Gilbert-Elliott, burst {burst:.4g}")
    chain = chain_of(value)
    if chain is None:
        return LossModel("gilbert_elliott", NAN, NAN, "Gilbert-Elliott")
    burst = chain.mean_burst_packets if 0 < chain.loss_rate < 1 else NAN
    # Without loss in the good state the mean burst does not depend on p, and so names the curve.
    label = f"burst {burst:.4g}" if chain.g == 0 else f"r {chain.r:.4g}, loss in good {chain.g:.4g}"
    if chain.b != 1:
        label += f", loss in bad {chain.b:.4g}"
    return LossModel("gilbert_elliott", chain.loss_rate, burst, f"Gilbert-Elliott, {label}")


def chain_of(value: Any) -> GilbertElliott | None:
    """A loss process of a spec as a two-state chain; None where it is none, or its parameters make none."""
    if not isinstance(value, dict):
        return None
    model, rate = value.get("model"), probability(value.get("loss_rate"))
    if model == "gilbert_elliott" and "mean_burst_packets" not in value:
        p, r = probability(value.get("p_good_to_bad")), probability(value.get("p_bad_to_good"))
        g, b = probability(value.get("loss_good", 0)), probability(value.get("loss_bad", 1))
        return GilbertElliott(p, r, g, b) if p + r > 0 and not math.isnan(g + b) else None
    if not 0 < rate < 1 or model not in ("bernoulli", "gilbert_elliott"):
        return None
    if model == "bernoulli":
        return GilbertElliott.bernoulli(rate)
    burst = probability(value["mean_burst_packets"])
    return GilbertElliott.of_rate_and_burst(rate, burst) if burst >= 1 else None


def of_summary(loss: dict[str, Any]) -> dict[tuple[str, str], LossModel]:
    """summary.json's `loss`: the process of each (traffic class, half)."""
    models = {}
    for traffic_class, halves in sorted(loss.items()):
        for half, process in sorted(halves.items() if isinstance(halves, dict) else ()):
            if isinstance(process, dict):
                model = from_spec(process)
                rate, burst = probability(process.get("loss_rate")), probability(process.get("mean_burst_packets"))
                rate = NAN if model.model in CHANGING else rate
                models[traffic_class, half] = LossModel(model.model, rate, burst, model.label)
    return models


def of_network(network: dict[str, Any]) -> dict[tuple[str, str], LossModel]:
    """A resolved spec's `network`: the process of each (traffic class, half)."""
    return {place: from_spec(process) for place, process in processes_in(network).items()}


def processes_in(network: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """A resolved spec's `network`: the process of each (traffic class, half) as the spec has it."""
    processes = {}
    classes = network.get("classes", network)
    for traffic_class, settings in sorted(classes.items() if isinstance(classes, dict) else ()):
        for half in HALVES:
            part = settings.get(half) if isinstance(settings, dict) else None
            if isinstance(part, dict) and "loss" in part:
                processes[traffic_class, half] = part["loss"]
    return processes
