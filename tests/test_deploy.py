"""The files in deploy/: scripts of SLURM do what they say, the container and the job of Kubernetes hold together."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[1] / "deploy"
ROOT = DEPLOY.parent
SCRIPTS = sorted(DEPLOY.glob("*.sbatch"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_bash(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "#SBATCH --requeue" in script.read_text()


@pytest.fixture
def cluster(tmp_path):
    """Commands that stand for SLURM's and for the work, which waits to be stopped; they note their calls."""
    commands = {
        "srun": 'exec "$@"',
        "scontrol": f'test "$1" = show && echo first || echo "$@" >> {tmp_path}/asked',
        "torchrun": f'trap "touch {tmp_path}/saved; exit 1" TERM; printf "%s\\n" "$@" > {tmp_path}/command; '
        f"while test ! -e {tmp_path}/finish; do sleep 0.02; done",
    }
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").touch()
    for name, command in {**commands, "ray": commands["torchrun"]}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{command}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def started(cluster, script, *arguments):
    """The script with these arguments, as SLURM would start it, once its work has begun."""
    given = {
        "PATH": f"{cluster / 'bin'}{os.pathsep}{os.environ['PATH']}", "VENV": str(cluster), "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "first,second", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4",
        "SLURM_CPUS_PER_TASK": "8",
    }  # fmt: skip
    job = subprocess.Popen(["bash", DEPLOY / script, *arguments], env=os.environ | given)
    deadline = time.monotonic() + 60
    while not (cluster / "command").exists() or not (cluster / "command").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return job


def test_a_training_that_comes_to_its_end_is_not_queued_again(cluster):
    job = started(cluster, "torchrun.sbatch", "--data", "my data")
    (cluster / "finish").touch()
    assert job.wait(60) == 0
    words = (cluster / "command").read_text().splitlines()
    assert words[-4:] == ["train", "--data", "my data", "--resume"]
    assert words[words.index("--nproc-per-node") + 1] == "4"
    assert words[words.index("--rdzv-endpoint") + 1] == "first:29500"
    assert not (cluster / "asked").exists()


@pytest.mark.parametrize(("number", "asked"), [(signal.SIGUSR1, ["requeue 17"]), (signal.SIGTERM, [])])
def test_a_training_saves_before_its_end_and_is_queued_again_where_slurm_does_not_do_so(cluster, number, asked):
    job = started(cluster, "torchrun.sbatch")
    os.kill(job.pid, number)
    assert job.wait(60) == 1
    assert (cluster / "saved").exists()
    found = (cluster / "asked").read_text().splitlines() if (cluster / "asked").exists() else []
    assert found == asked


def test_an_experiment_on_ray_is_queued_again_and_goes_on_until_slurm_ends_it(cluster):
    job = started(cluster, "ray.sbatch", "cmnist", "--output", "there")
    os.kill(job.pid, signal.SIGUSR1)
    deadline = time.monotonic() + 60
    while not (cluster / "asked").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert job.poll() is None
    (cluster / "finish").touch()
    assert job.wait(60) == 0
    command = " ".join((cluster / "command").read_text().splitlines())
    assert "--address first:6379 --min-nodes 2 --num-cpus 8 --num-gpus 4 -- trm experiment cmnist" in command
    assert command.endswith("--output there --executor ray --address auto")
    assert (cluster / "asked").read_text() == "requeue 17\n"


def test_the_container_is_built_of_files_that_are_there_and_checks_its_device():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    copied = [name for line in re.findall(r"(?m)^COPY (.*) \S+$", text) for name in line.split()]
    kept = re.findall(r"(?m)^!(.*)$", (DEPLOY / "Dockerfile.dockerignore").read_text())
    assert copied
    assert sorted(copied) == sorted(kept)
    assert all((ROOT / name).exists() for name in copied)
    users = re.findall(r"(?m)^USER (\S+)$", text)
    assert users
    assert users[-1] != "root"
    check = re.search(r"(?m)^RUN (case.*)$", text).group(1)
    codes = {
        (device, index): subprocess.run(
            ["sh", "-c", check], env={"DEVICE": device, "TORCH_INDEX": index}, stderr=subprocess.DEVNULL
        ).returncode
        for device, index in (("cuda", ""), ("cpu", "an address"), ("cpu", ""), ("tpu", ""))
    }
    assert list(codes.values()) == [0, 0, 2, 2]


