"""Workspace paths and names of Attachments."""

import pytest

from fleet_shared.domain.errors import InvalidInput
from fleet_shared.domain.files import media_type_of, parse_path, unique_names


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../b",
        "a//b",
        "a/",
        "./a",
        "a/.",
        "a\\b",
        "a\0b",
        "\ud800",
        "x" * 256,
        "a/" * 600 + "b",
    ],
)
def test_a_path_outside_the_rules_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_path(path)
    assert "path" in refused.value.errors


def test_paths_that_differ_in_normal_form_alone_are_the_same() -> None:
    assert parse_path("cafe\u0301/a b.txt") == parse_path("caf\u00e9/a b.txt")
    assert parse_path(".hidden/..x/~") == ".hidden/..x/~"


def test_a_later_same_name_gets_a_number_before_its_suffix() -> None:
    given = ["a.csv", "a.csv", "b", "b", "a (2).csv", ".env", ".env"]
    assert unique_names(given) == ["a.csv", "a (2).csv", "b", "b (2)", "a (2) (2).csv", ".env", ".env (2)"]


def test_the_media_type_follows_the_suffix() -> None:
    assert media_type_of("x/README.md") == "text/markdown"
    assert media_type_of("data.CSV") == "text/csv"
    assert media_type_of("noext") == "application/octet-stream"
