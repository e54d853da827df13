-- Version 1 of the tables of stepfold-session-scopes. Never changed once released: a new version is a new file.

CREATE TABLE stepfold_meta (made_by TEXT NOT NULL, format BIGINT NOT NULL);
INSERT INTO stepfold_meta VALUES ('stepfold-session-scopes', 0);

-- The JSON of schemas. Texts are too long for an index, so two writers may store the same one twice; that does no harm.
CREATE TABLE stepfold_schemas (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text TEXT NOT NULL, checksum BIGINT NOT NULL);

CREATE INDEX stepfold_schemas_by_text ON stepfold_schemas (md5(text));

-- The seal covers what is here beside claim and inbox, and has the digest of the newest event: see `seal.rs`.
-- A number is never used again: forks refer to sessions that were deleted, and tokens of claims begin with it.
-- `claims` counts those that were ever given; the newest has an owner until it is released,
-- and expires; without an owner the session is due then. `inbox` is the newest position
-- that waits (0: none does), `inbox_last` the newest that was ever given, `waiting` the checksums of what waits, combined.
-- `work` is the checksum of these columns, which the seal leaves out.
CREATE TABLE stepfold_sessions (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app TEXT COLLATE "C" NOT NULL, owner TEXT COLLATE "C" NOT NULL, id TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL, oldest BIGINT NOT NULL,
    created BIGINT NOT NULL, updated BIGINT NOT NULL,
    parent_id TEXT COLLATE "C", parent_version BIGINT,
    life TEXT COLLATE "C" NOT NULL, claims BIGINT NOT NULL DEFAULT 0, claim_owner TEXT COLLATE "C", claim_expires BIGINT,
    inbox BIGINT NOT NULL DEFAULT 0, inbox_last BIGINT NOT NULL DEFAULT 0,
    waiting BIGINT NOT NULL DEFAULT 0, work BIGINT NOT NULL, seal BYTEA NOT NULL,
    UNIQUE (app, owner, id)
);
CREATE INDEX stepfold_sessions_by_time ON stepfold_sessions (app, owner, updated, number);
-- Those in which work may be left: few, whatever the number of idle ones.
CREATE INDEX stepfold_sessions_at_work ON stepfold_sessions (app, claim_expires) WHERE claim_expires IS NOT NULL OR inbox > 0;

-- What waits in the inboxes of sessions, and what was taken from them last.
CREATE TABLE stepfold_inbox (
    number BIGINT NOT NULL, position BIGINT NOT NULL, key TEXT COLLATE "C" NOT NULL, digest BYTEA NOT NULL,
    kind TEXT NOT NULL, body TEXT NOT NULL, at BIGINT NOT NULL, checksum BIGINT NOT NULL
);
CREATE UNIQUE INDEX stepfold_inbox_by_position ON stepfold_inbox (number, position);
CREATE UNIQUE INDEX stepfold_inbox_by_key ON stepfold_inbox (number, key);
CREATE TABLE stepfold_taken (
    number BIGINT NOT NULL, place BIGINT NOT NULL, key TEXT COLLATE "C" NOT NULL, position BIGINT NOT NULL,
    digest BYTEA NOT NULL, checksum BIGINT NOT NULL
);
CREATE UNIQUE INDEX stepfold_taken_by_place ON stepfold_taken (number, place);
CREATE UNIQUE INDEX stepfold_taken_by_key ON stepfold_taken (number, key);

-- Which sessions were forked from which that is still there, by their numbers; and the names of versions.
CREATE TABLE stepfold_forks (
    parent BIGINT NOT NULL, number BIGINT NOT NULL, checksum BIGINT NOT NULL, PRIMARY KEY (parent, number)
);
CREATE TABLE stepfold_labels (
    number BIGINT NOT NULL, label TEXT COLLATE "C" NOT NULL, version BIGINT NOT NULL, checksum BIGINT NOT NULL,
    PRIMARY KEY (number, label)
);

-- Whose rows a session's history is made of: those of `stream` behind `after` up to `upto`.
CREATE TABLE stepfold_lineage (
    number BIGINT NOT NULL, stream BIGINT NOT NULL, after BIGINT NOT NULL, upto BIGINT NOT NULL,
    PRIMARY KEY (number, stream)
);
CREATE INDEX stepfold_lineage_by_stream ON stepfold_lineage (stream);

