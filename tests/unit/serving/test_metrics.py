"""The counts of a server, read back by the parser of Prometheus."""

from prometheus_client.parser import text_string_to_metric_families

from ms_recover.serving.metrics import Metrics


def test_each_count_stands_under_its_name_and_kind():
    metrics = Metrics(
        sent_bytes=1,
        digested_bytes=2,
        digested_files=3,
        refused_connections=4,
        timed_out_connections=5,
        open_connections=6,
        scans=7,
    )
    metrics.requests["GET", 200] = 8
    metrics.requests["other", 404] = 9
    families = list(text_string_to_metric_families(metrics.text()))
    found = {(one.name, tuple(one.labels.values())): one.value for family in families for one in family.samples}
    assert found == {
        ("ms_recover_requests_total", ("GET", "200")): 8,
        ("ms_recover_requests_total", ("other", "404")): 9,
        ("ms_recover_sent_bytes_total", ()): 1,
        ("ms_recover_digested_bytes_total", ()): 2,
        ("ms_recover_digested_files_total", ()): 3,
        ("ms_recover_refused_connections_total", ()): 4,
        ("ms_recover_timed_out_connections_total", ()): 5,
        ("ms_recover_open_connections", ()): 6,
        ("ms_recover_scans_total", ()): 7,
    }
    assert {family.name: family.type for family in families if family.type != "counter"} == {
        "ms_recover_open_connections": "gauge"
    }
    assert all(family.documentation for family in families)


def test_counts_of_two_looks_go_on():
    metrics = Metrics()
    assert "ms_recover_scans_total 0.0" in metrics.text()
    metrics.scans += 1
    assert "ms_recover_scans_total 1.0" in metrics.text()
