"""Who held which slot when, as an SVG: a row a slot, a bar an attempt, read from the jobs as the server tells them."""

from html import escape

COLOURS = ["#4a6fa5", "#c8703a", "#5b8a4a", "#8a5ba0", "#a08a3a"]  # a job
LEFT, TOP, WIDTH, ROW, GAP = 120, 64, 900, 22, 10  # GAP between hosts


def _label(attempt: dict, guaranteed: int | None, width: float) -> str:
    """What fits a bar of that width."""
    workers = int(attempt["workers"])
    plain = f"{workers} worker{'s' if workers > 1 else ''}"
    borrowed = (
        f"{plain}, {workers - guaranteed} borrowed"
        if guaranteed is not None and workers > guaranteed
        else plain
    )
    return next(
        (text for text in (borrowed, plain, str(workers)) if len(text) * 6.5 + 12 < width), ""
    )


def timeline(
    jobs: list[dict],
    slots: dict[str, int],
    guaranteed: dict[str, int],
    marks: list[tuple[int, str]],
) -> str:
    """`slots`: of each host "cluster/host"; `guaranteed`: slots of a job's queue where it runs, by job number; `marks`: (Unix time in ns, text)."""
    held = [
        (number, job, task, attempt)
        for number, job in enumerate(jobs)
        for task in job["tasks"]
        for attempt in task["attempts"]
        if int(attempt["start_ns"])
    ]
    begin = min(int(attempt["start_ns"]) for *_, attempt in held)
    end = max(int(attempt["end_ns"]) for *_, attempt in held)
    tops, y = {}, TOP
    for host, count in slots.items():
        for slot in range(count):
            tops[host, slot] = y
            y += ROW
        y += GAP
    height = y + 46

    def x(at_ns: int) -> float:
        return round(LEFT + (at_ns - begin) / max(1, end - begin) * (WIDTH - LEFT - 20), 1)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for number, job in enumerate(jobs):
        out.append(
            f'<rect x="{LEFT + number * 220}" y="14" width="14" height="14" rx="3" fill="{COLOURS[number % len(COLOURS)]}"/>'
            f'<text x="{LEFT + 20 + number * 220}" y="26" fill="#222">job {job["number"]} {escape(job["spec"]["name"])} ({escape(job["spec"]["queue"])})</text>'
        )
    for (host, slot), top in tops.items():
        out.append(
            f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - 20}" height="{ROW - 3}" fill="#f2f3f5"/>'
        )
        out.append(
            f'<text x="{LEFT - 10}" y="{top + 14}" text-anchor="end" fill="#445">{escape(host)} {slot}</text>'
        )
    for number, job, _, attempt in held:
        left, right = x(int(attempt["start_ns"])), x(int(attempt["end_ns"]))
        text = _label(attempt, guaranteed.get(job["number"]), right - left)
        for placement in attempt["placements"]:
            for device in placement["devices"]:
                top = tops[f"{attempt['cluster']}/{placement['host']}", int(device)]
                out.append(
                    f'<rect x="{left}" y="{top}" width="{max(2, right - left - 1):.1f}" height="{ROW - 3}" rx="3" fill="{COLOURS[number % len(COLOURS)]}"/>'
                )
                if text:
                    out.append(
                        f'<text x="{left + 6}" y="{top + 14}" fill="#fff">{escape(text)}</text>'
                    )
                text = ""  # once an attempt
    bottom = y - GAP
    for at_ns, text in marks:
        out.append(
            f'<path d="M{x(at_ns)} {TOP - 14}V{bottom}" stroke="#b03030" stroke-width="1.5" stroke-dasharray="3 3"/>'
            f'<text x="{x(at_ns)}" y="{TOP - 18}" text-anchor="middle" fill="#b03030">{escape(text)}</text>'
        )
    seconds = (end - begin) / 1e9
    step = next(each for each in (5, 10, 20, 30, 60, 120, 300, 600) if seconds / each <= 12)
    for tick in range(0, int(seconds) + 1, step):
        at = x(begin + tick * 10**9)
        out.append(
            f'<path d="M{at} {bottom}v5" stroke="#445"/><text x="{at}" y="{bottom + 20}" text-anchor="middle" fill="#445">{tick} s</text>'
        )
    return "\n".join([*out, "</svg>", ""])
