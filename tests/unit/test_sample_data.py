"""The sample's scripts that need no MindSpore: preparing WMT14, the rank table, what its options refuse."""

import importlib.util
import json
import sys
import tarfile

import pytest

from ms_recover.errors import UsageError
from tests.support.sample import SAMPLE


def script(name):
    spec = importlib.util.spec_from_file_location(name, SAMPLE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sgm(language, *sentences):
    segments = "\n".join(f'<seg id="{number}">{text}</seg>' for number, text in enumerate(sentences, 1))
    doc = f'<doc docid="a" sysid="ref">\n<p>\n{segments}\n</p></doc>'
    return f'<refset setid="newstest2014" trglang="{language}">\n{doc}\n</refset>'


@pytest.fixture
def test_full(tmp_path):
    folder = tmp_path / "test-full"
    folder.mkdir()
    (folder / "newstest2014-fren-ref.fr.sgm").write_text(
        sgm("fr", "L\u2019été, c'est bien.", "", "A\tB &amp; C"), "utf-8"
    )
    (folder / "newstest2014-fren-ref.en.sgm").write_text(sgm("en", "Summer is fine.", "None", "A B &amp; C"), "utf-8")
    return folder


EXPECTED = "L\u2019été , c'est bien .\tSummer is fine .\nA B & C\tA B & C\n"


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_the_test_set_of_wmt14_becomes_pairs_per_line(test_full, tmp_path, monkeypatch, capsys, form):
    source, output = test_full, tmp_path / "pairs.txt"
    if form == "archive":
        source = tmp_path / "test-full.tgz"
        with tarfile.open(source, "w:gz") as archive:
            archive.add(test_full, "test-full")
    monkeypatch.setattr(sys, "argv", ["prepare_wmt14.py", str(output), "--test-full", str(source)])
    assert script("prepare_wmt14").main() == 0
    assert output.read_text("utf-8") == EXPECTED
    assert "2 sentence pairs" in capsys.readouterr().out
    (test_full / "newstest2014-fren-ref.fr.sgm").rename(test_full / "newstest2014-fren-src.fr.sgm")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--pair", "en-fr", "--most", "1"])
    assert script("prepare_wmt14").main() == 0
    assert output.read_text("utf-8") == "Summer is fine .\tL\u2019été , c'est bien .\n"


def test_two_texts_become_pairs_and_must_be_equally_long(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.fr").write_text("un\ndeux\u2028trois\n", "utf-8")  # a line separator that ends no line
    (tmp_path / "a.en").write_text("one\ntwo three\n", "utf-8")
    texts = [str(tmp_path / "a.fr"), str(tmp_path / "a.en")]
    output = tmp_path / "pairs.txt"
    monkeypatch.setattr(sys, "argv", ["prepare_wmt14.py", str(output), "--texts", *texts])
    assert script("prepare_wmt14").main() == 0
    assert output.read_text("utf-8") == "un\tone\ndeux trois\ttwo three\n"
    (tmp_path / "a.en").write_text("one\n", "utf-8")
    assert script("prepare_wmt14").main() == 1
    assert "do not have the same number of lines" in capsys.readouterr().err


def test_texts_that_do_not_fit_are_refused(test_full, monkeypatch, tmp_path, capsys):
    (test_full / "newstest2014-fren-ref.en.sgm").write_text(sgm("en", "One only."), "utf-8")
    monkeypatch.setattr(sys, "argv", ["prepare_wmt14.py", str(tmp_path / "out"), "--test-full", str(test_full)])
    assert script("prepare_wmt14").main() == 1
    assert "sentence 2 of a is in one language only" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--pair", "de-en"])
    assert script("prepare_wmt14").main() == 1
    assert "has no newstest2014-deen-ref.de.sgm" in capsys.readouterr().err


def test_a_rank_table_has_the_device_of_each_rank(tmp_path):
    device_of = script("rank_table").device_of
    assert [device_of(str(SAMPLE / "rank_table_8pcs.json"), rank) for rank in range(8)] == list(range(8))
    hosts = [[{"device_id": str(one), "rank_id": str(4 * host + one)} for one in range(4)] for host in range(2)]
    table = tmp_path / "two.json"
    table.write_text(json.dumps({"server_list": [{"device": devices} for devices in hosts]}))
    assert device_of(str(table), 6) == 2
    with pytest.raises(UsageError, match="has no rank 8, only 0, 1, 2, 3, 4, 5, 6, 7: put it in"):
        device_of(str(table), 8)
    for text in ("", "[]", '{"server_list": [{}]}', '{"server_list": [{"device": [{"rank_id": "x"}]}]}'):
        table.write_text(text)
        with pytest.raises(UsageError, match="is no rank table"):
            device_of(str(table), 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pipeline_stage", "4"], "--pipeline_stage 4 is more than the 2 layers"),
        (["--micro_batch_num", "2"], "needs --pipeline_stage above 1"),
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--ckpt_file", "x"], "unrecognized arguments: --ckpt_file"),
    ],
)
def test_options_that_make_no_sense_are_refused(monkeypatch, tmp_path, capsys, options, said):
    monkeypatch.setenv("RANK_SIZE", "8")
    (tmp_path / "pairs.txt").write_text("a\tb\n")
    given = ["--file_path", str(tmp_path / "pairs.txt"), "--device_target", "Ascend", *options]
    with pytest.raises(SystemExit) as ended:
        script("options").parse_options("", given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_script_that_resumes_takes_a_slice_from_where_it_was_launched_or_below_its_output(tmp_path, monkeypatch):
    (tmp_path / "pairs.txt").write_text("a\tb\n")
    monkeypatch.setenv("LAUNCHED_FROM", str(tmp_path))
    output = tmp_path / "run"
    (output / "ckpt_dir0").mkdir(parents=True)
    slice_path = output / "ckpt_dir0" / "test-2_77.ckpt"
    slice_path.touch()
    named = {
        "run/ckpt_dir0/test-2_77.ckpt": slice_path,
        "ckpt_dir0/test-2_77.ckpt": slice_path,
        str(slice_path): slice_path,
        "ckpt_dir{rank}/test-2_77.ckpt": output / "ckpt_dir{rank}" / "test-2_77.ckpt",
    }
    for text, expected in named.items():
        given = ["--file_path", str(tmp_path / "pairs.txt"), "--output_dir", str(output), "--ckpt_file", text]
        assert script("options").parse_options("", given, resumes=True).ckpt_file == str(expected)
