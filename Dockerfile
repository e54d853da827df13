# The command in a small image, from what `cargo xtask dist` has packed:
#   cargo xtask dist && docker build -t stepfold .
#   docker run --rm -v ./data:/data stepfold serve /data/agent.toml --store /data/sessions.sqlite --bind 0.0.0.0:8477 --tokens /data/tokens
FROM debian:trixie-slim

# Providers and servers are reached over TLS, whose roots are those of the system.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --user-group --create-home stepfold \
    && mkdir /data && chown stepfold:stepfold /data

COPY target/dist/stepfold /usr/local/bin/stepfold

USER stepfold
WORKDIR /data
VOLUME /data
EXPOSE 8477
ENTRYPOINT ["stepfold"]
CMD ["--help"]
