# SPDX-License-Identifier: Apache-2.0
"""Runs that die and go on from their checkpoints, as their users see them."""

import json
import os
import random
import shutil
import signal
import subprocess

import numpy as np
import pytest
from cli_harness import (
    BINARY,
    CLEAN_ENVIRONMENT,
    events_of,
    marks_of,
    metrics_of,
    processes_with,
    run,
    run_folders,
    start,
    summary_of,
    wait_until,
    write_spec,
)
from holds import kill, stop

STEPS = 40


def spec(**changes):
    """Losses with memory, stale values, a line and a checkpoint after each step."""
    return {
        "network": {
            "path": "direct",
            "payload_bytes": 64,
            "fill": "stale",
            "loss": {"model": "gilbert_elliott", "loss_rate": "5%", "mean_burst_packets": 3},
        },
        "training": {"steps": STEPS, "batch_sequences": 1, "learning_rate": 0.01, "warmup_steps": 2},
        "validation": {"every_steps": 20, "tokens": 64},
        "record": {"every_steps": 1, "sample_every_steps": 0, "weights": "final"},
        "checkpoint": {"every_steps": 1, "keep": 2},
        **changes,
    }


def records_of(folder):
    """All that a run with the same losses has equal, whatever became of its checkpoints."""
    measured = ("seconds", "ranks", "failed_checkpoints")
    lines = [{key: value for key, value in line.items() if key not in measured} for line in metrics_of(folder)]
    summary = summary_of(folder)
    equal = ("steps", "tokens", "train", "validation", "status")
    statistics = json.loads((folder / "loss_statistics.json").read_text())
    return lines, {name: summary[name] for name in equal}, statistics, (folder / "weights.safetensors").read_bytes()


def require(backend, folder):
    if backend == "gloo" and "gloo (not built)" in run("info", cwd=folder).out:
        pytest.skip("the gloo backend was not built")


def checkpoints_of(folder):
    return sorted(p.name for p in (folder / "checkpoints").glob("step-*") if not p.name.endswith(".part"))


