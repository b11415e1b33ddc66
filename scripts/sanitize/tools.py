"""compute-sanitizer over every kernel: four tools, every family, many at a time, one log.

    python scripts/sanitize/tools.py --out perf/results/h100/sanitizer.txt --budget 280
    python scripts/sanitize/tools.py --out perf/results/h100/sanitizer.txt --budget 280 --missing
    python scripts/sanitize/tools.py --tool racecheck --family rows,scan

An entry is a tool over a family, or over a part of a long one. One that did not end within --limit
or --budget is logged as such, which is no pass; --missing runs all but those that this log calls
clean. memcheck and initcheck run without torch's caching of memory: each tensor is its own
allocation, and what lies beside it is not another's. racecheck leaves out thread block clusters.
initcheck, which does not see TMA's writes, has new tensors filled with NaN in families that use it,
and in those that read what pads a row to whole vectors.
Exit code: 0 if all entries are clean, 1 if not.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent
TOOLS = ("racecheck", "synccheck", "initcheck", "memcheck")  # the slowest first
# Families in the order of their length, and into how many processes one is divided.
PARTS = {
    "kernels": 6,
    "gemm": 4,
    "reduce": 3,
    "gradients": 1,
    "fp8_matmul": 2,
    "edges": 12,
    "fp8_quantize": 1,
    "fp8_hidden": 1,
    "fp8_norm": 1,
    "narrow": 1,
    "thin": 1,
    "one_row": 1,
    "unaligned": 1,
    "conv": 1,
    "epilogue": 1,
    "rows": 1,
    "elementwise": 1,
    "losses": 1,
    "scan": 1,
    "embeddings": 1,
    "neighbours": 1,
    "sampling": 1,
    "offsets": 1,
}
# A library's kernels, which read what TMA wrote into their own memory.
FOREIGN = "regex=splitKreduce|nvjet"
POISONED = ("kernels", "gemm", "gradients", "fp8_matmul", "edges", "fp8_hidden", "narrow")
POISONED += ("epilogue", "conv", "losses", "rows", "embeddings")
FOUND_ERRORS = 97  # exit code of compute-sanitizer where its tool found something
SITES = 6  # places named for an entry that is not clean
# What keeps torch from making one allocation of many tensors.
APART = {"memcheck": True, "initcheck": True, "racecheck": False, "synccheck": False}


@dataclass(frozen=True)
class Entry:
    tool: str
    family: str
    part: str = "1/1"

    @property
    def name(self) -> str:
        return f"{self.tool} {self.family} {self.part}"


@dataclass
class Result:
    entry: Entry
    verdict: str  # "clean", or what it is instead
    details: list[str]
    seconds: float
    where: str = ""  # the GPU and torch


def entries(tools: list[str], families: list[str]) -> list[Entry]:
    return [
        Entry(tool, family, f"{part}/{PARTS[family]}")
        for family in PARTS
        for tool in TOOLS
        for part in range(1, PARTS[family] + 1)
        if tool in tools and family in families
    ]


def judge(entry: Entry, code: int | None, text: str, seconds: float) -> Result:
    """Reads what the tool printed; code None: it was stopped."""
    calls = re.search(r"^(\d+) calls, \d+ kinds, no error$", text, re.MULTILINE)
    where = re.search(r"^on (.+)$", text, re.MULTILINE)
    totals = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)", text)
    found = int(totals[-1]) if totals else -1
    said = [line for line in text.splitlines() if line.strip()]
    if code is None:
        verdict, details = "stopped by the time limit", said[-2:]
    elif found > 0 or code == FOUND_ERRORS:
        sites = Counter(re.findall(r"^=+\s+at (.+?)(?:\+0x\w+)?(?: in .*)?$", text, re.MULTILINE))
        kinds = Counter(
            re.findall(r"^=+ ((?:Invalid|Uninit|Error|Warning|Barrier|Prog).*?)$", text, re.M)
        )
        # The tool's own: no memory was left for a launch beside the other entries, as a rule.
        kinds.update(re.findall(r"^=+ (Internal Sanitizer Error).*$", text, re.M))
        verdict = f"{found} errors"
        details = [f"{count} x {line[:160]}" for line, count in kinds.most_common(SITES)]
        details += re.findall(r"^=+ Internal Sanitizer Error: .*(\([A-Z].*\))$", text, re.M)[:1]
        details += [f"{count} x at {line[:160]}" for line, count in sites.most_common(SITES)]
    elif code or found < 0 or not calls:
        verdict, details = f"broken, exit code {code}", said[-SITES:]
    else:
        verdict, details = "clean", []
    if calls:
        verdict += f", {calls[1]} calls"
    return Result(entry, verdict, details, seconds, where[1] if where else "")


class Runner:
    """Starts entries and ends them at the limit, with whatever they started."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stop = time.monotonic() + options.budget

    def run(self, entry: Entry) -> Result:
        left = min(self.stop - time.monotonic(), self.options.limit)
        if left <= 0:
            return Result(entry, "not started: the budget was spent", [], 0.0)
        command = [self.options.sanitizer, "--tool", entry.tool, "--print-limit", "20"]
        poisons = entry.tool == "initcheck" and entry.family in POISONED
        command += ["--kernel-name-exclude", FOREIGN] if poisons else []
        command += ["--error-exitcode", str(FOUND_ERRORS), sys.executable, str(PROGRAM)]
        command += [entry.family, "--part", entry.part, "--device", self.options.device]
        command += ["--no-clusters"] if entry.tool == "racecheck" else []
        command += ["--poison"] if poisons else []
        environment = dict(os.environ)
        if APART[entry.tool]:
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        begin = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(timeout=left)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
                code = None
            output.seek(0)
            text = output.read()
        return judge(entry, code, text, time.monotonic() - begin)


