# SPDX-License-Identifier: Apache-2.0
"""droptest run, validate, export and eval with local ranks."""

import json
import math
import os
import pty
import re
import signal
import struct
import subprocess

import pytest
from cli_harness import (
    BINARY,
    CLEAN_ENVIRONMENT,
    losses_of,
    metrics_of,
    run,
    run_folders,
    start,
    summary_of,
    tiny_spec,
    write_spec,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with one finished run of the tiny spec."""
    folder = tmp_path_factory.mktemp("finished")
    write_spec(folder)
    result = run("run", "spec.json", cwd=folder)
    (run_folder,) = run_folders(folder)
    assert run_folder.name in result.out
    return folder, run_folder


def test_a_run_leaves_its_records(finished):
    _, run_folder = finished
    names = {p.name for p in run_folder.iterdir()}
    records = {"spec.json", "metrics.jsonl", "loss_statistics.json", "diagnostics.json", "summary.json"}
    assert names == records | {"weights.safetensors"}
    summary = summary_of(run_folder)
    assert summary["status"] == "completed"
    assert summary["steps"] == 12
    assert summary["tokens"] == 12 * 4 * 32
    assert summary["tokens_per_second"] > 0
    lines = metrics_of(run_folder)
    validated = [m["validation_loss"] for m in lines if "validation_loss" in m]
    assert len(validated) == 3
    assert summary["validation"]["best_loss"] == min(validated)
    assert summary["validation"]["final_loss"] == validated[-1] < math.log(256)
    assert [m["step"] for m in lines] == [0, 2, 4, 6, 8, 10, 12]
    trained = [m["train_loss"] for m in lines if "train_loss" in m]
    assert summary["train"]["final_loss"] == pytest.approx(sum(trained[-10:]) / len(trained[-10:]))
    assert trained[-1] < trained[0]
    statistics = json.loads((run_folder / "loss_statistics.json").read_text())
    for name in ("tp_forward", "tp_backward"):
        entry = statistics["classes"][name]
        assert entry["configured_rate"] == pytest.approx(0.05)
        assert entry["realised_rate"] == pytest.approx(entry["lost"] / entry["packets"])
        assert abs(entry["z"]) < 4
        assert entry["mean_burst_packets"] >= 1


@pytest.fixture(params=["local", "gloo"])
def backend(request, tmp_path):
    """Ranks are threads, or processes."""
    if f"{request.param} (not built)" in run("info", cwd=tmp_path).out:
        pytest.skip(f"the backend {request.param} was not built")
    return request.param


def test_a_run_says_each_logged_step(tmp_path, backend):
    write_spec(tmp_path, backend={"name": backend, "timeout_seconds": 20})
    result = run("run", "spec.json", cwd=tmp_path)
    lines = [line for line in result.err.splitlines() if line.startswith("step ")]
    assert len(lines) == len(result.err.splitlines()) and not set(result.err) & {"\r", "\x1b"}
    (folder,) = run_folders(tmp_path)
    metrics = metrics_of(folder)
    assert [line.split(":")[0] for line in lines] == [f"step {m['step']}/12" for m in metrics]
    for line, m in zip(lines, metrics, strict=True):
        assert ("training loss" in line) == ("train_loss" in m) == ("tokens/s" in line)
        assert ("validation loss" in line) == ("validation_loss" in m)
        assert all(f"{m[key]:.4f}" in line for key in ("train_loss", "validation_loss") if key in m)
    speed = (metrics[-1]["tokens"] - metrics[0]["tokens"]) / (metrics[-1]["seconds"] - metrics[0]["seconds"])
    assert f"{speed:.0f} tokens/s" in lines[-1]
    write_spec(tmp_path, "quiet.json", seed=2)
    assert run("run", "quiet.json", "--quiet", cwd=tmp_path).err == ""


def test_a_terminal_gets_a_bar_below_the_lines(tmp_path):
    write_spec(tmp_path)
    parent, child = pty.openpty()
    command, environment = [BINARY, "run", "spec.json"], CLEAN_ENVIRONMENT
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=child)
    os.close(child)
    text = b""
    while True:
        try:
            chunk = os.read(parent, 4096)
        except OSError:
            break
        text += chunk
    os.close(parent)
    assert process.wait(timeout=600) == 0
    shown = text.decode().replace("\r\n", "\n")
    assert shown.count("\n") == 7, "a line for each logged step"
    assert "\r[#####---------------] 3/12" not in shown and "\r[######--------------] 4/12 steps, " in shown
    assert "\r[####################] 12/12 steps\x1b[K\r\x1b[K" in shown, "and it is taken away at the end"


def test_ctrl_c_ends_a_run_with_what_it_has(tmp_path, holds, backend):
    write_spec(
        tmp_path,
        backend={"name": backend, "timeout_seconds": 20},
        training={"steps": 10000000, "batch_sequences": 1, "learning_rate": 0.001},
    )
    holds.at("step-13")
    process = start("run", "spec.json", cwd=tmp_path, environment=holds.environment)
    ranks = {pid for _, pid in holds.reached("step-13", 2)}
    assert (process.pid in ranks) == (backend == "local") and len(ranks) == (2 if backend == "gloo" else 1)
    (folder,) = run_folders(tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    stopped = re.fullmatch(
        r"stopped at step (\d+) of 10000000: validation loss (\S+) \(best (\S+)\), training loss (\S+)\n", out
    )
    assert stopped, out
    assert f"what was recorded is kept in results/tiny/{folder.name}; the same command runs it again" in err
    step, validation, best, train = stopped.groups()
    told = [m for m in metrics_of(folder) if m["step"] <= int(step)]
    validated = [m["validation_loss"] for m in told if "validation_loss" in m]
    assert told[-1]["step"] == int(step)
    assert (validation, best) == (f"{validated[-1]:.4f}", f"{min(validated):.4f}")
    assert train == f"{told[-1]['train_loss']:.4f}"
    assert not (folder / "summary.json").exists() and not (folder / "ranks").exists()
    assert not any(os.path.exists(f"/proc/{rank}") for rank in ranks)
    # Nothing is in the way of another attempt.
    run("run", "spec.json", "--set", "/training/steps=12", cwd=tmp_path)


def test_a_finished_run_is_not_repeated(finished):
    folder, run_folder = finished
    before = (run_folder / "summary.json").stat().st_mtime_ns
    result = run("run", "spec.json", cwd=folder)
    assert "nothing to do" in result.out
    assert (run_folder / "summary.json").stat().st_mtime_ns == before
    assert run("run", "spec.json", "--quiet", cwd=folder).out == ""


def test_equal_specs_give_equal_losses_bit_for_bit(finished):
    folder, run_folder = finished
    run("run", "spec.json", "--out", "again", "--set", "/backend/threads_per_rank=3", cwd=folder)
    (again,) = run_folders(folder, out="again")
    assert losses_of(again) == losses_of(run_folder)
    run("run", "spec.json", "--out", "other", "--set", "/seed=2", cwd=folder)
    (other,) = run_folders(folder, out="other")
    assert losses_of(other) != losses_of(run_folder)


def test_loss_zero_is_the_bare_backend_bit_for_bit(finished):
    folder, _ = finished
    run("run", "spec.json", "--out", "zero", "--set", "/network/loss/loss_rate=0", cwd=folder)
    run("run", "spec.json", "--out", "bare", "--set", "/network={}", cwd=folder)
    assert losses_of(run_folders(folder, out="zero")[0]) == losses_of(run_folders(folder, out="bare")[0])


def test_divergence_is_a_recorded_result(tmp_path):
    training = {"steps": 50, "batch_sequences": 2, "learning_rate": 1000, "gradient_clip": 0}
    write_spec(tmp_path, training=training)
    result = run("run", "spec.json", cwd=tmp_path)
    assert "diverged at step" in result.out
    summary = summary_of(run_folders(tmp_path)[0])
    assert summary["status"] == "diverged"
    lines = metrics_of(run_folders(tmp_path)[0])
    infinite = [m["step"] for m in lines if m.get("train_loss", 0) is None or m.get("validation_loss", 0) is None]
    assert infinite == [lines[-1]["step"]] == [summary["diverged_step"]]
    assert summary["steps"] < 50
    assert "nothing to do" in run("run", "spec.json", cwd=tmp_path).out


def test_a_missing_corpus_is_a_user_error(tmp_path):
    write_spec(tmp_path, data={"text": "nowhere.txt"})
    result = run("run", "spec.json", cwd=tmp_path, expect=2)
    assert result.err.startswith("droptest: error: spec.json: /data/text: read nowhere.txt: No such file")
    assert not (tmp_path / "results").exists()


def test_a_failed_run_is_tried_again(tmp_path):
    write_spec(tmp_path)
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    (folder / "summary.json").unlink()
    (folder / "loss_statistics.json").unlink()
    (folder / "loss_statistics.json" / "in the way").mkdir(parents=True)
    run("run", "spec.json", cwd=tmp_path, expect=2)
    assert summary_of(folder)["status"] == "failed" and "cannot remove" in summary_of(folder)["error"]
    (folder / "loss_statistics.json" / "in the way").rmdir()
    run("run", "spec.json", cwd=tmp_path)
    assert summary_of(run_folders(tmp_path)[0])["status"] == "completed"


def test_a_short_corpus_is_refused_with_what_is_needed(tmp_path):
    write_spec(tmp_path)
    (tmp_path / "corpus.txt").write_text("too short")
    assert "want at least 33" in run("run", "spec.json", cwd=tmp_path, expect=2).err


def test_run_on_a_sweep_names_the_sweep_command(tmp_path):
    write_spec(tmp_path, repeat={"seeds": 2})
    assert "droptest sweep spec.json" in run("run", "spec.json", cwd=tmp_path, expect=2).err


def test_validate_says_everything_that_is_wrong(tmp_path):
    write_spec(tmp_path, "good.json")
    write_spec(tmp_path, "bad.json", seed=-1, trainig={"steps": 3})
    write_spec(tmp_path, "worse.json", parallel={"tensor": 0})
    result = run("validate", "good.json", "bad.json", "worse.json", cwd=tmp_path, expect=2)
    assert "good.json: ok, 1 run" in result.out
    assert all(line.startswith("droptest: error: ") for line in result.err.splitlines())
    for part in ("bad.json: /seed: got -1", "trainig", "worse.json: /parallel/tensor: got 0"):
        assert part in result.err
    override = run("validate", "good.json", "--set", "/network/loss/loss_rate=120%", cwd=tmp_path, expect=2)
    assert "/network/loss/loss_rate" in override.err
    assert "nowhere.json: No such file" in run("validate", "nowhere.json", cwd=tmp_path, expect=2).err


def test_validate_says_what_the_machine_lacks(tmp_path):
    (tmp_path / "short.txt").write_text("too short")
    write_spec(tmp_path)
    huge = json.dumps({"preset": "xl", "layers": 10000, "width": 1048576, "heads": 16})
    lacking = [
        ("/data/text=nowhere.txt", "spec.json: /data/text: read nowhere.txt: No such file"),
        ("/data/text=short.txt", "spec.json: /data: short.txt: 9 tokens leave"),
        ("/model/weights=nowhere", "spec.json: /model/weights: read nowhere: No such file"),
        ("/backend/name=udp", "spec.json: /backend/name: udp is not in this build; use one of local"),
        ("/model=" + huge, "spec.json: /model: weights, gradients, moments and activations take"),
        ("/training/batch_sequences=1048576", "spec.json: /model: weights, gradients, moments and activations take"),
    ]
    for override, message in lacking:
        said = run("validate", "spec.json", "--set", override, cwd=tmp_path, expect=2)
        assert len(said.err.splitlines()) == 1 and message in said.err and said.out == ""
        assert "ok, 1 run" in run("validate", "spec.json", "--set", override, "--spec-only", cwd=tmp_path).out
    replicas = ["--set", '/model={"preset": "small"}', "--set", "/parallel/data=1000"]  # one of them fits
    assert "/model: weights, gradients" in run("validate", "spec.json", *replicas, cwd=tmp_path, expect=2).err
    # With so large a batch, the messages of the huge model would use up the indices of a link.
    together = [override for override, _ in lacking if "short" not in override and "batch" not in override]
    overrides = [part for override in together for part in ("--set", override)]
    overrides += ["--set", "/model/weights=nowhere"]  # the model is another one by now
    everything = run("validate", "spec.json", *overrides, cwd=tmp_path, expect=2)
    assert len(everything.err.splitlines()) == 4


def test_a_network_that_loses_nothing_is_said_everywhere(tmp_path):
    write_spec(tmp_path, parallel={"tensor": 1})
    words = "spec.json: /network: no packet is sent, so none is lost: with /parallel/data, /parallel/tensor"
    assert words in run("validate", "spec.json", cwd=tmp_path).err
    assert words in run("run", "spec.json", cwd=tmp_path).err
    (folder,) = run_folders(tmp_path)
    assert [w["pointer"] for w in summary_of(folder)["warnings"]] == ["/network"]
    write_spec(
        tmp_path, name="two", sweep={"cross": {"/parallel/tensor": [1, 2], "/network/loss/loss_rate": [0.1, 0.2]}}
    )
    assert "ok, 4 runs, 1 of them the same as others" in run("validate", "spec.json", cwd=tmp_path).out
    swept = run("sweep", "spec.json", cwd=tmp_path)
    assert words in swept.err and "(2 of 4 points)" in swept.err
    assert len(run_folders(tmp_path, "two")) == 3
    assert swept.out.count("(the run of ") == 1
    warned = [summary_of(f)["warnings"] for f in run_folders(tmp_path, "two")]
    assert sorted(len(w) for w in warned) == [0, 0, 1]


def test_a_finished_run_says_which_records_it_lacks(tmp_path):
    bare = {"every_steps": 2, "sample_every_steps": 6, "weights": "none"}
    write_spec(tmp_path, record=bare)
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    before = losses_of(folder)
    more = ["run", "spec.json", "--set", "/record/weights=final", "--set", "/record/links=include"]
    refused = run(*more, cwd=tmp_path, expect=2).err
    lacking = "finished, but without records that the spec asks for: the final weights"
    assert f"results/tiny/{folder.name}: {lacking}" in refused
    assert "/record/links" in refused and "--again" in refused

    # export names the missing file, and the command that it prints writes it.
    said = run("export", f"results/tiny/{folder.name}", "--out", "x", cwd=tmp_path, expect=2).err
    command = said.strip().split("this writes them: droptest ")[1].split(" ")
    assert "the records are in" in run(*command, cwd=tmp_path).out
    run("export", f"results/tiny/{folder.name}", "--out", "x", cwd=tmp_path)
    assert losses_of(folder) == before
    assert "nothing to do" in run("run", "spec.json", "--again", cwd=tmp_path).out, "nothing is lacking"

    # A sweep likewise: only the runs that lack something are run again.
    write_spec(tmp_path, record=bare, repeat={"seeds": 2})
    run("sweep", "spec.json", cwd=tmp_path)
    weights = {f: (f / "weights.safetensors").exists() for f in run_folders(tmp_path)}
    assert sorted(weights.values()) == [False, True]
    times = {f: (f / "summary.json").stat().st_mtime_ns for f in weights}
    final = ["sweep", "spec.json", "--set", "/record/weights=final"]
    assert "the final weights (/record/weights); --again" in run(*final, cwd=tmp_path, expect=2).err
    run(*final, "--again", cwd=tmp_path)
    assert all((f / "weights.safetensors").exists() for f in weights)
    assert {f for f in weights if (f / "summary.json").stat().st_mtime_ns == times[f]} == {folder}


def test_export_and_eval_round_trip(finished):
    folder, run_folder = finished
    run("export", run_folder, "--out", "final.safetensors", cwd=folder)
    run("export", "spec.json", "--initial", "--out", "initial.safetensors", cwd=folder)
    assert (folder / "final.safetensors").stat().st_size > 4 * 32 * 256

    # The run's own validation text: its end, 256 tokens predicted in sequences of 32.
    text = (folder / "corpus.txt").read_bytes()
    validation = text[len(text) - round(0.1 * len(text)) :][:257]
    (folder / "validation.txt").write_bytes(validation)
    losses = {m["step"]: m["validation_loss"] for m in metrics_of(run_folder) if "validation_loss" in m}
    for weights, step in (("initial", 0), ("final", 12)):
        result = run(
            "eval", "--model", f"{weights}.safetensors", "--config", "spec.json", "--tokens", "validation.txt",
            "--json", cwd=folder,
        )  # fmt: skip
        evaluated = json.loads(result.out)
        assert evaluated["tokens"] == 256
        assert evaluated["mean_loss"] == pytest.approx(losses[step], abs=2e-5 if step == 0 else 2e-3)

    # The same tokens as a token file, and in words.
    header = struct.pack("<256i", 20240520, 1, len(validation), *([0] * 253))
    (folder / "validation.bin").write_bytes(header + struct.pack(f"<{len(validation)}H", *validation))
    words = run(
        "eval", "--model", "final.safetensors", "--config", "spec.json", "--tokens", "validation.bin", cwd=folder
    )
    assert words.out == (
        f"mean loss {evaluated['mean_loss']:.6f} nats per token over 256 tokens: perplexity "
        f"{evaluated['perplexity']:.4f}, accuracy {evaluated['accuracy']:.4f}\n"
    )


def test_export_of_what_is_not_there_is_refused(tmp_path):
    write_spec(tmp_path)
    assert "no such folder" in run("export", "nowhere", "--out", "x", cwd=tmp_path, expect=2).err
    (tmp_path / "empty").mkdir()
    assert "weights.safetensors" in run("export", "empty", "--out", "x", cwd=tmp_path, expect=2).err
    (tmp_path / "bad.safetensors").write_bytes(b"no weights")
    result = run(
        "eval", "--model", "bad.safetensors", "--config", "spec.json", "--tokens", "corpus.txt", cwd=tmp_path, expect=2
    )
    assert "bad.safetensors" in result.err


def test_training_starts_from_exported_weights(finished):
    folder, run_folder = finished
    run("export", "spec.json", "--initial", "--out", "start.safetensors", cwd=folder)
    run("run", "spec.json", "--out", "loaded", "--set", "/model/weights=start.safetensors", cwd=folder)
    assert losses_of(run_folders(folder, out="loaded")[0]) == losses_of(run_folder)


def test_token_files_train_too(tmp_path):
    write_spec(tmp_path)
    text = (tmp_path / "corpus.txt").read_bytes()
    (tmp_path / "tokens.bin").write_bytes(struct.pack(f"<{len(text)}H", *text))
    run("run", "spec.json", cwd=tmp_path)
    (tmp_path / "spec.json").write_text(json.dumps(tiny_spec(name="tokens", data={"tokens": "tokens.bin"})))
    run("run", "spec.json", cwd=tmp_path)
    assert losses_of(run_folders(tmp_path, "tokens")[0]) == losses_of(run_folders(tmp_path)[0])


# No device answers, on any machine.
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}


def test_cuda_where_no_device_answers_is_refused_before_any_work(tmp_path):
    write_spec(tmp_path, device="cuda")
    assert "ok, 1 run" in run("validate", "spec.json", cwd=tmp_path, environment=HIDDEN).out
    for command in ("run", "sweep"):
        refused = run(command, "spec.json", cwd=tmp_path, expect=1, environment=HIDDEN)
        assert 'device "cuda"' in refused.err
        assert '"device": "cpu"' in refused.err
        assert not (tmp_path / "results").exists()


def test_device_auto_takes_the_cpu_where_no_device_answers_and_says_so(tmp_path):
    write_spec(tmp_path, device="auto")
    result = run("run", "spec.json", cwd=tmp_path, environment=HIDDEN)
    assert "droptest: device: cpu, because " in result.err
    (run_folder,) = run_folders(tmp_path)
    assert "device" not in json.loads((run_folder / "spec.json").read_text())
    write_spec(tmp_path, "plain.json")
    assert "nothing to do" in run("run", "plain.json", cwd=tmp_path, environment=HIDDEN).out


def test_one_run_of_a_sweep_is_trained_by_its_number(tmp_path):
    write_spec(tmp_path, sweep={"cross": {"/network/loss/loss_rate": [0, 0.1]}}, repeat={"seeds": 2})
    run("run", "spec.json", "--run", "2", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    alone = summary_of(folder)
    assert alone["point"] == {"/network/loss/loss_rate": 0.1} and alone["seeds"]["weights"] == 1
    assert "points)" not in run("run", "spec.json", "--run", "1", cwd=tmp_path).err, (
        "warnings are those of the run alone"
    )
    run("run", "spec.json", "--run", "3", "--quiet", cwd=tmp_path)
    out = run("sweep", "spec.json", cwd=tmp_path).out
    assert "4 runs in results/tiny" in out and summary_of(folder) == alone, "the sweep takes what is there"
    seeds = {folder.name: summary_of(folder)["seeds"]["weights"] for folder in run_folders(tmp_path)}
    assert sorted(seeds.values()) == [1, 1, 2, 2]
    refused = run("run", "spec.json", cwd=tmp_path, expect=2).err
    assert "asks for 4 runs; use: droptest sweep spec.json, or --run 1 to --run 4 for one of them" in refused
    assert "--run: got 5, want 1 to 4" in run("run", "spec.json", "--run", "5", cwd=tmp_path, expect=2).err
    run("run", "spec.json", "--run", "0", cwd=tmp_path, expect=2)
