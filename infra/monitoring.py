# ruff: noqa: E501  a query is one line
"""A Grafana dashboard and alert rules for Prometheus, made of one list of what to look at.

Both are JSON, which Prometheus reads as the YAML that it is. Those of one study look at the job of
its name: metrics name no study, and whoever scrapes them gives the job its name.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

Json = dict[str, Any]


class Panel(NamedTuple):
    """A panel: its title, what it asks, the name of each series, and the unit in Grafana's words."""

    title: str
    expression: str
    legend: str = ""
    unit: str = "short"
    kind: str = "timeseries"


class Alert(NamedTuple):
    """A rule: what is true while something is wrong, for how long, and what to do about it."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    action: str


_OF = '{job=~"$job"}'
_RATE = "[$__rate_interval]"


def _more(metric: str, labels: str, which: str = "") -> str:
    """Return a query for counters that grew in 15 minutes, or came: a new one has not increased."""
    found = f"veilstream_{metric}{which}"
    return (
        f"sum by ({labels}) (increase({found}[15m])) > 0 "
        f"or sum by ({labels}) ({found} unless {found} offset 15m) > 0"
    )


# fmt: off
ROWS: dict[str, list[Panel]] = {
    "Estimate": [
        Panel("Status", f"veilstream_estimate_status{_OF} == 1", "{{status}}", kind="stat"),
        Panel("Way to all intervals", f"max(veilstream_interval_progress{_OF})", "share", "percentunit", "gauge"),
        Panel("Record slots missing", f"max(veilstream_interval_missing_records{_OF})", "slots", kind="stat"),
        Panel("Time to all intervals, at the present rate", f"max(veilstream_interval_seconds{_OF})", "time", "s", "stat"),
        Panel("Record slots per second", f"sum(veilstream_records_per_second{_OF})", "slots", "cps"),
        Panel("Age of the estimate", f"min(veilstream_estimate_age_seconds{_OF})", "age", "s"),
        Panel("Coefficients", f"veilstream_estimate_value{_OF}", "{{coefficient}}"),
        Panel("Interval widths", f"veilstream_interval_width{_OF}", "{{coefficient}}"),
    ],
    "Stream": [
        Panel("Lag", f"veilstream_lag_records{_OF}", "partition {{partition}}"),
        Panel("Releases folded per second", f"sum by (partition) (rate(veilstream_releases_folded_total{_OF}{_RATE}))", "partition {{partition}}", "ops"),
        Panel("From release to estimate, 95 %", f"histogram_quantile(0.95, sum by (le) (rate(veilstream_release_to_estimate_seconds_bucket{_OF}{_RATE})))", "95 %", "s"),
        Panel("Commit, 95 %", f"histogram_quantile(0.95, sum by (le) (rate(veilstream_commit_seconds_bucket{_OF}{_RATE})))", "95 %", "s"),
        Panel("Watermark", f"veilstream_state_watermark_offset{_OF}", "partition {{partition}}"),
        Panel("Added by workers since their start", f"sum(veilstream_releases_applied_total{_OF})", "releases"),
    ],
    "Faults": [
        Panel("Dead letters per second", f"sum by (reason) (rate(veilstream_dead_letters_by_reason_total{_OF}{_RATE}))", "{{reason}}", "ops"),
        Panel("Dead letters in all", f"sum(veilstream_dead_letters_total{_OF})", "dead letters"),
        Panel("Missing releases", f"sum(veilstream_releases_missing{_OF})", "missing"),
        Panel("Repeated releases", f"sum(veilstream_duplicates_dropped_total{_OF})", "repeated"),
        Panel("Too old to count", f"sum(veilstream_releases_forgotten_total{_OF})", "too old"),
        Panel("Since the state was verified", f"min(veilstream_verified_age_seconds{_OF})", "age", "s"),
        Panel("Verified up to", f"veilstream_verified_offset{_OF}", "partition {{partition}}"),
        Panel("Verifications", f"sum by (outcome) (veilstream_verifications_total{_OF})", "{{outcome}}"),
    ],
    "Clients": [
        Panel("Clients", f"sum(veilstream_clients{_OF})", "clients", kind="stat"),
        Panel("Epsilon spent", f"veilstream_client_epsilon_spent{_OF}", "{{instance}}"),
        Panel("Epsilon left", f"veilstream_client_epsilon_remaining{_OF}", "{{instance}}"),
        Panel("Of the limit", f"veilstream_client_epsilon_limit{_OF}", "{{instance}}"),
        Panel("Releases not sent", f"veilstream_client_releases_unsent{_OF}", "{{instance}}"),
        Panel("Records set aside per second", f"rate(veilstream_client_records_set_aside_total{_OF}{_RATE})", "{{instance}}", "ops"),
    ],
}
ALERTS = [
    Alert("VeilstreamLag", "veilstream_lag_records > 1000 and deriv(veilstream_lag_records[10m]) >= 0", "10m", "warning", "releases wait and get no fewer", "see /healthz of the worker of this partition; start more workers, up to stream.partitions"),
    Alert("VeilstreamNoEstimate", "min by (job) (veilstream_estimate_age_seconds) > 600 and on (job) sum by (job) (veilstream_lag_records) > 0", "5m", "critical", "releases come and no estimate does", "see /healthz of the worker with partition 0, and its log"),
    Alert("VeilstreamDeadLetters", _more("dead_letters_by_reason_total", "job, reason"), "0m", "warning", "records are set aside", "veilstream dlq list STUDY says whose and why"),
    Alert("VeilstreamForged", _more("dead_letters_by_reason_total", "job", '{reason=~"forged|not-admitted|unpublished-model|wrong-partition"}'), "0m", "critical", "somebody writes who may not", "docs/admission.md, Somebody wrote to our topics"),
    Alert("VeilstreamMissing", "sum by (job) (veilstream_releases_missing) > 0", "30m", "warning", "releases of clients are missing", "see to the clients: those that are down resend what they have stored"),
    Alert("VeilstreamStateDiffers", 'increase(veilstream_verifications_total{outcome="different"}[1h]) > 0', "0m", "critical", "the stored state is not what the log folds to", "stop all workers, veilstream state rebuild STUDY"),
    Alert("VeilstreamUnverified", "veilstream_verified_age_seconds > 86400", "0m", "warning", "no comparison with the log for a day", "see the log of the worker with partition 0"),
    Alert("VeilstreamSlowCommits", "histogram_quantile(0.95, sum by (job, le) (rate(veilstream_commit_seconds_bucket[10m]))) > 1", "10m", "warning", "Redis takes over a second to store a batch", "see to the memory and disk of Redis"),
    Alert("VeilstreamBudget", "veilstream_client_epsilon_remaining < 0.1 * veilstream_client_epsilon_limit", "0m", "info", "a source has less than a tenth of its budget left", "the data owner may raise --epsilon-limit; else its client ends with 31"),
    Alert("VeilstreamUnsent", "veilstream_client_releases_unsent > 100", "10m", "warning", "a client cannot send what it has stored", "see to Kafka and the way to it"),
]
# fmt: on


_METRIC = re.compile(r"\bveilstream_\w+\{?")


def dashboard(study: str = "") -> Json:
    """Return the dashboard, as Grafana imports it: of one study, or of all jobs."""
    panels: list[Json] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": _place(0, y, 24, 1)})
        y += 1
        for at, panel in enumerate(row):
            panels.append(_panel(panel, _place(8 * (at % 3), y + 8 * (at // 3), 8, 8)))
        y += 8 * -(-len(row) // 3)
    job = {
        "name": "job", "type": "query", "label": "job", "multi": True, "includeAll": True,
        "allValue": ".*", "refresh": 2,
        "current": {"text": study, "value": study} if study else {"text": "All", "value": "$__all"},
        "datasource": _SOURCE, "query": "label_values(veilstream_state_watermark_offset, job)",
    }  # fmt: skip
    for number, made in enumerate(panels, 1):
        made["id"] = number
    # Grafana takes 40 characters at most, and dashboards of two studies must not be one
    own = f"-{hashlib.sha256(study.encode()).hexdigest()[:16]}" if study else ""
    return {
        "title": f"veilstream: {study}" if study else "veilstream", "uid": f"veilstream{own}", "schemaVersion": 39, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"}, "panels": panels,
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "source"},
                job,
            ]
        },
    }  # fmt: skip


def alerts(study: str = "") -> Json:
    """Return the rules, as a file of `rule_files`: of one study, or of all jobs."""
    rules = [
        {
            "alert": alert.name, "expr": _of_job(alert.expression, study), "for": alert.lasting,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "action": alert.action},
        }
        for alert in ALERTS
    ]  # fmt: skip
    return {"groups": [{"name": f"veilstream-{study}" if study else "veilstream", "rules": rules}]}


def _of_job(expression: str, study: str) -> str:
    """Return an expression of the metrics of one job; of all where there is no study."""
    if not study:
        return expression
    job = f'job="{study}"'
    return _METRIC.sub(
        lambda m: f"{m[0]}{job}," if m[0].endswith("{") else f"{m[0]}{{{job}}}", expression
    )


_SOURCE = {"type": "prometheus", "uid": "${source}"}


def _panel(panel: Panel, place: Json) -> Json:
    target = {"refId": "A", "expr": panel.expression, "legendFormat": panel.legend}
    return {
        "type": panel.kind, "title": panel.title, "gridPos": place, "datasource": _SOURCE,
        "targets": [{**target, "datasource": _SOURCE}],
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        # the value of the status is its name
        "options": {"textMode": "name"} if panel.legend == "{{status}}" else {},
    }  # fmt: skip


def _place(x: int, y: int, width: int, height: int) -> Json:
    return {"x": x, "y": y, "w": width, "h": height}
