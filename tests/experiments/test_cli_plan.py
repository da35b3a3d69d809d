# SPDX-License-Identifier: Apache-2.0
"""droptest plan: the plan of a spec against its runs."""

import json
from xml.etree import ElementTree

import pytest
from cli_harness import run, run_folders, summary_of, tiny_spec, write_spec

NOTHING_KNOWN = {"CUDA_VISIBLE_DEVICES": ""}


def plan(folder, *arguments):
    return json.loads(run("plan", "spec.json", "--json", *arguments, cwd=folder).out)


def packets_of(folder):
    statistics = json.loads((folder / "loss_statistics.json").read_text())
    return {name: entry["packets"] for name, entry in statistics["classes"].items()}


def test_the_plan_is_what_a_sweep_then_does(tmp_path):
    losses = [{"label": "no loss", "value": {"model": "none"}}, {"model": "bernoulli", "loss_rate": 0.1}]
    write_spec(
        tmp_path,
        sweep={"best_over": ["/training/learning_rate"],
               "cross": {"/network/loss": losses, "/training/learning_rate": {"linspace": [0.01, 0.02, 2]}}},
        repeat={"seeds": 2},
    )  # fmt: skip
    before = plan(tmp_path)
    assert not (tmp_path / "results").exists(), "nothing is written"
    assert (before["points"], before["seeds"], len(before["runs"])) == (4, 2, 8)
    assert before["differs"] == {
        "/network/loss": [{"model": "none"}, {"model": "bernoulli", "loss_rate": 0.1}],
        "/training/learning_rate": [0.01, 0.02],
    }
    assert before["best_over"] == ["/training/learning_rate"]
    assert before["estimate"]["runs"] == 8 and before["estimate"]["seconds"] > 0
    assert before["estimate"]["basis"] == "from a training step measured here, may be off by a factor of 2"

    words = run("plan", "spec.json", cwd=tmp_path).out.splitlines()
    assert words[0] == "tiny: 8 runs, 4 points with 2 seeds each; records go to results/tiny"
    assert words[1:3] == ["differs: /network/loss: 2 values", "the best of /training/learning_rate: 2 values"]
    assert words[4].startswith("no loss, learning_rate: 0.01 ") and words[4].endswith(before["runs"][0]["run_id"])
    assert words[-1].startswith("8 runs to do: about ")

    run("sweep", "spec.json", cwd=tmp_path)
    index = json.loads((tmp_path / "results/tiny/sweep.json").read_text())["runs"]
    for planned, listed in zip(before["runs"], index, strict=True):
        assert all(planned[key] == listed[key] for key in ("run_id", "point", "seeds"))
        assert planned["labels"] == listed.get("labels", [])
        assert planned["steps"] == 12 and not planned["finished"] and planned["seconds"] > 0
        assert planned["packets"] == packets_of(tmp_path / "results/tiny" / planned["run_id"])

    after = plan(tmp_path)
    assert all(planned["finished"] for planned in after["runs"]) and after["estimate"]["runs"] == 0
    assert run("plan", "spec.json", cwd=tmp_path).out.splitlines()[-1] == "nothing is to do"

    # More of the same: known from the runs that are there.
    more = plan(tmp_path, "--set", "/repeat/seeds=4", "--set", "/training/warmup_steps=2")
    assert more["estimate"]["runs"] == 8
    assert more["estimate"]["basis"].startswith("from 8 finished runs of the same shape on this machine (they took ")
    seconds = [summary_of(folder)["seconds"] for folder in run_folders(tmp_path)]
    mean = sum(seconds) / len(seconds)
    assert more["runs"][-1]["seconds"] == pytest.approx(mean)
    estimate = more["estimate"]
    assert estimate["seconds_one_by_one"] == pytest.approx(8 * mean)
    assert estimate["seconds"] == pytest.approx(8 * mean / estimate["jobs"])
    longer = plan(tmp_path, "--set", "/training/steps=24")
    assert longer["estimate"]["basis"].startswith("from 8 finished runs") and longer["estimate"]["runs"] == 8
    assert longer["runs"][0]["seconds"] == pytest.approx(2 * mean), "runs of other ids tell as much"
    # Not of another shape, nor on another machine.
    wider = plan(tmp_path, "--set", "/training/batch_sequences=5")
    assert wider["estimate"]["basis"].startswith("from a training step measured here")
    for folder in run_folders(tmp_path):
        summary = summary_of(folder)
        summary["provenance"]["host"] = "elsewhere"
        (folder / "summary.json").write_text(json.dumps(summary))
    moved = plan(tmp_path, "--set", "/repeat/seeds=4")
    assert moved["estimate"]["basis"].startswith("from a training step measured here")


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": {"tensor": 4}, "network": {"path": "ring", "loss": {"model": "bernoulli", "loss_rate": 0.05}}},
        {"validation": {"every_steps": 5, "tokens": 300, "network": "lossy"}},
        {"training": {"steps": 5, "batch_sequences": 3, "sequence_tokens": 20, "accumulation": 2}},
        {
            "network": {
                **{"payload_bytes": 64, "loss": {"model": "bernoulli", "loss_rate": 0.1}},
                "classes": {"tp_backward": {"recovery": {"parity": {"data": 4, "parity": 2}}}},
            }
        },
    ],
)
def test_packets_are_those_that_a_run_counts(tmp_path, changes):
    write_spec(tmp_path, **changes)
    (planned,) = plan(tmp_path)["runs"]
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    counted = packets_of(folder)
    if "validation" in changes:  # the last sequences of an evaluation may be a batch of their own
        assert planned["packets"] == {name: pytest.approx(count, rel=0.02) for name, count in counted.items()}
        assert planned["packets"]["tp_forward"] > planned["packets"]["tp_backward"]
    else:
        assert planned["packets"] == counted


