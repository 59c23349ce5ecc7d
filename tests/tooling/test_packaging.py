"""What is released: a wheel and an sdist have all that fusegen needs, and one line of the source is their version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import fusegen as fg

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fusegen", "nn", "ops", "templates")
WORKFLOWS = ROOT / ".github" / "workflows"
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
SDIST = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
# What Python has on Linux alone, or not on Windows.
ELSEWHERE = ("fcntl", "grp", "pwd", "resource", "termios")


def wheel(tree: Path, folder: Path) -> Path:
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, tree], check=True)
    (found,) = folder.glob("fusegen-*.whl")
    return found


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain copy of the source: no git, no tags, nothing that an earlier build left."""
    found = tmp_path_factory.mktemp("tree")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, found / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, found)
    return found


@pytest.fixture(scope="module")
def wheels(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One made of the tree, and one of nothing but the sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run([sys.executable, "-c", SDIST, folder], cwd=tree, check=True, capture_output=True)
    (sdist,) = folder.glob("fusegen-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # which 3.11 has from its fourth release on
        archive.extractall(folder)
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    return {
        "wheel": wheel(tree, tmp_path_factory.mktemp("of_tree")),
        "sdist": wheel(unpacked, tmp_path_factory.mktemp("of_sdist")),
    }


def needed(name: str, found: dict[str, metadata.Distribution]) -> dict[str, metadata.Distribution]:
    """What a distribution requires, and what that does; no extras."""
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in found:
            found[requirement.name] = metadata.distribution(requirement.name)
            needed(requirement.name, found)
    return found


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what fusegen requires, as it is installed here, and with nothing else."""
    folder = tmp_path_factory.mktemp("needed")
    for distribution in needed("fusegen", {}).values():
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder


@pytest.fixture(params=["wheel", "sdist"])
def python(request: pytest.FixtureRequest, wheels: dict[str, Path], dependencies: Path, tmp_path: Path) -> Path:
    """A Python with fusegen and what it requires."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    found = tmp_path / "env" / "bin" / "python"
    install = ["--python", str(found), "install", "--no-deps", "--no-index", str(wheels[request.param])]
    subprocess.run([*PIP, *install], check=True)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([found, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    (Path(site) / "needed.pth").write_text(str(dependencies), encoding="utf-8")
    return found


def alone(python: Path, *hidden: str, folder: Path) -> None:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # which may name the clone
    script = Path(__file__).with_name("installed_alone.py")
    done = subprocess.run([python, script, *hidden], capture_output=True, text=True, cwd=folder, env=own, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_what_is_installed_works_alone(python: Path, tmp_path: Path) -> None:
    alone(python, folder=tmp_path)


@pytest.mark.parametrize("python", ["wheel"], indirect=True)
def test_declarations_are_shown_on_other_systems(python: Path, tmp_path: Path) -> None:
    alone(python, *ELSEWHERE, folder=tmp_path)


def names(path: Path) -> Iterator[str]:
    yield from sorted(zipfile.ZipFile(path).namelist())


def test_an_sdist_has_what_the_tree_has(wheels: dict[str, Path], tree: Path) -> None:
    assert list(names(wheels["sdist"])) == list(names(wheels["wheel"]))
    shipped = {name for name in names(wheels["wheel"]) if name.startswith("fusegen/")}
    # Every file of the source, but the stubs that stand beside folders of the same name in a clone only.
    expected = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file() and path.parent != tree}
    expected -= {name for name in expected if name.partition("/")[0] in ("build", "fusegen.egg-info")}
    expected = {name if name.startswith("fusegen/") else f"fusegen/{name}" for name in expected}
    assert expected - shipped <= {"fusegen/nn.pyi", "fusegen/ops.pyi"}
    assert shipped <= expected


# -- licences --------------------------------------------------------------------------------------------------------

PERMISSIVE = re.compile(r"\b(?:MIT|BSD|0BSD|ISC|PSF|PSF-2\.0|Apache|Python Software Foundation)\b")


def licence(name: str) -> str:
    about = metadata.metadata(name)
    classified = [text for text in about.get_all("Classifier") or [] if text.startswith("License ::")]
    return " ".join([about.get("License-Expression") or "", *classified, (about.get("License") or "")[:80]])


def test_what_fusegen_requires_is_under_permissive_licences() -> None:
    found = {name: licence(name) for name in needed("fusegen", {})}
    assert {"numpy", "sympy", "mpmath"} <= set(found)
    assert {name: text for name, text in found.items() if not PERMISSIVE.search(text) or "GPL" in text} == {}


def test_the_page_of_licences_names_what_is_required_and_all_extras(wheels: dict[str, Path]) -> None:
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([\w, -]+?) \|", page, re.MULTILINE)
    named = {name for row in listed for name in row.split(", ")} - {"package"}
    # Of the wheel: an editable install may be older than pyproject.toml.
    about = zipfile.Path(wheels["wheel"], f"fusegen-{fg.__version__}.dist-info/METADATA").read_text(encoding="utf-8")
    required = [Requirement(text) for text in Parser().parsestr(about).get_all("Requires-Dist") or []]
    dev = [one for one in required if one.marker is not None and 'extra == "dev"' in str(one.marker)]
    assert named == {one.name for one in required if one not in dev}


# -- versions --------------------------------------------------------------------------------------------------------


def test_packages_have_the_version_of_the_source(wheels: dict[str, Path]) -> None:
    assert all(path.name.startswith(f"fusegen-{fg.__version__}-") for path in wheels.values())


def test_another_version_is_one_line(tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tree, tmp_path / "tree", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    front = tmp_path / "tree" / "fusegen" / "__init__.py"
    front.write_text(front.read_text(encoding="utf-8").replace(f'"{fg.__version__}"', '"7.8.9rc1"'), encoding="utf-8")
    ask = "from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel('.'))"
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path / "tree", capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "fusegen-7.8.9rc1.dist-info"


def step_of_release() -> str:
    release = yaml.safe_load((WORKFLOWS / "release.yml").read_text(encoding="utf-8"))
    (found,) = [step["run"] for step in release["jobs"]["version"]["steps"] if "run" in step]
    return str(found)


@pytest.mark.parametrize("tag", [f"v{fg.__version__}", "v99.0.0", fg.__version__, "v"])
def test_a_release_is_refused_whose_tag_is_another(tag: str) -> None:
    own = {**os.environ, "GITHUB_REF_NAME": tag}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", step_of_release()], cwd=ROOT, env=own, check=False)
    assert (done.returncode == 0) is (tag == f"v{fg.__version__}")


def test_hosted_ci_installs_for_every_python_that_is_named() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    jobs = yaml.safe_load((WORKFLOWS / "packages.yml").read_text(encoding="utf-8"))["jobs"]
    matrix = jobs["install"]["strategy"]["matrix"]
    assert matrix["python"] == named and f'requires-python = ">={named[0]}"' in project
    assert matrix["system"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert jobs["compile"]["strategy"]["matrix"]["system"] == matrix["system"]
    others = {row["system"].partition("-")[0] for row in matrix["include"]}
    assert others == {"macos", "windows"}
    runs = "\n".join(step.get("run", "") for step in jobs["install"]["steps"])
    assert runs.count("tests/tooling/installed_alone.py") == 2, "the wheel, and the sdist"
