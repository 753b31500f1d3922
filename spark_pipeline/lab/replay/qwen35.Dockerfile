# vllm-qwen3.5-gb10 of scenario.md: vLLM 0.17.0 as a source tree on the path and as no distribution, Ray in it and
# unused, an entrypoint that serves by itself and never comes back. PYTHONPATH is every Python's, also of the one that
# has no torch: which Python serves is to be found out.
ARG BASE
FROM ${BASE}
ARG WHEELS
COPY qwen35.txt source_tree.py bin/ /opt/recipe/
RUN pip install --no-cache-dir --disable-pip-version-check --progress-bar off --target /opt/vllm \
      --no-index --find-links "${WHEELS}" --no-deps --no-compile --requirement /opt/recipe/qwen35.txt \
 && python /opt/recipe/source_tree.py /opt/vllm \
 && install -m 755 /opt/recipe/serve-by-itself /usr/local/bin/serve-by-itself \
 && install -m 755 /opt/recipe/vllm /opt/venv/bin/vllm \
 && rm -rf /opt/recipe /opt/vllm/bin \
 && { python -m compileall -q -j 0 /opt/vllm > /dev/null || true; }
ENV PYTHONPATH=/opt/vllm
WORKDIR /opt/vllm
ENTRYPOINT ["/usr/local/bin/serve-by-itself"]