def test_what_is_not_known_is_said(tmp_path):
    write_spec(tmp_path, data={"text": "nowhere.txt"})
    known = plan(tmp_path)
    assert known["no_ids"].startswith("spec.json: /data/text: read nowhere.txt: No such file")
    assert known["runs"][0]["run_id"] is None and known["runs"][0]["packets"] is not None
    assert "no run ids: spec.json: /data/text: read nowhere.txt" in run("plan", "spec.json", cwd=tmp_path).out

    huge = {"layers": 12, "width": 4096, "heads": 32, "context": 2048, "vocabulary": 50257}
    write_spec(tmp_path, model=huge)
    long = plan(tmp_path)
    assert long["runs"][0]["seconds"] is None and long["estimate"]["seconds"] is None
    assert "a step is too long to be measured" in run("plan", "spec.json", cwd=tmp_path).out
    parameters = (50257 + 2048) * 4096 + 12 * (12 * 4096**2 + 13 * 4096) + 2 * 4096
    least = parameters * 16 // 2
    assert least < long["runs"][0]["memory_per_rank_bytes"] < 2 * least, "activations of a micro-batch come on top"

    write_spec(tmp_path, training={"steps": 0})
    assert "/training/steps: got 0" in run("plan", "spec.json", cwd=tmp_path, expect=2).err


@pytest.mark.parametrize(
    ("precision", "tensor", "said"),
    [("bfloat16", 2, True), ({"compute": "fp16"}, 2, True), ("float32", 2, False), ("bfloat16", 1, False),
     ({"compute": "bf16", "message": "bf16"}, 2, False), ({"message": "bf16"}, 2, False)],
)  # fmt: skip
def test_messages_that_stay_wide_are_named(tmp_path, precision, tensor, said):
    write_spec(tmp_path, training={"steps": 2, "precision": precision}, parallel={"tensor": tensor}, network={})
    words = "messages of tensor parallelism are float32, though products have 16 bits: all runs"
    assert (words in run("plan", "spec.json", cwd=tmp_path).out) == said


def test_points_that_are_one_run_are_named(tmp_path):
    write_spec(
        tmp_path,
        network={"loss": {"model": "none"}},
        sweep={"cross": {"/network/fill": ["zero", "stale"]}},
    )
    first, second = plan(tmp_path)["runs"]
    assert first["same_as"] is None and second["same_as"] == 0 and first["run_id"] == second["run_id"]
    runs = run("plan", "spec.json", cwd=tmp_path).out.partition("\nmemory ")[0]
    assert runs.endswith("the run of fill: zero")
    assert plan(tmp_path)["estimate"]["runs"] == 1


def test_runs_on_a_device_need_no_device_to_be_planned(tmp_path):
    write_spec(tmp_path, device="cuda")
    said = run("plan", "spec.json", cwd=tmp_path, environment=NOTHING_KNOWN).out
    assert "1 run to do: no estimate of their time: no run on such a GPU is finished here" in said


def layouts_of(folder, *arguments):
    return json.loads(run("plan", "spec.json", "--layout", "--json", *arguments, cwd=folder).out)["layouts"]


