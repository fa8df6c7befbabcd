"""recover-ckpt metrics: what it prints, and that it goes on."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ms_recover.file_names import RECOVERY_LOG_NAME
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests

parser = pytest.importorskip("prometheus_client.parser")

DOCS = Path(__file__).parents[2] / "docs"
LIMIT = 60


@pytest.fixture
def tree(tmp_path):
    make_tree(tmp_path / "tree", steps=(Step(1, 8), Step(2, 8)))
    save_manifests(tmp_path / "tree")
    return tmp_path / "tree"


def series(text):
    """Return the values by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_of_a_sound_tree(tree, recover_ckpt):
    done = recover_ckpt("metrics", tree)
    found = series(done.out)
    assert done.code == 0
    assert found["ms_recover_newest_step",] == found["ms_recover_newest_recoverable_step",] == 16
    assert found["ms_recover_slices", ("state", "ok")] == 4
    assert found["ms_recover_slices", ("state", "damaged")] == 0
    assert found["ms_recover_recoveries_total", ("result", "ok")] == 0
    assert found["ms_recover_scan_success",] == 1
    assert found["ms_recover_single_copy_bytes",] == 0
    unknown = ("max_host_losses_survived", "last_verified_timestamp_seconds", "recovery_duration_seconds")
    assert not any(f"ms_recover_{name}" in done.out for name in unknown)
    assert not (tree / RECOVERY_LOG_NAME).exists()


def test_figures_of_a_tree_whose_newest_step_is_lost(tree, recover_ckpt):
    for rank in (0, 2):  # both replicas
        (tree / f"ckpt_dir{rank}" / "test-2_8.ckpt").chmod(0o600)
        (tree / f"ckpt_dir{rank}" / "test-2_8.ckpt").write_bytes(b"")
    found = series(recover_ckpt("metrics", tree).out)
    assert (found["ms_recover_newest_step",], found["ms_recover_newest_recoverable_step",]) == (16, 8)
    assert (found["ms_recover_slices", ("state", "damaged")], found["ms_recover_slices", ("state", "ok")]) == (2, 2)


@pytest.mark.parametrize(("per_host", "survived"), [(1, 1), (2, 1), (4, 0)])
def test_hosts_that_may_be_lost(tree, recover_ckpt, per_host, survived):
    found = series(recover_ckpt("metrics", tree, "--ranks-per-host", per_host).out)
    assert found["ms_recover_max_host_losses_survived",] == survived


def test_bytes_of_which_one_rank_alone_has_a_copy(tree, recover_ckpt):
    for path in (tree / "ckpt_dir3").glob("test*"):
        path.unlink()
    shutil.rmtree(tree / "ckpt_dir3")
    found = series(recover_ckpt("metrics", tree, "--ranks-per-host", 1).out)
    assert found["ms_recover_single_copy_bytes",] > 0
    assert found["ms_recover_max_host_losses_survived",] == 0
    assert found["ms_recover_slices", ("state", "missing")] == 1


def test_minus_1_where_no_step_can_be_recovered(tree, recover_ckpt):
    for rank in (0, 2):
        shutil.rmtree(tree / f"ckpt_dir{rank}")
    found = series(recover_ckpt("metrics", tree, "--world-size", "4").out)
    assert found["ms_recover_newest_recoverable_step",] == -1
    assert found["ms_recover_slices", ("state", "missing")] == 2


def test_recoveries_and_verifications_are_counted(tree, recover_ckpt):
    (tree / "ckpt_dir1" / "test-2_8.ckpt").unlink()
    assert recover_ckpt("apply", tree).code == 0
    assert recover_ckpt("verify", tree).code == 0
    found = series(recover_ckpt("metrics", tree).out)
    assert found["ms_recover_recoveries_total", ("result", "ok")] == 1
    assert found["ms_recover_recovery_duration_seconds", ("phase", "plan")] > 0
    assert found["ms_recover_recovery_duration_seconds", ("phase", "apply")] > 0
    assert abs(found["ms_recover_last_verified_timestamp_seconds",] - time.time()) < 3600


