"""`make cases`: behaviour case -> the tests that prove it, from the markers as pytest collects them."""

from __future__ import annotations

import contextlib
import io
import sys
from collections import defaultdict

import pytest


class Collector:
    def __init__(self) -> None:
        self.tests: dict[str, set[str]] = defaultdict(set)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for marker in item.iter_markers("case"):
                for case in marker.args:
                    self.tests[case].add(item.nodeid.partition("[")[0])  # once for all parameters


def main() -> int:
    collector = Collector()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(["--collect-only", "-qq"], plugins=[collector])
    if code != pytest.ExitCode.OK:
        print(said.getvalue(), file=sys.stderr)
        return 1
    for case in sorted(collector.tests):
        print(f"{case:<10} {', '.join(sorted(collector.tests[case]))}")
    print(f"{len(collector.tests)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
