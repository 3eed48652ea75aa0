"""Print what an installed package itself asks for, one requirement a line, but for the packages that are named."""

import re
import sys
from importlib.metadata import requires

package, *others = sys.argv[1:]
for requirement in requires(package) or []:
    name = re.match(r"[\w.-]+", requirement).group()
    if "extra ==" not in requirement and name not in others:
        print(requirement)
