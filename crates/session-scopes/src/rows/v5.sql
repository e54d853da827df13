-- Version 5 of the tables of stepfold-session-scopes, of both databases. Never changed once released: a new version is a
-- new file. From this version on, the seal of an event has the salt of its content, or what an erasure has left of it.

-- Erasures: when, by whom, why and of which kind. Never of what.
CREATE TABLE stepfold_erasures (
    id TEXT NOT NULL PRIMARY KEY, app TEXT NOT NULL, kind TEXT NOT NULL, at BIGINT NOT NULL,
    author TEXT NOT NULL, reason TEXT NOT NULL, sessions BIGINT NOT NULL, events BIGINT NOT NULL,
    checksum BIGINT NOT NULL
);
CREATE INDEX stepfold_erasures_by_time ON stepfold_erasures (app, at, id);
