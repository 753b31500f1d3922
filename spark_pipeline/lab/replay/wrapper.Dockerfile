# An engine that really serves, as some publish it: no Ray, and an entrypoint that serves by itself.
ARG BASE
FROM ${BASE}
COPY bin/serve-by-itself /usr/local/bin/serve-by-itself
RUN pip uninstall --quiet --yes ray msgpack \
 && rm -rf /opt/recipe /opt/venv/lib/python3.11/site-packages/ray \
 && chmod 755 /usr/local/bin/serve-by-itself
ENTRYPOINT ["/usr/local/bin/serve-by-itself"]
