"""The environments of row `score`: vLLM on CPUs, and Ray Data LLM beside it."""

from pathlib import Path

from environments import environment, site_of

# One thread each, in every peer: with two, transformers was ten times slower than with one.
PINNED = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def environment_of_vllm(may_make: bool) -> Path | None:
    without = ("torchvision", "torchaudio", "torchcodec")
    return environment("vllm", "bench/requirements-vllm.txt", may_make, without=without)


def environment_of_ray_llm(may_make: bool, vllm: Path) -> Path | None:
    beside = f"{site_of(vllm)}\n"
    return environment("vllm-ray", "bench/requirements-vllm-ray.txt", may_make, beside=beside)
