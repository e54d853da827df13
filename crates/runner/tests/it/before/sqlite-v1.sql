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
INSERT INTO stepfold_meta VALUES ('stepfold-session-scopes', 1, 1, 0, -2309696267130697378);
INSERT INTO stepfold_schemas VALUES (1, -3465874419062609394, '{"version":1,"open":false,"keys":{"topic":{"type":{"type":"string"},"handler":"replace_values"}}}');
INSERT INTO stepfold_sessions VALUES (1, 'old', 'ada', 's1', 0, 0, 1795446801534665, 1795446801534665, NULL, NULL, '76b5f41165239a630b9e67c804098d2e', 4, NULL, NULL, 0, 0, 0, 2327000701100475809, X'F6B62B5C7E3D553CB4125E987B9B44A35F754144E0BABD78F5A3DC298603C39C00000000000000000000000000000000F6B62B5C7E3D553CB4125E987B9B44A35F754144E0BABD78F5A3DC298603C39C30192793155A2F1A000000000000000000000000000000009D3F25DC61A31ECC');
INSERT INTO stepfold_recent VALUES ('old', 'ada', 1795446801620798, 1, 12, -5315123674673679819);
INSERT INTO stepfold_lineage VALUES (1, 1, 0, 9223372036854775807);
INSERT INTO stepfold_events VALUES (4294967297, 1795446801559016, X'797D401D50388E30F6DC5551E7579B81614AD352E0D5DBF2BC17182BC3A6041000000000000000000000000000000000C44CF4F42A850661', 'mkn7pn64yx9sgrby.0', NULL, '{"v":1,"author":"user","kind":"began","messages":[{"role":"user","parts":[{"text":"send it"}]}],"record":["stepfold.run",1,{"us":18,"kind":{"began":{"id":"old/ada/s1@76b5f41165239a630b9e67c804098d2e/mkn7pn64yx9sgrby","tools":"0b07e294e024c9395cf8fc892c41f6aa"}}}],"metadata":{"agent":{"approval":"Never","exit conditions":"","hooks":"[]","limits":"b56f7ca4c978010993e744b00f75df9b","model":"sender","model parameters":"4664517ff89b6f7bc86444fcb6de5b1b","name":"agent","rules":"fe5fef896cda1f06179cea5f78a76099","state key topic":"fe45f885240fb5f9e4754900d4033157","tool send":"38e0cbe7cc90036ea058fceb517dfa7d","trim":"none"}}}');
INSERT INTO stepfold_events VALUES (4294967298, 1795446801561627, X'5551BB936AF29E115E9A47ED4EE1C9B019AF3C4B677C6C854FB9248A940CC83B00000000000000000000000000000000E5AA6010653CB858', 'mkn7pn64yx9sgrby.1', NULL, '{"v":1,"author":"agent","kind":"replied","messages":[{"role":"assistant","parts":[{"tool_call":{"id":"c1","name":"send","arguments":{"to":"Bob"}}}]}],"record":["stepfold.run",1,{"step":1,"us":2848,"kind":{"replied":{"fates":[[0,{"ask":"rule"}]]}}}]}');
INSERT INTO stepfold_events VALUES (4294967299, 1795446801572537, X'9A5CE5AFD9A674D59F7D163DC2341E94B703EECB26633002F00CCC623F5E9FE500000000000000000000000000000000C6C0EA43A640A433', 'mkn7pn64yx9sgrby.2.9q57715k2dwwq1hn', NULL, '{"v":1,"author":"user","kind":"decided","record":["stepfold.run",1,{"step":1,"us":2868,"kind":{"decided":{"decisions":[["c1#341b1d4a97858e95","approve"]],"by":"ada","idempotency_key":"click-1"}}}]}');
INSERT INTO stepfold_events VALUES (4294967300, 1795446801575593, X'22B27897C3E3D4EF6793CC7D6FA54A49605407CDA51571BDD16EE0656B84514200000000000000000000000000000000F5FCB0C0F54EDCDA', 'mkn7pn64yx9sgrby.3.9q57715k2dwwq1hn', NULL, '{"v":1,"author":"agent","kind":"answered","messages":[{"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"send","value":"sent to Bob"}}]}],"record":["stepfold.run",1,{"step":1,"us":5969,"end":{"repeats":1},"kind":{"answered":[{"outcome":{}}]}}]}');
INSERT INTO stepfold_events VALUES (4294967301, 1795446801580761, X'44F886143D357C6AE562E488C84D51CA45F38260C2C63E9BF0F4B6F29AAF387B000000000000000000000000000000008935B8E8A6BB95E5', 'mkn7pn64yx9sgrby.4.9q57715k2dwwq1hn', NULL, '{"v":1,"author":"agent","kind":"replied","messages":[{"role":"assistant","parts":[{"text":"done"}]}],"record":["stepfold.run",1,{"step":2,"us":11180,"kind":{"replied":{"finish_reason":"stop"}}}],"metadata":{"exit":"text"}}');
INSERT INTO stepfold_events VALUES (4294967302, 1795446801586632, X'11F137C58AB4691698C183444CFF6CC2163C93C08689D290692D29D822B88717D4EA813F04983BF60000000000000000A34B9F4A256CBFF9', 'vpcbeed8pg164qmt.0', NULL, '{"v":1,"author":"user","kind":"state","delta":[{"key":"topic","handler":"replace_values","value":"rows"}],"metadata":{"edit":{"idempotency_key":"edit-1"}}}');
INSERT INTO stepfold_events VALUES (4294967303, 1795446801589458, X'63D39DC0F912CE989B3EF6AD992FD7EAC2DBE03B9FC51FC5F34A799A919A75B6D4EA813F04983BF600000000000000002A76D76EDE1C27DD', '7tr9ymyx698pz02c.0', NULL, '{"v":1,"author":"user","kind":"began","messages":[{"role":"user","parts":[{"text":"send it"}]}],"record":["stepfold.run",1,{"us":8,"kind":{"began":{"id":"old/ada/s1@76b5f41165239a630b9e67c804098d2e/7tr9ymyx698pz02c","tools":"0b07e294e024c9395cf8fc892c41f6aa","messages_before":4}}}],"metadata":{"agent":{"approval":"Never","exit conditions":"","hooks":"[]","limits":"b56f7ca4c978010993e744b00f75df9b","model":"sender","model parameters":"4664517ff89b6f7bc86444fcb6de5b1b","name":"agent","rules":"fe5fef896cda1f06179cea5f78a76099","state key topic":"fe45f885240fb5f9e4754900d4033157","tool send":"38e0cbe7cc90036ea058fceb517dfa7d","trim":"none"}}}');
INSERT INTO stepfold_events VALUES (4294967304, 1795446801592661, X'0C6E3ABB769E8538D8D0994C4A63EEE22BE08F83542BAC83EB71162566971984D4EA813F04983BF6000000000000000096F4B6C404C881C4', '7tr9ymyx698pz02c.1', NULL, '{"v":1,"author":"agent","kind":"replied","messages":[{"role":"assistant","parts":[{"tool_call":{"id":"c1-2","name":"send","arguments":{"to":"Bob"}}}]}],"record":["stepfold.run",1,{"step":1,"us":3213,"kind":{"replied":{"fates":[[0,{"ask":"rule"}]]}}}]}');
INSERT INTO stepfold_events VALUES (4294967305, 1795446801599553, X'EC102C75F42E144591950A0B0439366B87AE923AEE5724642539BF9BA0A1E7E4D7087E08AF0A3B620000000000000000BFB53387B2471673', '7tr9ymyx698pz02c.2.4d4nddqq6jdw874f', 'b1a8bd44be48c9f7{"replaced":[["topic",6,1,"\"rows\"",null,0]]}', '{"v":1,"author":"user","kind":"edited","delta":[{"key":"topic","handler":"replace_values","value":"stalls"}],"record":["stepfold.run",1,{"step":1,"us":3213,"kind":{"edited":{"idempotency_key":"edit-2"}}}]}');
INSERT INTO stepfold_events VALUES (4294967306, 1795446801613422, X'D09D6C126C529155C87BFC0363C8131A6FEE7C05C218754F23A9068755777D6BD7087E08AF0A3B620000000000000000C8C7864D860E9580', '7tr9ymyx698pz02c.3.sea6ntjdzpavfxnr', NULL, '{"v":1,"author":"user","kind":"decided","record":["stepfold.run",1,{"step":1,"us":3223,"kind":{"decided":{"decisions":[["c1-2#81a76116f1b7e6f9","approve"]]}}}]}');
INSERT INTO stepfold_events VALUES (4294967307, 1795446801614951, X'5A7DB685484BB1C4464F28B5D1F3292473D742005AEBDCF080BD19A41CE17D71D7087E08AF0A3B6200000000000000004062732736BF1D4A', '7tr9ymyx698pz02c.4.sea6ntjdzpavfxnr', NULL, '{"v":1,"author":"agent","kind":"answered","messages":[{"role":"tool","parts":[{"tool_result":{"call_id":"c1-2","name":"send","value":"sent to Bob"}}]}],"record":["stepfold.run",1,{"step":1,"us":4874,"end":{"repeats":1},"kind":{"answered":[{"outcome":{}}]}}]}');
INSERT INTO stepfold_events VALUES (4294967308, 1795446801620798, X'F7014006DFEBE982EE04A5F199BB3851CA435E1DB166434E9CEBC0760A2CE613D7087E08AF0A3B620000000000000000EEB91BD19DBE24A2', '7tr9ymyx698pz02c.5.sea6ntjdzpavfxnr', NULL, '{"v":1,"author":"agent","kind":"replied","messages":[{"role":"assistant","parts":[{"text":"done"}]}],"record":["stepfold.run",1,{"step":2,"us":10753,"kind":{"replied":{"finish_reason":"stop"}}}],"metadata":{"exit":"text"}}');
INSERT INTO stepfold_cells VALUES (1, 'topic', 9, 1, 7078262986220898519, '"stalls"', NULL, NULL, NULL, NULL, X'06000000000900000000');
INSERT INTO stepfold_scopes VALUES (1, 'old', '', 0, 0, X'00000000000000007E2FEB620F526107');
INSERT INTO stepfold_scopes VALUES (2, 'old', 'ada', 0, 0, X'0000000000000000E064F735D278B903');
