"""``fg.tune``: what calls do inside, what they do afterwards, and what other processes then do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fusegen as fg
from fusegen.core.errors import FusegenError, FusegenWarning
from fusegen.plan.targets import CpuTarget
from fusegen.run.runner import Runner
from fusegen.tuning import search, session
from fusegen.tuning.table import Table

pytest_plugins = ("tests.support.call_paths",)
pytestmark = pytest.mark.cpu

GPU = "a GPU that the emulator stands for"


class Clock:
    """Finds the first other schedule of each search to be the fastest, and runs what it is given."""

    searches = 0

    def __init__(self) -> None:
        self.groups, self.winner = 0, ""
        type(self).searches += 1

    def turns(self, works: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        for work in works.values():
            work()
        self.groups += 1
        if len(works) == 2:  # once more, at the end
            return {"0": 100.0, "1": 50.0}
        others = [name for name in works if name != "0"]
        return {name: 50.0 if self.groups == 1 and name == others[0] else 100.0 for name in works}


@pytest.fixture(autouse=True)
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The emulator as a GPU, and a file of tuned choices that is this test's alone."""
    path = tmp_path / "tuned.json"
    monkeypatch.setenv(session.FILE_VARIABLE, str(path))
    monkeypatch.setattr(CpuTarget, "gpu", GPU)
    monkeypatch.setattr(session, "clock_for", lambda target, device: Clock())
    monkeypatch.setattr(session, "SHIPPED", tmp_path / "shipped.json")
    monkeypatch.setattr(session.state, "used", Table())
    monkeypatch.setattr(session.state, "has_warned", False)
    monkeypatch.setattr(search, "GROUP", 3)
    monkeypatch.setattr(search, "GROUPS", 1)
    Clock.searches = 0
    yield path
    session.state.own.pop(path, None)
    session.state.own.pop(session.SHIPPED, None)


def softmax() -> Any:
    """An op that nobody has called yet."""

    def mine(x: fg.Tensor) -> fg.Tensor:
        return fg.exp(x - fg.amax(x, -1, keepdims=True)) / fg.sum(fg.exp(x), -1, keepdims=True)

    return fg.op(mine)


