# The same image as its base, but as it would be had nobody ever installed Ray (msgpack came with Ray alone).
ARG BASE
FROM ${BASE}
RUN pip uninstall --quiet --yes ray msgpack \
 && rm -rf /opt/venv/lib/python3.11/site-packages/ray
