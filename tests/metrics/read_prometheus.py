"""Parses RUN/metrics.prom with prometheus_client and compares it with the last line of RUN/metrics.jsonl."""
import json
import re
import sys

from prometheus_client.parser import text_string_to_metric_families

run = sys.argv[1]
last = json.loads(open(run + "/metrics.jsonl").readlines()[-1])
families = {f.name: f for f in text_string_to_metric_families(open(run + "/metrics.prom").read())}
samples = {s.name: s.value for f in families.values() for s in f.samples if not s.labels}


def prometheus_name(name):
    grows = name.startswith("time_total/") or (name.startswith("run/") and name != "run/tokens_per_sec")
    name = name.replace("time_total/", "time/")
    name = re.sub("per_sec(?=_|$)", "per_second", name)
    name = re.sub("_sec(?=_|$)", "_seconds", name)
    name = re.sub("(?<![a-z])gb(?![a-z])", "gigabytes", name)
    return "ravel_" + name.replace("/", "_") + ("_total" if grows else "")


count = 0
for name, value in last.items():
    if name in ("time", "ranks"):
        continue
    wanted = "ravel_step" if name == "step" else prometheus_name(name)
    assert samples[wanted] == value, (wanted, samples.get(wanted), value)
    count += 1
assert len(samples) == count, set(samples)
busy = [s for s in families["ravel_rank_busy_seconds"].samples]
assert [s.labels["rank"] for s in busy] == [str(i) for i in range(len(last["ranks"]["busy_sec"]))]
assert [s.value for s in busy] == last["ranks"]["busy_sec"]
assert all(f.documentation for f in families.values())
assert all(f.type == ("counter" if f.samples[0].name.endswith("_total") else "gauge") for f in families.values())
print(f"prometheus_client parsed {count} metrics")
