"""`make bench`: the speed of the CPU executor on SmolLM2-135M in four formats, or beside llama.cpp.

With `--llama-cpp FOLDER` (a build folder with llama-bench, llama-quantize, llama-server in bin/)
each round runs both engines one after the other, and the medians of the rounds' ratios are printed:
on a shared machine only ratios within one round mean anything. The rows are a prompt of 512 and one
sequence in the executor alone, then 1 and 16 clients over HTTP; `fast` is `--cpu-precision fast`,
where the processor has it. `INGLE_CPU_PATH` chooses the vector path. Needs the release build of the
wheel in .venv-bench and of the cpu_bench example; the Makefile makes both.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingle.bench.run import BenchOptions, measure
from ready import wait_until_ready

PORT = 18432
FORMATS = {"bf16": "BF16", "q8_0": "Q8_0", "q4_1": "Q4_1", "q4_k": "Q4_K_M"}
"""What llama-quantize calls each format."""
NOT_WITHOUT_LLAMA_CPP = ("q4_k",)
"""Formats that the gguf package reads and does not write."""
PARTS = {
    "prompt of 512": ("prompt512", r"^prompt 512: ([\d.]+) tok/s", ["-p", "512", "-n", "0"]),
    "1 sequence": ("decode1/", r"^decode batch 1: ([\d.]+) tok/s", ["-p", "0", "-n", "128"]),
}
"""Name -> part of cpu_bench, its line, the arguments of llama-bench."""
CLIENTS = {1: 6, 16: 32}
"""Clients of a server -> requests in all."""


@dataclass(frozen=True)
class Bench:
    """What is measured, and with what."""

    cpu_bench: Path
    ingle: Path
    llama_bin: Path | None
    threads: int
    precisions: tuple[str, ...]

    def columns(self) -> list[str]:
        """The engines, in the order in which each round runs them."""
        ours = ["ingle" if precision == "exact" else "ingle fast" for precision in self.precisions]
        return [*ours, *(["llama.cpp"] if self.llama_bin else [])]


def gguf_of(source: Path, cache: Path, name: str, llama_bin: Path | None) -> Path:
    """SmolLM2 in a format: the demo model itself, by llama-quantize, or by the gguf package."""
    if name == "q4_1":
        return source
    target = cache / f"SmolLM2-135M-Instruct.{FORMATS[name]}.gguf"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    if llama_bin is not None:
        quantize = [llama_bin / "llama-quantize", "--allow-requantize", source, part]
        subprocess.run([*quantize, FORMATS[name], "2"], check=True, capture_output=True)
    else:
        write_gguf(source, part, FORMATS[name])
    part.rename(target)
    return target


def write_bf16(source: Path, target: Path) -> None:
    """Copies a GGUF with every matrix as bf16; vectors stay f32."""
    write_gguf(source, target, "BF16")


def write_gguf(source: Path, target: Path, kind: str) -> None:
    """Copies a GGUF with every matrix in a format that the gguf package can write."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
    from gguf.quants import dequantize, quantize

    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture)
    for name, entry in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        value_type, *element = entry.types
        writer.add_key_value(name, entry.contents(), value_type, element[0] if element else None)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        wanted = GGMLQuantizationType[kind] if values.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def precisions_of(ingle: Path) -> tuple[str, ...]:
    """The values of `--cpu-precision` that work here, as `ingle doctor` says."""
    report = subprocess.run([ingle, "doctor", "--json"], check=True, capture_output=True).stdout
    found = json.loads(report)["cpu"]["cpu_precision"]
    return tuple(found["value"] if isinstance(found, dict) else found)


def our_speed(bench: Bench, model: Path, name: str, precision: str) -> float:
    """Tokens per second of our executor without a server."""
    part, pattern, _ = PARTS[name]
    command = [bench.cpu_bench, model, str(bench.threads), part, "auto", precision]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = re.search(pattern, output, re.MULTILINE)
    if match is None:
        sys.exit(f"cpu_bench printed no line for {name!r}")
    return float(match.group(1))


def their_speed(bench: Bench, llama_bin: Path, model: Path, name: str) -> float:
    """The same figure from llama-bench."""
    command = [llama_bin / "llama-bench", "-m", model, "-t", str(bench.threads), *PARTS[name][2]]
    output = subprocess.run([*command, "-o", "json"], check=True, capture_output=True).stdout
    return float(json.loads(output)[0]["avg_ts"])


