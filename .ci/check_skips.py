"""Fails if a test was skipped for a reason that .ci/allowed_skips.txt does not list, or if no test
ran. Usage: check_skips.py REPORT.xml"""

import sys
from pathlib import Path
from xml.etree import ElementTree


def main(report: str) -> int:
    allowed = [
        line
        for line in Path(__file__).with_name("allowed_skips.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    skipped = [(case, skip) for case in cases if (skip := case.find("skipped")) is not None]
    refused = [
        f"{case.get('classname')}::{case.get('name')}: {skip.get('message')}"
        for case, skip in skipped
        if not any(reason in (skip.get("message") or "") for reason in allowed)
    ]
    for line in refused:
        print(f"skipped without leave: {line}")
    print(f"{report}: {len(cases)} tests, {len(skipped)} skipped, {len(refused)} without leave")
    return 1 if refused or not cases else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
