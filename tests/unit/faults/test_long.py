"""Long runs with faults drawn at random: rejected options."""

from __future__ import annotations

import pytest

from faults import long


@pytest.mark.parametrize("seconds", ["-5", "0", "59", "nan", "inf", "soon"])
def test_a_length_under_a_minute_is_a_usage_error_and_starts_nothing(
    seconds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(long, "lacking_here", lambda: "it would have started")
    with pytest.raises(SystemExit) as ended:
        long.main(["--seconds", seconds, "--seed", "7"])
    assert ended.value.code == 2
    assert f"{seconds}: a run takes 60 seconds or more" in capsys.readouterr().err


def test_the_shortest_run_takes_a_minute(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(long, "lacking_here", lambda: "it would have started")
    assert long.main(["--seconds", "60"]) == 64
