"""What an installed fusegen does by itself: without torch, CuPy, a GPU or a compiler, and elsewhere than on Linux.

    python installed_alone.py [MODULE ...]      # with modules of Python's that are not to be found, such as fcntl

Hosted CI runs it with each Python and system; test_packaging.py with a wheel and an sdist. It needs no test runner.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

SHIPPED = (
    "py.typed", "_language.pyi", "_nn.pyi", "_ops.pyi", "declare/tensor.pyi", "nn/__init__.pyi", "ops/__init__.pyi",
    "templates/fusegen.cuh", "templates/kernel_program.cu.j2", "launch/emulator/fusegen_emulator.h",
    "launch/emulator/fusegen_emulator_runtime.cpp", "native/fusegen_native.cpp", "native/fusegen_native_table.h",
)  # fmt: skip
# Called on what is imported, not by their own program: what is hidden from this process would be there in that one.
COMMANDS = {
    ("list",): "softmax\t(",
    ("list", "--functions"): "log1p\t(x)",
    ("show", "lerp", "--shape", "64,128"): "== backward: CUDA",
    ("show", "layer_norm", "--cost"): "predicted",
    ("emit", "softmax", "--which", "backward"): "__global__",
    ("emit", "x * sigmoid(y) + b", "--dtype", "bf16"): "const bf16* __restrict__ x_ptr",
}


def hide(modules: list[str], empty: str) -> dict[str, Any]:
    """No program on the path, no ``modules``; what was taken out of ``os`` with them."""
    os.environ.update(PATH=empty, FUSEGEN_CACHE_DIR=os.path.join(empty, "cache"))
    for name in ("CXX", "PYTHONPATH"):
        os.environ.pop(name, None)
    for name in modules:
        sys.modules[name] = None  # type: ignore[assignment]
    assert not any(importlib.util.find_spec(name) for name in ("torch", "cupy", "cupy_backends")), "not alone"
    if not modules:
        return {}
    # What a system without them lacks besides.
    names = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "geteuid", "fork", "register_at_fork")
    taken = {name: vars(os)[name] for name in names if hasattr(os, name)}
    for name in taken:
        delattr(os, name)
    return taken


def library() -> None:
    """Import, declare, derive, print."""
    import numpy as np

    import fusegen as fg

    @fg.op
    def blend(x: Any, y: Any, w: Any) -> Any:
        return x + w * (y - x)

    specs = [fg.TensorSpec(fg.float32, shape) for shape in ((16, 1, 256), (16, 64, 256), (64, 1))]
    assert [output.base for output in blend.trace(*specs).outputs] == ["out"]
    assert {output.base for output in blend.backward(*specs).outputs} == {"d_x", "d_y", "d_w"}
    assert "= sum[" in blend.emit(*specs, which="backward")
    assert "double backward: CUDA" in blend.show(*specs, which="double-backward")
    ones = np.ones((2, 3), np.float32)
    assert "__global__" in fg.ops.softmax.emit(ones, -1)
    try:
        blend(ones, ones, ones)
    except fg.CompileError as error:
        assert "install one" in error.fix
    else:
        raise AssertionError("no compiler, and no error")


def commands() -> None:
    """The command line, in this process."""
    from fusegen.cli.main import main

    for arguments, expected in COMMANDS.items():
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                main(list(arguments))
            except SystemExit as leaving:
                assert not leaving.code, (arguments, leaving.code)
        assert expected in printed.getvalue(), (arguments, printed.getvalue()[:2000])


def installed(elsewhere: str) -> None:
    """The files, what is said of them, and the program."""
    import fusegen

    package = Path(fusegen.__file__).parent
    assert "site-packages" in package.parts, package
    assert [name for name in SHIPPED if not (package / name).is_file()] == []
    about = metadata.distribution("fusegen")
    assert about.version == fusegen.__version__, (about.version, fusegen.__version__)
    assert about.metadata["License-Expression"] == "Apache-2.0"
    assert any(path.name == "LICENSE" for path in about.files or ())
    program = Path(sysconfig.get_path("scripts")) / ("fusegen.exe" if os.name == "nt" else "fusegen")
    for command in ([str(program)], [sys.executable, "-m", "fusegen"]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, cwd=elsewhere, check=True)
        assert done.stdout.strip() == f"fusegen {about.version}", done


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        taken = hide(sys.argv[1:], folder)
        library()
        commands()
        vars(os).update(taken)  # other programs are run, and the folder is removed, with what there is
        installed(folder)
    print("ok")
