-- Version 2 of the tables of stepfold-session-scopes. Never changed once released: a new version is a new file.

-- By which tags the events of a stream are found: the first 16 bytes of BLAKE3 of each. What is missing or too much is
-- told by the events, which have the tags themselves.
CREATE TABLE stepfold_tags (
    stream BIGINT NOT NULL, tag BYTEA NOT NULL, version BIGINT NOT NULL, PRIMARY KEY (stream, tag, version)
);