CREATE TABLE stepfold_events (
    stream BIGINT NOT NULL, version BIGINT NOT NULL, id TEXT COLLATE "C" NOT NULL, at BIGINT NOT NULL, body TEXT NOT NULL,
    seal BYTEA NOT NULL
);
CREATE UNIQUE INDEX stepfold_events_by_version ON stepfold_events (stream, version);
CREATE UNIQUE INDEX stepfold_events_by_id ON stepfold_events (stream, id);

-- Each names the rewind before it, and the newest one up to its target: the next that counts. See `rewinds.rs`.
CREATE TABLE stepfold_rewinds (
    stream BIGINT NOT NULL, version BIGINT NOT NULL, target BIGINT NOT NULL, previous BIGINT NOT NULL,
    visible BIGINT NOT NULL, checksum BIGINT NOT NULL,
    PRIMARY KEY (stream, version)
);

-- The values of sessions as they are, and as they were until a version. A list has the combined checksums of the rows
-- of its items.
CREATE TABLE stepfold_cells (
    stream BIGINT NOT NULL, key TEXT COLLATE "C" NOT NULL, version BIGINT NOT NULL, schema BIGINT NOT NULL,
    value TEXT, generation BIGINT, start BIGINT, length BIGINT, items BIGINT, checksum BIGINT NOT NULL
);
CREATE UNIQUE INDEX stepfold_cells_by_key ON stepfold_cells (stream, key);
CREATE INDEX stepfold_cells_by_version ON stepfold_cells (stream, version);
CREATE TABLE stepfold_past (
    stream BIGINT NOT NULL, until BIGINT NOT NULL, key TEXT COLLATE "C" NOT NULL, version BIGINT NOT NULL,
    schema BIGINT NOT NULL, value TEXT, generation BIGINT, start BIGINT, length BIGINT, items BIGINT,
    checksum BIGINT NOT NULL
);
CREATE UNIQUE INDEX stepfold_past_by_until ON stepfold_past (stream, until, key);

-- Items of lists, several a row as they were written.
CREATE TABLE stepfold_items (
    stream BIGINT NOT NULL, key TEXT COLLATE "C" NOT NULL, generation BIGINT NOT NULL, version BIGINT NOT NULL,
    place BIGINT NOT NULL, items TEXT NOT NULL, checksum BIGINT NOT NULL
);
CREATE UNIQUE INDEX stepfold_items_by_place ON stepfold_items (stream, key, generation, version, place);

-- What outlives sessions. An app's own scope has the empty user. `version` counts the writes of a scope, and what
-- was removed up to `known` is forgotten. It has a seal once it was written. `changed` is the version of the last change of
-- a key that was not one at the ends of a list; each item has the version that it came with.
CREATE TABLE stepfold_scopes (
    scope BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, app TEXT COLLATE "C" NOT NULL, owner TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL DEFAULT 0, known BIGINT NOT NULL DEFAULT 0, seal BYTEA,
    UNIQUE (app, owner)
);
CREATE TABLE stepfold_shared (
    scope BIGINT NOT NULL, key TEXT COLLATE "C" NOT NULL, version BIGINT NOT NULL, schema BIGINT NOT NULL,
    changed BIGINT NOT NULL, value TEXT, start BIGINT, length BIGINT, checksum BIGINT NOT NULL
);
CREATE UNIQUE INDEX stepfold_shared_by_key ON stepfold_shared (scope, key);
CREATE INDEX stepfold_shared_by_version ON stepfold_shared (scope, version);
-- Keys that were removed, and at which version of the scope. A key that has a value again may still have a row.
CREATE TABLE stepfold_removed (
    scope BIGINT NOT NULL, key TEXT COLLATE "C" NOT NULL, version BIGINT NOT NULL, PRIMARY KEY (scope, key)
);
CREATE INDEX stepfold_removed_by_version ON stepfold_removed (scope, version);
CREATE TABLE stepfold_shared_items (
    scope BIGINT NOT NULL, key TEXT COLLATE "C" NOT NULL, place BIGINT NOT NULL, version BIGINT NOT NULL,
    item TEXT NOT NULL, checksum BIGINT NOT NULL
);
CREATE UNIQUE INDEX stepfold_shared_items_by_place ON stepfold_shared_items (scope, key, place);
CREATE TABLE stepfold_operations (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, scope BIGINT NOT NULL, operation TEXT COLLATE "C" NOT NULL, body TEXT NOT NULL
);
CREATE UNIQUE INDEX stepfold_operations_by_id ON stepfold_operations (scope, operation);
CREATE INDEX stepfold_operations_by_number ON stepfold_operations (scope, number);
