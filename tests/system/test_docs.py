"""The documents say what the sources say."""
import re
import subprocess

import pytest

from conftest import BIN, ROOT, TEST_BIN

SOURCES = {path: path.read_text() for path in sorted((ROOT / "src").rglob("*.[ch]"))}
# check.crcs is an option of librdkafka.
CODE = re.compile(r'"(?!check\.crcs")((?:cli|config|pg|schema|relay|outbox|kafka|log|fenced|event|file|http|handler|message|consumer|emit|tail|dlq|gaps|dev|daemon|reconcile|check)'
                  r'\.[a-z_]+)"')
EVENT = re.compile(r'(?:log_(?:info|warn|error|debug)\(|log_failure\([^"]*|say_failure\(state, |\? |: )"'
                   r'((?:daemon|relay|consumer|janitor|reconcile)\.[a-z_]+)"')
KAFKA_EVENT = re.compile(r'log_(?:info|warn|error|debug)\("(kafka\.[a-z_]+)"')
FAILPOINT = re.compile(r'FAILPOINT\("([a-z_.]+)"\)')


def found(pattern):
    return sorted({name for text in SOURCES.values() for name in pattern.findall(text)})


def test_every_failpoint_is_listed_and_died_at():
    page = (ROOT / "docs/internals/failpoints.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for name in found(FAILPOINT):
        assert f"`{name}`" in page, name
        assert name in tests.replace(page, ""), f"no test dies at {name}"


def test_every_log_event_is_explained():
    page = (ROOT / "docs/guide/logs.md").read_text()
    names = found(EVENT) + found(KAFKA_EVENT)
    assert len(names) > 20
    for name in names:
        assert f"`{name}`" in page, name


def test_every_error_code_is_explained():
    pages = (ROOT / "docs/guide/errors.md").read_text() + (ROOT / "docs/guide/logs.md").read_text() + \
        (ROOT / "docs/internals/failpoints.md").read_text()
    names = found(CODE)
    assert len(names) > 60
    for name in names:
        assert f"`{name}`" in pages, name


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")),
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_page_named_in_the_sources_exists():
    for path, text in SOURCES.items():
        for name in re.findall(r"docs/(?:guide|internals)/[a-z]+\.md", text):
            assert (ROOT / name).exists(), f"{path}: {name}"


def test_a_release_program_has_no_failpoints():
    def strings(binary):
        return subprocess.run(["grep", "-c", "POSTRIDER_FAILPOINT", binary], capture_output=True, text=True,
                              check=False).stdout.strip()
    assert strings(TEST_BIN) != "0"
    if BIN != TEST_BIN:
        assert strings(BIN) == "0"


def test_every_case_from_the_field_has_its_test():
    listed = set(re.findall(r"^\| (F\d+) ", (ROOT / "docs/internals/field-cases.md").read_text(), re.M))
    tested = {n for file in ROOT.glob("tests/**/test_*.py") for n in re.findall(r"^def test_(F\d+)_", file.read_text(), re.M)}
    assert listed == tested
