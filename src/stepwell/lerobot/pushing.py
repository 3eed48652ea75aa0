"""A dataset's directory to the Hugging Face hub: its files, a card, and the tag of its version."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepwell.lerobot.hub import endpoint, import_hub

__all__ = ["push"]

CARD = """---
{data}
---

This dataset was written with [stepwell](https://pypi.org/project/stepwell) in the format of
[LeRobot](https://github.com/huggingface/lerobot).
{sections}
## Dataset structure

[meta/info.json](meta/info.json):

```json
{info}
```
"""


def push(
    root: Path,
    repo_id: str,
    info: Mapping[str, Any],
    *,
    branch: str | None = None,
    revision: str | None = None,
    tags: Sequence[str] | None = None,
    license: str | None = "apache-2.0",
    tag_version: bool = True,
    push_videos: bool = True,
    private: bool | None = None,
    allow_patterns: Sequence[str] | str | None = None,
    upload_large_folder: bool = False,
    token: str | bool | None = None,
    **card: Any,
) -> None:
    """Upload a directory; see `stepwell.lerobot.LeRobotDataset.push_to_hub`."""
    hub = import_hub()
    api = hub.HfApi(endpoint=endpoint(), token=token)
    place = {"repo_id": repo_id, "repo_type": "dataset"}
    api.create_repo(**place, private=private, exist_ok=True)
    if branch:
        api.create_branch(**place, branch=branch, revision=revision, exist_ok=True)
    upload = api.upload_large_folder if upload_large_folder else api.upload_folder
    upload(
        **place,
        folder_path=root,
        revision=branch,
        allow_patterns=allow_patterns,
        ignore_patterns=["images/", *([] if push_videos else ["videos/"])],
    )
    _card(hub, info, [*(tags or ())], license, card).push_to_hub(**place, revision=branch, token=token)
    if tag_version:
        version = info["codebase_version"]
        # of an earlier upload
        with suppress(hub.errors.RevisionNotFoundError):
            api.delete_tag(**place, tag=version)
        api.create_tag(**place, tag=version, revision=branch)


def _card(hub: Any, info: Mapping[str, Any], tags: list[str], license: str | None, fields: Mapping[str, Any]) -> Any:
    """Return the README.md: what the hub's pages and viewer need, a section a field, and info.json."""
    data = hub.DatasetCardData(
        license=license,
        tags=["LeRobot", *tags],
        task_categories=["robotics"],
        configs=[{"config_name": "default", "data_files": "data/*/*.parquet"}],
    )
    sections = "".join(f"\n## {name.replace('_', ' ').capitalize()}\n\n{text}\n" for name, text in fields.items())
    structure = json.dumps(info, indent=4, ensure_ascii=False)
    return hub.DatasetCard(CARD.format(data=data.to_yaml(), sections=sections, info=structure))
