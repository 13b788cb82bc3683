"""The pipeline files of the guide: they parse, and their commands and flags exist."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from kvaudit.cli.app import build_app

FOLDER = Path(__file__).parents[2] / "docs/guide/ci"


def commands() -> dict[str, list[list[str]]]:
    """Return every line that runs kvaudit, by file."""
    flow = yaml.safe_load((FOLDER / "github-actions.yml").read_text("utf-8"))
    steps = [step for job in flow["jobs"].values() for step in job["steps"]]
    lines = [line for step in steps for line in step.get("run", "").splitlines()]
    job = yaml.safe_load((FOLDER / "kubernetes-job.yaml").read_text("utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {
        "workflow": [shlex.split(line) for line in lines if line.startswith("kvaudit")],
        "job": [[*container["command"], *container["args"]]],
    }


@pytest.mark.parametrize(
    "words", [words for held in commands().values() for words in held], ids=" ".join
)
def test_every_command_of_the_pipeline_files_parses(words: list[str]) -> None:
    command = get_command(build_app()).commands[words[1]]
    with command.make_context("kvaudit", list(words[2:])) as context:
        assert not context.args


def test_the_workflow_has_both_gates_and_uploads_what_it_writes() -> None:
    found = commands()["workflow"]
    assert [words[1] for words in found] == ["preflight", "report", "report", "prelaunch", "report"]
    text = (FOLDER / "github-actions.yml").read_text("utf-8")
    for written in re.findall(r"--output (\S+)", text):
        assert text.count(written) >= 2 or written.endswith("junit.xml")


def test_the_job_runs_once_without_privileges_and_holds_no_secret() -> None:
    job = yaml.safe_load((FOLDER / "kubernetes-job.yaml").read_text("utf-8"))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["kind"], job["spec"]["backoffLimit"], pod["restartPolicy"]) == ("Job", 0, "Never")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert all("value" not in variable for variable in container["env"])
    named = {words for flag, words in zip(container["args"], container["args"][1:], strict=False)
             if flag == "--api-key-env"}  # fmt: skip
    assert named == {variable["name"] for variable in container["env"]}
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
