CREATE TABLE public.stepfold_cells (
    stream bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    schema bigint NOT NULL,
    value text,
    generation bigint,
    start bigint,
    length bigint,
    items bigint,
    checksum bigint NOT NULL
);
CREATE TABLE public.stepfold_events (
    stream bigint NOT NULL,
    version bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    at bigint NOT NULL,
    body text NOT NULL,
    seal bytea NOT NULL
);
CREATE TABLE public.stepfold_forks (
    parent bigint NOT NULL,
    number bigint NOT NULL,
    checksum bigint NOT NULL
);
CREATE TABLE public.stepfold_inbox (
    number bigint NOT NULL,
    "position" bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    digest bytea NOT NULL,
    kind text NOT NULL,
    body text NOT NULL,
    at bigint NOT NULL,
    checksum bigint NOT NULL
);
CREATE TABLE public.stepfold_items (
    stream bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    version bigint NOT NULL,
    place bigint NOT NULL,
    items text NOT NULL,
    checksum bigint NOT NULL
);
CREATE TABLE public.stepfold_labels (
    number bigint NOT NULL,
    label text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    checksum bigint NOT NULL
);
CREATE TABLE public.stepfold_lineage (
    number bigint NOT NULL,
    stream bigint NOT NULL,
    after bigint NOT NULL,
    upto bigint NOT NULL
);
CREATE TABLE public.stepfold_meta (
    made_by text NOT NULL,
    format bigint NOT NULL
);
CREATE TABLE public.stepfold_operations (
    number bigint NOT NULL,
    scope bigint NOT NULL,
    operation text NOT NULL COLLATE pg_catalog."C",
    body text NOT NULL
);
ALTER TABLE public.stepfold_operations ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.stepfold_operations_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.stepfold_past (
    stream bigint NOT NULL,
    until bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    schema bigint NOT NULL,
    value text,
    generation bigint,
    start bigint,
    length bigint,
    items bigint,
    checksum bigint NOT NULL
);
CREATE TABLE public.stepfold_removed (
    scope bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL
);
CREATE TABLE public.stepfold_rewinds (
    stream bigint NOT NULL,
    version bigint NOT NULL,
    target bigint NOT NULL,
    previous bigint NOT NULL,
    visible bigint NOT NULL,
    checksum bigint NOT NULL
);
CREATE TABLE public.stepfold_schemas (
    id bigint NOT NULL,
    text text NOT NULL,
    checksum bigint NOT NULL
);
ALTER TABLE public.stepfold_schemas ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.stepfold_schemas_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.stepfold_scopes (
    scope bigint NOT NULL,
    app text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    version bigint DEFAULT 0 NOT NULL,
    known bigint DEFAULT 0 NOT NULL,
    seal bytea
);
ALTER TABLE public.stepfold_scopes ALTER COLUMN scope ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.stepfold_scopes_scope_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.stepfold_sessions (
    number bigint NOT NULL,
    app text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    oldest bigint NOT NULL,
    created bigint NOT NULL,
    updated bigint NOT NULL,
    parent_id text COLLATE pg_catalog."C",
    parent_version bigint,
    life text NOT NULL COLLATE pg_catalog."C",
    claims bigint DEFAULT 0 NOT NULL,
    claim_owner text COLLATE pg_catalog."C",
    claim_expires bigint,
    inbox bigint DEFAULT 0 NOT NULL,
    inbox_last bigint DEFAULT 0 NOT NULL,
    waiting bigint DEFAULT 0 NOT NULL,
    work bigint NOT NULL,
    seal bytea NOT NULL
);
ALTER TABLE public.stepfold_sessions ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.stepfold_sessions_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.stepfold_shared (
    scope bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    schema bigint NOT NULL,
    changed bigint NOT NULL,
    value text,
    start bigint,
    length bigint,
    checksum bigint NOT NULL
);
CREATE TABLE public.stepfold_shared_items (
    scope bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    place bigint NOT NULL,
    version bigint NOT NULL,
    item text NOT NULL,
    checksum bigint NOT NULL
);
CREATE TABLE public.stepfold_taken (
    number bigint NOT NULL,
    place bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    "position" bigint NOT NULL,
    digest bytea NOT NULL,
    checksum bigint NOT NULL
);
INSERT INTO public.stepfold_cells VALUES (1, 'topic', 9, 1, '"stalls"', NULL, NULL, NULL, NULL, 5889319123080236064);
INSERT INTO public.stepfold_events VALUES (1, 1, 'natxn3njzsm8csxw.0', 1795446802986784, '{"v":1,"author":"user","kind":"began","messages":[{"role":"user","parts":[{"text":"send it"}]}],"record":["stepfold.run",1,{"us":12,"kind":{"began":{"id":"old/ada/s1@1cccd28faca866aa0f6e4e3b30def0fc/natxn3njzsm8csxw","tools":"0b07e294e024c9395cf8fc892c41f6aa"}}}],"metadata":{"agent":{"approval":"Never","exit conditions":"","hooks":"[]","limits":"b56f7ca4c978010993e744b00f75df9b","model":"sender","model parameters":"4664517ff89b6f7bc86444fcb6de5b1b","name":"agent","rules":"fe5fef896cda1f06179cea5f78a76099","state key topic":"fe45f885240fb5f9e4754900d4033157","tool send":"38e0cbe7cc90036ea058fceb517dfa7d","trim":"none"}}}', '\x70bb42e89c4149f9a4e2583d81bbf9915795be405f4d50e47b88853af6e9a73f00000000000000000000000000000000e6ee2a1f6ca2a247');
INSERT INTO public.stepfold_events VALUES (1, 2, 'natxn3njzsm8csxw.1', 1795446802990666, '{"v":1,"author":"agent","kind":"replied","messages":[{"role":"assistant","parts":[{"tool_call":{"id":"c1","name":"send","arguments":{"to":"Bob"}}}]}],"record":["stepfold.run",1,{"step":1,"us":4074,"kind":{"replied":{"fates":[[0,{"ask":"rule"}]]}}}]}', '\xa3084861d2ab88fb61ade531dc984c79e990b60e75ba7dd9ae0aee8a23cbe80400000000000000000000000000000000d0d32ff9e3e12744');
INSERT INTO public.stepfold_events VALUES (1, 3, 'natxn3njzsm8csxw.2.0jsegy1x6h356q9n', 1795446803005042, '{"v":1,"author":"user","kind":"decided","record":["stepfold.run",1,{"step":1,"us":4086,"kind":{"decided":{"decisions":[["c1#2883649049cd1e9e","approve"]],"by":"ada","idempotency_key":"click-1"}}}]}', '\x10997b582ac22702dc64b37c9933fbe09fc9322ead2d4c1403c3fbfb3d4c1ff60000000000000000000000000000000045fe0c90aaa1c52c');
INSERT INTO public.stepfold_events VALUES (1, 4, 'natxn3njzsm8csxw.3.0jsegy1x6h356q9n', 1795446803006834, '{"v":1,"author":"agent","kind":"answered","messages":[{"role":"tool","parts":[{"tool_result":{"call_id":"c1","name":"send","value":"sent to Bob"}}]}],"record":["stepfold.run",1,{"step":1,"us":5959,"end":{"repeats":1},"kind":{"answered":[{"outcome":{}}]}}]}', '\x94f1d98e2616fdb1d19bf235f12db2130ca3ef1f77c224c6389c70a8c500a64f00000000000000000000000000000000bc6f807500cfc737');
INSERT INTO public.stepfold_events VALUES (1, 5, 'natxn3njzsm8csxw.4.0jsegy1x6h356q9n', 1795446803008205, '{"v":1,"author":"agent","kind":"replied","messages":[{"role":"assistant","parts":[{"text":"done"}]}],"record":["stepfold.run",1,{"step":2,"us":7320,"kind":{"replied":{"finish_reason":"stop"}}}],"metadata":{"exit":"text"}}', '\xa4b68fbfe7d172caf208c1c8a05a7631105565ad9d27345f735212cc636e9523000000000000000000000000000000006513a55f206bf457');
INSERT INTO public.stepfold_events VALUES (1, 6, '09jcpe2qp14vxyhc.0', 1795446803031396, '{"v":1,"author":"user","kind":"state","delta":[{"key":"topic","handler":"replace_values","value":"rows"}],"metadata":{"edit":{"idempotency_key":"edit-1"}}}', '\x4e3e4eefe766da95661ecde0ed6ca35ee5b05f726b1531fb3e33367faf497cb4206c6bd86101de1b000000000000000079c5eaf4b0e516c7');
INSERT INTO public.stepfold_events VALUES (1, 7, 'tmk8rxhje72jfz7p.0', 1795446803046750, '{"v":1,"author":"user","kind":"began","messages":[{"role":"user","parts":[{"text":"send it"}]}],"record":["stepfold.run",1,{"us":11,"kind":{"began":{"id":"old/ada/s1@1cccd28faca866aa0f6e4e3b30def0fc/tmk8rxhje72jfz7p","tools":"0b07e294e024c9395cf8fc892c41f6aa","messages_before":4}}}],"metadata":{"agent":{"approval":"Never","exit conditions":"","hooks":"[]","limits":"b56f7ca4c978010993e744b00f75df9b","model":"sender","model parameters":"4664517ff89b6f7bc86444fcb6de5b1b","name":"agent","rules":"fe5fef896cda1f06179cea5f78a76099","state key topic":"fe45f885240fb5f9e4754900d4033157","tool send":"38e0cbe7cc90036ea058fceb517dfa7d","trim":"none"}}}', '\x87ef16c5804050aaf8511e3d71cc3df8db31ead59a706d01f6a7071ca7523698206c6bd86101de1b0000000000000000afac56312e9d05a5');
INSERT INTO public.stepfold_events VALUES (1, 8, 'tmk8rxhje72jfz7p.1', 1795446803051139, '{"v":1,"author":"agent","kind":"replied","messages":[{"role":"assistant","parts":[{"tool_call":{"id":"c1-2","name":"send","arguments":{"to":"Bob"}}}]}],"record":["stepfold.run",1,{"step":1,"us":4376,"kind":{"replied":{"fates":[[0,{"ask":"rule"}]]}}}]}', '\xcaacd7c17bf35d4f8e0fccfa7b3ece1b17a9d3847971c492da50dfb6c84e4dfa206c6bd86101de1b000000000000000022433fbb51c4a469');
INSERT INTO public.stepfold_events VALUES (1, 9, 'tmk8rxhje72jfz7p.2.xp6cns8h7t1aqbw7', 1795446803070726, '{"v":1,"author":"user","kind":"edited","delta":[{"key":"topic","handler":"replace_values","value":"stalls"}],"record":["stepfold.run",1,{"step":1,"us":4376,"kind":{"edited":{"idempotency_key":"edit-2"}}}]}', '\xf96b0b7fa3168fa1c94bbb67792169f86e3ece95bc95e7c6ec16d6e623ec46712a923cc2569933ec000000000000000003e4ef05c013bd98');
INSERT INTO public.stepfold_events VALUES (1, 10, 'tmk8rxhje72jfz7p.3.jt05wpdt2ws17d2j', 1795446803085080, '{"v":1,"author":"user","kind":"decided","record":["stepfold.run",1,{"step":1,"us":4388,"kind":{"decided":{"decisions":[["c1-2#2844859d5425ce90","approve"]]}}}]}', '\x134c795b1509f82c522c2e12e50591aa2e0916322e2b79a2db859b2eb4e19ab02a923cc2569933ec000000000000000060c8cc0ec5dbf13f');
INSERT INTO public.stepfold_events VALUES (1, 11, 'tmk8rxhje72jfz7p.4.jt05wpdt2ws17d2j', 1795446803088075, '{"v":1,"author":"agent","kind":"answered","messages":[{"role":"tool","parts":[{"tool_result":{"call_id":"c1-2","name":"send","value":"sent to Bob"}}]}],"record":["stepfold.run",1,{"step":1,"us":7456,"end":{"repeats":1},"kind":{"answered":[{"outcome":{}}]}}]}', '\x18b77b234f2be8c8d993be66bc0937611e7de0a1f42d46ade6d4a514cca910712a923cc2569933ec0000000000000000a0ff3fa812153352');
INSERT INTO public.stepfold_events VALUES (1, 12, 'tmk8rxhje72jfz7p.5.jt05wpdt2ws17d2j', 1795446803090491, '{"v":1,"author":"agent","kind":"replied","messages":[{"role":"assistant","parts":[{"text":"done"}]}],"record":["stepfold.run",1,{"step":2,"us":9840,"kind":{"replied":{"finish_reason":"stop"}}}],"metadata":{"exit":"text"}}', '\x36b39ecd7c1f9f8f18c6e2fe7151d0a38e9de141bf556a81c39e51c8f6a8c5a12a923cc2569933ec000000000000000020776c8828534e4d');
INSERT INTO public.stepfold_lineage VALUES (1, 1, 0, 9223372036854775807);
INSERT INTO public.stepfold_meta VALUES ('stepfold-session-scopes', 1);
INSERT INTO public.stepfold_past VALUES (1, 9, 'topic', 6, 1, '"rows"', NULL, NULL, NULL, NULL, -5111340398834513348);
INSERT INTO public.stepfold_schemas OVERRIDING SYSTEM VALUE VALUES (1, '{"version":1,"open":false,"keys":{"topic":{"type":{"type":"string"},"handler":"replace_values"}}}', -4134475601847815401);
INSERT INTO public.stepfold_sessions OVERRIDING SYSTEM VALUE VALUES (1, 'old', 'ada', 's1', 12, 0, 1795446802940800, 1795446803090491, NULL, NULL, '1cccd28faca866aa0f6e4e3b30def0fc', 4, NULL, NULL, 0, 0, 0, 2327000701100475809, '\x36b39ecd7c1f9f8f18c6e2fe7151d0a38e9de141bf556a81c39e51c8f6a8c5a12a923cc2569933ec00000000000000007263ddfb8f4e5001adefcbfff4c8aed639f53a6caaea7b730f88e51144a6048630192793155a2f1a0000000000000000000000000000000032b0a7708ce28598');
SELECT pg_catalog.setval('public.stepfold_operations_number_seq', 1, false);
SELECT pg_catalog.setval('public.stepfold_schemas_id_seq', 1, true);
SELECT pg_catalog.setval('public.stepfold_scopes_scope_seq', 1, false);
SELECT pg_catalog.setval('public.stepfold_sessions_number_seq', 1, true);
ALTER TABLE ONLY public.stepfold_forks
    ADD CONSTRAINT stepfold_forks_pkey PRIMARY KEY (parent, number);