def test_a_label_is_given_to_every_series_and_escaped(tree, recover_ckpt):
    done = recover_ckpt("metrics", tree, "--label", 'job=a"b\\c\nd')
    assert all(("job", 'a"b\\c\nd') in key for key in series(done.out))
    for wrong in ("1a=b", "a", "state=x", "__a=b"):
        assert recover_ckpt("metrics", tree, "--label", wrong).code == 2


def test_a_text_file_is_replaced_whole_and_says_when_the_look_failed(tree, tmp_path, recover_ckpt):
    target = tmp_path / "out.prom"
    target.write_text("# HELP ms_recover_old")
    assert recover_ckpt("metrics", tree, "--textfile", target).code == 0
    assert series(target.read_text())["ms_recover_newest_step",] == 16
    assert target.stat().st_mode & 0o777 == 0o644
    done = recover_ckpt("metrics", tree / "gone", "--textfile", target)
    assert (done.code, series(target.read_text())["ms_recover_scan_success",]) == (3, 0)
    assert "newest_step" not in target.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("tree", "out.prom")] == []


def test_a_text_file_that_no_collector_would_read_is_refused_before_anything_is_read(tree, tmp_path, recover_ckpt):
    for name, code, said in (("no/out.prom", 3, "make it first"), ("out.txt", 2, "names that end in .prom alone")):
        done = recover_ckpt("metrics", tree, "--textfile", tmp_path / name)
        assert (done.code, said in done.err, list(tmp_path.glob("out*"))) == (code, True, [])


