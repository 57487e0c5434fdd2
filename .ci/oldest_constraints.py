"""Prints pip constraints that pin every requirement to its lower bound in setup.cfg."""

import configparser
import re
from pathlib import Path

config = configparser.ConfigParser()
config.read(Path(__file__).parents[1] / "setup.cfg")
requirements = config["options"]["install_requires"]
requirements += "".join(config["options.extras_require"].values())
for name, version in sorted(set(re.findall(r"^([\w-]+)>=([\d.]+)", requirements, re.MULTILINE))):
    print(f"{name}=={version}")
