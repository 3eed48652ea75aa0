"""A plugin of pytest for LeRobot's own tests: stepwell's classes in place of theirs, and which tests pass."""

import json
import os
from pathlib import Path

PASSED = []


def pytest_collection(session):
    if os.environ["STEPWELL_SWAP"] == "0":
        return
    import tests.fixtures.dataset_factories as factories
    from lerobot.datasets.lerobot_dataset import LeRobotDataset as Theirs

    import stepwell.lerobot

    stepwell.lerobot.install()
    ours = stepwell.lerobot.LeRobotDataset

    def made(repo_id, root=None, **options):
        # the factory lets their class write the files, by what it replaces in their modules
        Theirs(repo_id=repo_id, root=root, **{name: each for name, each in options.items() if name != "episode_filter"})
        return ours(repo_id, root, **options)

    made.create = ours.create
    factories.LeRobotDataset = made


def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        PASSED.append(report.nodeid)


def pytest_sessionfinish(session):
    Path(os.environ["STEPWELL_PASSED"]).write_text(json.dumps(PASSED))