ALTER TABLE ONLY public.stepfold_labels
    ADD CONSTRAINT stepfold_labels_pkey PRIMARY KEY (number, label);
ALTER TABLE ONLY public.stepfold_lineage
    ADD CONSTRAINT stepfold_lineage_pkey PRIMARY KEY (number, stream);
ALTER TABLE ONLY public.stepfold_operations
    ADD CONSTRAINT stepfold_operations_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.stepfold_removed
    ADD CONSTRAINT stepfold_removed_pkey PRIMARY KEY (scope, key);
ALTER TABLE ONLY public.stepfold_rewinds
    ADD CONSTRAINT stepfold_rewinds_pkey PRIMARY KEY (stream, version);
ALTER TABLE ONLY public.stepfold_schemas
    ADD CONSTRAINT stepfold_schemas_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.stepfold_scopes
    ADD CONSTRAINT stepfold_scopes_app_owner_key UNIQUE (app, owner);
ALTER TABLE ONLY public.stepfold_scopes
    ADD CONSTRAINT stepfold_scopes_pkey PRIMARY KEY (scope);
ALTER TABLE ONLY public.stepfold_sessions
    ADD CONSTRAINT stepfold_sessions_app_owner_id_key UNIQUE (app, owner, id);
ALTER TABLE ONLY public.stepfold_sessions
    ADD CONSTRAINT stepfold_sessions_pkey PRIMARY KEY (number);
