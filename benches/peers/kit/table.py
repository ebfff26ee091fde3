"""The figures as Markdown: medians of the rounds; with several rounds also the smallest and the largest."""

from kit.figures import median


def markdown(report):
    """Returns the report."""
    return "\n".join([*_head(report), *_throughput(report, "drain"), *_throughput(report, "continuous"),
                      *_latency(report), *_pgbench(report), *_rabbitmq(report), *_ratios(report), *_missing(report)])


def _head(report):
    machine, load = report["machine"], report["load"]
    options = report["options"]
    return [
        f"{machine['model']}, {machine['processors']} processors, {machine['memory_gib']} GiB, Linux "
        f"{machine['kernel']}; load before {load['before']}, after {load['after']}. "
        + "; ".join(f"{name} {version}" for name, version in report["versions"].items()) + ". "
        f"{options['jobs']:,} jobs, {options['seconds']} s, {options['rounds']} "
        f"{'round' if options['rounds'] == 1 else 'rounds'}."]


def _table(title, heads, rows):
    if not rows:
        return []
    return ["", f"### {title}", "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads),
            *("| " + " | ".join(row) + " |" for row in rows)]


def _of(report, workload):
    """Returns the contenders in the order of their first runs, with their rounds."""
    found = {}
    for result in report["results"]:
        if result["workload"] == workload:
            found.setdefault(result["contender"], []).append(result)
    return found


def _number(value):
    if value is None:
        return "–"
    digits = next((digits for least, digits in ((100, 0), (10, 1), (1, 2)) if abs(value) >= least), 3)
    return f"{value:,.{digits}f}"


def _spread(values):
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return _number(median(known))
    return f"{_number(median(known))} ({_number(min(known))} to {_number(max(known))})"


def _throughput(report, workload):
    titles = {"drain": "Drain: jobs that wait already", "continuous": "Continuous: jobs created and run at once"}
    heads = ["contender", "jobs/s", "statements a job", "CPU µs a job: database", "broker", "worker", "together"]
    found = _of(report, workload)
    if workload == "continuous":
        heads.insert(-1, "creator")
        found |= _of(report, "own")
    rows = []
    for contender, results in found.items():
        cpu = [result["cpu"] for result in results]
        row = [contender, _spread([result["jobs_per_second"] for result in results]),
               _number(median([result["statements_per_job"] for result in results]))]
        names = ["database", "broker", "worker", "producer"]
        if workload == "drain":
            # Jobwire has a producer here, too: it receives a report of each start, which is not part of the work.
            names.pop()
        row += [_number(median([one[name] for one in cpu])) for name in names]
        row.append(_number(median([sum(one[name] or 0 for name in names) for one in cpu])))
        rows.append(row)
    return _table(titles[workload], heads, rows)


def _latency(report):
    lines = []
    for rate in report["options"]["rates"]:
        rows = [[contender, *(_spread([result[times][percentile] for result in results])
                              for times, percentile in (("commit_to_start", "p50"), ("commit_to_start", "p99"),
                                                        ("arrival_to_start", "p99"))),
                 *(_number(median([result[name] for result in results]))
                   for name in ("statements_per_job", "statements_per_job_after_creation"))]
                for contender, results in _of(report, f"latency-{rate}").items()]
        lines += _table(f"Latency at {rate:,} jobs a second, in ms",
                        ["contender", "commit to start p50", "p99", "arrival to start p99", "statements a job",
                         "without the creating transaction"], rows)
    return lines


def _rounds(report, limit, key):
    found = {}
    for figures in report["limits"].get(limit, []):
        found.setdefault(tuple(figures[name] for name in key), []).append(figures)
    return found


def _pgbench(report):
    found = _rounds(report, "pgbench", ("rows", "clients"))
    columns = ["insert", "lock", "delete", "lock, delete", "insert, lock, delete"]
    rows = [[*map(str, key), *(_spread([one[name] for one in figures]) for name in columns)]
            for key, figures in found.items()]
    return _table("PostgreSQL's limit: rows/s of minimal statements (pgbench)",
                  ["rows a statement", "clients", *columns], rows)


def _rabbitmq(report):
    found = _rounds(report, "rabbitmq", ("hints", "bytes"))
    columns = ["publish", "consume", "both"]
    rows = [[*map(str, key), *(_spread([one[name] for one in figures]) for name in columns)]
            for key, figures in found.items()]
    return _table("RabbitMQ's limit: hints/s", ["hints a message", "bytes", *columns[:2], "both at once"], rows)


def _ratios(report):
    """The ratios within each round, which transfer to other machines best."""
    def speed(contender, workload):
        return {result["round"]: result["jobs_per_second"] for result in report["results"]
                if (result["contender"], result["workload"]) == (contender, workload)}

    best = {}
    for figures in report["limits"].get("pgbench", []):
        if figures["rows"] > 1:
            best[figures["round"]] = max(best.get(figures["round"], 0), figures["lock, delete"])
    pairs = []
    for held in ("", ", row locks"):
        ours = f"Jobwire, RabbitMQ{held}"
        pairs += [
            (f"drain: {ours} to River", speed(ours, "drain"), speed("River", "drain")),
            (f"drain: {ours} to graphile_worker (Rust)", speed(ours, "drain"), speed("graphile_worker (Rust)", "drain")),
            (f"drain: Jobwire, in-process{held} to pgbench's best lock, delete of 256 rows",
             speed(f"Jobwire, in-process{held}", "drain"), best),
            (f"continuous: {ours} to River, same load", speed(ours, "continuous"), speed("River", "continuous")),
            (f"continuous: {ours} to River, as its own benchmark", speed(ours, "continuous"),
             speed("River, as its own benchmark", "own")),
        ]
    rows = [[name, _spread([upper[number] / lower[number] for number in upper.keys() & lower.keys()])]
            for name, upper, lower in pairs if upper.keys() & lower.keys()]
    return _table("Ratios of this run", ["what", "ratio"], rows)


def _missing(report):
    lines = [f"{name}: missing: {reason}" for name, reason in report["missing"].items()]
    lines += [f"{name}: FAILED: {reason}" for name, reason in report["failed"].items()]
    return ["", *lines] if lines else []