def kill_all(process, folder):
    """SIGKILL for the command and all that it has started, at once, also while they wait at a point."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not processes_with(str(folder)))


def start_apart(folder, *words, environment=None):
    """In a process group and with arguments of its own."""
    return subprocess.Popen(
        [BINARY, *words, "--out", str(folder / "results")],
        cwd=folder,
        env=CLEAN_ENVIRONMENT | (environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("command", "backend", "kills"), [("run", "local", 120), ("run", "gloo", 40), ("sweep", "local", 40)]
)
def test_kills_at_random_moments_lose_and_repeat_nothing(tmp_path, holds, command, backend, kills):
    require(backend, tmp_path)
    seeds = {"repeat": {"seeds": 2}} if command == "sweep" else {}
    write_spec(tmp_path, **spec(backend={"name": backend, "timeout_seconds": 20}), **seeds)
    run(command, "spec.json", "--out", "whole", "--set", "/checkpoint/every_steps=0", cwd=tmp_path)

    def records(out="results"):
        return {summary_of(folder)["seed"]: records_of(folder) for folder in run_folders(tmp_path, out=out)}

    expected = records("whole")
    moments = random.Random(20)
    # Nothing below depends on the moments: the first kill comes when each run has a checkpoint to go on from.
    holds.at("step-10")
    process = start_apart(tmp_path, command, "spec.json", *(["--jobs", "2"] if seeds else []),
                          environment=holds.environment)  # fmt: skip
    holds.reached("step-10", 4 if seeds else 2)
    assert len(list(tmp_path.glob("results/tiny/*/checkpoints/LATEST"))) == len(expected)
    kill_all(process, tmp_path)
    killed, resumed = 1, 0
    while killed < kills:
        process = start_apart(tmp_path, command, "spec.json", "--if-busy", "wait")
        try:
            out, err = process.communicate(timeout=moments.uniform(0, 0.5))
        except subprocess.TimeoutExpired:
            kill_all(process, tmp_path)
            killed += 1
            continue
        assert process.returncode == 0, out + err
        assert records() == expected
        assert "damaged" not in err and "not intact" not in err, err
        for folder in run_folders(tmp_path):
            if steps := summary_of(folder).get("resumed_at"):
                resumed += 1
                assert steps == sorted(steps)
            run("checkpoint", "verify", folder, cwd=tmp_path)
        before = {folder: os.stat(folder / "summary.json").st_mtime_ns for folder in run_folders(tmp_path)}
        run(command, "spec.json", cwd=tmp_path)
        assert before == {folder: os.stat(folder / "summary.json").st_mtime_ns for folder in run_folders(tmp_path)}
        shutil.rmtree(tmp_path / "results")
    process = start_apart(tmp_path, command, "spec.json", "--if-busy", "wait")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert records() == expected
    assert resumed + sum(len(summary_of(folder).get("resumed_at", [])) for folder in run_folders(tmp_path)) > 0


def test_a_run_whose_rank_dies_is_started_again(tmp_path, holds):
    require("gloo", tmp_path)
    gloo = {"backend": {"name": "gloo", "timeout_seconds": 60}}
    restart = {"restart": {"attempts": 1, "backoff_seconds": 0}}
    write_spec(tmp_path, **{**spec(), **gloo, **restart})
    holds.at("step-6")
    process = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    kill(dict(holds.reached("step-6", 2))[1])
    holds.release("step-6")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    (folder,) = run_folders(tmp_path)
    summary = summary_of(folder)
    # The checkpoint of step 5 had begun, so that of step 4 was complete.
    assert summary["status"] == "completed" and summary["resumed_at"] in ([4], [5])
    went_on = f"the run went on from the checkpoint of step {summary['resumed_at'][0]}"
    assert marks_of(summary) == {"resumed": went_on} and "completed (resumed): validation loss" in out
    assert [line["step"] for line in metrics_of(folder)] == list(range(STEPS + 1))
    run("run", "spec.json", "--out", "whole", cwd=tmp_path)
    (whole,) = run_folders(tmp_path, out="whole")
    assert records_of(folder) == records_of(whole)
    assert summary_of(whole)["warnings"] == []
    # As often as the spec says, without a checkpoint in between.
    shutil.rmtree(tmp_path / "results")
    write_spec(tmp_path, **{**spec(checkpoint={"every_steps": 0}), **gloo, **restart})
    for point in ("step-6", "step-9"):
        holds.at(point)
    process = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    before = dict(holds.reached("step-6", 2))
    kill(before[1])
    holds.release("step-6")
    after = dict(holds.reached("step-9", 2))
    assert not {*before.values()} & {*after.values()}
    kill(after[0])
    holds.release("step-9")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 1, out + err
    assert summary_of(folder)["status"] == "failed" and "rank" in err


@pytest.mark.parametrize(("on_error", "backend"), [("continue", "local"), ("continue", "gloo"), ("stop", "local")])
def test_a_checkpoint_that_cannot_be_written_is_said(tmp_path, on_error, backend):
    require(backend, tmp_path)
    by = {"backend": {"name": backend, "timeout_seconds": 20}}
    write_spec(tmp_path, **spec(checkpoint={"every_steps": 10, "on_error": on_error}, **by))
    # A file is where the folder of checkpoints is to be.
    run("run", "spec.json", "--out", "probe", cwd=tmp_path)
    (probe,) = run_folders(tmp_path, out="probe")
    folder = tmp_path / "results" / "tiny" / probe.name
    folder.mkdir(parents=True)
    (folder / "checkpoints").write_text("in the way")
    ran = run("run", "spec.json", cwd=tmp_path, expect=0 if on_error == "continue" else 2)
    assert "checkpoint" in ran.err and "step 10" in ran.err and str(folder.relative_to(tmp_path)) in ran.err
    summary = summary_of(folder)
    if on_error == "continue":
        assert summary["checkpoints"]["completed"] == 0 and summary["checkpoints"]["failed"] == STEPS // 10
        assert records_of(folder) == records_of(probe)
    else:
        assert summary["status"] == "failed" and "checkpoint" in summary["error"]


def test_a_disk_that_is_full_leaves_training_and_the_older_checkpoint(tmp_path):
    write_spec(tmp_path, **spec(record={"every_steps": 1, "sample_every_steps": 0, "weights": "none"}))
    run("run", "spec.json", "--set", "/training/steps=39", "--out", "probe", cwd=tmp_path)
    (probe,) = run_folders(tmp_path, out="probe")
    largest = max(file.stat().st_size for file in probe.rglob("*.safetensors"))
    limited = f"ulimit -f {largest // 1024 // 2}; exec {BINARY} run spec.json"
    ran = subprocess.run(["bash", "-c", limited], cwd=tmp_path, env=CLEAN_ENVIRONMENT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (folder,) = run_folders(tmp_path)
    assert summary_of(folder)["checkpoints"]["failed"] == STEPS and "File too large" in ran.stderr
    assert [line["step"] for line in metrics_of(folder)] == list(range(STEPS + 1))
    assert not checkpoints_of(folder)
    (event,) = [event for event in events_of(folder) if event["kind"] == "checkpoint_failed"]
    assert (event["kind"], event["quantity"], event["value"]) == ("checkpoint_failed", "failed_checkpoints", 1)
    assert "checkpoint failed: failed_checkpoints is 1" in event["message"]


READ_ONLY = ["unshare", "--mount", "bash", "-c"]


def test_a_read_only_disk_leaves_training_and_the_older_checkpoint(tmp_path, holds):
    if subprocess.run([*READ_ONLY, "mount --bind / /mnt"], capture_output=True).returncode != 0:
        pytest.skip("this user may not mount")
    write_spec(tmp_path, **spec(checkpoint={"every_steps": 10, "async": False}))
    holds.at("step-15")
    process = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    holds.reached("step-15", 2)
    (folder,) = run_folders(tmp_path)
    assert (folder / "checkpoints/LATEST").exists()
    kill(process.pid)
    process.communicate()
    holds.release("step-15")
    before = checkpoints_of(folder)
    assert before and not (folder / "summary.json").exists()
    place = f"'{folder}/checkpoints'"
    mounted = f"mount --bind {place} {place} && mount -o remount,ro,bind {place} && exec {BINARY} run spec.json"
    ran = subprocess.run([*READ_ONLY, mounted], cwd=tmp_path, env=CLEAN_ENVIRONMENT, capture_output=True, text=True)
    assert ran.returncode == 0 and "Read-only file system" in ran.stderr, ran.stdout + ran.stderr
    summary = summary_of(folder)
    assert summary["status"] == "completed" and summary["checkpoints"]["completed"] == 0
    assert summary["resumed_at"] == [max(int(name.split("-")[1]) for name in before)]
    assert [line["step"] for line in metrics_of(folder)] == list(range(STEPS + 1))
    assert checkpoints_of(folder) == before
    run("checkpoint", "verify", folder, cwd=tmp_path)
    assert [event["kind"] for event in events_of(folder) if event["kind"] == "checkpoint_failed"]


def safetensors_of(path):
    """Name -> (element type, shape, bytes)."""
    file = path.read_bytes()
    begin = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:begin])
    header.pop("__metadata__", None)
    return {
        name: (t["dtype"], t["shape"], file[begin + t["data_offsets"][0] : begin + t["data_offsets"][1]])
        for name, t in header.items()
    }


def test_checkpoints_are_listed_and_exported_in_half_precision(tmp_path):
    write_spec(tmp_path, **spec(checkpoint={"every_steps": 20, "keep": 5}))
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    heading, *rows = run("checkpoint", "show", folder, cwd=tmp_path).out.splitlines()
    assert heading.split()[:3] == ["step", "run", "layout"]
    assert [row.split()[:4] for row in rows] == [[step, folder.name, "tensor", "2"] for step in ("20", "40")]
    read = {}
    for kind in ("F32", "F16", "BF16"):
        run("checkpoint", "export", folder, "--dtype", kind, "--out", f"{kind}.safetensors", cwd=tmp_path)
        read[kind] = safetensors_of(tmp_path / f"{kind}.safetensors")
    final = safetensors_of(folder / "weights.safetensors")
    assert read["F32"] == final and "h.0.attn.c_attn.weight" in final and "wte.weight" in final
    for name, (_, shape, values) in final.items():
        expected = np.frombuffer(values, np.float32)
        half = np.frombuffer(read["F16"][name][2], np.float16)
        assert read["F16"][name][:2] == ("F16", shape) and np.array_equal(half, expected.astype(np.float16))
        bits = np.frombuffer(values, np.uint32).astype(np.uint64)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        assert read["BF16"][name][:2] == ("BF16", shape)
        assert np.array_equal(np.frombuffer(read["BF16"][name][2], np.uint16), nearest)
    damaged = next((folder / "checkpoints/step-40").glob("rank-*"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    told = run("checkpoint", "verify", folder, cwd=tmp_path, expect=1)
    assert "step-20: intact" in told.out and "step-40: damaged" in told.out and damaged.name in told.err


def test_exports_say_whose_copies_they_are(tmp_path):
    changes = spec(parallel={"pipeline": 2}, model={"layers": 2, "width": 32, "heads": 2, "context": 32})
    changes.update(checkpoint={"every_steps": 20, "keep": 5}, record={"sample_every_steps": 20})
    told = {}
    for name, loss in (("clean", {"model": "none"}), ("lossy", {"model": "bernoulli", "loss_rate": 0.5})):
        changes["network"] = {"payload_bytes": 64, "classes": {"embedding_gradient": {"loss": loss}}}
        write_spec(tmp_path, name=name, **changes)
        run("run", "spec.json", cwd=tmp_path)
        (folder,) = run_folders(tmp_path, name)
        told[name] = run("export", folder, "--out", "final.safetensors", cwd=tmp_path).out
        kept = run("checkpoint", "export", folder, "--out", "kept.safetensors", cwd=tmp_path).out
        assert safetensors_of(tmp_path / "final.safetensors") == safetensors_of(tmp_path / "kept.safetensors")
        for said in (told[name], kept):
            assert ("copies of ranks differ by up to " in said) == (name == "lossy")
    assert (
        "; those of the lowest rank, and the token embedding of the stage with the LM head: copies of " in told["lossy"]
    )
    assert told["lossy"].endswith(f" after step {STEPS}\n")


def epochs_of(path, member):
    return json.loads(path.read_text()).get(member, [])


def test_losses_are_kept_for_each_epoch(tmp_path):
    write_spec(tmp_path, **spec(checkpoint={"every_steps": 5, "keep": 100}))
    run("run", "spec.json", cwd=tmp_path)
    (first,) = run_folders(tmp_path)
    run("resume", first, "--at", "20", "--set", "/parallel/tensor=4", cwd=tmp_path)
    (second,) = set(run_folders(tmp_path)) - {first}
    run("resume", second, "--at", "30", "--set", "/parallel/tensor=1", cwd=tmp_path)
    (third,) = set(run_folders(tmp_path)) - {first, second}

    def earlier_epochs(folder):
        return epochs_of(folder / "loss_statistics.json", "earlier_epochs")

    assert not earlier_epochs(first)
    assert earlier_epochs(second) == earlier_epochs(third)[:1]
    places = [(e["epoch"], e["run_id"], e["from_step"], e["to_step"], e["layout"]) for e in earlier_epochs(third)]
    assert places == [(0, first.name, 0, 20, "tensor 2"), (1, second.name, 20, 30, "tensor 4")]
    # As of a run that ends there.
    run("run", "spec.json", "--set", "/training/steps=20", "--out", "short", cwd=tmp_path)
    (short,) = run_folders(tmp_path, out="short")
    assert earlier_epochs(third)[0]["classes"] == json.loads((short / "loss_statistics.json").read_text())["classes"]
    assert set(earlier_epochs(third)[1]["classes"]) == {"tp_forward", "tp_backward"}


LOSSY = {"loss": {"model": "bernoulli", "loss_rate": "10%"}}


SEQUENCE = ("dp_gradient", "sequence_forward", "sequence_backward")
PIPELINE = ("pp_activation", "pp_gradient", "embedding_gradient")
TENSOR = ("tp_forward", "tp_backward", "tp_recomputation")
SENT = {"memory": {"recompute": "full", "recompute_traffic": "sent"}}
TIMED_OUTER = {
    "time": {"compute_milliseconds": 1, "link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 10}},
    "outer": {"every_steps": 5},
}


@pytest.mark.parametrize(
    "parallel, more, classes, changes, left_out",
    [
        # Gradients are summed over sequence ranks, too.
        ({"sequence": 2}, {}, SEQUENCE, ["/training/learning_rate=0.0005"], ()),
        ({"sequence": 2, "zero": 1}, {}, (*SEQUENCE, "parameter_gather"), ["/training/learning_rate=0.0005"], ()),
        ({"sequence": 2}, {}, SEQUENCE, ["/parallel/sequence=1", "/parallel/sequence_kind=null"], SEQUENCE),
        ({"data": 2, "zero": 1}, {}, ("dp_gradient", "parameter_gather"), ["/parallel/zero=0"], ("parameter_gather",)),
        (
            {"pipeline": 2},
            {},
            PIPELINE,
            ["/parallel/pipeline=1", *(f"/parallel/{of}=null" for of in ("schedule", "chunks", "layers_per_stage"))],
            PIPELINE,
        ),
        ({"tensor": 2}, SENT, TENSOR, ["/parallel/tensor=1", "/memory/recompute_traffic=null"], TENSOR),
        ({"tensor": 2}, SENT, TENSOR, ["/memory/recompute_traffic=null"], ("tp_recomputation",)),
        # The network of outer steps has to have its class.
        (
            {"tensor": 2, "data": 2},
            TIMED_OUTER,
            ("tp_forward", "tp_backward", "outer"),
            ["/parallel/tensor=1"],
            ("tp_forward", "tp_backward"),
        ),
    ],
)
def test_a_changed_layout_keeps_the_losses_of_the_classes_that_it_sends(
    tmp_path, parallel, more, classes, changes, left_out
):
    networks = dict.fromkeys(classes, LOSSY)
    if "outer" in classes:
        networks["outer"] = LOSSY | {"path": "contribution"}
    write_spec(
        tmp_path,
        **spec(
            checkpoint={"every_steps": 5, "keep": 100},
            parallel=parallel,
            model={"layers": 2},
            network={"classes": networks},
            **more,
        ),
    )
    run("run", "spec.json", cwd=tmp_path)
    (first,) = run_folders(tmp_path)
    sets = [word for change in changes for word in ("--set", change)]
    said = run("resume", first, "--at", "20", *sets, cwd=tmp_path).err
    (second,) = set(run_folders(tmp_path)) - {first}
    network = json.loads((second / "spec.json").read_text()).get("network", {})
    kept = {name for name, of_class in network.get("classes", {}).items() if of_class}
    assert kept >= set(classes) - set(left_out)
    assert not kept & set(left_out)
    statistics = json.loads((second / "loss_statistics.json").read_text())
    assert set(statistics["classes"]) == kept
    for name in classes:
        assert (f"sends no {name}: its network is left out" in said) == (name in left_out)


def test_a_change_of_the_network_itself_is_taken_as_it_is(tmp_path):
    write_spec(
        tmp_path,
        **spec(
            checkpoint={"every_steps": 5, "keep": 100},
            parallel={"tensor": 2},
            network={"classes": {"tp_forward": LOSSY}},
        ),
    )
    run("run", "spec.json", cwd=tmp_path)
    (first,) = run_folders(tmp_path)
    alone = ("resume", first, "--at", "20", "--set", "/parallel/tensor=1", "--set")
    assert "/network: got 5, want an object" in run(*alone, "/network=5", cwd=tmp_path, expect=2).err
    assert "is left out" not in run(*alone, "/network=null", cwd=tmp_path).err


@pytest.mark.parametrize("zero", [0, 2])
def test_an_elastic_run_goes_on_with_fewer_replicas_and_takes_them_back(tmp_path, holds, zero):
    require("gloo", tmp_path)
    changes = {
        "backend": {"name": "gloo", "timeout_seconds": 60},
        "parallel": {"tensor": 1, "data": 3, "zero": zero, "bucket_bytes": 8192},
        "training": {"steps": 120, "batch_sequences": 1, "learning_rate": 0.01, "warmup_steps": 2},
        "network": {
            "path": "direct",
            "payload_bytes": 64,
            "classes": {"dp_gradient": {"loss": {"model": "bernoulli", "loss_rate": "5%"}}},
        },
        "checkpoint": {"every_steps": 20, "keep": 100, "async": False},
        "restart": {"attempts": 2, "backoff_seconds": 0},
    }
    changes["time"] = {
        "link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 1},
        "compute_milliseconds": 2,
    }
    write_spec(tmp_path, **spec(**changes, elastic={"min_data": 2}))
    holds.at("step-25")
    process = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    ranks = dict(holds.reached("step-25", 3))
    (folder,) = run_folders(tmp_path)
    assert (folder / "checkpoints/LATEST").exists()
    kill(ranks[2])
    holds.release("step-25")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0 and "with data 2" in err, out + err
    lines = metrics_of(folder)
    assert [line["step"] for line in lines] == list(range(121))
    times = [line["virtual_seconds"] for line in lines]
    assert times == sorted(times) and summary_of(folder)["time"]["virtual_seconds"] == times[-1] > 0.24
    assert err.count("step 3/120:") == 1
    without = [line["step"] for line in lines if "replicas" in line]
    first = without[0] - 1
    # Whole state is left by the ranks that live; shards of it are in checkpoints alone.
    back = first - first % 20 + 20
    assert first == (24 if zero == 0 else 20)
    assert without == list(range(first + 1, back + 1))
    assert summary_of(folder)["resumed_at"] == [first, back]
    marks = marks_of(summary_of(folder))
    assert marks["fewer_replicas"] == f"{len(without)} of 120 steps had fewer replicas than the 3 of /parallel/data"
    assert "completed (fewer replicas, resumed): validation loss" in out
    assert summary_of(folder)["tokens"] == 32 * (3 * (120 - len(without)) + 2 * len(without))
    epochs = epochs_of(folder / "loss_statistics.json", "earlier_epochs")
    places = [(e["epoch"], e["run_id"], e["from_step"], e["to_step"], e["layout"]) for e in epochs]
    assert places == [(0, folder.name, 0, first, "data 3"), (1, folder.name, first, back, "data 2")]
    counted = epochs[0].get("counted_to_step", first)
    assert counted == first - first % 20

    # The same layouts one after the other, by hand.
    write_spec(tmp_path, **spec(**changes))
    by_hand = ("--out", "by-hand", "--set", "/backend/name=local", "--set", "/checkpoint/every_steps=4")
    run("run", "spec.json", *by_hand, "--set", "/checkpoint/keep=1000", cwd=tmp_path)
    (begin,) = run_folders(tmp_path, out="by-hand")
    of_step = epochs_of(begin / f"checkpoints/step-{counted}/manifest.json", "epochs")
    for step, data in ((first, 2), (back, 3)):
        before = set(run_folders(tmp_path, out="by-hand"))
        run("resume", begin, "--at", step, "--set", f"/parallel/data={data}", cwd=tmp_path)
        (begin,) = set(run_folders(tmp_path, out="by-hand")) - before
    tensors = [tensors_of(f / "weights.safetensors") for f in (begin, folder)]
    assert tensors[0] == tensors[1]
    last = json.loads((begin / "loss_statistics.json").read_text())
    assert last["classes"] == json.loads((folder / "loss_statistics.json").read_text())["classes"]
    assert last["earlier_epochs"][1]["classes"] == epochs[1]["classes"]
    assert of_step[0]["classes"] == epochs[0]["classes"]


def tensors_of(path):
    """The bytes behind the header, which names the run."""
    file = path.read_bytes()
    return file[8 + int.from_bytes(file[:8], "little") :]


def leaving(backend, **changes):
    """Replica 2 takes no part in steps 11 to 22, and replica 1 none in those after step 30."""
    absences = [{"data_rank": 2, "from": 15, "until": 23}, {"data_rank": 1, "from": 35}]
    return spec(
        **{
            "backend": {"name": backend, "timeout_seconds": 20},
            "parallel": {"tensor": 1, "data": 3, "zero": 2, "bucket_bytes": 8192},
            "network": {"path": "direct", "payload_bytes": 64, "loss": {"model": "bernoulli", "loss_rate": "5%"}},
            "time": {
                "link": {"latency_microseconds": 5, "bandwidth_gbit_per_second": 1},
                "compute_milliseconds": 2,
            },
            "checkpoint": {"every_steps": 10, "keep": 1},
            "failures": {"replicas": absences},
            **changes,
        }
    )


def records_of_layouts(folder):
    """All that runs in the same sequence of layouts have equal, whether they are one run or several."""
    of_machine = ("seconds", "ranks", "replicas")
    lines = [{k: v for k, v in line.items() if k not in of_machine} for line in metrics_of(folder)]
    statistics = json.loads((folder / "loss_statistics.json").read_text())
    for epoch in statistics["earlier_epochs"]:
        epoch.pop("run_id")
    return lines, statistics, tensors_of(folder / "weights.safetensors")


@pytest.mark.parametrize("backend", ["local", "gloo"])
def test_replicas_that_leave_with_their_shards(tmp_path, backend):
    require(backend, tmp_path)
    write_spec(tmp_path, **leaving(backend))
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    lines, statistics, weights = records_of_layouts(folder)
    assert [line["step"] for line in lines] == list(range(41))
    without = [line["step"] for line in metrics_of(folder) if line.get("replicas") == 2]
    assert without == [*range(11, 23), *range(31, 41)]
    summary = summary_of(folder)
    assert summary["resumed_at"] == [10, 22, 30]
    marks = marks_of(summary)
    assert marks["fewer_replicas"] == "22 of 40 steps had fewer replicas than the 3 of /parallel/data"
    assert summary["replica_absences"] == [
        {"data_rank": 2, "from": 15, "steps": 12, "reload_step": 10},
        {"data_rank": 1, "from": 35, "steps": 10, "reload_step": 30},
    ]
    # The change before step 23 has a checkpoint of its own.
    assert summary["checkpoints"]["completed"] == 5 and checkpoints_of(folder) == ["step-40"]
    assert summary["tokens"] == 32 * (3 * 18 + 2 * 22)
    times = [line["virtual_seconds"] for line in lines]
    assert times == sorted(times) and summary["time"]["virtual_seconds"] == times[-1]
    layouts = [(e["from_step"], e["to_step"], e["layout"]) for e in statistics["earlier_epochs"]]
    assert layouts == [(0, 10, "data 3"), (10, 22, "data 2"), (22, 30, "data 3")]

    # The same layouts one after the other, by hand.
    by_hand = leaving("local", checkpoint={"every_steps": 2, "keep": 100})
    del by_hand["failures"]
    write_spec(tmp_path, **by_hand)
    run("run", "spec.json", "--out", "by-hand", cwd=tmp_path)
    (begin,) = run_folders(tmp_path, out="by-hand")
    for step, data in ((10, 2), (22, 3), (30, 2)):
        before = set(run_folders(tmp_path, out="by-hand"))
        run("resume", begin, "--at", step, "--set", f"/parallel/data={data}", cwd=tmp_path)
        (begin,) = set(run_folders(tmp_path, out="by-hand")) - before
    assert records_of_layouts(begin)[1:] == (statistics, weights)
    assert records_of_layouts(begin)[0][1:] == lines[31:]


@pytest.mark.parametrize("backend", ["local", "gloo"])
def test_a_run_whose_replicas_leave_is_killed_at_random_moments(tmp_path, backend):
    require(backend, tmp_path)
    write_spec(tmp_path, **leaving(backend))
    run("run", "spec.json", "--out", "whole", cwd=tmp_path)
    (whole,) = run_folders(tmp_path, out="whole")
    expected = records_of(whole), summary_of(whole)["replica_absences"]
    moments = random.Random(6)
    killed = 0
    while killed < 12:
        process = start_apart(tmp_path, "run", "spec.json", "--if-busy", "wait")
        try:
            out, err = process.communicate(timeout=moments.uniform(0, 1.5))
        except subprocess.TimeoutExpired:
            (kill_all if killed % 2 else end_all)(process, tmp_path)
            killed += 1
            continue
        assert process.returncode == 0, out + err
        (folder,) = run_folders(tmp_path)
        assert (records_of(folder), summary_of(folder)["replica_absences"]) == expected
        shutil.rmtree(tmp_path / "results")
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    assert (records_of(folder), summary_of(folder)["replica_absences"]) == expected
    # From a chosen step, and from the beginning.
    run("run", "spec.json", "--fresh", "--again", cwd=tmp_path)
    assert (records_of(folder), summary_of(folder)["replica_absences"]) == expected


def end_all(process, folder):
    """With a checkpoint."""
    process.terminate()
    process.communicate()
    wait_until(lambda: not processes_with(str(folder)))


@pytest.mark.parametrize("zero", [0, 1])
def test_an_elastic_run_before_its_first_checkpoint(tmp_path, holds, zero):
    require("gloo", tmp_path)
    changes = {
        "backend": {"name": "gloo", "timeout_seconds": 60},
        "parallel": {"tensor": 1, "data": 2, "zero": zero},
        "checkpoint": {"every_steps": 30},
        "restart": {"attempts": 1, "backoff_seconds": 0},
    }
    write_spec(tmp_path, **spec(**changes, elastic={}))
    holds.at("step-3")
    process = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    kill(dict(holds.reached("step-3", 2))[1])
    holds.release("step-3")
    out, err = process.communicate(timeout=600)
    # Without a state to go on from, all replicas start again.
    assert process.returncode == 0 and f"with data {1 if zero == 0 else 2}" in err, out + err
    (folder,) = run_folders(tmp_path)
    lines = metrics_of(folder)
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    without = [line["step"] for line in lines if "replicas" in line]
    if zero == 0:
        assert without == list(range(3, 31))
        assert summary_of(folder)["resumed_at"] == [2, 30]
    else:
        assert not without


ELASTIC = {
    "backend": {"name": "gloo", "timeout_seconds": 60},
    "parallel": {"tensor": 1, "data": 3},
    "checkpoint": {"every_steps": 10, "keep": 100, "async": False},
    "restart": {"attempts": 2, "backoff_seconds": 0},
    "elastic": {},
}


def elastic_run_at(point, folder, holds):
    """An elastic run of three replicas, its folder, and the processes of its ranks, which wait at the point."""
    holds.at(point)
    words = ("run", write_spec(folder, **spec(**ELASTIC)))
    process = start_apart(folder, *words, environment=holds.environment)
    ranks = dict(holds.reached(point, 3))
    (ran,) = run_folders(folder)
    assert (ran / "checkpoints/LATEST").exists()
    return process, ran, ranks


def test_a_launcher_that_dies_with_a_rank_loses_no_line(tmp_path, holds):
    require("gloo", tmp_path)
    process, folder, ranks = elastic_run_at("step-16", tmp_path, holds)
    stop(process.pid)
    kill(ranks[2])
    holds.release("step-16")
    # The ranks that live leave their state, and the launcher dies before it makes a checkpoint of it.
    wait_until(lambda: len(list((folder / "checkpoints/rescue").glob("*.json"))) == 2)
    kill_all(process, tmp_path)
    run("run", "spec.json", cwd=tmp_path)
    lines = metrics_of(folder)
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert summary_of(folder)["resumed_at"][0] == 15


@pytest.mark.parametrize("dies", [0, 2])
def test_a_state_that_cannot_be_left_sends_the_run_back_to_its_checkpoint(tmp_path, holds, dies):
    require("gloo", tmp_path)
    process, folder, ranks = elastic_run_at("step-16", tmp_path, holds)
    (folder / "checkpoints/rescue").write_text("in the way")
    kill(ranks[dies])
    holds.release("step-16")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0 and "attempt 2 of 3" in err, out + err
    lines = metrics_of(folder)
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    back = summary_of(folder)["resumed_at"][0]
    assert back == 10
    # It is told like a checkpoint that failed, by the ranks and by the one who started them.
    for rank in {0, 1, 2} - {dies}:
        assert f"rank {rank} cannot leave its state" in err
    assert f"no replica has left its state in {folder}/checkpoints/rescue: steps {back + 1} to" in err
    assert [line["step"] for line in lines if "failed_checkpoints" in line] == [*range(back + 1, STEPS + 1)]
    event = {"step": back + 1, "kind": "checkpoint_failed"}
    assert [{k: e[k] for k in event} for e in events_of(folder) if e["kind"] == "checkpoint_failed"] == [event]


def test_a_run_can_be_started_anew(tmp_path, holds):
    require("gloo", tmp_path)
    write_spec(tmp_path, **spec(backend={"name": "gloo", "timeout_seconds": 60}))
    holds.at("step-5")
    process = start_apart(tmp_path, "run", "spec.json", environment=holds.environment)
    holds.reached("step-5", 2)
    (folder,) = run_folders(tmp_path)
    assert (folder / "checkpoints/LATEST").exists()
    kill_all(process, tmp_path)
    run("run", "spec.json", "--fresh", cwd=tmp_path)
    assert "resumed_at" not in summary_of(folder)
    first = records_of(folder)
    assert [line["step"] for line in first[0]] == list(range(STEPS + 1))
    # For records that a finished run lacks.
    run("run", "spec.json", "--again", "--set", "/record/links=include", cwd=tmp_path)
    assert "resumed_at" not in summary_of(folder) and records_of(folder)[0] == first[0]
    assert json.loads((folder / "loss_statistics.json").read_text())["links"]


@pytest.mark.parametrize("hook", ["before", "after"])
def test_a_command_may_take_longer_than_the_timeout_of_ranks(tmp_path, hook):
    require("gloo", tmp_path)
    command = [
        "/bin/sh",
        "-c",
        f"sleep 5; test -e {'.' if hook == 'before' else '$DROPTEST_CHECKPOINT'} && touch done",
    ]
    by = {"backend": {"name": "gloo", "timeout_seconds": 4}}
    write_spec(tmp_path, **spec(checkpoint={"every_steps": 20, "keep": 1, hook: command}, **by))
    ran = run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    assert summary_of(folder)["status"] == "completed" and summary_of(folder)["checkpoints"]["completed"] == 2
    assert (tmp_path / "done").exists() and "command" not in ran.err


def test_a_damaged_step_is_not_gone_back_to(tmp_path):
    write_spec(tmp_path, **spec(checkpoint={"every_steps": 10, "keep": 10}))
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    damaged = next((folder / "checkpoints/step-20").glob("rank-*.safetensors"))
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    assert f"step-20/{damaged.name}" in run("resume", folder, "--at", "20", "--again", cwd=tmp_path, expect=2).err
    assert len(checkpoints_of(folder)) == 4 and summary_of(folder)["status"] == "completed"


def test_an_elastic_spec_without_meaning_is_refused(tmp_path):
    def error_of(**changes):
        write_spec(tmp_path, **spec(**{"parallel": {"tensor": 1, "data": 3}, "elastic": {}, **changes}))
        return run("validate", "spec.json", cwd=tmp_path, expect=2).err

    assert "/elastic/min_data: got 4, want at most 3" in error_of(elastic={"min_data": 4})
    assert "/elastic/max_data: got 2, want at least 3" in error_of(elastic={"max_data": 2})
    assert "/elastic: got an elastic run without /checkpoint/every_steps" in error_of(checkpoint={"every_steps": 0})
    absences = {"replicas": [{"data_rank": 1, "from": 4}]}
    assert "/elastic: got an elastic run with /failures" in error_of(failures=absences)
    loss = {"model": "bernoulli", "loss_rate": "5%"}
    link = {"loss": loss, "links": [{"sources": [2], "destinations": [0], "loss": loss}]}
    assert "/elastic: with /parallel/data 2" in error_of(network=link, elastic={"min_data": 2})
    assert run(
        "validate", write_spec(tmp_path, **spec(parallel={"data": 3}, elastic={"min_data": 1})), cwd=tmp_path
    ).out
