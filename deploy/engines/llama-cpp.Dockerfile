# Image of the llama.cpp server for the container delivery: CPUs only, x86-64 and arm64.
# Build it from the root of the repository; see deploy/engines/README.md.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
FROM ${PYTHON_IMAGE}

RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 libstdc++6 \
    && rm -rf /var/lib/apt/lists/*

# only the engine of the locked requirements, without the starter model
COPY requirements/engine.txt /tmp/engine.txt
RUN sed -n '/^xllamacpp==/,/# via/p' /tmp/engine.txt > /tmp/locked.txt \
    && pip install --no-cache-dir --no-deps --require-hashes -r /tmp/locked.txt \
    && rm /tmp/engine.txt /tmp/locked.txt

COPY agent/runtimes/llama_runner.py /opt/engine/llama_runner.py

# model files are mounted read-only and must be readable by this user
USER 65534:65534
EXPOSE 8080
ENTRYPOINT ["python3", "-I", "/opt/engine/llama_runner.py"]
