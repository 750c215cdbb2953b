"""What surrounds the code: job files that schedulers and builders take, templates, the citation, the changelog."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import tensoropt
from tensoropt.cli.batch import mpi_job, sbatch

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "examples" / "deploy"
PACKAGES = (r"apt-get install", r"--no-install-recommends", r"rm -rf /var/lib/apt/lists/\*")


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction of a Dockerfile with its arguments; continued lines are one."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", text, flags=re.M))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def _exists_beside_the_project(path: str) -> bool:
    return (ROOT / path).exists()


def test_the_dockerfile_copies_what_there_is_and_keeps_to_the_habits_of_images() -> None:
    lines = _instructions((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "CMD"}
    assert lines[0][0] == "FROM" and {name for name, _ in lines} <= known
    image = lines[0][1]
    assert re.fullmatch(r"python:\d+\.\d+-slim-\w+", image), "an image of a stated version"
    copied = [part for name, text in lines if name == "COPY" for part in text.split()[:-1]]
    assert copied and all(map(_exists_beside_the_project, copied))
    # What pip builds from needs each file that pyproject.toml names.
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "tensoropt"} <= set(copied)
    (apt,) = (text for name, text in lines if name == "RUN" and "apt-get" in text)
    assert all(re.search(wanted, apt) for wanted in PACKAGES)
    assert all("--no-cache-dir" in text for name, text in lines if name == "RUN" and "pip install" in text)
    for name, text in lines:
        if name == "RUN":
            _check_shell(text)
    (command,) = (yaml.safe_load(text) for name, text in lines if name == "CMD")
    assert isinstance(command, list) and _exists_beside_the_project(command[-1])


def _check_shell(text: str) -> None:
    checked = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr


def test_the_extras_of_images_exist() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 cannot read TOML by itself")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for file in ("Dockerfile", "apptainer.def"):
        (named,) = re.findall(r"\[([\w,]+)\]'", (DEPLOY / file).read_text(encoding="utf-8"))
        assert set(named.split(",")) <= set(known), file


def test_the_apptainer_file_has_its_sections_and_copies_what_there_is() -> None:
    text = (DEPLOY / "apptainer.def").read_text(encoding="utf-8")
    header, *sections = re.split(r"^%", text, flags=re.M)
    assert re.findall(r"^(\w+): (.+)$", header, re.M) == [
        ("Bootstrap", "docker"),
        ("From", _instructions((DEPLOY / "Dockerfile").read_text(encoding="utf-8"))[0][1]),
    ]
    bodies = {section.split("\n", 1)[0]: section.split("\n", 1)[1] for section in sections}
    assert set(bodies) == {"files", "post", "runscript"}
    pairs = [line.split() for line in bodies["files"].splitlines() if line]
    assert all(_exists_beside_the_project(source) and target.startswith("/opt/") for source, target in pairs)
    for name in ("post", "runscript"):
        _check_shell(bodies[name])
    assert all(re.search(wanted, bodies["post"]) for wanted in PACKAGES)


def test_the_batch_file_is_a_script_whose_numbers_agree() -> None:
    text = (DEPLOY / "job.sbatch").read_text(encoding="utf-8")
    _check_shell(text)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(DEPLOY / "job.sbatch")], check=True, timeout=60)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.M))
    # SLURM reads no option below the first command.
    assert max(text.rindex("#SBATCH"), 0) < text.index("\nexport")
    assert int(options["ntasks"]) == int(options["nodes"]) * int(options["ntasks-per-node"])
    assert f"TF_NUM_INTRAOP_THREADS={options['cpus-per-task']}\n" in text
    words = shlex.split(text.splitlines()[-1])
    assert words[:2] == ["exec", "srun"] and f"--cpus-per-task={options['cpus-per-task']}" in words
    assert _exists_beside_the_project(words[-1])


def _commands(text: str) -> list[str]:
    """The lines of a script that do something, and what a scheduler reads."""
    return [line for line in text.splitlines() if line and (line.startswith(("#!", "#SBATCH")) or line[0] != "#")]


def test_job_files_are_those_that_tensoropt_run_prints() -> None:
    script = "examples/keras/image_classifier.py"
    printed = sbatch("image_classifier", 8, 2, 1, ["python", script])
    assert _commands((DEPLOY / "job.sbatch").read_text(encoding="utf-8")) == _commands(printed)
    image = f"registry.example.com/tensoropt:{tensoropt.__version__}"
    ours = _yaml(DEPLOY / "mpijob.yaml")
    worker = ours["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    del worker["containers"][0]["resources"]["limits"]["memory"]  # depends on the cluster: a user's own to add
    assert ours == yaml.safe_load(mpi_job("image_classifier", image, 8, 2, 1, ["python", f"/opt/tensoropt/{script}"]))


def test_the_hosts_have_the_ranks_of_the_batch_file() -> None:
    text = (DEPLOY / "hosts.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    slots = [int(re.fullmatch(r"[\w.-]+ slots=(\d+)", line)[1]) for line in lines]  # type: ignore[index]
    assert sum(slots) == 8


def test_the_mpi_job_starts_as_many_ranks_as_its_workers_have_slots() -> None:
    job = _yaml(DEPLOY / "mpijob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    assert set(spec) == {"slotsPerWorker", "mpiImplementation", "runPolicy", "mpiReplicaSpecs"}
    launcher, worker = (spec["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
    (starts,), (serves,) = (each["template"]["spec"]["containers"] for each in (launcher, worker))
    assert starts["image"] == serves["image"] == f"registry.example.com/tensoropt:{tensoropt.__version__}"
    words = starts["args"]
    assert all(isinstance(word, str) for word in words), "arguments are texts"
    ranks = int(words[words.index("-n") + 1])
    assert ranks == spec["slotsPerWorker"] * worker["replicas"]
    assert int(serves["resources"]["limits"]["cpu"]) >= spec["slotsPerWorker"]
    passed = {words[place + 1] for place, word in enumerate(words) if word == "-x"}
    given = {variable["name"] for variable in starts["env"]}
    assert passed - {"PATH"} <= given
    mounted = {mount["name"] for mount in serves["volumeMounts"]}
    assert mounted == {volume["name"] for volume in worker["template"]["spec"]["volumes"]}
    assert words[-1].startswith("/opt/tensoropt/")  # where the image has the project
    assert _exists_beside_the_project(words[-1].removeprefix("/opt/tensoropt/"))


@pytest.mark.parametrize("name", ["bug", "performance", "question"])
def test_issue_templates_are_forms(name: str) -> None:
    form = _yaml(ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert set(form) == {"name", "description", "labels", "body"}
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names) > 0
    for field in form["body"]:
        assert field["type"] == "textarea" and field["attributes"]["label"]
        assert set(field) <= {"type", "id", "attributes", "validations"}


def test_the_citation_is_of_this_version_and_names_the_papers() -> None:
    cited = _yaml(ROOT / "CITATION.cff")
    assert cited["cff-version"] == "1.2.0" and cited["license"] == "Apache-2.0"
    assert cited["version"] == tensoropt.__version__
    titles = " ".join(reference["title"] + reference.get("notes", "") for reference in cited["references"])
    assert all(paper in titles for paper in ("TensorOpt", "FlexFlow", "PaSE"))
    for entry in (cited, *cited["references"]):
        assert entry["title"] and entry["authors"] and entry["type"]


def test_the_changelog_has_this_version_below_what_is_not_released() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.M)
    assert headings[0] == ("Unreleased", "")
    assert headings[1] == (tensoropt.__version__, str(_yaml(ROOT / "CITATION.cff")["date-released"]))
