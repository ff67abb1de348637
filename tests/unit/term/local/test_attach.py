"""What a terminal says when local mode cannot start here."""

from pathlib import Path

import pytest

from fleet_term.local import LocalStartError, attach, connect


def test_a_client_without_the_local_extra_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "NEEDED", ("flask", "no_such_library"))
    with pytest.raises(LocalStartError, match=r"no_such_library(.|\n)*pip install '\.\[local\]'"):
        connect(tmp_path / "data")
    assert not (tmp_path / "data").exists()