def wait_for(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.processes
def test_a_watch_goes_on_over_errors_and_ends_on_sigterm(tree, tmp_path):
    target, away = tmp_path / "out.prom", tmp_path / "away"
    code = "import sys; from ms_recover.cli.entry import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "metrics", tree, "--textfile", target, "--watch", "0.05"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def value(name):
        return series(target.read_text()).get((f"ms_recover_{name}",)) if target.exists() else None

    try:
        wait_for(lambda: value("newest_step") == 16)
        tree.rename(away)
        wait_for(lambda: value("scan_success") == 0)
        assert value("newest_step") is None
        wait_for(lambda: value("scan_errors_total") >= 2)
        away.rename(tree)
        wait_for(lambda: value("newest_step") == 16)
        assert value("scan_errors_total") >= 2
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert process.returncode == 143
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.prom", "tree"]


def test_without_prometheus_client_the_extra_is_named(tree, recover_ckpt, monkeypatch):
    monkeypatch.delitem(sys.modules, "ms_recover.reporting.metrics_text", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    done = recover_ckpt("metrics", tree)
    assert (done.code, "pip install '.[metrics]'" in done.err) == (2, True)


def promtool(*arguments, text=None):
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is missing: apt-get install prometheus, or take it out of that package")
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.processes
def test_promtool_finds_nothing_wrong_in_the_figures(tree, recover_ckpt):
    (tree / "ckpt_dir1" / "test-2_8.ckpt").unlink()
    recover_ckpt("apply", tree)
    recover_ckpt("verify", tree)
    assert promtool("check", "metrics", text=recover_ckpt("metrics", tree).out) == ""


@pytest.mark.processes
def test_promtool_takes_the_rules_and_the_queries_of_the_dashboard(tmp_path):
    assert "SUCCESS" in promtool("check", "rules", str(DOCS / "alerts.yml"))
    panels = json.loads((DOCS / "dashboard.json").read_text())["panels"]
    queries = [
        target["expr"].replace("$job", ".*").replace("$instance", ".*")
        for panel in panels
        for target in panel["targets"]
    ]
    rules = [{"record": f"panel{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(tmp_path / "panels.yml"))


ALERTS = {
    "MsRecoverNoNewRecoverableStep": {
        "ms_recover_newest_recoverable_step": "16x80",
        "ms_recover_scan_success": "1x80",
    },
    "MsRecoverNewestStepNotRecoverable": {
        "ms_recover_newest_recoverable_step": "8x80",
        "ms_recover_newest_step": "16x80",
    },
    "MsRecoverNothingRecoverable": {"ms_recover_newest_recoverable_step": "-1x80"},
    "MsRecoverLossWouldBeFatal": {"ms_recover_max_host_losses_survived": "0x80"},
    "MsRecoverSlicesDamaged": {'ms_recover_slices{state="damaged"}': "1x80", 'ms_recover_slices{state="ok"}': "3x80"},
    "MsRecoverScanFails": {"ms_recover_scan_success": "0x80"},
    "MsRecoverSeriesAbsent": {},
}


@pytest.mark.processes
def test_alerts_fire_for_what_they_are_about(tmp_path):
    shutil.copy(DOCS / "alerts.yml", tmp_path)
    known = re.findall(r"alert: (\w+)", (DOCS / "alerts.yml").read_text())
    assert set(ALERTS) <= set(known)
    tests = []
    for alert, figures in ALERTS.items():
        tests.append(
            {
                "interval": "5m",
                "input_series": [{"series": name, "values": values} for name, values in figures.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                        "eval_time": "4h",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                ],
            }
        )
    quiet = {
        "ms_recover_newest_step": "0+1x80",
        "ms_recover_newest_recoverable_step": "0+1x80",
        "ms_recover_scan_success": "1x80",
        "ms_recover_scan_timestamp_seconds": "0+300x80",
        "ms_recover_max_host_losses_survived": "1x80",
        'ms_recover_slices{state="damaged"}': "0x80",
        'ms_recover_slices{state="ok"}': "4x80",
        'ms_recover_recoveries_total{result="ok"}': "0+1x80",
    }
    tests.append(
        {
            "interval": "5m",
            "input_series": [{"series": name, "values": values} for name, values in quiet.items()],
            "promql_expr_test": [
                {
                    "expr": 'count(ALERTS{alertstate="firing"}) or vector(0)',
                    "eval_time": "4h",
                    "exp_samples": [{"labels": "{}", "value": 0}],
                }
            ],
        }
    )
    (tmp_path / "tests.yml").write_text(
        json.dumps({"rule_files": ["alerts.yml"], "evaluation_interval": "5m", "tests": tests})
    )
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yml"))


def test_every_series_is_documented(tree, recover_ckpt):
    text = (DOCS / "metrics.md").read_text()
    assert all(f"`{name}" in text for name, *_ in series(recover_ckpt("metrics", tree).out))


@pytest.mark.parametrize("name", ["ckpt_dir0/test-2_8.ckpt", "notes.txt"])
def test_a_name_that_the_collector_does_not_read_is_refused(tree, recover_ckpt, name):
    path = tree / name
    before = path.read_bytes() if path.exists() else None
    done = recover_ckpt("metrics", tree, "--textfile", path)
    assert done.code == 2
    assert "end in .prom" in done.err
    assert (path.read_bytes() if path.exists() else None) == before


def test_nothing_but_older_figures_is_replaced(tree, recover_ckpt, tmp_path):
    other, pipe, folder = tmp_path / "a.prom", tmp_path / "b.prom", tmp_path / "c.prom"
    other.write_text("node_load1 3\n")
    os.mkfifo(pipe)
    folder.mkdir()
    link = tmp_path / "d.prom"
    link.symlink_to(tree / "ckpt_dir0" / "test-2_8.ckpt")
    states = [path.lstat().st_ino for path in (other, pipe, folder, link)]
    slice_before = link.read_bytes()
    for path in (other, pipe, folder, link):
        done = recover_ckpt("metrics", tree, "--textfile", path)
        assert (done.code, done.out) == (2, ""), path
    assert [path.lstat().st_ino for path in (other, pipe, folder, link)] == states
    assert (other.read_text(), link.read_bytes()) == ("node_load1 3\n", slice_before)


def test_figures_replace_older_ones_and_an_empty_file_also_through_a_link(tree, recover_ckpt, tmp_path):
    path, link = tmp_path / "a.prom", tmp_path / "b.prom"
    path.touch()
    link.symlink_to(path)
    for _ in range(2):
        assert recover_ckpt("metrics", tree, "--textfile", link).code == 0
        assert series(path.read_text())["ms_recover_scan_success",] == 1
    assert link.is_symlink()


def test_a_textfile_without_a_folder_is_named_before_the_tree_is_looked_at(tree, recover_ckpt, tmp_path):
    done = recover_ckpt("metrics", tmp_path / "nothing", "--textfile", tmp_path / "none" / "a.prom")
    assert done.code == 3
    assert "a.prom: the directory does not exist" in done.err
