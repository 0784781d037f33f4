"""Ratios over clusters: known variances, and what clusters are worth."""

from __future__ import annotations

import numpy as np
import pytest

from driftscope.analysis.statistics.clusters import (
    design_effect,
    intraclass_correlation,
    nested,
    ratio_over,
    summed,
)
from driftscope.analysis.statistics.interval import intervals, ratio_of

RANDOM = np.random.RandomState(0)
VALUES = RANDOM.random_sample((60, 1))
ONES = np.ones((60, 1))
EACH = np.arange(60)


def test_copies_of_a_request_say_no_more_than_one() -> None:
    single = ratio_of(VALUES, ONES)
    copies = [np.repeat(each, 4, axis=0) for each in (VALUES, ONES)]
    clustered = ratio_over(ratio_of, copies, np.repeat(EACH, 4))
    assert clustered.value == pytest.approx(single.value)
    assert clustered.error == pytest.approx(single.error)
    assert clustered.df == pytest.approx(single.df)
    effect = design_effect(clustered, ratio_of(*copies))
    assert effect == pytest.approx(4.0, rel=0.02)


def test_the_numbers_of_clusters_do_not_matter() -> None:
    code, renamed = EACH // 3, 100 - EACH // 3
    one, other = (ratio_over(ratio_of, (VALUES, ONES), each) for each in (code, renamed))
    assert one.error == pytest.approx(other.error)


def test_balanced_kinds_in_every_cluster_make_the_design_effect_less_than_one() -> None:
    kinds = np.tile([[0.0], [10.0]], (30, 1)) + VALUES
    clustered = ratio_over(ratio_of, (kinds, ONES), EACH // 2)
    effect = design_effect(clustered, ratio_of(kinds, ONES))
    assert effect is not None and effect < 0.1


def test_crossed_clusters_count_both_variances() -> None:
    a, b = np.repeat(np.arange(20), 20), np.tile(np.arange(20), 20)
    effects = RANDOM.standard_normal((2, 20))
    values = (effects[0][a] + effects[1][b])[:, None]
    ones = np.ones_like(values)
    one, other = (ratio_over(ratio_of, (values, ones), each) for each in (a, b))
    both = ratio_over(ratio_of, (values, ones), a, b)
    assert both.error[0] > max(one.error[0], other.error[0])
    # no own noise: the variance of the mean is that of both means
    wanted = np.sqrt(effects[0].var(ddof=1) / 20 + effects[1].var(ddof=1) / 20)
    assert both.error[0] == pytest.approx(wanted, rel=0.05)


def test_the_variance_of_crossed_clusters_is_no_smaller_than_that_of_either() -> None:
    a, b = EACH // 6, EACH % 6
    one, other = (ratio_over(ratio_of, (VALUES, ONES), each) for each in (a, b))
    both = ratio_over(ratio_of, (VALUES, ONES), a, b)
    assert both.error[0] >= max(one.error[0], other.error[0]) * (1 - 1e-12)
    assert both.df[0] == min(one.df[0], other.df[0])


@pytest.mark.parametrize(("clusters", "known"), [(4, False), (5, True), (12, True)])
def test_fewer_than_five_clusters_have_no_interval(clusters: int, known: bool) -> None:
    ratio = ratio_over(ratio_of, (VALUES, ONES), EACH % clusters)
    spread = intervals(ratio)
    assert spread is not None
    assert (spread[0] is not None) == known
    if spread[0] is not None:
        assert spread[0].clusters == pytest.approx(clusters)


def test_nesting_is_seen() -> None:
    assert nested(EACH, EACH // 4)
    assert nested(EACH // 2, EACH // 4)
    assert not nested(EACH // 4, EACH // 2)
    assert not nested(EACH % 5, EACH // 5)


def test_the_correlation_within_clusters_is_estimated() -> None:
    code = np.repeat(np.arange(400), 5)
    shared = RANDOM.standard_normal(400)[code]
    values = 10 + shared + RANDOM.standard_normal(2000)
    found = intraclass_correlation(values, np.ones(2000), code)
    assert found == pytest.approx(0.5, abs=0.06)
    assert intraclass_correlation(values, np.ones(2000), np.arange(2000)) is None


def test_sums_keep_the_order_of_rows_that_are_clusters_of_their_own() -> None:
    assert summed(VALUES, EACH) is VALUES
    assert np.array_equal(summed(VALUES, EACH[::-1]), VALUES[::-1])


def test_what_both_runs_share_leaves_the_variance_of_their_difference() -> None:
    """Prompts are the same in both runs, sessions are not."""
    prompt, session = np.tile(np.arange(20), 15), np.repeat(np.arange(15), 20)
    easy, ones = RANDOM.standard_normal(20)[prompt], np.ones((300, 1))
    runs = [easy + 0.5 * RANDOM.standard_normal(15)[session] for _ in range(2)]
    a, b = (ratio_over(ratio_of, (each[:, None], ones), session, prompt) for each in runs)
    apart = b.minus(a)
    direct = ratio_over(ratio_of, ((runs[1] - runs[0])[:, None], ones), session, prompt)
    assert apart.error == pytest.approx(direct.error)
    assert apart.factor[0] == pytest.approx(1.0, abs=0.05)
    assert min(a.factor[0], b.factor[0]) > 1.2
