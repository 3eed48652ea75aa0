"""Run by an interpreter of others' with the path of a script of this folder: does what lines on standard input say.

Each is a JSON object, {"do": NAME, ...}, and is answered with one: the names are the functions of the script's
``ANSWERS``. What one raises is the answer {"error": TRACE}.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback


def main(script: str) -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    # what libraries and their processes print is no answer
    os.dup2(2, 1)
    known = {function.__name__: function for function in runpy.run_path(script)["ANSWERS"]}
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = known[asked.pop("do")](**asked)
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    # finalizers of what was loaded complain at an orderly end
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
