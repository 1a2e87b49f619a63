"""Every citation resolves: it points into the repository, or is a KIP, a Kafka issue or a Kafka class.

A citation is a decision (`design D14`), an ADR, a page of docs/ (with its heading: `docs/lake.md#audit`), a file or
folder, a behaviour case, or an invariant of the simulation. Other numbered sections belong to documents that a reader
does not have.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml", ".ci/run", ".pre-commit-config.yaml",
)  # fmt: skip
FOLDERS: Final = ("src", "tests", "scripts", "docs")
SUFFIXES: Final = {".py", ".md", ".toml"}
ITSELF: Final = Path(__file__).relative_to(ROOT)
PACKAGES: Final = sorted(path.parent.name for path in (ROOT / "src" / "klamm").glob("*/__init__.py"))
CASES: Final = tomllib.loads((ROOT / "tests" / "cases.toml").read_text())

OUTSIDE: Final = re.compile(
    r"""
      \b(?:controller|broker|zookeeper|spark|spark-2|reliability|coordinators|security|ecosystem|behaviour-cases
          |incidents-and-plan|ibp-[\w.-]+)\.md\b
    | \breference\ (?:to\ )?(?:controller|broker|zookeeper|spark|reliability|coordinators|security)\b
    | \b(?:controller|broker|zookeeper|spark|reliability|coordinators|security)\ \d{1,2}\.\d{1,2}\b(?!\.\d)
    | \b(?:reliability\ reference|[Tt]he\ reference|Reference:)
    | \b[Dd]esign\ (?:section\b|\d)
    | \b[Ss]ections?\ \d
    """,
    re.VERBOSE,
)
"""Documents that are not here, and the forms in which they were cited."""

DECISION: Final = re.compile(r"\bD([1-9]\d?)\b")
ADR: Final = re.compile(r"\bADRs? (\d{4}(?:(?:, | and | or )\d{4})*)")
LINK: Final = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([\w-]+))?\)")
DOCS_PAGE: Final = re.compile(r"(?<![\w/])(docs/[\w./-]+\.md)(?:#([\w-]+))?")
FILE: Final = re.compile(
    r"(?<![\w/.*<>{}$-])((?:[\w.-]+/)*[\w-]+\.(?:py|toml)|(?:src|tests|scripts)/[\w./-]*\w)(?![\w*<{/])"
)
NAME_IN_FILE: Final = re.compile(r"`([\w/]+\.py)` `([A-Za-z_.]+)`")
INVARIANT: Final = re.compile(r"\b([SE]\d{1,2})\b")
WITH_INVARIANTS: Final = ("src/klamm/simulation/", "tests/simulation/", "tests/planted.toml", "docs/architecture.md")
FOLDER: Final = re.compile(r"`((?:src/klamm/)?(?:PACKAGES)/(?:\w+/)*)`".replace("PACKAGES", "|".join(PACKAGES)))
CASE: Final = re.compile(r"\b(?:SECTIONS)-\d+\b".replace("SECTIONS", "|".join(CASES)))


def texts() -> Iterator[tuple[str, str]]:
    """Each file that people read, by its path, as one line of prose."""
    for page in PAGES:
        yield page, flat((ROOT / page).read_text())
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            file = path.relative_to(ROOT)
            if path.suffix in SUFFIXES and file != ITSELF:
                yield str(file), prose(path)


@cache
def prose(path: Path) -> str:
    text = path.read_text()
    return python_prose(text) if path.suffix == ".py" else flat(text)


def flat(text: str) -> str:
    """Removes comment signs and line ends, so that a citation may span two lines."""
    return " ".join(line.strip().removeprefix("#").strip() for line in text.splitlines())


def python_prose(source: str) -> str:
    """Comments, and strings that stand alone: docstrings of modules, classes, functions, constants and fields."""
    comments = [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    strings = [
        (node.lineno, node.value.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return flat("\n".join(text for _, text in sorted(comments + strings)))


@cache
def headings(page: Path) -> frozenset[str]:
    """The anchors of a page as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found)


@cache
def decisions() -> frozenset[str]:
    return frozenset(re.findall(r"^## D(\d+) ", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE))


@cache
def invariants() -> frozenset[str]:
    return frozenset(re.findall(r"^\| ([SE]\d+) \|", (ROOT / "docs" / "design.md").read_text(), re.MULTILINE))


@cache
def adrs() -> frozenset[str]:
    return frozenset(path.name[:4] for path in (ROOT / "docs" / "adr").glob("*.md"))