def read_log(path: Path) -> dict[str, list[str]]:
    """Lines of an entry in an earlier log, by the entry's name."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in path.read_text().splitlines() if path.exists() else []:
        head = re.match(r"(\w+check \w+ \d+/\d+): ", line)
        if head:
            name = head[1]
            found[name] = [line]
        elif name and line.startswith("    "):
            found[name].append(line)
    return found


def is_clean(lines: list[str]) -> bool:
    return lines[0].partition(": ")[2].startswith("clean, ")


def write_log(path: Path, lines: dict[str, list[str]]) -> None:
    ordered = [e.name for e in entries([*TOOLS], [*PARTS]) if e.name in lines]
    ordered.sort(key=lambda name: TOOLS.index(name.split()[0]))
    clean = sum(is_clean(lines[name]) for name in ordered)
    head = f"# compute-sanitizer over every kernel (scripts/sanitize/tools.py): {clean} of "
    text = [f"{head}{len(entries([*TOOLS], [*PARTS]))} entries clean"]
    text += [line for name in ordered for line in lines[name]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(text) + "\n")


def _names(known: tuple[str, ...], text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; choose from {', '.join(known)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sanitize/tools.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--tool", type=lambda t: _names(TOOLS, t), default=[*TOOLS], metavar="NAME,...")
    add("--family", type=lambda t: _names(tuple(PARTS), t), default=[*PARTS], metavar="NAME,...")
    add("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="at a time")
    add("--limit", type=float, default=600.0, metavar="SECONDS", help="of an entry")
    add("--budget", type=float, default=1e9, metavar="SECONDS", help="of all")
    add("--out", type=Path, metavar="FILE", help="the log; entries that ran replace what it says")
    add("--missing", action="store_true", help="leave out what --out calls clean")
    add("--commit", default="", help="named in the log; default: the checkout's")
    add("--device", default="cuda", help="cpu: a trial of this program")
    add("--sanitizer", default="compute-sanitizer", help="the program")
    return parser


def main() -> int:
    options = _parser().parse_args()
    if not shutil.which(options.sanitizer):
        raise SystemExit(f"sanitize: no {options.sanitizer}; it is part of the CUDA toolkit")
    lines = read_log(options.out) if options.out else {}
    wanted = entries(options.tool, options.family)
    if options.missing:
        wanted = [e for e in wanted if not (e.name in lines and is_clean(lines[e.name]))]
    from fusedops.bench import machine

    stamp = f"{options.commit or machine.commit()} {machine.today()}"
    runner, clean = Runner(options), 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(runner.run, entry) for entry in wanted]):
            result = done.result()
            name = result.entry.name
            where = f"{result.where}, " if result.where else ""
            head = f"{name}: {result.verdict}, {result.seconds:.0f} s"
            lines[name] = [f"{head}, {where}{stamp}", *(f"    {line}" for line in result.details)]
            if options.out:
                write_log(options.out, lines)
            if is_clean(lines[name]):
                clean += 1
            else:
                print("\n".join(lines[name]), flush=True)
    print(f"{clean} of {len(wanted)} entries clean")
    return 0 if clean == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
