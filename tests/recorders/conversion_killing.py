"""A process that converts a store slowly, to be killed in the middle of it; and a codec that kills who encodes."""

import os
import signal
import sys
import time
from pathlib import Path

from stepwell.codecs.codec import register_codec
from stepwell.codecs.raw import RawCodec


@register_codec
class SlowlyStored(RawCodec):
    """Rows as they are; encoding one takes its time, and a file tells which process is at it."""

    name = "slowly"

    def encode(self, value):
        (Path(os.environ["CONVERSION_MARKS"]) / str(os.getpid())).touch()
        time.sleep(0.2)
        return super().encode(value)


@register_codec
class DeadlyStored(RawCodec):
    """Rows as they are; at one whose first element is 102 the process is killed."""

    name = "deadly"

    def encode(self, value):
        if value.flat[0] == 102:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(value)


if __name__ == "__main__":
    from stepwell import convert

    convert(sys.argv[1], sys.argv[2], {"action": "slowly"}, workers=int(sys.argv[3]))
