"""What ``meta/info.json`` says, read leniently: a feature that is wrong there is a finding, and is left out.

The strict reader is `DatasetInfo.parse`; it refuses what this one reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepwell.errors import FormatError
from stepwell.lerobot.audits.reports import Rule, Tally
from stepwell.lerobot.info import INFO_PATH, DatasetInfo
from stepwell.lerobot.meta_files import WHAT_TO_DO, read_json

__all__ = ["problem_of", "read_info"]

INFO = Rule("info", "error", "Correct meta/info.json; of what it says wrong nothing else can be read.")


def problem_of(error: Exception) -> str:
    """Return what an error says, without the advice that an audit gives itself."""
    text = str(error).replace(WHAT_TO_DO, "").strip()
    return text if isinstance(error, FormatError) else f"{type(error).__name__}: {text}"


def read_info(root: Path, tally: Tally) -> DatasetInfo | None:
    """Return what ``meta/info.json`` says, without the features that are wrong there; None when all of it is."""
    try:
        raw = read_json(root / INFO_PATH)
        return DatasetInfo.parse(raw)
    except FormatError as error:
        problem = error
    bad = _bad_features(raw) if "raw" in locals() else {}
    for name, message in bad.items():
        if _is_of_another_kind(raw["features"][name]):
            tally.skip(f"{name}: {message}")
        else:
            tally.add(INFO, name, message)
    try:
        if bad:
            return DatasetInfo.parse(raw, ignore=bad)
    except FormatError as error:
        problem = error
    tally.add(INFO, "", problem_of(problem))
    return None


def _bad_features(raw: Any) -> dict[str, str]:
    """Return the features that alone, each, make an info unreadable."""
    if not isinstance(raw, dict) or not isinstance(raw.get("features"), dict):
        return {}
    bad = {}
    for name in raw["features"]:
        others = [other for other in raw["features"] if other != name]
        try:
            DatasetInfo.parse({**raw, "features": raw["features"]}, ignore=others)
        except FormatError as error:
            if f"feature {name!r}" in str(error):
                bad[name] = problem_of(error)
    return bad


def _is_of_another_kind(raw: Any) -> bool:
    """Whether a feature is fine, and only not for stepwell."""
    about = (raw.get("info") or raw.get("video_info") or {}) if isinstance(raw, Mapping) else {}
    is_depth = isinstance(about, Mapping) and (about.get("is_depth_map") or about.get("video.is_depth_map"))
    return isinstance(raw, Mapping) and (raw.get("dtype") == "language" or bool(is_depth))
