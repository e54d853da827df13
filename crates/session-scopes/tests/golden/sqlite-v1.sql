CREATE TABLE stepfold_meta (
    made_by TEXT NOT NULL, format INTEGER NOT NULL, newest INTEGER NOT NULL, logged INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE stepfold_schemas (id INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, text TEXT NOT NULL);
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
CREATE TABLE stepfold_forks (
    parent INTEGER NOT NULL, number INTEGER NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (parent, number)
) WITHOUT ROWID;
CREATE TABLE stepfold_labels (
    number INTEGER NOT NULL, label TEXT NOT NULL, version INTEGER NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (number, label)
) WITHOUT ROWID;
CREATE TABLE stepfold_recent (
    app TEXT NOT NULL, user TEXT NOT NULL, updated INTEGER NOT NULL, number INTEGER NOT NULL,
    version INTEGER NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (app, user, updated, number)
) WITHOUT ROWID;
CREATE TABLE stepfold_lineage (
    number INTEGER NOT NULL, stream INTEGER NOT NULL, after INTEGER NOT NULL, upto INTEGER NOT NULL,
    PRIMARY KEY (number, stream)
) WITHOUT ROWID;
CREATE INDEX stepfold_lineage_by_stream ON stepfold_lineage (stream);
CREATE TABLE stepfold_events (
    number INTEGER PRIMARY KEY, at INTEGER NOT NULL, seal BLOB, id TEXT, trail TEXT, body TEXT
);
CREATE UNIQUE INDEX stepfold_events_by_id ON stepfold_events (number >> 32, id);
CREATE TABLE stepfold_rewinds (
    stream INTEGER NOT NULL, version INTEGER NOT NULL, target INTEGER NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (stream, version)
) WITHOUT ROWID;
CREATE TABLE stepfold_cells (
    stream INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, schema INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    value TEXT, generation INTEGER, start INTEGER, length INTEGER, last INTEGER, ladder BLOB
);
CREATE UNIQUE INDEX stepfold_cells_by_key ON stepfold_cells (stream, key);
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
INSERT INTO stepfold_meta VALUES ('stepfold-session-scopes', 1, 2, 0, 8570986877772289382);
INSERT INTO stepfold_schemas VALUES (1, 1639025561129650979, '{"version":1,"open":true,"keys":{"n":{"type":{"format":"int64","type":"integer"},"handler":"sum"},"list":{"type":{"items":true,"type":"array"},"handler":"merge_lists"},"app:n":{"type":{"format":"int64","type":"integer"},"handler":"sum"},"app:list":{"type":{"items":true,"type":"array"},"handler":"merge_lists"},"app:union":{"type":{"items":true,"type":"array"},"handler":"union"},"app:tasks":{"type":{"items":true,"type":"array"},"handler":"upsert_by(id)"},"user:list":{"type":{"items":true,"type":"array"},"handler":"merge_lists"},"user:name":{"type":{"type":"string"},"handler":"replace_values"}}}');
INSERT INTO stepfold_sessions VALUES (1, 'app', 'alice', 'golden', 1, 0, 1700000000000000, 1700000001000000, NULL, NULL, 'golden-life', 1, 'worker-1', 1700000060000000, 2, 2, -8256789129006835500, 1808825485967021594, X'8B01BDBD735B473DCE027F1EAFA8A4586D5B59CC11172EC35EBB4E89D95A75A9B2EC29683A31EF34000000000000000067DAD1B75A35777E934EDC6329F4351239E4FAF8DB592C36B59FAD8F7E683EA12989B6E2BB0C6279F028E180916975310FC7E2BDF4832F40B12FCAEF580B0BA3');
INSERT INTO stepfold_sessions VALUES (2, 'app', 'alice', 'fork', 1, 0, 1700000002000000, 1700000002000000, 'golden', 1, 'fork-life', 0, NULL, NULL, 0, 0, 0, 4546906846425434046, X'8B01BDBD735B473DCE027F1EAFA8A4586D5B59CC11172EC35EBB4E89D95A75A9B2EC29683A31EF34000000000000000067DAD1B75A35777E934EDC6329F4351239E4FAF8DB592C36B59FAD8F7E683EA1E68899662199AF7800000000000000000000000000000000613AA710BB4129D9');
INSERT INTO stepfold_inbox VALUES (1, 2, -8256789129006835500, 'm2', X'3C8EEDA0F60D2E674F8455E35645D5A5', 'message', '{"text":"later"}', 1700000003000000);
INSERT INTO stepfold_taken VALUES (1, 1, 'm1', 1, X'93B8DF970D87819DF761EDC420EF726E', -8522520619831652430);
INSERT INTO stepfold_forks VALUES (1, 2, 4625060429513803535);
INSERT INTO stepfold_labels VALUES (1, 'noted', 1, 3563870753787029744);
INSERT INTO stepfold_recent VALUES ('app', 'alice', 1700000001000000, 1, 4, 3931192524924057450);
INSERT INTO stepfold_recent VALUES ('app', 'alice', 1700000002000000, 2, 1, 1800824061651453533);
INSERT INTO stepfold_lineage VALUES (1, 1, 0, 9223372036854775807);
INSERT INTO stepfold_lineage VALUES (2, 1, 0, 1);
INSERT INTO stepfold_lineage VALUES (2, 2, 1, 9223372036854775807);
INSERT INTO stepfold_events VALUES (4294967296, 1700000000000000, NULL, NULL, '40a6d9118d650ca1{"items":[["list",0,0,null,[1]]]}', NULL);
INSERT INTO stepfold_events VALUES (4294967297, 1700000001000000, X'8B01BDBD735B473DCE027F1EAFA8A4586D5B59CC11172EC35EBB4E89D95A75A9B2EC29683A31EF34000000000000000034FE499892DA340A', 'e1', '8211fcf99abb24fb{"replaced":[["list",0,1,null,[0,0,1,4294967296],0]],"items":[["list",0,1,4294967296,[2]]]}', '{"v":1,"invocation":"i","author":"agent","messages":[{"role":"user","parts":[{"text":"hi"}]}],"delta":[{"key":"list","handler":"merge_lists","value":[2]},{"key":"n","handler":"sum","value":2},{"key":"app:n","handler":"sum","value":1},{"key":"app:tasks","handler":"upsert_by(id)","value":[{"done":true,"id":1}]}]}');
INSERT INTO stepfold_events VALUES (4294967298, 1700000001000000, X'37BA49F5B1F3B0CA9A664D21EFED6B27C80A6F69F4A6A536EA37328A780E897BE05C258921C5318200000000000000009CCADB1B7B5504A1', 'e2', '8e260eeb97ee912e{"replaced":[["list",1,1,null,[0,0,2,4294967297],0],["n",1,1,"2",null,0]],"items":[["list",0,2,4294967297,[9]]]}', '{"v":1,"invocation":"i","author":"agent","delta":[{"key":"list","handler":"merge_lists","value":[9]},{"key":"n","handler":"sum","value":5},{"key":"app:n","handler":"sum","value":2}]}');
INSERT INTO stepfold_events VALUES (4294967299, 1700000001000000, X'DD0F481CE7B73147AEA2EA1942E6937587A3E9C2C79764C56BE4E22E1F8911B108A30EB8FCFDBFB80100000000000000F63441E43374BE84', 'e4', '58f2ef222104bf50{"replaced":[["list",2,1,null,[0,0,3,4294967298],0],["n",2,1,"7",null,0]]}', '{"v":1,"invocation":"i","author":"user","kind":"rewind","rewound_to":1}');
INSERT INTO stepfold_events VALUES (4294967300, 1700000001000000, X'9357AE55C118061CBF93913039D43290483072D12D75E152DA52B7525ACA8F4EA892C8DFC95E2B6C0100000000000000628AEE8E5838D0EF', 'e5', '9d5d92083072da63{"replaced":[["list",3,1,null,[0,0,2,4294967297],0]],"items":[["list",0,2,4294967297,[3]]]}', '{"v":1,"invocation":"i","author":"agent","delta":[{"key":"list","handler":"merge_lists","value":[3]}]}');
INSERT INTO stepfold_rewinds VALUES (1, 3, 1, -6123140201446132494);
INSERT INTO stepfold_cells VALUES (1, 'list', 4, 1, 7859050779897822319, NULL, 0, 0, 3, 4294967300, X'020000000103000000000400000000');
INSERT INTO stepfold_cells VALUES (1, 'n', 3, 1, 88853468589616839, '2', NULL, NULL, NULL, NULL, X'0300000001');
INSERT INTO stepfold_cells VALUES (2, 'list', 1, 1, -7771042296886546371, NULL, 0, 0, 2, 4294967297, X'00000000000100000000');
INSERT INTO stepfold_cells VALUES (2, 'n', 1, 1, -6861085536763552625, '2', NULL, NULL, NULL, NULL, NULL);
INSERT INTO stepfold_scopes VALUES (1, 'app', '', 3, 0, X'5AC75E26DD34B8CCFBC1DC1A38A7C194');
INSERT INTO stepfold_scopes VALUES (2, 'app', 'alice', 1, 0, X'BB8EF77DD94DBFE3BBE6781C91DF2098');
INSERT INTO stepfold_shared VALUES (1, 'app:tasks', 2, 1, 2, -3842074127204905526, NULL, 0, 1);
INSERT INTO stepfold_shared VALUES (2, 'user:name', 1, 1, 1, -2035822910031556933, '"Ada"', NULL, NULL);
INSERT INTO stepfold_shared VALUES (1, 'app:n', 3, 1, 3, 438539331622488720, '3', NULL, NULL);
INSERT INTO stepfold_shared_items VALUES (1, 'app:tasks', 0, 2, -6756144091538915388, '{"done":true,"id":1}');
