# SPDX-License-Identifier: Apache-2.0
"""droptest.Network: fates and fills of numpy arrays, errors, and the record that a program leaves."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import droptest
from droptest import library

ANALYSIS = Path(droptest.__file__).parents[1]
LOSS = {"model": "gilbert_elliott", "loss_rate": 0.1, "mean_burst_packets": 4}
PACKET = 352  # elements of float32


def network(**more):
    return droptest.Network({"network": {"loss": LOSS}, "seed": 7, **more}, rank=1, world_size=4)


def test_fates_are_those_of_the_command():
    flow = network().flow("dp_gradient", 1)
    expected = droptest.fates(LOSS, 5000, first=100, seed=7, traffic_class="dp_gradient", source=1, destination=65535)
    fates = flow.fates(100, 5000)
    assert fates.dtype == bool and fates.shape == (5000,)
    assert (fates == expected.to_numpy()).all()
    assert flow.report(100, 5000)["lost"] == fates.sum()


def test_numbers_of_numpy_and_paths_are_taken_and_other_values_are_named(tmp_path):
    loss = LOSS | {"loss_rate": np.float64(0.1), "mean_burst_packets": np.int64(4)}
    source = {"network": {"loss": loss}, "seed": np.uint64(7), "statistics": tmp_path}
    with droptest.Network(source, rank=1, world_size=4) as of_numpy:
        assert (of_numpy.flow("dp_gradient", 1).fates(0, 5000) == network().flow("dp_gradient", 1).fates(0, 5000)).all()
    with pytest.raises(
        droptest.NetworkError, match=r"network: /seed: got 1j \(complex\), want an object, a list"
    ) as error:
        network(seed=1j)
    assert error.value.kind == "config"


def test_a_second_network_would_lose_the_counts_of_the_first(tmp_path):
    first = network(statistics=str(tmp_path))
    with pytest.raises(droptest.NetworkError, match="another network of rank 1 in this process writes its counts"):
        network(statistics=str(tmp_path))
    first.close()
    network(statistics=str(tmp_path)).close()


def test_messages_follow_each_other_and_fills_hit_their_elements():
    flow = network().flow("dp_gradient", 1)
    first = flow.next(64 * PACKET)
    values = np.ones((2, 500 * PACKET), np.float32)
    message = flow.lose(values)
    assert (message.message, message.first_packet, message.packets) == (1, 64, 1000)
    lost = flow.fates(64, 1000)
    assert (values.reshape(1000, PACKET) == np.where(lost, 0, 1)[:, None]).all()
    assert (first == flow.fates(0, 64)).all() and message.lost == lost.sum()
    counts = flow.counts()
    assert (counts.packets, counts.lost) == (1064, first.sum() + lost.sum())
    flow.verify(counts.packets, counts.digest)
    with pytest.raises(droptest.NetworkError, match=r"rank 1 of 4: link 1 -> all .* got the digest") as error:
        flow.verify(counts.packets, counts.digest ^ 1)
    assert error.value.kind == "mismatch"


def test_a_saved_state_goes_on():
    whole, resumed = network(), network()
    whole.flow("dp_gradient", 1).next(500 * PACKET)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert resumed.statistics() == whole.statistics()
    following = whole.flow("dp_gradient", 1).next(300 * PACKET)
    assert (resumed.flow("dp_gradient", 1).next(300 * PACKET) == following).all()
    for wrong in ({}, {"droptest": "?"}, {"droptest": 3}):
        with pytest.raises(droptest.NetworkError, match="rank 1 of 4: state: got something else"):
            resumed.load_state_dict(wrong)
    with pytest.raises(droptest.NetworkError, match="rank 1 of 4: state: got damaged bytes"):
        resumed.load_state_dict({"droptest": whole.state_dict()["droptest"][:-8]})


def test_numbers_that_the_library_would_cut_are_refused_by_name():
    made = network()
    flow, group = made.flow("dp_gradient", 1), made.group("dp_gradient", [0, 1, 2, 3])
    most = 2**64 - 1
    for use, what, got in (
        (lambda: made.set_step(-1), "step", -1),
        (lambda: made.set_step(1.5), "step", 1.5),
        (lambda: flow.fates(2**64, 3), "first", 2**64),
        (lambda: flow.fates(0, -3), "count", -3),
        (lambda: flow.report(-1, 3), "first", -1),
        (lambda: flow.packets(-1), "elements", -1),
        (lambda: flow.next(-1), "elements", -1),
        (lambda: flow.verify(10, -1), "digest", -1),
        (lambda: made.classify("all_reduce", -1, group_ranks=4), "elements", -1),
        (lambda: group.gather(0, -1, "float32"), "elements", -1),
        (lambda: group.finish_reduce(-1, 0, 0, 0), "number", -1),
    ):
        with pytest.raises(droptest.NetworkError) as error:
            use()
        assert str(error.value) == f"rank 1 of 4: {what}: got {got!r}, want an integer from 0 to {most}"
    with pytest.raises(droptest.NetworkError, match="group: got -1, want an integer from 0 to 4294967295"):
        made.flow("dp_gradient", 1, group=-1)
    for place in ({"source": 2**32}, {"source": 0, "destination": 2**32}):
        with pytest.raises(droptest.NetworkError, match=r"got 4294967296, want an integer from -2147483648 to"):
            made.flow("pp_activation", **place)
    with pytest.raises(droptest.NetworkError, match="members: got 4294967297, want"):
        made.group("dp_gradient", [1, 2**32 + 1])
    with pytest.raises(droptest.NetworkError, match="members: got rank 2 twice, want each rank of the group once"):
        made.group("dp_gradient", [1, 2, 2], 1)
    with pytest.raises(droptest.NetworkError, match="world_size: got 4294967300, want"):
        droptest.Network({"network": {"loss": LOSS}}, rank=0, world_size=2**32 + 4)
    made.set_step(np.uint64(most))
    assert made.statistics().classes == {}


def test_the_fates_of_a_groups_flow_are_those_of_its_messages():
    made = network()
    flow, other = made.flow("dp_gradient", 1, group=3), made.flow("dp_gradient", 1)
    fates, report = flow.fates(0, 500), flow.report(0, 500)
    assert report["lost"] == fates.sum()
    assert (flow.next(500 * PACKET) == fates).all()
    assert not (other.fates(0, 500) == fates).all()
    message = flow.lose(np.ones(100 * PACKET, np.float32))
    assert message.lost == flow.fates(message.first_packet, 100).sum() == flow.fates(500, 100).sum()
    with pytest.raises(droptest.NetworkError, match="an index of group 3, want one of group 0"):
        other.fates(message.first_packet, 100)


def test_a_network_that_names_no_loss_is_refused():
    with pytest.raises(droptest.NetworkError, match="network: /network: got no loss, want") as error:
        droptest.Network({"network": {}})
    assert error.value.kind == "config" and '{"loss": {"model": "none"}}' in str(error.value)


def test_maxima_get_the_lowest_value():
    values = np.ones(PACKET, np.float64)
    droptest.Network({"network": {"loss": {"model": "bernoulli", "loss_rate": 1}}}).flow("outer").lose(values, "max")
    assert (values == -np.inf).all()


def test_arrays_and_names_that_are_wrong_are_refused():
    flow = network().flow("dp_gradient", 1)
    with pytest.raises(ValueError, match="not contiguous"):
        flow.lose(np.ones((8, 8), np.float32).T)
    with pytest.raises(ValueError, match=r"array: got list, want a numpy.ndarray"):
        flow.lose([1.0, 2.0])
    with pytest.raises(ValueError, match=r"dtype: got 'float128', want one of float32"):
        flow.next(3, "float128")
    with pytest.raises(ValueError, match=r"traffic_class: got 'dp', want one of"):
        network().flow("dp")
    closed = network()
    flow = closed.flow("dp_gradient")
    closed.close()
    uses = (lambda: closed.set_step(1), closed.statistics, lambda: closed.flow("dp_gradient"),
            lambda: closed.group("dp_gradient", [0]), lambda: flow.report(0, 10), lambda: flow.packets(1))  # fmt: skip
    for use in uses:
        with pytest.raises(droptest.NetworkError, match="got a closed one"):
            use()


def test_a_class_can_lose_packets_where_its_loss_can():
    section = {"loss": {"model": "none"}, "classes": {"outer": {"loss": {"model": "bernoulli", "loss_rate": "1%"}}}}
    source = droptest.Network({"network": section})
    assert source.can_lose("outer") and not source.can_lose("dp_gradient")
    with pytest.raises(droptest.NetworkError, match="traffic_class: want a class that can lose packets"):
        source.can_lose("control")


def test_a_mistake_names_the_rank_the_file_and_the_key(tmp_path, monkeypatch):
    file = tmp_path / "net.json"
    file.write_text('{"network": {"loss": {"model": "bernoulli", "loss_rate": "200%"}}}')
    monkeypatch.setenv("DROPTEST_NETWORK", str(file))
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(droptest.NetworkError, match=rf"^rank 2 of 3: {file}: /network/loss/loss_rate: got \"200%\""):
        droptest.Network()
    monkeypatch.delenv("DROPTEST_NETWORK")
    with pytest.raises(droptest.NetworkError, match="DROPTEST_NETWORK: is not set"):
        droptest.Network()


PROGRAM = """
import sys, numpy, droptest
rank = int(sys.argv[1])
source = {"network": {"loss": {"model": "bernoulli", "loss_rate": 0.01}}, "statistics": "results/mine"}
flow = droptest.Network(source, rank=rank, world_size=2).flow("dp_gradient", rank)
flow.lose(numpy.ones(352000, numpy.float32))
"""


def test_programs_leave_a_record_that_report_reads_beside_runs(tmp_path):
    for rank in range(2):
        subprocess.run([sys.executable, "-c", PROGRAM, str(rank)], cwd=tmp_path, check=True,
                       env=os.environ | {"PYTHONPATH": str(ANALYSIS)})  # fmt: skip
    folder = tmp_path / "results/mine"
    statistics = droptest.Statistics.read(folder)
    assert statistics.missing_ranks == [] and statistics.exempt == {}
    assert list(statistics.links["source"]) == [0, 1]
    assert statistics.classes["dp_gradient"]["packets"] == 2000
    own = tmp_path / "results/own/0123456789abcdef"
    own.mkdir(parents=True)
    (own / "spec.json").write_text("{}")
    assert droptest.experiments_in(tmp_path / "results") == [folder, own.parent]
    records = droptest.load(folder)
    (row,) = records.loss_statistics.query("half == 'both'").to_dict("records")
    assert (row["series"], row["loss_rate"], row["packets"]) == ("Bernoulli", 0.01, 2000)
    assert len(records.links) == 2
    words = [os.environ["DROPTEST_BINARY"], "report", folder]
    done = subprocess.run(words, capture_output=True, text=True, check=False,
                          env=os.environ | {"DROPTEST_PYTHON": sys.executable})  # fmt: skip
    assert done.returncode == 0 and "Bernoulli" in done.stdout, done.stderr


def test_ranks_that_are_missing_in_the_record_are_named(tmp_path):
    subprocess.run([sys.executable, "-c", PROGRAM, "1"], cwd=tmp_path, check=True,
                   env=os.environ | {"PYTHONPATH": str(ANALYSIS)})  # fmt: skip
    records = droptest.load(tmp_path / "results/mine")
    assert any("the counts of rank 0 are missing" in warning for warning in records.warnings)


def test_without_the_library_the_rest_of_the_package_works(tmp_path):
    program = "import droptest\nprint(droptest.Records.__name__)\ndroptest.Network({'network': {}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                          env=os.environ | {"PYTHONPATH": str(ANALYSIS),
                                            "DROPTEST_LIBRARY": str(tmp_path / "none.so")})  # fmt: skip
    assert done.stdout == "Records\n"
    assert f"DROPTEST_LIBRARY: got {tmp_path / 'none.so'}, want the file {library.FILE_NAME}" in done.stderr


def test_a_child_by_fork_is_refused_and_makes_its_own():
    made = network()
    flow = made.flow("dp_gradient", 1)
    child = os.fork()
    if child == 0:
        try:
            flow.next(PACKET)
            os._exit(1)
        except droptest.NetworkError as error:
            own = network().flow("dp_gradient", 1).next(PACKET)
            os._exit(0 if error.kind == "forked" and len(own) == 1 else 2)
    assert os.waitpid(child, 0)[1] == 0
    assert flow.counts().messages == 0


def test_names_of_classes_are_those_of_the_library():
    loaded = ctypes.CDLL(str(library.path()))
    loaded.droptest_class_name.restype = ctypes.c_char_p
    names = [loaded.droptest_class_name(number) for number in range(len(library.CLASSES) + 1)]
    assert [name and name.decode() for name in names] == [*library.CLASSES, None]


def test_the_statistics_of_a_rank_are_json_of_the_schema():
    made = network()
    made.flow("dp_gradient", 1).next(100 * PACKET)
    assert made.classify("all_reduce", 10, group_ranks=4) == "control"
    record = made.statistics().record
    of_class = record["classes"]["dp_gradient"]
    measures = [of_class[name] for name in ("nmse", "cosine", "divergence_max", "divergence_rms")]
    assert of_class["sampled_calls"] == 0 and measures == [None] * 4
    assert record["exempt"] == {"small": {"calls": 1, "bytes": 40}}
    jsonschema = pytest.importorskip("jsonschema")
    words = [os.environ["DROPTEST_BINARY"], "schema", "loss_statistics"]
    schema = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    jsonschema.validate(record, schema)
