"""The trend of measurements over time, with an interval that allows for their correlation."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_SECONDS = 3600.0
_HIGHEST_CORRELATION = 0.95


@dataclass(frozen=True)
class Trend:
    """A least-squares slope: `per_hour`, with 95 % confidence within `margin` of it."""

    per_hour: float
    margin: float

    @property
    def at_least(self) -> float:
        """The lower end of the interval."""
        return self.per_hour - self.margin

    def words(self, unit: str) -> str:
        """Return the slope with its interval."""
        return f"{self.per_hour:+.2f} ± {self.margin:.2f} {unit}/h"


def trend(points: Sequence[tuple[float, float]]) -> Trend:
    """Return the trend of `points`, each a second and a value, at least three of them.

    Neighbors resemble each other: n points are worth n(1-r)/(1+r) of their own, with r the correlation of residuals.
    """
    hours = [second / _SECONDS for second, _ in points]
    values = [value for _, value in points]
    slope, start = statistics.linear_regression(hours, values)
    left = [value - start - slope * hour for hour, value in zip(hours, values, strict=True)]
    squares = math.fsum(one * one for one in left)
    if squares < 1e-12:
        return Trend(slope, 0.0)
    together = math.fsum(one * other for one, other in pairwise(left)) / squares
    correlation = min(max(together, 0.0), _HIGHEST_CORRELATION)
    free = max(len(points) * (1 - correlation) / (1 + correlation) - 2, 1.0)
    middle = statistics.fmean(hours)
    spread = math.fsum((hour - middle) ** 2 for hour in hours)
    quantile = 1.96 + 2.4 / free
    return Trend(slope, quantile * math.sqrt(squares / free / spread))
