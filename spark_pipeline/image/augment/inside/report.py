"""How the programs in a build speak: one JSON document a line behind a marker, among all that a build prints."""

import json
import sys

MARKER = "spark-pipeline-augment "


class Refused(Exception):
    """The image is not what was asked for."""


def say(text):
    """How far it is."""
    print("\n" + MARKER + json.dumps({"say": text}), flush=True)


def run(work):
    """Do `work`; a refusal is said, and ends the build."""
    try:
        work()
    except Refused as error:
        print("\n" + MARKER + json.dumps({"error": str(error)}), flush=True)
        sys.exit(1)
