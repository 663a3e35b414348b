FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY crates crates
# The commit, which the audit log and `rcfarm version` then name.
ARG RCFARM_BUILD=
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin rcfarm && cp target/release/rcfarm /usr/local/bin/

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libssl3 tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --no-create-home --shell /usr/sbin/nologin rcfarm \
    && install --directory --owner=rcfarm --group=rcfarm --mode=0711 /var/lib/rcfarm
COPY --from=build /usr/local/bin/rcfarm /usr/local/bin/
USER rcfarm
# As process 1, tini waits for processes that pods leave behind.
ENTRYPOINT ["tini", "--", "rcfarm"]
CMD ["help"]
