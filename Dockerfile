# syntax=docker/dockerfile:1
# Two images from one source: `server` (processor, store, command line; the default) and `agent`
# (an inference node's base install, a fraction of the size).
#
#   docker build -t moescope:0.1.0 .
#   docker build -t moescope-agent:0.1.0 --target agent .

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# ---- the environments, made in stages whose leftovers are not kept ----

FROM ${PYTHON_IMAGE} AS server-environment
WORKDIR /source
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_CACHE_DIR=/var/cache/pip
COPY requirements/server.txt requirements/server.txt
RUN --mount=type=cache,target=/var/cache/pip \
    python -m venv /opt/moescope \
    && /opt/moescope/bin/pip install --require-hashes -r requirements/server.txt
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY core core
COPY producers producers
COPY processors processors
COPY storage storage
COPY jobs jobs
COPY console console
# The build backend is pinned among the requirements: nothing else is fetched.
RUN /opt/moescope/bin/python -m hatchling build -t wheel -d /wheel \
    && /opt/moescope/bin/pip install --no-deps --no-index /wheel/*.whl

FROM ${PYTHON_IMAGE} AS agent-environment
WORKDIR /source
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_CACHE_DIR=/var/cache/pip
COPY requirements/base.txt requirements/base.txt
RUN --mount=type=cache,target=/var/cache/pip \
    python -m venv /opt/moescope \
    && /opt/moescope/bin/pip install --require-hashes -r requirements/base.txt
COPY --from=server-environment /wheel /wheel
RUN /opt/moescope/bin/pip install --no-deps --no-index /wheel/*.whl

# ---- what both images have in common ----

FROM ${PYTHON_IMAGE} AS runtime
# Fixed numbers: volumes and Kubernetes security contexts name them. The folders belong to the user
# before they become volumes, so that new named volumes do, too.
RUN groupadd --gid 10001 moescope \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/moescope \
       --shell /usr/sbin/nologin moescope \
    && install -d -o moescope -g moescope -m 0750 /var/lib/moescope /var/cache/moescope
# The root file system may be read-only: compiled kernels go to the cache, all else to the data
# directory and /tmp.
ENV PATH=/opt/moescope/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NUMBA_CACHE_DIR=/var/cache/moescope \
    MOESCOPE_DATA_DIRECTORY=/var/lib/moescope
WORKDIR /var/lib/moescope
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="moescope" \
      org.opencontainers.image.description="Watch how Mixture-of-Experts models route tokens to experts, window by window" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
ENTRYPOINT ["moescope"]

FROM runtime AS agent
COPY --from=agent-environment /opt/moescope /opt/moescope
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=3 \
    CMD ["moescope", "doctor", "--component", "agent"]
CMD ["run", "agent"]

FROM runtime AS server
COPY --from=server-environment /opt/moescope /opt/moescope
HEALTHCHECK --interval=15s --timeout=10s --start-period=180s --retries=3 \
    CMD ["moescope", "doctor", "--component", "store"]
CMD ["run", "store"]
