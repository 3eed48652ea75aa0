"""A robot and a leader arm without hardware for lerobot's scripts: what they see is counted."""

from dataclasses import dataclass

import numpy as np
from lerobot.robots import Robot, RobotConfig
from lerobot.teleoperators import Teleoperator, TeleoperatorConfig

AXES = ("x.pos", "y.pos")
HEIGHT, WIDTH = 48, 64
# the actions of the last robot that was made
SENT = []


def seen(count):
    """Return what the robot sees at its ``count``-th look."""
    shade = 20 + 9 * count % 200
    return {"x.pos": float(count), "y.pos": -1.0, "top": np.full((HEIGHT, WIDTH, 3), shade, np.uint8)}


class Still:
    """What robots and arms have that stand still."""

    is_calibrated = True
    is_connected = False

    def __init__(self, config):
        super().__init__(config)
        self.count = 0

    @property
    def action_features(self):
        return dict.fromkeys(AXES, float)

    def connect(self, calibrate=True):
        self.is_connected = True

    def disconnect(self):
        self.is_connected = False

    def calibrate(self):
        pass

    def configure(self):
        pass


@RobotConfig.register_subclass("counting_robot")
@dataclass
class CountingRobotConfig(RobotConfig):
    pass


class CountingRobot(Still, Robot):
    config_class = CountingRobotConfig
    name = "counting_robot"

    def __init__(self, config):
        super().__init__(config)
        self.cameras = {"top": None}
        SENT.clear()

    @property
    def observation_features(self):
        return {**self.action_features, "top": (HEIGHT, WIDTH, 3)}

    def get_observation(self):
        self.count += 1
        return seen(self.count - 1)

    def send_action(self, action):
        SENT.append(action)
        return action


@TeleoperatorConfig.register_subclass("counting_arm")
@dataclass
class CountingArmConfig(TeleoperatorConfig):
    pass


class CountingArm(Still, Teleoperator):
    config_class = CountingArmConfig
    name = "counting_arm"
    feedback_features = None

    def get_action(self):
        self.count += 1
        return {"x.pos": float(self.count - 1), "y.pos": 2.0}

    def send_feedback(self, feedback):
        pass
