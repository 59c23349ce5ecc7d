"""``fusegen tune``: what it prints of an op that it has tuned, and of all that was tuned before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusegen.cli import tune as command
from fusegen.cli.main import main
from fusegen.plan.targets import CpuTarget
from fusegen.tuning import search, session
from fusegen.tuning.table import Entry, Table, add_to
from tests.tuning.test_session import GPU, Clock

pytestmark = pytest.mark.cpu


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(session.FILE_VARIABLE, str(tmp_path / "tuned.json"))
    return tmp_path / "tuned.json"


@pytest.fixture
def fusegen(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(["tune", *arguments])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator as a GPU."""
    monkeypatch.setattr(CpuTarget, "gpu", GPU)
    monkeypatch.setattr(session, "clock_for", lambda target, device: Clock())
    monkeypatch.setattr(search, "GROUP", 2)
    monkeypatch.setattr(search, "GROUPS", 1)
    monkeypatch.setattr(command, "place_of", lambda: "cpu")


@pytest.mark.emulator
@pytest.mark.usefixtures("emulated")
def test_every_pass_of_an_op(fusegen: Any, file: Path) -> None:
    code, out, err = fusegen("softmax", "--shape", "input=32,160")
    assert code == 0 and str(file) in err
    assert (
        "forward" in out and "backward" in out and "0.50" in out and "geometric mean of tuned / default: 0.500" in out
    )
    assert {entry.label for entry in Table.read(file).entries.values()} == {"forward", "backward"}
    code, out, err = fusegen("softmax", "--shape", "input=32,160")
    assert code == 0 and not out and "--again" in err


def entry(**others: Any) -> Entry:
    given = {"gpu": "A", "op": "softmax", "label": "forward", "key": "k", "sizes": {"d0": 64}, "chosen": {}, "tried": 9}
    return Entry(**{"own": 4.0, "best": 4.0, **given, **others})


def test_a_report_of_all_that_was_tuned(fusegen: Any, file: Path) -> None:
    two = {"a": {"threads": 64, "rows": 2}, "b": {"staged": 0}}
    add_to(file, [entry(), entry(key="l", best=1.0, chosen={"a": {"threads": 64}}), entry(gpu="B", chosen=two)])
    code, out, _ = fusegen("--report")
    assert code == 0
    of_a, of_b = out.split("B: ")
    assert "as by default" in of_a and "threads 64" in of_a and "mean of tuned / default: 0.500" in of_a
    assert "a: rows 2, threads 64; b: staged 0" in of_b


def test_a_report_of_what_comes_with_fusegen(
    fusegen: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SHIPPED", tmp_path / "shipped.json")
    add_to(session.SHIPPED, [entry(best=2.0, chosen={"a": {"threads": 64}})])
    code, out, err = fusegen("--report")
    assert code == 0 and out.startswith("A (comes with fusegen): ") and "default: 0.500" in out
    assert "nothing was tuned here yet" in err
    session.state.own.pop(session.SHIPPED)


def test_a_report_of_nothing(fusegen: Any, file: Path) -> None:
    assert fusegen("--report")[0] == 0
    assert not file.exists()


@pytest.mark.parametrize("arguments", [(), ("softmax", "--report")])
def test_an_op_or_a_report(arguments: tuple[str, ...], fusegen: Any) -> None:
    code, _, err = fusegen(*arguments)
    assert code == 2 and "one of them" in err


def test_without_a_gpu(fusegen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "choose_device", lambda wanted: "cpu")
    code, _, err = fusegen("softmax")
    assert code == 2 and "no GPU" in err and "fg.tune.use" in err