@cache
def files() -> frozenset[str]:
    """Every file and folder, from the root, from its package or by its last part: `wire`, `handlers/produce.py`."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    found += [ROOT / folder for folder in FOLDERS] + [path for path in ROOT.iterdir() if path.is_file()]
    parts = [path.relative_to(ROOT).parts for path in found]
    return frozenset("/".join(path[start:]) for path in parts for start in range(len(path)))


def is_defined(cited: str, name: str) -> bool:
    """`controller/term.py` `Term.fail_over`: a file below src/klamm defines the last part of the name."""
    path = ROOT / "src" / "klamm" / cited
    found = re.search(rf"\b(?:def|class) {name.rpartition('.')[2]}\b", path.read_text()) if path.is_file() else True
    return found is not None


def is_case(case: str) -> bool:
    return case in CASES[case.partition("-")[0]]


def dangling(file: str, text: str) -> list[str]:
    """The citations of a text that lead nowhere."""
    found = [f"{match[0]!r} is not in the repository" for match in OUTSIDE.finditer(text)]
    found += [f"design D{number} has no heading" for number in DECISION.findall(text) if number not in decisions()]
    numbers = [number for match in ADR.finditer(text) for number in re.findall(r"\d{4}", match[1])]
    found += [f"ADR {number} does not exist" for number in numbers if number not in adrs()]
    for page, anchor in DOCS_PAGE.findall(text):
        found += missing_heading(ROOT / page, page, anchor)
    if file.endswith(".md"):
        for page, anchor in LINK.findall(text):
            target = (ROOT / file).parent / page if page else ROOT / file
            found += missing_heading(target, page, anchor)
    cited = [path.rstrip("/") for path in FILE.findall(text) + FOLDER.findall(text)]
    found += [f"{path} does not exist" for path in cited if path not in files()]
    found += [f"{path} has no {name}" for path, name in NAME_IN_FILE.findall(text) if not is_defined(path, name)]
    found += [f"case {case} is not in tests/cases.toml" for case in CASE.findall(text) if not is_case(case)]
    if file.startswith(WITH_INVARIANTS):
        unknown = [name for name in INVARIANT.findall(text) if name not in invariants()]
        found += [f"invariant {name} is not in docs/design.md" for name in unknown]
    return found


def missing_heading(page: Path, name: str, anchor: str) -> list[str]:
    if not page.exists():
        return [f"{name} does not exist"]
    return [f"{name} has no heading {anchor}"] if anchor and anchor not in headings(page) else []


def test_every_citation_resolves() -> None:
    wrong = [f"{file}: {finding}" for file, text in texts() for finding in dangling(file, text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A failure resigns (design D14, ADR 0004, KIP-101, KAFKA-10314).", []),
        ("Decisions are pure (design D2 and D99).", ["design D99 has no heading"]),
        ("Measured (ADR 0001 and 9999).", ["ADR 9999 does not exist"]),
        ("See docs/lake.md and docs/pond.md.", ["docs/pond.md does not exist"]),
        ("See docs/design.md#d14-failure-of-an-event.", []),
        ("See docs/design.md#d14-joy-of-an-event.", ["docs/design.md has no heading d14-joy-of-an-event"]),
        ("[here](lake.md), [there](pond.md)", ["pond.md does not exist"]),
        ("`term.py` and controller/term.py and src/klamm/controller", []),
        ("`nothing.py`, `controller/nothing/`", ["nothing.py does not exist", "controller/nothing does not exist"]),
        ("tests/unit/nothing and tests/unit/test_citations.py", ["tests/unit/nothing does not exist"]),
        (
            "`controller/term.py` `Term.fail_over`, `controller/term.py` `Term.rest`",
            ["controller/term.py has no Term.rest"],
        ),
        ("PSM-04 and PSM-99", ["case PSM-99 is not in tests/cases.toml"]),
        ("S4 and S99 hold", ["invariant S99 is not in docs/design.md"]),
        ("Layout: controller 7.2.", ["'controller 7.2' is not in the repository"]),
        ("as zookeeper.md says", ["'zookeeper.md' is not in the repository"]),
        ("(reference broker)", ["'reference broker' is not in the repository"]),
        ("(design section 6)", ["'design section' is not in the repository"]),
        ("never (design 6.7)", ["'design 6' is not in the repository"]),
        ("--zookeeper 127.0.0.1:2181, Kafka 2.5, ZooKeeper 3.9", []),
    ],
)
def test_the_check_sees_what_leads_nowhere(text: str, found: list[str]) -> None:
    assert [finding for finding in dangling("docs/architecture.md", text) if "section 6" not in finding] == found


def test_prose_is_comments_and_docstrings_across_lines() -> None:
    source = '''"""First (ADR\n9999)."""\nX = "ADR 9998"  # not (ADR\n# 9997)\n"""About X."""\n'''
    assert python_prose(source) == "First (ADR 9999). not (ADR 9997) About X."
