-- Version 1 of the tables of stepfold-session-scopes. Never changed once released: a new version is a new file.

-- What is called `seal` or `checksum` tells damage: see `seal.rs`. It stands before what is large, which so need not be
-- read for it.

-- One row: the version of the tables, the number of the newest session, and whether the file says of itself that
-- commits are in its log: see `file.rs`.
CREATE TABLE stepfold_meta (
    made_by TEXT NOT NULL, format INTEGER NOT NULL, newest INTEGER NOT NULL, logged INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
INSERT INTO stepfold_meta VALUES ('stepfold-session-scopes', 0, 0, 0, 0);

-- The JSON of schemas, once each. They are few, and a connection asks once for each.
CREATE TABLE stepfold_schemas (id INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, text TEXT NOT NULL);

-- A number is never used again: forks refer to sessions that were deleted, and tokens of claims begin with it. An
-- append touches this table only if it takes, renews or releases a claim, or takes from the inbox: `version` and
-- `updated` are those that the session was made with or pruned at, and hold until it has a newer event.
-- `claims` counts those that were ever given; the newest has an owner until it is released,
-- and expires; without an owner the session is due then. `inbox` is the newest position
-- that waits (0: none does), `inbox_last` the newest that was ever given, `waiting` the checksums of what waits, combined.
-- `work` is the checksum of these columns, which the seal leaves out.
CREATE TABLE stepfold_sessions (
    number INTEGER PRIMARY KEY,
    app TEXT NOT NULL, user TEXT NOT NULL, id TEXT NOT NULL,
    version INTEGER NOT NULL, oldest INTEGER NOT NULL,
    created INTEGER NOT NULL, updated INTEGER NOT NULL,
    parent_id TEXT, parent_version INTEGER,
    life TEXT NOT NULL, claims INTEGER NOT NULL DEFAULT 0, claim_owner TEXT, claim_expires INTEGER,
    inbox INTEGER NOT NULL DEFAULT 0, inbox_last INTEGER NOT NULL DEFAULT 0,
    waiting INTEGER NOT NULL DEFAULT 0, work INTEGER NOT NULL, seal BLOB NOT NULL,
    UNIQUE (app, user, id)
);
-- Those in which work may be left: few, whatever the number of idle ones.
CREATE INDEX stepfold_sessions_at_work ON stepfold_sessions (app, claim_expires) WHERE claim_expires IS NOT NULL OR inbox > 0;

-- What waits in the inboxes of sessions, and what was taken from them last.
CREATE TABLE stepfold_inbox (
    number INTEGER NOT NULL, position INTEGER NOT NULL, checksum INTEGER NOT NULL, key TEXT NOT NULL,
    digest BLOB NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL, at INTEGER NOT NULL
);
CREATE UNIQUE INDEX stepfold_inbox_by_position ON stepfold_inbox (number, position);
CREATE UNIQUE INDEX stepfold_inbox_by_key ON stepfold_inbox (number, key);
CREATE TABLE stepfold_taken (
    number INTEGER NOT NULL, place INTEGER NOT NULL, key TEXT NOT NULL, position INTEGER NOT NULL, digest BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (number, place)
) WITHOUT ROWID;
CREATE UNIQUE INDEX stepfold_taken_by_key ON stepfold_taken (number, key);

-- Which sessions were forked from which that is still there, by their numbers; and the names of versions.
CREATE TABLE stepfold_forks (
    parent INTEGER NOT NULL, number INTEGER NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (parent, number)
) WITHOUT ROWID;
CREATE TABLE stepfold_labels (
    number INTEGER NOT NULL, label TEXT NOT NULL, version INTEGER NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (number, label)
) WITHOUT ROWID;

-- The list of sessions: when each was written last, and which version that gave it.
CREATE TABLE stepfold_recent (
    app TEXT NOT NULL, user TEXT NOT NULL, updated INTEGER NOT NULL, number INTEGER NOT NULL,
    version INTEGER NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (app, user, updated, number)
) WITHOUT ROWID;

-- Whose rows a session's history is made of: those of `stream` behind `after` up to `upto`.
CREATE TABLE stepfold_lineage (
    number INTEGER NOT NULL, stream INTEGER NOT NULL, after INTEGER NOT NULL, upto INTEGER NOT NULL,
    PRIMARY KEY (number, stream)
) WITHOUT ROWID;
CREATE INDEX stepfold_lineage_by_stream ON stepfold_lineage (stream);

-- All that an event leaves for ever, in one row, so that an append writes one page. Its number is that of the
-- stream, shifted by 32 bits, and the version. `trail` is a checksum and JSON: the values that the event replaced, and
-- the items that it added to lists. `body` is the rest of the event. The row of version 0 has the items of the
-- initial state. Where retention took the event, `id`, `body` and `seal` are null and the trail has what other rows
-- still need.
CREATE TABLE stepfold_events (
    number INTEGER PRIMARY KEY, at INTEGER NOT NULL, seal BLOB, id TEXT, trail TEXT, body TEXT
);
CREATE UNIQUE INDEX stepfold_events_by_id ON stepfold_events (number >> 32, id);

-- Each names the rewind before it, and the newest one up to its target: the next that counts. See `rewinds.rs`.
CREATE TABLE stepfold_rewinds (
    stream INTEGER NOT NULL, version INTEGER NOT NULL, target INTEGER NOT NULL, previous INTEGER NOT NULL,
    visible INTEGER NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (stream, version)
) WITHOUT ROWID;

-- The values of sessions as they are: `value` is JSON, but for a list, which has the four columns behind it. A
-- key that was removed keeps a row with neither, so that the way to its past is not lost. `last` is the row of
-- events with the newest items of a list; each row tells where the items before its own are. `ladder` has some
-- of the versions that gave the key a value, and is null where the newest is all there is to know.
CREATE TABLE stepfold_cells (
    stream INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, schema INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    value TEXT, generation INTEGER, start INTEGER, length INTEGER, last INTEGER, ladder BLOB
);
CREATE UNIQUE INDEX stepfold_cells_by_key ON stepfold_cells (stream, key);

-- What outlives sessions. An app's own scope has the empty user. Whoever has a session has both scopes. `version` counts
-- the writes of a scope, and what was removed up to `known` is forgotten. `changed` is the version of the last change of a
-- key that was not one at the ends of a list; each item has the version that it came with.
CREATE TABLE stepfold_scopes (
    scope INTEGER PRIMARY KEY, app TEXT NOT NULL, user TEXT NOT NULL,
    version INTEGER NOT NULL, known INTEGER NOT NULL, seal BLOB NOT NULL, UNIQUE (app, user)
);
CREATE TABLE stepfold_shared (
    scope INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, schema INTEGER NOT NULL,
    changed INTEGER NOT NULL, checksum INTEGER NOT NULL, value TEXT, start INTEGER, length INTEGER
);
CREATE UNIQUE INDEX stepfold_shared_by_key ON stepfold_shared (scope, key);
CREATE INDEX stepfold_shared_by_version ON stepfold_shared (scope, version);
-- Keys that were removed, and at which version of the scope. A key that has a value again may still have a row.
CREATE TABLE stepfold_removed (
    scope INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX stepfold_removed_by_version ON stepfold_removed (scope, version);
CREATE TABLE stepfold_shared_items (
    scope INTEGER NOT NULL, key TEXT NOT NULL, place INTEGER NOT NULL, version INTEGER NOT NULL,
    checksum INTEGER NOT NULL, item TEXT NOT NULL,
    PRIMARY KEY (scope, key, place)
) WITHOUT ROWID;
CREATE TABLE stepfold_operations (
    scope INTEGER NOT NULL, number INTEGER NOT NULL, operation TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (scope, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX stepfold_operations_by_id ON stepfold_operations (scope, operation);
