# vllm-node of scenario.md: vLLM 0.14.1 in site-packages, Ray, nothing of its own as entrypoint. Knows no Qwen3.5.
ARG BASE
FROM ${BASE}
ARG WHEELS
COPY node.txt install_distribution.py /opt/recipe/
RUN pip install --no-cache-dir --disable-pip-version-check --progress-bar off \
      --no-index --find-links "${WHEELS}" --no-deps --no-compile --requirement /opt/recipe/node.txt \
 && python /opt/recipe/install_distribution.py /opt/venv/lib/python3.11/site-packages \
 && rm -r /opt/recipe \
 && { python -m compileall -q -j 0 /opt/venv/lib/python3.11/site-packages/vllm > /dev/null || true; }
WORKDIR /workspace
CMD ["bash"]