CREATE UNIQUE INDEX stepfold_cells_by_key ON public.stepfold_cells USING btree (stream, key);
CREATE INDEX stepfold_cells_by_version ON public.stepfold_cells USING btree (stream, version);
CREATE UNIQUE INDEX stepfold_events_by_id ON public.stepfold_events USING btree (stream, id);
CREATE UNIQUE INDEX stepfold_events_by_version ON public.stepfold_events USING btree (stream, version);
CREATE UNIQUE INDEX stepfold_inbox_by_key ON public.stepfold_inbox USING btree (number, key);
CREATE UNIQUE INDEX stepfold_inbox_by_position ON public.stepfold_inbox USING btree (number, "position");
CREATE UNIQUE INDEX stepfold_items_by_place ON public.stepfold_items USING btree (stream, key, generation, version, place);
CREATE INDEX stepfold_lineage_by_stream ON public.stepfold_lineage USING btree (stream);
CREATE UNIQUE INDEX stepfold_operations_by_id ON public.stepfold_operations USING btree (scope, operation);
CREATE INDEX stepfold_operations_by_number ON public.stepfold_operations USING btree (scope, number);
CREATE UNIQUE INDEX stepfold_past_by_until ON public.stepfold_past USING btree (stream, until, key);
CREATE INDEX stepfold_removed_by_version ON public.stepfold_removed USING btree (scope, version);
CREATE INDEX stepfold_schemas_by_text ON public.stepfold_schemas USING btree (md5(text));
CREATE INDEX stepfold_sessions_at_work ON public.stepfold_sessions USING btree (app, claim_expires) WHERE ((claim_expires IS NOT NULL) OR (inbox > 0));
CREATE INDEX stepfold_sessions_by_time ON public.stepfold_sessions USING btree (app, owner, updated, number);
CREATE UNIQUE INDEX stepfold_shared_by_key ON public.stepfold_shared USING btree (scope, key);
CREATE INDEX stepfold_shared_by_version ON public.stepfold_shared USING btree (scope, version);
CREATE UNIQUE INDEX stepfold_shared_items_by_place ON public.stepfold_shared_items USING btree (scope, key, place);
CREATE UNIQUE INDEX stepfold_taken_by_key ON public.stepfold_taken USING btree (number, key);
CREATE UNIQUE INDEX stepfold_taken_by_place ON public.stepfold_taken USING btree (number, place);
