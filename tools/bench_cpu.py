"""`make bench`: the CPU executor's speed on SmolLM2-135M in bf16, alone or beside llama.cpp.

With `--llama-cpp FOLDER` (a build folder with llama-bench, llama-quantize, llama-server in bin/)
each round runs both engines one after the other, and the medians of the rounds' ratios are printed:
on a shared machine only ratios within one round mean anything. Needs the release build of the wheel
in .venv-bench and of the cpu_bench example; the Makefile makes both.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

from ingle.bench.run import BenchOptions, measure
from ready import wait_until_ready

PORT = 18432
# name -> (our pattern in cpu_bench's output, llama-bench arguments)
LINES = {
    "prompt 512": (r"^prompt 512: ([\d.]+) tok/s", ["-p", "512", "-n", "0"]),
    "generation": (r"^decode batch 1: ([\d.]+) tok/s", ["-p", "0", "-n", "128"]),
}


def bf16_gguf(source: Path, cache: Path, llama_bin: Path | None) -> Path:
    """SmolLM2 with bf16 weights: by llama-quantize, or by the gguf package."""
    target = cache / "SmolLM2-135M-Instruct.BF16.gguf"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    if llama_bin is not None:
        command = [llama_bin / "llama-quantize", "--allow-requantize", source, part, "BF16", "2"]
        subprocess.run(command, check=True, capture_output=True)
    else:
        write_bf16(source, part)
    part.rename(target)
    return target


def write_bf16(source: Path, target: Path) -> None:
    """Copies a GGUF with every matrix as bf16; vectors stay f32."""
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
        kind = GGMLQuantizationType.BF16 if values.ndim > 1 else GGMLQuantizationType.F32
        data = quantize(values, kind)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def cpu_bench(binary: Path, model: Path, threads: int) -> dict[str, float]:
    """Our executor without a server; prints its lines, which hold GFLOP/s and GB/s too."""
    command = [binary, model, str(threads)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print("  " + output.strip().replace("\n", "\n  "), flush=True)
    found = {}
    for name, (pattern, _) in LINES.items():
        match = re.search(pattern, output, re.MULTILINE)
        if match is None:
            sys.exit(f"cpu_bench printed no line for {name!r}")
        found[name] = float(match.group(1))
    return found


def llama_bench(llama_bin: Path, model: Path, threads: int) -> dict[str, float]:
    """The same figures from llama-bench."""
    found = {}
    for name, (_, arguments) in LINES.items():
        command = [llama_bin / "llama-bench", "-m", model, "-t", str(threads), *arguments]
        output = subprocess.run(
            [*command, "-o", "json"], check=True, capture_output=True, text=True
        ).stdout
        found[name] = float(json.loads(output)[0]["avg_ts"])
    return found


def serve(command: list[str], health: str, clients: int, seed: int) -> float:
    """Output tokens per second of a server under `clients` clients, 128 tokens in, 64 out."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(server, PORT, health, limit_s=60.0)
        options = BenchOptions(
            f"http://127.0.0.1:{PORT}",
            model="bench",
            num_requests=4 * clients,
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


def our_server(ingle: Path, model: Path) -> list[str]:
    """16 clients share one prefix-cache-free server, as llama-server's slots do."""
    flags = ["--device", "cpu", "--served-model-name", "bench", "--max-model-len", "1024"]
    return [str(ingle), "serve", str(model), "--port", str(PORT), "--max-num-seqs", "16", *flags]


def their_server(llama_bin: Path, model: Path, threads: int) -> list[str]:
    """llama-server with 16 slots of 1024 tokens."""
    flags = ["-t", str(threads), "-tb", str(threads), "-np", "16", "-c", "16384"]
    return [str(llama_bin / "llama-server"), "-m", str(model), "--port", str(PORT), *flags]


def round_of(arguments: argparse.Namespace, model: Path, seed: int) -> dict[str, list[float]]:
    """One round: name -> [ours] or [ours, theirs]."""
    threads = arguments.threads
    rows = {name: [value] for name, value in cpu_bench(arguments.cpu_bench, model, threads).items()}
    if arguments.llama_bin is not None:
        for name, value in llama_bench(arguments.llama_bin, model, threads).items():
            rows[name].append(value)
    for clients in (1, 16):
        name = f"server, {clients} clients"
        rows[name] = [serve(our_server(arguments.ingle, model), "/ready", clients, seed)]
        if arguments.llama_bin is not None:
            command = their_server(arguments.llama_bin, model, threads)
            rows[name].append(serve(command, "/health", clients, seed))
    return rows


def main() -> int:
    """Prints a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=Path, required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--cpu-bench", type=Path, required=True)
    parser.add_argument("--ingle", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--llama-cpp", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    arguments.llama_bin = arguments.llama_cpp / "bin" if arguments.llama_cpp else None
    model = bf16_gguf(arguments.gguf, arguments.cache, arguments.llama_bin)
    rounds = [round_of(arguments, model, seed) for seed in range(1, arguments.rounds + 1)]
    print(f"\n{'tok/s, median of ' + str(len(rounds)) + ' rounds':<34}{'ingle':>10}", end="")
    print(f"{'llama.cpp':>12}{'ratio':>8}" if arguments.llama_bin else "")
    for name in rounds[0]:
        columns = list(zip(*(r[name] for r in rounds), strict=True))
        line = f"{name:<34}{statistics.median(columns[0]):>10.1f}"
        if arguments.llama_bin is not None:
            ratios = [ours / theirs for ours, theirs in zip(*columns, strict=True)]
            line += f"{statistics.median(columns[1]):>12.1f}{statistics.median(ratios):>8.2f}"
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
