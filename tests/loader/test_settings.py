import pickle

import numpy as np
import pytest

from stepwell.errors import OrderError
from stepwell.loader.settings import LoaderSettings, available_cpus


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"batch_size": 2.0},
        {"batch_size": True},
        {"rank": 2, "world_size": 2},
        {"rank": -1},
        {"world_size": 0},
        {"epochs": 0},
        {"threads": -1},
        {"prefetch": 0},
        {"seed": -1},
        {"to": "tensorflow"},
        {"drop_last": True, "pad": True},
        {"pin_memory": True},
    ],
)
def test_a_wrong_setting_is_refused_by_name(wrong: dict) -> None:
    with pytest.raises(OrderError, match=next(iter(wrong))):
        LoaderSettings(**wrong)


def test_settings_are_values() -> None:
    settings = LoaderSettings(batch_size=3, epochs=None)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert repr(settings) == "LoaderSettings(batch_size=3, epochs=None)"


def test_small_raw_batches_are_built_inline_and_others_by_threads() -> None:
    settings = LoaderSettings()
    assert settings.num_threads(1000, is_raw=True) == 0
    assert settings.num_threads(1000, is_raw=False) == min(available_cpus(), 8)
    assert settings.num_threads(1 << 24, is_raw=True) == min(available_cpus(), 8)
    assert LoaderSettings(threads=3).num_threads(1000, is_raw=True) == 3


def test_a_pool_has_work_for_every_cpu() -> None:
    assert LoaderSettings().num_threads(1000, is_raw=True, is_pooled=True) >= min(available_cpus(), 32)
    assert LoaderSettings(threads=0).num_threads(1000, is_raw=False, is_pooled=True) == 0


def test_past_the_page_cache_other_threads_work_while_some_wait_for_the_disk() -> None:
    settings = LoaderSettings(page_cache=False)
    assert settings.num_threads(1000, is_raw=False) == min(2 * available_cpus(), 8)
    assert settings.num_threads(1000, is_raw=False, is_pooled=True) == min(2 * available_cpus(), 32)
    assert LoaderSettings(page_cache=False, threads=1).num_threads(1000, is_raw=False, is_pooled=True) == 1


def test_small_batches_are_handed_over_together() -> None:
    settings = LoaderSettings()
    assert settings.group(1 << 18, is_raw=True) == 4
    assert settings.group(1 << 22, is_raw=True) == 1
    assert settings.group(0, is_raw=True) == 16
    assert settings.group(1 << 18, is_raw=False) == 1


def test_numpy_integers_are_accepted() -> None:
    settings = LoaderSettings(batch_size=np.int64(4), rank=np.int32(1), world_size=np.int64(2))
    assert settings.partition(20).num_batches == 3


@pytest.mark.parametrize("name", ["page_cache", "drop_last", "pad", "nested"])
def test_switches_are_true_or_false(name: str) -> None:
    with pytest.raises(OrderError, match=rf"{name}='no'\. Allowed: True or False"):
        LoaderSettings(**{name: "no"})