def test_each_different_layout_is_planned_once(tmp_path):
    losses = [{"model": "none"}, {"model": "bernoulli", "loss_rate": 0.1}]
    write_spec(tmp_path, sweep={"cross": {"/parallel/data": [1, 2], "/network/loss": losses}})
    one, two = layouts_of(tmp_path)
    assert [layout["plan"]["layout"]["world_size"] for layout in (one, two)] == [2, 4]
    assert len(one["points"]) == len(two["points"]) == 2
    assert two["plan"]["groups"] == {"data": [[0, 2], [1, 3]], "tensor": [[0, 1], [2, 3]]}
    assert one["shapes"] is None

    text = run("plan", "spec.json", "--layout", "--set", "/sweep=null", "--set", "/parallel/data=2", cwd=tmp_path).out
    lines = [line.split("  ") for line in text.splitlines()]
    assert lines[0] == ["tiny: 4 ranks: tensor 2 x data 2, numbered in this order"]
    assert lines[1] == ["data: 2 groups of 2, first {0, 2}, last {1, 3}"]
    ranks = [[cell for cell in line if cell.strip()] for line in lines[4:9]]
    assert [cell.strip() for cell in ranks[3]][:3] == ["2", "0", "1"]


def test_the_schedule_of_a_pipeline_is_drawn(tmp_path):
    write_spec(tmp_path)
    layout = ["--set", "/model/layers=2", "--set", "/training/accumulation=3"]
    pipeline = ["--set", '/parallel={"pipeline": 2, "schedule": "zero_bubble"}']
    text = run("plan", "spec.json", "--layout", "--schedule-svg", "s.svg", *layout, *pipeline, cwd=tmp_path).out
    assert text.splitlines()[-2:] == [
        "0F0 0F1 .   0I0 0W0 0F2 0I1 0W1 0I2 0W2",
        ".   1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2",
    ]
    svg = ElementTree.parse(tmp_path / "s.svg").getroot()
    rects = [r for r in svg if r.tag.endswith("rect") and r.get("stroke")]
    (plan,) = layouts_of(tmp_path, *layout, *pipeline)
    schedule = plan["plan"]["schedule"]
    actions = [action for rank in schedule["ranks"] for action in rank]
    unit = 1000 / schedule["makespan"]
    assert len(rects) == len(actions) + 3  # forward, input and weight in the legend
    for rect, action in zip(rects[: len(actions)], actions, strict=True):
        assert float(rect.get("x")) == pytest.approx(70 + action["begin"] * unit, abs=0.01)
        assert float(rect.get("width")) == pytest.approx((action["end"] - action["begin"]) * unit, abs=0.01)
    assert f"idle {100 * schedule['idle_share']:.3g} %" in "".join(svg.itertext())

    error = run("plan", "spec.json", "--layout", "--schedule-svg", "s.svg", cwd=tmp_path, expect=2).err
    assert "--schedule-svg: got 1 layout without a pipeline, want one with a pipeline" in error


def test_thousands_of_ranks_are_planned(tmp_path):
    write_spec(tmp_path)
    (layout,) = layouts_of(tmp_path, "--set", "/parallel/data=2048")
    ranks = layout["plan"]["ranks"]
    assert len(ranks) == 4096
    assert ranks[4095]["neighbours"] == {
        "data": {"previous": 4093, "next": 1},
        "tensor": {"previous": 4094, "next": 4094},
    }


def test_weights_that_do_not_fit_are_named_before_a_run(tmp_path):
    write_spec(tmp_path)
    shapes = run("plan", "spec.json", "--layout", "--check-shapes", cwd=tmp_path).out.splitlines()[-1]
    assert shapes == "shapes fit: a forward pass of one token on 2 parts of the model"
    run("run", "spec.json", "--set", "/record/weights=final", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    weights = folder / "weights.safetensors"
    arguments = ("plan", "spec.json", "--layout", "--check-shapes", "--set", f"/model/weights={weights}")
    assert run(*arguments, cwd=tmp_path).out.splitlines()[-1].endswith(f", and all tensors of {weights}")
    width = tiny_spec()["model"]["width"]
    wrong = run(*arguments, "--set", f"/model/width={2 * width}", cwd=tmp_path, expect=2).err
    assert 'tensor "wte.weight": got shape [' in wrong and f", {width}], want [" in wrong
    assert "--layout" in run("plan", "spec.json", "--check-shapes", cwd=tmp_path, expect=2).err
