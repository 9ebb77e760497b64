# Never built by a container runtime on the machines where this project was developed: there is none. The steps of the env image are carried out in a
# Debian root, and its server is started there, by `bash tests/run.sh long -k environment_image`. Read the train image as a recipe, and report what breaks.
#   docker build --target env   -t openrlhf-tir-env .     environment servers: torch-free, bubblewrap inside
#   docker build --target train -t openrlhf-tir .         training image for NVIDIA GPUs
# The env image needs unprivileged user namespaces for its sandbox, and an unmasked /proc for its warm workers:
#   docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined \
#     -e TIR_ENV_TOKEN=... -p 8000:8000 openrlhf-tir-env
# On a host with Ubuntu 24.04 or later besides: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0
# The training image needs shared memory for Ray's object store and file pushes, and RDMA the right to pin memory:
#   docker run --gpus all --shm-size 64g --ulimit memlock=-1 --network host ...
# It needs NVIDIA driver 580 or later (CUDA 13). flash-attn is left out, as it compiles for tens of CPU hours: --build-arg WITH_FLASH_ATTN=1 adds it.

FROM python:3.11-slim-bookworm AS env
# hadolint ignore=DL3008  # an old version of a package is gone from the archive within weeks
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY setup.py pyproject.toml LICENSE ./
COPY openrlhf_tir openrlhf_tir
COPY env_servers env_servers
COPY miniatures miniatures
# hadolint ignore=DL3013  # what stands here, with the versions of its pyproject.toml
RUN pip install --no-cache-dir ".[env]" && useradd --create-home --uid 1000 tir
USER 1000
EXPOSE 8000
ENTRYPOINT ["python", "-m", "env_servers.python_tir", "--host", "0.0.0.0", "--port", "8000"]

# wget is what KubeRay asks a pod's health with (before 1.6): pods without it are ended.
FROM nvidia/cuda:13.0.1-devel-ubuntu22.04 AS train
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PATH=/opt/venv/bin:$PATH
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends software-properties-common \
    && add-apt-repository ppa:deadsnakes/ppa \
    && apt-get install -y --no-install-recommends python3.11 python3.11-venv python3.11-dev g++ git bubblewrap openssh-client iproute2 procps wget \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY requirements.txt requirements-nodeps.txt requirements-puzzles.txt requirements-flash-attn.txt ./
ARG WITH_FLASH_ATTN=
RUN python3.11 -m venv /opt/venv \
    && pip install -r requirements.txt \
    && pip install --no-deps --no-build-isolation -r requirements-nodeps.txt -r requirements-puzzles.txt \
    && if [ -n "$WITH_FLASH_ATTN" ]; then MAX_JOBS=8 pip install --no-deps --no-build-isolation -r requirements-flash-attn.txt; fi
COPY . .
RUN pip install --no-deps --no-build-isolation -e .
ENTRYPOINT ["openrlhf-tir"]
CMD ["--help"]
