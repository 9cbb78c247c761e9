# warpfit on NVIDIA's CUDA runtime image. The host needs a driver for CUDA 13 and NVIDIA's container toolkit.
#
#   docker build -t warpfit .
#   docker run --rm --gpus all -v warpfit:/home/warpfit warpfit train
#
# The volume keeps data, compiled kernels and runs/ from one container to the next.
FROM nvidia/cuda:13.0.1-runtime-ubuntu24.04

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 warpfit

WORKDIR /opt/warpfit
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir '.[cli,plot,cuda]'
ENV PATH="/opt/venv/bin:${PATH}"

USER 10001
WORKDIR /home/warpfit
ENTRYPOINT ["warpfit"]
CMD ["--help"]
