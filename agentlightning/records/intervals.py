"""Intervals: how far a validation score can be trusted. Standard library alone, pure functions of the scores."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a proportion. Never leaves [0, 1] and stays honest at 0 or n successes.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927). Raises
    ValueError unless 0 <= successes <= n and n > 0.
    """
    if n <= 0 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} are no proportion")
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The interval of a mean of independent scores.

    Scores that are all 0 or 1 are a proportion and get the Wilson interval; others Student's t interval. Several scores
    of one task are not independent: average them per task first. One score that is neither 0 nor 1 says nothing about
    the spread: (nan, nan). Scores that are all equal otherwise give an interval of width 0. Raises ValueError for no
    scores.
    """
    n = len(values)
    if n == 0:
        raise ValueError("no scores: their mean has no interval")
    if all(value in (0.0, 1.0) for value in values):
        return wilson_interval(sum(1 for value in values if value == 1.0), n, confidence)
    if n == 1:
        return math.nan, math.nan
    mean = statistics.fmean(values)
    half = student_t(n - 1, confidence) * statistics.stdev(values) / math.sqrt(n)
    return mean - half, mean + half


def student_t(df: int, confidence: float = 0.95) -> float:
    """The two-sided quantile of Student's t: exact for 1 and 2 degrees of freedom, else within 0.2% (at 95%; exact in
    the limit).

    Source: the Cornish-Fisher expansion, Abramowitz and Stegun 26.7.5.
    """
    p = (1 + confidence) / 2
    if df == 1:
        return math.tan(math.pi * (p - 0.5))
    if df == 2:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z = statistics.NormalDist().inv_cdf(p)
    return (
        z
        + (z**3 + z) / (4 * df)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * df**4)
    )
