-- Version 1 of the tables of stepfold-session-scopes. Never changed once released: a new version is a new file.

CREATE TABLE stepfold_meta (made_by TEXT NOT NULL, format INTEGER NOT NULL);
INSERT INTO stepfold_meta VALUES ('stepfold-session-scopes', 0);

-- The JSON of schemas, once each.
CREATE TABLE stepfold_schemas (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);

-- A number is never used again: forks refer to sessions that were deleted.
CREATE TABLE stepfold_sessions (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    app TEXT NOT NULL, user TEXT NOT NULL, id TEXT NOT NULL,
    version INTEGER NOT NULL, oldest INTEGER NOT NULL,
    created INTEGER NOT NULL, updated INTEGER NOT NULL,
    parent_id TEXT, parent_version INTEGER,
    UNIQUE (app, user, id)
);
CREATE INDEX stepfold_sessions_by_time ON stepfold_sessions (app, user, updated, number);

-- Whose rows a session's history is made of: those of `stream` behind `after` up to `upto`.
CREATE TABLE stepfold_lineage (
    number INTEGER NOT NULL, stream INTEGER NOT NULL, after INTEGER NOT NULL, upto INTEGER NOT NULL,
    PRIMARY KEY (number, stream)
) WITHOUT ROWID;
CREATE INDEX stepfold_lineage_by_stream ON stepfold_lineage (stream);

CREATE TABLE stepfold_events (
    stream INTEGER NOT NULL, version INTEGER NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL, body TEXT NOT NULL
);
CREATE UNIQUE INDEX stepfold_events_by_version ON stepfold_events (stream, version);
CREATE UNIQUE INDEX stepfold_events_by_id ON stepfold_events (stream, id);

CREATE TABLE stepfold_rewinds (
    stream INTEGER NOT NULL, version INTEGER NOT NULL, target INTEGER NOT NULL,
    PRIMARY KEY (stream, version)
) WITHOUT ROWID;

-- The values of sessions as they are, and as they were until a version.
CREATE TABLE stepfold_cells (
    stream INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, schema INTEGER NOT NULL,
    value TEXT, generation INTEGER, start INTEGER, length INTEGER
);
CREATE UNIQUE INDEX stepfold_cells_by_key ON stepfold_cells (stream, key);
CREATE TABLE stepfold_past (
    stream INTEGER NOT NULL, until INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL,
    schema INTEGER NOT NULL, value TEXT, generation INTEGER, start INTEGER, length INTEGER
);
CREATE UNIQUE INDEX stepfold_past_by_until ON stepfold_past (stream, until, key);

-- Items of lists, several a row as they were written.
CREATE TABLE stepfold_items (
    stream INTEGER NOT NULL, key TEXT NOT NULL, generation INTEGER NOT NULL, version INTEGER NOT NULL,
    place INTEGER NOT NULL, items TEXT NOT NULL
);
CREATE UNIQUE INDEX stepfold_items_by_place ON stepfold_items (stream, key, generation, version, place);

-- What outlives sessions. An app's own scope has the empty user.
CREATE TABLE stepfold_scopes (
    scope INTEGER PRIMARY KEY AUTOINCREMENT, app TEXT NOT NULL, user TEXT NOT NULL, UNIQUE (app, user)
);
CREATE TABLE stepfold_shared (
    scope INTEGER NOT NULL, key TEXT NOT NULL, schema INTEGER NOT NULL,
    value TEXT, start INTEGER, length INTEGER
);
CREATE UNIQUE INDEX stepfold_shared_by_key ON stepfold_shared (scope, key);
CREATE TABLE stepfold_shared_items (
    scope INTEGER NOT NULL, key TEXT NOT NULL, place INTEGER NOT NULL, item TEXT NOT NULL
);
CREATE UNIQUE INDEX stepfold_shared_items_by_place ON stepfold_shared_items (scope, key, place);
CREATE TABLE stepfold_operations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, scope INTEGER NOT NULL, operation TEXT NOT NULL, body TEXT NOT NULL
);
CREATE UNIQUE INDEX stepfold_operations_by_id ON stepfold_operations (scope, operation);
CREATE INDEX stepfold_operations_by_number ON stepfold_operations (scope, number);
