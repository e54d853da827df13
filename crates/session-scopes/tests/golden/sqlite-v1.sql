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
CREATE INDEX stepfold_sessions_at_work ON stepfold_sessions (app, claim_expires) WHERE claim_expires IS NOT NULL OR inbox > 0;
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
    stream INTEGER NOT NULL, version INTEGER NOT NULL, target INTEGER NOT NULL, previous INTEGER NOT NULL,
    visible INTEGER NOT NULL, checksum INTEGER NOT NULL,
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
INSERT INTO stepfold_meta VALUES ('stepfold-session-scopes', 1, 2, 0, 5375176578672238507);
INSERT INTO stepfold_schemas VALUES (1, -5688111762167056563, '{"version":1,"open":true,"keys":{"n":{"type":{"format":"int64","type":"integer"},"handler":"sum"},"list":{"type":{"items":true,"type":"array"},"handler":"merge_lists"},"app:n":{"type":{"format":"int64","type":"integer"},"handler":"sum"},"app:list":{"type":{"items":true,"type":"array"},"handler":"merge_lists"},"app:union":{"type":{"items":true,"type":"array"},"handler":"union"},"app:tasks":{"type":{"items":true,"type":"array"},"handler":"upsert_by(id)"},"user:list":{"type":{"items":true,"type":"array"},"handler":"merge_lists"},"user:name":{"type":{"type":"string"},"handler":"replace_values"}}}');
INSERT INTO stepfold_sessions VALUES (1, 'app', 'alice', 'golden', 1, 0, 1700000000000000, 1700000001000000, NULL, NULL, 'golden-life', 1, 'worker-1', 1700000060000000, 2, 2, -7796353979591029967, -2963232253082057610, X'8B01BDBD735B473DCE027F1EAFA8A4586D5B59CC11172EC35EBB4E89D95A75A9EE84CE8DD83E6FF5000000000000000067DAD1B75A35777E934EDC6329F4351239E4FAF8DB592C36B59FAD8F7E683EA130192793155A2F1A3C19AD1C90F9354D069E5087017D9EC422241F3EBBDC2F49');
INSERT INTO stepfold_sessions VALUES (2, 'app', 'alice', 'fork', 1, 0, 1700000002000000, 1700000002000000, 'golden', 1, 'fork-life', 0, NULL, NULL, 0, 0, 0, -9044561480239998274, X'8B01BDBD735B473DCE027F1EAFA8A4586D5B59CC11172EC35EBB4E89D95A75A9EE84CE8DD83E6FF5000000000000000067DAD1B75A35777E934EDC6329F4351239E4FAF8DB592C36B59FAD8F7E683EA1D7A891AC87A65BF3000000000000000000000000000000009CF43740E0C78F35');
INSERT INTO stepfold_inbox VALUES (1, 2, -7796353979591029967, 'm2', X'3C8EEDA0F60D2E674F8455E35645D5A5', 'message', '{"text":"later"}', 1700000003000000);
INSERT INTO stepfold_taken VALUES (1, 1, 'm1', 1, X'93B8DF970D87819DF761EDC420EF726E', -9016841897761695815);
INSERT INTO stepfold_forks VALUES (1, 2, -4278845150436745722);
INSERT INTO stepfold_labels VALUES (1, 'noted', 1, 5563627312037828924);
INSERT INTO stepfold_recent VALUES ('app', 'alice', 1700000001000000, 1, 4, -8235868441466002285);
INSERT INTO stepfold_recent VALUES ('app', 'alice', 1700000002000000, 2, 1, 8173887540169691582);
INSERT INTO stepfold_lineage VALUES (1, 1, 0, 9223372036854775807);
INSERT INTO stepfold_lineage VALUES (2, 1, 0, 1);
INSERT INTO stepfold_lineage VALUES (2, 2, 1, 9223372036854775807);
INSERT INTO stepfold_events VALUES (4294967296, 1700000000000000, NULL, NULL, '5290c8c7bc00681e{"items":[["list",0,0,null,[1]]]}', NULL);
INSERT INTO stepfold_events VALUES (4294967297, 1700000001000000, X'8B01BDBD735B473DCE027F1EAFA8A4586D5B59CC11172EC35EBB4E89D95A75A9EE84CE8DD83E6FF5000000000000000025FF31DA837F331C', 'e1', 'c8220896c4dc7302{"replaced":[["list",0,1,null,[0,0,1,4294967296],0]],"items":[["list",0,1,4294967296,[2]]]}', '{"v":1,"invocation":"i","author":"agent","messages":[{"role":"user","parts":[{"text":"hi"}]}],"delta":[{"key":"list","handler":"merge_lists","value":[2]},{"key":"n","handler":"sum","value":2},{"key":"app:n","handler":"sum","value":1},{"key":"app:tasks","handler":"upsert_by(id)","value":[{"done":true,"id":1}]}]}');
INSERT INTO stepfold_events VALUES (4294967298, 1700000001000000, X'37BA49F5B1F3B0CA9A664D21EFED6B27C80A6F69F4A6A536EA37328A780E897B1C4DBFA709296B0F00000000000000009B930F875541B218', 'e2', '5c713d387aedc400{"replaced":[["list",1,1,null,[0,0,2,4294967297],0],["n",1,1,"2",null,0]],"items":[["list",0,2,4294967297,[9]]]}', '{"v":1,"invocation":"i","author":"agent","delta":[{"key":"list","handler":"merge_lists","value":[9]},{"key":"n","handler":"sum","value":5},{"key":"app:n","handler":"sum","value":2}]}');
INSERT INTO stepfold_events VALUES (4294967299, 1700000001000000, X'DD0F481CE7B73147AEA2EA1942E6937587A3E9C2C79764C56BE4E22E1F8911B13FD2D4CBD46EDB100300000000000000AAAAE0F235B33A2B', 'e4', '98ce6a4d15f64253{"replaced":[["list",2,1,null,[0,0,3,4294967298],0],["n",2,1,"7",null,0]]}', '{"v":1,"invocation":"i","author":"user","kind":"rewind","rewound_to":1}');
INSERT INTO stepfold_events VALUES (4294967300, 1700000001000000, X'9357AE55C118061CBF93913039D43290483072D12D75E152DA52B7525ACA8F4EF331A1751B25D6F20300000000000000D094BF865552567F', 'e5', 'f1fd2bfedc21c2bf{"replaced":[["list",3,1,null,[0,0,2,4294967297],0]],"items":[["list",0,2,4294967297,[3]]]}', '{"v":1,"invocation":"i","author":"agent","delta":[{"key":"list","handler":"merge_lists","value":[3]}]}');
INSERT INTO stepfold_rewinds VALUES (1, 3, 1, 0, 0, 3913272307590112611);
INSERT INTO stepfold_cells VALUES (1, 'list', 4, 1, -6443769450534880463, NULL, 0, 0, 3, 4294967300, X'020000000103000000000400000000');
INSERT INTO stepfold_cells VALUES (1, 'n', 3, 1, 6072264930491075266, '2', NULL, NULL, NULL, NULL, X'0300000001');
INSERT INTO stepfold_cells VALUES (2, 'list', 1, 1, -4965659571132944150, NULL, 0, 0, 2, 4294967297, X'00000000000100000000');
INSERT INTO stepfold_cells VALUES (2, 'n', 1, 1, 5654638997563290628, '2', NULL, NULL, NULL, NULL, NULL);
INSERT INTO stepfold_scopes VALUES (1, 'app', '', 3, 0, X'6E4A7B4AC2C94555C95C412DFF4B37EB');
INSERT INTO stepfold_scopes VALUES (2, 'app', 'alice', 1, 0, X'1FFE377C2E31BF2997312FBF9D833284');
INSERT INTO stepfold_shared VALUES (1, 'app:tasks', 2, 1, 2, -7754226461446757098, NULL, 0, 1);
INSERT INTO stepfold_shared VALUES (2, 'user:name', 1, 1, 1, 3008177151829081631, '"Ada"', NULL, NULL);
INSERT INTO stepfold_shared VALUES (1, 'app:n', 3, 1, 3, -4528723606645805192, '3', NULL, NULL);
INSERT INTO stepfold_shared_items VALUES (1, 'app:tasks', 0, 2, -662085873759752496, '{"done":true,"id":1}');
