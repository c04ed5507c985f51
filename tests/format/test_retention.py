"""Tests of checkpoint retention, by hand: age, room, the newest checkpoint, changed clocks, free disk space."""

from kit.format.retention import Held, outdated, room, size

HOUR, NOW = 3600.0, 1000 * 3600.0 + 1800
MB, GB = 10**6, 10**9


def hourly(count: int) -> list[Held]:
    """Return `count` checkpoints, one per hour, the newest at `NOW`.

    Each has 1 MB of its own and shares the replay files of the last four hours, 10 MB per hour.
    """
    return [
        Held(n, NOW - (count - 1 - n) * HOUR, {f"own{n}": MB} | {f"replay{n - k}": 10 * MB for k in range(4) if n >= k})
        for n in range(count)
    ]


def test_shared_files_count_once():
    assert size(hourly(1)) == 11 * MB and size(hourly(5)) == 5 * MB + 50 * MB


def test_the_last_three_and_one_per_hour_of_a_day_are_kept():
    assert outdated(hourly(30), GB, NOW) == set(range(6))
    of_an_hour = [Held(n, NOW - 100 + n, {f"own{n}": MB}) for n in range(6)]
    assert outdated(of_an_hour, GB, NOW) == {0, 1, 2}


def test_the_oldest_are_deleted_when_room_is_short():
    """All 24 checkpoints take 24 + 240 MB; the last n of them take n + 10 (n + 3) MB, for n up to 21."""
    found = hourly(24)
    assert size(found) == 24 * MB + 240 * MB
    assert outdated(found, 264 * MB, NOW) == set()
    assert outdated(found, 100 * MB, NOW) == set(range(18)), "six take 96 MB, seven 107"
    assert outdated(found, 60 * MB, NOW) == set(range(22)), "two take 52 MB"


def test_the_newest_is_kept_whatever_its_size():
    assert outdated(hourly(24), 0, NOW) == set(range(23))
    assert outdated(hourly(24), -GB, NOW) == set(range(23))
    assert outdated(hourly(1), 0, NOW) == set() and outdated([], 0, NOW) == set()


def test_a_changed_clock_deletes_no_more_than_age_does():
    assert outdated(hourly(5), GB, NOW + 1000 * HOUR) == {0, 1}
    assert outdated(hourly(5), GB, NOW - 1000 * HOUR) == set()


def test_room_is_limited_by_budget_and_free_space():
    """Of a 10 GB disk, 0.5 GB are kept free; of a 1 TB disk, 1 GiB."""
    assert room(10 * GB, held=2 * GB, free=7 * GB, disk=10 * GB) == 8.5 * GB
    assert room(4 * GB, held=2 * GB, free=7 * GB, disk=10 * GB) == 4 * GB
    assert room(10 * GB, held=2 * GB, free=0, disk=10 * GB) == 1.5 * GB
    assert room(10 * GB, held=2 * GB, free=3 * GB, disk=1000 * GB) == 5 * GB - 2**30
