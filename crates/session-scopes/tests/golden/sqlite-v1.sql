-- A small file as version 1 wrote it, as SQL. Never changed.
CREATE TABLE stepfold_meta (made_by TEXT NOT NULL, format INTEGER NOT NULL, newest INTEGER NOT NULL);
CREATE TABLE stepfold_schemas (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE stepfold_sessions (
    number INTEGER PRIMARY KEY,
    app TEXT NOT NULL, user TEXT NOT NULL, id TEXT NOT NULL,
    version INTEGER NOT NULL, oldest INTEGER NOT NULL,
    created INTEGER NOT NULL, updated INTEGER NOT NULL,
    parent_id TEXT, parent_version INTEGER,
    life TEXT NOT NULL, claims INTEGER NOT NULL DEFAULT 0, claim_owner TEXT, claim_expires INTEGER,
    inbox INTEGER NOT NULL DEFAULT 0, inbox_last INTEGER NOT NULL DEFAULT 0,
    UNIQUE (app, user, id)
);
CREATE TABLE stepfold_inbox (
    number INTEGER NOT NULL, position INTEGER NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL,
    kind TEXT NOT NULL, body TEXT NOT NULL, at INTEGER NOT NULL
);
CREATE UNIQUE INDEX stepfold_inbox_by_position ON stepfold_inbox (number, position);
CREATE UNIQUE INDEX stepfold_inbox_by_key ON stepfold_inbox (number, key);
CREATE TABLE stepfold_taken (
    number INTEGER NOT NULL, place INTEGER NOT NULL, key TEXT NOT NULL, position INTEGER NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (number, place)
) WITHOUT ROWID;
CREATE UNIQUE INDEX stepfold_taken_by_key ON stepfold_taken (number, key);
CREATE TABLE stepfold_recent (
    app TEXT NOT NULL, user TEXT NOT NULL, updated INTEGER NOT NULL, number INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (app, user, updated, number)
) WITHOUT ROWID;
CREATE TABLE stepfold_lineage (
    number INTEGER NOT NULL, stream INTEGER NOT NULL, after INTEGER NOT NULL, upto INTEGER NOT NULL,
    PRIMARY KEY (number, stream)
) WITHOUT ROWID;
CREATE INDEX stepfold_lineage_by_stream ON stepfold_lineage (stream);
CREATE TABLE stepfold_events (
    number INTEGER PRIMARY KEY, at INTEGER NOT NULL, id TEXT, trail TEXT, body TEXT
);
CREATE UNIQUE INDEX stepfold_events_by_id ON stepfold_events (number >> 32, id);
CREATE TABLE stepfold_rewinds (
    stream INTEGER NOT NULL, version INTEGER NOT NULL, target INTEGER NOT NULL,
    PRIMARY KEY (stream, version)
) WITHOUT ROWID;
CREATE TABLE stepfold_cells (
    stream INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, schema INTEGER NOT NULL,
    value TEXT, generation INTEGER, start INTEGER, length INTEGER, last INTEGER, ladder BLOB
);
CREATE UNIQUE INDEX stepfold_cells_by_key ON stepfold_cells (stream, key);
CREATE TABLE stepfold_scopes (
    scope INTEGER PRIMARY KEY, app TEXT NOT NULL, user TEXT NOT NULL,
    version INTEGER NOT NULL, known INTEGER NOT NULL, UNIQUE (app, user)
);
CREATE TABLE stepfold_shared (
    scope INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, schema INTEGER NOT NULL,
    value TEXT, start INTEGER, length INTEGER
);
CREATE UNIQUE INDEX stepfold_shared_by_key ON stepfold_shared (scope, key);
CREATE INDEX stepfold_shared_by_version ON stepfold_shared (scope, version);
CREATE TABLE stepfold_removed (
    scope INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX stepfold_removed_by_version ON stepfold_removed (scope, version);
CREATE TABLE stepfold_shared_items (
    scope INTEGER NOT NULL, key TEXT NOT NULL, place INTEGER NOT NULL, item TEXT NOT NULL,
    PRIMARY KEY (scope, key, place)
) WITHOUT ROWID;
CREATE TABLE stepfold_operations (
    scope INTEGER NOT NULL, number INTEGER NOT NULL, operation TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (scope, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX stepfold_operations_by_id ON stepfold_operations (scope, operation);
INSERT INTO stepfold_meta VALUES ('stepfold-session-scopes', 1, 2);
INSERT INTO stepfold_schemas VALUES (1, '{"version":1,"open":true,"keys":{"n":{"type":{"format":"int64","type":"integer"},"handler":"sum"},"list":{"type":{"items":true,"type":"array"},"handler":"merge_lists"},"app:n":{"type":{"format":"int64","type":"integer"},"handler":"sum"},"app:list":{"type":{"items":true,"type":"array"},"handler":"merge_lists"},"app:union":{"type":{"items":true,"type":"array"},"handler":"union"},"app:tasks":{"type":{"items":true,"type":"array"},"handler":"upsert_by(id)"},"user:list":{"type":{"items":true,"type":"array"},"handler":"merge_lists"},"user:name":{"type":{"type":"string"},"handler":"replace_values"}}}');
INSERT INTO stepfold_sessions VALUES (1, 'app', 'alice', 'golden', 0, 0, 1700000000000000, 1700000000000000, NULL, NULL, '0f5e1d6c2b7a49388c6b0d1e2f3a4b5c', 1, 'worker-1', 1700000060000000, 2, 2);
INSERT INTO stepfold_inbox VALUES (1, 2, 'm2', X'9b1f29c7e1f04a2cc9a1d9d2b6a0f6b1', 'message', '{"text":"later"}', 1700000003000000);
INSERT INTO stepfold_taken VALUES (1, 1, 'm1', 1, X'9b1f29c7e1f04a2cc9a1d9d2b6a0f6b2');
INSERT INTO stepfold_sessions VALUES (2, 'app', 'alice', 'fork', 1, 0, 1700000002000000, 1700000002000000, 'golden', 1, '7a49388c6b0d1e2f3a4b5c0f5e1d6c2b', 0, NULL, NULL, 0, 0);
INSERT INTO stepfold_recent VALUES ('app', 'alice', 1700000001000000, 1, 4);
INSERT INTO stepfold_recent VALUES ('app', 'alice', 1700000002000000, 2, 1);
INSERT INTO stepfold_lineage VALUES (1, 1, 0, 9223372036854775807);
INSERT INTO stepfold_lineage VALUES (2, 1, 0, 1);
INSERT INTO stepfold_lineage VALUES (2, 2, 1, 9223372036854775807);
INSERT INTO stepfold_events VALUES (4294967296, 1700000000000000, NULL, '{"items":[["list",0,0,null,[1]]]}', NULL);
INSERT INTO stepfold_events VALUES (4294967297, 1700000001000000, 'e1', '{"replaced":[["list",0,1,null,[0,0,1,4294967296],0]],"items":[["list",0,1,4294967296,[2]]]}', '{"v":1,"invocation":"i","author":"agent","messages":[{"role":"user","parts":[{"text":"hi"}]}],"delta":[{"key":"list","handler":"merge_lists","value":[2]},{"key":"app:n","handler":"sum","value":1},{"key":"app:tasks","handler":"upsert_by(id)","value":[{"id":1}]},{"key":"n","handler":"sum","value":2}]}');
INSERT INTO stepfold_events VALUES (4294967298, 1700000001000000, 'e2', '{"replaced":[["list",1,1,null,[0,0,2,4294967297],0],["n",1,1,"2",null,0]],"items":[["list",0,2,4294967297,[9]]]}', '{"v":1,"invocation":"i","author":"agent","messages":[{"role":"user","parts":[{"text":"no"}]}],"delta":[{"key":"list","handler":"merge_lists","value":[9]},{"key":"app:n","handler":"sum","value":2},{"key":"app:tasks","handler":"upsert_by(id)","value":[{"done":true,"id":1}]},{"key":"n","handler":"sum","value":5}]}');
INSERT INTO stepfold_events VALUES (4294967299, 1700000001000000, 'e4', '{"replaced":[["list",2,1,null,[0,0,3,4294967298],0],["n",2,1,"7",null,0]]}', '{"v":1,"invocation":"i","author":"user","kind":"rewind","rewound_to":1}');
INSERT INTO stepfold_events VALUES (4294967300, 1700000001000000, 'e5', '{"replaced":[["list",3,1,null,[0,0,2,4294967297],0]],"items":[["list",0,2,4294967297,[3]]]}', '{"v":1,"invocation":"i","author":"agent","delta":[{"key":"list","handler":"merge_lists","value":[3]}]}');
INSERT INTO stepfold_rewinds VALUES (1, 3, 1);
INSERT INTO stepfold_cells VALUES (2, 'list', 1, 1, NULL, 0, 0, 2, 4294967297, NULL);
INSERT INTO stepfold_cells VALUES (2, 'n', 1, 1, '2', NULL, NULL, NULL, NULL, NULL);
INSERT INTO stepfold_cells VALUES (1, 'list', 4, 1, NULL, 0, 0, 3, 4294967300, X'020000000103000000000400000000');
INSERT INTO stepfold_cells VALUES (1, 'n', 3, 1, '2', NULL, NULL, NULL, NULL, X'0300000001');
INSERT INTO stepfold_scopes VALUES (1, 'app', 'alice', 1, 0);
INSERT INTO stepfold_scopes VALUES (2, 'app', '', 2, 0);
INSERT INTO stepfold_shared VALUES (1, 'user:name', 1, 1, '"Ada"', NULL, NULL);
INSERT INTO stepfold_shared VALUES (2, 'app:n', 2, 1, '3', NULL, NULL);
INSERT INTO stepfold_shared VALUES (2, 'app:tasks', 2, 1, NULL, 0, 1);
INSERT INTO stepfold_shared_items VALUES (2, 'app:tasks', 0, '{"done":true,"id":1}');
