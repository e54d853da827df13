-- Version 8 of the tables of stepfold-session-scopes, of both databases. Never changed once released: a new version is a
-- new file.

-- Raises of budgets, a row for each that changed a limit: `counter` is the id of the budget, the other texts are names for
-- people. `owner` is the user whose budget it is, NULL for one that users share.
CREATE TABLE stepfold_raises (
    id TEXT NOT NULL PRIMARY KEY, app TEXT NOT NULL, owner TEXT, counter TEXT NOT NULL,
    budget TEXT NOT NULL, shared_by TEXT NOT NULL, unit TEXT NOT NULL,
    author TEXT NOT NULL, at BIGINT NOT NULL, limit_before BIGINT NOT NULL, limit_after BIGINT NOT NULL
);
CREATE INDEX stepfold_raises_by_time ON stepfold_raises (at, id);
