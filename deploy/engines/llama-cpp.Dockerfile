# llama.cpp's server as an image, for the container delivery: processors only, x86-64 and arm64.
# Built from the top of the repository; see deploy/engines/README.md.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
FROM ${PYTHON_IMAGE}

RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 libstdc++6 \
    && rm -rf /var/lib/apt/lists/*

# only the engine out of the locked requirements; the starter model stays out of the image
COPY requirements/engine.txt /tmp/engine.txt
RUN sed -n '/^xllamacpp==/,/# via/p' /tmp/engine.txt > /tmp/locked.txt \
    && pip install --no-cache-dir --no-deps --require-hashes -r /tmp/locked.txt \
    && rm /tmp/engine.txt /tmp/locked.txt

COPY agent/runtimes/llama_runner.py /opt/engine/llama_runner.py

# model files are mounted read-only and must be readable for this user
USER 65534:65534
EXPOSE 8080
ENTRYPOINT ["python3", "-P", "/opt/engine/llama_runner.py"]