def an_object(required: str, more: str = "", **properties):
    """JSON schema of an object with these fields and no others."""
    names = {key: {} for key in [*required.split(), *more.split()]}
    return {
        "type": "object",
        "properties": names | properties,
        "required": required.split(),
        "additionalProperties": False,
    }


COUNT = {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
CONTAINER = an_object(
    "name image resources", "env volumeMounts",
    resources=an_object("requests limits", requests=TEXTS, limits=TEXTS),
    env={"type": "array", "items": an_object("name value", name={"type": "string"}, value={"type": "string"})},
    volumeMounts={"type": "array", "items": an_object("name mountPath")},
)  # fmt: skip
POD = an_object(
    "containers", "securityContext volumes terminationGracePeriodSeconds",
    containers={"type": "array", "minItems": 1, "items": CONTAINER},
    terminationGracePeriodSeconds=COUNT,
)  # fmt: skip
TEMPLATE = an_object("spec", "metadata", spec=POD)
GROUP = an_object(
    "groupName rayStartParams template", "replicas minReplicas maxReplicas",
    rayStartParams=TEXTS, template=TEMPLATE, replicas=COUNT, minReplicas=COUNT, maxReplicas=COUNT,
)  # fmt: skip
RAY_CLUSTER = an_object(
    "rayVersion headGroupSpec workerGroupSpecs", "authOptions",
    rayVersion={"type": "string"},
    authOptions=an_object("mode", mode={"enum": ["token", "disabled"]}),
    headGroupSpec=an_object("rayStartParams template", rayStartParams=TEXTS, template=TEMPLATE),
    workerGroupSpecs={"type": "array", "minItems": 1, "items": GROUP},
)  # fmt: skip
RAY_JOB = an_object(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=an_object("name labels", labels=TEXTS),
    spec=an_object(
        "entrypoint rayClusterSpec", "shutdownAfterJobFinishes ttlSecondsAfterFinished backoffLimit suspend",
        entrypoint={"type": "string"},
        rayClusterSpec=RAY_CLUSTER,
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
        backoffLimit=COUNT,
    ),
)  # fmt: skip
"""The part of the custom resource `rayjobs.ray.io/v1` that the job uses: an unknown field is a mistake in writing."""


def test_the_job_of_kubernetes_is_what_kuberay_and_kueue_expect():
    yaml, jsonschema = pytest.importorskip("yaml"), pytest.importorskip("jsonschema")
    job = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())
    jsonschema.validate(job, RAY_JOB)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    spec, ray = job["spec"], job["spec"]["rayClusterSpec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert tuple(map(int, ray["rayVersion"].split("."))) >= (2, 52, 0)  # from which there are tokens
    pods = [group["template"]["spec"] for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"])]
    assert len({pod["containers"][0]["image"] for pod in pods}) == 1
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        for resources in [container["resources"] for container in pod["containers"]]:
            assert resources["requests"] == resources["limits"]
    words = shlex.split(spec["entrypoint"])
    assert words[:2] == ["trm", "experiment"]
    assert {"--executor", "--output", "--precision"} <= set(words)


def test_the_check_of_the_job_would_notice_a_misspelt_field():
    yaml, jsonschema = pytest.importorskip("yaml"), pytest.importorskip("jsonschema")
    text = (DEPLOY / "rayjob.yaml").read_text().replace("shutdownAfterJobFinishes", "shutdownAfterJobFinish")
    with pytest.raises(jsonschema.ValidationError, match="shutdownAfterJobFinish"):
        jsonschema.validate(yaml.safe_load(text), RAY_JOB)
