"""The file of tuned choices: read, written, merged, and found by what a plan depends on."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fusegen as fg
from fusegen.core.errors import FusegenError
from fusegen.core.ir import Op
from fusegen.fuse.schedule import Buffer
from fusegen.pipeline import Layout
from fusegen.run.runner import Runner
from fusegen.tuning.table import Entry, Table, add_to, bucket, key_of

ENTRY = Entry("GPU", "softmax", "forward", "ab", {"d0": 64}, {"softmax_forward": {"rows": 2}}, 3.5, 3.0, 12)


def test_a_table_reads_what_it_wrote(tmp_path: Path) -> None:
    table = Table()
    table.add([ENTRY, replace(ENTRY, key="cd", chosen={})])
    (tmp_path / "t.json").write_text(str(table))
    assert Table.read(tmp_path / "t.json") == table
    assert len(str(table).splitlines()) == 2 + 2  # a line each, so that reviews show what changed


def test_the_last_of_two_for_the_same_counts(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "t.json"
    add_to(path, [ENTRY])
    add_to(path, [replace(ENTRY, best=2.0), replace(ENTRY, gpu="another")])
    read = Table.read(path)
    found = read.find("GPU", "ab")
    assert len(read.entries) == 2 and found is not None and found.best == 2.0


@pytest.mark.parametrize(
    "text",
    [
        "no json", "[]", "{}", '{"fusegen tuned": 2, "entries": []}', '{"fusegen tuned": 1, "entries": [1]}',
        '{"fusegen tuned": 1, "entries": [{"gpu": "GPU"}]}', '{"fusegen tuned": 1, "entries": 3}',
        json.dumps({"fusegen tuned": 1, "entries": [{**vars(ENTRY), "chosen": {"a": {"b": "c"}}}]}),
        json.dumps({"fusegen tuned": 1, "entries": [{**vars(ENTRY), "own": "fast"}]}),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused_and_kept(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(FusegenError, match=r"t\.json"):
        Table.read(path)
    with pytest.raises(FusegenError, match=r"t\.json"):
        add_to(path, [ENTRY])
    assert path.read_text() == text


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FusegenError, match="FUSEGEN_TUNED"):
        add_to(tmp_path / "file" / "t.json", [ENTRY])


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.tuning.test_table import ENTRY, add_to
for number in range(10):
    add_to(Path(sys.argv[1]), [replace(ENTRY, key=f"{sys.argv[2]} {number}")])
"""


def test_several_processes_write_one_file(tmp_path: Path) -> None:
    started = [subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / "t.json", str(n)]) for n in range(3)]
    assert [process.wait() for process in started] == [0, 0, 0]
    assert len(Table.read(tmp_path / "t.json").entries) == 30


# -- what an entry is found by -----------------------------------------------------------------------------------------


def layout_of(op: Op, **tensors: torch.Tensor) -> Layout:
    from fusegen.plan import frameworks

    framework = frameworks.torch()
    return Runner(op).lay_out({name: framework.info(name, tensor) for name, tensor in tensors.items()}).layout


def key(x: torch.Tensor, op: Any = None) -> str:
    traced = (op or halved).trace(x=x)
    return key_of(traced, layout_of(traced, x=x))


@fg.op
def halved(x: fg.Tensor) -> fg.Tensor:
    return fg.sum(x, -1) / 2


def test_it_does_not_matter_where_an_op_is_declared() -> None:
    elsewhere = fg.op(lambda x: fg.sum(x, -1) / 2, name="halved")
    assert key(torch.ones(8, 64)) == key(torch.ones(8, 64), elsewhere)
    assert key(torch.ones(8, 64)) != key(torch.ones(8, 64), fg.op(lambda x: fg.sum(x, -1) / 3, name="halved"))


def test_sizes_of_one_bucket_have_one_key() -> None:
    assert bucket(1000) == bucket(1024) == "1024 in eights"
    assert bucket(1001) == "1024" and bucket(1032) == "2048 in eights"
    assert key(torch.ones(8, 1000)) == key(torch.ones(8, 1024))
    assert key(torch.ones(8, 1000)) != key(torch.ones(8, 1001))


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(64, 8).T, torch.ones(8, 64).half(), torch.ones(8, 65)[:, 1:], torch.ones(8, 128)[:, :64],
        torch.ones(16, 64), torch.ones(8, 1).expand(8, 64), torch.ones(513)[1:].view(8, 64),
    ],
)  # fmt: skip
def test_another_layout_has_another_key(other: torch.Tensor) -> None:
    assert key(torch.ones(8, 64)) != key(other)


def test_what_follows_another_kernel_has_another_key() -> None:
    op = halved.trace(x=torch.ones(8, 64))
    plain = layout_of(op, x=torch.ones(8, 64))
    assert key_of(op, plain) != key_of(op, replace(plain, follows=True))
    off = {**plain.buffers, "x": Buffer(fg.float32, plain.buffers["x"].strides, 4)}
    assert key_of(op, plain) != key_of(op, replace(plain, buffers=off))
