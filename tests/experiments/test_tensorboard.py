# SPDX-License-Identifier: Apache-2.0
"""Event files: framing and truncation by a reader of our own, content by TensorBoard's."""

import json
import math
import signal
import struct

import pytest
from cli_harness import metrics_of, run, run_folders, start, wait_until, write_spec


def crc32c(data):
    """Bit by bit: another way than the program's."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The whole records; raises ValueError for a wrong checksum."""
    found, at = [], 0
    while at + 12 <= len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        if masked(data[at : at + 8]) != crc:
            raise ValueError("checksum of a length")
        if at + 16 + length > len(data):
            break
        body = data[at + 12 : at + 12 + length]
        if masked(body) != struct.unpack_from("<I", data, at + 12 + length)[0]:
            raise ValueError("checksum of a record")
        found.append(body)
        at += 16 + length
    return found


def events_of(grid, loss, learning_rate, seed):
    return grid / "results/tiny/tensorboard" / f"learning_rate: {learning_rate}, loss: {loss}" / f"seed {seed}"


def event_files(folder):
    return sorted(folder.rglob("events.out.tfevents.*"))


GRID = {
    "sweep": {
        "cross": {
            "/training/learning_rate": [0.01, 0.02, 0.005],
            "/network/loss": [
                {"model": "none"},
                {"model": "bernoulli", "loss_rate": "10%"},
                {"model": "bernoulli", "loss_rate": "9%"},
            ],
        }
    },
    "repeat": {"seeds": 3},
}


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A sweep of 27 runs whose event files were written while it ran."""
    folder = tmp_path_factory.mktemp("grid")
    write_spec(folder, **GRID)
    run("sweep", "spec.json", "--tensorboard", cwd=folder)
    return folder


def test_each_run_has_one_file_of_whole_records(grid):
    files = event_files(grid / "results/tiny/tensorboard")
    assert len(files) == 27 and len({f.parent for f in files}) == 27
    for file in files[:3]:
        found = records(file.read_bytes())
        assert found[0].endswith(b"brain.Event:2")
        assert len(found) == 2 + 7 + 2  # version, session start; lines; bursts and end
    assert events_of(grid, "bernoulli loss_rate=10%", 0.01, 1).is_dir()


def test_a_file_is_read_up_to_where_it_was_cut(grid):
    data = event_files(grid / "results/tiny/tensorboard")[-1].read_bytes()
    whole = records(data)
    last = 16 + len(whole[-1])
    for cut in range(1, last + 1):
        assert records(data[:-cut]) == whole[:-1]
    flipped = bytearray(data)
    flipped[-10] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        records(bytes(flipped))


def test_export_writes_the_same_events(grid):
    run("export", "results/tiny", "--tensorboard", "--out", "exported", cwd=grid)
    live = grid / "results/tiny/tensorboard"
    for file in event_files(live):
        (other,) = event_files(grid / "exported" / file.parent.relative_to(live))
        # Times differ: those of a running run are from the file times of its spec.
        assert [r[9:][:20] for r in records(file.read_bytes())][1:-2] == [
            r[9:][:20] for r in records(other.read_bytes())
        ][1:-2]
    # Again: a new file in place of the old one.
    run("export", "results/tiny", "--tensorboard", "--out", "exported", cwd=grid)
    assert len(event_files(grid / "exported")) == 27


def test_one_run_is_exported_beside_its_folder(tmp_path):
    write_spec(tmp_path)
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    run("export", "--tensorboard", folder, cwd=tmp_path)
    shown = tmp_path / "results/tiny/tensorboard/seed 1"
    assert len(event_files(shown)) == 1
    # Another program's file stays, and ours is replaced.
    other = shown / "events.out.tfevents.1699999999.host.4242.0"
    other.write_bytes(b"of another program")
    run("export", "--tensorboard", folder, cwd=tmp_path)
    assert other.exists() and len(event_files(shown)) == 2
    refused = run("export", folder, "--tensorboard", "--initial", cwd=tmp_path, expect=2)
    assert "--initial" in refused.err
    (tmp_path / "empty").mkdir()
    assert "no run with a line" in run("export", "empty", "--tensorboard", cwd=tmp_path, expect=2).err
    assert "no such folder" in run("export", "absent", "--tensorboard", cwd=tmp_path, expect=2).err
    assert "--out: is missing" in run("export", folder, cwd=tmp_path, expect=2).err


def test_events_are_written_while_the_run_goes_on(tmp_path):
    write_spec(tmp_path, record={"every_steps": 1}, training={"steps": 1_000_000})
    process = start("run", "spec.json", "--tensorboard", "--quiet", cwd=tmp_path)
    counts = [0]
    for _ in range(3):
        counts.append(wait_until(lambda: count_of_events(tmp_path) > counts[-1] and count_of_events(tmp_path)))
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert counts[1] < counts[2] < counts[3] <= count_of_events(tmp_path)


def count_of_events(folder):
    return sum(len(records(file.read_bytes())) for file in event_files(folder))


def test_a_run_that_cannot_write_events_goes_on(tmp_path):
    write_spec(tmp_path)
    (tmp_path / "results/tiny").mkdir(parents=True)
    (tmp_path / "results/tiny/tensorboard").write_text("a file where the folder would be")
    result = run("run", "spec.json", "--tensorboard", cwd=tmp_path)
    assert "training goes on" in result.err and result.err.count("tensorboard") == 1
    assert metrics_of(run_folders(tmp_path)[0])[-1]["step"] == 12


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


@pytest.fixture
def accumulator():
    module = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )

    def load(folder):
        found = module.EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
        found.Reload()
        return found

    return load


def test_tensorboard_reads_equal_values(grid, accumulator):
    runs = [folder for folder in run_folders(grid) if (folder / "summary.json").exists()]
    assert len(runs) == 27
    for folder in runs:
        summary = json.loads((folder / "summary.json").read_text())
        loss = summary["point"]["/network/loss"]
        name = "none" if loss["model"] == "none" else f"bernoulli loss_rate={loss['loss_rate']}"
        rate = summary["point"]["/training/learning_rate"]
        events = accumulator(events_of(grid, name, rate, summary["seed"]))
        lines = metrics_of(folder)
        for tag in ("train_loss", "validation_loss", "gradient_norm", "learning_rate"):
            expected = [(m["step"], float32(m[tag])) for m in lines if tag in m]
            assert [(e.step, e.value) for e in events.Scalars(tag)] == expected
        expected = [(m["step"], float32(m["divergence"]["rms"])) for m in lines if "divergence" in m]
        assert [(e.step, e.value) for e in events.Scalars("divergence/rms")] == expected
        if loss["model"] == "none":
            continue
        statistics = json.loads((folder / "loss_statistics.json").read_text())["classes"]["tp_forward"]["halves"][
            "reduce"
        ]
        (histogram,) = events.Histograms("burst_packets/tp_forward/reduce")
        bars = {
            limit - 0.5: count
            for limit, count in zip(
                histogram.histogram_value.bucket_limit, histogram.histogram_value.bucket, strict=True
            )
            if count
        }
        assert bars == {bar["length"]: bar["count"] for bar in statistics["burst_histogram"]}
        assert histogram.histogram_value.num == sum(bars.values())


def test_tensorboard_reads_up_to_a_cut_and_no_damaged_record(grid, accumulator, tmp_path):
    (file,) = event_files(events_of(grid, "bernoulli loss_rate=9%", 0.01, 3))
    data = file.read_bytes()
    last, bursts = (16 + len(record) for record in records(data)[:-3:-1])

    def read(changed):
        (tmp_path / file.name).write_bytes(changed)
        found = accumulator(tmp_path)
        return len(found.Scalars("train_loss")), len(found.Tags()["histograms"])

    for cut in range(1, last + 1):
        assert read(data[:-cut]) == (6, 4)
    for cut in range(last + 1, last + bursts, 29):
        assert read(data[:-cut]) == (6, 0)
    flipped = bytearray(data)
    flipped[-last - 9] ^= 1
    assert read(bytes(flipped)) == (6, 0)


def test_tensorboard_reads_all_names_and_numbers(tmp_path, accumulator):
    rates = [{"label": "ä/b", "value": 0.1}, {"label": "c", "value": 0.2}]
    write_spec(tmp_path, sweep={"cross": {"/network/loss/loss_rate": rates}})
    run("sweep", "spec.json", cwd=tmp_path)
    (folder,) = (
        f for f in run_folders(tmp_path) if "ä/b" in json.loads((f / "summary.json").read_text())["labels"][0].values()
    )
    text = (folder / "metrics.jsonl").read_text()
    lines = [json.loads(line) | ({"train_loss": None} if '"step":4,' in line else {}) for line in text.splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run("export", "results/tiny", "--tensorboard", cwd=tmp_path)
    losses = accumulator(tmp_path / "results/tiny/tensorboard/ä_b/seed 1").Scalars("train_loss")
    assert [event.step for event in losses if math.isnan(event.value)] == [4]


def test_hparams_are_27_sessions_in_9_groups(grid):
    """A session is a seed, a group a point; loss rates are numbers."""
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

    folder = str(grid / "results/tiny/tensorboard")
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(folder)
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, folder)
    hparams = backend_context.Context(base_plugin.TBContext(data_provider=provider, logdir=folder))
    request_context = context.RequestContext()
    experiment = get_experiment.Handler(request_context, hparams, "exp", api_pb2.GetExperimentRequest()).run()
    infos = {info.name: info for info in experiment.hparam_infos}
    assert set(infos) == {"/training/learning_rate", "/network/loss/model", "/network/loss/loss_rate"}
    assert infos["/network/loss/loss_rate"].type == api_pb2.DATA_TYPE_FLOAT64
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=100,
        allowed_statuses=[api_pb2.STATUS_SUCCESS],
    )
    groups = list_session_groups.Handler(request_context, hparams, "exp", request).run().session_groups
    assert len(groups) == 9
    assert [len(group.sessions) for group in groups] == [3] * 9
    rates = sorted(
        {g.hparams["/network/loss/loss_rate"].number_value for g in groups if "/network/loss/loss_rate" in g.hparams}
    )
    assert rates[-2:] == [0.09, 0.1]
    assert {g.hparams["/training/learning_rate"].number_value for g in groups} == {0.005, 0.01, 0.02}