def exactly(x: torch.Tensor) -> torch.Tensor:
    return (x - x.amax(-1, keepdim=True)).exp() / x.exp().sum(-1, keepdim=True)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that the slow path launches."""
    found, launch = [], Runner.launch

    def watched(runner: Runner, plan: Any, *args: Any) -> Any:
        results = launch(runner, plan, *args)
        found.append(plan.program)
        return results

    monkeypatch.setattr(Runner, "launch", watched)
    return found


def grids(program: Any) -> list[Any]:
    return [(step.grid, step.block) for step in program.steps]


@pytest.mark.emulator
def test_what_is_found_is_written_and_done_from_then_on(file: Path, launched: list[Any]) -> None:
    op, x = softmax(), torch.randn(8, 304)
    op(x)
    with fg.tune() as found:
        torch.testing.assert_close(op(x), exactly(x))
    torch.testing.assert_close(op(x), exactly(x))
    (entry,) = found
    assert (entry.op, entry.label, entry.gpu) == ("mine", "forward", GPU) and entry.chosen and entry.tried > 2
    assert (entry.own, entry.best) == (100.0, 50.0)
    assert Table.read(file).entries == {(GPU, entry.key): entry}
    assert grids(launched[0]) != grids(launched[1])  # before, and inside
    another = softmax()
    another(x)  # by a plan of its own
    assert grids(launched[-1]) == grids(launched[1])


@pytest.mark.emulator
def test_gradients_are_tuned_as_well(file: Path) -> None:
    op, x = softmax(), torch.randn(8, 304, requires_grad=True)
    cotangent = torch.randn(8, 304)
    with fg.tune() as found:
        op(x).backward(cotangent)
    (expected,) = torch.autograd.grad(exactly(x), x, cotangent)
    torch.testing.assert_close(x.grad, expected)
    assert [entry.label for entry in found] == ["forward", "backward"]


@pytest.mark.emulator
def test_calls_that_were_decided_before_are_decided_again(fresh: Callable[[Any], Any]) -> None:
    """Tuned sums are added up in another order, which their last bits tell."""
    op, x, cotangent = fresh(softmax()), torch.randn(8, 304, requires_grad=True), torch.randn(8, 304)

    def results() -> list[torch.Tensor]:
        out = op(x)
        return [out.detach(), *torch.autograd.grad(out, x, cotangent)]

    results()
    before, decided = results(), op.decided
    assert decided == 1  # the second call is remembered
    with fg.tune() as found:
        inside = results()
    assert len(found) == 2 and not all(map(torch.equal, before, inside))
    decided = op.decided
    for _ in range(3):
        after = results()
        assert all(map(torch.equal, after, inside))
    assert op.decided <= decided + 1


@pytest.mark.emulator
def test_what_was_tuned_is_tuned_again_only_where_that_is_asked() -> None:
    op, x = softmax(), torch.randn(64, 304)
    with fg.tune():
        op(x)
        op(x)
    assert Clock.searches == 1
    with fg.tune() as found:
        op(x)
        softmax()(x)
        softmax()(torch.randn(56, 296))  # the same bucket
    assert Clock.searches == 1 and not found
    with fg.tune(again=True):
        softmax()(x)
    assert Clock.searches == 2


@pytest.mark.emulator
def test_frozen_plans_know_only_files_that_were_named(file: Path, tmp_path: Path, launched: list[Any]) -> None:
    x = torch.randn(8, 304)
    with fg.tune():
        softmax()(x)
    with fg.tune.frozen():
        softmax()(x)
        with fg.tune():
            softmax()(x)
    assert Clock.searches == 1
    other = tmp_path / "other.json"
    other.write_text(file.read_text())
    assert fg.tune.use(other) == 1
    with fg.tune.frozen():
        softmax()(x)
    tuned, frozen, tried, named = map(grids, launched)
    assert tuned != frozen == tried and named == tuned


@pytest.mark.emulator
def test_what_comes_with_fusegen_counts_last_and_where_plans_are_frozen(file: Path, launched: list[Any]) -> None:
    x = torch.randn(8, 304)
    softmax()(x)
    with fg.tune():
        softmax()(x)
    session.SHIPPED.write_text(file.read_text())
    file.unlink()
    session.state.own.clear()
    softmax()(x)
    with fg.tune.frozen():
        softmax()(x)
    with fg.tune() as found:  # of other sizes of the bucket, on another machine: it is measured
        softmax()(x)
    plain, tuned, shipped, frozen, again = map(grids, launched)
    assert plain != tuned == shipped == frozen and len(found) == 1
    data = json.loads(session.SHIPPED.read_text())
    data["entries"][0]["chosen"] = {}
    session.SHIPPED.write_text(json.dumps(data))
    session.state.own.pop(session.SHIPPED)
    softmax()(x)
    assert grids(launched[-1]) == again  # what this machine has found comes first


def test_the_table_that_comes_with_fusegen_is_one() -> None:
    entries = Table.read(Path(session.__file__).with_name("shipped.json")).entries.values()
    assert all(entry.gpu.startswith("NVIDIA ") and entry.best <= entry.own for entry in entries)
    assert all(entry.best < 0.99 * entry.own for entry in entries if entry.chosen)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FusegenError, match="fusegen tune OP"):
        fg.tune.use(tmp_path / "none.json")


@pytest.mark.emulator
def test_arguments_and_results_stay_what_they_are() -> None:
    op, x = softmax(), torch.randn(8, 304)
    before, out = x.clone(), torch.full((8, 304), 7.0)
    with fg.tune():
        op(x, out=out)
    assert x.equal(before)
    torch.testing.assert_close(out, exactly(x))


@pytest.mark.emulator
def test_what_is_written_in_place_stays_as_it_was_scheduled(launched: list[Any]) -> None:
    """What was tuned may be several kernels, of which a later one reads what an earlier one has overwritten."""
    op, x = softmax(), torch.randn(8, 304)
    inside, later = x.clone(), x.clone()
    with fg.tune() as found:
        op(inside, out=inside)
        assert not found
        op(x)
    assert len(found) == 1
    op(later, out=later)
    for result in (inside, later):
        torch.testing.assert_close(result, exactly(x))
    before, tuned, after = map(grids, launched)
    assert before == after != tuned


@pytest.mark.emulator
def test_kernels_behind_a_product_are_tuned() -> None:
    op = fg.op(lambda x, w: fg.softmax(x @ w, -1), name="behind")
    x, w = torch.randn(64, 32), torch.randn(32, 304)
    op(x, w)
    with fg.tune() as found:
        torch.testing.assert_close(op(x, w), torch.softmax(x @ w, -1))
    assert len(found) == 1
    torch.testing.assert_close(op(x, w), torch.softmax(x @ w, -1))


@pytest.mark.emulator
def test_random_numbers_are_what_they_were() -> None:
    op, x = fg.op(lambda x: fg.softmax(fg.dropout(x, 0.5), -1), name="dropped", random=True), torch.randn(8, 304)
    torch.manual_seed(3)
    expected, after = op(x), torch.rand(1)
    torch.manual_seed(3)
    with fg.tune() as found:
        result = op(x)
    assert found and torch.rand(1).equal(after)
    torch.testing.assert_close(result, expected)


@pytest.mark.emulator
def test_a_broken_file_is_told_once_and_not_overwritten(file: Path) -> None:
    file.write_text("broken")
    x = torch.randn(8, 304)
    with pytest.warns(FusegenWarning, match=r"tuned\.json"):
        torch.testing.assert_close(softmax()(x), exactly(x))
    softmax()(x)
    with pytest.raises(FusegenError, match=r"tuned\.json"), fg.tune():
        softmax()(x)
    assert file.read_text() == "broken"


@pytest.mark.emulator
def test_a_choice_that_is_none_any_more_does_no_harm(file: Path) -> None:
    x = torch.randn(8, 304)
    with fg.tune():
        softmax()(x)
    data = json.loads(file.read_text())
    strange = {"threads": 7, "rows": -1, "vector": 3, "colour": 1}
    data["entries"][0]["chosen"] = {"mine_forward_f32": strange, "x": {"y": 2}}
    file.write_text(json.dumps(data))
    session.state.own.clear()
    torch.testing.assert_close(softmax()(x), exactly(x))


@pytest.mark.emulator
def test_what_cannot_be_tuned_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(8, 304)
    with pytest.warns(FusegenWarning, match="torch's tensors") as caught, fg.tune():
        for _ in range(2):
            softmax()(x.numpy())
    assert len(caught) == 1
    monkeypatch.setattr(session.state, "has_warned", False)
    monkeypatch.setattr(CpuTarget, "gpu", "")
    with pytest.warns(FusegenWarning, match="emulator") as caught, fg.tune():
        for _ in range(2):
            softmax()(x)
    assert len(caught) == 1


BY_ENVIRONMENT = """
import torch, fusegen as fg
from tests.tuning import test_session as cases
from fusegen.plan.targets import CpuTarget
from fusegen.tuning import search, session
search.GROUPS = 1
CpuTarget.gpu, session.clock_for = cases.GPU, lambda target, device: cases.Clock()
cases.softmax()(torch.randn(8, 304))
print(cases.Clock.searches)
"""


@pytest.mark.emulator
def test_a_whole_process_by_its_environment(file: Path) -> None:
    for expected in ("1", "0"):  # the second one finds what the first has written
        environment = {**os.environ, session.VARIABLE: "1"}
        done = subprocess.run(
            [sys.executable, "-c", BY_ENVIRONMENT], capture_output=True, text=True, env=environment, check=True
        )
        assert done.stdout.split() == [expected]
    assert len(Table.read(file).entries) == 1


def test_results_agree_but_for_rounding() -> None:
    some = torch.randn(100)
    assert session.agree(some * (1 + 1e-6), some) and not session.agree(some * 1.01, some)
    assert session.agree(some.half() * 1.001, some.half())
    holes = torch.tensor([1.0, np.nan, np.inf])
    assert session.agree(holes, holes) and not session.agree(torch.tensor([1.0, 2.0, np.inf]), holes)
    assert not session.agree(torch.tensor([1.0, np.nan, -np.inf]), holes)
    assert not session.agree(torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert session.agree(torch.empty(0), torch.empty(0))