def serve(command: list[str], health: str, clients: int, seed: int) -> float:
    """Output tokens per second of a server under `clients` clients, 128 tokens in, 64 out."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(server, PORT, health, limit_s=60.0)
        options = BenchOptions(
            f"http://127.0.0.1:{PORT}",
            model="bench",
            num_requests=CLIENTS[clients],
            concurrency=clients,
            lengths="fixed:128:64",
            processes=1,
            new_connections=True,
            seed=seed,
        )
        report, _ = measure(options)
        if report.requests_failed:
            sys.exit(f"{command[0]}: {report.errors}")
        return report.output_tokens_per_s
    finally:
        server.terminate()
        server.wait()


def our_server(bench: Bench, model: Path, precision: str) -> list[str]:
    """16 clients share one server, as llama-server's slots do."""
    flags = ["--device", "cpu", "--served-model-name", "bench", "--max-model-len", "1024"]
    flags += ["--cpu-threads", str(bench.threads), "--cpu-precision", precision]
    return [str(bench.ingle), "serve", str(model), "--port", str(PORT), *flags, "--max-num-seqs=16"]


def their_server(bench: Bench, llama_bin: Path, model: Path) -> list[str]:
    """llama-server with 16 slots of 1024 tokens."""
    flags = ["-t", str(bench.threads), "-tb", str(bench.threads), "-np", "16", "-c", "16384"]
    return [str(llama_bin / "llama-server"), "-m", str(model), "--port", str(PORT), *flags]


def round_of(bench: Bench, model: Path, seed: int) -> dict[str, list[float]]:
    """One round of a format: row -> a figure for each of the columns."""
    rows: dict[str, list[float]] = {}
    for name in PARTS:
        rows[name] = [our_speed(bench, model, name, precision) for precision in bench.precisions]
        if bench.llama_bin is not None:
            rows[name].append(their_speed(bench, bench.llama_bin, model, name))
    for clients in CLIENTS:
        commands = [(our_server(bench, model, p), "/ready") for p in bench.precisions]
        if bench.llama_bin is not None:
            commands.append((their_server(bench, bench.llama_bin, model), "/health"))
        name = f"{clients} client{'s' * (clients > 1)}, HTTP"
        rows[name] = [serve(command, health, clients, seed) for command, health in commands]
    return rows


def table(columns: list[str], rounds: dict[str, list[dict[str, list[float]]]]) -> list[str]:
    """Markdown: medians of tok/s, and of each round's ratios to the last column."""
    ratios = [f"{name} / llama.cpp" for name in columns[:-1]] if "llama.cpp" in columns else []
    heads = ["format", "tok/s", *columns, *ratios]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, of_format in rounds.items():
        for row in of_format[0]:
            figures = list(zip(*(of_round[row] for of_round in of_format), strict=True))
            cells = [f"{statistics.median(column):.1f}" for column in figures]
            for column in figures[: len(ratios)]:
                pairs = zip(column, figures[-1], strict=True)
                cells.append(f"{statistics.median(ours / theirs for ours, theirs in pairs):.2f}")
            lines.append(f"| {' | '.join([name, row, *cells])} |")
    return lines


def names_of(text: str) -> list[str]:
    """A list of formats with commas between."""
    names = text.split(",")
    if unknown := [name for name in names if name not in FORMATS]:
        allowed = ", ".join(FORMATS)
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {allowed}")
    return names


def whole_number(least: int) -> Callable[[str], int]:
    """A parser of whole numbers."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least}, not {text!r}")
        return int(text)

    return parse


def main() -> int:
    """Prints a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--cpu-bench", type=Path, required=True)
    parser.add_argument("--ingle", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--threads", type=whole_number(1), default=2)
    parser.add_argument("--rounds", type=whole_number(1), default=3)
    parser.add_argument("--formats", type=names_of, default=list(FORMATS), metavar="bf16,q8_0,..")
    arguments = parser.parse_args()
    llama_bin = arguments.llama_cpp / "bin" if arguments.llama_cpp else None
    precisions = precisions_of(arguments.ingle)
    bench = Bench(arguments.cpu_bench, arguments.ingle, llama_bin, arguments.threads, precisions)
    names = arguments.formats
    if llama_bin is None and (left_out := [n for n in names if n in NOT_WITHOUT_LLAMA_CPP]):
        print(f"left out, since llama-quantize makes it: {', '.join(left_out)}", flush=True)
        names = [name for name in names if name not in left_out]
    models = {name: gguf_of(arguments.gguf, arguments.cache, name, llama_bin) for name in names}
    rounds: dict[str, list[dict[str, list[float]]]] = {name: [] for name in names}
    for seed in range(1, arguments.rounds + 1):
        for name, model in models.items():
            rounds[name].append(round_of(bench, model, seed))
            print(f"round {seed}, {name}: {json.dumps(rounds[name][-1])}", flush=True)
    print(f"\nmedians of {arguments.rounds} rounds, {arguments.threads} threads each")
    print("\n".join(table(bench.columns(), rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
